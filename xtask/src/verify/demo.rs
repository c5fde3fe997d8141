//! `fixtures/demo`: a checkpoint without expected files. Transports must agree on every rank, and the ranks
//! together must read every byte of every source.

use std::path::Path;

use anyhow::Result;
use restage_model::Engine;
use restage_plan::Limits;
use restage_transport::Read;

use super::Row;
use super::media::{Media, Recorded, Served};
use super::model::{Model, ranks};
use super::pull::{Pulled, Setting, pull, settings};
use super::ranges::{self, Ranges};
use super::tensors::{Tensors, differences};

/// The numbers of ranks that it is cut for.
const TP: [i64; 3] = [1, 2, 4];

/// Reconstructs every rank over every transport, under every setting.
///
/// # Errors
///
/// The checkpoint cannot be opened.
pub fn verify(name: &str, dir: &Path, media: &Media) -> Result<Vec<Row>> {
    let model = Model::open(dir, Engine::default())?;
    let served = media.serve(&model.files)?;
    let published = ranges::of_sources(model.catalog.iter())?;
    let mut rows = Vec::new();
    for tp in TP {
        // What the first transport made under the first setting; all others must make the same.
        let mut first: Option<Vec<Tensors>> = None;
        for Served { name: medium, transport } in &served {
            let mut row = Row::new(&format!("{name} tp{tp}"), "", medium, model.catalog.len());
            for setting in settings(Limits::default().max_descriptors, transport) {
                match reshard(&model, tp, &setting, transport, &published, &mut row) {
                    Err(error) => row.fail(&setting.name, &format!("{error:#}")),
                    Ok(found) => match &first {
                        None => first = Some(found),
                        Some(expected) => {
                            for (rank, (e, f)) in expected.iter().zip(&found).enumerate() {
                                for what in differences(e, f) {
                                    row.fail(&setting.name, &format!("rank {rank}: {what}"));
                                }
                            }
                        }
                    },
                }
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The parameters of every rank.
fn reshard(
    model: &Model,
    tp: i64,
    setting: &Setting,
    transport: &Recorded,
    published: &Ranges,
    row: &mut Row,
) -> Result<Vec<Tensors>> {
    let (mut all, mut reads) = (Vec::new(), Vec::<Read>::new());
    for rank in ranks(tp) {
        let captured = model.captured(rank, transport)?;
        row.pulls += 1;
        let Pulled { plan, report, tensors, reads: seen, wrong } =
            pull(&captured, &model.catalog, &setting.limits, transport)?;
        if setting.own {
            row.count(captured.params.len(), &plan.counters());
        }
        let mut fail = |what: String| row.fail(&setting.name, &format!("rank {}: {what}", rank.tp_rank));
        wrong.into_iter().for_each(&mut fail);
        report.refused.iter().for_each(|r| fail(format!("{} is refused: {}", r.source, r.reason)));
        plan.incomplete().for_each(|param| fail(format!("parameter {param:?} is incomplete")));
        reads.extend(seen);
        all.push(tensors);
    }
    if let Some(missed) = ranges::first_outside(published, &ranges::of_reads(&reads)) {
        row.fail(&setting.name, &format!("{missed} belong to a source, and no rank read them all"));
    }
    Ok(all)
}
