//! What ends a worker besides the end of its input: signals, its parent's death, a stdout that nobody reads.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, getppid};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::low_level::pipe;
use tracing::{info, warn};

use crate::counters::{Counters, rss_bytes};
use crate::events::Events;
use crate::serve::{Control, End};

/// How often the parent is looked for, whatever signals say.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How often a heartbeat is told.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(30);

/// Signals that are caught, and the parent that was there when they were first caught.
#[derive(Debug)]
pub struct Signals {
    /// A byte for each request to stop.
    stop: UnixStream,
    /// A byte for each reason to look for the parent.
    look: UnixStream,
    parent: Option<Pid>,
}

impl Signals {
    /// Catches SIGTERM and SIGINT, and, on Linux, asks for SIGUSR1 when the parent dies.
    ///
    /// The kernel sends that when the parent's *thread* that started this process ends, too, so it is only a reason to
    /// look: a driver that starts workers from short-lived threads keeps them.
    ///
    /// # Errors
    ///
    /// The system refuses a socket or a handler.
    pub fn catch() -> io::Result<Self> {
        let parent = getppid();
        let (stop, stop_write) = UnixStream::pair()?;
        let (look, look_write) = UnixStream::pair()?;
        pipe::register(SIGTERM, stop_write.try_clone()?)?;
        pipe::register(SIGINT, stop_write)?;
        pipe::register(SIGUSR1, look_write)?;
        for stream in [&stop, &look] {
            stream.set_nonblocking(true)?;
        }
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::USR1))?;
        Ok(Signals { stop, look, parent })
    }

    /// Whether the parent died since.
    fn parent_is_gone(&self) -> bool {
        getppid() != self.parent
    }
}

/// Starts a thread that ends the worker when it must end. `output` is where replies go.
///
/// # Errors
///
/// The thread could not be started.
pub fn watch(
    signals: Signals,
    output: OwnedFd,
    control: Control,
    counters: Arc<Counters>,
    events: Events,
) -> io::Result<()> {
    let body = move || {
        let mut signals = signals;
        let mut output = Some(output);
        let mut beat = Instant::now();
        loop {
            let (stop, look, closed) = wait(&signals, output.as_ref());
            if stop && drain(&mut signals.stop) {
                info!("asked to stop");
                events.tell("stopping", [("reason", "signal".into())]);
                control.stop();
            }
            if look {
                drain(&mut signals.look);
            }
            if signals.parent_is_gone() {
                return control.abandon(End::ParentGone);
            }
            if closed {
                output = None;
                control.abandon(End::OutputClosed);
            }
            if beat.elapsed() >= HEARTBEAT_EVERY {
                beat = Instant::now();
                events.tell(
                    "heartbeat",
                    [
                        ("uptime_ms", counters.uptime_ms().into()),
                        ("rss_bytes", rss_bytes().into()),
                        ("requests", counters.requests().into()),
                        ("errors", counters.errors().into()),
                    ],
                );
            }
        }
    };
    thread::Builder::new().name("watch".into()).spawn(body)?;
    Ok(())
}

/// Waits for a signal, or for a look around: (asked to stop, asked to look, nobody reads the output).
fn wait(signals: &Signals, output: Option<&OwnedFd>) -> (bool, bool, bool) {
    let mut files =
        vec![PollFd::new(&signals.stop, PollFlags::IN), PollFd::new(&signals.look, PollFlags::IN)];
    // Nothing is asked of the output; that its reader is gone is said in any case.
    files.extend(output.map(|o| PollFd::from_borrowed_fd(o.as_fd(), PollFlags::empty())));
    if let Err(e) = poll(&mut files, Some(&LOOK_EVERY)) {
        if e != rustix::io::Errno::INTR {
            warn!(error = %e, "cannot wait for signals");
            thread::sleep(Duration::from_secs(1));
        }
        return (false, false, false);
    }
    let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    let closed = files.get(2).is_some_and(|o| o.revents().intersects(gone));
    (!files[0].revents().is_empty(), !files[1].revents().is_empty(), closed)
}

/// Takes the bytes that signals left; true if there were any.
fn drain(stream: &mut UnixStream) -> bool {
    let mut bytes = [0; 64];
    let mut any = false;
    while stream.read(&mut bytes).is_ok_and(|n| n > 0) {
        any = true;
    }
    any
}
