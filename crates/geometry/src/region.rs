//! Half-open boxes in the index space of a tensor.

use std::fmt;

use thiserror::Error;

/// A box `start[d] .. end[d]` in every dimension, in elements. A tensor of no dimensions has one region, which
/// holds its single element.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region {
    /// The first index in each dimension, then one past the last in each: in one piece, since a catalog holds a region
    /// for every shard.
    bounds: Box<[i64]>,
}

/// A box that is not one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Start and end (or offset and shape) differ in their number of dimensions.
    #[error("offset has {offset} dimensions and shape has {shape}")]
    Rank {
        /// Dimensions of the offset.
        offset: usize,
        /// Dimensions of the shape.
        shape: usize,
    },
    /// A negative offset or size, or an end past 63 bits.
    #[error("dimension {dim}: offset {offset} with size {size} is no range")]
    Range {
        /// The dimension.
        dim: usize,
        /// Its offset, in elements.
        offset: i64,
        /// Its size, in elements.
        size: i64,
    },
}

impl Region {
    /// The box of size `shape` at `offset`.
    ///
    /// # Errors
    /// [`RegionError`] when the two differ in dimensions, or one is negative, or their sum overflows.
    pub fn new(offset: &[i64], shape: &[i64]) -> Result<Self, RegionError> {
        if offset.len() != shape.len() {
            return Err(RegionError::Rank { offset: offset.len(), shape: shape.len() });
        }
        let mut bounds = Vec::with_capacity(2 * offset.len());
        bounds.extend_from_slice(offset);
        for (dim, (&offset, &size)) in offset.iter().zip(shape).enumerate() {
            let stop = (offset >= 0 && size >= 0).then(|| offset.checked_add(size)).flatten();
            bounds.push(stop.ok_or(RegionError::Range { dim, offset, size })?);
        }
        Ok(Region { bounds: bounds.into() })
    }

    /// The whole of a tensor of this shape.
    ///
    /// # Errors
    /// [`RegionError::Range`] when a size is negative.
    pub fn whole(shape: &[i64]) -> Result<Self, RegionError> {
        Region::new(&vec![0; shape.len()], shape)
    }

    /// First index in each dimension.
    pub fn start(&self) -> &[i64] {
        &self.bounds[..self.ndim()]
    }

    /// One past the last index in each dimension.
    pub fn end(&self) -> &[i64] {
        &self.bounds[self.ndim()..]
    }

    /// Size in each dimension.
    pub fn shape(&self) -> Vec<i64> {
        self.ranges().map(|(s, e)| e - s).collect()
    }

    /// Number of dimensions.
    pub fn ndim(&self) -> usize {
        self.bounds.len() / 2
    }

    fn ranges(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.start().iter().copied().zip(self.end().iter().copied())
    }

    /// True when it holds no element.
    pub fn is_empty(&self) -> bool {
        self.ranges().any(|(s, e)| s == e)
    }

    /// Elements inside, or `None` past 63 bits.
    pub fn numel(&self) -> Option<i64> {
        if self.is_empty() {
            return Some(0);
        }
        self.ranges().try_fold(1i64, |n, (s, e)| n.checked_mul(e - s))
    }

    /// True when `other` lies inside.
    pub fn contains(&self, other: &Region) -> bool {
        other.is_empty()
            || (self.ndim() == other.ndim()
                && self.ranges().zip(other.ranges()).all(|(a, b)| a.0 <= b.0 && b.1 <= a.1))
    }

    /// True when the two have an element in common.
    pub fn overlaps(&self, other: &Region) -> bool {
        self.ndim() == other.ndim()
            && self.ranges().zip(other.ranges()).all(|(a, b)| a.0.max(b.0) < a.1.min(b.1))
    }

    /// The common part, or `None` when there is none (also when the dimensions differ).
    pub fn intersect(&self, other: &Region) -> Option<Region> {
        if self.ndim() != other.ndim() {
            return None;
        }
        let start = self.start().iter().zip(other.start()).map(|(a, b)| *a.max(b));
        let end = self.end().iter().zip(other.end()).map(|(a, b)| *a.min(b));
        let common = Region { bounds: start.chain(end).collect() };
        let holds = common.ranges().all(|(s, e)| s < e);
        holds.then_some(common)
    }

    /// What is left of `self` without `other`: disjoint boxes, at most two a dimension.
    ///
    /// ```
    /// use restage_geometry::Region;
    /// let rows = Region::new(&[0, 0], &[6, 2])?;
    /// assert_eq!(rows.subtract(&Region::new(&[0, 0], &[4, 2])?), [Region::new(&[4, 0], &[2, 2])?]);
    /// # Ok::<(), restage_geometry::RegionError>(())
    /// ```
    pub fn subtract(&self, other: &Region) -> Vec<Region> {
        let Some(cut) = self.intersect(other) else {
            return if self.is_empty() { Vec::new() } else { vec![self.clone()] };
        };
        let mut rest = self.clone();
        let mut out = Vec::new();
        let ndim = self.ndim();
        for (start, end) in (0..ndim).map(|d| (d, ndim + d)) {
            if rest.bounds[start] < cut.bounds[start] {
                let mut below = rest.clone();
                below.bounds[end] = cut.bounds[start];
                out.push(below);
                rest.bounds[start] = cut.bounds[start];
            }
            if cut.bounds[end] < rest.bounds[end] {
                let mut above = rest.clone();
                above.bounds[start] = cut.bounds[end];
                out.push(above);
                rest.bounds[end] = cut.bounds[end];
            }
        }
        out
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (d, (s, e)) in self.ranges().enumerate() {
            write!(f, "{}{s}..{e}", if d == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(r: &Region) -> Vec<(i64, i64)> {
        let (s, e) = (r.start().to_vec(), r.end().to_vec());
        (s[0]..e[0]).flat_map(|i| (s[1]..e[1]).map(move |j| (i, j))).collect()
    }

    #[test]
    fn reversed_and_overflowing_boxes_are_refused() {
        assert_eq!(Region::new(&[0], &[-1]), Err(RegionError::Range { dim: 0, offset: 0, size: -1 }));
        assert!(Region::new(&[i64::MAX], &[1]).is_err());
        assert_eq!(Region::new(&[0], &[1, 2]), Err(RegionError::Rank { offset: 1, shape: 2 }));
        assert!(Region::new(&[3], &[0]).unwrap().is_empty());
        assert_eq!(Region::whole(&[]).unwrap().numel(), Some(1));
    }

    fn boxes() -> impl Strategy<Value = Region> {
        (0i64..5, 0i64..5, 0i64..5, 0i64..5).prop_map(|(a, b, c, d)| Region::new(&[a, b], &[c, d]).unwrap())
    }

    proptest! {
        #[test]
        fn subtract_and_intersect_partition(a in boxes(), b in boxes()) {
            let mut parts: Vec<_> = a.subtract(&b).iter().flat_map(members).collect();
            if let Some(common) = a.intersect(&b) {
                parts.extend(members(&common));
            }
            parts.sort_unstable();
            prop_assert_eq!(parts, members(&a));
            prop_assert_eq!(a.intersect(&b), b.intersect(&a));
        }
    }
}
