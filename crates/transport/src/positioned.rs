//! Regular files, read by position.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Opens a regular file, and tells its length in bytes.
///
/// # Errors
/// What the system says; [`io::ErrorKind::InvalidInput`] for a directory, pipe or device.
pub fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    // Asked before it is opened, as opening a pipe would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// Fills `bytes` from offset `at`, as far as the file goes; returns the bytes that were found. Every read that it takes
/// is counted in `requests`.
///
/// # Errors
/// What the system says of a read; interrupted ones are tried again.
pub fn fill_at(file: &File, bytes: &mut [u8], at: u64, requests: &mut u64) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        *requests += 1;
        match file.read_at(&mut bytes[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
