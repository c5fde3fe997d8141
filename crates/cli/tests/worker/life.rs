//! How a worker ends, and what it survives.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::driver::{CallError, Driver, PATIENCE, command, wait};
use crate::schema::check_reply;

pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn lines(n: usize) -> String {
    (0..n).map(|i| format!("{{\"op\":\"tokenize\",\"request_id\":{i},\"prompt\":\"a b\"}}\n")).collect()
}

#[test]
fn the_end_of_input_comes_after_what_is_queued() {
    for n in [0, 1, 3000] {
        let mut driver = Driver::new(0, 2);
        driver.send(lines(n).as_bytes());
        let (status, replies, stderr) = driver.end();
        assert_eq!((status.code(), replies.len()), (Some(0), n), "{stderr}");
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(*reply, format!("{{\"request_id\":{i},\"tokens\":[97,99]}}"));
        }
    }
}

#[test]
fn a_signal_ends_an_idle_worker_with_zero() {
    for which in [Signal::TERM, Signal::INT] {
        let mut driver = Driver::new(0, 2);
        driver.alive();
        signal(&driver.child, which);
        let (status, replies, _) = driver.ended();
        assert_eq!((status.code(), replies.len()), (Some(0), 0), "{which:?}");
    }
}

#[test]
fn a_signal_in_the_middle_leaves_whole_replies_in_order() {
    let mut driver = Driver::new(0, 2);
    let mut stdin = driver.stdin.take().unwrap();
    // More than any queue holds, so that the signal meets work.
    let writer = thread::spawn(move || {
        let many = lines(1000);
        while stdin.write_all(many.as_bytes()).is_ok() {}
    });
    for i in 0..20_000 {
        assert_eq!(driver.reply()["request_id"], i % 1000);
    }
    signal(&driver.child, Signal::TERM);
    let (status, replies, _) = driver.ended();
    assert_eq!(status.code(), Some(0));
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(*reply, format!("{{\"request_id\":{},\"tokens\":[97,99]}}", i % 1000));
    }
    writer.join().unwrap();
}

#[test]
fn a_driver_that_does_not_read_cannot_hold_up_a_signal() {
    let mut child =
        command("0", "2").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::with_capacity(1 << 16, child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    let (full, is_full) = mpsc::channel();
    // It writes until the queues are full, and is stuck there until the worker is gone.
    let writer = thread::spawn(move || {
        let many = lines(1000);
        while stdin.write_all(many.as_bytes()).is_ok() {
            let _ = full.send(());
        }
    });
    while is_full.recv_timeout(Duration::from_secs(2)).is_ok() {}
    signal(&child, Signal::TERM);
    assert_eq!(wait(&mut child).code(), Some(0));
    writer.join().unwrap();
}

#[test]
fn a_closed_stdout_ends_it_quietly() {
    // While it is idle, and while it has something to say.
    for n in [0, 50_000] {
        let mut child = command("0", "2")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 10]).unwrap();
        let writer = thread::spawn(move || {
            // The worker may be gone before it has read this.
            let _ = stdin.write_all(lines(n).as_bytes());
            stdin
        });
        drop(stdout);
        let status = wait(&mut child);
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(status.code(), Some(0), "{stderr}");
        let loud = ["panic", "ERROR", "WARN", "restage:"].iter().any(|word| stderr.contains(word));
        assert!(!loud, "{stderr}");
        drop(writer.join().unwrap());
    }
}

/// Case 57: the parent dies while others still hold both ends of the worker's pipes.
#[test]
fn the_parent_dies() {
    let mut parent = Command::new("sh");
    // A shell in the background would give its child no stdin.
    parent
        .arg("-c")
        .arg("exec 4<&0; \"$0\" worker --stub --stage 0 --num-stages 2 <&4 & echo started $! >&2; wait");
    parent.arg(env!("CARGO_BIN_EXE_restage"));
    let mut parent =
        parent.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdin = parent.stdin.take().unwrap();
    let mut stdout = BufReader::new(parent.stdout.take().unwrap());
    let mut ready = String::new();
    stdout.read_line(&mut ready).unwrap();
    let ready: Value = serde_json::from_str(&ready).unwrap();
    check_reply(&ready);
    parent.kill().unwrap();
    parent.wait().unwrap();
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        let mut rest = String::new();
        let read = stdout.read_to_string(&mut rest);
        let _ = ended.send(read.map(|_| rest));
    });
    let rest = end.recv_timeout(PATIENCE).expect("the worker ends with its parent").unwrap();
    assert_eq!(rest, "");
    drop(stdin);
}

/// The kernel tells of the end of the *thread* that started the worker, too; that is not its parent's death.
#[test]
fn the_thread_that_started_it_ends() {
    let mut driver = thread::spawn(|| Driver::new(0, 2)).join().unwrap();
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(50));
        driver.alive();
    }
}

