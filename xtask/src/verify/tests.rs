use std::fs;
use std::path::{Path, PathBuf};

use restage_checkpoint::Header;

use super::*;

fn fixtures() -> PathBuf {
    crate::workspace().unwrap().join("fixtures")
}

fn failures(rows: &[Row]) -> Vec<String> {
    rows.iter().flat_map(|row| row.failures.clone()).collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// A folder of fixtures that holds a copy of this one.
fn only(fixture: &str) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    copy(&fixtures().join(fixture), &place.path().join(fixture));
    place
}

/// Inverts a byte of a tensor in a file.
fn alter(file: &Path, tensor: &str, byte: usize) {
    let header = Header::read(file).unwrap();
    let at = header.tensors().iter().find(|t| t.name == tensor).unwrap().addr as usize + byte;
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 0xff;
    fs::write(file, bytes).unwrap();
}

#[test]
fn every_case_is_reconstructed() {
    let rows = run(&fixtures(), Some("cases/"), &Media::simplest()).unwrap();
    assert_eq!(failures(&rows), Vec::<String>::new());
    assert_eq!(rows.len(), 2 * folders(&fixtures().join("cases")).unwrap().len());
}

#[test]
fn every_model_is_reconstructed() {
    for filter in ["vllm/", "demo"] {
        let rows = run(&fixtures(), Some(filter), &Media::simplest()).unwrap();
        assert_eq!(failures(&rows), Vec::<String>::new());
        assert!(!rows.is_empty(), "{filter}");
    }
}

#[test]
fn altered_expected_bytes_are_named_by_parameter_and_byte() {
    let name = "cases/full_pull_serves_two_copies";
    let place = only(name);
    let file = place.path().join(name).join("expected.safetensors");
    let param = Header::read(&file).unwrap().tensors()[0].name.clone();
    alter(&file, &param, 9);
    let rows = run(place.path(), None, &Media::simplest()).unwrap();
    assert_eq!(rows.iter().map(|row| row.transport).collect::<Vec<_>>(), ["memory", "file"]);
    for row in &rows {
        // Flat at its bound, strided, flat at 1.
        assert_eq!((row.pulls, row.failures.len()), (3, 3), "{:?}", row.failures);
        for failure in &row.failures {
            for part in [name, row.transport, "at bound", &format!("{param:?}"), "byte 9: expected 0x"] {
                assert!(failure.contains(part), "{part} is not in {failure}");
            }
        }
    }
    assert!(Table(&rows).to_string().contains("FAILED"));
}

#[test]
fn an_altered_rank_file_is_named() {
    let name = "vllm/qwen2_tied";
    let place = only(name);
    alter(&place.path().join(name).join("tp2/rank1.safetensors"), "model.norm.weight", 3);
    let failures = failures(&run(place.path(), None, &Media::simplest()).unwrap());
    let named = |f: &String| f.contains("tp2/rank1") && f.contains("\"model.norm.weight\": byte 3: ");
    assert_eq!(failures.iter().filter(|f| named(f)).count(), 6, "{failures:?}");
    assert_eq!(failures.len(), 6, "{failures:?}");
}

#[test]
fn wrong_claims_of_a_case_are_found() {
    let name = "cases/unsupported_source";
    for (from, to, part) in [
        (r#""incomplete": ["p2"]"#, r#""incomplete": []"#, "incomplete: expected {}, found {\"p2\"}"),
        (r#""refused": ["bad"]"#, r#""refused": []"#, "refused: expected {}, found {\"bad\"}"),
        (r#""refused": ["bad"]"#, r#""refused": ["bad"], "full_pulls": ["w"]"#, "full pulls: expected"),
        (r#""refused""#, r#""refuse""#, "unknown field `refuse`"),
        (r#""tensor": "w""#, r#""tensor": "v""#, "has no tensor \"v\""),
    ] {
        let place = only(name);
        let path = place.path().join(name).join("case.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let failures = failures(&run(place.path(), None, &Media::simplest()).unwrap());
        assert!(failures.iter().any(|f| f.contains(part) && f.contains(name)), "{part}: {failures:?}");
    }
}

#[test]
fn a_folder_of_no_known_kind_is_not_passed_over() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("new_kind")).unwrap();
    assert!(run(place.path(), None, &Media::simplest()).unwrap_err().to_string().contains("new_kind"));
}
