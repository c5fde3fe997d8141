//! The loader of a pipeline stage that computes: what its blocks need, and nothing of other stages.
//!
//! Parameters keep the names and the order of rows of Hugging Face checkpoints, whatever the checkpoint's own are, and
//! the dtypes of their tensors, packed ones included: nothing is fused or padded. Rows are never cut.

use std::collections::HashSet;
use std::ops::Range;

use restage_geometry::{Capture, CaptureError, Captured, LazyTensor};

use crate::TensorTable;
use crate::config::ModelConfig;
use crate::decoder::{EMBED, HEAD, MOST_PROBLEMS, NORM, Problem, ProblemList, layer};
use crate::load::{LoadError, SKIPPED, layer_of};

/// The tensor of GGUF files that holds a factor for the wavelength of each pair of a head's elements; every stage
/// needs it.
pub const ROPE_FREQS: &str = "rope_freqs.weight";

/// How a checkpoint names its tensors, and in which order it has the rows of q and k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// Hugging Face names; the two halves of a head rotate together.
    HuggingFace,
    /// llama.cpp's names.
    Gguf {
        /// True for files of architecture `llama`, in which rows that rotate together are neighbours.
        paired: bool,
    },
}

/// The part of a model that a stage has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePart {
    /// Its blocks.
    pub blocks: Range<i64>,
    /// True when it embeds tokens.
    pub first: bool,
    /// True when it has the final norm and the head.
    pub last: bool,
}

/// Captures what a stage loads: its blocks; the embedding on the first stage; the final norm and the head on the last. The
/// head of a tied model is the embedding: a stage that is both first and last has it once, under the embedding's name.
///
/// # Errors
/// [`LoadError`]: a family with experts or latent attention, tensors that are missing or contradict the config, tensors of
/// the stage's blocks that the family has no place for, blocks that do not exist.
pub fn load_stage(
    config: &ModelConfig,
    naming: Naming,
    part: &StagePart,
    sources: &TensorTable,
) -> Result<Captured, LoadError> {
    if config.latent.is_some() || config.experts.is_some() {
        return Err(LoadError::NotStaged { architecture: config.architecture.name() });
    }
    let layers = config.num_hidden_layers;
    if part.blocks.start < 0 || part.blocks.end > layers || part.blocks.is_empty() {
        return Err(LoadError::Blocks { start: part.blocks.start, end: part.blocks.end, layers });
    }
    let capture = Capture::new();
    let mut stage =
        Stage { capture: &capture, config, naming, sources, used: HashSet::new(), problems: Vec::new() };
    let vocab = [config.vocab_size, config.hidden_size];
    if part.first {
        stage.whole(EMBED, &vocab)?;
    }
    for i in part.blocks.clone() {
        stage.block(i)?;
        // A file may say that it has more blocks than memory could hold the names of.
        if stage.problems.len() >= MOST_PROBLEMS {
            break;
        }
    }
    if part.last {
        stage.whole(NORM, &[config.hidden_size])?;
        match (config.tie_word_embeddings, part.first) {
            (true, true) => {}
            (true, false) => stage.renamed(HEAD, EMBED, &vocab)?,
            (false, _) => stage.whole(HEAD, &vocab)?,
        }
    }
    if sources.contains_key(ROPE_FREQS) {
        stage.whole(ROPE_FREQS, &[config.head_dim / 2])?;
    }
    stage.nothing_else(part);
    match stage.problems.is_empty() {
        true => Ok(capture.finish()),
        false => Err(ProblemList(stage.problems).into()),
    }
}

struct Stage<'a, 'c> {
    capture: &'c Capture,
    config: &'a ModelConfig,
    naming: Naming,
    sources: &'a TensorTable,
    /// Names of tensors in the checkpoint that have a place.
    used: HashSet<String>,
    problems: Vec<Problem>,
}

