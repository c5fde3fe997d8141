//! What happens to a worker, as JSON lines on a channel of their own.
//!
//! Events are told at best effort: nobody waits for a driver that does not read them, and a request's reply never
//! depends on one.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::ascii::push_json;

/// Events that may wait for a driver to read. More are dropped.
const MAX_WAITING: usize = 64;
/// How long the last events may hold up the end.
const GRACE: Duration = Duration::from_millis(100);

/// The channel for events, which may be none.
#[derive(Debug, Clone)]
pub struct Events {
    messages: Option<SyncSender<Message>>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// What was told before has been written when this is answered.
    End(SyncSender<()>),
}

impl Events {
    /// Events go nowhere.
    pub fn none() -> Self {
        Events { messages: None }
    }

    /// Events go to a descriptor.
    ///
    /// # Errors
    ///
    /// The thread that writes them could not be started.
    pub fn to(output: OwnedFd) -> std::io::Result<Self> {
        let (messages, waiting) = mpsc::sync_channel(MAX_WAITING);
        let mut output = File::from(output);
        let write = move || {
            // It ends with the last sender, or with a driver that is gone.
            while let Ok(message) = waiting.recv() {
                let written = match message {
                    Message::Line(line) => output.write_all(&line).is_ok(),
                    Message::End(done) => done.try_send(()).is_ok(),
                };
                if !written {
                    break;
                }
            }
        };
        thread::Builder::new().name("events".into()).spawn(write)?;
        Ok(Events { messages: Some(messages) })
    }

    /// Tells an event with its members.
    pub fn tell<const N: usize>(&self, event: &str, members: [(&str, Value); N]) {
        let Some(messages) = &self.messages else { return };
        let mut object = Map::new();
        object.insert("event".into(), event.into());
        object.extend(members.map(|(name, value)| (name.to_owned(), value)));
        let mut line = Vec::new();
        push_json(&mut line, &Value::Object(object).to_string());
        line.push(b'\n');
        // A full channel drops it: see above.
        let _ = messages.try_send(Message::Line(line));
    }

    /// Waits a moment for what was told to be written.
    pub fn flush(&self) {
        let Some(messages) = &self.messages else { return };
        let (done, written) = mpsc::sync_channel(1);
        if messages.try_send(Message::End(done)).is_ok() {
            let _ = written.recv_timeout(GRACE);
        }
    }
}
