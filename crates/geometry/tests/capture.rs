//! What a loader does, and what a capture records of it. The oracle carries the record out on arrays in which
//! every element of a source is a number of its own, and the loader on the same arrays at once.

use std::collections::BTreeMap;

use proptest::prelude::*;
use restage_geometry::{
    Capture, CaptureError, Captured, Dest, Dtype, LazyTensor, Op, Replay, Scalar, ValueOp, View, gather,
    replay_typed,
};

/// Elements of the `n`-th source count from here.
const APART: i64 = 1000;

/// Positions that a view of a row-major tensor takes, in order.
fn positions(view: &View) -> Vec<i64> {
    let mut out = vec![0; view.numel() as usize];
    for run in gather(view, &Dest::whole(view.shape())).unwrap().iter().flat_map(|n| n.runs()) {
        (0..run.len).for_each(|i| out[(run.dst + i) as usize] = (run.src + i) as i64);
    }
    out
}

/// Writes values to a strided place.
fn scatter(dest: &Dest, values: &[i64], into: &mut [i64]) {
    for run in dest.nest().runs() {
        (0..run.len).for_each(|i| into[(run.dst + i) as usize] = values[(run.src + i) as usize]);
    }
}

/// The parameters after everything recorded has been carried out; sources hold I64 elements of their own.
fn carry_out(captured: &Captured) -> BTreeMap<String, Vec<i64>> {
    let sources: Vec<_> = captured.sources.keys().collect();
    let mut params: Vec<Vec<i64>> =
        captured.params.iter().map(|p| vec![-1; p.shape.iter().product::<i64>() as usize]).collect();
    let mut fills = captured.fills.iter().peekable();
    for at in 0..=captured.copies.len() {
        while let Some(fill) = fills.next_if(|f| f.after == at) {
            let value = i64::from_le_bytes(fill.element.clone().try_into().unwrap());
            scatter(&fill.dest, &vec![value; fill.dest.numel() as usize], &mut params[fill.param]);
        }
        let Some(copy) = captured.copies.get(at) else { break };
        let n = sources.iter().position(|s| **s == copy.source).unwrap() as i64;
        let (dtype, shape) = &captured.sources[&copy.source];
        let (view, recipe) = match replay_typed(*dtype, shape, &copy.ops).unwrap() {
            Replay::Exact(view) => (view, None),
            Replay::Opaque { recipe: Some(recipe), .. } => (recipe.view.clone(), Some(recipe)),
            other => panic!("{other:?}"),
        };
        assert_eq!(view.shape(), copy.dest.shape);
        let mut values: Vec<i64> = positions(&view).iter().map(|p| p + n * APART).collect();
        if let Some(recipe) = recipe {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let bytes = recipe.compute(&bytes).unwrap();
            values = bytes.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
        }
        scatter(&copy.dest, &values, &mut params[copy.param]);
    }
    captured.params.iter().map(|p| p.name.clone()).zip(params).collect()
}

#[test]
fn a_copy_through_a_temporary_is_one_copy() {
    let capture = Capture::new();
    let w = capture.source("w", Dtype::BF16, &[4, 6]).unwrap();
    let p = capture.param("p", Dtype::BF16, &[3, 4]).unwrap();
    let scratch = capture.temporary(Dtype::BF16, &[6, 4]).unwrap();
    scratch.copy_from(&w.t().unwrap()).unwrap();
    // The temporary is row-major: what torch could not view of the transposed source it can of this.
    let flat = scratch.read().unwrap().view(&[24]).unwrap();
    p.copy_from(&flat.narrow(0, 12, 12).unwrap().view(&[3, 4]).unwrap()).unwrap();
    let captured = capture.finish();
    assert_eq!(captured.copies.len(), 1);
    let Ok(Replay::Exact(view)) = replay_typed(Dtype::BF16, &[4, 6], &captured.copies[0].ops) else {
        panic!()
    };
    assert_eq!(positions(&view), [3, 9, 15, 21, 4, 10, 16, 22, 5, 11, 17, 23]);
}

