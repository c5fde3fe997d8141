//! Random sources, shard tables, chains and destinations: what a plan moves equals what ndarray makes of it, and
//! a plan that is altered is found out.

mod mutants;
mod world;

use std::collections::BTreeMap;

use proptest::prelude::*;
use restage_geometry::{Captured, Copy, Dest, Dtype, Fill, Op, Param, Region};
use restage_plan::{Catalog, Limits, Reason, Shard, Source, Target, check, plan};

use world::{carry_out, cases, loaded, world};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn planned_bytes_are_those_of_plain_arrays(case in cases()) {
        let (source, world) = world(&case);
        let (captured, expected) = loaded(&case, &source);
        let plan = plan(&captured, &world.catalog, &case.limits).unwrap();
        prop_assert_eq!(check(&plan, &captured, &world.catalog), Ok(()));
        let c = plan.counters();
        if let [refused] = &plan.refused[..] {
            // Refused only where a hole is wanted, or a limit leaves no way; and then nothing is read.
            match refused.reason {
                Reason::Gap { .. } => prop_assert!(case.cut.hole.is_some() && !case.cut.replica),
                Reason::Alignment { .. } => prop_assert!(case.limits.alignment > 1),
                Reason::Staging { .. } => prop_assert!(case.limits.staging_bytes.is_some()),
                _ => prop_assert!(false, "{}", refused.reason),
            }
            prop_assert!(plan.segments.is_empty());
            return Ok(());
        }
        let wanted: u64 = expected.iter().map(|(_, n)| 2 * *n as u64).sum();
        prop_assert_eq!(c.exact_bytes, wanted);
        prop_assert_eq!(plan.coverage.iter().map(|c| c.covered).sum::<u64>(), wanted);
        prop_assert_eq!(plan.descriptors().map(|d| d.2.len).sum::<u64>(), c.bytes);
        let got = carry_out(&plan, &world.memory);
        for (p, (bytes, _)) in expected.iter().enumerate() {
            prop_assert_eq!(&got[p], bytes, "parameter {}", p);
        }
        if plan.stagings.is_empty() {
            prop_assert_eq!(c.bytes, c.exact_bytes);
        }
        let most = case.limits.staging_bytes.unwrap_or(u64::MAX);
        prop_assert!(plan.stagings.iter().all(|s| s.bytes <= most));
        for (_, _, run) in plan.descriptors() {
            prop_assert!(run.src.is_multiple_of(case.limits.alignment));
        }
    }
}

#[test]
fn replicas_are_read_once_and_readers_spread_over_them() {
    let mut catalog = Catalog::new();
    let mut captured = Captured::default();
    for i in 0..16 {
        let shards = (0..8)
            .map(|s| Shard {
                region: Region::whole(&[8, 4]).unwrap(),
                session: format!("s{s}").as_str().into(),
                addr: 1024 * i,
                digest: None,
            })
            .collect();
        let name = format!("w{i:02}");
        catalog.insert(&name, Source { dtype: Dtype::U8, shape: vec![8, 4], shards }).unwrap();
        captured.params.push(Param { name: name.clone(), dtype: Dtype::U8, shape: vec![8, 4] });
        let copy =
            Copy { source: name.as_str().into(), ops: vec![], param: i as usize, dest: Dest::whole(&[8, 4]) };
        captured.copies.push(copy);
    }
    let plan = plan(&captured, &catalog, &Limits::default()).unwrap();
    assert!(plan.is_complete());
    assert_eq!(plan.counters().bytes, 16 * 32);
    assert_eq!(plan.session_counters(), vec![(64, 2); 8]);
}

