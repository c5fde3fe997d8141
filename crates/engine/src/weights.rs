//! The weights of a stage, loaded by capture, plan and pull: a stage reads its own bytes and no others.

use std::collections::BTreeMap;
use std::sync::Mutex;

use restage_geometry::{Dtype, Param};
use restage_model::{LoadError, ROPE_FREQS, StagePart, load_stage};
use restage_plan::{Limits, PlanError, Refusal};
use restage_refit::{PullError, Receiver, Report, Sink, SinkError};
use restage_transport::Transport;
use thiserror::Error;

use crate::blocks::{KNOWN, row_to_f32};
use crate::matrix::{Compute, Matrix};
use crate::source::Source;

/// Bytes of parameters that are read before they are handed over, while the next are read.
const WAVE_BYTES: u64 = 6 << 20;

/// A matrix with its bias.
#[derive(Debug)]
pub struct Linear {
    /// The matrix: outputs x inputs.
    pub weight: Matrix,
    /// Added to each output, where there is one.
    pub bias: Option<Vec<f32>>,
}

/// One decoder block.
#[derive(Debug)]
pub struct Block {
    /// Norm before attention.
    pub attention_norm: Vec<f32>,
    /// Queries of all heads.
    pub q: Linear,
    /// Keys of all heads.
    pub k: Linear,
    /// Values of all heads.
    pub v: Linear,
    /// Attention's output projection.
    pub o: Linear,
    /// Norms of each head of q and of k.
    pub head_norms: Option<[Vec<f32>; 2]>,
    /// Norm before the feed-forward layer.
    pub mlp_norm: Vec<f32>,
    /// What passes through SiLU.
    pub gate: Linear,
    /// What it is multiplied with.
    pub up: Linear,
    /// Back to the hidden width.
    pub down: Linear,
}

/// What a stage has loaded.
#[derive(Debug)]
pub struct Weights {
    /// On the first stage.
    pub embedding: Option<Matrix>,
    /// The stage's blocks.
    pub blocks: Vec<Block>,
    /// The final norm, on the last stage.
    pub norm: Option<Vec<f32>>,
    /// On the last stage, unless the embedding of the same stage is the head.
    pub head: Option<Matrix>,
    /// Divisors of the rotary frequencies, where the checkpoint has them.
    pub rope_factors: Option<Vec<f32>>,
    /// Bytes that they take in memory.
    pub bytes: u64,
    /// What loading them took.
    pub report: Report,
}

/// Weights that cannot be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The model does not fit its configuration.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The checkpoint cannot be a catalog.
    #[error(transparent)]
    Catalog(#[from] restage_checkpoint::CheckpointError),
    /// No plan can be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A tensor cannot be read exactly.
    #[error("tensor {}: {}", .0.source, .0.reason)]
    Refused(Box<Refusal>),
    /// A type of weights that is not computed with.
    #[error("{param}: weights of type {dtype} are not computed with; {} are", known())]
    Dtype {
        /// The parameter.
        param: String,
        /// Its type.
        dtype: Dtype,
    },
    /// Reading failed.
    #[error(transparent)]
    Pull(#[from] PullError),
}

fn known() -> String {
    KNOWN.map(Dtype::name).join(", ")
}

/// A parameter that has arrived: a matrix, or a vector.
#[derive(Debug)]
enum Kept {
    Matrix(Matrix),
    Vector(Vec<f32>),
}

/// Parameters as they arrive: packed at once, so that none is held twice.
struct Arrived<'a> {
    params: Mutex<BTreeMap<String, Kept>>,
    compute: Compute,
    wanted: u64,
    progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl Sink for Arrived<'_> {
    fn accept(&self, param: &Param, bytes: &[u8]) -> Result<(), SinkError> {
        let kept = match param.shape[..] {
            [rows, columns] => {
                let matrix = Matrix::new(param.dtype, rows as usize, columns as usize, bytes, self.compute);
                Kept::Matrix(matrix.ok_or("its bytes are not those of its shape")?)
            }
            _ => Kept::Vector(vector(param, bytes).ok_or("its bytes are not those of its shape")?),
        };
        self.params.lock().map_err(|e| e.to_string())?.insert(param.name.clone(), kept);
        (self.progress)(bytes.len() as u64, self.wanted);
        Ok(())
    }
}

