//! One reconstruction: plan, pull over a metered transport, and what must hold of any pull.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use restage_geometry::{Captured, Param};
use restage_plan::{Catalog, Limits, Plan, StagingMode};
use restage_refit::{Receiver, Report, Sink, SinkError};
use restage_transport::{Read, Transport};

use super::media::Recorded;
use super::ranges;
use super::tensors::{Tensor, Tensors};

/// Bytes of a wave: large enough that small parameters share one, and small enough that most fixtures take
/// several.
const WAVE_BYTES: u64 = 4 << 10;

/// Limits with a name for reports.
#[derive(Debug, Clone)]
pub struct Setting {
    /// What it is called.
    pub name: String,
    /// The limits.
    pub limits: Limits,
    /// True of the flat plan at the fixture's own bound, which the fixture and the table speak of.
    pub own: bool,
}

/// The limits to plan under: flat at the fixture's bound with whole sources staged, strided where the transport
/// gathers, and flat at bound 1 with stretches staged wherever they help.
pub fn settings(bound: u64, transport: &Recorded) -> Vec<Setting> {
    let setting = |name: String, max_descriptors, strided| Setting {
        name,
        limits: Limits { max_descriptors, strided, ..Limits::default() },
        own: false,
    };
    let flat = |bound| setting(format!("flat at bound {bound}"), bound, false);
    let mut own = Setting { own: true, ..flat(bound) };
    own.limits.staging = StagingMode::RowShards;
    let mut all = vec![own];
    if transport.abilities().gathers {
        all.push(setting(format!("strided at bound {bound}"), bound, true));
    }
    if bound != 1 {
        all.push(flat(1));
    }
    all
}

/// What came of a pull.
#[derive(Debug)]
pub struct Pulled {
    /// The plan that was carried out.
    pub plan: Plan,
    /// What the receiver reported.
    pub report: Report,
    /// The parameters that were handed over.
    pub tensors: Tensors,
    /// Every run that was asked of the transport.
    pub reads: Vec<Read>,
    /// Laws that were broken on the way.
    pub wrong: Vec<String>,
}

/// Plans and pulls everything that was captured.
///
/// # Errors
///
/// No plan can be made, or the pull fails.
pub fn pull(captured: &Captured, catalog: &Catalog, limits: &Limits, transport: &Recorded) -> Result<Pulled> {
    transport.reset();
    let receiver = Receiver::prepare(captured, catalog, limits)?;
    let kept = Kept::default();
    let report = receiver.pull_each(transport, WAVE_BYTES, &kept)?;
    let tensors = kept.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    let plan = receiver.plan().clone();
    let mut pulled = Pulled { plan, report, tensors, reads: transport.reads(), wrong: Vec::new() };
    traffic(&mut pulled, transport);
    untouched(&mut pulled, catalog)?;
    Ok(pulled)
}

/// The law: what moves is what was planned, in all, by session, and as the receiver reports it.
fn traffic(pulled: &mut Pulled, transport: &Recorded) {
    let Pulled { plan, report, tensors, wrong, .. } = pulled;
    let (counters, seen) = (plan.counters(), transport.snapshot());
    let mut same = |what: &str, expected: u64, found: u64| {
        if expected != found {
            wrong.push(format!("{what}: expected {expected}, found {found}"));
        }
    };
    let asked = |t: restage_transport::Traffic| if plan.strided { t.entries } else { t.descriptors };
    same("bytes moved", counters.bytes, seen.total().bytes);
    same("descriptors read", counters.descriptors, asked(seen.total()));
    same("bytes reported", counters.bytes, report.bytes);
    same("parameters reported", tensors.len() as u64, report.params as u64);
    same("sessions read", plan.sessions.len() as u64, seen.sessions.len() as u64);
    for (session, (bytes, descriptors)) in plan.sessions.iter().zip(plan.session_counters()) {
        let traffic = seen.sessions.get(session).copied().unwrap_or_default();
        same(&format!("bytes moved from {session}"), bytes, traffic.bytes);
        same(&format!("descriptors read from {session}"), descriptors, asked(traffic));
    }
}

/// The law: nothing is read but sources that are planned, so that of a refused one not a byte is.
fn untouched(pulled: &mut Pulled, catalog: &Catalog) -> Result<()> {
    let Pulled { plan, reads, wrong, .. } = pulled;
    let refused = |name: &str| plan.refused.iter().any(|r| &*r.source == name);
    let planned = |name: &str| plan.sources.iter().any(|s| &*s.name == name) && !refused(name);
    let planned = ranges::of_sources(catalog.iter().filter(|(name, _)| planned(name)))?;
    if let Some(outside) = ranges::first_outside(&ranges::of_reads(&*reads), &planned) {
        wrong.push(format!("{outside} belong to no source of the plan, and were read"));
    }
    Ok(())
}

/// Keeps what is handed over.
#[derive(Debug, Default)]
struct Kept(Mutex<Tensors>);

impl Sink for Kept {
    fn accept(&self, param: &Param, bytes: &[u8]) -> Result<(), SinkError> {
        let tensor = Tensor { dtype: param.dtype, shape: param.shape.clone(), bytes: bytes.to_vec() };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.insert(param.name.clone(), tensor) {
            None => Ok(()),
            Some(_) => Err("it was handed over before".into()),
        }
    }
}
