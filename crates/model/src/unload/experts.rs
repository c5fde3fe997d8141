//! Sparse layers on the way back: the parameters of all ranks to each expert's projections.

use restage_geometry::{Dtype, LazyTensor};

use super::{Expectation, Rows, Unloader};
use crate::TensorTable;
use crate::config::ModelConfig;
use crate::decoder::{Problem, STACKED_DOWN, STACKED_GATE_UP, layer};
use crate::load::LoadError;

// Names that engines have for a sparse layer's parameters, below `model.layers.N.mlp.`, newest first. Reading
// takes any of them.
const W13: [&str; 2] = ["experts.routed_experts.w13_weight", "experts.w13_weight"];
const W2: [&str; 2] = ["experts.routed_experts.w2_weight", "experts.w2_weight"];
const GATE: [&str; 4] =
    ["experts.gate.weight", "experts.runner.gate.weight", "experts._gate.weight", "gate.weight"];
const MAP: [&str; 3] = ["experts.routed_experts._expert_map", "experts._expert_map", "experts.expert_map"];

/// The name that a table has, or the newest where it has none.
fn known(table: &TensorTable, mlp: &str, names: &[&str]) -> String {
    let mut full = names.iter().map(|n| format!("{mlp}.{n}"));
    full.find(|n| table.contains_key(n)).unwrap_or_else(|| format!("{mlp}.{}", names[0]))
}

/// Whether each rank holds whole experts: its first sparse layer then has fewer than the model.
pub(super) fn are_spread(config: &ModelConfig, ranks: &[TensorTable]) -> bool {
    let (Some(experts), Some(table)) = (&config.experts, ranks.first()) else { return false };
    let Some(first) = (0..config.num_hidden_layers).find(|&i| config.is_sparse(i)) else { return false };
    let name = known(table, &format!("{}.mlp", layer(first)), &W13);
    let held = table.get(&name).and_then(|(_, shape)| shape.first().copied());
    ranks.len() > 1 && held.is_some_and(|n| n.checked_mul(ranks.len() as i64) == Some(experts.count))
}

impl<'c> Unloader<'_, 'c> {
    /// A sparse layer; `mlp` is the prefix of its tensors.
    pub(super) fn experts(&mut self, mlp: &str) -> Result<(), LoadError> {
        let Some(experts) = &self.config.experts else { return Ok(()) };
        let (count, inner, hidden) = (experts.count, experts.intermediate_size, self.config.hidden_size);
        let ranks = self.ranks;
        let gate = |r: usize| known(&ranks[r], mlp, &GATE);
        self.renamed(&format!("{mlp}.gate.weight"), &[count, hidden], gate)?;
        let (own, cut) = (self.shares[0].experts.len, self.shares[0].expert.len);
        let w13 = self.of_ranks(mlp, &W13, &[own, 2 * cut, hidden]);
        let w2 = self.of_ranks(mlp, &W2, &[own, hidden, cut]);
        if self.expert_parallel {
            for r in 0..ranks.len() {
                self.expert_map(r, mlp, count);
            }
        }
        let (Some(w13), Some(w2)) = (w13, w2) else { return Ok(()) };
        match self.original.stacked_experts {
            true => self.stack(mlp, &w13, &w2, [count, inner, hidden]),
            false => self.one_by_one(mlp, &w13, &w2, [count, inner, hidden]),
        }
    }

    fn of_ranks(&mut self, mlp: &str, names: &[&str], shape: &[i64]) -> Option<Vec<LazyTensor<'c>>> {
        let ranks = self.ranks;
        let name = |r: usize| known(&ranks[r], mlp, names);
        let sources = (0..ranks.len()).map(|r| self.source(r, &name(r), shape)).collect();
        self.same_dtype(sources)
    }

    /// One tensor per expert and projection.
    fn one_by_one(
        &mut self,
        mlp: &str,
        w13: &[LazyTensor<'_>],
        w2: &[LazyTensor<'_>],
        [count, inner, hidden]: [i64; 3],
    ) -> Result<(), LoadError> {
        for e in 0..count {
            let weight = |projection: &str| format!("{mlp}.experts.{e}.{projection}.weight");
            let both = [weight("gate_proj"), weight("up_proj")];
            let both = [
                self.capture.param(&both[0], w13[0].dtype(), &[inner, hidden])?,
                self.capture.param(&both[1], w13[0].dtype(), &[inner, hidden])?,
            ];
            let down = self.capture.param(&weight("down_proj"), w2[0].dtype(), &[hidden, inner])?;
            for ((share, w13), w2) in self.shares.iter().zip(w13).zip(w2) {
                let (own, cut) = (share.experts, share.expert);
                if !(own.start..own.start + own.len).contains(&e) {
                    continue;
                }
                let w13 = w13.select(0, e - own.start)?;
                for (half, dest) in (0..).zip(&both) {
                    let rows = w13.narrow(0, half * cut.len, cut.len)?;
                    dest.narrow(0, cut.start, cut.len)?.copy_from(&rows)?;
                }
                down.narrow(1, cut.start, cut.len)?.copy_from(&w2.select(0, e - own.start)?)?;
            }
        }
        Ok(())
    }

    /// All experts of a layer in two tensors.
    fn stack(
        &mut self,
        mlp: &str,
        w13: &[LazyTensor<'_>],
        w2: &[LazyTensor<'_>],
        [count, inner, hidden]: [i64; 3],
    ) -> Result<(), LoadError> {
        let gate_up = format!("{mlp}.{STACKED_GATE_UP}");
        let gate_up = self.capture.param(&gate_up, w13[0].dtype(), &[count, 2 * inner, hidden])?;
        let down = format!("{mlp}.{STACKED_DOWN}");
        let down = self.capture.param(&down, w2[0].dtype(), &[count, hidden, inner])?;
        for ((share, w13), w2) in self.shares.iter().zip(w13).zip(w2) {
            let (own, cut) = (share.experts, share.expert);
            let place = gate_up.narrow(0, own.start, own.len)?;
            for half in 0..2 {
                place.narrow(1, half * inner + cut.start, cut.len)?.copy_from(&w13.narrow(
                    1,
                    half * cut.len,
                    cut.len,
                )?)?;
            }
            down.narrow(0, own.start, own.len)?.narrow(2, cut.start, cut.len)?.copy_from(w2)?;
        }
        Ok(())
    }

    /// The map of older engines has no place in a Hugging Face checkpoint: it must say what the shapes say.
    fn expert_map(&mut self, r: usize, mlp: &str, count: i64) {
        let name = known(&self.ranks[r], mlp, &MAP);
        if !self.ranks[r].contains_key(&name) {
            return;
        }
        let Some(map) = self.source(r, &name, &[count]) else { return };
        if map.dtype() != Dtype::I32 {
            let (tensor, found) = (map.name().to_owned(), map.dtype());
            self.problems.push(Problem::Dtype { tensor, expected: Dtype::I32, found });
            return;
        }
        let own = self.shares[r].experts;
        let place = |e: i64| if (own.start..own.start + own.len).contains(&e) { e - own.start } else { -1 };
        // Experts of a layer number at most 2^28.
        let bytes = (0..count).flat_map(|e| (place(e) as i32).to_le_bytes()).collect();
        let rows = Rows { source: map.name().to_owned(), start: 0, len: count };
        self.expectations.push(Expectation::Bytes(rows, bytes));
    }
}
