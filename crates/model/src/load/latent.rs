//! Latent attention (MLA) of a `DeepseekV3ForCausalLM`.
//!
//! What the loader does and the names follow vLLM 0.33.0 by reading its source (`deepseek_v2.py`, `mla.py`,
//! `moe_runner.py`, `sharded_state_loader.py`); no state that it wrote was at hand to compare with:
//!
//! - `q_a_proj` and `kv_a_proj_with_mqa` are one parameter, `fused_qkv_a_proj`, one above the other and whole on every
//!   rank (a merged linear layer with tensor parallelism off). A model without `q_lora_rank` has `q_proj`, cut like
//!   `q_b_proj`, and `kv_a_proj_with_mqa` by itself.
//! - `q_b_proj` and `kv_b_proj` are cut by heads along their rows, `o_proj` along its columns; the norms are whole.
//! - Parameters that can be reached by two names go by the one that sorts first, as in every sharded state: the wrapper
//!   `mla_attn` holds all of them again, so that what sorts after `mla_attn` has the wrapper's name. By the same rule
//!   the gate's bias is `experts.gate.e_score_correction_bias` and the shared experts lie below
//!   `experts._shared_experts._layer`.
//! - The attention's scale buffers lie below `mla_attn.mla_attn`.

use super::{LoadError, Loader, Member};
use crate::config::Latent;
use crate::decoder::{Cut, LatentCuts};

impl Loader<'_, '_> {
    /// Latent attention; `attn` is the prefix of its tensors.
    pub(super) fn latent_attention(
        &mut self,
        attn: &str,
        latent: Latent,
        cuts: LatentCuts,
    ) -> Result<(), LoadError> {
        let Latent { q_rank, kv_rank, nope, rope, value } = latent;
        let (hidden, heads) = (self.config.hidden_size, self.config.num_attention_heads);
        // With one key position part for all heads below it.
        let kv_rows = kv_rank + rope;
        let all = |name: &str, rows: i64| Member {
            tensor: format!("{attn}.{name}.weight"),
            rows,
            cut: Cut { start: 0, len: rows },
        };
        let q_inputs = match q_rank {
            Some(q_rank) => {
                let members = [all("q_a_proj", q_rank), all("kv_a_proj_with_mqa", kv_rows)];
                self.fuse(&format!("{attn}.fused_qkv_a_proj.weight"), &members, &[hidden])?;
                let norm = "q_a_layernorm.weight";
                self.renamed(&format!("{attn}.mla_attn.{norm}"), &format!("{attn}.{norm}"), &[q_rank])?;
                ("q_b_proj", q_rank)
            }
            None => {
                self.whole(&format!("{attn}.kv_a_proj_with_mqa.weight"), &[kv_rows, hidden])?;
                ("q_proj", hidden)
            }
        };
        let (name, inputs) = q_inputs;
        self.cut_rows(&format!("{attn}.mla_attn"), attn, name, [heads * (nope + rope), inputs], cuts.q)?;
        self.whole(&format!("{attn}.kv_a_layernorm.weight"), &[kv_rank])?;
        self.cut_rows(attn, attn, "kv_b_proj", [heads * (nope + value), kv_rank], cuts.kv)?;
        let (param, tensor) = (format!("{attn}.mla_attn.o_proj"), format!("{attn}.o_proj"));
        self.rows(&param, &tensor, [hidden, heads * value], cuts.o, false)
    }

    /// A column-parallel projection by itself: the rank takes rows of the weight.
    fn cut_rows(
        &mut self,
        param: &str,
        tensor: &str,
        name: &str,
        [rows, inputs]: [i64; 2],
        cut: Cut,
    ) -> Result<(), LoadError> {
        let member = Member { tensor: format!("{tensor}.{name}.weight"), rows, cut };
        self.fuse(&format!("{param}.{name}.weight"), &[member], &[inputs])
    }
}
