//! Checks, by bytes, what a sharded state must hold to be a Hugging Face checkpoint cut up.

use anyhow::anyhow;
use restage_model::{Expectation, Rows};
use restage_nest::Nest;
use restage_plan::Catalog;
use restage_transport::{Batch, Entry, Transport};

use crate::failure::Failure;

/// Bytes that are read and compared at a time.
const CHUNK: u64 = 4 << 20;

/// Checks every expectation.
pub fn check(
    expectations: &[Expectation],
    catalog: &Catalog,
    transport: &dyn Transport,
) -> Result<(), Failure> {
    for expectation in expectations {
        match expectation {
            Expectation::Equal(a, b) => equal(a, b, catalog, transport)?,
            Expectation::Constant(rows, element) => constant(rows, element, catalog, transport)?,
            Expectation::Bytes(rows, expected) => exactly(rows, expected, catalog, transport)?,
            other => return Err(Failure::input(anyhow!("cannot check {other:?}"))),
        }
    }
    Ok(())
}

/// A stretch of bytes in a session.
struct Stretch<'a> {
    rows: &'a Rows,
    session: std::sync::Arc<str>,
    addr: u64,
    len: u64,
}

fn stretch<'a>(rows: &'a Rows, catalog: &Catalog) -> Result<Stretch<'a>, Failure> {
    let missing = || Failure::input(anyhow!("{}: is not there", rows.source));
    let source = catalog.get(&rows.source).ok_or_else(missing)?;
    let shard = source.shards.first().ok_or_else(missing)?;
    let row: i64 = source.shape.iter().skip(1).product();
    let bytes = |rows: i64| source.dtype.bytes((rows * row) as u64).unwrap_or(0);
    Ok(Stretch {
        rows,
        session: shard.session.clone(),
        addr: shard.addr + bytes(rows.start),
        len: bytes(rows.len),
    })
}

impl Stretch<'_> {
    fn read(&self, from: u64, len: u64, transport: &dyn Transport) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len as usize];
        let entry = Entry { session: 0, dest: 0, nest: Nest::contiguous(self.addr + from, 0, len) };
        let batch = Batch { sessions: vec![self.session.clone()], entries: vec![entry] };
        let receipt = transport.read(&batch, &mut [&mut bytes]).and_then(|r| r.into_result());
        receipt.map_err(Failure::transfer)?;
        Ok(bytes)
    }

    fn chunks(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let len = self.len;
        (0..len).step_by(CHUNK as usize).map(move |from| (from, CHUNK.min(len - from)))
    }

    fn name(&self) -> String {
        format!("{} rows {}..{}", self.rows.source, self.rows.start, self.rows.start + self.rows.len)
    }
}

fn equal(a: &Rows, b: &Rows, catalog: &Catalog, transport: &dyn Transport) -> Result<(), Failure> {
    let (a, b) = (stretch(a, catalog)?, stretch(b, catalog)?);
    for (from, len) in a.chunks() {
        let (x, y) = (a.read(from, len, transport)?, b.read(from, len, transport)?);
        if let Some(at) = x.iter().zip(&y).position(|(x, y)| x != y) {
            return Err(Failure::input(anyhow!(
                "{} and {} should be equal and differ at byte {}: {:#04x} and {:#04x}",
                a.name(),
                b.name(),
                from + at as u64,
                x[at],
                y[at]
            )));
        }
    }
    Ok(())
}

fn exactly(
    rows: &Rows,
    expected: &[u8],
    catalog: &Catalog,
    transport: &dyn Transport,
) -> Result<(), Failure> {
    let s = stretch(rows, catalog)?;
    let found = s.read(0, s.len, transport)?;
    match expected.iter().zip(&found).position(|(e, f)| e != f) {
        None if expected.len() == found.len() => Ok(()),
        None => Err(Failure::input(anyhow!(
            "{}: expected {} bytes, found {}",
            s.name(),
            expected.len(),
            found.len()
        ))),
        Some(at) => Err(Failure::input(anyhow!(
            "{}: expected byte {:#04x} at {at}, found {:#04x}; a Hugging Face checkpoint has no place for it",
            s.name(),
            expected[at],
            found[at]
        ))),
    }
}

fn constant(
    rows: &Rows,
    element: &[u8],
    catalog: &Catalog,
    transport: &dyn Transport,
) -> Result<(), Failure> {
    let s = stretch(rows, catalog)?;
    for (from, len) in s.chunks() {
        let bytes = s.read(from, len, transport)?;
        if let Some(at) = bytes.chunks_exact(element.len()).position(|e| e != element) {
            let at = at * element.len();
            return Err(Failure::input(anyhow!(
                "{}: expected bytes {element:02x?} throughout, found {:02x?} at byte {}; a Hugging Face \
                 checkpoint has no place for it",
                s.name(),
                &bytes[at..at + element.len()],
                from + at as u64
            )));
        }
    }
    Ok(())
}
