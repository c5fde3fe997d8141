//! Spoiled streams: each read ends in the right bytes or in an error, in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use restage_nest::{Loop, Nest};
use restage_remote::{PublishOptions, TcpTransport};
use restage_transport::testing::noise;
use restage_transport::{Batch, Entry, Transport};

use crate::proxy::{Proxy, SPOILS};
use crate::{publish, quick};

const DEADLINE: Duration = Duration::from_millis(400);

/// Runs of the default; `RESTAGE_FAULT_RUNS` sets another number.
fn runs() -> u64 {
    std::env::var("RESTAGE_FAULT_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(63)
}

#[test]
fn a_spoiled_stream_never_gives_wrong_bytes() {
    let bytes = noise(600_000, 9);
    let publisher = publish(&[("a", 0, bytes.clone())], PublishOptions::default());
    let entries = vec![
        Entry { session: 0, dest: 0, nest: Nest::contiguous(100, 0, 300_000) },
        Entry {
            session: 0,
            dest: 0,
            nest: Nest {
                src: 7,
                dst: 300_000,
                run: 4096,
                loops: vec![Loop { count: 40, src: 9000, dst: 4096 }],
            },
        },
        Entry {
            session: 0,
            dest: 0,
            nest: Nest { src: 1, dst: 470_000, run: 2, loops: vec![Loop { count: 9000, src: 7, dst: 2 }] },
        },
    ];
    let batch = Batch { sessions: vec!["a".into()], entries };
    let mut expected = vec![0; 490_000];
    for run in batch.entries.iter().flat_map(|e| e.nest.runs()) {
        let from = run.src as usize..(run.src + run.len) as usize;
        expected[run.dst as usize..(run.dst + run.len) as usize].copy_from_slice(&bytes[from]);
    }
    let (mut failed, mut fine) = (0, 0);
    for seed in 0..runs() {
        let spoil = SPOILS[(seed % SPOILS.len() as u64) as usize];
        let after = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % 480_000;
        // The early bytes are those of headers.
        let after = if seed % 3 == 0 { after % 100 } else { after };
        let armed = Arc::new(AtomicBool::new(false));
        let proxy = Proxy::new(publisher.address(), spoil, after, &armed);
        let mut options = quick();
        options.deadline = DEADLINE;
        let transport = TcpTransport::connect([&*proxy.address.to_string()], options).unwrap();
        armed.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        let mut dest = vec![0; expected.len()];
        let receipt = transport.read(&batch, &mut [&mut dest]).unwrap();
        // A deadline for each of the few requests; far below any wait that would be called a hang.
        assert!(begun.elapsed() < Duration::from_secs(4), "seed {seed}, {spoil:?}: {:?}", begun.elapsed());
        for (entry, outcome) in batch.entries.iter().zip(&receipt.outcomes) {
            match outcome {
                Ok(_) => {
                    let total = entry.nest.total().unwrap() as usize;
                    let range = entry.nest.dst as usize..entry.nest.dst as usize + total;
                    assert!(dest[range.clone()] == expected[range], "seed {seed}, {spoil:?}: wrong bytes");
                    fine += 1;
                }
                Err(e) => {
                    assert!(e.to_string().contains("session a"), "{e}");
                    failed += 1;
                }
            }
        }
        // And it can be used again, on a connection of its own.
        armed.store(false, Ordering::Relaxed);
        transport.read(&batch, &mut [&mut dest]).unwrap().into_result().unwrap();
        assert!(dest == expected, "seed {seed}, {spoil:?}: wrong bytes afterwards");
    }
    assert!(failed > 0 && fine > 0, "{failed} failed, {fine} fine");
}
