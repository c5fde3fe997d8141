//! What is read: one run, many long ones, many short ones, a strided one.

use restage_nest::{Loop, Nest};
use restage_transport::{Batch, Entry};

/// Bytes of the largest case.
pub const BYTES: u64 = 1 << 30;

/// Bytes of the source.
pub const SOURCE: u64 = 2 * BYTES;

/// One contiguous copy, in bytes; it lands after the one before it.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub src: usize,
    pub len: usize,
}

/// A batch and the runs that it consists of.
#[derive(Debug)]
pub struct Case {
    pub name: &'static str,
    /// In the order in which a caller would list them.
    pub runs: Vec<Run>,
    nests: Vec<Nest>,
}

impl Case {
    pub fn all() -> Vec<Case> {
        let pitch = 8 << 10;
        let rows = Loop { count: BYTES >> 12, src: pitch, dst: 4 << 10 };
        let strided = Nest { src: 0, dst: 0, run: 4 << 10, loops: vec![rows] };
        vec![
            Case::scattered("1 x 1 GiB", 1, 1 << 30),
            Case::scattered("16,384 x 64 KiB", 16_384, 64 << 10),
            Case::scattered("100,000 x 4 KiB", 100_000, 4 << 10),
            Case { name: "strided, 1 GiB in 4 KiB of every 8", runs: runs(&strided), nests: vec![strided] },
        ]
    }

    /// Runs side by side in the destination, and all over the source.
    fn scattered(name: &'static str, count: u64, len: u64) -> Case {
        let slots = SOURCE / len;
        // An odd step visits each slot of a power of two once.
        let step = (slots / 2 + slots / 5) | 1;
        let nests: Vec<Nest> =
            (0..count).map(|i| Nest::contiguous(i * step % slots * len, i * len, len)).collect();
        Case { name, runs: nests.iter().flat_map(runs).collect(), nests }
    }

    pub fn bytes(&self) -> usize {
        self.runs.iter().map(|run| run.len).sum()
    }

    pub fn batch(&self, session: &str) -> Batch {
        let entries =
            self.nests.iter().map(|nest| Entry { session: 0, dest: 0, nest: nest.clone() }).collect();
        Batch { sessions: vec![session.into()], entries }
    }
}

fn runs(nest: &Nest) -> Vec<Run> {
    let run = |r: restage_nest::Run| Run { src: r.src as usize, len: r.len as usize };
    nest.runs().map(run).collect()
}
