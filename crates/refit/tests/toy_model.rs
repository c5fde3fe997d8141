//! The first promises, on a toy model whose loaders are ordinary code over lazy tensors.

use std::collections::BTreeMap;

use ndarray::{Array2, ArrayD, Axis, IxDyn, concatenate, s};
use restage_geometry::{Capture, CaptureError, Captured, Dtype, Op, Region, Scalar};
use restage_plan::{Catalog, Limits, Reason, Shard, Source, StagingMode, StagingReason, Target};
use restage_refit::{Receiver, Sink, SinkError};
use restage_transport::{MemoryTransport, Metered, Read, Transport};

/// Loaders of tensor-parallel rank 0 of 2: `col` by rows, `row` by columns, q, k and v fused, `norm` whole.
fn load(bad: bool) -> Result<Captured, CaptureError> {
    let capture = Capture::new();
    let f32s = |name: &str, shape: &[i64]| capture.source(name, Dtype::F32, shape);
    capture.param("col", Dtype::F32, &[4, 4])?.copy_from(&f32s("col", &[8, 4])?.narrow(0, 0, 4)?)?;
    capture.param("row", Dtype::F32, &[4, 4])?.copy_from(&f32s("row", &[4, 8])?.narrow(1, 0, 4)?)?;
    let qkv = capture.param("qkv", Dtype::F32, &[8, 4])?;
    for (name, at, rows) in [("q", 0, 4), ("k", 4, 2), ("v", 6, 2)] {
        qkv.narrow(0, at, rows)?.copy_from(&f32s(name, &[rows, 4])?)?;
    }
    capture.param("norm", Dtype::F32, &[4])?.copy_from(&f32s("norm", &[4])?)?;
    if bad {
        let doubled = f32s("bad", &[4, 4])?.value_op("mul");
        capture.param("bad", Dtype::F32, &[4, 4])?.copy_from(&doubled)?;
    }
    Ok(capture.finish())
}

/// Sources of distinct values, each in one shard of its own session.
struct World {
    values: BTreeMap<&'static str, ArrayD<f32>>,
    catalog: Catalog,
}

const SOURCES: [(&str, &[usize]); 7] = [
    ("col", &[8, 4]),
    ("row", &[4, 8]),
    ("q", &[4, 4]),
    ("k", &[2, 4]),
    ("v", &[2, 4]),
    ("norm", &[4]),
    ("bad", &[4, 4]),
];

fn world() -> World {
    let mut values = BTreeMap::new();
    let mut catalog = Catalog::new();
    let mut next = 0.0;
    for (name, shape) in SOURCES {
        let array = ArrayD::from_shape_fn(IxDyn(shape), |_| {
            next += 1.0;
            next
        });
        let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let region = Region::whole(&shape).unwrap();
        let shards = vec![Shard { region, session: name.into(), addr: 4096, digest: None }];
        catalog.insert(name, Source { dtype: Dtype::F32, shape, shards }).unwrap();
        values.insert(name, array);
    }
    World { values, catalog }
}

fn bytes(array: &ArrayD<f32>) -> Vec<u8> {
    array.iter().flat_map(|v| v.to_le_bytes()).collect()
}

impl World {
    fn transport(&self) -> Metered<MemoryTransport<'static>> {
        let mut memory = MemoryTransport::new();
        for (name, array) in &self.values {
            memory.register(*name, 4096, bytes(array)).unwrap();
        }
        Metered::recording(memory)
    }

    fn matrix(&self, name: &str) -> Array2<f32> {
        self.values[name].clone().into_dimensionality().unwrap()
    }

    fn expected(&self) -> BTreeMap<&'static str, Vec<u8>> {
        let qkv = concatenate(
            Axis(0),
            &[self.matrix("q").view(), self.matrix("k").view(), self.matrix("v").view()],
        );
        let of = |a: Array2<f32>| bytes(&a.into_dyn());
        BTreeMap::from([
            ("col", of(self.matrix("col").slice(s![0..4, ..]).to_owned())),
            ("row", of(self.matrix("row").slice(s![.., 0..4]).to_owned())),
            ("qkv", of(qkv.unwrap())),
            ("norm", bytes(&self.values["norm"])),
        ])
    }
}

#[derive(Default)]
struct Kept(std::sync::Mutex<BTreeMap<String, Vec<u8>>>);

impl Sink for Kept {
    fn accept(&self, param: &restage_geometry::Param, bytes: &[u8]) -> Result<(), SinkError> {
        let twice = self.0.lock().unwrap().insert(param.name.clone(), bytes.to_vec());
        assert!(twice.is_none(), "{} was handed over twice", param.name);
        Ok(())
    }
}

