//! A tensor of the loader's own: what was written to it, and what is read from it, traced back to the sources.
//!
//! It is kept as disjoint boxes, each with the chain that gives its elements. A write cuts its box out of all
//! before it, so that the later write wins. A view that is read is gathered, clipped to the boxes, and each
//! piece becomes subscripts of the box's chain.

use std::sync::Arc;

use crate::capture::CaptureError;
use crate::dtype::Dtype;
use crate::gather::{Dest, gather};
use crate::grid::{GridNest, to_grid};
use crate::layout::row_major_strides;
use crate::lazy::LazyTensor;
use crate::op::{Index, Op};
use crate::region::Region;
use crate::values::ValueOp;

/// What is written to a place: elements of a source, or a constant.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Chain(Chain),
    /// The bytes of one element.
    Constant(Vec<u8>),
}

/// What was done to a source.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub source: Arc<str>,
    pub ops: Vec<Op>,
    /// The first operation that is not known.
    pub opaque: Option<String>,
}

/// A temporary and what it holds.
#[derive(Debug, Clone)]
pub(crate) struct Temporary {
    name: Arc<str>,
    dtype: Dtype,
    shape: Vec<i64>,
    parts: Vec<Part>,
}

/// A box that still holds what was once written to it or to a larger one.
#[derive(Debug, Clone)]
struct Part {
    live: Region,
    /// First index of the box that was written; its chain has the shape of that.
    start: Vec<i64>,
    content: Content,
}

/// Bytes of one element as one of another type.
pub(crate) fn cast(name: &str, from: Dtype, to: Dtype, element: Vec<u8>) -> Result<Vec<u8>, CaptureError> {
    if from == to {
        return Ok(element);
    }
    let expected = to.packing().bytes;
    let refuse = || CaptureError::Element { param: name.to_owned(), expected, found: element.len() };
    Ok(ValueOp::To(to).apply(from, &element).map_err(|_| refuse())?.1)
}

impl Temporary {
    pub(crate) fn new(name: Arc<str>, dtype: Dtype, shape: &[i64]) -> Self {
        Temporary { name, dtype, shape: shape.to_vec(), parts: Vec::new() }
    }

