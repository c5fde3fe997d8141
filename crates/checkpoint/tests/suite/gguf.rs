//! GGUF files: what they hold, and everything that is refused.

use std::fs;

use proptest::prelude::*;
use restage_checkpoint::gguf::{Array, Gguf, Value};
use restage_checkpoint::{Checkpoint, Layout};
use restage_geometry::Dtype;

/// A file that is put together byte by byte.
struct File {
    magic: [u8; 4],
    version: u32,
    tensors: u64,
    entries: u64,
    /// What follows the counts, without the data.
    body: Vec<u8>,
    alignment: usize,
    data: Vec<u8>,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A list entry of a tensor: dims are innermost first, as in the file.
fn listed(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|d| bytes.extend(d.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

impl File {
    fn new() -> File {
        File {
            magic: *b"GGUF",
            version: 3,
            tensors: 0,
            entries: 0,
            body: vec![],
            alignment: 32,
            data: vec![],
        }
    }

    fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> File {
        self.entries += 1;
        self.body.extend(string(key));
        self.body.extend(kind.to_le_bytes());
        self.body.extend(value);
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], kind: u32, offset: u64, bytes: usize) -> File {
        self.tensors += 1;
        self.body.extend(listed(name, dims, kind, offset));
        let end = (offset as usize).saturating_add(bytes);
        if end < 1 << 20 && self.data.len() < end {
            self.data.resize(end, 7);
        }
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensors.to_le_bytes());
        bytes.extend(self.entries.to_le_bytes());
        bytes.extend(&self.body);
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(&self.data);
        bytes
    }

    fn read(&self) -> Result<Gguf, String> {
        read(&self.bytes())
    }
}

fn read(bytes: &[u8]) -> Result<Gguf, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, bytes).unwrap();
    Gguf::read(&path).map_err(|e| e.problem.to_string())
}

fn strings(texts: &[&str]) -> Vec<u8> {
    let mut bytes = 8u32.to_le_bytes().to_vec();
    bytes.extend((texts.len() as u64).to_le_bytes());
    texts.iter().for_each(|t| bytes.extend(string(t)));
    bytes
}

fn whole() -> File {
    let nested = [9u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec()].concat();
    let inner = |values: &[u16]| {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        bytes
    };
    File::new()
        .entry("general.architecture", 8, &string("llama"))
        .entry("llama.block_count", 4, &2u32.to_le_bytes())
        .entry("llama.rope.freq_base", 6, &1e4f32.to_le_bytes())
        .entry("negative", 5, &(-1i32).to_le_bytes())
        .entry("yes", 7, &[1])
        .entry("tokens", 9, &strings(&["a", "", "bc"]))
        .entry("deep", 9, &[nested, inner(&[1, 2]), inner(&[])].concat())
        .tensor("q", &[64, 3], 3, 0, 120)
        .tensor("n", &[5], 0, 128, 20)
}

#[test]
fn metadata_and_tensors_are_read_with_the_outermost_dimension_first() {
    for version in [2, 3] {
        let gguf = File { version, ..whole() }.read().unwrap();
        assert_eq!(gguf.version(), version);
        let m = gguf.metadata();
        assert_eq!(m["general.architecture"].as_str(), Some("llama"));
        assert_eq!(m["llama.block_count"].as_u64(), Some(2));
        assert_eq!(m["llama.rope.freq_base"].as_f64(), Some(1e4));
        assert_eq!(m["negative"].as_u64(), None);
        assert_eq!(m["yes"].as_bool(), Some(true));
        let tokens: Vec<&str> = m["tokens"].as_strings().unwrap().iter().collect();
        assert_eq!(tokens, ["a", "", "bc"]);
        let deep = Value::Array(Array::Array(vec![Array::U16(vec![1, 2]), Array::U16(vec![])]));
        assert_eq!(m["deep"], deep);
        let [q, n] = gguf.tensors() else { panic!("two tensors") };
        let start = gguf.file_bytes() - 148;
        assert_eq!((q.dtype, &q.shape[..], q.addr, q.length), (Dtype::Q4_1, &[3, 64][..], start, 120));
        assert_eq!((n.dtype, &n.shape[..], n.addr, n.length), (Dtype::F32, &[5][..], start + 128, 20));
    }
}

