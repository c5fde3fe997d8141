//! Pulling a capture out of memory.

use std::sync::Mutex;

use restage_geometry::{Captured, Param, Region};
use restage_model::{Rows, TensorTable};
use restage_plan::{Catalog, Limits, Shard, Source};
use restage_refit::{Receiver, Sink, SinkError};
use restage_transport::MemoryTransport;

use crate::model::Bytes;

#[derive(Default)]
struct Kept(Mutex<Bytes>);

impl Sink for Kept {
    fn accept(&self, param: &Param, bytes: &[u8]) -> Result<(), SinkError> {
        self.0.lock().unwrap().insert(param.name.clone(), bytes.to_vec());
        Ok(())
    }
}

/// Pulls a capture out of memory: each tensor is one session.
pub fn pull(captured: &Captured, table: &TensorTable, bytes: &Bytes) -> Bytes {
    let mut catalog = Catalog::new();
    let mut memory = MemoryTransport::new();
    for (name, (dtype, shape)) in table {
        let region = Region::whole(shape).unwrap();
        let shards = vec![Shard { region, session: name.as_str().into(), addr: 64, digest: None }];
        catalog.insert(name, Source { dtype: *dtype, shape: shape.clone(), shards }).unwrap();
        memory.register(name.as_str(), 64, bytes[name].clone()).unwrap();
    }
    let receiver = Receiver::prepare(captured, &catalog, &Limits::default()).unwrap();
    assert!(receiver.plan().is_complete(), "{:?}", receiver.plan().refused);
    let kept = Kept::default();
    receiver.pull_each(&memory, 1 << 12, &kept).unwrap();
    kept.0.into_inner().unwrap()
}

/// The rows of an expectation, as bytes.
pub fn rows<'a>(r: &Rows, table: &TensorTable, bytes: &'a Bytes) -> &'a [u8] {
    let (dtype, shape) = &table[&r.source];
    let row = shape.iter().skip(1).product::<i64>() * dtype.packing().bytes as i64;
    &bytes[&r.source][(r.start * row) as usize..((r.start + r.len) * row) as usize]
}
