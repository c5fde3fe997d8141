//! The forward pass of a stage's blocks.
//!
//! The law: what a position becomes depends on it and on the positions before it, and on nothing else: not on how many
//! are computed together, by how many threads, or in which process the blocks before have run.

use rayon::prelude::*;
use restage_model::ModelConfig;

use crate::cache::{Cache, NoRoom};
use crate::matrix::{Matrix, dot};
use crate::numerics::Numerics;
use crate::rope::{angles, frequencies, rotate};
use crate::weights::{Block, Linear, Weights};

/// The blocks of a stage, ready to run.
#[derive(Debug)]
pub struct Stage {
    hidden: usize,
    head_dim: usize,
    heads: usize,
    kv_heads: usize,
    rms_eps: f32,
    frequencies: Vec<f32>,
    weights: Weights,
}

impl Stage {
    /// A stage of these weights, which were loaded for this configuration.
    pub fn new(config: &ModelConfig, numerics: &Numerics, weights: Weights) -> Self {
        let head_dim = config.head_dim as usize;
        let factors = weights.rope_factors.as_deref();
        Stage {
            hidden: config.hidden_size as usize,
            head_dim,
            heads: config.num_attention_heads as usize,
            kv_heads: config.num_key_value_heads as usize,
            rms_eps: numerics.rms_eps,
            frequencies: frequencies(head_dim, numerics.rope_theta, numerics.rope_scaling, factors),
            weights,
        }
    }

    /// The weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Elements that a position takes in a cache, for keys and for values each.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The embeddings of tokens, `hidden` elements each; `None` on a stage that has no embedding.
    pub fn embed(&self, tokens: &[u64]) -> Option<Vec<f32>> {
        let embedding = self.weights.embedding.as_ref()?;
        let mut hidden = vec![0.0; tokens.len() * self.hidden];
        for (&token, row) in tokens.iter().zip(hidden.chunks_exact_mut(self.hidden)) {
            embedding.row(token as usize, row);
        }
        Some(hidden)
    }

    /// Runs the blocks over the positions that follow the cache's, in place: `hidden` elements each. The cache then has
    /// them; [`Cache::commit`] is the caller's, once nothing can go wrong any more.
    ///
    /// # Errors
    /// [`NoRoom`] in the cache, which is as it was.
    pub fn forward(&self, hidden: &mut [f32], cache: &mut Cache) -> Result<(), NoRoom> {
        let count = hidden.len() / self.hidden;
        cache.grow(count)?;
        let pairs = self.frequencies.len();
        let (mut cos, mut sin) = (vec![0.0; count * pairs], vec![0.0; count * pairs]);
        for t in 0..count {
            let at = t * pairs..(t + 1) * pairs;
            let position = (cache.length() + t) as u64;
            angles(&self.frequencies, position, &mut cos[at.clone()], &mut sin[at]);
        }
        for (b, block) in self.weights.blocks.iter().enumerate() {
            let x = self.normed(hidden, &block.attention_norm);
            let attended = self.attention(b, block, &x, (&cos, &sin), cache);
            add(hidden, &product(&block.o, &attended));
            let x = self.normed(hidden, &block.mlp_norm);
            let (mut gate, up) = (product(&block.gate, &x), product(&block.up, &x));
            for (gate, up) in gate.iter_mut().zip(&up) {
                // SiLU of the gate, times the other projection.
                *gate = *gate / (1.0 + (-*gate).exp()) * up;
            }
            add(hidden, &product(&block.down, &gate));
        }
        Ok(())
    }

    /// The logits of one position; `None` on a stage that has no head.
    pub fn logits(&self, hidden: &[f32]) -> Option<Vec<f32>> {
        let w = &self.weights;
        let norm = w.norm.as_ref()?;
        let head: &Matrix = w.head.as_ref().or(w.embedding.as_ref())?;
        let mut logits = vec![0.0; head.rows()];
        head.multiply(&self.normed(hidden, norm), &mut logits);
        Some(logits)
    }

