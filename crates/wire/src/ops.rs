//! Op chains.

use restage_geometry::{Index, Op};
use serde::{Deserialize, Serialize};

/// One operation, as torch names it and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)]
pub enum OpForm {
    Narrow { dim: i64, start: i64, length: i64 },
    Select { dim: i64, index: i64 },
    Getitem { index: Vec<IndexForm> },
    View { shape: Vec<i64> },
    Reshape { shape: Vec<i64> },
    Unsqueeze { dim: i64 },
    Squeeze { dim: Option<OneOrMany> },
    Transpose { dim0: i64, dim1: i64 },
    T {},
    Permute { dims: Vec<i64> },
    Flatten { start_dim: i64, end_dim: i64 },
    Unflatten { dim: i64, sizes: Vec<i64> },
    Chunk { chunks: i64, dim: i64, index: i64 },
    Split { size: OneOrMany, dim: i64, index: i64 },
    Unbind { dim: i64, index: i64 },
    Contiguous {},
    Expand { shape: Vec<i64> },
    BroadcastTo { shape: Vec<i64> },
    Movedim { source: OneOrMany, destination: OneOrMany },
}

/// One item of a subscript.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum IndexForm {
    Int(i64),
    Slice([Option<i64>; 3]),
    Ellipsis(True),
    NewAxis(True),
}

/// An integer or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum OneOrMany {
    One(i64),
    Many(Vec<i64>),
}

/// The value `true`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "bool", into = "bool")]
pub struct True;

impl TryFrom<bool> for True {
    type Error = &'static str;

    fn try_from(value: bool) -> Result<Self, Self::Error> {
        if value { Ok(True) } else { Err("only true is a value here") }
    }
}

impl From<True> for bool {
    fn from(_: True) -> bool {
        true
    }
}

impl OneOrMany {
    fn list(self) -> Vec<i64> {
        match self {
            OneOrMany::One(n) => vec![n],
            OneOrMany::Many(list) => list,
        }
    }
}

impl From<OpForm> for Op {
    fn from(form: OpForm) -> Op {
        match form {
            OpForm::Narrow { dim, start, length } => Op::Narrow { dim, start, length },
            OpForm::Select { dim, index } => Op::Select { dim, index },
            OpForm::Getitem { index } => Op::GetItem(index.into_iter().map(Index::from).collect()),
            OpForm::View { shape } => Op::View(shape),
            OpForm::Reshape { shape } => Op::Reshape(shape),
            OpForm::Unsqueeze { dim } => Op::Unsqueeze(dim),
            OpForm::Squeeze { dim } => Op::Squeeze(dim.map(OneOrMany::list)),
            OpForm::Transpose { dim0, dim1 } => Op::Transpose(dim0, dim1),
            OpForm::T {} => Op::T,
            OpForm::Permute { dims } => Op::Permute(dims),
            OpForm::Flatten { start_dim, end_dim } => Op::Flatten { start_dim, end_dim },
            OpForm::Unflatten { dim, sizes } => Op::Unflatten { dim, sizes },
            OpForm::Chunk { chunks, dim, index } => Op::Chunk { chunks, dim, index },
            OpForm::Split { size: OneOrMany::One(size), dim, index } => Op::Split { size, dim, index },
            OpForm::Split { size: OneOrMany::Many(sizes), dim, index } => {
                Op::SplitSizes { sizes, dim, index }
            }
            OpForm::Unbind { dim, index } => Op::Unbind { dim, index },
            OpForm::Contiguous {} => Op::Contiguous,
            OpForm::Expand { shape } => Op::Expand(shape),
            OpForm::BroadcastTo { shape } => Op::BroadcastTo(shape),
            OpForm::Movedim { source, destination } => {
                Op::MoveDim { source: source.list(), destination: destination.list() }
            }
        }
    }
}

impl From<IndexForm> for Index {
    fn from(form: IndexForm) -> Index {
        match form {
            IndexForm::Int(i) => Index::Int(i),
            IndexForm::Slice([start, stop, step]) => Index::Slice(start, stop, step),
            IndexForm::Ellipsis(True) => Index::Ellipsis,
            IndexForm::NewAxis(True) => Index::NewAxis,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Op, serde_json::Error> {
        serde_json::from_str::<OpForm>(json).map(Op::from)
    }

    #[test]
    fn the_vocabulary_is_torchs() {
        let narrow = parse(r#"{"op":"narrow","dim":1,"start":-3,"length":2}"#).unwrap();
        assert_eq!(narrow, Op::Narrow { dim: 1, start: -3, length: 2 });
        let split = parse(r#"{"op":"split","size":[1,2],"dim":0,"index":1}"#).unwrap();
        assert_eq!(split, Op::SplitSizes { sizes: vec![1, 2], dim: 0, index: 1 });
        let item = parse(r#"{"op":"getitem","index":[{"slice":[null,4,2]},{"ellipsis":true},{"int":-1}]}"#);
        let items = vec![Index::Slice(None, Some(4), Some(2)), Index::Ellipsis, Index::Int(-1)];
        assert_eq!(item.unwrap(), Op::GetItem(items));
        assert_eq!(parse(r#"{"op":"squeeze","dim":null}"#).unwrap(), Op::Squeeze(None));
    }

    #[test]
    fn unknown_operations_and_fields_are_named() {
        for (json, name) in [
            (r#"{"op":"sqrt"}"#, "sqrt"),
            (r#"{"op":"t","dim":1}"#, "dim"),
            (r#"{"op":"select","dim":0,"index":1,"extra":2}"#, "extra"),
            (r#"{"op":"getitem","index":[{"mask":true}]}"#, "mask"),
            (r#"{"op":"narrow","dim":0,"start":0}"#, "length"),
        ] {
            let error = parse(json).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
