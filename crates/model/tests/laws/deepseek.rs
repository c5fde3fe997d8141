//! A tiny DeepSeek-V3 against plain index arithmetic: which element of which tensor each element of each parameter is.

use std::collections::{BTreeMap, BTreeSet};

use restage_geometry::Dtype;
use restage_model::{
    Engine, LoadError, ModelConfig, Original, Placement, Problem, Rank, Stage, TensorTable, load, tensors,
    unload,
};

use crate::model::Bytes;
use crate::pull::pull;

/// Sizes of the model. None is another's equal where that would hide a mix-up.
const HIDDEN: usize = 10;
const INTER: usize = 24;
const LAYERS: usize = 3;
const HEADS: usize = 4;
const VOCAB: usize = 200;
const Q_RANK: usize = 6;
const KV_RANK: usize = 7;
const NOPE: usize = 3;
const ROPE: usize = 2;
const VALUE: usize = 5;
const EXPERTS: usize = 8;
const SHARED: usize = 2;
const MOE: usize = 4;
const DENSE: usize = 1;

fn config(q_rank: bool, bias: bool) -> ModelConfig {
    let q = if q_rank { format!("\"q_lora_rank\":{Q_RANK},") } else { "\"q_lora_rank\":null,".into() };
    let method = if bias { "noaux_tc" } else { "greedy" };
    let json = format!(
        r#"{{"architectures":["DeepseekV3ForCausalLM"],"hidden_size":{HIDDEN},"intermediate_size":{INTER},
        "num_hidden_layers":{LAYERS},"num_attention_heads":{HEADS},"num_key_value_heads":{HEADS},"vocab_size":{VOCAB},
        {q}"kv_lora_rank":{KV_RANK},"qk_nope_head_dim":{NOPE},"qk_rope_head_dim":{ROPE},"v_head_dim":{VALUE},
        "n_routed_experts":{EXPERTS},"n_shared_experts":{SHARED},"moe_intermediate_size":{MOE},
        "first_k_dense_replace":{DENSE},"num_nextn_predict_layers":1,"topk_method":"{method}"}}"#
    );
    ModelConfig::from_json(json.as_bytes()).unwrap()
}

