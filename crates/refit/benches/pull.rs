//! The in-memory pull of an exact plan against one memcpy of the same bytes.
//!
//! A Llama-shaped model of 1 GB in bf16, every source cut into 8 row shards on 8 sessions, pulled by rank 1 of
//! tensor-parallel 4 into buffers that are already there. `cargo bench -p restage-refit`.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use restage_model::{Engine, ModelConfig, Rank, load, tensors};
use restage_plan::{Catalog, Limits};
use restage_refit::Receiver;
use restage_transport::MemoryTransport;

const SHARDS: usize = 8;

const CONFIG: &str = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":2048,"intermediate_size":5632,
    "num_hidden_layers":8,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":32000}"#;

fn bench(c: &mut Criterion) {
    let config = ModelConfig::from_json(CONFIG.as_bytes()).unwrap();
    let table = tensors(&config).unwrap();
    let sessions: Vec<Arc<str>> = (0..SHARDS).map(|i| format!("trainer {i}").into()).collect();
    let sources = table.iter().map(|(name, (dtype, shape))| (name.as_str(), *dtype, &shape[..]));
    let catalog = Catalog::row_blocks(sources, &sessions).unwrap();
    let mut held = vec![0; SHARDS];
    for (_, source) in catalog.iter() {
        for (i, shard) in source.shards.iter().enumerate() {
            held[i] += source.dtype.bytes(shard.region.numel().unwrap() as u64).unwrap() as usize;
        }
    }
    let total: usize = held.iter().sum();
    let mut transport = MemoryTransport::new();
    for (i, bytes) in held.into_iter().enumerate() {
        transport.register(&*sessions[i], 0, vec![i as u8 + 1; bytes]).unwrap();
    }
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
