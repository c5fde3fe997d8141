//! Capture: a loader runs over stand-ins that hold no bytes, and every copy that it makes is recorded.
//!
//! A bad source does not spoil the others: an operation that needs values makes its own source unsupported,
//! and the loader goes on. What torch would reject is an error of the loader, with the source's name.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::marker::PhantomData;
use std::sync::Arc;

use thiserror::Error;

use crate::Dtype;
use crate::gather::Dest;
use crate::op::{Index, Op, OpError, OpProblem};
use crate::view::View;

/// A parameter of the consumer: dense and row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, in elements.
    pub shape: Vec<i64>,
}

/// One copy that a loader made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Name of the source.
    pub source: Arc<str>,
    /// What the loader did to it before copying.
    pub ops: Vec<Op>,
    /// Index of the parameter in [`Captured::params`].
    pub param: usize,
    /// Where in the parameter it goes.
    pub dest: Dest,
}

/// A part of a parameter that a loader set to a constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fill {
    /// Index of the parameter in [`Captured::params`].
    pub param: usize,
    /// Where in the parameter it goes.
    pub dest: Dest,
    /// The bytes of one element.
    pub element: Vec<u8>,
}

/// Everything that a loader did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// What the loader took each source to be: dtype and shape in elements.
    pub sources: BTreeMap<Arc<str>, (Dtype, Vec<i64>)>,
    /// Parameters in the order of their declaration.
    pub params: Vec<Param>,
    /// Copies in the order of the loader.
    pub copies: Vec<Copy>,
    /// Constants in the order of the loader.
    pub fills: Vec<Fill>,
    /// Sources that an operation defeated: name and operation. None of their copies are in `copies`.
    pub unsupported: BTreeMap<Arc<str>, Unsupported>,
}

/// Why a source is unsupported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// The operation that defeated it.
    pub op: String,
    /// Indices of the parameters that were to receive it.
    pub params: Vec<usize>,
}

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
}

/// A recorder: hands out stand-ins and keeps what is done with them.
#[derive(Debug, Default)]
pub struct Capture {
    record: RefCell<Captured>,
    declared: RefCell<HashSet<String>>,
}

/// A stand-in for a source, or for a view of one.
#[derive(Debug, Clone)]
pub struct LazyTensor<'c> {
    /// Ties the stand-in to its recorder: one of another recorder would name a source that this one lacks.
    recorder: PhantomData<&'c Capture>,
    source: Arc<str>,
    dtype: Dtype,
    ops: Vec<Op>,
    view: View,
    opaque: Option<String>,
}

/// A view of a parameter that a loader writes to.
#[derive(Debug, Clone)]
pub struct DestView<'c> {
    capture: &'c Capture,
    param: usize,
    name: Arc<str>,
    view: View,
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
        let known = record.sources.get_key_value(name).map(|(k, v)| (k.clone(), v.clone()));
        let source = match known {
            Some((source, known)) if known == (dtype, shape.to_vec()) => source,
            Some(_) => return Err(CaptureError::Twice { name: name.to_owned() }),
            None => {
                let source: Arc<str> = name.into();
                record.sources.insert(source.clone(), (dtype, shape.to_vec()));
                source
            }
        };
        Ok(LazyTensor { recorder: PhantomData, source, dtype, ops: Vec::new(), view, opaque: None })
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
        Ok(DestView { capture: self, param: record.params.len() - 1, name: name.into(), view })
    }

    /// What was recorded.
    pub fn finish(self) -> Captured {
        let mut record = self.record.into_inner();
        // A source that one copy cannot be taken from is refused as a whole.
        let bad = std::mem::take(&mut record.unsupported);
        record.copies.retain(|c| !bad.contains_key(&c.source));
        record.unsupported = bad;
        record
    }
}

fn whole(name: &str, shape: &[i64]) -> Result<View, CaptureError> {
    View::whole(shape).map_err(|problem| CaptureError::Op {
        name: name.to_owned(),
        error: OpError { at: 0, op: "source".into(), shape: shape.to_vec(), problem },
    })
}

