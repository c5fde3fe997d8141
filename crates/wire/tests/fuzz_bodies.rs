//! The bodies of the fuzz targets, run over seeded random bytes and mutated seeds: a few thousand at each test
//! run, and for minutes when asked. `docs/fuzzing.md` has the commands.

#[path = "../../../fuzz/src/capture_file.rs"]
mod capture_file;
#[path = "../../../fuzz/src/op_chain.rs"]
mod op_chain;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use restage_wire::OpForm;
use serde_json::json;

/// Inputs of one target at each test run.
const DEFAULT_RUN: u64 = 2_000;

/// How long one target runs when asked.
const LONG_RUN: Duration = Duration::from_secs(120);

/// SplitMix64 (Steele, Lea and Flood, 2014): random enough, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.next() as u8).collect()
    }
}

/// Input number `seed` for chains.
fn chain(seed: u64) -> Vec<u8> {
    Random(seed).bytes(96)
}

fn folder(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(name);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// A seed with a few changes: a number replaced, a part taken from elsewhere, repeated or left out, a byte changed.
fn mutated(seeds: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut text = seeds[random.below(seeds.len())].clone();
    for _ in 0..random.below(5) {
        let at = random.below(text.len());
        let end = (at + random.below(24)).min(text.len());
        match random.below(6) {
            0 => {
                let start = text[at..].iter().position(u8::is_ascii_digit).map_or(at, |n| at + n);
                let digits = text[start..].iter().take_while(|b| b.is_ascii_digit()).count();
                let numbers =
                    ["0", "-1", "1", "3", "8", "9223372036854775807", "-9223372036854775808", "4294967296"];
                let number = numbers[random.below(numbers.len())];
                drop(text.splice(start..start + digits, number.bytes()));
            }
            1 => drop(text.drain(at..end)),
            2 => {
                let part = text[at..end].to_vec();
                drop(text.splice(at..at, part));
            }
            3 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                let part = other[from..(from + 24).min(other.len())].to_vec();
                drop(text.splice(at..end, part));
            }
            4 => text[at] = random.next() as u8,
            _ => text[at] = b"{}[]\",:0-1e\0"[random.below(12)],
        }
        if text.is_empty() {
            break;
        }
    }
    text
}

fn for_a_while(first: u64, mut run: impl FnMut(u64)) -> u64 {
    let start = Instant::now();
    let mut seed = first;
    while start.elapsed() < LONG_RUN {
        run(seed);
        seed += 1;
    }
    seed - first
}

#[test]
fn chains() {
    (0..DEFAULT_RUN).for_each(|seed| op_chain::check(&chain(seed)));
}

/// What the chain target has found; each once hung, ran out of memory, or took elements from elsewhere.
#[test]
fn what_chains_have_found() {
    for (shape, op) in [
        (&[0][..], json!({"op": "chunk", "chunks": 1i64 << 40, "dim": 0, "index": 1})),
        (&[1 << 40], json!({"op": "split", "size": 1, "dim": 0, "index": -1})),
        (&[4, 4, 4], json!({"op": "roll", "shifts": 3, "dims": 0})),
        (&[5, 65536], json!({"op": "roll", "shifts": 3, "dims": 0})),
        (&[4, 4], json!({"op": "index_select", "dim": 0, "index": [1, 0, 0]})),
    ] {
        // An operation that the vocabulary lacks has nothing to be checked.
        if let Ok(form) = serde_json::from_value::<OpForm>(op) {
            op_chain::check_chain(shape, &[form.into()]);
        }
    }
}

#[test]
fn files() {
    let seeds = folder("seeds/capture_file");
    assert!(seeds.len() > 10);
    seeds.iter().for_each(|seed| capture_file::check(seed));
    (0..DEFAULT_RUN).for_each(|seed| capture_file::check(&mutated(&seeds, seed)));
}

#[test]
#[ignore = "runs for two minutes"]
fn chains_for_a_while() {
    let inputs = for_a_while(DEFAULT_RUN, |seed| op_chain::check(&chain(seed)));
    println!("{inputs} inputs");
}

#[test]
#[ignore = "runs for two minutes"]
fn files_for_a_while() {
    let seeds = folder("seeds/capture_file");
    let inputs = for_a_while(DEFAULT_RUN, |seed| capture_file::check(&mutated(&seeds, seed)));
    println!("{inputs} inputs");
}
