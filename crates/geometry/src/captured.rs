//! What a capture leaves: every copy and every constant that a loader wrote, in its order.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::dtype::Dtype;
use crate::gather::Dest;
use crate::op::Op;

/// A parameter of the consumer: dense and row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, in elements.
    pub shape: Vec<i64>,
}

/// One copy that a loader made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Name of the source.
    pub source: Arc<str>,
    /// What the loader did to it before copying.
    pub ops: Vec<Op>,
    /// Index of the parameter in [`Captured::params`].
    pub param: usize,
    /// Where in the parameter it goes.
    pub dest: Dest,
}

/// A part of a parameter that a loader set to a constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fill {
    /// Index of the parameter in [`Captured::params`].
    pub param: usize,
    /// Where in the parameter it goes.
    pub dest: Dest,
    /// The bytes of one element.
    pub element: Vec<u8>,
    /// How many of [`Captured::copies`] were made before it: where the two write the same elements, the later
    /// one wins. It does not fall from one fill to the next.
    pub after: usize,
}

/// Everything that a loader did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// What the loader took each source to be: dtype and shape in elements.
    pub sources: BTreeMap<Arc<str>, (Dtype, Vec<i64>)>,
    /// Parameters in the order of their declaration.
    pub params: Vec<Param>,
    /// Copies in the order of the loader.
    pub copies: Vec<Copy>,
    /// Constants in the order of the loader.
    pub fills: Vec<Fill>,
    /// Sources that an operation defeated: name and operation. None of their copies are in `copies`. An
    /// operation that is known, [`Op::Value`], defeats nothing: it is in the copy's chain.
    pub unsupported: BTreeMap<Arc<str>, Unsupported>,
}

/// Why a source is unsupported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// The operation that defeated it.
    pub op: String,
    /// Indices of the parameters that were to receive it, whichever operation each copy went through.
    pub params: Vec<usize>,
}

impl Captured {
    /// Adds what another recorder saw after all that is here, its parameters under the names that `rename` gives
    /// them.
    pub fn append(&mut self, other: &Captured, rename: impl Fn(&str) -> String) {
        let (first, after) = (self.params.len(), self.copies.len());
        let renamed = other.params.iter().map(|p| Param { name: rename(&p.name), ..p.clone() });
        self.params.extend(renamed);
        self.copies.extend(other.copies.iter().map(|c| Copy { param: first + c.param, ..c.clone() }));
        let moved = |f: &Fill| Fill { param: first + f.param, after: after + f.after, ..f.clone() };
        self.fills.extend(other.fills.iter().map(moved));
        self.sources.extend(other.sources.iter().map(|(n, s)| (n.clone(), s.clone())));
        for (source, u) in &other.unsupported {
            let entry = Unsupported { op: u.op.clone(), params: Vec::new() };
            let known = self.unsupported.entry(source.clone()).or_insert(entry);
            known.params.extend(u.params.iter().map(|p| first + p));
        }
        self.drop_unsupported();
    }

    /// What was recorded for the parameters that `keep` says yes to, and nothing else.
    pub fn only(&self, keep: impl Fn(&str) -> bool) -> Captured {
        let mut index = vec![None; self.params.len()];
        let mut out = Captured::default();
        for (p, param) in self.params.iter().enumerate().filter(|(_, p)| keep(&p.name)) {
            index[p] = Some(out.params.len());
            out.params.push(param.clone());
        }
        // For each number of copies, how many of them are kept: the place of a fill among those.
        let mut kept = Vec::with_capacity(self.copies.len() + 1);
        kept.push(0);
        for copy in &self.copies {
            if let Some(param) = index[copy.param] {
                out.copies.push(Copy { param, ..copy.clone() });
            }
            kept.push(out.copies.len());
        }
        for fill in &self.fills {
            if let Some(param) = index[fill.param] {
                let after = kept[fill.after.min(self.copies.len())];
                out.fills.push(Fill { param, after, ..fill.clone() });
            }
        }
        for (source, unsupported) in &self.unsupported {
            let params: Vec<usize> = unsupported.params.iter().filter_map(|&p| index[p]).collect();
            if !params.is_empty() {
                out.unsupported.insert(source.clone(), Unsupported { op: unsupported.op.clone(), params });
            }
        }
        let used: HashSet<&str> =
            out.copies.iter().map(|c| &*c.source).chain(out.unsupported.keys().map(|n| &**n)).collect();
        let sources = self.sources.iter().filter(|(name, _)| used.contains(&***name));
        out.sources = sources.map(|(name, source)| (name.clone(), source.clone())).collect();
        out
    }

    /// Drops the copies of unsupported sources: one that a copy cannot be taken from is refused as a whole, by
    /// all parameters that wanted it.
    pub(crate) fn drop_unsupported(&mut self) {
        if self.unsupported.is_empty() {
            return;
        }
        let mut bad = std::mem::take(&mut self.unsupported);
        for copy in self.copies.iter().filter(|c| !c.dest.shape.contains(&0)) {
            if let Some(entry) = bad.get_mut(&copy.source) {
                entry.params.push(copy.param);
            }
        }
        for entry in bad.values_mut() {
            entry.params.sort_unstable();
            entry.params.dedup();
        }
        self.retain_copies(|c| !bad.contains_key(&c.source));
        self.unsupported = bad;
    }

    /// Drops copies, and keeps the fills in their place between the others.
    fn retain_copies(&mut self, keep: impl Fn(&Copy) -> bool) {
        let mut kept = Vec::with_capacity(self.copies.len() + 1);
        kept.push(0);
        let mut n = 0;
        self.copies.retain(|copy| {
            let keep = keep(copy);
            n += usize::from(keep);
            kept.push(n);
            keep
        });
        for fill in &mut self.fills {
            fill.after = kept[fill.after];
        }
    }
}
