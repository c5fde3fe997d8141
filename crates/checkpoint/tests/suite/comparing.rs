//! Comparing two checkpoints.

use std::fs;

use restage_checkpoint::names::{INDEX_FILE, SINGLE_FILE, rank_file};
use restage_checkpoint::{Checkpoint, Comparison, compare};
use restage_geometry::Dtype;
use tempfile::TempDir;

use crate::made::{Tensor, bytes_of, dir, index, weights};

fn single(tensors: &[Tensor]) -> TempDir {
    dir(&[(SINGLE_FILE, weights(tensors))])
}

fn compared(a: &TempDir, b: &TempDir) -> Comparison {
    let found = compare(&Checkpoint::open(a.path()).unwrap(), &Checkpoint::open(b.path()).unwrap()).unwrap();
    assert_eq!(found.equal(), found.to_string().is_empty());
    found
}

#[test]
fn the_division_into_files_and_their_order_do_not_matter() {
    let one = dir(&[(SINGLE_FILE, bytes_of(&[("a", &[1, 2]), ("b", &[3]), ("c", &[])]))]);
    let three = dir(&[
        (INDEX_FILE, index(&[("a", "2"), ("b", "1"), ("c", "1")], "{}")),
        ("1", bytes_of(&[("c", &[]), ("b", &[3])])),
        ("2", bytes_of(&[("a", &[1, 2])])),
    ]);
    let found = compared(&one, &three);
    assert!(found.equal());
    assert_eq!((found.compared_tensors, found.compared_bytes), (3, 3));
}

#[test]
fn names_dtypes_and_shapes_are_told_apart() {
    let a = single(&[
        ("gone", Dtype::U8, &[1], &[1]),
        ("same", Dtype::U8, &[2], &[1, 2]),
        ("shape", Dtype::U8, &[2, 1], &[1, 2]),
        ("type", Dtype::I8, &[2], &[1, 2]),
    ]);
    let b = single(&[
        ("come", Dtype::U8, &[1], &[1]),
        ("same", Dtype::U8, &[2], &[1, 2]),
        ("shape", Dtype::U8, &[1, 2], &[1, 2]),
        ("type", Dtype::U8, &[2], &[1, 2]),
    ]);
    let found = compared(&a, &b);
    assert_eq!(
        found.to_string(),
        "\"gone\": only in the first\n\
         \"come\": only in the second\n\
         \"shape\": U8 [2, 1] and U8 [1, 2]\n\
         \"type\": I8 [2] and U8 [2]\n"
    );
    assert_eq!(found.compared_tensors, 1);
}

#[test]
fn the_first_differing_element_is_shown() {
    let f32s = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    for (dtype, shape, a, b, words) in [
        (
            Dtype::F32,
            &[2i64, 2][..],
            f32s(&[1.0, 2.0, 3.0, 4.0]),
            f32s(&[1.0, 2.0, 3.5, 5.0]),
            "\"w\" (F32): 2 of 4 elements differ, first at [1, 0]: 3.0 (00004040) and 3.5 (00006040)",
        ),
        // Zeros of both signs are other bytes; the same NaN is the same bytes.
        (
            Dtype::F32,
            &[2],
            f32s(&[f32::NAN, 0.0]),
            f32s(&[f32::NAN, -0.0]),
            "\"w\" (F32): 1 of 2 elements differ, first at [1]: 0.0 (00000000) and -0.0 (00000080)",
        ),
        (
            Dtype::BF16,
            &[],
            vec![0x80, 0x3f],
            vec![0, 0x40],
            "\"w\" (BF16): 1 of 1 elements differ, first at []: 1.0 (803f) and 2.0 (0040)",
        ),
        (
            Dtype::F16,
            &[1],
            vec![0, 0x3c],
            vec![0, 0xbc],
            "\"w\" (F16): 1 of 1 elements differ, first at [0]: 1.0 (003c) and -1.0 (00bc)",
        ),
        (
            Dtype::I8,
            &[1, 3],
            vec![0, 1, 255],
            vec![0, 1, 1],
            "\"w\" (I8): 1 of 3 elements differ, first at [0, 2]: -1 (ff) and 1 (01)",
        ),
        (
            Dtype::F8E4m3,
            &[2],
            vec![1, 2],
            vec![3, 2],
            "\"w\" (F8_E4M3): 1 of 2 elements differ, first at [0]: 01 and 03",
        ),
        (
            Dtype::F6E2m3,
            &[2, 4],
            vec![1, 2, 3, 4, 5, 6],
            vec![1, 2, 3, 4, 0, 6],
            "\"w\" (F6_E2M3): 1 of 2 blocks differ, first at [1, 0]: 040506 and 040006",
        ),
    ] {
        let (a, b) = (single(&[("w", dtype, shape, &a)]), single(&[("w", dtype, shape, &b)]));
        let found = compared(&a, &b);
        assert_eq!(found.to_string().trim_end(), words);
        assert!(!found.equal());
        // The other way round, the same place with the sides swapped.
        let swapped = compared(&b, &a);
        assert_eq!(swapped.values[0].first, found.values[0].first);
        assert_eq!((&swapped.values[0].a, &swapped.values[0].b), (&found.values[0].b, &found.values[0].a));
    }
}

#[test]
fn differences_are_counted_across_buffers() {
    // More than one buffer of a dtype whose elements do not divide a power of two.
    let elements = 4 * 150_001i64;
    let bytes = vec![0u8; elements as usize / 4 * 3];
    let mut other = bytes.clone();
    let places = [300_000, 300_002, 350_000, 450_002];
    for place in places {
        other[place] = 9;
    }
    let of = |bytes: &[u8]| single(&[("w", Dtype::F6E2m3, &[elements], bytes)]);
    let found = compared(&of(&bytes), &of(&other));
    let value = &found.values[0];
    assert_eq!(value.first, 300_000 / 3 * 4);
    assert_eq!((value.differing, value.of, value.differing_bytes), (3, 150_001, 4));
}

#[test]
fn ranks_compare_with_ranks_only() {
    let ranks = |last: &[u8], extra: bool| {
        let mut files =
            vec![(rank_file(0, 0), bytes_of(&[("w", &[1])])), (rank_file(1, 0), bytes_of(&[("w", last)]))];
        if extra {
            files.push((rank_file(2, 0), bytes_of(&[("w", &[3])])));
        }
        let named: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        dir(&named)
    };
    assert!(compared(&ranks(&[2], false), &ranks(&[2], false)).equal());
    assert_eq!(
        compared(&ranks(&[2], false), &ranks(&[4], true)).to_string(),
        "\"rank2/w\": only in the second\n\
         \"rank1/w\" (U8): 1 of 1 elements differ, first at [0]: 2 (02) and 4 (04)\n"
    );
    let whole = Checkpoint::open(single(&[]).path()).unwrap();
    let sharded = Checkpoint::open(ranks(&[2], false).path()).unwrap();
    for (a, b) in [(&whole, &sharded), (&sharded, &whole)] {
        let error = compare(a, b).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot compare ") && error.contains("sharded state of 2 ranks"),
            "{error}"
        );
    }
}

#[test]
fn a_file_that_shrank_since_it_was_opened_is_an_error() {
    let a = single(&[("w", Dtype::U8, &[100], &[1; 100])]);
    let opened = Checkpoint::open(a.path()).unwrap();
    let path = a.path().join(SINGLE_FILE);
    let length = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
    let error = compare(&opened, &opened).unwrap_err().to_string();
    assert!(error.starts_with(path.to_str().unwrap()), "{error}");
}
