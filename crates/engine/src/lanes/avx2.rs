//! The same sums with AVX2 and F16C.
//!
//! Pairs of products fit 16 bits: 15 * 127 * 2 for nibbles, of which 8 are added before they are widened (30,480), and
//! 128 * 127 * 2 = 32,512 for bytes, which are widened at once. There is no fused multiply-add, which would round once where
//! the definition rounds twice.
#![allow(
    unsafe_code,
    reason = "loads of registers from slices, and calls of code that needs what was detected"
)]

use std::arch::x86_64::*;

use super::{BLOCK, Kind, Product, Quantised, ROWS, TILE};

/// The kernel, on a processor that has it.
pub(super) fn kernel() -> Option<Product> {
    let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
    has.then_some(product as Product)
}

fn product(
    kind: Kind,
    weights: &[u8],
    activations: &Quantised,
    first: usize,
    taken: usize,
) -> [[f32; ROWS]; TILE] {
    let rows: [(&[i8], &[f32], &[f32]); TILE] =
        std::array::from_fn(|t| activations.row(first + t.min(taken - 1)));
    // SAFETY: `kernel` hands this function out only where AVX2 and F16C were found.
    unsafe {
        match (kind, taken) {
            (Kind::Q8_0, 1) => bytes::<1>(weights, &rows),
            (Kind::Q8_0, _) => bytes::<TILE>(weights, &rows),
            (Kind::Q4_0, 1) => nibbles::<1, false>(weights, &rows),
            (Kind::Q4_0, _) => nibbles::<TILE, false>(weights, &rows),
            (Kind::Q4_1, 1) => nibbles::<1, true>(weights, &rows),
            (Kind::Q4_1, _) => nibbles::<TILE, true>(weights, &rows),
        }
    }
}

/// 32 bytes of a slice.
#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m256i {
    let bytes = &bytes[..32];
    // SAFETY: 32 bytes are there, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 8 halves as floats.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn halves(bytes: &[u8]) -> __m256 {
    let bytes = &bytes[..16];
    // SAFETY: 16 bytes are there, and the load needs no alignment.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// Four activations in every lane.
#[inline]
#[target_feature(enable = "avx2")]
fn four(x: &[i8], at: usize) -> __m256i {
    let x = &x[at..at + 4];
    _mm256_set1_epi32(i32::from_le_bytes([x[0] as u8, x[1] as u8, x[2] as u8, x[3] as u8]))
}

#[inline]
#[target_feature(enable = "avx2")]
fn stored<const T: usize>(sums: [__m256; T]) -> [[f32; ROWS]; TILE] {
    let mut out = [[0f32; ROWS]; TILE];
    for (out, sums) in out.iter_mut().zip(sums) {
        // SAFETY: 8 floats are there, and the store needs no alignment.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sums) };
    }
    out
}

#[target_feature(enable = "avx2,f16c")]
fn nibbles<const T: usize, const MINIMA: bool>(
    weights: &[u8],
    rows: &[(&[i8], &[f32], &[f32]); TILE],
) -> [[f32; ROWS]; TILE] {
    let (low, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let mut acc = [_mm256_setzero_ps(); T];
    let head = if MINIMA { 4 * ROWS } else { 2 * ROWS };
    for (b, block) in weights.chunks_exact(head + 16 * ROWS).enumerate() {
        let d = halves(block);
        let m = if MINIMA { halves(&block[2 * ROWS..]) } else { _mm256_mul_ps(d, _mm256_set1_ps(-8.0)) };
        let w: [__m256i; 4] = std::array::from_fn(|k| load(&block[head + 32 * k..]));
        let firsts = w.map(|w| _mm256_and_si256(w, low));
        let seconds = w.map(|w| _mm256_and_si256(_mm256_srli_epi16::<4>(w), low));
        for (acc, (quants, scales, sums)) in acc.iter_mut().zip(rows) {
            let x = &quants[b * BLOCK..][..BLOCK];
            let mut pairs = _mm256_maddubs_epi16(firsts[0], four(x, 0));
            for k in 1..4 {
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(firsts[k], four(x, 4 * k)));
            }
            for (k, w) in seconds.iter().enumerate() {
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(*w, four(x, 16 + 4 * k)));
            }
            let sum = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
            let scale = _mm256_mul_ps(d, _mm256_set1_ps(scales[b]));
            *acc = _mm256_add_ps(*acc, _mm256_mul_ps(scale, sum));
            *acc = _mm256_add_ps(*acc, _mm256_mul_ps(m, _mm256_set1_ps(sums[b])));
        }
    }
    stored(acc)
}

#[target_feature(enable = "avx2,f16c")]
fn bytes<const T: usize>(weights: &[u8], rows: &[(&[i8], &[f32], &[f32]); TILE]) -> [[f32; ROWS]; TILE] {
    let ones = _mm256_set1_epi16(1);
    let mut acc = [_mm256_setzero_ps(); T];
    for (b, block) in weights.chunks_exact(34 * ROWS).enumerate() {
        let d = halves(block);
        let mut sums = [_mm256_setzero_si256(); T];
        for k in 0..8 {
            let w = load(&block[2 * ROWS + 32 * k..]);
            // The sign goes to the activation: one side must have none.
            let size = _mm256_abs_epi8(w);
            for (sum, (quants, ..)) in sums.iter_mut().zip(rows) {
                let x = _mm256_sign_epi8(four(&quants[b * BLOCK..][..BLOCK], 4 * k), w);
                let pairs = _mm256_maddubs_epi16(size, x);
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
        for ((acc, sum), (_, scales, _)) in acc.iter_mut().zip(sums).zip(rows) {
            let scale = _mm256_mul_ps(d, _mm256_set1_ps(scales[b]));
            *acc = _mm256_add_ps(*acc, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sum)));
        }
    }
    stored(acc)
}
