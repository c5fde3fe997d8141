//! The crate from outside: conformance, faults on the wire, strangers, and stopping.

mod conformance;
mod failover;
mod proxy;
mod strangers;
mod wire_faults;

use std::sync::Arc;
use std::time::Duration;

use restage_remote::{PublishOptions, Publisher, ReadOptions, Shelf, TcpTransport};

/// A publisher of memory, on a free port of this host.
fn publish(sessions: &[(&str, u64, Vec<u8>)], options: PublishOptions) -> Publisher {
    let mut shelf = Shelf::new("a catalog");
    for (name, at, bytes) in sessions {
        shelf.memory(*name, [(*at, Arc::new(bytes.clone()) as _)]).unwrap();
    }
    Publisher::start("127.0.0.1:0", shelf, options).unwrap()
}

fn connect(publisher: &Publisher) -> TcpTransport {
    TcpTransport::connect([&*publisher.address().to_string()], quick()).unwrap()
}

/// Options with a deadline that a test can wait for.
fn quick() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.deadline = Duration::from_secs(2);
    options
}
