//! Which stage of how many this process is, and what that lets it be asked.

use serde::Serialize;
use thiserror::Error;

use crate::stub::is_space;

/// A stage of a pipeline: an index below a count, of which there are at least two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    index: u64,
    count: u64,
}

/// What a stage is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Tokenizes, embeds, and runs the first blocks.
    First,
    /// Runs blocks.
    Middle,
    /// Runs the last blocks and the head, samples, and detokenizes.
    Last,
}

/// Why a stage is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StageError {
    /// Nothing was given, or only blanks.
    #[error("{name} is required: an integer")]
    Missing {
        /// The variable or flag.
        name: &'static str,
    },
    /// Not `-?[0-9]+` in ASCII once outer blanks are gone.
    #[error("{name} must be an integer in ASCII digits, found {found:?}")]
    NotAnInteger {
        /// The variable or flag.
        name: &'static str,
        /// What was given.
        found: String,
    },
    /// An integer beyond 64 bits.
    #[error("{name} is too large: {found}")]
    TooLarge {
        /// The variable or flag.
        name: &'static str,
        /// What was given, without its outer blanks.
        found: String,
    },
    /// Fewer than two stages.
    #[error("NUM_STAGES must be at least 2, found {found}")]
    TooFew {
        /// The number of stages asked for.
        found: i64,
    },
    /// The stage is not one of them.
    #[error("STAGE must be in 0..{count}, found {found}")]
    OutOfRange {
        /// The stage asked for.
        found: i64,
        /// The number of stages.
        count: i64,
    },
}

impl Stage {
    /// A stage by number.
    ///
    /// # Errors
    ///
    /// Fewer than two stages, or a stage that is not one of them.
    pub fn new(index: i64, count: i64) -> Result<Self, StageError> {
        if count < 2 {
            return Err(StageError::TooFew { found: count });
        }
        if !(0..count).contains(&index) {
            return Err(StageError::OutOfRange { found: index, count });
        }
        Ok(Stage { index: index.unsigned_abs(), count: count.unsigned_abs() })
    }

    /// A stage as `STAGE` and `NUM_STAGES` spell it: outer blanks go, then ASCII `-?[0-9]+` only.
    ///
    /// ```
    /// use restage_worker::{Role, Stage};
    /// let stage = Stage::parse(Some(" 1 "), Some("2"))?;
    /// assert_eq!((stage.index(), stage.role()), (1, Role::Last));
    /// assert!(Stage::parse(Some("+1"), Some("2")).is_err());
    /// # Ok::<(), restage_worker::StageError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A missing or malformed number, one beyond 64 bits, or a stage that [`Stage::new`] refuses.
    pub fn parse(index: Option<&str>, count: Option<&str>) -> Result<Self, StageError> {
        let index = integer("STAGE", index)?;
        let count = integer("NUM_STAGES", count)?;
        Stage::new(index, count)
    }

    /// The stage's number, from 0.
    pub fn index(self) -> u64 {
        self.index
    }

    /// The number of stages, at least 2.
    pub fn count(self) -> u64 {
        self.count
    }

    /// What the stage is for.
    pub fn role(self) -> Role {
        match self.index {
            0 => Role::First,
            i if i + 1 == self.count => Role::Last,
            _ => Role::Middle,
        }
    }
}

fn integer(name: &'static str, text: Option<&str>) -> Result<i64, StageError> {
    let given = text.unwrap_or_default();
    let found = given.trim_matches(is_space);
    if found.is_empty() {
        return Err(StageError::Missing { name });
    }
    let digits = found.strip_prefix('-').unwrap_or(found);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(StageError::NotAnInteger { name, found: given.into() });
    }
    found.parse().map_err(|_| StageError::TooLarge { name, found: found.into() })
}

impl Role {
    /// The role's name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Role::First => "first",
            Role::Middle => "middle",
            Role::Last => "last",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_blanks_and_a_sign_and_ascii_digits() {
        for (text, number) in [("0", 0), ("1", 1), (" 1\n", 1), ("\u{a0}2\u{3000}", 2), ("007", 7), ("-0", 0)]
        {
            assert_eq!(integer("STAGE", Some(text)), Ok(number), "{text:?}");
        }
        assert_eq!(integer("STAGE", Some("-3")), Ok(-3));
        for text in ["+1", "٠", "1 2", "1.0", "1e3", "0x1", "--1", "-", "- 1", "1_0", "１", "²", "a"] {
            assert!(matches!(integer("STAGE", Some(text)), Err(StageError::NotAnInteger { .. })), "{text:?}");
        }
        for text in [None, Some(""), Some(" \t\r\n")] {
            assert_eq!(integer("STAGE", text), Err(StageError::Missing { name: "STAGE" }));
        }
        for text in ["9223372036854775808", "-9223372036854775809", "99999999999999999999999"] {
            assert!(matches!(integer("STAGE", Some(text)), Err(StageError::TooLarge { .. })), "{text:?}");
        }
    }

    #[test]
    fn roles_follow_from_the_place() {
        for count in 2..9 {
            for index in -2..11 {
                let stage = Stage::new(index, count);
                assert_eq!(stage.is_ok(), (0..count).contains(&index), "{index} of {count}");
                let Ok(stage) = stage else { continue };
                assert_eq!(stage.role() == Role::First, index == 0);
                assert_eq!(stage.role() == Role::Last, index == count - 1);
            }
        }
        for count in [i64::MIN, -1, 0, 1] {
            assert_eq!(Stage::new(0, count), Err(StageError::TooFew { found: count }));
        }
    }
}
