//! Every fixture, reconstructed over every built transport and compared byte by byte.
//!
//! `fixtures/README.md` says what a fixture is. Each one is planned under several limits, since each setting
//! takes another way through planner and receiver: flat descriptors, strided segments, whole sources.

mod case;
mod demo;
mod media;
mod model;
mod pull;
mod ranges;
mod table;
mod tensors;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use restage_plan::Counters;

pub use media::Media;
pub use table::Table;

/// One fixture over one transport.
#[derive(Debug)]
pub struct Row {
    /// The fixture: its folder below `fixtures/`, and the number of ranks where there are several.
    pub fixture: String,
    /// What the fixture says that it is about; may be empty.
    pub about: String,
    /// What the transport is called; `-` where the fixture could not be opened.
    pub transport: &'static str,
    /// Number of sources that are published.
    pub sources: usize,
    /// Number of parameters, of all ranks together.
    pub params: usize,
    /// Counters of the flat plan at the fixture's bound, of all ranks together.
    pub counters: Counters,
    /// Times that everything was planned, pulled and compared.
    pub pulls: usize,
    /// What went wrong, each with fixture, transport and limits.
    pub failures: Vec<String>,
}

impl Row {
    fn new(fixture: &str, about: &str, transport: &'static str, sources: usize) -> Self {
        Row {
            fixture: fixture.to_owned(),
            about: about.to_owned(),
            transport,
            sources,
            params: 0,
            counters: Counters::default(),
            pulls: 0,
            failures: Vec::new(),
        }
    }

    fn count(&mut self, params: usize, counters: &Counters) {
        self.params += params;
        self.counters.exact_descriptors += counters.exact_descriptors;
        self.counters.exact_bytes += counters.exact_bytes;
        self.counters.descriptors += counters.descriptors;
        self.counters.bytes += counters.bytes;
    }

    /// Notes what went wrong under some limits, or on the way to them.
    fn fail(&mut self, limits: &str, what: &str) {
        self.failures.push(format!("{} over {}, {limits}: {what}", self.fixture, self.transport));
    }
}

/// Reconstructs one fixture, given its name and its folder, over all media.
type Verify = fn(&str, &Path, &Media) -> Result<Vec<Row>>;

/// Reconstructs every fixture in a folder, or those with `filter` in their name. One row a fixture and transport.
///
/// # Errors
///
/// The folder cannot be listed, or has something in it that is no known kind of fixture. What is wrong with
/// a fixture is in its rows.
pub fn run(fixtures: &Path, filter: Option<&str>, media: &Media) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for kind in folders(fixtures)? {
        let dir = fixtures.join(&kind);
        let verify: Verify = match kind.as_str() {
            "cases" => case::verify,
            "vllm" => model::verify,
            "demo" => {
                rows.extend(verified(&kind, &dir, filter, media, demo::verify));
                continue;
            }
            // Not skipped: a folder that nobody reconstructs would look verified.
            _ => bail!("{} is no known kind of fixture", dir.display()),
        };
        for name in folders(&dir)? {
            rows.extend(verified(&format!("{kind}/{name}"), &dir.join(&name), filter, media, verify));
        }
    }
    Ok(rows)
}

/// The rows of one fixture; none where the filter leaves it out.
fn verified(name: &str, dir: &Path, filter: Option<&str>, media: &Media, verify: Verify) -> Vec<Row> {
    if filter.is_some_and(|part| !name.contains(part)) {
        return Vec::new();
    }
    verify(name, dir, media).unwrap_or_else(|error| {
        let mut row = Row::new(name, "", "-", 0);
        row.failures.push(format!("{name}: {error:#}"));
        vec![row]
    })
}

/// Names of the folders in a folder, sorted.
fn folders(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let at = || format!("cannot list {}", dir.display());
    for entry in fs::read_dir(dir).with_context(at)? {
        let entry = entry.with_context(at)?;
        if entry.file_type().with_context(at)?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads a file that a fixture consists of.
fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests;
