//! A reader that knows how many bytes are left, and takes no count or length that they cannot hold.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::GgufProblem;

/// Longest string that is read, in bytes: a chat template can have tens of kilobytes.
const MAX_STRING_BYTES: u64 = 16 << 20;

/// A file that is read from its start.
pub(super) struct Cursor {
    file: BufReader<File>,
    at: u64,
    /// What may be read: the file's length, or less.
    end: u64,
    file_bytes: u64,
}

impl Cursor {
    /// Opens a regular file, of which at most `most` bytes will be read.
    pub fn open(path: &Path, most: u64) -> Result<Cursor, GgufProblem> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(GgufProblem::NotAFile);
        }
        let file_bytes = meta.len();
        Ok(Cursor { file: BufReader::new(file), at: 0, end: file_bytes.min(most), file_bytes })
    }

    /// Bytes read so far.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Length of the file, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    fn take(&mut self, length: u64, what: &str) -> Result<(), GgufProblem> {
        let left = self.end - self.at;
        if length > left {
            return Err(GgufProblem::Truncated { what: what.to_owned(), at: self.at, needed: length, left });
        }
        self.at += length;
        Ok(())
    }

    pub fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufProblem> {
        self.take(N as u64, what)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub fn u32(&mut self, what: &str) -> Result<u32, GgufProblem> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    pub fn u64(&mut self, what: &str) -> Result<u64, GgufProblem> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    /// A number of things that take at least `each` bytes.
    pub fn count(&mut self, what: &str, each: u64) -> Result<u64, GgufProblem> {
        let count = self.u64(what)?;
        let left = self.end - self.at;
        match count.checked_mul(each) {
            Some(needed) if needed <= left => Ok(count),
            _ => Err(GgufProblem::Count { what: what.to_owned(), count, each, left }),
        }
    }

    /// Appends a string to one that is there.
    pub fn append_string(&mut self, what: &str, text: &mut String) -> Result<(), GgufProblem> {
        let length = self.u64(what)?;
        if length > MAX_STRING_BYTES {
            return Err(GgufProblem::StringTooLong { what: what.to_owned(), length, most: MAX_STRING_BYTES });
        }
        self.take(length, what)?;
        let mut bytes = vec![0; length as usize];
        self.file.read_exact(&mut bytes)?;
        let added = std::str::from_utf8(&bytes);
        text.push_str(
            added.map_err(|e| GgufProblem::NotUtf8 { what: what.to_owned(), at: e.valid_up_to() })?,
        );
        Ok(())
    }

    pub fn string(&mut self, what: &str) -> Result<String, GgufProblem> {
        let mut text = String::new();
        self.append_string(what, &mut text)?;
        Ok(text)
    }
}
