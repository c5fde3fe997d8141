//! What each operation does to a [`Tensor`], by torch's documented rules and in the most obvious way.

use restage_geometry::{Op, SplitAt};

use super::index::get_item;
use super::strides::{joined, preserved, view_strides};
use super::tensor::{Refused, Tensor, check_size, dense_strides};

/// A result, or why there is none.
pub type Outcome<T = Tensor> = Result<T, Refused>;

/// Refuses as torch does unless the condition holds.
pub fn check(condition: bool) -> Outcome<()> {
    if condition { Ok(()) } else { Err(Refused::ByTorch) }
}

/// A dimension that may count from the end.
pub fn wrap(dim: i64, ndim: usize) -> Outcome<usize> {
    let n = ndim as i64;
    check(dim >= -n && dim < n)?;
    Ok((if dim < 0 { dim + n } else { dim }) as usize)
}

/// The same where torch takes a tensor of no dimensions for one of one dimension.
fn wrap_scalar(dim: i64, ndim: usize) -> Outcome<usize> {
    wrap(dim, ndim.max(1))
}

fn wrap_all_distinct(dims: &[i64], ndim: usize) -> Outcome<Vec<usize>> {
    let dims = dims.iter().map(|&d| wrap_scalar(d, ndim)).collect::<Outcome<Vec<_>>>()?;
    check((0..dims.len()).all(|i| !dims[..i].contains(&dims[i])))?;
    Ok(dims)
}

fn without(list: &[i64], at: usize) -> Vec<i64> {
    [&list[..at], &list[at + 1..]].concat()
}

fn with(list: &[i64], at: usize, item: i64) -> Vec<i64> {
    [&list[..at], &[item], &list[at..]].concat()
}

fn replaced(list: &[i64], at: usize, item: i64) -> Vec<i64> {
    with(&without(list, at), at, item)
}

/// The tensor after one operation.
pub fn apply(t: &Tensor, op: &Op) -> Outcome {
    match op {
        Op::Narrow { dim, start, length } => narrow(t, *dim, *start, *length),
        Op::Select { dim, index } | Op::Unbind { dim, index } => select(t, *dim, *index),
        Op::GetItem(items) => get_item(t, items),
        Op::View(shape) => regroup(t, &inferred(shape, t.numel())?, false),
        Op::Reshape(shape) => regroup(t, &inferred(shape, t.numel())?, true),
        Op::Unsqueeze(dim) => insert(t, wrap(*dim, t.ndim() + 1)?),
        Op::Squeeze(dims) => squeeze(t, dims.as_deref()),
        Op::Transpose(a, b) | Op::SwapAxes(a, b) | Op::SwapDims(a, b) => transpose(t, *a, *b),
        Op::T => {
            check(t.ndim() <= 2)?;
            if t.ndim() == 2 { transpose(t, 0, 1) } else { Ok(t.clone()) }
        }
        Op::Permute(dims) => {
            check(dims.len() == t.ndim())?;
            reorder(t, &wrap_all_distinct(dims, t.ndim())?)
        }
        Op::Flatten { start_dim, end_dim } => flatten(t, *start_dim, *end_dim),
        Op::Unflatten { dim, sizes } => {
            let d = wrap(*dim, t.ndim())?;
            check(!sizes.is_empty())?;
            let sizes = inferred(sizes, t.shape[d])?;
            regroup(t, &[&t.shape[..d], &sizes, &t.shape[d + 1..]].concat(), false)
        }
        Op::Chunk { chunks, dim, index } => chunk(t, *chunks, *dim, *index),
        Op::Split { size, dim, index } => split(t, *size, *dim, *index),
        Op::SplitSizes { sizes, dim, index } => {
            let d = wrap(*dim, t.ndim())?;
            check(sizes.iter().all(|&n| n >= 0))?;
            check(sizes.iter().map(|&n| i128::from(n)).sum::<i128>() == i128::from(t.shape[d]))?;
            let starts = (0..sizes.len()).map(|i| sizes[..i].iter().sum());
            part(t, d, &starts.zip(sizes.iter().copied()).collect::<Vec<_>>(), *index)
        }
        Op::Contiguous => Ok(if t.is_contiguous() { t.clone() } else { t.cloned() }),
        Op::Expand(shape) | Op::BroadcastTo(shape) => expand(t, shape),
        Op::MoveDim { source, destination } => move_dim(t, source, destination),
        Op::Flip(dims) => {
            let dims = wrap_all_distinct(dims, t.ndim())?;
            let elements = t.enumerate(&t.shape, |to, from| {
                for (d, i) in from.iter_mut().enumerate() {
                    *i = if dims.contains(&d) { t.shape[d] - 1 - to[d] } else { to[d] };
                }
            })?;
            Ok(Tensor::copied_to(t.shape.clone(), preserved(t), elements))
        }
        Op::Roll { shifts, dims } => roll(t, shifts, dims),
        Op::Repeat(repeats) => repeat(t, repeats),
        Op::RepeatInterleave { repeats, dim } => repeat_interleave(t, *repeats, *dim),
        Op::Tile(dims) => {
            let missing = t.ndim().saturating_sub(dims.len());
            repeat(t, &[&vec![1; missing], &dims[..]].concat())
        }
        Op::TensorSplit { at, dim, index } => {
            let d = wrap(*dim, t.ndim())?;
            tensor_split(t, at, d, *index)
        }
        Op::HSplit { at, index } => even_split(t, at, usize::from(t.ndim() != 1), 1, *index),
        Op::VSplit { at, index } => even_split(t, at, 0, 2, *index),
        Op::DSplit { at, index } => even_split(t, at, 2, 3, *index),
        Op::Diagonal { offset, dim1, dim2 } => diagonal(t, *offset, *dim1, *dim2),
        Op::Unfold { dimension, size, step } => unfold(t, *dimension, *size, *step),
        Op::IndexSelect { dim, index } => index_select(t, *dim, index),
        Op::Take(index) => {
            let n = t.numel();
            check(index.iter().all(|&i| i >= -n && i < n))?;
            let elements = index.iter().map(|&i| t.elements[(if i < 0 { i + n } else { i }) as usize]);
            Ok(Tensor::copied_to(vec![index.len() as i64], vec![1], elements.collect()))
        }
        other => panic!("{other:?} does not only move data"),
    }
}

