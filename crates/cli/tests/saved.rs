//! Plan files: written by `plan`, carried out by `reshard`, compared by `diff`.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use support::{contents, copy_dir, edit_config, fails, file, fixtures, ok, parts, restage, text};
use tempfile::{TempDir, tempdir};

const MODELS: [(&str, &[&str]); 6] = [
    ("vllm/llama_untied/hf", &[]),
    ("vllm/llama_tied/hf", &[]),
    ("vllm/llama_tied_same_head/hf", &[]),
    ("vllm/qwen3moe_untied/hf", &[]),
    ("vllm/qwen3moe_ep/hf", &["--expert-parallel"]),
    ("demo", &[]),
];

/// A checkpoint of its own, and a plan of it.
fn planned(model: &str, flags: &[&str]) -> (TempDir, PathBuf, PathBuf) {
    let dir = tempdir().unwrap();
    let (from, plan) = (dir.path().join("from"), dir.path().join("plan.json"));
    copy_dir(&fixtures().join(model), &from);
    ok(&[&["plan", text(&from), "--out-plan", text(&plan)], flags].concat());
    (dir, from, plan)
}

#[test]
fn a_plan_that_is_carried_out_later_writes_the_same_files() {
    for (model, more) in MODELS {
        for flags in [
            &["--tp", "2"][..],
            &["--tp", "2", "--rank", "1"],
            &["--tp", "1"],
            &["--tp", "2", "--flat", "--max-descriptors", "1"],
        ] {
            let flags = [flags, more].concat();
            let (dir, from, plan) = planned(model, &flags);
            let (usual, later) = (dir.path().join("usual"), dir.path().join("later"));
            ok(&[&["reshard", text(&from), "--out", text(&usual)], &flags[..]].concat());
            // Elsewhere: a plan has no path of one machine.
            let elsewhere = dir.path().join("else").join("where");
            copy_dir(&from, &elsewhere);
            ok(&["reshard", text(&elsewhere), "--plan", text(&plan), "--out", text(&later)]);
            assert!(contents(&usual) == contents(&later), "{model} {flags:?}");
            // Saying again what it was made with changes nothing.
            let again = dir.path().join("again");
            let args = ["reshard", text(&from), "--plan", text(&plan), "--out", text(&again)];
            ok(&[&args, &flags[..]].concat());
            assert!(contents(&usual) == contents(&again), "{model} {flags:?}");
        }
    }
}

#[test]
fn a_plan_file_is_the_same_each_time_and_knows_no_path() {
    let (dir, from, plan) = planned("demo", &["--tp", "2"]);
    let first = fs::read_to_string(&plan).unwrap();
    let elsewhere = dir.path().join("other").join("name");
    copy_dir(&from, &elsewhere);
    let again = dir.path().join("again.json");
    ok(&["plan", text(&elsewhere), "--tp", "2", "--out-plan", text(&again)]);
    assert_eq!(first, fs::read_to_string(&again).unwrap());
    assert!(!first.contains(text(dir.path())));
    // What is printed does not depend on whether a file is written too.
    let printed = ok(&["plan", text(&from), "--tp", "2"]);
    assert_eq!(printed, ok(&["plan", text(&from), "--tp", "2", "--out-plan", text(&again)]));
}

/// Refuses to carry out the plan, in these words, and writes nothing.
fn refused(from: &Path, plan: &Path, more: &[&str], words: &str) {
    let out = from.with_file_name("out");
    let args = ["reshard", text(from), "--plan", text(plan), "--out", text(&out)];
    let error = fails(3, &[&args, more].concat());
    assert!(error.contains(words), "{words}: {error}");
    assert!(!out.exists(), "{words}");
}

/// Rewrites the header of a file, and its data if need be.
fn rewrite(path: &Path, change: impl Fn(&mut Map<String, Value>, &mut Vec<u8>)) {
    let (mut header, mut data) = parts(&fs::read(path).unwrap());
    change(header.as_object_mut().unwrap(), &mut data);
    fs::write(path, file(&header.to_string(), &data)).unwrap();
}

