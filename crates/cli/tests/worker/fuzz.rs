//! Lines of every sort, by the seed: right ones, right ones with a few bytes changed, and noise. Each that is not blank
//! has one reply, right ones have the right one, and the worker is there at the end, no larger than before.

use std::io::Write;
use std::sync::mpsc;
use std::thread;

use serde_json::{Value, json};

use crate::driver::{Driver, PATIENCE};
use crate::oracle::{self, Dice, base64, unbase64};
use crate::schema::check_reply;

/// What a line's reply must be.
enum Expected {
    Hidden(u64, Vec<u8>),
    Token(u64, u64),
    /// An error of this kind, with the request_id.
    Refused(u64, &'static str),
    /// Some reply.
    Any,
}

fn sequence(dice: &mut Dice, request: &mut Value) {
    match dice.below(4) {
        0 => request["sequence"] = dice.below(20).into(),
        1 => request["sequence"] = format!("s{}", dice.below(20)).into(),
        _ => {}
    }
}

/// A right request, for this stage or for another.
fn right(dice: &mut Dice, stage: u64, id: u64) -> (String, Expected) {
    let position = dice.any_size();
    let n = 1 + dice.below(4);
    let tokens: Vec<u64> = (0..n).map(|_| dice.any_size()).collect();
    let bytes = dice.bytes(32 * n as usize);
    let hidden = json!({"hidden_b64": base64(&bytes), "position": position, "seq_len": n});
    let (owner, mut request, expected) = match dice.below(7) {
        0 | 1 => (
            Some(0),
            json!({"op": "embed_and_forward", "tokens": tokens, "position": position}),
            Expected::Hidden(id, oracle::hidden(&tokens, position)),
        ),
        2 => (
            Some(0),
            json!({"op": "decode_step", "token_id": tokens[0], "position": position}),
            Expected::Hidden(id, oracle::hidden(&tokens[..1], position)),
        ),
        3 => {
            let mut request = hidden;
            request["op"] = "forward_range".into();
            (Some(1), request, Expected::Hidden(id, oracle::forward_range(&bytes, position)))
        }
        4 => {
            let mut request = hidden;
            request["op"] = "forward_and_sample".into();
            request["sampling"] = json!({"temperature": 0.5, "seed": position});
            (Some(2), request, Expected::Token(id, oracle::token(&bytes, position)))
        }
        5 => (Some(2), json!({"op": "detokenize", "tokens": tokens}), Expected::Any),
        _ => (None, json!({"op": "reset"}), Expected::Any),
    };
    sequence(dice, &mut request);
    request["request_id"] = id.into();
    let mine = owner.is_none_or(|owner| owner == stage);
    (request.to_string(), if mine { expected } else { Expected::Refused(id, "wrong_role") })
}

fn changed(dice: &mut Dice, line: String) -> Vec<u8> {
    let mut line = line.into_bytes();
    const TELLING: &[u8] = b"{}[]\",:\\0123456789eE.-+ntf \t\r\0\xc3\xa9\xff=/_u";
    for _ in 0..1 + dice.below(4) {
        let at = dice.below(line.len() as u64 + 1) as usize;
        let byte = TELLING[dice.below(TELLING.len() as u64) as usize];
        match dice.below(5) {
            0 if at < line.len() => line[at] = byte,
            1 if at < line.len() => drop(line.remove(at)),
            2 => line.insert(at, byte),
            3 => line.truncate(at),
            _ => {
                let from = dice.below(line.len() as u64 + 1) as usize;
                let piece = line[from.min(at)..from.max(at)].to_vec();
                line.splice(at..at, piece);
            }
        }
    }
    line
}

fn line(dice: &mut Dice, stage: u64, id: u64) -> (Vec<u8>, Expected) {
    let (mut line, expected) = match dice.below(10) {
        0..=3 => {
            let (line, expected) = right(dice, stage, id);
            (line.into_bytes(), expected)
        }
        4..=7 => {
            let (line, _) = right(dice, stage, id);
            (changed(dice, line), Expected::Any)
        }
        8 => {
            let n = dice.below(200) as usize;
            (dice.bytes(n), Expected::Any)
        }
        _ => {
            const WORDS: &[&str] = &[
                "{",
                "}",
                "[",
                "]",
                ",",
                ":",
                "\"op\"",
                "\"status\"",
                "1",
                "-",
                "null",
                "\\u",
                " ",
                "\"",
                "1e9",
                "é",
            ];
            let n = 1 + dice.below(30);
            let words: Vec<&str> = (0..n).map(|_| WORDS[dice.below(WORDS.len() as u64) as usize]).collect();
            (words.concat().into_bytes(), Expected::Any)
        }
    };
    line.retain(|b| *b != b'\n');
    (line, expected)
}

/// Whether a line gets no reply.
fn is_blank(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(|l| l.chars().all(restage_worker::is_space))
}

fn check(text: &str, expected: &Expected, schema: bool) {
    let reply: Value = match serde_json::from_str(text) {
        Ok(reply) => reply,
        // A request_id is repeated as it was, even where this reader has no number for it.
        Err(e) if e.to_string().contains("number out of range") => return,
        Err(e) => panic!("{e}: {text}"),
    };
    if schema {
        check_reply(&reply);
    }
    assert!(reply["kind"] != "internal", "{text}");
    match expected {
        Expected::Any => {}
        Expected::Hidden(id, hidden) => {
            assert_eq!(reply["request_id"], *id, "{text}");
            assert_eq!(unbase64(&reply["hidden_b64"]), *hidden);
        }
        Expected::Token(id, token) => {
            assert_eq!((&reply["request_id"], &reply["token_id"]), (&json!(id), &json!(token)), "{text}");
        }
        Expected::Refused(id, kind) => {
            assert_eq!((&reply["request_id"], &reply["kind"]), (&json!(id), &json!(kind)), "{text}");
        }
    }
}

/// Sends lines to one stage of three, and holds each reply against what it must be; one in `schema_every` against the
/// schema.
fn run(stage: u64, seed: u64, lines: u64, schema_every: usize) {
    let mut driver = Driver::new(stage, 3);
    let mut stdin = driver.stdin.take().unwrap();
    let (expect, expected) = mpsc::sync_channel(4096);
    let writer = thread::spawn(move || {
        let mut dice = Dice(seed);
        let mut bytes = Vec::new();
        for id in 0..lines {
            let (line, expected) = line(&mut dice, stage, id);
            bytes.extend_from_slice(&line);
            bytes.push(b'\n');
            if bytes.len() > 1 << 15 || id + 1 == lines {
                stdin.write_all(&bytes).unwrap();
                bytes.clear();
            }
            if !is_blank(&line) {
                expect.send(expected).unwrap();
            }
        }
        stdin
    });
    let (mut replies, mut errors) = (0, 0);
    let mut early = None;
    for expected in expected {
        let text = driver.line(PATIENCE).unwrap_or_else(|e| panic!("after {replies} replies: {e}"));
        check(&text, &expected, replies % schema_every == 0);
        replies += 1;
        errors += usize::from(text.contains("\"error\":"));
        // By now every buffer and every sequence is there.
        if replies as u64 == lines / 10 {
            early = Some(driver.rss_bytes());
        }
    }
    driver.stdin = Some(writer.join().unwrap());
    driver.alive();
    let (early, late) = (early.unwrap(), driver.rss_bytes());
    println!(
        "stage {stage}: {lines} lines, {replies} replies, {errors} of them errors; resident after a tenth \
              {early} bytes, at the end {late}"
    );
    assert!(late < early + (8 << 20), "{early} bytes after a tenth, {late} at the end");
    let (status, rest, _) = driver.end();
    assert_eq!((status.code(), rest.len()), (Some(0), 0));
}

#[test]
fn twenty_thousand_lines() {
    run(0, 0x5eed_0001, 8000, 1);
    run(1, 0x5eed_0002, 6000, 1);
    run(2, 0x5eed_0003, 6000, 1);
}

/// `cargo test -p restage --test worker -- --ignored --nocapture a_million_lines`
#[test]
#[ignore = "takes a minute or two"]
fn a_million_lines() {
    run(0, 0x5eed_0011, 400_000, 100);
    run(1, 0x5eed_0012, 300_000, 100);
    run(2, 0x5eed_0013, 300_000, 100);
}
