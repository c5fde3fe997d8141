//! A receiver: prepared once, pulled from as often as there are versions.

use std::error::Error;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use restage_geometry::{Captured, Param};
use restage_plan::{Catalog, Limits, Plan, PlanError, plan};
use restage_transport::Transport;

use crate::report::{PullError, Report};
use crate::wave::{Wave, run, waves};

/// What a sink may fail with.
pub type SinkError = Box<dyn Error + Send + Sync>;

/// Takes parameters as they become whole.
pub trait Sink: Sync {
    /// Takes one parameter: dense, row-major, all of its bytes. Called once for each, from several threads.
    ///
    /// # Errors
    /// Whatever stands in the way; the pull ends with it.
    fn accept(&self, param: &Param, bytes: &[u8]) -> Result<(), SinkError>;
}

/// One consumer of weights with its plan.
#[derive(Debug, Clone)]
pub struct Receiver {
    plan: Plan,
}

impl Receiver {
    /// Plans the transfer of everything that was captured.
    ///
    /// # Errors
    /// [`PlanError`] where the capture itself is impossible. Sources that cannot be provided are no error
    /// here: they are in [`Plan::refused`], and the others are pulled.
    pub fn prepare(captured: &Captured, catalog: &Catalog, limits: &Limits) -> Result<Self, PlanError> {
        Ok(Receiver { plan: plan(captured, catalog, limits)? })
    }

