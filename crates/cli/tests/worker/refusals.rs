//! Whatever is wrong with a line is an error reply, and the next line is answered.

use std::io::Write;

use serde_json::{Value, json};

use crate::driver::Driver;
use crate::oracle::base64;

/// Refused with this kind and without a request_id, as the line is no request.
fn no_request(driver: &mut Driver, line: &[u8], kind: &str) {
    let reply = driver.raw(line);
    let shown: String = String::from_utf8_lossy(line).chars().take(80).collect();
    assert_eq!(reply["kind"], kind, "{shown}: {reply}");
    assert!(reply.get("request_id").is_none(), "{reply}");
    driver.alive();
}

/// Refused with this kind, and the request_id comes back.
fn request(driver: &mut Driver, request: &Value, kind: &str) -> String {
    let mut request = request.clone();
    request["request_id"] = json!(["id", 7]);
    let reply = driver.raw(request.to_string());
    assert_eq!(reply["kind"], kind, "{request}: {reply}");
    assert_eq!(reply["request_id"], json!(["id", 7]));
    driver.alive();
    reply["error"].as_str().unwrap().to_owned()
}

#[test]
fn lines_that_are_no_requests() {
    let mut driver = Driver::new(0, 2);
    for line in [
        "this is not json {{{",
        "{",
        "}",
        "{\"op\":\"status\"",
        "{\"op\":\"status\"}}",
        "{\"op\":\"status\"} x",
        "{'op':'status'}",
        "{op:1}",
        "{\"op\":\"status\",}",
        "{\"op\":status}",
        "{\"op\":\"status\" \"a\":1}",
        "nul",
        "NaN",
        "[1,]",
        "01",
        "+1",
        "1.",
        "\"a",
        "\"\\x\"",
        "\"\\ud83d\"",
        "{\"op\":\"\\ud800\"}",
        "{\"op\":\"tokenize\",\"prompt\":\"\\udc00\"}",
        "{\"op\":\"status\",\"request_id\":\"\\ud83dx\"}",
        "{\"op\":\"status\",\"\\ud83d\":1}",
        "{\"op\":\"status\",\"x\":\"a\tb\"}",
        "\u{feff}{\"op\":\"status\"}",
        "\0",
        "{\"op\":\"status\"}\0",
        "{\"op\":\0\"status\"}",
        "{\"op\":\"status\",\"x\":\"\0\"}",
        "{\"op\":\"status\",\"x\":1e}",
    ] {
        no_request(&mut driver, line.as_bytes(), "invalid_json");
    }
    for line in ["42", "\"status\"", "null", "true", "[]", "[{\"op\":\"status\"}]", "1e400", " [1 , {}] "] {
        no_request(&mut driver, line.as_bytes(), "not_an_object");
    }
    for line in [
        &b"\xff"[..],
        b"{\"op\":\"status\",\"x\":\"\xc3\"}",
        b"{\"op\":\"status\",\"request_id\":\"\xed\xa0\x80\"}",
        b"\xc0\x80",
        b"{\"op\":\"status\"}\xf8",
        b"\xf5\x80\x80\x80",
    ] {
        no_request(&mut driver, line, "invalid_utf8");
    }
}

