//! The part of a Hugging Face `config.json` that decides which parameters there are.

use std::collections::BTreeSet;

use restage_geometry::Dtype;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

mod deepseek;

/// A decoder family. The differences that matter here are which projections have biases and whether heads
/// are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// `LlamaForCausalLM`: biases by `attention_bias` and `mlp_bias`.
    Llama,
    /// `MistralForCausalLM`: no biases.
    Mistral,
    /// `Qwen2ForCausalLM`: q, k and v have biases.
    Qwen2,
    /// `Qwen3ForCausalLM`: q and k are normalised per head; q, k and v biases by `attention_bias`.
    Qwen3,
    /// `Qwen3MoeForCausalLM`: as Qwen3, with experts in the layers that the config makes sparse.
    Qwen3Moe,
    /// `DeepseekV3ForCausalLM`: latent attention (MLA), experts after the first layers, shared experts beside them.
    DeepseekV3,
}

impl Architecture {
    /// Every known architecture.
    pub const ALL: &'static [Architecture] = &[
        Architecture::Llama,
        Architecture::Mistral,
        Architecture::Qwen2,
        Architecture::Qwen3,
        Architecture::Qwen3Moe,
        Architecture::DeepseekV3,
    ];

    /// Its name in `architectures`.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Mistral => "MistralForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
            Architecture::Qwen3Moe => "Qwen3MoeForCausalLM",
            Architecture::DeepseekV3 => "DeepseekV3ForCausalLM",
        }
    }
}

/// Sizes and switches of a decoder model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the feed-forward layer.
    pub intermediate_size: i64,
    /// Number of decoder layers.
    pub num_hidden_layers: i64,
    /// Query heads.
    pub num_attention_heads: i64,
    /// Key and value heads.
    pub num_key_value_heads: i64,
    /// Width of a head; with latent attention, of a head of the queries.
    pub head_dim: i64,
    /// Rows of the embedding.
    pub vocab_size: i64,
    /// True when the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Biases of q, k and v.
    pub qkv_bias: bool,
    /// Bias of the attention's output projection.
    pub o_bias: bool,
    /// Biases of the feed-forward layer.
    pub mlp_bias: bool,
    /// Norms of q and k per head.
    pub qk_norm: bool,
    /// Latent attention (MLA) in place of key and value heads.
    pub latent: Option<Latent>,
    /// The experts; `None` where every layer is dense.
    pub experts: Option<Experts>,
    /// Layers after the last one that predict further tokens (`num_nextn_predict_layers`); an engine loads them for
    /// speculative decoding alone.
    pub predict_layers: i64,
    /// Type of the weights as `torch_dtype` or `dtype` names it, if one of them does. A loader takes each tensor's own.
    pub dtype: Option<String>,
}

/// Sizes of latent attention (MLA): queries, and keys with values, pass through narrow projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    /// Width of the queries' latent; `None` where they are projected at once.
    pub q_rank: Option<i64>,
    /// Width of the latent of keys and values.
    pub kv_rank: i64,
    /// Width of the part of a head that has no position.
    pub nope: i64,
    /// Width of the part of a head that has one; one such key is common to all heads.
    pub rope: i64,
    /// Width of a head of the values.
    pub value: i64,
}

/// The experts of a model, and the layers that have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Experts {
    /// Experts per sparse layer; at least 1.
    pub count: i64,
    /// Width of one expert's feed-forward layer.
    pub intermediate_size: i64,
    /// Every so many layers one is sparse (`decoder_sparse_step`); at least 1.
    pub step: i64,
    /// Layers that are dense all the same (`mlp_only_layers`).
    pub dense_layers: BTreeSet<i64>,
    /// So many of the first layers are dense (`first_k_dense_replace`).
    pub dense_first: i64,
    /// Width of the experts that every token passes, side by side in one feed-forward layer; 0 where there are none.
    pub shared_size: i64,
    /// Whether the gate has a bias per expert that only chooses among them (`e_score_correction_bias`, f32).
    pub gate_bias: bool,
}

impl Experts {
    /// Whether a layer, counted from 0, has experts instead of one feed-forward layer.
    pub fn in_layer(&self, layer: i64) -> bool {
        layer >= self.dense_first && (layer + 1) % self.step == 0 && !self.dense_layers.contains(&layer)
    }
}

