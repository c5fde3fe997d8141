//! What is written reads back as it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index as Pick, select};
use restage_geometry::{Captured, Copy, Dest, Dtype, Fill, Index, Op, Param, Region, Unsupported};
use restage_plan::{Catalog, Shard, Source};
use restage_wire::{CaptureFile, SourcesFile, WriteError, write_capture, write_sources};

fn index() -> impl Strategy<Value = Index> {
    prop_oneof![
        any::<i64>().prop_map(Index::Int),
        (any::<Option<i64>>(), any::<Option<i64>>(), any::<Option<i64>>())
            .prop_map(|(a, b, c)| Index::Slice(a, b, c)),
        Just(Index::Ellipsis),
        Just(Index::NewAxis),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let n = any::<i64>;
    let list = || vec(any::<i64>(), 0..5);
    prop_oneof![
        (n(), n(), n()).prop_map(|(dim, start, length)| Op::Narrow { dim, start, length }),
        (n(), n()).prop_map(|(dim, index)| Op::Select { dim, index }),
        vec(index(), 0..5).prop_map(Op::GetItem),
        list().prop_map(Op::View),
        list().prop_map(Op::Reshape),
        n().prop_map(Op::Unsqueeze),
        option::of(list()).prop_map(Op::Squeeze),
        (n(), n()).prop_map(|(a, b)| Op::Transpose(a, b)),
        Just(Op::T),
        list().prop_map(Op::Permute),
        (n(), n()).prop_map(|(start_dim, end_dim)| Op::Flatten { start_dim, end_dim }),
        (n(), list()).prop_map(|(dim, sizes)| Op::Unflatten { dim, sizes }),
        (n(), n(), n()).prop_map(|(chunks, dim, index)| Op::Chunk { chunks, dim, index }),
        (n(), n(), n()).prop_map(|(size, dim, index)| Op::Split { size, dim, index }),
        (list(), n(), n()).prop_map(|(sizes, dim, index)| Op::SplitSizes { sizes, dim, index }),
        (n(), n()).prop_map(|(dim, index)| Op::Unbind { dim, index }),
        Just(Op::Contiguous),
        list().prop_map(Op::Expand),
        list().prop_map(Op::BroadcastTo),
        (list(), list()).prop_map(|(source, destination)| Op::MoveDim { source, destination }),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[a-z]{1,3}(\\.[a-z0-9]{1,3}){0,3}", Just("format".to_owned())]
}

fn dtype() -> impl Strategy<Value = Dtype> {
    select(Dtype::ALL)
}

/// A destination that lies in a row-major parameter of this shape: some of its rows.
fn dest(shape: &[i64], from: Pick, to: Pick) -> Dest {
    let whole = Dest::whole(shape);
    let Some(&rows) = shape.first() else { return whole };
    let start = from.index(rows as usize + 1) as i64;
    let length = to.index((rows - start) as usize + 1) as i64;
    let shape = [&[length][..], &shape[1..]].concat();
    // The end of an empty dimension may lie past the parameter.
    let offset = if shape.contains(&0) { 0 } else { start * whole.strides[0] };
    Dest { offset, shape, strides: whole.strides }
}

fn captured() -> impl Strategy<Value = Captured> {
    let params = vec((name(), dtype(), vec(0i64..5, 0..4)), 1..4);
    let copies = vec((name(), vec(op(), 0..6), any::<Pick>(), any::<Pick>(), any::<Pick>()), 0..5);
    let picks = || (any::<Pick>(), any::<Pick>(), any::<Pick>());
    let fills = vec((any::<[u8; 16]>(), any::<bool>(), any::<Pick>(), picks()), 0..5);
    let unsupported = vec((name(), name(), vec(any::<Pick>(), 0..3)), 0..3);
    let sources = vec((name(), dtype(), vec(0i64..9, 0..4)), 0..3);
    (params, copies, fills, unsupported, sources).prop_map(|(params, copies, fills, unsupported, sources)| {
        let unique: BTreeMap<String, (Dtype, Vec<i64>)> =
            params.into_iter().map(|(name, dtype, shape)| (name, (dtype, shape))).collect();
        let mut params: Vec<Param> =
            unique.into_iter().map(|(name, (dtype, shape))| Param { name, dtype, shape }).collect();
        // Any order is kept, not only that of the names.
        params.reverse();
        let mut out = Captured { params, ..Captured::default() };
        for (source, ops, param, from, to) in copies {
            let param = param.index(out.params.len());
            let dest = dest(&out.params[param].shape, from, to);
            out.copies.push(Copy { source: source.into(), ops, param, dest });
        }
        for (bytes, zero, after, (param, from, to)) in fills {
            let param = param.index(out.params.len());
            let dtype = out.params[param].dtype;
            if !dtype.is_packed() {
                let dest = dest(&out.params[param].shape, from, to);
                let bytes = if zero { [0; 16] } else { bytes };
                let element = bytes[..dtype.packing().bytes as usize].to_vec();
                let after = after.index(out.copies.len() + 1);
                out.fills.push(Fill { param, dest, element, after });
            }
        }
        // Those between the same two copies stay in any order.
        out.fills.sort_by_key(|f| f.after);
        for (source, op, params) in unsupported {
            let params = params.into_iter().map(|p| p.index(out.params.len())).collect();
            out.unsupported.insert(source.into(), Unsupported { op, params });
        }
        out.sources = sources.into_iter().map(|(n, d, s)| (Arc::from(n), (d, s))).collect();
        out
    })
}

fn catalog() -> impl Strategy<Value = Catalog> {
    let shard = (vec((0i64..3, 0i64..3), 3), name(), 0u64..1 << 48);
    let source = (name(), select(&[Dtype::BF16, Dtype::U8, Dtype::F64][..]), 0usize..4, vec(shard, 0..4));
    vec(source, 0..4).prop_map(|sources| {
        let mut catalog = Catalog::new();
        for (name, dtype, ndim, shards) in sources {
            let shards = shards.into_iter().map(|(boxes, session, addr)| {
                let (offset, shape): (Vec<i64>, Vec<i64>) = boxes.into_iter().take(ndim).unzip();
                let region = Region::new(&offset, &shape).unwrap();
                Shard { region, session: session.into(), addr, digest: None }
            });
            let source = Source { dtype, shape: vec![4; ndim], shards: shards.collect() };
            // A name that is taken is another source's.
            let _ = catalog.insert(name, source);
        }
        catalog
    })
}

proptest! {
    #[test]
    fn captures(captured in captured()) {
        let text = write_capture(&captured).unwrap();
        prop_assert_eq!(CaptureFile::parse(text.as_bytes()), Ok(captured), "{}", text);
    }

    #[test]
    fn catalogs(catalog in catalog()) {
        let text = write_sources(&catalog);
        prop_assert_eq!(SourcesFile::parse(text.as_bytes()), Ok(catalog), "{}", text);
    }
}

#[test]
fn a_written_capture_has_one_item_a_line() {
    let params = vec![Param { name: "p".into(), dtype: Dtype::BF16, shape: vec![2, 4] }];
    let copy = Copy {
        source: "w".into(),
        ops: vec![Op::T, Op::Narrow { dim: 0, start: 0, length: 2 }],
        param: 0,
        dest: Dest::whole(&[2, 4]),
    };
    let captured = Captured { params, copies: vec![copy], ..Captured::default() };
    let expected = r#"{
"format": "restage-capture",
"version": 1,
"params": {
"p": {"dtype": "BF16", "shape": [2, 4]}},
"copies": [
{"source": "w", "ops": [{"op": "t"}, {"op": "narrow", "dim": 0, "start": 0, "length": 2}], "param": "p", "dest_offset": 0, "dest_shape": [2, 4], "dest_stride": [4, 1]}]}
"#;
    assert_eq!(write_capture(&captured).unwrap(), expected);
}

#[test]
fn what_no_file_can_say_is_not_written() {
    let param = Param { name: "p".into(), dtype: Dtype::U8, shape: vec![1] };
    let copy = |ops, param| Copy { source: "w".into(), ops, param, dest: Dest::whole(&[1]) };
    let captured = |params, copies| Captured { params, copies, ..Captured::default() };
    let opaque = captured(vec![param.clone()], vec![copy(vec![Op::T, Op::Opaque("mul".into())], 0)]);
    let error = write_capture(&opaque).unwrap_err();
    assert_eq!(error.to_string(), "copy 0 of w: operation 1 (mul) has no written form");
    let past = captured(vec![param.clone()], vec![copy(Vec::new(), 1)]);
    assert!(matches!(write_capture(&past), Err(WriteError::Param { param: 1, params: 1, .. })));
    let twice = captured(vec![param.clone(), param], Vec::new());
    assert_eq!(write_capture(&twice), Err(WriteError::Twice("p".into())));
    let fill = |after| Fill { param: 0, dest: Dest::whole(&[1]), element: vec![1], after };
    let mut ordered = captured(vec![twice.params[0].clone()], vec![copy(Vec::new(), 0)]);
    for (fills, at, after, least) in [(vec![fill(2)], 0, 2, 0), (vec![fill(1), fill(0)], 1, 0, 1)] {
        ordered.fills = fills;
        assert_eq!(write_capture(&ordered), Err(WriteError::Order { at, after, least, most: 1 }));
    }
}
