//! One source: its copies replayed, intersected with its tiles, and lowered to nests.

use std::ops::Range;
use std::sync::Arc;

use restage_geometry::{
    Captured, Copy, Dest, Dtype, GridNest, Param, Region, Replay, ValueOp, gather, replay_typed, to_grid,
};
use restage_nest::Nest;

use crate::order::{WriteOrder, within};
use crate::plan::Reason;
use crate::planner::Limits;
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
    /// From the whole source (row-major, in elements) to the parameter, in elements.
    pub whole: Vec<Nest>,
    /// Per tile, from the tile's shard to the parameter; where values change to a row-major staging of the view.
    /// In elements.
    pub pieces: Vec<(usize, Nest)>,
}

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
    let tiles = Tiles::new(source);
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
    let staged;
    let wanted = if converts {
        staged = gather(&view, &Dest::whole(view.shape())).map_err(Reason::Gather)?;
        &staged
    } else {
        &whole
    };
    let mut pieces = Vec::new();
    let mut hull: Option<(Vec<i64>, Vec<i64>)> = None;
    let mut found = 0u64;
    let mut clipped: Vec<GridNest> = Vec::new();
    for nest in wanted {
        for piece in to_grid(nest, &source.shape).map_err(|e| Reason::Gather(e.into()))? {
            let (low, high) = piece.hull();
            for (t, tile) in tiles.tiles.iter().enumerate() {
                // Tiles are sorted by their first index.
                if tile.region.start().first().zip(high.first()).is_some_and(|(s, h)| s >= h) {
                    break;
                }
                clipped.clear();
                piece.clip(tile.region.start(), tile.region.end(), &mut clipped);
                for part in &clipped {
                    let elements = part.numel();
                    found += elements;
                    load[t] += elements;
                    pieces.push((t, tiles.lower(t, part)));
                }
            }
            hull = Some(match hull {
                None => (low, high),
                Some((a, b)) => (
                    a.iter().zip(&low).map(|(x, y)| *x.min(y)).collect(),
                    b.iter().zip(&high).map(|(x, y)| *x.max(y)).collect(),
                ),
            });
        }
    }
    let wanted_elements: u64 = wanted.iter().filter_map(|n| n.total().ok()).sum();
    let missing = wanted_elements as i64 - found as i64;
    if missing != 0 {
        let holes = hull.map_or_else(Vec::new, |(low, high)| holes(&low, &high, tiles));
        return Err(Reason::Gap { param: param.name.clone(), missing, holes });
    }
    let convert = if converts { cut(vec![copy.dest.nest()]) } else { Vec::new() };
    let numel = view.numel() as u64;
    Ok(CopyNeed { param: copy.param, dtype: param.dtype, numel, values, convert, whole, pieces })
}

/// Boxes inside of the needed hull that no tile holds.
fn holes(low: &[i64], high: &[i64], tiles: &Tiles<'_>) -> Vec<Region> {
    let shape: Vec<i64> = low.iter().zip(high).map(|(l, h)| h - l).collect();
    let Ok(hull) = Region::new(low, &shape) else { return Vec::new() };
    tiles
        .tiles
        .iter()
        .fold(vec![hull], |rest, tile| rest.iter().flat_map(|r| r.subtract(&tile.region)).collect())
}