/// A number for an element that tells its tensor, row and column; two bytes long, or four for the f32 bias.
fn value(tensor: &str, row: usize, column: usize) -> u32 {
    let seed = tensor.bytes().fold(17u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    seed.wrapping_add((row * 977 + column * 13) as u32)
}

fn bytes_of(tensor: &str, row: usize, column: usize) -> Vec<u8> {
    let value = value(tensor, row, column);
    if tensor.ends_with("e_score_correction_bias") {
        return value.to_le_bytes().to_vec();
    }
    (value as u16).to_le_bytes().to_vec()
}

fn checkpoint(table: &TensorTable) -> Bytes {
    let fill = |(name, (_, shape)): (&String, &(Dtype, Vec<i64>))| {
        let (rows, columns) = (shape[0] as usize, shape.get(1).copied().unwrap_or(1) as usize);
        let all = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
        (name.clone(), all.flat_map(|(r, c)| bytes_of(name, r, c)).collect())
    };
    table.iter().map(fill).collect()
}

/// The rows and columns of a tensor that some part of a parameter is.
struct Part(String, Vec<usize>, Vec<usize>);

#[derive(Clone, Copy, Debug)]
struct At {
    tp: usize,
    rank: usize,
    groups: usize,
    layers: (usize, usize),
}

/// Every parameter of a rank, as the parts that follow each other in it.
fn expected(at: At, q_rank: bool, bias: bool) -> BTreeMap<String, Vec<Part>> {
    let At { tp, rank, groups, layers } = at;
    let all = |n: usize| (0..n).collect::<Vec<_>>();
    let share = |n: usize| (rank * n / tp..(rank + 1) * n / tp).collect::<Vec<_>>();
    let mut out = BTreeMap::new();
    let mut put = |name: String, parts: Vec<Part>| assert!(out.insert(name, parts).is_none());
    for i in layers.0..layers.1 {
        let l = format!("model.layers.{i}");
        let (a, m) = (format!("{l}.self_attn"), format!("{l}.mlp"));
        let w = |p: &str, name: &str| format!("{p}.{name}.weight");
        let kv_a = w(&a, "kv_a_proj_with_mqa");
        if q_rank {
            let q_a = Part(w(&a, "q_a_proj"), all(Q_RANK), all(HIDDEN));
            put(w(&a, "fused_qkv_a_proj"), vec![q_a, Part(kv_a, all(KV_RANK + ROPE), all(HIDDEN))]);
            put(w(&a, "mla_attn.q_a_layernorm"), vec![Part(w(&a, "q_a_layernorm"), all(Q_RANK), vec![0])]);
            let q_b = Part(w(&a, "q_b_proj"), share(HEADS * (NOPE + ROPE)), all(Q_RANK));
            put(w(&a, "mla_attn.q_b_proj"), vec![q_b]);
        } else {
            put(kv_a.clone(), vec![Part(kv_a, all(KV_RANK + ROPE), all(HIDDEN))]);
            let q = Part(w(&a, "q_proj"), share(HEADS * (NOPE + ROPE)), all(HIDDEN));
            put(w(&a, "mla_attn.q_proj"), vec![q]);
        }
        put(w(&a, "kv_a_layernorm"), vec![Part(w(&a, "kv_a_layernorm"), all(KV_RANK), vec![0])]);
        put(w(&a, "kv_b_proj"), vec![Part(w(&a, "kv_b_proj"), share(HEADS * (NOPE + VALUE)), all(KV_RANK))]);
        put(w(&a, "mla_attn.o_proj"), vec![Part(w(&a, "o_proj"), all(HIDDEN), share(HEADS * VALUE))]);
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            put(w(&l, norm), vec![Part(w(&l, norm), all(HIDDEN), vec![0])]);
        }
        let gated = |to: &str, from: &str, inner: &[usize]| {
            let rows = |name: &str| Part(w(from, name), inner.to_vec(), all(HIDDEN));
            let down = Part(w(from, "down_proj"), all(HIDDEN), inner.to_vec());
            [
                (w(to, "gate_up_proj"), vec![rows("gate_proj"), rows("up_proj")]),
                (w(to, "down_proj"), vec![down]),
            ]
        };
        if i < DENSE {
            for (name, parts) in gated(&m, &m, &share(INTER)) {
                put(name, parts);
            }
            continue;
        }
        let shared = format!("{m}.experts._shared_experts._layer");
        for (name, parts) in gated(&shared, &format!("{m}.shared_experts"), &share(SHARED * MOE)) {
            put(name, parts);
        }
        put(w(&m, "experts.gate"), vec![Part(w(&m, "gate"), all(EXPERTS), all(HIDDEN))]);
        if bias {
            let from = format!("{m}.gate.e_score_correction_bias");
            put(format!("{m}.experts.gate.e_score_correction_bias"), vec![Part(from, all(EXPERTS), vec![0])]);
        }
        let members = tp / groups;
        let (group, member) = (rank / members, rank % members);
        let inner: Vec<usize> = (member * MOE / members..(member + 1) * MOE / members).collect();
        let own = group * EXPERTS / groups..(group + 1) * EXPERTS / groups;
        let (mut w13, mut w2) = (Vec::new(), Vec::new());
        for e in own {
            let expert = |name: &str| format!("{m}.experts.{e}.{name}.weight");
            w13.push(Part(expert("gate_proj"), inner.clone(), all(HIDDEN)));
            w13.push(Part(expert("up_proj"), inner.clone(), all(HIDDEN)));
            w2.push(Part(expert("down_proj"), all(HIDDEN), inner.clone()));
        }
        put(format!("{m}.experts.routed_experts.w13_weight"), w13);
        put(format!("{m}.experts.routed_experts.w2_weight"), w2);
    }
    // 200 rows are padded to 256; rows past the last have no part.
    let vocab: Vec<usize> = (rank * 256 / tp..(rank + 1) * 256 / tp).filter(|&r| r < VOCAB).collect();
    let ends = [(layers.0 == 0, "model.embed_tokens.weight"), (layers.1 == LAYERS, "lm_head.weight")];
    for (_, name) in ends.into_iter().filter(|(here, _)| *here) {
        put(name.into(), vec![Part(name.into(), vocab.clone(), all(HIDDEN))]);
    }
    if layers.1 == LAYERS {
        put("model.norm.weight".into(), vec![Part("model.norm.weight".into(), all(HIDDEN), vec![0])]);
    }
    out
}

