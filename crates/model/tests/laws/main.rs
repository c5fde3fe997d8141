//! Random models of every family: each rank's parameters equal plain slicing, and the way back is the way in.

mod deepseek;
mod model;
mod pull;
mod refusals;

use model::{Bytes, Model, Moe, checkpoint, sliced, stored};
use proptest::prelude::*;
use pull::{pull, rows};
use restage_model::{
    Engine, Expectation, LoadError, Original, Placement, Problem, Rank, Stage, TensorTable, load, tensors,
    unload,
};

/// Minor versions of vLLM whose names are known.
const KNOWN: [u32; 10] = [11, 13, 16, 19, 22, 24, 27, 29, 31, 33];

fn engine(minor: u32) -> Engine {
    format!("vllm:0.{minor}").parse().unwrap()
}

fn placement(m: &Model, tp: usize, rank: usize) -> Placement {
    let rank = Rank { tp_size: tp as i64, tp_rank: rank as i64 };
    match &m.moe {
        Some(moe) if moe.spread => Placement::expert_parallel(rank),
        _ => rank.into(),
    }
}

fn dense_models() -> impl Strategy<Value = (Model, usize)> {
    let arch = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];
    let sizes = (1usize..4, 1usize..4, 1usize..3, prop::sample::select(vec![2usize, 4, 6]), 1usize..200);
    (
        prop::sample::select(arch.to_vec()),
        prop::sample::select(vec![1usize, 2, 4, 8, 16]),
        sizes,
        any::<[bool; 3]>(),
        0u32..4,
    )
        .prop_map(
            |(arch, tp, (per_rank, group, layers, head_dim, vocab), [tied, bias, wide], kv_log)| {
                // Key/value heads are a multiple of the ranks, or fewer than there are ranks.
                let kv = if wide { tp * group } else { (1 << kv_log).min(tp) };
                let heads = if wide { kv * per_rank } else { tp * per_rank };
                let (hidden, ffn) = (6 + per_rank, tp * (2 + group));
                (Model { arch, hidden, ffn, layers, heads, kv, head_dim, vocab, tied, bias, moe: None }, tp)
            },
        )
}

fn moe_models() -> impl Strategy<Value = (Model, usize)> {
    let sizes = (1usize..4, 1usize..4, 1usize..4, prop::collection::vec(0usize..6, 0..3));
    (dense_models(), sizes, any::<[bool; 2]>(), 3usize..5).prop_map(
        |((mut m, tp), (share, other, step, mlp_only), [spread, stacked], layers)| {
            // Of experts and their width, only the one that is divided need divide.
            let (experts, inner) = if spread { (tp * share, other) } else { (other, tp * share) };
            let moe = Moe { experts, inner, step, mlp_only, spread, stacked };
            (m.arch, m.layers) = ("Qwen3MoeForCausalLM", layers);
            if (0..layers).all(|i| moe.is_sparse(i)) {
                // No layer has it, and so it need not divide.
                m.ffn += 1;
            }
            m.moe = Some(moe);
            (m, tp)
        },
    )
}

