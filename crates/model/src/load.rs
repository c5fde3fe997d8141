//! The loader: Hugging Face tensors to the parameters of one rank, as vLLM holds them.

mod experts;
mod latent;

use std::collections::HashSet;

use restage_geometry::{Capture, CaptureError, Captured, Dtype, LazyTensor};
use thiserror::Error;

use crate::TensorTable;
use crate::config::ModelConfig;
use crate::decoder::{Cut, EMBED, HEAD, MOST_PROBLEMS, NORM, Problem, ProblemList, SCALES, Shares, layer};
use crate::engine::{Engine, EngineError};
use crate::load::experts::Sparse;
use crate::placement::Placement;

/// Suffixes of tensors that old checkpoints carry and every loader skips: they are computed from the config.
pub(crate) const SKIPPED: [&str; 3] =
    ["rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"];

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
    /// A family whose parameters cannot be joined again.
    #[error("{architecture}: ranks cannot be joined to a checkpoint of this family")]
    NoWayBack {
        /// The family's name in `architectures`.
        architecture: &'static str,
    },
    /// A family that no stage computes.
    #[error("{architecture}: no stage computes this family")]
    NotStaged {
        /// The family's name in `architectures`.
        architecture: &'static str,
    },
    /// Blocks that the model does not have, or none.
    #[error("blocks {start}..{end} of a model of {layers} do not exist")]
    Blocks {
        /// The first.
        start: i64,
        /// One past the last.
        end: i64,
        /// Blocks of the model.
        layers: i64,
    },
    /// The loader did something impossible.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

impl From<ProblemList> for LoadError {
    fn from(problems: ProblemList) -> Self {
        LoadError::Problems(problems)
    }
}

/// Captures what the loader of a rank copies where. The placement is a [`Rank`](crate::Rank), or a
/// [`Placement`] where experts are spread over the ranks or layers over the stages of a pipeline.
///
/// The first stage has the embedding, the last one the norm, the head and, in a tied model, the embedding besides.
/// Parameters have the dtype of their tensors. Every tensor of `sources` must have a place in the model; the
/// ones that every loader skips are listed in [`Loaded::skipped`], among them layers that predict further
/// tokens. Tensors of other stages are left to those.
///
/// # Errors
/// [`LoadError`] with everything that is wrong: sizes that do not divide by how much, tensors that are
/// missing or contradict the config, tensors without a place.
pub fn load(
    config: &ModelConfig,
    engine: Engine,
    placement: impl Into<Placement>,
    sources: &TensorTable,
) -> Result<Loaded, LoadError> {
    let placement = placement.into();
    let shares = Shares::new(config, placement)?;
    let sparse = Sparse::new(config, engine, placement, sources)?;
    let capture = Capture::new();
    let mut loader = Loader {
        capture: &capture,
        config,
        shares: &shares,
        sources,
        sparse,
        used: Vec::with_capacity(sources.len()),
        problems: Vec::new(),
    };
    if config.latent.is_some() {
        engine.latent_attention()?;
    }
    let scales = engine.scale_buffers()?;
    for i in shares.layers.clone() {
        loader.decoder_layer(i, scales)?;
        loader.not_too_many()?;
    }
    if placement.is_last() {
        loader.whole(NORM, &[config.hidden_size])?;
    }
    let tie = match (placement.is_first(), placement.is_last()) {
        (_, true) => loader.embeddings(engine, placement.is_first())?,
        (true, false) => {
            loader.vocab(EMBED, EMBED)?;
            None
        }
        (false, false) => None,
    };
    let Loader { used, mut problems, .. } = loader;
    let mut skipped = Vec::new();
    // Each is used once, so that the number tells whether there are others.
    if used.len() < sources.len() {
        let used: HashSet<&str> = used.into_iter().collect();
        for name in sources.keys().filter(|name| !used.contains(name.as_str())) {
            let layer = layer_of(name);
            let elsewhere = match layer {
                Some(i) => (0..config.num_hidden_layers).contains(&i) && !shares.layers.contains(&i),
                None => placement.stage.count > 1 && [EMBED, HEAD, NORM].contains(&name.as_str()),
            };
            if elsewhere {
                continue;
            }
            let predicts = layer.is_some_and(|i| config.predicts_further(i));
            match predicts || SKIPPED.iter().any(|s| name.ends_with(s)) {
                true => skipped.push(name.clone()),
                false => problems.push(Problem::Unexpected { tensor: name.clone() }),
            }
        }
    }
    if !problems.is_empty() {
        return Err(ProblemList(problems).into());
    }
    Ok(Loaded { captured: capture.finish(), tie, skipped })
}

