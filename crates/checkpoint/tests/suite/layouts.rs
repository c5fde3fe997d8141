//! Layouts of directories: which is taken, what is refused, what is said in passing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use restage_checkpoint::names::{INDEX_FILE, SINGLE_FILE, rank_file};
use restage_checkpoint::{Checkpoint, Layout, Notice, rank_source};
use restage_geometry::{Dtype, Region};

use crate::made::{bytes_of, data, dir, index, raw, weights};

type Files<'a> = Vec<(&'a str, Vec<u8>)>;

fn a() -> Vec<u8> {
    bytes_of(&[("a", &[1])])
}

fn b() -> Vec<u8> {
    bytes_of(&[("b", &[2, 3])])
}

fn indexed(map: &[(&str, &str)]) -> Vec<u8> {
    index(map, "{}")
}

/// Every refusal says the directory (or the index in it) and these words.
#[test]
fn directories_are_refused_with_the_name_of_what_is_wrong() {
    let ranks = |names: &[&'static str]| -> Files {
        names.iter().map(|name| (*name, bytes_of(&[(name, &[1])]))).collect()
    };
    let cases: Vec<(Files, &str)> = vec![
        (
            vec![],
            "holds no file; looked for model.safetensors.index.json, model.safetensors, model-rank-0-part-0.safetensors",
        ),
        (vec![("config.json", vec![])], "holds no checkpoint; looked for model.safetensors.index.json"),
        (
            vec![("model-00001-of-00002.safetensors", a()), ("x.safetensors", a())],
            "holds no checkpoint (2 other weights files, first \"model-00001-of-00002.safetensors\"); looked for",
        ),
        // Two checkpoints.
        (
            vec![(SINGLE_FILE, a()), ("model-rank-0-part-0.safetensors", a())],
            "holds \"model.safetensors\" and \"model-rank-0-part-0.safetensors\"",
        ),
        (
            vec![(INDEX_FILE, indexed(&[])), ("model-rank-1-part-0.safetensors", a())],
            "holds \"model.safetensors.index.json\" and \"model-rank-1-part-0.safetensors\"",
        ),
        // Sharded state with holes.
        (
            ranks(&["model-rank-1-part-0.safetensors"]),
            "\"model-rank-0-part-0.safetensors\" is missing: rank 1 is there",
        ),
        (
            ranks(&["model-rank-0-part-0.safetensors", "model-rank-2-part-0.safetensors"]),
            "\"model-rank-1-part-0.safetensors\" is missing: rank 2 is there",
        ),
        (
            ranks(&["model-rank-0-part-0.safetensors", "model-rank-0-part-2.safetensors"]),
            "\"model-rank-0-part-1.safetensors\" is missing: part 2 of rank 0 is there",
        ),
        (
            ranks(&["model-rank-0-part-1.safetensors"]),
            "\"model-rank-0-part-0.safetensors\" is missing: part 1 of rank 0 is there",
        ),
        (
            ranks(&["model-rank-0-part-4294967295.safetensors", "model-rank-0-part-0.safetensors"]),
            "\"model-rank-0-part-1.safetensors\" is missing",
        ),
        (
            ranks(&["model-rank-0-part-0.safetensors", "model-rank-01-part-0.safetensors"]),
            "\"model-rank-01-part-0.safetensors\": expected a name like \"model-rank-0-part-0.safetensors\"",
        ),
        // One tensor in two parts of a rank.
        (
            vec![("model-rank-0-part-0.safetensors", a()), ("model-rank-0-part-1.safetensors", a())],
            "tensor \"a\": expected in one file, found in \"model-rank-0-part-0.safetensors\" and \"model-rank-0-part-1.safetensors\"",
        ),
        // Indices and their files.
        (
            vec![
                (INDEX_FILE, indexed(&[("a", "1.safetensors"), ("b", "2.safetensors")])),
                ("1.safetensors", a()),
            ],
            "\"2.safetensors\" is missing: model.safetensors.index.json says that it holds tensor \"b\"",
        ),
        (
            vec![
                (INDEX_FILE, indexed(&[("a", "1.safetensors"), ("b", "1.safetensors")])),
                ("1.safetensors", a()),
            ],
            "tensor \"b\": expected in \"1.safetensors\", not found there",
        ),
        (
            vec![
                (INDEX_FILE, indexed(&[("a", "2.safetensors"), ("b", "1.safetensors")])),
                ("1.safetensors", a()),
                ("2.safetensors", b()),
            ],
            "tensor \"a\": expected in \"2.safetensors\", not found there",
        ),
        (
            vec![
                (INDEX_FILE, indexed(&[("a", "1.safetensors")])),
                ("1.safetensors", bytes_of(&[("a", &[1]), ("b", &[2])])),
            ],
            "tensor \"b\": found in \"1.safetensors\", not listed in the index",
        ),
        (
            vec![
                (INDEX_FILE, indexed(&[("a", "1.safetensors"), ("b", "2.safetensors")])),
                ("1.safetensors", a()),
                ("2.safetensors", bytes_of(&[("a", &[1]), ("b", &[2])])),
            ],
            "tensor \"a\": expected in one file, found in \"1.safetensors\" and \"2.safetensors\"",
        ),
        (vec![(INDEX_FILE, b"{".to_vec())], "EOF while parsing"),
        (vec![(INDEX_FILE, b"{}".to_vec())], "missing field `weight_map`"),
        (vec![(INDEX_FILE, br#"{"weight_map":["a"]}"#.to_vec())], "invalid type: sequence"),
        (vec![(INDEX_FILE, br#"{"weight_map":{"a":1}}"#.to_vec())], "invalid type: integer `1`"),
        (vec![(INDEX_FILE, b"\xff{}".to_vec())], "not UTF-8 at byte 0"),
        (
            vec![(INDEX_FILE, br#"{"weight_map":{"a":"x","b":"x","a":"y"}}"#.to_vec())],
            "key \"weight_map\".\"a\" appears twice",
        ),
        (
            vec![(INDEX_FILE, br#"{"weight_map":{},"weight_map":{}}"#.to_vec())],
            "key \"weight_map\" appears twice",
        ),
    ];
    for (files, words) in cases {
        let dir = dir(&files);
        let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(words), "expected {words}\nfound {error}");
        assert!(error.starts_with(dir.path().to_str().unwrap()), "{error}");
        assert!(!error.contains('\n'));
    }
}

#[test]
fn an_index_cannot_lead_out_of_its_directory() {
    for name in ["/etc/passwd", "../a.safetensors", "sub/a.safetensors", "..", ".", "", "a\\b", "a\0b"] {
        let dir = dir(&[("a.safetensors", a())]);
        let map = serde_json::json!({ "weight_map": { "a": name } });
        fs::write(dir.path().join(INDEX_FILE), map.to_string()).unwrap();
        let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("tensor \"a\": expected a file name in the same directory, found"),
            "{name:?}: {error}"
        );
    }
    // Too long to be an index; sparse, so that nothing is written.
    let dir = dir(&[]);
    fs::File::create(dir.path().join(INDEX_FILE)).unwrap().set_len(100_000_001).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("expected at most 100000000 bytes, found 100000001"), "{error}");
}

#[test]
fn paths_that_are_no_checkpoint_are_refused() {
    let dir = dir(&[("config.json", b"{}".to_vec())]);
    for (path, words) in [
        ("gone", "does not exist; looked for a .safetensors or .gguf file, or a directory"),
        ("gone.safetensors", "does not exist; looked for"),
        ("config.json", "expected a directory, a .safetensors or a .gguf file"),
    ] {
        let error = Checkpoint::open(dir.path().join(path)).unwrap_err().to_string();
        assert!(error.contains(words), "{path}: {error}");
    }
    symlink("gone", dir.path().join(SINGLE_FILE)).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("\"model.safetensors\" is a link that leads nowhere"), "{error}");
}

#[test]
fn one_layout_of_two_can_be_asked_for() {
    let dir = dir(&[
        (INDEX_FILE, indexed(&[("a", "1.safetensors")])),
        ("1.safetensors", a()),
        (SINGLE_FILE, b()),
        ("model-rank-0-part-0.safetensors", bytes_of(&[("r", &[0])])),
        ("model-rank-1-part-0.safetensors", bytes_of(&[("r", &[1])])),
    ]);
    let all = [Layout::Indexed, Layout::Single, Layout::ShardedState { ranks: 2 }];
    assert_eq!(Checkpoint::layouts(dir.path()).unwrap(), all);
    for (layout, name) in all.into_iter().zip(["a", "b", "r"]) {
        let checkpoint = Checkpoint::open_as(dir.path(), layout).unwrap();
        assert_eq!(checkpoint.layout(), layout);
        assert!(checkpoint.tensors().all(|t| t.name == name));
        // What was not taken is said.
        let ignored = checkpoint.notices().iter().filter(|n| matches!(n, Notice::Ignored { .. })).count();
        assert_eq!(ignored + checkpoint.files().len(), 4);
    }
    for (ranks, words) in [
        (1, "expected 1 ranks, found 2"),
        (3, "\"model-rank-2-part-0.safetensors\" is missing: expected 3 ranks"),
    ] {
        let error = Checkpoint::open_as(dir.path(), Layout::ShardedState { ranks }).unwrap_err();
        assert!(error.to_string().ends_with(words), "{error}");
    }
    for layout in all {
        let empty = tempfile::tempdir().unwrap();
        let error = Checkpoint::open_as(empty.path(), layout).unwrap_err().to_string();
        assert!(error.contains("holds no file; looked for model"), "{error}");
    }
    let file = dir.path().join(SINGLE_FILE);
    assert_eq!(Checkpoint::open_as(&file, Layout::Single).unwrap().tensors().len(), 1);
    assert!(Checkpoint::open_as(&file, Layout::Indexed).unwrap_err().to_string().contains("is a file"));
}

#[test]
fn an_indexed_checkpoint_is_one_catalog_and_says_what_is_odd() {
    let map = [("a", "2.safetensors"), ("b", "1.safetensors"), ("c", "2.safetensors")];
    let two = weights(&[("c", Dtype::F32, &[2], &[9; 8]), ("a", Dtype::BF16, &[1, 3], &[7; 6])]);
    let dir = dir(&[
        (INDEX_FILE, index(&map, r#"{"total_size":99}"#)),
        ("1.safetensors", b()),
        ("2.safetensors", two.clone()),
        // Beside the index, with the same keys: not listed, not read, not even well-formed.
        (SINGLE_FILE, raw("{", &[])),
        ("empty.safetensors", raw("{}", &[])),
    ]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.layout(), Layout::Indexed);
    assert_eq!(
        checkpoint.notices(),
        [
            Notice::Ignored { file: "empty.safetensors".into() },
            Notice::Ignored { file: SINGLE_FILE.into() },
            Notice::TotalSize { declared: 99, found: 16 },
        ]
    );
    assert_eq!(
        checkpoint.notices()[2].to_string(),
        "model.safetensors.index.json: total_size is 99 bytes, the tensors have 16"
    );
    let catalog = checkpoint.catalog().unwrap();
    assert_eq!(catalog.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b", "c"]);
    let a = catalog.get("a").unwrap();
    assert_eq!((a.dtype, &a.shape[..]), (Dtype::BF16, &[1, 3][..]));
    assert_eq!(&*a.shards[0].session, "2.safetensors");
    assert_eq!(a.shards[0].region, Region::whole(&[1, 3]).unwrap());
    assert_eq!(&two[a.shards[0].addr as usize..][..6], [7; 6]);
    // Every session of the catalog can be registered.
    let sessions: Vec<_> = checkpoint.sessions().collect();
    assert_eq!(
        sessions.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["1.safetensors", "2.safetensors"]
    );
    assert!(sessions.iter().all(|(name, path)| *path == dir.path().join(name)));
}

#[test]
fn total_size_is_only_compared_when_it_is_a_size() {
    for (metadata, notices) in [
        ("{}", 0),
        ("null", 0),
        (r#"{"total_size":1}"#, 0),
        (r#"{"total_size":1.0}"#, 0),
        (r#"{"total_size":"1"}"#, 0),
        (r#"{"total_size":2}"#, 1),
        (r#"{"total_size":2.0,"total_parameters":1}"#, 1),
    ] {
        let dir = dir(&[(INDEX_FILE, index(&[("a", "1.safetensors")], metadata)), ("1.safetensors", a())]);
        assert_eq!(Checkpoint::open(dir.path()).unwrap().notices().len(), notices, "{metadata}");
    }
    let none = dir(&[(INDEX_FILE, br#"{"weight_map":{}}"#.to_vec())]);
    assert_eq!(Checkpoint::open(none.path()).unwrap().tensors().len(), 0);
}

#[test]
fn sharded_state_has_a_source_for_each_rank() {
    let dir = dir(&[
        (&rank_file(0, 0), bytes_of(&[("a", &[1])])),
        (&rank_file(0, 1), bytes_of(&[("b", &[2])])),
        (&rank_file(1, 0), bytes_of(&[("a", &[3, 4])])),
        // A part of no tensors is fine.
        (&rank_file(1, 1), raw("{}", &[])),
        ("extra.safetensors", a()),
    ]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.layout(), Layout::ShardedState { ranks: 2 });
    let tensors: Vec<_> = checkpoint.tensors().map(|t| (t.name.as_str(), t.rank, t.file)).collect();
    assert_eq!(tensors, [("a", Some(0), 0), ("a", Some(1), 2), ("b", Some(0), 1)]);
    assert_eq!(checkpoint.tensor("b", Some(1)), None);
    assert_eq!(checkpoint.tensor("a", None), None);
    let catalog = checkpoint.catalog().unwrap();
    assert_eq!(catalog.len(), 3);
    assert_eq!(catalog.get(&rank_source(1, "a")).unwrap().shape, [2]);
    assert_eq!(checkpoint.notices(), [Notice::Ignored { file: "extra.safetensors".into() }]);
    // The last rank's file is a link that leads nowhere: two ranks would look complete.
    symlink("gone", dir.path().join(rank_file(2, 0))).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("\"model-rank-2-part-0.safetensors\" is missing: a link"), "{error}");
}

#[test]
fn the_catalog_refuses_rows_that_end_inside_of_a_block() {
    // Two elements make one byte, so the file is fine; a row of one element is not.
    let dir = dir(&[(SINGLE_FILE, weights(&[("w", Dtype::F4, &[2, 1], &[0x21])]))]);
    let error = Checkpoint::open(dir.path()).unwrap().catalog().unwrap_err().to_string();
    assert!(error.ends_with("source \"w\": shape [2, 1] cuts a block of F4"), "{error}");
}

#[test]
fn companions_go_along_and_nothing_else_does() {
    let dir = dir(&[
        (SINGLE_FILE, a()),
        ("config.json", b"{}".to_vec()),
        ("tokenizer.model", vec![1]),
        ("modeling_x.py", vec![]),
        ("README.md", vec![]),
        (".config.json", vec![]),
        ("pytorch_model.bin", vec![]),
        ("blob", b"tokens".to_vec()),
    ]);
    fs::create_dir(dir.path().join("tokenizer_dir")).unwrap();
    // Download caches link to files of other names; a link that leads nowhere is said.
    symlink("blob", dir.path().join("tokenizer.json")).unwrap();
    symlink("gone", dir.path().join("vocab.json")).unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    let wanted: Vec<_> = ["config.json", "modeling_x.py", "tokenizer.json", "tokenizer.model"]
        .map(|name| dir.path().join(name))
        .to_vec();
    for path in [dir.path().to_owned(), dir.path().join(SINGLE_FILE)] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.companions(), wanted);
        assert_eq!(checkpoint.notices(), [Notice::BrokenLink { file: "vocab.json".into() }]);
        assert_eq!(checkpoint.dir(), dir.path());
    }
}

#[test]
fn a_file_rewritten_at_the_same_path_gives_the_new_tensors() {
    let dir = dir(&[(SINGLE_FILE, a())]);
    let names = |path: &Path| -> Vec<String> {
        Checkpoint::open(path).unwrap().tensors().map(|t| t.name.clone()).collect()
    };
    assert_eq!(names(dir.path()), ["a"]);
    fs::write(dir.path().join(SINGLE_FILE), b()).unwrap();
    assert_eq!(names(dir.path()), ["b"]);
}

#[test]
fn real_sharded_state_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        symlink(data(&format!("rank{rank}.safetensors")), dir.path().join(rank_file(rank, 0))).unwrap();
    }
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.layout(), Layout::ShardedState { ranks: 2 });
    for rank in 0..2 {
        // 130 rows are padded to 192, and each of two ranks has half of them.
        let head = checkpoint.tensor("lm_head.weight", Some(rank)).unwrap();
        assert_eq!((head.dtype, head.shape[0]), (Dtype::BF16, 96));
        let scale = checkpoint.tensor("model.layers.0.self_attn.attn._k_scale", Some(rank)).unwrap();
        let file = fs::read(&checkpoint.files()[scale.file].path).unwrap();
        assert_eq!(&file[scale.addr as usize..][..scale.length as usize], 1f32.to_le_bytes());
        assert!(scale.shape.is_empty());
    }
    assert_eq!(checkpoint.catalog().unwrap().len(), checkpoint.tensors().len());
}
