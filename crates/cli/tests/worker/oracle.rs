//! What the stub must answer, computed here from its definition.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Numbers in a fixed order that looks like none.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    /// Numbers of any size up to 64 bits, small ones as often as large ones.
    pub fn any_size(&mut self) -> u64 {
        let bits = self.below(65) as u32;
        self.next().checked_shr(64 - bits).unwrap_or(0)
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

fn sha(parts: &[&[u8]]) -> [u8; 32] {
    Sha256::digest(parts.concat()).into()
}

fn stretched(seed: [u8; 32], bytes: usize) -> Vec<u8> {
    let blocks = (0u64..).map(|counter| sha(&[&seed, &counter.to_le_bytes()]));
    blocks.flatten().take(bytes).collect()
}

pub fn hidden(tokens: &[u64], position: u64) -> Vec<u8> {
    let tokens_text: Vec<String> = tokens.iter().map(u64::to_string).collect();
    let text = format!("pp-stub:{position}|{}", tokens_text.join(","));
    stretched(sha(&[text.as_bytes()]), 32 * tokens.len())
}

pub fn forward_range(hidden: &[u8], position: u64) -> Vec<u8> {
    stretched(sha(&[b"pp-stub-fr:", &position.to_le_bytes(), hidden]), hidden.len())
}

pub fn token(hidden: &[u8], position: u64) -> u64 {
    let digest = sha(&[b"pp-stub-sample:", &position.to_le_bytes(), hidden]);
    u64::from(u32::from_le_bytes(digest[..4].try_into().unwrap())) % 32
}

pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub fn unbase64(text: &serde_json::Value) -> Vec<u8> {
    STANDARD.decode(text.as_str().unwrap()).unwrap()
}
