//! Chains of view operations against what torch made of them: shapes, strides, offsets, values, copies and
//! rejections. `data/op_chains.json` is torch's answer; every value in it is the flat source index.

use restage_geometry::{Dest, OpError, Replay, View, gather, replay};
use restage_wire::OpForm;
use serde_json::Value;

fn ints(v: &Value) -> Vec<i64> {
    v.as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect()
}

/// The flat source index of every element of a view, in row-major order.
fn values(view: &View) -> Vec<i64> {
    let mut out = vec![-1; view.numel() as usize];
    for nest in gather(view, &Dest::whole(view.shape())).unwrap() {
        for run in nest.runs() {
            for i in 0..run.len {
                assert_eq!(out[(run.dst + i) as usize], -1, "an element is gathered twice");
                out[(run.dst + i) as usize] = (run.src + i) as i64;
            }
        }
    }
    out
}

fn check_accepted(expect: &Value, view: &View) -> Result<(), String> {
    let shape = ints(&expect["shape"]);
    if view.shape() != shape {
        return Err(format!("shape {:?}, torch {shape:?}", view.shape()));
    }
    let got = values(view);
    if got != ints(&expect["values"]) {
        return Err(format!("values {got:?}, torch {}", expect["values"]));
    }
    if view.is_copied() == expect["is_view"].as_bool().unwrap() {
        return Err(format!("copied {}, torch's is_view {}", view.is_copied(), expect["is_view"]));
    }
    if view.is_contiguous() != expect["contiguous"].as_bool().unwrap() {
        return Err(format!("contiguous {}, torch {}", view.is_contiguous(), expect["contiguous"]));
    }
    // The strides of dimensions of size 1 and of empty tensors are torch's choice.
    if view.numel() > 0 {
        let stride = ints(&expect["stride"]);
        for (d, &n) in shape.iter().enumerate() {
            if n > 1 && view.strides()[d] != stride[d] {
                return Err(format!("strides {:?}, torch {stride:?}", view.strides()));
            }
        }
        if view.offset() != expect["storage_offset"].as_i64().unwrap() {
            return Err(format!("offset {}, torch {}", view.offset(), expect["storage_offset"]));
        }
    }
    Ok(())
}

#[test]
fn every_chain_agrees_with_torch() {
    let data: Value = serde_json::from_str(include_str!("data/op_chains.json")).unwrap();
    let mut wrong = Vec::new();
    let (mut single, mut pieces, mut rejected) = (0, 0, 0);
    for case in data["cases"].as_array().unwrap() {
        let id = case["id"].as_str().unwrap();
        let ops: Vec<OpForm> = serde_json::from_value(case["ops"].clone()).unwrap();
        let ops: Vec<_> = ops.into_iter().map(Into::into).collect();
        let got: Result<Replay, OpError> = replay(&ints(&case["shape"]), &ops);
        let verdict = match (&case["expect"], got) {
            (Value::String(_), Err(error)) => {
                rejected += 1;
                match case["error_at"].as_u64() == Some(error.at as u64) {
                    true => Ok(()),
                    false => Err(format!("rejected at {}, torch at {}", error.at, case["error_at"])),
                }
            }
            (Value::String(_), Ok(_)) => Err(format!("accepted, torch: {}", case["error_text"])),
            (_, Err(error)) => Err(format!("rejected: {error}")),
            (_, Ok(Replay::Opaque { op, .. })) => Err(format!("opaque: {op}")),
            (expect, Ok(Replay::Exact(view))) => {
                *if view.stage_count() == 1 { &mut single } else { &mut pieces } += 1;
                check_accepted(expect, &view)
            }
        };
        if let Err(why) = verdict {
            wrong.push(format!("{id} {} {}: {why}", case["shape"], case["ops"]));
        }
    }
    println!("{single} chains in one layout, {pieces} in several, 0 opaque, {rejected} rejected as by torch");
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}
