//! A whole `restage reshard --tp 3` against a `cp -r` of the same checkpoint to the same disk.
//!
//! Neither flushes to the disk. The checkpoint is the one that `cargo xtask real-model` makes (269 MB); without it the
//! bench says so and measures nothing. Both write into the build folder. `cargo bench -p restage --bench reshard`.

#[path = "../tests/support/real.rs"]
mod real;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Time of the command alone: its output is removed before, outside of the clock.
fn timed(iterations: u64, out: &Path, command: impl Fn() -> Command) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..iterations {
        let _ = fs::remove_dir_all(out);
        let begun = Instant::now();
        let status = command().status().expect("the command starts");
        total += begun.elapsed();
        assert!(status.success());
    }
    total
}

fn bench(c: &mut Criterion) {
    let Some(model) = real::model() else { return };
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let bytes = fs::metadata(model.join("model.safetensors")).expect("the checkpoint is whole").len();
    let mut group = c.benchmark_group("whole command");
    group.throughput(Throughput::Bytes(bytes)).sample_size(20).warm_up_time(Duration::from_secs(1));
    let out = scratch.join("cp");
    group.bench_function("cp -r", |b| {
        b.iter_custom(|n| {
            timed(n, &out, || {
                let mut cp = Command::new("cp");
                cp.arg("-r").arg(&model).arg(&out);
                cp
            })
        })
    });
    let _ = fs::remove_dir_all(&out);
    let out = scratch.join("tp3");
    group.bench_function("restage reshard --tp 3", |b| {
        b.iter_custom(|n| {
            timed(n, &out, || {
                let mut reshard = Command::new(env!("CARGO_BIN_EXE_restage"));
                reshard.args(["reshard", "--quiet", "--tp", "3"]).arg(&model).arg("--out").arg(&out);
                reshard
            })
        })
    });
    let _ = fs::remove_dir_all(&out);
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
