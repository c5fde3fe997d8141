//! What a stage of a model takes to load, and of memory.
//!
//! `cargo bench -p restage --bench stages -- MODEL [STAGES]`: starts a pipeline of 2 stages, or as many as are said, three
//! times, gives each a prompt of 256 tokens, and prints a table. *Ready* is from the start of the process to its ready line,
//! *plain* is reading as many bytes of the same file as the stage has read, from its start, into a buffer of 1 MiB (both find
//! the file in the page cache); *read* and *repack* are what the worker says of its load on stderr. The best of three counts
//! for times, the highest for memory. *Bound* is 1.15 times the weights, plus keys and values, plus 60 MB.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const ROUNDS: usize = 3;
const PROMPT: usize = 256;

struct Stage {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// From the start of the process to its ready line.
    ready: Duration,
}

impl Stage {
    fn start(model: &str, index: usize, count: usize) -> Stage {
        let mut command = Command::new(env!("CARGO_BIN_EXE_restage"));
        command.args(["worker", "--model", model, "--log-format", "json"]);
        command.args(["--stage", &index.to_string(), "--num-stages", &count.to_string()]);
        let start = Instant::now();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command runs");
        let stdin = child.stdin.take().expect("piped");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a ready line");
        assert!(!line.is_empty(), "stage {index} did not start");
        Stage { child, stdin, stdout, ready: start.elapsed() }
    }

    fn ask(&mut self, request: &Value) -> Value {
        writeln!(self.stdin, "{request}").expect("it reads");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a reply");
        let reply: Value = serde_json::from_str(&line).expect("JSON");
        assert!(reply.get("error").is_none(), "{reply}");
        reply
    }

    /// Ends it, and gives what it said when it had loaded.
    fn end(self) -> Value {
        let Stage { mut child, stdin, .. } = self;
        drop(stdin);
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        child.wait().expect("it ends");
        let lines = stderr.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let mut loaded = lines.filter(|line| line["fields"]["message"] == "loaded");
        loaded.next().expect("it says what it has loaded")["fields"].clone()
    }
}

/// What is printed of a stage.
#[derive(Default)]
struct Row {
    read_bytes: u64,
    ready: f64,
    plain: f64,
    read: f64,
    repack: f64,
    weights: u64,
    cache: u64,
    peak: u64,
}

/// Seconds to read this many bytes of a file.
fn plain(file: &str, bytes: u64) -> f64 {
    let mut buffer = vec![0; 1 << 20];
    let start = Instant::now();
    let mut file = File::open(file).expect("the weights are a file").take(bytes);
    while file.read(&mut buffer).expect("it reads") > 0 {}
    start.elapsed().as_secs_f64()
}

fn round(model: &str, weights: &str, rows: &mut [Row]) {
    let count = rows.len();
    // One after the other: a stage that loads has the machine to itself.
    let mut stages: Vec<Stage> = (0..count).map(|index| Stage::start(model, index, count)).collect();
    let tokens: Vec<usize> = (0..PROMPT).map(|place| 100 + place * 7 % 900).collect();
    let mut request = json!({"op": "embed_and_forward", "tokens": tokens, "position": 0});
    for (index, (stage, row)) in stages.iter_mut().zip(&mut *rows).enumerate() {
        let reply = stage.ask(&request);
        let op = if index + 2 == count { "forward_and_sample" } else { "forward_range" };
        request = json!({"op": op, "hidden_b64": reply["hidden_b64"], "position": 0, "seq_len": PROMPT});
        let memory = stage.ask(&json!({"op": "status"}))["memory"].clone();
        let number = |name: &str| memory[name].as_u64().unwrap_or(0);
        row.read_bytes = number("read_bytes");
        row.weights = number("weight_bytes");
        row.cache = number("sequence_bytes");
        row.peak = row.peak.max(number("peak_rss_bytes"));
        row.plain = row.plain.min(plain(weights, row.read_bytes));
    }
    for (stage, row) in stages.into_iter().zip(rows) {
        row.ready = row.ready.min(stage.ready.as_secs_f64());
        let loaded = stage.end();
        let seconds = |name: &str| loaded[name].as_f64().unwrap_or(0.0);
        row.read = row.read.min(seconds("read_seconds"));
        row.repack = row.repack.min(seconds("repack_seconds"));
    }
}

fn main() {
    // Cargo says `--bench` to whatever it runs as one; `cargo test --benches` has no model to give.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let Some(model) = args.next() else {
        return println!("usage: cargo bench -p restage --bench stages -- MODEL [STAGES]");
    };
    let count = args.next().map_or(2, |count| count.parse().expect("a number of stages"));
    let weights = if model.ends_with(".gguf") { model.clone() } else { format!("{model}/model.safetensors") };
    let new = |_| Row {
        ready: f64::INFINITY,
        plain: f64::INFINITY,
        read: f64::INFINITY,
        repack: f64::INFINITY,
        ..Row::default()
    };
    let mut rows: Vec<Row> = (0..count).map(new).collect();
    for _ in 0..ROUNDS {
        round(&model, &weights, &mut rows);
    }
    println!(
        "| stage | read MB | ready ms | plain ms | read ms | repack ms | weights MB | cache MB | peak MB | bound MB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let (mb, ms) = (|bytes: u64| bytes as f64 / 1e6, |seconds: f64| seconds * 1e3);
    for (index, r) in rows.iter().enumerate() {
        let bound = 1.15 * mb(r.read_bytes) + mb(r.cache) + 60.0;
        println!(
            "| {index} | {:.1} | {:.0} | {:.0} | {:.0} | {:.0} | {:.1} | {:.1} | {:.1} | {bound:.1} |",
            mb(r.read_bytes),
            ms(r.ready),
            ms(r.plain),
            ms(r.read),
            ms(r.repack),
            mb(r.weights),
            mb(r.cache),
            mb(r.peak),
        );
    }
}
