//! How the last stage chooses a token.

use thiserror::Error;

/// What a request may ask of sampling. Absent fields are `None`; without a temperature, or with 0, sampling is
/// [`greedy`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sampling {
    /// Finite and at least 0.
    pub temperature: Option<f64>,
    /// Keep this many of the likeliest tokens; 0 keeps all.
    pub top_k: Option<u64>,
    /// Keep the likeliest tokens up to this much probability: over 0, at most 1.
    pub top_p: Option<f64>,
    /// Drop tokens less likely than this share of the likeliest: 0 to 1.
    pub min_p: Option<f64>,
    /// Divide the logits of tokens already seen by it: over 0.
    pub repeat_penalty: Option<f64>,
    /// Seed of the random draw.
    pub seed: Option<u64>,
}

impl Sampling {
    /// Whether the likeliest token is to be taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature.unwrap_or(0.0) == 0.0
    }
}

/// Why no token can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GreedyError {
    /// There are no logits.
    #[error("there are no logits to choose from")]
    Empty,
    /// A logit is NaN.
    #[error("the logit of token {token} is NaN")]
    NotANumber {
        /// The first token with one.
        token: usize,
    },
}

/// The token with the largest logit; the lowest one where several share it.
///
/// ```
/// use restage_worker::greedy;
/// assert_eq!(greedy(&[0.5, 2.0, 2.0]), Ok(1));
/// assert!(greedy(&[f32::NAN, 2.0]).is_err());
/// ```
///
/// # Errors
///
/// No logits, or one that is NaN.
pub fn greedy(logits: &[f32]) -> Result<u64, GreedyError> {
    if let Some(token) = logits.iter().position(|l| l.is_nan()) {
        return Err(GreedyError::NotANumber { token });
    }
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    if logits.is_empty() { Err(GreedyError::Empty) } else { Ok(best as u64) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn edges() {
        assert_eq!(greedy(&[]), Err(GreedyError::Empty));
        assert_eq!(greedy(&[f32::NEG_INFINITY; 3]), Ok(0));
        assert_eq!(greedy(&[-0.0, 0.0]), Ok(0));
        assert_eq!(greedy(&[1.0, f32::NAN, f32::NAN]), Err(GreedyError::NotANumber { token: 1 }));
        assert_eq!(greedy(&[1.0, f32::INFINITY]), Ok(1));
    }

    proptest! {
        #[test]
        fn the_lowest_of_the_largest(logits in prop::collection::vec((-4..4i8).prop_map(f32::from), 1..40)) {
            let token = greedy(&logits).unwrap() as usize;
            prop_assert!(logits.iter().all(|l| *l <= logits[token]));
            prop_assert!(logits[..token].iter().all(|l| *l < logits[token]));
        }
    }
}
