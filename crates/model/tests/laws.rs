//! Random models of every family: each rank's parameters equal plain slicing, and the way back is the way in.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use ndarray::{Array1, Array2, Axis, concatenate, s};
use proptest::prelude::*;
use restage_geometry::{Captured, Dtype, Param, Region};
use restage_model::{
    Engine, Expectation, LoadError, ModelConfig, Original, Problem, Rank, Rows, TensorTable, load, unload,
};
use restage_plan::{Catalog, Limits, Shard, Source};
use restage_refit::{Receiver, Sink, SinkError};
use restage_transport::MemoryTransport;

type Bytes = BTreeMap<String, Vec<u8>>;

#[derive(Debug, Clone)]
struct Model {
    arch: &'static str,
    hidden: usize,
    ffn: usize,
    layers: usize,
    heads: usize,
    kv: usize,
    head_dim: usize,
    vocab: usize,
    tied: bool,
    bias: bool,
}

impl Model {
    fn config(&self) -> ModelConfig {
        let json = format!(
            r#"{{"architectures":["{}"],"hidden_size":{},"intermediate_size":{},"num_hidden_layers":{},
               "num_attention_heads":{},"num_key_value_heads":{},"head_dim":{},"vocab_size":{},
               "tie_word_embeddings":{},"attention_bias":{},"mlp_bias":{}}}"#,
            self.arch,
            self.hidden,
            self.ffn,
            self.layers,
            self.heads,
            self.kv,
            self.head_dim,
            self.vocab,
            self.tied,
            self.bias,
            self.bias
        );
        ModelConfig::from_json(json.as_bytes()).unwrap()
    }

    /// Which projections have biases, by family: q/k/v, o, mlp.
    fn biases(&self) -> (bool, bool, bool) {
        match self.arch {
            "LlamaForCausalLM" => (self.bias, self.bias, self.bias),
            "Qwen2ForCausalLM" => (true, false, false),
            "Qwen3ForCausalLM" => (self.bias, false, false),
            _ => (false, false, false),
        }
    }
}

/// Tensors of two-byte elements.
#[derive(Default)]
struct Tensors {
    matrices: BTreeMap<String, Array2<u16>>,
    vectors: BTreeMap<String, Array1<u16>>,
}

impl Tensors {
    fn bytes(&self) -> Bytes {
        let le = |v: &u16| v.to_le_bytes();
        let matrices = self.matrices.iter().map(|(n, a)| (n.clone(), a.iter().flat_map(le).collect()));
        let vectors = self.vectors.iter().map(|(n, a)| (n.clone(), a.iter().flat_map(le).collect()));
        matrices.chain(vectors).collect()
    }

    fn table(&self) -> TensorTable {
        let dims = |shape: &[usize]| (Dtype::BF16, shape.iter().map(|&n| n as i64).collect());
        let matrices = self.matrices.iter().map(|(n, a)| (n.clone(), dims(a.shape())));
        let vectors = self.vectors.iter().map(|(n, a)| (n.clone(), dims(a.shape())));
        matrices.chain(vectors).collect()
    }
}

