//! torch's rules for strides where a result does not follow from its elements alone.

use super::tensor::{Tensor, dense_strides, each_index, place};

/// Strides with which `shape`, of as many elements, looks at the storage of `tensor` in the same order; `None`
/// where torch refuses the view.
///
/// The rule is the meaning itself: the places of the elements in row-major order must be those of *some* strides
/// of the new shape. ATen's `computeStride` decides the strides of dimensions of size 1, and it must agree on
/// everything else.
pub fn view_strides(tensor: &Tensor, shape: &[i64]) -> Option<Vec<i64>> {
    let torch = compute_stride(&tensor.shape, &tensor.strides, shape);
    let meaning = affine_strides(tensor, shape);
    assert_eq!(
        torch.is_some(),
        meaning.is_some(),
        "the model is at odds with itself: {tensor:?} as {shape:?}"
    );
    if let (Some(torch), Some(meaning)) = (&torch, &meaning)
        && tensor.numel() > 0
    {
        for (d, &n) in shape.iter().enumerate() {
            assert!(
                n == 1 || torch[d] == meaning[d],
                "{torch:?} and {meaning:?} for {tensor:?} as {shape:?}"
            );
        }
    }
    torch
}

/// Strides by enumeration; those of dimensions of size 1 are 0.
fn affine_strides(tensor: &Tensor, shape: &[i64]) -> Option<Vec<i64>> {
    let mut places = Vec::new();
    each_index(&tensor.shape, |index| places.push(place(index, &tensor.strides, tensor.offset)));
    if places.is_empty() {
        return Some(vec![0; shape.len()]);
    }
    // One step along a dimension is so many elements further in row-major order.
    let steps = dense_strides(shape);
    let strides: Vec<i64> = shape
        .iter()
        .zip(&steps)
        .map(|(&n, &step)| if n > 1 { places[step as usize] - places[0] } else { 0 })
        .collect();
    let mut at = 0;
    let mut fits = true;
    each_index(shape, |index| {
        fits &= places[at] == place(index, &strides, places[0]);
        at += 1;
    });
    fits.then_some(strides)
}

/// `computeStride_impl` of ATen/TensorUtils.cpp: blocks of old dimensions that lie densely in each other, each
/// of which must be filled by new dimensions, from the innermost on.
fn compute_stride(old: &[i64], old_strides: &[i64], new: &[i64]) -> Option<Vec<i64>> {
    if old.is_empty() {
        return Some(vec![1; new.len()]);
    }
    if old.contains(&0) {
        return Some(if old == new { old_strides.to_vec() } else { dense_strides(new) });
    }
    // (elements, innermost stride) of each block, innermost first.
    let mut blocks: Vec<(i64, i64)> = Vec::new();
    let mut open: Option<(i64, i64)> = None;
    for d in (0..old.len()).rev() {
        open = Some(match open {
            None => (old[d], old_strides[d]),
            Some((elements, stride)) if old[d] == 1 || old_strides[d] == elements.wrapping_mul(stride) => {
                (elements * old[d], stride)
            }
            Some(done) => {
                blocks.push(done);
                (old[d], old_strides[d])
            }
        });
    }
    blocks.extend(open);
    let mut out = vec![0; new.len()];
    let mut d = new.len();
    for (elements, stride) in blocks {
        let mut filled = 1;
        while d > 0 && (filled < elements || new[d - 1] == 1) {
            d -= 1;
            out[d] = stride.wrapping_mul(filled);
            filled *= new[d];
        }
        if filled != elements {
            return None;
        }
    }
    (d == 0).then_some(out)
}

/// Strides of `empty_like` with `torch.preserve_format`.
pub fn preserved(tensor: &Tensor) -> Vec<i64> {
    if is_dense(tensor) {
        tensor.strides.clone()
    } else {
        infer_dense_strides(&tensor.shape, &tensor.strides)
    }
}

/// torch's `is_non_overlapping_and_dense`, by its meaning: the places are as many as the elements, without a gap.
fn is_dense(tensor: &Tensor) -> bool {
    let mut places = Vec::new();
    each_index(&tensor.shape, |index| places.push(place(index, &tensor.strides, 0)));
    places.sort_unstable();
    places.iter().zip(0..).all(|(&place, at)| place == at)
}

/// `infer_dense_strides` of ATen/ExpandUtils.cpp. Its insertion sort is part of the rule: where strides are 0 the
/// comparison is no order.
fn infer_dense_strides(shape: &[i64], strides: &[i64]) -> Vec<i64> {
    let n = shape.len();
    let mut perm: Vec<usize> = (0..n).rev().collect();
    let compare = |a: usize, b: usize| {
        if strides[a] == 0 || strides[b] == 0 {
            0
        } else if strides[a] != strides[b] {
            (strides[a] - strides[b]).signum()
        } else {
            i64::from(shape[a] > shape[b])
        }
    };
    for i in 1..n {
        let mut dim1 = i;
        let mut dim0 = i;
        while dim0 > 0 {
            dim0 -= 1;
            let order = compare(perm[dim0], perm[dim1]);
            if order > 0 {
                perm.swap(dim0, dim1);
                dim1 = dim0;
            } else if order < 0 {
                break;
            }
        }
    }
    let mut out = vec![0; n];
    let mut next = 1;
    for d in perm {
        out[d] = next;
        next *= shape[d].max(1);
    }
    out
}

/// Strides of what `cat` joins from parts with these shapes and strides: channels last where
/// `suggest_memory_format` says so of all of them alike, else row-major.
pub fn joined(shape: &[i64], parts: &[Vec<i64>], strides: &[i64]) -> Vec<i64> {
    if !parts.iter().all(|part| is_channels_last(part, strides)) {
        return dense_strides(shape);
    }
    let mut out = vec![0; shape.len()];
    let mut next = 1;
    for d in memory_order(shape.len()) {
        out[d] = next;
        next *= shape[d].max(1);
    }
    out
}

/// Innermost first: channels, width, height, (depth,) batch.
fn memory_order(ndim: usize) -> Vec<usize> {
    if ndim == 4 { vec![1, 3, 2, 0] } else { vec![1, 4, 3, 2, 0] }
}

/// `is_channels_last_strides_2d_s4` and `…_3d_s5` of c10/core/MemoryFormat.h.
fn is_channels_last(shape: &[i64], strides: &[i64]) -> bool {
    if (shape.len() != 4 && shape.len() != 5) || strides[1] == 0 {
        return false;
    }
    let mut min = 0i64;
    for d in memory_order(shape.len()) {
        if shape[d] == 0 || strides[d] < min {
            return false;
        }
        if d == 0 && min == strides[1] {
            return false;
        }
        min = strides[d];
        if shape[d] > 1 {
            min = min.wrapping_mul(shape[d]);
        }
    }
    true
}
