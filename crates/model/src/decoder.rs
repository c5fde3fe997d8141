//! What loading and unloading share: the geometry of a rank, names, and collected problems.

use std::fmt;

use restage_geometry::Dtype;

use crate::config::ModelConfig;

/// vLLM pads the vocabulary to a multiple of this many rows before it is divided among ranks.
const VOCAB_PADDING: i64 = 64;

/// As many problems of one model are looked for.
pub(crate) const MOST_PROBLEMS: usize = 1000;

/// Names of the tensors that hold all experts of a layer, below `model.layers.N.mlp.`.
pub(crate) const STACKED_GATE_UP: &str = "experts.gate_up_proj";
pub(crate) const STACKED_DOWN: &str = "experts.down_proj";

/// The four f32 scalars of each attention layer; vLLM's reader demands them, and 1.0 is what they start as.
pub(crate) const SCALES: [&str; 4] = ["_k_scale", "_v_scale", "_q_scale", "_prob_scale"];

/// A tensor-parallel rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Number of ranks.
    pub tp_size: i64,
    /// Which of them, from 0.
    pub tp_rank: i64,
}

/// A tensor-parallel rank, and how experts fall on the ranks. A [`Rank`] alone cuts every expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The rank.
    pub rank: Rank,
    /// True where each rank holds whole experts, its share of them in order (vLLM's `enable_expert_parallel`
    /// with its linear placement); everything else is cut as ever.
    pub expert_parallel: bool,
}

impl From<Rank> for Placement {
    fn from(rank: Rank) -> Self {
        Placement { rank, expert_parallel: false }
    }
}

/// Something that stands in the way of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A size that the ranks do not divide.
    Indivisible {
        /// What is divided.
        what: &'static str,
        /// Its size.
        size: i64,
        /// Number of ranks.
        by: i64,
    },
    /// A rank outside of `0..tp_size`, or no rank at all.
    Rank(Rank),
    /// Expert parallel, for a model without experts.
    NoExperts,
    /// A tensor that the config calls for and that is not there.
    Missing {
        /// Its name.
        tensor: String,
        /// Its shape by the config, in elements.
        expected: Vec<i64>,
    },
    /// A tensor whose shape contradicts the config.
    Shape {
        /// Its name.
        tensor: String,
        /// Shape by the config, in elements.
        expected: Vec<i64>,
        /// Shape found, in elements.
        found: Vec<i64>,
    },
    /// Tensors that are fused into one parameter, or are parts of one, and differ in type.
    Dtype {
        /// The tensor that differs.
        tensor: String,
        /// Type of the first.
        expected: Dtype,
        /// Its type.
        found: Dtype,
    },
    /// A tensor that the model has no place for.
    Unexpected {
        /// Its name.
        tensor: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Indivisible { what, size, by } => {
                let (rest, more) = (size % by, if size < by { "fewer than" } else { "not divisible by" });
                write!(f, "{what} {size} is {more} tensor-parallel size {by} (remainder {rest})")
            }
            Problem::NoExperts => f.write_str("expert parallel: the model has no experts"),
            Problem::Rank(r) => write!(f, "rank {} of {} does not exist", r.tp_rank, r.tp_size),
            Problem::Missing { tensor, expected } => {
                write!(f, "{tensor}: missing; the config calls for shape {expected:?}")
            }
            Problem::Shape { tensor, expected, found } => {
                write!(f, "{tensor}: the config calls for shape {expected:?}, found {found:?}")
            }
            Problem::Dtype { tensor, expected, found } => {
                write!(f, "{tensor}: expected {expected} like the tensors it is joined with, found {found}")
            }
            Problem::Unexpected { tensor } => write!(f, "{tensor}: the model has no place for it"),
        }
    }
}

/// Everything that stands in the way, in the order it was found; not all of it where there is very much.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProblemList(pub Vec<Problem>);

