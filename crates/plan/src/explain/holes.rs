//! What a plan leaves out of a parameter, as boxes of it.

use restage_geometry::Region;
use restage_nest::{Loop, Nest, Strided, cover};

use crate::plan::{Plan, Target};

/// Boxes of a parameter that nothing provides, in elements, sorted. Neighbours are merged.
pub(super) fn holes(plan: &Plan, param: usize) -> Vec<Region> {
    let (shape, packing) = (&plan.params[param].shape, plan.params[param].dtype.packing());
    let to_bytes = |nest: &Nest| {
        let loops = nest.loops.iter().map(|l| Loop { src: 0, ..*l }).collect();
        let nest = Nest { src: 0, loops, ..nest.clone() };
        nest.scaled(packing.elements, packing.bytes, 0).and_then(|n| n.dst_side()).ok()
    };
    let direct = plan.segments.iter().filter(|s| s.target == Target::Param(param));
    let steps = plan.stagings.iter().flat_map(|s| &s.replays).filter(|step| step.param == param);
    let fills = plan.fills.iter().filter(|f| f.param == param);
    // Planning has computed each of these without overflow.
    let sides: Vec<Strided> = direct
        .filter_map(|s| s.nest.dst_side().ok())
        .chain(steps.flat_map(|step| &step.nests).filter_map(to_bytes))
        .chain(fills.filter_map(|f| to_bytes(&f.dest.nest())))
        .collect();
    let mut boxes: Vec<(Vec<i64>, Vec<i64>)> = Vec::new();
    for range in cover::holes(&sides, plan.coverage[param].bytes) {
        let element = |byte: u64| (byte / packing.bytes * packing.elements) as i64;
        flat(shape, element(range.start), element(range.end), &mut boxes);
    }
    merge(&mut boxes, shape.len());
    let region = |(start, end): (Vec<i64>, Vec<i64>)| {
        let sizes: Vec<i64> = start.iter().zip(&end).map(|(s, e)| e - s).collect();
        Region::new(&start, &sizes).ok()
    };
    boxes.into_iter().filter_map(region).collect()
}

/// Cuts the row-major positions `from..to` of a shape into boxes, as start and end.
fn flat(shape: &[i64], from: i64, to: i64, out: &mut Vec<(Vec<i64>, Vec<i64>)>) {
    let mut at = from;
    while at < to {
        // The largest block that starts here: whole trailing dimensions, then a stretch of the next one.
        let mut size = 1;
        let mut dim = shape.len();
        while dim > 0 && at % (size * shape[dim - 1]) == 0 && at + size * shape[dim - 1] <= to {
            size *= shape[dim - 1];
            dim -= 1;
        }
        let mut start = vec![0; shape.len()];
        let mut rest = at;
        for d in (0..shape.len()).rev() {
            start[d] = rest % shape[d];
            rest /= shape[d];
        }
        let mut end: Vec<i64> = start.iter().map(|s| s + 1).collect();
        end[dim..].copy_from_slice(&shape[dim..]);
        let mut count = 1;
        if dim > 0 {
            count = ((to - at) / size).min(shape[dim - 1] - start[dim - 1]);
            end[dim - 1] = start[dim - 1] + count;
        }
        out.push((start, end));
        at += size * count;
    }
}

/// Joins boxes that differ in one dimension only and abut in it, innermost dimension first.
fn merge(boxes: &mut Vec<(Vec<i64>, Vec<i64>)>, ndim: usize) {
    for dim in (0..ndim).rev() {
        let others = |b: &(Vec<i64>, Vec<i64>)| {
            let keep = |side: &[i64]| [&side[..dim], &side[dim + 1..]].concat();
            (keep(&b.0), keep(&b.1), b.0[dim])
        };
        boxes.sort_by_cached_key(others);
        let mut merged: Vec<(Vec<i64>, Vec<i64>)> = Vec::with_capacity(boxes.len());
        for b in boxes.drain(..) {
            match merged.last_mut() {
                Some(last)
                    if last.1[dim] == b.0[dim]
                        && (others(last).0, others(last).1) == (others(&b).0, others(&b).1) =>
                {
                    last.1[dim] = b.1[dim];
                }
                _ => merged.push(b),
            }
        }
        *boxes = merged;
    }
    boxes.sort();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(shape: &[i64], boxes: &[(Vec<i64>, Vec<i64>)]) -> Vec<i64> {
        let mut out = Vec::new();
        let numel: i64 = shape.iter().product();
        for at in 0..numel {
            let mut rest = at;
            let mut index = vec![0; shape.len()];
            for d in (0..shape.len()).rev() {
                index[d] = rest % shape[d];
                rest /= shape[d];
            }
            let inside = |b: &&(Vec<i64>, Vec<i64>)| {
                index.iter().zip(&b.0).zip(&b.1).all(|((i, s), e)| s <= i && i < e)
            };
            out.extend(boxes.iter().filter(inside).map(|_| at));
        }
        out
    }

    /// Every range, as boxes, is itself: no position twice and none beside it; merging keeps that.
    #[test]
    fn boxes_are_the_range() {
        for shape in [&[][..], &[5], &[3, 4], &[2, 3, 4], &[2, 1, 3, 2]] {
            let numel: i64 = shape.iter().product();
            for from in 0..=numel {
                for to in from..=numel {
                    let mut boxes = Vec::new();
                    flat(shape, from, to, &mut boxes);
                    assert_eq!(cells(shape, &boxes), (from..to).collect::<Vec<_>>(), "{shape:?}");
                    merge(&mut boxes, shape.len());
                    assert_eq!(cells(shape, &boxes), (from..to).collect::<Vec<_>>(), "{shape:?}");
                }
            }
        }
        // The same columns of every row are one box.
        let mut boxes = Vec::new();
        for row in 0..6 {
            flat(&[2, 3, 8], row * 8 + 2, row * 8 + 5, &mut boxes);
        }
        merge(&mut boxes, 3);
        assert_eq!(boxes, [(vec![0, 0, 2], vec![2, 3, 5])]);
    }
}
