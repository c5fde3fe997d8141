//! Publishers that fail while others offer the same sessions, and publishers that are slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use restage_nest::{Loop, Nest};
use restage_remote::{PublishOptions, Publisher, ReadOptions, RemoteError, Shelf, TcpTransport};
use restage_transport::testing::noise;
use restage_transport::{Batch, Entry, Receipt, Transport};

use crate::proxy::{Proxy, Spoil};
use crate::{publish, quick};

const BYTES: usize = 5 << 20;

fn allowed() -> ReadOptions {
    let mut options = quick();
    options.failover = true;
    options
}

fn over(addresses: &[String], options: ReadOptions) -> Result<TcpTransport, RemoteError> {
    TcpTransport::connect(addresses.iter().map(String::as_str), options)
}

/// A large part of each session, and many small ones.
fn batch(sessions: &[&str]) -> Batch {
    let mut entries = Vec::new();
    for session in 0..sessions.len() as u32 {
        let small = Loop { count: 500, src: 700, dst: 200 };
        entries.push(Entry { session, dest: session, nest: Nest::contiguous(64, 0, 4 << 20) });
        let nest = Nest { src: 5, dst: 4 << 20, run: 200, loops: vec![small] };
        entries.push(Entry { session, dest: session, nest });
    }
    Batch { sessions: sessions.iter().map(|&s| s.into()).collect(), entries }
}