impl<'c> Stage<'_, 'c> {
    fn block(&mut self, i: i64) -> Result<(), CaptureError> {
        let c = self.config;
        let (hidden, width) = (c.hidden_size, c.intermediate_size);
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let name = |end: &str| format!("{}.{end}", layer(i));
        for norm in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
            self.whole(&name(norm), &[hidden])?;
        }
        for (proj, heads, rows) in
            [("q_proj", c.num_attention_heads, q), ("k_proj", c.num_key_value_heads, kv)]
        {
            self.rotated(&name(&format!("self_attn.{proj}.weight")), heads, &[rows, hidden])?;
            if c.qkv_bias {
                self.rotated(&name(&format!("self_attn.{proj}.bias")), heads, &[rows])?;
            }
        }
        for (proj, rows, columns, bias) in [
            ("self_attn.v_proj", kv, hidden, c.qkv_bias),
            ("self_attn.o_proj", hidden, q, c.o_bias),
            ("mlp.gate_proj", width, hidden, c.mlp_bias),
            ("mlp.up_proj", width, hidden, c.mlp_bias),
            ("mlp.down_proj", hidden, width, c.mlp_bias),
        ] {
            self.whole(&name(&format!("{proj}.weight")), &[rows, columns])?;
            if bias {
                self.whole(&name(&format!("{proj}.bias")), &[rows])?;
            }
        }
        for norm in ["q_norm", "k_norm"].iter().filter(|_| c.qk_norm) {
            self.whole(&name(&format!("self_attn.{norm}.weight")), &[c.head_dim])?;
        }
        Ok(())
    }

    fn whole(&mut self, name: &str, shape: &[i64]) -> Result<(), CaptureError> {
        self.renamed(name, name, shape)
    }

    /// A parameter from the tensor of another name; both are Hugging Face's.
    fn renamed(&mut self, param: &str, tensor: &str, shape: &[i64]) -> Result<(), CaptureError> {
        match self.source(tensor, shape)? {
            Some(tensor) => self.capture.param(param, tensor.dtype(), shape)?.copy_from(&tensor),
            None => Ok(()),
        }
    }

    /// A parameter whose rows are rotated by position: those of GGUF's pairs go back into halves.
    fn rotated(&mut self, name: &str, heads: i64, shape: &[i64]) -> Result<(), CaptureError> {
        let Some(tensor) = self.source(name, shape)? else { return Ok(()) };
        let dest = self.capture.param(name, tensor.dtype(), shape)?;
        if self.naming != (Naming::Gguf { paired: true }) {
            return dest.copy_from(&tensor);
        }
        let half = self.config.head_dim / 2;
        let pairs = tensor.reshape(&[&[heads, half, 2], &shape[1..]].concat())?;
        dest.copy_from(&pairs.transpose(1, 2)?.reshape(shape)?)
    }

    /// The tensor of a Hugging Face name, or a problem where it is not there or has another shape.
    fn source(&mut self, name: &str, expected: &[i64]) -> Result<Option<LazyTensor<'c>>, CaptureError> {
        let tensor = self.naming.stored(name);
        let Some((dtype, found)) = self.sources.get(&tensor) else {
            self.problems.push(Problem::Missing { tensor, expected: expected.to_vec() });
            return Ok(None);
        };
        if found != expected {
            let (expected, found) = (expected.to_vec(), found.clone());
            self.problems.push(Problem::Shape { tensor, expected, found });
            return Ok(None);
        }
        let lazy = self.capture.source(&tensor, *dtype, found)?;
        self.used.insert(tensor);
        Ok(Some(lazy))
    }

    /// Notes tensors that no stage has a place for: a bias that is not added would be a wrong model.
    fn nothing_else(&mut self, part: &StagePart) {
        for name in self.sources.keys().filter(|name| !self.used.contains(*name)) {
            let elsewhere = match self.naming.block_of(name) {
                Some(i) => (0..self.config.num_hidden_layers).contains(&i) && !part.blocks.contains(&i),
                None => [EMBED, HEAD, NORM].iter().any(|known| self.naming.stored(known) == *name),
            };
            if !elsewhere && !SKIPPED.iter().any(|s| name.ends_with(s)) {
                self.problems.push(Problem::Unexpected { tensor: name.clone() });
            }
        }
    }
}

/// Hugging Face's names within a block, and llama.cpp's.
const BLOCK_NAMES: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

