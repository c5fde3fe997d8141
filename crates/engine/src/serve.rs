//! A stage as a worker's engine: tokens and hidden states as the protocol has them.

use half::f16;
use restage_model::StagePart;
use restage_tokenizer::{Stream, Tokenizer};
use restage_transport::Transport;
use restage_worker::{Description, Engine, EngineError, Model, Partial, Positions, Sampling};
use thiserror::Error;

use crate::cache::{Budget, Cache, KvDtype, NoRoom};
use crate::forward::Stage;
use crate::matrix::Compute;
use crate::sampler::choose;
use crate::source::Source;
use crate::weights::{WeightsError, load};

/// What hidden states are on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HiddenDtype {
    /// Half precision: what does not fit is refused.
    #[default]
    F16,
    /// As they are computed.
    F32,
}

/// How a stage is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServeOptions {
    /// What hidden states are on the wire.
    pub hidden: HiddenDtype,
    /// What products are computed in.
    pub compute: Compute,
    /// What keys and values are kept as.
    pub kv: KvDtype,
    /// Bytes that all caches may take together.
    pub kv_budget: u64,
    /// Positions that a sequence may have, if that is less than what the model says.
    pub max_context: u64,
}

/// A stage that cannot be served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Its weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A size of the model that the protocol cannot tell.
    #[error("{what} {found} is too large for a worker")]
    Size {
        /// Which.
        what: &'static str,
        /// Its value.
        found: i64,
    },
}

/// One stage of a model that answers a worker's ops.
#[derive(Debug)]
pub struct StageEngine {
    stage: Stage,
    source: Source,
    options: ServeOptions,
    budget: Budget,
    description: Description,
    /// Ids from here on are padding of the head.
    vocab: usize,
}

/// What a sequence keeps.
#[derive(Debug)]
pub struct Sequence {
    cache: Cache,
    /// Tokens that this stage has chosen, with the position of each.
    chosen: Vec<(u64, u64)>,
    /// Text of tokens as they come.
    text: Stream,
}

impl StageEngine {
    /// Loads a stage's part of a model over a transport that knows its checkpoint's sessions.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn load(
        source: Source,
        part: &StagePart,
        options: ServeOptions,
        transport: &dyn Transport,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Self, ServeError> {
        let config = &source.config;
        let too_large = |what, found| move |_| ServeError::Size { what, found };
        let hidden_dim =
            u32::try_from(config.hidden_size).map_err(too_large("hidden_size", config.hidden_size))?;
        let rows = config.vocab_size as u64;
        let known = source.tokenizer.as_ref().map_or(rows, |t| u64::from(t.vocab_size()));
        let vocab = rows.min(known);
        let weights = load(&source, part, options.compute, transport, progress)?;
        let stage = Stage::new(config, &source.numerics, weights);
        let max_context = source.numerics.max_context.min(options.max_context);
        let description = Description {
            hidden_dim,
            hidden_dtype: match options.hidden {
                HiddenDtype::F16 => "f16",
                HiddenDtype::F32 => "f32",
            },
            element_bytes: options.hidden.bytes() as u64,
            vocab_size: vocab,
            token_limit: Some(vocab),
            positions: Positions::Continue,
            quick: false,
            model: Some(Model {
                total_blocks: config.num_hidden_layers as u64,
                layer_range: (part.blocks.start as u64, part.blocks.end as u64),
                eos_token_ids: source.eos.iter().map(|&id| u64::from(id)).collect(),
                max_context,
                digest: source.digest(),
            }),
        };
        let budget = Budget::new(options.kv_budget);
        Ok(StageEngine { stage, source, options, budget, description, vocab: vocab as usize })
    }

    /// The stage itself.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Runs the blocks over a hidden state, in place, and keeps its keys and values.
    fn run(&self, sequence: &mut Sequence, hidden: &mut [f32]) -> Result<(), EngineError> {
        let full = |NoRoom { wanted, left }| EngineError::OutOfMemory { wanted, available: left };
        self.stage.forward(hidden, &mut sequence.cache).map_err(full)
    }

    fn tokenizer(&self) -> Result<&Tokenizer, EngineError> {
        let none = || EngineError::Failed("the model has no tokenizer.json beside its weights".to_owned());
        self.source.tokenizer.as_ref().ok_or_else(none)
    }

    fn width(&self) -> usize {
        self.description.hidden_dim as usize
    }

    /// Takes what was computed for good, or as if it had not been.
    fn settle<T>(
        &self,
        sequence: &mut Sequence,
        positions: usize,
        done: Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        match done {
            Ok(_) => sequence.cache.commit(positions),
            Err(_) => sequence.cache.truncate(usize::MAX),
        }
        done
    }

    /// A hidden state from the wire. Only finite numbers come in.
    fn read(&self, position: u64, input: &[u8]) -> Result<Vec<f32>, EngineError> {
        let hidden: Vec<f32> = match self.options.hidden {
            HiddenDtype::F16 => {
                input.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
            }
            HiddenDtype::F32 => input.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        };
        self.finite(position, &hidden, "the hidden state that came", f32::MAX)?;
        Ok(hidden)
    }

