//! Op chains.

use restage_geometry::{Dtype, Index, Op, Scalar, SplitAt, UnknownDtype, ValueOp};
use serde::{Deserialize, Serialize};

/// One operation, as torch names it and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)]
pub enum OpForm {
    Narrow {
        dim: i64,
        start: i64,
        length: i64,
    },
    Select {
        dim: i64,
        index: i64,
    },
    Getitem {
        index: Vec<IndexForm>,
    },
    View {
        shape: Vec<i64>,
    },
    Reshape {
        shape: Vec<i64>,
    },
    Unsqueeze {
        dim: i64,
    },
    Squeeze {
        dim: Option<OneOrMany>,
    },
    Transpose {
        dim0: i64,
        dim1: i64,
    },
    T {},
    Permute {
        dims: Vec<i64>,
    },
    Flatten {
        start_dim: i64,
        end_dim: i64,
    },
    Unflatten {
        dim: i64,
        sizes: Vec<i64>,
    },
    Chunk {
        chunks: i64,
        dim: i64,
        index: i64,
    },
    Split {
        size: OneOrMany,
        dim: i64,
        index: i64,
    },
    Unbind {
        dim: i64,
        index: i64,
    },
    Contiguous {},
    Expand {
        shape: Vec<i64>,
    },
    BroadcastTo {
        shape: Vec<i64>,
    },
    Movedim {
        source: OneOrMany,
        destination: OneOrMany,
    },
    Swapaxes {
        axis0: i64,
        axis1: i64,
    },
    Swapdims {
        dim0: i64,
        dim1: i64,
    },
    Flip {
        dims: OneOrMany,
    },
    /// Without dims the flattened tensor is rolled.
    Roll {
        shifts: OneOrMany,
        dims: Option<OneOrMany>,
    },
    Repeat {
        repeats: Vec<i64>,
    },
    /// Without a dim the flattened tensor is repeated.
    RepeatInterleave {
        repeats: i64,
        dim: Option<i64>,
    },
    Tile {
        dims: Vec<i64>,
    },
    TensorSplit {
        indices_or_sections: OneOrMany,
        dim: i64,
        index: i64,
    },
    Hsplit {
        indices_or_sections: OneOrMany,
        index: i64,
    },
    Vsplit {
        indices_or_sections: OneOrMany,
        index: i64,
    },
    Dsplit {
        indices_or_sections: OneOrMany,
        index: i64,
    },
    Diagonal {
        offset: i64,
        dim1: i64,
        dim2: i64,
    },
    Unfold {
        dimension: i64,
        size: i64,
        step: i64,
    },
    IndexSelect {
        dim: i64,
        index: Vec<i64>,
    },
    Take {
        index: Vec<i64>,
    },
    To {
        dtype: DtypeForm,
    },
    Mul {
        value: Number,
    },
    Add {
        value: Number,
    },
    Neg {},
}

/// A dtype by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DtypeForm(pub Dtype);

impl TryFrom<String> for DtypeForm {
    type Error = UnknownDtype;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse().map(DtypeForm)
    }
}

impl From<DtypeForm> for String {
    fn from(form: DtypeForm) -> String {
        form.0.name().to_lowercase()
    }
}

/// A constant: with a decimal point or an exponent a float, else an integer; torch promotes the two
/// differently.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Number {
    Int(i64),
    Float(f64),
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        Scalar::from(*self) == Scalar::from(*other)
    }
}

impl Eq for Number {}

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

impl From<OneOrMany> for SplitAt {
    fn from(form: OneOrMany) -> SplitAt {
        match form {
            OneOrMany::One(n) => SplitAt::Sections(n),
            OneOrMany::Many(list) => SplitAt::Indices(list),
        }
    }
}

