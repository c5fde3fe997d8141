//! Written files: one item of a table or a list a line, so that they can be read, compared and searched.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};
use std::io::{self, Write};

/// Objects and lists this deep or less have their items on lines of their own: the file, and its tables and lists.
const LINES: usize = 2;

/// The JSON of a file, with an end of line.
pub(crate) fn write<T: Serialize>(file: &T) -> String {
    let mut out = Vec::new();
    let mut json = Serializer::with_formatter(&mut out, Lines { depth: 0, inner: CompactFormatter });
    // Forms have string keys and no fallible parts, and a vector takes every byte.
    let written = file.serialize(&mut json);
    debug_assert!(written.is_ok(), "{written:?}");
    out.push(b'\n');
    String::from_utf8(out).unwrap_or_else(|bytes| String::from_utf8_lossy(bytes.as_bytes()).into_owned())
}

struct Lines {
    depth: usize,
    inner: CompactFormatter,
}

impl Lines {
    fn item<W: ?Sized + Write>(&self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        match (self.depth, first) {
            (0..=LINES, _) => writer.write_all(b"\n"),
            (_, true) => Ok(()),
            (_, false) => writer.write_all(b" "),
        }
    }

    fn end<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        writer.write_all(bracket)
    }
}

impl Formatter for Lines {
    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        self.inner.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        self.inner.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }
}
