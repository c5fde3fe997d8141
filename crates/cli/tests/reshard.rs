//! Resharding, there and back, as a user does it.

mod support;

use std::fs;
use std::path::Path;

use support::{contents, copy_dir, edit_config, fails, file, fixtures, ok, parts, restage, text};
use tempfile::tempdir;

#[test]
fn every_rank_file_is_the_one_that_vllm_writes_and_the_way_back_gives_the_input() {
    for (model, flags) in [
        ("llama_untied", &[][..]),
        ("llama_tied", &[]),
        ("llama_tied_same_head", &[]),
        ("llama_bias_f32", &[]),
        ("qwen2_tied", &[]),
        ("qwen3_untied", &[]),
        ("qwen3moe_untied", &[]),
        ("qwen3moe_ep", &["--expert-parallel"]),
    ] {
        let truth = fixtures().join("vllm").join(model);
        let hf = truth.join("hf");
        for tp in [1, 2, 4] {
            let dir = tempdir().unwrap();
            let (out, back) = (dir.path().join("out"), dir.path().join("back"));
            let reshard = ["reshard", text(&hf), "--tp", &tp.to_string(), "--out", text(&out)];
            ok(&[&reshard, flags].concat());
            for rank in 0..tp {
                let ours = fs::read(out.join(format!("model-rank-{rank}-part-0.safetensors"))).unwrap();
                let theirs = fs::read(truth.join(format!("tp{tp}/rank{rank}.safetensors"))).unwrap();
                assert!(ours == theirs, "{model} tp {tp} rank {rank}");
            }
            assert_eq!(fs::read(out.join("config.json")).unwrap(), fs::read(hf.join("config.json")).unwrap());
            ok(&["reshard", text(&out), "--from", "sharded-state", "--out", text(&back)]);
            ok(&["verify", text(&hf), text(&back)]);
            let file = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
            assert!(file(&hf) == file(&back), "{model} tp {tp}: the way back");
        }
    }
}

#[test]
fn a_state_that_vllm_wrote_is_read_back_without_the_note_beside_it() {
    // Also whether experts are cut or spread shows in the state.
    for model in ["llama_tied", "qwen3moe_untied", "qwen3moe_ep"] {
        let truth = fixtures().join("vllm").join(model);
        let dir = tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        for rank in 0..4 {
            let from = truth.join(format!("tp4/rank{rank}.safetensors"));
            fs::copy(from, state.join(format!("model-rank-{rank}-part-0.safetensors"))).unwrap();
        }
        fs::copy(truth.join("hf/config.json"), state.join("config.json")).unwrap();
        let back = dir.path().join("back");
        ok(&["reshard", text(&state), "--from", "sharded-state", "--out", text(&back)]);
        ok(&["verify", text(&truth.join("hf")), text(&back)]);
    }
}

#[test]
fn flat_plans_and_any_bound_write_the_same_bytes() {
    let demo = fixtures().join("demo");
    let dir = tempdir().unwrap();
    let mut first = None;
    for (i, flags) in
        [&[][..], &["--flat"], &["--flat", "--max-descriptors", "1"], &["--max-descriptors", "0"]]
            .iter()
            .enumerate()
    {
        let out = dir.path().join(i.to_string());
        let args = [&["reshard", text(&demo), "--tp", "4", "--out", text(&out)], *flags].concat();
        ok(&args);
        let found = contents(&out);
        assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "{flags:?}");
    }
}

#[test]
fn ranks_can_be_written_one_by_one_and_strangers_are_refused() {
    let demo = fixtures().join("demo");
    let dir = tempdir().unwrap();
    let (all, single) = (dir.path().join("all"), dir.path().join("single"));
    ok(&["reshard", text(&demo), "--tp", "2", "--out", text(&all)]);
    for rank in ["1", "0"] {
        ok(&["reshard", text(&demo), "--tp", "2", "--rank", rank, "--out", text(&single)]);
    }
    assert_eq!(contents(&all), contents(&single));
    // Again is refused without --force; a rank of another size is refused in any case.
    let again = ["reshard", text(&demo), "--tp", "2", "--rank", "0", "--out", text(&single)];
    assert!(fails(3, &again).contains("model-rank-0-part-0.safetensors: exists already"));
    ok(&[&again[..], &["--force"]].concat());
    let other = ["reshard", text(&demo), "--tp", "4", "--rank", "3", "--out", text(&single), "--force"];
    assert!(fails(3, &other).contains("model-rank-0-part-0.safetensors"));
    let fewer = ["reshard", text(&demo), "--tp", "1", "--rank", "0", "--out", text(&single), "--force"];
    assert!(fails(3, &fewer).contains("more than 1 ranks"));
    assert_eq!(contents(&all), contents(&single));
}