#[test]
fn whatever_changed_is_named_and_nothing_is_written() {
    const NAME: &str = "model.layers.0.mlp.down_proj.weight";
    let weights = |from: &Path| from.join("model.safetensors");
    let model = "vllm/llama_untied/hf";
    let plan_rank = || planned(model, &["--tp", "2", "--rank", "0"]);

    let (_dir, from, plan) = plan_rank();
    rewrite(&weights(&from), |header, _| {
        let shape = header[NAME]["shape"].as_array().unwrap().clone();
        header[NAME]["shape"] = json!([shape[1], shape[0]]);
    });
    refused(&from, &plan, &[], &format!("source {NAME}: shape expected ["));

    let (_dir, from, plan) = plan_rank();
    rewrite(&weights(&from), |header, _| {
        let other = if header[NAME]["dtype"] == "BF16" { "F16" } else { "BF16" };
        assert_ne!(header[NAME]["dtype"], "F32");
        header[NAME]["dtype"] = json!(other);
    });
    refused(&from, &plan, &[], &format!("source {NAME}: dtype expected "));

    // The same tensors in another order of the file: every one is elsewhere, with the same bytes.
    let (_dir, from, plan) = plan_rank();
    rewrite(&weights(&from), |header, data| {
        let mut entries: Vec<_> = header.iter().filter(|(n, _)| *n != "__metadata__").collect();
        entries.sort_by_key(|(_, e)| std::cmp::Reverse(e["data_offsets"][0].as_u64()));
        let (mut moved, mut new) = (Map::new(), Vec::new());
        for (name, entry) in entries {
            let at = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize;
            let start = new.len();
            new.extend_from_slice(&data[at(0)..at(1)]);
            let mut entry = entry.clone();
            entry["data_offsets"] = json!([start, new.len()]);
            moved.insert(name.clone(), entry);
        }
        (*header, *data) = (moved, new);
    });
    refused(&from, &plan, &[], ": changed address (and ");

    // A file under another name.
    let (_dir, from, plan) = planned("demo", &["--tp", "2"]);
    let rename = |a: &str, b: &str| fs::rename(from.join(a), from.join(b)).unwrap();
    rename("model-00001-of-00002.safetensors", "part-1.safetensors");
    let index = from.join("model.safetensors.index.json");
    let text_of = fs::read_to_string(&index).unwrap();
    fs::write(&index, text_of.replace("model-00001-of-00002.safetensors", "part-1.safetensors")).unwrap();
    refused(&from, &plan, &[], "its shards are cut otherwise, or lie in other sessions");

    // Options that are not those that the plan was made with.
    let (_dir, from, plan) = plan_rank();
    for (flags, words) in [
        (&["--rank", "1"][..], "rank: expected 0, found 1"),
        (&["--tp", "4"], "tp: expected 2, found 4"),
        (&["--max-descriptors", "7"], "max_descriptors: expected 64, found 7"),
        (&["--flat"], "strided: expected true, found false"),
        (&["--expert-parallel"], "expert_parallel: expected false, found true"),
        (&["--engine", "vllm:0.11"], "engine: expected vllm:"),
    ] {
        refused(&from, &plan, flags, words);
    }

    // A config that calls for other shapes.
    let (_dir, from, plan) = plan_rank();
    edit_config(&from, |config| {
        config.insert("vocab_size".into(), json!(128));
    });
    refused(&from, &plan, &[], "the config calls for shape [128, 64]");
}