impl ModelConfig {
    /// Whether a layer, counted from 0, has experts instead of one feed-forward layer.
    pub fn is_sparse(&self, layer: i64) -> bool {
        self.experts.as_ref().is_some_and(|e| e.in_layer(layer))
    }

    /// Whether a layer, counted from 0, comes after the last one, to predict further tokens.
    pub fn predicts_further(&self, layer: i64) -> bool {
        (self.num_hidden_layers..self.num_hidden_layers + self.predict_layers).contains(&layer)
    }

    /// Number of layers that have experts.
    pub fn sparse_layers(&self) -> i64 {
        let Some(experts) = &self.experts else { return 0 };
        let (first, layers) = (experts.dense_first.min(self.num_hidden_layers), self.num_hidden_layers);
        let on_step = |layer: &&i64| (**layer + 1) % experts.step == 0;
        let kept_dense = experts.dense_layers.range(first..layers).filter(on_step).count();
        layers / experts.step - first / experts.step - kept_dense as i64
    }

    /// The type of the weights, bf16 where the config names none.
    ///
    /// # Errors
    /// [`ConfigError::Dtype`] for a type that no plain weights have.
    pub fn weight_dtype(&self) -> Result<Dtype, ConfigError> {
        match self.dtype.as_deref() {
            None | Some("bfloat16") => Ok(Dtype::BF16),
            Some("float16") => Ok(Dtype::F16),
            Some("float32") => Ok(Dtype::F32),
            Some(found) => Err(ConfigError::Dtype { found: found.to_owned() }),
        }
    }
}

/// A `config.json` that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not JSON, or a field is missing or of the wrong type.
    #[error("config.json: {0}")]
    Malformed(String),
    /// An architecture that is not known, or none.
    #[error("config.json: unknown architecture {found:?}; known are {}", known())]
    Architecture {
        /// What `architectures` holds.
        found: Vec<String>,
    },
    /// A size that is not positive, or two that contradict each other.
    #[error("config.json: {0}")]
    Size(String),
    /// Something that the loader of the family does not do.
    #[error("config.json: {field} is {found}; {architecture} is loaded with {expected} only")]
    Unsupported {
        /// The architecture's name.
        architecture: &'static str,
        /// The field.
        field: &'static str,
        /// What it holds.
        found: String,
        /// What it may hold.
        expected: &'static str,
    },
    /// A type of weights that is not known.
    #[error("config.json: weights of type {found:?}; known are bfloat16, float16 and float32")]
    Dtype {
        /// The type.
        found: String,
    },
    /// A quantised checkpoint: its tensors are no plain weights.
    #[error("config.json: quantization_config (quant_method {method:?}) is not supported")]
    Quantized {
        /// The `quant_method`.
        method: String,
    },
}

fn known() -> String {
    Architecture::ALL.iter().map(|a| a.name()).collect::<Vec<_>>().join(", ")
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    architectures: Vec<String>,
    quantization_config: Option<Value>,
    torch_dtype: Option<Value>,
    dtype: Option<Value>,
}

#[derive(Deserialize)]
struct Decoder {
    hidden_size: i64,
    intermediate_size: i64,
    num_hidden_layers: i64,
    num_attention_heads: i64,
    num_key_value_heads: Option<i64>,
    head_dim: Option<i64>,
    vocab_size: i64,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
}

/// What a model with experts adds; the defaults are those of transformers' `Qwen3MoeConfig`.
#[derive(Deserialize)]
struct Sparse {
    num_experts: i64,
    moe_intermediate_size: i64,
    decoder_sparse_step: Option<i64>,
    mlp_only_layers: Option<BTreeSet<i64>>,
}

/// The largest size of a config: it keeps every product of two sizes well inside of 63 bits.
const LARGEST: i64 = 1 << 28;

/// All experts of a layer are one parameter, in which gate and up lie side by side: it must be countable.
fn fit(name: &str, count: i64, inner: i64, hidden_size: i64) -> Result<(), ConfigError> {
    match count.checked_mul(2 * inner).and_then(|n| n.checked_mul(hidden_size)) {
        Some(_) => Ok(()),
        None => Err(ConfigError::Size(format!(
            "{name} {count} x 2 x moe_intermediate_size {inner} x hidden_size {hidden_size} does not fit \
             in 63 bits"
        ))),
    }
}

