//! Servers of objects: HTTP ranges out of this process, and S3 out of another.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use restage_object::testing::{HttpServer, S3Server};
use restage_object::{Limits, ObjectStoreAt, ObjectTransport};
use restage_transport::Transport;

use super::{Files, Medium};
use crate::s3_server;
use crate::verify::read;

/// Small ranges, so that fixtures take several requests.
const LIMITS: Limits = Limits { gap: 512, largest: 16 << 10, in_flight: 256 << 10, ..Limits::DEFAULT };

/// Counts what was served, so that fixtures whose files are called alike do not meet.
#[derive(Debug, Default)]
struct Folders(AtomicU64);

impl Folders {
    fn next(&self) -> String {
        format!("fixture{}", self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Registers objects that are there.
fn transport(place: &ObjectStoreAt, files: &Files) -> Result<Box<dyn Transport>> {
    let mut transport = ObjectTransport::new(LIMITS)?;
    for (session, _) in files {
        transport.register(session.as_str(), place, session)?;
    }
    Ok(Box::new(transport))
}

#[derive(Debug)]
pub struct Http {
    server: HttpServer,
    folders: Folders,
}

impl Http {
    pub fn start() -> Self {
        Http { server: HttpServer::start(), folders: Folders::default() }
    }
}

impl Medium for Http {
    fn name(&self) -> &'static str {
        "object (http)"
    }

    fn serve(&self, files: &Files) -> Result<Box<dyn Transport>> {
        let folder = self.folders.next();
        for (session, path) in files {
            self.server.put(&format!("/{folder}/{session}"), read(path)?);
        }
        transport(&ObjectStoreAt::open(&self.server.url(&format!("/{folder}")))?, files)
    }
}

#[derive(Debug)]
pub struct S3 {
    server: S3Server,
    folders: Folders,
}

impl S3 {
    /// Starts a server, and makes first what it takes where that is not there yet.
    ///
    /// # Errors
    ///
    /// It cannot be made, for want of Python or of a registry.
    pub fn start() -> Result<Self> {
        s3_server::run()?;
        let server = S3Server::start().context("the Python of the S3 server is gone")?;
        Ok(S3 { server, folders: Folders::default() })
    }
}

impl Medium for S3 {
    fn name(&self) -> &'static str {
        "object (S3)"
    }

    fn serve(&self, files: &Files) -> Result<Box<dyn Transport>> {
        let folder = self.folders.next();
        for (session, path) in files {
            self.server.put(&format!("{folder}/{session}"), &read(path)?);
        }
        transport(&self.server.place(&folder)?, files)
    }
}
