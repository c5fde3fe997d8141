//! Rotary position embedding: each pair of a head's elements turns by the position times its frequency.
//!
//! Element `i` of the first half of a head pairs with element `i` of the second. The frequency of pair `i` of `n` is
//! `theta^(-i/n)`, scaled as the config says.

/// How frequencies are scaled for longer contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    /// All by the same factor: positions are divided by it.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3: long wavelengths by the factor, short ones not at all, and those between by parts of it. The formula is that
    /// of transformers' `_compute_llama3_parameters`.
    Llama3 {
        /// The factor.
        factor: f64,
        /// The original context over this is the wavelength from which on the factor applies in full.
        low_freq_factor: f64,
        /// The original context over this is the wavelength up to which it does not apply.
        high_freq_factor: f64,
        /// The context before it was lengthened, in positions.
        original_context: f64,
    },
}

/// The frequency of each pair, in radians a position. `factors` divide them where the checkpoint brings them along.
pub fn frequencies(
    head_dim: usize,
    theta: f64,
    scaling: Option<Scaling>,
    factors: Option<&[f32]>,
) -> Vec<f32> {
    let pairs = head_dim / 2;
    (0..pairs)
        .map(|i| {
            let plain = theta.powf(-(i as f64) / pairs as f64);
            let scaled = match scaling {
                None => plain,
                Some(Scaling::Linear { factor }) => plain / factor,
                Some(Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context }) => {
                    let wavelength = 2.0 * std::f64::consts::PI / plain;
                    if wavelength < original_context / high_freq_factor {
                        plain
                    } else if wavelength > original_context / low_freq_factor {
                        plain / factor
                    } else {
                        let between = high_freq_factor - low_freq_factor;
                        let smooth = (original_context / wavelength - low_freq_factor) / between;
                        (1.0 - smooth) * plain / factor + smooth * plain
                    }
                }
            };
            (scaled / factors.map_or(1.0, |f| f64::from(f[i]))) as f32
        })
        .collect()
}

/// Cosines and sines of each pair at a position.
pub fn angles(frequencies: &[f32], position: u64, cos: &mut [f32], sin: &mut [f32]) {
    for ((f, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
        // The product as an f32, as the models were trained with; its sine and cosine exact.
        let angle = f64::from(position as f32 * f);
        (*cos, *sin) = (angle.cos() as f32, angle.sin() as f32);
    }
}

/// Turns one head.
pub fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_from_one_and_scale() {
        let plain = frequencies(8, 10_000.0, None, None);
        assert_eq!(plain, [1.0, 0.1, 0.01, 0.001]);
        assert_eq!(frequencies(8, 10_000.0, Some(Scaling::Linear { factor: 2.0 }), None)[1], 0.05);
        assert_eq!(frequencies(8, 10_000.0, None, Some(&[1.0, 2.0, 4.0, 8.0]))[3], 0.000_125);
        let llama = Scaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 1000.0,
        };
        let scaled = frequencies(8, 10_000.0, Some(llama), None);
        // Wavelengths 6.3, 63, 628 and 6283 of a context of 1000: two stay, one is between, one is slowed in full.
        assert_eq!((scaled[0], scaled[1], scaled[3]), (1.0, 0.1, 0.000_125));
        let smooth = (1000.0 / (2.0 * std::f64::consts::PI / 0.01) - 1.0) / 3.0;
        assert_eq!(scaled[2], ((1.0 - smooth) * 0.01 / 8.0 + smooth * 0.01) as f32);
    }

    #[test]
    fn a_turn_keeps_lengths_and_position_0_turns_nothing() {
        let f = frequencies(4, 100.0, None, None);
        let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
        let mut head = [1.0, 2.0, 3.0, 4.0];
        angles(&f, 0, &mut cos, &mut sin);
        rotate(&mut head, &cos, &sin);
        assert_eq!(head, [1.0, 2.0, 3.0, 4.0]);
        angles(&f, 5, &mut cos, &mut sin);
        rotate(&mut head, &cos, &sin);
        assert!((head[0].hypot(head[2]) - 10f32.sqrt()).abs() < 1e-5);
    }
}
