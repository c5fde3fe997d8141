//! Tokenizers of decoder models: text to token ids, and ids back to text, all at once or as they come.
//!
//! - [`Tokenizer`]: from the vocabulary of a GGUF file ([`GgufVocab`]) or from a `tokenizer.json`.
//! - [`Stream`]: text of tokens that come one by one; bytes of a character that is not whole yet are held back.
//!
//! Text is text: what spells a control token is tokenized as the letters that it has, unless the caller says that a template
//! has put it there. A beginning-of-text token is added where the model asks for one, once.
//!
//! Splitting and merging is done by the `tokenizers` crate. This one knows how a vocabulary is to be read, and which
//! bytes a token stands for.

mod control;
mod error;
mod gguf;
mod json;
mod pieces;
mod stream;

pub use error::TokenizerError;
pub use gguf::GgufVocab;
pub use stream::Stream;

use control::{Control, Part};
use pieces::Pieces;

/// A tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Pieces,
    control: Control,
    /// Put before every text, where the inner one does not do it by itself.
    prefix: Option<u32>,
    bos: Option<u32>,
    eos: Vec<u32>,
}

impl Tokenizer {
    /// Appends the ids of a text. What spells a control token is text.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] where the vocabulary has no way to write a part of it.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        ids.extend(self.prefix);
        self.append(text, true, ids)
    }

    /// Appends the ids of a text in which what spells a control token is that token: one that a chat template has made.
    /// A beginning-of-text token that the text has itself is not put before it again.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_control(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut parts = self.control.split(text).peekable();
        let begins = matches!(parts.peek(), Some(Part::Token(id)) if Some(*id) == self.bos);
        if !begins {
            ids.extend(self.prefix);
            if !matches!(parts.peek(), Some(Part::Text(_))) {
                self.append("", true, ids)?;
            }
        }
        let mut first = !begins;
        for part in parts {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(text) => self.append(text, first, ids)?,
            }
            first = false;
        }
        Ok(())
    }

    /// Appends the ids of a text; `first` has the inner tokenizer add what it puts before a text.
    fn append(&self, text: &str, first: bool, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let encoded = self.inner.encode(text, first).map_err(|e| TokenizerError::Encode(e.to_string()))?;
        ids.extend(encoded.get_ids());
        Ok(())
    }

    /// Appends the bytes of a token: none for a control token, one for a byte of a character, and so on.
    ///
    /// # Errors
    /// [`TokenizerError::NoSuchToken`] for an id past the vocabulary.
    pub fn bytes(&self, id: u32, bytes: &mut Vec<u8>) -> Result<(), TokenizerError> {
        let piece = self.pieces.get(id).ok_or(TokenizerError::NoSuchToken { id, size: self.vocab_size() })?;
        bytes.extend_from_slice(piece);
        Ok(())
    }

    /// The text of tokens. Bytes that make no character become U+FFFD.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let mut bytes = Vec::new();
        ids.iter().try_for_each(|&id| self.bytes(id, &mut bytes))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Number of tokens. A model's head may be wider: ids from here on are padding and stand for nothing.
    pub fn vocab_size(&self) -> u32 {
        self.pieces.len()
    }

    /// The token at the beginning of a text, where the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The tokens that end a text or a turn, ascending.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// Adds tokens that end a text, as a `generation_config.json` lists them.
    pub fn add_eos(&mut self, ids: impl IntoIterator<Item = u32>) {
        self.eos.extend(ids);
        self.eos.sort_unstable();
        self.eos.dedup();
    }
}
