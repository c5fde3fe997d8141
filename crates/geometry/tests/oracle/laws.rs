//! What must hold for every chain.

use restage_geometry::{Dest, Dtype, Op, OpProblem, Replay, View, copy_nests, gather, replay};

use super::generator::{Case, operation};
use super::rules::apply;
use super::tensor::{Refused, Tensor};

/// What the cases were, for the reader of the log.
#[derive(Debug, Default)]
pub struct Tally {
    /// Cases.
    pub cases: u64,
    /// Operations that both sides accept.
    pub accepted: u64,
    /// Operations that both sides refuse.
    pub rejected: u64,
    /// Among them views that would need a copy.
    pub not_views: u64,
    /// Operations left out because their result would be too large to enumerate.
    pub too_large: u64,
    /// Elements that were compared, over all prefixes of all chains.
    pub elements: u64,
    /// Chains whose result holds an element.
    pub not_empty: u64,
    /// Chains whose result is still a view.
    pub views: u64,
    /// Chains in more than one stage.
    pub staged: u64,
    /// Most stages of a chain.
    pub most_stages: usize,
    /// Most nests of a gather.
    pub most_nests: usize,
}

/// Why a case fails: what differs, and the chain.
pub struct Failure {
    /// What differs.
    pub why: String,
    /// Its operations, the last one that at fault where one is.
    pub ops: Vec<Op>,
}

/// Checks the chain that a case stands for, against the model.
pub fn check(case: &Case, tally: &mut Tally) -> Result<(), Failure> {
    tally.cases += 1;
    let source = Tensor::source(&case.shape);
    let mut ops: Vec<Op> = Vec::new();
    let mut tensors = vec![source.clone()];
    let mut view = View::whole(&case.shape).map_err(|e| Failure { why: e.to_string(), ops: vec![] })?;
    compare(&source, &view, tally).map_err(|why| Failure { why, ops: vec![] })?;
    for numbers in &case.chain {
        let tensor = &tensors[tensors.len() - 1];
        let op = operation(tensor, numbers);
        let model = match apply(tensor, &op) {
            Ok(next) => Some(next),
            Err(Refused::ByTorch) => None,
            Err(Refused::TooLarge) => {
                tally.too_large += 1;
                continue;
            }
        };
        ops.push(op.clone());
        let fail = |why: String| Failure { why, ops: ops.clone() };
        match (model, replay(&case.shape, &ops)) {
            (Some(next), Ok(Replay::Exact(whole))) => {
                assert!(
                    next.agrees(),
                    "the model is at odds with itself: {op:?} on {tensor:?} gives {next:?}"
                );
                let stepped = view.apply(&op).map_err(|e| fail(format!("refused as a step: {e}")))?;
                if stepped != whole {
                    return Err(fail(format!("as a step {stepped:?}, as a chain {whole:?}")));
                }
                compare(&next, &whole, tally).map_err(fail)?;
                tally.accepted += 1;
                view = whole;
                tensors.push(next);
            }
            (None, Err(error)) => {
                if error.at + 1 != ops.len() {
                    return Err(fail(format!("refused at {}: {error}", error.at)));
                }
                tally.rejected += 1;
                tally.not_views += u64::from(matches!(error.problem, OpProblem::NotAView { .. }));
                ops.pop();
            }
            (Some(_), Err(error)) => return Err(fail(format!("refused, and legal in the model: {error}"))),
            (None, Ok(_)) => return Err(fail("accepted, and refused in the model".to_owned())),
            (Some(_), Ok(opaque)) => return Err(fail(format!("not exact: {opaque:?}"))),
        }
    }
    materialise(case, &ops, &tensors).map_err(|why| Failure { why, ops: ops.clone() })?;
    moved(&tensors[tensors.len() - 1], &view, source.numel()).map_err(|why| Failure { why, ops })?;
    tally.not_empty += u64::from(view.numel() > 0);
    tally.views += u64::from(!view.is_copied());
    tally.staged += u64::from(view.stage_count() > 1);
    tally.most_stages = tally.most_stages.max(view.stage_count());
    Ok(())
}

