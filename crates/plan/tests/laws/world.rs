//! Random sources, shard tables, chains and destinations, with plain arrays beside them.

use std::collections::BTreeMap;

use ndarray::{ArrayD, Axis, IxDyn, Slice};
use proptest::prelude::*;
use restage_geometry::{Captured, Copy, Dest, Dtype, Index, Op, Param, Region};
use restage_plan::{Catalog, Limits, Plan, Shard, Source, StagingMode, Target};

/// One step of a chain, with raw choices that are fitted to the shape at hand.
#[derive(Debug, Clone)]
pub enum Step {
    Narrow(usize, usize, usize),
    Select(usize, usize),
    Stride(usize, usize),
    Permute(usize),
    Flatten,
    Split(usize),
}

/// How a source is published.
#[derive(Debug, Clone)]
pub struct Cut {
    /// Pieces of each dimension.
    pub grid: [usize; 3],
    pub sessions: usize,
    /// Publishes the whole again on another session.
    pub replica: bool,
    /// Publishes an overlapping row block.
    pub overlap: bool,
    /// Leaves one shard out.
    pub hole: Option<usize>,
}

#[derive(Debug, Clone)]
pub struct Case {
    pub shape: Vec<usize>,
    pub cut: Cut,
    pub chains: Vec<(Vec<Step>, usize, usize)>,
    pub limits: Limits,
}

pub fn cases() -> impl Strategy<Value = Case> {
    let step = prop_oneof![
        (0usize..3, 0usize..6, 0usize..7).prop_map(|(d, s, l)| Step::Narrow(d, s, l)),
        (0usize..3, 0usize..6).prop_map(|(d, i)| Step::Select(d, i)),
        (0usize..3, 1usize..4).prop_map(|(d, s)| Step::Stride(d, s)),
        (0usize..6).prop_map(Step::Permute),
        Just(Step::Flatten),
        (0usize..3).prop_map(Step::Split),
    ];
    let chain = (prop::collection::vec(step, 0..5), 0usize..6, 0usize..3);
    let cut = (
        prop::array::uniform3(1usize..4),
        1usize..4,
        any::<bool>(),
        any::<bool>(),
        prop::option::weighted(0.2, 0usize..6),
    )
        .prop_map(|(grid, sessions, replica, overlap, hole)| Cut {
            grid,
            sessions,
            replica,
            overlap,
            hole,
        });
    (prop::collection::vec(1usize..7, 1..4), cut, prop::collection::vec(chain, 1..4), limits())
        .prop_map(|(shape, cut, chains, limits)| Case { shape, cut, chains, limits })
}

fn limits() -> impl Strategy<Value = Limits> {
    (
        prop::sample::select(vec![0u64, 1, 2, 4, 16, 64]),
        any::<bool>(),
        prop::sample::select(vec![StagingMode::Tiles, StagingMode::Tiles, StagingMode::RowShards]),
        prop::option::weighted(0.4, prop::sample::select(vec![0u64, 2, 10, 34, 128])),
        prop::sample::select(vec![1u64, 1, 1, 2, 4, 8]),
    )
        .prop_map(|(max_descriptors, strided, staging, staging_bytes, alignment)| Limits {
            max_descriptors,
            strided,
            staging,
            staging_bytes,
            alignment,
            ..Limits::default()
        })
}

