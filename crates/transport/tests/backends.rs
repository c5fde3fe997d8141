//! What is particular to each backend.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::sync::Arc;

use restage_nest::{Loop, Nest};
use restage_transport::testing::{assert_moves, noise};
use restage_transport::{
    Batch, Entry, EntryError, FileTransport, MemoryTransport, Metered, Read, Traffic, Transport,
    TransportError,
};
use tempfile::TempDir;

fn nest(src: u64, dst: u64, run: u64, loops: &[(u64, i64, i64)]) -> Nest {
    let loops = loops.iter().map(|&(count, src, dst)| Loop { count, src, dst }).collect();
    Nest { src, dst, run, loops }
}

fn batch(sessions: &[&str], entries: &[(u32, Nest)]) -> Batch {
    let entries = entries.iter().map(|(session, n)| Entry { session: *session, dest: 0, nest: n.clone() });
    Batch { sessions: sessions.iter().map(|&s| s.into()).collect(), entries: entries.collect() }
}

fn truncate(path: &Path, len: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

#[test]
fn regions_lie_anywhere_and_a_nest_may_visit_several() {
    let [low, high] = [noise(1000, 1), noise(1000, 2)];
    // 2^63 apart: the one stride that has no negative.
    let (first, second) = (16, (1u64 << 63) + 16);
    let mut memory = MemoryTransport::new();
    memory.register("s", second, Arc::<[u8]>::from(high.as_slice())).unwrap();
    memory.register("s", first, low.as_slice()).unwrap();
    let rows = nest(second + 3, 0, 10, &[(2, i64::MIN, 100), (10, 50, 10)]);
    for dst in [0, 150] {
        let rows = Nest { dst, ..rows.clone() };
        let mut dest = vec![0; 400];
        let moved = memory.read(&batch(&["s"], &[(0, rows.clone())]), &mut [&mut dest]).unwrap();
        assert_eq!(moved.outcomes, [Ok(200)]);
        for run in rows.runs() {
            let (base, bytes) = if run.src < second { (first, &low) } else { (second, &high) };
            let at = (run.src - base) as usize;
            assert_eq!(dest[run.dst as usize..][..10], bytes[at..at + 10]);
        }
    }
}

#[test]
fn regions_that_touch_stay_apart() {
    let bytes = noise(20, 1);
    let mut memory = MemoryTransport::new();
    memory.register("s", 0, &bytes[..10]).unwrap();
    memory.register("s", 10, &bytes[10..]).unwrap();
    let mut dest = [0; 20];
    let receipt = memory.read(&batch(&["s"], &[(0, nest(0, 0, 5, &[(4, 5, 5)]))]), &mut [&mut dest]);
    assert_eq!(receipt.unwrap().outcomes, [Ok(20)]);
    assert_eq!(dest[..], bytes[..]);
    // One run over the seam: two objects may lie there, so it is refused and not stitched together.
    let error = memory.read(&batch(&["s"], &[(0, nest(8, 0, 4, &[]))]), &mut [&mut dest]).unwrap_err();
    assert!(matches!(error, TransportError::SourceRange { address: 8, length: 4, .. }), "{error}");
}

#[test]
fn regions_that_overlap_or_wrap_around_are_refused() {
    let mut memory = MemoryTransport::new();
    memory.register("s", 100, vec![0; 50]).unwrap();
    for addr in [51, 100, 120, 149, u64::MAX - 3] {
        let error = memory.register("s", addr, vec![0; 50]).unwrap_err();
        assert!(matches!(error, TransportError::Region { address, .. } if address == addr), "{error}");
    }
    memory.register("s", 150, vec![0; 50]).unwrap();
    memory.register("s", 120, vec![]).unwrap();
    memory.register("other", 120, vec![0; 50]).unwrap();
}

#[test]
fn a_file_that_has_become_shorter_fails_the_entries_past_its_end() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("shard");
    let bytes = noise(300_000, 3);
    fs::write(&path, &bytes).unwrap();
    let mut files = FileTransport::new();
    files.register("s", &path).unwrap();
    truncate(&path, 100_000);
    let entries = [
        (0, nest(10, 0, 1000, &[])),
        (0, nest(99_000, 1000, 2000, &[])),
        (0, nest(98_000, 3000, 4, &[(1000, 4, 4)])),
        (0, nest(98_002, 7000, 2, &[(1000, 4, 2)])),
        (0, nest(50_000, 9000, 100_000, &[])),
        (0, nest(0, 109_000, 10, &[(100, 2999, 10)])),
        (0, nest(250_000, 110_000, 5, &[])),
    ];
    let batch = batch(&["s"], &entries);
    let mut dest = vec![0; 120_000];
    let receipt = files.read(&batch, &mut [&mut dest]).unwrap();
    let short = |address, expected, found| {
        Err(EntryError::ShortRead { session: "s".into(), address, expected, found })
    };
    let expected = [
        Ok(1000),
        short(99_000, 2000, 1000),
        // It names the first run that is not there: here the whole entry is one run.
        short(98_000, 4000, 2000),
        short(100_002, 2, 0),
        short(50_000, 100_000, 50_000),
        short(101_966, 10, 0),
        short(250_000, 5, 0),
    ];
    assert_eq!(receipt.outcomes, expected);
    assert_eq!(dest[..1000], bytes[10..1010]);
    assert_eq!(receipt.bytes(), 1000);
    let error = receipt.into_result().unwrap_err();
    assert!(matches!(error, TransportError::Entry { entry: 1, .. }), "{error}");

    // Put back, it can be read again.
    fs::write(&path, &bytes).unwrap();
    assert_moves(&files, &[("s", 0, bytes)], &batch, &[120_000], "restored");
}