macro_rules! view_methods {
    ($self:ident, $apply:ident, $error:ident) => {
        /// `narrow(dim, start, length)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn narrow(&$self, dim: i64, start: i64, length: i64) -> Result<Self, $error> {
            $self.$apply(Op::Narrow { dim, start, length })
        }

        /// `select(dim, index)`; the dimension goes away.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn select(&$self, dim: i64, index: i64) -> Result<Self, $error> {
            $self.$apply(Op::Select { dim, index })
        }

        /// `tensor[items]`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn get(&$self, items: &[Index]) -> Result<Self, $error> {
            $self.$apply(Op::GetItem(items.to_vec()))
        }

        /// `view(shape)`; one size may be -1.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn view(&$self, shape: &[i64]) -> Result<Self, $error> {
            $self.$apply(Op::View(shape.to_vec()))
        }

        /// `transpose(dim0, dim1)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn transpose(&$self, dim0: i64, dim1: i64) -> Result<Self, $error> {
            $self.$apply(Op::Transpose(dim0, dim1))
        }

        /// `t()`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn t(&$self) -> Result<Self, $error> {
            $self.$apply(Op::T)
        }

        /// `permute(dims)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn permute(&$self, dims: &[i64]) -> Result<Self, $error> {
            $self.$apply(Op::Permute(dims.to_vec()))
        }

        /// `unsqueeze(dim)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn unsqueeze(&$self, dim: i64) -> Result<Self, $error> {
            $self.$apply(Op::Unsqueeze(dim))
        }

        /// `squeeze(dim)`
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn squeeze(&$self, dim: i64) -> Result<Self, $error> {
            $self.$apply(Op::Squeeze(Some(vec![dim])))
        }

        /// `unflatten(dim, sizes)`; one size may be -1.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn unflatten(&$self, dim: i64, sizes: &[i64]) -> Result<Self, $error> {
            $self.$apply(Op::Unflatten { dim, sizes: sizes.to_vec() })
        }

        /// All parts of `chunk(chunks, dim)`; as in torch, there may be fewer than asked for.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn chunk(&$self, chunks: i64, dim: i64) -> Result<Vec<Self>, $error> {
            let count = $self.parts("chunk", |v| v.chunk_parts(chunks, dim))?.count();
            (0..count).map(|index| $self.$apply(Op::Chunk { chunks, dim, index })).collect()
        }

        /// All parts of `split(size, dim)`.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn split(&$self, size: i64, dim: i64) -> Result<Vec<Self>, $error> {
            let count = $self.parts("split", |v| v.split_parts(size, dim))?.count();
            (0..count).map(|index| $self.$apply(Op::Split { size, dim, index })).collect()
        }

        /// All parts of `split(sizes, dim)`.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn split_sizes(&$self, sizes: &[i64], dim: i64) -> Result<Vec<Self>, $error> {
            (0..sizes.len() as i64)
                .map(|index| $self.$apply(Op::SplitSizes { sizes: sizes.to_vec(), dim, index }))
                .collect()
        }

        /// All parts of `unbind(dim)`.
        ///
        /// # Errors
        /// [`CaptureError`] where torch would raise.
        pub fn unbind(&$self, dim: i64) -> Result<Vec<Self>, $error> {
            let at = $self.parts("unbind", |v| v.dim(dim))?;
            (0..$self.view.shape()[at]).map(|index| $self.$apply(Op::Unbind { dim, index })).collect()
        }

        /// Sizes, in elements.
        pub fn shape(&$self) -> &[i64] {
            $self.view.shape()
        }
    };
}

impl<'c> LazyTensor<'c> {
    view_methods!(self, apply, CaptureError);

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

    /// An operation that needs the values (`mul`, `to`, …): the loader goes on, and a copy of the result makes
    /// the source unsupported.
    pub fn value_op(&self, op: &str) -> Self {
        let mut out = self.clone();
        out.opaque.get_or_insert_with(|| op.to_owned());
        out
    }

    /// Any operation.
    ///
    /// # Errors
    /// [`CaptureError`] where torch would raise.
    pub fn apply(&self, op: Op) -> Result<Self, CaptureError> {
        if let Op::Opaque(name) = &op {
            return Ok(self.value_op(name));
        }
        let view = self.view.apply(&op).map_err(|problem| self.error(op.name(), problem))?;
        let mut out = self.clone();
        out.view = view;
        out.ops.push(op);
        Ok(out)
    }

    /// Name of the source.
    pub fn name(&self) -> &str {
        &self.source
    }

    /// Type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn parts<T>(&self, op: &str, f: impl Fn(&View) -> Result<T, OpProblem>) -> Result<T, CaptureError> {
        f(&self.view).map_err(|problem| self.error(op, problem))
    }

    fn error(&self, op: &str, problem: OpProblem) -> CaptureError {
        CaptureError::Op {
            name: self.source.to_string(),
            error: OpError {
                at: self.ops.len(),
                op: op.to_owned(),
                shape: self.view.shape().to_vec(),
                problem,
            },
        }
    }
}

