//! The bytes that each token stands for.

/// How a vocabulary writes bytes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writing {
    /// GPT-2's: every byte is a character, those that cannot be printed are moved past U+0100.
    ByteLevel,
    /// SentencePiece's: plain text with U+2581 for a space, and `<0x0A>` for single bytes.
    SentencePiece,
}

/// Bytes of all tokens, in one piece of memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    /// One past the last byte of each.
    ends: Vec<usize>,
}

impl Pieces {
    pub fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let at = id as usize;
        let end = *self.ends.get(at)?;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        Some(&self.bytes[start..end])
    }

    /// A token that stands for nothing that can be read.
    pub fn push_nothing(&mut self) {
        self.ends.push(self.bytes.len());
    }

    /// A token that is its text.
    pub fn push_text(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.push_nothing();
    }

    /// A token of the vocabulary.
    pub fn push(&mut self, text: &str, writing: Writing) {
        match writing {
            Writing::ByteLevel => {
                for c in text.chars() {
                    match byte_of(c) {
                        Some(byte) => self.bytes.push(byte),
                        // No byte is written so: it stands for itself.
                        None => self.bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                    }
                }
            }
            Writing::SentencePiece => match single_byte(text) {
                Some(byte) => self.bytes.push(byte),
                None => self.bytes.extend_from_slice(text.replace('\u{2581}', " ").as_bytes()),
            },
        }
        self.push_nothing();
    }
}

/// The byte that a character of GPT-2's alphabet stands for (`bytes_to_unicode` of its encoder): those that can be printed
/// are themselves, the others follow each other from U+0100 on.
fn byte_of(c: char) -> Option<u8> {
    let printed = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(c) {
        n @ 0..=0xff => Some(n as u8).filter(|b| printed(*b)),
        n => (0..=u8::MAX).filter(|b| !printed(*b)).nth((n as usize).checked_sub(0x100)?),
    }
}

/// The byte of a token like `<0x0A>`.
pub(crate) fn single_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut seen = [0; 256];
        (0..0x200).filter_map(char::from_u32).filter_map(byte_of).for_each(|b| seen[usize::from(b)] += 1);
        assert_eq!(seen, [1; 256]);
        assert_eq!((byte_of('\u{120}'), byte_of('\u{10a}')), (Some(b' '), Some(b'\n')));
    }

    #[test]
    fn pieces_are_bytes() {
        let mut p = Pieces::default();
        p.push("\u{120}caf\u{c3}\u{a9}", Writing::ByteLevel);
        p.push_nothing();
        p.push("\u{2581}de", Writing::SentencePiece);
        p.push("<0x0A>", Writing::SentencePiece);
        p.push("<0xZZ>", Writing::SentencePiece);
        let all: Vec<&[u8]> = (0..5).map(|id| p.get(id).unwrap()).collect();
        assert_eq!(all, [" caf\u{e9}".as_bytes(), b"", b" de", b"\n", b"<0xZZ>"]);
        assert_eq!(p.get(5), None);
    }
}
