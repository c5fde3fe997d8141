//! A view of a source and a view of a destination as nests of elements.

use restage_nest::{Loop, Nest, coalesce};
use thiserror::Error;

use crate::grid::{MAX_PIECES, TooManyPieces, to_grid};
use crate::layout::Layout;
use crate::view::{Stage, View};

/// A strided view of a destination parameter, in elements of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dest {
    /// Position of the first element.
    pub offset: i64,
    /// Sizes.
    pub shape: Vec<i64>,
    /// Elements between neighbours in each dimension.
    pub strides: Vec<i64>,
}

/// A copy that cannot be written as nests.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GatherError {
    /// The two views differ in shape.
    #[error("the view has shape {view:?} and its destination {dest:?}")]
    Shape {
        /// Shape of the source's view.
        view: Vec<i64>,
        /// Shape of the destination.
        dest: Vec<i64>,
    },
    /// The destination reaches outside of the parameter.
    #[error(
        "the destination (offset {offset}, shape {shape:?}, strides {strides:?}) leaves a parameter of {numel} elements"
    )]
    Outside {
        /// Offset of the destination.
        offset: i64,
        /// Its shape.
        shape: Vec<i64>,
        /// Its strides.
        strides: Vec<i64>,
        /// Elements of the parameter.
        numel: i64,
    },
    /// The view falls into too many pieces.
    #[error(transparent)]
    Pieces(#[from] TooManyPieces),
}

impl Dest {
    /// The whole of a row-major parameter.
    pub fn whole(shape: &[i64]) -> Self {
        Dest { offset: 0, shape: shape.to_vec(), strides: crate::layout::row_major_strides(shape) }
    }

    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Checks that every element lies in a parameter of `numel` elements.
    ///
    /// # Errors
    /// [`GatherError::Outside`], also where a size or a stride is malformed.
    pub fn check(&self, numel: i64) -> Result<(), GatherError> {
        let inside = || {
            if self.shape.len() != self.strides.len() || self.shape.iter().any(|&n| n < 0) {
                return None;
            }
            self.shape.iter().try_fold(1i64, |n, &s| n.checked_mul(s))?;
            if self.shape.contains(&0) {
                return (0..=numel).contains(&self.offset).then_some(());
            }
            let (mut low, mut high) = (self.offset, self.offset);
            for (&n, &s) in self.shape.iter().zip(&self.strides) {
                let reach = if n > 1 { s.checked_mul(n - 1)? } else { 0 };
                low = low.checked_add(reach.min(0))?;
                high = high.checked_add(reach.max(0))?;
            }
            (low >= 0 && high < numel).then_some(())
        };
        inside().ok_or_else(|| GatherError::Outside {
            offset: self.offset,
            shape: self.shape.clone(),
            strides: self.strides.clone(),
            numel,
        })
    }

    /// The destination as one nest whose source side counts the elements in row-major order.
    pub fn nest(&self) -> Nest {
        let places = crate::layout::row_major_strides(&self.shape);
        let loops = (0..self.shape.len())
            .map(|d| Loop { count: self.shape[d] as u64, src: places[d], dst: self.strides[d] })
            .collect();
        Nest { src: 0, dst: self.offset as u64, run: 1, loops }.canonical()
    }
}

/// Nests that copy a view of a source (source side: row-major position in the source) to a destination. They
/// are disjoint on the side of the view's indices and together are the whole view; units are elements. A view
/// that one layout holds gives one nest.
///
/// # Errors
/// [`GatherError::Shape`] where the shapes differ, [`GatherError::Pieces`] past
/// [`MAX_PIECES`](crate::MAX_PIECES). The destination must have passed [`Dest::check`].
///
/// ```
/// use restage_geometry::{gather, Dest, Op, Replay, replay};
/// use restage_nest::{Loop, Nest};
/// let ops = [Op::Narrow { dim: 1, start: 2, length: 4 }];
/// let Replay::Exact(view) = replay(&[4, 8], &ops)? else { unreachable!() };
/// let rows = Nest { src: 2, dst: 0, run: 4, loops: vec![Loop { count: 4, src: 8, dst: 4 }] };
/// assert_eq!(gather(&view, &Dest::whole(&[4, 4]))?, [rows]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gather(view: &View, dest: &Dest) -> Result<Vec<Nest>, GatherError> {
    if view.shape() != dest.shape {
        return Err(GatherError::Shape { view: view.shape().to_vec(), dest: dest.shape.clone() });
    }
    if dest.shape.contains(&0) {
        return Ok(Vec::new());
    }
    let mut stages = view.stages();
    let mut nests = match stages {
        [below @ .., Stage::Layout(top)] => {
            stages = below;
            vec![from_top(top, dest)]
        }
        _ => vec![dest.nest()],
    };
    for stage in stages.iter().rev() {
        nests = match stage {
            Stage::Layout(layout) => through(layout, &nests)?,
            Stage::Pick(pick) => pick.compose(&nests)?,
        };
        // Pieces that continue each other join again, so that nothing grows with the length of a chain.
        if nests.len() > 1 {
            coalesce(&mut nests);
        }
    }
    Ok(nests.into_iter().map(Nest::canonical).collect())
}

/// The nest from the last layout, whose indices are those of the destination.
fn from_top(top: &Layout, dest: &Dest) -> Nest {
    let mut loops = Vec::new();
    for (dim, &stride) in top.dims.iter().zip(&dest.strides) {
        let mut place = stride;
        for f in dim.factors.iter().rev() {
            loops.push(Loop { count: f.extent as u64, src: f.stride, dst: place });
            place *= f.extent;
        }
    }
    Nest { src: top.offset as u64, dst: dest.offset as u64, run: 1, loops }
}

/// Nests from a layout's row-major order become nests from where it points: its factors are the digits.
fn through(layout: &Layout, nests: &[Nest]) -> Result<Vec<Nest>, TooManyPieces> {
    let factors: Vec<_> = layout.dims.iter().flat_map(|d| d.factors.iter().copied()).collect();
    let extents: Vec<i64> = factors.iter().map(|f| f.extent).collect();
    let strides: Vec<i64> = factors.iter().map(|f| f.stride).collect();
    let base = vec![0; extents.len()];
    let mut out = Vec::new();
    for nest in nests {
        for piece in to_grid(nest, &extents)? {
            let mut lowered = piece.lower(&base, &strides);
            lowered.src = lowered.src.wrapping_add_signed(layout.offset);
            out.push(lowered);
        }
        if out.len() > MAX_PIECES {
            return Err(TooManyPieces);
        }
    }
    Ok(out)
}