#[test]
fn an_existing_output_is_replaced_only_on_request_and_only_where_it_is_one() {
    let demo = fixtures().join("demo");
    let dir = tempdir().unwrap();
    let out = dir.path().join("out");
    let reshard =
        |tp: &'static str| ["reshard", text(&demo), "--tp", tp, "--out", text(&out)].map(str::to_owned);
    let run = |args: &[String], force: bool| {
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.extend(force.then_some("--force"));
        restage(&args).status.code()
    };
    assert_eq!(run(&reshard("4"), false), Some(0));
    let before = contents(&out);
    assert_eq!(run(&reshard("2"), false), Some(3));
    assert_eq!(contents(&out), before);
    assert_eq!(run(&reshard("2"), true), Some(0));
    // No file of the earlier, larger output is left.
    let weights = contents(&out).into_keys().filter(|n| n.ends_with(".safetensors")).count();
    assert_eq!(weights, 2);
    // A file that no output has is never deleted.
    fs::write(out.join("thesis.tex"), "precious").unwrap();
    assert_eq!(run(&reshard("1"), true), Some(3));
    assert_eq!(fs::read(out.join("thesis.tex")).unwrap(), b"precious");
    // Nothing temporary stays behind.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_tied_model_with_a_head_of_its_own_keeps_both_where_they_differ() {
    let truth = fixtures().join("vllm/llama_tied_same_head/hf");
    let dir = tempdir().unwrap();
    let hf = dir.path().join("hf");
    copy_dir(&truth, &hf);
    // Change one byte of the head's first row: rank 0 of 4 keeps both names, the others are tied again.
    let path = hf.join("model.safetensors");
    let (header, mut data) = parts(&fs::read(&path).unwrap());
    data[header["lm_head.weight"]["data_offsets"][0].as_u64().unwrap() as usize] ^= 1;
    fs::write(&path, file(&header.to_string(), &data)).unwrap();
    let (out, back) = (dir.path().join("out"), dir.path().join("back"));
    ok(&["reshard", text(&hf), "--tp", "4", "--out", text(&out)]);
    for rank in 0..4 {
        let bytes = fs::read(out.join(format!("model-rank-{rank}-part-0.safetensors"))).unwrap();
        let (header, _) = parts(&bytes);
        assert!(header.get("lm_head.weight").is_some());
        assert_eq!(header.get("model.embed_tokens.weight").is_some(), rank == 0, "rank {rank}");
    }
    ok(&["reshard", text(&out), "--from", "sharded-state", "--out", text(&back)]);
    ok(&["verify", text(&hf), text(&back)]);
    // Engines up to 0.27 ignore the head; whether 0.28 does was never seen.
    let old = dir.path().join("old");
    ok(&["reshard", text(&hf), "--tp", "1", "--engine", "vllm:0.27", "--out", text(&old)]);
    let (header, _) = parts(&fs::read(old.join("model-rank-0-part-0.safetensors")).unwrap());
    assert!(header.get("model.embed_tokens.weight").is_none());
    let between = ["reshard", text(&hf), "--tp", "1", "--engine", "vllm:0.28", "--out", text(&back)];
    assert!(fails(3, &between).contains("0.27.1"));
}

#[test]
fn older_engines_have_no_scale_buffers() {
    let hf = fixtures().join("vllm/llama_untied/hf");
    let dir = tempdir().unwrap();
    let (out, back) = (dir.path().join("out"), dir.path().join("back"));
    ok(&["reshard", text(&hf), "--tp", "2", "--engine", "vllm:0.13", "--out", text(&out)]);
    let (header, _) = parts(&fs::read(out.join("model-rank-0-part-0.safetensors")).unwrap());
    assert!(header.as_object().unwrap().keys().all(|k| !k.ends_with("_scale")));
    ok(&["reshard", text(&out), "--from", "sharded-state", "--out", text(&back)]);
    ok(&["verify", text(&hf), text(&back)]);
}