#[test]
fn a_file_that_has_grown_is_read_as_it_was_registered() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("shard");
    fs::write(&path, noise(100, 3)).unwrap();
    let mut files = FileTransport::new();
    files.register("s", &path).unwrap();
    truncate(&path, 200);
    let error = files.read(&batch(&["s"], &[(0, nest(99, 0, 2, &[]))]), &mut [&mut [0; 2]]).unwrap_err();
    assert!(matches!(error, TransportError::SourceRange { .. }), "{error}");
}

#[test]
fn what_is_no_file_cannot_be_registered() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("shard");
    File::create(&path).unwrap();
    let mut files = FileTransport::new();
    files.register("s", &path).unwrap();
    let error = files.register("s", &path).unwrap_err();
    assert!(matches!(error, TransportError::SessionTaken { .. }), "{error}");
    for path in [dir.path().to_owned(), dir.path().join("missing")] {
        let error = files.register("t", &path).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn near_runs_share_a_request_and_far_ones_do_not() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("shard");
    let bytes = noise(1 << 20, 4);
    fs::write(&path, &bytes).unwrap();
    let mut files = FileTransport::new();
    files.register("s", &path).unwrap();
    let sessions = [("s", 0, bytes)];
    let requests = |entries: &[(u32, Nest)]| {
        assert_moves(&files, &sessions, &batch(&["s"], entries), &[1 << 20], "requests").requests
    };
    let columns = nest(0, 0, 384, &[(800, 1152, 384)]);
    let flat: Vec<_> = columns.runs().map(|r| (0, Nest::contiguous(r.src, r.dst, r.len))).collect();
    assert!(requests(&flat) < 8, "whichever form they come in");
    assert!(requests(&[(0, columns)]) < 8);
    assert!(requests(&[(0, nest(0, 0, 2, &[(512, 2, 1024), (512, 1024, 2)]))]) < 8, "a transpose");
    assert_eq!(requests(&[(0, nest(0, 0, 64, &[(10, 100_000, 64)]))]), 10);
    assert_eq!(requests(&[(0, nest(0, 0, 600_000, &[]))]), 1);
}

#[test]
fn the_meter_counts_each_session_and_lists_each_run() {
    let mut memory = MemoryTransport::new();
    for name in ["a", "b", "c"] {
        memory.register(name, 0, noise(100, 5)).unwrap();
    }
    let metered = Metered::recording(memory);
    let asked = batch(
        &["a", "b", "c"],
        &[
            (0, nest(4, 0, 2, &[(3, 10, 2)])),
            (1, nest(7, 6, 5, &[])),
            (0, nest(90, 11, 1, &[])),
            (2, nest(0, 0, 0, &[])),
        ],
    );
    for _ in 0..2 {
        metered.read(&asked, &mut [&mut [0; 12]]).unwrap();
    }
    // Refused as a whole: nothing is read, nothing is counted.
    metered.read(&batch(&["c"], &[(0, nest(99, 0, 2, &[]))]), &mut [&mut [0; 12]]).unwrap_err();
    let seen = metered.snapshot();
    assert_eq!(seen.sessions["a"], Traffic { entries: 4, descriptors: 8, bytes: 14 });
    assert_eq!(seen.sessions["b"], Traffic { entries: 2, descriptors: 2, bytes: 10 });
    assert_eq!((seen.was_read("b"), seen.was_read("c")), (true, false));
    assert_eq!((seen.batches, seen.total().bytes), (2, 24));
    assert!(seen.requests > 0);
    let read = |session: &str, src, len| Read { session: session.into(), src, len };
    let once = [read("a", 4, 2), read("a", 14, 2), read("a", 24, 2), read("b", 7, 5), read("a", 90, 1)];
    assert_eq!(metered.reads(), [once.clone(), once].concat());
    metered.reset();
    assert_eq!((metered.snapshot(), metered.reads()), Default::default());
}

#[test]
fn the_meter_counts_what_failed_as_read_but_not_as_moved() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("shard");
    fs::write(&path, noise(100, 3)).unwrap();
    let mut files = FileTransport::new();
    files.register("s", &path).unwrap();
    truncate(&path, 50);
    let metered = Metered::new(files);
    let asked = batch(&["s"], &[(0, nest(0, 0, 10, &[])), (0, nest(60, 10, 10, &[]))]);
    let receipt = metered.read(&asked, &mut [&mut [0; 20]]).unwrap();
    assert!(receipt.outcomes[0].is_ok() && receipt.outcomes[1].is_err());
    assert_eq!(metered.snapshot().sessions["s"], Traffic { entries: 2, descriptors: 2, bytes: 10 });
    assert!(metered.reads().is_empty());
}
