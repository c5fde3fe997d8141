//! Recorded planning cases, and what a plan moves, byte by byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use restage_geometry::{Captured, Param, Unsupported};
use restage_plan::{Catalog, Limits, Plan, StagingMode, Target};
use restage_wire::{CopyForm, SourceForm};
use serde_json::Value;

pub struct Case {
    pub id: String,
    pub copies: Vec<CopyForm>,
    pub captured: Captured,
    pub catalog: Catalog,
    pub limits: Limits,
    pub truth: Value,
    pub peer: Value,
}

pub fn cases(json: &str) -> Vec<Case> {
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
        let last = c.dest_shape.iter().zip(&c.dest_stride).map(reach).sum::<i64>();
        let end = c.dest_offset + if c.dest_shape.contains(&0) { 0 } else { last + 1 };
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
pub type Map = BTreeMap<u64, (String, u64)>;

/// What the plan moves, by parameter; conversions by staging buffer.
pub fn moved(plan: &Plan) -> (BTreeMap<String, Map>, Vec<Map>) {
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
pub fn truth_runs(copy: &Value) -> Map {
    let mut map = Map::new();
    for run in copy["runs"].as_array().unwrap() {
        let n = |i: usize| run[i].as_u64().unwrap();
        for i in 0..n(3) {
            map.insert(n(2) + i, (run[0].as_str().unwrap().to_owned(), n(1) + i));
        }
    }
    map
}
