//! A part of a plan.

use std::collections::BTreeMap;

use crate::plan::{Counters, Overwritten, Plan, Segment, SourceSummary, Staging, Target};

impl Plan {
    /// The same plan for the parameters whose names are kept: what serves none of them is left out, and the rest is
    /// read as before. Refusals stay where they concern a parameter that is kept.
    ///
    /// Counters are those of what is left: `exact_bytes` and `exact_descriptors` count what the parameters get,
    /// runs merged as the plan has them, and `copies` how many pairs of a source and a parameter there are.
    pub fn part(&self, keep: impl Fn(&str) -> bool) -> Plan {
        let mut numbers = Numbers::default();
        let kept: Vec<usize> = (0..self.params.len()).filter(|&p| keep(&self.params[p].name)).collect();
        let params: BTreeMap<usize, usize> = kept.iter().enumerate().map(|(new, &old)| (old, new)).collect();
        let mut stagings = Vec::new();
        let mut new_staging = BTreeMap::new();
        for (old, staging) in self.stagings.iter().enumerate() {
            let steps = staging.replays.iter().filter_map(|step| {
                let mut step = step.clone();
                step.param = *params.get(&step.param)?;
                Some(step)
            });
            let replays: Vec<_> = steps.collect();
            if !replays.is_empty() {
                new_staging.insert(old, stagings.len());
                numbers.sources.insert(staging.source, 0);
                stagings.push(Staging { replays, ..staging.clone() });
            }
        }
        let mut segments: Vec<Segment> = Vec::new();
        for s in &self.segments {
            let target = match s.target {
                Target::Param(p) => params.get(&p).map(|&p| Target::Param(p)),
                Target::Staging(s) => new_staging.get(&s).map(|&s| Target::Staging(s)),
            };
            let Some(target) = target else { continue };
            numbers.sources.insert(s.source, 0);
            numbers.sessions.insert(s.session, 0);
            segments.push(Segment { target, ..s.clone() });
        }
        numbers.count();
        stagings.iter_mut().for_each(|s| s.source = numbers.sources[&s.source]);
        for s in &mut segments {
            (s.source, s.session) = (numbers.sources[&s.source], numbers.sessions[&s.session]);
        }
        // The order of segments is that of their targets, which keep theirs.
        let fills = self.fills.iter().filter_map(|fill| {
            let param = *params.get(&fill.param)?;
            let mut fill = fill.clone();
            fill.param = param;
            Some(fill)
        });
        let names: Vec<&str> = kept.iter().map(|&p| self.params[p].name.as_str()).collect();
        let overwritten = self.overwritten.iter().filter_map(|o| {
            let param = *params.get(&o.param)?;
            Some(Overwritten { param, ..o.clone() })
        });
        let refused = self.refused.iter().filter_map(|r| {
            let mut r = r.clone();
            r.params.retain(|p| names.contains(&p.as_str()));
            (!r.params.is_empty()).then_some(r)
        });
        let mut part = Plan {
            sessions: numbers.sessions.keys().map(|&s| self.sessions[s].clone()).collect(),
            params: kept.iter().map(|&p| self.params[p].clone()).collect(),
            sources: numbers.sources.keys().map(|&s| self.sources[s].clone()).collect(),
            fills: fills.collect(),
            overwritten: overwritten.collect(),
            refused: refused.collect(),
            coverage: kept.iter().map(|&p| self.coverage[p]).collect(),
            copies: 0,
            segments,
            stagings,
            ..self.clone()
        };
        part.count();
        part
    }

    /// Counts what each source reads and provides from what the plan does.
    fn count(&mut self) {
        let mut counters = vec![Counters::default(); self.sources.len()];
        let mut copies = vec![std::collections::BTreeSet::new(); self.sources.len()];
        for s in &self.segments {
            let (runs, bytes) = (s.nest.run_count().unwrap_or(u64::MAX), s.nest.total().unwrap_or(u64::MAX));
            let c = &mut counters[s.source];
            c.descriptors = c.descriptors.saturating_add(self.entries(&s.nest));
            c.bytes = c.bytes.saturating_add(bytes);
            if let Target::Param(p) = s.target {
                c.exact_descriptors = c.exact_descriptors.saturating_add(runs);
                c.exact_bytes = c.exact_bytes.saturating_add(bytes);
                copies[s.source].insert(p);
            }
        }
        for staging in &self.stagings {
            let c = &mut counters[staging.source];
            for step in &staging.replays {
                for nest in &step.nests {
                    let bytes = nest.total().ok().and_then(|n| step.from.bytes(n)).unwrap_or(u64::MAX);
                    let runs = nest.run_count().unwrap_or(u64::MAX);
                    c.exact_descriptors = c.exact_descriptors.saturating_add(runs);
                    c.exact_bytes = c.exact_bytes.saturating_add(bytes);
                }
                copies[staging.source].insert(step.param);
            }
        }
        for ((source, counters), copies) in self.sources.iter_mut().zip(counters).zip(&copies) {
            *source = SourceSummary { counters, copies: copies.len(), ..source.clone() };
        }
        self.copies = copies.iter().map(|c| c.len()).sum();
    }
}

/// New numbers for old ones, in the same order.
#[derive(Default)]
struct Numbers {
    sources: BTreeMap<usize, usize>,
    sessions: BTreeMap<usize, usize>,
}

impl Numbers {
    fn count(&mut self) {
        self.sources.values_mut().enumerate().for_each(|(new, number)| *number = new);
        self.sessions.values_mut().enumerate().for_each(|(new, number)| *number = new);
    }
}
