//! Any bytes as a capture file and a sources file, parted by a byte of 0: never a panic; what was read is written
//! and read back the same; and a plan of the two stays inside of what is published.

use std::collections::BTreeMap;

use restage_geometry::{Captured, Region};
use restage_plan::{Catalog, Explain, Limits, Plan, Shard, Source, plan};
use restage_wire::{CaptureFile, SourcesFile, write_capture, write_sources};

/// Reads both files from any bytes, and checks what can be read.
pub fn check(data: &[u8]) {
    let mut parts = data.splitn(2, |&byte| byte == 0);
    let (capture, sources) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let catalog = SourcesFile::parse(sources).ok();
    if let Some(catalog) = &catalog {
        let text = write_sources(catalog);
        assert_eq!(SourcesFile::parse(text.as_bytes()).as_ref(), Ok(catalog), "{text}");
    }
    let Ok(captured) = CaptureFile::parse(capture) else { return };
    let text = write_capture(&captured).unwrap_or_else(|error| panic!("{error}: {captured:?}"));
    assert_eq!(CaptureFile::parse(text.as_bytes()).as_ref(), Ok(&captured), "{text}");
    let catalog = catalog.unwrap_or_else(|| expected(&captured));
    for limits in [
        Limits { convert: true, ..Limits::default() },
        Limits { max_descriptors: 1, strided: true, ..Limits::default() },
    ] {
        if let Ok(plan) = plan(&captured, &catalog, &limits) {
            check_plan(&plan, &catalog);
        }
    }
}

/// A catalog of just what the loader took the sources to be.
fn expected(captured: &Captured) -> Catalog {
    let mut catalog = Catalog::new();
    for (name, (dtype, shape)) in &captured.sources {
        let Ok(region) = Region::whole(shape) else { continue };
        let shard = Shard { region, session: "all".into(), addr: 1 << 20, digest: None };
        // What cannot be published at all is refused there.
        let _ = catalog.insert(&**name, Source { dtype: *dtype, shape: shape.clone(), shards: vec![shard] });
    }
    catalog
}

fn check_plan(plan: &Plan, catalog: &Catalog) {
    assert!(!Explain(plan).to_string().is_empty());
    let counters = plan.counters();
    let mut read = 0;
    for segment in &plan.segments {
        let name = &plan.sources[segment.source].name;
        let source = catalog.get(name).expect("what is read is published");
        let mut extents: BTreeMap<u64, u64> = BTreeMap::new();
        for shard in source.shards.iter().filter(|s| s.session == plan.sessions[segment.session]) {
            let elements = shard.region.numel().expect("shards are counted") as u64;
            let bytes = source.dtype.bytes(elements).expect("shards are whole blocks");
            let end = extents.entry(shard.addr).or_default();
            *end = shard.addr.saturating_add(bytes).max(*end);
        }
        let (first, last) = (extents.keys().min(), extents.values().max());
        let side = segment.nest.src_side().expect("planned positions fit");
        let span: u64 = side.loops.iter().map(|&(count, stride)| (count - 1) * stride).sum();
        assert!(first.is_some_and(|&first| first <= side.start), "{segment:?}");
        assert!(last.is_some_and(|&last| side.start + span + side.run <= last), "{segment:?}");
        read += segment.nest.total().expect("planned sizes fit");
    }
    assert_eq!(read, counters.bytes, "{plan:?}");
}
