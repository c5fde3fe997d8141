//! The rate of a link, as it is written on a command line.

use std::fmt;
use std::str::FromStr;

/// Bytes per second; positive and finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkRate(f64);

/// Units with their bytes per second. Prefixes are decimal but for KiB, MiB and GiB.
const UNITS: [(&str, f64); 16] = [
    ("B/s", 1.0),
    ("kB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
    ("KiB/s", 1024.0),
    ("MiB/s", 1_048_576.0),
    ("GiB/s", 1_073_741_824.0),
    ("bit/s", 0.125),
    ("kbit/s", 125.0),
    ("Mbit/s", 125e3),
    ("Gbit/s", 125e6),
    ("Tbit/s", 125e9),
    ("Mb/s", 125e3),
    ("Gb/s", 125e6),
    ("Tb/s", 125e9),
];

impl LinkRate {
    /// Bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.0
    }
}

impl FromStr for LinkRate {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let what = || format!("expected a rate as in 25GB/s (bytes) or 200Gbit/s (bits), found {s:?}");
        let digits = s.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(what)?;
        let (number, unit) = s.split_at(digits);
        let unit = unit.trim_start();
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(what)?;
        let number: f64 = number.parse().map_err(|_| what())?;
        match number * scale {
            rate if rate > 0.0 && rate.is_finite() => Ok(LinkRate(rate)),
            _ => Err(what()),
        }
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            rate if rate >= 1e9 => write!(f, "{} GB/s", rate / 1e9),
            rate if rate >= 1e6 => write!(f, "{} MB/s", rate / 1e6),
            rate => write!(f, "{rate} B/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_in_bytes_and_bits() {
        for (text, bytes) in [
            ("25GB/s", 25e9),
            ("200Gbit/s", 25e9),
            ("200Gb/s", 25e9),
            ("1.5 MB/s", 1.5e6),
            ("8bit/s", 1.0),
            ("2GiB/s", 2_147_483_648.0),
        ] {
            assert_eq!(text.parse::<LinkRate>().unwrap().bytes_per_second(), bytes, "{text}");
        }
        for text in
            ["", "25", "GB/s", "25GB", "0GB/s", "-1GB/s", "1e9B/s", "1.2.3GB/s", "infB/s", "25gb/s", "nanB/s"]
        {
            assert!(text.parse::<LinkRate>().is_err(), "{text}");
        }
        assert_eq!("200Gbit/s".parse::<LinkRate>().unwrap().to_string(), "25 GB/s");
    }
}
