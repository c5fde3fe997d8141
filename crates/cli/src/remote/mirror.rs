//! Opening a checkpoint at publishers: what says what is in it is fetched and opened as if it lay here.
//!
//! Small files and headers are put into a temporary directory, where the weights files are as long as they are
//! at the publisher, and the checkpoint's own reader checks all of it. Then the weights files are removed
//! again: should anything ever look for tensors there, it finds no file rather than zeros.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use restage_checkpoint::Checkpoint;
use restage_nest::Nest;
use restage_remote::{ReadOptions, RemoteError, TcpTransport};
use restage_transport::{Batch, Entry, Receipt, Transport};
use tempfile::TempDir;

use super::SCHEME;
use super::offer::{Offer, OfferedFile};
use crate::failure::Failure;
use crate::source::mirror::mirror;

/// Bytes of headers and small files that are fetched in all.
const HEAD_BYTES: u64 = 1 << 30;

/// A checkpoint at publishers.
pub struct Remote {
    /// Its bytes.
    pub transport: TcpTransport,
    /// Small files, as long as this lives.
    pub mirror: TempDir,
}

/// Opens the checkpoint of publishers, `tcp://HOST:PORT[,tcp://HOST:PORT]`; `read` opens what was fetched. Files
/// that several of them have must be the same, as far as their headers say, and are read from the first.
pub fn open(
    addresses: &str,
    options: &ReadOptions,
    read: impl FnOnce(&Path) -> Result<Checkpoint, Failure>,
) -> Result<(Checkpoint, Remote), Failure> {
    let connect = |address: &str| {
        let address = address
            .strip_prefix(SCHEME)
            .ok_or_else(|| Failure::Usage(anyhow!("{address}: an address is {SCHEME}HOST:PORT")))?;
        TcpTransport::connect([address], options.clone()).map_err(refused)
    };
    let publishers = addresses.split(',').map(connect).collect::<Result<Vec<_>, _>>()?;
    let mut files = BTreeMap::new();
    let mut named: Option<(String, Option<String>)> = None;
    for publisher in &publishers {
        for (address, catalog) in publisher.catalogs() {
            let about = || format!("{SCHEME}{address}");
            let offer = Offer::read(catalog).with_context(about).map_err(Failure::Input)?;
            let (_, one) = named.get_or_insert_with(|| (offer.name.clone(), offer.file.clone()));
            if *one != offer.file {
                return Err(Failure::input(anyhow!("{}: a single file, unlike the others", about())));
            }
            fetch(publisher, &offer, &mut files).with_context(about)?;
        }
    }
    let (name, one) = named.unwrap_or_default();
    let (mirror, dir) = place(&name, &files).map_err(Failure::Transfer)?;
    let checkpoint = read(&one.map_or_else(|| dir.clone(), |file| dir.join(file)))?;
    for file in files.into_keys().filter(|name| name.ends_with(".safetensors")) {
        let path = dir.join(file);
        std::fs::remove_file(&path).with_context(|| path.display().to_string()).map_err(Failure::Transfer)?;
    }
    let transport = TcpTransport::join(publishers).map_err(refused)?;
    Ok((checkpoint, Remote { transport, mirror }))
}

/// A publisher that cannot be reached may be there later; one that refuses will refuse again.
fn refused(error: RemoteError) -> Failure {
    match error {
        RemoteError::Hello { .. } | RemoteError::Disagree { .. } => Failure::input(error),
        _ => Failure::transfer(error),
    }
}

/// Name to length and head.
type Heads = BTreeMap<String, (u64, Vec<u8>)>;

trait About<T> {
    fn with_context(self, about: impl Fn() -> String) -> Result<T, Failure>;
}

impl<T> About<T> for Result<T, Failure> {
    fn with_context(self, about: impl Fn() -> String) -> Result<T, Failure> {
        self.map_err(|failure| match failure {
            Failure::Transfer(e) => Failure::Transfer(e.context(about())),
            Failure::Input(e) => Failure::Input(e.context(about())),
            other => other,
        })
    }
}

fn fetch(publisher: &TcpTransport, offer: &Offer, files: &mut Heads) -> Result<(), Failure> {
    for file in &offer.files {
        published(publisher, file).map_err(Failure::Input)?;
        let held: u64 = files.values().map(|(_, head)| head.len() as u64).sum();
        if held.saturating_add(file.head) > HEAD_BYTES {
            let what = format!("more than {HEAD_BYTES} bytes of headers and small files");
            return Err(Failure::input(anyhow!("{}: {what}", file.name)));
        }
        let head = head(publisher, file).map_err(Failure::Transfer)?;
        match files.get(&file.name) {
            Some(known) if *known != (file.length, head.clone()) => {
                let what = "is another file than at a publisher named before";
                return Err(Failure::input(anyhow!("{}: {what}", file.name)));
            }
            Some(_) => {}
            None => drop(files.insert(file.name.clone(), (file.length, head))),
        }
    }
    Ok(())
}

/// Holds an offer against what is published with it.
fn published(publisher: &TcpTransport, file: &OfferedFile) -> Result<()> {
    let session = publisher.sessions().find(|(name, _)| *name == file.name);
    let (_, extents) = session.ok_or_else(|| anyhow!("{} is offered and not published", file.name))?;
    let found: u64 = extents.ranges().iter().map(|r| r.end - r.start).sum();
    ensure!(found == file.length, "{}: {} bytes are offered, {found} published", file.name, file.length);
    Ok(())
}

fn head(publisher: &TcpTransport, file: &OfferedFile) -> Result<Vec<u8>> {
    let mut head = vec![0; usize::try_from(file.head)?];
    let entry = Entry { session: 0, dest: 0, nest: Nest::contiguous(0, 0, file.head) };
    let batch = Batch { sessions: vec![file.name.as_str().into()], entries: vec![entry] };
    publisher.read(&batch, &mut [&mut head]).and_then(Receipt::into_result)?;
    Ok(head)
}

fn place(name: &str, files: &Heads) -> Result<(TempDir, std::path::PathBuf)> {
    let (mirror, dir) = mirror(name)?;
    for (name, (length, head)) in files {
        let path = dir.join(name);
        let written = File::create_new(&path).and_then(|mut file| {
            file.write_all(head)?;
            file.set_len(*length)
        });
        written.with_context(|| path.display().to_string())?;
    }
    Ok((mirror, dir))
}
