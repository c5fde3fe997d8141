//! Where in a JSON file something is.

use std::fmt;

/// A way from the top of a JSON file to a value, as in `copies[3].ops[1].dim`. Keys that are no plain words are
/// quoted: `params["model.norm.weight"].dtype`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    At(usize),
}

impl JsonPath {
    /// The top of the file.
    pub fn top() -> Self {
        JsonPath::default()
    }

    /// The value of a key of the object here.
    #[must_use]
    pub fn key(&self, key: impl Into<String>) -> Self {
        self.then(Step::Key(key.into()))
    }

    /// The item of the list here, from 0.
    #[must_use]
    pub fn at(&self, index: usize) -> Self {
        self.then(Step::At(index))
    }

    fn then(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        JsonPath(steps)
    }

    /// What a deserializer kept track of.
    pub(crate) fn tracked(path: &serde_path_to_error::Path) -> Self {
        use serde_path_to_error::Segment;
        let step = |segment: &Segment| match segment {
            Segment::Seq { index } => Some(Step::At(*index)),
            Segment::Map { key } => Some(Step::Key(key.clone())),
            // A variant is no step of the text, and an unknown step ends what is known.
            Segment::Enum { .. } | Segment::Unknown => None,
        };
        JsonPath(path.iter().filter_map(step).collect())
    }

    /// True for the path of an operation of a chain.
    pub(crate) fn is_op(&self) -> bool {
        matches!(&self.0[..], [.., Step::Key(ops), Step::At(_)] if ops == "ops")
    }

    /// The value here.
    pub(crate) fn find<'v>(&self, top: &'v serde_json::Value) -> Option<&'v serde_json::Value> {
        self.0.iter().try_fold(top, |value, step| match step {
            Step::Key(key) => value.get(key),
            Step::At(index) => value.get(index),
        })
    }
}

fn is_word(key: &str) -> bool {
    !key.is_empty()
        && !key.starts_with(|c: char| c.is_ascii_digit())
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("the top of the file");
        }
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::At(index) => write!(f, "[{index}]")?,
                Step::Key(key) if is_word(key) => {
                    write!(f, "{}{key}", if at == 0 { "" } else { "." })?;
                }
                // Debug would not escape as JSON does.
                Step::Key(key) => write!(f, "[{}]", serde_json::Value::from(key.as_str()))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_plain_and_other_keys_quoted() {
        let path = JsonPath::top().key("params").key("model.norm \"w\"").key("shape").at(3);
        assert_eq!(path.to_string(), r#"params["model.norm \"w\""].shape[3]"#);
        assert_eq!(JsonPath::top().at(2).key("ops").at(0).key("dim").to_string(), "[2].ops[0].dim");
        assert_eq!(JsonPath::top().to_string(), "the top of the file");
    }
}
