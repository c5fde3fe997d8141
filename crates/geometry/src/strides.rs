//! Rules of torch for physical strides, in elements of the storage.

use crate::layout::row_major_strides;

/// Strides of a copy that keeps the order of the dimensions in memory (`torch.preserve_format`; `empty_like`
/// and `infer_dense_strides` of ATen): the same ones where they are dense, else as dense as their order
/// allows.
pub(crate) fn preserved_strides(shape: &[i64], strides: &[i64]) -> Vec<i64> {
    if is_dense(shape, strides) { strides.to_vec() } else { ordered_strides(shape, strides) }
}

/// torch's `is_non_overlapping_and_dense`.
fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut dims: Vec<usize> = (0..shape.len()).filter(|&d| shape[d] > 1).collect();
    dims.sort_by_key(|&d| strides[d]);
    let mut expect = 1;
    dims.into_iter().all(|d| {
        let dense = strides[d] == expect;
        expect *= shape[d];
        dense
    })
}

/// Dense strides in the memory order of these, as `TensorIterator` and `infer_dense_strides` find it: an
/// insertion sort in which a stride of 0 compares with nothing.
pub(crate) fn ordered_strides(shape: &[i64], strides: &[i64]) -> Vec<i64> {
    let inner_first = |a: usize, b: usize| match (strides[a], strides[b]) {
        (0, _) | (_, 0) => std::cmp::Ordering::Equal,
        (x, y) if x == y && shape[a] > shape[b] => std::cmp::Ordering::Greater,
        (x, y) => x.cmp(&y),
    };
    let mut order: Vec<usize> = (0..shape.len()).rev().collect();
    for i in 1..order.len() {
        let mut at = i;
        for below in (0..i).rev() {
            match inner_first(order[below], order[at]) {
                std::cmp::Ordering::Greater => {
                    order.swap(below, at);
                    at = below;
                }
                std::cmp::Ordering::Less => break,
                std::cmp::Ordering::Equal => {}
            }
        }
    }
    let mut out = vec![1; shape.len()];
    let mut next = 1;
    for d in order {
        out[d] = next;
        next *= shape[d].max(1);
    }
    out
}

/// Strides of what `cat` makes of parts: channels last where every part is, else row-major.
pub(crate) fn joined_strides(shape: &[i64], parts: &[Vec<i64>], strides: &[i64]) -> Vec<i64> {
    if !parts.iter().all(|part| is_channels_last(part, strides)) {
        return row_major_strides(shape);
    }
    let mut out = vec![1; shape.len()];
    let mut next = 1;
    for d in channels_last_order(shape.len()) {
        out[d] = next;
        next *= shape[d].max(1);
    }
    out
}

/// Dimensions of a batch of images, innermost first: channels, then the image's own, then the batch.
fn channels_last_order(ndim: usize) -> impl Iterator<Item = usize> {
    std::iter::once(1).chain((2..ndim).rev()).chain(std::iter::once(0))
}

/// torch's `is_channels_last_strides`, for images and volumes only; what is ambiguous is not.
fn is_channels_last(shape: &[i64], strides: &[i64]) -> bool {
    if !matches!(shape.len(), 4 | 5) || strides[1] == 0 {
        return false;
    }
    let mut least = 0;
    channels_last_order(shape.len()).all(|d| {
        if shape[d] == 0 || strides[d] < least || (d == 0 && least == strides[1]) {
            return false;
        }
        least = strides[d].wrapping_mul(shape[d]);
        true
    })
}

/// Strides of `new` as a view of the same storage, or `None` where torch would refuse (`computeStride` of
/// ATen/TensorUtils): each chunk of old dimensions that is dense must be a product of new ones.
pub(crate) fn view_strides(old: &[i64], old_strides: &[i64], new: &[i64]) -> Option<Vec<i64>> {
    if old.is_empty() {
        return Some(vec![1; new.len()]);
    }
    if old.contains(&0) {
        return Some(if old == new { old_strides.to_vec() } else { row_major_strides(new) });
    }
    let mut strides = vec![0; new.len()];
    let mut view_d = new.len();
    let mut base = old_strides[old.len() - 1];
    let mut chunk = 1;
    let mut taken = 1;
    for d in (0..old.len()).rev() {
        chunk *= old[d];
        let ends = d == 0 || (old[d - 1] != 1 && old_strides[d - 1] != base.wrapping_mul(chunk));
        if !ends {
            continue;
        }
        while view_d > 0 && (taken < chunk || new[view_d - 1] == 1) {
            view_d -= 1;
            strides[view_d] = base.wrapping_mul(taken);
            taken *= new[view_d];
        }
        if taken != chunk {
            return None;
        }
        if d > 0 {
            base = old_strides[d - 1];
            chunk = 1;
            taken = 1;
        }
    }
    (view_d == 0).then_some(strides)
}
