//! Writing JSON in ASCII: whatever is beyond it becomes `\u` escapes, in surrogate pairs above the basic plane.

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The digits of a number, at the end of the buffer.
pub(crate) fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// Appends a number.
pub(crate) fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(decimal(number, &mut [0; 20]));
}

/// Appends a text as a JSON string.
pub(crate) fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for c in text.chars() {
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            ' '..='~' => out.push(c as u8),
            _ => push_escaped(out, c),
        }
    }
    out.push(b'"');
}

/// Appends JSON as it was written, in ASCII and fit for one line.
///
/// Outside ASCII there are only characters in strings, so that they can be escaped wherever they are. A CR can only
/// be white space between tokens, and becomes a space, since some readers end a line at it.
pub(crate) fn push_json(out: &mut Vec<u8>, json: &str) {
    for c in json.chars() {
        match c {
            '\n' | '\r' => out.push(b' '),
            _ if c.is_ascii() => out.push(c as u8),
            _ => push_escaped(out, c),
        }
    }
}

fn push_escaped(out: &mut Vec<u8>, c: char) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        out.extend_from_slice(b"\\u");
        out.extend([12, 8, 4, 0].map(|shift| HEX[usize::from(*unit >> shift & 15)]));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn string(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        push_string(&mut out, text);
        out
    }

    #[test]
    fn surrogate_pairs_and_controls() {
        assert_eq!(string("\u{1f600}\0\x7f\"\\"), b"\"\\ud83d\\ude00\\u0000\\u007f\\\"\\\\\"");
    }

    proptest! {
        #[test]
        fn a_string_reads_back_and_is_ascii(text in any::<String>()) {
            let json = string(&text);
            prop_assert!(json.iter().all(|b| (b' '..=b'~').contains(b)));
            prop_assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text);
        }

        #[test]
        fn json_keeps_its_value(text in any::<String>(), number in any::<u64>()) {
            let value = serde_json::json!({ text.clone(): [number, text] });
            let mut out = Vec::new();
            push_json(&mut out, &serde_json::to_string_pretty(&value).unwrap());
            prop_assert!(out.is_ascii() && !out.contains(&b'\n'));
            prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&out).unwrap(), value);
            let mut out = Vec::new();
            push_number(&mut out, number);
            prop_assert_eq!(out, number.to_string().into_bytes());
        }
    }
}
