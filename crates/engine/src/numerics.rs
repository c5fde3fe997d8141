//! What of a model's configuration decides numbers and not shapes.

use std::collections::BTreeMap;

use restage_checkpoint::gguf::Value;
use restage_model::Architecture;
use serde::Deserialize;
use serde_json::Value as Json;
use thiserror::Error;

use crate::rope::Scaling;

/// Constants of the forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Numerics {
    /// Added to the mean square of every norm.
    pub rms_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How they are scaled.
    pub rope_scaling: Option<Scaling>,
    /// Positions that a sequence may have: the model's context, or its attention window where that is less.
    pub max_context: u64,
}

/// A configuration whose numbers this engine does not compute.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NumericsError {
    /// Not JSON, or a field of the wrong type.
    #[error("config.json: {0}")]
    Json(String),
    /// A field that is needed and not there, or of the wrong type.
    #[error("{0} is missing, or no number that makes sense")]
    Missing(String),
    /// Something else than what is computed.
    #[error("{field} is {found}; {expected} is computed")]
    Unsupported {
        /// The field.
        field: String,
        /// What it holds.
        found: String,
        /// What it may hold.
        expected: &'static str,
    },
}

fn unsupported(field: impl Into<String>, found: impl ToString, expected: &'static str) -> NumericsError {
    NumericsError::Unsupported { field: field.into(), found: found.to_string(), expected }
}

#[derive(Deserialize)]
struct Raw {
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Json>,
    /// What newer versions of transformers write instead of the two.
    rope_parameters: Option<Json>,
    max_position_embeddings: Option<u64>,
    hidden_act: Option<String>,
    partial_rotary_factor: Option<f64>,
    sliding_window: Option<u64>,
    use_sliding_window: Option<bool>,
}

#[derive(Deserialize)]
struct RawScaling {
    rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

impl Numerics {
    /// Reads a Hugging Face `config.json`; what it does not say is transformers' default.
    ///
    /// # Errors
    /// [`NumericsError`] with the field, what is there and what is computed.
    pub fn from_json(json: &[u8], architecture: Architecture) -> Result<Self, NumericsError> {
        let malformed = |e: serde_json::Error| NumericsError::Json(e.to_string());
        let raw: Raw = serde_json::from_slice(json).map_err(malformed)?;
        if let Some(act) = raw.hidden_act.filter(|act| act != "silu") {
            return Err(unsupported("config.json: hidden_act", act, "silu"));
        }
        if let Some(part) = raw.partial_rotary_factor.filter(|&part| part != 1.0) {
            return Err(unsupported("config.json: partial_rotary_factor", part, "1"));
        }
        let scaling = raw.rope_scaling.or(raw.rope_parameters).filter(|s| !s.is_null());
        let scaling: Option<RawScaling> =
            scaling.map(|s| serde_json::from_value(s).map_err(malformed)).transpose()?;
        let theta = raw.rope_theta.or(scaling.as_ref().and_then(|s| s.rope_theta)).unwrap_or(10_000.0);
        let context = raw.max_position_embeddings;
        let context = context.ok_or_else(|| NumericsError::Missing("max_position_embeddings".into()))?;
        // Mistral's window is always on, Qwen's only where it says so. Within it attention is the plain one.
        let windowed = raw.use_sliding_window.unwrap_or(architecture == Architecture::Mistral);
        let window = raw.sliding_window.filter(|_| windowed).unwrap_or(u64::MAX);
        Numerics {
            rms_eps: raw.rms_norm_eps.unwrap_or(1e-6) as f32,
            rope_theta: theta,
            rope_scaling: scaling.map(scale).transpose()?.flatten(),
            max_context: context.min(window),
        }
        .checked()
    }