    /// A receiver of a plan that was made before. Whoever hands it in has checked that the sources are still those
    /// that it was made for.
    pub fn of(plan: Plan) -> Self {
        Receiver { plan }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Pulls every parameter at once into the caller's buffers, in the order of [`Plan::params`]. Buffers of
    /// incomplete parameters are written in part.
    ///
    /// # Errors
    /// [`PullError`]; the buffers' contents are unspecified then.
    pub fn pull_into(
        &self,
        transport: &dyn Transport,
        params: &mut [&mut [u8]],
    ) -> Result<Report, PullError> {
        let mut report = self.start(transport)?;
        let (expected, found) = (self.plan.params.len() as u64, params.len() as u64);
        if expected != found {
            return Err(PullError::Buffers { what: "number of buffers".into(), expected, found });
        }
        for ((param, coverage), buffer) in self.plan.params.iter().zip(&self.plan.coverage).zip(&*params) {
            let (expected, found) = (coverage.bytes, buffer.len() as u64);
            if expected != found {
                return Err(PullError::Buffers { what: param.name.clone(), expected, found });
            }
        }
        for wave in waves(&self.plan, u64::MAX) {
            // One wave holds everything, in the order of the groups.
            let mut slots: Vec<Option<&mut [u8]>> = params.iter_mut().map(|p| Some(&mut **p)).collect();
            let mut buffers: Vec<&mut [u8]> = wave.params.iter().filter_map(|&p| slots[p].take()).collect();
            run(&self.plan, &wave, transport, &mut buffers, &mut report)?;
        }
        Ok(report)
    }

    /// Pulls in waves of about `wave_bytes` and hands each complete parameter to the sink. The next wave is read
    /// while the last one is handed over, so memory stays within twice `wave_bytes`, or twice the largest
    /// parameter together with the stagings that it needs.
    ///
    /// # Errors
    /// [`PullError`]. Parameters that were handed over before are complete; the sink decides what becomes of
    /// them.
    pub fn pull_each(
        &self,
        transport: &dyn Transport,
        wave_bytes: u64,
        sink: &dyn Sink,
    ) -> Result<Report, PullError> {
        let mut report = self.start(transport)?;
        let waves = waves(&self.plan, wave_bytes);
        let size = |wave: &Wave| wave.params.iter().map(|&p| self.plan.coverage[p].bytes).sum::<u64>();
        let largest = waves.iter().map(size).max().unwrap_or(0) as usize;
        // Two allocations serve all waves in turn: fresh pages cost more than the copy.
        let (mut reading, mut done) = (vec![0u8; largest], vec![0u8; largest]);
        let mut last: Option<&Wave> = None;
        let mut handing_over = Duration::ZERO;
        for wave in waves.iter().map(Some).chain([None]) {
            let (read, handed) = rayon::join(
                || wave.map_or(Ok(()), |wave| self.read_wave(wave, transport, &mut reading, &mut report)),
                || {
                    let start = Instant::now();
                    let handed = last.map_or(Ok(()), |wave| self.hand_over(wave, &done, sink));
                    handing_over += start.elapsed();
                    handed
                },
            );
            handed.and(read)?;
            std::mem::swap(&mut reading, &mut done);
            last = wave;
        }
        report.handing_over = handing_over;
        Ok(report)
    }

    fn read_wave(
        &self,
        wave: &Wave,
        transport: &dyn Transport,
        arena: &mut [u8],
        report: &mut Report,
    ) -> Result<(), PullError> {
        let mut rest = arena;
        let mut buffers: Vec<&mut [u8]> = Vec::with_capacity(wave.params.len());
        for &p in &wave.params {
            let (buffer, tail) = rest.split_at_mut(self.plan.coverage[p].bytes as usize);
            buffers.push(buffer);
            rest = tail;
        }
        run(&self.plan, wave, transport, &mut buffers, report)
    }

    /// Hands the complete parameters of a wave to the sink.
    fn hand_over(&self, wave: &Wave, arena: &[u8], sink: &dyn Sink) -> Result<(), PullError> {
        let mut at = 0;
        let mut whole = Vec::with_capacity(wave.params.len());
        for &p in &wave.params {
            let coverage = self.plan.coverage[p];
            let bytes = &arena[at..at + coverage.bytes as usize];
            at += bytes.len();
            if coverage.is_complete() {
                whole.push((&self.plan.params[p], bytes));
            }
        }
        whole.par_iter().try_for_each(|(param, bytes)| {
            let name = || param.name.clone();
            sink.accept(param, bytes).map_err(|error| PullError::Sink { param: name(), error })
        })
    }

    /// Whether all parameters, of which there must be two or more, hold the same bytes, by reading them.
    ///
    /// # Errors
    /// [`PullError`] when one of them cannot be read in full.
    pub fn same_bytes(&self, transport: &dyn Transport) -> Result<bool, PullError> {
        let mut bytes: Vec<Vec<u8>> = self.plan.coverage.iter().map(|c| vec![0; c.bytes as usize]).collect();
        let mut buffers: Vec<&mut [u8]> = bytes.iter_mut().map(Vec::as_mut_slice).collect();
        let report = self.pull_into(transport, &mut buffers)?;
        match &report.incomplete[..] {
            [] if bytes.len() > 1 => Ok(bytes.windows(2).all(|pair| pair[0] == pair[1])),
            incomplete => Err(PullError::Incomplete { params: incomplete.to_vec() }),
        }
    }

    fn start(&self, transport: &dyn Transport) -> Result<Report, PullError> {
        if self.plan.strided && !transport.abilities().gathers {
            return Err(PullError::Abilities { transport: transport.name() });
        }
        let incomplete: Vec<String> = self.plan.incomplete().map(str::to_owned).collect();
        Ok(Report {
            params: self.plan.params.len() - incomplete.len(),
            refused: self.plan.refused.clone(),
            incomplete,
            ..Report::default()
        })
    }
}

/// Whether two captured parameters hold the same bytes, by reading them.
///
/// # Errors
/// [`PullError`] when one of them cannot be read in full.
pub fn same_bytes(
    captured: &Captured,
    catalog: &Catalog,
    limits: &Limits,
    transport: &dyn Transport,
    pair: [&str; 2],
) -> Result<bool, PullError> {
    let both = captured.only(|name| pair.contains(&name));
    Receiver::prepare(&both, catalog, limits)?.same_bytes(transport)
}
