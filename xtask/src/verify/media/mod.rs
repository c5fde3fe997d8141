//! The ways in which the files of a fixture are served: one a file.

mod file;
mod memory;
mod object;

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use restage_transport::{Metered, Transport};

/// A transport that keeps a list of what was read.
pub type Recorded = Metered<Box<dyn Transport>>;

/// Sessions, and the files behind them: addresses are offsets in the file.
pub type Files = [(String, PathBuf)];

/// A way to serve files.
trait Medium: fmt::Debug {
    /// What the table calls it.
    fn name(&self) -> &'static str;

    /// Serves files for as long as the transport lives.
    fn serve(&self, files: &Files) -> Result<Box<dyn Transport>>;
}

/// A medium that serves the files of a fixture.
pub struct Served {
    /// What the table calls it.
    pub name: &'static str,
    /// What reads from it.
    pub transport: Recorded,
}

/// The media that fixtures are reconstructed over.
#[derive(Debug, Default)]
pub struct Media {
    all: Vec<Box<dyn Medium>>,
    /// Media that cannot serve here, with the reason.
    pub left_out: Vec<String>,
}

impl Media {
    /// The two that need no other process: enough to try this chore itself.
    #[cfg(test)]
    pub fn simplest() -> Self {
        Media { all: vec![Box::new(memory::Memory), Box::new(file::File)], left_out: Vec::new() }
    }

    /// Every built one. Servers are started here, and end with this.
    pub fn all() -> Self {
        let mut media = Media::default();
        media.all.push(Box::new(memory::Memory));
        media.all.push(Box::new(file::File));
        media.all.push(Box::new(object::Http::start()));
        match object::S3::start() {
            Ok(s3) => media.all.push(Box::new(s3)),
            Err(error) => media.left_out.push(format!("object over S3: {error:#}")),
        }
        media
    }

    /// Serves files in each of the ways.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or a medium cannot serve it.
    pub fn serve(&self, files: &Files) -> Result<Vec<Served>> {
        let served = |medium: &dyn Medium| -> Result<Served> {
            let name = medium.name();
            let transport = medium.serve(files).with_context(|| format!("cannot serve over {name}"))?;
            Ok(Served { name, transport: Metered::recording(transport) })
        };
        self.all.iter().map(|medium| served(&**medium)).collect()
    }
}
