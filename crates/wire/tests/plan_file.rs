//! Plan files: what is written reads back, and nothing else is read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use restage_geometry::Captured;
use restage_plan::{Catalog, Limits, Reason, StagingMode, plan};
use restage_wire::{CaptureFile, Change, Inputs, PlacementForm, PlanFile, SourceChange, SourcesFile};
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn parsed(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path.as_ref()).unwrap()).unwrap()
}

fn limits() -> Vec<Limits> {
    let mut out = Vec::new();
    for (max_descriptors, strided) in [(64, false), (1, false), (64, true), (0, true)] {
        out.push(Limits { max_descriptors, strided, convert: true, ..Limits::default() });
    }
    out.push(Limits::default());
    out.push(Limits { staging: StagingMode::RowShards, staging_bytes: Some(64), ..Limits::default() });
    out
}

/// Every planning golden.
fn goldens() -> Vec<(String, Captured, Catalog)> {
    let cases = parsed(root().join("crates/plan/tests/data/plans.json"));
    let case = |case: &Value| {
        let captured = CaptureFile::parse(case["copies"].to_string().as_bytes()).unwrap();
        let catalog = SourcesFile::parse(case["sources"].to_string().as_bytes()).unwrap();
        (case["id"].to_string(), captured, catalog)
    };
    cases["cases"].as_array().unwrap().iter().map(case).collect()
}

fn file(captured: &Captured, catalog: &Catalog, limits: &Limits) -> Option<PlanFile> {
    let plan = plan(captured, catalog, limits).ok()?;
    let placement =
        PlacementForm { engine: "vllm:0.33".into(), tp: 2, ranks: vec![0, 1], expert_parallel: false };
    let ordered = plan.overwritten.iter().map(|o| plan.params[o.param].name.as_str()).collect();
    let inputs = Inputs::of(captured, catalog, limits, Some(placement), &ordered);
    Some(PlanFile::new(plan, inputs))
}

/// A small file with all that a plan can hold: strided and staged reads, a conversion, a constant, refusals.
fn example() -> (Captured, Catalog, PlanFile) {
    let capture = json!({
        "format": "restage-capture", "version": 1,
        "params": {"half": {"dtype": "BF16", "shape": [4, 4]}, "turned": {"dtype": "BF16", "shape": [8, 4]},
                   "wide": {"dtype": "F32", "shape": [6]}, "gone": {"dtype": "U8", "shape": [2]}},
        "copies": [
            {"source": "w", "ops": [{"op": "narrow", "dim": 1, "start": 4, "length": 4}],
             "param": "half", "dest_offset": 0, "dest_shape": [4, 4], "dest_stride": [4, 1]},
            {"source": "v", "ops": [{"op": "t"}],
             "param": "turned", "dest_offset": 0, "dest_shape": [8, 4], "dest_stride": [4, 1]},
            {"source": "n", "ops": [{"op": "mul", "value": 0.1}], "param": "wide", "dest_offset": 0, "dest_shape": [4], "dest_stride": [1]},
            {"source": "v", "ops": [{"op": "select", "dim": 0, "index": 0}, {"op": "narrow", "dim": 0, "start": 0, "length": 4}],
             "param": "half", "dest_offset": 0, "dest_shape": [4], "dest_stride": [1]},
            {"source": "g", "ops": [], "param": "gone", "dest_offset": 0, "dest_shape": [2], "dest_stride": [1]}
        ],
        "fills": [{"param": "wide", "dest_offset": 4, "dest_shape": [2], "dest_stride": [1], "element": "0000803f"}],
        "unsupported": {"u": "sqrt"}
    });
    let rows = |a: u64, b: u64| {
        json!([{"offset": [0, 0], "shape": [2, 8], "session": "t0", "addr": a},
               {"offset": [2, 0], "shape": [2, 8], "session": "t1", "addr": b}])
    };
    let sources = json!({"format": "restage-sources", "version": 1, "sources": {
        "w": {"dtype": "BF16", "shape": [4, 8], "shards": rows(4096, 8192)},
        "v": {"dtype": "BF16", "shape": [4, 8], "shards": rows(128, 256)},
        "n": {"dtype": "BF16", "shape": [4], "shards": [
            {"offset": [0], "shape": [4], "session": "t1", "addr": 64}]},
        "g": {"dtype": "U8", "shape": [2], "shards": [
            {"offset": [0], "shape": [1], "session": "t1", "addr": 0}]}
    }});
    let captured = CaptureFile::parse(capture.to_string().as_bytes()).unwrap();
    let catalog = SourcesFile::parse(sources.to_string().as_bytes()).unwrap();
    let file = file(&captured, &catalog, &Limits { max_descriptors: 8, convert: true, ..Limits::default() })
        .unwrap();
    assert!(
        !file.plan.stagings.is_empty() && file.plan.refused.len() == 2 && !file.plan.overwritten.is_empty()
    );
    assert!(file.plan.stagings.iter().any(|s| s.replays.iter().any(|r| r.values.len() == 2)));
    (captured, catalog, file)
}

