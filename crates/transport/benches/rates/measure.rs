//! Time and memory of two sides, taken in turns.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cases::Case;

/// Times that each side is measured, after one that is not.
const ROUNDS: usize = 7;

/// Fills the destination.
pub type Side<'s> = &'s dyn Fn(&mut [u8]);

/// Measures both sides in turns, compares what they wrote, and prints a line.
pub fn round(case: &Case, name: &str, ours: Side<'_>, beside: &str, theirs: Side<'_>, dest: &mut [u8]) {
    let bytes = case.bytes();
    let dest = &mut dest[..bytes];
    theirs(dest);
    let expected = digest(dest);
    dest.fill(0);
    let memory = grown(|| ours(dest));
    assert_eq!(digest(dest), expected, "{name}, {}", case.name);
    let (mut best, mut other) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        other = other.min(time(|| theirs(dest)));
        best = best.min(time(|| ours(dest)));
    }
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    let ratio = other.as_secs_f64() / best.as_secs_f64();
    println!(
        "| {} | {name} | {beside} | {:.2} | {:.2} | {ratio:.2} | {:.1} MB |",
        case.name,
        rate(best),
        rate(other),
        memory as f64 / 1e6
    );
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Tells two contents apart, which are not made to deceive.
fn digest(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    words.fold(0, |sum: u64, word| sum.rotate_left(5) ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Bytes by which anonymous memory grew at most while `work` went on.
fn grown(work: impl FnOnce()) -> u64 {
    let before = anonymous();
    let (most, done) = (AtomicU64::new(before), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(anonymous(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        work();
        done.store(true, Ordering::Relaxed);
    });
    most.load(Ordering::Relaxed).saturating_sub(before)
}

/// `RssAnon` of this process, in bytes.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or(0);
    kilobytes << 10
}
