//! Where a file says otherwise than what follows from the rest of it.

use serde::Serialize;
use serde_json::Value;

use crate::{JsonPath, WireError, WireProblem};

/// Characters of a value that are shown.
const SHOWN: usize = 80;

/// The first place where two forms differ, which are not equal.
pub(super) fn first<T: Serialize>(expected: &T, found: &T) -> WireError {
    let value = |form: &T| serde_json::to_value(form).unwrap_or_default();
    find(&value(expected), &value(found), &JsonPath::top()).unwrap_or_else(|| {
        // Equal as JSON, and unequal as forms: a number that is none.
        disagrees(&JsonPath::top(), None, None)
    })
}

fn find(expected: &Value, found: &Value, path: &JsonPath) -> Option<WireError> {
    match (expected, found) {
        (Value::Object(a), Value::Object(b)) => {
            let inner = a.iter().find_map(|(key, value)| match b.get(key) {
                Some(other) => find(value, other, &path.key(key)),
                None => Some(disagrees(&path.key(key), Some(value), None)),
            });
            inner.or_else(|| {
                let extra = b.iter().find(|(key, _)| !a.contains_key(*key))?;
                Some(disagrees(&path.key(extra.0), None, Some(extra.1)))
            })
        }
        (Value::Array(a), Value::Array(b)) => {
            let inner = a.iter().zip(b).enumerate();
            let inner = inner.filter(|(_, (a, b))| a != b).find_map(|(at, (a, b))| find(a, b, &path.at(at)));
            inner.or_else(|| {
                let at = a.len().min(b.len());
                (a.len() != b.len()).then(|| disagrees(&path.at(at), a.get(at), b.get(at)))
            })
        }
        _ => (expected != found).then(|| disagrees(path, Some(expected), Some(found))),
    }
}

fn disagrees(path: &JsonPath, expected: Option<&Value>, found: Option<&Value>) -> WireError {
    let text = |value: Option<&Value>| {
        let text = value.map_or_else(|| "nothing".to_owned(), Value::to_string);
        match text.char_indices().nth(SHOWN) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    };
    let (expected, found) = (text(expected), text(found));
    WireError::at(path.clone(), WireProblem::Disagrees { expected, found })
}
