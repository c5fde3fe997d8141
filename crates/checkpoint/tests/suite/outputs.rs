//! Output directories and companions: whole or not at all, and nothing of the user's is lost.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use restage_checkpoint::names::{INDEX_FILE, REPORT_FILE, SINGLE_FILE, indexed_file, rank_file};
use restage_checkpoint::{Checkpoint, CompanionCopy, OutputDir, TensorFile, TensorSpec, copy_companions};
use restage_geometry::Dtype;

use crate::made::{bytes_of, dir, names};

fn fill(output: &OutputDir) {
    let specs = [TensorSpec { name: "w".into(), dtype: Dtype::U8, shape: vec![1] }];
    let file = TensorFile::create(output.path().join(SINGLE_FILE), &specs, None, false).unwrap();
    file.write("w", &[1]).unwrap();
    file.finish(false).unwrap();
}

fn refused(target: &Path, force: bool) -> String {
    let error = OutputDir::create(target, force).unwrap_err();
    assert_eq!(error.path, target);
    error.problem.to_string()
}

#[test]
fn a_directory_appears_whole_or_not_at_all() {
    let place = dir(&[]);
    fs::create_dir(place.path().join("empty")).unwrap();
    for (name, sync) in [("new", false), ("empty", true)] {
        let target = place.path().join(name);
        let before = names(place.path());
        let output = OutputDir::create(&target, false).unwrap();
        fill(&output);
        assert!(!target.join(SINGLE_FILE).exists());
        drop(output);
        assert_eq!(names(place.path()), before);
        let output = OutputDir::create(&target, false).unwrap();
        fill(&output);
        output.commit(sync).unwrap();
        assert_eq!(Checkpoint::open(&target).unwrap().tensors().len(), 1);
    }
    assert_eq!(names(place.path()), ["empty", "new"]);
    // Others can read it as they could read any other directory that this process makes.
    let plain = place.path().join("plain");
    fs::create_dir(&plain).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions();
    assert_eq!(mode(&place.path().join("new")), mode(&plain));
    fs::write(plain.join("f"), "").unwrap();
    assert_eq!(mode(&place.path().join("new").join(SINGLE_FILE)), mode(&plain.join("f")));
}

#[test]
fn what_is_in_the_way_is_refused() {
    let place = dir(&[("file", vec![1])]);
    assert_eq!(refused(&place.path().join("file"), true), "expected a directory, found a file");
    assert!(OutputDir::create(place.path().join("no/parent"), true).is_err());
    assert!(OutputDir::create("/", true).is_err());
    let make = |name: &str, entries: &[&str]| {
        let target = place.path().join(name);
        fs::create_dir(&target).unwrap();
        for entry in entries {
            fs::write(target.join(entry), entry).unwrap();
        }
        target
    };
    let foreign = |entry: &str| format!("holds {entry:?}, which is no checkpoint file: not replaced");
    for (at, entry) in ["notes.txt", ".hidden", "other.safetensors", "model-rank-x.safetensors", "data.bin"]
        .iter()
        .enumerate()
    {
        let target = make(&format!("foreign{at}"), &[SINGLE_FILE, "config.json", entry]);
        assert_eq!(refused(&target, false), "exists already and is not empty");
        assert_eq!(refused(&target, true), foreign(entry));
        assert_eq!(names(&target).len(), 3);
    }
    // A directory or a link of a right name is foreign all the same.
    let target = make("deep", &[SINGLE_FILE]);
    fs::create_dir(target.join("config.json")).unwrap();
    assert_eq!(refused(&target, true), foreign("config.json"));
    let target = make("linked", &["config.json"]);
    symlink("../file", target.join(SINGLE_FILE)).unwrap();
    assert_eq!(refused(&target, true), foreign(SINGLE_FILE));
    // Scripts and settings alone are somebody's work.
    let target = make("scripts", &["train.py", "config.json"]);
    assert_eq!(refused(&target, true), "is not empty and holds no checkpoint: not replaced");
    assert!(names(place.path()).iter().all(|name| !name.starts_with('.')));
}

