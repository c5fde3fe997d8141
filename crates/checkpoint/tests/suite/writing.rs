//! Writing one file: the same bytes as the safetensors crate, in any order, or nothing.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use restage_checkpoint::{Header, TensorFile, TensorSpec, to_safetensors};
use restage_geometry::Dtype;
use safetensors::tensor::TensorView;

use crate::made::{data, dir, names};

type Table = Vec<(TensorSpec, Vec<u8>)>;

fn spec(name: &str, dtype: Dtype, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

fn specs(table: &Table) -> Vec<TensorSpec> {
    table.iter().map(|(spec, _)| spec.clone()).collect()
}

fn write(path: &Path, table: &Table, text: Option<&BTreeMap<String, String>>) {
    let file = TensorFile::create(path, &specs(table), text, false).unwrap();
    for (spec, bytes) in table {
        file.write(&spec.name, bytes).unwrap();
    }
    let length = file.file_bytes();
    file.finish(false).unwrap();
    assert_eq!(fs::metadata(path).unwrap().len(), length);
}

fn serialized(table: &Table, text: Option<HashMap<String, String>>) -> Vec<u8> {
    let views: Vec<(String, TensorView)> = table
        .iter()
        .map(|(spec, bytes)| {
            let shape = spec.shape.iter().map(|&n| n as usize).collect();
            let view = TensorView::new(to_safetensors(spec.dtype).unwrap(), shape, bytes).unwrap();
            (spec.name.clone(), view)
        })
        .collect();
    safetensors::serialize(views, text).unwrap()
}

fn tables() -> impl Strategy<Value = Table> {
    let stored: Vec<Dtype> = Dtype::ALL.iter().copied().filter(|&d| to_safetensors(d).is_some()).collect();
    // Names with quotes, escapes and letters beyond ASCII; last sizes that end on a byte in every dtype.
    let name = prop_oneof!["[a-c.]{1,4}", "[\"\\\\\u{1}é漢/ ]{1,3}"];
    let tensor = (prop::sample::select(stored), prop::collection::vec(0i64..4, 0..3), any::<u8>());
    prop::collection::btree_map(name, tensor, 0..9).prop_map(|table| {
        table
            .into_iter()
            .map(|(name, (dtype, mut shape, seed))| {
                shape.push(4);
                let length = dtype.bytes(shape.iter().product::<i64>() as u64).unwrap();
                let bytes = (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
                (TensorSpec { name, dtype, shape }, bytes)
            })
            .collect::<Table>()
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(8),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_file_is_what_the_safetensors_crate_serializes(
        table in tables().prop_shuffle(),
        text in prop_oneof![
            Just(None),
            Just(Some(vec![])),
            Just(Some(vec![("format".to_owned(), "p\"t".to_owned())])),
        ],
    ) {
        // No tensor and no key: the crate's own output is no JSON then ("{},").
        prop_assume!(!table.is_empty() || text.as_ref().is_none_or(|t| !t.is_empty()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.safetensors");
        let sorted = text.clone().map(|t| t.into_iter().collect());
        write(&path, &table, sorted.as_ref());
        let expected = serialized(&table, text.map(|t| t.into_iter().collect()));
        prop_assert_eq!(fs::read(&path).unwrap(), expected);
        prop_assert_eq!(Header::read(&path).unwrap().tensors().len(), table.len());
    }
}

#[test]
fn a_file_of_nothing_can_be_read() {
    let dir = dir(&[]);
    for (name, text) in [("none", None), ("empty", Some(BTreeMap::new()))] {
        let path = dir.path().join(name);
        write(&path, &vec![], text.as_ref());
        let header = Header::read(&path).unwrap();
        assert_eq!((header.tensors().len(), header.text()), (0, text));
    }
}

#[test]
fn more_than_one_key_of_free_text_is_sorted() {
    let text: BTreeMap<String, String> = (0..20).map(|i| (format!("k{i:02}"), i.to_string())).collect();
    let dir = dir(&[]);
    let path = dir.path().join("w.safetensors");
    let table = vec![(spec("w", Dtype::U8, &[1]), vec![7])];
    write(&path, &table, Some(&text));
    let bytes = fs::read(&path).unwrap();
    assert_eq!(Header::read(&path).unwrap().text(), Some(text.clone()));
    // The same length as with the keys in any other order, and the keys ascend.
    assert_eq!(bytes.len(), serialized(&table, Some(text.clone().into_iter().collect())).len());
    let header = String::from_utf8_lossy(&bytes[8..]).into_owned();
    let places: Vec<_> = text.keys().map(|k| header.find(k.as_str()).unwrap()).collect();
    assert!(places.is_sorted());
}

#[test]
fn real_files_are_rewritten_to_the_same_bytes() {
    for rank in 0..2 {
        let original = data(&format!("rank{rank}.safetensors"));
        let bytes = fs::read(&original).unwrap();
        let header = Header::read(&original).unwrap();
        let mut table: Table = header
            .tensors()
            .iter()
            .map(|t| {
                let content = bytes[t.addr as usize..][..t.length as usize].to_vec();
                (TensorSpec { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() }, content)
            })
            .collect();
        table.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let dir = dir(&[]);
        let path = dir.path().join("again.safetensors");
        write(&path, &table, header.text().as_ref());
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn threads_may_write_at_once() {
    let table: Table = (0..64u8)
        .map(|i| (spec(&format!("t{i}"), Dtype::U8, &[i as i64, 3]), vec![i; i as usize * 3]))
        .collect();
    let dir = dir(&[]);
    let path = dir.path().join("w.safetensors");
    let file = TensorFile::create(&path, &specs(&table), None, false).unwrap();
    let repeated: usize = std::thread::scope(|scope| {
        // Every thread tries every tensor: each is taken exactly once.
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| table.iter().filter(|(s, b)| file.write(&s.name, b).is_err()).count()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(repeated, 3 * table.len());
    file.finish(true).unwrap();
    assert_eq!(fs::read(&path).unwrap(), serialized(&table, None));
}

#[test]
fn tables_that_cannot_be_stored_are_refused() {
    let max = i64::MAX;
    for (specs, words) in [
        (vec![spec("w", Dtype::U8, &[1]), spec("w", Dtype::F32, &[1])], "tensor \"w\" is declared twice"),
        (
            vec![spec("__metadata__", Dtype::U8, &[1])],
            "tensor \"__metadata__\": the format keeps this name for itself",
        ),
        (vec![spec("w", Dtype::Q4_0, &[32])], "tensor \"w\": safetensors has no dtype Q4_0"),
        (vec![spec("w", Dtype::U8, &[-1])], "tensor \"w\": shape [-1] of U8 cannot be stored"),
        (vec![spec("w", Dtype::F4, &[3])], "tensor \"w\": shape [3] of F4 cannot be stored"),
        (
            vec![spec("w", Dtype::U8, &[max, max])],
            "tensor \"w\": shape [9223372036854775807, 9223372036854775807] of U8 cannot be stored",
        ),
        (
            vec![spec("v", Dtype::U8, &[max]), spec("w", Dtype::U8, &[max])],
            "tensor \"w\": shape [9223372036854775807] of U8 cannot be stored",
        ),
    ] {
        let dir = dir(&[]);
        let path = dir.path().join("w.safetensors");
        let error = TensorFile::create(&path, &specs, None, false).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {words}", path.display()));
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
fn writes_that_do_not_fit_are_refused_and_can_be_made_good() {
    let dir = dir(&[]);
    let path = dir.path().join("w.safetensors");
    let table = [spec("a", Dtype::F32, &[2]), spec("b", Dtype::U8, &[0])];
    let file = TensorFile::create(&path, &table, None, false).unwrap();
    let words = |name: &str, bytes: &[u8]| file.write(name, bytes).unwrap_err().problem.to_string();
    assert_eq!(words("c", &[]), "tensor \"c\" was not declared");
    assert_eq!(words("a", &[0; 7]), "tensor \"a\": expected 8 bytes, found 7");
    assert_eq!(words("a", &[0; 9]), "tensor \"a\": expected 8 bytes, found 9");
    file.write("a", &[1; 8]).unwrap();
    assert_eq!(words("a", &[2; 8]), "tensor \"a\" was written already");
    file.write("b", &[]).unwrap();
    assert_eq!(words("b", &[]), "tensor \"b\" was written already");
    file.finish(false).unwrap();
    assert!(fs::read(&path).unwrap().ends_with(&[1; 8]));
}

#[test]
fn an_unfinished_file_leaves_nothing() {
    let dir = dir(&[]);
    let path = dir.path().join("w.safetensors");
    let table = [spec("a", Dtype::U8, &[1]), spec("b", Dtype::U8, &[1])];
    let create = || TensorFile::create(&path, &table, None, false).unwrap();
    let file = create();
    assert!(!path.exists());
    let hidden = names(dir.path());
    assert!(hidden.len() == 1 && hidden[0].starts_with(".w.safetensors.partial-"), "{hidden:?}");
    drop(file);
    assert!(names(dir.path()).is_empty());
    let file = create();
    file.write("b", &[1]).unwrap();
    let error = file.finish(false).unwrap_err().problem.to_string();
    assert_eq!(error, "tensor \"a\" was not written (1 of 2 missing)");
    assert!(names(dir.path()).is_empty());
}

#[test]
fn an_existing_file_is_replaced_only_when_asked() {
    let table = [spec("a", Dtype::U8, &[1])];
    let dir = dir(&[("w.safetensors", b"precious".to_vec())]);
    let path = dir.path().join("w.safetensors");
    let error = TensorFile::create(&path, &table, None, false).unwrap_err().problem.to_string();
    assert_eq!(error, "exists already");
    assert_eq!(fs::read(&path).unwrap(), b"precious");

    let file = TensorFile::create(&path, &table, None, true).unwrap();
    file.write("a", &[1]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    file.finish(false).unwrap();
    assert_eq!(Header::read(&path).unwrap().tensors()[0].name, "a");

    // It came to exist in the meantime.
    let late = dir.path().join("late.safetensors");
    let file = TensorFile::create(&late, &table, None, false).unwrap();
    file.write("a", &[1]).unwrap();
    fs::write(&late, b"precious").unwrap();
    assert_eq!(file.finish(false).unwrap_err().problem.to_string(), "exists already");
    assert_eq!(fs::read(&late).unwrap(), b"precious");

    for path in [dir.path(), Path::new("/"), Path::new("..")] {
        let error = TensorFile::create(path, &table, None, true).unwrap_err().problem.to_string();
        assert_eq!(error, "not a file name");
    }
    assert!(TensorFile::create(dir.path().join("no/w.safetensors"), &table, None, true).is_err());
    assert_eq!(names(dir.path()), ["late.safetensors", "w.safetensors"]);
}
