"""Writes a llama-architecture GGUF as a Hugging Face style bf16 checkpoint.

    python3 real_model.py GGUF OUTDIR

Needs the packages `gguf` and `numpy`. The output depends on nothing but the GGUF, so its digest can be
pinned: tensors are dequantised to f32 by the `gguf` package, rounded to bf16 (nearest, ties to even) and
written in the order the safetensors library uses.

A GGUF stores the rows of q and k for a rotary embedding that pairs neighbours; Hugging Face pairs a row
with the one half a head away. The rows of each head are therefore put back in that order.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize

GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def hf_name(name):
    """The Hugging Face name of a GGUF tensor."""
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    prefix, _, rest = name.partition(".")
    block, _, part = rest.partition(".")
    if prefix != "blk" or not block.isdigit() or part not in BLOCK_NAMES:
        raise SystemExit(f"{name}: not a tensor of a llama block")
    return f"model.layers.{block}.{BLOCK_NAMES[part]}"


def to_bf16(values):
    """f32 to the bits of bf16: nearest, ties to even. NaN does not occur in weights and is refused."""
    if not np.isfinite(values).all():
        raise SystemExit("a weight is NaN or infinite")
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype("<u2")


def unpermute(weight, heads):
    """Rows of q or k from the GGUF's rotary order to Hugging Face's."""
    rows, width = weight.shape
    half = rows // heads // 2
    return weight.reshape(heads, half, 2, width).swapaxes(1, 2).reshape(rows, width)


def shortest(value):
    """An f32 metadata value as the decimal it was written as (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def main(gguf, out):
    reader = GGUFReader(gguf)

    def meta(key):
        field = reader.fields.get(key)
        if field is None:
            raise SystemExit(f"{gguf}: no metadata {key}")
        return field.contents()

    if meta("general.architecture") != "llama":
        raise SystemExit(f"{gguf}: architecture {meta('general.architecture')}, expected llama")
    heads = meta("llama.attention.head_count")
    kv_heads = meta("llama.attention.head_count_kv")
    hidden = meta("llama.embedding_length")
    permuted = {"self_attn.q_proj.weight": heads, "self_attn.k_proj.weight": kv_heads}

    tensors = {hf_name(t.name): t for t in reader.tensors}
    if len(tensors) != len(reader.tensors):
        raise SystemExit(f"{gguf}: two tensors have one name")
    names = sorted(tensors)

    # GGUF writes a shape innermost first.
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        shape = [int(n) for n in reversed(tensors[name].shape)]
        begin, end = end, end + 2 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for name in names:
            tensor = tensors[name]
            shape = header[name]["shape"]
            values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            of_heads = permuted.get(name.split(".", 3)[-1])
            if of_heads is not None:
                values = unpermute(values, of_heads)
            file.write(to_bf16(values).tobytes())

    bos, eos = meta("tokenizer.ggml.bos_token_id"), meta("tokenizer.ggml.eos_token_id")
    pad, unk = meta("tokenizer.ggml.padding_token_id"), meta("tokenizer.ggml.unknown_token_id")
    tokens = meta("tokenizer.ggml.tokens")

    def write(name, value):
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        (out / name).write_text(text, encoding="utf-8")

    write("config.json", {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": meta("llama.feed_forward_length"),
        "max_position_embeddings": meta("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": meta("llama.block_count"),
        "num_key_value_heads": kv_heads,
        "pad_token_id": pad,
        "rms_norm_eps": shortest(meta("llama.attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": shortest(meta("llama.rope.freq_base")),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": meta("llama.vocab_size"),
    })
    write("generation_config.json", {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad})
    write("tokenizer_config.json", {
        "add_bos_token": meta("tokenizer.ggml.add_bos_token"),
        "add_prefix_space": meta("tokenizer.ggml.add_space_prefix"),
        "bos_token": tokens[bos],
        "chat_template": meta("tokenizer.chat_template"),
        "eos_token": tokens[eos],
        "model_max_length": meta("llama.context_length"),
        "pad_token": tokens[pad],
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": tokens[unk],
    })


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: real_model.py GGUF OUTDIR")
    main(sys.argv[1], sys.argv[2])