/// The plan with reasons as a file has them.
fn as_read(mut file: PlanFile) -> PlanFile {
    for r in &mut file.plan.refused {
        let text = r.reason.to_string();
        let kind = match &r.reason {
            Reason::Gap { .. } => continue,
            Reason::Unsupported { .. } => "unsupported",
            Reason::NotPublished => "not_published",
            Reason::Differs { .. } => "differs",
            Reason::Rejected(_) => "rejected",
            Reason::Gather(_) => "destination",
            Reason::Bytes(_) => "bytes",
            Reason::Conversion { .. } => "conversion",
            other => panic!("{other:?} has no kind in this test"),
        };
        r.reason = Reason::Recorded { kind: kind.to_owned(), text };
    }
    file
}

#[test]
fn what_is_written_reads_back() {
    let schema = parsed(root().join("docs/restage-plan.schema.json"));
    jsonschema::meta::validate(&schema).unwrap();
    let schema = jsonschema::draft202012::new(&schema).unwrap();
    let mut plans = 0;
    let (_, _, one) = example();
    let all = goldens().into_iter().flat_map(|(id, captured, catalog)| {
        limits().into_iter().filter_map(move |l| Some((id.clone(), file(&captured, &catalog, &l)?)))
    });
    for (id, file) in all.chain([("the example".to_owned(), one)]) {
        let text = file.write();
        let read = PlanFile::read(text.as_bytes()).unwrap_or_else(|e| panic!("{id}: {e}"));
        assert_eq!(read.write(), text, "{id}");
        assert_eq!(read, as_read(file), "{id}");
        let value: Value = serde_json::from_str(&text).unwrap();
        let errors: Vec<String> = schema.iter_errors(&value).map(|e| format!("{e:.200}")).collect();
        assert!(errors.is_empty(), "{id}: {errors:?}");
        plans += 1;
    }
    assert!(plans >= 500, "{plans}");
}

/// Every way to a value in a file.
fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| pointers(v, &format!("{at}/{}", escaped(k)), out)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, v)| pointers(v, &format!("{at}/{i}"), out));
        }
        _ => {}
    }
}

/// Whatever is changed in a file, it is refused, or means what it says.
#[test]
fn no_changed_value_is_believed() {
    let schema = parsed(root().join("docs/restage-plan.schema.json"));
    let schema = jsonschema::draft202012::new(&schema).unwrap();
    let (_, _, file) = example();
    let value: Value = serde_json::from_str(&file.write()).unwrap();
    let mut all = Vec::new();
    pointers(&value, "", &mut all);
    let (mut refused, mut read) = (0, Vec::new());
    for pointer in &all {
        let old = value.pointer(pointer).unwrap();
        let mut new: Vec<Value> = vec![json!(null), json!({}), json!([]), json!("no such name"), json!(-1)];
        if let Some(n) = old.as_i64() {
            new.extend([n + 1, n - 1, n * 2, 0, i64::MAX, i64::MIN].map(|n| json!(n)));
            new.extend([json!(u64::MAX), json!(u64::MAX / 2 + 1), json!(1.5)]);
        }
        if let Some(list) = old.as_array() {
            let mut longer = list.clone();
            longer.extend(list.first().cloned());
            new.extend([json!(longer), json!(list.get(1..).unwrap_or_default())]);
            new.push(json!(list.iter().rev().collect::<Vec<_>>()));
        }
        for new in new.into_iter().filter(|new| new != old) {
            let mut changed = value.clone();
            *changed.pointer_mut(pointer).unwrap() = new.clone();
            match PlanFile::read(changed.to_string().as_bytes()) {
                Err(_) => refused += 1,
                Ok(file) => {
                    let again: Value = serde_json::from_str(&file.write()).unwrap();
                    assert!(again == changed, "{pointer} {new}: {again}");
                    assert!(schema.is_valid(&changed), "{pointer} {new}");
                    read.push(pointer.clone());
                }
            }
        }
    }
    assert!(refused > 2000, "{refused}");
    // What nothing else in the file repeats: where bytes come from, words, and what was counted while planning.
    let free = |pointer: &str| {
        let part = pointer.split('/').nth(1).unwrap_or_default();
        ["refused", "sources", "segments", "stagings", "fills", "overwritten", "unbounded", "params"]
            .contains(&part)
    };
    let fixed: Vec<&String> = read.iter().filter(|p| !free(p)).collect();
    assert!(fixed.is_empty(), "{fixed:?}");
}

