//! Text of tokens that come one by one.

use crate::{Tokenizer, TokenizerError};

/// The bytes of one sequence that are no whole character yet.
///
/// The law: what [`push`](Self::push) and at last [`flush`](Self::flush) give, joined, is [`Tokenizer::decode`] of all
/// tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stream {
    held: Vec<u8>,
}

impl Stream {
    /// A stream at its beginning.
    pub fn new() -> Self {
        Stream::default()
    }

    /// The text that a token completes. Bytes that can make no character any more become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::NoSuchToken`]; the stream is as it was.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TokenizerError> {
        tokenizer.bytes(id, &mut self.held)?;
        Ok(self.whole())
    }

    /// What is held, as U+FFFD for what is no character.
    pub fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }

    /// Takes out everything but the beginning of a character at the end.
    fn whole(&mut self) -> String {
        let mut text = String::new();
        let mut rest = &self.held[..];
        let kept = loop {
            match std::str::from_utf8(rest) {
                Ok(all) => {
                    text.push_str(all);
                    break &[][..];
                }
                Err(e) => {
                    let (good, bad) = rest.split_at(e.valid_up_to());
                    text.push_str(std::str::from_utf8(good).unwrap_or_default());
                    let Some(wrong) = e.error_len() else { break bad };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &bad[wrong..];
                }
            }
        };
        self.held = kept.to_vec();
        text
    }
}
