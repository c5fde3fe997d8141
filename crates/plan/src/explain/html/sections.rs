//! The lists of a page.

use std::cmp::Reverse;
use std::fmt;

use super::Page;
use super::escape::Text;
use crate::explain::holes::holes;
use crate::explain::name::{group, short};
use crate::explain::served::{served, why};
use crate::plan::Plan;

/// Rows of a list of parameters, sources or reasons; the text of a plan has them all.
const ROWS: usize = 50;

/// Rows of the list of sessions, which is what most look for.
const SESSIONS: usize = 1024;

/// Boxes of a hole that are shown.
const BOXES: usize = 8;

/// Opens a table of these columns, with the roles of its parts: on a narrow screen rows are stacked, and what is laid out
/// as blocks would be no table any more to a screen reader. Those that hold numbers are marked.
fn open(f: &mut fmt::Formatter<'_>, label: &str, class: &str, columns: &[(&str, bool)]) -> fmt::Result {
    writeln!(f, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">")?;
    write!(f, "<table class=\"{class}\" role=\"table\">\n<thead role=\"rowgroup\"><tr role=\"row\">")?;
    for (name, number) in columns {
        let class = if *number { " class=\"number\"" } else { "" };
        write!(f, "<th scope=\"col\" role=\"columnheader\"{class}>{name}</th>")?;
    }
    writeln!(f, "</tr></thead>\n<tbody role=\"rowgroup\">")
}

fn close(f: &mut fmt::Formatter<'_>, shown: usize, all: usize) -> fmt::Result {
    writeln!(f, "</tbody>\n</table></div>")?;
    match all - shown {
        0 => Ok(()),
        rest => writeln!(f, "<p class=\"quiet\">{} more are not shown.</p>", group(rest as u64)),
    }
}

