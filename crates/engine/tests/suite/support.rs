//! What the tests share: stages of a model, run one after the other.

use std::path::Path;

use restage_engine::{Budget, Cache, Compute, KvDtype, Source, Stage, load};
use restage_model::StagePart;
use restage_transport::{FileTransport, Metered};

/// A file transport over a model's files.
pub fn transport(source: &Source) -> Metered<FileTransport> {
    let mut files = FileTransport::new();
    for (session, path) in source.checkpoint.sessions() {
        files.register(session, path).unwrap();
    }
    Metered::new(files)
}

/// The parts of a model of so many blocks in so many stages.
pub fn parts(blocks: i64, stages: i64) -> Vec<StagePart> {
    let each = blocks / stages;
    (0..stages)
        .map(|s| {
            let last = s + 1 == stages;
            let end = if last { blocks } else { (s + 1) * each };
            StagePart { blocks: s * each..end, first: s == 0, last }
        })
        .collect()
}

/// A model in stages, with a cache in each.
pub struct Pipeline {
    stages: Vec<(Stage, Cache)>,
    hidden: usize,
    /// What a hidden state becomes between stages.
    wire: fn(f32) -> f32,
}

impl Pipeline {
    pub fn open(path: &Path, stages: i64, compute: Compute, kv: KvDtype, wire: fn(f32) -> f32) -> Pipeline {
        let source = Source::open(path).unwrap();
        let transport = transport(&source);
        let budget = Budget::new(1 << 30);
        let stage = |part: StagePart| {
            let weights = load(&source, &part, compute, &transport, &|_, _| ()).unwrap();
            let blocks = weights.blocks.len();
            let stage = Stage::new(&source.config, &source.numerics, weights);
            let cache = Cache::new(blocks, stage.kv_width(), kv, &budget);
            (stage, cache)
        };
        let hidden = source.config.hidden_size as usize;
        let stages = parts(source.config.num_hidden_layers, stages).into_iter().map(stage).collect();
        Pipeline { stages, hidden, wire }
    }

    /// The hidden states after each stage, for tokens that follow those before.
    pub fn hidden(&mut self, tokens: &[u64]) -> Vec<Vec<f32>> {
        let mut hidden = self.stages[0].0.embed(tokens).unwrap();
        let mut all = Vec::new();
        for (stage, cache) in &mut self.stages {
            hidden.iter_mut().for_each(|x| *x = (self.wire)(*x));
            stage.forward(&mut hidden, cache).unwrap();
            cache.commit(tokens.len());
            all.push(hidden.clone());
        }
        all
    }

    /// The logits after the last of these tokens.
    pub fn logits(&mut self, tokens: &[u64]) -> Vec<f32> {
        let hidden = self.hidden(tokens).pop().unwrap();
        self.stages.last().unwrap().0.logits(&hidden[hidden.len() - self.hidden..]).unwrap()
    }
}

/// The place of the largest.
pub fn largest(logits: &[f32]) -> u64 {
    restage_worker::greedy(logits).unwrap()
}
