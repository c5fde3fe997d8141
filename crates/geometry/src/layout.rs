//! Factored layouts: a logical index to an element position.
//!
//! A plain strided layout cannot carry a `reshape` of a transposed view, so a dimension is a list of factors,
//! outermost first. Joining dimensions joins lists; splitting one splits a factor where the sizes divide.
//! Operations that one factored layout cannot hold say so and leave it unchanged.

/// One factor of a dimension: `extent` indices, `stride` elements apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Factor {
    /// Number of indices; at least 2.
    pub extent: i64,
    /// Elements between neighbours; may be 0 (expanded).
    pub stride: i64,
}

/// One logical dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dim {
    /// Number of indices.
    pub size: i64,
    /// Outermost first; the product of the extents is `size` wherever the tensor holds an element.
    pub factors: Vec<Factor>,
}

/// A map from logical indices to element positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Position of index 0, in elements.
    pub offset: i64,
    /// The dimensions, outermost first.
    pub dims: Vec<Dim>,
}

impl Dim {
    fn plain(size: i64, stride: i64) -> Self {
        let factors = if size > 1 { vec![Factor { extent: size, stride }] } else { Vec::new() };
        Dim { size, factors }
    }

    /// Repeats, with the repetition at this place among the factors.
    fn repeat(&mut self, place: usize, times: i64) {
        self.size *= times;
        if self.size == 0 {
            self.factors.clear();
        } else if times > 1 {
            self.factors.insert(place, Factor { extent: times, stride: 0 });
        }
    }
}

impl Layout {
    /// The row-major layout of a tensor of this shape.
    pub fn row_major(shape: &[i64]) -> Self {
        let strides = row_major_strides(shape);
        Layout { offset: 0, dims: shape.iter().zip(strides).map(|(&n, s)| Dim::plain(n, s)).collect() }
    }

    /// True when some dimension has size 0.
    pub fn is_empty(&self) -> bool {
        self.dims.iter().any(|d| d.size == 0)
    }

    /// Keeps indices `start, start + step, …` (`len` of them) of a dimension. False when that cuts across
    /// factors, and nothing was changed.
    pub fn slice(&mut self, dim: usize, start: i64, len: i64, step: i64) -> bool {
        let factors = &self.dims[dim].factors;
        let Some((offset, factors)) = slice_factors(factors, start, len, step) else { return false };
        self.offset += offset;
        self.dims[dim] = Dim { size: len, factors };
        true
    }

    /// Removes a dimension of size 1.
    pub fn remove(&mut self, dim: usize) {
        self.dims.remove(dim);
    }

    /// Inserts a dimension of size 1.
    pub fn insert(&mut self, dim: usize) {
        self.dims.insert(dim, Dim::plain(1, 0));
    }

    /// Reorders the dimensions.
    pub fn permute(&mut self, order: &[usize]) {
        self.dims = order.iter().map(|&d| self.dims[d].clone()).collect();
    }

    /// Repeats the single index of a dimension `size` times.
    pub fn expand(&mut self, dim: usize, size: i64) {
        self.dims[dim] = Dim::plain(size, 0);
    }

    /// Reverses a dimension.
    pub fn flip(&mut self, dim: usize) {
        for f in &mut self.dims[dim].factors {
            self.offset += (f.extent - 1) * f.stride;
            f.stride = -f.stride;
        }
    }

    /// Repeats a whole dimension `times` over, as in `abc` to `abcabc`.
    pub fn repeat(&mut self, dim: usize, times: i64) {
        self.dims[dim].repeat(0, times);
    }

    /// Repeats each index of a dimension `times` over, as in `abc` to `aabbcc`.
    pub fn interleave(&mut self, dim: usize, times: i64) {
        let inner = self.dims[dim].factors.len();
        self.dims[dim].repeat(inner, times);
    }

    /// Replaces two dimensions of one size by their diagonal, as a new last one. False when the two are
    /// factored differently, and nothing was changed.
    pub fn diagonal(&mut self, dim1: usize, dim2: usize) -> bool {
        let size = self.dims[dim1].size;
        let Some(factors) = add_factors(&self.dims[dim1].factors, &self.dims[dim2].factors) else {
            return false;
        };
        self.dims.remove(dim1.max(dim2));
        self.dims.remove(dim1.min(dim2));
        self.dims.push(Dim { size, factors });
        true
    }

    /// Replaces a dimension by `count` windows of `size` indices that start `step` apart; the indices in a
    /// window become a new last dimension. False when the windows cut across factors, and nothing was changed.
    pub fn unfold(&mut self, dim: usize, count: i64, size: i64, step: i64) -> bool {
        let stride = match self.dims[dim].factors[..] {
            [] => 0,
            [f] => f.stride,
            _ => return false,
        };
        // A single window never steps; this keeps its stride in range.
        self.dims[dim] = Dim::plain(count, if count > 1 { stride * step } else { 0 });
        self.dims.push(Dim::plain(size, stride));
        true
    }

    /// Replaces the indices of a dimension by those at `start` that these factors name, in indices of it.
    /// False when the dimension is itself factored, and nothing was changed.
    pub fn pick(&mut self, dim: usize, size: i64, start: i64, factors: &[Factor]) -> bool {
        let stride = match self.dims[dim].factors[..] {
            [] => 0,
            [f] => f.stride,
            _ => return false,
        };
        self.offset += start * stride;
        let factors = factors.iter().map(|f| Factor { extent: f.extent, stride: f.stride * stride });
        self.dims[dim] = Dim { size, factors: factors.collect() };
        true
    }

