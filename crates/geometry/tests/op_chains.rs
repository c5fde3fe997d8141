//! Chains of view operations against what torch made of them: shapes, strides, offsets, values, copies and
//! rejections. `data/op_chains.json` is torch's answer; every value in it is the flat source index.

use restage_geometry::{Dest, Dtype, OpError, Recipe, Replay, View, gather, replay_typed};
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

fn check_moved(expect: &Value, view: &View) -> Result<(), String> {
    let shape = ints(&expect["shape"]);
    if view.shape() != shape {
        return Err(format!("shape {:?}, torch {shape:?}", view.shape()));
    }
    let got = values(view);
    if got != ints(&expect["values"]) {
        return Err(format!("values {got:?}, torch {}", expect["values"]));
    }
    Ok(())
}

/// The values that a recipe computes from a source that counts its elements.
fn check_computed(expect: &Value, recipe: &Recipe) -> Result<(), String> {
    let gathered: Vec<u8> = values(&recipe.view).iter().flat_map(|v| v.to_le_bytes()).collect();
    let bytes = recipe.compute(&gathered).map_err(|e| e.to_string())?;
    // All values of these cases are small.
    let (name, got): (_, Vec<f64>) = match recipe.to {
        Dtype::I64 => ("torch.int64", chunks(&bytes, i64::from_le_bytes).map(|x| x as f64).collect()),
        Dtype::F32 => ("torch.float32", chunks(&bytes, f32::from_le_bytes).map(f64::from).collect()),
        Dtype::F64 => ("torch.float64", chunks(&bytes, f64::from_le_bytes).collect()),
        other => return Err(format!("computes {other}")),
    };
    let torch: Vec<f64> = expect["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    if name != expect["dtype"] || recipe.view.shape() != ints(&expect["shape"]) || got != torch {
        return Err(format!("computes {name} {:?} {got:?}, torch {expect}", recipe.view.shape()));
    }
    check_physical(expect, &recipe.view)
}

fn chunks<const N: usize, T>(bytes: &[u8], of: impl Fn([u8; N]) -> T) -> impl Iterator<Item = T> {
    bytes.chunks_exact(N).map(move |b| of(b.try_into().unwrap()))
}

fn check_physical(expect: &Value, view: &View) -> Result<(), String> {
    let shape = ints(&expect["shape"]);
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

/// Checks every case; gives the counts of chains in one layout, in several, and rejected.
fn check_all(data: &Value) -> (usize, usize, usize) {
    let mut wrong = Vec::new();
    let (mut single, mut pieces, mut rejected) = (0, 0, 0);
    for case in data["cases"].as_array().unwrap() {
        let id = case["id"].as_str().unwrap();
        let ops: Vec<OpForm> = serde_json::from_value(case["ops"].clone()).unwrap();
        let ops: Vec<_> = ops.into_iter().map(Into::into).collect();
        let got: Result<Replay, OpError> = replay_typed(Dtype::I64, &ints(&case["shape"]), &ops);
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
            (_, Ok(Replay::Opaque { op, recipe: None, .. })) => Err(format!("opaque: {op}")),
            (expect, Ok(Replay::Opaque { recipe: Some(recipe), .. })) => check_computed(expect, &recipe),
            (expect, Ok(Replay::Exact(view))) => {
                *if view.stage_count() == 1 { &mut single } else { &mut pieces } += 1;
                check_moved(expect, &view).and_then(|()| check_physical(expect, &view))
            }
        };
        if let Err(why) = verdict {
            wrong.push(format!("{id} {} {}: {why}", case["shape"], case["ops"]));
        }
    }
    let few = wrong.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} cases differ:\n{few}", wrong.len());
    (single, pieces, rejected)
}

#[test]
fn every_chain_agrees_with_torch() {
    let data = serde_json::from_str(include_str!("data/op_chains.json")).unwrap();
    let (single, pieces, rejected) = check_all(&data);
    println!("{single} chains in one layout, {pieces} in several, 0 opaque, {rejected} rejected as by torch");
}

/// Longer chains over all operations, made by `data/make_chains.py`.
#[test]
fn every_longer_chain_agrees_with_torch() {
    let data = serde_json::from_str(include_str!("data/more_chains.json")).unwrap();
    let (single, pieces, rejected) = check_all(&data);
    println!("{single} chains in one layout, {pieces} in several, 0 opaque, {rejected} rejected as by torch");
}

/// Chains to which random ones shrank where a rule was wrong, or was made wrong to see whether `oracle` notices.
#[test]
fn every_shrunk_chain_agrees_with_torch() {
    check_all(&serde_json::from_str(include_str!("data/shrunk_chains.json")).unwrap());
}

/// Any other file of cases: its path in `RESTAGE_CHAINS`.
#[test]
fn chains_from_elsewhere_agree_with_torch() {
    let Ok(path) = std::env::var("RESTAGE_CHAINS") else { return };
    let data = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (single, pieces, rejected) = check_all(&data);
    println!("{single} chains in one layout, {pieces} in several, 0 opaque, {rejected} rejected as by torch");
}