    /// Reads the metadata of a GGUF file, under the prefix of its architecture.
    ///
    /// # Errors
    /// [`NumericsError`] with the key, what is there and what is computed.
    pub fn from_gguf(
        metadata: &BTreeMap<String, Value>,
        prefix: &str,
        head_dim: i64,
    ) -> Result<Self, NumericsError> {
        let get = |key: &str| metadata.get(&format!("{prefix}.{key}"));
        let missing = |key: &str| NumericsError::Missing(format!("{prefix}.{key}"));
        let number = |key: &str| get(key).and_then(Value::as_f64);
        let rotated = get("rope.dimension_count").and_then(Value::as_u64);
        if let Some(found) = rotated.filter(|&n| i64::try_from(n) != Ok(head_dim)) {
            return Err(unsupported(format!("{prefix}.rope.dimension_count"), found, "the width of a head"));
        }
        // Files from before there were types of scaling have the other key.
        let factor = number("rope.scaling.factor").or_else(|| number("rope.scale_linear"));
        let scaling = match get("rope.scaling.type").map(|v| v.as_str().unwrap_or("no string")) {
            Some("none") => None,
            None => factor.map(|factor| Scaling::Linear { factor }),
            Some("linear") => {
                let factor = factor.ok_or_else(|| missing("rope.scaling.factor"))?;
                Some(Scaling::Linear { factor })
            }
            Some(other) => {
                return Err(unsupported(format!("{prefix}.rope.scaling.type"), other, "none or linear"));
            }
        };
        let context =
            get("context_length").and_then(Value::as_u64).ok_or_else(|| missing("context_length"))?;
        let window = get("attention.sliding_window").and_then(Value::as_u64).filter(|&w| w > 0);
        let eps = "attention.layer_norm_rms_epsilon";
        Numerics {
            rms_eps: number(eps).ok_or_else(|| missing(eps))? as f32,
            rope_theta: number("rope.freq_base").unwrap_or(10_000.0),
            rope_scaling: scaling,
            max_context: context.min(window.unwrap_or(u64::MAX)),
        }
        .checked()
    }

    fn checked(self) -> Result<Self, NumericsError> {
        let positive = |n: f64| n.is_finite() && n > 0.0;
        let factors = match self.rope_scaling {
            None => true,
            Some(Scaling::Linear { factor }) => positive(factor),
            Some(Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context }) => {
                let all = [factor, low_freq_factor, high_freq_factor, original_context];
                all.into_iter().all(positive) && low_freq_factor < high_freq_factor
            }
        };
        for (what, holds) in [
            ("the epsilon of the norms", self.rms_eps.is_finite() && self.rms_eps >= 0.0),
            ("the base of the rotary frequencies", positive(self.rope_theta)),
            ("the scaling of the rotary frequencies", factors),
            ("the context", self.max_context > 0),
        ] {
            if !holds {
                return Err(NumericsError::Missing(what.into()));
            }
        }
        Ok(self)
    }
}

