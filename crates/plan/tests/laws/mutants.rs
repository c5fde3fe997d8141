//! Plans that were altered: every one of them is rejected.

use proptest::prelude::*;
use restage_plan::{Plan, Target, check, plan};

use crate::world::{cases, loaded, world};

/// An alteration, with raw choices that are fitted to the plan at hand.
#[derive(Debug, Clone)]
enum Change {
    Delete(usize),
    Repeat(usize),
    ShiftSource(usize, bool),
    ShiftTarget(usize, bool),
    Shorten(usize),
    SwapSources(usize, usize),
    ReplayElsewhere(usize, usize),
    DropReplay(usize),
}

fn changes() -> impl Strategy<Value = Change> {
    let at = 0usize..64;
    prop_oneof![
        at.clone().prop_map(Change::Delete),
        at.clone().prop_map(Change::Repeat),
        (at.clone(), any::<bool>()).prop_map(|(i, up)| Change::ShiftSource(i, up)),
        (at.clone(), any::<bool>()).prop_map(|(i, up)| Change::ShiftTarget(i, up)),
        at.clone().prop_map(Change::Shorten),
        (at.clone(), at.clone()).prop_map(|(a, b)| Change::SwapSources(a, b)),
        (at.clone(), at.clone()).prop_map(|(a, b)| Change::ReplayElsewhere(a, b)),
        at.prop_map(Change::DropReplay),
    ]
}

/// Two bytes up or down: the elements of the cases have two.
fn moved(position: u64, up: bool) -> Option<u64> {
    if up { position.checked_add(2) } else { position.checked_sub(2) }
}

/// True when a byte of a segment reaches a parameter. Where whole sources are staged some need not: it then does not
/// matter where they are read.
fn serves(plan: &Plan, segment: usize) -> bool {
    let s = &plan.segments[segment];
    let Target::Staging(t) = s.target else { return true };
    let meets = |from: u64, to: u64| s.nest.runs().any(|r| r.dst < to && from < r.dst + r.len);
    let replays = plan.stagings[t].replays.iter().flat_map(|step| &step.nests);
    replays.flat_map(|nest| nest.runs()).any(|r| meets(2 * r.src, 2 * (r.src + r.len)))
}

/// The altered plan; `None` where the change does not apply or changes nothing.
fn altered(plan: &Plan, change: &Change) -> Option<Plan> {
    let mut out = plan.clone();
    let segments = out.segments.len();
    let pick = |i: usize, len: usize| (len > 0).then(|| i % len);
    match *change {
        Change::Delete(i) => drop(out.segments.remove(pick(i, segments)?)),
        Change::Repeat(i) => {
            let again = out.segments[pick(i, segments)?].clone();
            out.segments.push(again);
        }
        Change::ShiftSource(i, up) => {
            let i = pick(i, segments).filter(|&i| serves(plan, i))?;
            let nest = &mut out.segments[i].nest;
            nest.src = moved(nest.src, up)?;
        }
        Change::ShiftTarget(i, up) => {
            let nest = &mut out.segments[pick(i, segments)?].nest;
            nest.dst = moved(nest.dst, up)?;
        }
        Change::Shorten(i) => {
            let nest = &mut out.segments[pick(i, segments)?].nest;
            nest.run = nest.run.checked_sub(2).filter(|&run| run > 0)?;
        }
        Change::SwapSources(a, b) => {
            let (a, b) = (pick(a, segments)?, pick(b, segments)?);
            let (x, y) = (&plan.segments[a], &plan.segments[b]);
            let same = (x.session, x.nest.src) == (y.session, y.nest.src);
            let idle = !serves(plan, a) && !serves(plan, b);
            if same || idle || x.nest.run != y.nest.run || x.nest.loops != y.nest.loops {
                return None;
            }
            out.segments[a].session = y.session;
            out.segments[a].nest.src = y.nest.src;
            out.segments[b].session = x.session;
            out.segments[b].nest.src = x.nest.src;
        }
        Change::ReplayElsewhere(s, n) => {
            let s = pick(s, out.stagings.len())?;
            let step = out.stagings[s].replays.first_mut()?;
            let n = pick(n, step.nests.len())?;
            step.nests[n].src += 1;
        }
        Change::DropReplay(s) => {
            let s = pick(s, out.stagings.len())?;
            let step = out.stagings[s].replays.pop()?;
            step.nests.first()?;
        }
    }
    Some(out)
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 20_000, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn every_alteration_is_rejected(case in cases(), change in changes()) {
        let (source, world) = world(&case);
        let (captured, _) = loaded(&case, &source);
        let plan = plan(&captured, &world.catalog, &case.limits).unwrap();
        let Some(mutant) = altered(&plan, &change) else { return Ok(()) };
        prop_assert!(check(&mutant, &captured, &world.catalog).is_err(), "{:?}\n{:#?}", change, mutant);
    }
}
