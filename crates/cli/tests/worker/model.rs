//! A worker with a model: small random ones, in stages.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::driver::{Driver, command};
use crate::small::{BLOCKS, Small, TOKENS, write};

/// A directory with a small model.
pub fn model(small: Small) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), small);
    dir
}

/// A stage of a model in a directory or a file.
pub fn stage(dir: &Path, index: u64, count: u64, args: &[&str]) -> Driver {
    let mut command = command(&index.to_string(), &count.to_string());
    command.env_remove("PP_WORKER_STUB").arg("--model").arg(dir).args(args);
    Driver::spawn(command)
}

/// A pipeline and the length of what it has been given, by sequence.
pub struct Pipeline(pub Vec<Driver>);

impl Pipeline {
    pub fn start(dir: &Path, count: u64, args: &[&str]) -> Pipeline {
        Pipeline((0..count).map(|index| stage(dir, index, count, args)).collect())
    }

    /// Gives tokens to every stage, and what the last one chose.
    pub fn step(&mut self, sequence: &str, position: u64, tokens: &[u64], sampling: Value) -> u64 {
        let (first, rest) = self.0.split_first_mut().unwrap();
        let (last, middle) = rest.split_last_mut().unwrap();
        let seq_len = tokens.len();
        let embed = json!({"op": "embed_and_forward", "request_id": 1, "tokens": tokens, "position": position, "sequence": sequence});
        let mut hidden = first.ok(embed)["hidden_b64"].clone();
        for stage in middle {
            let forward = json!({"op": "forward_range", "request_id": 1, "hidden_b64": hidden, "position": position, "seq_len": seq_len, "sequence": sequence});
            hidden = stage.ok(forward)["hidden_b64"].clone();
        }
        let sample = json!({"op": "forward_and_sample", "request_id": 1, "hidden_b64": hidden, "position": position,
                            "seq_len": seq_len, "sequence": sequence, "sampling": sampling});
        last.ok(sample)["token_id"].as_u64().unwrap()
    }

    /// Continues a prompt by so many tokens.
    pub fn run(&mut self, sequence: &str, prompt: &[u64], count: usize, sampling: Value) -> Vec<u64> {
        let mut tokens = vec![self.step(sequence, 0, prompt, sampling.clone())];
        while tokens.len() < count {
            let position = (prompt.len() + tokens.len() - 1) as u64;
            tokens.push(self.step(sequence, position, &tokens[tokens.len() - 1..], sampling.clone()));
        }
        tokens
    }
}

#[test]
fn the_ready_line_has_the_model_and_every_stage_reads_its_own_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let all = write(dir.path(), Small::default());
    let mut read = 0;
    let mut digests = Vec::new();
    for index in 0..3 {
        let mut driver = stage(dir.path(), index, 3, &["--max-context", "64"]);
        let ready = driver.ready.clone();
        let range = [[0, 1], [1, 2], [2, 4]][index as usize];
        for (name, expected) in [
            ("hidden_dim", json!(32)),
            ("hidden_dtype", json!("f16")),
            ("vocab_size", json!(TOKENS)),
            ("total_blocks", json!(BLOCKS)),
            ("layer_range", json!(range)),
            ("eos_token_ids", json!([257])),
            ("max_context", json!(64)),
        ] {
            assert_eq!(ready[name], expected, "{name}");
        }
        digests.push(ready["model_digest"].clone());
        let memory = driver.ok(json!({"op": "status", "request_id": 1}))["memory"].clone();
        assert_eq!(memory["read_bytes"], memory["weight_bytes"]);
        read += memory["read_bytes"].as_u64().unwrap();
    }
    assert_eq!(read, all);
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]));
}