fn scale(raw: RawScaling) -> Result<Option<Scaling>, NumericsError> {
    let need = |value: Option<f64>, field: &str| {
        value.ok_or_else(|| NumericsError::Missing(format!("rope_scaling.{field}")))
    };
    let factor = || need(raw.factor, "factor");
    Ok(match raw.rope_type.as_deref() {
        None | Some("default") => None,
        Some("linear") => Some(Scaling::Linear { factor: factor()? }),
        Some("llama3") => Some(Scaling::Llama3 {
            factor: factor()?,
            low_freq_factor: need(raw.low_freq_factor, "low_freq_factor")?,
            high_freq_factor: need(raw.high_freq_factor, "high_freq_factor")?,
            original_context: need(raw.original_max_position_embeddings, "original_max_position_embeddings")?,
        }),
        Some(other) => {
            return Err(unsupported("config.json: rope_type", other, "default, linear or llama3"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Result<Numerics, String> {
        Numerics::from_json(text.as_bytes(), Architecture::Llama).map_err(|e| e.to_string())
    }

    #[test]
    fn a_config_is_read_and_what_is_not_computed_refused() {
        let n = json(r#"{"max_position_embeddings": 100}"#).unwrap();
        let plain = Numerics { rms_eps: 1e-6, rope_theta: 1e4, rope_scaling: None, max_context: 100 };
        assert_eq!(n, plain);
        let n = json(
            r#"{"max_position_embeddings": 100, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 50,
                "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                                 "original_max_position_embeddings": 8192}}"#,
        )
        .unwrap();
        assert!(matches!(n.rope_scaling, Some(Scaling::Llama3 { original_context: 8192.0, .. })));
        assert_eq!((n.rope_theta, n.max_context), (5e5, 100));
        let newer =
            r#"{"max_position_embeddings": 9, "rope_parameters": {"rope_theta": 7, "rope_type": "default"}}"#;
        assert_eq!(json(newer).unwrap().rope_theta, 7.0);
        for (text, expected) in [
            ("{}", "max_position_embeddings is missing, or no number that makes sense"),
            (
                r#"{"max_position_embeddings": 1, "hidden_act": "gelu"}"#,
                "config.json: hidden_act is gelu; silu is computed",
            ),
            (
                r#"{"max_position_embeddings": 1, "rope_scaling": {"type": "yarn", "factor": 2}}"#,
                "config.json: rope_type is yarn; default, linear or llama3 is computed",
            ),
            (
                r#"{"max_position_embeddings": 1, "rope_scaling": {"type": "linear"}}"#,
                "rope_scaling.factor is missing, or no number that makes sense",
            ),
            (
                r#"{"max_position_embeddings": 1, "rope_theta": 0}"#,
                "the base of the rotary frequencies is missing, or no number that makes sense",
            ),
        ] {
            assert_eq!(json(text).unwrap_err(), expected);
        }
    }

    #[test]
    fn metadata_of_gguf_is_read_and_what_is_not_computed_refused() {
        let of = |more: &[(&str, Value)]| {
            let plain = [
                ("context_length", Value::U32(100)),
                ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
                ("rope.dimension_count", Value::U32(8)),
            ];
            let all = plain.into_iter().chain(more.iter().cloned());
            let metadata = all.map(|(key, value)| (format!("llama.{key}"), value)).collect();
            Numerics::from_gguf(&metadata, "llama", 8).map_err(|e| e.to_string())
        };
        let text = |t: &str| Value::String(t.into());
        let linear = |factor| Ok(Some(Scaling::Linear { factor }));
        let scaling = |more: &[(&str, Value)]| of(more).map(|n| n.rope_scaling);
        assert_eq!(scaling(&[]), Ok(None));
        let factor = ("rope.scaling.factor", Value::F32(2.0));
        // A factor counts where no type is said, as in llama.cpp, and also under its older name.
        assert_eq!(scaling(std::slice::from_ref(&factor)), linear(2.0));
        assert_eq!(scaling(&[("rope.scale_linear", Value::F32(4.0))]), linear(4.0));
        assert_eq!(scaling(&[factor.clone(), ("rope.scaling.type", text("linear"))]), linear(2.0));
        assert_eq!(scaling(&[factor.clone(), ("rope.scaling.type", text("none"))]), Ok(None));
        let window = of(&[("attention.sliding_window", Value::U32(60))]).unwrap();
        assert_eq!(window.max_context, 60);
        for (more, expected) in [
            (
                [("rope.scaling.type", text("yarn")), factor.clone()],
                "llama.rope.scaling.type is yarn; none or linear is computed",
            ),
            (
                [("rope.scaling.type", text("linear")), ("x", Value::U32(0))],
                "llama.rope.scaling.factor is missing, or no number that makes sense",
            ),
            (
                [("rope.scale_linear", Value::F32(0.0)), ("x", Value::U32(0))],
                "the scaling of the rotary frequencies is missing, or no number that makes sense",
            ),
            (
                [("rope.dimension_count", Value::U32(4)), ("x", Value::U32(0))],
                "llama.rope.dimension_count is 4; the width of a head is computed",
            ),
        ] {
            assert_eq!(of(&more).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_window_that_is_on_bounds_the_context() {
        let text = br#"{"max_position_embeddings": 100, "sliding_window": 40}"#;
        let context = |a| Numerics::from_json(text, a).unwrap().max_context;
        assert_eq!((context(Architecture::Mistral), context(Architecture::Qwen2)), (40, 100));
    }
}
