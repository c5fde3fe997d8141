//! The conformance suite that every backend and every wrapper passes.
//!
//! Its functions panic with the name of the case that failed: they are for tests.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use restage_nest::{Loop, Nest};

use crate::{Batch, Cancel, Entry, EntryError, Receipt, Transport, TransportError};

/// What a destination holds before a read, so that a byte written in error shows.
const UNTOUCHED: u8 = 0xa5;

/// A session for a test: its name, the address of its first byte, its bytes.
pub type TestSession<'a> = (&'a str, u64, Vec<u8>);

/// Runs every case against transports built by `make`, which is handed the sessions to register. All of
/// them start at address 0, so that files can take part.
///
/// # Panics
/// When a case fails.
pub fn conformance(make: impl Fn(&[TestSession<'_>]) -> Box<dyn Transport>) {
    let sessions = [("a", 0, noise(1 << 18, 1)), ("b", 0, noise(4099, 2)), ("empty", 0, Vec::new())];
    let suite = Suite { transport: make(&sessions), sessions: &sessions };
    suite.nothing();
    suite.contiguous();
    suite.many_descriptors();
    suite.strided();
    suite.large();
    suite.outside();
    suite.unknown();
    suite.overlapping();
    suite.usable_after_an_error();
    suite.cancelled();
}

/// Bytes that look random and depend on `seed` only.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// What [`Transport::read`] must do, as a loop over bytes.
///
/// # Panics
/// When the batch reads or writes out of range.
pub fn copy_naively(sessions: &[TestSession<'_>], batch: &Batch, dests: &mut [&mut [u8]]) {
    for entry in &batch.entries {
        let name = &*batch.sessions[entry.session as usize];
        let (_, base, bytes) =
            sessions.iter().find(|(known, ..)| *known == name).expect("the session is known");
        for run in entry.nest.runs() {
            for i in 0..run.len {
                let byte = bytes[(run.src - base + i) as usize];
                dests[entry.dest as usize][(run.dst + i) as usize] = byte;
            }
        }
    }
}

/// Moves `batch` and compares with [`copy_naively`], the bytes that stay untouched included; `sizes` are
/// those of the destinations.
///
/// # Panics
/// When the batch is refused, an entry fails, or a byte or a count differs.
pub fn assert_moves(
    transport: &dyn Transport,
    sessions: &[TestSession<'_>],
    batch: &Batch,
    sizes: &[usize],
    case: &str,
) -> Receipt {
    let mut expected = buffers(sizes);
    copy_naively(sessions, batch, &mut slices(&mut expected));
    let mut found = buffers(sizes);
    let receipt = transport
        .read(batch, &mut slices(&mut found))
        .and_then(Receipt::into_result)
        .unwrap_or_else(|e| panic!("{case}: {e}"));
    let counts: Vec<u64> = receipt.outcomes.iter().flatten().copied().collect();
    let totals: Vec<u64> = batch.entries.iter().flat_map(|e| e.nest.total()).collect();
    assert_eq!(counts, totals, "{case}: bytes per entry");
    assert_eq!(receipt.bytes(), totals.iter().sum::<u64>(), "{case}: bytes");
    for (dest, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let differs = found.iter().zip(expected).position(|(f, e)| f != e);
        assert_eq!(differs, None, "{case}: first byte of destination {dest} that differs");
    }
    receipt
}

fn buffers(sizes: &[usize]) -> Vec<Vec<u8>> {
    sizes.iter().map(|&size| vec![UNTOUCHED; size]).collect()
}

fn slices(buffers: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    buffers.iter_mut().map(Vec::as_mut_slice).collect()
}

fn nest(src: u64, dst: u64, run: u64, loops: &[(u64, i64, i64)]) -> Nest {
    let loops = loops.iter().map(|&(count, src, dst)| Loop { count, src, dst }).collect();
    Nest { src, dst, run, loops }
}

fn entry(session: u32, dest: u32, nest: Nest) -> Entry {
    Entry { session, dest, nest }
}

struct Suite<'a> {
    transport: Box<dyn Transport>,
    sessions: &'a [TestSession<'a>],
}

impl Suite<'_> {
    fn batch(&self, entries: Vec<Entry>) -> Batch {
        let names = self.sessions.iter().map(|(name, ..)| *name).chain(["unknown"]);
        Batch { sessions: names.map(Arc::from).collect(), entries }
    }

    fn moves(&self, case: &str, entries: Vec<Entry>, sizes: &[usize]) -> Receipt {
        assert_moves(&self.transport, self.sessions, &self.batch(entries), sizes, case)
    }

    /// One batch of one entry, into a destination of its own, for each of the nests.
    fn moves_each(&self, case: &str, nests: &[Nest], size: usize) {
        for (i, nest) in nests.iter().enumerate() {
            self.moves(&format!("{case}, nest {i}"), vec![entry(0, 0, nest.clone())], &[size]);
        }
    }

    fn refuses(&self, case: &str, entries: Vec<Entry>, sizes: &[usize]) -> TransportError {
        let mut dests = buffers(sizes);
        let error = match self.transport.read(&self.batch(entries), &mut slices(&mut dests)) {
            Err(error) => error,
            Ok(receipt) => panic!("{case}: not refused, but {receipt:?}"),
        };
        assert!(dests.iter().flatten().all(|&b| b == UNTOUCHED), "{case}: bytes moved, then {error}");
        error
    }

    fn nothing(&self) {
        let receipt = self.moves("empty batch", vec![], &[]);
        assert_eq!(receipt.requests, 0, "empty batch: requests");
        self.moves("empty batch", vec![], &[16, 0]);
        let far = u64::MAX - 3;
        let entries = vec![
            entry(0, 0, nest(0, 0, 0, &[])),
            entry(2, 0, nest(0, 0, 0, &[])),
            entry(0, 0, nest(5, 5, 4, &[(0, 1, 1)])),
            entry(1, 1, nest(far, far, 0, &[(7, i64::MAX, i64::MAX)])),
            entry(0, 0, nest(0, 0, 0, &[])),
        ];
        let receipt = self.moves("zero length", entries, &[16, 0]);
        assert_eq!(receipt.requests, 0, "zero length: requests");
    }

    fn contiguous(&self) {
        self.moves("one byte", vec![entry(0, 0, nest(3, 0, 1, &[]))], &[1]);
        let last = self.sessions[1].2.len() as u64 - 1;
        self.moves("the last byte", vec![entry(1, 0, nest(last, 6, 1, &[]))], &[7]);
        let odd: Vec<Nest> = (1..70).map(|len| nest(len * 3 + 1, len % 7, len, &[])).collect();
        self.moves_each("unaligned", &odd, 80);
        self.moves("a whole session", vec![entry(1, 0, nest(0, 0, last + 1, &[]))], &[last as usize + 1]);
        let entries = vec![
            entry(1, 1, nest(7, 0, 33, &[])),
            entry(0, 0, nest(1, 9, 100, &[])),
            entry(0, 1, nest(1, 33, 31, &[])),
        ];
        self.moves("two sessions, two destinations", entries, &[120, 64]);
    }

    fn many_descriptors(&self) {
        const COUNT: u64 = 100_000;
        const PITCH: u64 = 7;
        let at = |i: u64| (i * 7919) % COUNT;
        let entries = |len: u64| -> Vec<Entry> {
            (0..COUNT)
                .map(|i| entry((i % 2) as u32, 0, nest(i * 13 % 4000, at(i) * PITCH, len, &[])))
                .collect()
        };
        self.moves("100,000 descriptors", entries(PITCH - 2), &[(COUNT * PITCH) as usize]);
        self.moves("100,000 adjacent descriptors", entries(PITCH), &[(COUNT * PITCH) as usize]);
    }

    fn strided(&self) {
        // Element sizes around all the special cases of a copy loop.
        for run in (1..=9).chain([12, 15, 16, 17, 18, 31, 32, 33, 34, 63, 64, 65, 100]) {
            let step = run as i64;
            self.moves_each(
                &format!("strided, runs of {run}"),
                &[
                    nest(1, 0, run, &[(40, 3 * step, step)]),
                    nest(1, 3, run, &[(40, step, 2 * step + 1)]),
                    nest(2, 1, run, &[(5, 60 * step, 10 * step), (7, 4 * step, step)]),
                    // Transposes: of two dimensions, and of three with the outermost one dense in the source.
                    nest(0, 0, run, &[(37, step, 41 * step), (41, 37 * step, step)]),
                    nest(0, 0, run, &[(6, step, 35 * step), (5, 42 * step, 7 * step), (7, 6 * step, step)]),
                    // Loops in no particular order.
                    nest(0, 0, run, &[(7, 6 * step, step), (6, step, 35 * step), (5, 42 * step, 7 * step)]),
                    // Backwards in the source, in the destination, in both.
                    nest(50 * run, 0, run, &[(50, -step, step)]),
                    nest(0, 50 * run, run, &[(50, step, -step)]),
                    nest(50 * run, 50 * run, run, &[(50, -step, -step)]),
                    // One source run for many destinations, alone and inside other loops.
                    nest(9, 0, run, &[(33, 0, step)]),
                    nest(9, 0, run, &[(3, 0, 12 * step), (4, 5 * step, 3 * step), (3, 0, step)]),
                    // Overlapping windows.
                    nest(9, 0, run, &[(20, 1, step)]),
                ],
                2000 * run as usize,
            );
        }
        let far = [
            // Few bytes far apart, in the source and in the destination.
            nest(0, 0, 2, &[(8, 8000, 2)]),
            nest(0, 0, 2, &[(8, 2, 8000)]),
            nest(60_000, 0, 3, &[(7, -9000, 3)]),
            nest(0, 0, 20_000, &[(3, 22_000, 20_000)]),
        ];
        self.moves_each("far apart", &far, 60_000);
        // Tiles that interleave: columns of one matrix out of two sessions, and rows between them.
        let tiles = vec![
            entry(0, 0, nest(0, 0, 24, &[(50, 70, 64)])),
            entry(1, 0, nest(5, 24, 40, &[(50, 41, 64)])),
            entry(0, 0, nest(64, 3200, 3, &[(10, 300, 7)])),
            entry(0, 0, nest(10_000, 3203, 4, &[(10, -300, 7)])),
        ];
        self.moves("interleaved tiles", tiles, &[3270]);
    }

    /// Enough bytes that a backend cuts the batch into jobs.
    fn large(&self) {
        let entries = vec![
            entry(0, 0, nest(0, 0, 1 << 16, &[(40, 0, 1 << 16)])),
            entry(0, 1, nest(0, 0, 2, &[(1 << 8, 2, 1 << 8), (1 << 7, 1 << 9, 2), (40, 0, 1 << 16)])),
            entry(0, 2, nest(11, 1, 1000, &[(3000, 21, 1001)])),
        ];
        self.moves("large", entries, &[40 << 16, 40 << 16, 3_003_001]);
    }

    fn outside(&self) {
        let end = self.sessions[0].2.len() as u64;
        let sources = [
            nest(end, 0, 1, &[]),
            nest(end - 7, 0, 8, &[]),
            nest(0, 0, end + 1, &[]),
            nest(0, 0, 8, &[(9, (end / 8) as i64, 8)]),
            nest(8, 0, 1, &[(10, -1, 1)]),
            nest(1 << 40, 0, 1, &[]),
            nest(u64::MAX - 3, 0, 8, &[]),
            nest(u64::MAX - 3, 0, 4, &[]),
            nest(0, 0, 1, &[(2, i64::MIN, 1)]),
            nest(0, 0, 1, &[(2, i64::MAX, 1)]),
        ];
        let fine = || entry(1, 0, nest(0, 300_000, 16, &[]));
        for (i, bad) in sources.into_iter().enumerate() {
            let error =
                self.refuses("outside the session", vec![fine(), entry(0, 0, bad.clone())], &[400_000]);
            match error {
                TransportError::SourceRange { entry: 1, session, .. }
                | TransportError::WrapAround { entry: 1, session, .. }
                    if &*session == "a" => {}
                other => panic!("outside the session, case {i}: {other}"),
            }
        }
        let error = self.refuses("an empty session", vec![entry(2, 0, nest(0, 0, 1, &[]))], &[1]);
        assert!(matches!(error, TransportError::SourceRange { .. }), "an empty session: {error}");
        let dests = [
            nest(0, 100, 1, &[]),
            nest(0, 93, 8, &[]),
            nest(0, 0, 4, &[(26, 4, 4)]),
            nest(0, 8, 1, &[(10, 1, -1)]),
            nest(0, u64::MAX - 3, 8, &[]),
            nest(0, 0, 2, &[(1 << 63, 0, 2)]),
            nest(0, 0, 1, &[(1 << 40, 0, 1 << 30)]),
        ];
        for bad in dests {
            let error = self.refuses(
                "outside the destination",
                vec![entry(1, 1, nest(0, 0, 16, &[])), entry(0, 0, bad)],
                &[100, 16],
            );
            assert!(
                matches!(
                    error,
                    TransportError::DestRange { entry: 1, .. } | TransportError::WrapAround { entry: 1, .. }
                ),
                "outside the destination: {error}"
            );
        }
    }

    fn unknown(&self) {
        let fine = || entry(0, 0, nest(0, 0, 4, &[]));
        let error = self.refuses("unknown session", vec![fine(), entry(3, 0, nest(0, 4, 4, &[]))], &[8]);
        assert!(
            matches!(&error, TransportError::UnknownSession { session } if &**session == "unknown"),
            "unknown session: {error}"
        );
        let error = self.refuses("session index", vec![fine(), entry(9, 0, nest(0, 4, 4, &[]))], &[8]);
        assert!(
            matches!(error, TransportError::SessionIndex { entry: 1, index: 9, .. }),
            "session index: {error}"
        );
        let error = self.refuses("destination index", vec![fine(), entry(0, 1, nest(0, 4, 4, &[]))], &[8]);
        assert!(
            matches!(error, TransportError::DestIndex { entry: 1, index: 1, .. }),
            "destination index: {error}"
        );
    }

    fn overlapping(&self) {
        let pairs = [
            [nest(0, 0, 8, &[]), nest(0, 7, 8, &[])],
            [nest(0, 0, 8, &[]), nest(0, 0, 8, &[])],
            [nest(0, 0, 5, &[(10, 8, 8)]), nest(0, 4, 4, &[(10, 8, 8)])],
            [nest(0, 38, 1, &[]), nest(0, 0, 4, &[(13, 9, 6)])],
            [nest(0, 90, 4, &[]), nest(0, 0, 4, &[(3, 4, 3)])],
            [nest(0, 90, 4, &[]), nest(0, 0, 4, &[(1 << 40, 0, 0)])],
        ];
        for [first, second] in pairs {
            let entries = vec![
                entry(1, 1, nest(0, 0, 16, &[])),
                entry(0, 0, nest(0, 99, 0, &[])),
                entry(0, 0, first),
                entry(1, 0, second),
            ];
            let error = self.refuses("overlapping destinations", entries, &[100, 16]);
            assert!(
                matches!(error, TransportError::Overlap { dest: 0, first, second: 3, .. } if first >= 2),
                "overlapping destinations: {error}"
            );
        }
    }

    fn usable_after_an_error(&self) {
        self.refuses("first, an error", vec![entry(3, 0, nest(0, 0, 1, &[]))], &[8]);
        self.moves("after an error", vec![entry(0, 0, nest(100, 2, 6, &[]))], &[8]);
        self.moves("the same once more", vec![entry(0, 0, nest(100, 2, 6, &[]))], &[8]);
    }

    fn cancelled(&self) {
        const LENGTH: u64 = 1 << 18;
        let entries = |count: u64| -> Vec<Entry> {
            (0..count).map(|i| entry(0, 0, nest(0, i * LENGTH, LENGTH, &[]))).collect()
        };
        let cancel = Cancel::new();
        cancel.cancel();
        let mut dest = vec![UNTOUCHED; 2 * LENGTH as usize];
        let batch = self.batch([entries(2), vec![entry(0, 0, nest(7, 7, 0, &[]))]].concat());
        let receipt = self.transport.read_with(&batch, &mut [&mut dest], &cancel);
        let outcomes = receipt.unwrap_or_else(|e| panic!("cancelled before: {e}")).outcomes;
        let ended = |o: &Result<u64, EntryError>| matches!(o, Err(EntryError::Cancelled { session, .. }) if &**session == "a");
        assert!(outcomes[..2].iter().all(ended) && outcomes[2] == Ok(0), "cancelled before: {outcomes:?}");
        assert!(dest.iter().all(|&b| b == UNTOUCHED), "cancelled before: bytes moved");
        let bad = self.batch(vec![entry(3, 0, nest(0, 0, 1, &[]))]);
        let refused = self.transport.read_with(&bad, &mut [&mut dest], &cancel);
        assert!(
            matches!(refused, Err(TransportError::UnknownSession { .. })),
            "cancelled, but to be refused: {refused:?}"
        );
        // Somewhere in between: whenever it comes, an entry is whole or says what became of it.
        let batch = self.batch(entries(64));
        for wait in [0, 30, 100, 300, 1000, 3000] {
            let cancel = Cancel::new();
            let mut dest = vec![UNTOUCHED; 64 * LENGTH as usize];
            let receipt = thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_micros(wait));
                    cancel.cancel();
                });
                self.transport.read_with(&batch, &mut [&mut dest], &cancel)
            });
            let receipt = receipt.unwrap_or_else(|e| panic!("cancelled meanwhile: {e}"));
            for (outcome, found) in receipt.outcomes.iter().zip(dest.chunks(LENGTH as usize)) {
                let right = *outcome == Ok(LENGTH) && found == &self.sessions[0].2[..];
                assert!(right || ended(outcome), "cancelled meanwhile: {outcome:?}");
            }
        }
        self.moves("after a cancelled read", entries(3), &[3 * LENGTH as usize]);
    }
}