#[test]
fn plan_files_that_are_no_plan_for_a_checkpoint_are_refused() {
    let (dir, from, plan) = planned("demo", &["--tp", "2"]);
    let value: Value = serde_json::from_slice(&fs::read(&plan).unwrap()).unwrap();
    let bad = dir.path().join("bad.json");
    let write = |value: &Value| fs::write(&bad, value.to_string()).unwrap();
    fs::write(&bad, "{}").unwrap();
    refused(&from, &bad, &[], "bad.json: format: expected \"restage-plan\"");
    let mut other = value.clone();
    other["segments"][0]["run"] = json!(u64::MAX);
    write(&other);
    refused(&from, &bad, &[], "bad.json: segments[0]: ");
    other = value.clone();
    other["placement"]["ranks"] = json!([0]);
    write(&other);
    refused(&from, &bad, &[], "bad.json: inputs.");
    refused(&from, Path::new("no such file"), &[], "no such file");
    // Sources before the copies.
    let (c, s) = (dir.path().join("c.json"), dir.path().join("s.json"));
    fs::write(&c, r#"{"format":"restage-capture","version":1,"params":{},"copies":[]}"#).unwrap();
    fs::write(&s, r#"{"format":"restage-sources","version":1,"sources":{}}"#).unwrap();
    ok(&["plan", "--capture", text(&c), "--sources", text(&s), "--out-plan", text(&bad)]);
    refused(&from, &bad, &[], "was made from a capture file");
}

#[test]
fn differences_are_told_with_their_exit_code() {
    let (dir, from, a) = planned("demo", &["--tp", "2"]);
    let (b, c) = (dir.path().join("b.json"), dir.path().join("c.json"));
    ok(&["plan", text(&from), "--tp", "2", "--out-plan", text(&b)]);
    assert_eq!(ok(&["diff", text(&a), text(&b)]), "equal\n");
    let same: Value = serde_json::from_str(&ok(&["diff", text(&a), text(&b), "--json"])).unwrap();
    assert_eq!((&same["equal"], &same["params"]), (&json!(true), &json!([])));

    ok(&["plan", text(&from), "--tp", "2", "--flat", "--max-descriptors", "1", "--out-plan", text(&c)]);
    let out = restage(&["diff", text(&a), text(&c)]);
    assert_eq!(out.status.code(), Some(5));
    let lines = String::from_utf8(out.stdout).unwrap();
    for part in [
        "made from   max_descriptors: expected 64, found 1",
        "total       descriptor_count: ",
        "parameter   ",
    ] {
        assert!(lines.lines().any(|l| l.starts_with(part)), "{part}\n{lines}");
    }
    assert!(lines.contains(" of rank 1"), "{lines}");
    let out = restage(&["diff", "--json", text(&a), text(&c)]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["equal"], json!(false));
    assert!(!report["totals"].as_array().unwrap().is_empty());
    // Either way round it is the same with the sides exchanged.
    let back: Value =
        serde_json::from_slice(&restage(&["diff", "--json", text(&c), text(&a)]).stdout).unwrap();
    for list in ["refused", "totals", "sources", "sessions", "params"] {
        let turned =
            |row: &Value| json!({"name": row["name"], "before": row["after"], "after": row["before"]});
        let turned: Vec<Value> = back[list].as_array().unwrap().iter().map(turned).collect();
        assert_eq!(report[list], json!(turned), "{list}");
    }
    fails(3, &["diff", text(&a), text(&from.join("config.json"))]);
    assert_eq!(restage(&["diff", text(&a)]).status.code(), Some(2));
}

#[test]
fn pages_are_written_beside_the_plan() {
    let dir = tempdir().unwrap();
    let demo = fixtures().join("demo");
    for flags in [&["--tp", "2"][..], &["--tp", "2", "--rank", "1"], &["--tp", "2", "--pp", "2"]] {
        let (one, two) = (dir.path().join("one.html"), dir.path().join("two.html"));
        for page in [&one, &two] {
            ok(&[&["plan", text(&demo), "--html", text(page)], flags].concat());
        }
        let page = fs::read_to_string(&one).unwrap();
        assert_eq!(page, fs::read_to_string(&two).unwrap());
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "{flags:?}");
        assert!(page.contains("<table class=\"heat\"") && page.contains("tp1"), "{flags:?}");
        assert!(!page.contains(text(dir.path())) && !page.contains(text(&fixtures())));
    }
}

#[test]
fn the_verbose_text_has_every_parameter() {
    let demo = fixtures().join("demo");
    let (short, long) =
        (ok(&["plan", text(&demo), "--tp", "2"]), ok(&["plan", text(&demo), "--tp", "2", "--verbose"]));
    assert!(long.len() > short.len());
    let plan: Value = serde_json::from_str(&ok(&["plan", text(&demo), "--tp", "2", "--json"])).unwrap();
    let params = plan["ranks"][0]["parameters"].as_u64().unwrap() as usize;
    let rank = long.split("rank 1 of 2").next().unwrap();
    let named = rank.lines().filter(|l| l.starts_with("    model.") && l.contains("], ")).count();
    assert!(named + 1 >= params && params > 8, "{named} of {params}\n{rank}");
}
