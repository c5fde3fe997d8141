//! `restage plan --capture FILE --sources FILE`.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{fails, fixtures, ok, restage, text};
use tempfile::{TempDir, tempdir};

fn files(capture: &Value, sources: &Value) -> (TempDir, PathBuf, PathBuf) {
    let dir = tempdir().unwrap();
    let (c, s) = (dir.path().join("capture.json"), dir.path().join("sources.json"));
    fs::write(&c, capture.to_string()).unwrap();
    fs::write(&s, sources.to_string()).unwrap();
    (dir, c, s)
}

fn plan(capture: &Path, sources: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let args = [&["plan", "--capture", text(capture), "--sources", text(sources), "--json"], more].concat();
    let out = restage(&args);
    (out.status.code(), serde_json::from_slice(&out.stdout).unwrap())
}

/// Row-cut over two sessions; the right half of its columns, one conversion, one constant, one unsupported source.
fn example() -> (Value, Value) {
    let capture = json!({
        "format": "restage-capture", "version": 1,
        "params": {"half": {"dtype": "BF16", "shape": [4, 4]}, "wide": {"dtype": "F32", "shape": [6]}},
        "copies": [
            {"source": "w", "ops": [{"op": "narrow", "dim": 1, "start": 4, "length": 4}],
             "param": "half", "dest_offset": 0, "dest_shape": [4, 4], "dest_stride": [4, 1]},
            {"source": "n", "ops": [], "param": "wide", "dest_offset": 0, "dest_shape": [4], "dest_stride": [1],
             "dest_dtype": "f32"}
        ],
        "fills": [{"param": "wide", "dest_offset": 4, "dest_shape": [2], "dest_stride": [1], "element": "0000803f"}]
    });
    let sources = json!({"format": "restage-sources", "version": 1, "sources": {
        "w": {"dtype": "BF16", "shape": [4, 8], "shards": [
            {"offset": [0, 0], "shape": [2, 8], "session": "t0", "addr": 4096},
            {"offset": [2, 0], "shape": [2, 8], "session": "t1", "addr": 8192}]},
        "n": {"dtype": "BF16", "shape": [4], "shards": [
            {"offset": [0], "shape": [4], "session": "t1", "addr": 64}]}
    }});
    (capture, sources)
}

#[test]
fn the_plan_says_everything() {
    let (capture, sources) = example();
    let (dir, c, s) = files(&capture, &sources);
    let (code, plan_) = plan(&c, &s, &[]);
    assert_eq!(code, Some(0));
    let rows = |session, src, dst| {
        json!({"session": session, "source": "w", "target": {"param": "half"}, "src": src, "dst": dst, "run": 8,
               "loops": [{"count": 2, "src": 16, "dst": 8}]})
    };
    let staged = json!({"session": "t1", "source": "n", "target": {"staging": 0}, "src": 64, "dst": 0, "run": 8, "loops": []});
    assert_eq!(plan_["segments"], json!([rows("t0", 4104, 0), rows("t1", 8200, 16), staged]));
    assert_eq!(
        plan_["counters"],
        json!({"descriptor_count": 5, "exact_descriptor_count": 5, "descriptor_savings": 0,
               "bytes_planned": 40, "exact_bytes": 40, "extra_wire_bytes": 0})
    );
    assert_eq!(
        plan_["conversions"],
        json!([{"source": "n", "staging": 0, "param": "wide", "from": "BF16", "to": "F32"}])
    );
    assert_eq!(
        plan_["stagings"][0]["replays"][0]["nests"],
        json!([{"src": 0, "dst": 0, "run": 4, "loops": []}])
    );
    assert_eq!(plan_["fills"][0]["element"], "0000803f");
    assert_eq!((&plan_["complete"], &plan_["refused"]), (&json!(true), &json!([])));

    // The same in text, a line for each.
    let lines = ok(&["plan", "--capture", text(&c), "--sources", text(&s)]);
    for line in [
        "  segment     t0 w -> half: src 4104 dst 0 run 8, 2 x (src +16, dst +8)",
        "  segment     t1 n -> staging 0: src 64 dst 0 run 8",
        "    convert BF16 -> wide F32, elements: src 0 dst 0 run 4",
        "  counter     descriptor_count 5",
    ] {
        assert!(lines.lines().any(|l| l == line), "{line}\n{lines}");
    }
    // Nothing of where the files lie.
    let name = dir.path().display().to_string();
    assert!(!lines.contains(&name) && !plan_.to_string().contains(&name));
}

