//! A JSON value as it was written, and what can be asked of it.

use std::borrow::Cow;

use crate::json::{JsonError, Scanner};

/// The text of one well-formed JSON value, without white space around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Raw<'a>(&'a str);

/// What a value is as an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Integer {
    /// An integer that fits; `-0` is 0.
    Is(u64),
    /// An integer below 0.
    Negative,
    /// An integer of 2^64 or more.
    TooLarge,
    /// Not an integer: no number, or one with a fraction or an exponent.
    Not,
}

/// Calls `member` for each member of the object that a text is, in order, duplicates too. True: it is an object.
///
/// # Errors
///
/// The text is not JSON, or deeper than [`crate::MAX_DEPTH`].
pub(crate) fn members<'a>(text: &'a str, mut member: impl FnMut(&str, Raw<'a>)) -> Result<bool, JsonError> {
    let mut scanner = Scanner::new(text);
    if !scanner.take(b'{') {
        scanner.value()?;
        scanner.end()?;
        return Ok(false);
    }
    scanner.enter(true)?;
    let mut first = true;
    while !(first && scanner.take(b'}')) {
        first = false;
        let name = scanner.key()?;
        let value = Raw(scanner.value()?);
        member(&unquoted(name), value);
        if scanner.close_or_comma()? {
            break;
        }
    }
    scanner.end()?;
    Ok(true)
}

impl<'a> Raw<'a> {
    /// A text as one value.
    ///
    /// # Errors
    ///
    /// The text is not JSON, or nested too deep.
    pub fn new(text: &'a str) -> Result<Self, JsonError> {
        let mut scanner = Scanner::new(text);
        let value = scanner.value()?;
        scanner.end()?;
        Ok(Raw(value))
    }

    /// The value as it was written.
    pub fn text(self) -> &'a str {
        self.0
    }

    /// What JSON calls it, for messages.
    pub fn kind(self) -> &'static str {
        match self.0.as_bytes().first() {
            Some(b'"') => "a string",
            Some(b'[') => "a list",
            Some(b'{') => "an object",
            Some(b't' | b'f') => "a boolean",
            Some(b'n') => "null",
            _ => "a number",
        }
    }

    /// The value as an integer.
    pub fn integer(self) -> Integer {
        let digits = self.0.strip_prefix('-').unwrap_or(self.0).as_bytes();
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            Integer::Not
        } else if digits.len() < self.0.len() {
            if digits == b"0" { Integer::Is(0) } else { Integer::Negative }
        } else {
            self.0.parse().map_or(Integer::TooLarge, Integer::Is)
        }
    }

    /// The value as a finite number.
    pub fn number(self) -> Option<f64> {
        // Rust's grammar for numbers contains JSON's, and no other JSON value is in it.
        self.0.parse().ok().filter(|n: &f64| n.is_finite())
    }

    /// The value as a string.
    pub fn string(self) -> Option<Cow<'a, str>> {
        self.0.starts_with('"').then(|| unquoted(self.0))
    }

    /// The elements of a list.
    pub fn elements(self) -> Option<Elements<'a>> {
        let mut scanner = Scanner::new(self.0);
        if !scanner.take(b'[') {
            return None;
        }
        let done = scanner.take(b']');
        Some(Elements { scanner, done })
    }
}

/// The elements of a list, in order.
pub(crate) struct Elements<'a> {
    scanner: Scanner<'a>,
    done: bool,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Raw<'a>;

    fn next(&mut self) -> Option<Raw<'a>> {
        if self.done {
            return None;
        }
        // The text is a value that was read before, so that no step of this fails.
        let value = self.scanner.value().ok()?;
        self.done = !self.scanner.take(b',');
        Some(Raw(value))
    }
}

/// A string's text, from its JSON with quotes.
fn unquoted(quoted: &str) -> Cow<'_, str> {
    let inner = &quoted[1..quoted.len() - 1];
    if !inner.as_bytes().contains(&b'\\') {
        return Cow::Borrowed(inner);
    }
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let escape = rest.as_bytes()[at + 1];
        rest = &rest[at + 2..];
        text.push(match escape {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let high = unit(&rest[..4]);
                rest = &rest[4..];
                match char::from_u32(high) {
                    Some(c) => c,
                    None => {
                        let low = unit(&rest[2..6]);
                        rest = &rest[6..];
                        let pair = 0x10000 + ((high & 0x3ff) << 10 | low & 0x3ff);
                        char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER)
                    }
                }
            }
            plain => char::from(plain),
        });
    }
    text.push_str(rest);
    Cow::Owned(text)
}

