//! The threads around a worker, with an engine that can be held in the middle of an op.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use restage_worker::{
    Description, End, Engine, EngineError, Limits, Options, Partial, Positions, Sampling, Serving, Stage,
    Worker, serve,
};

/// Says when an op begins, and ends it when it is let go. A prompt of "panic" breaks it.
struct Held {
    description: Description,
    begun: Sender<String>,
    go: Receiver<()>,
}

impl Engine for Held {
    type Sequence = ();

    fn description(&self) -> &Description {
        &self.description
    }

    fn start(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn tokenize(&mut self, prompt: &str, _: bool, tokens: &mut Vec<u64>) -> Result<(), EngineError> {
        self.begun.send(prompt.to_owned()).unwrap();
        self.go.recv().unwrap();
        assert_ne!(prompt, "panic");
        tokens.push(prompt.len() as u64);
        Ok(())
    }

    fn detokenize(&mut self, _: &[u64], _: &mut String) -> Result<(), EngineError> {
        unreachable!("a first stage")
    }

    fn detokenize_next(
        &mut self,
        (): &mut (),
        _: &[u64],
        _: Partial,
        _: &mut String,
    ) -> Result<(), EngineError> {
        unreachable!("a first stage")
    }

    fn embed_and_forward(
        &mut self,
        (): &mut (),
        _: u64,
        tokens: &[u64],
        hidden: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        hidden.resize(tokens.len() * 2, 0);
        Ok(())
    }

    fn forward_range(&mut self, (): &mut (), _: u64, _: &[u8], _: &mut Vec<u8>) -> Result<(), EngineError> {
        unreachable!("a first stage")
    }

    fn forward_and_sample(
        &mut self,
        (): &mut (),
        _: u64,
        _: &[u8],
        _: &Sampling,
    ) -> Result<u64, EngineError> {
        unreachable!("a first stage")
    }

    fn truncate(&mut self, (): &mut (), _: u64) -> Result<(), EngineError> {
        Ok(())
    }

    fn sequence_bytes(&self, (): &()) -> u64 {
        0
    }

    fn weight_bytes(&self) -> u64 {
        0
    }
}

struct Rig {
    serving: Serving,
    input: PipeWriter,
    output: BufReader<PipeReader>,
    begun: Receiver<String>,
    go: Sender<()>,
}

impl Rig {
    fn new(write_grace: Duration) -> Rig {
        std::panic::set_hook(Box::new(|_| ()));
        let (begins, begun) = channel();
        let (go, goes) = channel();
        let description = Description {
            hidden_dim: 1,
            hidden_dtype: "f16",
            element_bytes: 2,
            vocab_size: 10,
            token_limit: None,
            positions: Positions::Any,
            quick: false,
            model: None,
        };
        let engine = Held { description, begun: begins, go: goes };
        let worker = Worker::new(engine, Stage::new(0, 2).unwrap(), Limits::default());
        let ((their_input, input), (output, their_output)) = (pipe().unwrap(), pipe().unwrap());
        let options = Options { input: their_input.into(), output: their_output.into(), write_grace };
        let serving = serve(worker, options).unwrap();
        let mut rig = Rig { serving, input, output: BufReader::new(output), begun, go };
        assert!(rig.line().contains("\"status\":\"ready\""));
        rig
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn ask(&mut self, prompts: &[&str]) {
        let lines: Vec<String> = prompts
            .iter()
            .map(|p| format!("{{\"op\":\"tokenize\",\"request_id\":1,\"prompt\":\"{p}\"}}\n"))
            .collect();
        self.input.write_all(lines.concat().as_bytes()).unwrap();
    }
}

const GRACE: Duration = Duration::from_secs(30);

#[test]
fn a_reply_leaves_before_the_next_op_begins() {
    let mut rig = Rig::new(GRACE);
    rig.ask(&["a", "bb", "ccc"]);
    for (prompt, tokens) in [("a", "[1]"), ("bb", "[2]"), ("ccc", "[3]")] {
        assert_eq!(rig.begun.recv().unwrap(), prompt);
        rig.go.send(()).unwrap();
        assert!(rig.line().contains(tokens));
    }
    drop(rig.input);
    assert!(matches!(rig.serving.wait(), End::Drained));
}

#[test]
fn a_stop_finishes_the_op_in_flight_and_drops_the_rest() {
    // What waits is in the same chunk as the op in flight, or in one of its own.
    for apart in [false, true] {
        let mut rig = Rig::new(GRACE);
        rig.ask(if apart { &["a"] } else { &["a", "bb", "ccc"] });
        assert_eq!(rig.begun.recv().unwrap(), "a");
        if apart {
            rig.ask(&["bb", "ccc"]);
        }
        rig.serving.control().stop();
        rig.go.send(()).unwrap();
        assert!(rig.line().contains("[1]"));
        assert!(matches!(rig.serving.wait(), End::Stopped));
        // The input is open still, and nothing else comes.
        assert!(rig.begun.recv().is_err(), "no other op begins");
        drop(rig.input);
        let mut rest = String::new();
        assert_eq!(rig.output.read_line(&mut rest).unwrap(), 0, "{rest}");
    }
}

#[test]
fn a_panic_is_a_reply_and_work_goes_on() {
    let mut rig = Rig::new(GRACE);
    rig.ask(&["a", "panic", "bb"]);
    for _ in 0..3 {
        rig.go.send(()).unwrap();
    }
    assert!(rig.line().contains("[1]"));
    let reply = rig.line();
    assert!(reply.contains("\"kind\":\"internal\"") && reply.contains("\"request_id\":1,"), "{reply}");
    assert!(rig.line().contains("[2]"));
    drop(rig.input);
    assert!(matches!(rig.serving.wait(), End::Drained));
}

#[test]
fn nobody_reads() {
    let Rig { serving, mut input, output, begun: _begun, go } = Rig::new(GRACE);
    drop(output);
    input.write_all(b"{\"op\":\"tokenize\",\"prompt\":\"a\"}\n").unwrap();
    go.send(()).unwrap();
    assert!(matches!(serving.wait(), End::OutputClosed));
}

#[test]
fn whoever_watches_may_end_it_at_once() {
    let mut rig = Rig::new(GRACE);
    rig.ask(&["a"]);
    rig.begun.recv().unwrap();
    rig.serving.control().abandon(End::ParentGone);
    assert!(matches!(rig.serving.wait(), End::ParentGone));
}