#[test]
fn a_temporary_of_another_type_casts() {
    let capture = Capture::new();
    let w = capture.source("w", Dtype::F32, &[4]).unwrap();
    let p = capture.param("p", Dtype::BF16, &[4]).unwrap();
    let scratch = capture.temporary(Dtype::BF16, &[4]).unwrap();
    scratch.copy_from(&w).unwrap();
    p.copy_from(&scratch.read().unwrap().neg().unwrap()).unwrap();
    let ops = &capture.finish().copies[0].ops;
    let values: Vec<_> = ops.iter().filter(|op| matches!(op, Op::Value(_))).collect();
    assert_eq!(values, [&Op::Value(ValueOp::To(Dtype::BF16)), &Op::Value(ValueOp::Neg)]);
}

#[test]
fn fills_and_copies_to_a_temporary_keep_their_order() {
    let capture = Capture::new();
    let w = capture.source("w", Dtype::I64, &[3, 2]).unwrap();
    let p = capture.param("p", Dtype::I64, &[5, 2]).unwrap();
    let scratch = capture.temporary(Dtype::I64, &[5, 2]).unwrap();
    scratch.fill(&7i64.to_le_bytes()).unwrap();
    scratch.narrow(0, 0, 3).unwrap().copy_from(&w).unwrap();
    scratch.narrow(0, 2, 1).unwrap().narrow(1, 1, 1).unwrap().fill(&9i64.to_le_bytes()).unwrap();
    p.copy_from(&scratch.read().unwrap().mul_scalar(Scalar::Int(2)).unwrap()).unwrap();
    let params = carry_out(&capture.finish());
    assert_eq!(params["p"], [0, 2, 4, 6, 8, 18, 14, 14, 14, 14]);
}

#[test]
fn a_view_of_a_temporary_sees_later_writes_and_a_copy_does_not() {
    let capture = Capture::new();
    let (a, b) = (
        capture.source("a", Dtype::I64, &[2, 2]).unwrap(),
        capture.source("b", Dtype::I64, &[2, 2]).unwrap(),
    );
    let seen = capture.param("seen", Dtype::I64, &[2]).unwrap();
    let kept = capture.param("kept", Dtype::I64, &[2]).unwrap();
    let scratch = capture.temporary(Dtype::I64, &[2, 2]).unwrap();
    scratch.copy_from(&a).unwrap();
    let column = scratch.read().unwrap().select(1, 0).unwrap();
    let copied = column.contiguous().unwrap();
    scratch.copy_from(&b).unwrap();
    seen.copy_from(&column).unwrap();
    kept.copy_from(&copied).unwrap();
    let params = carry_out(&capture.finish());
    assert_eq!((&params["seen"][..], &params["kept"][..]), (&[1000, 1002][..], &[0, 2][..]));
}

#[test]
fn what_a_temporary_cannot_tell_is_refused_by_name() {
    let capture = Capture::new();
    let w = capture.source("w", Dtype::I64, &[2, 2]).unwrap();
    let p = capture.param("p", Dtype::I64, &[4, 2]).unwrap();
    let scratch = capture.temporary(Dtype::I64, &[4, 2]).unwrap();
    scratch.narrow(0, 0, 2).unwrap().copy_from(&w).unwrap();
    let unwritten = CaptureError::Unwritten { name: "temporary 0".into(), missing: 4 };
    assert_eq!(p.copy_from(&scratch.read().unwrap()), Err(unwritten));
    let diagonal = scratch.diagonal(0, 0, 1).unwrap();
    assert!(matches!(diagonal.copy_from(&w.select(0, 0).unwrap()), Err(CaptureError::Temporary { .. })));
    assert!(matches!(p.read(), Err(CaptureError::ReadsValues { .. })));
    // Nothing of this was recorded, and the capture goes on.
    p.narrow(0, 0, 2).unwrap().copy_from(&scratch.read().unwrap().narrow(0, 0, 2).unwrap()).unwrap();
    assert_eq!(capture.finish().copies.len(), 1);
}