impl From<Number> for Scalar {
    fn from(form: Number) -> Scalar {
        match form {
            Number::Int(i) => Scalar::Int(i),
            Number::Float(f) => Scalar::Float(f),
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
            OpForm::Swapaxes { axis0, axis1 } => Op::SwapAxes(axis0, axis1),
            OpForm::Swapdims { dim0, dim1 } => Op::SwapDims(dim0, dim1),
            OpForm::Flip { dims } => Op::Flip(dims.list()),
            OpForm::Roll { shifts, dims } => {
                Op::Roll { shifts: shifts.list(), dims: dims.map_or_else(Vec::new, OneOrMany::list) }
            }
            OpForm::Repeat { repeats } => Op::Repeat(repeats),
            OpForm::RepeatInterleave { repeats, dim } => Op::RepeatInterleave { repeats, dim },
            OpForm::Tile { dims } => Op::Tile(dims),
            OpForm::TensorSplit { indices_or_sections, dim, index } => {
                Op::TensorSplit { at: indices_or_sections.into(), dim, index }
            }
            OpForm::Hsplit { indices_or_sections, index } => {
                Op::HSplit { at: indices_or_sections.into(), index }
            }
            OpForm::Vsplit { indices_or_sections, index } => {
                Op::VSplit { at: indices_or_sections.into(), index }
            }
            OpForm::Dsplit { indices_or_sections, index } => {
                Op::DSplit { at: indices_or_sections.into(), index }
            }
            OpForm::Diagonal { offset, dim1, dim2 } => Op::Diagonal { offset, dim1, dim2 },
            OpForm::Unfold { dimension, size, step } => Op::Unfold { dimension, size, step },
            OpForm::IndexSelect { dim, index } => Op::IndexSelect { dim, index },
            OpForm::Take { index } => Op::Take(index),
            OpForm::To { dtype } => Op::Value(ValueOp::To(dtype.0)),
            OpForm::Mul { value } => Op::Value(ValueOp::Mul(value.into())),
            OpForm::Add { value } => Op::Value(ValueOp::Add(value.into())),
            OpForm::Neg {} => Op::Value(ValueOp::Neg),
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
    fn values_are_in_the_vocabulary() {
        for (json, op) in [
            (r#"{"op":"to","dtype":"bf16"}"#, ValueOp::To(Dtype::BF16)),
            (r#"{"op":"to","dtype":"f8_e4m3"}"#, ValueOp::To(Dtype::F8E4m3)),
            (r#"{"op":"mul","value":2.0}"#, ValueOp::Mul(Scalar::Float(2.0))),
            (r#"{"op":"add","value":-2}"#, ValueOp::Add(Scalar::Int(-2))),
            (r#"{"op":"neg"}"#, ValueOp::Neg),
        ] {
            assert_eq!(parse(json).unwrap(), Op::Value(op), "{json}");
            let form: OpForm = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&form).unwrap(), json);
        }
    }

    #[test]
    fn parts_are_cut_by_a_number_or_by_indices() {
        let split = parse(r#"{"op":"tensor_split","indices_or_sections":[1,-2],"dim":0,"index":1}"#).unwrap();
        assert_eq!(split, Op::TensorSplit { at: SplitAt::Indices(vec![1, -2]), dim: 0, index: 1 });
        let split = parse(r#"{"op":"hsplit","indices_or_sections":2,"index":1}"#).unwrap();
        assert_eq!(split, Op::HSplit { at: SplitAt::Sections(2), index: 1 });
        let roll = parse(r#"{"op":"roll","shifts":3,"dims":null}"#).unwrap();
        assert_eq!(roll, Op::Roll { shifts: vec![3], dims: Vec::new() });
    }

    #[test]
    fn unknown_operations_and_fields_are_named() {
        for (json, name) in [
            (r#"{"op":"sqrt"}"#, "sqrt"),
            (r#"{"op":"t","dim":1}"#, "dim"),
            (r#"{"op":"select","dim":0,"index":1,"extra":2}"#, "extra"),
            (r#"{"op":"getitem","index":[{"mask":true}]}"#, "mask"),
            (r#"{"op":"narrow","dim":0,"start":0}"#, "length"),
            (r#"{"op":"to","dtype":"b16"}"#, "b16"),
            (r#"{"op":"neg","value":1}"#, "value"),
        ] {
            let error = parse(json).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
