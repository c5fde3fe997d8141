//! Memory of this process.

use anyhow::Result;
use restage_transport::{MemoryTransport, Transport};

use super::{Files, Medium};
use crate::verify::read;

#[derive(Debug)]
pub struct Memory;

impl Medium for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn serve(&self, files: &Files) -> Result<Box<dyn Transport>> {
        let mut memory = MemoryTransport::new();
        for (session, path) in files {
            memory.register(session.as_str(), 0, read(path)?)?;
        }
        Ok(Box::new(memory))
    }
}
