//! Input that is refused: a clear line, exit code 3, and nothing written.

mod support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use support::{copy_dir, edit_config, fails, file, fixtures, ok, parts, restage, text};
use tempfile::tempdir;

/// Reshards a changed copy of a checkpoint; the refusal must name each of `names` and leave no output.
fn refused(from: &str, change: impl Fn(&Path), names: &[&str]) {
    let dir = tempdir().unwrap();
    let (hf, out) = (dir.path().join("hf"), dir.path().join("out"));
    copy_dir(&fixtures().join(from), &hf);
    change(&hf);
    for args in [
        vec!["reshard", text(&hf), "--tp", "2", "--out", text(&out)],
        vec!["reshard", text(&hf), "--tp", "2", "--rank", "1", "--out", text(&out)],
        vec!["plan", text(&hf), "--tp", "2"],
    ] {
        let error = fails(3, &args);
        for name in names {
            assert!(error.contains(name), "{args:?}: {name:?} is not in {error}");
        }
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["hf"], "something was written");
}

const LLAMA: &str = "vllm/llama_untied/hf";

fn edit_file(dir: &Path, edit: impl Fn(&mut Value, &mut Vec<u8>)) {
    let path = dir.join("model.safetensors");
    let (mut header, mut data) = parts(&fs::read(&path).unwrap());
    edit(&mut header, &mut data);
    fs::write(&path, file(&header.to_string(), &data)).unwrap();
}

/// Replaces the only weights file by one of other tensors: a name gives its shape, or `None` leaves it out.
fn retable(dir: &Path, change: impl Fn(&str, &[u64]) -> Option<Vec<u64>>, extra: &[(&str, &[u64])]) {
    edit_file(dir, |header, data| {
        let mut at = 0;
        let mut table = serde_json::Map::new();
        let old = header.as_object().unwrap().clone();
        let given = old.iter().filter(|(n, _)| *n != "__metadata__").map(|(name, info)| {
            let shape: Vec<u64> = serde_json::from_value(info["shape"].clone()).unwrap();
            (name.as_str(), change(name, &shape))
        });
        let extra = extra.iter().map(|(n, s)| (*n, Some(s.to_vec())));
        for (name, shape) in given.chain(extra) {
            let Some(shape) = shape else { continue };
            let end = at + 2 * shape.iter().product::<u64>();
            table.insert(name.into(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}));
            at = end;
        }
        *header = Value::Object(table);
        data.resize(at as usize, 0);
    });
}

