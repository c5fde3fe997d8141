//! Reads JSON text (RFC 8259) without building it: checks it, and says where its members lie.
//!
//! A general reader would not do here. A `request_id` must come back as it was spelt, be it `1e400` or a number of
//! fifty digits; a hidden state of megabytes must not be copied; and no line, however deep, may use up the stack. So
//! nothing is converted before it is needed, and nesting is a bit mask and not recursion.
//!
//! The law: it accepts what `serde_json` accepts, apart from nesting and from numbers too large for that one, and
//! finds the same values. A surrogate without its other half is refused, since no text can hold it.

use thiserror::Error;

/// Arrays and objects that may lie in each other, the outermost counted.
pub const MAX_DEPTH: u32 = 128;

/// Why a text is not JSON, or not JSON that is read here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum JsonError {
    /// The text breaks JSON's grammar.
    #[error("malformed JSON at byte {at}: {expected} expected, found {found}")]
    Malformed {
        /// Bytes before it.
        at: usize,
        /// What could have stood there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A surrogate without its other half.
    #[error("malformed JSON at byte {at}: a surrogate without its other half")]
    LoneSurrogate {
        /// Bytes before its escape.
        at: usize,
    },
    /// Deeper than [`MAX_DEPTH`].
    #[error("JSON nested deeper than {MAX_DEPTH} at byte {at}")]
    TooDeep {
        /// Bytes before the bracket that is one too many.
        at: usize,
    },
}

/// A place in a text that is being read.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
    /// One bit per open bracket, the innermost lowest: whether it is an object's.
    objects: u128,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Scanner { text, at: 0, depth: 0, objects: 0 }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn malformed(&self, expected: &'static str) -> JsonError {
        let found = match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(c) => format!("{c:?}"),
            None => "the end".into(),
        };
        JsonError::Malformed { at: self.at, expected, found }
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Takes a byte if it comes next.
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Nothing but white space may follow.
    pub(crate) fn end(&mut self) -> Result<(), JsonError> {
        self.space();
        if self.peek().is_none() { Ok(()) } else { Err(self.malformed("the end")) }
    }

    /// Takes an opening bracket that [`Scanner::take`] has found, as one level of nesting.
    pub(crate) fn enter(&mut self, object: bool) -> Result<(), JsonError> {
        if self.depth == MAX_DEPTH {
            return Err(JsonError::TooDeep { at: self.at - 1 });
        }
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(object);
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
    }

    /// Passes a value by, and gives its text.
    pub(crate) fn value(&mut self) -> Result<&'a str, JsonError> {
        self.space();
        let (start, base) = (self.at, self.depth);
        loop {
            // A value begins here.
            let open = match self.peek() {
                Some(b'"') => {
                    self.string()?;
                    false
                }
                Some(b'-' | b'0'..=b'9') => {
                    self.number()?;
                    false
                }
                Some(bracket @ (b'{' | b'[')) => {
                    self.at += 1;
                    let object = bracket == b'{';
                    self.enter(object)?;
                    if self.take(if object { b'}' } else { b']' }) {
                        self.leave();
                        false
                    } else {
                        if object {
                            self.key()?;
                        }
                        true
                    }
                }
                Some(b't') => self.word("true")?,
                Some(b'f') => self.word("false")?,
                Some(b'n') => self.word("null")?,
                _ => return Err(self.malformed("a value")),
            };
            if !open && self.after(base)? {
                return Ok(&self.text[start..self.at]);
            }
            self.space();
        }
    }

    /// After a value: closes what ends here, up to the level `base`. False: another value follows.
    fn after(&mut self, base: u32) -> Result<bool, JsonError> {
        while self.depth > base {
            let object = self.objects & 1 == 1;
            if self.take(b',') {
                if object {
                    self.key()?;
                }
                return Ok(false);
            }
            if !self.take(if object { b'}' } else { b']' }) {
                return Err(self.malformed(if object { "',' or '}'" } else { "',' or ']'" }));
            }
            self.leave();
        }
        Ok(true)
    }

    /// After a member's value: true if its object ends here, false if another member follows.
    pub(crate) fn close_or_comma(&mut self) -> Result<bool, JsonError> {
        if self.take(b',') {
            return Ok(false);
        }
        if !self.take(b'}') {
            return Err(self.malformed("',' or '}'"));
        }
        self.leave();
        Ok(true)
    }

    /// Passes a member's name and its colon by, and gives the name with its quotes.
    pub(crate) fn key(&mut self) -> Result<&'a str, JsonError> {
        self.space();
        if self.peek() != Some(b'"') {
            return Err(self.malformed("a member's name"));
        }
        let name = self.string()?;
        if self.take(b':') { Ok(name) } else { Err(self.malformed("':'")) }
    }

    fn word(&mut self, word: &'static str) -> Result<bool, JsonError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.malformed(word));
        }
        self.at += word.len();
        Ok(false)
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(self.malformed("a digit")) }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<&'a str, JsonError> {
        let start = self.at;
        self.at += 1;
        loop {
            self.at += plain(&self.text.as_bytes()[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(&self.text[start..self.at]);
                }
                Some(b'\\') => self.escape()?,
                _ => return Err(self.malformed("the rest of a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                return Ok(());
            }
            Some(b'u') => self.at += 1,
            _ => return Err(self.malformed("an escape")),
        }
        let lone = JsonError::LoneSurrogate { at: start };
        match self.hex()? {
            0xdc00..=0xdfff => Err(lone),
            0xd800..=0xdbff => {
                if !self.text[self.at..].starts_with("\\u") {
                    return Err(lone);
                }
                self.at += 2;
                if (0xdc00..=0xdfff).contains(&self.hex()?) { Ok(()) } else { Err(lone) }
            }
            _ => Ok(()),
        }
    }

    fn hex(&mut self) -> Result<u32, JsonError> {
        let mut unit = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|b| char::from(b).to_digit(16)) else {
                return Err(self.malformed("a hexadecimal digit"));
            };
            unit = unit << 4 | digit;
            self.at += 1;
        }
        Ok(unit)
    }
}

