//! Every op, for every role that has it.

use serde_json::{Value, json};

use crate::driver::Driver;
use crate::oracle::{self, Dice, base64, unbase64};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn the_ready_line() {
    for (stage, num_stages, role) in [(0, 2, "first"), (1, 2, "last"), (1, 3, "middle"), (6, 8, "middle")] {
        let driver = Driver::new(stage, num_stages);
        let expected = json!({
            "status": "ready", "pid": driver.child.id(), "stage": stage, "protocol": 1, "role": role,
            "num_stages": num_stages, "hidden_dim": 16, "hidden_dtype": "bf16", "vocab_size": 32,
        });
        assert_eq!(driver.ready, expected);
    }
}

#[test]
fn known_values() {
    let mut first = Driver::new(0, 3);
    let reply = first.ok(json!({"op": "embed_and_forward", "request_id": 1, "tokens": [1, 2, 3, 4, 5]}));
    let hidden = unbase64(&reply["hidden_b64"]);
    assert_eq!((hidden.len(), &reply["seq_len"]), (160, &json!(5)));
    assert_eq!(hex(&hidden[..8]), "61b3f144b519e5bc");
    let explicit = first
        .ok(json!({"op": "embed_and_forward", "request_id": 1, "tokens": [1, 2, 3, 4, 5], "position": 0}));
    assert_eq!(explicit, reply);
    let reply = first.ok(json!({"op": "decode_step", "request_id": 2, "token_id": 42, "position": 5}));
    assert_eq!(hex(&unbase64(&reply["hidden_b64"])[..8]), "08d117a8d97fd777");
    assert_eq!(reply["seq_len"], 1);
    let reply = first.ok(json!({"op": "tokenize", "request_id": 3, "prompt": "Say hello"}));
    assert_eq!(reply["tokens"], json!([301, 533]));

    let hidden = base64(&(0..32).collect::<Vec<u8>>());
    let mut middle = Driver::new(1, 3);
    let reply = middle.ok(
        json!({"op": "forward_range", "request_id": 4, "hidden_b64": hidden, "position": 11, "seq_len": 1}),
    );
    assert_eq!(hex(&unbase64(&reply["hidden_b64"])[..8]), "0526d97e0a1822b3");

    let mut last = Driver::new(2, 3);
    for (position, token) in [(7, 28), (1, 0), (11, 7), (101, 21), (12345, 11), (999_999, 16)] {
        let reply = last.ok(json!({
            "op": "forward_and_sample", "request_id": 5, "hidden_b64": hidden, "position": position, "seq_len": 1,
        }));
        assert_eq!(reply["token_id"], token, "at {position}");
    }
    let reply = last.ok(json!({"op": "detokenize", "request_id": 6, "tokens": [301, 533]}));
    assert_eq!(reply["text"], "301 533");
    let reply = last.ok(json!({"op": "detokenize", "request_id": 6, "tokens": []}));
    assert_eq!(reply["text"], "");
}

#[test]
fn any_tokens_at_any_position_through_any_number_of_stages() {
    let mut dice = Dice(1);
    for num_stages in [2, 3, 5] {
        let mut stages: Vec<Driver> = (0..num_stages).map(|s| Driver::new(s, num_stages)).collect();
        for round in 0..40 {
            let position = dice.any_size();
            let tokens: Vec<u64> = (0..1 + dice.below(40)).map(|_| dice.any_size()).collect();
            let mut expected = oracle::hidden(&tokens, position);
            let request = if tokens.len() == 1 && round % 2 == 0 {
                json!({"op": "decode_step", "request_id": round, "token_id": tokens[0], "position": position})
            } else {
                json!({"op": "embed_and_forward", "request_id": round, "tokens": tokens, "position": position})
            };
            let mut reply = stages[0].ok(request);
            for stage in &mut stages[1..] {
                assert_eq!(reply["seq_len"], tokens.len());
                assert_eq!(unbase64(&reply["hidden_b64"]), expected);
                let op = if stage.ready["role"] == "last" { "forward_and_sample" } else { "forward_range" };
                reply = stage.ok(json!({
                    "op": op, "request_id": round, "hidden_b64": reply["hidden_b64"], "position": position,
                    "seq_len": reply["seq_len"],
                }));
                if op == "forward_range" {
                    expected = oracle::forward_range(&expected, position);
                }
            }
            assert_eq!(reply["token_id"], oracle::token(&expected, position));
        }
    }
}

#[test]
fn words_of_any_script() {
    let mut first = Driver::new(0, 2);
    for (prompt, tokens) in [
        ("", json!([])),
        (" \t\n\u{a0}\u{3000}\u{1c}", json!([])),
        ("a", json!([97])),
        ("a a a", json!([97, 98, 99])),
        ("\u{1f600}\u{2003}é", json!([512, 234])),
        ("\u{10ffff}", json!([1023])),
        ("\0 \u{7f}", json!([0, 128])),
    ] {
        let reply = first.ok(json!({"op": "tokenize", "request_id": null, "prompt": prompt}));
        assert_eq!(reply["tokens"], tokens, "{prompt:?}");
    }
}

/// Case 57: a hidden state of 512 positions in one line, through every role.
#[test]
fn five_hundred_positions_in_one_line() {
    let tokens: Vec<u64> = (0..512).collect();
    let mut first = Driver::new(0, 3);
    let reply = first.ok(json!({"op": "embed_and_forward", "request_id": 1, "tokens": tokens}));
    let hidden = unbase64(&reply["hidden_b64"]);
    assert_eq!(hidden, oracle::hidden(&tokens, 0));
    let request = |op: &str| json!({"op": op, "request_id": 1, "hidden_b64": reply["hidden_b64"], "position": 0, "seq_len": 512});
    let forwarded = Driver::new(1, 3).ok(request("forward_range"));
    assert_eq!(unbase64(&forwarded["hidden_b64"]), oracle::forward_range(&hidden, 0));
    let sampled = Driver::new(2, 3).ok(request("forward_and_sample"));
    assert_eq!(sampled["token_id"], oracle::token(&hidden, 0));
}

