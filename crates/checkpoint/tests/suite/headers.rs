//! Headers: what is refused, with which words, and what is fine.

use std::fs::{self, File};

use restage_checkpoint::{Checkpoint, Header, MAX_HEADER_BYTES};
use restage_geometry::Dtype;

use crate::made::{dir, raw, weights};

fn refusal(bytes: &[u8]) -> String {
    let dir = dir(&[("w.safetensors", bytes.to_vec())]);
    let path = dir.path().join("w.safetensors");
    let error = Header::read(&path).unwrap_err().to_string();
    assert_eq!(Checkpoint::open(&path).unwrap_err().to_string(), error);
    let words = error.strip_prefix(&format!("{}: ", path.display())).expect("names the file");
    assert!(!words.contains('\n'), "{words}");
    words.to_owned()
}

fn entry(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

#[test]
fn lengths_are_refused_before_anything_is_allocated() {
    let with_length = |length: u64| [&length.to_le_bytes()[..], b"{}"].concat();
    for (bytes, words) in [
        (vec![], "expected at least 8 bytes, found 0"),
        (vec![0; 7], "expected at least 8 bytes, found 7"),
        (with_length(u64::MAX), "header of 18446744073709551615 bytes, expected at most 100000000"),
        (with_length(MAX_HEADER_BYTES + 1), "header of 100000001 bytes, expected at most 100000000"),
        (with_length(3), "header of 3 bytes needs a file of at least 11 bytes, found 10"),
        (
            with_length(MAX_HEADER_BYTES),
            "header of 100000000 bytes needs a file of at least 100000008 bytes, found 10",
        ),
    ] {
        assert_eq!(refusal(&bytes), words);
    }
    // A sparse file of more than the limit: only its declared length is looked at.
    let dir = dir(&[]);
    let path = dir.path().join("w.safetensors");
    let file = File::create(&path).unwrap();
    file.set_len(8 + MAX_HEADER_BYTES + 1).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &(MAX_HEADER_BYTES + 1).to_le_bytes(), 0).unwrap();
    assert!(Header::read(&path).unwrap_err().to_string().ends_with("expected at most 100000000"));
    let folder = dir.path().join("folder.safetensors");
    fs::create_dir(&folder).unwrap();
    assert!(Header::read(&folder).unwrap_err().to_string().ends_with("not a regular file"));
}

