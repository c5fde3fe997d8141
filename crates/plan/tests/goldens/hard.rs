//! Inputs that a peer plans wrongly or wastefully, with the right answers.

use std::collections::BTreeMap;

use restage_geometry::{Dtype, Param};
use restage_plan::{Limits, Plan, PlanError, Reason, StagingMode, check, plan};

use crate::cases::{Case, Map, cases, moved};

/// The cases by name, planned with stretches staged.
fn hard(id: &str) -> Case {
    let all = cases(include_str!("../data/plans_hard.json"));
    let mut case = all.into_iter().find(|c| c.id == id).unwrap();
    case.limits.staging = StagingMode::Tiles;
    case
}

/// The plan of a case, checked.
fn planned(case: &Case) -> Plan {
    let plan = plan(&case.captured, &case.catalog, &case.limits).unwrap();
    assert_eq!(check(&plan, &case.captured, &case.catalog), Ok(()), "{}", case.id);
    plan
}

/// Descriptors as (session, address, bytes), sorted.
fn reads(plan: &Plan) -> Vec<(String, u64, u64)> {
    let mut out: Vec<_> = plan.descriptors().map(|(s, _, r)| (s.to_owned(), r.src, r.len)).collect();
    out.sort();
    out
}

/// Byte by byte where a parameter comes from; each byte once.
fn param(plan: &Plan, name: &str) -> Map {
    moved(plan).0.remove(name).unwrap_or_default()
}

#[test]
fn gaps_are_refused_before_anything_is_read() {
    for (id, missing, holes) in [
        ("defect-000", 16, "[4..8, 0..4]"),
        ("defect-001", 12, "[3..6, 0..4]"),
        ("defect-005", 8, "[2..4, 0..4]"),
    ] {
        let plan = planned(&hard(id));
        let [refused] = &plan.refused[..] else { panic!("{id}") };
        let Reason::Gap { missing: found, holes: boxes, .. } = &refused.reason else { panic!("{id}") };
        let boxes: Vec<String> = boxes.iter().map(|b| b.to_string()).collect();
        assert_eq!((*found, boxes.join(" ")), (missing, holes.to_owned()), "{id}");
        assert!(plan.segments.is_empty() && !plan.is_complete(), "{id}");
    }
}

#[test]
fn shards_that_overlap_are_read_once() {
    for (id, bytes) in [("defect-006", 64), ("defect-008", 32)] {
        let plan = planned(&hard(id));
        assert!(plan.is_complete(), "{id}");
        let c = plan.counters();
        assert_eq!((c.bytes, c.exact_bytes, param(&plan, "p").len() as u64), (bytes, bytes, bytes), "{id}");
    }
    // Of two sessions that have all of it each reads a half.
    assert_eq!(planned(&hard("defect-008")).sessions.len(), 2);
}

#[test]
fn sources_of_no_elements_make_an_empty_plan() {
    for id in ["defect-010", "defect-011"] {
        let plan = planned(&hard(id));
        assert!(plan.is_complete() && plan.segments.is_empty() && plan.sessions.is_empty(), "{id}");
    }
}

#[test]
fn empty_shards_are_neither_read_nor_in_the_way() {
    for staging in [StagingMode::RowShards, StagingMode::Tiles] {
        for (id, descriptors) in [("defect-012", 5), ("defect-013", 2)] {
            let mut case = hard(id);
            case.limits.staging = staging;
            let plan = planned(&case);
            assert_eq!(plan.counters().descriptors, descriptors, "{id} {staging:?}");
            assert!(plan.descriptors().all(|(_, _, run)| run.len > 0), "{id}");
        }
        let mut case = hard("defect-013");
        case.limits.staging = staging;
        assert_eq!(planned(&case).unbounded().count(), 0);
    }
}

#[test]
fn neighbours_are_one_read() {
    for (id, descriptors, bytes) in
        [("defect-016", 2, 128), ("defect-017", 2, 64), ("defect-018", 1, 64), ("defect-019", 1, 64)]
    {
        let c = planned(&hard(id)).counters();
        assert_eq!((c.descriptors, c.bytes), (descriptors, bytes), "{id}");
    }
    let read = vec![("t0".to_owned(), 1048576, 64)];
    assert_eq!(reads(&planned(&hard("defect-019"))), read);
}

