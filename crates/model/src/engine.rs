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
}
