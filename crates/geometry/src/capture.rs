//! Capture: a loader runs over stand-ins that hold no bytes, and every copy that it makes is recorded.
//!
//! A bad source does not spoil the others: an operation that is not known makes its own source unsupported,
//! and the loader goes on. What torch would reject is an error of the loader, with the source's name, and so is
//! a write that could not be attributed.

use std::cell::RefCell;
use std::collections::HashSet;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::sync::Arc;

use thiserror::Error;

use crate::captured::{Captured, Copy, Fill, Param, Unsupported};
use crate::dest_view::DestView;
use crate::dtype::Dtype;
use crate::gather::Dest;
use crate::lazy::LazyTensor;
use crate::op::OpError;
use crate::temporary::{Chain, Content, Temporary, cast};
use crate::view::View;

/// A loader that did something impossible.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// torch would raise.
    #[error("{name}: {error}")]
    Op {
        /// The source or parameter.
        name: String,
        /// What is wrong.
        error: OpError,
    },
    /// A view of a parameter that would be a copy of it, so that writing to it would be lost.
    #[error("{param}: {op} makes a copy, and what is written to it is lost")]
    LostWrite {
        /// The parameter.
        param: String,
        /// The operation.
        op: String,
    },
    /// Source and destination cannot be broadcast to each other.
    #[error("copying {source_name} of shape {from:?} to {param} of shape {to:?}")]
    Shape {
        /// The source.
        source_name: String,
        /// Shape of its view, in elements.
        from: Vec<i64>,
        /// The parameter.
        param: String,
        /// Shape of the destination view, in elements.
        to: Vec<i64>,
    },
    /// A name that was declared twice with another dtype or shape, or a parameter that was declared twice.
    #[error("{name} is declared twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// A constant whose bytes are not one element.
    #[error("{param}: a constant of {found} bytes for elements of {expected}")]
    Element {
        /// The parameter.
        param: String,
        /// Bytes of one element.
        expected: u64,
        /// Bytes given.
        found: usize,
    },
    /// Source and parameter that belong to different recorders, so that the write would be in neither record.
    #[error("{source_name} is copied to {param} of another capture")]
    Foreign {
        /// The source.
        source_name: String,
        /// The parameter.
        param: String,
    },
    /// An operation that would hand values to the loader: there are none while capturing, and what the loader
    /// does next could depend on them.
    #[error("{name}: {op} reads values, which a capture does not have")]
    ReadsValues {
        /// The source, parameter or temporary.
        name: String,
        /// The operation.
        op: String,
    },
    /// A destination in which some element lies twice.
    #[error("{param}: {op} writes to a view whose elements overlap")]
    Overlap {
        /// The parameter.
        param: String,
        /// The operation.
        op: String,
    },
    /// A temporary that is read where nothing was written to it.
    #[error("{name}: {missing} of the elements that are read were never written")]
    Unwritten {
        /// The temporary.
        name: String,
        /// How many.
        missing: i64,
    },
    /// A use of a temporary that cannot be traced back to its sources.
    #[error("{name}: {problem}")]
    Temporary {
        /// The temporary.
        name: String,
        /// What cannot be traced.
        problem: &'static str,
    },
}

/// A recorder: hands out stand-ins and keeps what is done with them.
#[derive(Debug, Default)]
pub struct Capture {
    record: RefCell<Captured>,
    declared: RefCell<HashSet<String>>,
    temporaries: RefCell<Vec<Rc<Temporary>>>,
}

/// What a write goes to: an index into the parameters or the temporaries of the recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Param(usize),
    Temporary(usize),
}

impl Capture {
    /// A recorder that has seen nothing.
    pub fn new() -> Self {
        Capture::default()
    }

