//! The stand-in for a source, or for a view of one.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use crate::capture::{Capture, CaptureError};
use crate::dtype::Dtype;
use crate::gather::Dest;
use crate::op::{Index, Op, OpError, OpProblem};
use crate::standin::view_methods;
use crate::temporary::{Chain, Content, Temporary};
use crate::values::{Scalar, ValueOp};
use crate::view::View;

/// A stand-in for a source, for a view of one, or for what was computed from one.
#[derive(Debug, Clone)]
pub struct LazyTensor<'c> {
    pub(crate) capture: &'c Capture,
    pub(crate) origin: Origin,
    dtype: Dtype,
    pub(crate) ops: Vec<Op>,
    pub(crate) view: View,
    pub(crate) opaque: Option<String>,
}

/// Where the elements come from.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    Source(Arc<str>),
    /// A temporary: its index, its name, and what it held when an operation copied it, where one has.
    Temporary {
        id: usize,
        name: Arc<str>,
        copied: Option<Rc<Temporary>>,
    },
}

impl<'c> LazyTensor<'c> {
    view_methods!(self);

    pub(crate) fn of_source(capture: &'c Capture, source: Arc<str>, dtype: Dtype, view: View) -> Self {
        LazyTensor { capture, origin: Origin::Source(source), dtype, ops: Vec::new(), view, opaque: None }
    }

    pub(crate) fn of_temporary(
        capture: &'c Capture,
        (id, name): (usize, Arc<str>),
        dtype: Dtype,
        ops: Vec<Op>,
        view: View,
    ) -> Self {
        let origin = Origin::Temporary { id, name, copied: None };
        LazyTensor { capture, origin, dtype, ops, view, opaque: None }
    }

    /// `reshape(shape)`; one size may be -1.
    ///
    /// # Errors
    /// [`CaptureError`] where torch would raise.
    pub fn reshape(&self, shape: &[i64]) -> Result<Self, CaptureError> {
        self.apply(Op::Reshape(shape.to_vec()))
    }

    /// `flatten(start_dim, end_dim)`
    ///
    /// # Errors
    /// [`CaptureError`] where torch would raise.
    pub fn flatten(&self, start_dim: i64, end_dim: i64) -> Result<Self, CaptureError> {
        self.apply(Op::Flatten { start_dim, end_dim })
    }

    /// `contiguous()`
    ///
    /// # Errors
    /// None today; the form is that of the other operations.
    pub fn contiguous(&self) -> Result<Self, CaptureError> {
        self.apply(Op::Contiguous)
    }

    /// `expand(shape)`; -1 keeps a size.
    ///
    /// # Errors
    /// [`CaptureError`] where torch would raise.
    pub fn expand(&self, shape: &[i64]) -> Result<Self, CaptureError> {
        self.apply(Op::Expand(shape.to_vec()))
    }

    /// `to(dtype)`; nothing where the elements are of that type already.
    ///
    /// # Errors
    /// [`CaptureError`] where the values of either type are not known.
    pub fn to(&self, dtype: Dtype) -> Result<Self, CaptureError> {
        self.apply(Op::Value(ValueOp::To(dtype)))
    }

    /// `tensor * value`
    ///
    /// # Errors
    /// [`CaptureError`] where torch does not define it for the type.
    pub fn mul_scalar(&self, value: Scalar) -> Result<Self, CaptureError> {
        self.apply(Op::Value(ValueOp::Mul(value)))
    }

    /// `tensor + value`
    ///
    /// # Errors
    /// [`CaptureError`] where torch does not define it for the type.
    pub fn add_scalar(&self, value: Scalar) -> Result<Self, CaptureError> {
        self.apply(Op::Value(ValueOp::Add(value)))
    }

    /// `-tensor`
    ///
    /// # Errors
    /// [`CaptureError`] where torch does not define it for the type.
    pub fn neg(&self) -> Result<Self, CaptureError> {
        self.apply(Op::Value(ValueOp::Neg))
    }

    /// An operation that is not known and keeps the shape (`sqrt`, a product with another tensor, …): the
    /// loader goes on, and a copy of the result makes the source unsupported.
    pub fn value_op(&self, op: &str) -> Self {
        let origin = self.origin_after(true);
        let opaque = Some(self.opaque.clone().unwrap_or_else(|| op.to_owned()));
        LazyTensor { origin, ops: self.ops.clone(), view: self.view.clone(), opaque, ..*self }
    }

