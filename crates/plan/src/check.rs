//! A read-only pass over a plan: accepts or rejects it, and never repairs.
//!
//! It shares no step of planning but the replay of chains and the order of writes. Parameter by parameter, what
//! the loader wrote (element of a source, or constant) is laid beside what the plan provides (address in a
//! session, straight or through a staging), and every address is looked up in the shards again.
//!
//! The cost grows with the runs of the plan, the memory with those of its largest parameter.

use std::collections::{BTreeSet, HashMap};

use restage_geometry::{Captured, Dtype, Fill, Replay, ValueOp, gather, replay_typed};
use restage_nest::{Nest, cover};
use thiserror::Error;

use crate::order::{WriteOrder, within};
use crate::plan::{Counters, Plan, Target};
use crate::source::{Catalog, Shard, Source};

/// What is wrong with a plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The plan speaks of something that it was not made from, or contradicts itself.
    #[error("{what} of the plan: expected {expected}, found {found}")]
    Differs {
        /// What does not agree.
        what: String,
        /// What follows from the capture, the catalog or the rest of the plan.
        expected: String,
        /// What the plan says.
        found: String,
    },
    /// Bytes of a parameter or a staging that are written twice.
    #[error("{target}: written twice at {at}")]
    Twice {
        /// The parameter, or the staging.
        target: String,
        /// Position, in elements of a parameter or bytes of a staging.
        at: u64,
    },
    /// Elements that the loader wrote and the plan does not provide.
    #[error("parameter {param}: nothing provides element {at}, which is taken from {writer}")]
    Missing {
        /// The parameter.
        param: String,
        /// Position in it, in elements.
        at: u64,
        /// The source, or a constant.
        writer: String,
    },
    /// Elements that the plan provides and the loader did not write.
    #[error("parameter {param}: element {at} is provided, and nothing of the capture writes it")]
    Surplus {
        /// The parameter.
        param: String,
        /// Position in it, in elements.
        at: u64,
    },
    /// An element that is provided from the wrong place.
    #[error("parameter {param}: element {at} is to come from {expected}, and comes from {found}")]
    Wrong {
        /// The parameter.
        param: String,
        /// Position in it, in elements.
        at: u64,
        /// What the loader wrote there.
        expected: String,
        /// What the plan provides.
        found: String,
    },
    /// A read outside of what is published.
    #[error("bytes {start}..{end} of session {session} are read, and no shard holds all of them")]
    Outside {
        /// The session.
        session: String,
        /// First address.
        start: u64,
        /// One past the last.
        end: u64,
    },
}

/// Checks a plan against what it was made from.
///
/// # Errors
/// [`Fault`]: the first that is found.
pub fn check(plan: &Plan, captured: &Captured, catalog: &Catalog) -> Result<(), Fault> {
    let checker = Checker::new(plan, captured, catalog)?;
    checker.reads()?;
    let staged = checker.staged()?;
    let expected = checker.expected()?;
    let mut provided = checker.provided(&staged)?;
    for (p, expected) in expected.iter().enumerate() {
        checker.param(p, expected, std::mem::take(&mut provided[p]))?;
    }
    checker.sums()
}

/// What an element holds, and where from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Content<'a> {
    /// Elements of a source from this one on, and what is done to them.
    Source {
        source: &'a str,
        element: u64,
    },
    /// Bytes of a session from this address on.
    Session {
        session: usize,
        addr: u64,
    },
    Constant(&'a [u8]),
}

/// Neighbouring elements of a parameter.
#[derive(Debug, Clone, Copy)]
struct Stretch<'a> {
    at: u64,
    len: u64,
    content: Content<'a>,
    values: &'a [ValueOp],
    from: Dtype,
}

/// What a staging holds, by position in bytes: length, session and address.
type Held = std::collections::BTreeMap<u64, (u64, usize, u64)>;

/// Writes to one parameter that are still nests.
struct Writes<'a> {
    nests: Vec<Nest>,
    content: Writer<'a>,
    values: Vec<ValueOp>,
    from: Dtype,
}

