//! `restage inspect`: what is there.

use std::collections::BTreeMap;

use restage_checkpoint::{Checkpoint, CheckpointTensor};
use serde::Serialize;

use crate::args::InspectArgs;
use crate::failure::Failure;
use crate::job::{directory_name, notices};

#[derive(Serialize)]
struct Inspection {
    name: String,
    layout: String,
    tensors: usize,
    bytes: u64,
    dtypes: BTreeMap<&'static str, Amount>,
    files: Vec<FileRow>,
    companions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor_list: Option<Vec<TensorRow>>,
}

#[derive(Default, Serialize)]
struct Amount {
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct FileRow {
    name: String,
    length: u64,
    tensors: usize,
}

#[derive(Serialize)]
struct TensorRow {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    dtype: &'static str,
    shape: Vec<i64>,
    bytes: u64,
    file: String,
    address: u64,
}

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<(), Failure> {
    let checkpoint = Checkpoint::open(&args.path).map_err(Failure::input)?;
    notices(&checkpoint);
    let mut dtypes: BTreeMap<&'static str, Amount> = BTreeMap::new();
    let mut per_file = vec![0; checkpoint.files().len()];
    for t in checkpoint.tensors() {
        let amount = dtypes.entry(t.dtype.name()).or_default();
        amount.tensors += 1;
        amount.bytes += t.length;
        per_file[t.file] += 1;
    }
    let row = |t: &CheckpointTensor| TensorRow {
        name: t.name.clone(),
        rank: t.rank,
        dtype: t.dtype.name(),
        shape: t.shape.clone(),
        bytes: t.length,
        file: checkpoint.files()[t.file].name.clone(),
        address: t.addr,
    };
    let found = Inspection {
        name: directory_name(&checkpoint),
        layout: checkpoint.layout().to_string(),
        tensors: checkpoint.tensors().len(),
        bytes: checkpoint.tensors().map(|t| t.length).sum(),
        dtypes,
        files: checkpoint
            .files()
            .iter()
            .zip(per_file)
            .map(|(f, tensors)| FileRow { name: f.name.clone(), length: f.length, tensors })
            .collect(),
        companions: checkpoint
            .companions()
            .iter()
            .filter_map(|p| Some(p.file_name()?.to_string_lossy().into_owned()))
            .collect(),
        tensor_list: args.tensors.then(|| checkpoint.tensors().map(row).collect()),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&found).map_err(Failure::input)?);
        return Ok(());
    }
    println!("{}: {}", found.name, found.layout);
    println!("  {} tensors, {} bytes", found.tensors, found.bytes);
    for (dtype, amount) in &found.dtypes {
        println!("  {dtype:<8} {:>6} tensors {:>16} bytes", amount.tensors, amount.bytes);
    }
    for f in &found.files {
        println!("  {} {:>6} tensors {:>16} bytes", f.name, f.tensors, f.length);
    }
    if !found.companions.is_empty() {
        println!("  beside them: {}", found.companions.join(", "));
    }
    for t in found.tensor_list.iter().flatten() {
        let rank = t.rank.map_or_else(String::new, |r| format!("rank {r} "));
        println!("    {rank}{} {} {:?} at byte {} of {}", t.name, t.dtype, t.shape, t.address, t.file);
    }
    Ok(())
}
