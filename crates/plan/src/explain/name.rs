//! Names and numbers as they are shown.

use std::fmt::{self, Write};

/// Displays a name that may hold anything: control characters, and those that turn the direction of writing, are
/// written as escapes.
#[derive(Debug, Clone, Copy)]
pub struct Name<'a>(pub &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match steers(c) {
                true => write!(f, "{}", c.escape_unicode())?,
                false => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// True for a character that changes how others are shown.
fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Names with commas between them.
pub(super) fn names<T: AsRef<str>>(list: &[T]) -> String {
    list.iter().map(|name| Name(name.as_ref()).to_string()).collect::<Vec<_>>().join(", ")
}

/// Digits in groups of three.
pub(super) fn group(n: u64) -> String {
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

/// A number of things.
pub(super) fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", group(n), if n == 1 { one } else { many })
}

/// Bytes in a unit in which they have at most three digits before the point.
pub(super) fn short(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1e3;
    let mut unit = 0;
    // Rounding must not make four digits of it.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer() {
        assert_eq!(Name("model.w").to_string(), "model.w");
        assert_eq!(Name("a\u{1b}[2J\nb\u{202e}c").to_string(), "a\\u{1b}[2J\\u{a}b\\u{202e}c");
        assert_eq!(Name("größe").to_string(), "größe");
    }

    #[test]
    fn bytes_have_three_digits() {
        let cases = [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9_994, "9.99 kB"), (9_996, "10.0 kB")];
        let more = [(99_960, "100 kB"), (999_499, "999 kB"), (999_600, "1.00 MB"), (u64::MAX, "18.4 EB")];
        for (bytes, text) in cases.into_iter().chain(more) {
            assert_eq!(short(bytes), text);
        }
        assert_eq!(group(1234567), "1,234,567");
    }
}
