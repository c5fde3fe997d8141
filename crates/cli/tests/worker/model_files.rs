//! Models as they lie in files: both formats give the same stage, and what cannot be served is refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::driver::command;
use crate::gguf::{Gguf, Value as Stored, f32, text, u32};
use crate::model::{Pipeline, model, stage};
use crate::small::{Small, config};
use crate::small_gguf::small_gguf;
use crate::start::refused;

/// Case 60: rows of q and k have another order in a GGUF file, and the tokens are the same.
#[test]
fn both_formats_of_the_same_weights_give_the_same_tokens() {
    let dir = model(Small::default());
    let file = dir.path().join("model.gguf");
    fs::write(&file, small_gguf(Small::default()).bytes()).unwrap();
    let prompt: Vec<u64> = b"the same weights".map(u64::from).to_vec();
    let args = ["--hidden-dtype", "f32", "--kv-dtype", "f32"];
    let expected = Pipeline::start(dir.path(), 2, &args).run("s", &prompt, 24, json!({}));
    assert_eq!(Pipeline::start(&file, 3, &args).run("s", &prompt, 24, json!({})), expected);
    // The order of the rows matters here, or nothing would have been shown.
    let mut mixed = small_gguf(Small::default());
    for block in 0..Small::default().blocks {
        let (q, o) = (format!("blk.{block}.attn_q.weight"), format!("blk.{block}.attn_output.weight"));
        let other = mixed.tensors[&o].clone();
        mixed.tensors.insert(q, other);
    }
    fs::write(&file, mixed.bytes()).unwrap();
    assert_ne!(Pipeline::start(&file, 3, &args).run("s", &prompt, 24, json!({})), expected);
}

/// Case 49: every block is in one stage, each stage reads its own, and all of them together are the model.
#[test]
fn blocks_that_do_not_divide_evenly_are_each_in_one_stage() {
    for (blocks, count, split) in
        [(10, 3, "floor"), (10, 3, "balanced"), (30, 4, "floor"), (31, 8, "floor"), (31, 8, "balanced")]
    {
        let small = Small { blocks, ..Small::default() };
        let dir = tempfile::tempdir().unwrap();
        let all = crate::small::write(dir.path(), small);
        let mut pipeline = Pipeline::start(dir.path(), count, &["--split", split, "--threads", "1"]);
        let (mut next, mut read) = (0, 0);
        for driver in &mut pipeline.0 {
            let [first, end] = [0, 1].map(|i| driver.ready["layer_range"][i].as_u64().unwrap());
            assert_eq!((first, &driver.ready["total_blocks"]), (next, &json!(blocks)));
            assert!(first < end);
            next = end;
            let status = driver.ok(json!({"op": "status", "request_id": 1}));
            read += status["memory"]["read_bytes"].as_u64().unwrap();
        }
        assert_eq!((next, read), (blocks, all), "{blocks} over {count}, {split}");
        let two = Pipeline::start(dir.path(), 2, &["--hidden-dtype", "f32"]).run("s", &[5, 6], 3, json!({}));
        let many = Pipeline::start(
            dir.path(),
            count,
            &["--hidden-dtype", "f32", "--split", split, "--threads", "1"],
        );
        assert_eq!({ many }.run("s", &[5, 6], 3, json!({})), two);
    }
}

