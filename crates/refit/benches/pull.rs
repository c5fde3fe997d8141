//! The in-memory pull of an exact plan against one memcpy of the same bytes.
//!
//! A Llama-shaped model of 1 GB in bf16, every source cut into 8 row shards on 8 sessions, pulled by rank 1 of
//! tensor-parallel 4 into buffers that are already there. `cargo bench -p restage-refit`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use restage_geometry::{Dtype, Region};
use restage_model::{Engine, ModelConfig, Rank, TensorTable, load};
use restage_plan::{Catalog, Limits, Shard, Source};
use restage_refit::Receiver;
use restage_transport::MemoryTransport;

const SHARDS: i64 = 8;

const CONFIG: &str = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":2048,"intermediate_size":5632,
    "num_hidden_layers":8,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":32000}"#;

fn table() -> TensorTable {
    let (hidden, ffn, kv, vocab) = (2048, 5632, 512, 32000);
    let mut table = TensorTable::new();
    let mut add = |name: String, shape: &[i64]| table.insert(name, (Dtype::BF16, shape.to_vec()));
    add("model.embed_tokens.weight".into(), &[vocab, hidden]);
    add("lm_head.weight".into(), &[vocab, hidden]);
    add("model.norm.weight".into(), &[hidden]);
    for i in 0..8 {
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

fn bench(c: &mut Criterion) {
    let table = table();
    let mut catalog = Catalog::new();
    let mut memory: Vec<Vec<u8>> = vec![Vec::new(); SHARDS as usize];
    for (name, (dtype, shape)) in &table {
        let rows = shape[0] / SHARDS;
        let shard = |i: i64| {
            let (mut start, mut size) = (vec![0; shape.len()], shape.clone());
            (start[0], size[0]) = (i * rows, rows);
            let region = Region::new(&start, &size).unwrap();
            let addr = memory[i as usize].len() as u64;
            let bytes = dtype.bytes(region.numel().unwrap() as u64).unwrap();
            memory[i as usize].resize((addr + bytes) as usize, i as u8 + 1);
            Shard { region, session: format!("trainer {i}").into(), addr }
        };
        let shards = (0..SHARDS).map(shard).collect();
        catalog.insert(name, Source { dtype: *dtype, shape: shape.clone(), shards }).unwrap();
    }
    let total: usize = memory.iter().map(Vec::len).sum();
    let mut transport = MemoryTransport::new();
    for (i, bytes) in memory.into_iter().enumerate() {
        transport.register(format!("trainer {i}"), 0, bytes).unwrap();
    }
    let config = ModelConfig::from_json(CONFIG.as_bytes()).unwrap();
    let loaded = load(&config, Engine::default(), Rank { tp_size: 4, tp_rank: 1 }, &table).unwrap();
    let limits = Limits { strided: true, ..Limits::default() };
    let receiver = Receiver::prepare(&loaded.captured, &catalog, &limits).unwrap();
    let plan = receiver.plan();
    assert!(plan.is_complete() && plan.counters().extra_wire_bytes() == 0);
    let bytes = plan.counters().bytes;
    eprintln!(
        "{total} bytes in {SHARDS} shards; a rank takes {bytes} in {} runs, {} strided",
        plan.counters().exact_descriptors,
        plan.counters().descriptors
    );
    let mut buffers: Vec<Vec<u8>> = plan.coverage.iter().map(|c| vec![1; c.bytes as usize]).collect();
    let (from, mut to) = (vec![1u8; bytes as usize], vec![2u8; bytes as usize]);

    let mut group = c.benchmark_group("pull");
    group.throughput(Throughput::Bytes(bytes)).sample_size(20);
    group.bench_function("memcpy", |b| b.iter(|| black_box(&mut to).copy_from_slice(black_box(&from))));
    group.bench_function("exact plan", |b| {
        b.iter(|| {
            let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
            receiver.pull_into(&transport, &mut slices).unwrap()
        })
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
