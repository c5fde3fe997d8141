//! The stand-in for a parameter or a temporary, to write to.

use std::sync::Arc;

use crate::capture::{Capture, CaptureError, Target};
use crate::dtype::Dtype;
use crate::gather::Dest;
use crate::lazy::LazyTensor;
use crate::op::{Index, Op, OpError, OpProblem};
use crate::standin::view_methods;
use crate::temporary::Content;
use crate::view::View;

/// A view of a parameter, or of a temporary of the loader, that can be written to.
#[derive(Debug, Clone)]
pub struct DestView<'c> {
    capture: &'c Capture,
    target: Target,
    name: Arc<str>,
    dtype: Dtype,
    /// What led to the view, where it is one of a temporary and may be read.
    ops: Vec<Op>,
    view: View,
}

impl<'c> DestView<'c> {
    view_methods!(self);

    pub(crate) fn new(
        capture: &'c Capture,
        target: Target,
        name: Arc<str>,
        dtype: Dtype,
        view: View,
    ) -> Self {
        DestView { capture, target, name, dtype, ops: Vec::new(), view }
    }

    /// Name of the parameter.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Any operation that gives a view.
    ///
    /// # Errors
    /// [`CaptureError`] where torch would raise, [`CaptureError::LostWrite`] where it would copy.
    pub fn apply(&self, op: Op) -> Result<Self, CaptureError> {
        let view = self.parts(op.name(), |v| v.apply(&op))?;
        if view.is_copied() {
            return Err(CaptureError::LostWrite { param: self.name.to_string(), op: op.name().to_owned() });
        }
        let ops = match self.target {
            Target::Param(_) => Vec::new(),
            Target::Temporary(_) => crate::lazy::longer(&self.ops, op),
        };
        Ok(DestView { name: self.name.clone(), ops, view, ..*self })
    }

    /// `copy_`: writes all of `from` here. A smaller shape is broadcast, as in torch.
    ///
    /// # Errors
    /// [`CaptureError::Shape`] where it cannot be broadcast, [`CaptureError::Foreign`] for a source of another
    /// capture, and what a temporary may be refused for.
    pub fn copy_from(&self, from: &LazyTensor<'_>) -> Result<(), CaptureError> {
        if !std::ptr::eq(self.capture, from.capture) {
            let (source_name, param) = (from.name().to_owned(), self.name.to_string());
            return Err(CaptureError::Foreign { source_name, param });
        }
        let to = self.view.shape();
        let broadcast;
        let from = if from.shape() == to {
            from
        } else {
            broadcast = from.apply(Op::Expand(to.to_vec())).map_err(|_| CaptureError::Shape {
                source_name: from.name().to_owned(),
                from: from.shape().to_vec(),
                param: self.name.to_string(),
                to: to.to_vec(),
            })?;
            &broadcast
        };
        let contents = from.contents(self.dest("copy_")?)?;
        self.capture.write(self.target, contents, from.dtype())
    }

    /// Sets every element here to a constant, given as the bytes of one element.
    ///
    /// # Errors
    /// [`CaptureError::Element`] when that is not one element.
    pub fn fill(&self, element: &[u8]) -> Result<(), CaptureError> {
        let expected = self.dtype.packing();
        if expected.elements != 1 || expected.bytes != element.len() as u64 {
            return Err(CaptureError::Element {
                param: self.name.to_string(),
                expected: expected.bytes,
                found: element.len(),
            });
        }
        let content = Content::Constant(element.to_vec());
        self.capture.write(self.target, vec![(content, self.dest("fill_")?)], self.dtype)
    }

    /// A temporary as something to read from: a view of it, which sees later writes until an operation copies.
    ///
    /// # Errors
    /// [`CaptureError::ReadsValues`] for a parameter: what it holds before it is loaded is nobody's.
    pub fn read(&self) -> Result<LazyTensor<'c>, CaptureError> {
        match self.target {
            Target::Temporary(id) => Ok(LazyTensor::of_temporary(
                self.capture,
                (id, self.name.clone()),
                self.dtype,
                self.ops.clone(),
                self.view.clone(),
            )),
            Target::Param(_) => {
                Err(CaptureError::ReadsValues { name: self.name.to_string(), op: "read".to_owned() })
            }
        }
    }

    /// The place in the parameter, of which no element may lie twice.
    fn dest(&self, op: &str) -> Result<Dest, CaptureError> {
        let (shape, strides) = (self.view.shape().to_vec(), self.view.strides().to_vec());
        let dest = Dest { offset: self.view.offset(), shape, strides };
        let apart = dest.nest().dst_side().is_ok_and(|side| restage_nest::cover::disjoint(&[side]).is_ok());
        if apart {
            Ok(dest)
        } else {
            Err(CaptureError::Overlap { param: self.name.to_string(), op: op.to_owned() })
        }
    }

    fn parts<T>(&self, op: &str, f: impl Fn(&View) -> Result<T, OpProblem>) -> Result<T, CaptureError> {
        f(&self.view).map_err(|problem| CaptureError::Op {
            name: self.name.to_string(),
            error: OpError { at: 0, op: op.to_owned(), shape: self.view.shape().to_vec(), problem },
        })
    }
}
