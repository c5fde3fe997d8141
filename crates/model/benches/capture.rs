//! From a config and a table of tensors to a plan: Llama-3-70B at tensor-parallel 8 and Qwen3-30B-A3B at 2, each
//! tensor whole in one session.
//!
//! Three measurements a model: `load` alone; `load` and the replay of every recorded chain; `load` and the plan.
//! Targets of the plan: 5 ms and 60 ms. Printed beside them: copies, and the process's peak memory after one run
//! of all three. `cargo bench -p restage-model`.

use std::fs;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use restage_geometry::{Captured, Dtype, Region, Replay, replay};
use restage_model::{Engine, ModelConfig, Rank, TensorTable, load};
use restage_plan::{Catalog, Limits, Shard, Source, plan};

const LLAMA: &str = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":8192,"intermediate_size":28672,
    "num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"vocab_size":128256}"#;

const QWEN: &str = r#"{"architectures":["Qwen3MoeForCausalLM"],"hidden_size":2048,"intermediate_size":6144,
    "num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,
    "vocab_size":151936,"num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768}"#;

/// The Hugging Face tensors that a config without biases and ties calls for, in bf16.
fn table(c: &ModelConfig) -> TensorTable {
    let (hidden, q, kv) =
        (c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
    let mut table = TensorTable::new();
    let mut add = |name: String, shape: &[i64]| {
        table.insert(name + ".weight", (Dtype::BF16, shape.to_vec()));
    };
    add("model.embed_tokens".into(), &[c.vocab_size, hidden]);
    add("lm_head".into(), &[c.vocab_size, hidden]);
    add("model.norm".into(), &[hidden]);
    for i in 0..c.num_hidden_layers {
        let layer = format!("model.layers.{i}");
        for (name, rows, columns) in
            [("q_proj", q, hidden), ("k_proj", kv, hidden), ("v_proj", kv, hidden), ("o_proj", hidden, q)]
        {
            add(format!("{layer}.self_attn.{name}"), &[rows, columns]);
        }
        add(format!("{layer}.input_layernorm"), &[hidden]);
        add(format!("{layer}.post_attention_layernorm"), &[hidden]);
        if c.qk_norm {
            add(format!("{layer}.self_attn.q_norm"), &[c.head_dim]);
            add(format!("{layer}.self_attn.k_norm"), &[c.head_dim]);
        }
        let mut feed_forward = |prefix: String, inner: i64| {
            add(format!("{prefix}.gate_proj"), &[inner, hidden]);
            add(format!("{prefix}.up_proj"), &[inner, hidden]);
            add(format!("{prefix}.down_proj"), &[hidden, inner]);
        };
        match &c.experts {
            Some(experts) => {
                for e in 0..experts.count {
                    feed_forward(format!("{layer}.mlp.experts.{e}"), experts.intermediate_size);
                }
                add(format!("{layer}.mlp.gate"), &[experts.count, hidden]);
            }
            None => feed_forward(format!("{layer}.mlp"), c.intermediate_size),
        }
    }
    table
}

fn catalog(table: &TensorTable) -> Catalog {
    let mut catalog = Catalog::new();
    let mut addr = 0;
    for (name, (dtype, shape)) in table {
        let region = Region::whole(shape).unwrap();
        let bytes = dtype.bytes(region.numel().unwrap() as u64).unwrap();
        let shards = vec![Shard { region, session: "model".into(), addr, digest: None }];
        catalog.insert(name, Source { dtype: *dtype, shape: shape.clone(), shards }).unwrap();
        addr += bytes;
    }
    catalog
}

/// Replays every chain; gives the number of elements that they reach.
fn replayed(captured: &Captured) -> i64 {
    let numel = |copy: &restage_geometry::Copy| match replay(&captured.sources[&copy.source].1, &copy.ops) {
        Ok(Replay::Exact(view)) => view.numel(),
        other => panic!("{}: {other:?}", copy.source),
    };
    captured.copies.iter().map(numel).sum()
}

fn peak_memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    peak.map_or_else(|| "unknown".to_owned(), |p| p.trim().to_owned())
}

fn bench(c: &mut Criterion) {
    for (name, json, tp_size, copies) in
        [("llama-3-70b tp 8", LLAMA, 8, 723), ("qwen3-30b-a3b tp 2", QWEN, 2, 18_867)]
    {
        let config = ModelConfig::from_json(json.as_bytes()).unwrap();
        let table = table(&config);
        let catalog = catalog(&table);
        let before = peak_memory();
        let rank = Rank { tp_size, tp_rank: 1 };
        let captured = || load(&config, Engine::default(), rank, &table).unwrap().captured;
        let limits = Limits { strided: true, ..Limits::default() };
        let planned = || plan(&captured(), &catalog, &limits).unwrap();

        let first = captured();
        assert_eq!(first.copies.len(), copies, "{name}");
        let elements = replayed(&first);
        drop(first);
        let plan = planned();
        assert!(plan.is_complete(), "{name}");
        eprintln!(
            "{name}: {copies} copies of {elements} elements, {} segments; peak memory {}, {before} of it for the \
             tables of tensors and sources",
            plan.segments.len(),
            peak_memory(),
        );
        drop(plan);

        let mut group = c.benchmark_group(name);
        group.sample_size(20);
        group.bench_function("load", |b| b.iter(|| black_box(captured())));
        group.bench_function("load and replay", |b| b.iter(|| replayed(&black_box(captured()))));
        group.bench_function("load and plan", |b| b.iter(|| black_box(planned())));
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
