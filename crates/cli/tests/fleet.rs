//! `restage plan` of a whole job.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{fails, fixtures, ok, text};

const DEEPSEEK: &str = r#"{"architectures":["DeepseekV3ForCausalLM"],"hidden_size":16,"intermediate_size":24,
    "num_hidden_layers":5,"num_attention_heads":4,"vocab_size":130,"q_lora_rank":12,"kv_lora_rank":8,
    "qk_nope_head_dim":4,"qk_rope_head_dim":2,"v_head_dim":3,"n_routed_experts":8,"n_shared_experts":1,
    "moe_intermediate_size":8,"first_k_dense_replace":1,"num_nextn_predict_layers":1}"#;

fn config(dir: &Path, json: &str) -> PathBuf {
    let model = dir.join("tiny-deepseek");
    fs::create_dir_all(&model).unwrap();
    fs::write(model.join("config.json"), json).unwrap();
    model
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(&[args, &["--json"]].concat())).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect()
}

/// The sums of the matrix along both sides are those that are reported, and each rank's is that of its plan.
fn adds_up(report: &Value) {
    let matrix: Vec<Vec<u64>> = report["traffic"]["bytes"].as_array().unwrap().iter().map(numbers).collect();
    let sessions: Vec<u64> = matrix.iter().map(|row| row.iter().sum()).collect();
    let ranks: Vec<u64> = (0..report["ranks"].as_array().unwrap().len())
        .map(|r| matrix.iter().map(|row| row[r]).sum())
        .collect();
    assert_eq!(numbers(&report["traffic"]["session_bytes"]), sessions);
    assert_eq!(numbers(&report["traffic"]["rank_bytes"]), ranks);
    let total: u64 = ranks.iter().sum();
    assert_eq!(report["total_bytes"], total);
    let rows = report["ranks"].as_array().unwrap();
    for (row, bytes) in rows.iter().zip(&ranks) {
        assert_eq!(row["bytes"], *bytes);
        assert_eq!(row["incomplete_parameters"], 0);
    }
    let hottest = *sessions.iter().max().unwrap();
    assert_eq!(report["hottest_session"]["bytes"], hottest);
    let imbalance = hottest as f64 * sessions.len() as f64 / total as f64;
    assert!((report["imbalance"].as_f64().unwrap() - imbalance).abs() < 1e-9);
    let link = matrix.iter().flatten().max().unwrap();
    assert_eq!(report["largest_link"]["bytes"], *link);
    if let Some(estimate) = report.get("estimate") {
        let busiest = *sessions.iter().chain(&ranks).max().unwrap() as f64;
        let seconds = busiest / estimate["link_bytes_per_second"].as_f64().unwrap();
        assert_eq!(estimate["seconds"].as_f64().unwrap(), seconds);
        assert_eq!(estimate["is_estimate"], true);
    }
}

#[test]
fn the_matrix_of_a_job_that_nobody_published_yet_adds_up() {
    let dir = tempfile::tempdir().unwrap();
    let model = config(dir.path(), DEEPSEEK);
    let model = text(&model);
    for (published, tp, pp, ep) in
        [("rows:5", 4, 2, 4), ("rows:3", 4, 2, 2), ("rows:64", 2, 5, 1), ("rows:1", 1, 1, 1)]
    {
        for flags in [&[][..], &["--flat"], &["--flat", "--max-descriptors", "1"]] {
            let (tp_text, pp_text, ep_text) = (tp.to_string(), pp.to_string(), ep.to_string());
            let args = [
                "plan",
                model,
                "--published",
                published,
                "--tp",
                &tp_text,
                "--pp",
                &pp_text,
                "--ep",
                &ep_text,
            ];
            let report = json(&[&args, flags, &["--link-rate", "2GB/s"]].concat());
            adds_up(&report);
            let ranks = report["ranks"].as_array().unwrap();
            assert_eq!(ranks.len(), tp * pp);
            let names: std::collections::BTreeSet<&str> =
                ranks.iter().map(|r| r["name"].as_str().unwrap()).collect();
            assert_eq!(names.len(), tp * pp);
            // Everything but padding and scale buffers is read, strided without a byte more.
            if flags.is_empty() {
                assert_eq!(report["extra_wire_bytes"], 0);
            }
            assert_eq!(report["exact_bytes"], json(&args)["exact_bytes"]);
        }
    }
}