/// Bytes before the first one that ends a string, begins an escape, or may not be in a string.
fn plain(bytes: &[u8]) -> usize {
    // In blocks, each judged as a whole, which compiles to vector instructions: a hidden state is megabytes of this.
    const BLOCK: usize = 32;
    let special = |b: u8| b < b' ' || b == b'"' || b == b'\\';
    let whole = bytes
        .chunks_exact(BLOCK)
        .take_while(|block| !block.iter().fold(false, |found, b| found | special(*b)))
        .count();
    let start = whole * BLOCK;
    start + bytes[start..].iter().position(|b| special(*b)).unwrap_or(bytes.len() - start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Result<&str, JsonError> {
        let mut scanner = Scanner::new(text);
        let value = scanner.value()?;
        scanner.end()?;
        Ok(value)
    }

    #[test]
    fn what_serde_json_says_of_it() {
        let words = [
            "null",
            "true",
            "false",
            "nul",
            "nulll",
            "True",
            "NaN",
            "Infinity",
            "0",
            "-0",
            "00",
            "01",
            "-",
            "+1",
            "1.",
            ".5",
            "1.5",
            "1e5",
            "1E+5",
            "1e",
            "1e-",
            "-1.0e-07",
            "1_0",
            "\"\"",
            "\"",
            "\"a",
            "\"\\\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\\u0000\"",
            "\"\\ud83d\\ude00\"",
            "\"\\ud83d\"",
            "\"\\ude00\"",
            "\"\\ud83dx\"",
            "\"\\ud83d\\n\"",
            "\"\\ud83d\\u0041\"",
            "\"\t\"",
            "\"\\t\\/\\b\"",
            "\"é\u{1f600}\"",
            "\"\0\"",
            "[]",
            "[",
            "]",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[[],[[]]]",
            "[1}",
            "{}",
            "{",
            "}",
            "{]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\":1 \"b\":2}",
            "{\"a\":[{\"b\":{}}]}",
            "{,}",
            "{1:1}",
            "",
            " ",
            "1 1",
            "[] []",
            "\u{feff}1",
            "\u{a0}1",
            "\x0b1",
            "//",
            "'a'",
            "\"\x7f\"",
        ];
        let contexts =
            ["{}", " {}\r\n", "[{}]", "[ {} , 1]", "{\"k\":{}}", "{\"k\" : {} ,\"l\":[{}]}", "{}x"];
        for context in contexts {
            for word in words {
                let text = context.replace("{}", word);
                let theirs = serde_json::from_str::<serde_json::Value>(&text);
                let ours = whole(&text);
                assert_eq!(ours.is_ok(), theirs.is_ok(), "{text:?}: {ours:?} and {theirs:?}");
                if let Ok(value) = ours {
                    assert_eq!(value, text.trim_matches([' ', '\r', '\n', '\t']));
                }
            }
        }
    }

    #[test]
    fn depth_ends_at_the_limit_and_not_on_the_stack() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        let mixed = |n: usize| format!("{}1{}", "{\"a\":[".repeat(n), "]}".repeat(n));
        let most = MAX_DEPTH as usize;
        assert!(whole(&nested(most)).is_ok() && whole(&mixed(most / 2)).is_ok());
        assert_eq!(whole(&nested(most + 1)), Err(JsonError::TooDeep { at: most }));
        assert!(matches!(whole(&mixed(most / 2 + 1)), Err(JsonError::TooDeep { .. })));
        assert_eq!(whole(&"[".repeat(1_000_000)), Err(JsonError::TooDeep { at: most }));
        // Siblings are not depth.
        assert!(whole(&format!("[{}1]", "[],".repeat(1000))).is_ok());
    }

    #[test]
    fn numbers_too_large_for_anyone_are_numbers() {
        for text in
            ["1e400", "-1e999999", &"9".repeat(400), "0.000000000000000000000000000000000000001e-4000"]
        {
            assert_eq!(whole(text), Ok(text));
        }
    }

    #[test]
    fn a_string_of_any_length_ends_at_its_quote() {
        for length in 0..100 {
            let text = format!("\"{}\"", "a".repeat(length));
            assert_eq!(whole(&text), Ok(&*text));
            assert!(whole(&format!("\"{}\n\"", "a".repeat(length))).is_err());
            let escaped = format!("\"{}\\\"b\"", "a".repeat(length));
            assert_eq!(whole(&escaped), Ok(&*escaped));
        }
    }
}
