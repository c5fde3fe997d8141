//! The captures that vLLM's own loaders left, converted to capture files, planned, pulled, and compared with the
//! files that vLLM saved. `data/README.md` says where they come from.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use restage_geometry::Region;
use restage_plan::{Catalog, Limits, Shard, Source};
use restage_refit::Receiver;
use restage_transport::MemoryTransport;
use restage_wire::{CaptureFile, SourcesFile, write_capture, write_sources};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The folder of a model: here, or among the fixtures.
fn model(name: &str) -> PathBuf {
    let here = data().join(name);
    if here.is_dir() {
        here
    } else {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/vllm").join(name)
    }
}

fn dtype(torch: &Value) -> &'static str {
    match torch.as_str() {
        Some("bfloat16") => "BF16",
        Some("float32") => "F32",
        other => panic!("dtype {other:?}"),
    }
}

/// Names of the positional arguments of torch's operations.
fn arguments(name: &str) -> &'static [&'static str] {
    match name {
        "narrow" => &["dim", "start", "length"],
        "select" => &["dim", "index"],
        "unsqueeze" => &["dim"],
        "transpose" => &["dim0", "dim1"],
        "chunk" => &["chunks", "dim"],
        "split" => &["size", "dim"],
        "unbind" => &["dim"],
        "t" | "contiguous" => &[],
        other => panic!("operation {other}"),
    }
}

/// A recorded chain as the file has it. What gives several parts is recorded with the subscript that takes one of
/// them as the next operation; here they are one.
fn chain(recorded: &[Value]) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    let mut steps = recorded.iter().peekable();
    while let Some(step) = steps.next() {
        let (name, args) = (step[0].as_str().unwrap(), step[1].as_array().unwrap());
        if name == "__getitem__" {
            let items: Vec<Value> = args.iter().map(|i| json!({"int": i.as_i64().unwrap()})).collect();
            out.push(json!({"op": "getitem", "index": items}));
            continue;
        }
        let names = arguments(name);
        assert!(args.len() <= names.len(), "{step}");
        let mut op = Map::from_iter([("op".to_owned(), json!(name))]);
        op.extend(names.iter().zip(args).map(|(name, value)| ((*name).to_owned(), value.clone())));
        op.extend(step[2].as_object().unwrap().clone());
        if ["chunk", "split", "unbind"].contains(&name) {
            op.entry("dim").or_insert(json!(0));
            let part = steps.next().unwrap_or_else(|| panic!("{step} without a subscript"));
            assert_eq!(part[0], "__getitem__", "{step} is followed by {part}");
            op.insert("index".into(), part[1][0].clone());
        }
        out.push(Value::Object(op));
    }
    out
}

/// The capture file of what was recorded.
fn converted(recorded: &Value) -> Value {
    let tensors = |key: &str| -> Map<String, Value> {
        let table = recorded[key].as_object().unwrap().iter();
        table.map(|(n, t)| (n.clone(), json!({"dtype": dtype(&t[1]), "shape": t[0]}))).collect()
    };
    let copies = recorded["copies"].as_array().unwrap().iter().map(|copy| {
        let mut copy = copy.as_object().unwrap().clone();
        copy["ops"] = Value::Array(chain(copy["ops"].as_array().unwrap()));
        copy["dest_dtype"] = json!(dtype(&copy["dest_dtype"]));
        Value::Object(copy)
    });
    assert_eq!(recorded["unsupported"], json!([]));
    json!({
        "format": "restage-capture",
        "version": 1,
        "params": tensors("params"),
        "sources": tensors("sources"),
        "copies": copies.collect::<Vec<_>>(),
    })
}

/// The tensors of a checkpoint as sources, cut by rows over `sessions` sessions, and the memory that holds them.
/// Addresses start where no other session's do.
fn published(file: &SafeTensors<'_>, sessions: usize) -> (Catalog, MemoryTransport<'static>) {
    let mut catalog = Catalog::new();
    let mut memory: Vec<Vec<u8>> = vec![Vec::new(); sessions];
    let base = |s: usize| 4096 * (s as u64 + 1);
    for (name, tensor) in file.tensors() {
        let shape: Vec<i64> = tensor.shape().iter().map(|&n| n as i64).collect();
        let dtype = tensor.dtype().to_string().parse().unwrap();
        let (rows, row_bytes) = match shape.first() {
            Some(&rows) => (rows as usize, tensor.data().len() / (rows as usize).max(1)),
            None => (1, tensor.data().len()),
        };
        let each = rows.div_ceil(sessions).max(1);
        let mut shards = Vec::new();
        for (s, held) in memory.iter_mut().enumerate() {
            let (from, to) = ((s * each).min(rows), ((s + 1) * each).min(rows));
            let (mut offset, mut part) = (vec![0; shape.len()], shape.clone());
            if !shape.is_empty() {
                (offset[0], part[0]) = (from as i64, (to - from) as i64);
            } else if s > 0 {
                break;
            }
            let region = Region::new(&offset, &part).unwrap();
            shards.push(Shard {
                region,
                session: format!("host-{s}").into(),
                addr: base(s) + held.len() as u64,
                digest: None,
            });
            held.extend(&tensor.data()[from * row_bytes..to * row_bytes]);
        }
        catalog.insert(name, Source { dtype, shape, shards }).unwrap();
    }
    let mut transport = MemoryTransport::new();
    for (s, held) in memory.into_iter().enumerate() {
        transport.register(format!("host-{s}"), base(s), held).unwrap();
    }
    (catalog, transport)
}