#[test]
fn sequences_are_apart_and_have_lengths() {
    let mut first = Driver::new(0, 2);
    let step = |sequence: Value, position: u64, length: usize| {
        let mut request = json!({"op": "embed_and_forward", "request_id": 0, "position": position, "tokens": vec![7; length]});
        if !sequence.is_null() {
            request["sequence"] = sequence;
        }
        request
    };
    for (sequence, position, length) in [
        (Value::Null, 0, 5),
        (json!("1"), 0, 3),
        (json!(1), 0, 2),
        (Value::Null, 5, 1),
        (json!(""), 4, 4),
        (json!(-9), 0, 1),
        (json!(u64::MAX), 0, 9),
        (json!("é\u{1f600}"), 0, 1),
    ] {
        first.ok(step(sequence, position, length));
    }
    let mut held = |request: Value| {
        let reply = first.ok(request);
        let status = first.ok(json!({"op": "status", "request_id": [0]}));
        let lengths: Vec<Value> = status["sequences"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| json!([s["sequence"], s["length"]]))
            .collect();
        (reply, json!(lengths))
    };
    let all = json!([[null, 6], [-9, 1], [1, 2], [u64::MAX, 9], ["", 8], ["1", 3], ["é\u{1f600}", 1]]);
    let (_, lengths) = held(json!({"op": "status", "request_id": 1}));
    assert_eq!(lengths, all);

    let (reply, lengths) = held(json!({"op": "truncate", "request_id": 2, "sequence": "1", "length": 2}));
    let did = json!({"request_id": 2, "op": "truncate", "sequence": "1", "removed": 1, "length": 2});
    assert_eq!(reply, did);
    assert_eq!(lengths[5], json!(["1", 2]));
    let (reply, lengths) = held(json!({"op": "truncate", "request_id": 2, "length": 6}));
    assert_eq!(
        (&reply["removed"], &reply["sequence"], &lengths[0]),
        (&json!(0), &json!(null), &json!([null, 6]))
    );

    let (reply, lengths) = held(json!({"op": "reset", "request_id": 3}));
    let did = json!({"request_id": 3, "op": "reset", "sequence": null, "removed": 6, "length": 0});
    assert_eq!(reply, did);
    assert_eq!(lengths[0], json!([-9, 1]), "only the default one is gone");
    let (reply, _) = held(json!({"op": "reset", "request_id": 3, "sequence": "never seen"}));
    assert_eq!(reply["removed"], 0);
    let (reply, lengths) = held(json!({"op": "reset", "request_id": 3, "sequence": 1}));
    assert_eq!((&reply["sequence"], &reply["removed"]), (&json!(1), &json!(2)));
    assert_eq!(lengths.as_array().unwrap().len(), 5);
}

#[test]
fn every_stage_resets_truncates_and_tells() {
    for stage in 0..3 {
        let mut driver = Driver::new(stage, 3);
        driver.ok(json!({"op": "reset", "request_id": 1}));
        driver.ok(json!({"op": "truncate", "request_id": 2, "length": 0}));
        driver.raw("{}");
        let status = driver.ok(json!({"op": "status", "request_id": 3}));
        assert_eq!(status["counters"], json!({"requests": 4, "errors": 1, "panics": 0}));
        assert_eq!((&status["stage"], &status["num_stages"]), (&json!(stage), &json!(3)));
        assert!(status["memory"]["rss_bytes"].as_u64().unwrap() > 1 << 20);
    }
}

#[test]
fn sampling_is_read_and_the_stub_takes_the_same_token() {
    let mut last = Driver::new(1, 2);
    let ask = |sampling: Value| {
        json!({
            "op": "forward_and_sample", "request_id": 1, "hidden_b64": base64(&[7; 32]), "position": 3, "seq_len": 1,
            "sampling": sampling,
        })
    };
    for sampling in [
        json!({}),
        json!({"temperature": 0}),
        json!({"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.1, "seed": 0}),
        json!({"top_p": 1, "min_p": 0, "top_k": 0, "seed": u64::MAX, "more": [1]}),
    ] {
        assert_eq!(last.ok(ask(sampling))["token_id"], oracle::token(&[7; 32], 3));
    }
    for (sampling, name) in [
        (json!([]), "sampling"),
        (json!(null), "sampling"),
        (json!("greedy"), "sampling"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": "1"}), "temperature"),
        (json!({"temperature": null}), "temperature"),
        (json!({"top_k": 1.0}), "top_k"),
        (json!({"top_k": -1}), "top_k"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 1.01}), "top_p"),
        (json!({"min_p": 1.5}), "min_p"),
        (json!({"min_p": true}), "min_p"),
        (json!({"repeat_penalty": 0}), "repeat_penalty"),
        (json!({"seed": -1}), "seed"),
        (json!({"seed": "7"}), "seed"),
    ] {
        let (kind, message) = last.refused(ask(sampling.clone()).to_string());
        assert!(kind == "invalid_field" && message.contains(name), "{sampling}: {message}");
    }
    let (kind, _) = last.refused(ask(json!({"temperature": 12345})).to_string().replace("12345", "1e400"));
    assert_eq!(kind, "invalid_field");
}
