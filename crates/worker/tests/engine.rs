//! What the worker does for an engine with a cache: cases 47, 48, 50, 53, 54 and 59 of the field, and panics.
//!
//! The engine here is a double: its cache is the list of tokens, its hidden states are the tokens themselves, and it
//! samples the sum of all it has seen, so that whatever reaches the wrong sequence changes what comes out.

use proptest::prelude::*;
use restage_worker::{
    Description, Engine, EngineError, Limits, Model, Partial, Positions, Sampling, SequenceId, Stage, Worker,
    greedy,
};
use serde_json::{Value, json};

const CONTEXT: u64 = 16;
const VOCAB: u64 = 50;
/// Ids beyond it are rows that only pad the head.
const HEAD: usize = 64;
/// A token at which the engine panics, after it has touched the cache.
const PANIC: u64 = 49;
/// A token that makes a NaN.
const NOT_FINITE: u64 = 48;
/// A token for which there is no memory.
const NO_MEMORY: u64 = 47;
/// A token the engine says it cannot do.
const FAILS: u64 = 46;

struct Double {
    description: Description,
}

impl Double {
    fn new() -> Self {
        let model = Model {
            total_blocks: 4,
            layer_range: (0, 2),
            eos_token_ids: vec![2],
            max_context: CONTEXT,
            digest: "sha256:00".into(),
        };
        let description = Description {
            hidden_dim: 1,
            hidden_dtype: "f16",
            element_bytes: 2,
            vocab_size: VOCAB,
            token_limit: Some(VOCAB),
            positions: Positions::Continue,
            quick: false,
            model: Some(model),
        };
        Double { description }
    }

    fn take(cache: &mut Vec<u64>, position: u64, tokens: &[u64]) -> Result<(), EngineError> {
        assert_eq!(position, cache.len() as u64, "the worker lets nothing else through");
        let room = 1000;
        for token in tokens {
            match *token {
                NOT_FINITE => return Err(EngineError::NotFinite { what: "the hidden state", element: 3 }),
                NO_MEMORY => return Err(EngineError::OutOfMemory { wanted: 2000, available: room }),
                FAILS => return Err(EngineError::Failed("cannot".into())),
                _ => {}
            }
        }
        for token in tokens {
            cache.push(*token);
            assert_ne!(*token, PANIC, "a fault of the engine's");
        }
        Ok(())
    }
}

fn of_hidden(input: &[u8]) -> Vec<u64> {
    input.chunks_exact(2).map(|b| u64::from(u16::from_le_bytes([b[0], b[1]]))).collect()
}

fn to_hidden(tokens: &[u64], out: &mut Vec<u8>) {
    out.extend(tokens.iter().flat_map(|t| (*t as u16).to_le_bytes()));
}

impl Engine for Double {
    type Sequence = Vec<u64>;

    fn description(&self) -> &Description {
        &self.description
    }

    fn start(&mut self) -> Result<Vec<u64>, EngineError> {
        Ok(Vec::new())
    }

    fn tokenize(&mut self, prompt: &str, _: bool, tokens: &mut Vec<u64>) -> Result<(), EngineError> {
        tokens.extend(prompt.bytes().map(|b| u64::from(b) % VOCAB));
        Ok(())
    }

    fn detokenize(&mut self, tokens: &[u64], text: &mut String) -> Result<(), EngineError> {
        assert_ne!(tokens, [PANIC]);
        text.push_str(&format!("{tokens:?}"));
        Ok(())
    }

    fn detokenize_next(
        &mut self,
        cache: &mut Vec<u64>,
        tokens: &[u64],
        partial: Partial,
        text: &mut String,
    ) -> Result<(), EngineError> {
        assert_ne!(tokens, [PANIC]);
        text.push_str(&format!("{cache:?} {tokens:?} {partial:?}"));
        Ok(())
    }