/// Applies a chain with ndarray and writes down the operations.
fn apply(source: &ArrayD<u16>, steps: &[Step]) -> (ArrayD<u16>, Vec<Op>) {
    let mut a = source.clone();
    let mut ops = Vec::new();
    for step in steps {
        let n = a.ndim();
        match *step {
            Step::Flatten => {
                let flat: Vec<u16> = a.iter().copied().collect();
                ops.push(Op::Reshape(vec![-1]));
                a = ArrayD::from_shape_vec(IxDyn(&[flat.len()]), flat).unwrap();
            }
            _ if n == 0 => {}
            Step::Narrow(d, start, len) => {
                let d = d % n;
                let size = a.shape()[d];
                let start = start.min(size);
                let len = len.min(size - start);
                a = a.slice_axis(Axis(d), Slice::from(start..start + len)).to_owned();
                ops.push(Op::Narrow { dim: d as i64, start: start as i64, length: len as i64 });
            }
            Step::Select(d, i) => {
                let d = d % n;
                if a.shape()[d] > 0 {
                    let i = i % a.shape()[d];
                    a = a.index_axis(Axis(d), i).to_owned();
                    ops.push(Op::Select { dim: d as i64 - n as i64, index: i as i64 });
                }
            }
            Step::Stride(d, step) => {
                let d = d % n;
                a = a.slice_axis(Axis(d), Slice::new(0, None, step as isize)).to_owned();
                let mut items = vec![Index::Slice(None, None, None); d];
                items.push(Index::Slice(None, None, Some(step as i64)));
                ops.push(Op::GetItem(items));
            }
            Step::Permute(k) => {
                let mut order: Vec<usize> = (0..n).collect();
                order.rotate_left(k % n);
                if k >= n && n > 1 {
                    order.swap(0, 1);
                }
                a = a.permuted_axes(IxDyn(&order)).as_standard_layout().to_owned();
                ops.push(Op::Permute(order.iter().map(|&d| d as i64).collect()));
            }
            Step::Split(d) => {
                let d = d % n;
                let size = a.shape()[d];
                if let Some(f) = (2..=size).find(|f| size.is_multiple_of(*f)).filter(|_| n < 6) {
                    let mut shape = a.shape().to_vec();
                    shape.splice(d..=d, [f, size / f]);
                    a = ArrayD::from_shape_vec(IxDyn(&shape), a.iter().copied().collect()).unwrap();
                    ops.push(Op::Reshape(shape.iter().map(|&s| s as i64).collect()));
                }
            }
        }
    }
    (a, ops)
}

/// Cuts `size` into at most `pieces` parts, the last ones smaller.
fn parts(size: usize, pieces: usize) -> Vec<(i64, i64)> {
    let step = size.div_ceil(pieces).max(1);
    (0..size).step_by(step).map(|s| (s as i64, step.min(size - s) as i64)).collect()
}

pub struct World {
    pub catalog: Catalog,
    pub memory: BTreeMap<String, Vec<u8>>,
}

fn publish(source: &ArrayD<u16>, cut: &Cut) -> World {
    let shape: Vec<i64> = source.shape().iter().map(|&n| n as i64).collect();
    let mut boxes = vec![(Vec::new(), Vec::new())];
    for (d, &size) in source.shape().iter().enumerate() {
        boxes = boxes
            .into_iter()
            .flat_map(|(o, s): (Vec<i64>, Vec<i64>)| {
                parts(size, cut.grid[d])
                    .into_iter()
                    .map(move |(start, len)| ([&o[..], &[start]].concat(), [&s[..], &[len]].concat()))
            })
            .collect();
    }
    if let Some(hole) = cut.hole {
        boxes.remove(hole % boxes.len());
    }
    let mut placed: Vec<(Vec<i64>, Vec<i64>, String)> =
        boxes.into_iter().enumerate().map(|(i, (o, s))| (o, s, format!("s{}", i % cut.sessions))).collect();
    if cut.replica {
        placed.push((vec![0; shape.len()], shape.clone(), "replica".into()));
    }
    if cut.overlap && shape[0] > 1 {
        let (mut o, mut s) = (vec![0; shape.len()], shape.clone());
        (o[0], s[0]) = (1, shape[0] - 1);
        placed.push((o, s, "overlap".into()));
    }
    let mut memory: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut shards = Vec::new();
    for (offset, size, session) in placed {
        let bytes = memory.entry(session.clone()).or_default();
        let mut part = source.view();
        for d in 0..shape.len() {
            let range = offset[d] as usize..(offset[d] + size[d]) as usize;
            part.slice_axis_inplace(Axis(d), Slice::from(range));
        }
        let addr = bytes.len() as u64;
        bytes.extend(part.iter().flat_map(|v| v.to_le_bytes()));
        let region = Region::new(&offset, &size).unwrap();
        shards.push(Shard { region, session: session.as_str().into(), addr, digest: None });
    }
    let mut catalog = Catalog::new();
    catalog.insert("w", Source { dtype: Dtype::U16, shape, shards }).unwrap();
    World { catalog, memory }
}