/// On one rank and one stage a job reads each tensor once: the trainers send what they hold.
#[test]
fn one_rank_reads_every_tensor_once() {
    let dir = tempfile::tempdir().unwrap();
    let model = config(dir.path(), DEEPSEEK);
    let report = json(&["plan", text(&model), "--published", "rows:4", "--tp", "1", "--pp", "1"]);
    assert_eq!(report["total_bytes"], report["bytes"]);
    assert_eq!((&report["model"], &report["published"]), (&"tiny-deepseek".into(), &"rows:4".into()));
    // 130 rows: 33, 33, 33, 31; 8 rows: 2 each; 12: 3 each. The last trainer holds least.
    let sent = numbers(&report["traffic"]["session_bytes"]);
    assert!(sent[0] == sent[1] && sent[0] > sent[3], "{sent:?}");
    // Expert groups change who reads what, and not how much; stages neither, but for what each has of its own.
    let all = |ep: &str| {
        json(&["plan", text(&model), "--published", "rows:4", "--tp", "4", "--pp", "2", "--ep", ep])["exact_bytes"].clone()
    };
    assert!(all("1") == all("2") && all("2") == all("4"));
}

#[test]
fn the_report_is_the_same_for_any_number_of_threads_and_names_no_place() {
    let dir = tempfile::tempdir().unwrap();
    let model = config(dir.path(), DEEPSEEK);
    let args = [
        "plan",
        text(&model),
        "--published",
        "rows:7",
        "--tp",
        "4",
        "--pp",
        "3",
        "--ep",
        "2",
        "--link-rate",
        "10Gbit/s",
    ];
    for flags in [&[][..], &["--json"]] {
        let with = |threads: &str| {
            let out = Command::new(env!("CARGO_BIN_EXE_restage"))
                .args(args)
                .args(flags)
                .env("RAYON_NUM_THREADS", threads)
                .output()
                .unwrap();
            assert!(out.status.success());
            String::from_utf8(out.stdout).unwrap()
        };
        let one = with("1");
        assert_eq!(one, with("3"));
        assert_eq!(one, with("8"));
        assert!(!one.contains(text(dir.path())), "{one}");
    }
    let said = ok(&args);
    for part in [
        "tp 4 x pp 3 with ep 2",
        "layers      pp0 0..2, pp1 2..4, pp2 4..5",
        "estimate    10.598 us at 1.25 GB/s",
        "traffic     7 sessions x 12 ranks",
        "trainer0006",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn stages_of_a_checkpoint_hold_each_layer_once() {
    let demo = fixtures().join("demo");
    let demo = text(&demo);
    let whole = json(&["plan", demo, "--tp", "2", "--pp", "1"]);
    adds_up(&whole);
    assert!(whole.get("published").is_none());
    // The same ranks as those that are planned one by one.
    let one_by_one = json(&["plan", demo, "--tp", "2"]);
    for (a, b) in whole["ranks"].as_array().unwrap().iter().zip(one_by_one["ranks"].as_array().unwrap()) {
        for field in ["bytes", "descriptors", "exact_bytes", "parameters", "copies", "constants"] {
            assert_eq!(a[field], b[field], "{field}");
        }
    }
    let staged = json(&["plan", demo, "--tp", "2", "--pp", "2"]);
    adds_up(&staged);
    assert_eq!(staged["stages"][1]["layers"], serde_json::json!([2, 4]));
    let params = |report: &Value| -> u64 {
        report["ranks"].as_array().unwrap().iter().map(|r| r["parameters"].as_u64().unwrap()).sum()
    };
    let tied = fs::read_to_string(Path::new(demo).join("config.json"))
        .unwrap()
        .contains("\"tie_word_embeddings\": true");
    // A tied model has its embedding on both ends.
    assert_eq!(params(&staged), params(&whole) + if tied { 2 } else { 0 });
}

#[test]
fn jobs_that_cannot_be_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let model = config(dir.path(), DEEPSEEK);
    let model = text(&model);
    let published = ["plan", model, "--published", "rows:4"];
    for (flags, code, says) in [
        (&["--tp", "4", "--ep", "3"][..], 3, "3 expert groups do not divide tensor-parallel size 4"),
        (&["--tp", "2", "--ep", "4"], 3, "4 expert groups"),
        (&["--tp", "2", "--pp", "6"], 3, "num_hidden_layers 5 is fewer than 6 pipeline stages"),
        (&["--tp", "3"], 3, "num_attention_heads 4 is not divisible by tensor-parallel size 3"),
        (&["--tp", "4000000000"], 3, "num_attention_heads 4"),
        (&["--tp", "2", "--engine", "vllm:0.22"], 3, "DeepseekV3ForCausalLM in vLLM 0.22 is not known"),
    ] {
        let said = fails(code, &[&published, flags].concat());
        assert!(said.contains(says), "{said}");
    }
    let demo = fixtures().join("demo");
    let said = fails(3, &["plan", text(&demo), "--tp", "2", "--ep", "2"]);
    assert!(said.contains("no experts"), "{said}");
    for edit in [r#""quantization_config":{"quant_method":"fp8"},"#, r#""torch_dtype":"float8_e4m3fn","#] {
        let other = config(&dir.path().join("other"), &DEEPSEEK.replacen('{', &format!("{{{edit}"), 1));
        let said = fails(3, &["plan", text(&other), "--published", "rows:4", "--tp", "1"]);
        assert!(said.contains("fp8") || said.contains("float8_e4m3fn"), "{said}");
    }
    // Flags that do not go together, or say nothing.
    for flags in [
        &["--tp", "2", "--pp", "0"][..],
        &["--tp", "2", "--pp", "2", "--rank", "0"],
        &["--tp", "2", "--ep", "2", "--expert-parallel"],
        &["--tp", "2", "--link-rate", "25"],
        &["--tp", "2", "--published", "rows:0"],
        &["--published", "rows:2"],
    ] {
        let out = support::restage(&[&["plan", model], flags].concat());
        assert_eq!(out.status.code(), Some(2), "{flags:?}");
    }
    // A sharded state has ranks of one stage alone.
    let out = support::restage(&[
        "reshard",
        text(&demo),
        "--tp",
        "2",
        "--pp",
        "2",
        "--out",
        text(&dir.path().join("out")),
    ]);
    assert_eq!(out.status.code(), Some(2));
}

/// The checkpoint of a config, its bytes counting up; with a tensor of a layer that predicts further tokens.
fn checkpoint(model: &Path) -> Vec<u8> {
    let json = fs::read(model.join("config.json")).unwrap();
    let mut table = restage_model::tensors(&restage_model::ModelConfig::from_json(&json).unwrap()).unwrap();
    table.insert("model.layers.5.eh_proj.weight".into(), (restage_geometry::Dtype::BF16, vec![16, 32]));
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, (dtype, shape)) in &table {
        let end = at + dtype.bytes(shape.iter().product::<i64>() as u64).unwrap();
        let dtype = if *dtype == restage_geometry::Dtype::F32 { "F32" } else { "BF16" };
        let info = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]});
        header.insert(name.clone(), info);
        at = end;
    }
    let data: Vec<u8> = (0..at).map(|i| (i * 7 / 3) as u8).collect();
    support::file(&Value::Object(header).to_string(), &data)
}