fn pulled(receiver: &Receiver, transport: &dyn Transport, wave: u64) -> BTreeMap<String, Vec<u8>> {
    let kept = Kept::default();
    receiver.pull_each(transport, wave, &kept).unwrap();
    kept.0.into_inner().unwrap()
}

fn compare(got: &BTreeMap<String, Vec<u8>>, expected: &BTreeMap<&'static str, Vec<u8>>) {
    let got: BTreeMap<&str, &Vec<u8>> = got.iter().map(|(k, v)| (k.as_str(), v)).collect();
    assert_eq!(got, expected.iter().map(|(k, v)| (*k, v)).collect());
}

#[test]
fn chains_and_destinations_are_captured_as_the_loaders_made_them() {
    let captured = load(false).unwrap();
    let found: Vec<_> = captured
        .copies
        .iter()
        .map(|c| (&*c.source, c.ops.clone(), captured.params[c.param].name.as_str(), c.dest.offset))
        .collect();
    let narrow = |dim| vec![Op::Narrow { dim, start: 0, length: 4 }];
    let expected = [
        ("col", narrow(0), "col", 0),
        ("row", narrow(1), "row", 0),
        ("q", vec![], "qkv", 0),
        ("k", vec![], "qkv", 16),
        ("v", vec![], "qkv", 24),
        ("norm", vec![], "norm", 0),
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_model_is_rebuilt_from_its_sources_and_moves_what_was_planned() {
    let world = world();
    for wave in [0, 40, u64::MAX] {
        let transport = world.transport();
        let receiver = Receiver::prepare(&load(false).unwrap(), &world.catalog, &Limits::default()).unwrap();
        compare(&pulled(&receiver, &transport, wave), &world.expected());
        let counters = receiver.plan().counters();
        assert_eq!(transport.snapshot().total().bytes, counters.bytes);
        assert_eq!(transport.snapshot().total().descriptors, counters.descriptors);
        assert_eq!((counters.bytes, counters.extra_wire_bytes()), (64 + 64 + 128 + 16, 0));
        assert!(receiver.plan().is_complete());
    }
}

#[test]
fn pulling_into_buffers_gives_the_same() {
    let world = world();
    let receiver = Receiver::prepare(&load(false).unwrap(), &world.catalog, &Limits::default()).unwrap();
    let mut buffers: Vec<Vec<u8>> =
        receiver.plan().coverage.iter().map(|c| vec![0xfb; c.bytes as usize]).collect();
    let mut slices: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
    let report = receiver.pull_into(&world.transport(), &mut slices).unwrap();
    assert_eq!((report.params, report.bytes), (4, 272));
    let names = receiver.plan().params.iter().map(|p| p.name.clone());
    compare(&names.zip(buffers).collect(), &world.expected());
    // Another number of buffers, or another size, is refused before anything is read.
    assert!(receiver.pull_into(&world.transport(), &mut []).is_err());
}

fn row_only(shards: &[(&[i64], &[i64], &'static str)]) -> (Captured, Catalog) {
    let capture = Capture::new();
    let row = capture.source("row", Dtype::F32, &[4, 8]).unwrap();
    let param = capture.param("row", Dtype::F32, &[4, 4]).unwrap();
    param.copy_from(&row.narrow(1, 0, 4).unwrap()).unwrap();
    let mut catalog = Catalog::new();
    let shards = shards
        .iter()
        .map(|(offset, shape, session)| Shard {
            region: Region::new(offset, shape).unwrap(),
            session: (*session).into(),
            addr: 4096,
            digest: None,
        })
        .collect();
    catalog.insert("row", Source { dtype: Dtype::F32, shape: vec![4, 8], shards }).unwrap();
    (capture.finish(), catalog)
}

#[test]
fn at_bound_1_a_column_slice_is_pulled_whole_and_replayed() {
    let world = world();
    let (captured, catalog) = row_only(&[(&[0, 0], &[4, 8], "row")]);
    let limits = Limits { max_descriptors: 1, staging: StagingMode::RowShards, ..Limits::default() };
    let receiver = Receiver::prepare(&captured, &catalog, &limits).unwrap();
    let c = receiver.plan().counters();
    assert_eq!((c.exact_descriptors, c.descriptors, c.descriptors_saved()), (4, 1, 3));
    assert_eq!((c.exact_bytes, c.extra_wire_bytes()), (64, 64));
    let pulls: Vec<_> = receiver.plan().full_pulls().map(|(name, s)| (name, s.reason)).collect();
    assert_eq!(pulls, [("row", StagingReason::OverBound { descriptors: 4, bound: 1 })]);
    let expected = BTreeMap::from([("row", world.expected().remove("row").unwrap())]);
    compare(&pulled(&receiver, &world.transport(), u64::MAX), &expected);
    // From the first byte that is needed to the last is less than the whole.
    let limits = Limits { staging: StagingMode::Tiles, ..limits };
    let stretch = Receiver::prepare(&captured, &catalog, &limits).unwrap();
    let c = stretch.plan().counters();
    assert_eq!((c.exact_descriptors, c.descriptors, c.extra_wire_bytes()), (4, 1, 48));
    compare(&pulled(&stretch, &world.transport(), u64::MAX), &expected);
    // Without a bound in the way it is four runs, and a transport that gathers takes them as one.
    let exact = Receiver::prepare(&captured, &catalog, &Limits::default()).unwrap();
    assert_eq!(exact.plan().counters().descriptors, 4);
    let limits = Limits { max_descriptors: 1, strided: true, ..Limits::default() };
    let strided = Receiver::prepare(&captured, &catalog, &limits).unwrap();
    let c = strided.plan().counters();
    assert_eq!((c.exact_descriptors, c.descriptors, c.extra_wire_bytes()), (4, 1, 0));
    compare(&pulled(&strided, &world.transport(), u64::MAX), &expected);
}

#[test]
fn two_column_shards_stay_exact_and_are_listed_as_unbounded() {
    let world = world();
    let (captured, catalog) = row_only(&[(&[0, 0], &[4, 4], "left"), (&[0, 4], &[4, 4], "right")]);
    let limits = Limits { max_descriptors: 1, staging: StagingMode::RowShards, ..Limits::default() };
    let receiver = Receiver::prepare(&captured, &catalog, &limits).unwrap();
    // The left shard is the slice, so its rows are one run; a slice over both is four.
    assert_eq!(receiver.plan().counters().descriptors, 1);

    let capture = Capture::new();
    let row = capture.source("row", Dtype::F32, &[4, 8]).unwrap();
    let param = capture.param("row", Dtype::F32, &[4, 4]).unwrap();
    param.copy_from(&row.narrow(1, 0, 4).unwrap()).unwrap();
    let captured = capture.finish();
    let (_, catalog) = row_only(&[(&[0, 0], &[4, 5], "left"), (&[0, 5], &[4, 3], "right")]);
    let receiver = Receiver::prepare(&captured, &catalog, &limits).unwrap();
    let c = receiver.plan().counters();
    assert_eq!((c.exact_descriptors, c.descriptors, c.extra_wire_bytes()), (4, 4, 0));
    assert_eq!(receiver.plan().unbounded().collect::<Vec<_>>(), ["row"]);
    assert_eq!(receiver.plan().full_pulls().count(), 0);
    let mut memory = MemoryTransport::new();
    let row = world.matrix("row");
    memory.register("left", 4096, bytes(&row.slice(s![.., 0..5]).to_owned().into_dyn())).unwrap();
    memory.register("right", 4096, bytes(&row.slice(s![.., 5..8]).to_owned().into_dyn())).unwrap();
    let expected = BTreeMap::from([("row", world.expected().remove("row").unwrap())]);
    compare(&pulled(&receiver, &memory, u64::MAX), &expected);
    // A tile is contiguous too, and the slice needs one of them.
    let limits = Limits { staging: StagingMode::Tiles, ..limits };
    let tiles = Receiver::prepare(&captured, &catalog, &limits).unwrap();
    let c = tiles.plan().counters();
    assert_eq!((c.exact_descriptors, c.descriptors, tiles.plan().unbounded().count()), (4, 1, 0));
    compare(&pulled(&tiles, &memory, u64::MAX), &expected);
}

#[test]
fn a_bad_source_is_refused_and_never_read_and_the_others_are_rebuilt() {
    let world = world();
    let receiver = Receiver::prepare(&load(true).unwrap(), &world.catalog, &Limits::default()).unwrap();
    let transport = world.transport();
    let kept = Kept::default();
    let report = receiver.pull_each(&transport, u64::MAX, &kept).unwrap();
    compare(&kept.0.into_inner().unwrap(), &world.expected());
    assert!(!transport.snapshot().was_read("bad"));
    assert_eq!(report.refused.len(), 1);
    assert_eq!((&*report.refused[0].source, &report.refused[0].params[..]), ("bad", &["bad".to_owned()][..]));
    assert_eq!(report.refused[0].reason, Reason::Unsupported { op: "mul".into() });
    assert_eq!((report.params, report.incomplete), (4, vec!["bad".to_owned()]));
}

#[test]
fn the_descriptors_of_the_plan_are_those_that_are_read() {
    let world = world();
    for max_descriptors in [1, 64] {
        let limits = Limits { max_descriptors, ..Limits::default() };
        let receiver = Receiver::prepare(&load(true).unwrap(), &world.catalog, &limits).unwrap();
        let transport = world.transport();
        pulled(&receiver, &transport, u64::MAX);
        let mut planned: Vec<Read> = receiver
            .plan()
            .descriptors()
            .map(|(session, _, run)| Read { session: session.into(), src: run.src, len: run.len })
            .collect();
        let mut read = transport.reads();
        planned.sort();
        read.sort();
        assert_eq!(planned, read);
    }
}

#[test]
fn a_hole_is_named_and_half_of_the_sources_is_half_of_the_coverage() {
    let (captured, catalog) = row_only(&[(&[0, 0], &[3, 8], "row")]);
    let receiver = Receiver::prepare(&captured, &catalog, &Limits::default()).unwrap();
    let holes = vec![Region::new(&[3, 0], &[1, 4]).unwrap()];
    let reason = Reason::Gap { param: "row".into(), missing: 4, holes, absent: Vec::new() };
    assert_eq!(receiver.plan().refused[0].reason, reason);
    assert!(receiver.plan().segments.is_empty(), "nothing of a refused source is read");

    let capture = Capture::new();
    for name in ["a", "b"] {
        let source = capture.source(name, Dtype::U8, &[4]).unwrap();
        capture.param(name, Dtype::U8, &[4]).unwrap().copy_from(&source).unwrap();
    }
    let mut catalog = Catalog::new();
    let shard = Shard { region: Region::whole(&[4]).unwrap(), session: "s".into(), addr: 0, digest: None };
    catalog.insert("a", Source { dtype: Dtype::U8, shape: vec![4], shards: vec![shard] }).unwrap();
    let receiver = Receiver::prepare(&capture.finish(), &catalog, &Limits::default()).unwrap();
    assert_eq!(receiver.plan().coverage_ratio(), 0.5);
    assert_eq!(receiver.plan().incomplete().collect::<Vec<_>>(), ["b"]);
    assert_eq!(receiver.plan().refused[0].reason, Reason::NotPublished);
}

#[test]
fn a_declared_conversion_is_staged_and_an_undeclared_one_refused() {
    let capture = Capture::new();
    let w = capture.source("w", Dtype::F32, &[2, 3]).unwrap();
    let p = capture.param("p", Dtype::BF16, &[3, 4]).unwrap();
    p.narrow(1, 1, 2).unwrap().copy_from(&w.t().unwrap()).unwrap();
    for at in [0, 3] {
        p.narrow(1, at, 1).unwrap().fill(&[0, 0]).unwrap();
    }
    let captured = capture.finish();
    let mut catalog = Catalog::new();
    let shard = Shard { region: Region::whole(&[2, 3]).unwrap(), session: "s".into(), addr: 0, digest: None };
    catalog.insert("w", Source { dtype: Dtype::F32, shape: vec![2, 3], shards: vec![shard] }).unwrap();
    let refused = Receiver::prepare(&captured, &catalog, &Limits::default()).unwrap();
    assert!(matches!(refused.plan().refused[0].reason, Reason::Conversion { possible: true, .. }));
    let limits = Limits { convert: true, ..Limits::default() };
    let receiver = Receiver::prepare(&captured, &catalog, &limits).unwrap();
    assert!(receiver.plan().segments.iter().all(|s| matches!(s.target, Target::Staging(_))));
    let mut memory = MemoryTransport::new();
    let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    memory.register("s", 0, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let got = pulled(&receiver, &memory, u64::MAX).remove("p").unwrap();
    let bf16 = |v: f32| ((v.to_bits() >> 16) as u16).to_le_bytes();
    let expected: Vec<u8> =
        [0.0, 1.0, 4.0, 0.0, 0.0, 2.0, 5.0, 0.0, 0.0, 3.0, 6.0, 0.0].into_iter().flat_map(bf16).collect();
    assert_eq!(got, expected);
}

#[test]
fn value_operations_are_replayed_after_a_full_pull_where_the_caller_allows_it() {
    // A column of each row, cast and scaled: over the bound, so the whole source is staged; and whole rows,
    // within it, which are staged alone.
    let scaled = |bound: u64, columns: &[i64]| {
        let capture = Capture::new();
        let w = capture.source("w", Dtype::I16, &[8, 4]).unwrap();
        let p = capture.param("p", Dtype::BF16, &[8, 4]).unwrap();
        for &c in columns {
            let column = w.narrow(1, c, 1).unwrap().to(Dtype::F32).unwrap();
            let column = column.mul_scalar(Scalar::Float(0.5)).unwrap();
            p.narrow(1, c, 1).unwrap().copy_from(&column).unwrap();
        }
        let mut catalog = Catalog::new();
        let half = |at: i64| Shard {
            region: Region::new(&[4 * at, 0], &[4, 4]).unwrap(),
            session: format!("s{at}").as_str().into(),
            addr: 0,
            digest: None,
        };
        let source = Source { dtype: Dtype::I16, shape: vec![8, 4], shards: vec![half(0), half(1)] };
        catalog.insert("w", source).unwrap();
        let captured = capture.finish();
        let refused = Receiver::prepare(&captured, &catalog, &Limits::default()).unwrap();
        assert_eq!(refused.plan().refused[0].reason, Reason::Unsupported { op: "to".into() });
        let limits = Limits { convert: true, max_descriptors: bound, ..Limits::default() };
        Receiver::prepare(&captured, &catalog, &limits).unwrap()
    };
    let mut memory = MemoryTransport::new();
    for s in 0..2i16 {
        let bytes: Vec<u8> = (0..16).flat_map(|i| (16 * s + i - 9).to_le_bytes()).collect();
        memory.register(format!("s{s}").as_str(), 0, bytes).unwrap();
    }
    let expected: Vec<u8> =
        (0..32i16).flat_map(|i| half::bf16::from_f32(f32::from(i - 9) * 0.5).to_le_bytes()).collect();
    for bound in [1, 64] {
        let receiver = scaled(bound, &[0, 1, 2, 3]);
        assert!(receiver.plan().is_complete());
        assert!(receiver.plan().stagings.iter().flat_map(|s| &s.replays).all(|r| r.values.len() == 3));
        assert_eq!(pulled(&receiver, &memory, u64::MAX).remove("p").unwrap(), expected, "bound {bound}");
    }
}

#[test]
fn stagings_keep_their_limit_all_through_a_pull() {
    // A column of each of five sources, each over the bound: all in one wave, and never more staged than allowed.
    let capture = Capture::new();
    let p = capture.param("p", Dtype::F32, &[8, 5]).unwrap();
    let mut catalog = Catalog::new();
    let mut memory = MemoryTransport::new();
    for s in 0..5i64 {
        let name = format!("w{s}");
        let w = capture.source(&name, Dtype::F32, &[8, 4]).unwrap();
        p.narrow(1, s, 1).unwrap().copy_from(&w.narrow(1, s % 4, 1).unwrap()).unwrap();
        let region = Region::whole(&[8, 4]).unwrap();
        let shards = vec![Shard { region, session: name.as_str().into(), addr: 0, digest: None }];
        catalog.insert(&name, Source { dtype: Dtype::F32, shape: vec![8, 4], shards }).unwrap();
        let bytes: Vec<u8> = (0..32).flat_map(|i| ((100 * s + i) as f32).to_le_bytes()).collect();
        memory.register(name.as_str(), 0, bytes).unwrap();
    }
    let captured = capture.finish();
    let expected: Vec<u8> = (0..8)
        .flat_map(|row| (0..5).map(move |s| (100 * s + 4 * row + s % 4) as f32))
        .flat_map(f32::to_le_bytes)
        .collect();
    // What is staged of a source reaches from its first needed byte to its last: 29 of 32 elements.
    const STRETCH: u64 = 29 * 4;
    for (limit, most) in [(None, 5 * STRETCH), (Some(STRETCH), STRETCH), (Some(2 * STRETCH + 3), 2 * STRETCH)]
    {
        let limits = Limits { max_descriptors: 1, staging_bytes: limit, ..Limits::default() };
        let receiver = Receiver::prepare(&captured, &catalog, &limits).unwrap();
        assert_eq!(receiver.plan().stagings.len(), 5);
        let kept = Kept::default();
        let report = receiver.pull_each(&memory, u64::MAX, &kept).unwrap();
        assert_eq!(report.staged_bytes, most, "limit {limit:?}");
        assert_eq!(kept.0.into_inner().unwrap().remove("p").unwrap(), expected, "limit {limit:?}");
    }
}