/// Split equals whole, and threads change no byte.
#[test]
fn stages_and_threads_do_not_change_what_is_chosen() {
    let dir = model(Small::default());
    let prompt: Vec<u64> = b"a small prompt".map(u64::from).to_vec();
    let of = |count, args: &[&str]| {
        let args = [&["--hidden-dtype", "f32"], args].concat();
        Pipeline::start(dir.path(), count, &args).run("s", &prompt, 12, json!({}))
    };
    let two = of(2, &["--threads", "1"]);
    assert_eq!(of(3, &["--threads", "2"]), two);
    assert_eq!(of(4, &["--split", "balanced"]), two);
}

/// Case 47.
#[test]
fn a_gap_or_an_overlap_is_refused_and_does_no_harm() {
    let dir = model(Small::default());
    let mut pipeline = Pipeline::start(dir.path(), 3, &[]);
    let prompt = [1, 2, 3, 4, 5];
    let expected = pipeline.run("whole", &prompt, 3, json!({}));
    let first = pipeline.step("s", 0, &prompt, json!({}));
    for position in [4, 6] {
        let hidden = STANDARD.encode([0; 64]);
        for (stage, request) in [
            (0, json!({"op": "decode_step", "token_id": first, "position": position, "sequence": "s"})),
            (
                1,
                json!({"op": "forward_range", "hidden_b64": hidden, "seq_len": 1, "position": position, "sequence": "s"}),
            ),
            (
                2,
                json!({"op": "forward_and_sample", "hidden_b64": hidden, "seq_len": 1, "position": position, "sequence": "s"}),
            ),
        ] {
            let (kind, message) = pipeline.0[stage].refused(request.to_string());
            assert_eq!(kind, "position");
            assert!(message.contains("length 5"), "{message}");
        }
    }
    let second = pipeline.step("s", 5, &[first], json!({}));
    let third = pipeline.step("s", 6, &[second], json!({}));
    assert_eq!([first, second, third], expected[..]);
}

/// Case 48.
#[test]
fn sequences_do_not_meet_and_a_second_prompt_starts_clean() {
    let dir = model(Small::default());
    let mut pipeline = Pipeline::start(dir.path(), 2, &[]);
    let (a, b) = ([10, 20, 30], [40, 50, 60]);
    let alone = [pipeline.run("x", &a, 6, json!({})), pipeline.run("x", &b, 6, json!({}))];
    assert_ne!(alone[0], alone[1]);
    let mut mixed = [vec![pipeline.step("a", 0, &a, json!({}))], vec![pipeline.step("b", 0, &b, json!({}))]];
    for i in 0..5 {
        for (name, tokens) in ["a", "b"].iter().zip(&mut mixed) {
            let next = pipeline.step(name, 3 + i, &tokens[i as usize..], json!({}));
            tokens.push(next);
        }
    }
    assert_eq!(mixed, alone);
    // Forgetting the end and giving it again is as if nothing had been.
    for stage in &mut pipeline.0 {
        stage.ok(json!({"op": "truncate", "request_id": 1, "sequence": "a", "length": 4}));
    }
    assert_eq!(pipeline.step("a", 4, &alone[0][1..2], json!({})), alone[0][2]);
}

/// Case 50.
#[test]
fn the_context_ends_where_it_says() {
    let dir = model(Small::default());
    let mut first = stage(dir.path(), 0, 2, &["--max-context", "16"]);
    let embed = |position: u64, count: usize| json!({"op": "embed_and_forward", "request_id": 1, "tokens": vec![7; count], "position": position});
    assert_eq!(first.refused(embed(0, 17).to_string()).0, "context");
    first.ok(embed(0, 15));
    assert_eq!(first.refused(embed(15, 2).to_string()).0, "context");
    first.ok(embed(15, 1));
    let (kind, message) = first.refused(embed(16, 1).to_string());
    assert_eq!((&*kind, message.contains("16")), ("context", true), "{message}");
}

