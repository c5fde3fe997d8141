//! A directory that becomes visible whole.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::checkpoint::Checkpoint;
use crate::companions::{CompanionCopy, copy_companions};
use crate::error::{OutputError, OutputProblem};
use crate::names::{is_companion, is_weights};
use crate::write::{directory_of, partial_prefix};

/// An output directory on its way: everything is written into a hidden one beside it, and
/// [`OutputDir::commit`] renames that. Dropped before that, it leaves nothing.
///
/// A directory that already holds a checkpoint is replaced in one step (`RENAME_EXCHANGE`), so that a reader
/// sees the old one or the new one. On a file system that cannot exchange (some network and overlay ones), two
/// renames do it: between them the path does not exist for a moment, and a crash there leaves the old content
/// under the hidden name `.{name}.partial-{pid}-{random}.old`.
#[derive(Debug)]
pub struct OutputDir {
    target: PathBuf,
    dir: TempDir,
    force: bool,
}

/// What lies at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Present {
    /// Nothing, or an empty directory, which a rename replaces.
    Nothing,
    /// A checkpoint that may be replaced.
    Checkpoint,
}

impl OutputDir {
    /// Starts an output directory. Its parent must exist; a link to a directory is followed.
    ///
    /// The target may be absent or empty. With `force` it may also be a checkpoint, which is replaced: all of
    /// its entries are regular files with the names of weights, indices, reports or
    /// [companions](crate::names::is_companion), and at least one is weights.
    ///
    /// # Errors
    /// [`OutputError`]: the target is a file, is not empty, or holds something else; the system's own.
    pub fn create(target: impl AsRef<Path>, force: bool) -> Result<OutputDir, OutputError> {
        let asked = target.as_ref();
        let at = |problem| OutputError { path: asked.to_owned(), problem };
        let target = match fs::symlink_metadata(asked) {
            Ok(_) => fs::canonicalize(asked).map_err(|e| at(e.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => asked.to_owned(),
            Err(error) => return Err(at(error.into())),
        };
        look(&target, force).map_err(at)?;
        let Some(name) = target.file_name() else { return Err(at(OutputProblem::NoName)) };
        let prefix = format!("{}{}-", partial_prefix(&name.to_string_lossy()), std::process::id());
        let parent = directory_of(&target);
        let dir = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(parent)
            .map_err(|e| OutputError { path: parent.to_owned(), problem: e.into() })?;
        Ok(OutputDir { target, dir, force })
    }

    /// The hidden directory to write into.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where it will be.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Copies the companions of a checkpoint into it.
    ///
    /// # Errors
    /// As [`copy_companions`](crate::copy_companions).
    pub fn copy_companions(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<(PathBuf, CompanionCopy)>, OutputError> {
        copy_companions(checkpoint, self.path(), false)
    }

    /// Makes the directory visible under its name. With `sync`, its files and their names are on the disk
    /// before this returns.
    ///
    /// # Errors
    /// [`OutputError`]: a file in it is unfinished; the target has changed so that it may not be replaced; the
    /// system's own. The target is as it was then, except after [`OutputProblem::Left`].
    pub fn commit(self, sync: bool) -> Result<(), OutputError> {
        let OutputDir { target, dir, force } = self;
        let at = |problem| OutputError { path: target.clone(), problem };
        finished(dir.path(), sync).map_err(at)?;
        let old = match look(&target, force).map_err(at)? {
            // Replaces nothing but an empty directory: the system refuses a file or a directory in use.
            Present::Nothing => {
                fs::rename(dir.path(), &target).map_err(|e| at(e.into()))?;
                // Renamed away: there is nothing under the old name to remove.
                let _ = dir.keep();
                None
            }
            Present::Checkpoint => Some(swap(dir, &target).map_err(|e| at(e.into()))?),
        };
        if sync {
            // Before the old content goes: a crash must not find it gone and the new name not yet on the disk.
            File::open(directory_of(&target)).and_then(|d| d.sync_all()).map_err(|e| at(e.into()))?;
        }
        match old {
            Some(old) => {
                remove_checkpoint(&old).map_err(|error| at(OutputProblem::Left { left: old, error }))
            }
            None => Ok(()),
        }
    }
}

/// Refuses a target that may not be replaced.
fn look(target: &Path, force: bool) -> Result<Present, OutputProblem> {
    match fs::symlink_metadata(target) {
        Ok(meta) if !meta.is_dir() => return Err(OutputProblem::IsAFile),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Present::Nothing),
        other => other?,
    };
    let (mut entries, mut weights) = (0u64, false);
    for entry in fs::read_dir(target)? {
        let entry = entry?;
        if !force {
            return Err(OutputProblem::NotEmpty);
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if !entry.file_type()?.is_file() || !(is_weights(&name) || is_companion(&name)) {
            return Err(OutputProblem::Foreign { entry: name });
        }
        entries += 1;
        weights |= is_weights(&name);
    }
    match (entries, weights) {
        (0, _) => Ok(Present::Nothing),
        (_, true) => Ok(Present::Checkpoint),
        (_, false) => Err(OutputProblem::NoCheckpoint),
    }
}

/// Refuses temporary files, and brings the rest to the disk if asked.
fn finished(dir: &Path, sync: bool) -> Result<(), OutputProblem> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') && name.contains(".partial-") {
            return Err(OutputProblem::Unfinished { entry: name });
        }
        if sync && entry.file_type()?.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    if sync {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Puts the new directory in the place of the old one, and returns where the old one is now. After an error
/// the old one is in its place and the new one is gone.
fn swap(new: TempDir, target: &Path) -> io::Result<PathBuf> {
    match renameat_with(CWD, new.path(), CWD, target, RenameFlags::EXCHANGE) {
        // What has the hidden name now is the old content, which is no longer the guard's to remove.
        Ok(()) => Ok(new.keep()),
        Err(Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP) => swap_by_two_renames(new, target),
        Err(error) => Err(error.into()),
    }
}

fn swap_by_two_renames(new: TempDir, target: &Path) -> io::Result<PathBuf> {
    let mut old = new.path().as_os_str().to_owned();
    old.push(".old");
    let old = PathBuf::from(old);
    fs::rename(target, &old)?;
    if let Err(error) = fs::rename(new.path(), target) {
        fs::rename(&old, target)?;
        return Err(error);
    }
    let _ = new.keep();
    Ok(old)
}

/// Removes a directory file by file, and only files that a checkpoint has, so that what came into it at the
/// last moment is left and reported.
fn remove_checkpoint(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_weights(&name) || is_companion(&name) {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fallback cannot be reached through a file system that exchanges, so it is called here.
    #[test]
    fn two_renames_swap_and_undo_themselves() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("out");
        let make = |dir: &Path, text: &str| fs::write(dir.join("config.json"), text).unwrap();
        fs::create_dir(&target).unwrap();
        make(&target, "old");
        let new = tempfile::tempdir_in(place.path()).unwrap();
        make(new.path(), "new");
        let old = swap_by_two_renames(new, &target).unwrap();
        assert_eq!(fs::read(target.join("config.json")).unwrap(), b"new");
        assert_eq!(fs::read(old.join("config.json")).unwrap(), b"old");
        remove_checkpoint(&old).unwrap();

        // The second rename fails: the new directory is gone.
        let lost = tempfile::tempdir_in(place.path()).unwrap();
        fs::remove_dir(lost.path()).unwrap();
        swap_by_two_renames(lost, &target).unwrap_err();
        assert_eq!(fs::read(target.join("config.json")).unwrap(), b"new");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn removal_leaves_what_is_no_checkpoint_file() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("old");
        fs::create_dir(&dir).unwrap();
        for name in ["model.safetensors", "notes.txt"] {
            fs::write(dir.join(name), name).unwrap();
        }
        remove_checkpoint(&dir).unwrap_err();
        assert!(dir.join("notes.txt").exists() && !dir.join("model.safetensors").exists());
    }
}
