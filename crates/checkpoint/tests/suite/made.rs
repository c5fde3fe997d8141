//! Files made for a test.

use std::fs;
use std::path::{Path, PathBuf};

use restage_geometry::Dtype;
use tempfile::TempDir;

/// A tensor: name, dtype, shape, bytes.
pub type Tensor<'a> = (&'a str, Dtype, &'a [i64], &'a [u8]);

/// A file of this header and this data section.
pub fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// A file of these tensors, in this order, whatever their alignment.
pub fn weights(tensors: &[Tensor]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let (begin, end) = (data.len(), data.len() + bytes.len());
        entries.push(format!(
            r#"{name:?}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        ));
        data.extend(*bytes);
    }
    raw(&format!("{{{}}}", entries.join(",")), &data)
}

/// A file of U8 tensors `[len]`, by name.
pub fn bytes_of(tensors: &[(&str, &[u8])]) -> Vec<u8> {
    let shapes: Vec<[i64; 1]> = tensors.iter().map(|(_, bytes)| [bytes.len() as i64]).collect();
    let all: Vec<Tensor> =
        tensors.iter().zip(&shapes).map(|((n, b), shape)| (*n, Dtype::U8, &shape[..], *b)).collect();
    weights(&all)
}

/// An index that puts tensors in files.
pub fn index(map: &[(&str, &str)], metadata: &str) -> Vec<u8> {
    let entries: Vec<String> = map.iter().map(|(t, f)| format!("{t:?}:{f:?}")).collect();
    format!(r#"{{"metadata":{metadata},"weight_map":{{{}}}}}"#, entries.join(",")).into_bytes()
}

/// A directory of these files.
pub fn dir(files: &[(&str, Vec<u8>)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// The path of a real file.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// The names in a directory, hidden ones too, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
