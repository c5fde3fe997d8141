//! What a worker will not start with: exit code 2, a message, nothing on stdout, and no wait for stdin.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::driver::{Driver, command, wait};

/// Runs a command whose stdin stays open; gives (exit code, stdout, stderr).
fn outcome(mut command: Command) -> (Option<i32>, String, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdin = child.stdin.take();
    let status = wait(&mut child);
    drop(stdin);
    let out = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(out.stdout), text(out.stderr))
}

/// A command that must not start.
pub fn refused(command: Command, about: &str) {
    let shown = format!("{command:?}");
    let (code, stdout, stderr) = outcome(command);
    assert_eq!(code, Some(2), "{shown}: {stderr}");
    assert_eq!(stdout, "", "{shown}");
    assert!(stderr.contains(about), "{shown}: {stderr}");
}

#[test]
fn stages_that_are_none() {
    for (stage, num_stages, about) in [
        ("2", "2", "STAGE"),
        ("-1", "2", "STAGE"),
        ("abc", "2", "STAGE"),
        ("", "2", "STAGE"),
        ("  ", "2", "STAGE"),
        ("٠", "2", "STAGE"),
        ("+1", "2", "STAGE"),
        ("1.0", "2", "STAGE"),
        ("1e0", "2", "STAGE"),
        ("0x1", "2", "STAGE"),
        ("1 1", "2", "STAGE"),
        ("1_0", "20", "STAGE"),
        ("９", "20", "STAGE"),
        ("99999999999999999999999999", "2", "STAGE"),
        ("0", "0", "NUM_STAGES"),
        ("0", "1", "NUM_STAGES"),
        ("0", "-2", "NUM_STAGES"),
        ("0", "", "NUM_STAGES"),
        ("0", "two", "NUM_STAGES"),
        ("0", "99999999999999999999999999", "NUM_STAGES"),
    ] {
        refused(command(stage, num_stages), about);
        // The same as flags, which win over an environment that is right.
        let mut flags = command("0", "2");
        flags.args(["--stage", stage, "--num-stages", num_stages]);
        refused(flags, about);
    }
    for name in ["STAGE", "NUM_STAGES"] {
        let mut missing = command("0", "2");
        missing.env_remove(name);
        refused(missing, name);
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let mut not_unicode = command("0", "2");
        not_unicode.env("STAGE", std::ffi::OsStr::from_bytes(b"\xff"));
        refused(not_unicode, "STAGE");
    }
}

#[test]
fn blanks_around_a_number_and_flags_over_the_environment() {
    for (stage, num_stages, index) in
        [(" 1\n", "\t3 ", 1), ("\u{a0}0", "2", 0), ("-0", "2", 0), ("001", "03", 1)]
    {
        let driver = Driver::spawn(command(stage, num_stages));
        assert_eq!(driver.ready["stage"], index);
    }
    let mut flags = command("nonsense", "");
    flags.args(["--stage", "3", "--num-stages=5", "--stub"]).env("PP_WORKER_STUB", "0");
    let driver = Driver::spawn(flags);
    assert_eq!((&driver.ready["stage"], &driver.ready["num_stages"]), (&json!(3), &json!(5)));
}

#[test]
fn no_engine() {
    for value in ["0", "", "true", "11"] {
        let mut neither = command("0", "2");
        neither.env("PP_WORKER_STUB", value);
        refused(neither, "--stub");
    }
    let mut flag = command("0", "2");
    flag.env_remove("PP_WORKER_STUB").args(["--model", "/nowhere/model.gguf"]);
    refused(flag, "/nowhere/model.gguf");
    let mut variable = command("0", "2");
    variable.env_remove("PP_WORKER_STUB").env("MODEL", "llama3.2:1b");
    refused(variable, "llama3.2:1b");
    // What is wrong with the stage comes first.
    let mut both = command("7", "2");
    both.env_remove("PP_WORKER_STUB");
    refused(both, "STAGE");
    // A stub is a stub, whatever the model.
    let mut stub = command("0", "2");
    stub.env("PP_WORKER_STUB", " 1 ").env("MODEL", "llama3.2:1b");
    assert_eq!(Driver::spawn(stub).ready["status"], "ready");
}

#[test]
fn wrong_usage() {
    for args in [
        &["--layers", "3..3"][..],
        &["--layers", "5"],
        &["--layers", "0..4", "--split", "balanced"],
        &["--split", "fair"],
        &["--max-line-bytes", "-1"],
        &["--log-format", "xml"],
        &["--nonsense"],
    ] {
        let mut wrong = command("0", "2");
        wrong.args(args);
        refused(wrong, "error");
    }
}

fn stages(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restage"));
    command.arg("stages").args(args);
    outcome(command)
}

/// Case 49, and its kind: every block exactly once.
#[test]
fn restage_stages_shares_out_every_block_once() {
    for (layers, num_stages) in [(10, 3), (30, 4), (31, 8), (2, 2), (16, 2), (15, 2), (100, 7)] {
        for split in ["floor", "balanced"] {
            let (layers_text, n) = (layers.to_string(), num_stages.to_string());
            let args = ["--layers", &layers_text, "--num-stages", &n, "--split", split, "--json"];
            let (code, stdout, stderr) = stages(&args);
            assert_eq!((code, &*stderr), (Some(0), ""));
            let found: Value = serde_json::from_str(&stdout).unwrap();
            let found = found["stages"].as_array().unwrap();
            assert_eq!(found.len(), num_stages);
            let mut owned = Vec::new();
            for (i, stage) in found.iter().enumerate() {
                let role = if i == 0 {
                    "first"
                } else if i + 1 == num_stages {
                    "last"
                } else {
                    "middle"
                };
                let (start, end) =
                    (stage["layers"][0].as_u64().unwrap(), stage["layers"][1].as_u64().unwrap());
                assert_eq!(*stage, json!({"stage": i, "role": role, "layers": [start, end]}));
                assert!(start < end);
                if split == "floor" && i + 1 < num_stages {
                    assert_eq!(end - start, layers / num_stages as u64);
                }
                owned.extend(start..end);
            }
            assert_eq!(owned, (0..layers).collect::<Vec<_>>());
        }
    }
    let (_, stdout, _) = stages(&["--layers", "16", "--num-stages", "2", "--json"]);
    let expected =
        r#"{"stages":[{"stage":0,"role":"first","layers":[0,8]},{"stage":1,"role":"last","layers":[8,16]}]}"#;
    assert_eq!(stdout.trim_end(), expected);
    let (_, stdout, _) = stages(&["--layers", "10", "--num-stages", "3"]);
    assert_eq!(stdout.lines().count(), 3);
}

#[test]
fn restage_stages_refuses_what_cannot_be_split() {
    for (layers, num_stages) in
        [("10", "1"), ("10", "0"), ("10", "-3"), ("2", "3"), ("0", "2"), ("x", "2"), ("10", "")]
    {
        let (code, stdout, stderr) = stages(&["--layers", layers, "--num-stages", num_stages, "--json"]);
        assert_eq!((code, &*stdout), (Some(2), ""), "{layers} over {num_stages}: {stderr}");
        assert!(!stderr.is_empty());
    }
}