/// The bytes of a rank's parameters, by index arithmetic alone.
fn expected_bytes(at: At, q_rank: bool, bias: bool) -> Bytes {
    let mut out = Bytes::new();
    for (name, parts) in expected(at, q_rank, bias) {
        let mut bytes = Vec::new();
        for Part(tensor, rows, columns) in &parts {
            for &r in rows {
                columns.iter().for_each(|&c| bytes.extend(bytes_of(tensor, r, c)));
            }
        }
        if ["model.embed_tokens.weight", "lm_head.weight"].contains(&name.as_str()) {
            bytes.resize(256 / at.tp * HIDDEN * 2, 0);
        }
        out.insert(name, bytes);
    }
    for i in at.layers.0..at.layers.1 {
        for scale in ["_k_scale", "_v_scale", "_q_scale", "_prob_scale"] {
            let name = format!("model.layers.{i}.self_attn.mla_attn.mla_attn.{scale}");
            out.insert(name, 1f32.to_le_bytes().to_vec());
        }
    }
    out
}

fn place(at: At, stage: i64, stages: i64) -> Placement {
    Placement {
        rank: Rank { tp_size: at.tp as i64, tp_rank: at.rank as i64 },
        expert_groups: (at.groups > 1).then_some(at.groups as i64),
        stage: Stage { index: stage, count: stages },
    }
}

#[test]
fn every_rank_is_the_slices_that_arithmetic_says() {
    // Of three layers the first of two stages has the one left over, since the last stage has the head.
    let stages: [&[(usize, usize)]; 3] = [&[(0, 3)], &[(0, 2), (2, 3)], &[(0, 1), (1, 2), (2, 3)]];
    let layouts = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)];
    for (q_rank, bias) in [(true, true), (false, true), (true, false)] {
        let config = config(q_rank, bias);
        let table = tensors(&config).unwrap();
        let bytes = checkpoint(&table);
        for stages in stages {
            for (tp, groups) in layouts {
                for (stage, &layers) in stages.iter().enumerate() {
                    for rank in 0..tp {
                        let at = At { tp, rank, groups, layers };
                        let place = place(at, stage as i64, stages.len() as i64);
                        let loaded = load(&config, Engine::default(), place, &table).unwrap();
                        let got = pull(&loaded.captured, &table, &bytes);
                        let want = expected_bytes(at, q_rank, bias);
                        assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{at:?}");
                        for (name, bytes) in &want {
                            assert!(got[name] == *bytes, "{name} differs: {at:?}");
                        }
                    }
                }
            }
        }
    }
}

/// All ranks of a stage, and all stages, hold each element of each tensor: at least once, and those that are cut once.
#[test]
fn the_slices_of_all_ranks_are_the_checkpoint() {
    for (tp, groups) in [(1, 1), (2, 1), (4, 2), (4, 4)] {
        let mut seen: BTreeMap<String, BTreeSet<(usize, usize)>> = BTreeMap::new();
        for layers in [(0, 2), (2, 3)] {
            for rank in 0..tp {
                for Part(tensor, rows, columns) in
                    expected(At { tp, rank, groups, layers }, true, true).into_values().flatten()
                {
                    let elements = rows.iter().flat_map(|&r| columns.iter().map(move |&c| (r, c)));
                    seen.entry(tensor).or_default().extend(elements);
                }
            }
        }
        let table = tensors(&config(true, true)).unwrap();
        let sizes = |(n, s): (&String, &(Dtype, Vec<i64>))| (n.clone(), s.1.iter().product::<i64>() as usize);
        let whole: BTreeMap<String, usize> = table.iter().map(sizes).collect();
        assert_eq!(seen.into_iter().map(|(n, s)| (n, s.len())).collect::<BTreeMap<_, _>>(), whole);
    }
}

