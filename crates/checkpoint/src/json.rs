//! JSON read strictly: a key that appears twice in one object is an error, where serde_json would keep the
//! last silently.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use thiserror::Error;

/// What is wrong with a JSON text.
#[derive(Debug, Error)]
pub(crate) enum JsonProblem {
    /// The key at the end of this path appears twice in its object. Array elements leave no trace in it.
    #[error("key {} appears twice", .0.iter().map(|k| format!("{k:?}")).collect::<Vec<_>>().join("."))]
    Repeated(Vec<String>),
    /// Not JSON, or not of the wanted form.
    #[error("{0}")]
    Malformed(#[from] serde_json::Error),
}

/// Parses `text` in two passes: the first only looks for repeated keys, at any depth.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, JsonProblem> {
    let mut repeated = Vec::new();
    let mut first = serde_json::Deserializer::from_str(text);
    let looked = Unique(&mut repeated).deserialize(&mut first).and_then(|()| first.end());
    if !repeated.is_empty() {
        repeated.reverse();
        return Err(JsonProblem::Repeated(repeated));
    }
    looked?;
    Ok(serde_json::from_str(text)?)
}

/// Visits any value and keeps nothing. Upon a repeated key it fails, and every object on the way out adds its
/// own key to the path, innermost first.
struct Unique<'a>(&'a mut Vec<String>);

impl<'de> DeserializeSeed<'de> for Unique<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Unique(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if seen.contains(&key) {
                self.0.push(key);
                return Err(A::Error::custom("repeated key"));
            }
            if let Err(error) = map.next_value_seed(Unique(self.0)) {
                if !self.0.is_empty() {
                    self.0.push(key);
                }
                return Err(error);
            }
            seen.insert(key);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn repeated_keys_are_found_at_any_depth() {
        for (text, path) in [
            (r#"{"a":1,"a":1}"#, "\"a\""),
            (r#"{"a":{"b":1,"c":2,"b":3}}"#, "\"a\".\"b\""),
            (r#"[0,[{"x":{},"y":[{"k":null,"k":null}]}]]"#, "\"y\".\"k\""),
            // The same key, spelled with an escape.
            (r#"{"a":1,"\u0061":1}"#, "\"a\""),
        ] {
            let error = parse::<Value>(text).unwrap_err().to_string();
            assert_eq!(error, format!("key {path} appears twice"), "{text}");
        }
    }

    #[test]
    fn texts_without_repeats_parse_as_usual_and_bad_ones_fail_without_a_panic() {
        for text in [r#"{"a":{"a":{"a":-1.5}},"b":[true,null,"s",18446744073709551615]}"#, "3", "  {} "] {
            assert_eq!(parse::<Value>(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        let deep = "[".repeat(100_000);
        for text in ["", "{", r#"{"a":1,}"#, "{} x", "nul", &deep] {
            assert!(matches!(parse::<Value>(text), Err(JsonProblem::Malformed(_))), "{:.20}", text);
        }
    }
}
