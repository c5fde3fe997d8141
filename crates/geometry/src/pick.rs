//! Indices along one dimension in another order: what `roll` and constant index lists need.
//!
//! A list of indices is kept as runs, so that it is as large as its structure and not as its length. A list
//! whose runs repeat regularly is no list at all but the factors of a [`Layout`](crate::Layout); only what is
//! left becomes a [`Pick`].

use restage_nest::Nest;

use crate::grid::{MAX_PIECES, TooManyPieces, to_grid};
use crate::layout::Factor;

/// Indices `start, start + step, …`, `len` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Indices {
    pub start: i64,
    pub len: i64,
    pub step: i64,
}

impl Indices {
    /// The index that would follow; `None` past 63 bits.
    fn next(&self) -> Option<i64> {
        self.len.checked_mul(self.step)?.checked_add(self.start)
    }
}

/// A map from positions in the row-major order of `[outer, n, inner]`, where `n` is the length of all runs
/// together, to positions in that of `[outer, size, inner]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pick {
    pub outer: i64,
    /// Indices of the dimension that is picked from.
    pub size: i64,
    pub inner: i64,
    /// What is picked; no run is empty.
    pub runs: Vec<Indices>,
}

/// The fewest runs that taking each as long as it goes will give.
pub(crate) fn runs_of(list: &[i64]) -> Vec<Indices> {
    let mut runs: Vec<Indices> = Vec::new();
    for &index in list {
        match runs.last_mut() {
            Some(run) if run.len == 1 => *run = Indices { len: 2, step: index - run.start, ..*run },
            Some(run) if run.next() == Some(index) => run.len += 1,
            _ => runs.push(Indices { start: index, len: 1, step: 1 }),
        }
    }
    runs
}

/// The first index and the factors of runs that repeat regularly, outermost first; `None` for others.
pub(crate) fn factors_of(runs: &[Indices]) -> Option<(i64, Vec<Factor>)> {
    let first = *runs.first()?;
    if runs.iter().any(|r| (r.len, r.step) != (first.len, first.step)) {
        return None;
    }
    let mut factors = Vec::new();
    if runs.len() > 1 {
        let starts: Vec<i64> = runs.iter().map(|r| r.start).collect();
        let outer = runs_of(&starts);
        // Each level at least halves the list, or there is nothing regular about it.
        if outer.len() == runs.len() {
            return None;
        }
        factors = factors_of(&outer)?.1;
    }
    if first.len > 1 {
        factors.push(Factor { extent: first.len, stride: first.step });
    }
    Some((first.start, factors))
}

impl Pick {
    /// Nests from the picked order to somewhere become nests from the order that was picked from.
    pub(crate) fn compose(&self, nests: &[Nest]) -> Result<Vec<Nest>, TooManyPieces> {
        let mut starts = Vec::with_capacity(self.runs.len());
        let mut n = 0;
        for run in &self.runs {
            starts.push(n);
            n += run.len;
        }
        let mut out = Vec::new();
        let mut clipped = Vec::new();
        for nest in nests {
            for piece in to_grid(nest, &[self.outer, n, self.inner])? {
                let (low, high) = piece.hull();
                let from = starts.partition_point(|&at| at <= low[1]).saturating_sub(1);
                for (run, &at) in self.runs[from..].iter().zip(&starts[from..]) {
                    if at >= high[1] {
                        break;
                    }
                    clipped.clear();
                    let end = [self.outer, at + run.len, self.inner];
                    piece.clip_within(&[0, at, 0], &end, MAX_PIECES - out.len(), &mut clipped)?;
                    let strides = [self.size * self.inner, run.step * self.inner, 1];
                    out.extend(clipped.iter().map(|part| {
                        let mut part = part.lower(&[0, at, 0], &strides);
                        part.src = part.src.wrapping_add_signed(run.start * self.inner);
                        part
                    }));
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(start: i64, factors: &[Factor]) -> Vec<i64> {
        factors.iter().fold(vec![start], |all, f| {
            all.iter().flat_map(|p| (0..f.extent).map(move |i| p + i * f.stride)).collect()
        })
    }

    #[test]
    fn runs_are_the_list() {
        for indices in
            [&[][..], &[4], &[3, 3, 3], &[0, 1, 2, 7, 6, 5], &[5, 0, 1, 2], &[1, 0, 0, 1], &[0, 1 << 62, 1]]
        {
            let runs = runs_of(indices);
            let back: Vec<i64> =
                runs.iter().flat_map(|r| (0..r.len).map(move |i| r.start + i * r.step)).collect();
            assert_eq!(back, indices);
        }
    }

    #[test]
    fn regular_lists_are_factors() {
        // The order of rotary halves: 0, 4, 1, 5, 2, 6, 3, 7.
        for (indices, count) in [
            (vec![0, 4, 1, 5, 2, 6, 3, 7], 2),
            (vec![3, 2, 1, 0], 1),
            (vec![0, 1, 4, 5, 8, 9, 100, 101, 104, 105, 108, 109], 3),
            (vec![7], 0),
        ] {
            let (start, factors) = factors_of(&runs_of(&indices)).unwrap();
            assert_eq!((list(start, &factors), factors.len()), (indices, count));
        }
        assert_eq!(factors_of(&runs_of(&[0, 1, 2, 5])), None);
        assert_eq!(factors_of(&runs_of(&[0, 1, 5, 6, 7, 8, 30, 31])), None);
    }
}