fn models() -> impl Strategy<Value = (Model, usize)> {
    prop_oneof![dense_models(), moe_models()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn ranks_are_plain_slices_and_join_again((m, tp) in models(), minor in prop::sample::select(&KNOWN)) {
        let stacked = m.moe.as_ref().is_some_and(|moe| moe.stacked);
        let sparse = (0..m.layers).any(|i| m.is_sparse(i));
        // Older ones do not load stacked experts.
        let minor = if stacked && sparse { minor.max(27) } else { minor };
        let config = m.config();
        let hf = checkpoint(&m);
        let as_stored = stored(&m, &hf);
        let (table, bytes) = (as_stored.table(), as_stored.bytes());
        // What the config calls for is what there is, experts one by one.
        prop_assert_eq!(tensors(&config).unwrap(), hf.table());
        let mut tables = Vec::new();
        let mut all_table = TensorTable::new();
        let mut all_bytes = Bytes::new();
        let name = |rank: usize, tensor: &str| format!("r{rank}/{tensor}");
        for rank in 0..tp {
            let loaded = load(&config, engine(minor), placement(&m, tp, rank), &table).unwrap();
            prop_assert!(loaded.skipped.is_empty() && loaded.tie.is_none());
            let mut got = pull(&loaded.captured, &table, &bytes);
            all_bytes.extend(got.iter().map(|(n, b)| (name(rank, n), b.clone())));
            let scales: Vec<_> = got.keys().filter(|k| k.ends_with("_scale")).cloned().collect();
            prop_assert_eq!(scales.len(), if minor < 16 { 0 } else { 4 * m.layers });
            for scale in scales {
                prop_assert_eq!(got.remove(&scale).unwrap(), 1f32.to_le_bytes());
            }
            prop_assert_eq!(&got, &sliced(&m, &hf, tp, rank, minor).bytes());
            let params = loaded.captured.params.iter();
            let params: TensorTable = params.map(|p| (p.name.clone(), (p.dtype, p.shape.clone()))).collect();
            all_table.extend(params.iter().map(|(n, t)| (name(rank, n), t.clone())));
            tables.push(params);
        }
        let original = Original { head: false, stacked_experts: stacked };
        let back = unload(&config, &tables, &name, original).unwrap();
        for e in &back.expectations {
            match e {
                Expectation::Equal(a, b) => {
                    prop_assert_eq!(rows(a, &all_table, &all_bytes), rows(b, &all_table, &all_bytes));
                }
                Expectation::Constant(r, element) => {
                    let found = rows(r, &all_table, &all_bytes);
                    prop_assert!(found.chunks(element.len()).all(|c| c == element));
                }
                Expectation::Bytes(r, expected) => {
                    prop_assert_eq!(rows(r, &all_table, &all_bytes), &expected[..]);
                }
                other => panic!("{other:?}"),
            }
        }
        prop_assert_eq!(pull(&back.captured, &all_table, &all_bytes), bytes);
    }

    /// The stages of a pipeline together are the rank without stages; a tied embedding is on both ends.
    #[test]
    fn stages_together_are_the_whole_rank((m, tp) in models(), stages in 1usize..5) {
        let as_stored = stored(&m, &checkpoint(&m));
        let (table, bytes) = (as_stored.table(), as_stored.bytes());
        let whole = placement(&m, tp, tp - 1);
        let at = |place| load(&m.config(), Engine::default(), place, &table);
        let all = pull(&at(whole).unwrap().captured, &table, &bytes);
        if stages > m.layers {
            let stage = Stage { index: 0, count: stages as i64 };
            let refused = at(Placement { stage, ..whole }).is_err();
            prop_assert!(refused);
            return Ok(());
        }
        let mut joined = Bytes::new();
        for index in 0..stages as i64 {
            let stage = Stage { index, count: stages as i64 };
            let loaded = at(Placement { stage, ..whole }).unwrap();
            prop_assert!(loaded.skipped.is_empty());
            for (name, bytes) in pull(&loaded.captured, &table, &bytes) {
                prop_assert!(joined.insert(name.clone(), bytes).is_none(), "{} is on two stages", name);
            }
        }
        if m.tied && stages > 1 {
            let first = joined.remove("model.embed_tokens.weight");
            prop_assert_eq!(first.as_ref(), all.get("lm_head.weight"));
        }
        prop_assert_eq!(joined, all);
    }

    /// One tensor less, or one of another shape, and the model is refused with its name.
    #[test]
    fn every_tensor_counts((m, tp) in models(), which in any::<prop::sample::Index>(), grow in any::<bool>()) {
        let mut table = stored(&m, &checkpoint(&m)).table();
        let name = table.keys().nth(which.index(table.len())).unwrap().clone();
        match table.get_mut(&name) {
            Some((_, shape)) if grow => shape[0] += 1,
            _ => drop(table.remove(&name)),
        }
        let place = placement(&m, tp, tp - 1);
        let Err(LoadError::Problems(problems)) = load(&m.config(), Engine::default(), place, &table) else {
            panic!("loaded without {name}");
        };
        let named = problems.0.iter().all(|p| match p {
            Problem::Missing { tensor, .. } => !grow && *tensor == name,
            Problem::Shape { tensor, .. } => grow && *tensor == name,
            _ => false,
        });
        prop_assert!(named && !problems.0.is_empty(), "{problems}");
    }
}

#[test]
fn sizes_that_do_not_divide_are_all_named() {
    let m = Model {
        arch: "LlamaForCausalLM",
        hidden: 8,
        ffn: 6,
        layers: 1,
        heads: 6,
        kv: 3,
        head_dim: 2,
        vocab: 64,
        tied: false,
        bias: false,
        moe: None,
    };
    let at = |tp_size, tp_rank| {
        load(&m.config(), Engine::default(), Rank { tp_size, tp_rank }, &checkpoint(&m).table())
    };
    let Err(LoadError::Problems(problems)) = at(4, 0) else { panic!("6 heads do not divide by 4") };
    let said = problems.to_string();
    for part in ["num_attention_heads 6", "intermediate_size 6", "(remainder 2)", "num_key_value_heads"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("vocabulary"), "{said}");
    for (tp_size, tp_rank) in [(0, 0), (2, 2), (2, -1)] {
        assert!(at(tp_size, tp_rank).is_err());
    }
}
