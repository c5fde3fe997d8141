//! Carries a record out on arrays in which every element of a source is a number of its own.

use std::collections::BTreeMap;

use restage_geometry::{Captured, Dest, Replay, ValueOp, View, gather, replay_typed};

/// Elements of the `n`-th source count from here.
pub const APART: i64 = 1000;

/// Positions that a view of a row-major tensor takes, in order.
pub fn positions(view: &View) -> Vec<i64> {
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
pub fn carry_out(captured: &Captured) -> BTreeMap<String, Vec<i64>> {
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
            // A parameter of another type than the chain's result is cast to.
            let (_, bytes) = ValueOp::To(captured.params[copy.param].dtype).apply(recipe.to, &bytes).unwrap();
            values = bytes.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
        }
        scatter(&copy.dest, &values, &mut params[copy.param]);
    }
    captured.params.iter().map(|p| p.name.clone()).zip(params).collect()
}
