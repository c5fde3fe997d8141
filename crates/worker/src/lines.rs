//! Cuts what is read into lines, without ever holding more of one than is allowed.

use std::io::{self, Read};

use memchr::{memchr, memrchr};

use crate::inbox::{Chunk, Inbox};

/// Bytes that are asked for at a time: what a pipe holds.
const READ_BYTES: usize = 64 << 10;

/// Reads to the end and hands over chunks of whole lines. A line of more than `most` bytes is passed by and leaves
/// [`Chunk::TooLong`] in its place; once it is known to be too long, nothing of it is kept.
///
/// # Errors
///
/// Reading failed. What was read before has been handed over.
pub(crate) fn read(mut input: impl Read, most: usize, inbox: &Inbox) -> io::Result<()> {
    let mut bytes = vec![0; READ_BYTES];
    // The beginning of a line whose end has not come yet.
    let mut begun = inbox.buffer();
    let mut skipping = false;
    let ended = loop {
        let mut new = match input.read(&mut bytes) {
            Ok(0) => break Ok(()),
            Ok(read) => &bytes[..read],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => break Err(e),
        };
        if skipping {
            let Some(end) = memchr(b'\n', new) else { continue };
            new = &new[end + 1..];
            skipping = false;
            if !inbox.push(Chunk::TooLong) {
                return Ok(());
            }
        }
        if let Some(last) = memrchr(b'\n', new) {
            begun.extend_from_slice(&new[..=last]);
            new = &new[last + 1..];
            if !inbox.push(Chunk::Lines(begun)) {
                return Ok(());
            }
            begun = inbox.buffer();
        }
        if begun.len() + new.len() > most {
            skipping = true;
            begun = Vec::new();
        } else {
            begun.extend_from_slice(new);
        }
    };
    // The last line may lack its newline.
    if skipping {
        inbox.push(Chunk::TooLong);
    } else if !begun.is_empty() {
        inbox.push(Chunk::Lines(begun));
    }
    ended
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A reader that gives a few bytes at a time.
    struct Few<'a>(&'a [u8], usize);

    impl Read for Few<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(out.len());
            let (now, later) = self.0.split_at(n);
            out[..n].copy_from_slice(now);
            self.0 = later;
            Ok(n)
        }
    }

    /// The lines that come out, none for one that was too long.
    fn lines(input: &[u8], most: usize, few: usize) -> Vec<Option<Vec<u8>>> {
        let inbox = Inbox::default();
        read(Few(input, few), most, &inbox).unwrap();
        inbox.end();
        let mut lines = Vec::new();
        while let Some(chunk) = inbox.next() {
            match &chunk {
                Chunk::TooLong => lines.push(None),
                Chunk::Lines(bytes) => {
                    let found = bytes.split_inclusive(|b| *b == b'\n');
                    lines.extend(found.map(|l| Some(l.strip_suffix(b"\n").unwrap_or(l).to_vec())));
                }
            }
            inbox.done(chunk);
        }
        lines
    }

    proptest! {
        #[test]
        fn every_line_once_and_in_order(
            input in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'a'), any::<u8>()], 0..300),
            most in 1..40usize,
            few in 1..70usize,
        ) {
            let mut expected: Vec<&[u8]> = input.split(|b| *b == b'\n').collect();
            if expected.last().is_some_and(|l| l.is_empty()) {
                expected.pop();
            }
            let found = lines(&input, most, few);
            prop_assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                match found {
                    // A line that came with its newline may be left to the one who counts its bytes.
                    Some(line) => prop_assert_eq!(&line[..], expected),
                    None => prop_assert!(expected.len() > most),
                }
            }
        }
    }
}
