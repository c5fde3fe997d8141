//! Random models, their checkpoints, and what plain slicing makes of them for a rank.

use std::collections::BTreeMap;
use std::ops::Range;

use ndarray::{Array1, Array2, Array3, Axis, concatenate, s};
use restage_geometry::Dtype;
use restage_model::{ModelConfig, TensorTable};

pub type Bytes = BTreeMap<String, Vec<u8>>;

#[derive(Debug, Clone)]
pub struct Model {
    pub arch: &'static str,
    pub hidden: usize,
    pub ffn: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv: usize,
    pub head_dim: usize,
    pub vocab: usize,
    pub tied: bool,
    pub bias: bool,
    pub moe: Option<Moe>,
}

/// What a model with experts has beside the others.
#[derive(Debug, Clone)]
pub struct Moe {
    pub experts: usize,
    pub inner: usize,
    pub step: usize,
    pub mlp_only: Vec<usize>,
    /// Whole experts are spread over the ranks.
    pub spread: bool,
    /// The checkpoint has all experts of a layer in one tensor.
    pub stacked: bool,
}

impl Moe {
    pub fn is_sparse(&self, layer: usize) -> bool {
        !self.mlp_only.contains(&layer) && self.experts > 0 && (layer + 1).is_multiple_of(self.step)
    }
}

/// Names that versions of vLLM, by their minor number, have for the parameters of a sparse layer: w13, w2, gate
/// and, with expert parallel, the expert map.
pub fn expert_names(minor: u32) -> (&'static str, &'static str, &'static str, Option<&'static str>) {
    let (w13, w2) = ("mlp.experts.w13_weight", "mlp.experts.w2_weight");
    let (new13, new2) = ("mlp.experts.routed_experts.w13_weight", "mlp.experts.routed_experts.w2_weight");
    let map = "mlp.experts._expert_map";
    match minor {
        11 => (w13, w2, "mlp.gate.weight", Some("mlp.experts.expert_map")),
        13 => (w13, w2, "mlp.gate.weight", Some(map)),
        16 | 19 => (w13, w2, "mlp.experts._gate.weight", Some(map)),
        22 => (w13, w2, "mlp.experts.runner.gate.weight", Some(map)),
        24 => (new13, new2, "mlp.experts.gate.weight", Some("mlp.experts.routed_experts._expert_map")),
        27 | 29 | 31 | 33 => (new13, new2, "mlp.experts.gate.weight", None),
        other => panic!("vLLM 0.{other} was not looked at"),
    }
}

impl Model {
    pub fn config(&self) -> ModelConfig {
        let moe = self.moe.as_ref().map_or_else(String::new, |moe| {
            format!(
                r#","num_experts":{},"moe_intermediate_size":{},"decoder_sparse_step":{},"mlp_only_layers":{:?}"#,
                moe.experts, moe.inner, moe.step, moe.mlp_only
            )
        });
        let json = format!(
            r#"{{"architectures":["{}"],"hidden_size":{},"intermediate_size":{},"num_hidden_layers":{},
               "num_attention_heads":{},"num_key_value_heads":{},"head_dim":{},"vocab_size":{},
               "tie_word_embeddings":{},"attention_bias":{},"mlp_bias":{}{moe}}}"#,
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

    pub fn is_sparse(&self, layer: usize) -> bool {
        self.moe.as_ref().is_some_and(|moe| moe.is_sparse(layer))
    }

    /// Which projections have biases, by family: q/k/v, o, mlp.
    pub fn biases(&self) -> (bool, bool, bool) {
        match self.arch {
            "LlamaForCausalLM" => (self.bias, self.bias, self.bias),
            "Qwen2ForCausalLM" => (true, false, false),
            "Qwen3ForCausalLM" | "Qwen3MoeForCausalLM" => (self.bias, false, false),
            _ => (false, false, false),
        }
    }
}

/// Tensors of two-byte elements, and maps of experts.
#[derive(Default)]
pub struct Tensors {
    pub cubes: BTreeMap<String, Array3<u16>>,
    pub matrices: BTreeMap<String, Array2<u16>>,
    pub vectors: BTreeMap<String, Array1<u16>>,
    pub maps: BTreeMap<String, Vec<i32>>,
}

impl Tensors {
    pub fn bytes(&self) -> Bytes {
        let le = |v: &u16| v.to_le_bytes();
        let mut bytes = Bytes::new();
        bytes.extend(self.cubes.iter().map(|(n, a)| (n.clone(), a.iter().flat_map(le).collect())));
        bytes.extend(self.matrices.iter().map(|(n, a)| (n.clone(), a.iter().flat_map(le).collect())));
        bytes.extend(self.vectors.iter().map(|(n, a)| (n.clone(), a.iter().flat_map(le).collect())));
        let map = |m: &[i32]| m.iter().flat_map(|v| v.to_le_bytes()).collect();
        bytes.extend(self.maps.iter().map(|(n, m)| (n.clone(), map(m))));
        bytes
    }

    pub fn table(&self) -> TensorTable {
        let dims = |shape: &[usize]| (Dtype::BF16, shape.iter().map(|&n| n as i64).collect());
        let cubes = self.cubes.iter().map(|(n, a)| (n.clone(), dims(a.shape())));
        let matrices = self.matrices.iter().map(|(n, a)| (n.clone(), dims(a.shape())));
        let vectors = self.vectors.iter().map(|(n, a)| (n.clone(), dims(a.shape())));
        cubes.chain(matrices).chain(vectors).collect()
    }
}