#[test]
fn what_does_not_fit_the_budget_is_refused_and_the_sequence_stays() {
    let dir = model(Small::default());
    // 2 blocks of 16 elements for keys and for values, in f16, by 256 positions: one page.
    let mut first = stage(dir.path(), 0, 2, &["--kv-budget", "32768"]);
    let embed = |position: u64, count: usize| json!({"op": "embed_and_forward", "request_id": 1, "tokens": vec![7; count], "position": position});
    first.ok(embed(0, 256));
    assert_eq!(first.refused(embed(256, 1).to_string()).0, "memory");
    let status = first.ok(json!({"op": "status", "request_id": 1}));
    assert_eq!(status["sequences"], json!([{"sequence": null, "length": 256, "bytes": 32768}]));
    first.ok(json!({"op": "reset", "request_id": 1}));
    first.ok(embed(0, 1));
}

/// Case 51.
#[test]
fn text_that_spells_a_control_token_is_text() {
    let dir = model(Small::default());
    let mut pipeline = Pipeline::start(dir.path(), 2, &[]);
    let text = "<s>hi</s> caf\u{e9}";
    let tokens =
        pipeline.0[0].ok(json!({"op": "tokenize", "request_id": 1, "prompt": text}))["tokens"].clone();
    assert_eq!(tokens, json!(text.bytes().collect::<Vec<_>>()));
    let back = pipeline.0[1].ok(json!({"op": "detokenize", "request_id": 1, "tokens": tokens}));
    assert_eq!(back["text"], text);
}

/// A token is a byte here: `é` is two of them, an emoji four.
#[test]
fn half_a_character_is_held_until_it_is_whole_or_flushed() {
    let dir = model(Small::default());
    let mut last = stage(dir.path(), 1, 2, &[]);
    let mut text = |sequence: &str, bytes: &[u8], more: Value| {
        let mut request = json!({"op": "detokenize", "request_id": 1, "tokens": bytes, "sequence": sequence, "stream": true});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        last.ok(request)["text"].as_str().unwrap().to_owned()
    };
    let whole = "caf\u{e9} \u{1f600}!";
    let one_by_one: Vec<String> = whole.bytes().map(|byte| text("a", &[byte], json!({}))).collect();
    assert_eq!(one_by_one, ["c", "a", "f", "", "\u{e9}", " ", "", "", "", "\u{1f600}", "!"]);
    // Two sequences hold apart, and what can be no character any more is not held.
    assert_eq!(text("a", &[0xc3], json!({})), "");
    assert_eq!(text("b", &[0xf0, 0x9f], json!({})), "");
    assert_eq!(text("a", &[0xa9], json!({})), "\u{e9}");
    assert_eq!(text("b", b"x", json!({})), "\u{fffd}x");
    assert_eq!(text("b", &[0xc3], json!({})), "");
    assert_eq!(text("b", &[], json!({"flush": true})), "\u{fffd}");
    assert_eq!(text("b", &[], json!({"flush": true})), "");
    // By itself nothing is held; a reset forgets what was.
    assert_eq!(text("a", &[0xc3], json!({"stream": false})), "\u{fffd}");
    assert_eq!(text("a", &[0xc3], json!({})), "");
    last.ok(json!({"op": "reset", "request_id": 1, "sequence": "a"}));
    let after =
        json!({"op": "detokenize", "request_id": 1, "tokens": [0xa9], "sequence": "a", "stream": true});
    assert_eq!(last.ok(after)["text"], "\u{fffd}");
}

/// Case 53. Sampling is the same for the same seed.
#[test]
fn padding_of_the_head_is_never_sampled() {
    let dir = model(Small::default());
    let mut pipeline = Pipeline::start(dir.path(), 2, &[]);
    let greedy = pipeline.run("g", &[1, 2, 3], 40, json!({}));
    let warm = json!({"temperature": 2.0, "top_k": 50, "top_p": 0.99, "seed": 3, "repeat_penalty": 1.2});
    let sampled = pipeline.run("s", &[1, 2, 3], 40, warm.clone());
    assert!(greedy.iter().chain(&sampled).all(|token| *token < TOKENS));
    assert_ne!(greedy, sampled);
    assert_eq!(pipeline.run("again", &[1, 2, 3], 40, warm), sampled);
    let past = json!({"op": "embed_and_forward", "tokens": [TOKENS]});
    assert_eq!(pipeline.0[0].refused(past.to_string()).0, "unknown_token");
}