/// The name under which vLLM saves a parameter: of two names for one storage it keeps one.
fn saved(param: &str, tied: bool) -> String {
    match param {
        "model.embed_tokens.weight" if tied => "lm_head.weight".to_owned(),
        other => other.replace(".mlp.gate.weight", ".mlp.experts.gate.weight"),
    }
}

fn check(capture: &Path) {
    let recorded: Value = serde_json::from_slice(&fs::read(capture).unwrap()).unwrap();
    let folder = model(recorded["model"].as_str().unwrap());
    let rank = folder.join(format!("tp{}/rank{}.safetensors", recorded["tp"], recorded["rank"]));
    let (hf, rank) = (fs::read(folder.join("hf/model.safetensors")).unwrap(), fs::read(rank).unwrap());
    let (hf, rank) = (SafeTensors::deserialize(&hf).unwrap(), SafeTensors::deserialize(&rank).unwrap());

    let captured = CaptureFile::parse(converted(&recorded).to_string().as_bytes()).unwrap();
    assert_eq!(captured.copies.len(), recorded["copies"].as_array().unwrap().len());
    let written = write_capture(&captured).unwrap();
    assert_eq!(CaptureFile::parse(written.as_bytes()).as_ref(), Ok(&captured));

    let tied = !captured.params.iter().any(|p| p.name == "lm_head.weight")
        || rank.tensor("model.embed_tokens.weight").is_err();
    for (sessions, strided, max_descriptors) in [(1, false, 64), (1, true, 64), (3, false, 64), (3, false, 2)]
    {
        let (catalog, transport) = published(&hf, sessions);
        let catalog = {
            let parsed = SourcesFile::parse(write_sources(&catalog).as_bytes()).unwrap();
            assert_eq!(parsed, catalog);
            parsed
        };
        let limits = Limits { max_descriptors, strided, ..Limits::default() };
        let receiver = Receiver::prepare(&captured, &catalog, &limits).unwrap();
        let plan = receiver.plan();
        let what = format!("{} over {sessions} sessions, {limits:?}", capture.display());
        assert!(plan.refused.is_empty(), "{what}: {:?}", plan.refused);
        // Only the rows that pad the vocabulary come from nowhere; vLLM sets them to zero.
        for param in plan.incomplete() {
            assert!(["model.embed_tokens.weight", "lm_head.weight"].contains(&param), "{what}: {param}");
        }
        let mut bytes: Vec<Vec<u8>> = plan.coverage.iter().map(|c| vec![0; c.bytes as usize]).collect();
        let mut buffers: Vec<&mut [u8]> = bytes.iter_mut().map(Vec::as_mut_slice).collect();
        let report = receiver.pull_into(&transport, &mut buffers).unwrap();
        assert_eq!(report.bytes, plan.counters().bytes, "{what}");

        let mut left: BTreeMap<String, _> = rank.tensors().into_iter().collect();
        for (param, bytes) in plan.params.iter().zip(&bytes) {
            let name = saved(&param.name, tied);
            let expected = rank.tensor(&name).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
            let shape: Vec<i64> = expected.shape().iter().map(|&n| n as i64).collect();
            assert_eq!(
                (param.dtype.name(), &param.shape),
                (&*expected.dtype().to_string(), &shape),
                "{what}: {name}"
            );
            assert!(bytes == expected.data(), "{what}: {name} differs");
            left.remove(&name);
        }
        // The scale buffers have no source.
        for (name, tensor) in left {
            assert!(
                name.ends_with("_scale") && tensor.data() == 1f32.to_le_bytes(),
                "{what}: {name} is left"
            );
        }
    }
}

#[test]
fn every_capture_gives_the_file_that_vllm_saved() {
    let mut captures: Vec<PathBuf> =
        fs::read_dir(data().join("captures")).unwrap().map(|entry| entry.unwrap().path()).collect();
    captures.sort();
    assert_eq!(captures.len(), 9);
    captures.iter().for_each(|capture| check(capture));
}
