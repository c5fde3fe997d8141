//! The plan of a job for people.

use std::fmt;
use std::ops::Range;

use restage_plan::Traffic;

use super::report::Report;

/// Rows and columns that a matrix is shown with; a larger one has blocks of sessions and ranks summed.
const ROWS: usize = 16;
const COLUMNS: usize = 8;

/// Names shown of a list before it is cut.
const NAMES: usize = 4;

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
            writeln!(
                f,
                "  estimate    {:.3} s at {rate} GB/s a link; an estimate: {}",
                e.seconds, e.assumes
            )?;
        }
        if !r.skipped.is_empty() {
            let shown = r.skipped.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = r.skipped.len().saturating_sub(NAMES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            writeln!(f, "  left out    {shown}{more} (no rank loads them)")?;
        }
        matrix(f, self.traffic)
    }
}

/// The traffic matrix in bytes. Blocks of neighbours are summed where there are many.
fn matrix(f: &mut fmt::Formatter<'_>, traffic: &Traffic) -> fmt::Result {
    let rows = blocks(traffic.sessions.len(), ROWS);
    let columns = blocks(traffic.ranks.len(), COLUMNS);
    let summed = rows.len() < traffic.sessions.len() || columns.len() < traffic.ranks.len();
    let what = if summed { "; neighbours summed, all cells in --json" } else { "" };
    writeln!(
        f,
        "  traffic     {} sessions x {} ranks, in bytes{what}",
        traffic.sessions.len(),
        traffic.ranks.len()
    )?;
    let names = |range: &Range<usize>, name: &dyn Fn(usize) -> String| match range.len() {
        1 => name(range.start),
        _ => format!("{} .. {}", name(range.start), name(range.end - 1)),
    };
    let mut table = vec![vec![String::new()]];
    table[0].extend(columns.iter().map(|c| names(c, &|i| traffic.ranks[i].clone())));
    table[0].push("all".to_owned());
    let mut totals = vec![0u64; columns.len() + 1];
    for range in &rows {
        let mut row = vec![names(range, &|i| traffic.sessions[i].to_string())];
        let mut sum = 0u64;
        for (at, column) in columns.iter().enumerate() {
            let cells = traffic.bytes[range.clone()].iter().flat_map(|row| &row[column.clone()]);
            let bytes = cells.fold(0u64, |a, &b| a.saturating_add(b));
            totals[at] = totals[at].saturating_add(bytes);
            sum = sum.saturating_add(bytes);
            row.push(group(bytes));
        }
        totals[columns.len()] = totals[columns.len()].saturating_add(sum);
        row.push(group(sum));
        table.push(row);
    }
    table.push([vec!["all".to_owned()], totals.into_iter().map(group).collect()].concat());
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
