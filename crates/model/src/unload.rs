//! The way back: the parameters of all tensor-parallel ranks to Hugging Face tensors.
//!
//! What ranks hold in common is taken from one of them; that the others agree, and that padding and scale
//! buffers hold what a Hugging Face checkpoint has no place for, are expectations for the caller to check by
//! bytes.

mod experts;

use std::collections::BTreeSet;

use restage_geometry::{Capture, Captured, DestView, Dtype, LazyTensor};

use crate::TensorTable;
use crate::config::ModelConfig;
use crate::decoder::{Cut, EMBED, HEAD, MOST_PROBLEMS, NORM, Problem, ProblemList, SCALES, Shares, layer};
use crate::load::LoadError;
use crate::placement::{Placement, Rank};

/// Rows (indices of the first dimension) of a source; a tensor of no dimensions has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// Name of the source.
    pub source: String,
    /// First row.
    pub start: i64,
    /// Number of rows.
    pub len: i64,
}

/// Something about the bytes that must hold for the checkpoint to be what it seems.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expectation {
    /// Two ranks hold the same.
    Equal(Rows, Rows),
    /// Every element is this one, given by its bytes.
    Constant(Rows, Vec<u8>),
    /// The rows are these bytes.
    Bytes(Rows, Vec<u8>),
}

/// What the parameters of a model do not tell of the checkpoint that they came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Original {
    /// The checkpoint of a tied model had a head of its own; one that differs from the embedding shows by
    /// itself.
    pub head: bool,
    /// All experts of a layer were one tensor of gate and up projections, and one of down projections.
    pub stacked_experts: bool,
}

/// What the way back copies, and what it takes for granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unloaded {
    /// The copies; sources are named by the caller's function.
    pub captured: Captured,
    /// What must hold.
    pub expectations: Vec<Expectation>,
}

/// Captures the way from all ranks' parameters back to the Hugging Face checkpoint.
///
/// `ranks` holds each rank's tensors, `name` the source name of a tensor of a rank. Names of every known
/// engine are read. Whether experts are cut or spread over the ranks is told by their shapes. The ranks are those of
/// one pipeline stage that has all layers.
///
/// # Errors
/// [`LoadError`] as for [`crate::load`], with the source names; [`LoadError::NoWayBack`] for a `DeepseekV3ForCausalLM`.
pub fn unload(
    config: &ModelConfig,
    ranks: &[TensorTable],
    name: &dyn Fn(usize, &str) -> String,
    original: Original,
) -> Result<Unloaded, LoadError> {
    if config.latent.is_some() {
        return Err(LoadError::NoWayBack { architecture: config.architecture.name() });
    }
    let tp_size = ranks.len() as i64;
    let expert_parallel = experts::are_spread(config, ranks);
    let shares: Vec<Shares> = (0..tp_size.max(1))
        .map(|tp_rank| {
            let rank = Rank { tp_size, tp_rank };
            let place = if expert_parallel { Placement::expert_parallel(rank) } else { rank.into() };
            Shares::new(config, place)
        })
        .collect::<Result<_, _>>()?;
    let capture = Capture::new();
    let mut back = Unloader {
        capture: &capture,
        config,
        ranks,
        name,
        shares: &shares,
        expert_parallel,
        original,
        used: vec![BTreeSet::new(); ranks.len()],
        problems: Vec::new(),
        expectations: Vec::new(),
    };
    for i in 0..config.num_hidden_layers {
        back.decoder_layer(i)?;
        if back.problems.len() >= MOST_PROBLEMS {
            // A config can call for more tensors than memory can name.
            return Err(ProblemList(back.problems).into());
        }
    }
    back.whole(NORM, &[config.hidden_size])?;
    back.embeddings()?;
    let Unloader { used, mut problems, expectations, .. } = back;
    for (r, table) in ranks.iter().enumerate() {
        for tensor in table.keys().filter(|t| !used[r].contains(t.as_str())) {
            problems.push(Problem::Unexpected { tensor: name(r, tensor) });
        }
    }
    if !problems.is_empty() {
        return Err(ProblemList(problems).into());
    }
    Ok(Unloaded { captured: capture.finish(), expectations })
}

struct Unloader<'a, 'c> {
    capture: &'c Capture,
    config: &'a ModelConfig,
    ranks: &'a [TensorTable],
    name: &'a dyn Fn(usize, &str) -> String,
    shares: &'a [Shares],
    expert_parallel: bool,
    original: Original,
    used: Vec<BTreeSet<String>>,
    problems: Vec<Problem>,
    expectations: Vec<Expectation>,
}

