//! The serving engine whose layout is wanted, by version.
//!
//! Facts about vLLM's sharded state, seen by running versions 0.11.2, 0.13.0, 0.16.0, 0.19.1, 0.22.1, 0.24.0,
//! 0.27.1, 0.29.0, 0.31.0 and 0.33.0. Between two versions that agree, so do we; where they differ, the
//! versions in between are refused as soon as it matters.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// vLLM's minor versions whose layout is known, oldest and newest.
const KNOWN: (u32, u32) = (11, 33);

/// vLLM at version 0.`minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    minor: u32,
}

/// An engine or version that is not known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Not of the form `vllm` or `vllm:0.MINOR[.PATCH]`.
    #[error("engine {0:?} is not known; expected vllm or vllm:0.MINOR, as in vllm:0.33")]
    Form(String),
    /// A version outside of those that were looked at.
    #[error("the layout of vLLM {0} is not known; known are 0.{old} to 0.{new}", old = KNOWN.0, new = KNOWN.1)]
    Version(String),
    /// A version between two that differ.
    #[error("whether vLLM {version} {what} is not known: {before} does not and {after} does")]
    Between {
        /// The version.
        version: String,
        /// What it may or may not do.
        what: &'static str,
        /// The last version that does not.
        before: &'static str,
        /// The first version that does.
        after: &'static str,
    },
    /// A version whose layout of a family was not looked at.
    #[error("the layout of {what} in vLLM {version} is not known; it is in {known}")]
    Unseen {
        /// The version.
        version: String,
        /// What has the layout.
        what: &'static str,
        /// The version that was looked at.
        known: &'static str,
    },
    /// A version that cannot do what is asked of it.
    #[error("vLLM {version} does not {what}; {first} is the first that was seen to")]
    Lacks {
        /// The version.
        version: String,
        /// What it does not do.
        what: &'static str,
        /// The first version that does.
        first: &'static str,
    },
}

/// Names of a sparse layer's parameters, below `model.layers.N.mlp.`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertNames {
    /// Gate and up projections of the experts: `[experts, 2 x intermediate, hidden]`.
    pub w13: &'static str,
    /// Down projections of the experts: `[experts, hidden, intermediate]`.
    pub w2: &'static str,
    /// The projection that chooses experts: `[experts, hidden]`.
    pub gate: &'static str,
}

impl Default for Engine {
    /// The newest version that is known.
    fn default() -> Self {
        Engine { minor: KNOWN.1 }
    }
}

impl FromStr for Engine {
    type Err = EngineError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let form = || EngineError::Form(s.to_owned());
        let version = match s.split_once(':') {
            None if s == "vllm" => return Ok(Engine::default()),
            Some(("vllm", version)) => version,
            _ => return Err(form()),
        };
        let parts: Vec<u32> =
            version.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| form())?;
        match parts[..] {
            [0, minor] | [0, minor, _] if (KNOWN.0..=KNOWN.1).contains(&minor) => Ok(Engine { minor }),
            [_, _] | [_, _, _] => Err(EngineError::Version(version.to_owned())),
            _ => Err(form()),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vllm:0.{}", self.minor)
    }
}

impl Engine {
    /// Whether the state holds four f32 scale buffers per attention layer.
    ///
    /// # Errors
    /// [`EngineError::Between`] for versions that were not looked at.
    pub fn scale_buffers(self) -> Result<bool, EngineError> {
        self.since("keeps scale buffers in the state", (13, "0.13.0"), (16, "0.16.0"))
    }

    /// Whether a head in the checkpoint of a tied model is kept where it differs from the embedding.
    ///
    /// # Errors
    /// [`EngineError::Between`] for versions that were not looked at.
    pub fn own_head_when_tied(self) -> Result<bool, EngineError> {
        self.since("loads a head beside a tied embedding", (27, "0.27.1"), (29, "0.29.0"))
    }

    /// The names that a sparse layer's parameters have, below `model.layers.N.mlp.`.
    ///
    /// # Errors
    /// [`EngineError::Between`] for versions that were not looked at.
    pub fn expert_names(self) -> Result<ExpertNames, EngineError> {
        let routed = self.since("keeps experts under routed_experts", (22, "0.22.1"), (24, "0.24.0"))?;
        let held = self.since("keeps the gate under its experts", (13, "0.13.0"), (16, "0.16.0"))?;
        let runner =
            self.since("keeps the gate under the experts' runner", (19, "0.19.1"), (22, "0.22.1"))?;
        let gate = match (held, runner, routed) {
            (_, _, true) => "experts.gate.weight",
            (_, true, _) => "experts.runner.gate.weight",
            (true, ..) => "experts._gate.weight",
            (false, ..) => "gate.weight",
        };
        let (w13, w2) = match routed {
            true => ("experts.routed_experts.w13_weight", "experts.routed_experts.w2_weight"),
            false => ("experts.w13_weight", "experts.w2_weight"),
        };
        Ok(ExpertNames { w13, w2, gate })
    }