    fn embed_and_forward(
        &mut self,
        cache: &mut Vec<u64>,
        position: u64,
        tokens: &[u64],
        hidden: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        Double::take(cache, position, tokens)?;
        to_hidden(tokens, hidden);
        Ok(())
    }

    fn forward_range(
        &mut self,
        cache: &mut Vec<u64>,
        position: u64,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        self.embed_and_forward(cache, position, &of_hidden(input), output)
    }

    fn forward_and_sample(
        &mut self,
        cache: &mut Vec<u64>,
        position: u64,
        input: &[u8],
        sampling: &Sampling,
    ) -> Result<u64, EngineError> {
        assert!(sampling.is_greedy());
        Double::take(cache, position, &of_hidden(input))?;
        let mut logits = [9.0; HEAD];
        logits[..VOCAB as usize].fill(0.0);
        logits[(cache.iter().sum::<u64>() % VOCAB) as usize] = 1.0;
        greedy(&logits[..self.description.vocab_size as usize])
            .map_err(|e| EngineError::Failed(e.to_string()))
    }

    fn truncate(&mut self, cache: &mut Vec<u64>, length: u64) -> Result<(), EngineError> {
        cache.truncate(length as usize);
        Ok(())
    }

    fn sequence_bytes(&self, cache: &Vec<u64>) -> u64 {
        cache.len() as u64 * 8
    }

    fn weight_bytes(&self) -> u64 {
        1 << 30
    }
}

struct Asked(Worker<Double>);

impl Asked {
    fn stage(index: i64, count: i64) -> Self {
        // What a panic prints is of no interest here.
        std::panic::set_hook(Box::new(|_| ()));
        Asked(Worker::new(Double::new(), Stage::new(index, count).unwrap(), Limits::default()))
    }

    fn ask(&mut self, request: Value) -> Value {
        let mut out = b"kept".to_vec();
        self.0.answer(request.to_string().as_bytes(), &mut out);
        let reply = out.strip_prefix(b"kept").unwrap().strip_suffix(b"\n").expect("one line");
        assert!(reply.is_ascii() && !reply.contains(&b'\n'));
        serde_json::from_slice(reply).unwrap()
    }

    fn embed(&mut self, sequence: &Value, position: u64, tokens: &[u64]) -> Value {
        let mut request =
            json!({"op": "embed_and_forward", "request_id": 1, "position": position, "tokens": tokens});
        if !sequence.is_null() {
            request["sequence"] = sequence.clone();
        }
        self.ask(request)
    }

    fn sample(&mut self, sequence: &Value, position: u64, tokens: &[u64]) -> Value {
        let mut hidden = Vec::new();
        to_hidden(tokens, &mut hidden);
        // Base64 by way of the op that writes it.
        let text = Asked::stage(0, 2).embed(&Value::Null, 0, tokens)["hidden_b64"].clone();
        let mut request = json!({
            "op": "forward_and_sample", "request_id": 1, "position": position, "hidden_b64": text,
            "seq_len": tokens.len(),
        });
        if !sequence.is_null() {
            request["sequence"] = sequence.clone();
        }
        self.ask(request)
    }

    fn length(&mut self, sequence: &Value) -> Option<u64> {
        let status = self.ask(json!({"op": "status"}));
        let held = status["sequences"].as_array().unwrap();
        held.iter().find(|h| h["sequence"] == *sequence).map(|h| h["length"].as_u64().unwrap())
    }
}

/// Case 47, and its kind: only the length continues a sequence, 0 starts it anew, and a refusal changes nothing.
#[test]
fn a_position_continues_its_sequence() {
    let mut first = Asked::stage(0, 2);
    let default = Value::Null;
    assert_eq!(first.embed(&default, 3, &[1])["kind"], "position", "nothing is there yet");
    assert_eq!(first.length(&default), None);
    first.embed(&default, 0, &[1, 2, 3, 4, 5]);
    for position in [1, 4, 6, 7, 15, u64::MAX] {
        let reply = first.embed(&default, position, &[9]);
        assert_eq!(reply["kind"], "position");
        let message = reply["error"].as_str().unwrap();
        assert!(message.contains(&position.to_string()) && message.contains("length 5"), "{message}");
        let reply = first.ask(json!({"op": "decode_step", "token_id": 9, "position": position}));
        assert_eq!(reply["kind"], "position");
        assert_eq!(first.length(&default), Some(5));
    }
    assert_eq!(first.embed(&default, 5, &[9])["seq_len"], 1);
    // A second prompt starts clean.
    assert_eq!(first.embed(&default, 0, &[7, 7])["seq_len"], 2);
    assert_eq!(first.length(&default), Some(2));
}