#[test]
fn a_truncated_file() {
    refused(
        LLAMA,
        |hf| {
            let path = hf.join("model.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
        },
        &["model.safetensors", "past the end of the file", "150752", "150652"],
    );
}

#[test]
fn a_header_length_past_the_end() {
    for length in [200_000u64, 1 << 40, u64::MAX] {
        let change = |hf: &Path| {
            let path = hf.join("model.safetensors");
            let mut bytes = fs::read(&path).unwrap();
            bytes[..8].copy_from_slice(&length.to_le_bytes());
            fs::write(&path, bytes).unwrap();
        };
        refused(LLAMA, change, &["model.safetensors", "header"]);
    }
}

#[test]
fn overlapping_offsets() {
    refused(
        LLAMA,
        |hf| {
            edit_file(hf, |header, _| {
                let norm = &mut header["model.norm.weight"]["data_offsets"];
                *norm = json!([norm[0].as_u64().unwrap() - 2, norm[1].as_u64().unwrap() - 2]);
            });
        },
        &["model.safetensors", "model.norm.weight"],
    );
}

#[test]
fn an_index_that_names_a_missing_file() {
    let gone = "model-00002-of-00002.safetensors";
    refused("demo", |hf| fs::remove_file(hf.join(gone)).unwrap(), &[gone]);
}

#[test]
fn a_duplicate_tensor() {
    // Twice in one header, where a JSON reader would silently keep the last.
    let twice = |hf: &Path| {
        let path = hf.join("model.safetensors");
        let (header, data) = parts(&fs::read(&path).unwrap());
        let norm = header["model.norm.weight"].to_string();
        let json = header.to_string();
        let json = json.replacen('{', &format!("{{\"model.norm.weight\":{norm},"), 1);
        fs::write(&path, file(&json, &data)).unwrap();
    };
    refused(LLAMA, twice, &["model.safetensors", "model.norm.weight"]);
    // In two files of one checkpoint.
    let second = |hf: &Path| {
        let from = "model-00001-of-00002.safetensors";
        let index = hf.join("model.safetensors.index.json");
        let mut json: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
        let map = json["weight_map"].as_object_mut().unwrap();
        let name = map.iter().find(|(_, f)| *f == from).unwrap().0.clone();
        let path = hf.join("model-00002-of-00002.safetensors");
        let (mut header, mut data) = parts(&fs::read(&path).unwrap());
        let end = data.len();
        header[&name] = json!({"dtype": "BF16", "shape": [1], "data_offsets": [end, end + 2]});
        data.extend([0, 0]);
        fs::write(&path, file(&header.to_string(), &data)).unwrap();
    };
    refused("demo", second, &["model-00002-of-00002.safetensors"]);
}

#[test]
fn a_tensor_that_the_config_calls_for_is_missing() {
    let gone = "model.layers.1.mlp.up_proj.weight";
    refused(
        LLAMA,
        |hf| retable(hf, |name, shape| (name != gone).then(|| shape.to_vec()), &[]),
        &[gone, "missing", "[96, 64]"],
    );
    // Not tied, and no head.
    let head = "lm_head.weight";
    refused(
        LLAMA,
        |hf| retable(hf, |name, shape| (name != head).then(|| shape.to_vec()), &[]),
        &[head, "missing", "[130, 64]"],
    );
}

#[test]
fn a_shape_that_contradicts_the_config() {
    let (name, wrong) = ("model.layers.0.self_attn.k_proj.weight", vec![8, 64]);
    refused(
        LLAMA,
        |hf| retable(hf, |n, shape| Some(if n == name { wrong.clone() } else { shape.to_vec() }), &[]),
        &[name, "[16, 64]", "[8, 64]"],
    );
    // An embedding that was saved empty.
    refused(
        LLAMA,
        |hf| {
            retable(
                hf,
                |n, s| Some(if n == "model.embed_tokens.weight" { vec![0] } else { s.to_vec() }),
                &[],
            );
        },
        &["model.embed_tokens.weight", "[130, 64]", "[0]"],
    );
}

#[test]
fn a_tensor_without_a_place_and_one_of_another_dtype() {
    let stray = "model.layers.2.input_layernorm.weight";
    refused(
        LLAMA,
        |hf| retable(hf, |_, shape| Some(shape.to_vec()), &[(stray, &[64])]),
        &[stray, "no place"],
    );
    let odd = "model.layers.0.self_attn.v_proj.weight";
    let f16 = |hf: &Path| edit_file(hf, |header, _| header[odd]["dtype"] = json!("F16"));
    refused(LLAMA, f16, &[odd, "BF16", "F16"]);
}

#[test]
fn tables_that_every_loader_skips_are_left_out_and_said() {
    let dir = tempdir().unwrap();
    let (hf, out) = (dir.path().join("hf"), dir.path().join("out"));
    copy_dir(&fixtures().join(LLAMA), &hf);
    let stray = "model.layers.0.self_attn.rotary_emb.inv_freq";
    retable(&hf, |_, shape| Some(shape.to_vec()), &[(stray, &[4])]);
    assert!(ok(&["reshard", text(&hf), "--tp", "2", "--out", text(&out)]).contains(stray));
}

#[test]
fn a_config_that_is_absent_unknown_or_quantised() {
    refused(LLAMA, |hf| fs::remove_file(hf.join("config.json")).unwrap(), &["config.json"]);
    let gpt2 =
        |hf: &Path| edit_config(hf, |c| drop(c.insert("architectures".into(), json!(["GPT2LMHeadModel"]))));
    let known = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];
    refused(LLAMA, gpt2, &[&["GPT2LMHeadModel"], &known[..]].concat());
    let awq = |hf: &Path| {
        edit_config(hf, |c| drop(c.insert("quantization_config".into(), json!({"quant_method": "awq"}))))
    };
    refused(LLAMA, awq, &["quantization_config", "awq"]);
    refused(LLAMA, |hf| fs::write(hf.join("config.json"), "{").unwrap(), &["config.json"]);
}

