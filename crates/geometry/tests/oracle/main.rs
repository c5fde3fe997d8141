//! Random chains against a naive model of torch's tensors, which enumerates the indices of everything.
//!
//! 2,000 cases at each test run. More of them with
//!
//! ```text
//! RESTAGE_ORACLE_CASES=100000 cargo test --release -p restage-geometry --test oracle -- --nocapture
//! ```
//!
//! and others than always the same ones with `RESTAGE_ORACLE_SEED`, a number. A case that fails is shrunk and its
//! chain printed; with torch's answer to it, it becomes a case of `tests/data/shrunk_chains.json`.

mod generator;
mod index;
mod laws;
mod rules;
mod strides;
mod tensor;

use std::cell::RefCell;
use std::time::Instant;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// Cases of the default run.
const CASES: u32 = 2_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is no number")))
}

#[test]
fn chains_are_what_enumeration_makes_of_them() {
    let cases = number("RESTAGE_ORACLE_CASES").map_or(CASES, |n| u32::try_from(n).expect("too many cases"));
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number("RESTAGE_ORACLE_SEED").unwrap_or(0).to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let tally = RefCell::new(laws::Tally::default());
    let started = Instant::now();
    let outcome = TestRunner::new_with_rng(config, rng).run(&generator::cases(), |case| {
        laws::check(&case, &mut tally.borrow_mut()).map_err(|failure| {
            TestCaseError::fail(format!("{:?} on {:?}: {}", failure.ops, case.shape, failure.why))
        })
    });
    let tally = tally.into_inner();
    let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    println!("{tally:?} in {:.1} s", started.elapsed().as_secs_f64());
    println!(
        "{:.2} operations accepted a chain, {:.1} % of all rejected",
        share(tally.accepted, tally.cases),
        100.0 * share(tally.rejected, tally.accepted + tally.rejected),
    );
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