pub fn checkpoint(m: &Model) -> Tensors {
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
        let Some(moe) = m.moe.as_ref().filter(|moe| moe.is_sparse(i)) else {
            linear(format!("{l}.mlp.gate_proj"), m.ffn, m.hidden, mlp_bias);
            linear(format!("{l}.mlp.up_proj"), m.ffn, m.hidden, mlp_bias);
            linear(format!("{l}.mlp.down_proj"), m.hidden, m.ffn, mlp_bias);
            continue;
        };
        linear(format!("{l}.mlp.gate"), moe.experts, m.hidden, false);
        for e in 0..moe.experts {
            linear(format!("{l}.mlp.experts.{e}.gate_proj"), moe.inner, m.hidden, false);
            linear(format!("{l}.mlp.experts.{e}.up_proj"), moe.inner, m.hidden, false);
            linear(format!("{l}.mlp.experts.{e}.down_proj"), m.hidden, moe.inner, false);
        }
    }
    let mut norm = |name: String, n: usize| {
        t.vectors.insert(format!("{name}.weight"), Array1::from_shape_simple_fn(n, &mut value));
    };
    norm("model.norm".into(), m.hidden);
    for i in 0..m.layers {
        let l = format!("model.layers.{i}");
        norm(format!("{l}.input_layernorm"), m.hidden);
        norm(format!("{l}.post_attention_layernorm"), m.hidden);
        if m.arch.starts_with("Qwen3") {
            norm(format!("{l}.self_attn.q_norm"), m.head_dim);
            norm(format!("{l}.self_attn.k_norm"), m.head_dim);
        }
    }
    t
}

/// The same checkpoint with all experts of a layer in one tensor, if the model says so.
pub fn stored(m: &Model, hf: &Tensors) -> Tensors {
    let mut t = Tensors { matrices: hf.matrices.clone(), vectors: hf.vectors.clone(), ..Tensors::default() };
    let Some(moe) = m.moe.as_ref().filter(|moe| moe.stacked) else { return t };
    for i in (0..m.layers).filter(|&i| m.is_sparse(i)) {
        let prefix = format!("model.layers.{i}.mlp.experts");
        let (w13, w2) = experts(hf, &prefix, 0..moe.experts, 0..moe.inner);
        t.cubes.insert(format!("{prefix}.gate_up_proj"), w13);
        t.cubes.insert(format!("{prefix}.down_proj"), w2);
        t.matrices.retain(|name, _| !name.starts_with(&format!("{prefix}.")));
    }
    t
}

/// Gate above up, and down, of some experts: some rows of gate and up and as many columns of down.
fn experts(
    hf: &Tensors,
    prefix: &str,
    which: Range<usize>,
    inner: Range<usize>,
) -> (Array3<u16>, Array3<u16>) {
    let weight = |e: usize, name: &str| &hf.matrices[&format!("{prefix}.{e}.{name}_proj.weight")];
    let both = |e: usize| {
        let rows = |name: &str| weight(e, name).slice(s![inner.clone(), ..]);
        concatenate(Axis(0), &[rows("gate"), rows("up")]).unwrap().insert_axis(Axis(0))
    };
    let down = |e: usize| weight(e, "down").slice(s![.., inner.clone()]).to_owned().insert_axis(Axis(0));
    let join = |parts: Vec<Array3<u16>>| {
        let views: Vec<_> = parts.iter().map(|p| p.view()).collect();
        concatenate(Axis(0), &views).unwrap()
    };
    (join(which.clone().map(both).collect()), join(which.map(down).collect()))
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

/// The parameters of a rank by plain slicing, without the scale buffers; `hf` has one tensor per expert.
pub fn sliced(m: &Model, hf: &Tensors, tp: usize, rank: usize, minor: u32) -> Tensors {
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
        let mut rows = vec![(format!("{a}.o_proj"), &q)];
        if let Some(moe) = m.moe.as_ref().filter(|moe| moe.is_sparse(i)) {
            let (w13_name, w2_name, gate, map) = expert_names(minor);
            let (which, inner) = match moe.spread {
                true => (even(moe.experts), 0..moe.inner),
                false => (0..moe.experts, even(moe.inner)),
            };
            let (w13, w2) = experts(hf, &format!("{l}.mlp.experts"), which.clone(), inner);
            t.cubes.insert(format!("{l}.{w13_name}"), w13);
            t.cubes.insert(format!("{l}.{w2_name}"), w2);
            t.matrices.insert(format!("{l}.{gate}"), hf.matrices[&format!("{l}.mlp.gate.weight")].clone());
            if let Some(map) = map.filter(|_| moe.spread && tp > 1) {
                let place = |e| if which.contains(&e) { (e - which.start) as i32 } else { -1 };
                t.maps.insert(format!("{l}.{map}"), (0..moe.experts).map(place).collect());
            }
        } else {
            let gate_up = [(format!("{l}.mlp.gate_proj"), &ffn), (format!("{l}.mlp.up_proj"), &ffn)];
            fuse(hf, &mut t, format!("{l}.mlp.gate_up_proj"), &gate_up);
            rows.push((format!("{l}.mlp.down_proj"), &ffn));
        }
        for (name, cols) in rows {
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
