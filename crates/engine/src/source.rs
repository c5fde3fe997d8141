//! A checkpoint as a model: its configuration, what its tensors are called, and what it says of its tokenizer.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use restage_checkpoint::gguf::{Array, Gguf, Value};
use restage_checkpoint::{Checkpoint, CheckpointError};
use restage_model::{Architecture, ConfigError, ModelConfig, Naming, TensorTable};
use restage_tokenizer::{GgufVocab, Tokenizer, TokenizerError};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::numerics::{Numerics, NumericsError};

/// Longest configuration or tokenizer file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A model that can be opened, as far as its headers tell.
#[derive(Debug, Clone)]
pub struct Source {
    /// The files and their tensors.
    pub checkpoint: Checkpoint,
    /// What decides shapes.
    pub config: ModelConfig,
    /// What decides numbers.
    pub numerics: Numerics,
    /// What tensors are called.
    pub naming: Naming,
    /// The tensors.
    pub table: TensorTable,
    /// The tokenizer; none where a directory brings no `tokenizer.json`.
    pub tokenizer: Option<Tokenizer>,
    /// Tokens that end a text, ascending.
    pub eos: Vec<u32>,
}

/// A model that cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file beside the weights.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The configuration.
    #[error("{}: {error}", path.display())]
    Config {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        error: ConfigError,
    },
    /// The configuration's numbers.
    #[error("{}: {error}", path.display())]
    Numerics {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        error: NumericsError,
    },
    /// The tokenizer.
    #[error("{}: {error}", path.display())]
    Tokenizer {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        error: TokenizerError,
    },
    /// A GGUF file of a family that is not known.
    #[error("{}: general.architecture is {found:?}; known are llama, qwen2 and qwen3", path.display())]
    Architecture {
        /// The file.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// Metadata that is needed and is not there, or of the wrong type or size.
    #[error("{}: metadata {key:?} is missing, or no number that makes sense", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// One of several files that a model was split into.
    #[error("{}: split.count is {found}; a model is read from one GGUF file, which `llama-gguf-split --merge` makes", path.display())]
    Split {
        /// The file.
        path: PathBuf,
        /// Number of files.
        found: u64,
    },
    /// Metadata of a tokenizer that has another type than it should.
    #[error("{}: metadata {key:?} is no {expected}", path.display())]
    MetadataType {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
}

impl Source {
    /// Opens a Hugging Face directory or a GGUF file; headers are read, and no tensor.
    ///
    /// # Errors
    /// [`SourceError`]: no checkpoint, a family or numbers that are not computed, a tokenizer that is not known.
    pub fn open(path: &Path) -> Result<Source, SourceError> {
        let checkpoint = Checkpoint::open(path)?;
        let model = match checkpoint.gguf() {
            Some(gguf) => from_gguf(path, &checkpoint, gguf)?,
            None => from_directory(&checkpoint)?,
        };
        let table = checkpoint.tensors().map(|t| (t.name.clone(), (t.dtype, t.shape.clone()))).collect();
        let Told { config, numerics, naming, tokenizer, eos } = model;
        Ok(Source { checkpoint, config, numerics, naming, table, tokenizer, eos })
    }

    /// A digest of the configuration and of every tensor's name, type, shape and place: equal for all stages of a
    /// pipeline that were given the same model. The tensors' bytes are not in it, since no stage reads all of them.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(format!("{:?} {:?}", self.config, self.numerics));
        for file in self.checkpoint.files() {
            hash.update(format!("\n{} {}", file.name, file.length));
        }
        for t in self.checkpoint.tensors() {
            hash.update(format!("\n{} {} {:?} {} {}", t.name, t.dtype, t.shape, t.file, t.addr));
        }
        hash.finalize().iter().take(16).fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// What a checkpoint tells of its model besides its tensors.
struct Told {
    config: ModelConfig,
    numerics: Numerics,
    naming: Naming,
    tokenizer: Option<Tokenizer>,
    eos: Vec<u32>,
}

fn from_directory(checkpoint: &Checkpoint) -> Result<Told, SourceError> {
    let dir = checkpoint.dir().to_owned();
    let path = dir.join("config.json");
    let json = read(&path)?.ok_or_else(|| SourceError::Io {
        path: path.clone(),
        error: std::io::Error::new(std::io::ErrorKind::NotFound, "the model's config is needed"),
    })?;
    let config =
        ModelConfig::from_json(&json).map_err(|error| SourceError::Config { path: dir.clone(), error })?;
    let numerics = Numerics::from_json(&json, config.architecture)
        .map_err(|error| SourceError::Numerics { path: dir.clone(), error })?;
    let generation = read(&dir.join("generation_config.json"))?;
    let [said, generated] = [Some(json), generation]
        .map(|json| json.and_then(|json| serde_json::from_slice::<Json>(&json).ok()).unwrap_or_default());
    let number = |v: &Json| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let ids = |v: &Json| match &v["eos_token_id"] {
        Json::Array(ids) => ids.iter().filter_map(number).collect(),
        id => number(id).into_iter().collect::<Vec<u32>>(),
    };
    let mut eos = [ids(&said), ids(&generated)].concat();
    eos.sort_unstable();
    eos.dedup();
    let file = dir.join("tokenizer.json");
    let tokenizer = match read(&file)? {
        None => None,
        Some(json) => {
            let bos = number(&said["bos_token_id"]);
            let made = Tokenizer::from_json(&json, bos);
            let mut made = made.map_err(|error| SourceError::Tokenizer { path: file, error })?;
            made.add_eos(eos.iter().copied());
            Some(made)
        }
    };
    Ok(Told { config, numerics, naming: Naming::HuggingFace, tokenizer, eos })
}

/// A file of limited length, if it is there.
fn read(path: &Path) -> Result<Option<Vec<u8>>, SourceError> {
    let io = |error| SourceError::Io { path: path.to_owned(), error };
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io(e)),
        Ok(meta) if meta.len() > MAX_FILE_BYTES => {
            let what = format!("{} bytes, expected at most {MAX_FILE_BYTES}", meta.len());
            Err(io(std::io::Error::new(std::io::ErrorKind::InvalidData, what)))
        }
        Ok(_) => std::fs::read(path).map(Some).map_err(io),
    }
}

