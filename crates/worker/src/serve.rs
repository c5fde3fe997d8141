//! The threads around a worker: a reader, the compute thread, a writer, and bounded queues between them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use memchr::memchr_iter;
use rustix::event::{PollFd, PollFlags, poll};

use crate::answer::Worker;
use crate::engine::Engine;
use crate::inbox::{Chunk, Inbox};
use crate::lines;
use crate::outbox::Outbox;

/// Replies of a quick engine leave at the latest when they are this many bytes.
const BATCH_BYTES: usize = 64 << 10;

/// How requests come and replies go.
#[derive(Debug)]
pub struct Options {
    /// Where lines come from.
    pub input: OwnedFd,
    /// Where replies go, and nothing else.
    pub output: OwnedFd,
    /// How long a driver that does not read may hold up an end that was asked for.
    pub write_grace: Duration,
}

/// Why a worker ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum End {
    /// The input ended, and every line has its reply.
    Drained,
    /// It was asked to stop: the op in flight has its reply, and what waited was dropped.
    Stopped,
    /// Nobody reads the replies any more.
    OutputClosed,
    /// The process that started this one is gone.
    ParentGone,
    /// Reading failed; every line read before has its reply.
    InputFailed(io::Error),
    /// Writing failed.
    OutputFailed(io::Error),
    /// A thread broke down, which is a fault of the worker's own.
    ThreadLost(&'static str),
}

#[derive(Debug)]
enum Note {
    Computed,
    Written(io::Result<()>),
    Abandoned(End),
}

/// What the threads share.
#[derive(Debug, Default)]
struct Shared {
    inbox: Inbox,
    outbox: Outbox,
    stopped: AtomicBool,
    /// Why reading ended early.
    input_error: OnceLock<io::Error>,
}

/// A handle by which others end a worker.
#[derive(Debug, Clone)]
pub struct Control {
    shared: Arc<Shared>,
    notes: Sender<Note>,
}

impl Control {
    /// Finishes the op in flight, lets its reply out, and drops what waits.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.inbox.stop();
        self.shared.outbox.hurry();
    }

    /// Ends at once: nobody is left to reply to.
    pub fn abandon(&self, end: End) {
        // If nobody listens, the worker has ended already.
        let _ = self.notes.send(Note::Abandoned(end));
    }
}

/// A worker at work.
#[derive(Debug)]
pub struct Serving {
    control: Control,
    notes: Receiver<Note>,
    write_grace: Duration,
}

/// Starts a worker: the ready line leaves first, then lines are answered until the input ends.
///
/// # Errors
///
/// A thread could not be started.
pub fn serve<E>(worker: Worker<E>, options: Options) -> io::Result<Serving>
where
    E: Engine + Send + 'static,
    E::Sequence: Send,
{
    let (notes, received) = mpsc::channel();
    let shared = Arc::new(Shared::default());
    let control = Control { shared: Arc::clone(&shared), notes: notes.clone() };
    let most = worker.limits().max_line_bytes;

    let mut ready = Vec::new();
    worker.ready(&mut ready);
    shared.outbox.push(&mut ready);

    let (input, output) = (Patient(options.input.into()), Patient(options.output.into()));
    let own = Arc::clone(&shared);
    spawn("writer", &notes, move |notes| {
        let _ = notes.send(Note::Written(write(output, &own.outbox)));
    })?;
    let own = Arc::clone(&shared);
    spawn("compute", &notes, move |notes| {
        compute(worker, &own);
        own.outbox.end();
        let _ = notes.send(Note::Computed);
    })?;
    let own = shared;
    spawn("reader", &notes, move |_| {
        if let Err(e) = lines::read(input, most, &own.inbox) {
            // This thread alone sets it, and once.
            let _ = own.input_error.set(e);
        }
        own.inbox.end();
    })?;
    Ok(Serving { control, notes: received, write_grace: options.write_grace })
}

fn spawn(
    name: &'static str,
    notes: &Sender<Note>,
    body: impl FnOnce(&Sender<Note>) + Send + 'static,
) -> io::Result<()> {
    let notes = notes.clone();
    let run = move || {
        if catch_unwind(AssertUnwindSafe(|| body(&notes))).is_err() {
            let _ = notes.send(Note::Abandoned(End::ThreadLost(name)));
        }
    };
    thread::Builder::new().name(name.into()).spawn(run)?;
    Ok(())
}

fn compute<E: Engine>(mut worker: Worker<E>, shared: &Shared) {
    let (inbox, outbox) = (&shared.inbox, &shared.outbox);
    let batch = if worker.is_quick() { BATCH_BYTES } else { 1 };
    let mut replies = Vec::new();
    while let Some(chunk) = inbox.next() {
        match &chunk {
            Chunk::TooLong => worker.answer_too_long(&mut replies),
            Chunk::Lines(lines) => {
                let mut start = 0;
                // The last line of all may lack its newline.
                let open = lines.len() - usize::from(lines.ends_with(b"\n"));
                let ends = memchr_iter(b'\n', &lines[..open]).chain([open]);
                for end in ends {
                    if shared.stopped.load(Ordering::Acquire) {
                        break;
                    }
                    worker.answer(&lines[start..end], &mut replies);
                    start = end + 1;
                    if replies.len() >= batch {
                        outbox.push(&mut replies);
                    }
                }
            }
        }
        inbox.done(chunk);
        if !replies.is_empty() && (replies.len() >= batch || !inbox.waits()) {
            outbox.push(&mut replies);
        }
    }
    if !replies.is_empty() {
        outbox.push(&mut replies);
    }
}

fn write(mut output: Patient, outbox: &Outbox) -> io::Result<()> {
    let mut replies = Vec::new();
    while outbox.take(&mut replies) {
        output.write_all(&replies)?;
    }
    Ok(())
}

impl Serving {
    /// The handle by which others end it.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Waits for the end.
    pub fn wait(self) -> End {
        let mut deadline: Option<Instant> = None;
        loop {
            let stopped = || self.control.shared.stopped.load(Ordering::Acquire);
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            let note = match left {
                // `control` keeps a sender, so that the channel stays open.
                None => self.notes.recv().ok(),
                Some(left) => self.notes.recv_timeout(left).ok(),
            };
            match note {
                None => return End::Stopped,
                Some(Note::Abandoned(end)) => return end,
                Some(Note::Computed) if stopped() => deadline = Some(Instant::now() + self.write_grace),
                Some(Note::Computed) => {}
                Some(Note::Written(Err(e))) if e.kind() == io::ErrorKind::BrokenPipe => {
                    return End::OutputClosed;
                }
                Some(Note::Written(Err(e))) => return End::OutputFailed(e),
                Some(Note::Written(Ok(()))) if stopped() => return End::Stopped,
                Some(Note::Written(Ok(()))) => {
                    let error = self.control.shared.input_error.get();
                    return error.map_or(End::Drained, |e| End::InputFailed(e.kind().into()));
                }
            }
        }
    }
}

/// A file that is waited for where its other side has set it not to block.
#[derive(Debug)]
struct Patient(File);

impl Patient {
    fn wait(&self, flags: PollFlags) {
        // Whatever is wrong with the file, the next try to read or write says it better.
        let _ = poll(&mut [PollFd::new(&self.0, flags)], None);
    }
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN),
                read => return read,
            }
        }
    }
}

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::OUT),
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