/// Case 54.
#[test]
fn numbers_that_cannot_be_passed_on_are_errors_of_a_stage_and_a_position() {
    let dir = model(Small::default());
    let mut pipeline = Pipeline::start(dir.path(), 3, &[]);
    for bad in [0x7e00u16, 0x7c00, 0xfc00] {
        let mut hidden = [0u8; 2 * 64];
        hidden[64 + 6..64 + 8].copy_from_slice(&bad.to_le_bytes());
        for (stage, op) in [(1, "forward_range"), (2, "forward_and_sample")] {
            let request =
                json!({"op": op, "hidden_b64": STANDARD.encode(hidden), "position": 0, "seq_len": 2});
            let (kind, message) = pipeline.0[stage].refused(request.to_string());
            assert_eq!(kind, "not_finite", "{message}");
            let named = message.starts_with(&format!("stage {stage}: position 1: element 3 "));
            assert!(named, "{message}");
        }
    }
    // What f16 cannot hold is told as well, and f32 can hold it.
    let loud = model(Small { loud: 1e7, ..Small::default() });
    let embed = json!({"op": "embed_and_forward", "request_id": 1, "tokens": [1, 2]});
    let (kind, message) = stage(loud.path(), 0, 2, &[]).refused(embed.to_string());
    assert_eq!(kind, "not_finite");
    assert!(message.starts_with("stage 0: position 0: ") && message.contains("65504"), "{message}");
    stage(loud.path(), 0, 2, &["--hidden-dtype", "f32"]).ok(embed);
}

/// Case 55.
#[test]
fn stages_of_different_models_are_told_apart_when_they_meet() {
    let small = model(Small::default());
    let wide = model(Small { hidden: 64, ..Small::default() });
    let mut first = stage(small.path(), 0, 2, &[]);
    let mut last = stage(wide.path(), 1, 2, &[]);
    assert_ne!(first.ready["model_digest"], last.ready["model_digest"]);
    let hidden = first.ok(json!({"op": "embed_and_forward", "request_id": 1, "tokens": [1]}));
    let sample =
        json!({"op": "forward_and_sample", "hidden_b64": hidden["hidden_b64"], "position": 0, "seq_len": 1});
    assert_eq!(last.refused(sample.to_string()).0, "hidden_length");
}

/// Case 57: a long prompt is one line.
#[test]
fn five_hundred_and_twelve_positions_pass_in_one_line() {
    let dir = model(Small::default());
    let prompt: Vec<u64> = (0..512).map(|i| i % TOKENS).collect();
    let mut pipeline = Pipeline::start(dir.path(), 3, &[]);
    let at_once = pipeline.step("s", 0, &prompt, json!({}));
    // The same in two parts.
    pipeline.step("t", 0, &prompt[..300], json!({}));
    assert_eq!(pipeline.step("t", 300, &prompt[300..], json!({})), at_once);
}

/// Case 59.
#[test]
fn weights_that_are_swapped_under_a_worker_do_not_reach_it() {
    let dir = model(Small::default());
    let mut pipeline = Pipeline::start(dir.path(), 2, &[]);
    let expected = pipeline.run("whole", &[1, 2, 3], 8, json!({}));
    let mut tokens = vec![pipeline.step("s", 0, &[1, 2, 3], json!({}))];
    write(dir.path(), Small { seed: 2, ..Small::default() });
    for position in 3..10 {
        tokens.push(pipeline.step("s", position, &tokens[tokens.len() - 1..], json!({})));
    }
    assert_eq!(tokens, expected);
    let other = Pipeline::start(dir.path(), 2, &[]).run("s", &[1, 2, 3], 8, json!({}));
    assert_ne!(other, expected);
}
