//! The traffic matrix as a table of coloured cells, each with its bytes in words.

use std::fmt;
use std::ops::Range;

use super::escape::Text;
use crate::explain::name::{counted, group, short};
use crate::fleet::Traffic;

/// Rows and columns of the matrix that are shown; of a larger one neighbours are summed.
const ROWS: usize = 64;
const COLUMNS: usize = 32;

/// Shades of a cell that is not empty, the darkest for the largest.
const SHADES: u64 = 9;

/// Displays the matrix.
pub(super) struct Heat<'a>(pub &'a Traffic);

/// `0..n` in at most `most` blocks of one size, the last one shorter.
fn blocks(n: usize, most: usize) -> Vec<Range<usize>> {
    let size = n.div_ceil(most).max(1);
    (0..n).step_by(size).map(|start| start..(start + size).min(n)).collect()
}

/// The shade of a cell: 0 for nothing, then in equal steps up to the largest.
fn shade(bytes: u64, most: u64) -> u64 {
    match most {
        0 => 0,
        _ => (u128::from(bytes) * u128::from(SHADES)).div_ceil(u128::from(most)) as u64,
    }
}

impl fmt::Display for Heat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = self.0;
        let (rows, columns) = (blocks(t.sessions.len(), ROWS), blocks(t.ranks.len(), COLUMNS));
        let add = |a: u64, b: &u64| a.saturating_add(*b);
        let cell = |r: &Range<usize>, c: &Range<usize>| {
            t.bytes[r.clone()].iter().flat_map(|row| &row[c.clone()]).fold(0, add)
        };
        let cells: Vec<Vec<u64>> =
            rows.iter().map(|r| columns.iter().map(|c| cell(r, c)).collect()).collect();
        let most = cells.iter().flatten().copied().max().unwrap_or(0);
        let (sessions, ranks) = (t.sessions.len(), t.ranks.len());
        write!(
            f,
            "<p class=\"quiet\" id=\"traffic\">Bytes from each session (rows, {sessions}) to each rank "
        )?;
        write!(f, "(columns, {ranks}). The strongest colour is {}", short(most))?;
        if let (Some(r), Some(c)) = (rows.first(), columns.first())
            && (r.len() > 1 || c.len() > 1)
        {
            let r = counted(r.len() as u64, "session", "sessions");
            let c = counted(c.len() as u64, "rank", "ranks");
            write!(f, "; neighbours are summed, {r} by {c} to a cell")?;
        }
        writeln!(f, ".</p>")?;
        writeln!(f, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Traffic matrix\">")?;
        writeln!(f, "<table class=\"heat\" aria-describedby=\"traffic\">")?;
        write!(f, "<thead><tr><th scope=\"col\">session</th>")?;
        for c in &columns {
            let (first, last) = (&t.ranks[c.start], &t.ranks[c.end - 1]);
            match c.len() {
                1 => write!(f, "<th scope=\"col\">{}</th>", Text(first))?,
                _ => write!(f, "<th scope=\"col\">{} … {}</th>", Text(first), Text(last))?,
            }
        }
        writeln!(f, "<th scope=\"col\">all</th></tr></thead>")?;
        writeln!(f, "<tbody>")?;
        for (r, row) in rows.iter().zip(&cells) {
            let (first, last) = (&t.sessions[r.start], &t.sessions[r.end - 1]);
            let name = match r.len() {
                1 => Text(first).to_string(),
                _ => format!("{} … {}", Text(first), Text(last)),
            };
            write!(f, "<tr><th scope=\"row\" class=\"name\" title=\"{name}\">{name}</th>")?;
            for &bytes in row {
                let text = if bytes == 0 { "0".to_owned() } else { short(bytes) };
                write!(
                    f,
                    "<td class=\"h{}\" title=\"{} bytes\">{text}</td>",
                    shade(bytes, most),
                    group(bytes)
                )?;
            }
            let all = row.iter().fold(0, add);
            writeln!(f, "<td class=\"all\" title=\"{} bytes\">{}</td></tr>", group(all), short(all))?;
        }
        writeln!(f, "</tbody>")?;
        write!(f, "<tfoot><tr><th scope=\"row\">all</th>")?;
        for at in 0..columns.len() {
            let all = cells.iter().map(|row| row[at]).fold(0, |a: u64, b| a.saturating_add(b));
            write!(f, "<td title=\"{} bytes\">{}</td>", group(all), short(all))?;
        }
        writeln!(f, "<td title=\"{} bytes\">{}</td></tr></tfoot>", group(t.total()), short(t.total()))?;
        writeln!(f, "</table></div>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_are_in_order() {
        assert_eq!(
            [shade(0, 90), shade(1, 90), shade(10, 90), shade(11, 90), shade(90, 90)],
            [0, 1, 1, 2, 9]
        );
        assert_eq!([shade(0, 0), shade(u64::MAX, u64::MAX)], [0, 9]);
    }
}