/// A worker that must not start with a model.
fn serve(path: &Path, args: &[&str], about: &str) {
    let mut command = command("1", "2");
    command.env_remove("PP_WORKER_STUB").arg("--model").arg(path).args(args);
    refused(command, about);
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let change = |name: &str, value: Value, about: &str| {
        let dir = model(Small::default());
        let mut config = config(Small::default());
        config[name] = value;
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        serve(dir.path(), &[], about);
    };
    change("architectures", json!(["GemmaForCausalLM"]), "GemmaForCausalLM");
    change("quantization_config", json!({"quant_method": "awq"}), "awq");
    change("hidden_act", json!("gelu"), "gelu");
    change("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}), "yarn");
    change("num_hidden_layers", json!(5), "model.layers.4.");
    change("num_hidden_layers", json!(1), "1");
    let dir = model(Small::default());
    serve(dir.path(), &["--layers", "2..5"], "4 blocks");
    serve(dir.path(), &["--layers", "1..3"], "must end at block 4");
    serve(dir.path(), &["--threads", "0"], "--threads");
    serve(dir.path(), &["--max-context", "0"], "--max-context");
    serve(dir.path(), &["--hidden-dtype", "f64"], "f64");
    serve(&dir.path().join("nothing.gguf"), &[], "nothing.gguf");
}

/// Weights of a type that is not computed with, in a safetensors file.
#[test]
fn a_type_that_is_not_computed_with_is_refused_by_name() {
    let dir = model(Small::default());
    let path = dir.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let name = "model.layers.3.mlp.up_proj.weight";
    for (dtype, width, told) in [(Dtype::F64, 8, "F64"), (Dtype::I8, 1, "I8"), (Dtype::F8_E4M3, 1, "F8_E4M3")]
    {
        let data = vec![0; width * 48 * 32];
        let views = file.tensors().into_iter().map(|(n, view)| {
            let changed = n == name;
            let view = if changed { TensorView::new(dtype, vec![48, 32], &data).unwrap() } else { view };
            (n, view)
        });
        let changed = safetensors::serialize(views, None).unwrap();
        fs::write(&path, changed).unwrap();
        serve(dir.path(), &[], told);
        serve(dir.path(), &[], name);
        // A stage that does not have it does not mind.
        stage(dir.path(), 0, 2, &[]).alive();
    }
}

/// A GGUF file that is changed before it is written.
fn changed(dir: &Path, change: impl FnOnce(&mut Gguf)) -> PathBuf {
    let mut gguf = small_gguf(Small::default());
    change(&mut gguf);
    let path = dir.join("changed.gguf");
    fs::write(&path, gguf.bytes()).unwrap();
    path
}

/// Case 52: a vocabulary that does not say how text is split or merged is refused. And what else is not computed.
#[test]
fn a_gguf_file_that_cannot_be_served_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let without = |key: &str| {
        let path = changed(dir.path(), |g| assert!(g.metadata.remove(key).is_some()));
        serve(&path, &[], key);
    };
    without("tokenizer.ggml.pre");
    without("tokenizer.ggml.merges");
    without("tokenizer.ggml.tokens");
    without("llama.context_length");
    without("llama.attention.layer_norm_rms_epsilon");
    let with = |key: &str, value: Stored, about: &str| {
        let path = changed(dir.path(), |g| drop(g.metadata.insert(key.to_owned(), value)));
        serve(&path, &[], about);
    };
    with("general.architecture", text("gemma3"), "gemma3");
    with("llama.expert_count", u32(8), "experts");
    with("tokenizer.ggml.pre", text("tekken"), "tekken");
    with("tokenizer.ggml.model", text("t5"), "t5");
    with("tokenizer.ggml.pre", u32(1), "tokenizer.ggml.pre");
    with("llama.rope.scaling.type", text("longrope"), "longrope");
    with("llama.rope.scaling.type", text("linear"), "llama.rope.scaling.factor");
    with("llama.rope.scale_linear", f32(0.0), "the scaling of the rotary frequencies");
    with("llama.rope.dimension_count", u32(4), "llama.rope.dimension_count");
    with("split.count", (2, 3u16.to_le_bytes().to_vec()), "split.count is 3");
    // Types of blocks: one that is not read, and one that is read and not computed with.
    let typed = |kind: u32, bytes: usize, about: &str| {
        let path = changed(dir.path(), |g| {
            let name = "blk.3.ffn_up.weight".to_owned();
            assert!(g.tensors.insert(name, (kind, vec![32, 48], vec![0; bytes])).is_some());
        });
        serve(&path, &[], about);
        serve(&path, &[], "ffn_up");
    };
    typed(6, 22 * 48, "Q5_0");
    typed(99, 22 * 48, "99");
}