    /// The name, below `model.layers.N.mlp.`, under which the state of an expert-parallel rank of several says
    /// which experts the rank holds; `None` where it does not.
    ///
    /// # Errors
    /// [`EngineError::Between`] for versions that were not looked at.
    pub fn expert_map(self) -> Result<Option<&'static str>, EngineError> {
        if self.since("leaves the expert map out of the state", (24, "0.24.0"), (27, "0.27.1"))? {
            return Ok(None);
        }
        let private = self.since("calls the expert map _expert_map", (11, "0.11.2"), (13, "0.13.0"))?;
        let routed = self.since("keeps experts under routed_experts", (22, "0.22.1"), (24, "0.24.0"))?;
        Ok(Some(match (routed, private) {
            (true, _) => "experts.routed_experts._expert_map",
            (false, true) => "experts._expert_map",
            (false, false) => "experts.expert_map",
        }))
    }

    /// Refuses engines that do not load a checkpoint whose experts are stacked in one tensor: seen were
    /// parameters left unwritten without a word (0.22.1, 0.24.0), and errors (older ones).
    ///
    /// # Errors
    /// [`EngineError::Lacks`], and [`EngineError::Between`] for versions that were not looked at.
    pub fn stacked_experts(self) -> Result<(), EngineError> {
        let what = "load a checkpoint whose experts are stacked in one tensor";
        match self.since("loads experts that are stacked in one tensor", (24, "0.24.0"), (27, "0.27.1"))? {
            true => Ok(()),
            false => Err(EngineError::Lacks { version: format!("0.{}", self.minor), what, first: "0.27.1" }),
        }
    }

    /// Refuses every version but 0.33, whose names of a `DeepseekV3ForCausalLM` were read from its source: they were not
    /// seen in a state that it wrote.
    ///
    /// # Errors
    /// [`EngineError::Unseen`].
    pub fn latent_attention(self) -> Result<(), EngineError> {
        match self.minor {
            33 => Ok(()),
            minor => Err(EngineError::Unseen {
                version: format!("0.{minor}"),
                what: "DeepseekV3ForCausalLM",
                known: "0.33",
            }),
        }
    }

    fn since(
        self,
        what: &'static str,
        before: (u32, &'static str),
        after: (u32, &'static str),
    ) -> Result<bool, EngineError> {
        if self.minor > before.0 && self.minor < after.0 {
            let version = format!("0.{}", self.minor);
            return Err(EngineError::Between { version, what, before: before.1, after: after.1 });
        }
        Ok(self.minor >= after.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_parse_and_strangers_are_refused() {
        assert_eq!("vllm".parse(), Ok(Engine { minor: 33 }));
        assert_eq!("vllm:0.27.1".parse(), Ok(Engine { minor: 27 }));
        assert!(matches!("vllm:0.34".parse::<Engine>(), Err(EngineError::Version(_))));
        assert!(matches!("vllm:1.0".parse::<Engine>(), Err(EngineError::Version(_))));
        for s in ["", "sglang", "vllm:", "vllm:0", "vllm:0.x", "vllm:0.1.2.3"] {
            assert!(matches!(s.parse::<Engine>(), Err(EngineError::Form(_))), "{s}");
        }
    }

    #[test]
    fn versions_between_two_that_differ_are_refused_only_where_it_matters() {
        let at = |minor| Engine { minor };
        assert_eq!((at(13).scale_buffers(), at(16).scale_buffers()), (Ok(false), Ok(true)));
        assert!(at(15).scale_buffers().is_err());
        assert_eq!((at(27).own_head_when_tied(), at(29).own_head_when_tied()), (Ok(false), Ok(true)));
        assert!(at(28).own_head_when_tied().is_err() && at(28).scale_buffers() == Ok(true));
    }

    #[test]
    fn experts_have_the_names_of_each_version() {
        let names = |minor| {
            let engine = Engine { minor };
            let names = engine.expert_names().unwrap();
            (names.w13, names.gate, engine.expert_map().unwrap())
        };
        let (routed, plain) = ("experts.routed_experts.w13_weight", "experts.w13_weight");
        for minor in [27, 29, 31, 33] {
            assert_eq!(names(minor), (routed, "experts.gate.weight", None));
        }
        assert_eq!(names(24), (routed, "experts.gate.weight", Some("experts.routed_experts._expert_map")));
        assert_eq!(names(22), (plain, "experts.runner.gate.weight", Some("experts._expert_map")));
        for minor in [16, 17, 18, 19] {
            assert_eq!(names(minor), (plain, "experts._gate.weight", Some("experts._expert_map")));
        }
        assert_eq!(names(13), (plain, "gate.weight", Some("experts._expert_map")));
        assert_eq!(names(11), (plain, "gate.weight", Some("experts.expert_map")));
        for minor in [14, 15, 20, 21, 23] {
            assert!(Engine { minor }.expert_names().is_err(), "0.{minor}");
        }
        // Where the names agree and the map does not, only expert parallel is refused.
        for minor in [12, 25, 26] {
            let engine = Engine { minor };
            assert!(engine.expert_names().is_ok() && engine.expert_map().is_err(), "0.{minor}");
        }
    }

    #[test]
    fn engines_that_do_not_load_stacked_experts_are_refused() {
        let at = |minor| Engine { minor }.stacked_experts();
        assert!(at(27).is_ok() && at(33).is_ok());
        assert!(matches!(at(24), Err(EngineError::Lacks { .. })));
        assert!(matches!(at(26), Err(EngineError::Between { .. })));
    }
}
