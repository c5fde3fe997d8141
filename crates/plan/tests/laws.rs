//! Random sources, shard tables, chains and destinations: what a plan moves equals what ndarray makes of it.

use std::collections::BTreeMap;

use ndarray::{ArrayD, Axis, IxDyn, Slice};
use proptest::prelude::*;
use restage_geometry::{Captured, Copy, Dest, Dtype, Fill, Index, Op, Param, Region};
use restage_plan::{Catalog, Limits, Plan, Reason, Shard, Source, Target, plan};

/// One step of a chain, with raw choices that are fitted to the shape at hand.
#[derive(Debug, Clone)]
enum Step {
    Narrow(usize, usize, usize),
    Select(usize, usize),
    Stride(usize, usize),
    Permute(usize),
    Flatten,
    Split(usize),
}

/// How a source is published.
#[derive(Debug, Clone)]
struct Cut {
    /// Pieces of each dimension.
    grid: [usize; 3],
    sessions: usize,
    /// Publishes the whole again on another session.
    replica: bool,
    /// Publishes an overlapping row block.
    overlap: bool,
    /// Leaves one shard out.
    hole: Option<usize>,
}

#[derive(Debug, Clone)]
struct Case {
    shape: Vec<usize>,
    cut: Cut,
    chains: Vec<(Vec<Step>, usize, usize)>,
    bound: u64,
    strided: bool,
}

