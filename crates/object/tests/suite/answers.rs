//! What a store answers that was not asked for is an error, and never bytes.

use std::time::Duration;

use restage_nest::{Loop, Nest};
use restage_object::testing::{Answers, HttpServer, S3Server};
use restage_object::{Limits, ObjectError, ObjectStoreAt, ObjectTransport};
use restage_transport::testing::noise;
use restage_transport::{Batch, Entry, EntryError, Receipt, Transport};

/// Object `a` of 10,000 bytes, over a server that can be told to misbehave.
fn served(limits: Limits) -> (HttpServer, ObjectTransport, Vec<u8>) {
    let server = HttpServer::start();
    let bytes = noise(10_000, 7);
    server.put("/a", bytes.clone());
    let mut transport = ObjectTransport::new(limits).unwrap();
    let place = ObjectStoreAt::open(&server.url("/")).unwrap();
    transport.register("a", &place, "a").unwrap();
    (server, transport, bytes)
}

fn batch(nests: Vec<Nest>) -> Batch {
    let entries = nests.into_iter().map(|nest| Entry { session: 0, dest: 0, nest }).collect();
    Batch { sessions: vec!["a".into()], entries }
}

fn run(src: u64, dst: u64, run: u64) -> Nest {
    Nest { src, dst, run, loops: Vec::new() }
}

fn read(transport: &ObjectTransport, batch: &Batch) -> (Receipt, Vec<u8>) {
    let mut dest = vec![0; 10_000];
    let receipt = transport.read(batch, &mut [&mut dest]).unwrap();
    (receipt, dest)
}

#[test]
fn an_answer_that_was_not_asked_for_is_an_error() {
    let (server, transport, bytes) = served(Limits::default());
    let batch = batch(vec![run(100, 0, 1000)]);
    for (answers, part) in [
        (Answers::Whole, "Range request not supported"),
        (Answers::Elsewhere, "Requested 100..1100, got 101..1101"),
        (Answers::Unsaid, "Content-Range"),
        (Answers::Long, "1000 bytes asked for, more answered"),
        (Answers::Resized, "had 10000 bytes and now has 10001"),
        (Answers::Replaced, "was version \"10000-1\" and now is \"another\""),
        (Answers::Encoded, "content encoding \"gzip\""),
    ] {
        server.answer(answers);
        let (receipt, _) = read(&transport, &batch);
        let Err(EntryError::Io { session, address: 100, length: 1000, reason, .. }) = &receipt.outcomes[0]
        else {
            panic!("{answers:?}: {receipt:?}");
        };
        assert!(&**session == "a" && reason.contains(part), "{answers:?}: {reason}");
        assert!(!reason.contains('\n'), "{reason:?}");
    }
    server.answer(Answers::Short);
    let (receipt, _) = read(&transport, &batch);
    let expected = EntryError::ShortRead { session: "a".into(), address: 100, expected: 1000, found: 500 };
    assert_eq!(receipt.outcomes, [Err(expected)]);
    server.answer(Answers::Well);
    let (receipt, dest) = read(&transport, &batch);
    assert_eq!((receipt.outcomes, &dest[..1000]), (vec![Ok(1000)], &bytes[100..1100]));
}

#[test]
fn what_failed_once_is_asked_again() {
    let (server, transport, bytes) = served(Limits::default());
    for answers in [Answers::BusyOnce, Answers::CutOnce] {
        server.answer(answers);
        let (receipt, dest) = read(&transport, &batch(vec![run(3, 0, 9000)]));
        assert_eq!((receipt.outcomes, &dest[..9000]), (vec![Ok(9000)], &bytes[3..9003]), "{answers:?}");
        // As the transport counts them.
        assert_eq!(receipt.requests, 1, "{answers:?}");
    }
}

