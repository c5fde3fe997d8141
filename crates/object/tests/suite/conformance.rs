//! The suite that every backend passes.

use std::sync::Arc;

use futures_util::FutureExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use restage_object::testing::{HttpServer, S3Server};
use restage_object::{Limits, ObjectStoreAt, ObjectTransport};
use restage_transport::Metered;
use restage_transport::testing::{TestSession, conformance};

/// Limits so small that the suite takes several requests at once, and joins and cuts ranges.
fn small() -> Limits {
    Limits { gap: 64, largest: 32 << 10, in_flight: 80 << 10, requests: 4, ..Limits::default() }
}

fn in_memory(sessions: &[TestSession<'_>], limits: Limits) -> ObjectTransport {
    let store = Arc::new(InMemory::new());
    let mut transport = ObjectTransport::new(limits).unwrap();
    for (name, _, bytes) in sessions {
        let path = Path::from(*name);
        store.put(&path, bytes.clone().into()).now_or_never().unwrap().unwrap();
        let shared: Arc<dyn ObjectStore> = store.clone();
        assert_eq!(transport.register_object(*name, shared, path).unwrap(), bytes.len() as u64);
    }
    transport
}

#[test]
fn in_memory_conforms() {
    conformance(|sessions| Box::new(in_memory(sessions, Limits::default())));
}

#[test]
fn wrapped_and_from_within_a_runtime_it_conforms() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        conformance(|sessions| Box::new(Metered::new(Box::new(in_memory(sessions, small())))));
    });
}

#[test]
fn http_ranges_conform() {
    let server = HttpServer::start();
    conformance(|sessions| {
        let place = ObjectStoreAt::open(&server.url("/some/folder")).unwrap();
        let mut transport = ObjectTransport::new(small()).unwrap();
        for (name, _, bytes) in sessions {
            server.put(&format!("/some/folder/{name}"), bytes.clone());
            transport.register(*name, &place, name).unwrap();
        }
        Box::new(transport)
    });
    assert!(server.requests() > 100, "{}", server.requests());
    assert!(server.largest() <= small().largest, "{}", server.largest());
}

#[test]
fn s3_conforms() {
    let Some(server) = S3Server::start() else {
        eprintln!("skipped: there is no S3 server to start; `cargo xtask s3-server` makes one");
        return;
    };
    let place = server.place("some/prefix").unwrap();
    conformance(|sessions| {
        let mut transport = ObjectTransport::new(Limits::default()).unwrap();
        for (name, _, bytes) in sessions {
            server.put(&format!("some/prefix/{name}"), bytes);
            transport.register(*name, &place, name).unwrap();
        }
        Box::new(transport)
    });
}