fn refusal(change: impl Fn(&mut Value)) -> String {
    let (_, _, file) = example();
    let mut value: Value = serde_json::from_str(&file.write()).unwrap();
    change(&mut value);
    PlanFile::read(value.to_string().as_bytes()).unwrap_err().to_string()
}

#[test]
fn refusals_name_the_path() {
    type Edit = fn(&mut Value);
    let cases: [(&str, Edit); 17] = [
        ("stagings[0].replays[0].to: BF16 becomes", |v| v["stagings"][0]["replays"][0]["values"] = json!([])),
        ("stagings[0].replays[0].values[0]: is no operation on values", |v| {
            v["stagings"][0]["replays"][0]["values"][0] = json!({"op": "t"});
        }),
        ("version: version 2 is not known", |v| v["version"] = json!(2)),
        ("format: expected \"restage-plan\"", |v| v["format"] = json!("restage-capture")),
        ("segments[0].note: unknown field", |v| v["segments"][0]["note"] = json!(1)),
        ("segments[0].session: there is no session \"x\"", |v| v["segments"][0]["session"] = json!("x")),
        ("segments[0].target.param: there is no parameter", |v| {
            v["segments"][0]["target"] = json!({"param": "x"});
        }),
        ("segments[1].target.staging: staging 9 does not exist; there are", |v| {
            v["segments"][1]["target"] = json!({"staging": 9});
        }),
        ("segments[0]: a position of a strided copy does not fit in 64 bits", |v| {
            v["segments"][0]["src"] = json!(u64::MAX);
        }),
        ("segments[0]: the destination reaches", |v| v["segments"][0]["dst"] = json!(1000)),
        ("segments[1]: writes byte", |v| {
            let first = v["segments"][0].clone();
            v["segments"][1] = first;
        }),
        ("stagings[0].bytes: expected", |v| v["stagings"][0]["bytes"] = json!(1u64 << 40)),
        ("stagings[0].bytes: with this, the stagings have more", |v| {
            v["stagings"][0]["bytes"] = json!(1u64 << 60)
        }),
        ("params[0].covered: expected", |v| v["params"][0]["covered"] = json!(1)),
        ("counters.descriptor_count: expected", |v| v["counters"]["descriptor_count"] = json!(1)),
        ("inputs.whole: expected", |v| {
            v["inputs"]["whole"] = json!(format!("sha256:{}", "0".repeat(64)));
        }),
        ("inputs.limits: expected", |v| v["max_descriptors"] = json!(9)),
    ];
    for (start, edit) in cases {
        let error = refusal(edit);
        let same = error.starts_with(start) || (start.starts_with("inputs") && error.contains("inputs."));
        assert!(same, "{start}: {error}");
    }
    let large = vec![b' '; restage_wire::MAX_PLAN_BYTES as usize + 1];
    assert!(PlanFile::read(&large).unwrap_err().to_string().contains("more than"));
}

/// The parameters of the example in which a later write replaces an earlier one.
const ORDERED: [&str; 1] = ["half"];

fn changes(
    change: impl Fn(&mut Captured, &mut Vec<(String, restage_plan::Source)>, &mut Limits),
) -> Vec<Change> {
    let (mut captured, catalog, file) = example();
    let mut sources: Vec<_> = catalog.iter().map(|(n, s)| (n.to_owned(), s.clone())).collect();
    let mut limits = file.inputs.limits.clone();
    change(&mut captured, &mut sources, &mut limits);
    let mut catalog = Catalog::new();
    sources.into_iter().for_each(|(name, source)| catalog.insert(name, source).unwrap());
    let placement = file.inputs.placement.clone();
    let found = Inputs::of(&captured, &catalog, &limits, placement, &ORDERED.into());
    let changes = file.changes(&captured, &found);
    assert_eq!(changes.is_empty(), file.inputs.whole() == found.whole());
    changes
}