    /// Any operation.
    ///
    /// # Errors
    /// [`CaptureError`] where torch would raise.
    pub fn apply(&self, op: Op) -> Result<Self, CaptureError> {
        let dtype = match &op {
            Op::Opaque(name) => return Ok(self.value_op(name)),
            Op::Value(ValueOp::To(dtype)) if *dtype == self.dtype => return Ok(self.clone()),
            Op::Value(value) => value.result(self.dtype).map_err(|e| self.error(op.name(), e.into()))?,
            _ => self.dtype,
        };
        let view = self.view.apply(&op).map_err(|problem| self.error(op.name(), problem))?;
        let origin = self.origin_after(view.is_copied());
        let (ops, opaque) = (longer(&self.ops, op), self.opaque.clone());
        Ok(LazyTensor { capture: self.capture, origin, dtype, ops, view, opaque })
    }

    /// Where the elements come from after an operation, which copies them or does not.
    fn origin_after(&self, copied: bool) -> Origin {
        match &self.origin {
            // From here on later writes to the temporary are not seen.
            Origin::Temporary { id, name, copied: None } if copied => {
                let copied = Some(self.capture.contents(*id));
                Origin::Temporary { id: *id, name: name.clone(), copied }
            }
            origin => origin.clone(),
        }
    }

    /// What a temporary held when it was copied, or holds now.
    fn held(&self, id: usize, copied: Option<&Rc<Temporary>>) -> Rc<Temporary> {
        copied.cloned().unwrap_or_else(|| self.capture.contents(id))
    }

    /// `item()`: refused, and the source with it.
    ///
    /// # Errors
    /// [`CaptureError::ReadsValues`], always.
    pub fn item(&self) -> Result<Infallible, CaptureError> {
        self.read_values("item")
    }

    /// `tolist()`: refused, and the source with it.
    ///
    /// # Errors
    /// [`CaptureError::ReadsValues`], always.
    pub fn tolist(&self) -> Result<Infallible, CaptureError> {
        self.read_values("tolist")
    }

    /// A comparison or another operation that hands values to the loader, by torch's name (`lt`, `equal`,
    /// `any`, …): refused, and the source with it.
    ///
    /// # Errors
    /// [`CaptureError::ReadsValues`], always.
    pub fn read_values(&self, op: &str) -> Result<Infallible, CaptureError> {
        match &self.origin {
            Origin::Source(source) => self.capture.refuse(source.clone(), op),
            Origin::Temporary { id, copied, .. } => {
                let held = self.held(*id, copied.as_ref());
                held.sources().for_each(|source| self.capture.refuse(source.clone(), op));
            }
        }
        Err(CaptureError::ReadsValues { name: self.name().to_owned(), op: op.to_owned() })
    }

    /// Name of the source.
    pub fn name(&self) -> &str {
        match &self.origin {
            Origin::Source(name) | Origin::Temporary { name, .. } => name,
        }
    }

    /// Type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// What a copy of this to a place of its shape writes where.
    pub(crate) fn contents(&self, dest: Dest) -> Result<Vec<(Content, Dest)>, CaptureError> {
        match &self.origin {
            Origin::Source(source) => {
                let chain =
                    Chain { source: source.clone(), ops: self.ops.clone(), opaque: self.opaque.clone() };
                Ok(vec![(Content::Chain(chain), dest)])
            }
            Origin::Temporary { id, copied, .. } => self.held(*id, copied.as_ref()).read(self, dest),
        }
    }

    fn parts<T>(&self, op: &str, f: impl Fn(&View) -> Result<T, OpProblem>) -> Result<T, CaptureError> {
        f(&self.view).map_err(|problem| self.error(op, problem))
    }

    fn error(&self, op: &str, problem: OpProblem) -> CaptureError {
        CaptureError::Op {
            name: self.name().to_owned(),
            error: OpError {
                at: self.ops.len(),
                op: op.to_owned(),
                shape: self.view.shape().to_vec(),
                problem,
            },
        }
    }
}

/// A chain with one more operation.
pub(crate) fn longer(ops: &[Op], op: Op) -> Vec<Op> {
    let mut out = Vec::with_capacity(ops.len() + 1);
    out.extend_from_slice(ops);
    out.push(op);
    out
}
