//! What the backends are held beside: the same runs without plan, check or receipt.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rayon::prelude::*;
use restage_transport::{Batch, Transport};

use crate::cases::Run;

/// Bytes of one job of the bare loops: as the backends cut theirs.
const JOB: usize = 1 << 20;

/// Moves a batch; the sides to compare are all of this form.
pub fn transport(transport: &dyn Transport, batch: &Batch, dest: &mut [u8]) {
    let receipt = transport.read(batch, &mut [dest]).expect("the batch is in range");
    receipt.into_result().expect("every entry is read");
}

/// Copies the runs, which lie side by side in the destination.
pub fn copy(source: &[u8], dest: &mut [u8], runs: &[Run]) {
    each(dest, runs, |src, bytes| bytes.copy_from_slice(&source[src..src + bytes.len()]));
}

/// Reads the runs by position.
pub fn pread(file: &File, dest: &mut [u8], runs: &[Run]) {
    each(dest, runs, |src, bytes| file.read_exact_at(bytes, src as u64).expect("the file is as long"));
}

fn each(dest: &mut [u8], runs: &[Run], one: impl Fn(usize, &mut [u8]) + Sync) {
    // Long runs are cut as the backends cut them, or one thread would do all of it.
    let mut jobs: Vec<Vec<(usize, &mut [u8])>> = Vec::new();
    let (mut rest, mut room) = (dest, 0);
    for run in runs {
        let (mut bytes, after) = std::mem::take(&mut rest).split_at_mut(run.len);
        rest = after;
        let mut src = run.src;
        while !bytes.is_empty() {
            let (head, tail) = bytes.split_at_mut(bytes.len().min(JOB));
            if room < head.len() {
                jobs.push(Vec::new());
                room = JOB;
            }
            room -= head.len();
            let len = head.len();
            jobs.last_mut().expect("a job was just begun").push((src, head));
            src += len;
            bytes = tail;
        }
    }
    jobs.into_par_iter()
        .with_max_len(1)
        .for_each(|job| job.into_iter().for_each(|(src, bytes)| one(src, bytes)));
}
