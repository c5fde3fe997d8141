//! The products of plain code, compiled again for wider registers and called where the processor has them.
//!
//! The order of additions is the code's own and nothing is fused, so every copy gives the same bits.
#![allow(unsafe_code, reason = "calls of code that needs what was detected")]

use restage_geometry::Dtype;

use crate::matrix::products;

/// Products of some rows of weights with activations, as [`products`] has them.
pub(crate) fn wide_products(
    dtype: Dtype,
    stored: &[u8],
    weights: &mut [f32],
    activations: &[f32],
    out: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the processor has what the copy is compiled for.
            return unsafe { avx512(dtype, stored, weights, activations, out) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has what the copy is compiled for.
            return unsafe { avx2(dtype, stored, weights, activations, out) };
        }
    }
    products(dtype, stored, weights, activations, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn avx512(dtype: Dtype, stored: &[u8], weights: &mut [f32], activations: &[f32], out: &mut [f32]) {
    products(dtype, stored, weights, activations, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(dtype: Dtype, stored: &[u8], weights: &mut [f32], activations: &[f32], out: &mut [f32]) {
    products(dtype, stored, weights, activations, out);
}
