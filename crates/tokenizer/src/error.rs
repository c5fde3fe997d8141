//! What can be wrong with a tokenizer, or with what it is asked.

use thiserror::Error;

/// A tokenizer that cannot be made, or a question that it has no answer to.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// Something that is needed is not there.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A kind of vocabulary that is not known.
    #[error("tokenizer.ggml.model: {found:?} is not known; known are gpt2 and llama")]
    Model {
        /// What is there.
        found: String,
    },
    /// A way of splitting text that is not known.
    #[error("tokenizer.ggml.pre: {found:?} is not known; known are {}", crate::gguf::known_pre())]
    Pre {
        /// What is there.
        found: String,
    },
    /// Lists that belong together and differ in length.
    #[error("{what}: expected {expected} entries, found {found}")]
    Length {
        /// The list.
        what: &'static str,
        /// Entries of the tokens' list.
        expected: usize,
        /// Its entries.
        found: usize,
    },
    /// An entry that makes no sense.
    #[error("{what}: {found:?} {problem}")]
    Entry {
        /// The list.
        what: &'static str,
        /// The entry.
        found: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A `tokenizer.json` that is not read.
    #[error("tokenizer.json: {0}")]
    Json(String),
    /// A text without tokens in this vocabulary.
    #[error("cannot be tokenized: {0}")]
    Encode(String),
    /// An id past the vocabulary.
    #[error("token {id} of a vocabulary of {size} does not exist")]
    NoSuchToken {
        /// The id.
        id: u32,
        /// Number of tokens.
        size: u32,
    },
}