    fn normed(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        out.chunks_exact_mut(weight.len()).for_each(|row| norm(row, weight, self.rms_eps));
        out
    }

    /// Self-attention of a block, before its output projection.
    fn attention(
        &self,
        b: usize,
        block: &Block,
        x: &[f32],
        turn: (&[f32], &[f32]),
        cache: &mut Cache,
    ) -> Vec<f32> {
        let (mut q, mut k, v) = (product(&block.q, x), product(&block.k, x), product(&block.v, x));
        let count = x.len() / self.hidden;
        let pairs = self.frequencies.len();
        let norms = block.head_norms.as_ref();
        for (rows, heads, weight) in
            [(&mut q, self.heads, norms.map(|n| &n[0])), (&mut k, self.kv_heads, norms.map(|n| &n[1]))]
        {
            for (i, head) in rows.chunks_exact_mut(self.head_dim).enumerate() {
                if let Some(weight) = weight {
                    norm(head, weight, self.rms_eps);
                }
                let at = i / heads * pairs..(i / heads + 1) * pairs;
                rotate(head, &turn.0[at.clone()], &turn.1[at]);
            }
        }
        cache.push(b, &k, &v);
        let group = self.heads / self.kv_heads;
        let cache = &*cache;
        let parts: Vec<Vec<f32>> = (0..self.kv_heads)
            .into_par_iter()
            .map(|kv| self.attend(b, kv, group, &q, count, cache))
            .collect();
        // By position, then by head: the groups were computed apart.
        let mut out = vec![0.0; q.len()];
        let (width, part) = (self.heads * self.head_dim, group * self.head_dim);
        for (kv, rows) in parts.iter().enumerate() {
            for (t, row) in rows.chunks_exact(part).enumerate() {
                out[t * width + kv * part..][..part].copy_from_slice(row);
            }
        }
        out
    }

    /// The query heads that share one head of keys and values: by position, `group` heads each.
    fn attend(&self, b: usize, kv: usize, group: usize, q: &[f32], count: usize, cache: &Cache) -> Vec<f32> {
        let dim = self.head_dim;
        let (before, total) = (cache.length(), cache.length() + count);
        let (mut keys, mut values) = (vec![0.0; total * dim], vec![0.0; total * dim]);
        for (p, (key, value)) in keys.chunks_exact_mut(dim).zip(values.chunks_exact_mut(dim)).enumerate() {
            cache.key(b, p, kv * dim, key);
            cache.value(b, p, kv * dim, value);
        }
        let scale = 1.0 / (dim as f32).sqrt();
        let mut out = vec![0.0; count * group * dim];
        let mut scores = vec![0.0; total];
        for (i, out) in out.chunks_exact_mut(dim).enumerate() {
            let (t, head) = (i / group, kv * group + i % group);
            let q = &q[(t * self.heads + head) * dim..][..dim];
            let scores = &mut scores[..before + t + 1];
            for (score, key) in scores.iter_mut().zip(keys.chunks_exact(dim)) {
                [*score] = dot(q, [key]);
                *score *= scale;
            }
            softmax(scores);
            for (&score, value) in scores.iter().zip(values.chunks_exact(dim)) {
                out.iter_mut().zip(value).for_each(|(out, v)| *out += score * v);
            }
        }
        out
    }
}

fn product(linear: &Linear, x: &[f32]) -> Vec<f32> {
    let rows = linear.weight.rows();
    let count = x.len() / linear.weight.columns();
    let mut out = vec![0.0; count * rows];
    linear.weight.multiply(x, &mut out);
    if let Some(bias) = &linear.bias {
        out.chunks_exact_mut(rows).for_each(|row| add(row, bias));
    }
    out
}

fn add(to: &mut [f32], what: &[f32]) {
    to.iter_mut().zip(what).for_each(|(to, x)| *to += x);
}

/// Divides by the root of the mean square, and multiplies by the weight.
fn norm(row: &mut [f32], weight: &[f32], eps: f32) {
    let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let mean = (squares / row.len() as f64) as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    row.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * scale * w);
}

fn softmax(scores: &mut [f32]) {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - most).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}
