//! Bytes that are written in hexadecimal: constants and digests.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// Bytes of the longest constant: those of the widest element.
const MAX_ELEMENT_BYTES: usize = 16;

/// Hexadecimal digits of a SHA-256.
const SHA256_DIGITS: usize = 64;

/// Text that is not as expected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HexError {
    /// Not the bytes of one element.
    #[error("expected the bytes of one element in lower-case hexadecimal, found {0:?}")]
    Element(String),
    /// Not a digest.
    #[error("expected \"sha256:\" and 64 lower-case hexadecimal digits, found {0:?}")]
    Digest(String),
}

/// The bytes of one element, two hexadecimal digits each, in the order of the memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ElementBytes(pub Vec<u8>);

impl TryFrom<String> for ElementBytes {
    type Error = HexError;

    fn try_from(text: String) -> Result<Self, HexError> {
        let digits: Option<Vec<u8>> = text.bytes().map(digit).collect();
        match digits {
            Some(d) if !d.is_empty() && d.len().is_multiple_of(2) && d.len() <= 2 * MAX_ELEMENT_BYTES => {
                Ok(ElementBytes(d.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()))
            }
            _ => Err(HexError::Element(shortened(text))),
        }
    }
}

impl From<ElementBytes> for String {
    fn from(element: ElementBytes) -> String {
        element.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The digest of a shard's bytes: `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl TryFrom<String> for Digest {
    type Error = HexError;

    fn try_from(text: String) -> Result<Self, HexError> {
        let digits = text.strip_prefix("sha256:").unwrap_or("");
        let well_formed = digits.len() == SHA256_DIGITS && digits.bytes().all(|b| digit(b).is_some());
        if well_formed { Ok(Digest(text)) } else { Err(HexError::Digest(shortened(text))) }
    }
}

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Digest::from_hash(Sha256::digest(bytes).as_slice())
    }

    /// The digest that a hasher has come to.
    pub(crate) fn finish(hasher: Sha256) -> Self {
        Digest::from_hash(hasher.finalize().as_slice())
    }

    fn from_hash(hash: &[u8]) -> Self {
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Digest(format!("sha256:{digits}"))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// Enough of a text to recognise it.
fn shortened(text: String) -> String {
    match text.char_indices().nth(2 * SHA256_DIGITS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_pairs_of_digits() {
        let read = |text: &str| ElementBytes::try_from(text.to_owned());
        assert_eq!(read("00ff803f"), Ok(ElementBytes(vec![0, 0xff, 0x80, 0x3f])));
        assert_eq!(String::from(ElementBytes(vec![0, 0xff, 0x0a])), "00ff0a");
        for bad in ["", "0", "0g", "FF", "0x00", "00é", &"00".repeat(17)] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn digests_have_one_form() {
        let read = |text: String| Digest::try_from(text);
        let good = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(read(good.clone()).unwrap().to_string(), good);
        for bad in
            [String::new(), "0a".repeat(32), good.to_uppercase(), good.replace("256", "512"), good + "0"]
        {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }
}
