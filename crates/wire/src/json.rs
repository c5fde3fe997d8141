//! JSON read strictly, with the path of what is wrong.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::{JsonPath, OpForm, WireError, WireProblem};

/// Most bytes of a file. Each byte can make some ten bytes of chains in memory; the captures of the largest
/// models published so far have a few ten thousand copies, of some 300 bytes each.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// Most elements that the parameters, the copies, the fills or the shards of a file may have together. Below it,
/// no count of bytes of a plan can leave 64 bits, whatever the dtypes.
pub const MAX_ELEMENTS: i64 = 1 << 56;

/// Reads a whole file of at most [`MAX_FILE_BYTES`] as one value.
pub(crate) fn read<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, WireError> {
    read_within(bytes, MAX_FILE_BYTES)
}

/// Reads a whole file of at most `limit` bytes as one value.
pub(crate) fn read_within<'de, T: Deserialize<'de>>(bytes: &'de [u8], limit: u64) -> Result<T, WireError> {
    if bytes.len() as u64 > limit {
        return Err(WireError::TooLarge { limit });
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut track = serde_path_to_error::Track::new();
    let read = T::deserialize(serde_path_to_error::Deserializer::new(&mut json, &mut track));
    let problem = |e: serde_json::Error| WireProblem::Json(e.to_string());
    let value = read.map_err(|e| {
        let path = JsonPath::tracked(&track.path());
        at_fault(bytes, &path).unwrap_or_else(|| WireError::at(path, problem(e)))
    })?;
    json.end().map_err(|e| WireError::at(JsonPath::top(), problem(e)))?;
    Ok(value)
}

/// The field of an operation that is at fault. serde reads an operation's fields only when it knows its name, and
/// by then the path is lost; so the fields are added one by one here until one of them is the trouble.
fn at_fault(bytes: &[u8], path: &JsonPath) -> Option<WireError> {
    if !path.is_op() {
        return None;
    }
    let top: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let fields = path.find(&top)?.as_object()?;
    let mut part = serde_json::Map::new();
    // The name first: nothing else can be read without it.
    let mut keys: Vec<&String> = fields.keys().collect();
    keys.sort_by_key(|key| *key != "op");
    for key in keys {
        part.insert(key.clone(), fields[key].clone());
        let error = match OpForm::deserialize(serde_json::Value::Object(part.clone())) {
            Ok(_) => continue,
            Err(error) => error.to_string(),
        };
        if !error.starts_with("missing field") {
            return Some(WireError::at(path.key(key), WireProblem::Json(error)));
        }
    }
    None
}

/// The `format` and `version` of a file, which are read before anything else is looked at.
#[derive(Debug, Deserialize)]
pub(crate) struct Head {
    #[serde(default)]
    format: Option<Loose>,
    #[serde(default)]
    version: Option<Loose>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Loose {
    Text(String),
    Number(u64),
    Other(IgnoredAny),
}

impl fmt::Display for Loose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loose::Text(text) => write!(f, "{text:?}"),
            Loose::Number(n) => write!(f, "{n}"),
            Loose::Other(_) => f.write_str("something else"),
        }
    }
}

impl Head {
    /// True when the file says what its format is.
    pub fn is_versioned(&self) -> bool {
        matches!(self.format, Some(Loose::Text(_)))
    }

    /// Accepts this format and version only.
    pub fn check(&self, format: &'static str, version: u64) -> Result<(), WireError> {
        let text = |v: &Option<Loose>| v.as_ref().map_or_else(|| "nothing".to_owned(), Loose::to_string);
        if !matches!(&self.format, Some(Loose::Text(found)) if found == format) {
            let problem = WireProblem::Format { expected: format, found: text(&self.format) };
            return Err(WireError::at(JsonPath::top().key("format"), problem));
        }
        if !matches!(self.version, Some(Loose::Number(found)) if found == version) {
            let problem = WireProblem::Version { expected: version, found: text(&self.version) };
            return Err(WireError::at(JsonPath::top().key("version"), problem));
        }
        Ok(())
    }
}

/// An object of names, in the order of the file. A name that appears twice is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named<T>(pub Vec<(String, T)>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Named(Vec::new())
    }
}

impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamedVisitor(PhantomData))
    }
}

struct NamedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for NamedVisitor<T> {
    type Value = Named<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut seen = HashSet::new();
        let mut out = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                // Failing at the value rather than here, so that the path has the name.
                map.next_value_seed(Repeated)?;
            }
            let value = map.next_value()?;
            out.push((name, value));
        }
        Ok(Named(out))
    }
}

struct Repeated;

impl<'de> DeserializeSeed<'de> for Repeated {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, _: D) -> Result<(), D::Error> {
        Err(D::Error::custom("this key appears twice"))
    }
}