#[test]
fn values_are_not_there_to_be_read_and_spoil_only_their_source() {
    let capture = Capture::new();
    let scale = capture.source("scale", Dtype::F32, &[]).unwrap();
    let w = capture.source("w", Dtype::F32, &[2]).unwrap();
    let p = capture.param("p", Dtype::F32, &[2]).unwrap();
    let error = scale.item().unwrap_err();
    assert_eq!(error, CaptureError::ReadsValues { name: "scale".into(), op: "item".into() });
    assert!(error.to_string().contains("scale") && error.to_string().contains("item"));
    assert!(w.narrow(0, 0, 1).unwrap().read_values("lt").is_err());
    let q = capture.param("q", Dtype::F32, &[3]).unwrap();
    let v = capture.source("v", Dtype::F32, &[3]).unwrap();
    p.copy_from(&w).unwrap();
    q.copy_from(&v).unwrap();
    let captured = capture.finish();
    assert_eq!(captured.unsupported["scale" as &str].op, "item");
    assert_eq!(captured.unsupported["w" as &str].op, "lt");
    assert_eq!(captured.copies.iter().map(|c| &*c.source).collect::<Vec<_>>(), ["v"]);
}

#[test]
fn known_value_operations_are_recorded_and_unknown_ones_defeat_their_source() {
    let capture = Capture::new();
    let w = capture.source("w", Dtype::F32, &[2]).unwrap();
    let p = capture.param("p", Dtype::BF16, &[2]).unwrap();
    let half = w.mul_scalar(Scalar::Float(0.5)).unwrap().to(Dtype::BF16).unwrap();
    assert_eq!(half.dtype(), Dtype::BF16);
    p.copy_from(&half.to(Dtype::BF16).unwrap()).unwrap();
    p.copy_from(&capture.source("x", Dtype::F32, &[2]).unwrap().value_op("sqrt").neg().unwrap()).unwrap();
    assert!(capture.source("b", Dtype::Bool, &[2]).unwrap().neg().is_err());
    let captured = capture.finish();
    assert_eq!(captured.unsupported["x" as &str].op, "sqrt");
    let expect = [ValueOp::Mul(Scalar::Float(0.5)), ValueOp::To(Dtype::BF16)].map(Op::Value);
    assert_eq!(captured.copies[0].ops, expect);
}

#[test]
fn writes_that_no_record_would_hold_are_errors() {
    let (one, other) = (Capture::new(), Capture::new());
    let w = one.source("w", Dtype::F32, &[2, 2]).unwrap();
    let p = other.param("p", Dtype::F32, &[2, 2]).unwrap();
    assert!(matches!(p.copy_from(&w), Err(CaptureError::Foreign { .. })));
    let p = one.param("p", Dtype::F32, &[2, 2]).unwrap();
    let lost = p.t().unwrap().apply(Op::Reshape(vec![4])).unwrap_err();
    assert_eq!(lost, CaptureError::LostWrite { param: "p".into(), op: "reshape".into() });
    let twice = p.apply(Op::Expand(vec![3, 2, 2])).unwrap();
    assert!(matches!(twice.copy_from(&w), Err(CaptureError::Overlap { .. })));
    assert_eq!((one.finish().copies, other.finish().copies), (vec![], vec![]));
}

#[test]
fn the_later_of_two_writes_is_the_later_in_the_record() {
    let capture = Capture::new();
    let w = capture.source("w", Dtype::I64, &[4]).unwrap();
    let p = capture.param("p", Dtype::I64, &[4]).unwrap();
    p.fill(&7i64.to_le_bytes()).unwrap();
    p.copy_from(&w).unwrap();
    p.narrow(0, 1, 2).unwrap().fill(&8i64.to_le_bytes()).unwrap();
    p.narrow(0, 2, 1).unwrap().copy_from(&w.narrow(0, 0, 1).unwrap()).unwrap();
    let captured = capture.finish();
    assert_eq!(carry_out(&captured)["p"], [0, 8, 0, 3]);
    assert_eq!(carry_out(&captured.only(|name| name == "p"))["p"], [0, 8, 0, 3]);
}

/// A source, or a constant, written to a box of a temporary through a reordering of its dimensions.
#[derive(Debug, Clone)]
struct Write {
    constant: bool,
    start: [i64; 2],
    size: [i64; 2],
    transposed: bool,
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let one = (any::<bool>(), [0i64..4, 0i64..5], [0i64..5, 0i64..6], any::<bool>());
    let one = one.prop_map(|(constant, start, size, transposed)| Write {
        constant,
        size: [size[0].min(4 - start[0]), size[1].min(5 - start[1])],
        start,
        transposed,
    });
    proptest::collection::vec(one, 1..6)
}