#[test]
fn bytes_that_two_parameters_need_are_read_once() {
    let plan = planned(&hard("defect-020"));
    let c = plan.counters();
    assert_eq!((c.exact_bytes, c.bytes, c.descriptors), (64, 32, 1));
    assert_eq!(param(&plan, "k0"), param(&plan, "k1"));
    // Where nothing may be staged they are read twice.
    let mut case = hard("defect-020");
    case.limits.staging_bytes = Some(0);
    assert_eq!(planned(&case).counters().bytes, 64);
}

#[test]
fn a_conversion_keeps_its_place_in_the_parameter() {
    let mut case = hard("defect-023");
    case.captured.params[0] = Param { name: "bias".into(), dtype: Dtype::F32, shape: vec![2, 4] };
    let plan = planned(&case);
    assert!(plan.is_complete());
    let places: Vec<(u64, u64)> =
        plan.stagings.iter().flat_map(|s| &s.replays).map(|r| (r.nests[0].dst, r.nests[0].run)).collect();
    assert_eq!(places, [(0, 4), (4, 4)]);
}

#[test]
fn only_what_is_needed_of_a_source_is_pulled() {
    // One expert of eight: one read within its shard, from the first needed byte to the last.
    let plan = planned(&hard("defect-024"));
    assert_eq!(reads(&plan), [("t2".to_owned(), 3145734, 42)]);
    // A column slice: less than the whole, in as few descriptors.
    let c = planned(&hard("defect-025")).counters();
    assert_eq!((c.descriptors, c.bytes), (2, 800));
    // Tiles of a grid, and columns: one read a tile.
    for (id, descriptors, most) in [("defect-026", 4, 256), ("defect-027", 2, 1024)] {
        let plan = planned(&hard(id));
        let c = plan.counters();
        assert_eq!((c.descriptors, plan.unbounded().count()), (descriptors, 0), "{id}");
        assert!(c.bytes <= most, "{id}: {c:?}");
    }
}

#[test]
fn a_destination_outside_of_its_parameter_is_refused() {
    let mut case = hard("defect-028");
    case.captured.params[0].shape = vec![4, 4];
    let plan = planned(&case);
    assert!(matches!(plan.refused[0].reason, Reason::Gather(_)), "{}", plan.refused[0].reason);
    assert!(plan.segments.is_empty());
}

#[test]
fn the_later_write_wins_everywhere() {
    for staging in [StagingMode::RowShards, StagingMode::Tiles] {
        let mut case = hard("defect-029");
        case.limits.staging = staging;
        let plan = planned(&case);
        let expect: Map = (0..32).map(|i| (i, ("t0".to_owned(), 1048640 + i))).collect();
        assert_eq!(param(&plan, "p"), expect);
        let lost: Vec<_> = plan.overwritten.iter().map(|o| (o.writer.as_str(), o.bytes)).collect();
        assert_eq!((lost, plan.counters().bytes), (vec![("a", 32)], 32));
    }
}

#[test]
fn a_chain_that_torch_rejects_names_its_source() {
    let plan = planned(&hard("defect-031"));
    assert_eq!(&*plan.refused[0].source, "w");
    assert!(matches!(plan.refused[0].reason, Reason::Rejected(_)));
}

#[test]
fn every_case_is_planned_under_every_limit_or_refused_by_name() {
    for case in cases(include_str!("../data/plans_hard.json")) {
        let mut covered: BTreeMap<String, u64> = BTreeMap::new();
        for staging in [StagingMode::RowShards, StagingMode::Tiles] {
            for (max_descriptors, strided, staging_bytes) in [
                (64, false, None),
                (1, false, None),
                (2, false, Some(40)),
                (1, true, None),
                (0, true, Some(0)),
            ] {
                let limits =
                    Limits { max_descriptors, strided, staging_bytes, staging, ..case.limits.clone() };
                let plan = match plan(&case.captured, &case.catalog, &limits) {
                    Ok(plan) => plan,
                    Err(PlanError::WrittenTwice { .. }) => panic!("{}", case.id),
                    Err(e) => panic!("{}: {e}", case.id),
                };
                assert_eq!(check(&plan, &case.captured, &case.catalog), Ok(()), "{} {limits:?}", case.id);
                let bytes: u64 = plan.coverage.iter().map(|c| c.covered).sum();
                let staged = plan.refused.iter().any(|r| matches!(r.reason, Reason::Staging { .. }));
                if !staged {
                    assert_eq!(*covered.entry(case.id.clone()).or_insert(bytes), bytes, "{limits:?}");
                }
            }
        }
    }
}
