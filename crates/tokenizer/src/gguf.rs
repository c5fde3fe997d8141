//! Vocabularies of GGUF files.

use std::collections::HashMap;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior};

use crate::control::Control;
use crate::pieces::{Pieces, Writing, single_byte};
use crate::{Tokenizer, TokenizerError};

/// What a GGUF file says of its tokenizer, under `tokenizer.ggml.` and the name of each field where that differs.
#[derive(Debug, Clone, Default)]
pub struct GgufVocab<'a> {
    /// `model`: `gpt2` for byte-level BPE, `llama` for SentencePiece.
    pub model: &'a str,
    /// `pre`: how a byte-level vocabulary splits text into words.
    pub pre: Option<&'a str>,
    /// The tokens, by id.
    pub tokens: Vec<&'a str>,
    /// `token_type`: 1 plain, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 a byte.
    pub types: Option<&'a [i32]>,
    /// Of SentencePiece: the higher, the earlier is a token put together.
    pub scores: Option<&'a [f32]>,
    /// Of byte-level BPE: `left right`, the first ones first.
    pub merges: Option<Vec<&'a str>>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: the end of a turn.
    pub eot: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}

const CONTROL: i32 = 3;
const UNKNOWN: i32 = 2;
const USER_DEFINED: i32 = 4;

/// GPT-2's words: contractions, then letters, digits or others with the space before them, then other spaces.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Llama 3's words: contractions of either case, letters with one other character before them, up to three digits,
/// others with the line ends after them.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Qwen 2's words: as Llama 3's, digits one by one.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// One digit.
const DIGIT: &str = r"\p{N}";

/// How words are found, by the name that llama.cpp gives it: one expression after the other, and whether a word that is a
/// token is that token, whatever merges say.
struct Pre {
    names: &'static [&'static str],
    words: &'static [&'static str],
    ignore_merges: bool,
}

const PRES: &[Pre] = &[
    Pre { names: &["gpt-2", "phi-2", "olmo"], words: &[GPT2], ignore_merges: false },
    Pre {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        words: &[DIGIT, GPT2],
        ignore_merges: false,
    },
    Pre { names: &["llama-bpe", "llama3", "llama-v3"], words: &[LLAMA3], ignore_merges: true },
    Pre { names: &["qwen2", "deepseek-r1-qwen"], words: &[QWEN2], ignore_merges: false },
];

/// The names of all ways to find words.
pub(crate) fn known_pre() -> String {
    PRES.iter().flat_map(|p| p.names).copied().collect::<Vec<_>>().join(", ")
}

impl Tokenizer {
    /// The tokenizer of a GGUF file.
    ///
    /// # Errors
    /// [`TokenizerError`]: a model or a way of splitting that is not known or not said, lists that do not fit each other,
    /// merges of tokens that do not exist.
    pub fn from_gguf(vocab: &GgufVocab<'_>) -> Result<Tokenizer, TokenizerError> {
        let count = vocab.tokens.len();
        if count == 0 {
            return Err(TokenizerError::Missing("tokenizer.ggml.tokens"));
        }
        let same = |what, found: usize| match found == count {
            true => Ok(()),
            false => Err(TokenizerError::Length { what, expected: count, found }),
        };
        vocab.types.map_or(Ok(()), |t| same("tokenizer.ggml.token_type", t.len()))?;
        vocab.scores.map_or(Ok(()), |s| same("tokenizer.ggml.scores", s.len()))?;
        for id in [vocab.bos, vocab.eos, vocab.eot].into_iter().flatten() {
            if id as usize >= count {
                return Err(TokenizerError::NoSuchToken { id, size: count as u32 });
            }
        }
        let (inner, writing) = match vocab.model {
            "gpt2" => (byte_level(vocab)?, Writing::ByteLevel),
            "llama" => (sentence_piece(vocab)?, Writing::SentencePiece),
            found => return Err(TokenizerError::Model { found: found.to_owned() }),
        };
        let mut pieces = Pieces::default();
        for (id, token) in vocab.tokens.iter().enumerate() {
            match vocab.types.map_or(1, |t| t[id]) {
                CONTROL | UNKNOWN => pieces.push_nothing(),
                USER_DEFINED => pieces.push_text(token),
                _ => pieces.push(token, writing),
            }
        }
        // llama.cpp's defaults: SentencePiece begins with it, byte-level BPE does not.
        let add_bos = vocab.add_bos.unwrap_or(vocab.model == "llama");
        let prefix = match (add_bos, vocab.bos) {
            (false, _) => None,
            (true, Some(bos)) => Some(bos),
            (true, None) => return Err(TokenizerError::Missing("tokenizer.ggml.bos_token_id")),
        };
        let kinds = (0..).zip(&vocab.tokens).zip(vocab.types.unwrap_or_default());
        let control = kinds.filter(|(_, kind)| **kind == CONTROL).map(|((id, text), _)| (id, *text));
        let control = Control::new(control)?;
        let mut made = Tokenizer { inner, pieces, control, prefix, bos: vocab.bos, eos: Vec::new() };
        made.add_eos([vocab.eos, vocab.eot].into_iter().flatten());
        Ok(made)
    }
}