fn checkpoint(m: &Model) -> Tensors {
    let mut next = 0u32;
    let mut value = || {
        next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (next >> 16) as u16
    };
    let mut t = Tensors::default();
    let (q, kv) = (m.heads * m.head_dim, m.kv * m.head_dim);
    let (qkv_bias, o_bias, mlp_bias) = m.biases();
    let mut linear = |name: String, rows: usize, cols: usize, bias: bool| {
        t.matrices.insert(format!("{name}.weight"), Array2::from_shape_simple_fn((rows, cols), &mut value));
        if bias {
            t.vectors.insert(format!("{name}.bias"), Array1::from_shape_simple_fn(rows, &mut value));
        }
    };
    linear("model.embed_tokens".into(), m.vocab, m.hidden, false);
    if !m.tied {
        linear("lm_head".into(), m.vocab, m.hidden, false);
    }
    for i in 0..m.layers {
        let l = format!("model.layers.{i}");
        linear(format!("{l}.self_attn.q_proj"), q, m.hidden, qkv_bias);
        linear(format!("{l}.self_attn.k_proj"), kv, m.hidden, qkv_bias);
        linear(format!("{l}.self_attn.v_proj"), kv, m.hidden, qkv_bias);
        linear(format!("{l}.self_attn.o_proj"), m.hidden, q, o_bias);
        linear(format!("{l}.mlp.gate_proj"), m.ffn, m.hidden, mlp_bias);
        linear(format!("{l}.mlp.up_proj"), m.ffn, m.hidden, mlp_bias);
        linear(format!("{l}.mlp.down_proj"), m.hidden, m.ffn, mlp_bias);
    }
    let mut norm = |name: String, n: usize| {
        t.vectors.insert(format!("{name}.weight"), Array1::from_shape_simple_fn(n, &mut value));
    };
    norm("model.norm".into(), m.hidden);
    for i in 0..m.layers {
        let l = format!("model.layers.{i}");
        norm(format!("{l}.input_layernorm"), m.hidden);
        norm(format!("{l}.post_attention_layernorm"), m.hidden);
        if m.arch == "Qwen3ForCausalLM" {
            norm(format!("{l}.self_attn.q_norm"), m.head_dim);
            norm(format!("{l}.self_attn.k_norm"), m.head_dim);
        }
    }
    t
}

/// Rows of each named projection, joined; weight, and bias where there is one.
fn fuse(hf: &Tensors, out: &mut Tensors, to: String, parts: &[(String, &Range<usize>)]) {
    let weights: Vec<_> =
        parts.iter().map(|(n, r)| hf.matrices[&format!("{n}.weight")].slice(s![(*r).clone(), ..])).collect();
    out.matrices.insert(format!("{to}.weight"), concatenate(Axis(0), &weights).unwrap());
    if hf.vectors.contains_key(&format!("{}.bias", parts[0].0)) {
        let biases: Vec<_> =
            parts.iter().map(|(n, r)| hf.vectors[&format!("{n}.bias")].slice(s![(*r).clone()])).collect();
        out.vectors.insert(format!("{to}.bias"), concatenate(Axis(0), &biases).unwrap());
    }
}

/// The parameters of a rank by plain slicing, without the scale buffers.
fn sliced(m: &Model, hf: &Tensors, tp: usize, rank: usize) -> Tensors {
    let mut t = Tensors::default();
    let even = |n: usize| (rank * n / tp)..((rank + 1) * n / tp);
    let kv_head = if m.kv >= tp { rank * m.kv / tp } else { rank / (tp / m.kv) };
    let heads = even(m.heads);
    let q = heads.start * m.head_dim..heads.end * m.head_dim;
    let kv = kv_head * m.head_dim..(kv_head + (m.kv / tp).max(1)) * m.head_dim;
    let ffn = even(m.ffn);
    for i in 0..m.layers {
        let l = format!("model.layers.{i}");
        let a = format!("{l}.self_attn");
        let qkv = [(format!("{a}.q_proj"), &q), (format!("{a}.k_proj"), &kv), (format!("{a}.v_proj"), &kv)];
        fuse(hf, &mut t, format!("{a}.qkv_proj"), &qkv);
        let gate_up = [(format!("{l}.mlp.gate_proj"), &ffn), (format!("{l}.mlp.up_proj"), &ffn)];
        fuse(hf, &mut t, format!("{l}.mlp.gate_up_proj"), &gate_up);
        for (name, cols) in [(format!("{a}.o_proj"), &q), (format!("{l}.mlp.down_proj"), &ffn)] {
            let w = hf.matrices[&format!("{name}.weight")].slice(s![.., cols.clone()]).to_owned();
            t.matrices.insert(format!("{name}.weight"), w);
            if let Some(b) = hf.vectors.get(&format!("{name}.bias")) {
                t.vectors.insert(format!("{name}.bias"), b.clone());
            }
        }
    }
    let norms = hf.vectors.iter().filter(|(n, _)| n.ends_with("norm.weight"));
    t.vectors.extend(norms.map(|(n, a)| (n.clone(), a.clone())));
    let padded = m.vocab.div_ceil(64) * 64;
    let vocab = |name: &str| {
        let mut whole = Array2::zeros((padded, m.hidden));
        whole.slice_mut(s![..m.vocab, ..]).assign(&hf.matrices[name]);
        whole.slice(s![even(padded), ..]).to_owned()
    };
    if m.tied {
        t.matrices.insert("lm_head.weight".into(), vocab("model.embed_tokens.weight"));
    } else {
        for name in ["lm_head.weight", "model.embed_tokens.weight"] {
            t.matrices.insert(name.into(), vocab(name));
        }
    }
    t
}

