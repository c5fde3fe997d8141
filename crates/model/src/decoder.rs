//! What loading and unloading share: the geometry of a rank, names, and collected problems.

use std::fmt;
use std::ops::Range;

use restage_geometry::Dtype;

use crate::config::ModelConfig;
use crate::placement::{Placement, Rank};

/// vLLM pads the vocabulary to a multiple of this many rows before it is divided among ranks.
const VOCAB_PADDING: i64 = 64;

/// As many problems of one model are looked for.
pub(crate) const MOST_PROBLEMS: usize = 1000;

/// Names of the tensors that hold all experts of a layer, below `model.layers.N.mlp.`.
pub(crate) const STACKED_GATE_UP: &str = "experts.gate_up_proj";
pub(crate) const STACKED_DOWN: &str = "experts.down_proj";

/// The four f32 scalars of each attention layer; vLLM's reader demands them, and 1.0 is what they start as.
pub(crate) const SCALES: [&str; 4] = ["_k_scale", "_v_scale", "_q_scale", "_prob_scale"];

/// What a size is divided among.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parts {
    /// All tensor-parallel ranks.
    Ranks,
    /// The groups of ranks among which experts are shared out.
    ExpertGroups,
    /// The ranks of one such group.
    RanksOfGroup,
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Parts::Ranks => "tensor-parallel size",
            Parts::ExpertGroups => "the number of expert groups",
            Parts::RanksOfGroup => "the ranks of an expert group,",
        })
    }
}

/// Something that stands in the way of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A size that cannot be divided evenly.
    Indivisible {
        /// What is divided.
        what: &'static str,
        /// Its size.
        size: i64,
        /// Number of parts.
        by: i64,
        /// What the parts are.
        parts: Parts,
    },
    /// Expert groups that do not divide the ranks.
    Groups {
        /// Number of expert groups.
        groups: i64,
        /// Number of tensor-parallel ranks.
        tp_size: i64,
    },
    /// A pipeline stage outside of `0..stages`, or no stage at all.
    Stage {
        /// Which stage.
        stage: i64,
        /// Number of stages.
        stages: i64,
    },
    /// More pipeline stages than layers.
    TooManyStages {
        /// Number of stages.
        stages: i64,
        /// Number of layers.
        layers: i64,
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
            Problem::Indivisible { what, size, by, parts } => {
                let (rest, more) = (size % by, if size < by { "fewer than" } else { "not divisible by" });
                write!(f, "{what} {size} is {more} {parts} {by} (remainder {rest})")
            }
            Problem::Groups { groups, tp_size } => {
                write!(f, "{groups} expert groups do not divide tensor-parallel size {tp_size}")
            }
            Problem::Stage { stage, stages } => {
                write!(f, "pipeline stage {stage} of {stages} does not exist")
            }
            Problem::TooManyStages { stages, layers } => {
                write!(
                    f,
                    "num_hidden_layers {layers} is fewer than {stages} pipeline stages: each must have one"
                )
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

impl std::error::Error for ProblemList {}

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

/// How the heads of latent attention fall on a rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LatentCuts {
    /// Rows of the query projection.
    pub q: Cut,
    /// Rows of the projection to keys and values: of each head its key without position, then its value.
    pub kv: Cut,
    /// Columns of the output projection.
    pub o: Cut,
}

/// How the sizes of a model fall on the ranks.
#[derive(Debug, Clone)]
pub(crate) struct Shares {
    pub rank: Rank,
    /// Layers of the rank's pipeline stage.
    pub layers: Range<i64>,
    /// Which experts.
    pub experts: Cut,
    /// Which rows of each expert's gate and up, and columns of its down projection.
    pub expert: Cut,
    /// Which rows of the shared experts' gate and up, and columns of their down projection.
    pub shared: Cut,
    /// What latent attention has in place of `q` and `kv`.
    pub latent: Option<LatentCuts>,
    /// Rows of the padded vocabulary per rank.
    pub vocab: i64,
    pub q: Cut,
    pub kv: Cut,
    pub mlp: Cut,
}

impl Shares {
    /// The shares of a rank, or every size that does not divide.
    pub fn new(c: &ModelConfig, placement: Placement) -> Result<Self, ProblemList> {
        let Placement { rank, expert_groups, .. } = placement;
        let Rank { tp_size: tp, tp_rank: r } = rank;
        if tp < 1 || !(0..tp).contains(&r) {
            return Err(ProblemList(vec![Problem::Rank(rank)]));
        }
        let groups = expert_groups.unwrap_or(1);
        if groups < 1 || tp % groups != 0 {
            return Err(ProblemList(vec![Problem::Groups { groups, tp_size: tp }]));
        }
        let layers = placement.layers(c.num_hidden_layers)?;
        let padded = c.vocab_size.div_euclid(VOCAB_PADDING) * VOCAB_PADDING;
        let padded = if padded < c.vocab_size { padded + VOCAB_PADDING } else { padded };
        let (experts, inner) = c.experts.as_ref().map_or((0, 0), |e| (e.count, e.intermediate_size));
        let shared = c.experts.as_ref().map_or(0, |e| e.shared_size);
        let sparse = c.sparse_layers();
        // Each group has as many ranks, which cut each of its experts.
        let members = tp / groups;
        let (spread, cut) = match (groups, members) {
            (_, 1) => (Parts::Ranks, Parts::RanksOfGroup),
            (1, _) => (Parts::ExpertGroups, Parts::Ranks),
            _ => (Parts::ExpertGroups, Parts::RanksOfGroup),
        };
        let mut problems = Vec::new();
        if expert_groups.is_some() && experts == 0 {
            problems.push(Problem::NoExperts);
        }
        for (what, size, by, parts, divided) in [
            ("num_attention_heads", c.num_attention_heads, tp, Parts::Ranks, true),
            // Only what some layer has must divide.
            ("intermediate_size", c.intermediate_size, tp, Parts::Ranks, sparse < c.num_hidden_layers),
            ("moe_intermediate_size", inner, members, cut, sparse > 0),
            ("width of the shared experts", shared, tp, Parts::Ranks, sparse > 0),
            ("num_experts", experts, groups, spread, sparse > 0),
            ("vocabulary padded to a multiple of 64,", padded, tp, Parts::Ranks, true),
        ] {
            if divided && size % by != 0 {
                problems.push(Problem::Indivisible { what, size, by, parts });
            }
        }
        let kv = c.num_key_value_heads;
        if c.latent.is_none() && !(kv % tp == 0 || tp % kv == 0) {
            let what = "num_key_value_heads (not replicable either)";
            problems.push(Problem::Indivisible { what, size: kv, by: tp, parts: Parts::Ranks });
        }
        if !problems.is_empty() {
            return Err(ProblemList(problems));
        }
        let even = |size: i64| Cut { start: r * (size / tp), len: size / tp };
        let kv_copies = (tp / kv).max(1);
        let kv_heads = (kv / tp).max(1);
        let first = r / kv_copies * kv_heads;
        // Neighbours are a group: consecutive experts go to consecutive ranks.
        let (group, member) = (r / members, r % members);
        let experts = Cut { start: group * (experts / groups), len: experts / groups };
        let expert = Cut { start: member * (inner / members), len: inner / members };
        Ok(Shares {
            rank,
            layers,
            experts,
            expert,
            shared: even(shared),
            latent: c.latent.map(|l| LatentCuts {
                q: even(c.num_attention_heads * (l.nope + l.rope)),
                kv: even(c.num_attention_heads * (l.nope + l.value)),
                o: even(c.num_attention_heads * l.value),
            }),
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