    /// Regroups the same elements, in row-major order, into another shape. False when a boundary would cut a
    /// factor unevenly, and nothing was changed.
    pub fn regroup(&mut self, shape: &[i64]) -> bool {
        if self.is_empty() {
            self.dims = shape.iter().map(|&n| Dim::plain(n, 0)).collect();
            return true;
        }
        // Adjacent factors that are dense merge, so that only real boundaries are in the way.
        let mut merged: Vec<Factor> = Vec::new();
        for f in self.dims.iter().flat_map(|d| &d.factors) {
            match merged.last_mut() {
                Some(outer) if outer.stride == f.extent * f.stride => {
                    *outer = Factor { extent: outer.extent * f.extent, stride: f.stride };
                }
                _ => merged.push(*f),
            }
        }
        merged.reverse();
        let mut dims = Vec::with_capacity(shape.len());
        for &size in shape {
            let mut need = size;
            let mut factors = Vec::new();
            while need > 1 {
                let Some(f) = merged.pop() else { return false };
                if need % f.extent == 0 {
                    need /= f.extent;
                    factors.push(f);
                } else if f.extent % need == 0 {
                    let inner = f.extent / need;
                    factors.push(Factor { extent: need, stride: f.stride * inner });
                    merged.push(Factor { extent: inner, stride: f.stride });
                    need = 1;
                } else {
                    return false;
                }
            }
            dims.push(Dim { size, factors });
        }
        self.dims = dims;
        true
    }
}

/// Strides of a row-major tensor, in elements; those around a dimension of size 0 are as if it had size 1.
pub(crate) fn row_major_strides(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1].max(1);
    }
    strides
}

/// Position of one index within a factor list.
fn position(factors: &[Factor], index: i64) -> i64 {
    let mut rest = index;
    factors
        .iter()
        .rev()
        .map(|f| {
            let digit = rest % f.extent;
            rest /= f.extent;
            digit * f.stride
        })
        .sum()
}

/// Factors whose positions are the sums of those of two lists, or `None` where the extents do not divide.
fn add_factors(a: &[Factor], b: &[Factor]) -> Option<Vec<Factor>> {
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    let mut out = Vec::new();
    // From the innermost on, the smaller of the two extents is split off the larger.
    while let (Some(x), Some(y)) = (a.pop(), b.pop()) {
        let extent = x.extent.min(y.extent);
        for (f, rest) in [(x, &mut a), (y, &mut b)] {
            if f.extent % extent != 0 {
                return None;
            }
            if f.extent > extent {
                rest.push(Factor { extent: f.extent / extent, stride: f.stride * extent });
            }
        }
        out.push(Factor { extent, stride: x.stride + y.stride });
    }
    out.reverse();
    (a.is_empty() && b.is_empty()).then_some(out)
}

fn slice_factors(factors: &[Factor], start: i64, len: i64, step: i64) -> Option<(i64, Vec<Factor>)> {
    if len == 0 {
        return Some((0, Vec::new()));
    }
    if len == 1 {
        return Some((position(factors, start), Vec::new()));
    }
    let (outer, inner) = factors.split_first()?;
    if inner.is_empty() {
        let factor = Factor { extent: len, stride: outer.stride * step };
        return Some((start * outer.stride, vec![factor]));
    }
    let period: i64 = inner.iter().map(|f| f.extent).product();
    let (row, digit) = (start / period, start % period);
    let base = row * outer.stride;
    if row == (start + (len - 1) * step) / period {
        let (offset, factors) = slice_factors(inner, digit, len, step)?;
        return Some((base + offset, factors));
    }
    if step % period == 0 {
        let factor = Factor { extent: len, stride: outer.stride * (step / period) };
        return Some((base + position(inner, digit), vec![factor]));
    }
    let per_row = period / step;
    if period % step == 0 && digit < step && len % per_row == 0 {
        let (offset, rest) = slice_factors(inner, digit, per_row, step)?;
        let mut out = vec![Factor { extent: len / per_row, stride: outer.stride }];
        out.extend(rest);
        return Some((base + offset, out));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(layout: &Layout) -> Vec<i64> {
        let mut out = vec![layout.offset];
        for d in &layout.dims {
            out = out.iter().flat_map(|p| (0..d.size).map(move |i| p + position(&d.factors, i))).collect();
        }
        out
    }

    #[test]
    fn reshape_after_transpose_stays_one_layout() {
        let mut l = Layout::row_major(&[4, 6]);
        l.permute(&[1, 0]);
        assert!(l.regroup(&[24]));
        let expect: Vec<i64> = (0..6).flat_map(|c| (0..4).map(move |r| r * 6 + c)).collect();
        assert_eq!(positions(&l), expect);
        assert!(l.regroup(&[3, 8]));
        assert_eq!(positions(&l), expect);
    }

    #[test]
    fn aligned_slices_across_factors_stay_one_layout_and_others_say_no() {
        for (start, len, step) in
            [(4, 8, 1), (5, 3, 1), (5, 2, 8), (0, 12, 2), (1, 12, 2), (8, 4, 2), (3, 1, 1), (0, 0, 1)]
        {
            let mut l = Layout::row_major(&[4, 6]);
            l.permute(&[1, 0]);
            l.regroup(&[24]);
            let all = positions(&l);
            assert!(l.slice(0, start, len, step), "{start} {len} {step}");
            let expect: Vec<i64> = (0..len).map(|i| all[(start + i * step) as usize]).collect();
            assert_eq!(positions(&l), expect);
        }
        let mut l = Layout::row_major(&[4, 6]);
        l.permute(&[1, 0]);
        l.regroup(&[24]);
        let before = l.clone();
        assert!(!l.slice(0, 3, 8, 1));
        assert_eq!(l, before);
    }
}
