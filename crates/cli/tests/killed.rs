//! A run that is killed leaves no file that looks whole, and a later run succeeds.

mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{contents, fixtures, ok, text};
use tempfile::tempdir;

/// Starts a command and kills it this many quarter milliseconds later.
fn kill_after(quarters: u64, args: &[&str]) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_restage"))
        .args(args)
        .stdout(Stdio::null())
        .spawn()
        .expect("the command starts");
    std::thread::sleep(Duration::from_micros(quarters * 250));
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
}

#[test]
fn a_killed_run_leaves_nothing_under_the_final_name() {
    let demo = fixtures().join("demo");
    let dir = tempdir().unwrap();
    let whole = dir.path().join("whole");
    ok(&["reshard", text(&demo), "--tp", "4", "--out", text(&whole)]);
    let expected = contents(&whole);
    let mut complete = 0;
    for quarters in 0..40 {
        let out = dir.path().join(format!("out{quarters}"));
        kill_after(quarters, &["reshard", text(&demo), "--tp", "4", "--out", text(&out)]);
        // Either it is all there or it is not there.
        if out.exists() {
            assert_eq!(contents(&out), expected, "after {quarters} quarter milliseconds");
            complete += 1;
        }
        // One rank into a directory: each file that has its name is whole.
        let single = dir.path().join(format!("single{quarters}"));
        kill_after(quarters, &["reshard", text(&demo), "--tp", "4", "--rank", "2", "--out", text(&single)]);
        for (name, bytes) in if single.exists() { contents(&single) } else { Default::default() } {
            if !name.contains("partial") {
                assert_eq!(expected.get(&name), Some(&bytes), "{name}");
            }
        }
    }
    println!("{complete} of 40 runs were done before they were killed");
    let again = dir.path().join("out0");
    let _ = fs::remove_dir_all(&again);
    ok(&["reshard", text(&demo), "--tp", "4", "--out", text(&again)]);
    assert_eq!(contents(&again), expected);
}