impl Page<'_> {
    fn plans(&self) -> impl Iterator<Item = (&str, &Plan)> {
        self.members.iter().filter_map(|m| Some((m.name.as_str(), m.plan?)))
    }

    /// True when the lists need a column for the rank.
    fn several(&self) -> bool {
        self.members.len() > 1
    }

    pub(super) fn refused(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: usize = self.members.iter().map(|m| m.refused).sum();
        let incomplete: usize = self.members.iter().map(|m| m.incomplete).sum();
        writeln!(f, "<section>\n<h2>Refused</h2>")?;
        if all == 0 {
            let text = match incomplete {
                0 => "Nothing is refused, and every parameter is provided in full.",
                _ => "Nothing is refused; some parameters are not provided in full (see Coverage).",
            };
            let class = if incomplete == 0 { "good" } else { "bad" };
            return writeln!(f, "<p class=\"notice {class}\">{text}</p>\n</section>");
        }
        writeln!(
            f,
            "<p class=\"notice bad\">{} refused: nothing of these sources is read.</p>",
            sources(all)
        )?;
        let listed: usize = self.plans().map(|(_, plan)| plan.refused.len()).sum();
        if listed > 0 {
            let columns = [("source", false), ("reason", false), ("parameters that lack it", false)];
            open(f, "Refused sources", "stack", &columns)?;
            let rows = self.plans().flat_map(|(rank, plan)| plan.refused.iter().map(move |r| (rank, r)));
            for (rank, r) in rows.take(ROWS) {
                let rank = if self.several() { format!("{}: ", Text(rank)) } else { String::new() };
                write!(
                    f,
                    "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">{rank}<span class=\"name\">{}</span></th>",
                    Text(&r.source)
                )?;
                write!(f, "<td role=\"cell\" data-of=\"reason\">{}</td>", Text(&r.reason.to_string()))?;
                writeln!(
                    f,
                    "<td role=\"cell\" data-of=\"lacking\"><span class=\"name\">{}</span></td></tr>",
                    Text(&r.params.join(", "))
                )?;
            }
            close(f, listed.min(ROWS), listed)?;
        }
        for m in self.members.iter().filter(|m| m.plan.is_none() && m.refused > 0).take(ROWS) {
            writeln!(f, "<p>{}: {} refused.</p>", Text(&m.name), sources(m.refused))?;
        }
        writeln!(f, "</section>")
    }

    pub(super) fn overwritten(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows =
            || self.plans().flat_map(|(rank, plan)| plan.overwritten.iter().map(move |o| (rank, plan, o)));
        let all = rows().count();
        if all == 0 {
            return Ok(());
        }
        writeln!(f, "<section>\n<h2>Overwritten</h2>")?;
        writeln!(
            f,
            "<p class=\"quiet\">Writes of the loader that a later one replaced; they are not carried out.</p>"
        )?;
        let columns = [("parameter", false), ("written by", false), ("bytes", true)];
        open(f, "Overwritten", "stack", &columns)?;
        for (rank, plan, o) in rows().take(ROWS) {
            let rank = if self.several() { format!("{}: ", Text(rank)) } else { String::new() };
            let name = Text(&plan.params[o.param].name);
            write!(
                f,
                "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">{rank}<span class=\"name\">{name}</span></th>"
            )?;
            write!(
                f,
                "<td role=\"cell\" data-of=\"written by\"><span class=\"name\">{}</span></td>",
                Text(&o.writer)
            )?;
            writeln!(f, "<td role=\"cell\" class=\"number\" data-of=\"bytes\">{}</td></tr>", group(o.bytes))?;
        }
        close(f, all.min(ROWS), all)?;
        writeln!(f, "</section>")
    }

    pub(super) fn sessions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = self.traffic;
        if t.sessions.is_empty() {
            return Ok(());
        }
        let bytes = t.session_bytes();
        let descriptors = |row: &[u64]| row.iter().fold(0u64, |a, &b| a.saturating_add(b));
        let most = bytes.iter().copied().max().unwrap_or(0).max(1);
        let mut order: Vec<usize> = (0..t.sessions.len()).collect();
        order.sort_by_key(|&s| (Reverse(bytes[s]), s));
        writeln!(f, "<section>\n<h2>Sessions</h2>\n<p class=\"quiet\">From the one that sends most.</p>")?;
        let columns =
            [("session", false), ("share of the most", false), ("bytes", true), ("descriptors", true)];
        open(f, "Sessions", "bars stack", &columns)?;
        for &s in order.iter().take(SESSIONS) {
            let width = bytes[s] as f64 / most as f64 * 100.0;
            write!(
                f,
                "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\" class=\"name\">{}</th>",
                Text(&t.sessions[s])
            )?;
            write!(
                f,
                "<td role=\"cell\" class=\"room\"><span class=\"bar\" style=\"width:{width:.1}%\" aria-hidden=\"true\"></span></td>"
            )?;
            write!(
                f,
                "<td role=\"cell\" class=\"number\" data-of=\"bytes\" title=\"{} bytes\">{}</td>",
                group(bytes[s]),
                short(bytes[s])
            )?;
            writeln!(
                f,
                "<td role=\"cell\" class=\"number\" data-of=\"descriptors\">{}</td></tr>",
                group(descriptors(&t.descriptors[s]))
            )?;
        }
        close(f, order.len().min(SESSIONS), order.len())?;
        writeln!(f, "</section>")
    }

    pub(super) fn ranks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.several() {
            return Ok(());
        }
        writeln!(f, "<section>\n<h2>Ranks</h2>")?;
        let columns = [
            ("rank", false),
            ("parameters", true),
            ("their bytes", true),
            ("read", true),
            ("beyond need", true),
            ("descriptors", true),
        ];
        open(f, "Ranks", "stack", &columns)?;
        for m in self.members.iter().take(SESSIONS) {
            write!(
                f,
                "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\" class=\"name\">{}</th>",
                Text(&m.name)
            )?;
            for (of, value) in [
                ("parameters", group(m.params as u64)),
                ("their bytes", short(m.param_bytes)),
                ("read", short(m.counters.bytes)),
                ("beyond need", short(m.counters.extra_wire_bytes())),
                ("descriptors", group(m.counters.descriptors)),
            ] {
                write!(f, "<td role=\"cell\" class=\"number\" data-of=\"{of}\">{value}</td>")?;
            }
            writeln!(f, "</tr>")?;
        }
        close(f, self.members.len().min(SESSIONS), self.members.len())?;
        writeln!(f, "</section>")
    }

    pub(super) fn parameters(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = Vec::new();
        for (rank, plan) in self.plans() {
            rows.extend((0..plan.params.len()).map(|p| (Reverse(plan.coverage[p].bytes), p, rank, plan)));
        }
        if rows.is_empty() {
            return Ok(());
        }
        // Largest first, then by name, then by rank: the same of all ranks stand together.
        rows.sort_by(|a, b| (a.0, &a.3.params[a.1].name).cmp(&(b.0, &b.3.params[b.1].name)));
        let all = rows.len();
        rows.truncate(ROWS);
        // Which parts every plan serves is worked out once.
        let mut known: Vec<(&str, Vec<super::super::Served>)> = Vec::new();
        writeln!(f, "<section>\n<h2>Largest parameters</h2>")?;
        let columns =
            [("parameter", false), ("dtype and shape", false), ("bytes", true), ("served by", false)];
        open(f, "Largest parameters", "stack", &columns)?;
        for (Reverse(bytes), p, rank, plan) in rows {
            let at = known.iter().position(|(name, _)| *name == rank).unwrap_or_else(|| {
                known.push((rank, served(plan)));
                known.len() - 1
            });
            let param = &plan.params[p];
            let rank = if self.several() { format!("{}: ", Text(rank)) } else { String::new() };
            write!(
                f,
                "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">{rank}<span class=\"name\">{}</span></th>",
                Text(&param.name)
            )?;
            write!(f, "<td role=\"cell\" data-of=\"shape\">{} {:?}</td>", param.dtype, param.shape)?;
            write!(
                f,
                "<td role=\"cell\" class=\"number\" data-of=\"bytes\" title=\"{} bytes\">{}</td>",
                group(bytes),
                short(bytes)
            )?;
            write!(f, "<td role=\"cell\" data-of=\"served by\"><ul>")?;
            let s = &known[at].1[p];
            for part in s.parts.iter().take(BOXES) {
                write!(f, "<li>{}</li>", Text(&part.line(plan)))?;
            }
            if s.parts.len() > BOXES {
                write!(f, "<li>and {} more</li>", s.parts.len() - BOXES)?;
            }
            if s.missing > 0 {
                write!(f, "<li><strong>missing {} bytes</strong></li>", group(s.missing))?;
            }
            if s.parts.is_empty() && s.missing == 0 {
                write!(f, "<li>nothing to provide</li>")?;
            }
            writeln!(f, "</ul></td></tr>")?;
        }
        close(f, all.min(ROWS), all)?;
        writeln!(f, "</section>")
    }

    pub(super) fn stagings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<_> = self
            .plans()
            .flat_map(|(rank, plan)| plan.stagings.iter().map(move |s| (rank, plan, s)))
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        rows.sort_by_key(|(_, _, s)| Reverse(s.bytes));
        let all = rows.len();
        writeln!(f, "<section>\n<h2>Staged</h2>")?;
        writeln!(f, "<p class=\"quiet\">Read into a buffer first and copied from there.</p>")?;
        let columns = [("source", false), ("bytes", true), ("why", false), ("parameters", true)];
        open(f, "Staged sources", "stack", &columns)?;
        for (rank, plan, s) in rows.into_iter().take(ROWS) {
            let rank = if self.several() { format!("{}: ", Text(rank)) } else { String::new() };
            let name = Text(&plan.sources[s.source].name);
            let mut params: Vec<usize> = s.replays.iter().map(|r| r.param).collect();
            params.sort_unstable();
            params.dedup();
            write!(
                f,
                "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">{rank}<span class=\"name\">{name}</span></th>"
            )?;
            write!(
                f,
                "<td role=\"cell\" class=\"number\" data-of=\"bytes\" title=\"{} bytes\">{}</td>",
                group(s.bytes),
                short(s.bytes)
            )?;
            write!(f, "<td role=\"cell\" data-of=\"why\">{}</td>", Text(&why(s.reason)))?;
            writeln!(
                f,
                "<td role=\"cell\" class=\"number\" data-of=\"parameters\">{}</td></tr>",
                params.len()
            )?;
        }
        close(f, all.min(ROWS), all)?;
        writeln!(f, "</section>")
    }

    pub(super) fn coverage(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut covered, mut bytes) = (0u128, 0u128);
        for c in self.plans().flat_map(|(_, plan)| &plan.coverage) {
            covered += u128::from(c.covered);
            bytes += u128::from(c.bytes);
        }
        writeln!(f, "<section>\n<h2>Coverage</h2>")?;
        if self.plans().next().is_some() {
            let share = if bytes == 0 { 1.0 } else { covered as f64 / bytes as f64 };
            let (covered, bytes) = (group(covered as u64), group(bytes as u64));
            let percent = share * 100.0;
            writeln!(
                f,
                "<p>{percent:.4} % of the parameters' bytes are provided: {covered} of {bytes}.</p>"
            )?;
        }
        let short_of = |(rank, plan)| lacking(plan).map(move |p| (rank, plan, p));
        let rows: Vec<(&str, &Plan, usize)> = self.plans().flat_map(short_of).collect();
        if !rows.is_empty() {
            let all = rows.len();
            open(
                f,
                "Incomplete parameters",
                "stack",
                &[("parameter", false), ("missing", true), ("boxes, in elements", false)],
            )?;
            for (rank, plan, p) in rows.into_iter().take(ROWS) {
                let rank = if self.several() { format!("{}: ", Text(rank)) } else { String::new() };
                let c = plan.coverage[p];
                let missing = c.bytes.saturating_sub(c.covered);
                let boxes = holes(plan, p);
                let shown: Vec<String> = boxes.iter().take(BOXES).map(|b| b.to_string()).collect();
                let more = match boxes.len() - shown.len() {
                    0 => String::new(),
                    n => format!(" and {n} more"),
                };
                write!(
                    f,
                    "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">{rank}<span class=\"name\">{}</span></th>",
                    Text(&plan.params[p].name)
                )?;
                write!(
                    f,
                    "<td role=\"cell\" class=\"number\" data-of=\"missing\">{} bytes</td>",
                    group(missing)
                )?;
                writeln!(f, "<td role=\"cell\" data-of=\"boxes\">{}{more}</td></tr>", shown.join(", "))?;
            }
            close(f, all.min(ROWS), all)?;
        }
        for m in self.members.iter().filter(|m| m.plan.is_none() && m.incomplete > 0).take(ROWS) {
            writeln!(f, "<p>{}: {} parameters are not provided in full.</p>", Text(&m.name), m.incomplete)?;
        }
        writeln!(f, "</section>")
    }
}

fn lacking(plan: &Plan) -> impl Iterator<Item = usize> {
    (0..plan.params.len()).filter(|&p| !plan.coverage[p].is_complete())
}

fn sources(n: usize) -> String {
    match n {
        1 => "1 source is".to_owned(),
        n => format!("{} sources are", group(n as u64)),
    }
}