#[test]
fn experts_go_to_every_known_engine_and_come_back() {
    for (model, flags) in [("qwen3moe_untied", &[][..]), ("qwen3moe_ep", &["--expert-parallel"])] {
        let hf = fixtures().join("vllm").join(model).join("hf");
        for (minor, w13, gate, map) in [
            (11, "w13_weight", "mlp.gate.weight", Some("expert_map")),
            (13, "w13_weight", "mlp.gate.weight", Some("_expert_map")),
            (16, "w13_weight", "mlp.experts._gate.weight", Some("_expert_map")),
            (19, "w13_weight", "mlp.experts._gate.weight", Some("_expert_map")),
            (22, "w13_weight", "mlp.experts.runner.gate.weight", Some("_expert_map")),
            (24, "routed_experts.w13_weight", "mlp.experts.gate.weight", Some("routed_experts._expert_map")),
            (27, "routed_experts.w13_weight", "mlp.experts.gate.weight", None),
        ] {
            let dir = tempdir().unwrap();
            let (out, back) = (dir.path().join("out"), dir.path().join("back"));
            let engine = format!("vllm:0.{minor}");
            let reshard = ["reshard", text(&hf), "--tp", "2", "--engine", &engine, "--out", text(&out)];
            ok(&[&reshard, flags].concat());
            for rank in 0..2 {
                let bytes = fs::read(out.join(format!("model-rank-{rank}-part-0.safetensors"))).unwrap();
                let (header, data) = parts(&bytes);
                let tensors = header.as_object().unwrap();
                let of_experts = |name: &str| tensors.get(&format!("model.layers.0.mlp.experts.{name}"));
                assert!(of_experts(w13).is_some(), "{engine}");
                let gates: Vec<_> = tensors
                    .keys()
                    .filter(|k| k.starts_with("model.layers.0") && k.contains("gate."))
                    .collect();
                assert_eq!(gates, [&format!("model.layers.0.{gate}")], "{engine}");
                let maps = tensors.keys().filter(|k| k.ends_with("expert_map")).count();
                let map = map.filter(|_| !flags.is_empty());
                assert_eq!(maps, usize::from(map.is_some()), "{engine}");
                if let Some(map) = map {
                    let info = of_experts(map).unwrap();
                    assert_eq!(
                        (info["dtype"].as_str(), info["shape"].as_array().unwrap().len()),
                        (Some("I32"), 1)
                    );
                    let at = info["data_offsets"][0].as_u64().unwrap() as usize;
                    let expected: [i32; 4] = if rank == 0 { [0, 1, -1, -1] } else { [-1, -1, 0, 1] };
                    assert_eq!(data[at..at + 16], expected.map(i32::to_le_bytes).concat()[..], "{engine}");
                }
            }
            ok(&["reshard", text(&out), "--from", "sharded-state", "--out", text(&back)]);
            ok(&["verify", text(&hf), text(&back)]);
        }
    }
}

#[test]
fn an_expert_map_that_contradicts_the_shapes_is_refused() {
    let hf = fixtures().join("vllm/qwen3moe_ep/hf");
    let dir = tempdir().unwrap();
    let (out, back) = (dir.path().join("out"), dir.path().join("back"));
    let reshard = ["reshard", text(&hf), "--tp", "2", "--engine", "vllm:0.24", "--out", text(&out)];
    ok(&[&reshard[..], &["--expert-parallel"]].concat());
    let path = out.join("model-rank-1-part-0.safetensors");
    let (header, mut data) = parts(&fs::read(&path).unwrap());
    let map = "model.layers.0.mlp.experts.routed_experts._expert_map";
    data[header[map]["data_offsets"][0].as_u64().unwrap() as usize + 8] ^= 1;
    fs::write(&path, file(&header.to_string(), &data)).unwrap();
    let error = fails(3, &["reshard", text(&out), "--from", "sharded-state", "--out", text(&back)]);
    assert!(error.contains(map) && error.contains("rank1/") && error.contains("0x00 at 8"), "{error}");
    assert!(!back.exists());
}

