//! The staged worker's own cost, against a Python worker that does nothing but echo.
//!
//! `cargo bench -p restage --bench worker`. One run measures, over pipes and in turns:
//!
//! - *echo*: Python reads a line, parses it, decodes its base64, encodes it again, and writes and flushes the reply:
//!   what any Python worker does before it has computed anything. *copy*: Python writes the line back as it came.
//! - *stub*: `restage worker --stub`, the middle stage: the same line, checked, hashed, and a new hidden state encoded.
//! - *cat*: the system's `cat`, as the floor of two pipes and two processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const ECHO: &str = "
import base64, json, sys
for line in sys.stdin:
    request = json.loads(line)
    hidden = base64.b64decode(request['hidden_b64'], validate=True)
    reply = {'request_id': request['request_id'], 'hidden_b64': base64.b64encode(hidden).decode('ascii'),
             'seq_len': request['seq_len']}
    sys.stdout.write(json.dumps(reply) + '\\n')
    sys.stdout.flush()
";

const COPY: &str = "
import sys
for line in sys.stdin:
    sys.stdout.write(line)
    sys.stdout.flush()
";

/// Times each figure is measured; the median counts.
const ROUNDS: usize = 5;

struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

fn stub() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restage"));
    command.args(["worker", "--stub", "--stage", "1", "--num-stages", "3", "--log-level", "off"]);
    command
}

fn python(program: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", program]);
    command
}

impl Peer {
    fn start(mut command: Command) -> Peer {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::with_capacity(64 << 10, child.stdout.take().expect("piped"));
        Peer { child, stdin, stdout }
    }

    fn named(name: &str) -> Peer {
        match name {
            "stub" => {
                let mut peer = Peer::start(stub());
                peer.line();
                peer
            }
            "echo" => Peer::start(python(ECHO)),
            "copy" => Peer::start(python(COPY)),
            _ => Peer::start(Command::new("cat")),
        }
    }

    fn line(&mut self) -> usize {
        let mut line = Vec::new();
        self.stdout.read_until(b'\n', &mut line).expect("a reply")
    }

    fn end(mut self) {
        drop(self.stdin);
        let _ = self.child.wait();
    }
}

fn request(positions: usize) -> Vec<u8> {
    // 32 bytes a position are 128 characters for 3 positions; the text itself does not matter.
    let bytes = positions * 32;
    let text: String = (0..bytes / 3 * 4).map(|i| char::from(b'A' + (i % 26) as u8)).collect();
    let tail = ["", "AA==", "AAA="][bytes % 3];
    let line = format!(
        "{{\"op\": \"forward_range\", \"request_id\": 12345, \"hidden_b64\": \"{text}{tail}\", \"position\": 17, \
         \"seq_len\": {positions}}}\n"
    );
    line.into_bytes()
}

fn median<T: Copy + PartialOrd>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("comparable"));
    values[values.len() / 2]
}

/// Ops per second with requests always waiting.
fn throughput(name: &str, line: &[u8], ops: usize) -> f64 {
    let mut peer = Peer::named(name);
    // One op first, so that a start is not counted.
    peer.stdin.write_all(line).expect("it reads");
    peer.line();
    let at_once = (64 << 10) / line.len() + 1;
    let many = line.repeat(at_once);
    let length = line.len();
    let mut stdin = peer.stdin;
    let start = Instant::now();
    let writer = thread::spawn(move || {
        let mut left = ops;
        while left > 0 {
            let now = left.min(at_once);
            stdin.write_all(&many[..now * length]).expect("it reads");
            left -= now;
        }
    });
    let mut buffer = vec![0; 256 << 10];
    let mut replies = 0;
    while replies < ops {
        let read = peer.stdout.read(&mut buffer).expect("replies");
        assert!(read > 0, "{name} ended after {replies} replies");
        replies += buffer[..read].iter().filter(|b| **b == b'\n').count();
    }
    let seconds = start.elapsed().as_secs_f64();
    writer.join().expect("the writer ends");
    let _ = peer.child.wait();
    ops as f64 / seconds
}

/// Times from a request to its reply, one at a time.
fn round_trips(name: &str, line: &[u8], ops: usize) -> Vec<Duration> {
    let mut peer = Peer::named(name);
    let mut times = Vec::with_capacity(ops);
    for i in 0..ops + ops / 10 {
        let start = Instant::now();
        peer.stdin.write_all(line).expect("it reads");
        peer.line();
        if i >= ops / 10 {
            times.push(start.elapsed());
        }
    }
    peer.end();
    times
}

/// Times from the start of the process to its ready line.
fn starts(n: usize) -> Vec<Duration> {
    let time = |_| {
        let start = Instant::now();
        let mut peer = Peer::start(stub());
        assert!(peer.line() > 0);
        let time = start.elapsed();
        peer.end();
        time
    };
    (0..n).map(time).collect()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn main() {
    // `cargo test --benches` runs this too, without the flag: only to see that it runs.
    let measured = std::env::args().any(|a| a == "--bench");
    let scale = |n: usize| if measured { n } else { n / 1000 + 1 };
    let rounds = if measured { ROUNDS } else { 1 };

    for (positions, ops) in [(1, 200_000), (512, 6_000)] {
        let line = request(positions);
        let ops = scale(ops);
        println!("{positions} position(s), {} bytes a line", line.len());
        let mut rates = [const { Vec::new() }; 4];
        let names = ["stub", "echo", "copy", "cat"];
        for _ in 0..rounds {
            for (name, rates) in names.iter().zip(&mut rates) {
                rates.push(throughput(name, &line, ops));
            }
        }
        let [stub, echo, copy, cat] = rates.map(median);
        println!("  ops/s, requests waiting: stub {stub:.0}, echo {echo:.0}, copy {copy:.0}, cat {cat:.0}");
        println!("  stub is {:.1} x echo, {:.1} x copy", stub / echo, stub / copy);
        let times = names.map(|name| micros(median(round_trips(name, &line, scale(20_000)))));
        let [stub, echo, copy, cat] = times;
        println!("  us a round trip, median: stub {stub:.1}, echo {echo:.1}, copy {copy:.1}, cat {cat:.1}");
        println!("  added over cat: stub {:.1} us, echo {:.1} us", stub - cat, echo - cat);
    }
    let times = starts(scale(100));
    let slowest = times.iter().max().copied().unwrap_or_default();
    println!(
        "start to ready line: median {:.2} ms, slowest {:.2} ms of {}",
        micros(median(times.clone())) / 1e3,
        micros(slowest) / 1e3,
        times.len()
    );
}
