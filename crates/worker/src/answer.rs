//! A line in, a line out.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::Serialize;
use tracing::{debug, error};

use crate::ascii::{push_json, push_number, push_string};
use crate::counters::Counters;
use crate::engine::{Engine, EngineError, Positions};
use crate::fault::{Fault, Kind};
use crate::hidden;
use crate::ready::Ready;
use crate::request::{Limits, Op, Request};
use crate::sampling::Sampling;
use crate::sequences::{SequenceId, Sequences, Slot};
use crate::stage::Stage;
use crate::status::{Held, Status};
use crate::stub::is_space;

/// Buffers of more bytes than this are not kept from one op to the next.
const KEPT_BYTES: usize = 1 << 20;

/// One stage that answers lines. It knows no threads and no files.
#[derive(Debug)]
pub struct Worker<E: Engine> {
    engine: E,
    stage: Stage,
    limits: Limits,
    sequences: Sequences<E::Sequence>,
    counters: Arc<Counters>,
    /// The sequence that an engine is working on; dropped if it panics.
    touched: Option<SequenceId>,
    buffers: Buffers,
}

/// What one op needs on its way, kept for the next one.
#[derive(Debug, Default)]
struct Buffers {
    tokens: Vec<u64>,
    /// The hidden state that came.
    input: Vec<u8>,
    /// The hidden state that goes.
    output: Vec<u8>,
    text: String,
}

impl Buffers {
    fn clear(&mut self) {
        fn clear<T>(buffer: &mut Vec<T>) {
            buffer.clear();
            buffer.shrink_to(KEPT_BYTES / size_of::<T>());
        }
        clear(&mut self.tokens);
        clear(&mut self.input);
        clear(&mut self.output);
        self.text.clear();
        self.text.shrink_to(KEPT_BYTES);
    }
}

impl<E: Engine> Worker<E> {
    /// A worker with no sequences yet.
    pub fn new(engine: E, stage: Stage, limits: Limits) -> Self {
        Worker {
            engine,
            stage,
            limits,
            sequences: Sequences::new(limits.max_sequences),
            counters: Arc::default(),
            touched: None,
            buffers: Buffers::default(),
        }
    }

    /// What the worker has done so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// What lines the worker takes.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether replies may leave together; see [`crate::Description::quick`].
    pub fn is_quick(&self) -> bool {
        self.engine.description().quick
    }

    /// Appends the ready line.
    pub fn ready(&self, out: &mut Vec<u8>) {
        push_object(out, &Ready::new(self.stage, self.engine.description()));
        out.push(b'\n');
    }

    /// Appends the reply to a line (without its newline). A blank line gets none.
    ///
    /// ```
    /// use restage_worker::{Limits, Stage, Stub, Worker};
    /// let mut worker = Worker::new(Stub::new(), Stage::parse(Some("0"), Some("2"))?, Limits::default());
    /// let mut out = Vec::new();
    /// worker.answer(br#"{"op":"tokenize","request_id":[1.50],"prompt":"Say hello"}"#, &mut out);
    /// assert_eq!(out, b"{\"request_id\":[1.50],\"tokens\":[301,533]}\n");
    /// # Ok::<(), restage_worker::StageError>(())
    /// ```
    pub fn answer(&mut self, line: &[u8], out: &mut Vec<u8>) {
        if line.len() > self.limits.max_line_bytes {
            return self.answer_too_long(out);
        }
        let text = match std::str::from_utf8(line) {
            Ok(text) => text,
            Err(e) => {
                self.counters.request();
                let found = format!("the line is not UTF-8: byte {} is not", e.valid_up_to());
                return self.refuse(None, &Fault::new(Kind::InvalidUtf8, found), out);
            }
        };
        if text.chars().all(is_space) {
            return;
        }
        self.counters.request();
        let request = match Request::read(text) {
            Ok(request) => request,
            Err(fault) => return self.refuse(None, &fault, out),
        };
        let id = request.request_id.map_or("null", |id| id.text());
        let start = out.len();
        out.extend_from_slice(b"{\"request_id\":");
        push_json(out, id);
        let done = catch_unwind(AssertUnwindSafe(|| self.serve(&request, out)));
        self.buffers.clear();
        match done {
            Ok(Ok(())) => out.extend_from_slice(b"}\n"),
            Ok(Err(fault)) => {
                out.truncate(start);
                self.refuse(Some(id), &fault, out);
            }
            Err(panic) => {
                out.truncate(start);
                let dropped = self.touched.take().map(|id| self.sequences.remove(&id));
                self.counters.panic();
                error!(what = said(&*panic), dropped_positions = dropped, "panic in an op");
                let dropped = if dropped.is_some() { "; its sequence was dropped" } else { "" };
                let found = format!("internal fault: {}{dropped}", said(&*panic));
                self.refuse(Some(id), &Fault::new(Kind::Internal, found), out);
            }
        }
    }