/// The layer that a tensor's name places it in; a number that is written otherwise than plainly is none.
pub(crate) fn layer_of(name: &str) -> Option<i64> {
    let (number, _) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let plain = number == "0" || !number.starts_with(['0', '+', '-']);
    number.parse().ok().filter(|_| plain)
}

struct Loader<'a, 'c> {
    capture: &'c Capture,
    config: &'a ModelConfig,
    shares: &'a Shares,
    sources: &'a TensorTable,
    /// How experts are named and found; `None` where no layer has them.
    sparse: Option<Sparse>,
    /// Names of tensors that have a place, each once.
    used: Vec<&'a str>,
    problems: Vec<Problem>,
}

/// A tensor, its rows, and which of them the rank takes.
struct Member {
    tensor: String,
    rows: i64,
    cut: Cut,
}

impl<'c> Loader<'_, 'c> {
    fn decoder_layer(&mut self, i: i64, scales: bool) -> Result<(), LoadError> {
        let c = self.config;
        let prefix = layer(i);
        let hidden = c.hidden_size;
        let attn = format!("{prefix}.self_attn");
        if let (Some(latent), Some(cuts)) = (c.latent, self.shares.latent) {
            self.latent_attention(&attn, latent, cuts)?;
            self.scales(&format!("{attn}.mla_attn.mla_attn"), scales)?;
        } else {
            self.attention(&attn)?;
            self.scales(&format!("{attn}.attn"), scales)?;
        }
        let ffn = format!("{prefix}.mlp");
        match self.sparse.filter(|_| c.is_sparse(i)) {
            Some(sparse) => self.experts(&ffn, sparse)?,
            None => {
                let (width, cut) = (c.intermediate_size, self.shares.mlp);
                self.feed_forward(&ffn, &ffn, width, cut, c.mlp_bias)?;
            }
        }
        self.whole(&format!("{prefix}.input_layernorm.weight"), &[hidden])?;
        self.whole(&format!("{prefix}.post_attention_layernorm.weight"), &[hidden])
    }

    /// Attention with heads of keys and values; `attn` is the prefix of its tensors.
    fn attention(&mut self, attn: &str) -> Result<(), LoadError> {
        let c = self.config;
        let (hidden, heads, kv_heads) = (c.hidden_size, c.num_attention_heads, c.num_key_value_heads);
        let (q, kv) = (self.shares.q, self.shares.kv);
        let qkv = [
            ("q_proj", heads * c.head_dim, q),
            ("k_proj", kv_heads * c.head_dim, kv),
            ("v_proj", kv_heads * c.head_dim, kv),
        ];
        self.columns(attn, attn, "qkv_proj", &qkv, hidden, c.qkv_bias)?;
        self.rows(
            &format!("{attn}.o_proj"),
            &format!("{attn}.o_proj"),
            [hidden, heads * c.head_dim],
            q,
            c.o_bias,
        )?;
        if c.qk_norm {
            self.whole(&format!("{attn}.q_norm.weight"), &[c.head_dim])?;
            self.whole(&format!("{attn}.k_norm.weight"), &[c.head_dim])?;
        }
        Ok(())
    }

    /// The scale buffers of an attention layer, where the engine keeps them; `attn` is the prefix of their names.
    fn scales(&mut self, attn: &str, kept: bool) -> Result<(), LoadError> {
        for scale in SCALES.iter().filter(|_| kept) {
            let name = format!("{attn}.{scale}");
            self.capture.param(&name, Dtype::F32, &[])?.fill(&1f32.to_le_bytes())?;
        }
        Ok(())
    }

    /// A feed-forward layer of this width, whose parameters lie below `param` and its tensors below `tensor`.
    fn feed_forward(
        &mut self,
        param: &str,
        tensor: &str,
        width: i64,
        cut: Cut,
        bias: bool,
    ) -> Result<(), LoadError> {
        let hidden = self.config.hidden_size;
        let gate_up = [("gate_proj", width, cut), ("up_proj", width, cut)];
        self.columns(param, tensor, "gate_up_proj", &gate_up, hidden, bias)?;
        let (param, tensor) = (format!("{param}.down_proj"), format!("{tensor}.down_proj"));
        self.rows(&param, &tensor, [hidden, width], cut, bias)
    }

    /// Stops at a number of problems that tells enough: a config can call for more tensors than memory can
    /// name.
    fn not_too_many(&mut self) -> Result<(), ProblemList> {
        match self.problems.len() < MOST_PROBLEMS {
            true => Ok(()),
            false => Err(ProblemList(std::mem::take(&mut self.problems))),
        }
    }

    /// Column-parallel projections fused into one parameter: each member gives the rank its own rows. `param` and
    /// `tensor` are prefixes, `fused` the parameter's name below its prefix.
    fn columns(
        &mut self,
        param: &str,
        tensor: &str,
        fused: &str,
        members: &[(&str, i64, Cut)],
        inputs: i64,
        bias: bool,
    ) -> Result<(), LoadError> {
        let kinds: &[(&str, &[i64])] = &[("weight", &[inputs]), ("bias", &[])];
        for &(kind, rest) in &kinds[..if bias { 2 } else { 1 }] {
            let members: Vec<Member> = members
                .iter()
                .map(|&(name, rows, cut)| Member { tensor: format!("{tensor}.{name}.{kind}"), rows, cut })
                .collect();
            self.fuse(&format!("{param}.{fused}.{kind}"), &members, rest)?;
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
        param: &str,
        tensor: &str,
        shape: [i64; 2],
        cut: Cut,
        bias: bool,
    ) -> Result<(), LoadError> {
        if let Some(source) = self.source(&format!("{tensor}.weight"), &shape) {
            let dest =
                self.capture.param(&format!("{param}.weight"), source.dtype(), &[shape[0], cut.len])?;
            dest.copy_from(&source.narrow(1, cut.start, cut.len)?)?;
        }
        if bias {
            self.renamed(&format!("{param}.bias"), &format!("{tensor}.bias"), &shape[..1])?;
        }
        Ok(())
    }

    /// A parameter that every rank holds whole, under its tensor's name.
    fn whole(&mut self, name: &str, shape: &[i64]) -> Result<(), LoadError> {
        self.renamed(name, name, shape)
    }

    /// A parameter that every rank holds whole.
    fn renamed(&mut self, param: &str, tensor: &str, shape: &[i64]) -> Result<(), LoadError> {
        if let Some(tensor) = self.source(tensor, shape) {
            self.capture.param(param, tensor.dtype(), shape)?.copy_from(&tensor)?;
        }
        Ok(())
    }

    /// Embedding and head. Tied models keep the name that sorts first; a head that the checkpoint of a tied
    /// model brings along is kept by newer engines where it differs.
    ///
    /// This is the last stage; `first` says whether it is the first one too.
    fn embeddings(&mut self, engine: Engine, first: bool) -> Result<Option<Tie>, LoadError> {
        if !self.config.tie_word_embeddings {
            if first {
                self.vocab(EMBED, EMBED)?;
            }
            self.vocab(HEAD, HEAD)?;
            return Ok(None);
        }
        if self.sources.contains_key(HEAD) && engine.own_head_when_tied()? {
            self.vocab(EMBED, EMBED)?;
            self.vocab(HEAD, HEAD)?;
            return Ok(Some(Tie { keep: HEAD, drop: EMBED }));
        }
        if let Some((head, _)) = self.sources.get_key_value(HEAD) {
            self.used.push(head);
        }
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
        let Some((key, (dtype, found))) = self.sources.get_key_value(name) else {
            self.problems.push(Problem::Missing { tensor: name.to_owned(), expected: expected.to_vec() });
            return None;
        };
        self.used.push(key);
        if found != expected {
            self.problems.push(Problem::Shape {
                tensor: name.to_owned(),
                expected: expected.to_vec(),
                found: found.clone(),
            });
            return None;
        }
        // Shapes of a config's bounded sizes are valid, and no tensor is asked for twice.
        self.capture.source(name, *dtype, expected).ok()
    }
}
