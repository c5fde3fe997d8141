//! The JSON Schemas in docs/ say what the reader reads: everything that the goldens and fixtures hold, every
//! operation of the vocabulary, and none of what is refused for its form.

use std::fs;
use std::path::{Path, PathBuf};

use jsonschema::Validator;
use restage_wire::{CaptureFile, OpForm, SourcesFile, write_capture, write_sources};
use serde::Deserialize;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path.as_ref()).unwrap()).unwrap()
}

fn schema(name: &str) -> (Value, Validator) {
    let schema = json(root().join(format!("docs/{name}.schema.json")));
    jsonschema::meta::validate(&schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    (schema, validator)
}

fn valid(schema: &Validator, value: &Value, what: &str) {
    let errors: Vec<String> =
        schema.iter_errors(value).map(|e| format!("{}: {e:.300}", e.instance_path())).collect();
    assert!(errors.is_empty(), "{what}: {errors:?}");
}

/// A capture file of parts that have its vocabulary.
fn capture(params: &Value, copies: &Value, others: &[(&str, &Value)]) -> Value {
    let mut file = json!({"format": "restage-capture", "version": 1, "params": params, "copies": copies});
    for (key, value) in others.iter().filter(|(_, value)| !value.is_null()) {
        file[*key] = (*value).clone();
    }
    file
}

#[test]
fn every_planning_golden_is_valid_and_read() {
    let ((_, captures), (_, sources)) = (schema("restage-capture"), schema("restage-sources"));
    let cases = json(root().join("crates/plan/tests/data/plans.json"));
    let cases = cases["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 110);
    for case in cases {
        let id = case["id"].as_str().unwrap();
        valid(&captures, &case["copies"], id);
        valid(&sources, &case["sources"], id);
        let captured = CaptureFile::parse(case["copies"].to_string().as_bytes()).unwrap();
        let catalog = SourcesFile::parse(case["sources"].to_string().as_bytes()).unwrap();
        assert_eq!(captured.copies.len(), case["copies"].as_array().unwrap().len(), "{id}");
        assert_eq!(catalog.len(), case["sources"].as_object().unwrap().len(), "{id}");
        // What is written is valid too.
        valid(&captures, &serde_json::from_str(&write_capture(&captured).unwrap()).unwrap(), id);
        valid(&sources, &serde_json::from_str(&write_sources(&catalog)).unwrap(), id);
    }
}

#[test]
fn every_fixture_is_valid_and_read() {
    let ((_, captures), (_, sources)) = (schema("restage-capture"), schema("restage-sources"));
    let mut cases = 0;
    for entry in fs::read_dir(root().join("fixtures/cases")).unwrap() {
        let path = entry.unwrap().path().join("case.json");
        let (case, what) = (json(&path), path.display().to_string());
        let others = [("fills", &case["fills"]), ("unsupported", &case["unsupported"])];
        let file = capture(&case["params"], &case["copies"], &others);
        valid(&captures, &file, &what);
        CaptureFile::parse(file.to_string().as_bytes()).unwrap_or_else(|e| panic!("{what}: {e}"));
        // A fixture's shards name a tensor of a file, where a published one has a session and an address.
        let mut table = case["sources"].clone();
        for source in table.as_object_mut().unwrap().values_mut() {
            for shard in source["shards"].as_array_mut().unwrap() {
                let shard = shard.as_object_mut().unwrap();
                shard.remove("tensor");
                let file = shard.remove("file").unwrap();
                shard.insert("session".into(), file);
                shard.insert("addr".into(), json!(0));
            }
        }
        let file = json!({"format": "restage-sources", "version": 1, "sources": table});
        valid(&sources, &file, &what);
        SourcesFile::parse(file.to_string().as_bytes()).unwrap_or_else(|e| panic!("{what}: {e}"));
        cases += 1;
    }
    assert!(cases >= 36, "{cases}");
}

/// The names of all operations, from serde's complaint about one that it does not know.
fn vocabulary() -> Vec<String> {
    let error = OpForm::deserialize(json!({"op": "no such operation"})).unwrap_err().to_string();
    let names = error.split_once("expected one of").unwrap().1;
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_operation_has_its_place_in_the_schema_and_in_written_files() {
    let (schema, captures) = schema("restage-capture");
    let branches = schema["$defs"]["op"]["anyOf"].as_array().unwrap();
    let names = vocabulary();
    assert!(names.len() >= 19, "{names:?}");
    for name in names {
        let branch = branches.iter().find(|b| b["properties"]["op"]["const"] == name.as_str());
        let branch = branch.unwrap_or_else(|| panic!("docs/restage-capture.schema.json has no {name}"));
        for example in branch["examples"].as_array().unwrap() {
            let copies = json!([{
                "source": "w", "ops": [example], "param": "p",
                "dest_offset": 0, "dest_shape": [2], "dest_stride": [1]
            }]);
            let file = capture(&json!({"p": {"dtype": "F32", "shape": [2]}}), &copies, &[]);
            valid(&captures, &file, &name);
            let captured = CaptureFile::parse(file.to_string().as_bytes()).unwrap();
            assert_eq!(captured.copies[0].ops[0].name(), name);
            let written = write_capture(&captured).unwrap_or_else(|e| panic!("to_form.rs: {e}"));
            assert_eq!(CaptureFile::parse(written.as_bytes()).as_ref(), Ok(&captured), "{name}");
            valid(&captures, &serde_json::from_str(&written).unwrap(), &name);
            // The fields are the reader's: with one more, both refuse.
            let mut extra = file.clone();
            extra["copies"][0]["ops"][0]["no_such_field"] = json!(0);
            assert!(!captures.is_valid(&extra), "{name}");
            CaptureFile::parse(extra.to_string().as_bytes()).unwrap_err();
        }
    }
}

#[test]
fn what_the_reader_refuses_for_its_form_is_not_valid() {
    let ((_, captures), (_, sources)) = (schema("restage-capture"), schema("restage-sources"));
    let copy = json!({
        "source": "w", "ops": [{"op": "select", "dim": 0, "index": 1}], "param": "p",
        "dest_offset": 0, "dest_shape": [2], "dest_stride": [1]
    });
    let fill = json!({"param": "p", "dest_offset": 0, "dest_shape": [2], "dest_stride": [1], "element": "00", "after": 1});
    let file = capture(
        &json!({"p": {"dtype": "U8", "shape": [2]}}),
        &json!([copy]),
        &[
            ("fills", &json!([fill])),
            ("unsupported", &json!({"a": "mul", "b": {"op": "to", "params": ["p"]}})),
        ],
    );
    valid(&captures, &file, "the file");
    CaptureFile::parse(file.to_string().as_bytes()).unwrap();
    for (pointer, key, value) in [
        ("", "version", json!(2)),
        ("", "format", json!("restage-sources")),
        ("", "copies", json!({})),
        ("", "extra", json!(0)),
        ("/params/p", "dtype", json!("half")),
        ("/params/p", "shape", json!(vec![1; 17])),
        ("/params/p", "shape", json!([-1])),
        ("/copies/0", "dest_stride", json!([0.5])),
        ("/copies/0", "dest_offset", json!(-1)),
        ("/copies/0", "dest_shape", json!(null)),
        ("/copies/0", "note", json!("")),
        ("/copies/0/ops/0", "op", json!("sqrt")),
        ("/copies/0/ops/0", "dim", json!(null)),
        ("/copies/0/ops/0", "index", json!("1")),
        ("/fills/0", "element", json!("0")),
        ("/fills/0", "element", json!("")),
        ("/fills/0", "after", json!(-1)),
        ("/fills/0", "after", json!("1")),
        ("/fills/0", "after", json!(0.5)),
        ("/fills/0", "after", json!(null)),
        ("/unsupported", "a", json!(1)),
        ("/unsupported/b", "params", json!("p")),
    ] {
        let mut changed = file.clone();
        changed.pointer_mut(pointer).unwrap()[key] = value.clone();
        assert!(!captures.is_valid(&changed), "{pointer}/{key} {value}");
        CaptureFile::parse(changed.to_string().as_bytes()).unwrap_err();
    }
    let file = json!({"format": "restage-sources", "version": 1, "sources": {"w": {
        "dtype": "U8", "shape": [2],
        "shards": [{"offset": [0], "shape": [2], "session": "a", "addr": u64::MAX - 2,
                    "digest": format!("sha256:{}", "00".repeat(32))}]
    }}});
    valid(&sources, &file, "the file");
    SourcesFile::parse(file.to_string().as_bytes()).unwrap();
    for (pointer, key, value) in [
        ("", "version", json!("1")),
        ("", "sources", json!([])),
        ("/sources/w", "shards", json!(null)),
        ("/sources/w", "shape", json!([2.5])),
        ("/sources/w/shards/0", "offset", json!([-1])),
        ("/sources/w/shards/0", "addr", json!(-1)),
        ("/sources/w/shards/0", "digest", json!("sha256:00")),
        ("/sources/w/shards/0", "file", json!("")),
    ] {
        let mut changed = file.clone();
        changed.pointer_mut(pointer).unwrap()[key] = value.clone();
        assert!(!sources.is_valid(&changed), "{pointer}/{key} {value}");
        SourcesFile::parse(changed.to_string().as_bytes()).unwrap_err();
    }
}
