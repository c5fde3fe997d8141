//! The small model as a GGUF file.

use crate::gguf::{Gguf, f32, i32s, text, texts, u32};
use crate::small::{Small, byte_tokens, tensors};

/// The same weights and the same tokens as [`crate::small::write`] writes.
pub fn small_gguf(small: Small) -> Gguf {
    let mut tokens = byte_tokens();
    tokens.extend(["<s>".to_owned(), "</s>".to_owned()]);
    let types: Vec<i32> = (0..tokens.len()).map(|id| if id < 256 { 1 } else { 3 }).collect();
    let metadata = [
        ("general.architecture", text("llama")),
        ("llama.block_count", u32(small.blocks as u32)),
        ("llama.context_length", u32(600)),
        ("llama.embedding_length", u32(small.hidden as u32)),
        ("llama.feed_forward_length", u32(48)),
        ("llama.attention.head_count", u32(4)),
        ("llama.attention.head_count_kv", u32(2)),
        ("llama.attention.key_length", u32(8)),
        ("llama.attention.layer_norm_rms_epsilon", f32(1e-5)),
        ("llama.rope.freq_base", f32(10_000.0)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("gpt-2")),
        ("tokenizer.ggml.tokens", texts(&tokens)),
        ("tokenizer.ggml.token_type", i32s(&types)),
        ("tokenizer.ggml.merges", texts::<&str>(&[])),
        ("tokenizer.ggml.bos_token_id", u32(256)),
        ("tokenizer.ggml.eos_token_id", u32(257)),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
    let mut gguf = Gguf { metadata, ..Gguf::default() };
    gguf.put(tensors(small).into_iter().map(|(name, (shape, values))| (name, shape, values)), Some([4, 2]));
    gguf
}
