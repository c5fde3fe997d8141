//! Failures and their exit codes.

use std::fmt;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The input, or what is asked of it, is refused; nothing was written.
    Input(anyhow::Error),
    /// Reading or writing failed on the way.
    Transfer(anyhow::Error),
    /// Two checkpoints differ.
    Verification(anyhow::Error),
    /// The arguments do not go together.
    Usage(anyhow::Error),
}

impl Failure {
    /// The process's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Input(_) => 3,
            Failure::Transfer(_) => 4,
            Failure::Verification(_) => 5,
        }
    }

    /// Refuses the input.
    pub fn input(error: impl Into<anyhow::Error>) -> Self {
        Failure::Input(error.into())
    }

    /// Reports a failed transfer.
    pub fn transfer(error: impl Into<anyhow::Error>) -> Self {
        Failure::Transfer(error.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Usage(e) | Failure::Input(e) | Failure::Transfer(e) | Failure::Verification(e)) = self;
        write!(f, "{e:#}")
    }
}
