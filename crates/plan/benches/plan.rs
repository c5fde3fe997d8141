//! Planning one rank of Llama-3-70B and of Qwen3-30B-A3B, and a transposed matrix, on one thread.
//!
//! Llama-3-70B at tensor-parallel 8, rank 3, every source cut on its rows over 16 trainer ranks; Qwen3-30B-A3B at
//! tensor-parallel 2, rank 1, over 8. All in bf16. Then how time grows with copies and with rows. `cargo bench -p restage-plan --bench plan`.

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use restage_geometry::{Capture, Captured, Dtype};
use restage_model::{Engine, ModelConfig, Rank, TensorTable, load, tensors};
use restage_plan::{Catalog, Limits, plan};

const LLAMA_70B: &str = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":8192,"intermediate_size":28672,
    "num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"vocab_size":128256}"#;

const QWEN_30B: &str = r#"{"architectures":["Qwen3MoeForCausalLM"],"hidden_size":2048,"intermediate_size":6144,
    "num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"vocab_size":151936,
    "num_experts":128,"moe_intermediate_size":768}"#;

/// Every source cut on its rows over `shards` sessions, one after the other in each.
fn catalog(table: &TensorTable, shards: usize) -> Catalog {
    let sessions: Vec<Arc<str>> = (0..shards).map(|i| format!("trainer-{i:02}").into()).collect();
    let sources = table.iter().map(|(name, (dtype, shape))| (name.as_str(), *dtype, &shape[..]));
    Catalog::row_blocks(sources, &sessions).unwrap()
}

/// A line of the process's own memory, in kB.
fn memory(field: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or("unknown").trim().to_owned()
}

fn report(what: &str, captured: &Captured, catalog: &Catalog, limits: &Limits) {
    let before = memory("VmRSS");
    let p = plan(captured, catalog, limits).unwrap();
    let c = p.counters();
    eprintln!(
        "{what}: {} copies; exact {} descriptors, {} bytes; planned {} descriptors, {} bytes; {before} before, peak {}",
        p.copies,
        c.exact_descriptors,
        c.exact_bytes,
        c.descriptors,
        c.bytes,
        memory("VmHWM")
    );
}

fn bench(c: &mut Criterion) {
    for (name, json, rank, shards) in [
        ("Llama-3-70B tp 8 from 16 row shards", LLAMA_70B, Rank { tp_size: 8, tp_rank: 3 }, 16),
        ("Qwen3-30B-A3B tp 2 from 8 row shards", QWEN_30B, Rank { tp_size: 2, tp_rank: 1 }, 8),
    ] {
        let config = ModelConfig::from_json(json.as_bytes()).unwrap();
        let table = tensors(&config).unwrap();
        let loaded = load(&config, Engine::default(), rank, &table).unwrap();
        let trainers = catalog(&table, shards);
        // What the planner is not given is not in its figures.
        drop(table);
        let mut group = c.benchmark_group(format!("plan {name}"));
        group.sample_size(30);
        for (what, limits) in [
            ("flat, bound 64", Limits::default()),
            ("strided", Limits { strided: true, ..Limits::default() }),
        ] {
            report(&format!("{name}, {what}"), &loaded.captured, &trainers, &limits);
            group.bench_function(what, |b| b.iter(|| plan(&loaded.captured, &trainers, &limits).unwrap()));
        }
        group.finish();
    }

    growth(c);

    let capture = Capture::new();
    let w = capture.source("w", Dtype::BF16, &[2048, 2048]).unwrap();
    capture.param("p", Dtype::BF16, &[2048, 2048]).unwrap().copy_from(&w.t().unwrap()).unwrap();
    let transposed = capture.finish();
    let table = TensorTable::from([("w".to_owned(), (Dtype::BF16, vec![2048, 2048]))]);
    let whole = catalog(&table, 1);
    let limits = Limits { strided: true, ..Limits::default() };
    c.bench_function("plan a transposed 2048 x 2048", |b| {
        b.iter(|| plan(&transposed, &whole, &limits).unwrap())
    });
}

/// `copies` column halves of matrices of `rows` x 64, each cut on its rows over 8 sessions.
fn column_halves(copies: usize, rows: i64) -> (Captured, Catalog) {
    let capture = Capture::new();
    let mut table = TensorTable::new();
    for i in 0..copies {
        let name = format!("w{i:05}");
        let w = capture.source(&name, Dtype::BF16, &[rows, 64]).unwrap();
        let half = capture.param(&format!("p{i:05}"), Dtype::BF16, &[rows, 32]).unwrap();
        half.copy_from(&w.narrow(1, 32, 32).unwrap()).unwrap();
        table.insert(name, (Dtype::BF16, vec![rows, 64]));
    }
    (capture.finish(), catalog(&table, 8))
}

/// Time against the number of copies, and against their rows.
fn growth(c: &mut Criterion) {
    let mut group = c.benchmark_group("growth");
    group.sample_size(20);
    let cases = [1024, 4096, 16384].map(|copies| (copies, 1024));
    let cases = cases.into_iter().chain([65_536, 4_194_304].map(|rows| (1024, rows)));
    for (copies, rows) in cases {
        let (captured, published) = column_halves(copies, rows);
        for (what, strided) in [("flat, bound 64", false), ("strided", true)] {
            let limits = Limits { strided, ..Limits::default() };
            group.bench_function(format!("{copies} copies of {rows} rows, {what}"), |b| {
                b.iter(|| plan(&captured, &published, &limits).unwrap())
            });
        }
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