/// Case 50: up to the context's end and not one further.
#[test]
fn the_context_ends() {
    for already in 0..CONTEXT {
        let mut first = Asked::stage(0, 2);
        let sequence = json!("s");
        if already > 0 {
            first.embed(&sequence, 0, &vec![1; already as usize]);
        }
        let left = (CONTEXT - already) as usize;
        let reply = first.embed(&sequence, already, &vec![1; left + 1]);
        assert_eq!(reply["kind"], "context");
        assert!(reply["error"].as_str().unwrap().contains(&CONTEXT.to_string()));
        assert_eq!(first.embed(&sequence, already, &vec![1; left])["seq_len"], left);
        assert_eq!(first.embed(&sequence, CONTEXT, &[1])["kind"], "context");
        assert_eq!(first.length(&sequence), Some(CONTEXT));
    }
}

/// Case 53: rows that pad the head are never sampled, and ids beyond the vocabulary are refused.
#[test]
fn tokens_are_in_the_vocabulary() {
    let mut last = Asked::stage(1, 2);
    assert_eq!(last.sample(&Value::Null, 0, &[3, 4])["token_id"], 7);
    assert_eq!(last.ask(json!({"op": "detokenize", "tokens": [VOCAB]}))["kind"], "unknown_token");
    let mut first = Asked::stage(0, 2);
    for token in [VOCAB, VOCAB + 1, u64::MAX] {
        let reply = first.embed(&Value::Null, 0, &[1, token]);
        assert_eq!(reply["kind"], "unknown_token");
        assert!(reply["error"].as_str().unwrap().contains(&token.to_string()));
        let reply = first.ask(json!({"op": "decode_step", "token_id": token, "position": 0}));
        assert_eq!(reply["kind"], "unknown_token");
    }
    assert_eq!(first.length(&Value::Null), None);
}

/// Case 54, and its kind: what the engine refuses names the stage and leaves the sequence.
#[test]
fn what_an_engine_refuses() {
    for (token, kind, says) in [
        (NOT_FINITE, "not_finite", "not finite"),
        (NO_MEMORY, "memory", "2000 bytes"),
        (FAILS, "engine", "cannot"),
    ] {
        let mut first = Asked::stage(0, 2);
        let reply = first.embed(&json!(1), 0, &[1, token]);
        assert_eq!(reply["kind"], kind);
        let message = reply["error"].as_str().unwrap();
        assert!(message.contains("stage 0") && message.contains(says), "{message}");
        assert_eq!(first.length(&json!(1)), None, "a sequence that never began is not held");
        first.embed(&json!(1), 0, &[1, 2]);
        assert_eq!(first.embed(&json!(1), 2, &[token])["kind"], kind);
        assert_eq!(first.length(&json!(1)), Some(2));
        assert_eq!(first.embed(&json!(1), 2, &[3])["seq_len"], 1);
    }
}

