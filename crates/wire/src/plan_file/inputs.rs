//! What a plan was made from: digests of each part, so that a change can be named.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use restage_geometry::{Captured, Dtype, Param};
use restage_plan::{Catalog, Limits, Source, StagingMode};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::element::Digest;
use crate::tables::{CopyForm, ShardForm};

/// Hexadecimal digits of the digests of one source's shards. They only say which source changed: the digests of
/// everything together are whole.
const SHORT_DIGITS: usize = 16;

/// What a plan was made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    /// Every published source.
    pub published: BTreeMap<String, Published>,
    /// Digest of every shard: boxes, sessions and addresses.
    pub shards: Digest,
    /// What the loader did.
    pub capture: CaptureDigests,
    /// What the plan was allowed.
    pub limits: Limits,
    /// For whom it was made, where that is known.
    pub placement: Option<PlacementForm>,
}

/// Which ranks of which layout a plan serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementForm {
    /// Serving engine, as in `vllm:0.33`.
    pub engine: String,
    /// Number of tensor-parallel ranks.
    pub tp: u32,
    /// The ranks that are served, ascending.
    pub ranks: Vec<u32>,
    /// True when whole experts are spread over the ranks.
    pub expert_parallel: bool,
}

/// A published source, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Type of its elements.
    pub dtype: String,
    /// Global shape, in elements.
    pub shape: Vec<i64>,
    /// Number of shards.
    pub shards: usize,
    /// Short digest of the shards' boxes and sessions.
    pub boxes: String,
    /// Short digest of their addresses too.
    pub addresses: String,
}

/// Digests of the parts of a capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureDigests {
    /// Parameters: names, dtypes and shapes.
    pub params: Digest,
    /// What the loader took the sources to be.
    pub expected: Digest,
    /// Copies: sources, operations and destinations.
    pub copies: Digest,
    /// Constants.
    pub fills: Digest,
    /// Sources that were given up on.
    pub unsupported: Digest,
}

/// One thing that is not what the plan was made from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Change {
    /// An option: a limit, or a part of the placement.
    Option {
        /// Its name.
        name: &'static str,
        /// What the plan was made with.
        expected: String,
        /// What is found.
        found: String,
    },
    /// A source.
    Source {
        /// Its name.
        name: String,
        /// What changed.
        what: SourceChange,
    },
    /// A part of the capture, by the name of its digest.
    Capture(&'static str),
    /// The plan is for a parameter that the loader does not fill, or for another dtype or shape of it.
    Param {
        /// Its name.
        name: String,
        /// What the plan was made for.
        expected: String,
        /// What is found.
        found: String,
    },
}

/// How a source changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SourceChange {
    /// It is published, and was not.
    Added,
    /// It was published, and is not any more.
    Removed,
    /// Another type.
    Dtype {
        /// Then.
        expected: String,
        /// Now.
        found: String,
    },
    /// Another global shape, in elements.
    Shape {
        /// Then.
        expected: Vec<i64>,
        /// Now.
        found: Vec<i64>,
    },
    /// Other boxes, or the same in other sessions.
    Boxes {
        /// Number of shards then.
        expected: usize,
        /// Number now.
        found: usize,
    },
    /// The same boxes at other addresses.
    Addresses,
}

impl fmt::Display for SourceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceChange::Added => f.write_str("is published now, and was not"),
            SourceChange::Removed => f.write_str("was published, and is not now"),
            SourceChange::Dtype { expected, found } => write!(f, "dtype expected {expected}, found {found}"),
            SourceChange::Shape { expected, found } => {
                write!(f, "shape expected {expected:?}, found {found:?}")
            }
            SourceChange::Boxes { expected, found } if expected == found => {
                f.write_str("its shards are cut otherwise, or lie in other sessions")
            }
            SourceChange::Boxes { expected, found } => {
                write!(f, "expected {expected} shards, found {found}")
            }
            SourceChange::Addresses => f.write_str("changed address"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Option { name, expected, found } => {
                write!(f, "{name}: expected {expected}, found {found}")
            }
            Change::Source { name, what } => write!(f, "source {name}: {what}"),
            Change::Param { name, expected, found } => {
                write!(f, "parameter {name}: expected {expected}, found {found}")
            }
            Change::Capture(part) => write!(f, "capture: its {part} changed"),
        }
    }
}

/// Hashes values as lines of JSON, which no two different lists share.
#[derive(Default)]
struct Lines(Sha256);

impl Lines {
    fn add(&mut self, value: &impl Serialize) {
        // Values here have string keys and no fallible parts; a vector takes every byte.
        self.raw(&serde_json::to_vec(value).unwrap_or_default());
    }

    fn raw(&mut self, line: &[u8]) {
        self.0.update(line);
        self.0.update(b"\n");
    }

    fn digest(self) -> Digest {
        Digest::finish(self.0)
    }

