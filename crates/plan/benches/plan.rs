//! Planning one rank of Llama-3-70B, and a transposed matrix.
//!
//! Llama-3-70B in bf16 at tensor-parallel 8, rank 3, every source cut on its rows over 16 trainer ranks, planned on one
//! thread. `cargo bench -p restage-plan`.

use criterion::{Criterion, criterion_group, criterion_main};
use restage_geometry::{Capture, Captured, Dtype, Region};
use restage_model::{Engine, ModelConfig, Rank, TensorTable, load};
use restage_plan::{Catalog, Limits, Shard, Source, plan};

const LLAMA_70B: &str = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":8192,"intermediate_size":28672,
    "num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"vocab_size":128256}"#;

fn llama_table() -> TensorTable {
    let (hidden, ffn, kv, vocab) = (8192, 28672, 1024, 128256);
    let mut table = TensorTable::new();
    let mut add = |name: String, shape: &[i64]| table.insert(name, (Dtype::BF16, shape.to_vec()));
    add("model.embed_tokens.weight".into(), &[vocab, hidden]);
    add("lm_head.weight".into(), &[vocab, hidden]);
    add("model.norm.weight".into(), &[hidden]);
    for i in 0..80 {
        for (name, shape) in [
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("mlp.gate_proj", vec![ffn, hidden]),
            ("mlp.up_proj", vec![ffn, hidden]),
            ("mlp.down_proj", vec![hidden, ffn]),
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
        ] {
            add(format!("model.layers.{i}.{name}.weight"), &shape);
        }
    }
    table
}

/// Every source cut on its rows over `shards` sessions, one after the other in each.
fn catalog(table: &TensorTable, shards: i64) -> Catalog {
    let mut catalog = Catalog::new();
    let mut next = vec![1u64 << 20; shards as usize];
    for (name, (dtype, shape)) in table {
        let rows = (shape[0] + shards - 1) / shards;
        let shard = |i: i64| {
            let (mut start, mut size) = (vec![0; shape.len()], shape.clone());
            start[0] = (i * rows).min(shape[0]);
            size[0] = (shape[0] - start[0]).min(rows);
            let region = Region::new(&start, &size).unwrap();
            let addr = next[i as usize];
            next[i as usize] += dtype.bytes(region.numel().unwrap() as u64).unwrap() + 4096;
            Shard { region, session: format!("trainer-{i:02}").into(), addr }
        };
        let shards = (0..shards).map(shard).collect();
        catalog.insert(name, Source { dtype: *dtype, shape: shape.clone(), shards }).unwrap();
    }
    catalog
}

fn report(what: &str, captured: &Captured, catalog: &Catalog, limits: &Limits) {
    let p = plan(captured, catalog, limits).unwrap();
    let c = p.counters();
    let peak = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = peak.lines().find(|l| l.starts_with("VmHWM")).unwrap_or("VmHWM: unknown").to_owned();
    eprintln!(
        "{what}: {} copies; exact {} descriptors, {} bytes; planned {} descriptors, {} bytes; {peak}",
        p.copies, c.exact_descriptors, c.exact_bytes, c.descriptors, c.bytes
    );
}

fn bench(c: &mut Criterion) {
    let table = llama_table();
    let config = ModelConfig::from_json(LLAMA_70B.as_bytes()).unwrap();
    let loaded = load(&config, Engine::default(), Rank { tp_size: 8, tp_rank: 3 }, &table).unwrap();
    let trainers = catalog(&table, 16);
    let mut group = c.benchmark_group("plan Llama-3-70B tp 8 from 16 row shards");
    for (what, limits) in
        [("flat, bound 64", Limits::default()), ("strided", Limits { strided: true, ..Limits::default() })]
    {
        report(what, &loaded.captured, &trainers, &limits);
        group.bench_function(what, |b| b.iter(|| plan(&loaded.captured, &trainers, &limits).unwrap()));
    }
    group.finish();

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

criterion_group!(benches, bench);
criterion_main!(benches);
