//! `fixtures/vllm`: a Hugging Face checkpoint and the file of each rank that vLLM made of it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use restage_checkpoint::{Checkpoint, TensorFile, TensorSpec};
use restage_geometry::Captured;
use restage_model::{Engine, ModelConfig, Placement, Rank, TensorTable, load};
use restage_plan::{Catalog, Limits};
use restage_refit::same_bytes;
use restage_transport::Transport;
use serde::Deserialize;

use super::Row;
use super::media::{Media, Recorded, Served};
use super::pull::{Setting, pull, settings};
use super::tensors::{self, Tensors, differences, first_difference};

/// A `case.json` of a model; `fixtures/README.md` documents the keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelForm {
    about: String,
    model: String,
    engine: String,
    tp: Vec<i64>,
    #[serde(default)]
    expert_parallel: bool,
}

/// A checkpoint with its model, ready to be loaded by any rank.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    engine: Engine,
    table: TensorTable,
    /// What is published.
    pub catalog: Catalog,
    /// Sessions and the files behind them.
    pub files: Vec<(String, PathBuf)>,
}

impl Model {
    /// Opens the checkpoint in a folder and its `config.json`.
    ///
    /// # Errors
    ///
    /// One of them cannot be read, or is not understood.
    pub fn open(dir: &Path, engine: Engine) -> Result<Self> {
        let checkpoint = Checkpoint::open(dir)?;
        let path = dir.join("config.json");
        let config =
            ModelConfig::from_json(&super::read(&path)?).with_context(|| path.display().to_string())?;
        Ok(Model {
            config,
            engine,
            table: checkpoint.tensors().map(|t| (t.name.clone(), (t.dtype, t.shape.clone()))).collect(),
            catalog: checkpoint.catalog()?,
            files: checkpoint.sessions().map(|(name, path)| (name.to_owned(), path.to_owned())).collect(),
        })
    }

    /// What the loader of a rank copies where. Parameters that the engine ties again where their bytes are equal
    /// are told apart by reading them.
    ///
    /// # Errors
    ///
    /// The model cannot be loaded, or a tied parameter cannot be read.
    pub fn captured(&self, place: impl Into<Placement>, transport: &dyn Transport) -> Result<Captured> {
        let loaded = load(&self.config, self.engine, place, &self.table)?;
        let Some(tie) = loaded.tie else { return Ok(loaded.captured) };
        let pair = [tie.keep, tie.drop];
        let tied = same_bytes(&loaded.captured, &self.catalog, &Limits::default(), transport, pair)?;
        Ok(if tied { loaded.captured.only(|name| name != tie.drop) } else { loaded.captured })
    }
}

/// Every rank of so many.
pub fn ranks(tp_size: i64) -> impl Iterator<Item = Rank> {
    (0..tp_size).map(move |tp_rank| Rank { tp_size, tp_rank })
}

/// Reconstructs every rank's file over every transport, under every setting.
///
/// # Errors
///
/// The fixture cannot be opened.
pub fn verify(name: &str, dir: &Path, media: &Media) -> Result<Vec<Row>> {
    let path = dir.join("case.json");
    let form: ModelForm = serde_json::from_slice(&super::read(&path)?)
        .with_context(|| format!("cannot use {}", path.display()))?;
    let model = Model::open(&dir.join(&form.model), form.engine.parse()?)?;
    let served = media.serve(&model.files)?;
    let mut rows = Vec::new();
    for &tp in &form.tp {
        for Served { name: medium, transport } in &served {
            let mut row = Row::new(&format!("{name} tp{tp}"), &form.about, medium, model.catalog.len());
            for rank in ranks(tp) {
                let file = format!("tp{tp}/rank{}.safetensors", rank.tp_rank);
                for setting in settings(Limits::default().max_descriptors, transport) {
                    row.pulls += 1;
                    let place = match form.expert_parallel {
                        true => Placement::expert_parallel(rank),
                        false => rank.into(),
                    };
                    let wrong = rebuilt(&model, place, &setting, transport, &dir.join(&file), &mut row)
                        .unwrap_or_else(|error| vec![format!("{error:#}")]);
                    wrong.iter().for_each(|what| row.fail(&setting.name, &format!("{file}: {what}")));
                }
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Everything in which a rank's reconstruction differs from its file.
fn rebuilt(
    model: &Model,
    place: Placement,
    setting: &Setting,
    transport: &Recorded,
    file: &Path,
    row: &mut Row,
) -> Result<Vec<String>> {
    let captured = model.captured(place, transport)?;
    let pulled = pull(&captured, &model.catalog, &setting.limits, transport)?;
    if setting.own {
        row.count(captured.params.len(), &pulled.plan.counters());
    }
    let mut wrong = pulled.wrong;
    wrong.extend(pulled.report.refused.iter().map(|r| format!("{} is refused: {}", r.source, r.reason)));
    wrong.extend(differences(&tensors::read(file)?, &pulled.tensors));
    // A file that differs in a parameter differs as a whole: once is enough.
    if wrong.is_empty() {
        let difference = first_difference(&super::read(file)?, &written(&pulled.tensors)?);
        wrong.extend(difference.map(|d| format!("the whole file: {d}")));
    }
    Ok(wrong)
}

/// The bytes of the file that these tensors make.
fn written(tensors: &Tensors) -> Result<Vec<u8>> {
    let dir = tempfile::tempdir().context("cannot make a temporary folder")?;
    let path = dir.path().join("rank.safetensors");
    let spec = |(name, t): (&String, &tensors::Tensor)| TensorSpec {
        name: name.clone(),
        dtype: t.dtype,
        shape: t.shape.clone(),
    };
    let specs: Vec<TensorSpec> = tensors.iter().map(spec).collect();
    let file = TensorFile::create(&path, &specs, None, false)?;
    for (name, tensor) in tensors {
        file.write(name, &tensor.bytes)?;
    }
    file.finish(false)?;
    super::read(&path)
}