/// `len` indices of a dimension from `start`, `step` apart; the caller has checked that they exist.
pub fn cut(t: &Tensor, d: usize, start: i64, len: i64, step: i64) -> Outcome {
    let shape = replaced(&t.shape, d, len);
    let elements = t.enumerate(&shape, |to, from| {
        from.copy_from_slice(to);
        from[d] = start + to[d] * step;
    })?;
    let offset = t.offset.wrapping_add(start.wrapping_mul(t.strides[d]));
    let strides = replaced(&t.strides, d, t.strides[d].wrapping_mul(step));
    Ok(t.aliased(shape, strides, offset, elements))
}

/// Without a dimension of size 1.
fn dropped(t: &Tensor, d: usize) -> Tensor {
    assert_eq!(t.shape[d], 1);
    t.aliased(without(&t.shape, d), without(&t.strides, d), t.offset, t.elements.clone())
}

/// With a new dimension of size 1.
pub fn insert(t: &Tensor, d: usize) -> Outcome {
    let shape = with(&t.shape, d, 1);
    check_size(&shape)?;
    let stride = if d == t.ndim() { 1 } else { t.shape[d].wrapping_mul(t.strides[d]) };
    Ok(t.aliased(shape, with(&t.strides, d, stride), t.offset, t.elements.clone()))
}

fn narrow(t: &Tensor, dim: i64, start: i64, length: i64) -> Outcome {
    let d = wrap(dim, t.ndim())?;
    let size = t.shape[d];
    check(length >= 0 && start >= -size && start <= size)?;
    let start = if start < 0 { start + size } else { start };
    check(i128::from(start) + i128::from(length) <= i128::from(size))?;
    cut(t, d, start, length, 1)
}

pub fn select(t: &Tensor, dim: i64, index: i64) -> Outcome {
    let d = wrap(dim, t.ndim())?;
    let size = t.shape[d];
    check(index >= -size && index < size)?;
    let index = if index < 0 { index + size } else { index };
    Ok(dropped(&cut(t, d, index, 1, 1)?, d))
}

/// Fills in the one -1 of a shape.
fn inferred(shape: &[i64], numel: i64) -> Outcome<Vec<i64>> {
    check(shape.iter().all(|&n| n >= -1))?;
    let open = shape.iter().filter(|&&n| n == -1).count();
    check(open <= 1)?;
    let product = |sizes: &mut dyn Iterator<Item = &i64>| {
        // What is larger than any tensor of the model stays so, unless a 0 follows.
        sizes.fold(1i128, |n, &s| n.saturating_mul(i128::from(s)))
    };
    let known = product(&mut shape.iter().filter(|&&n| n != -1));
    let numel = i128::from(numel);
    if open == 0 {
        check(known == numel)?;
        return Ok(shape.to_vec());
    }
    check(known != 0 && numel % known == 0)?;
    Ok(shape.iter().map(|&n| if n == -1 { (numel / known) as i64 } else { n }).collect())
}