proptest! {
    #[test]
    fn the_later_of_two_writes_wins(
        writes in prop::collection::vec((0usize..3, 0i64..20, 1i64..5, 1i64..5, 4i64..7), 1..6),
        bound in prop::sample::select(vec![1u64, 4, 64]),
        convert in any::<bool>(),
    ) {
        const NUMEL: i64 = 60;
        // A source of another dtype than the parameter's makes the copies conversions.
        let dtype = if convert { Dtype::BF16 } else { Dtype::F32 };
        let size = if convert { 2 } else { 4 };
        let element = |v: f32| if convert { v.to_le_bytes()[2..].to_vec() } else { v.to_le_bytes().to_vec() };
        let mut catalog = Catalog::new();
        let mut memory: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for s in 0..2i64 {
            let bytes = memory.entry(format!("s{s}")).or_default();
            bytes.extend((0..16i64).flat_map(|i| element((16 * s + i + 1) as f32)));
            let half = |at: i64| Shard {
                region: Region::new(&[2 * at, 0], &[2, 4]).unwrap(),
                session: format!("s{s}").as_str().into(),
                addr: (8 * at * size) as u64,
                digest: None,
            };
            let source = Source { dtype, shape: vec![4, 4], shards: vec![half(0), half(1)] };
            catalog.insert(format!("w{s}"), source).unwrap();
        }
        let mut captured = Captured::default();
        captured.params.push(Param { name: "p".into(), dtype: Dtype::F32, shape: vec![NUMEL] });
        let mut expected = vec![None; NUMEL as usize];
        let mut written = 0;
        for (kind, offset, rows, cols, pitch) in writes {
            let dest = Dest { offset, shape: vec![rows, cols], strides: vec![pitch, 1] };
            written += rows * cols;
            for (r, c) in (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))) {
                let value = if kind == 2 { -1.0 } else { (16 * kind as i64 + 4 * r + c + 1) as f32 };
                expected[(offset + r * pitch + c) as usize] = Some(value);
            }
            if kind == 2 {
                let after = captured.copies.len();
                captured.fills.push(Fill { param: 0, dest, element: (-1.0f32).to_le_bytes().to_vec(), after });
            } else {
                let ops = vec![
                    Op::Narrow { dim: 0, start: 0, length: rows },
                    Op::Narrow { dim: 1, start: 0, length: cols },
                ];
                captured.copies.push(Copy { source: format!("w{kind}").as_str().into(), ops, param: 0, dest });
            }
        }
        let limits = Limits { max_descriptors: bound, convert, ..Limits::default() };
        let plan = plan(&captured, &catalog, &limits).unwrap();
        prop_assert!(plan.refused.is_empty());
        let kept = expected.iter().flatten().count() as i64;
        prop_assert_eq!(plan.coverage[0].covered as i64, 4 * kept);
        let lost: u64 = plan.overwritten.iter().map(|o| o.bytes).sum();
        prop_assert_eq!(lost as i64, 4 * (written - kept));
        let mut stagings: Vec<Vec<u8>> = plan.stagings.iter().map(|s| vec![0xee; s.bytes as usize]).collect();
        let mut param = vec![0xee; 4 * NUMEL as usize];
        for (session, target, run) in plan.descriptors() {
            let to = match target {
                Target::Param(_) => &mut param,
                Target::Staging(s) => &mut stagings[s],
            };
            let from = &memory[session][run.src as usize..(run.src + run.len) as usize];
            to[run.dst as usize..(run.dst + run.len) as usize].copy_from_slice(from);
        }
        for (staging, bytes) in plan.stagings.iter().zip(&stagings) {
            for run in staging.replays.iter().flat_map(|s| &s.nests).flat_map(|n| n.runs()) {
                for i in 0..run.len {
                    let from = &bytes[(run.src + i) as usize * size as usize..][..size as usize];
                    let value = [&vec![0; 4 - size as usize][..], from].concat();
                    param[4 * (run.dst + i) as usize..][..4].copy_from_slice(&value);
                }
            }
        }
        for fill in &plan.fills {
            for run in fill.dest.nest().runs() {
                for i in 0..run.len {
                    param[4 * (run.dst + i) as usize..][..4].copy_from_slice(&fill.element);
                }
            }
        }
        for (at, value) in expected.iter().enumerate() {
            let bytes = value.map_or([0xee; 4], f32::to_le_bytes);
            prop_assert_eq!(&param[4 * at..4 * at + 4], &bytes[..], "element {}", at);
        }
    }
}
