//! Plans against a brute-force truth and against the counters of a peer (`data/README.md` says whose).
//!
//! Every case is compared by the bytes it moves, by coverage and by counters. The peer's segmentation is not
//! always minimal; the truth's `run_count` is.

use std::collections::BTreeMap;
use std::sync::Arc;

use restage_geometry::{Captured, Param, Unsupported};
use restage_plan::{Catalog, Limits, Plan, Reason, StagingMode, Target, plan};
use restage_wire::{CopyForm, SourceForm};
use serde_json::Value;

struct Case {
    id: String,
    copies: Vec<CopyForm>,
    captured: Captured,
    catalog: Catalog,
    limits: Limits,
    truth: Value,
    peer: Value,
}

fn cases(json: &str) -> Vec<Case> {
    let data: Value = serde_json::from_str(json).unwrap();
    data["cases"].as_array().unwrap().iter().map(case).collect()
}

fn case(v: &Value) -> Case {
    let copies: Vec<CopyForm> = serde_json::from_value(v["copies"].clone()).unwrap();
    let mut catalog = Catalog::new();
    for (name, form) in v["sources"].as_object().unwrap() {
        let form: SourceForm = serde_json::from_value(form.clone()).unwrap();
        catalog.insert(name, form.source().unwrap()).unwrap();
    }
    let mut captured = Captured::default();
    // The size of a parameter is not given: as large as its copies need.
    let mut params: BTreeMap<&str, (i64, &str)> = BTreeMap::new();
    for c in &copies {
        let reach = |(&n, &s): (&i64, &i64)| if n > 0 { (n - 1) * s } else { 0 };
        let end = c.dest_offset + c.dest_shape.iter().zip(&c.dest_stride).map(reach).sum::<i64>() + 1;
        let entry = params.entry(&c.param).or_insert((0, c.dest_dtype.as_deref().unwrap()));
        entry.0 = entry.0.max(end);
    }
    for (name, (numel, dtype)) in &params {
        let param = Param { name: (*name).into(), dtype: dtype.parse().unwrap(), shape: vec![*numel] };
        captured.params.push(param);
    }
    for c in &copies {
        let param = captured.params.iter().position(|p| p.name == c.param).unwrap();
        captured.copies.push(c.copy(param));
    }
    for name in v["unsupported"].as_array().unwrap_or(&Vec::new()) {
        let reason = Unsupported { op: "mul".into(), params: Vec::new() };
        captured.unsupported.insert(Arc::from(name.as_str().unwrap()), reason);
    }
    let max_descriptors = v["max_segments_per_copy"].as_u64().unwrap();
    Case {
        id: v["id"].as_str().unwrap().into(),
        copies,
        captured,
        catalog,
        limits: Limits {
            max_descriptors,
            convert: true,
            staging: StagingMode::RowShards,
            ..Limits::default()
        },
        truth: v["truth"].clone(),
        peer: v["peer"].clone(),
    }
}

/// Byte of a buffer -> (session, address) that it is read from.
type Map = BTreeMap<u64, (String, u64)>;

/// What the plan moves, by parameter; conversions by staging buffer.
fn moved(plan: &Plan) -> (BTreeMap<String, Map>, Vec<Map>) {
    let mut params: BTreeMap<String, Map> = BTreeMap::new();
    let mut stagings = vec![Map::new(); plan.stagings.len()];
    for (session, target, run) in plan.descriptors() {
        assert!(run.len > 0, "a descriptor of no bytes");
        let map = match target {
            Target::Param(p) => params.entry(plan.params[p].name.clone()).or_default(),
            Target::Staging(s) => &mut stagings[s],
        };
        for i in 0..run.len {
            let twice = map.insert(run.dst + i, (session.to_owned(), run.src + i));
            assert!(twice.is_none(), "byte {} is written twice", run.dst + i);
        }
    }
    for (staging, map) in plan.stagings.iter().zip(&stagings) {
        for step in staging.replays.iter().filter(|s| s.from == s.to) {
            let packing = step.to.packing();
            let out = params.entry(plan.params[step.param].name.clone()).or_default();
            for nest in &step.nests {
                for run in nest.scaled(packing.elements, packing.bytes, 0).unwrap().runs() {
                    for i in 0..run.len {
                        assert!(out.insert(run.dst + i, map[&(run.src + i)].clone()).is_none());
                    }
                }
            }
        }
    }
    (params, stagings)
}

/// The truth's runs of one copy; at most 200 are listed.
fn truth_runs(copy: &Value) -> Map {
    let mut map = Map::new();
    for run in copy["runs"].as_array().unwrap() {
        let n = |i: usize| run[i].as_u64().unwrap();
        for i in 0..n(3) {
            map.insert(n(2) + i, (run[0].as_str().unwrap().to_owned(), n(1) + i));
        }
    }
    map
}

fn check(case: &Case) -> Result<(), String> {
    let plan = plan(&case.captured, &case.catalog, &case.limits).map_err(|e| e.to_string())?;
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
    let cases = cases(include_str!("data/plans.json"));
    let wrong: Vec<String> =
        cases.iter().filter_map(|c| check(c).err().map(|why| format!("{}: {why}", c.id))).collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn shuffled_input_gives_the_same_plan() {
    for mut case in cases(include_str!("data/plans.json")) {
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
