//! Which token comes next.
//!
//! In this order: tokens that were sampled before are made less likely, the likeliest `top_k` are kept, of these the
//! likeliest up to `top_p` of the probability, of these the ones at least `min_p` times as likely as the likeliest; what is
//! left is drawn from at the temperature. The draw depends on the seed and the position alone, so that the same request gets
//! the same token again; without a seed it is 0.

use restage_worker::{GreedyError, Sampling, greedy};
use sha2::{Digest, Sha256};

/// Chooses a token among the logits. `seen` are the tokens that a repeat penalty is for.
///
/// # Errors
/// [`GreedyError`]: no logits, or one that is NaN.
pub fn choose(
    logits: &mut [f32],
    sampling: &Sampling,
    position: u64,
    seen: &[u64],
) -> Result<u64, GreedyError> {
    if let Some(penalty) = sampling.repeat_penalty {
        let mut seen = seen.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                // Less likely on either side of 0.
                *logit = if *logit > 0.0 { *logit / penalty as f32 } else { *logit * penalty as f32 };
            }
        }
    }
    let best = greedy(logits)?;
    if sampling.is_greedy() {
        return Ok(best);
    }
    let top = f64::from(logits[best as usize]);
    let temperature = sampling.temperature.unwrap_or(1.0);
    // The likeliest first, the lower token where two are equal.
    let mut left: Vec<(u64, f64)> = (0..).zip(logits.iter().map(|&l| f64::from(l))).collect();
    left.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if let Some(k) = sampling.top_k.filter(|&k| k > 0) {
        left.truncate(k.min(left.len() as u64) as usize);
    }
    let likely = |left: &[(u64, f64)], temperature: f64| -> Vec<f64> {
        let weights: Vec<f64> = left.iter().map(|(_, l)| ((l - top) / temperature).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|w| w / sum).collect()
    };
    if let Some(p) = sampling.top_p {
        let mut sum = 0.0;
        let enough = |share: &f64| {
            sum += share;
            sum >= p
        };
        let kept = likely(&left, 1.0).iter().position(enough).map_or(left.len(), |at| at + 1);
        left.truncate(kept);
    }
    if let Some(p) = sampling.min_p {
        left.retain(|(_, l)| (l - top).exp() >= p);
    }
    let mut rest = draw(sampling.seed.unwrap_or(0), position);
    for (share, (token, _)) in likely(&left, temperature).iter().zip(&left) {
        rest -= share;
        if rest < 0.0 {
            return Ok(*token);
        }
    }
    // Rounding has left a little of 1.
    Ok(left.last().map_or(best, |(token, _)| *token))
}

/// A number from 0 up to and without 1: 53 bits of a digest.
fn draw(seed: u64, position: u64) -> f64 {
    let digest =
        Sha256::new().chain_update(seed.to_le_bytes()).chain_update(position.to_le_bytes()).finalize();
    let bits = u64::from_le_bytes(std::array::from_fn(|i| digest[i])) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, 3.0, -1.0];

    fn of(sampling: Sampling, position: u64, seen: &[u64]) -> u64 {
        choose(&mut LOGITS.clone(), &sampling, position, seen).unwrap()
    }

    fn drawn(sampling: Sampling) -> std::collections::BTreeMap<u64, usize> {
        let mut counts = std::collections::BTreeMap::new();
        (0..4000).for_each(|position| *counts.entry(of(sampling, position, &[])).or_default() += 1);
        counts
    }

    #[test]
    fn greedy_takes_the_lowest_of_the_largest_and_the_penalty_moves_it() {
        assert_eq!(of(Sampling::default(), 0, &[]), 1);
        let penalty = Sampling { repeat_penalty: Some(2.0), ..Sampling::default() };
        assert_eq!(of(penalty, 0, &[1, 1]), 3);
        assert_eq!(of(penalty, 0, &[1, 3, 99]), 2);
        let mut bad = [0.0, f32::NAN];
        assert!(choose(&mut bad, &Sampling::default(), 0, &[]).is_err());
    }

    #[test]
    fn draws_follow_the_probabilities_and_the_seed() {
        let plain = Sampling { temperature: Some(1.0), seed: Some(7), ..Sampling::default() };
        let counts = drawn(plain);
        let sum: f32 = LOGITS.iter().map(|l| l.exp()).sum();
        for (token, logit) in LOGITS.iter().enumerate() {
            let expected = 4000.0 * logit.exp() / sum;
            let found = counts.get(&(token as u64)).copied().unwrap_or(0) as f32;
            assert!((found - expected).abs() < 4.0 * expected.sqrt() + 1.0, "{token}: {found}, {expected}");
        }
        assert_eq!(of(plain, 3, &[]), of(plain, 3, &[]));
        let other = Sampling { seed: Some(8), ..plain };
        assert!((0..100).any(|p| of(plain, p, &[]) != of(other, p, &[])));
    }

    #[test]
    fn each_limit_keeps_what_it_says() {
        let warm = Sampling { temperature: Some(50.0), seed: Some(1), ..Sampling::default() };
        let kept = |s: Sampling| drawn(s).into_keys().collect::<Vec<_>>();
        assert_eq!(kept(warm), [0, 1, 2, 3, 4]);
        assert_eq!(kept(Sampling { top_k: Some(3), ..warm }), [1, 2, 3]);
        assert_eq!(kept(Sampling { top_k: Some(0), ..warm }), [0, 1, 2, 3, 4]);
        // Shares are .055 .407 .150 .407 .007: two of them reach .8.
        assert_eq!(kept(Sampling { top_p: Some(0.8), ..warm }), [1, 3]);
        assert_eq!(kept(Sampling { top_p: Some(0.4), ..warm }), [1]);
        assert_eq!(kept(Sampling { min_p: Some(0.3), ..warm }), [1, 2, 3]);
        assert_eq!(kept(Sampling { min_p: Some(1.0), ..warm }), [1, 3]);
    }
}
