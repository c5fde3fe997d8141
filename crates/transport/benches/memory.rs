//! A pull out of memory against one `memcpy` of the same bytes, into buffers whose pages are present.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use restage_nest::{Loop, Nest};
use restage_transport::testing::noise;
use restage_transport::{Batch, Entry, MemoryTransport, Transport};

/// Bytes moved by each case.
const BYTES: u64 = 240 << 20;

fn nest(src: u64, dst: u64, run: u64, loops: &[(u64, u64, u64)]) -> Nest {
    let step = |&(count, src, dst): &(u64, u64, u64)| Loop { count, src: src as i64, dst: dst as i64 };
    Nest { src, dst, run, loops: loops.iter().map(step).collect() }
}

/// A matrix of `rows x cols` elements of `size` bytes, written as its transpose.
fn transpose(rows: u64, cols: u64, size: u64) -> Vec<Nest> {
    let count = BYTES / (rows * cols * size);
    let whole = rows * cols * size;
    let one = [(cols, size, rows * size), (rows, cols * size, size)];
    (0..count).map(|i| nest(i * whole, i * whole, size, &one)).collect()
}

/// The middle third of every row of `3 * run` bytes.
fn columns(run: u64) -> Vec<Nest> {
    let rows = BYTES / run;
    vec![nest(run, 0, run, &[(rows, 3 * run, run)])]
}

fn pulls(c: &mut Criterion) {
    let source = noise(3 * BYTES as usize, 1);
    let mut dest = vec![1u8; BYTES as usize];
    let mut memory = MemoryTransport::new();
    memory.register("s", 0, source.as_slice()).expect("the region is free");
    let mut group = c.benchmark_group("memory");
    group.throughput(Throughput::Bytes(BYTES)).sample_size(10);
    group.bench_function("memcpy", |b| {
        b.iter(|| black_box(&mut dest).copy_from_slice(&source[..BYTES as usize]));
    });
    let mib = 1 << 20;
    let cases = [
        ("one contiguous", vec![nest(0, 0, BYTES, &[])]),
        ("16 contiguous", (0..16).map(|i| nest(i * 20 * mib, i * 15 * mib, 15 * mib, &[])).collect()),
        ("thirds of 1152-byte rows", columns(384)),
        ("thirds of 16 KiB rows", columns(5461)),
        ("18-byte blocks", columns(18)),
        ("4096x4096 transpose, 2 bytes", transpose(4096, 4096, 2)),
        ("4096x4096 transpose, 4 bytes", transpose(4096, 4096, 4)),
        ("5120x1000 transpose, 2 bytes", transpose(5120, 1000, 2)),
        ("32x128x4096 permuted, 2 bytes", {
            let (a, b, d) = (32, 128, 4096);
            let whole = 2 * a * b * d;
            let one = [(d, 2, 2 * a * b), (a, 2 * b * d, 2 * b), (b, 2 * d, 2)];
            (0..BYTES / whole).map(|i| nest(i * whole, i * whole, 2, &one)).collect()
        }),
        ("100,000 descriptors", {
            let len = BYTES / 100_000;
            (0..100_000).map(|i| nest(i * 3 * len, i * len, len, &[])).collect()
        }),
    ];
    for (name, nests) in cases {
        let entries = nests.into_iter().map(|nest| Entry { session: 0, dest: 0, nest }).collect();
        let batch = Batch { sessions: vec!["s".into()], entries };
        group.bench_function(name, |b| {
            b.iter(|| memory.read(&batch, &mut [black_box(&mut dest)]).expect("the batch is in range"));
        });
    }
    group.finish();
}

criterion_group!(benches, pulls);
criterion_main!(benches);
