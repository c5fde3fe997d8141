//! Planning every rank of DeepSeek-V3 at once: from 64 trainers to 32 serving ranks.
//!
//! 61 layers in bf16, every tensor cut on its rows over 64 sessions, to tensor-parallel 8 x pipeline 4, with experts whole on
//! their ranks (ep 8) and cut over all of them (ep 1). A rank is captured, planned, and left with its column of the
//! traffic matrix. `cargo bench -p restage-plan --bench fleet`.

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use rayon::prelude::*;
use restage_model::{Engine, ModelConfig, Placement, Rank, Stage, TensorTable, load, tensors};
use restage_plan::{Catalog, Column, Limits, Traffic, plan};

const CONFIG: &str = include_str!("deepseek-v3/config.json");

const TRAINERS: usize = 64;
const TP: i64 = 8;
const PP: i64 = 4;

fn traffic(
    config: &ModelConfig,
    table: &TensorTable,
    catalog: &Catalog,
    ep: i64,
    limits: &Limits,
) -> Traffic {
    let column = |rank: i32| {
        let rank = i64::from(rank);
        let place = Placement {
            rank: Rank { tp_size: TP, tp_rank: rank % TP },
            expert_groups: Some(ep),
            stage: Stage { index: rank / TP, count: PP },
        };
        let loaded = load(config, Engine::default(), place, table).unwrap();
        let plan = plan(&loaded.captured, catalog, limits).unwrap();
        assert!(plan.is_complete());
        Column::new(format!("rank {rank}"), &plan)
    };
    let columns: Vec<Column> = (0..(TP * PP) as i32).into_par_iter().with_max_len(1).map(column).collect();
    Traffic::from_columns(columns)
}

fn bench(c: &mut Criterion) {
    let config = ModelConfig::from_json(CONFIG.as_bytes()).unwrap();
    let table = tensors(&config).unwrap();
    let sessions: Vec<Arc<str>> = (0..TRAINERS).map(|i| format!("trainer{i:04}").into()).collect();
    let sources = || table.iter().map(|(name, (dtype, shape))| (name.as_str(), *dtype, &shape[..]));
    let catalog = Catalog::row_blocks(sources(), &sessions).unwrap();
    let mut group = c.benchmark_group("DeepSeek-V3, 64 trainers to 32 ranks");
    group.sample_size(10);
    group.bench_function("publish", |b| b.iter(|| Catalog::row_blocks(sources(), &sessions).unwrap()));
    let flat = Limits::default();
    let strided = Limits { strided: true, ..Limits::default() };
    for ep in [8, 1] {
        for (what, limits) in [("flat, bound 64", &flat), ("strided", &strided)] {
            let t = traffic(&config, &table, &catalog, ep, limits);
            let peak = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            let peak = peak.lines().find(|l| l.starts_with("VmHWM")).unwrap_or("VmHWM: unknown").to_owned();
            let (bytes, descriptors) = (t.total(), t.total_descriptors());
            eprintln!("ep {ep}, {what}: {bytes} bytes in {descriptors} descriptors; {peak}");
            group.bench_function(format!("ep {ep}, {what}"), |b| {
                b.iter(|| traffic(&config, &table, &catalog, ep, limits))
            });
        }
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
