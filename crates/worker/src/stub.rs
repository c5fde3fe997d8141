//! An engine without a model: every answer is a hash of the question.
//!
//! Drivers test themselves against it. Its answers are those of the stub that is in use today, byte for byte. With
//! `X(seed, n)` = SHA-256(seed || counter as u64 LE) for counter 0, 1, ..., joined and cut to n bytes:
//!
//! - hidden state of tokens: `X(SHA-256("pp-stub:" position "|" tokens joined by ","), 32 * len)`, all in decimal;
//! - hidden state of a hidden state: `X(SHA-256("pp-stub-fr:" position u64 LE, hidden), 32 * seq_len)`;
//! - token of a hidden state: the first 4 bytes LE of SHA-256("pp-stub-sample:" position u64 LE, hidden), mod 32;
//! - tokens of a text: the i-th word's code points summed, mod 1024, plus i; text of tokens: joined by spaces.

use sha2::{Digest, Sha256};

use crate::ascii::decimal;
use crate::engine::{Description, Engine, EngineError, Partial, Positions};
use crate::sampling::Sampling;

/// Elements of one position's hidden state.
pub const STUB_HIDDEN_DIM: u32 = 16;
/// Token ids that the stub samples: those below it.
pub const STUB_VOCAB: u64 = 32;

/// Bytes of one position's hidden state: one SHA-256 digest.
const POSITION_BYTES: usize = STUB_HIDDEN_DIM as usize * ELEMENT_BYTES;

/// Bytes of one of its elements.
const ELEMENT_BYTES: usize = 2;

/// The engine without a model. It has no cache, so it takes any position, and any token id.
#[derive(Debug)]
pub struct Stub {
    description: Description,
}

impl Stub {
    /// A stub.
    pub fn new() -> Self {
        let description = Description {
            hidden_dim: STUB_HIDDEN_DIM,
            hidden_dtype: "bf16",
            element_bytes: ELEMENT_BYTES as u64,
            vocab_size: STUB_VOCAB,
            token_limit: None,
            positions: Positions::Any,
            quick: true,
            model: None,
        };
        Stub { description }
    }
}

impl Default for Stub {
    fn default() -> Self {
        Stub::new()
    }
}

/// Whether a character parts words: Unicode's White_Space, and the four ASCII separators that the stub of today
/// counts among it.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Appends `positions` digests of the seed with a counter.
fn expand(seed: &[u8], positions: usize, out: &mut Vec<u8>) {
    out.reserve(positions * POSITION_BYTES);
    let mut block = [0; 40];
    block[..32].copy_from_slice(seed);
    for counter in 0..positions as u64 {
        block[32..].copy_from_slice(&counter.to_le_bytes());
        out.extend_from_slice(&Sha256::digest(block));
    }
}

impl Engine for Stub {
    type Sequence = ();

    fn description(&self) -> &Description {
        &self.description
    }

    fn start(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn tokenize(&mut self, prompt: &str, _: bool, tokens: &mut Vec<u64>) -> Result<(), EngineError> {
        let words = prompt.split(is_space).filter(|w| !w.is_empty());
        for (i, word) in words.enumerate() {
            let sum: u64 = word.chars().map(|c| u64::from(u32::from(c))).sum();
            tokens.push(sum % 1024 + i as u64);
        }
        Ok(())
    }

    fn detokenize(&mut self, tokens: &[u64], text: &mut String) -> Result<(), EngineError> {
        for (i, token) in tokens.iter().enumerate() {
            if i > 0 {
                text.push(' ');
            }
            let mut digits = [0; 20];
            text.extend(decimal(*token, &mut digits).iter().map(|b| char::from(*b)));
        }
        Ok(())
    }

    fn detokenize_next(
        &mut self,
        (): &mut (),
        tokens: &[u64],
        _partial: Partial,
        text: &mut String,
    ) -> Result<(), EngineError> {
        self.detokenize(tokens, text)
    }

    fn embed_and_forward(
        &mut self,
        (): &mut (),
        position: u64,
        tokens: &[u64],
        hidden: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let mut digits = [0; 20];
        let mut seed = Sha256::new_with_prefix(b"pp-stub:");
        seed.update(decimal(position, &mut digits));
        for (i, token) in tokens.iter().enumerate() {
            seed.update(if i == 0 { b"|" } else { b"," });
            seed.update(decimal(*token, &mut digits));
        }
        expand(&seed.finalize(), tokens.len(), hidden);
        Ok(())
    }

    fn forward_range(
        &mut self,
        (): &mut (),
        position: u64,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let seed = Sha256::new_with_prefix(b"pp-stub-fr:").chain_update(position.to_le_bytes());
        expand(&seed.chain_update(input).finalize(), input.len() / POSITION_BYTES, output);
        Ok(())
    }

    fn forward_and_sample(
        &mut self,
        (): &mut (),
        position: u64,
        input: &[u8],
        _sampling: &Sampling,
    ) -> Result<u64, EngineError> {
        let digest = Sha256::new_with_prefix(b"pp-stub-sample:").chain_update(position.to_le_bytes());
        let digest = digest.chain_update(input).finalize();
        Ok(u64::from(u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])) % STUB_VOCAB)
    }

    fn truncate(&mut self, (): &mut (), _length: u64) -> Result<(), EngineError> {
        Ok(())
    }

    fn sequence_bytes(&self, (): &()) -> u64 {
        0
    }

    fn weight_bytes(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn known_values() {
        let mut stub = Stub::new();
        let mut hidden = Vec::new();
        stub.embed_and_forward(&mut (), 0, &[1, 2, 3, 4, 5], &mut hidden).unwrap();
        assert_eq!((hidden.len(), hex(&hidden[..8])), (160, "61b3f144b519e5bc".into()));
        hidden.clear();
        stub.embed_and_forward(&mut (), 5, &[42], &mut hidden).unwrap();
        assert_eq!(hex(&hidden[..8]), "08d117a8d97fd777");
        let input: Vec<u8> = (0..32).collect();
        hidden.clear();
        stub.forward_range(&mut (), 11, &input, &mut hidden).unwrap();
        assert_eq!((hidden.len(), hex(&hidden[..8])), (32, "0526d97e0a1822b3".into()));
        for (position, token) in [(7, 28), (1, 0), (11, 7), (101, 21), (12345, 11), (999_999, 16)] {
            let found = stub.forward_and_sample(&mut (), position, &input, &Sampling::default());
            assert_eq!(found, Ok(token), "at {position}");
        }
    }

    #[test]
    fn words_and_ids() {
        let mut stub = Stub::new();
        let mut tokens = |text: &str| {
            let mut tokens = Vec::new();
            stub.tokenize(text, false, &mut tokens).unwrap();
            tokens
        };
        assert_eq!(tokens("Say hello"), [301, 533]);
        assert_eq!(tokens(" \u{2003}Say\x1chello\u{a0}\u{85}"), [301, 533]);
        assert!(tokens("").is_empty());
        // A code point beyond the basic plane counts once and whole: 0x1f600 mod 1024 = 512.
        assert_eq!(tokens("\u{1f600}"), [512]);
        let mut text = String::new();
        Stub::new().detokenize(&[0, 31, u64::MAX], &mut text).unwrap();
        assert_eq!(text, "0 31 18446744073709551615");
    }
}