#[test]
fn every_change_of_the_inputs_is_named() {
    // Order is no input, where nothing is written twice.
    let order = changes(|captured, sources, _| {
        // The two into one parameter stay in their order.
        captured.copies.sort_by_key(|c| std::cmp::Reverse(c.param));
        captured.fills.reverse();
        sources.reverse();
        sources.iter_mut().for_each(|(_, s)| s.shards.reverse());
    });
    assert_eq!(order, []);
    let text = |list: Vec<Change>| list.iter().map(Change::to_string).collect::<Vec<_>>().join("; ");
    let at = |name: &str, sources: &[(String, restage_plan::Source)]| {
        sources.iter().position(|(n, _)| n == name).unwrap()
    };
    let shape = changes(|_, s, _| {
        let n = at("n", s);
        s[n].1.shape = vec![5];
    });
    assert_eq!(text(shape), "source n: shape expected [4], found [5]");
    let dtype = changes(|_, s, _| {
        let n = at("n", s);
        s[n].1.dtype = restage_geometry::Dtype::F16;
    });
    assert_eq!(text(dtype), "source n: dtype expected BF16, found F16");
    let address = changes(|_, s, _| {
        let n = at("w", s);
        s[n].1.shards[1].addr += 2;
    });
    assert_eq!(text(address), "source w: changed address");
    let session = changes(|_, s, _| {
        let n = at("w", s);
        s[n].1.shards[1].session = "t2".into();
    });
    assert_eq!(text(session), "source w: its shards are cut otherwise, or lie in other sessions");
    let fewer = changes(|_, s, _| {
        let n = at("w", s);
        s[n].1.shards.pop();
    });
    assert_eq!(text(fewer), "source w: expected 2 shards, found 1");
    let gone = changes(|_, s, _| {
        let n = at("w", s);
        s.remove(n);
    });
    let removed = Change::Source { name: "w".into(), what: SourceChange::Removed };
    assert_eq!(gone, [removed]);
    let limit = changes(|_, _, l| l.max_descriptors = 7);
    assert_eq!(text(limit), "max_descriptors: expected 8, found 7");
    let swapped = changes(|c, _, _| c.copies.reverse());
    assert_eq!(text(swapped), "capture: its copies changed");
    let copies = changes(|c, _, _| c.copies[0].dest.offset += 1);
    assert_eq!(text(copies), "capture: its copies changed");
    let fills = changes(|c, _, _| c.fills[0].element[0] ^= 1);
    assert_eq!(text(fills), "capture: its fills changed");
    let param = changes(|c, _, _| c.params.iter_mut().find(|p| p.name == "wide").unwrap().shape = vec![7]);
    assert_eq!(text(param), "parameter wide: expected F32 [6], found F32 [7]");
    let rank = {
        let (captured, catalog, file) = example();
        let mut placement = file.inputs.placement.clone();
        placement.as_mut().unwrap().ranks = vec![1];
        let found = Inputs::of(&captured, &catalog, &file.inputs.limits, placement, &ORDERED.into());
        file.changes(&captured, &found)
    };
    assert_eq!(text(rank), "rank: expected 0 1, found 1");
}

/// Where later writes replace earlier ones, their order is part of the input.
#[test]
fn the_order_of_ordered_parameters_counts() {
    let (mut captured, catalog, file) = example();
    let copy = captured.copies[0].clone();
    let mut other = copy.clone();
    other.source = "v".into();
    captured.copies = vec![copy, other];
    let of = |captured: &Captured, ordered: &[&str]| {
        let ordered: BTreeSet<&str> = ordered.iter().copied().collect();
        Inputs::of(captured, &catalog, &file.inputs.limits, None, &ordered).whole()
    };
    let mut turned = captured.clone();
    turned.copies.reverse();
    assert_eq!(of(&captured, &[]), of(&turned, &[]));
    assert_ne!(of(&captured, &["half"]), of(&turned, &["half"]));
}
