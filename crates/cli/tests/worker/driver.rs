//! A small driver: starts a stage, asks it with a timeout, and says which stage did not answer.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::schema::{check_reply, is_request};

/// Longer than any answer takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A worker, and both ends of its pipes.
pub struct Driver {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
    replies: Receiver<Vec<u8>>,
    stderr: Option<JoinHandle<String>>,
    stage: String,
    pub ready: Value,
}

/// Why a call has no reply. It names the stage.
#[derive(Debug)]
pub enum CallError {
    Timeout { stage: String, after: Duration },
    Gone { stage: String },
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Timeout { stage, after } => write!(f, "stage {stage} did not answer within {after:?}"),
            CallError::Gone { stage } => write!(f, "stage {stage} is gone"),
        }
    }
}

/// The command for a stub stage, without the variables that a developer may have set.
pub fn command(stage: &str, num_stages: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restage"));
    command.arg("worker").env("STAGE", stage).env("NUM_STAGES", num_stages).env("PP_WORKER_STUB", "1");
    command.env_remove("MODEL");
    command
}

impl Driver {
    pub fn new(stage: u64, num_stages: u64) -> Driver {
        Driver::with(stage, num_stages, &[])
    }

    pub fn with(stage: u64, num_stages: u64, args: &[&str]) -> Driver {
        let mut command = command(&stage.to_string(), &num_stages.to_string());
        command.args(args);
        Driver::spawn(command)
    }

    pub fn spawn(mut command: Command) -> Driver {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("the command runs");
        let stdout = child.stdout.take().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let (lines, replies) = mpsc::channel();
        thread::spawn(move || {
            let mut stdout = BufReader::with_capacity(1 << 20, stdout);
            loop {
                let mut line = Vec::new();
                if stdout.read_until(b'\n', &mut line).unwrap_or(0) == 0 || lines.send(line).is_err() {
                    return;
                }
            }
        });
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let stdin = child.stdin.take();
        let stage = "?".into();
        let mut driver = Driver { child, stdin, replies, stderr: Some(stderr), stage, ready: Value::Null };
        driver.ready = driver.reply();
        driver.stage = driver.ready["stage"].to_string();
        driver
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    /// The next line, without its newline.
    pub fn line(&mut self, patience: Duration) -> Result<String, CallError> {
        let stage = self.stage.clone();
        let mut line = self.replies.recv_timeout(patience).map_err(|e| match e {
            RecvTimeoutError::Timeout => CallError::Timeout { stage: stage.clone(), after: patience },
            RecvTimeoutError::Disconnected => CallError::Gone { stage },
        })?;
        assert_eq!(line.pop(), Some(b'\n'), "a whole line: {:?}", String::from_utf8_lossy(&line));
        assert!(line.iter().all(|b| (b' '..=b'~').contains(b) || *b == b'\t' || *b == 0x7f), "ASCII");
        Ok(String::from_utf8(line).unwrap())
    }

    /// The next reply, held against the schema.
    pub fn reply(&mut self) -> Value {
        let line = self.line(PATIENCE).unwrap_or_else(|e| panic!("{e}"));
        let reply = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        check_reply(&reply);
        reply
    }

    /// Asks within a time, as a driver does.
    pub fn call(&mut self, request: &Value, patience: Duration) -> Result<Value, CallError> {
        let line = format!("{request}\n");
        let sent = self.stdin.as_mut().map(|stdin| stdin.write_all(line.as_bytes()));
        if !matches!(sent, Some(Ok(()))) {
            return Err(CallError::Gone { stage: self.stage.clone() });
        }
        let reply = serde_json::from_str(&self.line(patience)?).unwrap();
        check_reply(&reply);
        Ok(reply)
    }

    /// Sends a line as it is, and gives its one reply.
    pub fn raw(&mut self, line: impl AsRef<[u8]>) -> Value {
        let line = [line.as_ref(), b"\n"].concat();
        self.send(&line);
        self.reply()
    }

    /// Sends a line as it is, and gives the text of its one reply.
    pub fn raw_text(&mut self, line: &str) -> String {
        self.send(format!("{line}\n").as_bytes());
        self.line(PATIENCE).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Asks something that must be done, and that the schema describes.
    pub fn ok(&mut self, request: Value) -> Value {
        assert!(is_request(&request), "{request}");
        let reply = self.call(&request, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
        assert!(reply.get("error").is_none(), "{request}: {reply}");
        assert_eq!(reply["request_id"], request["request_id"]);
        reply
    }

    /// Sends a line that must be refused, and gives (kind, message). Then something must be done all the same.
    pub fn refused(&mut self, line: impl AsRef<[u8]>) -> (String, String) {
        let reply = self.raw(line);
        let text = |name: &str| reply[name].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned();
        let found = (text("kind"), text("error"));
        self.alive();
        found
    }

    /// It still does what it is asked.
    pub fn alive(&mut self) {
        let status = self.ok(json!({"op": "status", "request_id": "alive"}));
        assert_eq!(status["counters"]["panics"], 0);
    }

    /// Closes stdin, waits for the end, and gives the exit status, what came since and what stderr says.
    pub fn end(mut self) -> (ExitStatus, Vec<String>, String) {
        drop(self.stdin.take());
        self.ended()
    }

    /// Waits for the end, whatever stdin is.
    pub fn ended(mut self) -> (ExitStatus, Vec<String>, String) {
        let status = wait(&mut self.child);
        let mut lines = Vec::new();
        while let Ok(line) = self.line(PATIENCE) {
            lines.push(line);
        }
        let stderr = self.stderr.take().unwrap().join().unwrap();
        (status, lines, stderr)
    }

    pub fn rss_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }
}

/// Waits for a process, within reason.
pub fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    panic!("process {} did not end", child.id());
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
