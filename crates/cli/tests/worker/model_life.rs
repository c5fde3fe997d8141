//! A worker with a model and a driver that goes wrong, or a stage that does.

use rustix::process::Signal;
use serde_json::json;
use std::time::Duration;

use crate::driver::{CallError, PATIENCE, wait};
use crate::life::{signal, stop};
use crate::model::{Pipeline, model, stage};
use crate::small::Small;

/// Case 56: the caller has an error within its time, it names the stage, and a stage that goes on has lost nothing.
#[test]
fn a_stage_that_is_stopped_or_killed_in_the_middle_of_a_request() {
    let dir = model(Small::default());
    let mut pipeline = Pipeline::start(dir.path(), 3, &[]);
    let expected = pipeline.run("whole", &[1, 2, 3], 3, json!({}));
    let first = pipeline.step("s", 0, &[1, 2, 3], json!({}));
    let embed =
        json!({"op": "decode_step", "request_id": 1, "token_id": first, "position": 3, "sequence": "s"});
    let hidden = pipeline.0[0].ok(embed)["hidden_b64"].clone();
    let forward = json!({"op": "forward_range", "request_id": "asked", "hidden_b64": hidden, "position": 3,
                         "seq_len": 1, "sequence": "s"});
    stop(&pipeline.0[1].child);
    let error = pipeline.0[1].call(&forward, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, CallError::Timeout { .. }) && error.to_string().contains("stage 1"), "{error}");
    signal(&pipeline.0[1].child, Signal::CONT);
    let reply = pipeline.0[1].reply();
    assert_eq!(reply["request_id"], "asked");
    let sample = json!({"op": "forward_and_sample", "request_id": 1, "hidden_b64": reply["hidden_b64"], "position": 3,
                        "seq_len": 1, "sequence": "s"});
    let second = pipeline.0[2].ok(sample)["token_id"].as_u64().unwrap();
    assert_eq!([first, second, pipeline.step("s", 4, &[second], json!({}))], expected[..]);
    stop(&pipeline.0[2].child);
    pipeline.0[2].send(b"{\"op\":\"status\"}\n");
    signal(&pipeline.0[2].child, Signal::KILL);
    let error = pipeline.0[2].line(PATIENCE).unwrap_err();
    assert!(matches!(error, CallError::Gone { .. }) && error.to_string().contains("stage 2"), "{error}");
    wait(&mut pipeline.0[2].child);
}

/// Case 58: each line that is no request has an error for a reply, and sequences do not notice.
#[test]
fn lines_that_are_no_requests_do_a_model_no_harm() {
    let dir = model(Small::default());
    let mut pipeline = Pipeline::start(dir.path(), 2, &["--max-line-bytes", "1000000"]);
    let expected = pipeline.run("whole", &[1, 2, 3], 4, json!({}));
    let mut tokens = vec![pipeline.step("s", 0, &[1, 2, 3], json!({}))];
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    for (position, (line, kind)) in (3..).zip([
        (format!("{{\"op\":\"status\",\"x\":{deep}}}").into_bytes(), "too_deep"),
        (vec![b'x'; 200_000_000], "line_too_long"),
        (b"{\"op\":\"status\xff\"}".to_vec(), "invalid_utf8"),
    ]) {
        for driver in &mut pipeline.0 {
            assert_eq!(driver.refused(&line).0, kind);
            assert_eq!(driver.refused(r#"{"op":["status"],"request_id":1}"#).0, "unknown_op");
        }
        tokens.push(pipeline.step("s", position, &tokens[tokens.len() - 1..], json!({})));
    }
    assert_eq!(tokens, expected);
}

/// Case 57: stdout has replies alone, however much is logged while a model loads and runs.
#[test]
fn a_load_is_told_on_stderr_and_nowhere_else() {
    let dir = model(Small::default());
    let mut driver = stage(dir.path(), 0, 2, &["--log-level", "trace", "--log-format", "json"]);
    driver.ok(json!({"op": "embed_and_forward", "request_id": 1, "tokens": [1, 2]}));
    let (status, replies, stderr) = driver.end();
    assert_eq!((status.code(), replies.len()), (Some(0), 0));
    let loaded = stderr.lines().map(|line| serde_json::from_str(line).unwrap());
    let loaded: Vec<serde_json::Value> =
        loaded.filter(|l: &serde_json::Value| l["fields"]["message"] == "loaded").collect();
    assert_eq!(loaded.len(), 1, "{stderr}");
    assert_eq!(loaded[0]["fields"]["read_bytes"], loaded[0]["fields"]["weight_bytes"]);
}
