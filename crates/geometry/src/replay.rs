//! The replay of a chain of operations.

use crate::dtype::Dtype;
use crate::op::{Op, OpError, OpProblem};
use crate::values::{ValueError, ValueOp};
use crate::view::View;

/// What a chain does to a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replay {
    /// It moves data without changing it: an exact gather.
    Exact(View),
    /// An operation needs the values; its position and name.
    Opaque {
        /// Position in the chain, from 0.
        at: usize,
        /// Name of the operation.
        op: String,
        /// How to compute the result from the whole source; `None` where an operation is not known.
        recipe: Option<Recipe>,
    },
}

/// How to compute the result of a chain that changes values.
///
/// Every [`ValueOp`] works element by element, so that it can change places with every operation that only
/// moves data: a chain is one gather, and a list of value operations on what it gathered, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// What is gathered, in elements of the source.
    pub view: View,
    /// What is done to each element of it, first to last.
    pub values: Vec<ValueOp>,
    /// Type of the elements before.
    pub from: Dtype,
    /// Type of the elements after.
    pub to: Dtype,
}

impl Recipe {
    /// Applies the value operations to gathered elements of type `from`, and gives elements of type `to`.
    ///
    /// # Errors
    /// [`ValueError::Length`] when `src` is not a whole number of elements.
    pub fn compute(&self, src: &[u8]) -> Result<Vec<u8>, ValueError> {
        let mut dtype = self.from;
        let mut bytes = src.to_vec();
        for op in &self.values {
            (dtype, bytes) = op.apply(dtype, &bytes)?;
        }
        Ok(bytes)
    }
}

/// Applies a chain to a whole source of this shape. Where the type of the source is known, [`replay_typed`]
/// says more.
///
/// # Errors
/// [`OpError`] where torch would raise, up to the first operation that needs values.
///
/// ```
/// use restage_geometry::{replay, Op, Replay};
/// let Replay::Exact(view) = replay(&[4, 8], &[Op::Narrow { dim: 1, start: 2, length: 4 }])? else { panic!() };
/// assert_eq!((view.shape(), view.strides(), view.offset()), (&[4, 4][..], &[8, 1][..], 2));
/// # Ok::<(), restage_geometry::OpError>(())
/// ```
pub fn replay(shape: &[i64], ops: &[Op]) -> Result<Replay, OpError> {
    let mut view = whole(shape)?;
    for (at, op) in ops.iter().enumerate() {
        if let Op::Value(_) | Op::Opaque(_) = op {
            return Ok(Replay::Opaque { at, op: op.name().to_owned(), recipe: None });
        }
        view = view.apply(op).map_err(|problem| problem_at(at, op, &view, problem))?;
    }
    Ok(Replay::Exact(view))
}

/// Applies a chain to a whole source of this type and shape. Value operations give a [`Recipe`]; a cast to the
/// type that the elements have does nothing, as in torch.
///
/// # Errors
/// [`OpError`] where torch would raise, up to the first operation that is not known.
///
/// ```
/// use restage_geometry::{replay_typed, Dtype, Op, Replay, ValueOp};
/// let ops = [Op::T, Op::Value(ValueOp::To(Dtype::F32)), Op::Select { dim: 0, index: 1 }];
/// let Replay::Opaque { at: 1, op, recipe: Some(recipe) } = replay_typed(Dtype::BF16, &[2, 3], &ops)? else { panic!() };
/// assert_eq!((op.as_str(), recipe.view.shape(), recipe.to), ("to", &[2][..], Dtype::F32));
/// assert_eq!(recipe.compute(&[0x80, 0x3f, 0, 0xc0])?, [1.0f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn replay_typed(dtype: Dtype, shape: &[i64], ops: &[Op]) -> Result<Replay, OpError> {
    let mut recipe = Recipe { view: whole(shape)?, values: Vec::new(), from: dtype, to: dtype };
    let mut first = None;
    for (at, op) in ops.iter().enumerate() {
        let fail = |view: &View, problem| problem_at(at, op, view, problem);
        match op {
            Op::Opaque(name) => {
                let (at, op) = first.unwrap_or((at, name.as_str()));
                return Ok(Replay::Opaque { at, op: op.to_owned(), recipe: None });
            }
            Op::Value(ValueOp::To(to)) if *to == recipe.to => continue,
            Op::Value(value) => {
                recipe.to = value.result(recipe.to).map_err(|e| fail(&recipe.view, e.into()))?;
                recipe.values.push(*value);
                first = first.or(Some((at, value.name())));
            }
            _ => {}
        }
        recipe.view = recipe.view.apply(op).map_err(|problem| fail(&recipe.view, problem))?;
    }
    Ok(match first {
        None => Replay::Exact(recipe.view),
        Some((at, op)) => Replay::Opaque { at, op: op.to_owned(), recipe: Some(recipe) },
    })
}

fn whole(shape: &[i64]) -> Result<View, OpError> {
    View::whole(shape).map_err(|problem| OpError {
        at: 0,
        op: "source".into(),
        shape: shape.to_vec(),
        problem,
    })
}

fn problem_at(at: usize, op: &Op, view: &View, problem: OpProblem) -> OpError {
    OpError { at, op: op.name().to_owned(), shape: view.shape().to_vec(), problem }
}
