//! Hugging Face's `tokenizer.json`.

use std::collections::BTreeMap;

use tokenizers::DecoderWrapper;

use crate::control::Control;
use crate::pieces::{Pieces, Writing};
use crate::{Tokenizer, TokenizerError};

impl Tokenizer {
    /// The tokenizer of a `tokenizer.json`. Which tokens begin and end a text other files say: `bos` is taken as given, and
    /// see [`add_eos`](Self::add_eos).
    ///
    /// # Errors
    /// [`TokenizerError::Json`]: not such a file, or one whose decoder is neither byte-level nor SentencePiece's.
    pub fn from_json(json: &[u8], bos: Option<u32>) -> Result<Tokenizer, TokenizerError> {
        let mut inner =
            tokenizers::Tokenizer::from_bytes(json).map_err(|e| TokenizerError::Json(e.to_string()))?;
        // What spells a special token is text.
        inner.set_encode_special_tokens(true);
        let writing = inner.get_decoder().and_then(writing).ok_or_else(|| {
            TokenizerError::Json(
                "expected a decoder of type ByteLevel, or a Sequence with ByteFallback".into(),
            )
        })?;
        let added: BTreeMap<u32, (String, bool)> = inner
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| (id, (token.content, token.special)))
            .collect();
        let words: BTreeMap<u32, String> = inner.get_vocab(true).into_iter().map(|(t, id)| (id, t)).collect();
        let size = words.keys().chain(added.keys()).max().map_or(0, |last| last + 1);
        let mut pieces = Pieces::default();
        for id in 0..size {
            match (added.get(&id), words.get(&id)) {
                (Some((_, true)), _) | (None, None) => pieces.push_nothing(),
                (Some((text, false)), _) => pieces.push_text(text),
                (None, Some(token)) => pieces.push(token, writing),
            }
        }
        let special = added.iter().filter(|(_, (_, special))| *special);
        let control = Control::new(special.map(|(id, (text, _))| (*id, text.as_str())))?;
        Ok(Tokenizer { inner, pieces, control, prefix: None, bos, eos: Vec::new() })
    }
}

fn writing(decoder: &DecoderWrapper) -> Option<Writing> {
    match decoder {
        DecoderWrapper::ByteLevel(_) => Some(Writing::ByteLevel),
        DecoderWrapper::Sequence(steps) => {
            let steps = steps.get_decoders();
            let fallback = steps.iter().any(|s| matches!(s, DecoderWrapper::ByteFallback(_)));
            fallback.then_some(Writing::SentencePiece).or_else(|| steps.iter().find_map(writing))
        }
        _ => None,
    }
}
