//! Small models of each family, against a plain forward in numpy (`data/make_blocks.py`).

use std::collections::BTreeMap;
use std::fs;

use restage_engine::{Compute, KvDtype};
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;
use serde_json::Value;

use crate::support::Pipeline;

#[derive(Deserialize)]
struct Reference {
    tokens: Vec<u64>,
    families: BTreeMap<String, Family>,
}

#[derive(Deserialize)]
struct Family {
    config: Value,
    tensors: BTreeMap<String, Vec<usize>>,
    blocks: Vec<Vec<f32>>,
    logits: Vec<f32>,
}

/// The weights of the generator, in a directory.
fn write(family: &Family) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), family.config.to_string()).unwrap();
    let mut state = 1u64;
    let mut bytes: BTreeMap<&str, (&[usize], Vec<u8>)> = BTreeMap::new();
    for (name, shape) in &family.tensors {
        let mut values = Vec::new();
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let v = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            let value = if name.contains("norm") { 1.0 + 0.125 * v } else { 0.25 * v };
            values.extend(value.to_le_bytes());
        }
        bytes.insert(name, (shape, values));
    }
    let views = bytes
        .iter()
        .map(|(name, (shape, values))| (*name, TensorView::new(Dtype::F32, shape.to_vec(), values).unwrap()));
    fs::write(dir.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    dir
}

fn furthest(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f32::max)
}

#[test]
fn every_block_of_every_family_is_that_of_a_plain_forward() {
    let reference: Reference = serde_json::from_str(include_str!("../data/blocks.json")).unwrap();
    assert_eq!(reference.families.len(), 4);
    for (name, family) in &reference.families {
        let dir = write(family);
        let open = || Pipeline::open(dir.path(), 3, Compute::F32, KvDtype::F32, |x| x);
        let found = open().hidden(&reference.tokens);
        for (b, (found, expected)) in found.iter().zip(&family.blocks).enumerate() {
            let furthest = furthest(found, expected);
            assert!(furthest < 1e-4, "{name}, block {b}: {furthest}");
        }
        let logits = open().logits(&reference.tokens);
        assert!(furthest(&logits, &family.logits) < 1e-4, "{name}: logits");
        // Token by token is the same.
        let mut one_by_one = open();
        let last = reference.tokens.iter().map(|token| one_by_one.logits(&[*token])).last().unwrap();
        assert_eq!(last, logits, "{name}");
    }
}