#[test]
fn a_bf16_checkpoint_is_resharded_and_not_joined_again() {
    let dir = tempfile::tempdir().unwrap();
    let model = config(dir.path(), DEEPSEEK);
    let bytes = checkpoint(&model);
    fs::write(model.join("model.safetensors"), &bytes).unwrap();
    let job = ok(&["plan", text(&model), "--tp", "2", "--pp", "2", "--ep", "2"]);
    assert!(job.contains("left out    model.layers.5.eh_proj.weight"), "{job}");
    let out = dir.path().join("out");
    ok(&["reshard", text(&model), "--tp", "2", "--expert-parallel", "--out", text(&out)]);
    let rank = fs::read(out.join("model-rank-1-part-0.safetensors")).unwrap();
    let (got, from) = (
        safetensors::SafeTensors::deserialize(&rank).unwrap(),
        safetensors::SafeTensors::deserialize(&bytes).unwrap(),
    );
    let tensor = |name: &str| from.tensor(name).unwrap().data().to_vec();
    let attn = "model.layers.3.self_attn";
    let fused = got.tensor(&format!("{attn}.fused_qkv_a_proj.weight")).unwrap();
    let both =
        [tensor(&format!("{attn}.q_a_proj.weight")), tensor(&format!("{attn}.kv_a_proj_with_mqa.weight"))];
    assert_eq!(fused.data(), both.concat());
    // The second rank has experts 4 to 7 whole, gate above up.
    let w13 = got.tensor("model.layers.3.mlp.experts.routed_experts.w13_weight").unwrap();
    let expert = |e: usize| {
        ["gate", "up"].map(|p| tensor(&format!("model.layers.3.mlp.experts.{e}.{p}_proj.weight"))).concat()
    };
    assert_eq!(w13.data(), (4..8).map(expert).collect::<Vec<_>>().concat());
    let said = fails(
        3,
        &["reshard", text(&out), "--from", "sharded-state", "--out", text(&dir.path().join("back"))],
    );
    assert!(said.contains("DeepseekV3ForCausalLM"), "{said}");
}
