//! The body of the fuzz target over GGUF files, on small models with a few bytes changed. `docs/fuzzing.md` says how to run
//! it for longer.

use std::env;
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use crate::gguf::{Gguf, f32, f32s, text, texts, u32};
use crate::gguf_body::check;

/// Models of one block with few elements, of a kind of tokenizer each.
fn seeds() -> [(&'static str, Vec<u8>); 2] {
    let byte_level = |gguf: &mut Gguf| {
        gguf.metadata.insert("tokenizer.ggml.model".into(), text("gpt2"));
        gguf.metadata.insert("tokenizer.ggml.pre".into(), text("smollm"));
        gguf.metadata.insert("tokenizer.ggml.tokens".into(), texts(&["a", "b", "ab", "1", "\u{120}"]));
        gguf.metadata.insert("tokenizer.ggml.merges".into(), texts(&["a b"]));
    };
    let sentence_piece = |gguf: &mut Gguf| {
        let mut tokens: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
        tokens.extend(["<unk>", "\u{2581}", "a", "\u{2581}a"].map(str::to_owned));
        gguf.metadata.insert("tokenizer.ggml.model".into(), text("llama"));
        gguf.metadata.insert("tokenizer.ggml.tokens".into(), texts(&tokens));
        gguf.metadata.insert("tokenizer.ggml.scores".into(), f32s(&vec![-1.0; tokens.len()]));
        gguf.metadata.insert("tokenizer.ggml.bos_token_id".into(), u32(256));
    };
    [("byte_level", model("qwen3", byte_level)), ("sentence_piece", model("llama", sentence_piece))]
}

fn model(architecture: &str, tokenizer: impl Fn(&mut Gguf)) -> Vec<u8> {
    let mut gguf = Gguf::default();
    gguf.metadata.insert("general.architecture".into(), text(architecture));
    for (key, value) in [
        ("block_count", u32(1)),
        ("context_length", u32(16)),
        ("embedding_length", u32(4)),
        ("feed_forward_length", u32(6)),
        ("attention.head_count", u32(2)),
        ("attention.head_count_kv", u32(1)),
        ("attention.key_length", u32(2)),
        ("attention.layer_norm_rms_epsilon", f32(1e-5)),
        ("rope.freq_base", f32(1e4)),
    ] {
        gguf.metadata.insert(format!("{architecture}.{key}"), value);
    }
    tokenizer(&mut gguf);
    let mut tensors = vec![("model.embed_tokens", vec![5, 4]), ("model.norm", vec![4])];
    for (name, shape) in [
        ("input_layernorm", &[4][..]),
        ("post_attention_layernorm", &[4]),
        ("self_attn.q_proj", &[4, 4]),
        ("self_attn.k_proj", &[2, 4]),
        ("self_attn.v_proj", &[2, 4]),
        ("self_attn.o_proj", &[4, 4]),
        ("mlp.gate_proj", &[6, 4]),
        ("mlp.up_proj", &[6, 4]),
        ("mlp.down_proj", &[4, 6]),
    ] {
        tensors.push((name, shape.to_vec()));
    }
    if architecture == "qwen3" {
        tensors.extend([("self_attn.q_norm", vec![2]), ("self_attn.k_norm", vec![2])]);
    }
    let tensors = tensors.into_iter().map(|(name, shape)| {
        let prefix = if name.starts_with("model.") { "" } else { "model.layers.0." };
        let values = (0..shape.iter().product::<usize>()).map(|i| 0.5 - (i % 5) as f32 * 0.25).collect();
        (format!("{prefix}{name}.weight"), shape, values)
    });
    gguf.put(tensors, (architecture == "llama").then_some([2, 1]));
    gguf.bytes()
}

/// What a few bytes may become.
#[derive(Debug, Clone)]
enum Change {
    Byte(usize, u8),
    Number(usize, u64),
    Cut(usize),
    Repeat(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0usize..10_000;
    let numbers = proptest::sample::select(vec![0, 1, 2, 3, 7, 1 << 20, 1 << 28, 1 << 31, 1 << 62, u64::MAX]);
    prop_oneof![
        (at.clone(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (at.clone(), numbers).prop_map(|(at, number)| Change::Number(at, number)),
        at.clone().prop_map(Change::Cut),
        (at, 1usize..40).prop_map(|(at, length)| Change::Repeat(at, length)),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let place = |at: usize| at % bytes.len().max(1);
        match *change {
            Change::Byte(at, byte) => {
                let at = place(at);
                bytes.iter_mut().skip(at).take(1).for_each(|b| *b = byte);
            }
            Change::Number(at, number) => {
                let at = place(at);
                let number = number.to_le_bytes();
                bytes.iter_mut().skip(at).zip(number).for_each(|(b, n)| *b = n);
            }
            Change::Cut(at) => bytes.truncate(place(at)),
            Change::Repeat(at, length) => {
                let at = place(at);
                let part: Vec<u8> = bytes.iter().skip(at).take(length).copied().collect();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}

#[test]
fn models_as_they_are_can_be_computed_with() {
    for (name, bytes) in seeds() {
        check(&bytes);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, &bytes).unwrap();
        let source = restage_engine::Source::open(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(source.config.vocab_size, 5);
    }
}

/// Seeds for the fuzz target, into the folder that the variable names.
#[test]
#[ignore = "writes files"]
fn write_seeds() {
    let folder = PathBuf::from(env::var_os("RESTAGE_SEEDS").expect("RESTAGE_SEEDS names a folder"));
    fs::create_dir_all(&folder).unwrap();
    seeds().into_iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_file_is_refused_or_computed_with(
        seed in 0usize..2,
        changes in proptest::collection::vec(change(), 0..5),
    ) {
        let [(_, a), (_, b)] = seeds();
        check(&changed([a, b][seed].clone(), &changes));
    }
}