impl Naming {
    /// What the checkpoint calls a tensor of this Hugging Face name.
    ///
    /// ```
    /// use restage_model::Naming;
    /// let gguf = Naming::Gguf { paired: true };
    /// assert_eq!(gguf.stored("model.layers.3.self_attn.q_proj.weight"), "blk.3.attn_q.weight");
    /// assert_eq!(gguf.stored("lm_head.weight"), "output.weight");
    /// ```
    pub fn stored(self, name: &str) -> String {
        if self == Naming::HuggingFace {
            return name.to_owned();
        }
        let in_block = || {
            let (number, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
            let (inner, kind) = rest.rsplit_once('.')?;
            let (_, ours) = BLOCK_NAMES.iter().find(|(theirs, _)| *theirs == inner)?;
            Some(format!("blk.{number}.{ours}.{kind}"))
        };
        match name {
            EMBED => "token_embd.weight".to_owned(),
            NORM => "output_norm.weight".to_owned(),
            HEAD => "output.weight".to_owned(),
            _ => in_block().unwrap_or_else(|| name.to_owned()),
        }
    }

    /// The block that a stored name places its tensor in.
    fn block_of(self, name: &str) -> Option<i64> {
        match self {
            Naming::HuggingFace => layer_of(name),
            Naming::Gguf { .. } => name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors;
    use restage_geometry::{Dtype, Replay, gather, replay};

    fn config(tied: bool) -> ModelConfig {
        let json = format!(
            r#"{{"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":96,"num_hidden_layers":4,
                "num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,"vocab_size":50,
                "tie_word_embeddings":{tied}}}"#
        );
        ModelConfig::from_json(json.as_bytes()).unwrap()
    }

    fn part(blocks: Range<i64>, of: i64) -> StagePart {
        StagePart { first: blocks.start == 0, last: blocks.end == of, blocks }
    }

    fn gguf_table(config: &ModelConfig, dtype: Dtype) -> TensorTable {
        let naming = Naming::Gguf { paired: true };
        let of = |(name, (_, shape)): (&String, &(Dtype, Vec<i64>))| {
            let dtype = if shape.len() == 2 { dtype } else { Dtype::F32 };
            (naming.stored(name), (dtype, shape.clone()))
        };
        tensors(config).unwrap().iter().map(of).collect()
    }

    #[test]
    fn stages_together_load_every_tensor_once_and_the_tied_embedding_twice() {
        for (tied, twice) in [(false, 0), (true, 1)] {
            let config = config(tied);
            for (naming, table) in [
                (Naming::HuggingFace, tensors(&config).unwrap()),
                (Naming::Gguf { paired: true }, gguf_table(&config, Dtype::Q4_1)),
            ] {
                let mut copied = Vec::new();
                for blocks in [0..1, 1..3, 3..4] {
                    let captured = load_stage(&config, naming, &part(blocks, 4), &table).unwrap();
                    copied.extend(captured.copies.iter().map(|c| c.source.to_string()));
                }
                copied.sort();
                assert_eq!(copied.len(), table.len() + twice);
                copied.dedup();
                assert!(copied.iter().eq(table.keys()), "{naming:?}");
                // One stage that is all of the model has a tied embedding once.
                let whole = load_stage(&config, naming, &part(0..4, 4), &table).unwrap();
                assert_eq!(whole.copies.len(), table.len());
            }
        }
    }

    #[test]
    fn paired_rows_go_back_into_halves_and_stay_whole() {
        let config = config(true);
        let table = gguf_table(&config, Dtype::Q4_1);
        let captured = load_stage(&config, Naming::Gguf { paired: true }, &part(0..4, 4), &table).unwrap();
        let copy = captured.copies.iter().find(|c| &*c.source == "blk.0.attn_k.weight").unwrap();
        let Replay::Exact(view) = replay(&[16, 64], &copy.ops).unwrap() else { panic!("an exact view") };
        let mut from = [0; 16];
        for nest in gather(&view, &copy.dest).unwrap() {
            let packing = Dtype::Q4_1.packing();
            // Rows are whole blocks, so bytes exist for it.
            for run in nest.scaled(packing.elements, packing.bytes, 0).unwrap().runs() {
                for row in 0..run.len / 40 {
                    from[(run.dst / 40 + row) as usize] = run.src / 40 + row;
                }
            }
        }
        // Of each head of 8 rows: the even ones, then the odd ones.
        assert_eq!(from, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
    }

    #[test]
    fn what_is_missing_or_has_no_place_is_named() {
        let config = config(false);
        let mut table = tensors(&config).unwrap();
        table.remove("model.layers.1.mlp.up_proj.weight");
        let bias = "model.layers.1.self_attn.q_proj.bias";
        table.insert(bias.to_owned(), (Dtype::BF16, vec![32]));
        let load = |blocks, table: &TensorTable| {
            load_stage(&config, Naming::HuggingFace, &part(blocks, 4), table).map_err(|e| e.to_string())
        };
        let error = load(1..2, &table).unwrap_err();
        assert_eq!(
            error,
            "model.layers.1.mlp.up_proj.weight: missing; the config calls for shape [96, 64]; \
             model.layers.1.self_attn.q_proj.bias: the model has no place for it"
        );
        // Another stage's trouble is not this one's.
        assert!(load(2..4, &table).is_ok());
        assert_eq!(load(3..5, &table).unwrap_err(), "blocks 3..5 of a model of 4 do not exist");
    }
}
