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
fn ordered_strides(shape: &[i64], strides: &[i64]) -> Vec<i64> {
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
        let ends = d == 0 || (old[d - 1] != 1 && old_strides[d - 1] != chunk * base);
        if !ends {
            continue;
        }
        while view_d > 0 && (taken < chunk || new[view_d - 1] == 1) {
            view_d -= 1;
            strides[view_d] = taken * base;
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
