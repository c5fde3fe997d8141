//! Checkpoints at publishers give what the same files give, or an error.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::{contents, copy_dir, fails, fixtures, ok, restage, text};
use tempfile::tempdir;

struct Publisher(Child, String);

impl Publisher {
    fn start(path: &Path, more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_restage"))
            .args(["publish", text(path), "--listen", "tcp://127.0.0.1:0"])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening ").expect("a ready line").to_owned();
        Publisher(child, address)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What lies in the output of a reshard, without the report's own path of the source.
fn reshard(from: &str, out: &Path, more: &[&str]) {
    let args = [&["reshard", from, "--tp", "4", "--quiet", "--out", text(out)], more].concat();
    ok(&args);
}

#[test]
fn a_published_checkpoint_is_resharded_alike_and_stops_when_told() {
    let demo = fixtures().join("demo");
    let dir = tempdir().unwrap();
    let (local, remote) = (dir.path().join("local"), dir.path().join("remote"));
    reshard(text(&demo), &local, &[]);
    let mut publisher = Publisher::start(&demo, &[]);
    reshard(&publisher.1, &remote, &[]);
    assert_eq!(contents(&remote), contents(&local));
    let plan = ok(&["plan", &publisher.1, "--tp", "2"]);
    assert!(plan.contains("transport tcp") && plan.contains("0 tensor bytes read"), "{plan}");
    publisher.signal(Signal::TERM);
    assert!(publisher.0.wait().unwrap().success());
}

#[test]
fn publishers_with_some_files_each_are_one_checkpoint() {
    let demo = fixtures().join("demo");
    let dir = tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let mut weights: Vec<String> =
        contents(&demo).into_keys().filter(|name| name.ends_with(".safetensors")).collect();
    weights.sort();
    for (at, part) in [&one, &two].into_iter().enumerate() {
        copy_dir(&demo, part);
        // The first file is at both, unless it is the only one.
        for (n, name) in weights.iter().enumerate().skip(1) {
            if n % 2 != at {
                fs::remove_file(part.join(name)).unwrap();
            }
        }
    }
    let (a, b) = (Publisher::start(&one, &[]), Publisher::start(&two, &[]));
    let (local, remote) = (dir.path().join("local"), dir.path().join("remote"));
    reshard(text(&demo), &local, &[]);
    reshard(&format!("{},{}", a.1, b.1), &remote, &[]);
    let (mut expected, mut found) = (contents(&local), contents(&remote));
    // It tells the name of the directory.
    for files in [&mut expected, &mut found] {
        files.retain(|name, _| name.ends_with(".safetensors"));
    }
    assert!(found == expected);
    if weights.len() > 1 {
        fails(3, &["reshard", &a.1, "--tp", "4", "--out", text(&dir.path().join("half"))]);
    }
    fs::write(two.join("config.json"), "{}").unwrap();
    let other = Publisher::start(&two, &[]);
    let error = fails(3, &["plan", &format!("{},{}", a.1, other.1), "--tp", "4"]);
    assert!(error.contains("config.json") && error.contains("another file"), "{error}");
}

#[test]
fn a_token_is_asked_for() {
    let demo = fixtures().join("demo");
    let dir = tempdir().unwrap();
    let (right, wrong) = (dir.path().join("right"), dir.path().join("wrong"));
    fs::write(&right, "a token that is long enough\n").unwrap();
    fs::write(&wrong, "another that is long enough\n").unwrap();
    let publisher = Publisher::start(&demo, &["--token-file", text(&right)]);
    ok(&["plan", &publisher.1, "--tp", "2", "--token-file", text(&right)]);
    let error = fails(3, &["plan", &publisher.1, "--tp", "2", "--token-file", text(&wrong)]);
    assert!(error.contains("token"), "{error}");
    let error = fails(3, &["plan", &publisher.1, "--tp", "2"]);
    assert!(error.contains("token"), "{error}");
    let error = fails(3, &["publish", text(&demo), "--listen", "tcp://0.0.0.0:0"]);
    assert!(error.contains("0.0.0.0") && error.contains("--token-file"), "{error}");
    let error = fails(2, &["publish", text(&demo), "--listen", "127.0.0.1:0"]);
    assert!(error.contains("tcp://"), "{error}");
}

#[test]
fn a_publisher_that_is_killed_or_stopped_leaves_nothing() {
    let demo = fixtures().join("demo");
    let dir = tempdir().unwrap();
    let whole = dir.path().join("whole");
    reshard(text(&demo), &whole, &[]);
    let expected = contents(&whole);
    for round in 0..12u32 {
        let mut publisher = Publisher::start(&demo, &[]);
        let out = dir.path().join(format!("out{round}"));
        let args = ["reshard", &publisher.1, "--tp", "4", "--deadline", "1", "--out", text(&out)];
        let mut child = Command::new(env!("CARGO_BIN_EXE_restage"))
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(u64::from(round) * 1500));
        let begun = Instant::now();
        // Every other one is only halted, which no reset tells of.
        publisher.signal(if round % 2 == 0 { Signal::KILL } else { Signal::STOP });
        let status = child.wait().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(8), "round {round}");
        match status.code() {
            Some(0) => assert!(contents(&out) == expected, "round {round}"),
            Some(4) => assert!(!out.exists(), "round {round}"),
            other => panic!("round {round}: {other:?}"),
        }
        publisher.0.kill().unwrap();
    }
    let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let left: Vec<_> = names.filter(|name| name.contains("partial")).collect();
    assert!(left.is_empty(), "{left:?}");
    let publisher = Publisher::start(&demo, &[]);
    let again = dir.path().join("again");
    reshard(&publisher.1, &again, &[]);
    assert!(contents(&again) == expected);
    drop(publisher);
    assert_eq!(restage(&["plan", "tcp://127.0.0.1:1", "--tp", "2"]).status.code(), Some(4));
}
