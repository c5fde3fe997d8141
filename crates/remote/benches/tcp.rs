//! What a read over TCP costs beside a bare stream through a socket of this host, as ratios within one run.
//!
//! Both sides and the kernel share the processors, for the bare stream as well. Rates are the best of several
//! rounds, which take turns.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use restage_nest::{Loop, Nest};
use restage_remote::{PublishOptions, Publisher, ReadOptions, Shelf, TcpTransport};
use restage_transport::testing::noise;
use restage_transport::{Batch, Entry, Transport};

const GIB: usize = 1 << 30;
const ROUNDS: usize = 5;
/// Bytes of one write and of one read of the bare stream.
const BARE: usize = 256 << 10;

fn main() {
    let source = Arc::new(noise(GIB, 1));
    let mut shelf = Shelf::new([]);
    shelf.memory("memory", [(0, Arc::clone(&source) as _)]).expect("the first session");
    let publisher = Publisher::start("127.0.0.1:0", shelf, PublishOptions::default()).expect("loopback");
    let transport = TcpTransport::connect([&*publisher.address().to_string()], ReadOptions::default())
        .expect("the publisher just started");
    let entry = |nest| Entry { session: 0, dest: 0, nest };
    let pieces = |count: u64, length: u64| -> Vec<Entry> {
        // Not in the order of the source, so that they cannot be read as one.
        (0..count).map(|i| entry(Nest::contiguous((i * 7919 % count) * length, i * length, length))).collect()
    };
    let strided = Nest {
        src: 0,
        dst: 0,
        run: 4096,
        loops: vec![
            Loop { count: 2, src: 4096, dst: (GIB / 2) as i64 },
            Loop { count: (GIB / 8192) as u64, src: 8192, dst: 4096 },
        ],
    };
    let cases = [
        ("1 x 1 GiB", vec![entry(Nest::contiguous(0, 0, GIB as u64))]),
        ("16,384 x 64 KiB", pieces(16_384, 64 << 10)),
        ("100,000 x 4 KiB", pieces(100_000, 4 << 10)),
        ("1 GiB in 4 KiB runs", vec![entry(strided)]),
    ];
    let mut dest = vec![1; GIB];
    let mut best = [Duration::MAX; 5];
    for _ in 0..ROUNDS {
        best[0] = best[0].min(bare(&source, &mut dest));
        for ((_, entries), best) in cases.iter().zip(&mut best[1..]) {
            let batch = Batch { sessions: vec!["memory".into()], entries: entries.clone() };
            let begun = Instant::now();
            transport.read(&batch, &mut [&mut dest]).and_then(|r| r.into_result()).expect("loopback");
            *best = (*best).min(begun.elapsed());
        }
    }
    let rate = |bytes: u64, time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    let stream = rate(GIB as u64, best[0]);
    println!("bare stream: {stream:.2} GB/s");
    for ((name, entries), best) in cases.iter().zip(&best[1..]) {
        let bytes: u64 = entries.iter().map(|e| e.nest.total().unwrap_or(0)).sum();
        let rate = rate(bytes, *best);
        println!("{name}: {rate:.2} GB/s, {:.2} of the bare stream", rate / stream);
    }
}

/// The same bytes from memory to memory, with nothing said about them.
fn bare(source: &Arc<Vec<u8>>, dest: &mut [u8]) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("it is bound");
    let source = Arc::clone(source);
    let sender = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("loopback");
        stream.read_exact(&mut [0]).expect("a start");
        source.chunks(BARE).try_for_each(|part| stream.write_all(part)).expect("loopback");
    });
    let mut stream = TcpStream::connect(address).expect("loopback");
    let begun = Instant::now();
    stream.write_all(&[0]).expect("loopback");
    dest.chunks_mut(BARE).try_for_each(|part| stream.read_exact(part)).expect("loopback");
    let time = begun.elapsed();
    sender.join().expect("the sender");
    time
}
