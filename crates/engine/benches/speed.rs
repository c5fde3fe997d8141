//! Tokens per second of the engine with a model, to be held against `llama_cpp.py` beside this file.
//!
//!     cargo bench -p restage-engine --bench speed -- MODEL [THREADS ...]
//!
//! The runs are those of the script: a prefill of 256 tokens with the logits of the last, then 64 tokens one at a time with
//! the logits of each, from an empty cache of halves; one run untimed, then five, of which the medians are given. Threads
//! are 1 and 2 where none are named. JSON on stdout.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use restage_engine::{Budget, Cache, Compute, KvDtype, Source, Stage, load};
use restage_model::StagePart;
use restage_transport::FileTransport;
use serde_json::json;

const PROMPT: usize = 256;
const DECODE: usize = 64;
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // Cargo says `--bench` to whatever it runs as one.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let path = args.next().ok_or("usage: speed MODEL [THREADS ...]")?;
    let mut threads = args.map(|arg| arg.parse()).collect::<Result<Vec<usize>, _>>()?;
    if threads.is_empty() {
        threads = vec![1, 2];
    }
    let source = Source::open(Path::new(&path))?;
    let mut files = FileTransport::new();
    for (session, path) in source.checkpoint.sessions() {
        files.register(session, path)?;
    }
    let part = StagePart { blocks: 0..source.config.num_hidden_layers, first: true, last: true };
    let weights = load(&source, &part, Compute::default(), &files, &|_, _| ())?;
    let blocks = weights.blocks.len();
    let stage = Stage::new(&source.config, &source.numerics, weights);

    let mut results = Vec::new();
    for threads in threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        let (mut prefills, mut decodes) = (Vec::new(), Vec::new());
        for run in 0..=RUNS {
            let mut cache = Cache::new(blocks, stage.kv_width(), KvDtype::F16, &Budget::new(1 << 30));
            let (prefill, decode) = pool.install(|| timed(&stage, &mut cache))?;
            // The first run finds caches and the pool cold.
            if run > 0 {
                prefills.push(prefill);
                decodes.push(decode);
            }
        }
        results.push(json!({
            "threads": threads,
            "prefill": median(&mut prefills),
            "decode": median(&mut decodes),
        }));
    }
    let report = json!({
        "model": path,
        "prompt_tokens": PROMPT,
        "decode_tokens": DECODE,
        "unit": "tokens per second",
        "results": results,
    });
    println!("{report:#}");
    Ok(())
}

/// Tokens per second of a prefill and of the tokens after it.
fn timed(stage: &Stage, cache: &mut Cache) -> Result<(f64, f64), Box<dyn Error + Send + Sync>> {
    // The ids of the script.
    let ids: Vec<u64> = (0..PROMPT + DECODE).map(|place| 100 + (place * 7 % 900) as u64).collect();
    let (prompt, rest) = ids.split_at(PROMPT);
    let start = Instant::now();
    feed(stage, cache, prompt)?;
    let prefill = start.elapsed();
    let start = Instant::now();
    for id in rest.chunks(1) {
        feed(stage, cache, id)?;
    }
    Ok((PROMPT as f64 / prefill.as_secs_f64(), DECODE as f64 / start.elapsed().as_secs_f64()))
}

/// Puts tokens behind those before and computes the logits of the last.
fn feed(stage: &Stage, cache: &mut Cache, tokens: &[u64]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut hidden = stage.embed(tokens).ok_or("the stage has no embedding")?;
    stage
        .forward(&mut hidden, cache)
        .map_err(|none| format!("the cache needs {} bytes more, and {} are left", none.wanted, none.left))?;
    cache.commit(tokens.len());
    let last = hidden.len() - hidden.len() / tokens.len();
    std::hint::black_box(stage.logits(&hidden[last..]).ok_or("the stage has no head")?);
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