    fn short(self) -> String {
        let digest = self.digest().to_string();
        digest.trim_start_matches("sha256:").chars().take(SHORT_DIGITS).collect()
    }
}

impl Published {
    fn of(source: &Source) -> Self {
        let mut shards: Vec<ShardForm> = source.shards.iter().map(ShardForm::from).collect();
        shards.sort_by(|a, b| {
            (&a.offset, &a.shape, &a.session, a.addr).cmp(&(&b.offset, &b.shape, &b.session, b.addr))
        });
        let (mut boxes, mut addresses) = (Lines::default(), Lines::default());
        for shard in &shards {
            boxes.add(&(&shard.offset, &shard.shape, &shard.session));
            addresses.add(&(&shard.offset, &shard.shape, &shard.session, shard.addr));
        }
        Published {
            dtype: source.dtype.name().to_owned(),
            shape: source.shape.clone(),
            shards: shards.len(),
            boxes: boxes.short(),
            addresses: addresses.short(),
        }
    }

    fn change(&self, found: &Published) -> Option<SourceChange> {
        if self.dtype != found.dtype {
            return Some(SourceChange::Dtype { expected: self.dtype.clone(), found: found.dtype.clone() });
        }
        if self.shape != found.shape {
            return Some(SourceChange::Shape { expected: self.shape.clone(), found: found.shape.clone() });
        }
        if (self.shards, &self.boxes) != (found.shards, &found.boxes) {
            return Some(SourceChange::Boxes { expected: self.shards, found: found.shards });
        }
        (self.addresses != found.addresses).then_some(SourceChange::Addresses)
    }
}

impl CaptureDigests {
    /// The digests of a capture. Copies and constants count as a set, since a plan does not depend on their
    /// order; only those of the parameters in `ordered`, where later writes replace earlier ones, count in order.
    pub fn of(captured: &Captured, ordered: &BTreeSet<&str>) -> Self {
        let name = |param: usize| captured.params.get(param).map_or("", |p| p.name.as_str());
        let shaped = |dtype: Dtype, shape: &[i64]| (dtype.name(), shape.to_vec());
        let expected = captured.sources.iter().map(|(name, (dtype, shape))| (&**name, shaped(*dtype, shape)));
        let copies = captured.copies.iter().map(|copy| {
            let line = match CopyForm::of(copy, name(copy.param)) {
                Ok(form) => serde_json::to_vec(&form).unwrap_or_default(),
                // What no file can say has its words, which name the operation.
                Err(_) => {
                    format!("{:?}", (&copy.source, &copy.ops, name(copy.param), &copy.dest)).into_bytes()
                }
            };
            (name(copy.param), line)
        });
        let fills = captured.fills.iter().map(|fill| {
            let (offset, shape, strides) = (fill.dest.offset, &fill.dest.shape, &fill.dest.strides);
            // How many copies into the same parameter came before it, where that matters.
            let before = captured.copies.iter().take(fill.after).filter(|copy| copy.param == fill.param);
            let after = if ordered.contains(name(fill.param)) { before.count() } else { 0 };
            let line = serde_json::to_vec(&(name(fill.param), offset, shape, strides, &fill.element, after));
            (name(fill.param), line.unwrap_or_default())
        });
        let unsupported = captured.unsupported.iter().map(|(source, entry)| {
            let params: BTreeSet<&str> = entry.params.iter().map(|&p| name(p)).collect();
            (&**source, &entry.op, params)
        });
        CaptureDigests {
            params: params_digest(&captured.params),
            expected: digest(expected),
            copies: writes(copies, ordered),
            fills: writes(fills, ordered),
            unsupported: digest(unsupported),
        }
    }
}

/// Digest of parameters, in any order.
pub(super) fn params_digest(params: &[Param]) -> Digest {
    let mut params: Vec<_> = params.iter().map(|p| (&p.name, p.dtype.name(), &p.shape)).collect();
    params.sort();
    digest(params.iter())
}

fn digest(items: impl Iterator<Item = impl Serialize>) -> Digest {
    let mut lines = Lines::default();
    items.for_each(|item| lines.add(&item));
    lines.digest()
}

/// Digest of writes: those of ordered parameters in their order, then the others sorted.
fn writes<'a>(items: impl Iterator<Item = (&'a str, Vec<u8>)>, ordered: &BTreeSet<&str>) -> Digest {
    let (first, mut rest): (Vec<_>, Vec<_>) = items.partition(|(param, _)| ordered.contains(param));
    rest.sort();
    let mut lines = Lines::default();
    first.iter().chain(&rest).for_each(|(_, line)| lines.raw(line));
    lines.digest()
}

