//! Checkpoints that are objects: the same files come out as of the folder, and what is wrong is named.

#![cfg(feature = "object")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use restage_object::testing::{Answers, HttpServer, S3Server};
use support::{contents, fixtures, ok, text};
use tempfile::tempdir;

/// Puts every file of a folder where `put` says.
fn upload(dir: &Path, put: impl Fn(&str, Vec<u8>)) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        put(entry.file_name().to_str().unwrap(), fs::read(entry.path()).unwrap());
    }
}

fn run(arguments: &[&str], variables: &[(String, String)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restage"));
    command.args(arguments).envs(variables.iter().map(|(k, v)| (k, v))).output().unwrap()
}

fn refused(output: &Output, code: i32, parts: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

#[test]
fn http_ranges_give_the_files_of_the_folder() {
    let server = HttpServer::start();
    for model in [fixtures().join("demo"), fixtures().join("vllm/llama_tied/hf")] {
        let name = model.parent().unwrap().file_name().unwrap().to_str().unwrap();
        upload(&model, |file, bytes| server.put(&format!("/{name}/model/{file}"), bytes));
        let dir = tempdir().unwrap();
        let (expected, out) = (dir.path().join("expected"), dir.path().join("out"));
        ok(&["reshard", text(&model), "--tp", "2", "--out", text(&expected)]);
        // With and without a slash at the end.
        for (i, url) in
            [server.url(&format!("/{name}/model")), server.url(&format!("/{name}/model/"))].iter().enumerate()
        {
            let out = out.with_extension(i.to_string());
            let done = run(&["reshard", url, "--tp", "2", "--out", text(&out)], &[]);
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(said.starts_with("model: "), "{said}");
            assert_eq!(contents(&out), contents(&expected), "{url}");
        }
    }
}

#[test]
fn a_plan_reads_headers_and_no_tensor() {
    let server = HttpServer::start();
    upload(&fixtures().join("vllm/llama_tied/hf"), |file, bytes| server.put(&format!("/m/{file}"), bytes));
    let done = run(&["plan", &server.url("/m"), "--tp", "2", "--json"], &[]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let plan: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(
        (&plan["transport"], &plan["tensor_bytes_read"], &plan["checkpoint"]),
        (&"object".into(), &0.into(), &"m".into())
    );
}

#[test]
fn s3_gives_the_files_of_the_folder_and_takes_the_way_back() {
    let Some(server) = S3Server::start() else {
        eprintln!("skipped: there is no S3 server to start; `cargo xtask s3-server` makes one");
        return;
    };
    let variables: Vec<(String, String)> =
        server.settings().into_iter().map(|(key, value)| (key.to_uppercase(), value)).collect();
    let demo = fixtures().join("demo");
    upload(&demo, |file, bytes| server.put(&format!("models/demo/{file}"), &bytes));
    let dir = tempdir().unwrap();
    let (expected, out, back) =
        (dir.path().join("expected"), dir.path().join("out"), dir.path().join("back"));
    ok(&["reshard", text(&demo), "--tp", "2", "--out", text(&expected)]);
    let url = server.url("models/demo");
    let done = run(&["reshard", &url, "--tp", "2", "--out", text(&out)], &variables);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(contents(&out), contents(&expected));
    upload(&out, |file, bytes| server.put(&format!("models/state/{file}"), &bytes));
    let state = server.url("models/state");
    let done = run(&["reshard", &state, "--from", "sharded-state", "--out", text(&back)], &variables);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    ok(&["verify", text(&demo), text(&back)]);
}

#[test]
fn what_is_wrong_names_the_object() {
    let server = HttpServer::start();
    let hf = fixtures().join("vllm/llama_tied/hf");
    let dir = tempdir().unwrap();
    let out = dir.path().join("out");
    let reshard = |url: &str| run(&["reshard", url, "--tp", "2", "--out", text(&out)], &[]);

    let url = server.url("/m");
    refused(&reshard(&url), 3, &[&format!("{url}/model.safetensors: ")]);
    upload(&hf, |file, bytes| server.put(&format!("/m/{file}"), bytes));
    for answers in [Answers::Short, Answers::Whole, Answers::Elsewhere, Answers::Replaced] {
        server.answer(answers);
        refused(&reshard(&url), 3, &[&url]);
    }
    server.answer(Answers::Well);
    // Cut in its last tensor: what the header says is held against the length that the store says.
    let weights = fs::read(hf.join("model.safetensors")).unwrap();
    server.put("/m/model.safetensors", weights[..weights.len() - 1].to_vec());
    refused(&reshard(&url), 3, &[&format!("{url}/model.safetensors")]);
    let index = br#"{"weight_map": {"a": "../../x.safetensors"}}"#;
    server.put("/m/model.safetensors.index.json", index.to_vec());
    refused(&reshard(&url), 3, &[&url, "../../x.safetensors"]);
    refused(&reshard("http://host/m?signature=1"), 3, &["a query or a fragment"]);
    refused(&reshard("ftp://host/m"), 2, &["s3, gs, az, http or https"]);
    refused(
        &run(&["reshard", &url, "--from", "sharded-state", "--out", text(&out)], &[]),
        3,
        &[&url, "listing"],
    );
    assert!(!out.exists());
}