#[test]
fn a_file_is_a_checkpoint_whose_catalog_has_blocks() {
    let dir = super::made::dir(&[("m.gguf", whole().bytes())]);
    let path = dir.path().join("m.gguf");
    assert_eq!(Checkpoint::layouts(&path).unwrap(), [Layout::Gguf]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!((checkpoint.layout(), checkpoint.tensors().len()), (Layout::Gguf, 2));
    assert!(!checkpoint.layout().is_whole());
    let catalog = checkpoint.catalog().unwrap();
    let q = catalog.get("q").unwrap();
    assert_eq!((q.dtype, &q.shape[..], &*q.shards[0].session), (Dtype::Q4_1, &[3, 64][..], "m.gguf"));
    assert!(Checkpoint::open_as(&path, Layout::Single).is_err());
}

#[test]
fn another_alignment_moves_the_data() {
    let file = File { alignment: 64, ..File::new() };
    let file = file.entry("general.alignment", 4, &64u32.to_le_bytes()).tensor("x", &[1], 0, 0, 4);
    assert_eq!(file.read().unwrap().tensors()[0].addr % 64, 0);
}

#[test]
fn what_cannot_be_believed_is_refused_by_name() {
    let one = |dims: &[u64], kind, offset, bytes| File::new().tensor("w", dims, kind, offset, bytes);
    let align = |kind, value: &[u8]| File::new().entry("general.alignment", kind, value);
    let cases: &[(File, &str)] = &[
        (File { magic: *b"FUGG", ..File::new() }, "expected the magic \"GGUF\", found \"FUGG\""),
        (File { version: 1, ..File::new() }, "expected GGUF version 2 or 3, found 1"),
        (
            File { version: 3u32.swap_bytes(), ..File::new() },
            "expected GGUF version 2 or 3, found 50331648 (a big-endian file)",
        ),
        (
            File { tensors: u64::MAX, ..File::new() },
            "the number of tensors: 18446744073709551615 of at least 32 bytes each, and 16 bytes are left",
        ),
        (
            File { entries: 1 << 40, ..File::new() },
            "the number of metadata entries: 1099511627776 of at least 13 bytes each, and 8 bytes are left",
        ),
        (one(&[u64::MAX, 2], 0, 0, 0), "tensor \"w\": a dimension does not fit in 63 bits"),
        (one(&[1 << 40, 1 << 40], 0, 0, 0), "tensor \"w\": the number of elements does not fit in 63 bits"),
        (one(&[1; 9], 0, 0, 4), "tensor \"w\": expected 1 to 4 dimensions, found 9"),
        (one(&[], 0, 0, 4), "tensor \"w\": expected 1 to 4 dimensions, found 0"),
        (one(&[0], 0, 0, 4), "tensor \"w\": a dimension has size 0"),
        (one(&[4], 6, 0, 4), "tensor \"w\": ggml type 6 (Q5_0) is not supported"),
        (one(&[4], 4, 0, 4), "tensor \"w\": ggml type 4 (unknown) is not supported"),
        (
            one(&[33, 32], 2, 0, 999),
            "tensor \"w\": rows of 33 elements are no whole number of Q4_0 blocks of 32",
        ),
        (one(&[4], 0, 8, 16), "tensor \"w\": offset 8 is no multiple of the alignment 32"),
        (
            one(&[4], 0, 32, 0),
            "tensor \"w\": 16 bytes at offset 32 of the data, which starts at byte 64, end past a file of 96 bytes",
        ),
        (
            one(&[4], 0, u64::MAX - 31, 0),
            "tensor \"w\": 16 bytes at offset 18446744073709551584 of the data, which starts at byte 64, end past a \
             file of 64 bytes",
        ),
        (one(&[16], 0, 0, 64).tensor("v", &[4], 0, 32, 16), "tensors \"w\" and \"v\" overlap"),
        (one(&[4], 0, 0, 16).tensor("w", &[4], 0, 32, 16), "tensor \"w\" appears twice"),
        (File::new().entry("k", 7, &[1]).entry("k", 7, &[1]), "metadata \"k\" appears twice"),
        (File::new().entry("k", 7, &[2]), "metadata \"k\": expected 0 or 1 for a bool, found 2"),
        (File::new().entry("k", 13, &[0]), "metadata \"k\": unknown type 13"),
        (
            File::new().entry("k", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]),
            "k: a string is not UTF-8 at its byte 0",
        ),
        (align(4, &[0; 4]), "general.alignment: expected a u32 that is a multiple of 8 and not 0, found 0"),
        (
            align(8, &string("32")),
            "general.alignment: expected a u32 that is a multiple of 8 and not 0, found \"32\"",
        ),
        (
            File::new().entry(
                "k",
                9,
                &[4u32.to_le_bytes().to_vec(), u64::MAX.to_le_bytes().to_vec()].concat(),
            ),
            "k: 18446744073709551615 of at least 4 bytes each, and 15 bytes are left",
        ),
        (
            File::new().entry("k", 9, &[[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]; 5].concat()),
            "metadata \"k\": arrays lie more than 4 deep",
        ),
    ];
    for (file, expected) in cases {
        assert_eq!(&file.read().unwrap_err(), expected);
    }
    // A tensor without data: the file is too short for it.
    let missing = one(&[4], 0, 0, 0);
    assert!(missing.read().unwrap_err().contains("end past a file"));
}

#[test]
fn every_truncated_header_is_refused() {
    let bytes = whole().bytes();
    let data = bytes.len() - 148;
    for length in 0..data {
        assert!(read(&bytes[..length]).is_err(), "{length} of {data} bytes");
    }
}

proptest! {
    #[test]
    fn a_changed_file_is_read_or_refused_and_nothing_else(
        changes in proptest::collection::vec((0usize..400, any::<u8>()), 1..6),
    ) {
        let mut bytes = whole().bytes();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(gguf) = read(&bytes) {
            for t in gguf.tensors() {
                prop_assert!(t.addr + t.length <= bytes.len() as u64);
            }
        }
    }
}
