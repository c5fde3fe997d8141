//! The two 8-bit floats of torch: `float8_e4m3fn` and `float8_e5m2` (OCP 8-bit Floating Point Specification,
//! 1.0). Rounding is to the nearest value, ties to even.

/// One 8-bit format: sign, exponent, mantissa.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    /// Bits of the mantissa.
    mantissa: u32,
    /// Exponent of 1.0.
    bias: i32,
    /// Code of the largest finite value.
    max: u8,
    /// Code that a value past the largest one rounds to.
    over: u8,
    /// Code that infinity becomes.
    infinite: u8,
}

/// 4 exponent bits, 3 mantissa bits, no infinity, largest value 448. What is larger, infinity too, becomes the
/// largest value: so torch 2.15.0 casts, and the specification's saturating mode; older releases of torch gave
/// NaN there.
pub(crate) const E4M3FN: Format = Format { mantissa: 3, bias: 7, max: 0x7e, over: 0x7e, infinite: 0x7e };

/// 5 exponent bits, 2 mantissa bits, largest value 57344. What is larger becomes infinity, as IEEE 754 rounds.
pub(crate) const E5M2: Format = Format { mantissa: 2, bias: 15, max: 0x7b, over: 0x7c, infinite: 0x7c };

const NAN: u8 = 0x7f;
const SIGN: u8 = 0x80;

impl Format {
    /// The value of a code.
    pub(crate) fn decode(self, code: u8) -> f32 {
        let sign = if code & SIGN == 0 { 1.0 } else { -1.0 };
        let magnitude = code & !SIGN;
        if magnitude > self.max {
            let infinite = self.infinite != self.max && magnitude == self.infinite;
            return sign * if infinite { f32::INFINITY } else { f32::NAN };
        }
        let exponent = i32::from(magnitude >> self.mantissa);
        let fraction = u32::from(magnitude) & ((1 << self.mantissa) - 1);
        // Subnormals have the exponent of the smallest normal and no implied bit.
        let implied = if exponent == 0 { 0 } else { 1 << self.mantissa };
        let power = exponent.max(1) - self.bias - self.mantissa as i32;
        sign * (implied + fraction) as f32 * 2f32.powi(power)
    }

    /// The code nearest to a value.
    pub(crate) fn encode(self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { SIGN } else { 0 };
        if value.is_nan() {
            return sign | NAN;
        }
        if value.is_infinite() {
            return sign | self.infinite;
        }
        let bits = value.abs().to_bits();
        let drop = f32::MANTISSA_DIGITS - 1 - self.mantissa;
        let least = 1 - self.bias;
        let exponent = (bits >> (f32::MANTISSA_DIGITS - 1)) as i32 - 127;
        let code = if exponent >= least {
            // The exponent and the mantissa as one number: a carry of the rounding moves on by itself.
            let rebased = bits - (((127 - self.bias) as u32) << (f32::MANTISSA_DIGITS - 1));
            round_to_even(rebased, drop)
        } else {
            let implied = (bits & 0x007f_ffff) | 0x0080_0000;
            // An f32 subnormal lies far below half of the smallest code.
            let shift = drop + (least - exponent) as u32;
            if shift > 24 + 1 { 0 } else { round_to_even(implied, shift) }
        };
        sign | if code > u32::from(self.max) { self.over } else { code as u8 }
    }
}

/// `bits >> drop`, rounded to the nearest and to even between two.
fn round_to_even(bits: u32, drop: u32) -> u32 {
    let odd = (bits >> drop) & 1;
    (bits + (1 << (drop - 1)) - 1 + odd) >> drop
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [Format; 2] = [E4M3FN, E5M2];

    #[test]
    fn every_code_comes_back() {
        for format in FORMATS {
            for code in 0..=u8::MAX {
                let value = format.decode(code);
                let back = format.encode(value);
                assert!(back == code || (value.is_nan() && format.decode(back).is_nan()), "{code:#x}");
            }
        }
        assert_eq!((0..=u8::MAX).filter(|&c| E4M3FN.decode(c).is_nan()).count(), 2);
        assert_eq!((0..=u8::MAX).filter(|&c| E5M2.decode(c).is_nan()).count(), 6);
    }

    #[test]
    fn the_specification_s_values() {
        for (code, value) in [(0x7e, 448.0), (0x01, 2f32.powi(-9)), (0x08, 2f32.powi(-6)), (0x38, 1.0)] {
            assert_eq!(E4M3FN.decode(code), value);
        }
        for (code, value) in [(0x7b, 57344.0), (0x01, 2f32.powi(-16)), (0x04, 2f32.powi(-14)), (0x3c, 1.0)] {
            assert_eq!(E5M2.decode(code), value);
        }
    }

    /// Between any two neighbours: the middle goes to the even one, and a step to either side to the nearer.
    #[test]
    fn rounding_is_to_nearest_even() {
        for format in FORMATS {
            for low in 0..format.max {
                let middle = (format.decode(low) + format.decode(low + 1)) / 2.0;
                assert_eq!(format.encode(middle), low + (low & 1), "{low:#x}");
                assert_eq!(format.encode(f32::from_bits(middle.to_bits() - 1)), low);
                assert_eq!(format.encode(f32::from_bits(middle.to_bits() + 1)), low + 1);
                assert_eq!(format.encode(-middle), SIGN | (low + (low & 1)));
            }
        }
    }

    #[test]
    fn what_is_too_large_saturates_or_becomes_infinite() {
        let over = [449.0, 464.0, 465.0, 1e30, f32::MAX, f32::INFINITY];
        assert!(over.iter().all(|&v| E4M3FN.encode(v) == 0x7e && E4M3FN.encode(-v) == 0xfe));
        assert_eq!([61439.0, 61440.0, 1e30, f32::INFINITY].map(|v| E5M2.encode(v)), [0x7b, 0x7c, 0x7c, 0x7c]);
        assert_eq!([f32::MIN_POSITIVE, 1e-45, -0.0].map(|v| E5M2.encode(v)), [0, 0, SIGN]);
    }
}