impl<'c> Unloader<'_, 'c> {
    fn decoder_layer(&mut self, i: i64) -> Result<(), LoadError> {
        let c = self.config;
        let prefix = layer(i);
        let hidden = c.hidden_size;
        let q_rows = c.num_attention_heads * c.head_dim;
        let kv_rows = c.num_key_value_heads * c.head_dim;
        let attn = format!("{prefix}.self_attn");
        let shares = self.shares;
        let q: Vec<Cut> = shares.iter().map(|s| s.q).collect();
        let kv: Vec<Cut> = shares.iter().map(|s| s.kv).collect();
        let mlp: Vec<Cut> = shares.iter().map(|s| s.mlp).collect();
        let qkv = [("q_proj", q_rows, &q[..]), ("k_proj", kv_rows, &kv[..]), ("v_proj", kv_rows, &kv[..])];
        self.columns(&attn, "qkv_proj", &qkv, hidden, c.qkv_bias)?;
        self.rows(&attn, "o_proj", hidden, q_rows, &q, c.o_bias)?;
        if c.qk_norm {
            self.whole(&format!("{attn}.q_norm.weight"), &[c.head_dim])?;
            self.whole(&format!("{attn}.k_norm.weight"), &[c.head_dim])?;
        }
        self.scales(&attn);
        let ffn = format!("{prefix}.mlp");
        if c.is_sparse(i) {
            self.experts(&ffn)?;
        } else {
            let gate_up =
                [("gate_proj", c.intermediate_size, &mlp[..]), ("up_proj", c.intermediate_size, &mlp[..])];
            self.columns(&ffn, "gate_up_proj", &gate_up, hidden, c.mlp_bias)?;
            self.rows(&ffn, "down_proj", hidden, c.intermediate_size, &mlp, c.mlp_bias)?;
        }
        self.whole(&format!("{prefix}.input_layernorm.weight"), &[hidden])?;
        self.whole(&format!("{prefix}.post_attention_layernorm.weight"), &[hidden])
    }

    /// Scale buffers have no place in a Hugging Face checkpoint: all four or none, and all 1.0.
    fn scales(&mut self, attn: &str) {
        for r in 0..self.ranks.len() {
            let names: Vec<String> = SCALES.iter().map(|s| format!("{attn}.attn.{s}")).collect();
            if !names.iter().any(|n| self.ranks[r].contains_key(n)) {
                continue;
            }
            for tensor in names {
                if let Some(t) = self.source(r, &tensor, &[]) {
                    if t.dtype() != Dtype::F32 {
                        let (tensor, found) = (t.name().to_owned(), t.dtype());
                        self.problems.push(Problem::Dtype { tensor, expected: Dtype::F32, found });
                    } else {
                        let rows = Rows { source: t.name().to_owned(), start: 0, len: 1 };
                        self.expectations.push(Expectation::Constant(rows, 1f32.to_le_bytes().to_vec()));
                    }
                }
            }
        }
    }

    /// Fused column-parallel projections: each rank gives back its rows of every member.
    fn columns(
        &mut self,
        prefix: &str,
        fused: &str,
        members: &[(&str, i64, &[Cut])],
        inputs: i64,
        bias: bool,
    ) -> Result<(), LoadError> {
        let kinds: &[(&str, &[i64])] = &[("weight", &[inputs]), ("bias", &[])];
        for &(kind, rest) in &kinds[..if bias { 2 } else { 1 }] {
            let fused_rows = |r: usize| members.iter().map(|m| m.2[r].len).sum::<i64>();
            let fused = format!("{prefix}.{fused}.{kind}");
            let Some(sources) = self.each_rank(&fused, |r| [&[fused_rows(r)], rest].concat()) else {
                continue;
            };
            let mut at = 0;
            for (member, rows, cuts) in members {
                let shape = [&[*rows], rest].concat();
                let param = format!("{prefix}.{member}.{kind}");
                let dest = self.capture.param(&param, sources[0].dtype(), &shape)?;
                self.join(&dest, &sources, cuts, at)?;
                at += cuts[0].len;
            }
        }
        Ok(())
    }

    /// Copies each rank's rows, which start at row `at` of its tensor, to their place; ranks whose rows an
    /// earlier one has are expected to agree with it.
    fn join(
        &mut self,
        dest: &DestView<'_>,
        sources: &[LazyTensor<'_>],
        cuts: &[Cut],
        at: i64,
    ) -> Result<(), LoadError> {
        for (r, (source, cut)) in sources.iter().zip(cuts).enumerate() {
            let rows = |r: usize| Rows { source: sources[r].name().to_owned(), start: at, len: cut.len };
            match cuts[..r].iter().position(|c| c == cut) {
                Some(first) => self.expectations.push(Expectation::Equal(rows(first), rows(r))),
                None if cut.len > 0 => {
                    dest.narrow(0, cut.start, cut.len)?.copy_from(&source.narrow(0, at, cut.len)?)?
                }
                None => {}
            }
        }
        Ok(())
    }

    /// A row-parallel projection: each rank gives back columns of the weight; the bias is common.
    fn rows(
        &mut self,
        prefix: &str,
        name: &str,
        outputs: i64,
        inputs: i64,
        cuts: &[Cut],
        bias: bool,
    ) -> Result<(), LoadError> {
        let weight = format!("{prefix}.{name}.weight");
        if let Some(sources) = self.each_rank(&weight, |r| vec![outputs, cuts[r].len]) {
            let dest = self.capture.param(&weight, sources[0].dtype(), &[outputs, inputs])?;
            for (source, cut) in sources.iter().zip(cuts) {
                dest.narrow(1, cut.start, cut.len)?.copy_from(source)?;
            }
        }
        if bias {
            self.whole(&format!("{prefix}.{name}.bias"), &[outputs])?;
        }
        Ok(())
    }

    /// A tensor that every rank holds whole, under one name: taken from the first, and the others are
    /// expected to agree.
    fn whole(&mut self, name: &str, shape: &[i64]) -> Result<(), LoadError> {
        self.renamed(name, shape, |_| name.to_owned())
    }

    /// A tensor that each rank holds whole under a name of its own.
    fn renamed(
        &mut self,
        param: &str,
        shape: &[i64],
        tensor: impl Fn(usize) -> String,
    ) -> Result<(), LoadError> {
        let sources = (0..self.ranks.len()).map(|r| self.source(r, &tensor(r), shape)).collect();
        if let Some(sources) = self.same_dtype(sources) {
            let dest = self.capture.param(param, sources[0].dtype(), shape)?;
            let rows = shape.first().copied().unwrap_or(1);
            let cuts = vec![Cut { start: 0, len: rows }; sources.len()];
            self.join(&dest, &sources, &cuts, 0)?;
        }
        Ok(())
    }

    fn embeddings(&mut self) -> Result<(), LoadError> {
        let c = self.config;
        if !c.tie_word_embeddings {
            self.vocab(EMBED, |_| EMBED)?;
            return self.vocab(HEAD, |_| HEAD);
        }
        // Tied: a rank holds the head's name alone, unless its rows of the two differ.
        let ranks = self.ranks;
        let own = |r: usize| ranks[r].contains_key(EMBED);
        let any_own = (0..ranks.len()).any(own);
        self.vocab(EMBED, |r| if own(r) { EMBED } else { HEAD })?;
        if any_own || self.original.head {
            self.vocab(HEAD, |_| HEAD)?;
        }
        Ok(())
    }

    /// A tensor cut along the vocabulary: padding goes, and is expected to be zero.
    fn vocab(&mut self, param: &str, tensor: impl Fn(usize) -> &'static str) -> Result<(), LoadError> {
        let c = self.config;
        let shape = vec![self.shares[0].vocab, c.hidden_size];
        let sources: Vec<_> = (0..self.ranks.len()).map(|r| self.source(r, tensor(r), &shape)).collect();
        let Some(sources) = self.same_dtype(sources) else { return Ok(()) };
        let dtype = sources[0].dtype();
        let dest = self.capture.param(param, dtype, &[c.vocab_size, c.hidden_size])?;
        for (r, source) in sources.iter().enumerate() {
            let rows = self.shares[r].vocab_rows(c);
            if rows.len > 0 {
                dest.narrow(0, rows.start, rows.len)?.copy_from(&source.narrow(0, 0, rows.len)?)?;
            }
            let padding = self.shares[r].vocab - rows.len;
            if padding > 0 {
                let rows = Rows { source: source.name().to_owned(), start: rows.len, len: padding };
                let zero = vec![0; dtype.packing().bytes as usize];
                self.expectations.push(Expectation::Constant(rows, zero));
            }
        }
        Ok(())
    }

    fn each_rank(&mut self, name: &str, shape: impl Fn(usize) -> Vec<i64>) -> Option<Vec<LazyTensor<'c>>> {
        let sources = (0..self.ranks.len()).map(|r| self.source(r, name, &shape(r))).collect();
        self.same_dtype(sources)
    }

    /// The tensors of all ranks, unless one is not there or of another type than the first.
    fn same_dtype(&mut self, sources: Vec<Option<LazyTensor<'c>>>) -> Option<Vec<LazyTensor<'c>>> {
        let sources: Vec<_> = sources.into_iter().collect::<Option<_>>()?;
        let expected = sources.first()?.dtype();
        if let Some(other) = sources.iter().find(|t| t.dtype() != expected) {
            let (tensor, found) = (other.name().to_owned(), other.dtype());
            self.problems.push(Problem::Dtype { tensor, expected, found });
            return None;
        }
        Some(sources)
    }

    fn source(&mut self, rank: usize, name: &str, expected: &[i64]) -> Option<LazyTensor<'c>> {
        self.used[rank].insert(name.to_owned());
        let (tensor, expected) = ((self.name)(rank, name), expected.to_vec());
        let problem = match self.ranks[rank].get(name) {
            None => Problem::Missing { tensor, expected },
            Some((_, found)) if *found != expected => {
                Problem::Shape { tensor, expected, found: found.clone() }
            }
            Some((dtype, _)) => return self.capture.source(&tensor, *dtype, &expected).ok(),
        };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        None
    }
}
