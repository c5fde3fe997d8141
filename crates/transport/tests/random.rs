//! Any batch of disjoint copies moves the bytes that a loop over bytes moves, whatever the backend.

use proptest::collection::vec;
use proptest::prelude::*;
use restage_nest::{Loop, Nest};
use restage_transport::testing::{assert_moves, noise};
use restage_transport::{Batch, Entry, FileTransport, MemoryTransport, Metered};
use tempfile::TempDir;

const SOURCE: i64 = 600_000;

/// A copy before it has a place in the destination.
#[derive(Debug, Clone)]
struct Shape {
    session: u32,
    dest: u32,
    run: u64,
    /// Count, source stride, destination bytes left free after each repetition, whether it runs backwards.
    loops: Vec<(u64, i64, i64, bool)>,
    /// Order of the loops in the nest, which is free.
    order: Vec<prop::sample::Index>,
    at: prop::sample::Index,
}

fn shape() -> impl Strategy<Value = Shape> {
    let run = prop_oneof![4 => 1u64..20, 2 => 20u64..200, 1 => 4000u64..40_000];
    let stride = prop_oneof![3 => -40i64..200, 2 => -3000i64..9000, 1 => -20_000i64..60_000, 1 => Just(0)];
    let one = (1u64..7, stride, 0i64..9, any::<bool>());
    (
        0u32..2,
        0u32..2,
        run,
        vec(one, 0..4),
        vec(any::<prop::sample::Index>(), 4),
        any::<prop::sample::Index>(),
    )
        .prop_map(|(session, dest, run, loops, order, at)| Shape {
            session,
            dest,
            run,
            loops,
            order,
            at,
        })
}

/// Places the shape behind `*end` in its destination and somewhere in the source.
fn place(shape: &Shape, end: &mut u64) -> Nest {
    let mut loops: Vec<Loop> = Vec::new();
    let (mut extent, mut dst, mut low, mut high) = (shape.run as i64, 0, 0, shape.run as i64);
    for &(count, src, free, backwards) in &shape.loops {
        let last = count as i64 - 1;
        // The reach is kept inside the source.
        let src = if last > 0 { src.clamp(-SOURCE / 5 / last, SOURCE / 5 / last) } else { src };
        let step = extent + free;
        if backwards {
            dst += step * last;
        }
        loops.push(Loop { count, src, dst: if backwards { -step } else { step } });
        extent += step * last;
        low += (src * last).min(0);
        high += (src * last).max(0);
    }
    let mut shuffled = Vec::new();
    for pick in &shape.order[..loops.len()] {
        shuffled.push(loops.remove(pick.index(loops.len())));
    }
    let src = -low + shape.at.index((SOURCE - (high - low) + 1) as usize) as i64;
    let dst = *end + dst as u64;
    *end += extent as u64;
    Nest { src: src as u64, dst, run: shape.run, loops: shuffled }
}

fn batches() -> impl Strategy<Value = (Batch, [usize; 2])> {
    (vec(shape(), 0..12), vec((any::<prop::sample::Index>(), 1u64..9, 1u64..60), 0..3)).prop_map(
        |(shapes, tiles)| {
            let mut ends = [0, 0];
            let mut entries: Vec<Entry> = shapes
                .iter()
                .map(|s| {
                    let nest = place(s, &mut ends[s.dest as usize]);
                    Entry { session: s.session, dest: s.dest, nest }
                })
                .collect();
            // Pairs of columns that interleave in the destination.
            for (at, run, rows) in tiles {
                let src = at.index(1000) as u64;
                for (session, left, pitch) in [(0, 0, 2 * run as i64 + 1), (1, run, -(run as i64))] {
                    let src = if pitch < 0 { src + rows * run } else { src };
                    let loops = vec![Loop { count: rows, src: pitch, dst: 2 * run as i64 }];
                    entries.push(Entry {
                        session,
                        dest: 1,
                        nest: Nest { src, dst: ends[1] + left, run, loops },
                    });
                }
                ends[1] += rows * 2 * run;
            }
            let n = entries.len();
            entries.rotate_left(n / 3);
            let batch = Batch { sessions: vec!["x".into(), "y".into()], entries };
            (batch, ends.map(|end| end as usize + 3))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_backend_agrees_with_a_byte_loop(cases in vec(batches(), 1..4)) {
        let sessions = [("x", 0, noise(SOURCE as usize, 8)), ("y", 0, noise(SOURCE as usize, 9))];
        let dir = TempDir::new().unwrap();
        let mut memory = MemoryTransport::new();
        let mut files = FileTransport::new();
        for (name, _, bytes) in &sessions {
            memory.register(*name, 0, bytes.as_slice()).unwrap();
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            files.register(*name, path).unwrap();
        }
        let metered = Metered::new(&memory);
        for (batch, sizes) in &cases {
            assert_moves(&memory, &sessions, batch, sizes, "memory");
            assert_moves(&files, &sessions, batch, sizes, "file");
            let moved = assert_moves(&metered, &sessions, batch, sizes, "metered");
            prop_assert_eq!(moved.outcomes.len(), batch.entries.len());
        }
    }
}