/// The same elements in another shape: a view where it can be, else a copy or a refusal.
fn regroup(t: &Tensor, shape: &[i64], may_copy: bool) -> Outcome {
    check_size(shape)?;
    match view_strides(t, shape) {
        Some(strides) => Ok(t.aliased(shape.to_vec(), strides, t.offset, t.elements.clone())),
        None => {
            check(may_copy)?;
            Ok(Tensor::copied_to(shape.to_vec(), dense_strides(shape), t.elements.clone()))
        }
    }
}

fn flatten(t: &Tensor, start: i64, end: i64) -> Outcome {
    let (start, end) = (wrap_scalar(start, t.ndim())?, wrap_scalar(end, t.ndim())?);
    check(start <= end)?;
    if t.ndim() == 0 {
        return regroup(t, &[1], true);
    }
    if start == end {
        return Ok(t.clone());
    }
    let joined = t.shape[start..=end].iter().product();
    regroup(t, &[&t.shape[..start], &[joined], &t.shape[end + 1..]].concat(), true)
}

fn squeeze(t: &Tensor, dims: Option<&[i64]>) -> Outcome {
    let dims = match dims {
        None => (0..t.ndim()).collect(),
        Some(dims) => wrap_all_distinct(dims, t.ndim())?,
    };
    let gone = (0..t.ndim()).rev().filter(|d| dims.contains(d) && t.shape[*d] == 1);
    Ok(gone.fold(t.clone(), |t, d| dropped(&t, d)))
}

fn transpose(t: &Tensor, a: i64, b: i64) -> Outcome {
    let (a, b) = (wrap_scalar(a, t.ndim())?, wrap_scalar(b, t.ndim())?);
    let mut order: Vec<usize> = (0..t.ndim()).collect();
    if t.ndim() > 0 {
        order.swap(a, b);
    }
    reorder(t, &order)
}

/// Dimension `i` of the result is dimension `order[i]` of the tensor.
fn reorder(t: &Tensor, order: &[usize]) -> Outcome {
    let pick = |list: &[i64]| order.iter().map(|&d| list[d]).collect::<Vec<i64>>();
    let shape = pick(&t.shape);
    let elements = t.enumerate(&shape, |to, from| order.iter().zip(to).for_each(|(&d, &i)| from[d] = i))?;
    Ok(t.aliased(shape, pick(&t.strides), t.offset, elements))
}

fn move_dim(t: &Tensor, source: &[i64], destination: &[i64]) -> Outcome {
    check(source.len() == destination.len())?;
    let source = wrap_all_distinct(source, t.ndim())?;
    let destination = wrap_all_distinct(destination, t.ndim())?;
    if t.ndim() == 0 {
        return Ok(t.clone());
    }
    // The others keep their order; then each moved one is put where it belongs, the first place first.
    let mut order: Vec<usize> = (0..t.ndim()).filter(|d| !source.contains(d)).collect();
    let mut moves: Vec<_> = destination.into_iter().zip(source).collect();
    moves.sort_unstable();
    for (to, from) in moves {
        order.insert(to, from);
    }
    reorder(t, &order)
}

/// `parts[index]` of a dimension, each a start and a length.
fn part(t: &Tensor, d: usize, parts: &[(i64, i64)], index: i64) -> Outcome {
    let (start, length) = parts[wrap(index, parts.len())?];
    cut(t, d, start, length, 1)
}

fn chunk(t: &Tensor, chunks: i64, dim: i64, index: i64) -> Outcome {
    let d = wrap(dim, t.ndim())?;
    check(chunks > 0)?;
    let size = t.shape[d];
    if size == 0 {
        check(index >= -chunks && index < chunks)?;
        return cut(t, d, 0, 0, 1);
    }
    // Rounded up, without an overflow where the chunks are many.
    split(t, (size - 1) / chunks + 1, dim, index)
}

fn split(t: &Tensor, part_size: i64, dim: i64, index: i64) -> Outcome {
    let d = wrap(dim, t.ndim())?;
    let size = t.shape[d];
    check(part_size >= 0 && (part_size > 0 || size == 0))?;
    let mut parts = vec![(0, size.min(part_size))];
    let mut start = i128::from(part_size);
    while start < i128::from(size) {
        let at = start as i64;
        parts.push((at, part_size.min(size - at)));
        start += i128::from(part_size);
    }
    part(t, d, &parts, index)
}

