//! What a loader does, and what a capture records of it.

mod carry_out;

use carry_out::{carry_out, positions};
use restage_geometry::{
    Capture, CaptureError, Captured, DestView, Dtype, LazyTensor, Op, Replay, Scalar, ValueOp, replay_typed,
};

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

/// A loader of its own, that another one calls: it writes to where it is told, and to a parameter of its own.
fn inner<'c>(capture: &'c Capture, into: &DestView<'c>, from: &LazyTensor<'c>) -> Result<(), CaptureError> {
    into.narrow(0, 0, 1)?.copy_from(&from.narrow(0, 1, 1)?)?;
    capture.param("inner", Dtype::I64, &[2])?.copy_from(&from.select(0, 0)?)
}

#[test]
fn loaders_that_call_loaders_leave_one_record() {
    let capture = Capture::new();
    let w = capture.source("w", Dtype::I64, &[4, 2]).unwrap();
    let p = capture.param("outer", Dtype::I64, &[3, 2]).unwrap();
    p.fill(&7i64.to_le_bytes()).unwrap();
    // Destination and source are views at an offset already.
    inner(&capture, &p.narrow(0, 1, 2).unwrap(), &w.narrow(0, 2, 2).unwrap()).unwrap();
    p.narrow(0, 0, 1).unwrap().copy_from(&w.narrow(0, 0, 1).unwrap()).unwrap();
    let captured = capture.finish();
    assert_eq!(captured.copies.iter().map(|c| c.param).collect::<Vec<_>>(), [0, 1, 0]);
    let params = carry_out(&captured);
    assert_eq!((&params["outer"][..], &params["inner"][..]), (&[0, 1, 6, 7, 7, 7][..], &[4, 5][..]));
}

/// Fills and copies of two parameters, each over the other in turn.
fn interleaved() -> Captured {
    let capture = Capture::new();
    let w = capture.source("w", Dtype::I64, &[4]).unwrap();
    let (p, q) =
        (capture.param("p", Dtype::I64, &[4]).unwrap(), capture.param("q", Dtype::I64, &[4]).unwrap());
    for n in 0i64..4 {
        let (p, q) = if n % 2 == 0 { (&p, &q) } else { (&q, &p) };
        let (p, q) = (p.narrow(0, n, 4 - n).unwrap(), q.narrow(0, n, 4 - n).unwrap());
        p.fill(&(-n - 2).to_le_bytes()).unwrap();
        q.copy_from(&w.narrow(0, 0, 4 - n).unwrap()).unwrap();
        q.narrow(0, 0, 1).unwrap().fill(&(-n - 9).to_le_bytes()).unwrap();
        p.narrow(0, 0, 1).unwrap().copy_from(&w.narrow(0, 3, 1).unwrap()).unwrap();
    }
    capture.finish()
}

#[test]
fn records_of_some_parameters_and_of_two_loaders_keep_their_order() {
    let all = interleaved();
    let expect = carry_out(&all);
    for name in ["p", "q"] {
        let some = all.only(|n| n == name);
        assert_eq!(some.params.len(), 1);
        assert_eq!(carry_out(&some)[name], expect[name]);
    }
    let mut two = all.clone();
    two.append(&all, |name| format!("{name}'"));
    let both = carry_out(&two);
    assert!(two.fills.is_sorted_by_key(|f| f.after));
    for name in ["p", "q"] {
        assert_eq!((&both[name], &both[&format!("{name}'")]), (&expect[name], &expect[name]));
        let second = two.only(|n| n == format!("{name}'"));
        assert_eq!(carry_out(&second)[&format!("{name}'")], expect[name]);
    }
}

#[test]
fn a_refused_source_names_all_that_wanted_it_and_leaves_the_rest_in_place() {
    let load = |bad: bool| {
        let capture = Capture::new();
        let w = capture.source("w", Dtype::I64, &[2]).unwrap();
        let v = capture.source("v", Dtype::I64, &[2]).unwrap();
        let (p, q) =
            (capture.param("p", Dtype::I64, &[4]).unwrap(), capture.param("q", Dtype::I64, &[2]).unwrap());
        let scratch = capture.temporary(Dtype::I64, &[4]).unwrap();
        q.copy_from(&w).unwrap();
        scratch.narrow(0, 0, 2).unwrap().copy_from(&if bad { w.value_op("sqrt") } else { w }).unwrap();
        scratch.narrow(0, 2, 2).unwrap().copy_from(&v).unwrap();
        p.copy_from(&scratch.read().unwrap()).unwrap();
        p.narrow(0, 3, 1).unwrap().fill(&(-5i64).to_le_bytes()).unwrap();
        capture.finish()
    };
    let captured = load(true);
    // What came of the other source by way of the same temporary stays, and the fill after it.
    assert_eq!(carry_out(&captured)["p"], [-1, -1, 0, -5]);
    let refused = &captured.unsupported["w" as &str];
    assert_eq!((&*refused.op, &refused.params[..]), ("sqrt", &[0, 1][..]));
    // Joined to a record that it is well in, it is refused there too.
    let mut joined = load(false);
    joined.append(&captured, |name| format!("{name}'"));
    assert_eq!(joined.unsupported["w" as &str].params, [0, 1, 2, 3]);
    assert!(joined.copies.iter().all(|c| &*c.source == "v"));
    assert_eq!(carry_out(&joined)["p"], [-1, -1, 0, -5]);
}

#[test]
fn an_unknown_operation_on_a_temporary_holds_what_was_there() {
    let capture = Capture::new();
    let a = capture.source("a", Dtype::I64, &[2]).unwrap();
    let b = capture.source("b", Dtype::I64, &[2]).unwrap();
    let p = capture.param("p", Dtype::I64, &[2]).unwrap();
    let scratch = capture.temporary(Dtype::I64, &[2]).unwrap();
    scratch.copy_from(&a).unwrap();
    let root = scratch.read().unwrap().value_op("sqrt");
    scratch.copy_from(&b).unwrap();
    p.copy_from(&root).unwrap();
    assert_eq!(capture.finish().unsupported.keys().map(|n| &**n).collect::<Vec<_>>(), ["a"]);
}
