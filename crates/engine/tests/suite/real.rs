//! SmolLM2-135M-Instruct, as `cargo xtask real-model` fetches it, against what llama.cpp made of it.

use half::f16;
use restage_engine::{Compute, KvDtype, Source};
use serde::Deserialize;

use crate::real_model::model;
use crate::support::{Pipeline, largest, parts, transport};

const GGUF: &str = "smollm2-135m.Q4_1.gguf";

#[derive(Deserialize)]
struct Goldens {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    prompt_ids: Vec<u64>,
    greedy_ids: Vec<u64>,
    gap: Vec<f32>,
    top1_logit: Vec<f32>,
}

fn goldens(json: &str) -> Vec<Prompt> {
    serde_json::from_str::<Goldens>(json).unwrap().prompts
}

const F32: &str = include_str!("../data/smollm2_greedy_f32.json");

/// Feeds a prompt and the recorded ids; `step` is given each step's number and the logits after it.
fn fed(pipeline: &mut Pipeline, prompt: &Prompt, mut step: impl FnMut(usize, Vec<f32>)) {
    step(0, pipeline.logits(&prompt.prompt_ids));
    for (i, id) in prompt.greedy_ids.iter().enumerate().take(prompt.greedy_ids.len() - 1) {
        step(i + 1, pipeline.logits(&[*id]));
    }
}

#[test]
fn every_greedy_id_and_top_logit_is_that_of_f32_weights() {
    let Some(dir) = model() else { return };
    for prompt in goldens(F32) {
        let mut model = Pipeline::open(&dir.join(GGUF), 1, Compute::F32, KvDtype::F32, |x| x);
        let mut furthest = 0f32;
        fed(&mut model, &prompt, |i, logits| {
            assert_eq!(largest(&logits), prompt.greedy_ids[i], "{}, step {i}", prompt.name);
            let top = logits[prompt.greedy_ids[i] as usize];
            furthest = furthest.max((top - prompt.top1_logit[i]).abs());
        });
        eprintln!("{}: top logits within {furthest}", prompt.name);
        assert!(furthest < 1e-3, "{}: {furthest}", prompt.name);
    }
}

#[test]
fn bf16_weights_give_the_same_ids_where_the_gap_is_wide() {
    let Some(dir) = model() else { return };
    for prompt in goldens(F32) {
        let mut model = Pipeline::open(&dir, 1, Compute::F32, KvDtype::F32, |x| x);
        let mut compared = 0;
        fed(&mut model, &prompt, |i, logits| {
            if prompt.gap[i] >= 0.2 {
                assert_eq!(largest(&logits), prompt.greedy_ids[i], "{}, step {i}", prompt.name);
                compared += 1;
            }
        });
        eprintln!("{}: {compared} steps of 64 have a gap of 0.2 or more", prompt.name);
    }
}

#[test]
fn kernels_that_round_activations_differ_only_where_the_gap_is_narrow() {
    let Some(dir) = model() else { return };
    for prompt in goldens(include_str!("../data/smollm2_greedy.json")) {
        let mut model = Pipeline::open(&dir.join(GGUF), 1, Compute::Q8, KvDtype::F16, |x| x);
        fed(&mut model, &prompt, |i, logits| {
            if prompt.gap[i] >= 1.0 {
                assert_eq!(largest(&logits), prompt.greedy_ids[i], "{}, step {i}", prompt.name);
            }
        });
    }
}

#[test]
fn stages_together_are_the_model() {
    let Some(dir) = model() else { return };
    let prompt = &goldens(F32)[0];
    let run = |compute, stages, wire, steps: usize| {
        let mut model = Pipeline::open(&dir.join(GGUF), stages, compute, KvDtype::F16, wire);
        let mut logits = vec![model.logits(&prompt.prompt_ids)];
        for _ in 1..steps {
            let next = largest(logits.last().unwrap());
            logits.push(model.logits(&[next]));
        }
        logits
    };
    for (compute, all) in [(Compute::Q8, &[2, 3, 5, 30][..]), (Compute::F32, &[3])] {
        let whole = run(compute, 1, |x| x, 6);
        for &stages in all {
            assert!(
                run(compute, stages, |x| x, 6) == whole,
                "{stages} stages, f32 between them, {compute:?}"
            );
        }
    }
    // Activations of 8 bits are steps, over which a rounded hidden state may fall; f32 has none.
    let whole = run(Compute::F32, 1, |x| x, 64);
    let ids = |logits: &[Vec<f32>]| logits.iter().map(|l| largest(l)).collect::<Vec<_>>();
    for stages in [2, 3, 5, 30] {
        let rounded = run(Compute::F32, stages, |x| f16::from_f32(x).to_f32(), 64);
        assert_eq!(ids(&rounded), ids(&whole), "{stages} stages, f16 between them");
    }
}

#[test]
fn a_stage_reads_its_own_bytes_and_no_others() {
    let Some(dir) = model() else { return };
    let source = Source::open(&dir.join(GGUF)).unwrap();
    let size = |name: &str| source.checkpoint.tensor(name, None).unwrap().length;
    let blocks = |range: std::ops::Range<i64>| -> u64 {
        let of_block = |name: &str| {
            let number = name.strip_prefix("blk.").and_then(|n| n.split_once('.')).map(|(n, _)| n.parse());
            number.is_some_and(|n: Result<i64, _>| n.is_ok_and(|n| range.contains(&n)))
        };
        source.checkpoint.tensors().filter(|t| of_block(&t.name)).map(|t| t.length).sum()
    };
    let (embedding, norm) = (size("token_embd.weight"), size("output_norm.weight"));
    for part in parts(30, 4) {
        let transport = transport(&source);
        let weights = restage_engine::load(&source, &part, Compute::Q8, &transport, &|_, _| ()).unwrap();
        let ends = if part.first { embedding } else { 0 } + if part.last { embedding + norm } else { 0 };
        let own = blocks(part.blocks.clone()) + ends;
        assert_eq!((weights.bytes, weights.report.bytes), (own, own), "{part:?}");
        assert_eq!(transport.snapshot().total().bytes, own, "{part:?}");
    }
}

#[test]
fn texts_have_the_tokens_that_llama_cpp_gives_them() {
    #[derive(Deserialize)]
    struct Cases {
        cases: Vec<Case>,
    }
    #[derive(Deserialize)]
    struct Case {
        text: String,
        ids: Vec<u32>,
    }
    let Some(dir) = model() else { return };
    let source = Source::open(&dir.join(GGUF)).unwrap();
    let tokenizer = source.tokenizer.unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.bos(), &source.eos[..]), (49152, Some(1), &[2][..]));
    let cases: Cases = serde_json::from_str(include_str!("../data/smollm2_tokenize.json")).unwrap();
    for Case { text, ids } in cases.cases {
        let mut found = Vec::new();
        // llama.cpp was told to take what spells a control token for one, as in a template's text.
        tokenizer.encode_with_control(&text, &mut found).unwrap();
        assert_eq!(found, ids, "{text:?}");
        let mut plain = Vec::new();
        tokenizer.encode(&text, &mut plain).unwrap();
        assert_eq!(tokenizer.decode(&plain).unwrap(), text);
    }
}
