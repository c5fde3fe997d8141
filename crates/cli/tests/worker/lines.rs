//! Lines as such: what ends one, what is none, and what comes back of a `request_id`.

use serde_json::json;

use crate::driver::Driver;

#[test]
fn a_request_id_of_any_kind_comes_back_as_it_was_written() {
    let mut driver = Driver::new(0, 2);
    for id in [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1.50",
        "1E+2",
        "1e400",
        "-1e-999",
        "\"\"",
        "\"a\\/b\\u0041\"",
        "[]",
        "{}",
        "[ 1 , 2 ]",
        "{\"a\" : {\"a\":[null]}}",
        "{\"a\":1,\"a\":2}",
        "123456789012345678901234567890123456789012345678901234567890",
        "18446744073709551616",
        "0.1000000000000000055511151231257827021181583404541015625",
        "\"\\ud83d\\ude00\"",
        "\"\\u0000\\n\\r\"",
    ] {
        let text = driver.raw_text(&format!(r#"{{"op":"tokenize","request_id":{id},"prompt":"a"}}"#));
        assert_eq!(text, format!(r#"{{"request_id":{id},"tokens":[97]}}"#));
        let text = driver.raw_text(&format!(r#"{{"op":"?","request_id": {id} }}"#));
        assert!(text.starts_with(&format!(r#"{{"request_id":{id},"error":"#)), "{text}");
    }
    // Beyond ASCII it is escaped, which is the same value.
    let text =
        driver.raw_text("{\"op\":\"tokenize\",\"request_id\":[\"é\u{1f600}\u{ffff}\"],\"prompt\":\"\"}");
    assert_eq!(text, r#"{"request_id":["\u00e9\ud83d\ude00\uffff"],"tokens":[]}"#);
    let long = format!("\"{}\"", "x".repeat(1_000_000));
    let text = driver.raw_text(&format!(r#"{{"op":"tokenize","request_id":{long},"prompt":""}}"#));
    assert_eq!(text, format!(r#"{{"request_id":{long},"tokens":[]}}"#));
}

#[test]
fn without_a_request_id_it_is_null_and_of_two_the_last_counts() {
    let mut driver = Driver::new(0, 2);
    assert_eq!(driver.raw_text(r#"{"op":"tokenize","prompt":""}"#), r#"{"request_id":null,"tokens":[]}"#);
    assert!(driver.raw_text("{}").starts_with(r#"{"request_id":null,"error":"#));
    let twice =
        r#"{"request_id":1,"op":"nothing","prompt":"a","request_id":[2],"op":"tokenize","prompt":"b"}"#;
    assert_eq!(driver.raw_text(twice), r#"{"request_id":[2],"tokens":[98]}"#);
    // A name may be written with escapes, and others are passed over.
    let escaped = r#"{"\u006fp":"toke\u006eize","request\u005fid":3,"prompt":"a","Op":1,"op ":2,"":{}}"#;
    assert_eq!(driver.raw_text(escaped), r#"{"request_id":3,"tokens":[97]}"#);
}

#[test]
fn blank_lines_get_no_reply_and_crlf_ends_a_line() {
    let mut driver = Driver::new(0, 2);
    driver.send(b"\n\r\n  \n\t \r\n\n{\"op\":\"tokenize\",\"request_id\":1,\"prompt\":\"a\"}\r\n\n");
    assert_eq!(driver.reply(), json!({"request_id": 1, "tokens": [97]}));
    driver.send(b" \t{\"op\":\"tokenize\" , \r \"request_id\":2,\"prompt\":\"a\"} \t\r\n");
    assert_eq!(driver.reply()["request_id"], 2);
    let status = driver.ok(json!({"op": "status", "request_id": 3}));
    assert_eq!(status["counters"]["requests"], 3, "blank lines are no requests");
}

#[test]
fn the_last_line_needs_no_newline() {
    for tail in ["", "\n", "\n\n", "\r\n  "] {
        let mut driver = Driver::new(0, 2);
        driver.send(b"{\"op\":\"tokenize\",\"request_id\":1,\"prompt\":\"a\"}\n");
        driver.send(format!("{{\"op\":\"tokenize\",\"request_id\":2,\"prompt\":\"b\"}}{tail}").as_bytes());
        let (status, lines, _) = driver.end();
        assert_eq!(status.code(), Some(0));
        assert_eq!(lines, [r#"{"request_id":1,"tokens":[97]}"#, r#"{"request_id":2,"tokens":[98]}"#]);
    }
    let mut driver = Driver::new(0, 2);
    driver.send(b"{\"op\":");
    let (status, lines, _) = driver.end();
    assert!(status.success() && lines.len() == 1 && lines[0].contains("invalid_json"), "{lines:?}");
}

#[test]
fn a_line_that_comes_in_pieces_is_one() {
    let mut driver = Driver::new(0, 2);
    for byte in "{\"op\":\"tokenize\",\"request_id\":\"é\",\"prompt\":\"a b\"}\n".bytes() {
        driver.send(&[byte]);
    }
    assert_eq!(driver.reply(), json!({"request_id": "é", "tokens": [97, 99]}));
}

#[test]
fn replies_come_in_the_order_of_requests() {
    let mut driver = Driver::new(0, 2);
    let mut lines = String::new();
    for i in 0..5000 {
        lines += &match i % 3 {
            0 => format!("{{\"op\":\"tokenize\",\"request_id\":{i},\"prompt\":\"a\"}}\n"),
            1 => format!("{{\"op\":\"nothing\",\"request_id\":{i}}}\n"),
            _ => format!("{{\"op\":\"decode_step\",\"request_id\":{i},\"token_id\":1,\"position\":{i}}}\n"),
        };
    }
    let mut stdin = driver.stdin.take().unwrap();
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, lines.as_bytes()));
    for i in 0..5000 {
        assert_eq!(driver.reply()["request_id"], i);
    }
    writer.join().unwrap().unwrap();
}