fn from_gguf(path: &Path, checkpoint: &Checkpoint, gguf: &Gguf) -> Result<Told, SourceError> {
    let metadata = gguf.metadata();
    if let Some(found) = metadata.get("split.count").and_then(Value::as_u64).filter(|&files| files > 1) {
        return Err(SourceError::Split { path: path.to_owned(), found });
    }
    let found = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let (architecture, paired) = match found {
        "llama" => (Architecture::Llama, true),
        "qwen2" => (Architecture::Qwen2, false),
        "qwen3" => (Architecture::Qwen3, false),
        other => {
            let found = other.to_owned();
            return Err(SourceError::Architecture { path: path.to_owned(), found });
        }
    };
    let naming = Naming::Gguf { paired };
    let missing = |key: String| SourceError::Metadata { path: path.to_owned(), key };
    let optional = |key: &str| {
        let key = format!("{found}.{key}");
        match metadata.get(&key) {
            None => Ok(None),
            Some(v) => {
                let n = v.as_u64().and_then(|n| i64::try_from(n).ok()).filter(|n| (1..=1 << 28).contains(n));
                n.map(Some).ok_or_else(|| missing(key))
            }
        }
    };
    let need = |key: &str| optional(key)?.ok_or_else(|| missing(format!("{found}.{key}")));
    if let Some(Value::U32(1..)) = metadata.get(&format!("{found}.expert_count")) {
        let found = format!("{found} with experts");
        return Err(SourceError::Architecture { path: path.to_owned(), found });
    }
    let (hidden_size, heads) = (need("embedding_length")?, need("attention.head_count")?);
    let head_dim = match optional("attention.key_length")? {
        Some(width) => width,
        None if hidden_size % heads == 0 => hidden_size / heads,
        None => return Err(missing(format!("{found}.attention.key_length"))),
    };
    let kv_heads = optional("attention.head_count_kv")?.unwrap_or(heads);
    if heads % kv_heads != 0 || head_dim % 2 != 0 {
        return Err(missing(format!("{found}.attention.head_count_kv")));
    }
    let has = |name: &str| checkpoint.tensor(name, None).is_some();
    let embedding = checkpoint.tensor("token_embd.weight", None).and_then(|t| t.shape.first());
    let config = ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: need("feed_forward_length")?,
        num_hidden_layers: need("block_count")?,
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        head_dim,
        vocab_size: *embedding.ok_or_else(|| missing("token_embd.weight".to_owned()))?,
        tie_word_embeddings: !has("output.weight"),
        qkv_bias: has("blk.0.attn_q.bias"),
        o_bias: has("blk.0.attn_output.bias"),
        mlp_bias: has("blk.0.ffn_gate.bias"),
        qk_norm: has("blk.0.attn_q_norm.weight"),
        latent: None,
        experts: None,
        predict_layers: 0,
        dtype: None,
    };
    let numerics = Numerics::from_gguf(metadata, found, head_dim)
        .map_err(|error| SourceError::Numerics { path: path.to_owned(), error })?;
    let tokenizer = Tokenizer::from_gguf(&vocabulary(path, gguf)?)
        .map_err(|error| SourceError::Tokenizer { path: path.to_owned(), error })?;
    let eos = tokenizer.eos().to_vec();
    Ok(Told { config, numerics, naming, tokenizer: Some(tokenizer), eos })
}

