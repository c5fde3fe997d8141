//! The checkpoint tensors that a config calls for, before there is a checkpoint.

use restage_geometry::Dtype;

use crate::TensorTable;
use crate::config::{ConfigError, ModelConfig};
use crate::decoder::{EMBED, HEAD, NORM, layer};

/// As many tensors are written down; a config can call for more than memory can name.
const MOST_TENSORS: i64 = 10_000_000;

/// The tensors of a Hugging Face checkpoint of this config, one per expert and projection, with their dtypes and
/// shapes: all of what [`load`](crate::load) asks for and nothing else. Weights have the type that the config names; the
/// bias by which experts are chosen is f32.
///
/// # Errors
/// [`ConfigError::Dtype`] where the config names a type that no plain weights have, [`ConfigError::Size`] where it calls
/// for more than ten million tensors.
pub fn tensors(config: &ModelConfig) -> Result<TensorTable, ConfigError> {
    let dtype = config.weight_dtype()?;
    let experts = config.experts.as_ref().map_or(0, |e| e.count);
    // No layer has more tensors beside its experts than this.
    let per_layer =
        |sparse: i64| config.num_hidden_layers.checked_mul(20)?.checked_add(sparse.checked_mul(3 * experts)?);
    if per_layer(config.sparse_layers()).is_none_or(|n| n > MOST_TENSORS) {
        let (layers, sparse) = (config.num_hidden_layers, config.sparse_layers());
        return Err(ConfigError::Size(format!(
            "{layers} layers, {sparse} of them with {experts} experts, are more than {MOST_TENSORS} tensors"
        )));
    }
    let mut table = Table { dtype, tensors: TensorTable::new() };
    let hidden = config.hidden_size;
    table.add(EMBED, &[config.vocab_size, hidden]);
    table.add(NORM, &[hidden]);
    if !config.tie_word_embeddings {
        table.add(HEAD, &[config.vocab_size, hidden]);
    }
    for i in 0..config.num_hidden_layers {
        let prefix = layer(i);
        attention(&mut table, config, &format!("{prefix}.self_attn"));
        feed_forward(&mut table, config, &format!("{prefix}.mlp"), config.is_sparse(i));
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            table.add(&format!("{prefix}.{norm}.weight"), &[hidden]);
        }
    }
    Ok(table.tensors)
}

struct Table {
    dtype: Dtype,
    tensors: TensorTable,
}

impl Table {
    fn add(&mut self, name: &str, shape: &[i64]) {
        self.tensors.insert(name.to_owned(), (self.dtype, shape.to_vec()));
    }

    /// A linear layer: `[outputs, inputs]`, and a bias of its outputs.
    fn linear(&mut self, name: &str, outputs: i64, inputs: i64, bias: bool) {
        self.add(&format!("{name}.weight"), &[outputs, inputs]);
        if bias {
            self.add(&format!("{name}.bias"), &[outputs]);
        }
    }

    /// The three projections of a feed-forward layer.
    fn gated(&mut self, name: &str, inner: i64, hidden: i64, bias: bool) {
        self.linear(&format!("{name}.gate_proj"), inner, hidden, bias);
        self.linear(&format!("{name}.up_proj"), inner, hidden, bias);
        self.linear(&format!("{name}.down_proj"), hidden, inner, bias);
    }
}

fn attention(table: &mut Table, c: &ModelConfig, attn: &str) {
    let (hidden, heads) = (c.hidden_size, c.num_attention_heads);
    let Some(l) = c.latent else {
        let kv = c.num_key_value_heads * c.head_dim;
        table.linear(&format!("{attn}.q_proj"), heads * c.head_dim, hidden, c.qkv_bias);
        table.linear(&format!("{attn}.k_proj"), kv, hidden, c.qkv_bias);
        table.linear(&format!("{attn}.v_proj"), kv, hidden, c.qkv_bias);
        table.linear(&format!("{attn}.o_proj"), hidden, heads * c.head_dim, c.o_bias);
        for norm in ["q_norm", "k_norm"].iter().filter(|_| c.qk_norm) {
            table.add(&format!("{attn}.{norm}.weight"), &[c.head_dim]);
        }
        return;
    };
    let q_rows = heads * (l.nope + l.rope);
    match l.q_rank {
        Some(rank) => {
            table.linear(&format!("{attn}.q_a_proj"), rank, hidden, false);
            table.add(&format!("{attn}.q_a_layernorm.weight"), &[rank]);
            table.linear(&format!("{attn}.q_b_proj"), q_rows, rank, false);
        }
        None => table.linear(&format!("{attn}.q_proj"), q_rows, hidden, false),
    }
    table.linear(&format!("{attn}.kv_a_proj_with_mqa"), l.kv_rank + l.rope, hidden, false);
    table.add(&format!("{attn}.kv_a_layernorm.weight"), &[l.kv_rank]);
    table.linear(&format!("{attn}.kv_b_proj"), heads * (l.nope + l.value), l.kv_rank, false);
    table.linear(&format!("{attn}.o_proj"), hidden, heads * l.value, false);
}

fn feed_forward(table: &mut Table, c: &ModelConfig, mlp: &str, sparse: bool) {
    let hidden = c.hidden_size;
    let Some(experts) = c.experts.as_ref().filter(|_| sparse) else {
        return table.gated(mlp, c.intermediate_size, hidden, c.mlp_bias);
    };
    table.add(&format!("{mlp}.gate.weight"), &[experts.count, hidden]);
    if experts.gate_bias {
        let name = format!("{mlp}.gate.e_score_correction_bias");
        table.tensors.insert(name, (Dtype::F32, vec![experts.count]));
    }
    if experts.shared_size > 0 {
        table.gated(&format!("{mlp}.shared_experts"), experts.shared_size, hidden, false);
    }
    for e in 0..experts.count {
        table.gated(&format!("{mlp}.experts.{e}"), experts.intermediate_size, hidden, false);
    }
}
