//! The plan of a job for people.

use std::fmt;
use std::ops::Range;

use restage_plan::Traffic;

use super::report::Report;
use crate::job::left_out;

/// Rows and columns that a matrix is shown with; a larger one has blocks of sessions and ranks summed.
const ROWS: usize = 16;
const COLUMNS: usize = 8;

/// Displays a job: totals, the busiest endpoints, and the traffic matrix.
pub struct Text<'a> {
    pub report: &'a Report,
    pub traffic: &'a Traffic,
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.report;
        let origin = match &r.published {
            Some(how) => format!(", taken for published as {how}"),
            None => String::new(),
        };
        writeln!(
            f,
            "{}: {}, {} tensors, {} bytes{origin} -> tp {} x pp {} with ep {} for {}",
            r.model,
            r.architecture,
            group(r.tensors as u64),
            group(r.bytes),
            r.tp,
            r.pp,
            r.ep,
            r.engine
        )?;
        let form = if r.strided { "strided segments whole" } else { "contiguous descriptors" };
        writeln!(
            f,
            "{form}, at most {} descriptors a copy; no tensor byte read for this plan",
            r.max_descriptors
        )?;
        for rank in r.ranks.iter().filter(|rank| rank.refused_sources + rank.incomplete_parameters > 0) {
            let (refused, lacking) = (rank.refused_sources, rank.incomplete_parameters);
            writeln!(f, "  refused     {}: {refused} sources, {lacking} parameters not in full", rank.name)?;
        }
        if r.pp > 1 {
            let layers =
                |s: &super::report::StageRow| format!("pp{} {}..{}", s.stage, s.layers[0], s.layers[1]);
            let stages: Vec<String> = r.stages.iter().map(layers).collect();
            writeln!(f, "  layers      {}", stages.join(", "))?;
        }
        writeln!(f, "  ranks       {}, parameters {} bytes", r.ranks.len(), group(r.parameter_bytes))?;
        writeln!(
            f,
            "  exact       {} descriptors, {} bytes",
            group(r.exact_descriptors),
            group(r.exact_bytes)
        )?;
        writeln!(
            f,
            "  planned     {} {}, {} bytes; {} extra wire bytes",
            group(r.descriptors),
            if r.strided { "strided descriptors" } else { "descriptors" },
            group(r.total_bytes),
            group(r.extra_wire_bytes)
        )?;
        let staged = r.ranks.iter().map(|rank| rank.staged_sources).sum::<usize>();
        let unbounded = r.ranks.iter().map(|rank| rank.unbounded_sources).sum::<usize>();
        if staged + unbounded > 0 {
            let (staged, unbounded) = (group(staged as u64), group(unbounded as u64));
            writeln!(f, "  over bound  {staged} times a source is staged, {unbounded} times it stays exact")?;
        }
        if let (Some(session), Some(rank)) = (&r.hottest_session, &r.largest_rank) {
            writeln!(f, "  hottest     {} sends {} bytes", session.name, group(session.bytes))?;
            writeln!(f, "  imbalance   {:.3} (the hottest session over the mean)", r.imbalance)?;
            writeln!(f, "  largest     {} reads {} bytes", rank.name, group(rank.bytes))?;
        }
        if let Some(link) = &r.largest_link {
            writeln!(
                f,
                "  link        {} -> {}: {} bytes, the most of any",
                link.session,
                link.rank,
                group(link.bytes)
            )?;
        }
        if let Some(e) = &r.estimate {
            let rate = e.link_bytes_per_second / 1e9;
            let (time, unit) = match e.seconds {
                s if s >= 1.0 => (s, "s"),
                s if s >= 1e-3 => (s * 1e3, "ms"),
                s => (s * 1e6, "us"),
            };
            writeln!(f, "  estimate    {time:.3} {unit} at {rate} GB/s a link; an estimate: {}", e.assumes)?;
        }
        if !r.skipped.is_empty() {
            writeln!(f, "  left out    {}", left_out(&r.skipped))?;
        }
        matrix(f, self.traffic)
    }
}

/// The traffic matrix: every cell in bytes where there are few, and otherwise blocks of neighbours in a larger unit.
fn matrix(f: &mut fmt::Formatter<'_>, traffic: &Traffic) -> fmt::Result {
    let rows = blocks(traffic.sessions.len(), ROWS);
    let columns = blocks(traffic.ranks.len(), COLUMNS);
    let summed = rows.len() < traffic.sessions.len() || columns.len() < traffic.ranks.len();
    let sum = |rows: &Range<usize>, columns: &Range<usize>| {
        let cells = traffic.bytes[rows.clone()].iter().flat_map(|row| &row[columns.clone()]);
        cells.fold(0u64, |a, &b| a.saturating_add(b))
    };
    let (sessions, ranks) = (traffic.sessions.len(), traffic.ranks.len());
    let (name, unit) = if summed { unit(traffic.total()) } else { ("bytes", 1) };
    write!(f, "  traffic     {sessions} sessions x {ranks} ranks, in {name}")?;
    match summed {
        true => {
            writeln!(f, "; neighbours are summed, ranks numbered from 0 in order (--json has every cell)")?
        }
        false => writeln!(f)?,
    }
    let cell = |bytes: u64| match unit {
        1 => group(bytes),
        unit => format!("{:.3}", bytes as f64 / unit as f64),
    };
    let head = |c: &Range<usize>| match (summed, c.len()) {
        (false, _) => traffic.ranks[c.start].clone(),
        (true, 1) => format!("rank {}", c.start),
        (true, _) => format!("{}-{}", c.start, c.end - 1),
    };
    let side = |r: &Range<usize>| match r.len() {
        1 => traffic.sessions[r.start].to_string(),
        _ => format!("{} .. {}", traffic.sessions[r.start], traffic.sessions[r.end - 1]),
    };
    let line = |name: String, of: &Range<usize>| {
        let cells = columns.iter().map(|c| cell(sum(of, c)));
        let all = cell(sum(of, &(0..ranks)));
        [name].into_iter().chain(cells).chain([all]).collect::<Vec<_>>()
    };
    let heads = [String::new()].into_iter().chain(columns.iter().map(head)).chain(["all".to_owned()]);
    let mut table = vec![heads.collect::<Vec<_>>()];
    table.extend(rows.iter().map(|r| line(side(r), r)));
    table.push(line("all".to_owned(), &(0..sessions)));
    let width = |c: usize| table.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..table[0].len()).map(width).collect();
    for row in &table {
        write!(f, "    {:<1$}", row[0], widths[0])?;
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            write!(f, "  {cell:>width$}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// The unit that a matrix of this many bytes is shown in, and its bytes.
fn unit(total: u64) -> (&'static str, u64) {
    match total {
        1_000_000_000.. => ("GB", 1_000_000_000),
        1_000_000.. => ("MB", 1_000_000),
        1_000.. => ("kB", 1_000),
        _ => ("bytes", 1),
    }
}

/// `0..n` in at most `most` blocks of one size, the last one shorter.
fn blocks(n: usize, most: usize) -> Vec<Range<usize>> {
    let size = n.div_ceil(most).max(1);
    (0..n).step_by(size).map(|start| start..(start + size).min(n)).collect()
}

/// Digits in groups of three.
fn group(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_everything_once() {
        for n in 0..70 {
            let all: Vec<usize> = blocks(n, 16).into_iter().flatten().collect();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
            assert!(blocks(n, 16).len() <= 16);
        }
        assert_eq!(blocks(3, 16), [0..1, 1..2, 2..3]);
        assert_eq!([group(0), group(999), group(1000), group(1234567)], ["0", "999", "1,000", "1,234,567"]);
    }
}
