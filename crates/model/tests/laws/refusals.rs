//! Experts that cannot be loaded, or joined again: every reason is named.

use restage_geometry::Dtype;
use restage_model::{
    Engine, EngineError, LoadError, Loaded, Original, Parts, Placement, Problem, Rank, TensorTable, load,
    unload,
};

use crate::model::{Model, Moe, checkpoint, stored};

/// One dense and one sparse layer: 4 experts of 6.
fn model() -> Model {
    let moe = Moe { experts: 4, inner: 6, step: 2, mlp_only: Vec::new(), spread: false, stacked: false };
    Model {
        arch: "Qwen3MoeForCausalLM",
        hidden: 8,
        ffn: 12,
        layers: 2,
        heads: 12,
        kv: 12,
        head_dim: 2,
        vocab: 190,
        tied: false,
        bias: false,
        moe: Some(moe),
    }
}

fn stacked() -> Model {
    let mut m = model();
    m.moe.as_mut().unwrap().stacked = true;
    m
}

fn table(m: &Model) -> TensorTable {
    stored(m, &checkpoint(m)).table()
}

fn at(m: &Model, table: &TensorTable, tp_size: i64, expert_parallel: bool) -> Result<Loaded, LoadError> {
    let rank = Rank { tp_size, tp_rank: tp_size - 1 };
    load(&m.config(), Engine::default(), placed(rank, expert_parallel), table)
}

fn placed(rank: Rank, expert_parallel: bool) -> Placement {
    if expert_parallel { Placement::expert_parallel(rank) } else { rank.into() }
}