/// Case 58.
#[test]
fn depth() {
    let mut driver = Driver::new(0, 2);
    let inside = |depth: usize, open: &str, close: &str| {
        let (open, close) = (open.repeat(depth), close.repeat(depth));
        format!(r#"{{"op":"tokenize","prompt":"a","request_id":{open}1{close}}}"#)
    };
    // The request is one level, which leaves 127.
    let (open, close) = ("[".repeat(127), "]".repeat(127));
    assert_eq!(
        driver.raw_text(&inside(127, "[", "]")),
        format!(r#"{{"request_id":{open}1{close},"tokens":[97]}}"#)
    );
    assert!(driver.raw_text(&inside(63, "{\"a\":[", "]}")).contains("tokens"));
    for (depth, open, close) in
        [(128, "[", "]"), (64, "{\"a\":[", "]}"), (100_000, "[", "]"), (100_000, "{\"a\":", "}")]
    {
        no_request(&mut driver, inside(depth, open, close).as_bytes(), "too_deep");
    }
    for line in
        ["[".repeat(100_000), "{\"a\":".repeat(100_000), format!("{}{}", "[".repeat(129), "]".repeat(129))]
    {
        no_request(&mut driver, line.as_bytes(), "too_deep");
    }
    // In a member that is passed over, in one that is read, and in a duplicate that does not count.
    for member in ["extra", "tokens", "op", "sampling"] {
        let line = format!(r#"{{"{member}":{}{},"op":"status"}}"#, "[".repeat(5000), "]".repeat(5000));
        no_request(&mut driver, line.as_bytes(), "too_deep");
    }
    // Width is not depth.
    assert!(
        driver
            .raw_text(&format!(r#"{{"op":"tokenize","prompt":"a","x":[{}1]}}"#, "[],".repeat(50_000)))
            .contains("97")
    );
}

#[test]
fn ops_that_are_none() {
    let mut driver = Driver::new(0, 2);
    let message = request(&mut driver, &json!({"prompt": "a"}), "missing_op");
    assert!(message.contains("op"), "{message}");
    let ops = [
        json!(null),
        json!(["status"]),
        json!([]),
        json!({}),
        json!({"op": "status"}),
        json!(1),
        json!(1.5),
        json!(true),
        json!(""),
        json!("Status"),
        json!("status "),
        json!("status\0"),
        json!("generate_full"),
        json!("é"),
        json!("x".repeat(100_000)),
    ];
    for op in ops {
        let message = request(&mut driver, &json!({"op": op}), "unknown_op");
        assert!(message.len() < 300, "long things are shortened");
    }
}

#[test]
fn a_role_comes_before_fields() {
    let ops = [
        ("tokenize", "first"),
        ("embed_and_forward", "first"),
        ("decode_step", "first"),
        ("forward_range", "middle"),
        ("forward_and_sample", "last"),
        ("detokenize", "last"),
    ];
    for stage in 0..3 {
        let mut driver = Driver::new(stage, 3);
        let role = driver.ready["role"].as_str().unwrap().to_owned();
        for (op, owner) in ops {
            // Nothing of it is right but the op.
            let wrong = json!({
                "op": op, "tokens": 5, "token_id": [], "position": -1, "seq_len": null, "hidden_b64": "!", "prompt": {},
                "sequence": [], "sampling": 1, "length": "a",
            });
            let kind = if owner == role { "invalid_field" } else { "wrong_role" };
            for wrong in [wrong, json!({"op": op})] {
                let message = request(&mut driver, &wrong, kind);
                assert!(
                    kind != "wrong_role" || message.contains(&format!("stage {stage} of 3")),
                    "{message}"
                );
            }
        }
    }
    let mut last_of_two = Driver::new(1, 2);
    request(&mut last_of_two, &json!({"op": "forward_range"}), "wrong_role");
}

/// Values that are no integer from 0 to 2^64 - 1.
const NOT_NATURAL: [&str; 15] = [
    "null",
    "true",
    "false",
    "-1",
    "1.0",
    "1e2",
    "-0.0",
    "1e400",
    "18446744073709551616",
    "1e-1",
    "\"1\"",
    "[]",
    "[1]",
    "{}",
    "-99999999999999999999999999999999999999999999999999",
];

fn with(base: &Value, member: &str, value: &str) -> String {
    let mut base = base.clone();
    base["request_id"] = json!(1);
    base[member] = json!("@@");
    base.to_string().replace("\"@@\"", value)
}

#[test]
fn fields_that_are_not_what_they_must_be() {
    let hidden = json!({"hidden_b64": base64(&[1; 32]), "position": 0, "seq_len": 1});
    let of = |op: &str, mut fields: Value| {
        fields["op"] = op.into();
        fields
    };
    let bases = [
        (0, of("tokenize", json!({"prompt": "a"}))),
        (0, of("embed_and_forward", json!({"tokens": [1], "position": 0}))),
        (0, of("decode_step", json!({"token_id": 1, "position": 0}))),
        (1, of("forward_range", hidden.clone())),
        (2, of("forward_and_sample", hidden)),
        (2, of("detokenize", json!({"tokens": [1]}))),
        (2, of("truncate", json!({"length": 0}))),
    ];
    for (stage, base) in bases {
        let mut driver = Driver::new(stage, 3);
        driver.ok(base.clone());
        for (member, good) in base.as_object().unwrap() {
            if member == "op" {
                continue;
            }
            let mut bad: Vec<String> = match member.as_str() {
                "prompt" | "hidden_b64" => {
                    ["null", "1", "true", "[]", "[\"a\"]", "{}"].map(String::from).to_vec()
                }
                "tokens" => NOT_NATURAL.iter().map(|b| format!("[0,{b}]")).collect(),
                _ => NOT_NATURAL.map(String::from).to_vec(),
            };
            match member.as_str() {
                "tokens" => bad.extend(["null", "1", "\"1\"", "{}", "{\"0\":1}", "true"].map(String::from)),
                "seq_len" => bad.push("0".into()),
                _ => {}
            }
            if member == "tokens" && base["op"] == "embed_and_forward" {
                bad.push("[]".into());
            }
            for value in bad {
                let line = with(&base, member, &value);
                let (kind, message) = driver.refused(&line);
                assert_eq!(kind, "invalid_field", "{line}: {message}");
                assert!(message.contains(member.as_str()), "{line}: {message}");
            }
            // Missing altogether.
            let mut without = base.clone();
            without.as_object_mut().unwrap().remove(member);
            if member == "position" && base["op"] == "embed_and_forward" {
                driver.ok(without);
            } else {
                request(&mut driver, &without, "invalid_field");
            }
            // The largest integer there is, -0, and an escaped spelling are fine where an integer goes.
            if good.is_u64() && member != "seq_len" && member != "length" {
                for value in ["18446744073709551615", "-0", "0"] {
                    let reply = driver.raw_text(&with(&base, member, value));
                    assert!(!reply.contains("error"), "{reply}");
                }
            }
        }
        for sequence in
            ["null", "true", "1.0", "1e3", "[]", "{}", "18446744073709551616", "-9223372036854775809"]
        {
            if base["op"] == "tokenize" || base["op"] == "detokenize" {
                continue;
            }
            let (kind, message) = driver.refused(with(&base, "sequence", sequence));
            assert!(kind == "invalid_field" && message.contains("sequence"), "{sequence}: {message}");
        }
    }
}

#[test]
fn hidden_states_that_are_not() {
    for (stage, op) in [(1, "forward_range"), (2, "forward_and_sample")] {
        let mut driver = Driver::new(stage, 3);
        let ask = |text: &str, seq_len: u64| json!({"op": op, "hidden_b64": text, "position": 0, "seq_len": seq_len});
        let good = base64(&[255; 32]);
        assert_eq!(good, "/".repeat(42) + "8=");
        driver.ok(ask(&good, 1));
        // The last character has bits too many: passed over, and the same bytes.
        let same = driver.raw(ask(&("/".repeat(42) + "9="), 1).to_string());
        assert_eq!(same, driver.raw(ask(&good, 1).to_string()));
        // The same text with escapes.
        let escaped = driver.raw_text(&ask(&good, 1).to_string().replace('/', "\\/"));
        assert_eq!(serde_json::from_str::<Value>(&escaped).unwrap(), same);
        for text in [
            good.trim_end_matches('=').to_owned(),
            good.clone() + "=",
            good.replace('/', "_"),
            good.replace('/', "-"),
            format!(" {good}"),
            format!("{good}\n"),
            format!("{}\n{}", &good[..20], &good[20..]),
            format!("{}={}", &good[..20], &good[21..]),
            format!("{good}{good}"),
            "AAA".into(),
            "A".into(),
            "====".into(),
            "é".into(),
            "\0".into(),
            "not base64!".into(),
        ] {
            request(&mut driver, &ask(&text, 1), "invalid_base64");
        }
        for (bytes, seq_len) in [(0, 1), (31, 1), (33, 1), (64, 1), (32, 2), (160, 4), (32, u64::MAX)] {
            let message = request(&mut driver, &ask(&base64(&vec![0; bytes]), seq_len), "hidden_length");
            let expected = u128::from(seq_len) * 32;
            for number in [bytes.to_string(), format!("{seq_len} * 16 * 2"), expected.to_string()] {
                assert!(message.contains(&number), "{message} lacks {number}");
            }
        }
    }
}

/// Case 55, as far as it goes without a model: a neighbour of another width is refused at its first hidden state.
#[test]
fn a_neighbour_of_another_width() {
    let mut last = Driver::new(1, 2);
    for width in [8, 15, 17, 32, 64] {
        for seq_len in [1, 2, 7] {
            let hidden = base64(&vec![0; width * 2 * seq_len]);
            let ask =
                json!({"op": "forward_and_sample", "hidden_b64": hidden, "position": 0, "seq_len": seq_len});
            let message = request(&mut last, &ask, "hidden_length");
            assert!(message.contains("hidden_dim") && message.contains(&(width * 2 * seq_len).to_string()));
        }
    }
}

#[test]
fn lengths_and_limits() {
    let mut driver = Driver::with(0, 2, &["--max-sequences", "3"]);
    let step =
        |sequence: u64| json!({"op": "decode_step", "token_id": 1, "position": 4, "sequence": sequence});
    for sequence in 0..3 {
        driver.ok(step(sequence));
    }
    let message = request(&mut driver, &step(3), "limit");
    assert!(message.contains('3'), "{message}");
    driver.ok(step(2));
    driver.ok(json!({"op": "reset", "sequence": 1}));
    driver.ok(step(3));
    request(&mut driver, &step(1), "limit");

    let truncate =
        |sequence: u64, length: u64| json!({"op": "truncate", "sequence": sequence, "length": length});
    let message = request(&mut driver, &truncate(0, 6), "length");
    assert!(message.contains('6') && message.contains('5'), "{message}");
    request(&mut driver, &truncate(99, 1), "length");
    driver.ok(truncate(99, 0));
    assert_eq!(driver.ok(truncate(0, 5))["removed"], 0);

    let name = json!({"op": "reset", "sequence": "x".repeat(257)});
    request(&mut driver, &name, "invalid_field");
    driver.ok(json!({"op": "reset", "sequence": "x".repeat(256)}));

    // More tokens than one op takes, in a line of a few megabytes.
    let many = vec![0u8; (1 << 20) + 1];
    let tokens = json!({"op": "embed_and_forward", "tokens": many});
    request(&mut driver, &tokens, "limit");
    let prompt = json!({"op": "tokenize", "prompt": "a ".repeat((1 << 20) + 1)});
    request(&mut driver, &prompt, "limit");
    let prompt = json!({"op": "tokenize", "prompt": "a".repeat((16 << 20) + 1)});
    request(&mut driver, &prompt, "limit");
    driver.ok(json!({"op": "tokenize", "prompt": "a".repeat(16 << 20)}));
}

#[test]
fn a_line_over_the_limit() {
    let line = |bytes: usize| {
        let base = r#"{"op":"tokenize","request_id":1,"prompt":""}"#.len();
        format!(r#"{{"op":"tokenize","request_id":1,"prompt":"{}"}}"#, "a".repeat(bytes - base))
    };
    // Limits below and above what is read at a time.
    for limit in [100, 70_000, 300_000] {
        let mut driver = Driver::with(0, 2, &["--max-line-bytes", &limit.to_string()]);
        let reply = driver.raw(line(limit));
        assert!(reply.get("error").is_none(), "{reply}");
        for bytes in [limit + 1, limit + 2, limit * 2, limit * 2 + 70_000] {
            let reply = driver.raw(line(bytes));
            assert_eq!(reply["kind"], "line_too_long");
            assert!(reply["error"].as_str().unwrap().contains(&limit.to_string()));
            let reply = driver.raw(r#"{"op":"tokenize","request_id":2,"prompt":"a"}"#);
            assert_eq!(reply, json!({"request_id": 2, "tokens": [97]}));
        }
        // Several at once, and one that ends with the input.
        driver.send(
            format!("{}\n{}\n\n{}\n{}", line(limit + 1), line(limit), line(limit + 9), line(limit + 5))
                .as_bytes(),
        );
        let (status, lines, _) = driver.end();
        let kinds: Vec<bool> = lines.iter().map(|l| l.contains("line_too_long")).collect();
        assert_eq!((status.code(), kinds), (Some(0), vec![true, false, true, true]));
    }
}

#[test]
fn a_long_line_is_skipped_without_being_kept() {
    let mut driver = Driver::with(0, 2, &["--max-line-bytes", "100000"]);
    driver.alive();
    let before = driver.rss_bytes();
    let piece = vec![b'x'; 1 << 20];
    let mut most = 0;
    for _ in 0..64 {
        driver.send(&piece);
        most = most.max(driver.rss_bytes());
    }
    driver.send(b"\n");
    assert_eq!(driver.reply()["kind"], "line_too_long");
    driver.alive();
    assert!(most < before + (16 << 20), "{before} bytes before 64 MiB, {most} at most");
}

/// Case 58: a line of 200 MB, which is under the limit: it is read, refused, and its memory given back.
#[test]
fn a_line_of_two_hundred_megabytes() {
    let mut driver = Driver::new(1, 2);
    driver.alive();
    let before = driver.rss_bytes();
    let piece = vec![b'A'; 1 << 20];
    for (start, end, kind) in [
        (&b"{\"op\":\"forward_and_sample\",\"request_id\":1,\"position\":0,\"seq_len\":1,\"hidden_b64\":\""[..], &b"\"}\n"[..], "hidden_length"),
        (b"", b"\n", "invalid_json"),
    ] {
        let mut stdin = driver.stdin.take().unwrap();
        stdin.write_all(start).unwrap();
        for _ in 0..200 {
            stdin.write_all(&piece).unwrap();
        }
        stdin.write_all(end).unwrap();
        driver.stdin = Some(stdin);
        assert_eq!(driver.reply()["kind"], kind);
        driver.alive();
    }
    let after = driver.rss_bytes();
    println!("resident: {before} bytes before, {after} after two lines of 200 MiB");
    assert!(after < before + (32 << 20), "{before} bytes before, {after} after");
}
