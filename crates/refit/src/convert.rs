//! Conversions between float types, element by element.
//!
//! Rounding is to the nearest value, ties to even; NaN stays NaN; what is too large becomes infinity. F64 goes
//! to the half types by way of F32, as torch's conversions do.

use half::{bf16, f16};
use restage_geometry::Dtype;
use restage_nest::Nest;

/// Copies elements of type `from` to elements of type `to`. False, and nothing written, when that is not a
/// conversion between floats. The nest counts elements of either side.
pub(crate) fn convert(nest: &Nest, from: Dtype, src: &[u8], to: Dtype, dst: &mut [u8]) -> bool {
    match (Float::of(from), Float::of(to)) {
        (Some(read), Some(write)) => {
            let (r, w) = (read.size(), write.size());
            for run in nest.runs() {
                let src = &src[run.src as usize * r..][..run.len as usize * r];
                let dst = &mut dst[run.dst as usize * w..][..run.len as usize * w];
                for (s, d) in src.chunks_exact(r).zip(dst.chunks_exact_mut(w)) {
                    write.write(read.read(s), d);
                }
            }
            true
        }
        _ => false,
    }
}

#[derive(Clone, Copy)]
enum Float {
    F16,
    BF16,
    F32,
    F64,
}

impl Float {
    fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F16 => Some(Float::F16),
            Dtype::BF16 => Some(Float::BF16),
            Dtype::F32 => Some(Float::F32),
            Dtype::F64 => Some(Float::F64),
            _ => None,
        }
    }

    fn size(self) -> usize {
        match self {
            Float::F16 | Float::BF16 => 2,
            Float::F32 => 4,
            Float::F64 => 8,
        }
    }

    fn read(self, b: &[u8]) -> f64 {
        match self {
            Float::F16 => bytemuck::pod_read_unaligned::<f16>(b).to_f64(),
            Float::BF16 => bytemuck::pod_read_unaligned::<bf16>(b).to_f64(),
            Float::F32 => f64::from(bytemuck::pod_read_unaligned::<f32>(b)),
            Float::F64 => bytemuck::pod_read_unaligned::<f64>(b),
        }
    }

    fn write(self, value: f64, b: &mut [u8]) {
        match self {
            Float::F16 => b.copy_from_slice(bytemuck::bytes_of(&f16::from_f32(value as f32))),
            Float::BF16 => b.copy_from_slice(bytemuck::bytes_of(&bf16::from_f32(value as f32))),
            Float::F32 => b.copy_from_slice(bytemuck::bytes_of(&(value as f32))),
            Float::F64 => b.copy_from_slice(bytemuck::bytes_of(&value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_bf16(values: &[f32]) -> Vec<u16> {
        let mut out = vec![0u8; values.len() * 2];
        let nest = Nest::contiguous(0, 0, values.len() as u64);
        assert!(convert(&nest, Dtype::F32, bytemuck::cast_slice(values), Dtype::BF16, &mut out));
        out.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
    }

    #[test]
    fn rounding_is_to_nearest_even_and_nan_stays_nan() {
        // Halfway between two neighbours: to the even one, below and above.
        let half = |bits: u32| f32::from_bits(bits);
        assert_eq!(to_bf16(&[half(0x3f80_8000), half(0x3f81_8000)]), [0x3f80, 0x3f82]);
        assert_eq!(to_bf16(&[half(0x3f80_8001), half(0x3f80_7fff)]), [0x3f81, 0x3f80]);
        assert_eq!(to_bf16(&[f32::INFINITY, f32::MAX, -0.0]), [0x7f80, 0x7f80, 0x8000]);
        let nan = to_bf16(&[f32::NAN, half(0x7f80_0001)]);
        assert!(nan.iter().all(|n| n & 0x7f80 == 0x7f80 && n & 0x7f != 0));
    }

    #[test]
    fn widening_is_exact_and_integers_are_no_floats() {
        let all: Vec<u16> = (0..=u16::MAX).filter(|b| b & 0x7f80 != 0x7f80).collect();
        let nest = Nest::contiguous(0, 0, all.len() as u64);
        let bytes: &[u8] = bytemuck::cast_slice(&all);
        let (mut wide, mut back) = (vec![0; all.len() * 4], vec![0; all.len() * 2]);
        assert!(convert(&nest, Dtype::BF16, bytes, Dtype::F32, &mut wide));
        assert!(convert(&nest, Dtype::F32, &wide, Dtype::BF16, &mut back));
        assert_eq!(back, bytes);
        assert!(!convert(&nest, Dtype::I32, bytes, Dtype::F32, &mut wide));
    }
}