    /// Appends the reply to a line that was too long to be kept.
    pub fn answer_too_long(&mut self, out: &mut Vec<u8>) {
        self.counters.request();
        let most = self.limits.max_line_bytes;
        let found = format!("the line has more than {most} bytes (--max-line-bytes) and was skipped");
        self.refuse(None, &Fault::new(Kind::LineTooLong, found), out);
    }

    fn refuse(&self, id: Option<&str>, fault: &Fault, out: &mut Vec<u8>) {
        self.counters.error();
        debug!(kind = fault.kind.name(), message = fault.message, "refused");
        out.push(b'{');
        if let Some(id) = id {
            out.extend_from_slice(b"\"request_id\":");
            push_json(out, id);
            out.push(b',');
        }
        out.extend_from_slice(b"\"error\":");
        push_string(out, &fault.message);
        out.extend_from_slice(b",\"kind\":\"");
        out.extend_from_slice(fault.kind.name().as_bytes());
        out.extend_from_slice(b"\"}\n");
    }

    /// Does a request, and appends the members of its reply.
    fn serve(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let op = request.op()?;
        self.check_role(op)?;
        match op {
            Op::Tokenize => self.tokenize(request, out),
            Op::Detokenize => self.detokenize(request, out),
            Op::EmbedAndForward => {
                let description = self.engine.description();
                let (limit, most) = (description.token_limit, self.limits.max_tokens);
                request.tokens(limit, most, &mut self.buffers.tokens)?;
                if self.buffers.tokens.is_empty() {
                    return Err(Fault::field("'tokens' must not be empty"));
                }
                let position = request.position_or_start()?;
                self.embed(request, position, out)
            }
            Op::DecodeStep => {
                let token = request.token_id(self.engine.description().token_limit)?;
                self.buffers.tokens.push(token);
                let position = request.position()?;
                self.embed(request, position, out)
            }
            Op::ForwardRange => {
                let (position, seq_len) = self.read_hidden(request)?;
                self.forward(request.sequence()?, position, seq_len, |engine, state, buffers| {
                    engine.forward_range(state, position, &buffers.input, &mut buffers.output)
                })?;
                self.push_hidden(seq_len, out);
                Ok(())
            }
            Op::ForwardAndSample => {
                let (position, seq_len) = self.read_hidden(request)?;
                let sampling: Sampling = request.sampling()?;
                let token =
                    self.forward(request.sequence()?, position, seq_len, |engine, state, buffers| {
                        engine.forward_and_sample(state, position, &buffers.input, &sampling)
                    })?;
                out.extend_from_slice(b",\"token_id\":");
                push_number(out, token);
                Ok(())
            }
            Op::Reset => {
                let id = request.sequence()?;
                let removed = self.sequences.remove(&id);
                push_members(out, &Shortened { op: "reset", sequence: &id, removed, length: 0 });
                Ok(())
            }
            Op::Truncate => self.truncate(request, out),
            Op::Status => {
                self.push_status(out);
                Ok(())
            }
        }
    }

