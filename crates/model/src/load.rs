//! The loader: Hugging Face tensors to the parameters of one tensor-parallel rank, as vLLM holds them.

use std::collections::BTreeSet;

use restage_geometry::{Capture, CaptureError, Captured, Dtype, LazyTensor};
use thiserror::Error;

use crate::TensorTable;
use crate::config::ModelConfig;
use crate::decoder::{Cut, EMBED, HEAD, NORM, Problem, ProblemList, Rank, SCALES, Shares, layer};
use crate::engine::{Engine, EngineError};

/// Suffixes of tensors that old checkpoints carry and every loader skips: they are computed from the config.
const SKIPPED: [&str; 3] = ["rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"];

/// What a loader did, and what can only be decided by the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The copies and constants.
    pub captured: Captured,
    /// A pair of parameters that the engine ties again where their bytes are equal on this rank.
    pub tie: Option<Tie>,
    /// Source tensors that are left out on purpose, sorted.
    pub skipped: Vec<String>,
}

/// Two parameters that become one where their bytes are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tie {
    /// The name that stays.
    pub keep: &'static str,
    /// The name that goes.
    pub drop: &'static str,
}

/// A model that cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Sizes that do not divide, or tensors that are missing, misshapen or unexpected.
    #[error("{0}")]
    Problems(ProblemList),
    /// The engine's version decides, and it is not known.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The loader did something impossible.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

impl From<ProblemList> for LoadError {
    fn from(problems: ProblemList) -> Self {
        LoadError::Problems(problems)
    }
}

/// Captures what the loader of a rank copies where.
///
/// Parameters have the dtype of their tensors. Every tensor of `sources` must have a place in the model; the
/// ones that every loader skips are listed in [`Loaded::skipped`].
///
/// # Errors
/// [`LoadError`] with everything that is wrong: sizes that do not divide by how much, tensors that are
/// missing or contradict the config, tensors without a place.
pub fn load(
    config: &ModelConfig,
    engine: Engine,
    rank: Rank,
    sources: &TensorTable,
) -> Result<Loaded, LoadError> {
    let shares = Shares::new(config, rank)?;
    let capture = Capture::new();
    let mut loader = Loader {
        capture: &capture,
        config,
        shares: &shares,
        sources,
        used: BTreeSet::new(),
        problems: Vec::new(),
    };
    let scales = engine.scale_buffers()?;
    for i in 0..config.num_hidden_layers {
        loader.decoder_layer(&layer(i), scales)?;
    }
    loader.whole(NORM, &[config.hidden_size])?;
    let tie = loader.embeddings(engine)?;
    let Loader { used, mut problems, .. } = loader;
    let mut skipped = Vec::new();
    for name in sources.keys().filter(|name| !used.contains(name.as_str())) {
        match SKIPPED.iter().any(|s| name.ends_with(s)) {
            true => skipped.push(name.clone()),
            false => problems.push(Problem::Unexpected { tensor: name.clone() }),
        }
    }
    if !problems.is_empty() {
        return Err(ProblemList(problems).into());
    }
    Ok(Loaded { captured: capture.finish(), tie, skipped })
}

struct Loader<'a, 'c> {
    capture: &'c Capture,
    config: &'a ModelConfig,
    shares: &'a Shares,
    sources: &'a TensorTable,
    used: BTreeSet<String>,
    problems: Vec<Problem>,
}

/// A tensor, its rows, and which of them the rank takes.
struct Member {
    tensor: String,
    rows: i64,
    cut: Cut,
}