#[test]
fn malformed_text_is_refused_with_the_tensor() {
    let t = entry("w", "U8", "[1]", 0, 1);
    for (header, words) in [
        ("", "header: EOF"),
        ("{", "header: EOF"),
        ("[]", "header: invalid type: sequence, expected an object of tensors"),
        ("{} {}", "header: trailing characters"),
        (r#"{"w":3}"#, "header: tensor \"w\": invalid type: integer `3`"),
        (r#"{"w":{"dtype":"U8","shape":[1]}}"#, "header: tensor \"w\": missing field `data_offsets`"),
        (r#"{"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#, "header: tensor \"w\": invalid value"),
        (r#"{"w":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}}"#, "header: tensor \"w\": invalid type"),
        (r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}"#, "header: tensor \"w\": "),
        (
            r#"{"w":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}}"#,
            "header: tensor \"w\": ",
        ),
        (r#"{"__metadata__":{"a":1}}"#, "header: __metadata__: invalid type"),
        (&format!("{{{t},{t}}}"), "tensor \"w\" appears twice in the header"),
        (r#"{"w":{"dtype":"U8","dtype":"I8"}}"#, "header: key \"w\".\"dtype\" appears twice"),
        (r#"{"w":{"x":1,"x":1}}"#, "header: key \"w\".\"x\" appears twice"),
        (r#"{"__metadata__":{"a":"1","a":"2"}}"#, "header: key \"__metadata__\".\"a\" appears twice"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#, "header: key \"__metadata__\" appears twice"),
        (&"[".repeat(100_000), "header: recursion limit exceeded"),
    ] {
        let found = refusal(&raw(header, &[0]));
        assert!(found.starts_with(words), "{header:.60}: {found}");
    }
    let mut bytes = raw(r#"{"ab": 1}"#, &[]);
    bytes[10] = 0xff;
    assert_eq!(refusal(&bytes), "header is not UTF-8 at its byte 2");
}

#[test]
fn contradictions_name_the_tensor_and_the_bytes() {
    let big = u64::MAX / 2 + 1;
    for (entries, data, words) in [
        (vec![entry("w", "F12", "[1]", 0, 1)], 1, "tensor \"w\": unknown dtype \"F12\""),
        (vec![entry("w", "f32", "[1]", 0, 4)], 4, "tensor \"w\": unknown dtype \"f32\""),
        (vec![entry("w", "Q4_0", "[32]", 0, 18)], 18, "tensor \"w\": unknown dtype \"Q4_0\""),
        (
            vec![entry("w", "F32", "[1000, 1000]", 0, 4)],
            4,
            "tensor \"w\": shape [1000, 1000] of F32 expected 4000000 bytes, found offsets 0..4",
        ),
        (
            vec![entry("w", "U8", "[]", 0, 0)],
            0,
            "tensor \"w\": shape [] of U8 expected 1 bytes, found offsets 0..0",
        ),
        (
            vec![entry("w", "U8", "[2]", 4, 2)],
            4,
            "tensor \"w\": shape [2] of U8 expected 2 bytes, found offsets 4..2",
        ),
        (
            vec![entry("w", "U8", &format!("[{big}, 2]"), 0, 0)],
            0,
            "tensor \"w\": shape [9223372036854775808, 2] of U8 does not fit in 63 bits",
        ),
        (
            vec![entry("w", "U8", &format!("[{big}, 2, 0]"), 0, 0)],
            0,
            "tensor \"w\": shape [9223372036854775808, 2, 0] of U8 does not fit in 63 bits",
        ),
        (
            vec![entry("w", "F64", &format!("[{}]", big - 1), 0, 0)],
            0,
            "tensor \"w\": shape [9223372036854775807] of F64 does not fit in 63 bits",
        ),
        (vec![entry("w", "F4", "[3]", 0, 2)], 2, "tensor \"w\": shape [3] of F4 is no whole number of bytes"),
        (
            vec![entry("w", "U8", "[4]", 0, 4), entry("v", "U8", "[4]", 2, 6)],
            6,
            "tensor \"v\": overlaps \"w\": expected to start at 4, found 2",
        ),
        (
            vec![entry("w", "U8", "[4]", 0, 4), entry("v", "U8", "[4]", 0, 4)],
            4,
            "tensor \"w\": overlaps \"v\": expected to start at 4, found 0",
        ),
        (
            vec![entry("w", "U8", "[4]", 0, 4), entry("v", "U8", "[4]", 6, 10)],
            10,
            "tensor \"v\": leaves a hole: expected to start at 4, found 6",
        ),
        (
            vec![entry("w", "U8", "[4]", 2, 6)],
            6,
            "tensor \"w\": leaves a hole: expected to start at 0, found 2",
        ),
    ] {
        let header = format!("{{{}}}", entries.join(","));
        assert_eq!(refusal(&raw(&header, &vec![0; data])), words);
    }
}

#[test]
fn a_file_of_the_wrong_length_is_told_both_lengths() {
    let header = format!("{{{},{}}}", entry("a", "F32", "[2]", 0, 8), entry("b", "U8", "[3]", 8, 11));
    let whole = 8 + header.len() as u64 + 11;
    for data in 0..14u64 {
        let bytes = raw(&header, &vec![0; data as usize]);
        let found = whole - 11 + data;
        match data {
            0..8 => assert_eq!(
                refusal(&bytes),
                format!("tensor \"a\": ends past the end of the file: expected {whole} bytes, found {found}")
            ),
            8..11 => assert_eq!(
                refusal(&bytes),
                format!("tensor \"b\": ends past the end of the file: expected {whole} bytes, found {found}")
            ),
            11 => {}
            _ => assert_eq!(
                refusal(&bytes),
                format!("bytes after the last tensor: expected {whole} bytes, found {found}")
            ),
        }
    }
}

#[test]
fn odd_and_ordinary_files_are_read() {
    let dir = dir(&[
        ("none.safetensors", raw("{}", &[])),
        ("padded.safetensors", raw("{}     ", &[])),
        ("text.safetensors", raw(r#"{"__metadata__":{"format":"pt","by":"hand"}}"#, &[])),
        // Tensors of no elements, before, between and after others, and a scalar.
        (
            "empty.safetensors",
            weights(&[
                ("z", Dtype::F32, &[0], &[]),
                ("a", Dtype::F32, &[], &[1, 2, 3, 4]),
                ("m", Dtype::BF16, &[3, 0], &[]),
                ("b", Dtype::U8, &[2], &[5, 6]),
                ("c", Dtype::U8, &[0, 7], &[]),
            ]),
        ),
        // Listed in another order than they lie, with a field that no one knows.
        (
            "order.safetensors",
            raw(
                &format!(
                    r#"{{{},"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1],"note":null}}}}"#,
                    entry("b", "U8", "[2]", 1, 3)
                ),
                &[7, 8, 9],
            ),
        ),
    ]);
    let header = |name: &str| Header::read(&dir.path().join(name)).unwrap();
    for name in ["none.safetensors", "padded.safetensors"] {
        assert!(header(name).tensors().is_empty());
        assert_eq!(header(name).text(), None);
    }
    let text = header("text.safetensors").text().unwrap();
    assert_eq!(
        text.into_iter().collect::<Vec<_>>(),
        [("by".to_owned(), "hand".to_owned()), ("format".to_owned(), "pt".to_owned())]
    );
    let empty = header("empty.safetensors");
    let found: Vec<_> =
        empty.tensors().iter().map(|t| (t.name.as_str(), t.addr - empty.data_start(), t.length)).collect();
    let mut sorted = found.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [("a", 0, 4), ("b", 4, 2), ("c", 6, 0), ("m", 4, 0), ("z", 0, 0)]);
    let order = header("order.safetensors");
    assert_eq!(order.tensors().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn every_dtype_of_the_format_is_read_at_any_alignment() {
    for &dtype in Dtype::ALL {
        let Some(stored) = restage_checkpoint::to_safetensors(dtype) else { continue };
        let length = stored.bitsize() * 8 / 8;
        for before in 0..4u8 {
            // The tensor starts at every offset modulo 4, as an F32 one does at 2.
            let ahead = vec![0; before as usize];
            let values: Vec<u8> = (0..length as u8).collect();
            let bytes =
                weights(&[("ahead", Dtype::U8, &[before as i64], &ahead), ("w", dtype, &[8], &values)]);
            let dir = dir(&[("w.safetensors", bytes.clone())]);
            let checkpoint = Checkpoint::open(dir.path().join("w.safetensors")).unwrap();
            let w = checkpoint.tensor("w", None).unwrap();
            assert_eq!((w.dtype, &w.shape[..]), (dtype, &[8][..]));
            assert_eq!(&bytes[w.addr as usize..][..w.length as usize], values);
        }
    }
}
