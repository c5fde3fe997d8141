//! A pull out of a cached file by the transport, by its mapping, and by one request per run.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use memmap2::Mmap;
use restage_nest::{Loop, Nest};
use restage_transport::testing::noise;
use restage_transport::{Batch, Entry, FileTransport, MemoryTransport, Transport};

/// Bytes moved by each case.
const BYTES: u64 = 64 << 20;

/// `run` bytes of every row of `pitch`.
fn columns(run: u64, pitch: u64) -> Nest {
    let step = Loop { count: BYTES / run, src: pitch as i64, dst: run as i64 };
    Nest { src: 0, dst: 0, run, loops: vec![step] }
}

fn transpose(side: u64, size: u64) -> Nest {
    let (short, long) = (size as i64, (side * size) as i64);
    let loops =
        vec![Loop { count: side, src: short, dst: long }, Loop { count: side, src: long, dst: short }];
    Nest { src: 0, dst: 0, run: size, loops }
}

#[allow(unsafe_code)]
fn map(file: &File) -> Mmap {
    // SAFETY: the file is a temporary one that nobody else writes.
    unsafe { Mmap::map(file) }.expect("the file can be mapped")
}

fn pulls(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("shard");
    let source = noise(16 * BYTES as usize, 1);
    std::fs::write(&path, &source).expect("the file can be written");
    drop(source);
    let file = File::open(&path).expect("the file can be read");
    let mut files = FileTransport::new();
    files.register("s", &path).expect("the file can be opened");
    let mut dest = vec![1u8; BYTES as usize];

    let cases = [
        ("contiguous", Nest::contiguous(0, 0, BYTES)),
        ("thirds of 1152-byte rows", columns(384, 1152)),
        ("thirds of 16 KiB rows", columns(5461, 16384)),
        ("1 KiB of 5 KiB rows", columns(1024, 5120)),
        ("1 KiB of 9 KiB rows", columns(1024, 9216)),
        ("halves of 48 KiB rows", columns(24 << 10, 48 << 10)),
        ("5792x5792 transpose, 2 bytes", transpose(5792, 2)),
    ];
    for (case, nest) in cases {
        let mut group = c.benchmark_group(format!("file, {case}"));
        group.throughput(Throughput::Bytes(nest.total().unwrap_or(0))).sample_size(10);
        let batch = Batch { sessions: vec!["s".into()], entries: vec![Entry { session: 0, dest: 0, nest }] };
        group.bench_function("transport", |b| {
            b.iter(|| files.read(&batch, &mut [black_box(&mut dest)]).expect("in range"));
        });
        // Mapped for each pull, as a file that is read once has to be; and kept mapped, with its pages
        // present, which is the best that a mapping can do.
        group.bench_function("mapped anew", |b| {
            b.iter(|| pull_mapped(&map(&file), &batch, &mut dest));
        });
        let kept = map(&file);
        group.bench_function("kept mapped", |b| b.iter(|| pull_mapped(&kept, &batch, &mut dest)));
        let nest = &batch.entries[0].nest;
        if nest.run > 64 {
            group.bench_function("one request per run, one thread", |b| {
                b.iter(|| {
                    for run in nest.runs() {
                        let into = &mut dest[run.dst as usize..][..run.len as usize];
                        file.read_exact_at(into, run.src).expect("the file is long enough");
                    }
                });
            });
        }
        group.finish();
    }
}

/// The same jobs and copy loops over a mapping.
fn pull_mapped(mapped: &Mmap, batch: &Batch, dest: &mut [u8]) {
    let mut memory = MemoryTransport::new();
    memory.register("s", 0, &mapped[..]).expect("the region is free");
    memory.read(batch, &mut [dest]).expect("the batch is in range");
}

criterion_group!(benches, pulls);
criterion_main!(benches);
