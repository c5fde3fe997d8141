//! The files themselves.

use anyhow::Result;
use restage_transport::{FileTransport, Transport};

use super::{Files, Medium};

#[derive(Debug)]
pub struct File;

impl Medium for File {
    fn name(&self) -> &'static str {
        "file"
    }

    fn serve(&self, files: &Files) -> Result<Box<dyn Transport>> {
        let mut transport = FileTransport::new();
        for (session, path) in files {
            transport.register(session.as_str(), path)?;
        }
        Ok(Box::new(transport))
    }
}