#[derive(Default)]
struct Kept(Mutex<Bytes>);

impl Sink for Kept {
    fn accept(&self, param: &Param, bytes: &[u8]) -> Result<(), SinkError> {
        self.0.lock().unwrap().insert(param.name.clone(), bytes.to_vec());
        Ok(())
    }
}

/// Pulls a capture out of memory: each tensor is one session.
fn pull(captured: &Captured, table: &TensorTable, bytes: &Bytes) -> Bytes {
    let mut catalog = Catalog::new();
    let mut memory = MemoryTransport::new();
    for (name, (dtype, shape)) in table {
        let region = Region::whole(shape).unwrap();
        let shards = vec![Shard { region, session: name.as_str().into(), addr: 64 }];
        catalog.insert(name, Source { dtype: *dtype, shape: shape.clone(), shards }).unwrap();
        memory.register(name.as_str(), 64, bytes[name].clone()).unwrap();
    }
    let receiver = Receiver::prepare(captured, &catalog, &Limits::default()).unwrap();
    assert!(receiver.plan().is_complete(), "{:?}", receiver.plan().refused);
    let kept = Kept::default();
    receiver.pull_each(&memory, 1 << 12, &kept).unwrap();
    kept.0.into_inner().unwrap()
}

/// The rows of an expectation, as bytes.
fn rows<'a>(r: &Rows, table: &TensorTable, bytes: &'a Bytes) -> &'a [u8] {
    let (dtype, shape) = &table[&r.source];
    let row = shape.iter().skip(1).product::<i64>() * dtype.packing().bytes as i64;
    &bytes[&r.source][(r.start * row) as usize..((r.start + r.len) * row) as usize]
}

