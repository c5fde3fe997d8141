//! The part of a Hugging Face `config.json` that decides which parameters there are.

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

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
}

impl Architecture {
    /// Every known architecture.
    pub const ALL: &'static [Architecture] =
        &[Architecture::Llama, Architecture::Mistral, Architecture::Qwen2, Architecture::Qwen3];

    /// Its name in `architectures`.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Mistral => "MistralForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
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
    /// Width of a head.
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
            // The upper end keeps every product of sizes well inside of 63 bits.
            if !(1..=1 << 28).contains(&value) {
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
            Architecture::Qwen3 => (attention_bias, false, false),
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
            qk_norm: architecture == Architecture::Qwen3,
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
