//! Rates of the local backends beside the bare thing, within one run: a copy of the same runs, the same preads.
//!
//! `cargo bench -p restage-transport --bench rates [-- PART]`. Every read goes into buffers whose pages are present;
//! all sides use the threads of the same pool. A ratio is that of the best of several interleaved rounds, and the
//! memory is how much the anonymous memory of the process grew at most while a read went on, sampled every
//! millisecond.

mod bare;
mod cases;
mod measure;

use std::fs::File;

use restage_transport::testing::noise;
use restage_transport::{FileTransport, MemoryTransport};

use cases::{Case, SOURCE};
use measure::{Side, round};

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("source");
    // Noise of a part, many times: what lies in a page does not matter here.
    let part = noise(64 << 20, 1);
    let mut source = Vec::with_capacity(SOURCE as usize);
    while source.len() < SOURCE as usize {
        source.extend_from_slice(&part);
    }
    drop(part);
    std::fs::write(&path, &source).expect("the file can be written");
    let file = File::open(&path).expect("the file can be read");

    let mut files = FileTransport::new();
    files.register("s", &path).expect("the file can be registered");
    let mut memory = MemoryTransport::new();
    memory.register("s", 0, source.as_slice()).expect("memory can be registered");

    println!("{} threads", rayon::current_num_threads());
    println!("| case | backend | beside | GB/s | GB/s of that | ratio | memory |");
    println!("|---|---|---|---|---|---|---|");
    let mut dest = vec![1u8; cases::BYTES as usize];
    for case in Case::all() {
        let batch = case.batch("s");
        let copy = |dest: &mut [u8]| bare::copy(&source, dest, &case.runs);
        let pread = |dest: &mut [u8]| bare::pread(&file, dest, &case.runs);
        let sides: [(&str, Side<'_>, &str, Side<'_>); 2] = [
            ("memory", &|dest| bare::transport(&memory, &batch, dest), "memcpy", &copy),
            ("file", &|dest| bare::transport(&files, &batch, dest), "preads", &pread),
        ];
        for (name, ours, beside, theirs) in sides {
            if filter.as_ref().is_some_and(|part| !format!("{name} {}", case.name).contains(part.as_str())) {
                continue;
            }
            round(&case, name, ours, beside, theirs, &mut dest);
        }
    }
}
