//! Plans against a brute-force truth and against the counters of a peer (`data/README.md` says whose).
//!
//! Every case is compared by the bytes it moves, by coverage and by counters. The peer's segmentation is not
//! always minimal; the truth's `run_count` is.

mod cases;
mod hard;

use std::collections::BTreeMap;

use restage_plan::{Catalog, Limits, Plan, Reason, StagingMode, plan};
use serde_json::Value;

use cases::{Case, Map, cases, moved, truth_runs};

fn check(case: &Case) -> Result<(), String> {
    let plan = plan(&case.captured, &case.catalog, &case.limits).map_err(|e| e.to_string())?;
    restage_plan::check(&plan, &case.captured, &case.catalog).map_err(|e| e.to_string())?;
    let refused: BTreeMap<&str, &Reason> = plan.refused.iter().map(|r| (&*r.source, &r.reason)).collect();
    let (params, stagings) = moved(&plan);
    let truth = case.truth["copies"].as_array().unwrap();
    let (mut runs, mut bytes) = (0, 0);
    let mut conversions = 0;
    for (copy, truth) in case.copies.iter().zip(truth) {
        let reason = refused.get(copy.source.as_str()).copied();
        let missing = truth["uncovered_elements"].as_i64().unwrap_or(0);
        if truth.get("note").is_some() || missing > 0 {
            match reason {
                Some(Reason::Gap { missing: found, .. }) if missing > 0 && *found == missing => continue,
                Some(_) if missing == 0 => continue,
                other => return Err(format!("{}: no answer, but the plan says {other:?}", copy.source)),
            }
        }
        if let Some(reason) = reason {
            return Err(format!("{} is refused: {reason}", copy.source));
        }
        runs += truth["run_count"].as_u64().unwrap();
        bytes += truth["bytes"].as_u64().unwrap();
        let empty = Map::new();
        let got = if truth["convert"] == Value::Bool(true) {
            conversions += 1;
            // Conversions of a source follow each other in the order of the parameters.
            stagings.get(conversions - 1).unwrap_or(&empty)
        } else {
            params.get(&copy.param).unwrap_or(&empty)
        };
        for (dst, from) in truth_runs(truth) {
            if got.get(&dst) != Some(&from) {
                let got = got.get(&dst);
                return Err(format!("{} byte {dst}: {got:?}, truth {from:?}", copy.param));
            }
        }
    }
    let c = plan.counters();
    if (c.exact_descriptors, c.exact_bytes) != (runs, bytes) {
        return Err(format!("exact counters {c:?}, truth {runs} runs of {bytes} bytes"));
    }
    let moved_bytes: u64 = plan.descriptors().map(|d| d.2.len).sum();
    if moved_bytes != c.bytes || plan.descriptors().count() as u64 != c.descriptors {
        return Err(format!("the counters {c:?} are not those of the descriptors"));
    }
    if plan.full_pulls().count() == 0 && c.descriptors > runs {
        return Err(format!("{} descriptors for {runs} runs", c.descriptors));
    }
    check_peer(case, &plan, &refused)
}

/// Where the peer refused nothing that is expressible, its choices and counters are ours too.
fn check_peer(case: &Case, plan: &Plan, refused: &BTreeMap<&str, &Reason>) -> Result<(), String> {
    let peer = &case.peer;
    let names = |key: &str| -> Vec<&str> {
        peer[key].as_array().into_iter().flatten().map(|v| v.as_str().unwrap()).collect()
    };
    if peer.get("raises").is_some() || names("fallback") != refused.keys().copied().collect::<Vec<_>>() {
        return Ok(());
    }
    let unbounded: Vec<&str> = plan.unbounded().collect();
    let pulls: Vec<&str> = plan.full_pulls().map(|p| p.0).collect();
    let peer_pulls: Vec<&str> =
        peer["full_pulls"].as_array().unwrap().iter().map(|f| f["source"].as_str().unwrap()).collect();
    let c = plan.counters();
    let ours = [
        c.descriptors,
        c.exact_descriptors,
        c.descriptors_saved(),
        c.bytes,
        c.exact_bytes,
        c.extra_wire_bytes(),
    ];
    let keys = [
        "descriptor_count",
        "exact_descriptor_count",
        "descriptor_savings",
        "bytes_planned",
        "exact_bytes",
        "extra_wire_bytes",
    ];
    let theirs = keys.map(|k| peer["counters"][k].as_u64().unwrap());
    // Where the peer's runs are not merged in full, ours are fewer and the bound may not be reached.
    if theirs[1] > ours[1] {
        return Ok(());
    }
    if (ours, &unbounded, &pulls) != (theirs, &names("unbounded"), &peer_pulls) {
        return Err(format!(
            "{ours:?} {unbounded:?} {pulls:?}, peer {theirs:?} {:?} {peer_pulls:?}",
            names("unbounded")
        ));
    }
    Ok(())
}

#[test]
fn every_plan_moves_the_right_bytes() {
    let cases = cases(include_str!("../data/plans.json"));
    let wrong: Vec<String> =
        cases.iter().filter_map(|c| check(c).err().map(|why| format!("{}: {why}", c.id))).collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn shuffled_input_gives_the_same_plan() {
    for mut case in cases(include_str!("../data/plans.json")) {
        let before = plan(&case.captured, &case.catalog, &case.limits).unwrap();
        case.captured.copies.reverse();
        let count = case.captured.params.len();
        case.captured.params.reverse();
        for copy in &mut case.captured.copies {
            copy.param = count - 1 - copy.param;
        }
        let mut catalog = Catalog::new();
        for (name, source) in case.catalog.iter() {
            let mut source = source.clone();
            source.shards.reverse();
            catalog.insert(name, source).unwrap();
        }
        assert_eq!(before, plan(&case.captured, &catalog, &case.limits).unwrap(), "{}", case.id);
    }
}

/// With tiles staged the same bytes arrive, in no more of either than with whole sources, and as exactly.
#[test]
fn stretches_cost_no_more_than_whole_sources() {
    let mut fewer = 0;
    for case in cases(include_str!("../data/plans.json")) {
        let limits = Limits { staging: StagingMode::Tiles, ..case.limits.clone() };
        let whole = plan(&case.captured, &case.catalog, &case.limits).unwrap();
        let tiles = plan(&case.captured, &case.catalog, &limits).unwrap();
        restage_plan::check(&tiles, &case.captured, &case.catalog).unwrap();
        assert_eq!(tiles.refused, whole.refused, "{}", case.id);
        assert_eq!(tiles.coverage, whole.coverage, "{}", case.id);
        let (t, w) = (tiles.counters(), whole.counters());
        assert_eq!((t.exact_bytes, t.exact_descriptors), (w.exact_bytes, w.exact_descriptors), "{}", case.id);
        // A source that stays exact above the bound may trade descriptors for bytes.
        let exact = whole.unbounded().count() > 0;
        assert!(exact || t.bytes <= w.bytes, "{}: {t:?} {w:?}", case.id);
        assert!(t.descriptors <= w.descriptors, "{}: {t:?} {w:?}", case.id);
        fewer += usize::from(t.bytes < w.bytes);
        let (params, _) = moved(&tiles);
        let (expected, _) = moved(&whole);
        assert_eq!(params.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{}", case.id);
        for (name, map) in &expected {
            assert_eq!(params[name].len(), map.len(), "{} {name}", case.id);
        }
    }
    assert!(fewer > 10, "{fewer}");
}
