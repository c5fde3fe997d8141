//! One source: its copies replayed and intersected with its tiles.

use std::ops::Range;
use std::sync::Arc;

use restage_geometry::{
    Captured, Copy, Dest, Dtype, GridNest, Param, Region, Replay, ValueOp, gather, replay_typed, to_grid,
};
use restage_nest::Nest;

use crate::limits::Limits;
use crate::order::{WriteOrder, within};
use crate::plan::Reason;
use crate::source::Source;
use crate::tiles::Tiles;

/// A source with everything that is taken from it, before sessions and bounds are chosen.
pub(crate) struct Need<'a> {
    pub name: Arc<str>,
    pub source: &'a Source,
    pub tiles: Tiles<'a>,
    /// Elements needed of each tile, over all copies.
    pub load: Vec<u64>,
    pub copies: Vec<CopyNeed>,
}

/// One copy of it.
pub(crate) struct CopyNeed {
    /// Index of the parameter in the capture.
    pub param: usize,
    pub dtype: Dtype,
    /// Elements of the view.
    pub numel: u64,
    /// What is done to each element on its way; with anything here the copy is staged.
    pub values: Vec<ValueOp>,
    /// From the view's row-major order to the parameter, in elements: the replay of a copy that changes values.
    pub convert: Vec<Nest>,
    /// Of a copy that changes values: from the whole source (row-major) to the parameter, in elements.
    pub whole: Vec<Nest>,
    /// Pieces by tile, to the parameter; where values change to the view's row-major order. In elements.
    pub pieces: Vec<Piece>,
}

/// A part of a copy that lies in one tile.
pub(crate) type Piece = (usize, GridNest);

impl CopyNeed {
    /// True when values change on their way.
    pub fn converts(&self) -> bool {
        !self.values.is_empty()
    }
}

/// Replays and intersects every copy of a source.
pub(crate) fn need<'a>(
    name: &Arc<str>,
    copies: &[(usize, &Copy)],
    captured: &Captured,
    order: &WriteOrder,
    source: Option<&'a Source>,
    limits: &Limits,
) -> Result<Need<'a>, Reason> {
    let source = source.ok_or(Reason::NotPublished)?;
    if let Some((dtype, shape)) = captured.sources.get(name)
        && (*dtype != source.dtype || *shape != source.shape)
    {
        return Err(Reason::Differs {
            expected_dtype: *dtype,
            expected_shape: shape.clone(),
            found_dtype: source.dtype,
            found_shape: source.shape.clone(),
        });
    }
    let tiles = Tiles::new(source)?;
    let mut load = vec![0; tiles.tiles.len()];
    let copies = copies
        .iter()
        .map(|&(at, copy)| {
            let kept = order.of_copy(at);
            one_copy(copy, &captured.params[copy.param], kept, source, &tiles, &mut load, limits)
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Need { name: name.clone(), source, tiles, load, copies })
}

fn one_copy(
    copy: &Copy,
    param: &Param,
    kept: Option<&[Range<u64>]>,
    source: &Source,
    tiles: &Tiles<'_>,
    load: &mut [u64],
    limits: &Limits,
) -> Result<CopyNeed, Reason> {
    let (view, mut values, last) =
        match replay_typed(source.dtype, &source.shape, &copy.ops).map_err(Reason::Rejected)? {
            Replay::Exact(view) => (view, Vec::new(), source.dtype),
            Replay::Opaque { recipe: Some(recipe), .. } if limits.convert => {
                (recipe.view, recipe.values, recipe.to)
            }
            Replay::Opaque { op, .. } => return Err(Reason::Unsupported { op }),
        };
    if last != param.dtype {
        let cast = ValueOp::To(param.dtype);
        let possible = cast.result(last).is_ok();
        if !(limits.convert && possible) {
            let (from, to) = (last, param.dtype);
            return Err(Reason::Conversion { param: param.name.clone(), from, to, possible });
        }
        values.push(cast);
    }
    let converts = !values.is_empty();
    let numel = param.shape.iter().product();
    copy.dest.check(numel).map_err(Reason::Gather)?;
    // What a later write replaces is not read.
    let cut = |nests: Vec<Nest>| match kept {
        Some(kept) => within(&nests, kept),
        None => nests,
    };
    let whole = cut(gather(&view, &copy.dest).map_err(Reason::Gather)?);
    let (wanted, convert, whole) = match converts {
        false => (whole, Vec::new(), Vec::new()),
        true => {
            let view = gather(&view, &Dest::whole(view.shape())).map_err(Reason::Gather)?;
            (view, cut(vec![copy.dest.nest()]), whole)
        }
    };
    let mut pieces = Vec::new();
    let mut found = 0u64;
    clip(&wanted, source, tiles, &mut |t, piece| {
        let elements = piece.numel();
        found += elements;
        load[t] += elements;
        pieces.push((t, piece));
    })?;
    let total: u64 = wanted.iter().filter_map(|n| n.total().ok()).sum();
    if total != found {
        let holes = holes(&wanted, source, tiles)?;
        let missing = total as i64 - found as i64;
        return Err(Reason::Gap { param: param.name.clone(), missing, holes, absent: Vec::new() });
    }
    let numel = view.numel() as u64;
    Ok(CopyNeed { param: copy.param, dtype: param.dtype, numel, values, convert, whole, pieces })
}

/// Cuts nests over the whole source into pieces by tile.
pub(crate) fn clip(
    nests: &[Nest],
    source: &Source,
    tiles: &Tiles<'_>,
    found: &mut dyn FnMut(usize, GridNest),
) -> Result<(), Reason> {
    let mut clipped: Vec<GridNest> = Vec::new();
    for nest in nests {
        for piece in to_grid(nest, &source.shape).map_err(|e| Reason::Gather(e.into()))? {
            let (low, high) = piece.hull();
            // Tiles are sorted by their first index, and where that does not overlap also by their last.
            for (t, tile) in tiles.tiles.iter().enumerate() {
                if tile.region.start().first().zip(high.first()).is_some_and(|(s, h)| s >= h) {
                    break;
                }
                if tile.region.end().first().zip(low.first()).is_some_and(|(e, l)| e <= l) {
                    continue;
                }
                clipped.clear();
                piece.clip(tile.region.start(), tile.region.end(), &mut clipped);
                clipped.drain(..).for_each(|piece| found(t, piece));
            }
        }
    }
    Ok(())
}

/// Boxes inside of the needed hull that no tile holds.
fn holes(nests: &[Nest], source: &Source, tiles: &Tiles<'_>) -> Result<Vec<Region>, Reason> {
    let mut hull: Option<(Vec<i64>, Vec<i64>)> = None;
    for nest in nests {
        for piece in to_grid(nest, &source.shape).map_err(|e| Reason::Gather(e.into()))? {
            let (low, high) = piece.hull();
            let pick = |a: Vec<i64>, b: Vec<i64>, f: fn(i64, i64) -> i64| {
                a.into_iter().zip(b).map(|(x, y)| f(x, y)).collect()
            };
            hull = Some(match hull {
                None => (low, high),
                Some((a, b)) => (pick(a, low, i64::min), pick(b, high, i64::max)),
            });
        }
    }
    let Some((low, high)) = hull else { return Ok(Vec::new()) };
    let shape: Vec<i64> = low.iter().zip(&high).map(|(l, h)| h - l).collect();
    let Ok(hull) = Region::new(&low, &shape) else { return Ok(Vec::new()) };
    Ok(tiles
        .tiles
        .iter()
        .fold(vec![hull], |rest, tile| rest.iter().flat_map(|r| r.subtract(&tile.region)).collect()))
}