fn tensor_split(t: &Tensor, at: &SplitAt, d: usize, index: i64) -> Outcome {
    let size = t.shape[d];
    match at {
        SplitAt::Sections(n) => {
            check(*n > 0 && index >= -n && index < *n)?;
            let at = if index < 0 { index + n } else { index };
            // Elements dealt out one by one: each part has its share, the first ones one more.
            let length = |part: i64| size / n + i64::from(part < size % n);
            let start = (0..at.min(size)).map(length).sum();
            cut(t, d, start, length(at), 1)
        }
        SplitAt::Indices(indices) => {
            let at = wrap(index, indices.len() + 1)?;
            let from = if at == 0 { None } else { Some(indices[at - 1]) };
            let (start, length) = super::index::slice(size, from, indices.get(at).copied(), 1);
            cut(t, d, start, length, 1)
        }
    }
}

fn even_split(t: &Tensor, at: &SplitAt, d: usize, least: usize, index: i64) -> Outcome {
    check(t.ndim() >= least)?;
    if let SplitAt::Sections(n) = at {
        check(*n > 0 && t.shape[d] % n == 0)?;
    }
    tensor_split(t, at, d, index)
}

fn expand(t: &Tensor, shape: &[i64]) -> Outcome {
    check(shape.len() >= t.ndim())?;
    let lead = shape.len() - t.ndim();
    let mut sizes = Vec::new();
    for (i, &want) in shape.iter().enumerate() {
        let have = if i < lead { None } else { Some(t.shape[i - lead]) };
        check(match have {
            None => want >= 0,
            Some(n) => want == -1 || want == n || (n == 1 && want >= 0),
        })?;
        sizes.push(if want == -1 { have.ok_or(Refused::ByTorch)? } else { want });
    }
    let elements = t.enumerate(&sizes, |to, from| {
        for (d, i) in from.iter_mut().enumerate() {
            *i = if t.shape[d] == 1 { 0 } else { to[lead + d] };
        }
    })?;
    // From the last dimension on; a scalar's new strides are all 0 (`inferExpandGeometry`).
    let mut strides = vec![0i64; sizes.len()];
    if t.ndim() > 0 {
        for i in (0..sizes.len()).rev() {
            let (have, stride) = match i.checked_sub(lead) {
                Some(d) => (t.shape[d], t.strides[d]),
                None => (1, sizes[i + 1].wrapping_mul(strides[i + 1])),
            };
            strides[i] = if have == sizes[i] { stride } else { 0 };
        }
    }
    Ok(t.aliased(sizes, strides, t.offset, elements))
}

fn roll(t: &Tensor, shifts: &[i64], dims: &[i64]) -> Outcome {
    check(!shifts.is_empty())?;
    if dims.is_empty() && shifts.len() == 1 {
        let n = t.numel();
        let elements = (0..n).map(|i| t.elements[(i - shifts[0]).rem_euclid(n) as usize]).collect();
        return Ok(Tensor::copied_to(t.shape.clone(), dense_strides(&t.shape), elements));
    }
    check(shifts.len() == dims.len())?;
    if t.numel() == 0 {
        return Ok(Tensor::copied_to(t.shape.clone(), preserved(t), Vec::new()));
    }
    let mut t = t.clone();
    for (&shift, &dim) in shifts.iter().zip(dims) {
        let d = wrap(dim, t.ndim())?;
        let size = t.shape[d];
        let elements = t.enumerate(&t.shape, |to, from| {
            from.copy_from_slice(to);
            from[d] = (to[d] - shift).rem_euclid(size);
        })?;
        // `cat` of the last `tail` indices and of the others.
        let tail = shift.rem_euclid(size);
        let parts = [tail, size - tail].map(|n| replaced(&t.shape, d, n));
        let strides = joined(&t.shape, &parts, &t.strides);
        t = Tensor::copied_to(t.shape.clone(), strides, elements);
    }
    Ok(t)
}

