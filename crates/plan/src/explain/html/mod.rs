//! A plan, or the plans of a job, as one HTML page: no script, no network, nothing beside the file.

mod escape;
mod heat;
mod sections;

use std::fmt;

use super::name::{group, short};
use crate::fleet::Traffic;
use crate::plan::{Counters, Plan};
use escape::Text;
use heat::Heat;

/// Displays an HTML page. It depends on what it is given and on nothing else, and whatever names hold stays text.
#[derive(Debug, Clone)]
pub struct Page<'a> {
    /// What was planned, in a few words.
    pub title: &'a str,
    /// What was asked for: names and values, in the order in which they are shown.
    pub facts: Vec<(&'a str, String)>,
    /// What each session sends to each rank.
    pub traffic: &'a Traffic,
    /// The ranks.
    pub members: Vec<PageMember<'a>>,
}

/// A rank on a page.
#[derive(Debug, Clone)]
pub struct PageMember<'a> {
    /// Its name; empty where there is one plan that is no rank's.
    pub name: String,
    /// Its counters.
    pub counters: Counters,
    /// Number of its parameters.
    pub params: usize,
    /// Their bytes.
    pub param_bytes: u64,
    /// Number of refused sources.
    pub refused: usize,
    /// Number of parameters that are not provided in full.
    pub incomplete: usize,
    /// Its plan, where it was kept.
    pub plan: Option<&'a Plan>,
}

impl<'a> PageMember<'a> {
    /// A rank with its plan.
    pub fn new(name: impl Into<String>, plan: &'a Plan) -> Self {
        PageMember {
            name: name.into(),
            counters: plan.counters(),
            params: plan.params.len(),
            param_bytes: plan.param_bytes(),
            refused: plan.refused.len(),
            incomplete: plan.incomplete().count(),
            plan: Some(plan),
        }
    }
}

/// The style, which is part of the page.
const STYLE: &str = include_str!("page.css");

/// Fetches nothing and runs nothing, even if something got past the escaping.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = Text(self.title);
        writeln!(f, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
        writeln!(f, "<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">")?;
        writeln!(f, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
        writeln!(f, "<meta name=\"color-scheme\" content=\"light dark\">")?;
        writeln!(f, "<title>Transfer plan: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>")?;
        writeln!(f, "<header>\n<h1>Transfer plan: {title}</h1>\n<dl class=\"facts\">")?;
        for (name, value) in &self.facts {
            writeln!(f, "<div><dt>{}</dt><dd>{}</dd></div>", Text(name), Text(value))?;
        }
        writeln!(f, "</dl>\n</header>\n<main>")?;
        self.refused(f)?;
        self.overwritten(f)?;
        self.totals(f)?;
        writeln!(f, "<section>\n<h2>Traffic</h2>")?;
        match self.traffic.sessions.is_empty() {
            true => writeln!(f, "<p>Nothing is read.</p>")?,
            false => write!(f, "{}", Heat(self.traffic))?,
        }
        writeln!(f, "</section>")?;
        self.sessions(f)?;
        self.ranks(f)?;
        self.parameters(f)?;
        self.stagings(f)?;
        self.coverage(f)?;
        writeln!(
            f,
            "</main>\n<footer>Made by restage from shapes and addresses alone: no byte of a tensor was read.</footer>"
        )?;
        writeln!(f, "</body>\n</html>")
    }
}

impl Page<'_> {
    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&PageMember<'_>) -> u64| self.members.iter().map(of).fold(0, u64::saturating_add);
        let bytes = sum(|m| m.counters.bytes);
        let param_bytes = sum(|m| m.param_bytes);
        let params: usize = self.members.iter().map(|m| m.params).sum();
        let incomplete: usize = self.members.iter().map(|m| m.incomplete).sum();
        let tile = |f: &mut fmt::Formatter<'_>, name: &str, value: String, more: String| {
            writeln!(f, "<div><dt>{name}</dt><dd>{value} <small>{more}</small></dd></div>")
        };
        let in_full = |n: u64| format!("{} bytes", group(n));
        writeln!(f, "<section>\n<h2>Totals</h2>\n<dl class=\"totals\">")?;
        tile(f, "read", short(bytes), in_full(bytes))?;
        let exact = sum(|m| m.counters.exact_bytes);
        tile(f, "needed", short(exact), in_full(exact))?;
        let extra = sum(|m| m.counters.extra_wire_bytes());
        let share = match bytes {
            0 => String::new(),
            _ => format!(", {:.2} % of what is read", extra as f64 / bytes as f64 * 100.0),
        };
        tile(f, "read beyond that", short(extra), in_full(extra) + &share)?;
        tile(f, "descriptors", group(sum(|m| m.counters.descriptors)), "given to the transport".to_owned())?;
        let exact = sum(|m| m.counters.exact_descriptors);
        tile(f, "exact descriptors", group(exact), "contiguous runs of the copies".to_owned())?;
        tile(f, "parameters", group(params as u64), in_full(param_bytes))?;
        tile(f, "incomplete", group(incomplete as u64), "parameters not provided in full".to_owned())?;
        if let Some((session, bytes)) = self.traffic.hottest_session() {
            let more = format!("sent by {}", Text(&self.traffic.sessions[session]));
            tile(f, "hottest session", short(bytes), more)?;
            let imbalance = format!("{:.3}", self.traffic.imbalance());
            tile(f, "imbalance", imbalance, "hottest session over the mean".to_owned())?;
        }
        writeln!(f, "</dl>\n</section>")
    }
}