impl<'c> Loader<'_, 'c> {
    fn decoder_layer(&mut self, prefix: &str, scales: bool) -> Result<(), LoadError> {
        let c = self.config;
        let (hidden, heads, kv_heads) = (c.hidden_size, c.num_attention_heads, c.num_key_value_heads);
        let (q, kv, mlp) = (self.shares.q, self.shares.kv, self.shares.mlp);
        let attn = format!("{prefix}.self_attn");
        let qkv = [
            ("q_proj", heads * c.head_dim, q),
            ("k_proj", kv_heads * c.head_dim, kv),
            ("v_proj", kv_heads * c.head_dim, kv),
        ];
        self.columns(&attn, "qkv_proj", &qkv, hidden, c.qkv_bias)?;
        self.rows(&attn, "o_proj", hidden, heads * c.head_dim, q, c.o_bias)?;
        if c.qk_norm {
            self.whole(&format!("{attn}.q_norm.weight"), &[c.head_dim])?;
            self.whole(&format!("{attn}.k_norm.weight"), &[c.head_dim])?;
        }
        if scales {
            for scale in SCALES {
                let name = format!("{attn}.attn.{scale}");
                self.capture.param(&name, Dtype::F32, &[])?.fill(&1f32.to_le_bytes())?;
            }
        }
        let ffn = format!("{prefix}.mlp");
        let gate_up = [("gate_proj", c.intermediate_size, mlp), ("up_proj", c.intermediate_size, mlp)];
        self.columns(&ffn, "gate_up_proj", &gate_up, hidden, c.mlp_bias)?;
        self.rows(&ffn, "down_proj", hidden, c.intermediate_size, mlp, c.mlp_bias)?;
        self.whole(&format!("{prefix}.input_layernorm.weight"), &[hidden])?;
        self.whole(&format!("{prefix}.post_attention_layernorm.weight"), &[hidden])
    }

    /// Column-parallel projections fused into one parameter: each member gives the rank its own rows.
    fn columns(
        &mut self,
        prefix: &str,
        fused: &str,
        members: &[(&str, i64, Cut)],
        inputs: i64,
        bias: bool,
    ) -> Result<(), LoadError> {
        let kinds: &[(&str, &[i64])] = &[("weight", &[inputs]), ("bias", &[])];
        for &(kind, rest) in &kinds[..if bias { 2 } else { 1 }] {
            let members: Vec<Member> = members
                .iter()
                .map(|&(name, rows, cut)| Member { tensor: format!("{prefix}.{name}.{kind}"), rows, cut })
                .collect();
            self.fuse(&format!("{prefix}.{fused}.{kind}"), &members, rest)?;
        }
        Ok(())
    }

    fn fuse(&mut self, param: &str, members: &[Member], rest: &[i64]) -> Result<(), LoadError> {
        let tensors: Vec<_> =
            members.iter().map(|m| self.source(&m.tensor, &[&[m.rows], rest].concat())).collect();
        let Some(tensors) = tensors.into_iter().collect::<Option<Vec<_>>>() else { return Ok(()) };
        let dtype = tensors[0].dtype();
        if let Some(other) = tensors.iter().find(|t| t.dtype() != dtype) {
            let (tensor, found) = (other.name().to_owned(), other.dtype());
            self.problems.push(Problem::Dtype { tensor, expected: dtype, found });
            return Ok(());
        }
        let rows: i64 = members.iter().map(|m| m.cut.len).sum();
        let dest = self.capture.param(param, dtype, &[&[rows], rest].concat())?;
        let mut at = 0;
        for (m, tensor) in members.iter().zip(&tensors) {
            dest.narrow(0, at, m.cut.len)?.copy_from(&tensor.narrow(0, m.cut.start, m.cut.len)?)?;
            at += m.cut.len;
        }
        Ok(())
    }

    /// A row-parallel projection: the rank takes columns of the weight, and the whole bias.
    fn rows(
        &mut self,
        prefix: &str,
        name: &str,
        outputs: i64,
        inputs: i64,
        cut: Cut,
        bias: bool,
    ) -> Result<(), LoadError> {
        let weight = format!("{prefix}.{name}.weight");
        if let Some(tensor) = self.source(&weight, &[outputs, inputs]) {
            let dest = self.capture.param(&weight, tensor.dtype(), &[outputs, cut.len])?;
            dest.copy_from(&tensor.narrow(1, cut.start, cut.len)?)?;
        }
        if bias {
            self.whole(&format!("{prefix}.{name}.bias"), &[outputs])?;
        }
        Ok(())
    }

    /// A parameter that every rank holds whole, under its own name.
    fn whole(&mut self, name: &str, shape: &[i64]) -> Result<(), LoadError> {
        if let Some(tensor) = self.source(name, shape) {
            self.capture.param(name, tensor.dtype(), shape)?.copy_from(&tensor)?;
        }
        Ok(())
    }

    /// Embedding and head. Tied models keep the name that sorts first; a head that the checkpoint of a tied
    /// model brings along is kept by newer engines where it differs.
    fn embeddings(&mut self, engine: Engine) -> Result<Option<Tie>, LoadError> {
        if !self.config.tie_word_embeddings {
            self.vocab(EMBED, EMBED)?;
            self.vocab(HEAD, HEAD)?;
            return Ok(None);
        }
        if self.sources.contains_key(HEAD) && engine.own_head_when_tied()? {
            self.vocab(EMBED, EMBED)?;
            self.vocab(HEAD, HEAD)?;
            return Ok(Some(Tie { keep: HEAD, drop: EMBED }));
        }
        self.used.insert(HEAD.to_owned());
        self.vocab(HEAD, EMBED)?;
        Ok(None)
    }

    /// A parameter cut along the vocabulary, its padding rows zero.
    fn vocab(&mut self, param: &str, tensor: &str) -> Result<(), LoadError> {
        let hidden = self.config.hidden_size;
        let Some(tensor) = self.source(tensor, &[self.config.vocab_size, hidden]) else { return Ok(()) };
        let rows = self.shares.vocab_rows(self.config);
        let dtype = tensor.dtype();
        let dest = self.capture.param(param, dtype, &[self.shares.vocab, hidden])?;
        if rows.len > 0 {
            dest.narrow(0, 0, rows.len)?.copy_from(&tensor.narrow(0, rows.start, rows.len)?)?;
        }
        if rows.len < self.shares.vocab {
            let zero = vec![0; dtype.packing().bytes as usize];
            dest.narrow(0, rows.len, self.shares.vocab - rows.len)?.fill(&zero)?;
        }
        Ok(())
    }

    /// The tensor of this name, or a problem where it is not there or has another shape.
    fn source(&mut self, name: &str, expected: &[i64]) -> Option<LazyTensor<'c>> {
        self.used.insert(name.to_owned());
        let (tensor, expected) = (name.to_owned(), expected.to_vec());
        let problem = match self.sources.get(name) {
            None => Problem::Missing { tensor, expected },
            Some((_, found)) if *found != expected => {
                Problem::Shape { tensor, expected, found: found.clone() }
            }
            // Shapes of a config's bounded sizes are valid, and asking twice gives the same stand-in.
            Some((dtype, _)) => return self.capture.source(name, *dtype, &expected).ok(),
        };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        None
    }
}
