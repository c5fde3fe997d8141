//! Sparse layers: every expert's projections into two parameters, and the projection that chooses experts.

use std::ops::Bound;

use restage_geometry::Dtype;

use super::{LoadError, Loader};
use crate::TensorTable;
use crate::config::ModelConfig;
use crate::decoder::{Problem, STACKED_DOWN, STACKED_GATE_UP, layer};
use crate::engine::{Engine, EngineError, ExpertNames};
use crate::placement::Placement;

/// The projections of an expert in the order of its parameters: gate and up are w13, down is w2.
const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Where vLLM 0.33 keeps the shared experts, below `model.layers.N.mlp.`; see [`super::latent`].
const SHARED: &str = "experts._shared_experts._layer";

/// The gate's bias in vLLM 0.33, below `model.layers.N.mlp.`.
const GATE_BIAS: &str = "experts.gate.e_score_correction_bias";

/// How the experts of a model are named and found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sparse {
    names: ExpertNames,
    /// Name of the map that says which experts a rank holds, where the state has one.
    map: Option<&'static str>,
    /// True where the checkpoint has all experts of a layer in one tensor.
    stacked: bool,
}

impl Sparse {
    /// `None` where no layer has experts, so that no version needs to be known.
    pub fn new(
        config: &ModelConfig,
        engine: Engine,
        placement: Placement,
        sources: &TensorTable,
    ) -> Result<Option<Self>, EngineError> {
        if config.sparse_layers() == 0 {
            return Ok(None);
        }
        // A group of all ranks holds all experts and has no map.
        let spread = placement.expert_groups.is_some_and(|groups| groups > 1);
        let map = if spread { engine.expert_map()? } else { None };
        let first = (0..config.num_hidden_layers).find(|&i| config.is_sparse(i)).unwrap_or(0);
        // The loader of a model with latent attention knows no such form: its tensors have no place.
        let stacked = config.latent.is_none()
            && [STACKED_GATE_UP, STACKED_DOWN]
                .iter()
                .any(|name| sources.contains_key(&format!("{}.mlp.{name}", layer(first))));
        if stacked {
            engine.stacked_experts()?;
        }
        Ok(Some(Sparse { names: engine.expert_names()?, map, stacked }))
    }
}

/// One projection of one expert, as the checkpoint has it.
struct Weight<'a> {
    expert: i64,
    /// Index in [`PROJECTIONS`].
    projection: usize,
    name: &'a str,
    dtype: Dtype,
    shape: &'a [i64],
}