#[test]
fn stacked_experts_give_the_same_ranks_and_come_back_stacked() {
    for (model, flags) in [("qwen3moe_untied", &[][..]), ("qwen3moe_ep", &["--expert-parallel"])] {
        let truth = fixtures().join("vllm").join(model);
        let dir = tempdir().unwrap();
        let hf = dir.path().join("hf");
        copy_dir(&truth.join("hf"), &hf);
        let path = hf.join("model.safetensors");
        fs::write(&path, stacked(&fs::read(&path).unwrap())).unwrap();
        let (out, back) = (dir.path().join("out"), dir.path().join("back"));
        ok(&[&["reshard", text(&hf), "--tp", "2", "--out", text(&out)], flags].concat());
        for rank in 0..2 {
            let ours = fs::read(out.join(format!("model-rank-{rank}-part-0.safetensors"))).unwrap();
            assert!(ours == fs::read(truth.join(format!("tp2/rank{rank}.safetensors"))).unwrap(), "{model}");
        }
        ok(&["reshard", text(&out), "--from", "sharded-state", "--out", text(&back)]);
        ok(&["verify", text(&hf), text(&back)]);
        // Another layout beside it would be another state.
        let other = ["reshard", text(&hf), "--tp", "2", "--rank", "0", "--out", text(&out), "--force"];
        let switched: &[&str] = if flags.is_empty() { &["--expert-parallel"] } else { &[] };
        assert!(fails(3, &[&other, switched].concat()).contains("w13_weight"), "{model}");
    }
}

/// A checkpoint file with all experts of a layer in two tensors.
fn stacked(bytes: &[u8]) -> Vec<u8> {
    let (header, data) = parts(bytes);
    let mut tensors = std::collections::BTreeMap::new();
    for (name, info) in header.as_object().unwrap() {
        if name == "__metadata__" {
            continue;
        }
        let end = |i: usize| info["data_offsets"][i].as_u64().unwrap() as usize;
        let shape: Vec<u64> = serde_json::from_value(info["shape"].clone()).unwrap();
        tensors.insert(name.clone(), (shape, data[end(0)..end(1)].to_vec()));
    }
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.mlp.experts");
        for (to, from) in [("gate_up_proj", &["gate_proj", "up_proj"][..]), ("down_proj", &["down_proj"])] {
            let (mut bytes, mut shape) = (Vec::new(), Vec::new());
            for e in 0..4 {
                for part in from {
                    let Some((rest, more)) = tensors.remove(&format!("{prefix}.{e}.{part}.weight")) else {
                        continue;
                    };
                    shape = vec![4, rest[0] * from.len() as u64, rest[1]];
                    bytes.extend(more);
                }
            }
            if !bytes.is_empty() {
                tensors.insert(format!("{prefix}.{to}"), (shape, bytes));
            }
        }
    }
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (shape, bytes)) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name, serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    file(&serde_json::Value::Object(header).to_string(), &data)
}

#[test]
fn the_way_back_refuses_a_state_whose_ranks_disagree_or_hold_more_than_a_checkpoint_can() {
    let hf = fixtures().join("vllm/llama_untied/hf");
    // A norm is on every rank; rows past the vocabulary are zero; scales are one.
    for (tensor, what) in [
        ("model.norm.weight", "should be equal"),
        ("lm_head.weight", "expected bytes [00, 00]"),
        ("model.layers.1.self_attn.attn._k_scale", "expected bytes [00, 00, 80, 3f]"),
    ] {
        let dir = tempdir().unwrap();
        let (out, back) = (dir.path().join("out"), dir.path().join("back"));
        ok(&["reshard", text(&hf), "--tp", "2", "--out", text(&out)]);
        let path = out.join("model-rank-1-part-0.safetensors");
        let (header, mut data) = parts(&fs::read(&path).unwrap());
        // The last byte: of the padding where there is any.
        data[header[tensor]["data_offsets"][1].as_u64().unwrap() as usize - 1] ^= 1;
        fs::write(&path, file(&header.to_string(), &data)).unwrap();
        let error = fails(3, &["reshard", text(&out), "--from", "sharded-state", "--out", text(&back)]);
        assert!(error.contains(what) && error.contains(tensor) && error.contains("rank1/"), "{error}");
        assert!(!back.exists());
    }
}

