use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use proptest::prelude::*;
use restage_nest::{Loop, Nest};
use restage_remote::{PublishOptions, Publisher, ReadOptions, Shelf, TcpTransport};
use restage_transport::testing::{assert_moves, conformance, noise};
use restage_transport::{
    Abilities, Batch, Cancel, Entry, EntryError, Metered, Receipt, Transport, TransportError,
};

use crate::{connect, publish, quick};

/// A transport and what must live as long as it.
struct With<T>(TcpTransport, #[allow(dead_code)] T);

impl<T: Send + Sync> Transport for With<T> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }

    fn read_with(
        &self,
        batch: &Batch,
        dests: &mut [&mut [u8]],
        cancel: &Cancel,
    ) -> Result<Receipt, TransportError> {
        self.0.read_with(batch, dests, cancel)
    }
}

#[test]
fn memory_conforms() {
    conformance(|sessions| {
        let publisher = publish(sessions, PublishOptions::default());
        Box::new(With(connect(&publisher), publisher))
    });
}

#[test]
fn several_connections_conform() {
    conformance(|sessions| {
        let publisher = publish(sessions, PublishOptions::default());
        let mut options = quick();
        options.connections = 3;
        let transport = TcpTransport::connect([&*publisher.address().to_string()], options).unwrap();
        Box::new(Metered::new(With(transport, publisher)))
    });
}

#[test]
fn files_conform() {
    conformance(|sessions| {
        let dir = tempfile::tempdir().unwrap();
        let mut shelf = Shelf::new([]);
        for (name, _, bytes) in sessions {
            fs::write(dir.path().join(name), bytes).unwrap();
            shelf.file(*name, dir.path().join(name)).unwrap();
        }
        let publisher = Publisher::start("127.0.0.1:0", shelf, PublishOptions::default()).unwrap();
        Box::new(With(connect(&publisher), (publisher, dir)))
    });
}

#[test]
fn several_publishers_conform() {
    conformance(|sessions| {
        let publishers: Vec<Publisher> =
            sessions.iter().map(|s| publish(std::slice::from_ref(s), PublishOptions::default())).collect();
        let addresses: Vec<String> = publishers.iter().map(|p| p.address().to_string()).collect();
        let addresses = addresses.iter().map(String::as_str);
        Box::new(With(TcpTransport::connect(addresses, ReadOptions::default()).unwrap(), publishers))
    });
}

#[test]
fn a_file_cut_short_fails_its_entries_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes = noise(3 << 20, 5);
    fs::write(&path, &bytes).unwrap();
    let mut shelf = Shelf::new([]);
    shelf.file("file", &path).unwrap();
    let publisher = Publisher::start("127.0.0.1:0", shelf, PublishOptions::default()).unwrap();
    let transport = connect(&publisher);
    fs::File::options().write(true).open(&path).unwrap().set_len(1_000_000).unwrap();
    let piece = |src, dst, run, loops: &[(u64, i64, i64)]| Entry {
        session: 0,
        dest: 0,
        nest: Nest {
            src,
            dst,
            run,
            loops: loops.iter().map(|&(count, src, dst)| Loop { count, src, dst }).collect(),
        },
    };
    let entries = vec![
        piece(0, 0, 900_000, &[]),
        piece(999_990, 900_000, 20, &[]),
        piece(100, 900_020, 70_000, &[]),
        piece(999_000, 970_020, 10, &[(400, 100, 10)]),
        piece(5, 974_020, 10, &[(400, 100, 10)]),
    ];
    let batch = Batch { sessions: vec!["file".into()], entries };
    let mut dest = vec![0; 978_020];
    let receipt = transport.read(&batch, &mut [&mut dest]).unwrap();
    let ok: Vec<bool> = receipt.outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, true, false, true], "{receipt:?}");
    let short = receipt.outcomes[1].clone().unwrap_err();
    assert!(
        matches!(short, EntryError::ShortRead { address: 999_990, expected: 20, found: 10, .. }),
        "{short}"
    );
    assert_eq!(dest[..900_000], bytes[..900_000]);
    assert_eq!(dest[900_020..970_020], bytes[100..70_100]);
    assert_eq!(dest[974_020..974_030], bytes[5..15]);
    let again = Batch { entries: vec![piece(7, 0, 100, &[])], ..batch };
    transport.read(&again, &mut [&mut dest]).unwrap().into_result().unwrap();
    assert_eq!(dest[..100], bytes[7..107]);
}

#[test]
fn regions_far_apart_are_read_each_from_its_own() {
    let (low, high) = (noise(5000, 1), noise(7000, 2));
    let mut shelf = Shelf::new([]);
    let far = 1u64 << 40;
    let regions: [(u64, restage_transport::Kept); 2] =
        [(far, Arc::new(high.clone())), (64, Arc::new(low.clone()))];
    shelf.memory("both", regions).unwrap();
    let publisher = Publisher::start("127.0.0.1:0", shelf, PublishOptions::default()).unwrap();
    let transport = connect(&publisher);
    let stride = (far - 64) as i64;
    let nest = Nest { src: 64, dst: 0, run: 3000, loops: vec![Loop { count: 2, src: stride, dst: 3000 }] };
    let batch = Batch { sessions: vec!["both".into()], entries: vec![Entry { session: 0, dest: 0, nest }] };
    let mut dest = vec![0; 6000];
    transport.read(&batch, &mut [&mut dest]).unwrap().into_result().unwrap();
    assert_eq!(dest, [&low[..3000], &high[..3000]].concat());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_layout_of_runs_arrives(
        runs in prop::collection::vec((0u64..200_000, 1u64..9000, 1u64..40, 0i64..400), 1..30),
    ) {
        let sessions = [("a", 0, noise(600_000, 3))];
        let publisher = publish(&sessions, PublishOptions::default());
        let transport = connect(&publisher);
        let mut at = 0;
        let entries: Vec<Entry> = runs.into_iter().map(|(src, run, count, step)| {
            let nest = Nest { src, dst: at, run, loops: vec![Loop { count, src: step, dst: run as i64 }] };
            at += run * count;
            Entry { session: 0, dest: 0, nest }
        }).collect();
        let batch = Batch { sessions: vec!["a".into()], entries };
        assert_moves(&transport, &sessions, &batch, &[at as usize], "random runs");
    }
}

#[test]
fn the_catalog_and_the_sessions_are_told() {
    let publisher = publish(&[("x", 16, vec![1; 10]), ("y", 0, vec![])], PublishOptions::default());
    let transport = connect(&publisher);
    assert_eq!(transport.catalogs().map(|(_, c)| c.to_vec()).collect::<Vec<_>>(), [b"a catalog".to_vec()]);
    let told: HashMap<_, _> =
        transport.sessions().map(|(n, e)| (n.to_owned(), e.ranges().to_vec())).collect();
    assert_eq!(
        told,
        HashMap::from([
            ("x".to_owned(), std::iter::once(16u64..26).collect::<Vec<_>>()),
            ("y".to_owned(), vec![])
        ])
    );
}