/// Reads a batch; destination by destination.
fn read(transport: &TcpTransport, batch: &Batch) -> (Receipt, Vec<Vec<u8>>) {
    let mut dests = vec![vec![0; BYTES]; batch.sessions.len()];
    let receipt =
        transport.read(batch, &mut dests.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
    (receipt, dests)
}

fn assert_right(batch: &Batch, dests: &[Vec<u8>], bytes: &[Vec<u8>]) {
    for entry in &batch.entries {
        for run in entry.nest.runs() {
            let (from, to, n) = (run.src as usize, run.dst as usize, run.len as usize);
            let at = entry.session as usize;
            assert!(dests[at][to..to + n] == bytes[at][from..from + n], "session {at}, address {from}");
        }
    }
}

#[test]
fn the_rest_of_a_failed_publishers_sessions_moves_to_another() {
    let bytes = vec![noise(BYTES, 1), noise(BYTES, 2)];
    let [a, b] = [("a", 0, bytes[0].clone()), ("b", 0, bytes[1].clone())];
    let first = publish(&[a.clone(), b.clone()], PublishOptions::default());
    let others = [a, b].map(|session| publish(&[session], PublishOptions::default()));
    let others = others.each_ref().map(|other| other.address().to_string());
    for (connections, after) in [(1, 100), (1, 1_500_000), (3, 700_000), (1, 7_000_000)] {
        let armed = Arc::new(AtomicBool::new(false));
        let proxy = Proxy::new(first.address(), Spoil::Close, after, &armed);
        let addresses = [proxy.address.to_string(), others[0].clone(), others[1].clone()];
        let mut options = allowed();
        options.connections = connections;
        let transport = over(&addresses, options).unwrap();
        armed.store(true, Ordering::Relaxed);
        let batch = batch(&["a", "b"]);
        let (receipt, dests) = read(&transport, &batch);
        let receipt = receipt.into_result().unwrap();
        assert_right(&batch, &dests, &bytes);
        assert!(!receipt.moves.is_empty());
        for m in &receipt.moves {
            let to = &others[usize::from(&*m.session == "b")];
            assert_eq!((&*m.from, &*m.to), (&*addresses[0], &**to));
            // At most the copy that each connection was in the middle of.
            assert!(m.again < (connections as u64) << 20 && m.again <= m.bytes, "{m}");
            assert!(m.bytes > 0 && m.bytes <= batch.entries[0].nest.run + 100_000, "{m}");
            assert!(m.reason.contains(&addresses[0]), "{m}");
        }
        let moved: u64 = receipt.moves.iter().map(|m| m.bytes).sum();
        assert!(moved <= receipt.bytes() && (after > 1000 || moved == receipt.bytes()), "{moved}");
        // The first is not asked again, and what is read elsewhere is told each time.
        let (receipt, dests) = read(&transport, &batch);
        let receipt = receipt.into_result().unwrap();
        assert_right(&batch, &dests, &bytes);
        assert_eq!(receipt.moves.iter().map(|m| m.bytes).sum::<u64>(), receipt.bytes());
        assert!(receipt.moves.iter().all(|m| m.again == 0));
    }
}

#[test]
fn without_leave_a_failed_publishers_sessions_are_errors_that_name_the_other() {
    let bytes = noise(BYTES, 1);
    let session = [("a", 0, bytes.clone())];
    let (first, second) =
        (publish(&session, PublishOptions::default()), publish(&session, PublishOptions::default()));
    let addresses = [first.address().to_string(), second.address().to_string()];
    let transport = over(&addresses, quick()).unwrap();
    assert_eq!(transport.replicated().collect::<Vec<_>>(), [("a", BYTES as u64)]);
    first.stop();
    let (receipt, _) = read(&transport, &batch(&["a"]));
    assert!(receipt.moves.is_empty());
    for outcome in receipt.outcomes {
        let error = outcome.unwrap_err().to_string();
        for part in ["session a", &addresses[0], &addresses[1], "--failover"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    // And where all are gone, each is named.
    let third = publish(&session, PublishOptions::default());
    let addresses = [third.address().to_string(), second.address().to_string()];
    let transport = over(&addresses, allowed()).unwrap();
    third.stop();
    second.stop();
    let (receipt, _) = read(&transport, &batch(&["a"]));
    let error = receipt.outcomes[0].clone().unwrap_err().to_string();
    assert!(addresses.iter().all(|a| error.contains(a)), "{error}");
}

#[test]
fn a_dead_publisher_does_not_hold_up_the_sessions_of_others() {
    let bytes = vec![noise(BYTES, 1), noise(BYTES, 2)];
    let dead = publish(&[("a", 0, bytes[0].clone())], PublishOptions::default());
    let fine = publish(&[("b", 0, bytes[1].clone())], PublishOptions::default());
    let addresses = [dead.address().to_string(), fine.address().to_string()];
    let transport = over(&addresses, allowed()).unwrap();
    dead.stop();
    let batch = batch(&["a", "b"]);
    let (receipt, dests) = read(&transport, &batch);
    for (entry, outcome) in batch.entries.iter().zip(&receipt.outcomes) {
        match entry.session {
            0 => assert!(outcome.clone().unwrap_err().to_string().contains(&addresses[0])),
            _ => drop(outcome.clone().unwrap()),
        }
    }
    let only = Batch { entries: batch.entries.into_iter().filter(|e| e.session == 1).collect(), ..batch };
    assert_right(&only, &dests, &bytes);
}

/// What differs beyond the first stretch that is compared is found as well.
#[test]
fn publishers_with_other_bytes_under_a_name_are_refused() {
    let mut bytes = noise(3000, 1);
    let first = publish(&[("a", 7, bytes.clone())], PublishOptions::default());
    bytes[2999] ^= 1;
    let other = publish(&[("a", 7, bytes)], PublishOptions::default());
    let addresses = [first.address().to_string(), other.address().to_string()];
    let error = over(&addresses, allowed()).unwrap_err();
    assert!(matches!(&error, RemoteError::Differ { address: 7, length: 3000, .. }), "{error}");
    assert!(addresses.iter().all(|a| error.to_string().contains(a)), "{error}");
    // Where nothing is ever read from the second, it does no harm.
    over(&addresses, quick()).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let files: Vec<Publisher> = [1u8, 1, 2]
        .into_iter()
        .enumerate()
        .map(|(at, last)| {
            let path = dir.path().join(at.to_string());
            std::fs::write(&path, [vec![0; 600_000], vec![last]].concat()).unwrap();
            let mut shelf = Shelf::new([]);
            shelf.file("f", path).unwrap();
            Publisher::start("127.0.0.1:0", shelf, PublishOptions::default()).unwrap()
        })
        .collect();
    let address = |at: usize| files[at].address().to_string();
    over(&[address(0), address(1)], allowed()).unwrap();
    let error = over(&[address(0), address(1), address(2)], allowed()).unwrap_err();
    assert!(error.to_string().contains(&address(2)), "{error}");
}

/// Memory that takes its time to be looked at, once it is told to.
struct Slow(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Slow {
    fn as_ref(&self) -> &[u8] {
        thread::sleep(Duration::from_millis(self.1.load(Ordering::Relaxed) as u64));
        &self.0
    }
}

/// A publisher of slow memory, and its reader; what is set becomes milliseconds.
fn slow(beat: Duration, deadline: Duration) -> (Publisher, TcpTransport, Arc<AtomicUsize>, Vec<u8>) {
    let (bytes, delay) = (noise(100_000, 4), Arc::new(AtomicUsize::new(0)));
    let mut shelf = Shelf::new([]);
    shelf.memory("slow", [(0, Arc::new(Slow(bytes.clone(), Arc::clone(&delay))) as _)]).unwrap();
    let mut options = PublishOptions::default();
    options.beat = beat;
    let publisher = Publisher::start("127.0.0.1:0", shelf, options).unwrap();
    let mut options = quick();
    (options.deadline, options.silence) = (deadline, Duration::from_millis(400));
    let transport = over(&[publisher.address().to_string()], options).unwrap();
    (publisher, transport, delay, bytes)
}

#[test]
fn slow_is_told_from_dead() {
    let batch = Batch {
        sessions: vec!["slow".into()],
        entries: vec![Entry { session: 0, dest: 0, nest: Nest::contiguous(10, 0, 90_000) }],
    };
    let ask = |transport: &TcpTransport| {
        let mut dest = vec![0; 90_000];
        let mut receipt = transport.read(&batch, &mut [&mut dest]).unwrap();
        receipt.outcomes.remove(0).map(|_| dest).map_err(|e| e.to_string())
    };
    let (often, never) = (Duration::from_millis(50), Duration::from_secs(60));
    let (_publisher, transport, delay, bytes) = slow(often, Duration::from_secs(20));
    delay.store(1200, Ordering::Relaxed);
    assert!(ask(&transport).unwrap() == bytes[10..90_010], "slower than the silence that is borne");
    // What is heard of it does not make it wait for ever.
    let (_publisher, transport, delay, _) = slow(often, Duration::from_millis(600));
    delay.store(3000, Ordering::Relaxed);
    let error = ask(&transport).unwrap_err();
    assert!(error.contains("it is there, and did not answer within the deadline"), "{error}");
    // One that says nothing meanwhile passes for dead long before the deadline.
    let (_publisher, transport, delay, _) = slow(never, Duration::from_secs(20));
    delay.store(3000, Ordering::Relaxed);
    let error = ask(&transport).unwrap_err();
    assert!(error.contains("session slow") && error.contains("nothing was heard of it"), "{error}");
}
