//! Subscripts: Python's slices, one item after the other.

use restage_geometry::Index;

use super::rules::{Outcome, check, cut, insert, select};
use super::tensor::Tensor;

/// First index and number of indices of `start:stop:step` of so many, by Python's clamping.
pub fn slice(size: i64, start: Option<i64>, stop: Option<i64>, step: i64) -> (i64, i64) {
    let clamped = |bound: i64| {
        let from_start = if bound < 0 { i128::from(bound) + i128::from(size) } else { i128::from(bound) };
        from_start.clamp(0, i128::from(size)) as i64
    };
    let (start, stop) = (clamped(start.unwrap_or(0)), clamped(stop.unwrap_or(size)));
    // What `range` would list, counted.
    let len = (start..stop).filter(|i| (i - start) % step == 0).count();
    (start, len as i64)
}

/// `tensor[items]`
pub fn get_item(t: &Tensor, items: &[Index]) -> Outcome {
    let named = items.iter().filter(|item| matches!(item, Index::Int(_) | Index::Slice(..))).count();
    check(named <= t.ndim())?;
    let skipped = t.ndim() - named;
    let mut t = t.clone();
    let mut d = 0;
    for item in items {
        match item {
            Index::Int(index) => t = select(&t, d as i64, *index)?,
            Index::Slice(start, stop, step) => {
                let step = step.unwrap_or(1);
                check(step > 0 && d < t.ndim())?;
                let (start, len) = slice(t.shape[d], *start, *stop, step);
                t = cut(&t, d, start, len, step)?;
                d += 1;
            }
            // A second one skips as much again, as torch does. A slice past the last dimension is refused then:
            // torch lets some pass, for it compares them with a size that it does not have.
            Index::Ellipsis => d += skipped,
            Index::NewAxis => {
                check(d <= t.ndim())?;
                t = insert(&t, d)?;
                d += 1;
            }
        }
    }
    Ok(t)
}