/// A panic is an error, its sequence is dropped, and the others go on.
#[test]
fn a_panic_costs_one_sequence() {
    let mut last = Asked::stage(1, 2);
    let (mine, other) = (json!("mine"), json!("other"));
    assert_eq!(last.sample(&mine, 0, &[1, 2])["token_id"], 3);
    assert_eq!(last.sample(&other, 0, &[4])["token_id"], 4);
    let hidden = "MQA="; // the token 49 as two bytes
    let reply = last.ask(json!({
        "op": "forward_and_sample", "request_id": {"a": 1}, "sequence": "mine", "position": 2, "seq_len": 1,
        "hidden_b64": hidden,
    }));
    assert_eq!((&reply["kind"], &reply["request_id"]), (&json!("internal"), &json!({"a": 1})));
    assert!(reply["error"].as_str().unwrap().contains("a fault of the engine's"));
    assert!(reply.as_object().unwrap().len() == 3, "{reply}");
    assert_eq!((last.length(&mine), last.length(&other)), (None, Some(1)));
    assert_eq!(last.sample(&other, 1, &[5])["token_id"], 9);
    assert_eq!(last.sample(&mine, 0, &[8])["token_id"], 8);
    // A panic that has no sequence drops none.
    let reply = last.ask(json!({"op": "detokenize", "tokens": [PANIC]}));
    assert_eq!(reply["kind"], "internal");
    assert_eq!((last.length(&mine), last.length(&other)), (Some(1), Some(2)));
    let counters = last.ask(json!({"op": "status"}))["counters"].clone();
    assert_eq!((&counters["panics"], &counters["errors"]), (&json!(2), &json!(2)));
}

/// Text as it comes belongs to a sequence, which begins with it where it is not held.
#[test]
fn text_of_a_sequence() {
    let mut last = Asked::stage(1, 2);
    let mut ask = |more: Value| {
        let mut request = json!({"op": "detokenize", "tokens": [3]});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = last.ask(request);
        let found = if reply["text"].is_null() { &reply["kind"] } else { &reply["text"] };
        (found.as_str().unwrap().to_owned(), last.length(&json!("s")))
    };
    assert_eq!(ask(json!({"sequence": "s", "stream": false})), ("[3]".into(), None));
    assert_eq!(ask(json!({"sequence": "s", "flush": true})), ("invalid_field".into(), None));
    assert_eq!(ask(json!({"sequence": "s", "stream": 1})), ("invalid_field".into(), None));
    assert_eq!(ask(json!({"sequence": [], "stream": true})), ("invalid_field".into(), None));
    assert_eq!(ask(json!({"sequence": "s", "stream": true, "tokens": [PANIC]})), ("internal".into(), None));
    assert_eq!(ask(json!({"sequence": "s", "stream": true})), ("[] [3] Keep".into(), Some(0)));
    last.sample(&json!("s"), 0, &[7, 8]);
    let flushed =
        last.ask(json!({"op": "detokenize", "tokens": [], "sequence": "s", "stream": true, "flush": true}));
    assert_eq!(flushed["text"], "[7, 8] [] Flush");
    let panicked = last.ask(json!({"op": "detokenize", "tokens": [PANIC], "sequence": "s", "stream": true}));
    assert_eq!((&panicked["kind"], last.length(&json!("s"))), (&json!("internal"), None));
}

#[test]
fn a_ready_line_with_a_model() {
    let mut out = Vec::new();
    Asked::stage(0, 2).0.ready(&mut out);
    let ready: Value = serde_json::from_slice(&out).unwrap();
    let expected = json!({
        "status": "ready", "pid": std::process::id(), "stage": 0, "protocol": 1, "role": "first", "num_stages": 2,
        "hidden_dim": 1, "hidden_dtype": "f16", "vocab_size": 50, "total_blocks": 4, "layer_range": [0, 2],
        "eos_token_ids": [2], "max_context": 16, "model_digest": "sha256:00",
    });
    assert_eq!(ready, expected);
    let memory = Asked::stage(0, 2).ask(json!({"op": "status"}))["memory"].clone();
    assert_eq!(memory["weight_bytes"], 1u64 << 30);
}

/// What may happen to a sequence.
#[derive(Debug, Clone)]
enum Step {
    Forward(Vec<u64>),
    Restart(Vec<u64>),
    Wrong(u64),
    Truncate(u64),
    Reset,
    Panic,
}