enum Writer<'a> {
    Source(&'a str),
    Constant(Vec<u8>),
}

struct Checker<'a> {
    plan: &'a Plan,
    captured: &'a Captured,
    catalog: &'a Catalog,
    /// Shards by source and session of the plan.
    shards: HashMap<(&'a str, usize), Vec<&'a Shard>>,
    /// Addresses that each session of the plan publishes, joined and sorted.
    published: Vec<Vec<(u64, u64)>>,
    refused: BTreeSet<&'a str>,
}

fn differs(what: impl Into<String>, expected: impl ToString, found: impl ToString) -> Fault {
    Fault::Differs { what: what.into(), expected: expected.to_string(), found: found.to_string() }
}

impl<'a> Checker<'a> {
    fn new(plan: &'a Plan, captured: &'a Captured, catalog: &'a Catalog) -> Result<Self, Fault> {
        let mut params: Vec<_> = captured.params.iter().collect();
        params.sort_by(|a, b| a.name.cmp(&b.name));
        if !params.iter().copied().eq(&plan.params) || plan.coverage.len() != params.len() {
            return Err(differs("parameters", params.len(), "others"));
        }
        let numbers: HashMap<&str, usize> =
            plan.sessions.iter().enumerate().map(|(i, s)| (&**s, i)).collect();
        let mut shards: HashMap<_, Vec<&Shard>> = HashMap::new();
        let mut published = vec![Vec::new(); plan.sessions.len()];
        for (name, source) in catalog.iter() {
            for shard in source.shards.iter().filter(|s| !s.region.is_empty()) {
                let Some(&session) = numbers.get(&*shard.session) else { continue };
                shards.entry((name, session)).or_default().push(shard);
                let bytes = shard.region.numel().and_then(|n| source.dtype.bytes(n as u64)).unwrap_or(0);
                published[session].push((shard.addr, shard.addr + bytes));
            }
        }
        for list in &mut published {
            list.sort_unstable();
            list.dedup_by(|next, last| {
                let touches = next.0 <= last.1;
                if touches {
                    last.1 = last.1.max(next.1);
                }
                touches
            });
        }
        for s in &plan.sources {
            if catalog.get(&s.name).is_none() {
                return Err(differs("sources", "published ones", &s.name));
            }
        }
        let counted =
            [plan.segments.iter().map(|s| s.source).max(), plan.stagings.iter().map(|s| s.source).max()];
        if counted.into_iter().flatten().any(|s| s >= plan.sources.len()) {
            return Err(differs("sources", plan.sources.len(), "a number past them"));
        }
        let refused = plan.refused.iter().map(|r| &*r.source).collect();
        Ok(Checker { plan, captured, catalog, shards, published, refused })
    }

    /// Everything that is read is published, and nothing is written outside of its target.
    fn reads(&self) -> Result<(), Fault> {
        for s in &self.plan.segments {
            let bad = |e: restage_nest::NestError| differs("a segment", "positions in 64 bits", e);
            let (src, dst) = (s.nest.src_side().map_err(bad)?, s.nest.dst_side().map_err(bad)?);
            let room = match s.target {
                Target::Param(p) => self.plan.coverage.get(p).map(|c| c.bytes),
                Target::Staging(t) => self.plan.stagings.get(t).map(|t| t.bytes),
            };
            let end = dst.end().map_err(bad)?;
            if room.is_none_or(|room| end > room) {
                return Err(differs("a target", room.unwrap_or(0), end));
            }
            let (start, end) = (src.start, src.end().map_err(bad)?);
            let Some(published) = self.published.get(s.session) else {
                return Err(differs("sessions", self.plan.sessions.len(), s.session));
            };
            // Of a segment with loops each run is looked up where it is used.
            let at = published.partition_point(|p| p.1 < end);
            let inside = published.get(at).is_some_and(|p| p.0 <= start);
            if !inside && (s.nest.loops.is_empty() || matches!(s.target, Target::Staging(_))) {
                let outside = |run: restage_nest::Run| {
                    let (start, end) = (run.src, run.src + run.len);
                    let at = published.partition_point(|p| p.1 < end);
                    published.get(at).is_none_or(|p| p.0 > start).then_some((start, end))
                };
                if let Some((start, end)) = s.nest.runs().find_map(outside) {
                    let session = self.plan.sessions[s.session].to_string();
                    return Err(Fault::Outside { session, start, end });
                }
            }
        }
        for (at, s) in self.plan.stagings.iter().enumerate() {
            if let Some(limit) = self.plan.staging_bytes.filter(|&limit| s.bytes > limit) {
                return Err(differs(format!("staging {at}"), limit, s.bytes));
            }
        }
        Ok(())
    }

