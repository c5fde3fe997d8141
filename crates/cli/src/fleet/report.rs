//! The plan of a job as JSON.

use std::collections::BTreeSet;

use restage_plan::{Limits, Traffic};
use serde::Serialize;

use super::{Fleet, Member, Origin};
use crate::args::PlanArgs;

/// Bytes are counted; rates are bytes per second, times seconds.
#[derive(Serialize)]
pub struct Report {
    pub model: String,
    pub architecture: &'static str,
    pub tensors: usize,
    pub bytes: u64,
    /// How the tensors are taken to be published; absent where a checkpoint's files hold them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<String>,
    pub engine: String,
    pub tp: u32,
    pub pp: u32,
    pub ep: u32,
    pub strided: bool,
    pub max_descriptors: u64,
    pub stages: Vec<StageRow>,
    /// Sums of all ranks.
    pub exact_descriptors: u64,
    pub exact_bytes: u64,
    pub descriptors: u64,
    pub total_bytes: u64,
    pub extra_wire_bytes: u64,
    pub parameter_bytes: u64,
    /// The session that sends most.
    pub hottest_session: Option<Endpoint>,
    /// The rank that reads most.
    pub largest_rank: Option<Endpoint>,
    /// The session and rank between which most is sent.
    pub largest_link: Option<Link>,
    /// Bytes of the hottest session over the mean of all sessions that are read from.
    pub imbalance: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    pub ranks: Vec<RankRow>,
    pub traffic: Matrix,
    /// Tensors that no rank loads.
    pub skipped: Vec<String>,
}

#[derive(Serialize)]
pub struct StageRow {
    pub stage: i64,
    /// First layer, and the one after the last.
    pub layers: [i64; 2],
}

#[derive(Serialize)]
pub struct Endpoint {
    pub name: String,
    pub bytes: u64,
}

#[derive(Serialize)]
pub struct Link {
    pub session: String,
    pub rank: String,
    pub bytes: u64,
}

/// A guess from bytes alone; nothing was measured.
#[derive(Serialize)]
pub struct Estimate {
    pub is_estimate: bool,
    pub link_bytes_per_second: f64,
    pub seconds: f64,
    pub assumes: &'static str,
}

#[derive(Serialize)]
pub struct RankRow {
    pub name: String,
    pub tp_rank: i64,
    pub stage: i64,
    pub expert_group: i64,
    pub parameters: usize,
    pub parameter_bytes: u64,
    pub copies: usize,
    pub constants: usize,
    pub exact_descriptors: u64,
    pub exact_bytes: u64,
    pub descriptors: u64,
    pub bytes: u64,
    pub extra_wire_bytes: u64,
    pub staged_sources: usize,
    pub staged_bytes: u64,
    pub unbounded_sources: usize,
    pub refused_sources: usize,
    pub incomplete_parameters: usize,
}

/// By session and then by rank.
#[derive(Serialize)]
pub struct Matrix {
    pub sessions: Vec<String>,
    pub ranks: Vec<String>,
    pub bytes: Vec<Vec<u64>>,
    pub descriptors: Vec<Vec<u64>>,
    pub session_bytes: Vec<u64>,
    pub rank_bytes: Vec<u64>,
}

/// What an estimate takes for granted.
pub const ASSUMES: &str = "the busiest session or rank moves its bytes over one link at the full rate without pause, \
                           and all else is free";

impl Report {
    pub(super) fn new(origin: &Origin, fleet: &Fleet, args: &PlanArgs, limits: &Limits) -> Self {
        let Fleet { layout, members, traffic } = fleet;
        let sum = |of: fn(&Member) -> u64| members.iter().map(of).fold(0, u64::saturating_add);
        let stage = |rank: u64| {
            let place = layout.place(rank);
            // It was checked that every stage exists.
            let layers = place.layers(origin.config.num_hidden_layers).unwrap_or(0..0);
            StageRow { stage: place.stage.index, layers: [layers.start, layers.end] }
        };
        let rank = |m: &Member| RankRow {
            name: m.column.rank.clone(),
            tp_rank: m.place.rank.tp_rank,
            stage: m.place.stage.index,
            expert_group: layout.group(m.place.rank.tp_rank),
            parameters: m.params,
            parameter_bytes: m.param_bytes,
            copies: m.copies,
            constants: m.constants,
            exact_descriptors: m.counters.exact_descriptors,
            exact_bytes: m.counters.exact_bytes,
            descriptors: m.counters.descriptors,
            bytes: m.counters.bytes,
            extra_wire_bytes: m.counters.extra_wire_bytes(),
            staged_sources: m.staged.0,
            staged_bytes: m.staged.1,
            unbounded_sources: m.unbounded,
            refused_sources: m.refused,
            incomplete_parameters: m.incomplete,
        };
        let session = |s: usize| traffic.sessions[s].to_string();
        let rank_bytes = traffic.rank_bytes();
        let most = rank_bytes.iter().copied().max().unwrap_or(0);
        let skipped: BTreeSet<&String> = members.iter().flat_map(|m| &m.skipped).collect();
        Report {
            model: origin.name.clone(),
            architecture: origin.config.architecture.name(),
            tensors: origin.table.len(),
            bytes: origin.bytes(),
            published: args.fleet.published.map(|p| p.to_string()),
            engine: args.wanted.engine.to_string(),
            tp: layout.tp,
            pp: layout.pp,
            ep: layout.ep,
            strided: limits.strided,
            max_descriptors: limits.max_descriptors,
            stages: (0..u64::from(layout.pp)).map(|s| stage(s * u64::from(layout.tp))).collect(),
            exact_descriptors: sum(|m| m.counters.exact_descriptors),
            exact_bytes: sum(|m| m.counters.exact_bytes),
            descriptors: traffic.total_descriptors(),
            total_bytes: traffic.total(),
            extra_wire_bytes: sum(|m| m.counters.extra_wire_bytes()),
            parameter_bytes: sum(|m| m.param_bytes),
            hottest_session: traffic.hottest_session().map(|(s, bytes)| Endpoint { name: session(s), bytes }),
            largest_rank: rank_bytes
                .iter()
                .position(|&b| b == most && b > 0)
                .map(|r| Endpoint { name: traffic.ranks[r].clone(), bytes: most }),
            largest_link: traffic.largest_link().map(|((s, r), bytes)| Link {
                session: session(s),
                rank: traffic.ranks[r].clone(),
                bytes,
            }),
            imbalance: traffic.imbalance(),
            estimate: args.fleet.link_rate.map(|rate| Estimate {
                is_estimate: true,
                link_bytes_per_second: rate.bytes_per_second(),
                seconds: traffic.seconds_at(rate.bytes_per_second()),
                assumes: ASSUMES,
            }),
            ranks: members.iter().map(rank).collect(),
            traffic: matrix(traffic),
            skipped: skipped.into_iter().cloned().collect(),
        }
    }
}

fn matrix(traffic: &Traffic) -> Matrix {
    Matrix {
        sessions: traffic.sessions.iter().map(|s| s.to_string()).collect(),
        ranks: traffic.ranks.clone(),
        bytes: traffic.bytes.clone(),
        descriptors: traffic.descriptors.clone(),
        session_bytes: traffic.session_bytes(),
        rank_bytes: traffic.rank_bytes(),
    }
}