impl<'a> Loader<'a, '_> {
    /// A sparse layer; `mlp` is the prefix of its tensors.
    pub(super) fn experts(&mut self, mlp: &str, sparse: Sparse) -> Result<(), LoadError> {
        let Some(experts) = &self.config.experts else { return Ok(()) };
        let gate = format!("{mlp}.gate.weight");
        let shape = [experts.count, self.config.hidden_size];
        self.renamed(&format!("{mlp}.{}", sparse.names.gate), &gate, &shape)?;
        if experts.gate_bias {
            self.gate_bias(mlp, experts.count)?;
        }
        if experts.shared_size > 0 {
            let (param, tensor) = (format!("{mlp}.{SHARED}"), format!("{mlp}.shared_experts"));
            self.feed_forward(&param, &tensor, experts.shared_size, self.shares.shared, false)?;
        }
        match sparse.stacked {
            true => self.stacked(mlp, sparse.names)?,
            false => self.one_by_one(mlp, sparse.names)?,
        }
        match sparse.map {
            Some(map) => self.expert_map(&format!("{mlp}.{map}"), experts.count),
            None => Ok(()),
        }
    }

    /// The bias by which experts are chosen: float32 in the engine, whatever the checkpoint has it in.
    fn gate_bias(&mut self, mlp: &str, count: i64) -> Result<(), LoadError> {
        if let Some(bias) = self.source(&format!("{mlp}.gate.e_score_correction_bias"), &[count]) {
            self.capture.param(&format!("{mlp}.{GATE_BIAS}"), Dtype::F32, &[count])?.copy_from(&bias)?;
        }
        Ok(())
    }

    /// A checkpoint of one tensor per expert and projection.
    fn one_by_one(&mut self, mlp: &str, names: ExpertNames) -> Result<(), LoadError> {
        let weights = self.weights(mlp)?;
        let Some(weights) = self.checked(mlp, weights)? else { return Ok(()) };
        let (own, cut, hidden) = (self.shares.experts, self.shares.expert, self.config.hidden_size);
        // Three of each expert, in order: `checked` has seen to that.
        let (first, last) = (3 * own.start as usize, 3 * (own.start + own.len) as usize);
        let (dtype13, dtype2) = (weights[0].dtype, weights[2].dtype);
        let w13 =
            self.capture.param(&format!("{mlp}.{}", names.w13), dtype13, &[own.len, 2 * cut.len, hidden])?;
        let w2 = self.capture.param(&format!("{mlp}.{}", names.w2), dtype2, &[own.len, hidden, cut.len])?;
        for (local, weights) in weights[first..last].chunks_exact(3).enumerate() {
            let both = w13.select(0, local as i64)?;
            for (half, weight) in (0..).zip(&weights[..2]) {
                let tensor = self.capture.source(weight.name, dtype13, weight.shape)?;
                both.narrow(0, half * cut.len, cut.len)?.copy_from(&tensor.narrow(0, cut.start, cut.len)?)?;
            }
            let down = self.capture.source(weights[2].name, dtype2, weights[2].shape)?;
            w2.select(0, local as i64)?.copy_from(&down.narrow(1, cut.start, cut.len)?)?;
        }
        Ok(())
    }

    /// All tensors of a layer that are named as a projection of one of its experts.
    ///
    /// They are looked up together: a model can have tens of thousands.
    fn weights(&mut self, mlp: &str) -> Result<Vec<Weight<'a>>, LoadError> {
        let count = self.config.experts.as_ref().map_or(0, |e| e.count);
        let prefix = format!("{mlp}.experts.");
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let mut weights = Vec::new();
        for (name, (dtype, shape)) in self.sources.range::<str, _>(from) {
            let Some(rest) = name.strip_prefix(&prefix) else { break };
            if let Some((expert, projection)) = parse(rest).filter(|&(e, _)| e < count) {
                self.used.push(name);
                weights.push(Weight { expert, projection, name, dtype: *dtype, shape });
            }
        }
        weights.sort_unstable_by_key(|w| (w.expert, w.projection));
        Ok(weights)
    }

    /// The tensors, if they are all there and fit; problems otherwise.
    fn checked(&mut self, mlp: &str, weights: Vec<Weight<'a>>) -> Result<Option<Vec<Weight<'a>>>, LoadError> {
        let Some(experts) = &self.config.experts else { return Ok(None) };
        let (hidden, inner) = (self.config.hidden_size, experts.intermediate_size);
        let shapes = [[inner, hidden], [inner, hidden], [hidden, inner]];
        let before = self.problems.len();
        let mut dtypes = [None; 3];
        let mut found = weights.iter().peekable();
        for expert in 0..experts.count {
            for (projection, expected) in shapes.iter().enumerate() {
                let here = |w: &&Weight<'_>| (w.expert, w.projection) == (expert, projection);
                let problem = match found.next_if(here) {
                    None => Problem::Missing {
                        tensor: format!("{mlp}.experts.{expert}.{}.weight", PROJECTIONS[projection]),
                        expected: expected.to_vec(),
                    },
                    Some(w) if w.shape != expected => Problem::Shape {
                        tensor: w.name.to_owned(),
                        expected: expected.to_vec(),
                        found: w.shape.to_vec(),
                    },
                    Some(w) => {
                        // Gate and up of all experts are one parameter, and so are all down projections.
                        let first = dtypes[projection & 2].get_or_insert(w.dtype);
                        if *first == w.dtype {
                            continue;
                        }
                        Problem::Dtype { tensor: w.name.to_owned(), expected: *first, found: w.dtype }
                    }
                };
                self.problems.push(problem);
            }
            self.not_too_many()?;
        }
        Ok((self.problems.len() == before).then_some(weights))
    }

    /// A checkpoint of two tensors per layer, as transformers holds a `Qwen3MoeForCausalLM` since version 5:
    /// gate above up per expert, `[experts, 2 x intermediate, hidden]`, and `[experts, hidden, intermediate]`.
    fn stacked(&mut self, mlp: &str, names: ExpertNames) -> Result<(), LoadError> {
        let Some(experts) = &self.config.experts else { return Ok(()) };
        let (count, inner, hidden) = (experts.count, experts.intermediate_size, self.config.hidden_size);
        let (own, cut) = (self.shares.experts, self.shares.expert);
        if let Some(tensor) = self.source(&format!("{mlp}.{STACKED_GATE_UP}"), &[count, 2 * inner, hidden]) {
            let shape = [own.len, 2 * cut.len, hidden];
            let w13 = self.capture.param(&format!("{mlp}.{}", names.w13), tensor.dtype(), &shape)?;
            let tensor = tensor.narrow(0, own.start, own.len)?;
            for half in 0..2 {
                let rows = tensor.narrow(1, half * inner + cut.start, cut.len)?;
                w13.narrow(1, half * cut.len, cut.len)?.copy_from(&rows)?;
            }
        }
        if let Some(tensor) = self.source(&format!("{mlp}.{STACKED_DOWN}"), &[count, hidden, inner]) {
            let shape = [own.len, hidden, cut.len];
            let w2 = self.capture.param(&format!("{mlp}.{}", names.w2), tensor.dtype(), &shape)?;
            w2.copy_from(&tensor.narrow(0, own.start, own.len)?.narrow(2, cut.start, cut.len)?)?;
        }
        Ok(())
    }

    /// The map that older engines keep: for each expert its place on this rank, or -1 (int32).
    fn expert_map(&mut self, name: &str, count: i64) -> Result<(), LoadError> {
        let own = self.shares.experts;
        let map = self.capture.param(name, Dtype::I32, &[count])?;
        let after = own.start + own.len;
        for (start, len) in [(0, own.start), (after, count - after)] {
            if len > 0 {
                map.narrow(0, start, len)?.fill(&(-1i32).to_le_bytes())?;
            }
        }
        // Experts of a layer number at most 2^28.
        for local in 0..own.len {
            map.narrow(0, own.start + local, 1)?.fill(&(local as i32).to_le_bytes())?;
        }
        Ok(())
    }
}

/// Expert and projection of `{expert}.{projection}.weight`; a number that is written otherwise than plainly is
/// no such name.
fn parse(rest: &str) -> Option<(i64, usize)> {
    let (expert, rest) = rest.split_once('.')?;
    let plain = expert == "0" || !expert.starts_with(['0', '+', '-']);
    let projection = rest.strip_suffix(".weight")?;
    let projection = PROJECTIONS.iter().position(|p| *p == projection)?;
    Some((expert.parse().ok().filter(|_| plain)?, projection))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn only_plain_numbers_and_known_projections_name_an_expert() {
        assert_eq!(parse("0.gate_proj.weight"), Some((0, 0)));
        assert_eq!(parse("127.down_proj.weight"), Some((127, 2)));
        for rest in [
            "00.up_proj.weight",
            "+1.up_proj.weight",
            "-1.up_proj.weight",
            "1.up_proj",
            "1.up_proj.bias",
            "1.w1.weight",
            "up_proj.weight",
            ".up_proj.weight",
            "99999999999999999999.up_proj.weight",
        ] {
            assert_eq!(parse(rest), None, "{rest}");
        }
    }
}