    /// What each staging holds.
    fn staged(&self) -> Result<Vec<Held>, Fault> {
        let mut held = vec![Held::new(); self.plan.stagings.len()];
        let mut sides = vec![Vec::new(); self.plan.stagings.len()];
        for s in &self.plan.segments {
            let Target::Staging(t) = s.target else { continue };
            sides[t].extend(s.nest.dst_side());
            for run in s.nest.runs() {
                held[t].insert(run.dst, (run.len, s.session, run.src));
            }
        }
        for (t, sides) in sides.iter().enumerate() {
            let target = || format!("staging {t}");
            cover::disjoint(sides).map_err(|o| Fault::Twice { target: target(), at: o.at })?;
        }
        Ok(held)
    }

    /// What the loader wrote to each parameter and no later write replaced.
    fn expected(&self) -> Result<Vec<Vec<Writes<'a>>>, Fault> {
        let writes = WriteOrder::new(self.captured);
        let number: HashMap<&str, usize> =
            self.plan.params.iter().enumerate().map(|(i, p)| (p.name.as_str(), i)).collect();
        let number = |param: usize| number[self.captured.params[param].name.as_str()];
        let mut out: Vec<Vec<Writes<'a>>> = self.plan.params.iter().map(|_| Vec::new()).collect();
        for (at, copy) in self.captured.copies.iter().enumerate() {
            if self.refused.contains(&*copy.source) {
                continue;
            }
            let wrong =
                |why: &dyn ToString| differs(format!("source {}", copy.source), "a refusal", why.to_string());
            let source =
                self.catalog.get(&copy.source).ok_or_else(|| wrong(&"none, and it is not published"))?;
            let (view, mut values, last) =
                match replay_typed(source.dtype, &source.shape, &copy.ops).map_err(|e| wrong(&e))? {
                    Replay::Exact(view) => (view, Vec::new(), source.dtype),
                    Replay::Opaque { recipe: Some(r), .. } => (r.view, r.values, r.to),
                    Replay::Opaque { op, .. } => return Err(wrong(&op)),
                };
            let param = &self.captured.params[copy.param];
            if last != param.dtype {
                values.push(ValueOp::To(param.dtype));
            }
            let mut nests = gather(&view, &copy.dest).map_err(|e| wrong(&e))?;
            if let Some(kept) = writes.of_copy(at) {
                nests = within(&nests, kept);
            }
            let content = Writer::Source(&copy.source);
            out[number(copy.param)].push(Writes { nests, content, values, from: source.dtype });
        }
        for fill in writes.fills(self.captured) {
            let dtype = self.captured.params[fill.param].dtype;
            out[number(fill.param)].push(Writes {
                nests: vec![fill.dest.nest()],
                content: Writer::Constant(fill.element),
                values: Vec::new(),
                from: dtype,
            });
        }
        Ok(out)
    }

    /// What the plan provides for each parameter.
    fn provided(&self, staged: &[Held]) -> Result<Vec<Vec<Stretch<'a>>>, Fault> {
        let plan = self.plan;
        let mut out: Vec<Vec<Stretch<'a>>> = vec![Vec::new(); plan.params.len()];
        for s in &plan.segments {
            let Target::Param(p) = s.target else { continue };
            let dtype = plan.params[p].dtype;
            let (elements, bytes) = (dtype.packing().elements, dtype.packing().bytes);
            for run in s.nest.runs() {
                if !run.dst.is_multiple_of(bytes) || !run.len.is_multiple_of(bytes) {
                    return Err(differs("a segment", "whole elements", format!("{run:?}")));
                }
                let content = Content::Session { session: s.session, addr: run.src };
                let (at, len) = (run.dst / bytes * elements, run.len / bytes * elements);
                out[p].push(Stretch { at, len, content, values: &[], from: dtype });
            }
        }
        for (staging, held) in plan.stagings.iter().zip(staged) {
            for step in &staging.replays {
                let packing = step.from.packing();
                let Some(list) = out.get_mut(step.param) else {
                    return Err(differs("a replay", plan.params.len(), step.param));
                };
                for run in step.nests.iter().flat_map(Nest::runs) {
                    let (mut at, mut left) = (run.dst, run.len);
                    let mut from = run.src / packing.elements * packing.bytes;
                    while left > 0 {
                        // The stretch that holds the first byte.
                        let part = held.range(..=from).next_back().map(|(&start, &part)| (start, part));
                        let found = part.filter(|(start, part)| from + packing.bytes <= start + part.0);
                        let Some((start, (len, session, addr))) = found else {
                            return Err(differs("a replay", "bytes that were read", from));
                        };
                        let most = (start + len - from) / packing.bytes * packing.elements;
                        let len = left.min(most);
                        let content = Content::Session { session, addr: addr + (from - start) };
                        list.push(Stretch { at, len, content, values: &step.values, from: step.from });
                        (at, left) = (at + len, left - len);
                        from += len / packing.elements * packing.bytes;
                    }
                }
            }
        }
        for Fill { param, dest, element, .. } in &plan.fills {
            let Some(list) = out.get_mut(*param) else {
                return Err(differs("a constant", plan.params.len(), param));
            };
            let from = plan.params[*param].dtype;
            list.extend(dest.nest().runs().map(|run| Stretch {
                at: run.dst,
                len: run.len,
                content: Content::Constant(element),
                values: &[],
                from,
            }));
        }
        Ok(out)
    }

    /// One parameter: what is expected beside what is provided.
    fn param<'b>(
        &self,
        p: usize,
        expected: &'b [Writes<'b>],
        mut provided: Vec<Stretch<'b>>,
    ) -> Result<(), Fault> {
        let name = || self.plan.params[p].name.clone();
        let mut wanted: Vec<Stretch<'b>> = Vec::new();
        for w in expected {
            wanted.extend(w.nests.iter().flat_map(Nest::runs).map(|run| Stretch {
                at: run.dst,
                len: run.len,
                content: match &w.content {
                    Writer::Source(source) => Content::Source { source, element: run.src },
                    Writer::Constant(element) => Content::Constant(element),
                },
                values: &w.values,
                from: w.from,
            }));
        }
        for list in [&mut wanted, &mut provided] {
            list.sort_by_key(|s| s.at);
            if let Some(w) = list.windows(2).find(|w| w[0].at + w[0].len > w[1].at) {
                return Err(Fault::Twice { target: name(), at: w[1].at });
            }
        }
        let covered: u64 = provided.iter().map(|s| s.len).sum();
        let mut have = provided.into_iter().peekable();
        for mut want in wanted {
            while want.len > 0 {
                let Some(found) = have.peek_mut().filter(|s| s.at <= want.at) else {
                    return Err(Fault::Missing { param: name(), at: want.at, writer: want.writer() });
                };
                if found.at < want.at {
                    return Err(Fault::Surplus { param: name(), at: found.at });
                }
                let len = self.same(p, &want, found)?;
                want.skip(len);
                found.skip(len);
                if found.len == 0 {
                    have.next();
                }
            }
        }
        if let Some(more) = have.next() {
            return Err(Fault::Surplus { param: name(), at: more.at });
        }
        let bytes = self.plan.params[p].dtype.bytes(covered);
        let coverage = self.plan.coverage[p].covered;
        if bytes != Some(coverage) {
            return Err(differs(format!("coverage of {}", name()), bytes.unwrap_or(0), coverage));
        }
        Ok(())
    }

    /// How many elements from here on are known to be the same.
    fn same(&self, p: usize, want: &Stretch<'_>, found: &Stretch<'_>) -> Result<u64, Fault> {
        let len = want.len.min(found.len);
        let wrong = || Fault::Wrong {
            param: self.plan.params[p].name.clone(),
            at: want.at,
            expected: want.writer(),
            found: found.place(self.plan),
        };
        match (want.content, found.content) {
            (Content::Constant(a), Content::Constant(b)) if a == b => Ok(len),
            (Content::Source { source, element }, Content::Session { session, addr })
                if want.values == found.values && want.from == found.from =>
            {
                let published = self.catalog.get(source).ok_or_else(wrong)?;
                let shards = self.shards.get(&(source, session)).map_or(&[][..], Vec::as_slice);
                let held = shards.iter().find_map(|s| run_in(published, s, element, addr));
                held.map(|most| len.min(most)).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }

    /// The counters are those of the segments.
    fn sums(&self) -> Result<(), Fault> {
        let plan = self.plan;
        let mut read = Counters::default();
        for s in &plan.segments {
            read.bytes = read.bytes.saturating_add(s.nest.total().unwrap_or(u64::MAX));
            read.descriptors = read.descriptors.saturating_add(plan.entries(&s.nest));
        }
        let said = plan.counters();
        if (read.bytes, read.descriptors) != (said.bytes, said.descriptors) {
            let pair = |c: &Counters| format!("{} bytes in {} descriptors", c.bytes, c.descriptors);
            return Err(differs("counters", pair(&read), pair(&said)));
        }
        Ok(())
    }
}

/// How many elements of a source, from this one on, lie side by side in a shard from this address on; `None`
/// where it is not that element that lies there.
fn run_in(source: &Source, shard: &Shard, element: u64, addr: u64) -> Option<u64> {
    let (start, end) = (shard.region.start(), shard.region.end());
    let mut rest = element as i64;
    let mut place: i64 = source.shape.iter().product();
    let mut local = 0i64;
    // Elements from this one to the end of what both sides have side by side.
    let mut run = 1i64;
    for (d, &size) in source.shape.iter().enumerate() {
        place /= size.max(1);
        let index = rest / place;
        rest %= place;
        if index < start[d] || index >= end[d] {
            return None;
        }
        local = local * (end[d] - start[d]) + (index - start[d]);
        // What is inside of a dimension continues over its end only where the shard has all of it.
        let whole = start[d] == 0 && end[d] == size;
        run = if whole { (run - 1) * size + (size - index) } else { end[d] - index };
    }
    let packing = source.dtype.packing();
    let local = u64::try_from(local).ok()?;
    let at = local / packing.elements * packing.bytes;
    let falls = local.is_multiple_of(packing.elements) && shard.addr.checked_add(at)? == addr;
    falls.then_some(run as u64)
}

impl Stretch<'_> {
    /// Goes on by some elements.
    fn skip(&mut self, len: u64) {
        self.at += len;
        self.len -= len;
        match &mut self.content {
            Content::Source { element, .. } => *element += len,
            Content::Session { addr, .. } => {
                let packing = self.from.packing();
                *addr += len / packing.elements * packing.bytes;
            }
            Content::Constant(_) => {}
        }
    }

    fn writer(&self) -> String {
        match self.content {
            Content::Source { source, element } => format!("element {element} of {source}"),
            Content::Session { addr, .. } => format!("address {addr}"),
            Content::Constant(element) => format!("the constant {element:02x?}"),
        }
    }

    fn place(&self, plan: &Plan) -> String {
        match self.content {
            Content::Session { session, addr } => format!("address {addr} of {}", plan.sessions[session]),
            _ => self.writer(),
        }
    }
}