    /// A stand-in for a source. Asking again with the same dtype and shape gives the same source.
    ///
    /// # Errors
    /// [`CaptureError`] when the shape is not valid or differs from the one given before.
    pub fn source(&self, name: &str, dtype: Dtype, shape: &[i64]) -> Result<LazyTensor<'_>, CaptureError> {
        let view = whole(name, shape)?;
        let mut record = self.record.borrow_mut();
        let source = match record.sources.entry(name.into()) {
            Entry::Occupied(known) if known.get().0 == dtype && known.get().1 == shape => known.key().clone(),
            Entry::Occupied(_) => return Err(CaptureError::Twice { name: name.to_owned() }),
            Entry::Vacant(free) => {
                let source = free.key().clone();
                free.insert((dtype, shape.to_vec()));
                source
            }
        };
        Ok(LazyTensor::of_source(self, source, dtype, view))
    }

    /// Declares a parameter and gives a view of the whole of it.
    ///
    /// # Errors
    /// [`CaptureError`] when the shape is not valid or the name was declared before.
    pub fn param(&self, name: &str, dtype: Dtype, shape: &[i64]) -> Result<DestView<'_>, CaptureError> {
        let view = whole(name, shape)?;
        if !self.declared.borrow_mut().insert(name.to_owned()) {
            return Err(CaptureError::Twice { name: name.to_owned() });
        }
        let mut record = self.record.borrow_mut();
        record.params.push(Param { name: name.to_owned(), dtype, shape: shape.to_vec() });
        Ok(DestView::new(self, Target::Param(record.params.len() - 1), name.into(), dtype, view))
    }

    /// A tensor of the loader's own, empty at first (`torch.empty`): it is written as a parameter is, and read
    /// again with [`DestView::read`]. What is read from it is recorded as if it were read from the sources.
    ///
    /// # Errors
    /// [`CaptureError`] when the shape is not valid.
    ///
    /// ```
    /// use restage_geometry::{Capture, Dtype, Op};
    /// let capture = Capture::new();
    /// let (w, p) = (capture.source("w", Dtype::F32, &[4, 2])?, capture.param("p", Dtype::F32, &[2, 2])?);
    /// let scratch = capture.temporary(Dtype::F32, &[4, 2])?;
    /// scratch.copy_from(&w)?;
    /// p.copy_from(&scratch.read()?.narrow(0, 2, 2)?)?;
    /// let captured = capture.finish();
    /// assert_eq!(captured.copies[0].ops, [Op::Narrow { dim: 0, start: 2, length: 2 }]);
    /// # Ok::<(), restage_geometry::CaptureError>(())
    /// ```
    pub fn temporary(&self, dtype: Dtype, shape: &[i64]) -> Result<DestView<'_>, CaptureError> {
        let mut temporaries = self.temporaries.borrow_mut();
        let name: Arc<str> = format!("temporary {}", temporaries.len()).into();
        let view = whole(&name, shape)?;
        temporaries.push(Rc::new(Temporary::new(name.clone(), dtype, shape)));
        Ok(DestView::new(self, Target::Temporary(temporaries.len() - 1), name, dtype, view))
    }

    /// What was recorded.
    pub fn finish(self) -> Captured {
        let mut record = self.record.into_inner();
        record.drop_unsupported();
        record
    }

    /// A temporary as it is now.
    pub(crate) fn contents(&self, id: usize) -> Rc<Temporary> {
        self.temporaries.borrow()[id].clone()
    }

    /// Writes contents to places whose shapes they have: all of them, or none and an error. `dtype` is the type of
    /// their elements.
    pub(crate) fn write(
        &self,
        target: Target,
        mut contents: Vec<(Content, Dest)>,
        dtype: Dtype,
    ) -> Result<(), CaptureError> {
        match target {
            Target::Temporary(id) => {
                let mut temporaries = self.temporaries.borrow_mut();
                if let [_] = contents[..] {
                    // A single write that fails leaves everything as it was, so that no copy is needed.
                    let into = Rc::make_mut(&mut temporaries[id]);
                    return contents
                        .into_iter()
                        .try_for_each(|(content, dest)| into.write(&dest, content, dtype));
                }
                let mut next = Temporary::clone(&temporaries[id]);
                contents.into_iter().try_for_each(|(content, dest)| next.write(&dest, content, dtype))?;
                temporaries[id] = Rc::new(next);
            }
            Target::Param(param) => {
                let mut record = self.record.borrow_mut();
                let Param { name, dtype: to, .. } = &record.params[param];
                for (content, _) in &mut contents {
                    if let Content::Constant(element) = content {
                        *element = cast(name, dtype, *to, std::mem::take(element))?;
                    }
                }
                contents.into_iter().for_each(|(content, dest)| record.write(param, dest, content));
            }
        }
        Ok(())
    }

    /// Marks a source as unsupported by an operation that writes nothing.
    pub(crate) fn refuse(&self, source: Arc<str>, op: &str) {
        let entry = Unsupported { op: op.to_owned(), params: Vec::new() };
        self.record.borrow_mut().unsupported.entry(source).or_insert(entry);
    }
}

impl Captured {
    /// Adds one write to a parameter.
    fn write(&mut self, param: usize, dest: Dest, content: Content) {
        match content {
            Content::Constant(element) => {
                self.fills.push(Fill { param, dest, element, after: self.copies.len() });
            }
            Content::Chain(Chain { source, ops, opaque: None }) => {
                self.copies.push(Copy { source, ops, param, dest });
            }
            // What writes no element lacks none.
            Content::Chain(Chain { opaque: Some(_), .. }) if dest.shape.contains(&0) => {}
            Content::Chain(Chain { source, opaque: Some(op), .. }) => {
                let entry = Unsupported { op, params: Vec::new() };
                self.unsupported.entry(source).or_insert(entry).params.push(param);
            }
        }
    }
}

fn whole(name: &str, shape: &[i64]) -> Result<View, CaptureError> {
    View::whole(shape).map_err(|problem| CaptureError::Op {
        name: name.to_owned(),
        error: OpError { at: 0, op: "source".into(), shape: shape.to_vec(), problem },
    })
}
