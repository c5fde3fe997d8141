//! Control tokens in a text.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::TokenizerError;

/// The control tokens of a vocabulary, by their texts.
#[derive(Debug, Clone)]
pub(crate) struct Control {
    /// None where there are none.
    texts: Option<AhoCorasick>,
    ids: Vec<u32>,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// Nothing of it is a control token. It is not empty.
    Text(&'a str),
    /// What is spelled here.
    Token(u32),
}

impl Control {
    /// These tokens; of several that begin at one place the longest is found.
    pub fn new<'a>(tokens: impl Iterator<Item = (u32, &'a str)>) -> Result<Self, TokenizerError> {
        let (ids, texts): (Vec<u32>, Vec<&str>) = tokens.filter(|(_, text)| !text.is_empty()).unzip();
        let build = || AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
        let texts = (!texts.is_empty()).then(build).transpose();
        Ok(Control { texts: texts.map_err(|e| TokenizerError::Encode(e.to_string()))?, ids })
    }

    /// The parts of a text, in order.
    pub fn split<'a>(&self, text: &'a str) -> impl Iterator<Item = Part<'a>> {
        let mut parts = Vec::new();
        let mut at = 0;
        for found in self.texts.iter().flat_map(|texts| texts.find_iter(text)) {
            parts.push(Part::Text(&text[at..found.start()]));
            parts.push(Part::Token(self.ids[found.pattern().as_usize()]));
            at = found.end();
        }
        parts.push(Part::Text(&text[at..]));
        parts.into_iter().filter(|part| *part != Part::Text(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_is_found_and_what_lies_between_is_text() {
        let control = Control::new([(1, "<a>"), (2, "<a><b>"), (3, "")].into_iter()).unwrap();
        let parts: Vec<_> = control.split("x<a><b><a>y").collect();
        assert_eq!(parts, [Part::Text("x"), Part::Token(2), Part::Token(1), Part::Text("y")]);
        assert_eq!(control.split("").count(), 0);
        let none = Control::new(std::iter::empty()).unwrap();
        assert_eq!(none.split("<a>").collect::<Vec<_>>(), [Part::Text("<a>")]);
    }
}
