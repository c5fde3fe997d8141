//! A small random Llama in a Hugging Face directory, for a worker with a model.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};

/// Tokens of the tokenizer: a byte each, then `<s>` and `</s>`. The head is wider.
pub const TOKENS: u64 = 258;
/// Rows of the embedding and of the head.
const VOCAB: usize = 272;
pub const BLOCKS: u64 = 4;

/// What a small model may differ in.
#[derive(Clone, Copy)]
pub struct Small {
    pub blocks: u64,
    pub hidden: usize,
    /// Weights of the feed-forward layer's last projection are multiplied by it.
    pub loud: f32,
    pub seed: u64,
}

impl Default for Small {
    fn default() -> Self {
        Small { blocks: BLOCKS, hidden: 32, loud: 1.0, seed: 1 }
    }
}

/// The config of a small model.
pub fn config(small: Small) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": small.hidden, "intermediate_size": 48,
        "num_hidden_layers": small.blocks, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "vocab_size": VOCAB, "tie_word_embeddings": false, "max_position_embeddings": 600,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "float32",
        "bos_token_id": 256, "eos_token_id": 257,
    })
}

/// Shape and elements of each tensor.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The tensors of a model, under Hugging Face's names.
pub fn tensors(small: Small) -> Tensors {
    let mut random = Random(small.seed);
    let mut tensors = Tensors::new();
    let mut add = |name: String, shape: &[usize], scale: f32, offset: f32| {
        let values = (0..shape.iter().product()).map(|_| offset + scale * random.next()).collect();
        tensors.insert(name, (shape.to_vec(), values));
    };
    let h = small.hidden;
    add("model.embed_tokens.weight".into(), &[VOCAB, h], 1.0, 0.0);
    add("model.norm.weight".into(), &[h], 0.1, 1.0);
    for b in 0..small.blocks {
        let name = |end: &str| format!("model.layers.{b}.{end}.weight");
        add(name("input_layernorm"), &[h], 0.1, 1.0);
        add(name("post_attention_layernorm"), &[h], 0.1, 1.0);
        for (end, rows, columns, scale) in [
            ("self_attn.q_proj", 32, h, 0.3),
            ("self_attn.k_proj", 16, h, 0.3),
            ("self_attn.v_proj", 16, h, 0.3),
            ("self_attn.o_proj", h, 32, 0.3),
            ("mlp.gate_proj", 48, h, 0.3),
            ("mlp.up_proj", 48, h, 0.3),
            ("mlp.down_proj", h, 48, 0.3 * small.loud),
        ] {
            add(name(end), &[rows, columns], scale, 0.0);
        }
    }
    add("lm_head.weight".into(), &[VOCAB, h], 1.0, 0.0);
    // The rows of padding are the loudest: one of them would win nearly always.
    let (_, head) = tensors.get_mut("lm_head.weight").unwrap();
    head[TOKENS as usize * h..].iter_mut().for_each(|value| *value *= 100.0);
    tensors
}

/// The bytes of elements in a file.
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Writes a model, and gives the bytes of its tensors.
pub fn write(dir: &Path, small: Small) -> u64 {
    fs::write(dir.join("config.json"), config(small).to_string()).unwrap();
    fs::write(dir.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    let tensors = tensors(small).into_iter().map(|(name, (shape, v))| (name, (shape, bytes_of(&v))));
    let tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = tensors.collect();
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    tensors.values().map(|(_, bytes)| bytes.len() as u64).sum()
}

/// Numbers from -1 to 1, the same for a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// How GPT-2 writes each byte.
pub fn byte_tokens() -> Vec<String> {
    let printed = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut moved = 0x100;
    let written = |byte| {
        let c = if printed(byte) {
            byte
        } else {
            moved += 1;
            moved - 1
        };
        char::from_u32(c).unwrap().to_string()
    };
    (0..256u32).map(written).collect()
}

/// A byte-level tokenizer without merges.
fn tokenizer() -> Value {
    let vocab: Map<String, Value> =
        (0..).zip(byte_tokens()).map(|(id, text)| (text, Value::from(id))).collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(256, "<s>"), special(257, "</s>")],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                  "merges": []},
    })
}
