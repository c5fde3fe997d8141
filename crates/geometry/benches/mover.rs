//! What moving strided bytes costs beside a plain copy of as many.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use restage_geometry::{Dest, Dtype, Op, Replay, copy_nests, gather, replay};
use restage_nest::Nest;

const SIDE: i64 = 4096;

fn nests(ops: &[Op]) -> Vec<Nest> {
    match replay(&[SIDE, SIDE], ops) {
        Ok(Replay::Exact(view)) => gather(&view, &Dest::whole(view.shape())).unwrap_or_default(),
        other => panic!("{other:?}"),
    }
}

fn mover(c: &mut Criterion) {
    let src: Vec<u8> = (0..SIDE * SIDE * 2).map(|i| i as u8).collect();
    let mut dst = vec![1u8; src.len()];
    let half = src.len() / 2;
    let mut group = c.benchmark_group("4096 x 4096 bf16");
    group.throughput(Throughput::Bytes(half as u64));
    group.bench_function("memcpy of half", |b| {
        b.iter(|| black_box(&mut dst[..half]).copy_from_slice(black_box(&src[..half])));
    });
    for (name, ops) in [
        ("column half", vec![Op::Narrow { dim: 1, start: SIDE / 2, length: SIDE / 2 }]),
        (
            "every second column",
            vec![Op::Unflatten { dim: 1, sizes: vec![-1, 2] }, Op::Select { dim: 2, index: 1 }],
        ),
        ("row half, transposed", vec![Op::Narrow { dim: 0, start: 0, length: SIDE / 2 }, Op::T]),
    ] {
        let nests = nests(&ops);
        group.bench_function(name, |b| {
            b.iter(|| copy_nests(black_box(&nests), Dtype::BF16.packing(), &src, &mut dst[..half]));
        });
    }
    group.finish();
}

criterion_group!(benches, mover);
criterion_main!(benches);