fn step() -> impl Strategy<Value = Step> {
    let tokens = || prop::collection::vec(0..FAILS, 1..5);
    prop_oneof![
        4 => tokens().prop_map(Step::Forward),
        1 => tokens().prop_map(Step::Restart),
        1 => (1..20u64).prop_map(Step::Wrong),
        1 => (0..20u64).prop_map(Step::Truncate),
        1 => Just(Step::Reset),
        1 => Just(Step::Panic),
    ]
}

proptest! {
    /// Case 48, and its kind: interleaved as they may be, each sequence is what it would be alone.
    #[test]
    fn sequences_do_not_meet(steps in prop::collection::vec((0..4usize, step()), 1..60)) {
        let names = [Value::Null, json!(1), json!("1"), json!("two")];
        let mut last = Asked::stage(1, 2);
        let mut alone: [Option<Vec<u64>>; 4] = Default::default();
        for (which, step) in steps {
            let (name, seen) = (&names[which], &mut alone[which]);
            let length = seen.as_ref().map_or(0, |s| s.len() as u64);
            match step {
                Step::Forward(tokens) | Step::Restart(tokens) if length == 0 => {
                    let reply = last.sample(name, 0, &tokens);
                    prop_assert_eq!(&reply["token_id"], &json!(tokens.iter().sum::<u64>() % VOCAB));
                    *seen = Some(tokens);
                }
                Step::Forward(tokens) => {
                    let reply = last.sample(name, length, &tokens);
                    if length + tokens.len() as u64 > CONTEXT {
                        prop_assert_eq!(&reply["kind"], "context");
                    } else {
                        let seen = seen.as_mut().unwrap();
                        seen.extend(tokens);
                        prop_assert_eq!(&reply["token_id"], &json!(seen.iter().sum::<u64>() % VOCAB));
                    }
                }
                Step::Restart(tokens) => {
                    let reply = last.sample(name, 0, &tokens);
                    prop_assert_eq!(&reply["token_id"], &json!(tokens.iter().sum::<u64>() % VOCAB));
                    *seen = Some(tokens);
                }
                Step::Wrong(position) => {
                    if position != length {
                        prop_assert_eq!(&last.sample(name, position, &[1])["kind"], "position");
                    }
                }
                Step::Truncate(to) => {
                    let mut request = json!({"op": "truncate", "length": to});
                    if !name.is_null() {
                        request["sequence"] = name.clone();
                    }
                    let reply = last.ask(request);
                    if to > length {
                        prop_assert_eq!(&reply["kind"], "length");
                    } else {
                        prop_assert_eq!(&reply["removed"], &json!(length - to));
                        if let Some(seen) = seen {
                            seen.truncate(to as usize);
                        }
                    }
                }
                Step::Reset => {
                    let mut request = json!({"op": "reset"});
                    if !name.is_null() {
                        request["sequence"] = name.clone();
                    }
                    prop_assert_eq!(&last.ask(request)["removed"], &json!(length));
                    *seen = None;
                }
                Step::Panic => {
                    if length < CONTEXT {
                        let mut request = json!({
                            "op": "forward_and_sample", "position": length, "seq_len": 1, "hidden_b64": "MQA=",
                        });
                        if !name.is_null() {
                            request["sequence"] = name.clone();
                        }
                        prop_assert_eq!(&last.ask(request)["kind"], "internal");
                        *seen = None;
                    }
                }
            }
            for (name, seen) in names.iter().zip(&alone) {
                prop_assert_eq!(last.length(name), seen.as_ref().map(|s| s.len() as u64));
            }
        }
    }
}

#[test]
fn ids_of_sequences_are_told_apart() {
    let ids = [
        SequenceId::Default,
        SequenceId::Number(1),
        SequenceId::Name("1".into()),
        SequenceId::Name(String::new()),
    ];
    for (i, a) in ids.iter().enumerate() {
        assert!(ids.iter().skip(i + 1).all(|b| a != b));
    }
}