#[test]
fn a_checkpoint_is_replaced_when_forced() {
    let place = dir(&[]);
    let target = place.path().join("out");
    fs::create_dir(&target).unwrap();
    let old = [
        SINGLE_FILE,
        INDEX_FILE,
        REPORT_FILE,
        &indexed_file(1, 2),
        &rank_file(0, 0),
        "config.json",
        "tokenizer.json",
    ];
    for name in old {
        fs::write(target.join(name), "old").unwrap();
    }
    // By its own path and through a link.
    symlink("out", place.path().join("link")).unwrap();
    for path in [target.clone(), place.path().join("link")] {
        let output = OutputDir::create(path, true).unwrap();
        fill(&output);
        fs::write(output.path().join("config.json"), "new").unwrap();
        output.commit(true).unwrap();
        assert_eq!(names(&target), ["config.json", SINGLE_FILE]);
        assert_eq!(fs::read(target.join("config.json")).unwrap(), b"new");
        assert_eq!(names(place.path()), ["link", "out"]);
    }
}

#[test]
fn commit_looks_again() {
    let place = dir(&[]);
    let target = place.path().join("out");
    // Something came, forced or not.
    for (force, words) in [
        (false, "exists already and is not empty"),
        (true, "holds \"notes.txt\", which is no checkpoint file: not replaced"),
    ] {
        let output = OutputDir::create(&target, force).unwrap();
        fill(&output);
        fs::create_dir(&target).unwrap();
        fs::write(target.join("notes.txt"), "mine").unwrap();
        assert_eq!(output.commit(false).unwrap_err().problem.to_string(), words);
        assert_eq!(names(&target), ["notes.txt"]);
        assert_eq!(names(place.path()), ["out"]);
        fs::remove_dir_all(&target).unwrap();
    }
    // A file in it is not finished.
    let output = OutputDir::create(&target, false).unwrap();
    let unfinished = TensorFile::create(output.path().join(SINGLE_FILE), &[], None, false).unwrap();
    let error = output.commit(false).unwrap_err().problem.to_string();
    assert!(
        error.starts_with("\".model.safetensors.partial-") && error.ends_with("is not finished"),
        "{error}"
    );
    drop(unfinished);
    assert!(names(place.path()).is_empty());
}

#[test]
fn companions_are_copied_once_and_never_silently_changed() {
    let from = dir(&[
        (SINGLE_FILE, bytes_of(&[("w", &[1])])),
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", vec![5; 200_000]),
    ]);
    let checkpoint = Checkpoint::open(from.path()).unwrap();
    let place = dir(&[]);
    let output = OutputDir::create(place.path().join("out"), false).unwrap();
    assert_eq!(output.copy_companions(&checkpoint).unwrap().len(), 2);
    output.commit(false).unwrap();
    let into = place.path().join("out");
    let outcome = |force| -> Result<Vec<CompanionCopy>, String> {
        let copies = copy_companions(&checkpoint, &into, force).map_err(|e| e.to_string())?;
        Ok(copies.into_iter().map(|(_, copy)| copy).collect())
    };
    use CompanionCopy::{Copied, Replaced, Same};
    assert_eq!(outcome(false), Ok(vec![Same, Same]));
    fs::remove_file(into.join("config.json")).unwrap();
    // The same length and another last byte, past the first buffer; then shorter; nothing is copied either way.
    let mut other = vec![5; 200_000];
    other[199_999] = 6;
    for content in [other, vec![5; 199_999]] {
        fs::write(into.join("tokenizer.json"), &content).unwrap();
        let error = outcome(false).unwrap_err();
        assert!(error.contains("tokenizer.json: differs from") && error.ends_with("not replaced"), "{error}");
        assert_eq!(names(&into), ["tokenizer.json"]);
        assert_eq!(fs::read(into.join("tokenizer.json")).unwrap(), content);
    }
    assert_eq!(outcome(true), Ok(vec![Copied, Replaced]));
    assert_eq!(fs::read(into.join("tokenizer.json")).unwrap(), vec![5; 200_000]);
    // A directory in the way is not replaced by force either.
    fs::remove_file(into.join("config.json")).unwrap();
    fs::create_dir(into.join("config.json")).unwrap();
    assert!(outcome(true).is_err());
    // Into its own directory there is nothing to do.
    assert!(copy_companions(&checkpoint, from.path(), false).unwrap().iter().all(|(_, copy)| *copy == Same));
}

#[test]
fn many_ranks_may_copy_companions_at_once() {
    let from = dir(&[(SINGLE_FILE, bytes_of(&[])), ("config.json", vec![b' '; 100_000])]);
    let checkpoint = Checkpoint::open(from.path()).unwrap();
    let into = dir(&[]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| copy_companions(&checkpoint, into.path(), false).unwrap());
        }
    });
    assert_eq!(names(into.path()), ["config.json"]);
    assert_eq!(fs::read(into.path().join("config.json")).unwrap().len(), 100_000);
}