#[test]
fn silence_ends_at_the_deadline_and_names_the_session() {
    let deadline = Duration::from_millis(200);
    let (server, transport, _) = served(Limits { deadline, ..Limits::default() });
    server.answer(Answers::Silent);
    let (receipt, _) = read(&transport, &batch(vec![run(0, 0, 10)]));
    let Err(error) = &receipt.outcomes[0] else { panic!("{receipt:?}") };
    assert_eq!(error.to_string(), "session a: 10 bytes at 0x0: not answered within 0.2 s");
    server.answer(Answers::Cut);
    let (receipt, _) = read(&transport, &batch(vec![run(0, 0, 10)]));
    assert!(receipt.outcomes[0].is_err(), "{receipt:?}");
}

#[test]
fn a_fault_falls_on_the_entries_of_its_request() {
    let limits = Limits { gap: 100, largest: 4096, requests: 1, ..Limits::default() };
    let (server, transport, bytes) = served(limits);
    server.put("/a", bytes[..6000].to_vec());
    let mut transport = transport;
    let place = ObjectStoreAt::open(&server.url("/")).unwrap();
    transport.register("b", &place, "a").unwrap();
    // Of session a, which has become another object, nothing is read; of session b everything.
    let mut batch = batch(vec![run(0, 0, 10), run(50, 10, 10), run(0, 20, 10)]);
    batch.sessions.push("b".into());
    batch.entries[2].session = 1;
    let (receipt, dest) = read(&transport, &batch);
    assert!(receipt.outcomes[0].is_err() && receipt.outcomes[1].is_err(), "{receipt:?}");
    assert_eq!((&receipt.outcomes[2], &dest[20..30]), (&Ok(10), &bytes[..10]));
    assert_eq!(receipt.requests, 2);
}

#[test]
fn near_ranges_are_joined_and_long_ones_cut() {
    let limits = Limits { gap: 100, largest: 1000, ..Limits::default() };
    let (server, transport, bytes) = served(limits);
    let rows = |step: i64| Nest { loops: vec![Loop { count: 50, src: step, dst: 20 }], ..run(0, 0, 20) };
    // Gaps of 100 bytes are read along, of 101 not.
    for (step, requests) in [(20, 1), (60, 4), (120, 8), (121, 50)] {
        let (receipt, dest) = read(&transport, &batch(vec![rows(step)]));
        assert_eq!(receipt.outcomes, [Ok(1000)]);
        assert!(receipt.requests <= requests, "steps of {step}: {}", receipt.requests);
        for row in 0..50 {
            let at = row * step as usize;
            assert_eq!(dest[row * 20..][..20], bytes[at..at + 20]);
        }
    }
    let (receipt, dest) = read(&transport, &batch(vec![run(0, 0, 10_000)]));
    assert!((10..=16).contains(&receipt.requests), "{}", receipt.requests);
    assert_eq!(dest, bytes);
    assert!(server.largest() <= 1000);
}

#[test]
fn a_replaced_object_of_s3_is_refused() {
    let Some(server) = S3Server::start() else {
        eprintln!("skipped: there is no S3 server to start; `cargo xtask s3-server` makes one");
        return;
    };
    let mut transport = ObjectTransport::new(Limits::default()).unwrap();
    server.put("a", &noise(10_000, 1));
    let place = server.place("").unwrap();
    transport.register("a", &place, "a").unwrap();
    server.put("a", &noise(10_000, 2));
    let (receipt, _) = read(&transport, &batch(vec![run(0, 0, 10)]));
    assert!(receipt.outcomes[0].is_err(), "{receipt:?}");
}

#[test]
fn what_is_not_there_is_told_apart() {
    let server = HttpServer::start();
    let place = ObjectStoreAt::open(&server.url("/x")).unwrap();
    let mut transport = ObjectTransport::new(Limits::default()).unwrap();
    let error = transport.register("a", &place, "a").unwrap_err();
    assert!(matches!(error, ObjectError::Store { missing: true, .. }), "{error}");
    server.put("/x/a", vec![1, 2, 3]);
    transport.register("a", &place, "a").unwrap();
    assert_eq!(transport.start_of("a", 2).unwrap(), [1, 2]);
    assert_eq!(transport.start_of("a", 20).unwrap(), [1, 2, 3]);
    assert!(matches!(transport.register("a", &place, "a"), Err(ObjectError::SessionTaken { .. })));
}
