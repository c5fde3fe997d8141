//! Running the built command, and small checkpoints to run it on.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod real;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

pub fn restage(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_restage")).args(args).output().expect("the command runs")
}

/// Runs the command and gives its stdout, which must come with exit code 0.
pub fn ok(args: &[&str]) -> String {
    let out = restage(args);
    assert_eq!(out.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("stdout is UTF-8")
}

/// Runs the command, which must fail with this exit code, and gives its stderr.
pub fn fails(code: i32, args: &[&str]) -> String {
    let out = restage(args);
    let stderr = String::from_utf8(out.stderr).expect("stderr is UTF-8");
    assert_eq!(out.status.code(), Some(code), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().filter(|l| !l.contains("note:")).count(), 1, "one line: {stderr}");
    stderr
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// Copies the files of a folder.
pub fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Every file of a folder with its bytes.
pub fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&p).unwrap()))
        .collect()
}

/// The header of a safetensors file as JSON, and its data.
pub fn parts(file: &[u8]) -> (serde_json::Value, Vec<u8>) {
    let n = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&file[8..8 + n]).unwrap(), file[8 + n..].to_vec())
}

/// A safetensors file of this header, as it is, and data.
pub fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Changes the config of a checkpoint.
pub fn edit_config(dir: &Path, edit: impl Fn(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = dir.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(config.as_object_mut().unwrap());
    fs::write(&path, serde_json::to_vec(&config).unwrap()).unwrap();
}