    fn check_role(&self, op: Op) -> Result<(), Fault> {
        match op.role() {
            Some(role) if role != self.stage.role() => Err(Fault::new(
                Kind::WrongRole,
                format!(
                    "the {} stage has this op, and this is stage {} of {}, the {} one",
                    role.name(),
                    self.stage.index(),
                    self.stage.count(),
                    self.stage.role().name()
                ),
            )),
            _ => Ok(()),
        }
    }

    fn tokenize(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let prompt = request.prompt()?;
        let (found, most) = (prompt.len(), self.limits.max_prompt_bytes);
        if found > most {
            return Err(Fault::new(Kind::Limit, format!("'prompt' has {found} bytes, of {most} at most")));
        }
        let special = request.parse_special()?;
        let tokens = &mut self.buffers.tokens;
        self.engine.tokenize(&prompt, special, tokens).map_err(|e| Fault::engine(self.stage.index(), &e))?;
        if tokens.len() > self.limits.max_tokens {
            let (found, most) = (tokens.len(), self.limits.max_tokens);
            return Err(Fault::new(Kind::Limit, format!("'prompt' has {found} tokens, of {most} at most")));
        }
        out.extend_from_slice(b",\"tokens\":[");
        for (i, token) in tokens.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            push_number(out, *token);
        }
        out.push(b']');
        Ok(())
    }

    fn detokenize(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let buffers = &mut self.buffers;
        let limit = self.engine.description().token_limit;
        request.tokens(limit, self.limits.max_tokens, &mut buffers.tokens)?;
        match request.stream()? {
            None => self
                .engine
                .detokenize(&buffers.tokens, &mut buffers.text)
                .map_err(|e| Fault::engine(self.stage.index(), &e))?,
            Some(partial) => self.on_sequence(request.sequence()?, |engine, slot, buffers| {
                engine.detokenize_next(&mut slot.state, &buffers.tokens, partial, &mut buffers.text)
            })?,
        }
        out.extend_from_slice(b",\"text\":");
        push_string(out, &self.buffers.text);
        Ok(())
    }

    fn embed(&mut self, request: &Request<'_>, position: u64, out: &mut Vec<u8>) -> Result<(), Fault> {
        let seq_len = self.buffers.tokens.len() as u64;
        self.forward(request.sequence()?, position, seq_len, |engine, state, buffers| {
            engine.embed_and_forward(state, position, &buffers.tokens, &mut buffers.output)
        })?;
        self.push_hidden(seq_len, out);
        Ok(())
    }

    /// Reads the hidden state that came, and gives its position and its length.
    fn read_hidden(&mut self, request: &Request<'_>) -> Result<(u64, u64), Fault> {
        let text = request.hidden_b64()?;
        let (position, seq_len) = (request.position()?, request.seq_len()?);
        hidden::decode(&text, seq_len, self.engine.description(), &mut self.buffers.input)?;
        Ok((position, seq_len))
    }

    fn push_hidden(&self, seq_len: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"hidden_b64\":\"");
        hidden::encode(&self.buffers.output, out);
        out.extend_from_slice(b"\",\"seq_len\":");
        push_number(out, seq_len);
    }

    /// Runs a forwarding op on its sequence: checks where it stands, and moves it on if the op was done.
    fn forward<T>(
        &mut self,
        id: SequenceId,
        position: u64,
        seq_len: u64,
        run: impl FnOnce(&mut E, &mut E::Sequence, &mut Buffers) -> Result<T, EngineError>,
    ) -> Result<T, Fault> {
        self.check_position(position, seq_len, self.sequences.length(&id))?;
        let restart = self.engine.description().positions == Positions::Continue && position == 0;
        self.on_sequence(id, |engine, slot, buffers| {
            if restart {
                engine.truncate(&mut slot.state, 0)?;
                slot.length = 0;
            }
            let done = run(engine, &mut slot.state, buffers)?;
            slot.length = position.saturating_add(seq_len);
            Ok(done)
        })
    }

    /// Has the engine work on a sequence, which begins here if it is not held and the work is done.
    fn on_sequence<T>(
        &mut self,
        id: SequenceId,
        run: impl FnOnce(&mut E, &mut Slot<E::Sequence>, &mut Buffers) -> Result<T, EngineError>,
    ) -> Result<T, Fault> {
        // Where the engine's code runs, a panic may leave the sequence half done.
        let id = self.touched.insert(id);
        let done = match self.sequences.get(id) {
            Some(slot) => run(&mut self.engine, slot, &mut self.buffers),
            None => match self.sequences.room() {
                Err(full) => {
                    self.touched = None;
                    return Err(full);
                }
                Ok(()) => self.engine.start().and_then(|state| {
                    let mut slot = Slot { state, length: 0 };
                    let done = run(&mut self.engine, &mut slot, &mut self.buffers)?;
                    self.sequences.insert(id.clone(), slot);
                    Ok(done)
                }),
            },
        };
        self.touched = None;
        done.map_err(|e| Fault::engine(self.stage.index(), &e))
    }

    fn check_position(&self, position: u64, seq_len: u64, length: u64) -> Result<(), Fault> {
        let description = self.engine.description();
        if description.positions == Positions::Any {
            return Ok(());
        }
        if position != 0 && position != length {
            return Err(Fault::new(
                Kind::Position,
                format!(
                    "position {position} does not continue the sequence, which has length {length}: \
                     {length} would, and 0 would start it anew"
                ),
            ));
        }
        let most = description.model.as_ref().map_or(u64::MAX, |m| m.max_context);
        if position.checked_add(seq_len).is_none_or(|end| end > most) {
            return Err(Fault::new(
                Kind::Context,
                format!("position {position} + {seq_len} is beyond the context of {most}"),
            ));
        }
        Ok(())
    }

    fn truncate(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let length = request.length()?;
        let id = request.sequence()?;
        let held = self.sequences.length(&id);
        if length > held {
            return Err(Fault::new(
                Kind::Length,
                format!("the sequence has length {held} and cannot be truncated to {length}"),
            ));
        }
        let touched = self.touched.insert(id);
        if let Some(slot) = self.sequences.get(touched) {
            let done = self.engine.truncate(&mut slot.state, length);
            if let Err(e) = done {
                self.touched = None;
                return Err(Fault::engine(self.stage.index(), &e));
            }
            slot.length = length;
        }
        push_members(out, &Shortened { op: "truncate", sequence: touched, removed: held - length, length });
        self.touched = None;
        Ok(())
    }

    fn push_status(&self, out: &mut Vec<u8>) {
        let held = self.sequences.iter().map(|(sequence, slot)| Held {
            sequence,
            length: slot.length,
            bytes: self.engine.sequence_bytes(&slot.state),
        });
        let bytes = [self.engine.weight_bytes(), self.engine.read_bytes()];
        push_members(out, &Status::new(self.stage, &self.counters, held.collect(), bytes));
    }
}

/// What `reset` and `truncate` did to a sequence; null is the default one.
#[derive(Serialize)]
struct Shortened<'a> {
    op: &'static str,
    sequence: &'a SequenceId,
    /// Positions that are gone.
    removed: u64,
    /// Positions that are left.
    length: u64,
}

/// Appends an object of plain numbers, texts and lists.
fn push_object(out: &mut Vec<u8>, object: &impl Serialize) {
    // Only a map with keys that are no texts could fail here, or a writer, and there is neither.
    push_json(out, &serde_json::to_string(object).expect("plain members serialize"));
}

/// Appends the members of an object that has some, each after a comma.
fn push_members(out: &mut Vec<u8>, object: &impl Serialize) {
    let start = out.len();
    push_object(out, object);
    out[start] = b',';
    out.pop();
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text")
}