#[test]
fn a_large_checkpoint_is_cut_into_files_with_an_index() {
    let demo = fixtures().join("demo");
    let dir = tempdir().unwrap();
    let (out, back) = (dir.path().join("out"), dir.path().join("back"));
    ok(&["reshard", text(&demo), "--tp", "2", "--out", text(&out)]);
    let cut = ["--max-file-size", "500000"];
    ok(&[&["reshard", text(&out), "--from", "sharded-state", "--out", text(&back)][..], &cut].concat());
    assert!(back.join("model-00004-of-00004.safetensors").exists());
    ok(&["verify", text(&demo), text(&back)]);
    assert!(ok(&["inspect", text(&back)]).contains("39 tensors, 1739008 bytes"));
}

#[test]
fn the_plan_is_what_a_reshard_then_reads_and_reads_nothing_itself() {
    let demo = fixtures().join("demo");
    for flags in [&[][..], &["--flat"]] {
        let args = [&["plan", text(&demo), "--tp", "2", "--json"], flags].concat();
        let plan: serde_json::Value = serde_json::from_str(&ok(&args)).unwrap();
        assert_eq!(plan["tensor_bytes_read"], 0);
        let planned = plan["together"]["bytes"].as_u64().unwrap();
        let ranks = plan["ranks"].as_array().unwrap().iter();
        let each: u64 = ranks.map(|r| r["bytes"].as_u64().unwrap()).sum();
        // Ranks that stage the same source read it once.
        assert!(planned <= each && (planned == each) == flags.is_empty());
        let dir = tempdir().unwrap();
        let out = dir.path().join("out");
        let said = ok(&[&["reshard", text(&demo), "--tp", "2", "--out", text(&out)], flags].concat());
        assert!(said.contains(&format!("read {planned} bytes")), "{said}");
        for rank in plan["ranks"].as_array().unwrap() {
            assert_eq!((rank["coverage"].as_f64(), rank["copies"].as_u64()), (Some(1.0), Some(39)));
            assert_eq!(rank["full_pulls"].as_array().unwrap().len(), if flags.is_empty() { 0 } else { 8 });
            assert_eq!(rank["exact_bytes"], 870_656);
        }
    }
}

#[test]
fn planning_needs_headers_alone() {
    // A file whose data is a hole of 8 TB: reading it would not end.
    let dir = tempdir().unwrap();
    let hf = dir.path().join("hf");
    copy_dir(&fixtures().join("vllm/llama_untied/hf"), &hf);
    edit_config(&hf, |c| {
        c.insert("vocab_size".into(), (1i64 << 24).into());
        c.insert("num_hidden_layers".into(), 1.into());
        c.insert("hidden_size".into(), (1i64 << 17).into());
        c.insert("head_dim".into(), 8.into());
    });
    let (hidden, vocab) = (1u64 << 17, 1u64 << 24);
    let layer = |name: &str, shape: &[u64]| (format!("model.layers.0.{name}.weight"), shape.to_vec());
    let mut tensors = vec![
        ("lm_head.weight".to_owned(), vec![vocab, hidden]),
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
        layer("input_layernorm", &[hidden]),
        layer("post_attention_layernorm", &[hidden]),
        layer("mlp.gate_proj", &[96, hidden]),
        layer("mlp.up_proj", &[96, hidden]),
        layer("mlp.down_proj", &[hidden, 96]),
        layer("self_attn.q_proj", &[64, hidden]),
        layer("self_attn.k_proj", &[16, hidden]),
        layer("self_attn.v_proj", &[16, hidden]),
        layer("self_attn.o_proj", &[hidden, 64]),
    ];
    tensors.sort();
    let mut at = 0;
    let mut header = serde_json::Map::new();
    for (name, shape) in tensors {
        let end = at + 2 * shape.iter().product::<u64>();
        let info = serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]});
        header.insert(name, info);
        at = end;
    }
    let header = serde_json::Value::Object(header).to_string();
    let path = hf.join("model.safetensors");
    fs::write(&path, file(&header, &[])).unwrap();
    let sparse = fs::OpenOptions::new().write(true).open(&path).unwrap();
    if sparse.set_len(8 + header.len() as u64 + at).is_err() {
        eprintln!("skipped: this file system holds no sparse file of {at} bytes");
        return;
    }
    let said = ok(&["plan", text(&hf), "--tp", "2"]);
    assert!(said.contains("0 tensor bytes read for this plan"), "{said}");
}