#[test]
fn sizes_that_do_not_divide_say_by_how_much() {
    let hf = fixtures().join(LLAMA);
    let dir = tempdir().unwrap();
    let out = dir.path().join("out");
    for (tp, names) in [
        ("3", &["num_attention_heads 8", "size 3 (remainder 2)", "num_key_value_heads"][..]),
        ("5", &["intermediate_size 96", "(remainder 1)", "192", "(remainder 2)"]),
    ] {
        let error = fails(3, &["reshard", text(&hf), "--tp", tp, "--out", text(&out)]);
        assert!(names.iter().all(|n| error.contains(n)), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn experts_that_do_not_fit_are_named() {
    const MOE: &str = "vllm/qwen3moe_untied/hf";
    let weight = |name: &str| format!("model.layers.1.mlp.experts.{name}_proj.weight");
    let (gone, extra, wrong) = (weight("2.up"), weight("4.down"), weight("0.gate"));
    let same = |_: &str, shape: &[u64]| Some(shape.to_vec());
    refused(
        MOE,
        |hf| retable(hf, |name, shape| (name != gone).then(|| shape.to_vec()), &[]),
        &[&gone, "missing", "[32, 64]"],
    );
    refused(MOE, |hf| retable(hf, same, &[(&extra, &[64, 32])]), &[&extra, "no place"]);
    refused(
        MOE,
        |hf| retable(hf, |n, s| Some(if n == wrong { vec![64, 32] } else { s.to_vec() }), &[]),
        &[&wrong, "[32, 64]", "[64, 32]"],
    );
    let f16 = |hf: &Path| edit_file(hf, |header, _| header[&wrong]["dtype"] = json!("F16"));
    refused(MOE, f16, &[&weight("0.up"), "F16", "BF16"]);
    // What does not divide: 4 experts by 8, and a width of 32 by 64; a model without experts.
    let dir = tempdir().unwrap();
    let out = dir.path().join("out");
    for (model, tp, flags, names) in [
        (MOE, "8", &["--expert-parallel"][..], &["num_experts 4", "size 8"][..]),
        (MOE, "64", &[], &["moe_intermediate_size 32", "size 64"]),
        (LLAMA, "2", &["--expert-parallel"], &["no experts"]),
    ] {
        let hf = fixtures().join(model);
        let error = fails(3, &[&["reshard", text(&hf), "--tp", tp, "--out", text(&out)], flags].concat());
        assert!(names.iter().all(|n| error.contains(n)), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let demo = fixtures().join("demo");
    for args in [
        vec!["reshard", text(&demo), "--out", "x"],
        vec!["reshard", text(&demo), "--tp", "0", "--out", "x"],
        vec!["reshard", text(&demo), "--tp", "2", "--rank", "2", "--out", "x"],
        vec!["reshard", text(&demo), "--tp", "2", "--from", "sharded-state", "--out", "x"],
        vec!["reshard", text(&demo), "--expert-parallel", "--from", "sharded-state", "--out", "x"],
        vec!["plan", text(&demo), "--tp", "2", "--engine", "sglang"],
        vec!["frobnicate"],
    ] {
        assert_eq!(restage(&args).status.code(), Some(2), "{args:?}");
    }
    assert!(!Path::new("x").exists());
}

#[test]
fn the_wrong_kind_of_checkpoint_is_pointed_out() {
    let demo = fixtures().join("demo");
    let dir = tempdir().unwrap();
    let (out, more) = (dir.path().join("out"), dir.path().join("more"));
    ok(&["reshard", text(&demo), "--tp", "2", "--out", text(&out)]);
    let error = fails(3, &["reshard", text(&out), "--tp", "2", "--out", text(&more)]);
    assert!(error.contains("--from sharded-state"), "{error}");
    let error = fails(3, &["reshard", text(&demo), "--from", "sharded-state", "--out", text(&more)]);
    assert!(error.contains("model-rank-"), "{error}");
    // One of two ranks: the note beside it knows better than the names.
    fs::remove_file(out.join("model-rank-1-part-0.safetensors")).unwrap();
    let error = fails(3, &["reshard", text(&out), "--from", "sharded-state", "--out", text(&more)]);
    assert!(error.contains("2 ranks, found 1"), "{error}");
    assert!(fails(3, &["inspect", text(&dir.path().join("nothing"))]).contains("nothing"));
}

#[test]
fn verify_names_the_first_element_that_differs() {
    let truth = fixtures().join(LLAMA);
    let dir = tempdir().unwrap();
    let hf = dir.path().join("hf");
    copy_dir(&truth, &hf);
    edit_file(&hf, |header, data| {
        let at = header["model.layers.0.mlp.up_proj.weight"]["data_offsets"][0].as_u64().unwrap();
        // Row 1, column 3 of a (96, 64) matrix of two-byte elements.
        data[at as usize + 2 * (64 + 3)] ^= 0x40;
    });
    let out = restage(&["verify", text(&truth), text(&hf)]);
    assert_eq!(out.status.code(), Some(5));
    let said = String::from_utf8(out.stdout).unwrap();
    assert!(said.contains("model.layers.0.mlp.up_proj.weight") && said.contains("[1, 3]"), "{said}");
    assert!(ok(&["verify", text(&truth), text(&truth)]).starts_with("equal: 21 tensors"));
}
