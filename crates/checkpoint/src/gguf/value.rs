//! The values of metadata.

use std::fmt;

use super::GgufProblem;
use super::cursor::Cursor;

/// Arrays may lie in arrays this deep.
const MAX_DEPTH: u32 = 4;

/// A value of a GGUF file's metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Type 0.
    U8(u8),
    /// Type 1.
    I8(i8),
    /// Type 2.
    U16(u16),
    /// Type 3.
    I16(i16),
    /// Type 4.
    U32(u32),
    /// Type 5.
    I32(i32),
    /// Type 6.
    F32(f32),
    /// Type 7.
    Bool(bool),
    /// Type 8.
    String(String),
    /// Type 9.
    Array(Array),
    /// Type 10.
    U64(u64),
    /// Type 11.
    I64(i64),
    /// Type 12.
    F64(f64),
}

/// Values of one type.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "named as the values are")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Strings in one piece of memory: a vocabulary has hundreds of thousands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    /// One past the last byte of each.
    ends: Vec<usize>,
}

impl Strings {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// One of them.
    pub fn get(&self, at: usize) -> Option<&str> {
        let end = *self.ends.get(at)?;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        Some(&self.text[start..end])
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|at| self.get(at).unwrap_or_default())
    }
}

impl Value {
    /// A whole number that is not negative, of whichever type.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(n) => Some(n.into()),
            Value::U16(n) => Some(n.into()),
            Value::U32(n) => Some(n.into()),
            Value::U64(n) => Some(n),
            Value::I8(n) => n.try_into().ok(),
            Value::I16(n) => n.try_into().ok(),
            Value::I32(n) => n.try_into().ok(),
            Value::I64(n) => n.try_into().ok(),
            _ => None,
        }
    }

    /// A floating-point number, of either type.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(n) => Some(n.into()),
            Value::F64(n) => Some(n),
            _ => None,
        }
    }

    /// A truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(b) => Some(b),
            _ => None,
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(s) => Some(s),
            _ => None,
        }
    }

    /// An array of strings.
    pub fn as_strings(&self) -> Option<&Strings> {
        match self {
            Value::Array(Array::String(s)) => Some(s),
            _ => None,
        }
    }
}

impl Array {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(n) => n.fmt(f),
            Value::I8(n) => n.fmt(f),
            Value::U16(n) => n.fmt(f),
            Value::I16(n) => n.fmt(f),
            Value::U32(n) => n.fmt(f),
            Value::I32(n) => n.fmt(f),
            Value::F32(n) => n.fmt(f),
            Value::Bool(b) => b.fmt(f),
            Value::String(s) => write!(f, "{s:?}"),
            Value::Array(a) => write!(f, "an array of {}", a.len()),
            Value::U64(n) => n.fmt(f),
            Value::I64(n) => n.fmt(f),
            Value::F64(n) => n.fmt(f),
        }
    }
}

/// Reads a type and a value of it.
pub(super) fn read(cursor: &mut Cursor, key: &str) -> Result<Value, GgufProblem> {
    let id = cursor.u32(key)?;
    Ok(match id {
        0 => Value::U8(cursor.bytes::<1>(key)?[0]),
        1 => Value::I8(i8::from_le_bytes(cursor.bytes(key)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.bytes(key)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.bytes(key)?)),
        4 => Value::U32(cursor.u32(key)?),
        5 => Value::I32(i32::from_le_bytes(cursor.bytes(key)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.bytes(key)?)),
        7 => Value::Bool(bool(cursor, key)?),
        8 => Value::String(cursor.string(key)?),
        9 => Value::Array(array(cursor, key, 1)?),
        10 => Value::U64(cursor.u64(key)?),
        11 => Value::I64(i64::from_le_bytes(cursor.bytes(key)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.bytes(key)?)),
        found => return Err(GgufProblem::ValueType { key: key.to_owned(), found }),
    })
}

fn bool(cursor: &mut Cursor, key: &str) -> Result<bool, GgufProblem> {
    match cursor.bytes::<1>(key)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [found] => Err(GgufProblem::Bool { key: key.to_owned(), found }),
    }
}

fn array(cursor: &mut Cursor, key: &str, depth: u32) -> Result<Array, GgufProblem> {
    if depth > MAX_DEPTH {
        return Err(GgufProblem::Depth { key: key.to_owned(), most: MAX_DEPTH });
    }
    let id = cursor.u32(key)?;
    // Least bytes of one value: that of a string is its length, that of an array its type and length.
    let each = match id {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => 12,
        found => return Err(GgufProblem::ValueType { key: key.to_owned(), found }),
    };
    let count = cursor.count(key, each)?;
    macro_rules! numbers {
        ($variant:ident, $number:ty) => {
            Array::$variant(list(count, || Ok(<$number>::from_le_bytes(cursor.bytes(key)?)))?)
        };
    }
    Ok(match id {
        0 => numbers!(U8, u8),
        1 => numbers!(I8, i8),
        2 => numbers!(U16, u16),
        3 => numbers!(I16, i16),
        4 => numbers!(U32, u32),
        5 => numbers!(I32, i32),
        6 => numbers!(F32, f32),
        7 => Array::Bool(list(count, || bool(cursor, key))?),
        8 => {
            let mut strings = Strings::default();
            for _ in 0..count {
                cursor.append_string(key, &mut strings.text)?;
                strings.ends.push(strings.text.len());
            }
            Array::String(strings)
        }
        9 => Array::Array(list(count, || array(cursor, key, depth + 1))?),
        10 => numbers!(U64, u64),
        11 => numbers!(I64, i64),
        _ => numbers!(F64, f64),
    })
}

fn list<T>(count: u64, mut next: impl FnMut() -> Result<T, GgufProblem>) -> Result<Vec<T>, GgufProblem> {
    (0..count).map(|_| next()).collect()
}
