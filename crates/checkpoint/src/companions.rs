//! The files that travel with weights: configuration, tokenizer, templates.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::checkpoint::Checkpoint;
use crate::error::{OutputError, OutputProblem};
use crate::write::temporary_beside;

/// What became of a companion file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompanionCopy {
    /// It was not there, and is now.
    Copied,
    /// It was there with the same bytes.
    Same,
    /// It was there with other bytes, and was replaced because of `force`.
    Replaced,
}

/// Copies the companions of a checkpoint into an existing directory, each under a temporary name that is then
/// renamed, so that several ranks may do so at once. A file of the same bytes is left alone; one of other bytes
/// is refused, before anything is copied, unless `force` says to replace it.
///
/// Returns the targets, by name.
///
/// # Errors
/// [`OutputError`] with the target: it differs, or the system's own.
pub fn copy_companions(
    checkpoint: &Checkpoint,
    dir: impl AsRef<Path>,
    force: bool,
) -> Result<Vec<(PathBuf, CompanionCopy)>, OutputError> {
    let dir = dir.as_ref();
    let mut copies = Vec::new();
    for source in checkpoint.companions() {
        let Some(name) = source.file_name() else { continue };
        let target = dir.join(name);
        let at = |problem| OutputError { path: target.clone(), problem };
        let copy = match same(source, &target).map_err(|e| at(e.into()))? {
            None => CompanionCopy::Copied,
            Some(true) => CompanionCopy::Same,
            Some(false) if force && target.is_file() => CompanionCopy::Replaced,
            Some(false) => return Err(at(OutputProblem::Differs { source_file: source.clone() })),
        };
        copies.push((source, target, copy));
    }
    let mut done = Vec::with_capacity(copies.len());
    for (source, target, copy) in copies {
        let copy = match copy {
            CompanionCopy::Same => copy,
            CompanionCopy::Copied | CompanionCopy::Replaced => place(source, &target, copy)
                .map_err(|problem| OutputError { path: target.clone(), problem })?,
        };
        done.push((target, copy));
    }
    Ok(done)
}

fn place(source: &Path, target: &Path, copy: CompanionCopy) -> Result<CompanionCopy, OutputProblem> {
    let dir = target.parent().unwrap_or(Path::new("."));
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let mut temporary = temporary_beside(dir, &name)?;
    io::copy(&mut File::open(source)?, temporary.as_file_mut())?;
    if copy == CompanionCopy::Replaced {
        temporary.persist(target).map_err(|e| e.error)?;
        return Ok(copy);
    }
    match temporary.persist_noclobber(target) {
        Ok(_) => Ok(copy),
        // Another rank was faster: what it put there must be the same.
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => match same(source, target)? {
            Some(true) => Ok(CompanionCopy::Same),
            _ => Err(OutputProblem::Differs { source_file: source.to_owned() }),
        },
        Err(error) => Err(error.error.into()),
    }
}

/// True when both files hold the same bytes, or `None` when there is no target. Something that is no regular
/// file is never the same.
fn same(source: &Path, target: &Path) -> io::Result<Option<bool>> {
    let there = match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let there = if there.is_symlink() { fs::metadata(target).unwrap_or(there) } else { there };
    if !there.is_file() || there.len() != fs::metadata(source)?.len() {
        return Ok(Some(false));
    }
    let (mut a, mut b) = (File::open(source)?, File::open(target)?);
    let (mut left, mut right) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let n = a.read(&mut left)?;
        if n == 0 {
            return Ok(Some(b.read(&mut right[..1])? == 0));
        }
        match b.read_exact(&mut right[..n]) {
            Ok(()) if left[..n] == right[..n] => {}
            Ok(()) => return Ok(Some(false)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Some(false)),
            Err(error) => return Err(error),
        }
    }
}
