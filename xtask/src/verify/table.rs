//! The result in text: a line for each fixture and transport, then what went wrong.

use std::collections::BTreeSet;
use std::fmt;

use super::Row;

/// Displays rows as a table with a summary.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a>(pub &'a [Row]);

const HEADINGS: [&str; 6] =
    ["fixture", "sources/params", "transport", "descriptors exact/planned", "bytes", "result"];

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells: Vec<[String; 6]> = self.0.iter().map(cells).collect();
        let mut widths = HEADINGS.map(str::len);
        for row in &cells {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.len());
            }
        }
        line(f, &widths, &HEADINGS.map(str::to_owned))?;
        line(f, &widths, &widths.map(|width| "-".repeat(width)))?;
        for row in &cells {
            line(f, &widths, row)?;
        }
        let fixtures: BTreeSet<&str> =
            self.0.iter().filter_map(|row| row.fixture.split(' ').next()).collect();
        let mut transports: Vec<&str> = Vec::new();
        for row in self.0.iter().filter(|row| row.transport != "-") {
            if !transports.contains(&row.transport) {
                transports.push(row.transport);
            }
        }
        let pulls: usize = self.0.iter().map(|row| row.pulls).sum();
        let failures: usize = self.0.iter().map(|row| row.failures.len()).sum();
        writeln!(f)?;
        writeln!(f, "Descriptors and bytes are those of flat plans; the others are compared all the same.")?;
        writeln!(
            f,
            "{} fixtures, {} transports ({}), {pulls} reconstructions: {}",
            fixtures.len(),
            transports.len(),
            transports.join(", "),
            match failures {
                0 => "every byte as expected".to_owned(),
                n => format!("FAILED in {n} points"),
            }
        )?;
        for row in self.0.iter().filter(|row| !row.failures.is_empty()) {
            row.failures.iter().try_for_each(|failure| writeln!(f, "  {failure}"))?;
            if !row.about.is_empty() {
                writeln!(f, "    about {}: {}", row.fixture, row.about)?;
            }
        }
        Ok(())
    }
}

fn cells(row: &Row) -> [String; 6] {
    let counters = &row.counters;
    [
        row.fixture.clone(),
        format!("{}/{}", row.sources, row.params),
        row.transport.to_owned(),
        format!("{}/{}", counters.exact_descriptors, counters.descriptors),
        counters.bytes.to_string(),
        if row.failures.is_empty() { "ok" } else { "FAILED" }.to_owned(),
    ]
}

fn line(f: &mut fmt::Formatter<'_>, widths: &[usize; 6], cells: &[String; 6]) -> fmt::Result {
    let padded: Vec<String> =
        cells.iter().zip(widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
    writeln!(f, "{}", padded.join("  ").trim_end())
}