/// Stops a process and waits until all of its threads stand still: the signal alone only asks for that.
pub fn stop(child: &std::process::Child) {
    signal(child, Signal::STOP);
    let tasks = format!("/proc/{}/task", child.id());
    let stopped = |task: std::path::PathBuf| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
    };
    let start = Instant::now();
    while !std::fs::read_dir(&tasks).unwrap().all(|task| stopped(task.unwrap().path())) {
        assert!(start.elapsed() < PATIENCE, "it does not stop");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Case 56: the caller has an error within its time, and it says which stage.
#[test]
fn a_stage_that_is_stopped_or_killed() {
    let mut driver = Driver::new(3, 7);
    let ask = json!({"op": "status", "request_id": 1});
    driver.call(&ask, PATIENCE).unwrap();
    stop(&driver.child);
    let start = Instant::now();
    let error = driver.call(&ask, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, CallError::Timeout { .. }) && start.elapsed() < PATIENCE / 2);
    assert!(error.to_string().contains("stage 3"), "{error}");
    // It goes on where it was.
    signal(&driver.child, Signal::CONT);
    assert_eq!(driver.reply()["request_id"], 1);
    driver.alive();
    stop(&driver.child);
    driver.send(b"{\"op\":\"status\"}\n");
    signal(&driver.child, Signal::KILL);
    let error = driver.line(PATIENCE).unwrap_err();
    assert!(matches!(error, CallError::Gone { .. }) && error.to_string().contains("stage 3"), "{error}");
    wait(&mut driver.child);
    assert!(driver.call(&ask, PATIENCE).is_err());
}

/// Case 57: stdout has replies and nothing else, however much is logged; stderr has the logs.
#[test]
fn logs_go_to_stderr() {
    for (format, level) in [("text", "trace"), ("json", "trace"), ("json", "off")] {
        let mut driver = Driver::with(0, 2, &["--log-format", format, "--log-level", level]);
        driver.alive();
        driver.refused("{");
        driver.refused("{\"op\":\"nothing\"}");
        let (status, replies, stderr) = driver.end();
        assert_eq!((status.code(), replies.len()), (Some(0), 0));
        assert_eq!(stderr.is_empty(), level == "off", "{stderr}");
        if format == "json" {
            for line in stderr.lines() {
                let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
                assert!(line["level"].is_string(), "{line}");
            }
        }
    }
}

/// A driver may leave stderr closed, or never read it.
#[test]
fn nobody_reads_stderr() {
    let mut closed = Command::new("sh");
    closed.args(["-c", "exec \"$0\" worker --stub --stage 0 --num-stages 2 --log-level trace 2>&-"]);
    closed.arg(env!("CARGO_BIN_EXE_restage"));
    let mut driver = Driver::spawn(closed);
    driver.refused("{");
    assert_eq!(driver.end().0.code(), Some(0));

    let mut child = command("0", "2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    // Errors by the thousand; a pipe holds 64 KiB.
    let writer = thread::spawn(move || stdin.write_all("{\n".repeat(20_000).as_bytes()));
    assert_eq!(stdout.lines().count(), 20_001);
    writer.join().unwrap().unwrap();
    assert_eq!(wait(&mut child).code(), Some(0));
}

fn with_events(redirect: &str) -> Driver {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec \"$0\" worker --stub --stage 1 --num-stages 2 --events {redirect}"));
    shell.arg(env!("CARGO_BIN_EXE_restage"));
    Driver::spawn(shell)
}

#[test]
fn events_go_to_descriptor_three() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events");
    let mut driver = with_events(&format!("3>'{}'", path.display()));
    driver.alive();
    driver.raw("{");
    let pid = driver.child.id();
    let (status, replies, _) = driver.end();
    assert_eq!((status.code(), replies.len()), (Some(0), 0));
    let text = std::fs::read_to_string(path).unwrap();
    let events: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(events[0]["event"], "ready");
    assert_eq!((&events[0]["pid"], &events[0]["stage"]), (&json!(pid), &json!(1)));
    let last = events.last().unwrap();
    assert_eq!(*last, json!({"event": "ended", "reason": "end_of_input", "requests": 2, "errors": 1}));
}

#[test]
fn events_that_nobody_can_have_are_not_told() {
    for redirect in ["3>&-", "3</dev/null", "3>/dev/full"] {
        let mut driver = with_events(redirect);
        driver.alive();
        let (status, replies, stderr) = driver.end();
        assert_eq!((status.code(), replies.len()), (Some(0), 0), "{redirect}: {stderr}");
    }
}

/// Node and others give sockets that do not block, whose other side has set them so.
#[test]
fn pipes_that_do_not_block() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut child = command("0", "2");
    child
        .stdin(OwnedFd::from(theirs.try_clone().unwrap()))
        .stdout(OwnedFd::from(theirs))
        .stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    let mut replies = BufReader::new(ours.try_clone().unwrap());
    let mut line = String::new();
    replies.read_line(&mut line).unwrap();
    assert!(line.contains("ready"));
    // Time to find nothing there, and then more than the socket holds.
    thread::sleep(Duration::from_millis(50));
    let mut writing = ours.try_clone().unwrap();
    let writer = thread::spawn(move || {
        writing.write_all(lines(20_000).as_bytes()).unwrap();
        writing.shutdown(std::net::Shutdown::Write).unwrap();
    });
    thread::sleep(Duration::from_millis(200));
    for i in 0..20_000 {
        line.clear();
        replies.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{{\"request_id\":{i},\"tokens\":[97,99]}}\n"));
    }
    writer.join().unwrap();
    drop((replies, ours));
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn files_in_place_of_pipes() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    std::fs::write(&input, lines(3)).unwrap();
    let mut child = command("0", "2");
    child.stdin(File::open(&input).unwrap()).stdout(File::create(&output).unwrap()).stderr(Stdio::null());
    assert_eq!(wait(&mut child.spawn().unwrap()).code(), Some(0));
    assert_eq!(std::fs::read_to_string(output).unwrap().lines().count(), 4);
    // A folder cannot be read: an error, and its exit code, once it is ready.
    let mut child = command("0", "2");
    child.stdin(File::open(dir.path()).unwrap()).stdout(Stdio::null()).stderr(Stdio::null());
    assert_eq!(wait(&mut child.spawn().unwrap()).code(), Some(4));
}