/// Reads the experts; none where their number is 0, which makes every layer dense.
fn experts(json: &[u8], hidden_size: i64) -> Result<Option<Experts>, ConfigError> {
    let sparse: Sparse = serde_json::from_slice(json).map_err(|e| ConfigError::Malformed(e.to_string()))?;
    let step = sparse.decoder_sparse_step.unwrap_or(1);
    for (name, value, least) in [
        ("num_experts", sparse.num_experts, 0),
        ("moe_intermediate_size", sparse.moe_intermediate_size, 1),
        ("decoder_sparse_step", step, 1),
    ] {
        if !(least..=LARGEST).contains(&value) {
            return Err(ConfigError::Size(format!("{name} is {value}, expected {least} to 2^28")));
        }
    }
    let (count, inner) = (sparse.num_experts, sparse.moe_intermediate_size);
    fit("num_experts", count, inner, hidden_size)?;
    let dense_layers = sparse.mlp_only_layers.unwrap_or_default();
    Ok((count > 0).then_some(Experts {
        count,
        intermediate_size: inner,
        step,
        dense_layers,
        dense_first: 0,
        shared_size: 0,
        gate_bias: false,
    }))
}

impl ModelConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`] with the field, what was expected and what was found.
    pub fn from_json(json: &[u8]) -> Result<Self, ConfigError> {
        let malformed = |e: serde_json::Error| ConfigError::Malformed(e.to_string());
        let raw: Raw = serde_json::from_slice(json).map_err(malformed)?;
        let architecture = match &raw.architectures[..] {
            [name] => Architecture::ALL.iter().copied().find(|a| a.name() == name),
            _ => None,
        };
        let architecture =
            architecture.ok_or(ConfigError::Architecture { found: raw.architectures.clone() })?;
        if let Some(q) = raw.quantization_config.filter(|q| !q.is_null()) {
            let method = q.get("quant_method").and_then(Value::as_str).unwrap_or("unknown").to_owned();
            return Err(ConfigError::Quantized { method });
        }
        let dtype = raw.dtype.or(raw.torch_dtype).and_then(|d| d.as_str().map(str::to_owned));
        if architecture == Architecture::DeepseekV3 {
            return deepseek::config(json, dtype);
        }
        let d: Decoder = serde_json::from_slice(json).map_err(malformed)?;
        for (name, value) in [
            ("hidden_size", d.hidden_size),
            ("intermediate_size", d.intermediate_size),
            ("num_hidden_layers", d.num_hidden_layers),
            ("num_attention_heads", d.num_attention_heads),
            ("vocab_size", d.vocab_size),
            ("num_key_value_heads", d.num_key_value_heads.unwrap_or(1)),
            ("head_dim", d.head_dim.unwrap_or(1)),
        ] {
            if !(1..=LARGEST).contains(&value) {
                return Err(ConfigError::Size(format!("{name} is {value}, expected 1 to 2^28")));
            }
        }
        let kv_heads = d.num_key_value_heads.unwrap_or(d.num_attention_heads);
        if d.num_attention_heads % kv_heads != 0 {
            return Err(ConfigError::Size(format!(
                "num_attention_heads {} is no multiple of num_key_value_heads {kv_heads}",
                d.num_attention_heads
            )));
        }
        let head_dim = match d.head_dim {
            Some(head_dim) => head_dim,
            None if d.hidden_size % d.num_attention_heads == 0 => d.hidden_size / d.num_attention_heads,
            None => {
                return Err(ConfigError::Size(format!(
                    "no head_dim, and hidden_size {} is no multiple of num_attention_heads {}",
                    d.hidden_size, d.num_attention_heads
                )));
            }
        };
        let attention_bias = d.attention_bias.unwrap_or(false);
        // Which biases each family has: the model classes of transformers.
        let (qkv_bias, o_bias, mlp_bias) = match architecture {
            Architecture::Llama => (attention_bias, attention_bias, d.mlp_bias.unwrap_or(false)),
            Architecture::Mistral => (false, false, false),
            Architecture::Qwen2 => (true, false, false),
            Architecture::Qwen3 | Architecture::Qwen3Moe => (attention_bias, false, false),
            Architecture::DeepseekV3 => (false, false, false),
        };
        let experts = match architecture {
            Architecture::Qwen3Moe => experts(json, d.hidden_size)?,
            _ => None,
        };
        Ok(ModelConfig {
            architecture,
            hidden_size: d.hidden_size,
            intermediate_size: d.intermediate_size,
            num_hidden_layers: d.num_hidden_layers,
            num_attention_heads: d.num_attention_heads,
            num_key_value_heads: kv_heads,
            head_dim,
            vocab_size: d.vocab_size,
            tie_word_embeddings: d.tie_word_embeddings.unwrap_or(false),
            qkv_bias,
            o_bias,
            mlp_bias,
            qk_norm: matches!(architecture, Architecture::Qwen3 | Architecture::Qwen3Moe),
            latent: None,
            experts,
            predict_layers: 0,
            dtype,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":96,
        "num_hidden_layers":2,"num_attention_heads":8,"num_key_value_heads":2,"vocab_size":130}"#;

    #[test]
    fn defaults_are_those_of_the_family() {
        let c = ModelConfig::from_json(LLAMA.as_bytes()).unwrap();
        assert_eq!((c.head_dim, c.tie_word_embeddings, c.qkv_bias, c.qk_norm), (8, false, false, false));
        let qwen2 = LLAMA.replace("Llama", "Qwen2");
        assert!(ModelConfig::from_json(qwen2.as_bytes()).unwrap().qkv_bias);
        let qwen3 =
            LLAMA.replace("Llama", "Qwen3").replace("\"vocab_size\"", "\"head_dim\":16,\"vocab_size\"");
        let c = ModelConfig::from_json(qwen3.as_bytes()).unwrap();
        assert_eq!((c.head_dim, c.qk_norm), (16, true));
    }

    const MOE: &str = r#"{"architectures":["Qwen3MoeForCausalLM"],"hidden_size":64,"intermediate_size":96,
        "num_hidden_layers":7,"num_attention_heads":8,"num_key_value_heads":2,"vocab_size":130,
        "num_experts":4,"moe_intermediate_size":32,"decoder_sparse_step":2,"mlp_only_layers":[3,4,9]}"#;

    #[test]
    fn sparse_layers_are_every_step_but_those_kept_dense() {
        let sparse = |json: &str| {
            let c = ModelConfig::from_json(json.as_bytes()).unwrap();
            let layers: Vec<i64> = (0..c.num_hidden_layers).filter(|&i| c.is_sparse(i)).collect();
            assert_eq!(c.sparse_layers(), layers.len() as i64);
            layers
        };
        assert_eq!(sparse(MOE), [1, 5]);
        assert_eq!(sparse(&MOE.replace(r#","decoder_sparse_step":2"#, "")), [0, 1, 2, 5, 6]);
        assert_eq!(sparse(&MOE.replace(r#","mlp_only_layers":[3,4,9]"#, "")), [1, 3, 5]);
        assert!(sparse(&MOE.replace("\"num_experts\":4", "\"num_experts\":0")).is_empty());
    }

    #[test]
    fn experts_that_cannot_be_used_are_named() {
        for (from, to, name) in [
            ("\"num_experts\":4,", "", "num_experts"),
            ("\"num_experts\":4", "\"num_experts\":-4", "num_experts is -4"),
            ("\"moe_intermediate_size\":32", "\"moe_intermediate_size\":0", "moe_intermediate_size is 0"),
            ("\"decoder_sparse_step\":2", "\"decoder_sparse_step\":0", "decoder_sparse_step is 0"),
            ("[3,4,9]", "[\"3\"]", "string"),
        ] {
            let json = MOE.replacen(from, to, 1);
            let error = ModelConfig::from_json(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        let large = MOE.replace("\"num_experts\":4", "\"num_experts\":268435456");
        let large = large.replace("\"moe_intermediate_size\":32", "\"moe_intermediate_size\":268435456");
        let error = ModelConfig::from_json(large.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("63 bits"), "{error}");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (from, to, name) in [
            ("LlamaForCausalLM", "GPT2LMHeadModel", "known are LlamaForCausalLM, MistralForCausalLM"),
            ("\"hidden_size\":64,", "", "hidden_size"),
            ("\"hidden_size\":64", "\"hidden_size\":-64", "hidden_size is -64"),
            ("\"hidden_size\":64", "\"hidden_size\":\"64\"", "string"),
            ("\"num_key_value_heads\":2", "\"num_key_value_heads\":3", "num_key_value_heads 3"),
            ("\"hidden_size\":64", "\"hidden_size\":65", "no head_dim"),
            ("{", "{\"quantization_config\":{\"quant_method\":\"awq\"},", "awq"),
            ("}", "", "config.json"),
        ] {
            let error =
                ModelConfig::from_json(LLAMA.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