impl DestView<'_> {
    view_methods!(self, apply, CaptureError);

    /// Name of the parameter.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `copy_`: writes all of `from` here. A smaller shape is broadcast, as in torch.
    ///
    /// # Errors
    /// [`CaptureError::Shape`] where it cannot be broadcast.
    pub fn copy_from(&self, from: &LazyTensor<'_>) -> Result<(), CaptureError> {
        let to = self.view.shape();
        let mut ops = from.ops.clone();
        if from.shape() != to {
            let expand = Op::Expand(to.to_vec());
            from.view.apply(&expand).map_err(|_| CaptureError::Shape {
                source_name: from.source.to_string(),
                from: from.shape().to_vec(),
                param: self.name.to_string(),
                to: to.to_vec(),
            })?;
            ops.push(expand);
        }
        let mut record = self.capture.record.borrow_mut();
        match &from.opaque {
            Some(op) => {
                let entry = Unsupported { op: op.clone(), params: Vec::new() };
                let known = record.unsupported.entry(from.source.clone()).or_insert(entry);
                known.params.push(self.param);
            }
            None => {
                let copy = Copy { source: from.source.clone(), ops, param: self.param, dest: self.dest() };
                record.copies.push(copy);
            }
        }
        Ok(())
    }

    /// Sets every element here to a constant, given as the bytes of one element.
    ///
    /// # Errors
    /// [`CaptureError::Element`] when that is not one element.
    pub fn fill(&self, element: &[u8]) -> Result<(), CaptureError> {
        let mut record = self.capture.record.borrow_mut();
        let expected = record.params[self.param].dtype.packing();
        if expected.elements != 1 || expected.bytes != element.len() as u64 {
            return Err(CaptureError::Element {
                param: self.name.to_string(),
                expected: expected.bytes,
                found: element.len(),
            });
        }
        record.fills.push(Fill { param: self.param, dest: self.dest(), element: element.to_vec() });
        Ok(())
    }

    fn dest(&self) -> Dest {
        Dest {
            offset: self.view.offset(),
            shape: self.view.shape().to_vec(),
            strides: self.view.strides().to_vec(),
        }
    }

    fn apply(&self, op: Op) -> Result<Self, CaptureError> {
        let view = self.parts(op.name(), |v| v.apply(&op))?;
        if view.is_copied() {
            return Err(CaptureError::LostWrite { param: self.name.to_string(), op: op.name().to_owned() });
        }
        Ok(DestView { view, ..self.clone() })
    }

    fn parts<T>(&self, op: &str, f: impl Fn(&View) -> Result<T, OpProblem>) -> Result<T, CaptureError> {
        f(&self.view).map_err(|problem| CaptureError::Op {
            name: self.name.to_string(),
            error: OpError { at: 0, op: op.to_owned(), shape: self.view.shape().to_vec(), problem },
        })
    }
}

impl Captured {
    /// Adds what another recorder saw, its parameters under the names that `rename` gives them.
    pub fn append(&mut self, other: &Captured, rename: impl Fn(&str) -> String) {
        let first = self.params.len();
        let renamed = other.params.iter().map(|p| Param { name: rename(&p.name), ..p.clone() });
        self.params.extend(renamed);
        self.copies.extend(other.copies.iter().map(|c| Copy { param: first + c.param, ..c.clone() }));
        self.fills.extend(other.fills.iter().map(|f| Fill { param: first + f.param, ..f.clone() }));
        self.sources.extend(other.sources.iter().map(|(n, s)| (n.clone(), s.clone())));
        for (source, u) in &other.unsupported {
            let entry = Unsupported { op: u.op.clone(), params: Vec::new() };
            let known = self.unsupported.entry(source.clone()).or_insert(entry);
            known.params.extend(u.params.iter().map(|p| first + p));
        }
    }

    /// What was recorded for the parameters that `keep` says yes to, and nothing else.
    pub fn only(&self, keep: impl Fn(&str) -> bool) -> Captured {
        let mut index = vec![None; self.params.len()];
        let mut out = Captured::default();
        for (p, param) in self.params.iter().enumerate().filter(|(_, p)| keep(&p.name)) {
            index[p] = Some(out.params.len());
            out.params.push(param.clone());
        }
        for copy in &self.copies {
            if let Some(param) = index[copy.param] {
                out.copies.push(Copy { param, ..copy.clone() });
            }
        }
        for fill in &self.fills {
            if let Some(param) = index[fill.param] {
                out.fills.push(Fill { param, ..fill.clone() });
            }
        }
        for (source, unsupported) in &self.unsupported {
            let params: Vec<usize> = unsupported.params.iter().filter_map(|&p| index[p]).collect();
            if !params.is_empty() {
                out.unsupported.insert(source.clone(), Unsupported { op: unsupported.op.clone(), params });
            }
        }
        let used: HashSet<&str> =
            out.copies.iter().map(|c| &*c.source).chain(out.unsupported.keys().map(|n| &**n)).collect();
        let sources = self.sources.iter().filter(|(name, _)| used.contains(&***name));
        out.sources = sources.map(|(name, source)| (name.clone(), source.clone())).collect();
        out
    }
}
