//! What a model must offer to be served as a stage.

use thiserror::Error;

use crate::Sampling;

/// A stage's model. One thread owns it and runs one op at a time.
///
/// The worker has checked before it asks: the role, the fields, that token ids are below
/// [`Description::token_limit`], that a hidden state is `seq_len * hidden_dim` elements long, and, where
/// [`Positions::Continue`] is asked for, that the position is the sequence's length and that the end is within
/// the context. So an engine sees only ops that fit.
///
/// What a sequence keeps between ops (its KV cache) is a value of [`Engine::Sequence`], which the worker holds: one
/// per sequence, so that interleaved sequences cannot meet. Dropping it is the reset.
///
/// The law for errors: an op that returns one has left its sequence as it was. After a panic the worker drops the
/// sequence and keeps the engine.
pub trait Engine {
    /// What one sequence keeps between ops.
    type Sequence;

    /// What there is to know about the model. It does not change.
    fn description(&self) -> &Description;

    /// An empty sequence. It is asked for at a sequence's first forwarding op.
    ///
    /// # Errors
    ///
    /// There is no room for another one.
    fn start(&mut self) -> Result<Self::Sequence, EngineError>;

    /// Appends the token ids of a text. What spells a control token in it is text, unless `parse_special` says that a
    /// template has put it there.
    ///
    /// # Errors
    ///
    /// The text has no tokens in this model.
    fn tokenize(
        &mut self,
        prompt: &str,
        parse_special: bool,
        tokens: &mut Vec<u64>,
    ) -> Result<(), EngineError>;

    /// Appends the text of token ids.
    ///
    /// # Errors
    ///
    /// An id has no text.
    fn detokenize(&mut self, tokens: &[u64], text: &mut String) -> Result<(), EngineError>;

    /// Appends the text that token ids make whole after those that the sequence was given here before. The bytes of a
    /// character that is not whole yet are the sequence's to keep, or appended as U+FFFD where `partial` says so.
    /// [`truncate`](Self::truncate) forgets them.
    ///
    /// # Errors
    ///
    /// An id has no text; the sequence is as it was.
    fn detokenize_next(
        &mut self,
        sequence: &mut Self::Sequence,
        tokens: &[u64],
        partial: Partial,
        text: &mut String,
    ) -> Result<(), EngineError>;

    /// Embeds the tokens, runs this stage's blocks, and appends `tokens.len() * hidden_dim` elements.
    ///
    /// # Errors
    ///
    /// The model failed; the sequence is as it was.
    fn embed_and_forward(
        &mut self,
        sequence: &mut Self::Sequence,
        position: u64,
        tokens: &[u64],
        hidden: &mut Vec<u8>,
    ) -> Result<(), EngineError>;

    /// Runs this stage's blocks over `input` (`seq_len * hidden_dim` elements) and appends as many.
    ///
    /// # Errors
    ///
    /// The input is not finite, or the model failed; the sequence is as it was.
    fn forward_range(
        &mut self,
        sequence: &mut Self::Sequence,
        position: u64,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), EngineError>;

    /// Runs this stage's blocks and the head over `input`, and chooses the token after its last position.
    ///
    /// # Errors
    ///
    /// The input or a logit is not finite, or the model failed; the sequence is as it was.
    fn forward_and_sample(
        &mut self,
        sequence: &mut Self::Sequence,
        position: u64,
        input: &[u8],
        sampling: &Sampling,
    ) -> Result<u64, EngineError>;

    /// Forgets everything from position `length` on, which is at most the sequence's length.
    ///
    /// # Errors
    ///
    /// The model cannot forget that; the sequence is as it was.
    fn truncate(&mut self, sequence: &mut Self::Sequence, length: u64) -> Result<(), EngineError>;

    /// Bytes of memory that a sequence holds.
    fn sequence_bytes(&self, sequence: &Self::Sequence) -> u64;

    /// Bytes of memory that the weights hold.
    fn weight_bytes(&self) -> u64;

    /// Bytes of the model that were read to load this stage's part.
    fn read_bytes(&self) -> u64 {
        0
    }
}

/// What becomes of the bytes of a character that is not whole yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partial {
    /// They are kept until the rest has come.
    Keep,
    /// They are the end of the text.
    Flush,
}

/// What there is to know about a model before it is asked anything.
#[derive(Debug, Clone)]
pub struct Description {
    /// Elements of one position's hidden state.
    pub hidden_dim: u32,
    /// The dtype of a hidden state's elements on the wire, as in `bf16`, `f16` or `f32`.
    pub hidden_dtype: &'static str,
    /// Bytes of one of these elements.
    pub element_bytes: u64,
    /// Number of token ids that may be sampled.
    pub vocab_size: u64,
    /// Token ids that are given must be below it; none: any id goes.
    pub token_limit: Option<u64>,
    /// What positions an op may have.
    pub positions: Positions,
    /// Ops take microseconds, so that replies may leave together while more requests wait. An engine with a model says
    /// no, and each reply leaves before the next op begins.
    pub quick: bool,
    /// The model, where there is one.
    pub model: Option<Model>,
}

/// What positions a forwarding op may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// Any: there is no cache that it must continue.
    Any,
    /// The sequence's length, or 0, which starts the sequence anew.
    Continue,
}

/// A model that a stage has loaded its part of.
#[derive(Debug, Clone)]
pub struct Model {
    /// Blocks of the whole model.
    pub total_blocks: u64,
    /// First block of this stage, and the one after its last.
    pub layer_range: (u64, u64),
    /// Token ids that end a text.
    pub eos_token_ids: Vec<u64>,
    /// Positions that a sequence can have.
    pub max_context: u64,
    /// A digest of the model's configuration and weights: stages of one pipeline must agree on it.
    pub digest: String,
}

/// Why an engine did not do an op.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A NaN or an infinity where a finite number must be.
    #[error("{what} is not finite at element {element}")]
    NotFinite {
        /// What holds it, as in "the hidden state".
        what: &'static str,
        /// The element's place in it.
        element: u64,
    },
    /// A number that cannot be passed on or chosen by, in words: NaN, an infinity, or more than the wire's dtype holds.
    #[error("{0}")]
    Number(String),
    /// There is no memory left for it.
    #[error("{wanted} bytes are needed, {available} are left")]
    OutOfMemory {
        /// Bytes the op needs.
        wanted: u64,
        /// Bytes that are left.
        available: u64,
    },
    /// The model cannot do it.
    #[error("{0}")]
    Failed(String),
}
