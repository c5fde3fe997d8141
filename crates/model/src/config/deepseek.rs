//! The config of a `DeepseekV3ForCausalLM`.
//!
//! Fields and defaults are those of transformers' `DeepseekV3Config` and of the published `config.json`. What vLLM's model
//! class has no parameters for is refused by name: biases in the attention, a tied head, layers that are sparse
//! every so often, the sparse attention of version 3.2.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{Architecture, ConfigError, Experts, LARGEST, Latent, ModelConfig, fit};

#[derive(Deserialize)]
struct DeepseekV3 {
    hidden_size: i64,
    intermediate_size: i64,
    num_hidden_layers: i64,
    num_attention_heads: i64,
    vocab_size: i64,
    q_lora_rank: Option<i64>,
    kv_lora_rank: i64,
    qk_nope_head_dim: i64,
    qk_rope_head_dim: i64,
    v_head_dim: i64,
    n_routed_experts: Option<i64>,
    n_shared_experts: Option<i64>,
    moe_intermediate_size: i64,
    first_k_dense_replace: i64,
    moe_layer_freq: Option<i64>,
    topk_method: Option<String>,
    num_nextn_predict_layers: Option<i64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    index_topk: Option<i64>,
}

/// Reads a config; `dtype` is the type of the weights that it names.
pub(super) fn config(json: &[u8], dtype: Option<String>) -> Result<ModelConfig, ConfigError> {
    let d: DeepseekV3 = serde_json::from_slice(json).map_err(|e| ConfigError::Malformed(e.to_string()))?;
    let count = d.n_routed_experts.unwrap_or(0);
    let shared = d.n_shared_experts.unwrap_or(0);
    for (name, value, least) in [
        ("hidden_size", d.hidden_size, 1),
        ("intermediate_size", d.intermediate_size, 1),
        ("num_hidden_layers", d.num_hidden_layers, 1),
        ("num_attention_heads", d.num_attention_heads, 1),
        ("vocab_size", d.vocab_size, 1),
        ("q_lora_rank", d.q_lora_rank.unwrap_or(1), 1),
        ("kv_lora_rank", d.kv_lora_rank, 1),
        ("qk_nope_head_dim", d.qk_nope_head_dim, 1),
        ("qk_rope_head_dim", d.qk_rope_head_dim, 1),
        ("v_head_dim", d.v_head_dim, 1),
        ("n_routed_experts", count, 0),
        ("n_shared_experts", shared, 0),
        ("moe_intermediate_size", d.moe_intermediate_size, 1),
        ("first_k_dense_replace", d.first_k_dense_replace, 0),
        ("num_nextn_predict_layers", d.num_nextn_predict_layers.unwrap_or(0), 0),
    ] {
        if !(least..=LARGEST).contains(&value) {
            return Err(ConfigError::Size(format!("{name} is {value}, expected {least} to 2^28")));
        }
    }
    let refused = |field, found: String, expected| {
        let architecture = Architecture::DeepseekV3.name();
        Err(ConfigError::Unsupported { architecture, field, found, expected })
    };
    if let Some(freq) = d.moe_layer_freq.filter(|&f| f != 1) {
        return refused("moe_layer_freq", freq.to_string(), "1");
    }
    if d.tie_word_embeddings == Some(true) {
        return refused("tie_word_embeddings", "true".to_owned(), "false");
    }
    if d.attention_bias == Some(true) {
        return refused("attention_bias", "true".to_owned(), "false");
    }
    if let Some(topk) = d.index_topk {
        return refused("index_topk", topk.to_string(), "no index_topk");
    }
    fit("n_routed_experts", count, d.moe_intermediate_size, d.hidden_size)?;
    // Each of these is a row count of one projection.
    let (heads, inner) = (d.num_attention_heads, d.moe_intermediate_size);
    let latent = Latent {
        q_rank: d.q_lora_rank,
        kv_rank: d.kv_lora_rank,
        nope: d.qk_nope_head_dim,
        rope: d.qk_rope_head_dim,
        value: d.v_head_dim,
    };
    let widest = (latent.nope + latent.rope).max(latent.nope + latent.value);
    let columns = d.hidden_size.max(latent.kv_rank).max(latent.q_rank.unwrap_or(1));
    for (what, rows) in [("heads x head width", heads * widest), ("shared experts", 2 * shared * inner)] {
        if rows.checked_mul(columns).is_none() {
            return Err(ConfigError::Size(format!("{what}: {rows} x {columns} does not fit in 63 bits")));
        }
    }
    let experts = Experts {
        count,
        intermediate_size: inner,
        step: 1,
        dense_layers: BTreeSet::new(),
        dense_first: d.first_k_dense_replace,
        shared_size: shared * inner,
        // The one method of version 3; vLLM has the bias with it alone.
        gate_bias: d.topk_method.is_none_or(|method| method == "noaux_tc"),
    };
    Ok(ModelConfig {
        architecture: Architecture::DeepseekV3,
        hidden_size: d.hidden_size,
        intermediate_size: d.intermediate_size,
        num_hidden_layers: d.num_hidden_layers,
        num_attention_heads: heads,
        num_key_value_heads: heads,
        head_dim: latent.nope + latent.rope,
        vocab_size: d.vocab_size,
        tie_word_embeddings: false,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        latent: Some(latent),
        experts: (count > 0).then_some(experts),
        predict_layers: d.num_nextn_predict_layers.unwrap_or(0),
        dtype,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = r#"{"architectures":["DeepseekV3ForCausalLM"],"hidden_size":16,"intermediate_size":24,
        "num_hidden_layers":4,"num_attention_heads":4,"vocab_size":130,"q_lora_rank":12,"kv_lora_rank":8,
        "qk_nope_head_dim":4,"qk_rope_head_dim":2,"v_head_dim":3,"n_routed_experts":8,"n_shared_experts":2,
        "moe_intermediate_size":4,"first_k_dense_replace":3,"num_nextn_predict_layers":1,"topk_method":"noaux_tc",
        "torch_dtype":"bfloat16"}"#;

    #[test]
    fn sparse_layers_come_after_the_first_ones() {
        let c = ModelConfig::from_json(TINY.as_bytes()).unwrap();
        let sparse: Vec<i64> = (0..4).filter(|&i| c.is_sparse(i)).collect();
        assert_eq!((sparse, c.sparse_layers()), (vec![3], 1));
        let experts = c.experts.as_ref().unwrap();
        assert_eq!((experts.count, experts.shared_size, experts.gate_bias), (8, 8, true));
        assert_eq!((c.head_dim, c.predict_layers), (6, 1));
        for first in [0, 1, 4, 9] {
            let json = TINY.replace(r#"replace":3"#, &format!(r#"replace":{first}"#));
            let c = ModelConfig::from_json(json.as_bytes()).unwrap();
            assert_eq!(c.sparse_layers(), (4 - first).max(0));
        }
    }

    #[test]
    fn what_is_not_loaded_is_refused_by_name() {
        for (from, to, name) in [
            ("{", r#"{"quantization_config":{"quant_method":"fp8"},"#, "fp8"),
            ("{", r#"{"tie_word_embeddings":true,"#, "tie_word_embeddings"),
            ("{", r#"{"attention_bias":true,"#, "attention_bias"),
            ("{", r#"{"moe_layer_freq":2,"#, "moe_layer_freq is 2"),
            ("{", r#"{"index_topk":2048,"#, "index_topk"),
            (r#""kv_lora_rank":8,"#, "", "kv_lora_rank"),
            (r#""v_head_dim":3"#, r#""v_head_dim":0"#, "v_head_dim is 0"),
            (r#""n_routed_experts":8"#, r#""n_routed_experts":-8"#, "n_routed_experts is -8"),
        ] {
            let json = TINY.replacen(from, to, 1);
            let error = ModelConfig::from_json(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        let json = [
            (r#"hidden_size":16"#, r#"hidden_size":268435456"#),
            (r#"n_shared_experts":2"#, r#"n_shared_experts":268435456"#),
        ]
        .iter()
        .fold(TINY.to_owned(), |json, (from, to)| json.replacen(from, to, 1));
        let json = json.replace(r#""moe_intermediate_size":4"#, r#""moe_intermediate_size":268435456"#);
        let error = ModelConfig::from_json(json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("63 bits"), "{error}");
    }

    #[test]
    fn the_type_of_the_weights_is_one_of_three() {
        use restage_geometry::Dtype;
        for (named, dtype) in [("bfloat16", Dtype::BF16), ("float16", Dtype::F16), ("float32", Dtype::F32)] {
            let c = ModelConfig::from_json(TINY.replace("bfloat16", named).as_bytes()).unwrap();
            assert_eq!(c.weight_dtype(), Ok(dtype));
        }
        let c = ModelConfig::from_json(TINY.replace("bfloat16", "float8_e4m3fn").as_bytes()).unwrap();
        assert_eq!(c.weight_dtype(), Err(ConfigError::Dtype { found: "float8_e4m3fn".to_owned() }));
    }
}