/// Shape, strides, offset, copies and every element.
fn compare(tensor: &Tensor, view: &View, tally: &mut Tally) -> Result<(), String> {
    if view.shape() != tensor.shape {
        return Err(format!("shape {:?}, in the model {:?}", view.shape(), tensor.shape));
    }
    let (got, nests) = elements(view, &Dest::whole(view.shape()))?;
    tally.most_nests = tally.most_nests.max(nests);
    tally.elements += got.len() as u64;
    if got != tensor.elements {
        return Err(format!("elements {got:?}, in the model {:?}", tensor.elements));
    }
    if view.is_copied() != tensor.copied {
        return Err(format!("copied {}, in the model {}", view.is_copied(), tensor.copied));
    }
    if view.is_contiguous() != tensor.is_contiguous() {
        return Err(format!("contiguous {}, in the model {}", view.is_contiguous(), tensor.is_contiguous()));
    }
    if tensor.numel() > 0 {
        if view.offset() != tensor.offset {
            return Err(format!("offset {}, in the model {}", view.offset(), tensor.offset));
        }
        let differs = |&d: &usize| tensor.shape[d] > 1 && view.strides()[d] != tensor.strides[d];
        if (0..tensor.ndim()).any(|d| differs(&d)) {
            return Err(format!("strides {:?}, in the model {:?}", view.strides(), tensor.strides));
        }
    }
    Ok(())
}

/// The source element at each place of a dense destination, in the order of its indices, by the runs of the
/// gather; every place must be written exactly once. Also the number of nests.
fn elements(view: &View, dest: &Dest) -> Result<(Vec<i64>, usize), String> {
    let nests = gather(view, dest).map_err(|e| e.to_string())?;
    let mut out = vec![None; dest.numel() as usize];
    for run in nests.iter().flat_map(|nest| nest.runs()) {
        for i in 0..run.len {
            match out.get_mut((run.dst + i) as usize) {
                Some(place @ None) => *place = Some((run.src + i) as i64),
                Some(_) => return Err(format!("place {} is written twice by {nests:?}", run.dst + i)),
                None => return Err(format!("place {} is outside of {dest:?}", run.dst + i)),
            }
        }
    }
    let written: Option<Vec<i64>> = out.into_iter().collect();
    Ok((written.ok_or_else(|| format!("not every place is written by {nests:?}"))?, nests.len()))
}

/// A chain is its first part, made contiguous, and its second part on that as a source of its own; except that
/// torch refuses other views of the copy than of what was copied, which the model says.
fn materialise(case: &Case, ops: &[Op], tensors: &[Tensor]) -> Result<(), String> {
    let (first, second) = ops.split_at(usize::from(case.cut) % (ops.len() + 1));
    let middle = &tensors[first.len()];
    let mut model = Ok(Tensor::source(&middle.shape));
    for (at, op) in second.iter().enumerate() {
        model = model.and_then(|t| apply(&t, op).map_err(|_| at));
    }
    let copied = [first, &[Op::Contiguous], second].concat();
    for (what, shape, ops, skipped) in [
        ("in two parts", &middle.shape, second, 0),
        ("with a copy inside", &case.shape, &copied, first.len() + 1),
    ] {
        match (&model, replay(shape, ops)) {
            (Err(at), Err(error)) if at + skipped == error.at => {}
            (Ok(last), Ok(Replay::Exact(view))) if view.shape() == last.shape => {
                let (mut found, _) = elements(&view, &Dest::whole(view.shape()))?;
                if skipped == 0 {
                    found.iter_mut().for_each(|element| *element = middle.elements[*element as usize]);
                }
                let expect = &tensors[tensors.len() - 1].elements;
                if found != *expect {
                    return Err(format!("{what}, cut at {}: {found:?}, else {expect:?}", first.len()));
                }
            }
            (model, got) => {
                return Err(format!("{what}, cut at {}: {got:?}, in the model {model:?}", first.len()));
            }
        }
    }
    Ok(())
}

/// The bytes that the mover copies, to a destination with its dimensions in the reverse order.
fn moved(tensor: &Tensor, view: &View, source: i64) -> Result<(), String> {
    let mut reversed = view.shape().to_vec();
    reversed.reverse();
    let mut strides = Dest::whole(&reversed).strides;
    strides.reverse();
    let dest = Dest { offset: 0, shape: view.shape().to_vec(), strides };
    dest.check(view.numel()).map_err(|e| e.to_string())?;
    let nests = gather(view, &dest).map_err(|e| e.to_string())?;
    let from: Vec<u8> = (0..source).flat_map(|i| (i as u32).to_le_bytes()).collect();
    let mut to = vec![0xff; tensor.elements.len() * 4];
    copy_nests(&nests, Dtype::F32.packing(), &from, &mut to).map_err(|e| e.to_string())?;
    let copy = Tensor::copied_to(tensor.shape.clone(), dest.strides, tensor.elements.clone());
    let expect: Vec<u8> = copy.storage.iter().flat_map(|&i| (i as u32).to_le_bytes()).collect();
    if to != expect {
        return Err(format!("{nests:?} move {to:?}, in the model {expect:?}"));
    }
    Ok(())
}