/// Loads a stage's part over a transport that its checkpoint's sessions are registered with. `progress` is told the bytes
/// of each parameter that arrives, and those of all; first, before any is read, that none has.
///
/// # Errors
/// [`WeightsError`], before anything is computed with.
pub fn load(
    source: &Source,
    part: &StagePart,
    compute: Compute,
    transport: &dyn Transport,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Weights, WeightsError> {
    let captured = load_stage(&source.config, source.naming, part, &source.table)?;
    if let Some(other) = captured.params.iter().find(|p| !KNOWN.contains(&p.dtype)) {
        return Err(WeightsError::Dtype { param: other.name.clone(), dtype: other.dtype });
    }
    let catalog = source.checkpoint.catalog()?;
    let strided = transport.abilities().gathers;
    let receiver = Receiver::prepare(&captured, &catalog, &Limits { strided, ..Limits::default() })?;
    if let Some(refusal) = receiver.plan().refused.first() {
        return Err(WeightsError::Refused(Box::new(refusal.clone())));
    }
    let wanted = receiver.plan().param_bytes();
    progress(0, wanted);
    let arrived = Arrived { params: Mutex::default(), compute, wanted, progress };
    let report = receiver.pull_each(transport, WAVE_BYTES, &arrived)?;
    let params = arrived.params.into_inner().unwrap_or_else(|e| e.into_inner());
    let bytes = params.values().map(Kept::bytes).sum();
    let mut shelf = Shelf(params);
    let mut blocks = Vec::new();
    for i in part.blocks.clone() {
        blocks.push(shelf.block(i)?);
    }
    Ok(Weights {
        embedding: shelf.optional("model.embed_tokens.weight", Shelf::matrix)?,
        blocks,
        norm: shelf.optional("model.norm.weight", Shelf::vector)?,
        head: shelf.optional("lm_head.weight", Shelf::matrix)?,
        rope_factors: shelf.optional(ROPE_FREQS, Shelf::vector)?,
        bytes,
        report,
    })
}

/// Parameters that have arrived and are taken off one by one.
struct Shelf(BTreeMap<String, Kept>);

impl Shelf {
    fn block(&mut self, i: i64) -> Result<Block, WeightsError> {
        let name = |end: &str| format!("model.layers.{i}.{end}");
        let norms = ["q_norm", "k_norm"].map(|n| name(&format!("self_attn.{n}.weight")));
        let head_norms = match self.0.contains_key(&norms[0]) {
            true => Some([self.vector(&norms[0])?, self.vector(&norms[1])?]),
            false => None,
        };
        Ok(Block {
            attention_norm: self.vector(&name("input_layernorm.weight"))?,
            q: self.linear(&name("self_attn.q_proj"))?,
            k: self.linear(&name("self_attn.k_proj"))?,
            v: self.linear(&name("self_attn.v_proj"))?,
            o: self.linear(&name("self_attn.o_proj"))?,
            head_norms,
            mlp_norm: self.vector(&name("post_attention_layernorm.weight"))?,
            gate: self.linear(&name("mlp.gate_proj"))?,
            up: self.linear(&name("mlp.up_proj"))?,
            down: self.linear(&name("mlp.down_proj"))?,
        })
    }

    fn optional<T>(
        &mut self,
        name: &str,
        take: impl Fn(&mut Self, &str) -> Result<T, WeightsError>,
    ) -> Result<Option<T>, WeightsError> {
        if self.0.contains_key(name) { take(self, name).map(Some) } else { Ok(None) }
    }

    fn linear(&mut self, name: &str) -> Result<Linear, WeightsError> {
        Ok(Linear {
            weight: self.matrix(&format!("{name}.weight"))?,
            bias: self.optional(&format!("{name}.bias"), Shelf::vector)?,
        })
    }

    fn matrix(&mut self, name: &str) -> Result<Matrix, WeightsError> {
        match self.0.remove(name) {
            Some(Kept::Matrix(matrix)) => Ok(matrix),
            _ => Err(incomplete(name)),
        }
    }

    fn vector(&mut self, name: &str) -> Result<Vec<f32>, WeightsError> {
        match self.0.remove(name) {
            Some(Kept::Vector(vector)) => Ok(vector),
            _ => Err(incomplete(name)),
        }
    }
}

/// Every parameter of the plan was handed over whole, or the pull had failed.
fn incomplete(name: &str) -> WeightsError {
    WeightsError::Pull(PullError::Incomplete { params: vec![name.to_owned()] })
}

impl Kept {
    fn bytes(&self) -> u64 {
        match self {
            Kept::Matrix(matrix) => matrix.bytes(),
            Kept::Vector(vector) => size_of_val(&vector[..]) as u64,
        }
    }
}

/// The elements of a parameter; `None` where the bytes are not those of its shape.
fn vector(param: &Param, bytes: &[u8]) -> Option<Vec<f32>> {
    let numel: i64 = param.shape.iter().product();
    (param.dtype.bytes(numel as u64)? == bytes.len() as u64).then(|| {
        let mut out = vec![0.0; numel as usize];
        row_to_f32(param.dtype, bytes, &mut out);
        out
    })
}