/// Carries a plan out byte by byte; bytes that nothing writes stay 0xee.
pub fn carry_out(plan: &Plan, memory: &BTreeMap<String, Vec<u8>>) -> Vec<Vec<u8>> {
    let mut params: Vec<Vec<u8>> = plan.coverage.iter().map(|c| vec![0xee; c.bytes as usize]).collect();
    let mut stagings: Vec<Vec<u8>> = plan.stagings.iter().map(|s| vec![0xee; s.bytes as usize]).collect();
    for (session, target, run) in plan.descriptors() {
        let from = &memory[session][run.src as usize..(run.src + run.len) as usize];
        let to = match target {
            Target::Param(p) => &mut params[p],
            Target::Staging(s) => &mut stagings[s],
        };
        to[run.dst as usize..(run.dst + run.len) as usize].copy_from_slice(from);
    }
    for (staging, bytes) in plan.stagings.iter().zip(&stagings) {
        for step in &staging.replays {
            for nest in &step.nests {
                for run in nest.scaled(1, 2, 0).unwrap().runs() {
                    let from = &bytes[run.src as usize..(run.src + run.len) as usize];
                    params[step.param][run.dst as usize..(run.dst + run.len) as usize].copy_from_slice(from);
                }
            }
        }
    }
    params
}

/// What the loaders of a case do, and the bytes and elements of each parameter that they make.
pub fn loaded(case: &Case, source: &ArrayD<u16>) -> (Captured, Vec<(Vec<u8>, usize)>) {
    let mut captured = Captured::default();
    let mut expected = Vec::new();
    for (p, (steps, order, pad)) in case.chains.iter().enumerate() {
        let (view, ops) = apply(source, steps);
        // A destination with its dimensions in another order and gaps between rows.
        let n = view.ndim();
        let mut axes: Vec<usize> = (0..n).collect();
        if n > 0 {
            axes.rotate_left(order % n);
        }
        let mut strides = vec![0i64; n];
        let mut place = 1i64;
        for &d in axes.iter().rev() {
            strides[d] = place;
            place = place * view.shape()[d].max(1) as i64 + *pad as i64;
        }
        let offset = *pad as i64;
        let size = offset + place + 1;
        let mut bytes = vec![0xee; 2 * size as usize];
        for (index, value) in view.indexed_iter() {
            let at = offset + (0..n).map(|d| index[d] as i64 * strides[d]).sum::<i64>();
            bytes[2 * at as usize..2 * at as usize + 2].copy_from_slice(&value.to_le_bytes());
        }
        expected.push((bytes, view.len()));
        captured.params.push(Param { name: format!("p{p}"), dtype: Dtype::U16, shape: vec![size] });
        let shape = view.shape().iter().map(|&s| s as i64).collect();
        captured.copies.push(Copy {
            source: "w".into(),
            ops,
            param: p,
            dest: Dest { offset, shape, strides },
        });
    }
    (captured, expected)
}

/// A source of distinct values, published as the case says.
pub fn world(case: &Case) -> (ArrayD<u16>, World) {
    let numel = case.shape.iter().product::<usize>();
    let values: Vec<u16> = (0..numel as u16).map(|i| i.wrapping_mul(257).wrapping_add(1)).collect();
    let source = ArrayD::from_shape_vec(IxDyn(&case.shape), values).unwrap();
    let world = publish(&source, &case.cut);
    (source, world)
}