#[test]
fn options_change_the_plan() {
    let (capture, sources) = example();
    let (_dir, c, s) = files(&capture, &sources);
    let (code, strided) = plan(&c, &s, &["--strided"]);
    assert_eq!((code, &strided["counters"]["descriptor_count"]), (Some(0), &json!(3)));
    let (code, bounded) = plan(&c, &s, &["--max-descriptors", "1", "--flat"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        bounded["full_pulls"],
        json!([{"source": "w", "staging": 1, "bytes": 48, "descriptors_needed": 4, "max_descriptors": 1}])
    );
    assert_eq!(bounded["counters"]["extra_wire_bytes"], 16);
    let whole = ["--max-descriptors", "1", "--flat", "--staging", "row-shards"];
    let (code, bounded) = plan(&c, &s, &whole);
    assert_eq!(code, Some(0));
    assert_eq!(bounded["full_pulls"][0]["bytes"], 64);
    assert_eq!(bounded["counters"]["extra_wire_bytes"], 32);
    // Nothing staged, at an alignment that every address has, and at one that some do not.
    let (code, exact) =
        plan(&c, &s, &["--max-descriptors", "1", "--staging-bytes", "1000", "--alignment", "2"]);
    assert_eq!((code, &exact["staging_bytes"], &exact["alignment"]), (Some(0), &json!(1000), &json!(2)));
    // Refused, and printed all the same.
    let (code, refused) = plan(&c, &s, &["--convert=false"]);
    assert_eq!((code, &refused["refused"][0]["source"]), (Some(3), &json!("n")));
    assert_eq!(refused["segments"].as_array().unwrap().len(), 2);
}

#[test]
fn the_order_in_the_files_does_not_matter() {
    let (mut capture, mut sources) = example();
    let (_dir, c, s) = files(&capture, &sources);
    let before = plan(&c, &s, &[]);
    capture["copies"].as_array_mut().unwrap().reverse();
    sources["sources"]["w"]["shards"].as_array_mut().unwrap().reverse();
    let (_dir, c, s) = files(&capture, &sources);
    assert_eq!(plan(&c, &s, &[]), before);
    // Bare forms say the same where nothing else is needed.
    let (_dir, _, bare) = files(&capture, &sources["sources"]);
    assert_eq!(plan(&c, &bare, &[]), before);
}

#[test]
fn the_counters_are_the_peers_where_it_refuses_nothing() {
    let path = fixtures().join("../crates/plan/tests/data/plans.json");
    let cases: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut same = 0;
    for case in cases["cases"].as_array().unwrap().iter().step_by(5) {
        let (_dir, c, s) = files(&case["copies"], &case["sources"]);
        let (code, plan_) = plan(
            &c,
            &s,
            &["--staging", "row-shards", "--max-descriptors", &case["max_segments_per_copy"].to_string()],
        );
        let refused = plan_["refused"].as_array().unwrap();
        assert_eq!(code, Some(if refused.is_empty() { 0 } else { 3 }), "{}", case["id"]);
        let peer = &case["peer"];
        let names: Vec<&Value> = refused.iter().map(|r| &r["source"]).collect();
        let theirs = &peer["counters"];
        // Where the peer's runs are not merged in full, ours are fewer.
        let merged = theirs["exact_descriptor_count"] == plan_["counters"]["exact_descriptor_count"];
        if peer["fallback"].as_array().is_some_and(|f| f.iter().collect::<Vec<_>>() == names) && merged {
            for (name, value) in plan_["counters"].as_object().unwrap() {
                assert_eq!(value, &theirs[name], "{} {name}", case["id"]);
            }
            same += 1;
        }
    }
    assert!(same >= 15, "{same}");
}

#[test]
fn mixtures_are_wrong_usage() {
    let (capture, sources) = example();
    let (_dir, c, s) = files(&capture, &sources);
    let (c, s) = (text(&c), text(&s));
    for args in [
        &["plan"][..],
        &["plan", "."],
        &["plan", "--tp", "2"],
        &["plan", "--capture", c],
        &["plan", "--sources", s],
        &["plan", ".", "--tp", "2", "--sources", s],
        &["plan", ".", "--tp", "2", "--strided"],
        &["plan", ".", "--tp", "2", "--convert"],
        &["plan", ".", "--capture", c, "--sources", s],
        &["plan", "--capture", c, "--sources", s, "--tp", "2"],
        &["plan", "--capture", c, "--sources", s, "--rank", "0"],
        &["plan", "--capture", c, "--sources", s, "--engine", "vllm:0.33"],
        &["plan", "--capture", c, "--sources", s, "--flat", "--strided"],
    ] {
        let out = restage(args);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{args:?}");
    }
}

#[test]
fn files_that_are_refused_are_named_with_the_path_in_them() {
    let (mut capture, sources) = example();
    capture["copies"][1]["ops"] = json!([{"op": "sqrt"}]);
    let (_dir, c, s) = files(&capture, &sources);
    let error = fails(3, &["plan", "--capture", text(&c), "--sources", text(&s)]);
    assert!(error.contains("capture.json: copies[1].ops[0].op: unknown variant `sqrt`"), "{error}");
    let error = fails(3, &["plan", "--capture", text(&s), "--sources", text(&s)]);
    assert!(error.contains("format: expected \"restage-capture\""), "{error}");
    fails(3, &["plan", "--capture", "no such file", "--sources", text(&s)]);
}
