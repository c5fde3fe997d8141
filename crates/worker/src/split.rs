//! Which blocks a stage owns.
//!
//! The law: the ranges of all stages, in order, are the blocks in order, each once, and none is empty.

use std::ops::Range;

use thiserror::Error;

use crate::Stage;

/// How blocks are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Split {
    /// `k = total / stages` blocks each, and the last stage has what is left: what drivers of today compute.
    #[default]
    Floor,
    /// No two stages differ by more than one block. Those with one more sit as close to the middle as can be, since
    /// the first stage has the embedding besides and the last one the head.
    Balanced,
}

/// Why blocks cannot be shared out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SplitError {
    /// Fewer blocks than stages.
    #[error("{total} blocks cannot be split into {stages} stages: each must own at least one")]
    TooFewBlocks {
        /// The model's blocks.
        total: u64,
        /// The number of stages.
        stages: u64,
    },
}

impl Split {
    /// The blocks that a stage owns of `total`.
    ///
    /// ```
    /// use restage_worker::{Split, Stage};
    /// assert_eq!(Split::Floor.range(Stage::new(2, 3)?, 10)?, 6..10);
    /// assert_eq!(Split::Balanced.range(Stage::new(1, 3)?, 10)?, 3..7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fewer blocks than stages.
    pub fn range(self, stage: Stage, total: u64) -> Result<Range<u64>, SplitError> {
        let (index, stages) = (stage.index(), stage.count());
        if total < stages {
            return Err(SplitError::TooFewBlocks { total, stages });
        }
        let (each, left) = (total / stages, total % stages);
        // No product overflows: index + 1 <= stages and each * stages <= total.
        Ok(match self {
            Split::Floor if index + 1 == stages => index * each..total,
            Split::Floor => index * each..(index + 1) * each,
            Split::Balanced => {
                let first_longer = (stages - left) / 2;
                let start = |i: u64| i * each + i.saturating_sub(first_longer).min(left);
                start(index)..start(index + 1)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges(split: Split, stages: i64, total: u64) -> Vec<Range<u64>> {
        (0..stages).map(|s| split.range(Stage::new(s, stages).unwrap(), total).unwrap()).collect()
    }

    #[test]
    fn as_the_field_reports_them() {
        assert_eq!(ranges(Split::Floor, 3, 10), [0..3, 3..6, 6..10]);
        assert_eq!(ranges(Split::Floor, 4, 30), [0..7, 7..14, 14..21, 21..30]);
        assert_eq!(ranges(Split::Floor, 8, 31).last(), Some(&(21..31)));
        assert_eq!(ranges(Split::Floor, 2, 15), [0..7, 7..15]);
        assert_eq!(ranges(Split::Balanced, 4, 30), [0..7, 7..15, 15..23, 23..30]);
        assert_eq!(ranges(Split::Balanced, 2, 3), [0..2, 2..3]);
    }

    proptest! {
        #[test]
        fn every_block_exactly_once(stages in 2..70i64, more in 0..300u64) {
            let total = stages.unsigned_abs() + more;
            for split in [Split::Floor, Split::Balanced] {
                let ranges = ranges(split, stages, total);
                let joined: Vec<u64> = ranges.iter().cloned().flatten().collect();
                prop_assert_eq!(joined, (0..total).collect::<Vec<_>>());
                prop_assert!(ranges.iter().all(|r| !r.is_empty()));
            }
            let lengths: Vec<u64> =
                ranges(Split::Balanced, stages, total).iter().map(|r| r.end - r.start).collect();
            let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
            prop_assert!(most - least <= 1);
            // The ends are longer only when the middle alone cannot hold the remainder.
            let left = total % stages.unsigned_abs();
            if left > 0 && left + 2 <= stages.unsigned_abs() {
                prop_assert_eq!((lengths[0], lengths[lengths.len() - 1]), (*least, *least));
            }
        }

        #[test]
        fn fewer_blocks_than_stages_are_refused(stages in 2..70i64, index in 0..70i64, total in 0..70u64) {
            prop_assume!(index < stages && total < stages.unsigned_abs());
            let stage = Stage::new(index, stages).unwrap();
            for split in [Split::Floor, Split::Balanced] {
                prop_assert_eq!(
                    split.range(stage, total),
                    Err(SplitError::TooFewBlocks { total, stages: stage.count() })
                );
            }
        }
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let most = i64::MAX;
        for index in [0, 1, most / 2, most - 1] {
            let stage = Stage::new(index, most).unwrap();
            for total in [most.unsigned_abs(), u64::MAX] {
                for split in [Split::Floor, Split::Balanced] {
                    let range = split.range(stage, total).unwrap();
                    assert!(!range.is_empty() && range.end <= total);
                }
            }
        }
    }
}