impl fmt::Display for ProblemList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;
        for (i, p) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{p}", if i == 0 { "" } else { "; " })?;
        }
        match self.0.len().checked_sub(SHOWN) {
            Some(rest) if rest > 0 => write!(f, "; and {rest} more"),
            _ => Ok(()),
        }
    }
}

/// Rows of a projection that belong to one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub start: i64,
    pub len: i64,
}

/// How the sizes of a model fall on the ranks.
#[derive(Debug, Clone)]
pub(crate) struct Shares {
    pub rank: Rank,
    /// Which experts.
    pub experts: Cut,
    /// Which rows of each expert's gate and up, and columns of its down projection.
    pub expert: Cut,
    /// Rows of the padded vocabulary per rank.
    pub vocab: i64,
    pub q: Cut,
    pub kv: Cut,
    pub mlp: Cut,
}

impl Shares {
    /// The shares of a rank, or every size that does not divide.
    pub fn new(c: &ModelConfig, placement: Placement) -> Result<Self, ProblemList> {
        let Placement { rank, expert_parallel } = placement;
        let Rank { tp_size: tp, tp_rank: r } = rank;
        if tp < 1 || !(0..tp).contains(&r) {
            return Err(ProblemList(vec![Problem::Rank(rank)]));
        }
        let padded = c.vocab_size.div_euclid(VOCAB_PADDING) * VOCAB_PADDING;
        let padded = if padded < c.vocab_size { padded + VOCAB_PADDING } else { padded };
        let (experts, inner) = c.experts.as_ref().map_or((0, 0), |e| (e.count, e.intermediate_size));
        let sparse = c.sparse_layers();
        let mut problems = Vec::new();
        if expert_parallel && experts == 0 {
            problems.push(Problem::NoExperts);
        }
        for (what, size, divided) in [
            ("num_attention_heads", c.num_attention_heads, true),
            // Only what some layer has must divide.
            ("intermediate_size", c.intermediate_size, sparse < c.num_hidden_layers),
            ("moe_intermediate_size", inner, sparse > 0 && !expert_parallel),
            ("num_experts", experts, sparse > 0 && expert_parallel),
            ("vocabulary padded to a multiple of 64,", padded, true),
        ] {
            if divided && size % tp != 0 {
                problems.push(Problem::Indivisible { what, size, by: tp });
            }
        }
        let kv = c.num_key_value_heads;
        if !(kv % tp == 0 || tp % kv == 0) {
            let what = "num_key_value_heads (not replicable either)";
            problems.push(Problem::Indivisible { what, size: kv, by: tp });
        }
        if !problems.is_empty() {
            return Err(ProblemList(problems));
        }
        let even = |size: i64| Cut { start: r * (size / tp), len: size / tp };
        let kv_copies = (tp / kv).max(1);
        let kv_heads = (kv / tp).max(1);
        let first = r / kv_copies * kv_heads;
        let all = |size: i64| Cut { start: 0, len: size };
        let (experts, expert) = match expert_parallel {
            true => (even(experts), all(inner)),
            false => (all(experts), even(inner)),
        };
        Ok(Shares {
            rank,
            experts,
            expert,
            vocab: padded / tp,
            q: even(c.num_attention_heads * c.head_dim),
            kv: Cut { start: first * c.head_dim, len: kv_heads * c.head_dim },
            mlp: even(c.intermediate_size),
        })
    }

    /// Rows of the real vocabulary that the rank holds; none where it is all padding.
    pub fn vocab_rows(&self, c: &ModelConfig) -> Cut {
        let start = (self.rank.tp_rank * self.vocab).min(c.vocab_size);
        Cut { start, len: (c.vocab_size - start).min(self.vocab) }
    }
}

pub(crate) fn layer(i: i64) -> String {
    format!("model.layers.{i}")
}

pub(crate) const EMBED: &str = "model.embed_tokens.weight";
pub(crate) const HEAD: &str = "lm_head.weight";
pub(crate) const NORM: &str = "model.norm.weight";