    /// The sources of what it holds.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Arc<str>> {
        self.parts.iter().filter_map(|part| match &part.content {
            Content::Chain(chain) => Some(&chain.source),
            Content::Constant(_) => None,
        })
    }

    /// Writes a content, of elements of type `dtype`, to a place whose shape it has.
    pub(crate) fn write(&mut self, dest: &Dest, content: Content, dtype: Dtype) -> Result<(), CaptureError> {
        if dest.shape.contains(&0) {
            return Ok(());
        }
        let place = self.place(dest).ok_or(CaptureError::Temporary {
            name: self.name.to_string(),
            problem: "is written through a view that is no box of it",
        })?;
        let Place { region, order } = place;
        let content = match content {
            Content::Constant(element) => Content::Constant(cast(&self.name, dtype, self.dtype, element)?),
            Content::Chain(mut chain) => {
                if dtype != self.dtype {
                    chain.ops.push(Op::Value(ValueOp::To(self.dtype)));
                }
                let shape: Vec<i64> = order.iter().map(|&d| dest.shape[d]).collect();
                if !order.is_sorted() {
                    chain.ops.push(Op::Permute(order.iter().map(|&d| d as i64).collect()));
                }
                if shape != region.shape() {
                    chain.ops.push(Op::Reshape(region.shape()));
                }
                Content::Chain(chain)
            }
        };
        let before = std::mem::take(&mut self.parts);
        self.parts = before
            .into_iter()
            .flat_map(|part| {
                let rest = part.live.subtract(&region);
                rest.into_iter().map(move |live| Part { live, ..part.clone() })
            })
            .collect();
        self.parts.push(Part { start: region.start().to_vec(), live: region, content });
        Ok(())
    }

    /// The box that a destination fills, and the order in which its dimensions are those of the box.
    fn place(&self, dest: &Dest) -> Option<Place> {
        let dims = 0..dest.shape.len();
        let mut moving: Vec<usize> = dims.clone().filter(|&d| dest.shape[d] > 1).collect();
        moving.sort_by_key(|&d| std::cmp::Reverse(dest.strides[d]));
        // Single indices may stand anywhere, and so stay where they are if they can.
        let order = if moving.is_sorted() {
            dims.collect()
        } else {
            dims.filter(|&d| dest.shape[d] == 1).chain(moving.iter().copied()).collect()
        };
        let mut size = vec![1; self.shape.len()];
        let mut start = vec![0; self.shape.len()];
        let mut rest = dest.offset;
        let places = row_major_strides(&self.shape);
        let mut next = moving.iter().peekable();
        for (d, &place) in places.iter().enumerate() {
            start[d] = rest / place;
            rest %= place;
            if self.shape[d] > 1
                && let Some(&m) = next.next_if(|&&m| dest.strides[m] == place)
            {
                size[d] = dest.shape[m];
            }
        }
        let fits = (0..self.shape.len()).all(|d| start[d] + size[d] <= self.shape[d]);
        if next.peek().is_none() && fits {
            return Some(Place { region: Region::new(&start, &size).ok()?, order });
        }
        // Otherwise the whole of it, in another grouping of the dimensions.
        let mut expect = 1;
        let dense = moving.iter().rev().all(|&m| {
            let dense = dest.strides[m] == expect;
            expect *= dest.shape[m];
            dense
        });
        let whole = dest.offset == 0 && dense && expect == self.shape.iter().product();
        whole.then(|| Region::whole(&self.shape).ok()).flatten().map(|region| Place { region, order })
    }

    /// What a copy of a view of it to a place of the same shape writes where.
    pub(crate) fn read(
        &self,
        from: &LazyTensor<'_>,
        dest: Dest,
    ) -> Result<Vec<(Content, Dest)>, CaptureError> {
        let refuse = |problem| CaptureError::Temporary { name: self.name.to_string(), problem };
        if dest.shape.contains(&0) {
            return Ok(Vec::new());
        }
        if let [part] = &self.parts[..]
            && part.live.shape() == self.shape
        {
            let content = self.continued(&part.content, &from.ops, from)?;
            return Ok(vec![(content, dest)]);
        }
        let values: Vec<Op> = from.ops.iter().filter(|op| matches!(op, Op::Value(_))).cloned().collect();
        let nests = gather(&from.view, &dest).map_err(|_| refuse("is read in too many pieces"))?;
        let mut found = 0;
        let mut out = Vec::new();
        let mut clipped = Vec::new();
        for nest in &nests {
            for piece in to_grid(nest, &self.shape).map_err(|_| refuse("is read in too many pieces"))? {
                for part in &self.parts {
                    clipped.clear();
                    piece.clip(part.live.start(), part.live.end(), &mut clipped);
                    for piece in &clipped {
                        found += piece.numel() as i64;
                        let (mut ops, dest) = subscripts(piece, &part.start)
                            .ok_or_else(|| refuse("is read through a view that no subscripts give"))?;
                        ops.extend_from_slice(&values);
                        out.push((self.continued(&part.content, &ops, from)?, dest));
                    }
                }
            }
        }
        let missing = from.view.numel() - found;
        if missing != 0 {
            return Err(CaptureError::Unwritten { name: self.name.to_string(), missing });
        }
        Ok(out)
    }

    /// A content with more done to it. Of a constant only its value changes.
    fn continued(
        &self,
        content: &Content,
        ops: &[Op],
        from: &LazyTensor<'_>,
    ) -> Result<Content, CaptureError> {
        Ok(match content {
            Content::Chain(chain) => {
                let mut chain = chain.clone();
                if !chain.ops.is_empty() && !ops.is_empty() {
                    // The temporary is row-major, whatever the order of what was written to it.
                    chain.ops.push(Op::Contiguous);
                }
                chain.ops.extend_from_slice(ops);
                chain.opaque = chain.opaque.or_else(|| from.opaque.clone());
                Content::Chain(chain)
            }
            Content::Constant(element) => {
                let refuse =
                    |op: &str| CaptureError::ReadsValues { name: self.name.to_string(), op: op.into() };
                if let Some(op) = &from.opaque {
                    return Err(refuse(op));
                }
                let mut dtype = self.dtype;
                let mut element = element.clone();
                for op in ops {
                    if let Op::Value(value) = op {
                        (dtype, element) = value.apply(dtype, &element).map_err(|_| refuse(value.name()))?;
                    }
                }
                Content::Constant(element)
            }
        })
    }
}

/// Where a destination lies in a temporary.
struct Place {
    region: Region,
    /// The order that `permute` brings the destination's dimensions into.
    order: Vec<usize>,
}

/// A piece as operations on a box that begins at `start`, and where the result goes. `None` where two loops move
/// along one dimension.
fn subscripts(piece: &GridNest, start: &[i64]) -> Option<(Vec<Op>, Dest)> {
    let mut items = Vec::with_capacity(start.len());
    let mut dest = Dest { offset: piece.dst as i64, shape: Vec::new(), strides: Vec::new() };
    // What stands still is repeated, in dimensions before all others.
    let repeated: Vec<_> = piece.loops.iter().filter(|l| l.step == 0).collect();
    for l in &repeated {
        dest.shape.push(l.count as i64);
        dest.strides.push(l.dst);
    }
    for (d, &from) in start.iter().enumerate() {
        let at = piece.origin[d] - from;
        let mut along = piece.loops.iter().filter(|l| l.step > 0 && l.dim == d);
        match (along.next(), along.next()) {
            (None, _) => items.push(Index::Int(at)),
            (Some(l), None) => {
                let count = l.count as i64;
                items.push(Index::Slice(Some(at), Some(at + l.step * (count - 1) + 1), Some(l.step)));
                dest.shape.push(count);
                dest.strides.push(l.dst);
            }
            _ => return None,
        }
    }
    let mut ops = vec![Op::GetItem(items)];
    if !repeated.is_empty() {
        ops.push(Op::Expand(dest.shape.clone()));
    }
    Some((ops, dest))
}