#[test]
fn layers_that_predict_further_tokens_are_left_out_and_listed() {
    let config = config(true, true);
    let mut table = tensors(&config).unwrap();
    let extra = ["model.layers.3.eh_proj.weight", "model.layers.3.mlp.experts.0.gate_proj.weight"];
    for name in extra {
        table.insert(name.into(), (Dtype::BF16, vec![2, 2]));
    }
    let at = |stage, stages, table: &TensorTable| {
        let place = Placement { stage: Stage { index: stage, count: stages }, ..rank(1, 0).into() };
        load(&config, Engine::default(), place, table)
    };
    for (stage, stages) in [(0, 1), (0, 2), (1, 2)] {
        assert_eq!(at(stage, stages, &table).unwrap().skipped, extra);
    }
    // A layer past those has no place, nor has a name that says its layer otherwise than plainly.
    for stranger in
        ["model.layers.4.eh_proj.weight", "model.layers.03.eh_proj.weight", "model.layers.01.mlp.gate.weight"]
    {
        let mut table = table.clone();
        table.insert(stranger.into(), (Dtype::BF16, vec![2, 2]));
        for (stage, stages) in [(0, 1), (0, 2), (1, 2)] {
            let found = problems(at(stage, stages, &table));
            assert_eq!(found, [Problem::Unexpected { tensor: stranger.into() }]);
        }
    }
    // A stranger in a layer of a stage is that stage's to refuse.
    table.insert("model.layers.2.mlp.stranger".into(), (Dtype::BF16, vec![2]));
    assert!(at(0, 2, &table).is_ok() && at(1, 2, &table).is_err());
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let config = config(true, true);
    let table = tensors(&config).unwrap();
    let with = |tp: i64, groups: Option<i64>| {
        let place = Placement { expert_groups: groups, ..rank(tp, 0).into() };
        load(&config, Engine::default(), place, &table)
    };
    assert_eq!(problems(with(4, Some(3))), [Problem::Groups { groups: 3, tp_size: 4 }]);
    assert_eq!(problems(with(4, Some(0))), [Problem::Groups { groups: 0, tp_size: 4 }]);
    let text = with(8, None).unwrap_err().to_string();
    assert!(text.contains("num_attention_heads 4") && text.contains("moe_intermediate_size 4"), "{text}");
    // The bias is f32 in the engine: another type is a conversion, which the plan refuses.
    for version in ["vllm:0.31", "vllm:0.11"] {
        let error = load(&config, version.parse().unwrap(), rank(1, 0), &table).unwrap_err().to_string();
        assert!(error.contains("DeepseekV3ForCausalLM in vLLM"), "{error}");
    }
    for gone in [
        "kv_a_proj_with_mqa.weight",
        "q_a_layernorm.weight",
        "gate.e_score_correction_bias",
        "shared_experts.up_proj.weight",
    ] {
        let mut table = table.clone();
        let name = table.keys().find(|n| n.ends_with(gone)).unwrap().clone();
        let shape = table.remove(&name).unwrap().1;
        let place = rank(2, 1);
        let found = problems(load(&config, Engine::default(), place, &table));
        assert_eq!(found, [Problem::Missing { tensor: name, expected: shape }]);
    }
    let back = unload(&config, &[], &|_, tensor| tensor.to_owned(), Original::default());
    assert!(matches!(back, Err(LoadError::NoWayBack { .. })));
}

fn rank(tp_size: i64, tp_rank: i64) -> Rank {
    Rank { tp_size, tp_rank }
}

fn problems<T: std::fmt::Debug>(result: Result<T, LoadError>) -> Vec<Problem> {
    match result {
        Err(LoadError::Problems(problems)) => problems.0,
        other => panic!("{other:?}"),
    }
}