    /// Appends a hidden state as it goes to the next stage.
    fn write(&self, position: u64, hidden: &[f32], out: &mut Vec<u8>) -> Result<(), EngineError> {
        match self.options.hidden {
            HiddenDtype::F16 => {
                self.finite(position, hidden, "the hidden state", f16::MAX.to_f32())?;
                out.extend(hidden.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()));
            }
            HiddenDtype::F32 => {
                self.finite(position, hidden, "the hidden state", f32::MAX)?;
                out.extend(hidden.iter().flat_map(|x| x.to_le_bytes()));
            }
        }
        Ok(())
    }

    fn finite(&self, position: u64, hidden: &[f32], what: &str, most: f32) -> Result<(), EngineError> {
        // A NaN compares with nothing.
        let fits = |x: &f32| x.abs() <= most;
        let Some(at) = hidden.iter().position(|x| !fits(x)) else { return Ok(()) };
        let (row, element, found) = (at / self.width(), at % self.width(), hidden[at]);
        let position = position + row as u64;
        let why = match found.is_finite() {
            true => format!("does not fit {} (largest {most})", self.description.hidden_dtype),
            false => "is not finite".to_owned(),
        };
        Err(EngineError::Number(format!(
            "position {position}: element {element} of {what} is {found}, which {why}"
        )))
    }
}

impl HiddenDtype {
    fn bytes(self) -> usize {
        match self {
            HiddenDtype::F16 => 2,
            HiddenDtype::F32 => 4,
        }
    }
}

impl Engine for StageEngine {
    type Sequence = Sequence;

    fn description(&self) -> &Description {
        &self.description
    }

    fn start(&mut self) -> Result<Sequence, EngineError> {
        let blocks = self.stage.weights().blocks.len();
        let cache = Cache::new(blocks, self.stage.kv_width(), self.options.kv, &self.budget);
        Ok(Sequence { cache, chosen: Vec::new(), text: Stream::new() })
    }

    fn tokenize(
        &mut self,
        prompt: &str,
        parse_special: bool,
        tokens: &mut Vec<u64>,
    ) -> Result<(), EngineError> {
        let tokenizer = self.tokenizer()?;
        let mut ids = Vec::new();
        match parse_special {
            true => tokenizer.encode_with_control(prompt, &mut ids),
            false => tokenizer.encode(prompt, &mut ids),
        }
        .map_err(|e| EngineError::Failed(e.to_string()))?;
        tokens.extend(ids.into_iter().map(u64::from));
        Ok(())
    }

    fn detokenize(&mut self, tokens: &[u64], text: &mut String) -> Result<(), EngineError> {
        // Ids are below the vocabulary: the worker has checked.
        let ids: Vec<u32> = tokens.iter().map(|&t| t as u32).collect();
        text.push_str(&self.tokenizer()?.decode(&ids).map_err(|e| EngineError::Failed(e.to_string()))?);
        Ok(())
    }

    fn detokenize_next(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u64],
        partial: Partial,
        text: &mut String,
    ) -> Result<(), EngineError> {
        let tokenizer = self.tokenizer()?;
        let mut stream = sequence.text.clone();
        for &token in tokens {
            let whole = stream.push(tokenizer, token as u32);
            text.push_str(&whole.map_err(|e| EngineError::Failed(e.to_string()))?);
        }
        if partial == Partial::Flush {
            text.push_str(&stream.flush());
        }
        sequence.text = stream;
        Ok(())
    }

    fn embed_and_forward(
        &mut self,
        sequence: &mut Sequence,
        position: u64,
        tokens: &[u64],
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let embedded = self.stage.embed(tokens);
        let mut hidden =
            embedded.ok_or_else(|| EngineError::Failed("this stage has no embedding".to_owned()))?;
        let done = self.run(sequence, &mut hidden).and_then(|()| self.write(position, &hidden, out));
        self.settle(sequence, tokens.len(), done)
    }

    fn forward_range(
        &mut self,
        sequence: &mut Sequence,
        position: u64,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let mut hidden = self.read(position, input)?;
        let done = self.run(sequence, &mut hidden).and_then(|()| self.write(position, &hidden, out));
        self.settle(sequence, hidden.len() / self.width(), done)
    }

    fn forward_and_sample(
        &mut self,
        sequence: &mut Sequence,
        position: u64,
        input: &[u8],
        sampling: &Sampling,
    ) -> Result<u64, EngineError> {
        let mut hidden = self.read(position, input)?;
        let count = hidden.len() / self.width();
        let last = position + count as u64 - 1;
        let done = self.run(sequence, &mut hidden).and_then(|()| {
            let row = &hidden[(count - 1) * self.width()..];
            self.finite(last, row, "the hidden state", f32::MAX)?;
            let logits = self.stage.logits(row);
            let mut logits =
                logits.ok_or_else(|| EngineError::Failed("this stage has no head".to_owned()))?;
            let seen: Vec<u64> = sequence.chosen.iter().map(|(_, token)| *token).collect();
            let most = self.vocab.min(logits.len());
            let chosen = choose(&mut logits[..most], sampling, last, &seen);
            chosen.map_err(|e| EngineError::Number(format!("position {last}: {e}")))
        });
        let token = self.settle(sequence, count, done)?;
        sequence.chosen.push((last, token));
        Ok(token)
    }

    fn truncate(&mut self, sequence: &mut Sequence, length: u64) -> Result<(), EngineError> {
        sequence.cache.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        sequence.chosen.retain(|(position, _)| *position < length);
        sequence.text = Stream::new();
        Ok(())
    }

    fn sequence_bytes(&self, sequence: &Sequence) -> u64 {
        sequence.cache.bytes()
    }

    fn weight_bytes(&self) -> u64 {
        self.stage.weights().bytes
    }

    fn read_bytes(&self) -> u64 {
        self.stage.weights().report.bytes
    }
}
