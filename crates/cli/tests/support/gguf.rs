//! Writing GGUF files, with tensors as llama.cpp's converter names and orders them.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;

/// A value as it stands in a file: its type and its bytes.
pub type Value = (u32, Vec<u8>);

/// A GGUF file before it is written.
#[derive(Default)]
pub struct Gguf {
    /// What it says of the model.
    pub metadata: BTreeMap<String, Value>,
    /// Type, dimensions (innermost first) and bytes of each tensor.
    pub tensors: BTreeMap<String, (u32, Vec<u64>, Vec<u8>)>,
}

const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A number of a file's metadata.
pub fn u32(value: u32) -> Value {
    (U32, value.to_le_bytes().to_vec())
}

/// A number of a file's metadata.
pub fn f32(value: f32) -> Value {
    (F32, value.to_le_bytes().to_vec())
}

/// A text of a file's metadata.
pub fn text(value: &str) -> Value {
    (STRING, string(value))
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A list of texts of a file's metadata.
pub fn texts<T: AsRef<str>>(values: &[T]) -> Value {
    list(STRING, values.iter().map(|text| string(text.as_ref())))
}

/// A list of numbers of a file's metadata.
pub fn f32s(values: &[f32]) -> Value {
    list(F32, values.iter().map(|n| n.to_le_bytes().to_vec()))
}

/// A list of numbers of a file's metadata.
pub fn i32s(values: &[i32]) -> Value {
    list(I32, values.iter().map(|n| n.to_le_bytes().to_vec()))
}

fn list(kind: u32, elements: impl ExactSizeIterator<Item = Vec<u8>>) -> Value {
    let head = [&kind.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes()].concat();
    (ARRAY, [head, elements.flatten().collect()].concat())
}

impl Gguf {
    /// Adds tensors in f32 that have Hugging Face's names and its order of rows; `heads` of q and of k, where the file has
    /// rows in pairs.
    pub fn put(
        &mut self,
        tensors: impl IntoIterator<Item = (String, Vec<usize>, Vec<f32>)>,
        heads: Option<[usize; 2]>,
    ) {
        for (name, shape, values) in tensors {
            let in_pairs = match heads {
                Some([q, _]) if name.contains("q_proj") => Some(q),
                Some([_, k]) if name.contains("k_proj") => Some(k),
                _ => None,
            };
            let values = match in_pairs {
                Some(heads) => paired(&values, heads, shape[0]),
                None => values,
            };
            let dims = shape.iter().rev().map(|&n| n as u64).collect();
            self.tensors
                .insert(renamed(&name), (0, dims, values.iter().flat_map(|v| v.to_le_bytes()).collect()));
        }
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, (kind, value)) in &self.metadata {
            out.extend([string(key), kind.to_le_bytes().to_vec(), value.clone()].concat());
        }
        let mut data = Vec::new();
        for (name, (kind, dims, bytes)) in &self.tensors {
            out.extend(string(name));
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        [out, data].concat()
    }
}

/// The rows of q or k in llama.cpp's order: the two that rotate together are neighbours, not half a head apart.
fn paired(values: &[f32], heads: usize, rows: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks(values.len() / rows).collect();
    let width = rows.len() / heads;
    let order = (0..rows.len()).map(|row| {
        let (head, at) = (row / width, row % width);
        head * width + at / 2 + at % 2 * (width / 2)
    });
    order.flat_map(|row| rows[row].iter().copied()).collect()
}

/// llama.cpp's name of a tensor.
fn renamed(name: &str) -> String {
    match name {
        "model.embed_tokens.weight" => return "token_embd.weight".to_owned(),
        "model.norm.weight" => return "output_norm.weight".to_owned(),
        "lm_head.weight" => return "output.weight".to_owned(),
        _ => {}
    }
    let (block, rest) = name.strip_prefix("model.layers.").unwrap().split_once('.').unwrap();
    let (end, kind) = rest.rsplit_once('.').unwrap();
    let end = match end {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        other => panic!("{other}"),
    };
    format!("blk.{block}.{end}.{kind}")
}
