//! Every backend and wrapper passes the one suite.

use std::sync::Arc;

use restage_transport::testing::{TestSession, conformance};
use restage_transport::{FileTransport, MemoryTransport, Metered, Transport};
use tempfile::TempDir;

fn memory(sessions: &[TestSession<'_>]) -> MemoryTransport<'static> {
    let mut memory = MemoryTransport::new();
    for (name, addr, bytes) in sessions {
        memory.register(*name, *addr, bytes.clone()).unwrap();
    }
    memory
}

fn files(dir: &TempDir, sessions: &[TestSession<'_>]) -> FileTransport {
    let mut files = FileTransport::new();
    for (name, addr, bytes) in sessions {
        assert_eq!(*addr, 0);
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        files.register(*name, path).unwrap();
    }
    files
}

#[test]
fn memory_conforms() {
    conformance(|sessions| Box::new(memory(sessions)));
}

#[test]
fn file_conforms() {
    let dir = TempDir::new().unwrap();
    conformance(|sessions| Box::new(files(&dir, sessions)));
}

#[test]
fn wrappers_conform() {
    conformance(|sessions| Box::new(Metered::new(memory(sessions))));
    conformance(|sessions| Box::new(Metered::recording(Arc::new(memory(sessions)))));
    conformance(|sessions| {
        let boxed: Box<dyn Transport> = Box::new(memory(sessions));
        Box::new(Metered::new(boxed))
    });
}

#[test]
fn wrappers_forward_what_describes_the_backend() {
    let dir = TempDir::new().unwrap();
    let files = files(&dir, &[]);
    let (name, abilities) = (files.name(), files.abilities());
    let wrapped: Arc<dyn Transport> = Arc::new(Metered::new(Box::new(files)));
    assert_eq!((wrapped.name(), wrapped.abilities()), (name, abilities));
}

#[test]
fn a_pool_of_one_thread_is_enough() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| conformance(|sessions| Box::new(memory(sessions))));
}