fn models() -> impl Strategy<Value = (Model, usize)> {
    let arch = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];
    let sizes = (1usize..4, 1usize..4, 1usize..3, prop::sample::select(vec![2usize, 4, 6]), 1usize..200);
    (
        prop::sample::select(arch.to_vec()),
        prop::sample::select(vec![1usize, 2, 4, 8, 16]),
        sizes,
        any::<[bool; 3]>(),
        0u32..4,
    )
        .prop_map(
            |(arch, tp, (per_rank, group, layers, head_dim, vocab), [tied, bias, wide], kv_log)| {
                // Key/value heads are a multiple of the ranks, or fewer than there are ranks.
                let kv = if wide { tp * group } else { (1 << kv_log).min(tp) };
                let heads = if wide { kv * per_rank } else { tp * per_rank };
                let (hidden, ffn) = (6 + per_rank, tp * (2 + group));
                (Model { arch, hidden, ffn, layers, heads, kv, head_dim, vocab, tied, bias }, tp)
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn ranks_are_plain_slices_and_join_again((m, tp) in models()) {
        let config = m.config();
        let hf = checkpoint(&m);
        let (table, bytes) = (hf.table(), hf.bytes());
        let mut tables = Vec::new();
        let mut all_table = TensorTable::new();
        let mut all_bytes = Bytes::new();
        let name = |rank: usize, tensor: &str| format!("r{rank}/{tensor}");
        for rank in 0..tp {
            let place = Rank { tp_size: tp as i64, tp_rank: rank as i64 };
            let loaded = load(&config, Engine::default(), place, &table).unwrap();
            prop_assert!(loaded.skipped.is_empty() && loaded.tie.is_none());
            let mut got = pull(&loaded.captured, &table, &bytes);
            all_bytes.extend(got.iter().map(|(n, b)| (name(rank, n), b.clone())));
            let scales: Vec<_> = got.keys().filter(|k| k.ends_with("_scale")).cloned().collect();
            prop_assert_eq!(scales.len(), 4 * m.layers);
            for scale in scales {
                prop_assert_eq!(got.remove(&scale).unwrap(), 1f32.to_le_bytes());
            }
            prop_assert_eq!(&got, &sliced(&m, &hf, tp, rank).bytes());
            let params = loaded.captured.params.iter();
            let params: TensorTable = params.map(|p| (p.name.clone(), (p.dtype, p.shape.clone()))).collect();
            all_table.extend(params.iter().map(|(n, t)| (name(rank, n), t.clone())));
            tables.push(params);
        }
        let back = unload(&config, &tables, &name, Original::default()).unwrap();
        for e in &back.expectations {
            match e {
                Expectation::Equal(a, b) => {
                    prop_assert_eq!(rows(a, &all_table, &all_bytes), rows(b, &all_table, &all_bytes));
                }
                Expectation::Constant(r, element) => {
                    let found = rows(r, &all_table, &all_bytes);
                    prop_assert!(found.chunks(element.len()).all(|c| c == element));
                }
                other => panic!("{other:?}"),
            }
        }
        prop_assert_eq!(pull(&back.captured, &all_table, &all_bytes), bytes);
    }

    /// One tensor less, or one of another shape, and the model is refused with its name.
    #[test]
    fn every_tensor_counts((m, tp) in models(), which in any::<prop::sample::Index>(), grow in any::<bool>()) {
        let mut table = checkpoint(&m).table();
        let name = table.keys().nth(which.index(table.len())).unwrap().clone();
        match table.get_mut(&name) {
            Some((_, shape)) if grow => shape[0] += 1,
            _ => drop(table.remove(&name)),
        }
        let place = Rank { tp_size: tp as i64, tp_rank: tp as i64 - 1 };
        let Err(LoadError::Problems(problems)) = load(&m.config(), Engine::default(), place, &table) else {
            panic!("loaded without {name}");
        };
        let named = problems.0.iter().all(|p| match p {
            Problem::Missing { tensor, .. } => !grow && *tensor == name,
            Problem::Shape { tensor, .. } => grow && *tensor == name,
            _ => false,
        });
        prop_assert!(named && !problems.0.is_empty(), "{problems}");
    }
}

#[test]
fn sizes_that_do_not_divide_are_all_named() {
    let m = Model {
        arch: "LlamaForCausalLM",
        hidden: 8,
        ffn: 6,
        layers: 1,
        heads: 6,
        kv: 3,
        head_dim: 2,
        vocab: 64,
        tied: false,
        bias: false,
    };
    let at = |tp_size, tp_rank| {
        load(&m.config(), Engine::default(), Rank { tp_size, tp_rank }, &checkpoint(&m).table())
    };
    let Err(LoadError::Problems(problems)) = at(4, 0) else { panic!("6 heads do not divide by 4") };
    let said = problems.to_string();
    for part in ["num_attention_heads 6", "intermediate_size 6", "(remainder 2)", "num_key_value_heads"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("vocabulary"), "{said}");
    for (tp_size, tp_rank) in [(0, 0), (2, 2), (2, -1)] {
        assert!(at(tp_size, tp_rank).is_err());
    }
}