fn repeat(t: &Tensor, repeats: &[i64]) -> Outcome {
    check(repeats.len() >= t.ndim())?;
    let lead = repeats.len() - t.ndim();
    let padded: Vec<i64> = [&vec![1; lead], &t.shape[..]].concat();
    let mut sizes = Vec::new();
    for (&n, &times) in padded.iter().zip(repeats) {
        sizes.push(i64::try_from(i128::from(n) * i128::from(times)).map_err(|_| match times < 0 {
            true => Refused::ByTorch,
            false => Refused::TooLarge,
        })?);
    }
    let elements = t.enumerate(&sizes, |to, from| {
        for (d, i) in from.iter_mut().enumerate() {
            *i = to[lead + d] % t.shape[d];
        }
    })?;
    let strides = dense_strides(&sizes);
    Ok(Tensor::copied_to(sizes, strides, elements))
}

fn repeat_interleave(t: &Tensor, repeats: i64, dim: Option<i64>) -> Outcome {
    let (shape, d) = match dim {
        Some(dim) => (t.shape.clone(), wrap(dim, t.ndim())?),
        None => (vec![t.numel()], 0),
    };
    check(repeats >= 0)?;
    let size = shape[d].checked_mul(repeats).ok_or(Refused::TooLarge)?;
    let sizes = replaced(&shape, d, size);
    let flat = t.aliased(shape.clone(), dense_strides(&shape), 0, t.elements.clone());
    let elements = flat.enumerate(&sizes, |to, from| {
        from.copy_from_slice(to);
        from[d] = to[d] / repeats;
    })?;
    let strides = dense_strides(&sizes);
    Ok(Tensor::copied_to(sizes, strides, elements))
}

fn diagonal(t: &Tensor, offset: i64, dim1: i64, dim2: i64) -> Outcome {
    let (a, b) = (wrap_scalar(dim1, t.ndim())?, wrap_scalar(dim2, t.ndim())?);
    check(a != b)?;
    // The pairs of indices of which the second is larger by the offset.
    let mut pairs = Vec::new();
    for i in 0..t.shape[a] {
        let j = i128::from(i) + i128::from(offset);
        if j >= 0 && j < i128::from(t.shape[b]) {
            pairs.push((i, j as i64));
        }
    }
    let others: Vec<usize> = (0..t.ndim()).filter(|d| *d != a && *d != b).collect();
    let mut shape: Vec<i64> = others.iter().map(|&d| t.shape[d]).collect();
    let mut strides: Vec<i64> = others.iter().map(|&d| t.strides[d]).collect();
    shape.push(pairs.len() as i64);
    strides.push(t.strides[a].wrapping_add(t.strides[b]));
    let elements = t.enumerate(&shape, |to, from| {
        others.iter().zip(to).for_each(|(&d, &i)| from[d] = i);
        (from[a], from[b]) = pairs[to[others.len()] as usize];
    })?;
    let (i, j) = pairs.first().copied().unwrap_or((0, 0));
    let step = i.wrapping_mul(t.strides[a]).wrapping_add(j.wrapping_mul(t.strides[b]));
    Ok(t.aliased(shape, strides, t.offset.wrapping_add(step), elements))
}

fn unfold(t: &Tensor, dimension: i64, size: i64, step: i64) -> Outcome {
    let d = wrap_scalar(dimension, t.ndim())?;
    let available = t.shape.get(d).copied().unwrap_or(1);
    check(size >= 0 && size <= available && step > 0)?;
    if t.ndim() == 0 {
        return Ok(t.aliased(vec![size], vec![1], t.offset, t.elements[..size as usize].to_vec()));
    }
    let count = (available - size) / step + 1;
    let mut shape = replaced(&t.shape, d, count);
    shape.push(size);
    let mut strides = replaced(&t.strides, d, t.strides[d].wrapping_mul(step));
    strides.push(t.strides[d]);
    let elements = t.enumerate(&shape, |to, from| {
        from.copy_from_slice(&to[..t.ndim()]);
        from[d] = to[d] * step + to[t.ndim()];
    })?;
    Ok(t.aliased(shape, strides, t.offset, elements))
}

fn index_select(t: &Tensor, dim: i64, index: &[i64]) -> Outcome {
    let d = wrap_scalar(dim, t.ndim())?;
    let size = t.shape.get(d).copied().unwrap_or(1);
    check(index.iter().all(|&i| i >= 0 && i < size))?;
    if t.ndim() == 0 {
        check(index.len() == 1)?;
        return Ok(t.cloned());
    }
    let sizes = replaced(&t.shape, d, index.len() as i64);
    let elements = t.enumerate(&sizes, |to, from| {
        from.copy_from_slice(to);
        from[d] = index[to[d] as usize];
    })?;
    let strides = dense_strides(&sizes);
    Ok(Tensor::copied_to(sizes, strides, elements))
}
