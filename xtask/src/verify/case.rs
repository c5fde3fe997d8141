//! `fixtures/cases`: copies and the shards they are read from, in JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use restage_checkpoint::Header;
use restage_geometry::{Captured, Dtype, Region, Unsupported};
use restage_plan::{Catalog, Reason, Shard, Source};
use restage_wire::{CopyForm, FillForm, ParamForm};
use serde::Deserialize;

use super::Row;
use super::media::{Media, Served};
use super::pull::{Pulled, Setting, pull, settings};
use super::tensors::{self, Tensors, differences};

/// A `case.json`; `fixtures/README.md` documents the keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseForm {
    about: String,
    sources: BTreeMap<String, SourceForm>,
    params: BTreeMap<String, ParamForm>,
    copies: Vec<CopyForm>,
    #[serde(default)]
    fills: Vec<FillForm>,
    #[serde(default)]
    unsupported: BTreeMap<String, String>,
    #[serde(default = "default_bound")]
    max_descriptors: u64,
    #[serde(default)]
    refused: BTreeSet<String>,
    #[serde(default)]
    full_pulls: BTreeSet<String>,
    #[serde(default)]
    incomplete: BTreeSet<String>,
}

fn default_bound() -> u64 {
    64
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceForm {
    dtype: String,
    shape: Vec<i64>,
    shards: Vec<ShardForm>,
}

/// A shard by the tensor that holds it, where the published forms have a session and an address.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShardForm {
    file: String,
    tensor: String,
    offset: Vec<i64>,
    shape: Vec<i64>,
}

/// A case, ready to be planned.
#[derive(Debug)]
struct Case {
    form: CaseForm,
    captured: Captured,
    catalog: Catalog,
    /// Sessions and the files behind them.
    files: Vec<(String, PathBuf)>,
    expected: Tensors,
}

/// Reconstructs a case over every transport, under every setting.
///
/// # Errors
///
/// The case cannot be opened.
pub fn verify(name: &str, dir: &Path, media: &Media) -> Result<Vec<Row>> {
    let case = open(dir)?;
    let mut rows = Vec::new();
    for Served { name: medium, transport } in media.serve(&case.files)? {
        let mut row = Row::new(name, &case.form.about, medium, case.catalog.len());
        for setting in settings(case.form.max_descriptors, &transport) {
            row.pulls += 1;
            match pull(&case.captured, &case.catalog, &setting.limits, &transport) {
                Ok(pulled) => {
                    if setting.own {
                        row.count(case.captured.params.len(), &pulled.plan.counters());
                    }
                    let wrong = check(&case, &setting, &pulled);
                    wrong.iter().for_each(|what| row.fail(&setting.name, what));
                }
                Err(error) => row.fail(&setting.name, &format!("{error:#}")),
            }
        }
        rows.push(row);
    }
    Ok(rows)
}

/// What of a pull is not as the case says.
fn check(case: &Case, setting: &Setting, pulled: &Pulled) -> Vec<String> {
    let mut wrong = pulled.wrong.clone();
    let mut same = |what: &str, expected: &BTreeSet<String>, found: BTreeSet<String>| {
        if *expected != found {
            wrong.push(format!("{what}: expected {expected:?}, found {found:?}"));
        }
    };
    let (form, plan, report) = (&case.form, &pulled.plan, &pulled.report);
    same("refused", &form.refused, report.refused.iter().map(|r| r.source.to_string()).collect());
    same("incomplete", &form.incomplete, report.incomplete.iter().cloned().collect());
    if setting.own {
        same("full pulls", &form.full_pulls, plan.full_pulls().map(|(name, _)| name.to_owned()).collect());
    }
    for refusal in &report.refused {
        let Some(op) = form.unsupported.get(&*refusal.source) else { continue };
        if refusal.reason != (Reason::Unsupported { op: op.clone() }) {
            let (source, reason) = (&refusal.source, &refusal.reason);
            wrong.push(format!("{source}: expected to be refused for {op}, found: {reason}"));
        }
    }
    wrong.extend(differences(&case.expected, &pulled.tensors));
    wrong
}

fn open(dir: &Path) -> Result<Case> {
    let path = dir.join("case.json");
    let form: CaseForm = serde_json::from_slice(&super::read(&path)?)
        .with_context(|| format!("cannot use {}", path.display()))?;
    let mut headers: BTreeMap<&str, Header> = BTreeMap::new();
    let mut catalog = Catalog::new();
    for (name, source) in &form.sources {
        for shard in &source.shards {
            if !headers.contains_key(shard.file.as_str()) {
                headers.insert(&shard.file, Header::read(&dir.join(&shard.file))?);
            }
        }
        let source = published(source, &headers).with_context(|| format!("source {name:?}"))?;
        catalog.insert(name, source)?;
    }
    let files = headers.keys().map(|&file| (file.to_owned(), dir.join(file))).collect();
    let captured = captured(&form)?;
    let expected = tensors::read(&dir.join("expected.safetensors"))?;
    Ok(Case { form, captured, catalog, files, expected })
}

fn published(form: &SourceForm, headers: &BTreeMap<&str, Header>) -> Result<Source> {
    let dtype: Dtype = form.dtype.parse()?;
    let mut shards = Vec::with_capacity(form.shards.len());
    for ShardForm { file, tensor, offset, shape } in &form.shards {
        let stored = headers.get(file.as_str()).and_then(|h| h.tensors().iter().find(|t| t.name == *tensor));
        let stored = stored.with_context(|| format!("{file} has no tensor {tensor:?}"))?;
        ensure!(
            (stored.dtype, &stored.shape) == (dtype, shape),
            "{tensor:?} of {file}: expected {dtype} {shape:?}, found {} {:?}",
            stored.dtype,
            stored.shape
        );
        let region = Region::new(offset, shape)?;
        shards.push(Shard { region, session: file.as_str().into(), addr: stored.addr, digest: None });
    }
    Ok(Source { dtype, shape: form.shape.clone(), shards })
}

/// What a loader that made these copies would have recorded.
fn captured(form: &CaseForm) -> Result<Captured> {
    let mut captured = Captured::default();
    for (name, source) in &form.sources {
        captured.sources.insert(name.as_str().into(), (source.dtype.parse()?, source.shape.clone()));
    }
    for (name, param) in &form.params {
        captured.params.push(param.param(name)?);
    }
    let index = |param: &str| {
        let at = captured.params.iter().position(|p| p.name == param);
        at.with_context(|| format!("parameter {param:?} is not declared"))
    };
    let (mut copies, mut fills) = (Vec::new(), Vec::new());
    for copy in &form.copies {
        copies.push(copy.copy(index(&copy.param)?));
    }
    for fill in &form.fills {
        let at = index(&fill.param)?;
        fills.push(fill.fill(at, captured.params[at].dtype)?);
    }
    for (name, op) in &form.unsupported {
        let unsupported = Unsupported { op: op.clone(), params: Vec::new() };
        captured.unsupported.insert(Arc::from(name.as_str()), unsupported);
    }
    Ok(Captured { copies, fills, ..captured })
}
