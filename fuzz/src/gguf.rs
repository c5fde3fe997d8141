//! Any bytes as a GGUF file: never a panic; what is read lies inside of the file and is a checkpoint; and what the engine
//! takes for a model can be loaded or is refused, and what was loaded computes.

use std::fs;
use std::path::Path;

use restage_checkpoint::Checkpoint;
use restage_checkpoint::gguf::Gguf;
use restage_engine::{Budget, Cache, Compute, KvDtype, Source, Stage, load};
use restage_model::StagePart;
use restage_transport::FileTransport;

/// Reads a file of these bytes, and checks what can be read.
pub fn check(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("model.gguf");
    fs::write(&path, data).expect("a temporary file");
    let opened = Checkpoint::open(&path);
    let Ok(gguf) = Gguf::read(&path) else {
        assert!(opened.is_err(), "{opened:?}");
        assert!(Source::open(&path).is_err());
        return;
    };
    let mut end = 0;
    let mut tensors: Vec<_> = gguf.tensors().iter().collect();
    tensors.sort_by_key(|t| t.addr);
    for t in tensors {
        let elements = t.shape.iter().product::<i64>() as u64;
        assert_eq!(t.dtype.bytes(elements), Some(t.length), "{t:?}");
        assert!(end <= t.addr, "{t:?} begins before {end}");
        end = t.addr + t.length;
    }
    assert!(end <= data.len() as u64);
    opened.and_then(|checkpoint| checkpoint.catalog()).expect("what is read is a checkpoint");
    model(&path);
}

fn model(path: &Path) {
    let Ok(source) = Source::open(path) else { return };
    assert!(!source.digest().is_empty());
    if let Some(tokenizer) = &source.tokenizer {
        let mut ids = Vec::new();
        if tokenizer.encode("a b\n12 <s> \u{e9}", &mut ids).is_ok() {
            tokenizer.decode(&ids).expect("its own tokens have texts");
        }
    }
    let mut files = FileTransport::new();
    for (session, path) in source.checkpoint.sessions() {
        files.register(session, path).expect("the file is there");
    }
    let part = StagePart { blocks: 0..source.config.num_hidden_layers, first: true, last: true };
    let Ok(weights) = load(&source, &part, Compute::default(), &files, &|_, _| ()) else { return };
    let blocks = weights.blocks.len();
    let stage = Stage::new(&source.config, &source.numerics, weights);
    let mut cache = Cache::new(blocks, stage.kv_width(), KvDtype::default(), &Budget::new(1 << 30));
    let mut hidden = stage.embed(&[0]).expect("the first stage embeds");
    if stage.forward(&mut hidden, &mut cache).is_ok() {
        let logits = stage.logits(&hidden).expect("the last stage has the head");
        assert_eq!(logits.len() as i64, source.config.vocab_size);
    }
}
