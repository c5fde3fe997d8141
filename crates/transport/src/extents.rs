//! The address ranges that a session can be read at.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Address ranges of one session, in bytes: sorted, disjoint, none of them empty. Cheap to clone.
///
/// Ranges that touch are kept apart, since they are different pieces of memory: a run lies in one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extents(Arc<[Range<u64>]>);

impl Extents {
    /// Extents from ranges in any order; empty ranges are dropped. `None` when two of them overlap.
    ///
    /// ```
    /// use restage_transport::Extents;
    /// let extents = Extents::new([200..300, 0..100]).unwrap();
    /// assert_eq!(extents.find(&(250..300)), Some(1));
    /// assert_eq!(extents.find(&(90..110)), None);
    /// assert!(Extents::new([0..10, 9..12]).is_none());
    /// ```
    pub fn new(ranges: impl IntoIterator<Item = Range<u64>>) -> Option<Self> {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|r| r.start < r.end).collect();
        ranges.sort_unstable_by_key(|r| r.start);
        let disjoint = ranges.windows(2).all(|w| w[0].end <= w[1].start);
        disjoint.then(|| Extents(ranges.into()))
    }

    /// One extent, of `len` bytes from address 0.
    pub fn from_zero(len: u64) -> Self {
        Extents(std::iter::once(0..len).filter(|r| !r.is_empty()).collect())
    }

    /// The ranges, in ascending order.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Index of the one range that holds all of `wanted`.
    pub fn find(&self, wanted: &Range<u64>) -> Option<usize> {
        let at = self.0.partition_point(|r| r.start <= wanted.start).checked_sub(1)?;
        (wanted.end <= self.0[at].end).then_some(at)
    }
}

impl fmt::Display for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            [] => f.write_str("no bytes"),
            [one] => write!(f, "{:#x}..{:#x}", one.start, one.end),
            [first, .., last] => {
                write!(f, "{} extents within {:#x}..{:#x}", self.0.len(), first.start, last.end)
            }
        }
    }
}