/// The tokenizer's part of a file's metadata. What is there and has another type is refused: without its types of tokens,
/// say, a vocabulary would take control tokens for text.
fn vocabulary<'a>(path: &Path, gguf: &'a Gguf) -> Result<GgufVocab<'a>, SourceError> {
    let metadata = Metadata { path, gguf };
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    let strings = |v: &'a Value| v.as_strings().map(|s| s.iter().collect::<Vec<_>>());
    let types = |v: &'a Value| match v {
        Value::Array(Array::I32(types)) => Some(&types[..]),
        _ => None,
    };
    let scores = |v: &'a Value| match v {
        Value::Array(Array::F32(scores)) => Some(&scores[..]),
        _ => None,
    };
    Ok(GgufVocab {
        model: metadata.get("model", "string", Value::as_str)?.unwrap_or_default(),
        pre: metadata.get("pre", "string", Value::as_str)?,
        tokens: metadata.get("tokens", "array of strings", strings)?.unwrap_or_default(),
        types: metadata.get("token_type", "array of i32", types)?,
        scores: metadata.get("scores", "array of f32", scores)?,
        merges: metadata.get("merges", "array of strings", strings)?,
        bos: metadata.get("bos_token_id", "u32", id)?,
        eos: metadata.get("eos_token_id", "u32", id)?,
        eot: metadata.get("eot_token_id", "u32", id)?,
        unknown: metadata.get("unknown_token_id", "u32", id)?,
        add_bos: metadata.get("add_bos_token", "bool", Value::as_bool)?,
        add_space_prefix: metadata.get("add_space_prefix", "bool", Value::as_bool)?,
    })
}

/// What a file says under `tokenizer.ggml.`.
struct Metadata<'p, 'a> {
    path: &'p Path,
    gguf: &'a Gguf,
}

impl<'a> Metadata<'_, 'a> {
    fn get<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, SourceError> {
        let key = format!("tokenizer.ggml.{key}");
        let Some(value) = self.gguf.metadata().get(&key) else { return Ok(None) };
        let path = self.path.to_owned();
        read(value).map(Some).ok_or(SourceError::MetadataType { path, key, expected })
    }
}
