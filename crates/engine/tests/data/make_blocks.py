"""Writes blocks.json: what each block of a small random model of each family gives, by a plain float32 forward in numpy.

    python3 make_blocks.py > blocks.json

Weights come from a generator that the test repeats: the tensors in the order of their names, each element from a 64-bit
linear congruential generator that starts at 1 for each family.
"""

import json
import sys

import numpy as np

F = np.float32
BLOCKS, VOCAB, WIDTH, TOKENS = 3, 40, 48, [3, 17, 5, 39, 0, 8, 21]
BASE = dict(hidden_size=32, intermediate_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=4,
            vocab_size=VOCAB, rms_norm_eps=1e-5, max_position_embeddings=64, hidden_act="silu", torch_dtype="float32")
FAMILIES = dict(
    llama=dict(architectures=["LlamaForCausalLM"], num_key_value_heads=2, rope_theta=10000.0,
               tie_word_embeddings=False, rope_scaling=dict(
                   rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)),
    mistral=dict(architectures=["MistralForCausalLM"], num_key_value_heads=1, rope_theta=1e6,
                 tie_word_embeddings=False, sliding_window=None),
    qwen2=dict(architectures=["Qwen2ForCausalLM"], num_key_value_heads=4, rope_theta=1e6, tie_word_embeddings=True),
    qwen3=dict(architectures=["Qwen3ForCausalLM"], num_key_value_heads=2, head_dim=16, rope_theta=1e6,
               tie_word_embeddings=True),
)


def shapes(c):
    h, d = c["hidden_size"], c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    out = {"model.embed_tokens.weight": [VOCAB, h], "model.norm.weight": [h]}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = [VOCAB, h]
    for b in range(BLOCKS):
        p = f"model.layers.{b}."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = [h]
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            out[p + f"self_attn.{name}.weight"] = [rows, h]
            if c["architectures"] == ["Qwen2ForCausalLM"]:
                out[p + f"self_attn.{name}.bias"] = [rows]
        out[p + "self_attn.o_proj.weight"] = [h, q]
        if c["architectures"] == ["Qwen3ForCausalLM"]:
            out[p + "self_attn.q_norm.weight"] = out[p + "self_attn.k_norm.weight"] = [d]
        out[p + "mlp.gate_proj.weight"] = out[p + "mlp.up_proj.weight"] = [WIDTH, h]
        out[p + "mlp.down_proj.weight"] = [h, WIDTH]
    return out


def weights(c):
    state, out = 1, {}
    for name, shape in sorted(shapes(c).items()):
        values = np.empty(int(np.prod(shape)), F)
        for i in range(values.size):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            v = F((state >> 40) / 2**23 - 1)
            values[i] = F(1) + F(0.125) * v if "norm" in name else F(0.25) * v
        out[name] = values.reshape(shape)
    return out


def norm(x, w, eps):
    return (x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + F(eps))).astype(F) * w


def frequencies(c, d):
    """How far each pair turns a position, and without scaling."""
    f = plain = c["rope_theta"] ** -(np.arange(0, d, 2) / d)
    s = c.get("rope_scaling")
    if s:
        wave, old = 2 * np.pi / f, s["original_max_position_embeddings"]
        low, high, factor = s["low_freq_factor"], s["high_freq_factor"], s["factor"]
        smooth = (old / wave - low) / (high - low)
        between = (1 - smooth) * f / factor + smooth * f
        f = np.where(wave < old / high, f, np.where(wave > old / low, f / factor, between))
    return f, plain


def turn(x, f):
    """x: positions, heads, d; the halves of a head rotate together."""
    a = np.arange(x.shape[0])[:, None, None] * f
    cos, sin, half = np.cos(a).astype(F), np.sin(a).astype(F), x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def run(c):
    w = weights(c)
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    d, n, eps = c.get("head_dim", c["hidden_size"] // heads), len(TOKENS), c["rms_norm_eps"]
    (f, plain), x, out = frequencies(c, d), w["model.embed_tokens.weight"][TOKENS], []
    for b in range(BLOCKS):
        p = f"model.layers.{b}."
        y = norm(x, w[p + "input_layernorm.weight"], eps)
        q, k, v = (y @ w[p + f"self_attn.{m}_proj.weight"].T + w.get(p + f"self_attn.{m}_proj.bias", F(0)) for m in "qkv")
        q, k, v = q.reshape(n, heads, d), k.reshape(n, kv, d), v.reshape(n, kv, d)
        if p + "self_attn.q_norm.weight" in w:
            q = norm(q, w[p + "self_attn.q_norm.weight"], eps)
            k = norm(k, w[p + "self_attn.k_norm.weight"], eps)
        q, k = turn(q, f), np.repeat(turn(k, f), heads // kv, axis=1)
        v = np.repeat(v, heads // kv, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / F(np.sqrt(d))
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, F(-np.inf))
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share = share / share.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", share, v).reshape(n, heads * d) @ w[p + "self_attn.o_proj.weight"].T
        y = norm(x, w[p + "post_attention_layernorm.weight"], eps)
        gate = y @ w[p + "mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
        assert x.dtype == F
        out.append([round(float(e), 6) for e in x.ravel()])
    y = norm(x[-1], w["model.norm.weight"], eps)
    logits = y @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T
    # What a GGUF file has in place of the parameters of the scaling.
    factors = [round(float(e), 9) for e in plain / f] if c.get("rope_scaling") else None
    return dict(config=c, tensors=shapes(c), rope_factors=factors, blocks=out,
                logits=[round(float(e), 6) for e in logits])


json.dump(dict(tokens=TOKENS, families={name: run({**BASE, **c}) for name, c in FAMILIES.items()}), sys.stdout)
print()
