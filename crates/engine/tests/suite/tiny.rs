//! Small models of each family, against a plain forward in numpy (`data/make_blocks.py`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use restage_engine::{Compute, KvDtype};
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;
use serde_json::Value;

use crate::gguf::{Gguf, f32, text, texts, u32};
use crate::support::Pipeline;

#[derive(Deserialize)]
struct Reference {
    tokens: Vec<u64>,
    families: BTreeMap<String, Family>,
}

#[derive(Deserialize)]
struct Family {
    config: Value,
    tensors: BTreeMap<String, Vec<usize>>,
    /// What divides the rotary frequencies, where they are scaled.
    rope_factors: Option<Vec<f32>>,
    blocks: Vec<Vec<f32>>,
    logits: Vec<f32>,
}

impl Family {
    /// The weights of the generator.
    fn weights(&self) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
        let mut state = 1u64;
        let mut next = |name: &str| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let v = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            if name.contains("norm") { 1.0 + 0.125 * v } else { 0.25 * v }
        };
        let mut weights = BTreeMap::new();
        for (name, shape) in &self.tensors {
            let values = (0..shape.iter().product()).map(|_| next(name)).collect();
            weights.insert(name.clone(), (shape.clone(), values));
        }
        weights
    }

    /// Writes the model as a directory, and gives its path.
    fn safetensors(&self, dir: &Path) -> PathBuf {
        fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        let bytes: BTreeMap<String, (Vec<usize>, Vec<u8>)> = self
            .weights()
            .into_iter()
            .map(|(name, (shape, v))| (name, (shape, v.iter().flat_map(|v| v.to_le_bytes()).collect())))
            .collect();
        let views = bytes.iter().map(|(name, (shape, values))| {
            (name, TensorView::new(Dtype::F32, shape.clone(), values).unwrap())
        });
        fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        dir.to_owned()
    }

    /// Writes the model as llama.cpp's converter would: Llama and Mistral are one architecture, with q and k in pairs, and
    /// a scaling is factors.
    fn gguf(&self, name: &str, dir: &Path) -> PathBuf {
        let architecture = if name == "mistral" { "llama" } else { name };
        let number = |field: &str| u32(self.config[field].as_u64().unwrap() as u32);
        let float = |field: &str| f32(self.config[field].as_f64().unwrap() as f32);
        let vocab = self.config["vocab_size"].as_u64().unwrap();
        let mut gguf = Gguf::default();
        let mut put = |key: &str, value| drop(gguf.metadata.insert(key.to_owned(), value));
        put("general.architecture", text(architecture));
        for (key, value) in [
            ("block_count", number("num_hidden_layers")),
            ("context_length", number("max_position_embeddings")),
            ("embedding_length", number("hidden_size")),
            ("feed_forward_length", number("intermediate_size")),
            ("attention.head_count", number("num_attention_heads")),
            ("attention.head_count_kv", number("num_key_value_heads")),
            ("attention.layer_norm_rms_epsilon", float("rms_norm_eps")),
            ("rope.freq_base", float("rope_theta")),
        ] {
            put(&format!("{architecture}.{key}"), value);
        }
        if let Some(width) = self.config["head_dim"].as_u64() {
            put(&format!("{architecture}.attention.key_length"), u32(width as u32));
        }
        put("tokenizer.ggml.model", text("gpt2"));
        put("tokenizer.ggml.pre", text("gpt-2"));
        put("tokenizer.ggml.tokens", texts(&(0..vocab).map(|id| format!("t{id}")).collect::<Vec<_>>()));
        put("tokenizer.ggml.merges", texts::<&str>(&[]));
        let heads = ["num_attention_heads", "num_key_value_heads"];
        let heads = heads.map(|field| self.config[field].as_u64().unwrap() as usize);
        let weights = self.weights().into_iter().map(|(name, (shape, values))| (name, shape, values));
        gguf.put(weights, (architecture == "llama").then_some(heads));
        if let Some(factors) = &self.rope_factors {
            let bytes = factors.iter().flat_map(|f| f.to_le_bytes()).collect();
            gguf.tensors.insert("rope_freqs.weight".to_owned(), (0, vec![factors.len() as u64], bytes));
        }
        let path = dir.join("model.gguf");
        fs::write(&path, gguf.bytes()).unwrap();
        path
    }
}

fn furthest(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f32::max)
}

#[test]
fn every_block_of_every_family_is_that_of_a_plain_forward() {
    let reference: Reference = serde_json::from_str(include_str!("../data/blocks.json")).unwrap();
    assert_eq!(reference.families.len(), 4);
    for (name, family) in &reference.families {
        let dir = tempfile::tempdir().unwrap();
        for path in [family.safetensors(dir.path()), family.gguf(name, dir.path())] {
            let what = format!("{name}, {}", path.display());
            check(&what, &path, family, &reference.tokens);
        }
    }
}

fn check(what: &str, path: &Path, family: &Family, tokens: &[u64]) {
    let open = || Pipeline::open(path, 3, Compute::F32, KvDtype::F32, |x| x);
    let found = open().hidden(tokens);
    for (b, (found, expected)) in found.iter().zip(&family.blocks).enumerate() {
        let furthest = furthest(found, expected);
        assert!(furthest < 1e-4, "{what}, block {b}: {furthest}");
    }
    let logits = open().logits(tokens);
    assert!(furthest(&logits, &family.logits) < 1e-4, "{what}: logits");
    // Token by token is the same.
    let mut one_by_one = open();
    let last = tokens.iter().map(|token| one_by_one.logits(&[*token])).last().unwrap();
    assert_eq!(last, logits, "{what}");
}
