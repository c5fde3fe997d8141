//! Text in HTML.

use std::fmt;

use crate::explain::name::Name;

/// Displays text so that it can stand between tags and in quoted attributes, whatever it holds.
pub(super) struct Text<'a>(pub &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Control characters become escapes first, and those hold none of the letters below.
        let plain = Name(self.0).to_string();
        let mut from = 0;
        for (at, byte) in plain.bytes().enumerate() {
            let entity = match byte {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                b'"' => "&quot;",
                b'\'' => "&#39;",
                _ => continue,
            };
            f.write_str(&plain[from..at])?;
            f.write_str(entity)?;
            from = at + 1;
        }
        f.write_str(&plain[from..])
    }
}

#[cfg(test)]
mod tests {
    use super::Text;

    #[test]
    fn nothing_gets_out() {
        let text = Text("<script>alert(\"1\" & '2')</script>\u{202e}é").to_string();
        assert_eq!(text, "&lt;script&gt;alert(&quot;1&quot; &amp; &#39;2&#39;)&lt;/script&gt;\\u{202e}é");
    }
}