fn cases() -> impl Strategy<Value = Case> {
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
    (
        prop::collection::vec(1usize..7, 1..4),
        cut,
        prop::collection::vec(chain, 1..4),
        prop::sample::select(vec![0u64, 1, 2, 4, 16, 64]),
        any::<bool>(),
    )
        .prop_map(|(shape, cut, chains, bound, strided)| Case { shape, cut, chains, bound, strided })
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

struct World {
    catalog: Catalog,
    memory: BTreeMap<String, Vec<u8>>,
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
        placed.push((o, s, "s0".into()));
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
fn carry_out(plan: &Plan, memory: &BTreeMap<String, Vec<u8>>) -> Vec<Vec<u8>> {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn planned_bytes_are_those_of_plain_arrays(case in cases()) {
        let numel = case.shape.iter().product::<usize>();
        let values: Vec<u16> = (0..numel as u16).map(|i| i.wrapping_mul(257).wrapping_add(1)).collect();
        let source = ArrayD::from_shape_vec(IxDyn(&case.shape), values).unwrap();
        let world = publish(&source, &case.cut);
        let mut captured = Captured::default();
        let mut expected = Vec::new();
        for (p, (steps, order, pad)) in case.chains.iter().enumerate() {
            let (view, ops) = apply(&source, steps);
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
            captured.copies.push(Copy { source: "w".into(), ops, param: p, dest: Dest { offset, shape, strides } });
        }
        let limits = Limits { max_descriptors: case.bound, strided: case.strided, ..Limits::default() };
        let plan = plan(&captured, &world.catalog, &limits).unwrap();
        let c = plan.counters();
        if let [refused] = &plan.refused[..] {
            // Refused only where a hole is wanted, and then nothing is read.
            prop_assert!(case.cut.hole.is_some() && !case.cut.replica);
            let gap = matches!(refused.reason, Reason::Gap { .. });
            prop_assert!(gap, "{}", refused.reason);
            prop_assert!(plan.segments.is_empty());
            return Ok(());
        }
        let wanted: u64 = expected.iter().map(|(_, n)| 2 * *n as u64).sum();
        prop_assert_eq!(c.exact_bytes, wanted);
        prop_assert_eq!(plan.coverage.iter().map(|c| c.covered).sum::<u64>(), wanted);
        prop_assert_eq!(plan.descriptors().map(|d| d.2.len).sum::<u64>(), c.bytes);
        let got = carry_out(&plan, &world.memory);
        for (p, (bytes, _)) in expected.iter().enumerate() {
            prop_assert_eq!(&got[p], bytes, "parameter {}", p);
        }
        if plan.stagings.is_empty() {
            prop_assert_eq!(c.bytes, c.exact_bytes);
        }
    }
}

#[test]
fn replicas_are_read_once_and_readers_spread_over_them() {
    let mut catalog = Catalog::new();
    let mut captured = Captured::default();
    for i in 0..16 {
        let shards = (0..8)
            .map(|s| Shard {
                region: Region::whole(&[8, 4]).unwrap(),
                session: format!("s{s}").as_str().into(),
                addr: 1024 * i,
                digest: None,
            })
            .collect();
        let name = format!("w{i:02}");
        catalog.insert(&name, Source { dtype: Dtype::U8, shape: vec![8, 4], shards }).unwrap();
        captured.params.push(Param { name: name.clone(), dtype: Dtype::U8, shape: vec![8, 4] });
        let copy =
            Copy { source: name.as_str().into(), ops: vec![], param: i as usize, dest: Dest::whole(&[8, 4]) };
        captured.copies.push(copy);
    }
    let plan = plan(&captured, &catalog, &Limits::default()).unwrap();
    assert!(plan.is_complete());
    assert_eq!(plan.counters().bytes, 16 * 32);
    assert_eq!(plan.session_counters(), vec![(64, 2); 8]);
}

proptest! {
    #[test]
    fn the_later_of_two_writes_wins(
        writes in prop::collection::vec((0usize..3, 0i64..20, 1i64..5, 1i64..5, 4i64..7), 1..6),
        bound in prop::sample::select(vec![1u64, 4, 64]),
        convert in any::<bool>(),
    ) {
        const NUMEL: i64 = 60;
        // A source of another dtype than the parameter's makes the copies conversions.
        let dtype = if convert { Dtype::BF16 } else { Dtype::F32 };
        let size = if convert { 2 } else { 4 };
        let element = |v: f32| if convert { v.to_le_bytes()[2..].to_vec() } else { v.to_le_bytes().to_vec() };
        let mut catalog = Catalog::new();
        let mut memory: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for s in 0..2i64 {
            let bytes = memory.entry(format!("s{s}")).or_default();
            bytes.extend((0..16i64).flat_map(|i| element((16 * s + i + 1) as f32)));
            let half = |at: i64| Shard {
                region: Region::new(&[2 * at, 0], &[2, 4]).unwrap(),
                session: format!("s{s}").as_str().into(),
                addr: (8 * at * size) as u64,
                digest: None,
            };
            let source = Source { dtype, shape: vec![4, 4], shards: vec![half(0), half(1)] };
            catalog.insert(format!("w{s}"), source).unwrap();
        }
        let mut captured = Captured::default();
        captured.params.push(Param { name: "p".into(), dtype: Dtype::F32, shape: vec![NUMEL] });
        let mut expected = vec![None; NUMEL as usize];
        let mut written = 0;
        for (kind, offset, rows, cols, pitch) in writes {
            let dest = Dest { offset, shape: vec![rows, cols], strides: vec![pitch, 1] };
            written += rows * cols;
            for (r, c) in (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))) {
                let value = if kind == 2 { -1.0 } else { (16 * kind as i64 + 4 * r + c + 1) as f32 };
                expected[(offset + r * pitch + c) as usize] = Some(value);
            }
            if kind == 2 {
                let after = captured.copies.len();
                captured.fills.push(Fill { param: 0, dest, element: (-1.0f32).to_le_bytes().to_vec(), after });
            } else {
                let ops = vec![
                    Op::Narrow { dim: 0, start: 0, length: rows },
                    Op::Narrow { dim: 1, start: 0, length: cols },
                ];
                captured.copies.push(Copy { source: format!("w{kind}").as_str().into(), ops, param: 0, dest });
            }
        }
        let limits = Limits { max_descriptors: bound, convert, ..Limits::default() };
        let plan = plan(&captured, &catalog, &limits).unwrap();
        prop_assert!(plan.refused.is_empty());
        let kept = expected.iter().flatten().count() as i64;
        prop_assert_eq!(plan.coverage[0].covered as i64, 4 * kept);
        let lost: u64 = plan.overwritten.iter().map(|o| o.bytes).sum();
        prop_assert_eq!(lost as i64, 4 * (written - kept));
        let mut stagings: Vec<Vec<u8>> = plan.stagings.iter().map(|s| vec![0xee; s.bytes as usize]).collect();
        let mut param = vec![0xee; 4 * NUMEL as usize];
        for (session, target, run) in plan.descriptors() {
            let to = match target {
                Target::Param(_) => &mut param,
                Target::Staging(s) => &mut stagings[s],
            };
            let from = &memory[session][run.src as usize..(run.src + run.len) as usize];
            to[run.dst as usize..(run.dst + run.len) as usize].copy_from_slice(from);
        }
        for (staging, bytes) in plan.stagings.iter().zip(&stagings) {
            for run in staging.replays.iter().flat_map(|s| &s.nests).flat_map(|n| n.runs()) {
                for i in 0..run.len {
                    let from = &bytes[(run.src + i) as usize * size as usize..][..size as usize];
                    let value = [&vec![0; 4 - size as usize][..], from].concat();
                    param[4 * (run.dst + i) as usize..][..4].copy_from_slice(&value);
                }
            }
        }
        for fill in &plan.fills {
            for run in fill.dest.nest().runs() {
                for i in 0..run.len {
                    param[4 * (run.dst + i) as usize..][..4].copy_from_slice(&fill.element);
                }
            }
        }
        for (at, value) in expected.iter().enumerate() {
            let bytes = value.map_or([0xee; 4], f32::to_le_bytes);
            prop_assert_eq!(&param[4 * at..4 * at + 4], &bytes[..], "element {}", at);
        }
    }
}