impl Inputs {
    /// What a plan of this capture from this catalog is made from. `ordered` names the parameters in which later
    /// writes replace earlier ones: there the order of the loader is part of the input.
    pub fn of(
        captured: &Captured,
        catalog: &Catalog,
        limits: &Limits,
        placement: Option<PlacementForm>,
        ordered: &BTreeSet<&str>,
    ) -> Self {
        let published: BTreeMap<String, Published> =
            catalog.iter().map(|(name, source)| (name.to_owned(), Published::of(source))).collect();
        let shards = catalog.iter().map(|(name, source)| {
            let mut shards: Vec<Vec<u8>> = source
                .shards
                .iter()
                .map(|s| serde_json::to_vec(&ShardForm::from(s)).unwrap_or_default())
                .collect();
            shards.sort();
            (name, shards)
        });
        Inputs {
            published,
            shards: digest(shards),
            capture: CaptureDigests::of(captured, ordered),
            limits: limits.clone(),
            placement,
        }
    }

    /// Digest of the names, dtypes and shapes of the sources.
    pub fn sources(&self) -> Digest {
        digest(self.published.iter().map(|(name, p)| (name, &p.dtype, &p.shape)))
    }

    /// Digest of the limits.
    pub fn limits_digest(&self) -> Digest {
        digest(self.options().into_iter().filter(|(_, of_limits, _)| *of_limits))
    }

    /// Digest of the placement.
    pub fn placement_digest(&self) -> Digest {
        digest(self.options().into_iter().filter(|(_, of_limits, _)| !of_limits))
    }

    /// Digest of all of it.
    pub fn whole(&self) -> Digest {
        let CaptureDigests { params, expected, copies, fills, unsupported } = &self.capture;
        digest(
            [
                // With the short digests, so that nothing of this can be changed by itself.
                &digest(self.published.iter()),
                &self.shards,
                params,
                expected,
                copies,
                fills,
                unsupported,
                &self.limits_digest(),
                &self.placement_digest(),
            ]
            .into_iter(),
        )
    }

    /// Limits and placement as text, by the names of the options that set them; true for a limit.
    fn options(&self) -> Vec<(&'static str, bool, String)> {
        let Limits { max_descriptors, strided, convert, staging, staging_bytes, alignment } = self.limits;
        let mode = match staging {
            StagingMode::RowShards => "row_shards",
            _ => "tiles",
        };
        let mut out = vec![
            ("max_descriptors", true, max_descriptors.to_string()),
            ("strided", true, strided.to_string()),
            ("convert", true, convert.to_string()),
            ("staging", true, mode.to_owned()),
            ("staging_bytes", true, staging_bytes.map_or_else(|| "any".to_owned(), |n| n.to_string())),
            ("alignment", true, alignment.to_string()),
        ];
        if let Some(PlacementForm { engine, tp, ranks, expert_parallel }) = &self.placement {
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            out.push(("engine", false, engine.clone()));
            out.push(("tp", false, tp.to_string()));
            out.push(("rank", false, ranks.join(" ")));
            out.push(("expert_parallel", false, expert_parallel.to_string()));
        }
        out
    }

    /// What is found that the plan was not made from: options first, then sources by name (those
    /// that only have other addresses last), then the capture.
    /// Empty when nothing changed.
    pub fn changes(&self, found: &Inputs) -> Vec<Change> {
        let mut out = Vec::new();
        let (ours, theirs) = (self.options(), found.options());
        let value = |list: &[(&'static str, bool, String)], name: &str| {
            list.iter().find(|(n, _, _)| *n == name).map_or_else(|| "nothing".to_owned(), |o| o.2.clone())
        };
        let mut names: Vec<&'static str> = ours.iter().map(|o| o.0).collect();
        names.extend(theirs.iter().map(|o| o.0).filter(|n| !ours.iter().any(|o| o.0 == *n)));
        for name in names {
            let (expected, found) = (value(&ours, name), value(&theirs, name));
            if expected != found {
                out.push(Change::Option { name, expected, found });
            }
        }
        let names: BTreeSet<&String> = self.published.keys().chain(found.published.keys()).collect();
        let before = out.len();
        for name in names {
            let what = match (self.published.get(name), found.published.get(name)) {
                (Some(then), Some(now)) => then.change(now),
                (None, _) => Some(SourceChange::Added),
                (_, None) => Some(SourceChange::Removed),
            };
            out.extend(what.map(|what| Change::Source { name: name.clone(), what }));
        }
        // A header that grew moves every tensor of its file: what else changed tells more.
        out[before..].sort_by_key(|c| matches!(c, Change::Source { what: SourceChange::Addresses, .. }));
        if out.len() == before && self.shards != found.shards {
            out.push(Change::Capture("shards"));
        }
        let (ours, theirs) = (&self.capture, &found.capture);
        for (part, same) in [
            ("params", ours.params == theirs.params),
            ("expected", ours.expected == theirs.expected),
            ("copies", ours.copies == theirs.copies),
            ("fills", ours.fills == theirs.fills),
            ("unsupported", ours.unsupported == theirs.unsupported),
        ] {
            if !same {
                out.push(Change::Capture(part));
            }
        }
        out
    }
}
