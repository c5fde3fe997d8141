//! Tensors with their bytes: expected ones from a file, and how others differ from them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use restage_checkpoint::Header;
use restage_geometry::Dtype;

/// A tensor with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, in elements.
    pub shape: Vec<i64>,
    /// Its bytes, row-major.
    pub bytes: Vec<u8>,
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// Reads all of a safetensors file.
///
/// # Errors
///
/// The file cannot be read, or is malformed.
pub fn read(path: &Path) -> Result<Tensors> {
    let header = Header::read(path)?;
    let bytes = super::read(path)?;
    let tensor = |t: &restage_checkpoint::HeaderTensor| {
        let part = bytes.get(t.addr as usize..(t.addr + t.length) as usize);
        let bytes = part.with_context(|| format!("{} has become shorter", path.display()))?.to_vec();
        Ok((t.name.clone(), Tensor { dtype: t.dtype, shape: t.shape.clone(), bytes }))
    };
    header.tensors().iter().map(tensor).collect()
}

/// Everything in which two sets of tensors differ, a line each; of a parameter's bytes the first.
pub fn differences(expected: &Tensors, found: &Tensors) -> Vec<String> {
    let mut out = Vec::new();
    for (name, e) in expected {
        let Some(f) = found.get(name) else {
            out.push(format!("parameter {name:?}: expected, and not provided"));
            continue;
        };
        if (e.dtype, &e.shape) != (f.dtype, &f.shape) {
            let (was, is) = (format!("{} {:?}", e.dtype, e.shape), format!("{} {:?}", f.dtype, f.shape));
            out.push(format!("parameter {name:?}: expected {was}, found {is}"));
        } else if let Some(difference) = first_difference(&e.bytes, &f.bytes) {
            out.push(format!("parameter {name:?}: {difference}"));
        }
    }
    let unexpected = found.keys().filter(|name| !expected.contains_key(*name));
    out.extend(unexpected.map(|name| format!("parameter {name:?}: provided, and not expected")));
    out
}

/// Where and how two strings of bytes differ first, and in how many bytes.
pub fn first_difference(expected: &[u8], found: &[u8]) -> Option<String> {
    let mut unequal = expected.iter().zip(found).enumerate().filter(|(_, (e, f))| e != f);
    if let Some((at, (e, f))) = unequal.next() {
        let more = unequal.count();
        return Some(format!("byte {at}: expected {e:#04x}, found {f:#04x}; {more} more differ"));
    }
    let (expected, found) = (expected.len(), found.len());
    (expected != found).then(|| format!("expected {expected} bytes, found {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_difference_is_named() {
        let tensor =
            |shape: i64, bytes: &[u8]| Tensor { dtype: Dtype::U8, shape: vec![shape], bytes: bytes.to_vec() };
        let set = |list: &[(&str, Tensor)]| -> Tensors {
            list.iter().map(|(name, t)| ((*name).to_owned(), t.clone())).collect()
        };
        let expected = set(&[
            ("bytes", tensor(4, &[1, 2, 3, 4])),
            ("gone", tensor(0, &[])),
            ("same", tensor(1, &[7])),
            ("shape", tensor(2, &[0, 0])),
        ]);
        let found = set(&[
            ("bytes", tensor(4, &[1, 9, 3, 9])),
            ("new", tensor(0, &[])),
            ("same", tensor(1, &[7])),
            ("shape", tensor(1, &[0])),
        ]);
        let all = differences(&expected, &found);
        let wanted = [
            "\"bytes\": byte 1: expected 0x02, found 0x09; 1 more differ",
            "\"gone\": expected, and not provided",
            "\"shape\": expected U8 [2], found U8 [1]",
            "\"new\": provided, and not expected",
        ];
        assert_eq!(all.len(), wanted.len(), "{all:?}");
        for (line, part) in all.iter().zip(wanted) {
            assert!(line.contains(part), "{line}");
        }
        assert!(first_difference(&[1], &[1, 2]).unwrap().contains("expected 1 bytes, found 2"));
    }
}
