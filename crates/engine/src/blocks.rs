//! Weights as they are stored, one row to f32.
//!
//! The blocks are ggml's (`ggml-common.h`), little-endian; `d` and `m` are f16:
//!
//! | type | elements | bytes | element |
//! |---|---|---|---|
//! | Q4_0 | 32 | `d`, 16 of two quants each | `(q - 8) d`; the low nibbles are the first half |
//! | Q4_1 | 32 | `d`, `m`, 16 of two quants each | `q d + m`; as Q4_0 |
//! | Q8_0 | 32 | `d`, 32 signed quants | `q d` |
//! | Q4_K | 256 | `d`, `m`, 12 of scales, 128 of two quants each | `q d s - m t`: a 6-bit `s` and `t` for each 32 |
//! | Q6_K | 256 | 128 low nibbles, 64 of high bits, 16 signed scales, `d` | `(q - 32) d s`: an `s` for each 16 |

use half::{bf16, f16};
use restage_geometry::Dtype;

/// The dtypes that rows can be read of.
pub const KNOWN: [Dtype; 8] =
    [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K];

/// Writes the elements of a row, which is a whole number of blocks of a type of [`KNOWN`].
///
/// # Panics
/// When the lengths do not fit each other, or the type is another one: weights are checked when they are loaded.
pub fn row_to_f32(dtype: Dtype, row: &[u8], out: &mut [f32]) {
    assert_eq!(dtype.bytes(out.len() as u64), Some(row.len() as u64), "a row of {dtype}");
    match dtype {
        Dtype::F32 => plain(row, out, |b: [u8; 4]| f32::from_le_bytes(b)),
        Dtype::F16 => plain(row, out, |b: [u8; 2]| f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => plain(row, out, |b: [u8; 2]| bf16::from_le_bytes(b).to_f32()),
        Dtype::Q4_0 => blocks::<18, 32>(row, out, |block, out| {
            let d = half(block, 0);
            nibbles(&block[2..], out, |q| (f32::from(q) - 8.0) * d);
        }),
        Dtype::Q4_1 => blocks::<20, 32>(row, out, |block, out| {
            let (d, m) = (half(block, 0), half(block, 2));
            nibbles(&block[4..], out, |q| f32::from(q) * d + m);
        }),
        Dtype::Q8_0 => blocks::<34, 32>(row, out, |block, out| {
            let d = half(block, 0);
            for (out, &q) in out.iter_mut().zip(&block[2..]) {
                *out = f32::from(q as i8) * d;
            }
        }),
        Dtype::Q4K => blocks::<144, 256>(row, out, q4_k),
        Dtype::Q6K => blocks::<210, 256>(row, out, q6_k),
        other => panic!("rows of {other} are not known"),
    }
}

fn plain<const N: usize>(row: &[u8], out: &mut [f32], element: impl Fn([u8; N]) -> f32) {
    let (elements, _) = row.as_chunks::<N>();
    for (out, bytes) in out.iter_mut().zip(elements) {
        *out = element(*bytes);
    }
}

fn blocks<const BYTES: usize, const ELEMENTS: usize>(
    row: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let ((from, _), (to, _)) = (row.as_chunks::<BYTES>(), out.as_chunks_mut::<ELEMENTS>());
    from.iter().zip(to).for_each(|(from, to)| block(from, to));
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Two quants to a byte: those of the low nibbles come first.
fn nibbles(quants: &[u8], out: &mut [f32; 32], element: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(quants) {
        *low = element(q & 15);
        *high = element(q >> 4);
    }
}

fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, m) = (half(block, 0), half(block, 2));
    let (scales, quants) = (&block[4..16], &block[16..]);
    // Eight pairs of 6 bits: the first four in the low bits of 8 bytes, the others in 4 nibbles and the bits left.
    let pair = |i: usize| match i {
        0..4 => (scales[i] & 63, scales[i + 4] & 63),
        _ => (
            (scales[i + 4] & 15) | ((scales[i - 4] >> 6) << 4),
            (scales[i + 4] >> 4) | ((scales[i] >> 6) << 4),
        ),
    };
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = pair(i);
        let (scale, min) = (d * f32::from(scale), m * f32::from(min));
        let shift = 4 * (i % 2);
        for (out, q) in out.iter_mut().zip(&quants[i / 2 * 32..]) {
            *out = scale * f32::from((q >> shift) & 15) - min;
        }
    }
}

fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half(block, 208);
    for (h, out) in out.chunks_exact_mut(128).enumerate() {
        let (low, high, scales) = (&low[64 * h..], &high[32 * h..], &scales[8 * h..]);
        for (i, out) in out.iter_mut().enumerate() {
            let (quarter, l) = (i / 32, i % 32);
            let nibble = (low[l + 32 * (quarter % 2)] >> (4 * (quarter / 2))) & 15;
            let bits = (high[l] >> (2 * quarter)) & 3;
            let q = i32::from(nibble | (bits << 4)) - 32;
            *out = d * f32::from(scales[i / 16] as i8) * q as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
        let packing = dtype.packing();
        let mut out = vec![0.0; bytes.len() / packing.bytes as usize * packing.elements as usize];
        row_to_f32(dtype, bytes, &mut out);
        out
    }

    fn with_half(values: &[f32], rest: impl IntoIterator<Item = u8>) -> Vec<u8> {
        values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).chain(rest).collect()
    }

    #[test]
    fn plain_types_are_their_values() {
        assert_eq!(read(Dtype::F32, &1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(read(Dtype::F16, &f16::from_f32(-2.5).to_le_bytes()), [-2.5]);
        assert_eq!(read(Dtype::BF16, &bf16::from_f32(0.125).to_le_bytes()), [0.125]);
    }

    #[test]
    fn nibbles_are_the_halves_of_a_block() {
        // Quant i of the first half is i, of the second 15 - i.
        let quants = || (0..16u8).map(|i| i | ((15 - i) << 4));
        let expected = |f: fn(f32) -> f32| -> Vec<f32> {
            (0..16).map(|i| f(i as f32)).chain((0..16).map(|i| f((15 - i) as f32))).collect()
        };
        assert_eq!(read(Dtype::Q4_0, &with_half(&[0.5], quants())), expected(|q| (q - 8.0) * 0.5));
        assert_eq!(read(Dtype::Q4_1, &with_half(&[0.5, -3.0], quants())), expected(|q| q * 0.5 - 3.0));
    }

    #[test]
    fn bytes_of_q8_0_have_signs() {
        let found = read(Dtype::Q8_0, &with_half(&[2.0], (0..32).map(|i| (i as i8 - 16) as u8)));
        assert!(found.iter().enumerate().all(|(i, v)| *v == 2.0 * (i as f32 - 16.0)));
    }

    #[test]
    fn super_blocks_have_scales_of_their_own() {
        // Scales 1 to 8 and minima 9 to 16, of which bits above 4 are apart for the last four.
        let (scales, mins) = ([1u8, 2, 3, 4, 21, 38, 55, 8], [9u8, 10, 11, 12, 29, 46, 63, 16]);
        let mut packed = [0u8; 12];
        for i in 0..4 {
            packed[i] = scales[i] | ((scales[i + 4] >> 4) << 6);
            packed[i + 4] = mins[i] | ((mins[i + 4] >> 4) << 6);
            packed[i + 8] = (scales[i + 4] & 15) | ((mins[i + 4] & 15) << 4);
        }
        let quants = (0..128u32).map(|i| ((i % 16) | ((15 - i % 16) << 4)) as u8);
        let found = read(Dtype::Q4K, &with_half(&[0.5, 0.25], packed.into_iter().chain(quants)));
        for (i, v) in found.iter().enumerate() {
            let (part, l) = (i / 32, i % 16);
            let q = if part % 2 == 0 { l } else { 15 - l };
            let expected = 0.5 * f32::from(scales[part]) * q as f32 - 0.25 * f32::from(mins[part]);
            assert_eq!(*v, expected, "element {i}");
        }
    }

    #[test]
    fn six_bits_are_four_and_two() {
        // Any quants: packed by the rule of the table, element by element.
        let quant = |i: usize| ((i * 37 + i / 9) % 64) as u8;
        let (mut low, mut high) = ([0u8; 128], [0u8; 64]);
        for i in 0..256 {
            let (h, quarter, l) = (i / 128, i % 128 / 32, i % 32);
            low[64 * h + 32 * (quarter % 2) + l] |= (quant(i) & 15) << (4 * (quarter / 2));
            high[32 * h + l] |= (quant(i) >> 4) << (2 * quarter);
        }
        let scales = (0..16).map(|i| (i as i8 - 7) as u8);
        let mut block: Vec<u8> = low.into_iter().chain(high).chain(scales).collect();
        block.extend(f16::from_f32(0.5).to_le_bytes());
        for (i, v) in read(Dtype::Q6K, &block).iter().enumerate() {
            let expected = 0.5 * (i as f32 / 16.0).floor().mul_add(1.0, -7.0) * (f32::from(quant(i)) - 32.0);
            assert_eq!(*v, expected, "element {i}");
        }
    }
}