fn reads() -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![
        (-2i64..2, 0i64..4, 1i64..4).prop_map(|(dim, start, length)| Op::Narrow { dim, start, length }),
        Just(Op::T),
        Just(Op::Contiguous),
        (0i64..2, 0i64..4).prop_map(|(dim, index)| Op::Select { dim, index }),
        Just(Op::Flip(vec![0])),
        (0i64..2).prop_map(Op::Unsqueeze),
        Just(Op::Repeat(vec![2, 1])),
        (1i64..3).prop_map(|k| Op::Roll { shifts: vec![k], dims: vec![0] }),
        Just(Op::Value(ValueOp::Add(Scalar::Int(5)))),
    ];
    proptest::collection::vec(one, 0..5)
}

/// As `a` with `op` where torch allows that, else `a`.
fn try_apply<'c>(a: LazyTensor<'c>, op: &Op) -> LazyTensor<'c> {
    a.apply(op.clone()).unwrap_or(a)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is read from a temporary is what an array would have held, or is refused.
    #[test]
    fn temporaries_hold_what_arrays_hold(writes in writes(), reads in reads()) {
        let capture = Capture::new();
        let scratch = capture.temporary(Dtype::I64, &[4, 5]).unwrap();
        let mut array: Vec<Option<i64>> = vec![None; 20];
        for (n, write) in writes.iter().enumerate() {
            let mut place = scratch.narrow(0, write.start[0], write.size[0]).unwrap();
            place = place.narrow(1, write.start[1], write.size[1]).unwrap();
            if write.transposed {
                place = place.t().unwrap();
            }
            let name = format!("source {n}");
            let source = capture.source(&name, Dtype::I64, place.shape()).unwrap();
            if write.constant {
                place.fill(&(-100 - n as i64).to_le_bytes()).unwrap();
            } else {
                place.copy_from(&source).unwrap();
            }
            for i in 0..write.size[0] {
                for j in 0..write.size[1] {
                    let k = if write.transposed { j * write.size[0] + i } else { i * write.size[1] + j };
                    let value = if write.constant { -100 - n as i64 } else { k + n as i64 * APART };
                    array[((write.start[0] + i) * 5 + write.start[1] + j) as usize] = Some(value);
                }
            }
        }
        let view = reads.iter().fold(scratch.read().unwrap(), try_apply);
        let mut expect: Vec<Option<i64>> = {
            let whole = replay_typed(Dtype::I64, &[4, 5], &view_ops(&reads)).unwrap();
            let Replay::Exact(view) = whole else { panic!() };
            positions(&view).iter().map(|&p| array[p as usize]).collect()
        };
        let added = 5 * applied(&reads).iter().filter(|op| matches!(op, Op::Value(_))).count() as i64;
        expect.iter_mut().flatten().for_each(|v| *v += added);
        let p = capture.param("p", Dtype::I64, view.shape()).unwrap();
        match p.copy_from(&view) {
            Ok(()) => {
                let got = &carry_out(&capture.finish())["p"];
                prop_assert_eq!(got.iter().map(|&v| Some(v)).collect::<Vec<_>>(), expect);
            }
            Err(CaptureError::Unwritten { missing, .. }) => {
                prop_assert_eq!(missing as usize, expect.iter().filter(|v| v.is_none()).count());
                prop_assert!(missing > 0);
            }
            Err(CaptureError::Temporary { .. }) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// Those of the operations that torch allows one after the other.
fn applied(reads: &[Op]) -> Vec<Op> {
    let mut view = View::whole(&[4, 5]).unwrap();
    let mut out = Vec::new();
    for op in reads {
        if let Ok(next) = view.apply(op) {
            view = next;
            out.push(op.clone());
        }
    }
    out
}

/// Those that move data.
fn view_ops(reads: &[Op]) -> Vec<Op> {
    applied(reads).into_iter().filter(|op| !matches!(op, Op::Value(_))).collect()
}