fn unit(hex: &str) -> u32 {
    hex.chars().fold(0, |unit, digit| unit << 4 | digit.to_digit(16).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            // Exact in binary: by default serde_json is off by one in the last place of others.
            any::<i32>().prop_map(|n| Value::from(f64::from(n) / 8.0)),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..6)
                    .prop_map(|members| members.into_iter().collect::<Value>()),
            ]
        })
    }

    /// The value that our reader finds.
    fn built(raw: Raw<'_>) -> Value {
        if let Some(elements) = raw.elements() {
            return elements.map(built).collect();
        }
        let mut object = serde_json::Map::new();
        if members(raw.text(), |name, value| drop(object.insert(name.into(), built(value)))).unwrap() {
            return Value::Object(object);
        }
        match (raw.kind(), raw.integer()) {
            ("a string", _) => Value::from(raw.string().unwrap()),
            (_, Integer::Is(number)) => Value::from(number),
            (_, Integer::Negative) => Value::from(raw.text().parse::<i64>().unwrap()),
            ("a number", _) => Value::from(raw.number().unwrap()),
            _ => serde_json::from_str(raw.text()).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn the_same_values_as_serde_json(value in json(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            prop_assert_eq!(built(Raw::new(&text).unwrap()), serde_json::from_str::<Value>(&text).unwrap());
        }

        #[test]
        fn mutated_text_gets_the_same_verdict(
            value in json(), cut in any::<prop::sample::Index>(), with in ".{0,3}", less in 0..4usize,
        ) {
            let mut text: Vec<char> = value.to_string().chars().collect();
            let at = cut.index(text.len());
            text.splice(at..(at + less).min(text.len()), with.chars());
            let text: String = text.into_iter().collect();
            let theirs = serde_json::from_str::<Value>(&text);
            // That one refuses numbers beyond f64, which ours keeps as text.
            prop_assume!(!theirs.as_ref().is_err_and(|e| e.to_string().contains("out of range")));
            prop_assert_eq!(Raw::new(&text).is_ok(), theirs.is_ok(), "{:?}", text);
        }
    }

    #[test]
    fn integers() {
        for (text, integer) in [
            ("0", Integer::Is(0)),
            ("-0", Integer::Is(0)),
            ("18446744073709551615", Integer::Is(u64::MAX)),
            ("18446744073709551616", Integer::TooLarge),
            ("-1", Integer::Negative),
            ("-99999999999999999999999", Integer::Negative),
            ("1.0", Integer::Not),
            ("1e2", Integer::Not),
            ("-0.0", Integer::Not),
            ("true", Integer::Not),
            ("\"1\"", Integer::Not),
            ("[1]", Integer::Not),
        ] {
            assert_eq!(Raw::new(text).unwrap().integer(), integer, "{text}");
        }
        assert_eq!(Raw::new("1e400").unwrap().number(), None);
        assert_eq!(Raw::new("null").unwrap().number(), None);
        assert_eq!(Raw::new("-2.5E1").unwrap().number(), Some(-25.0));
    }

    #[test]
    fn members_come_in_order_with_duplicates_and_unescaped_names() {
        let mut found = Vec::new();
        let text = r#" {"\u006fp":1,"op" : [ ], "\ud83d\ude00":{"op":2}} "#;
        assert!(members(text, |name, value| found.push((name.to_owned(), value.text()))).unwrap());
        let expected = [("op", "1"), ("op", "[ ]"), ("\u{1f600}", r#"{"op":2}"#)];
        assert_eq!(found, expected.map(|(n, v)| (n.to_owned(), v)));
        assert_eq!(members("[1]", |_, _| unreachable!()), Ok(false));
        assert!(members("{\"a\":1}}", |_, _| ()).is_err());
        assert!(members("{\"a\":1,}", |_, _| ()).is_err());
    }
}
