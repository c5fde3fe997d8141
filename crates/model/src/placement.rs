//! Where a rank is in a job: its tensor-parallel rank, the group that shares its experts, its pipeline stage.

use std::ops::Range;

use crate::config::ModelConfig;
use crate::decoder::{Problem, ProblemList, Shares};

/// A tensor-parallel rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Number of ranks; of one pipeline stage where there are several.
    pub tp_size: i64,
    /// Which of them, from 0.
    pub tp_rank: i64,
}

/// A stage of a pipeline of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Which stage, from 0.
    pub index: i64,
    /// Number of stages.
    pub count: i64,
}

/// A tensor-parallel rank, how experts fall on the ranks, and the stage that the rank belongs to. A [`Rank`] alone cuts
/// every expert, and holds all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The rank.
    pub rank: Rank,
    /// Number of groups into which a stage's ranks are divided, neighbours together. Each group holds its share of the
    /// experts, in order, and its ranks cut each of those; everything but the routed experts is cut over all ranks as
    /// ever. As many groups as ranks is vLLM's `enable_expert_parallel` with its linear placement (without data
    /// parallelism). A number between 1 and that is what engines with an expert-parallel size of its own have, such as
    /// SGLang's `ep_size` (a rank's group is `tp_rank / (tp_size / ep_size)`); parameters have vLLM's names all the same.
    /// `None` cuts every expert over all ranks.
    pub expert_groups: Option<i64>,
    /// The stage.
    pub stage: Stage,
}

impl From<Rank> for Placement {
    fn from(rank: Rank) -> Self {
        Placement { rank, expert_groups: None, stage: Stage { index: 0, count: 1 } }
    }
}

impl Placement {
    /// A rank that holds whole experts, its share of them in order (vLLM's `enable_expert_parallel`).
    pub fn expert_parallel(rank: Rank) -> Self {
        Placement { expert_groups: Some(rank.tp_size), ..Placement::from(rank) }
    }

    /// Checks that the sizes of a model divide, for any rank of the job.
    ///
    /// # Errors
    /// Every size that does not, with what it is divided by; a rank, a group or a stage that cannot be.
    pub fn check(&self, config: &ModelConfig) -> Result<(), ProblemList> {
        Shares::new(config, *self).map(drop)
    }

    /// True on the stage that has the embedding.
    pub fn is_first(&self) -> bool {
        self.stage.index == 0
    }

    /// True on the stage that has the last norm and the head.
    pub fn is_last(&self) -> bool {
        self.stage.index + 1 == self.stage.count
    }

    /// The layers of the stage, of `total`: vLLM's `get_pp_indices` without a partition by hand. Each stage has
    /// `total / stages`, and of the layers that are left over one each goes to the last stage but one and those
    /// before it.
    ///
    /// ```
    /// use restage_model::{Placement, Rank, Stage};
    /// let at = |index| Placement { stage: Stage { index, count: 4 }, ..Rank { tp_size: 1, tp_rank: 0 }.into() };
    /// assert_eq!(at(0).layers(61)?, 0..15);
    /// assert_eq!(at(2).layers(61)?, 30..46);
    /// assert_eq!(at(3).layers(61)?, 46..61);
    /// # Ok::<(), restage_model::ProblemList>(())
    /// ```
    ///
    /// # Errors
    /// [`Problem::Stage`] for a stage that does not exist, [`Problem::TooManyStages`] for more stages than layers.
    pub fn layers(&self, total: i64) -> Result<Range<i64>, ProblemList> {
        let Stage { index, count } = self.stage;
        if !(0..count).contains(&index) {
            return Err(ProblemList(vec![Problem::Stage { stage: index, stages: count }]));
        }
        if count > total {
            return Err(ProblemList(vec![Problem::TooManyStages { stages: count, layers: total }]));
        }
        let (each, left) = (total / count, total % count);
        // Stages `count - 1 - left .. count - 1` have one more; `left < count`, so that they exist.
        let longer = count - 1 - left;
        let start = |i: i64| i * each + (i - longer).clamp(0, left);
        Ok(start(index)..start(index + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(total: i64, count: i64) -> Vec<i64> {
        let rank = Rank { tp_size: 1, tp_rank: 0 };
        let mut at = 0;
        let len = |index| {
            let place = Placement { stage: Stage { index, count }, ..rank.into() };
            let layers = place.layers(total).unwrap();
            assert_eq!(layers.start, at);
            at = layers.end;
            layers.end - layers.start
        };
        let lens = (0..count).map(len).collect();
        assert_eq!(at, total);
        lens
    }

    #[test]
    fn layers_fall_on_stages_as_vllm_puts_them() {
        for (total, count, lens) in [
            (61, 4, vec![15, 15, 16, 15]),
            (61, 8, vec![7, 7, 8, 8, 8, 8, 8, 7]),
            (5, 2, vec![3, 2]),
            (7, 3, vec![2, 3, 2]),
            (8, 3, vec![3, 3, 2]),
            (4, 4, vec![1, 1, 1, 1]),
            (9, 1, vec![9]),
        ] {
            assert_eq!(stages(total, count), lens, "{total} over {count}");
        }
    }

    /// The list of vLLM's function, entry by entry.
    #[test]
    fn every_split_is_that_list() {
        for total in 1..40 {
            for count in 1..=total {
                let mut lens = vec![total / count; count as usize];
                for i in 2..total % count + 2 {
                    lens[(count - i) as usize] += 1;
                }
                assert_eq!(stages(total, count), lens, "{total} over {count}");
            }
        }
    }

    #[test]
    fn stages_that_cannot_be_are_refused() {
        let at = |index, count| {
            let rank = Rank { tp_size: 1, tp_rank: 0 };
            Placement { stage: Stage { index, count }, ..rank.into() }.layers(3).unwrap_err().0
        };
        assert_eq!(at(0, 4), [Problem::TooManyStages { stages: 4, layers: 3 }]);
        for (index, count) in [(2, 2), (-1, 2), (0, 0)] {
            assert_eq!(at(index, count), [Problem::Stage { stage: index, stages: count }]);
        }
    }
}