fn problems<T: std::fmt::Debug>(result: Result<T, LoadError>) -> Vec<Problem> {
    match result {
        Err(LoadError::Problems(problems)) => problems.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_ranks_do_not_divide_is_named_with_both_numbers() {
    let (m, table) = (model(), table(&model()));
    assert!(at(&m, &table, 2, false).is_ok() && at(&m, &table, 2, true).is_ok());
    // 4 experts on 3 ranks, 6 of an expert's width on 4: each is refused where it is what is divided.
    assert!(at(&m, &table, 3, false).is_ok() && at(&m, &table, 4, true).is_ok());
    let experts = problems(at(&m, &table, 3, true));
    assert_eq!(experts, [Problem::Indivisible { what: "num_experts", size: 4, by: 3, parts: Parts::Ranks }]);
    assert_eq!(
        experts[0].to_string(),
        "num_experts 4 is not divisible by tensor-parallel size 3 (remainder 1)"
    );
    let width = problems(at(&m, &table, 4, false));
    assert_eq!(
        width,
        [Problem::Indivisible { what: "moe_intermediate_size", size: 6, by: 4, parts: Parts::Ranks }]
    );
    // Dense layers are cut either way.
    let mut odd = model();
    odd.ffn = 13;
    for spread in [false, true] {
        let found = problems(at(&odd, &crate::refusals::table(&odd), 2, spread));
        assert_eq!(
            found,
            [Problem::Indivisible { what: "intermediate_size", size: 13, by: 2, parts: Parts::Ranks }]
        );
    }
}

#[test]
fn expert_parallel_without_experts_is_refused() {
    let mut dense = model();
    dense.moe = None;
    dense.arch = "Qwen3ForCausalLM";
    assert_eq!(problems(at(&dense, &table(&dense), 2, true)), [Problem::NoExperts]);
}

#[test]
fn tensors_of_experts_are_missing_extra_misshapen_or_of_another_dtype_by_name() {
    let prefix = "model.layers.1.mlp.experts";
    for spread in [false, true] {
        let m = model();
        let with = |edit: &dyn Fn(&mut TensorTable)| {
            let mut table = table(&m);
            edit(&mut table);
            problems(at(&m, &table, 2, spread))
        };
        // Expert 0 is on rank 0, and rank 1 asks: each rank sees to all of the checkpoint.
        let gone = format!("{prefix}.0.up_proj.weight");
        let missing = Problem::Missing { tensor: gone.clone(), expected: vec![6, 8] };
        assert_eq!(with(&|t| drop(t.remove(&gone))), [missing]);

        let all = with(&|t| t.retain(|name, _| !name.starts_with(&format!("{prefix}.3."))));
        let name = |p: &Problem| match p {
            Problem::Missing { tensor, .. } => tensor.clone(),
            other => panic!("{other}"),
        };
        let expected = ["gate", "up", "down"].map(|p| format!("{prefix}.3.{p}_proj.weight"));
        assert_eq!(all.iter().map(name).collect::<Vec<_>>(), expected);

        for extra in [
            format!("{prefix}.4.gate_proj.weight"),
            format!("{prefix}.01.gate_proj.weight"),
            format!("{prefix}.0.gate_proj.bias"),
            format!("{prefix}.shared.gate_proj.weight"),
            "model.layers.1.mlp.shared_expert.gate_proj.weight".to_owned(),
            "model.layers.1.mlp.gate_proj.weight".to_owned(),
            "model.layers.0.mlp.experts.0.gate_proj.weight".to_owned(),
            "model.layers.0.mlp.gate.weight".to_owned(),
        ] {
            let found = with(&|t| drop(t.insert(extra.clone(), (Dtype::BF16, vec![6, 8]))));
            assert_eq!(found, [Problem::Unexpected { tensor: extra }]);
        }

        for (name, expected, wrong) in
            [("0.gate_proj", [6, 8], [8, 6]), ("3.up_proj", [6, 8], [6, 7]), ("1.down_proj", [8, 6], [6, 8])]
        {
            let tensor = format!("{prefix}.{name}.weight");
            let found = with(&|t| t.get_mut(&tensor).unwrap().1 = wrong.to_vec());
            let (expected, found_shape) = (expected.to_vec(), wrong.to_vec());
            assert_eq!(found, [Problem::Shape { tensor, expected, found: found_shape }]);
        }
        let gate = "model.layers.1.mlp.gate.weight";
        let found = with(&|t| t.get_mut(gate).unwrap().1 = vec![5, 8]);
        assert!(matches!(&found[..], [Problem::Shape { tensor, .. }] if tensor == gate), "{found:?}");

        let tensor = format!("{prefix}.2.up_proj.weight");
        let found = with(&|t| t.get_mut(&tensor).unwrap().0 = Dtype::F16);
        let dtype = Problem::Dtype { tensor, expected: Dtype::BF16, found: Dtype::F16 };
        assert_eq!(found, [dtype]);
    }
}

#[test]
fn stacked_experts_of_another_layout_or_half_of_them_are_refused() {
    let m = stacked();
    let (gate_up, down) = ("model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj");
    // Transposed, as other families store them.
    let mut transposed = table(&m);
    transposed.get_mut(gate_up).unwrap().1 = vec![4, 8, 12];
    let found = problems(at(&m, &transposed, 2, false));
    let shape = |tensor: &str, expected: &[i64], found: &[i64]| Problem::Shape {
        tensor: tensor.to_owned(),
        expected: expected.to_vec(),
        found: found.to_vec(),
    };
    assert_eq!(found, [shape(gate_up, &[4, 12, 8], &[4, 8, 12])]);
    for (gone, expected) in [(gate_up, vec![4, 12, 8]), (down, vec![4, 8, 6])] {
        let mut half = table(&m);
        half.remove(gone);
        let missing = Problem::Missing { tensor: gone.to_owned(), expected };
        assert_eq!(problems(at(&m, &half, 2, true)), [missing]);
    }
    // Both forms at once: which of them counts would be a guess.
    let mut both = table(&m);
    both.extend(table(&model()));
    let found = problems(at(&m, &both, 2, false));
    assert_eq!(found.len(), 12);
    assert!(found.iter().all(|p| matches!(p, Problem::Unexpected { tensor } if tensor.contains("experts."))));
}

#[test]
fn versions_are_refused_where_it_matters_and_only_there() {
    let rank = Rank { tp_size: 2, tp_rank: 0 };
    let with = |m: &Model, version: &str, expert_parallel: bool| {
        let place = placed(rank, expert_parallel);
        load(&m.config(), version.parse().unwrap(), place, &table(m))
    };
    let between =
        |r: Result<Loaded, LoadError>| matches!(r, Err(LoadError::Engine(EngineError::Between { .. })));
    for version in ["vllm:0.23", "vllm:0.20", "vllm:0.21", "vllm:0.14"] {
        assert!(between(with(&model(), version, false)), "{version}");
    }
    // The expert map is there with expert parallel alone.
    for version in ["vllm:0.12", "vllm:0.25", "vllm:0.26"] {
        assert!(with(&model(), version, false).is_ok(), "{version}");
        assert!(between(with(&model(), version, true)), "{version}");
    }
    // A model whose layers are all dense needs none of this.
    let mut dense = model();
    dense.moe.as_mut().unwrap().mlp_only = vec![1];
    assert!(with(&dense, "vllm:0.23", true).is_ok());
    let error = with(&stacked(), "vllm:0.24", false).unwrap_err().to_string();
    assert!(error.contains("vLLM 0.24") && error.contains("0.27.1"), "{error}");
    assert!(between(with(&stacked(), "vllm:0.26", false)));
    assert!(with(&stacked(), "vllm:0.27", false).is_ok());
}

#[test]
fn a_config_that_calls_for_more_than_memory_holds_is_refused_all_the_same() {
    let mut m = model();
    m.moe.as_mut().unwrap().experts = 1 << 28;
    let table = table(&model());
    let found = problems(at(&m, &table, 1, false));
    assert!((1000..2000).contains(&found.len()), "{}", found.len());
}

#[test]
fn the_way_back_names_what_a_rank_lacks_or_has_too_much() {
    let m = model();
    let source = |rank: usize, tensor: &str| format!("r{rank}/{tensor}");
    for spread in [false, true] {
        let tables: Vec<TensorTable> = (0..2)
            .map(|tp_rank| {
                let place = placed(Rank { tp_size: 2, tp_rank }, spread);
                let engine = "vllm:0.22".parse().unwrap();
                let params = load(&m.config(), engine, place, &table(&m)).unwrap().captured.params;
                params.into_iter().map(|p| (p.name, (p.dtype, p.shape))).collect()
            })
            .collect();
        let back = |edit: &dyn Fn(&mut Vec<TensorTable>)| {
            let mut tables = tables.clone();
            edit(&mut tables);
            unload(&m.config(), &tables, &source, Original::default())
        };
        assert!(back(&|_| {}).is_ok());
        let mlp = "model.layers.1.mlp";
        let shape: &[i64] = if spread { &[2, 12, 8] } else { &[4, 6, 8] };
        let w13 = format!("{mlp}.experts.w13_weight");
        let newest = format!("r1/{mlp}.experts.routed_experts.w13_weight");
        let missing = Problem::Missing { tensor: newest, expected: shape.to_vec() };
        assert_eq!(problems(back(&|t| drop(t[1].remove(&w13)))), [missing]);
        let found = problems(back(&|t| t[1].get_mut(&w13).unwrap().1 = vec![3, 12, 8]));
        let expected = shape.to_vec();
        assert_eq!(found, [Problem::Shape { tensor: format!("r1/{w13}"), expected, found: vec![3, 12, 8] }]);
        // Two names of one thing, and a map where none can be.
        let whole = (Dtype::BF16, vec![4, 8]);
        let twice = format!("{mlp}.gate.weight");
        let found = problems(back(&|t| drop(t[0].insert(twice.clone(), whole.clone()))));
        assert_eq!(found, [Problem::Unexpected { tensor: format!("r0/{twice}") }]);
        let map = format!("{mlp}.experts._expert_map");
        assert_eq!(tables[0].contains_key(&map), spread);
        let found = back(&|t| drop(t[0].insert(map.clone(), (Dtype::I64, vec![4]))));
        let found = problems(found);
        let dtype = Problem::Dtype { tensor: format!("r0/{map}"), expected: Dtype::I32, found: Dtype::I64 };
        let unexpected = Problem::Unexpected { tensor: format!("r0/{map}") };
        assert_eq!(found, [if spread { dtype } else { unexpected }]);
    }
}
