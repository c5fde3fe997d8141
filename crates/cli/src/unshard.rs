//! `restage reshard --from sharded-state`: all ranks of a sharded state to a Hugging Face checkpoint.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, anyhow};
use restage_checkpoint::names::{INDEX_FILE, SINGLE_FILE, indexed_file};
use restage_checkpoint::{Layout, OutputDir, TensorFile, TensorSpec, rank_source};
use restage_model::{TensorTable, unload};
use restage_refit::Receiver;
use serde::Serialize;

use crate::args::ReshardArgs;
use crate::failure::Failure;
use crate::job::{directory_name, notices};
use crate::origin::Origin;
use crate::plan;
use crate::progress::bar;
use crate::reshard::{FileSink, WAVE_BYTES, specs, write_small};
use crate::source::Source;

/// Runs the command.
pub fn run(args: &ReshardArgs) -> Result<(), Failure> {
    if args.tp.is_some() || args.wanted.rank.is_some() || args.wanted.expert_parallel {
        let what = "--from sharded-state joins all ranks to a Hugging Face checkpoint and takes none of --tp, \
                    --rank and --expert-parallel; reshard its output again for another layout";
        return Err(Failure::Usage(anyhow!(what)));
    }
    let begun = Instant::now();
    let source = Source::open(&args.path, &args.access, true)?;
    notices(&source.checkpoint);
    let config = source.config()?;
    // Kept to the end, for the files that travel with the weights.
    let Source { checkpoint, transport, mirror: _mirror } = source;
    let Layout::ShardedState { ranks } = checkpoint.layout() else {
        return Err(Failure::input(anyhow!("{}: {}", args.path.display(), checkpoint.layout())));
    };
    let origin = Origin::read(checkpoint.dir()).map_err(Failure::Input)?;
    if let Some(origin) = origin.as_ref().filter(|o| o.tp != ranks) {
        let (wanted, dir) = (origin.tp, checkpoint.dir().display());
        return Err(Failure::input(anyhow!("{dir}: restage.json tells of {wanted} ranks, found {ranks}")));
    }
    let mut tables: Vec<TensorTable> = vec![TensorTable::new(); ranks as usize];
    for t in checkpoint.tensors() {
        if let Some(table) = t.rank.and_then(|r| tables.get_mut(r as usize)) {
            table.insert(t.name.clone(), (t.dtype, t.shape.clone()));
        }
    }
    let name = |rank: usize, tensor: &str| rank_source(rank as u32, tensor);
    let original = origin.map(|o| o.original()).unwrap_or_default();
    let unloaded = unload(&config, &tables, &name, original)
        .with_context(|| format!("{}: {ranks} ranks", directory_name(&checkpoint)))
        .map_err(Failure::Input)?;
    let catalog = checkpoint.catalog().map_err(Failure::input)?;
    let receiver =
        Receiver::prepare(&unloaded.captured, &catalog, &args.wanted.limits()).map_err(Failure::input)?;
    plan::complete_plan(receiver.plan(), "all ranks")?;
    crate::expect::check(&unloaded.expectations, &catalog, &transport)?;

    let out = OutputDir::create(&args.out, args.force).map_err(Failure::input)?;
    let progress = bar(receiver.plan().param_bytes(), args.quiet);
    progress.set_message("joining");
    let files = files(&specs(receiver.plan()), args.max_file_size);
    let mut open_files = Vec::with_capacity(files.len());
    let mut home: BTreeMap<&str, usize> = BTreeMap::new();
    // What transformers writes and demands.
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    for (i, (file, tensors)) in files.iter().enumerate() {
        home.extend(tensors.iter().map(|t| (t.name.as_str(), i)));
        let file = TensorFile::create(out.path().join(file), tensors, Some(&metadata), false);
        open_files.push(file.map_err(Failure::transfer)?);
    }
    let sink = FileSink {
        home: |param: &str| Some((open_files.get(*home.get(param)?)?, param.to_owned())),
        bar: &progress,
    };
    let report = receiver.pull_each(&transport, WAVE_BYTES, &sink).map_err(Failure::transfer)?;
    for file in open_files {
        file.finish(args.sync).map_err(Failure::transfer)?;
    }
    if files.len() > 1 {
        write_small(&out.path().join(INDEX_FILE), &index(&files, receiver.plan().param_bytes()))?;
    }
    out.copy_companions(&checkpoint).map_err(Failure::transfer)?;
    out.commit(args.sync).map_err(Failure::transfer)?;
    progress.finish_and_clear();
    if !args.quiet {
        println!(
            "{}: {} of {ranks} ranks joined to {} tensors, {} bytes in {} files",
            directory_name(&checkpoint),
            config.architecture.name(),
            report.params,
            receiver.plan().param_bytes(),
            files.len()
        );
        println!("  wrote {} in {:.2} s", args.out.display(), begun.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Tensors by file, in the order of their names: a file is full when the next tensor would take it past
/// `most` bytes.
fn files(tensors: &[TensorSpec], most: u64) -> Vec<(String, Vec<TensorSpec>)> {
    let mut groups: Vec<Vec<TensorSpec>> = vec![Vec::new()];
    let mut size = 0u64;
    for t in tensors {
        let bytes = t.dtype.bytes(t.shape.iter().product::<i64>() as u64).unwrap_or(0);
        if size > 0 && size.saturating_add(bytes) > most {
            groups.push(Vec::new());
            size = 0;
        }
        size += bytes;
        if let Some(group) = groups.last_mut() {
            group.push(t.clone());
        }
    }
    let of = groups.len() as u32;
    let name = |i: usize| if of == 1 { SINGLE_FILE.to_owned() } else { indexed_file(i as u32 + 1, of) };
    groups.into_iter().enumerate().map(|(i, group)| (name(i), group)).collect()
}

#[derive(Serialize)]
struct Index<'a> {
    metadata: IndexMetadata,
    weight_map: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct IndexMetadata {
    total_size: u64,
}

fn index(files: &[(String, Vec<TensorSpec>)], total_size: u64) -> Vec<u8> {
    let names = files.iter().flat_map(|(f, ts)| ts.iter().map(move |t| (t.name.as_str(), f.as_str())));
    let index = Index { metadata: IndexMetadata { total_size }, weight_map: names.collect() };
    // Strings and one number always serialize.
    let mut json = serde_json::to_vec_pretty(&index).unwrap_or_default();
    json.push(b'\n');
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use restage_geometry::Dtype;

    #[test]
    fn files_are_filled_in_order_and_a_large_tensor_has_one_of_its_own() {
        let spec = |name: &str, n: i64| TensorSpec { name: name.into(), dtype: Dtype::U8, shape: vec![n] };
        let tensors = [spec("a", 4), spec("b", 4), spec("c", 30), spec("d", 1)];
        let found = files(&tensors, 8);
        let names: Vec<Vec<&str>> =
            found.iter().map(|(_, ts)| ts.iter().map(|t| t.name.as_str()).collect()).collect();
        assert_eq!(names, [vec!["a", "b"], vec!["c"], vec!["d"]]);
        assert_eq!(found[0].0, "model-00001-of-00003.safetensors");
        assert_eq!(files(&tensors, 100)[0].0, SINGLE_FILE);
    }
}