/// Ids by text; the first of equal tokens.
fn ids(vocab: &GgufVocab<'_>) -> HashMap<String, u32> {
    let mut ids = HashMap::with_capacity(vocab.tokens.len());
    for (id, token) in (0..).zip(&vocab.tokens) {
        ids.entry((*token).to_owned()).or_insert(id);
    }
    ids
}

fn byte_level(vocab: &GgufVocab<'_>) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let pre = vocab.pre.ok_or(TokenizerError::Missing("tokenizer.ggml.pre"))?;
    let merges = vocab.merges.as_ref().ok_or(TokenizerError::Missing("tokenizer.ggml.merges"))?;
    let pre = PRES
        .iter()
        .find(|p| p.names.contains(&pre))
        .ok_or_else(|| TokenizerError::Pre { found: pre.to_owned() })?;
    let pair = |merge: &&str| {
        let halves = merge.split_once(' ').ok_or_else(|| TokenizerError::Entry {
            what: "tokenizer.ggml.merges",
            found: (*merge).to_owned(),
            problem: "is not two tokens with a space between",
        })?;
        Ok((halves.0.to_owned(), halves.1.to_owned()))
    };
    let merges = merges.iter().map(pair).collect::<Result<Vec<_>, TokenizerError>>()?;
    let bpe = BPE::builder()
        .vocab_and_merges(ids(vocab).into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|e| TokenizerError::Encode(format!("merges and tokens do not fit: {e}")))?;
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for words in pre.words {
        let pattern = SplitPattern::Regex((*words).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map_err(|e| TokenizerError::Encode(e.to_string()))?;
        steps.push(split.into());
    }
    steps.push(ByteLevel::new(false, false, false).into());
    let mut inner = tokenizers::Tokenizer::new(bpe);
    inner.with_pre_tokenizer(Some(Sequence::new(steps)));
    Ok(inner)
}

/// SentencePiece's BPE puts the two neighbours together that make the token of the highest score. That is a list of merges:
/// every way to part a token in two, by the score of the whole.
fn sentence_piece(vocab: &GgufVocab<'_>) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let scores = vocab.scores.ok_or(TokenizerError::Missing("tokenizer.ggml.scores"))?;
    let ids = ids(vocab);
    if let Some(missing) = (0..=u8::MAX).find(|b| !ids.contains_key(&format!("<0x{b:02X}>"))) {
        return Err(TokenizerError::Entry {
            what: "tokenizer.ggml.tokens",
            found: format!("<0x{missing:02X}>"),
            problem: "is missing: a text without a token for it could not be written",
        });
    }
    let mut merges: Vec<(f32, u32, (String, String))> = Vec::new();
    for (id, token) in (0..).zip(&vocab.tokens) {
        let score = scores[id as usize];
        if score.is_nan() {
            let found = (*token).to_owned();
            return Err(TokenizerError::Entry { what: "tokenizer.ggml.scores", found, problem: "has none" });
        }
        if vocab.types.is_some_and(|t| t[id as usize] != 1) || single_byte(token).is_some() {
            continue;
        }
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push((score, id, (left.to_owned(), right.to_owned())));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let merges = merges.into_iter().map(|(_, _, pair)| pair).collect();
    let unknown = vocab.unknown.and_then(|id| vocab.tokens.get(id as usize)).copied().unwrap_or("<unk>");
    let bpe = BPE::builder()
        .vocab_and_merges(ids.into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
        .byte_fallback(true)
        .fuse_unk(true)
        .unk_token(unknown.to_owned())
        .build()
        .map_err(|e| TokenizerError::Encode(format!("merges and tokens do not fit: {e}")))?;
    let spaces = Replace::new(" ", "\u{2581}").map_err(|e| TokenizerError::Encode(e.to_string()))?;
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if vocab.add_space_prefix.unwrap_or(true) {
        steps.push(Prepend::new("\u{2581}".to_owned()).into());
    }
    steps.push(spaces.into());
    let mut inner = tokenizers::Tokenizer::new(bpe);
    inner
        .with_normalizer(Some(Normalizers::new(steps)))
        .map_err(|e| TokenizerError::Encode(e.to_string()))?;
    Ok(inner)
}
