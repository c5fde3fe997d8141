//! A request line's members, and reading them as what they must be.

use std::borrow::Cow;

use crate::engine::Partial;
use crate::fault::{Fault, Kind};
use crate::json::JsonError;
use crate::raw::{Integer, Raw, members};
use crate::sampling::Sampling;
use crate::sequences::SequenceId;
use crate::stage::Role;

/// What a worker takes, beyond what its model takes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a line without its newline. Longer ones are skipped and answered with an error.
    pub max_line_bytes: usize,
    /// Sequences that may be held at once.
    pub max_sequences: usize,
    /// Tokens of one op, so that no line of a few bytes a token can ask for gigabytes.
    pub max_tokens: usize,
    /// Bytes of a prompt, which an engine takes apart before it knows how many tokens it has.
    pub max_prompt_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_line_bytes: 256 << 20,
            max_sequences: 4096,
            max_tokens: 1 << 20,
            max_prompt_bytes: 16 << 20,
        }
    }
}

/// What a request may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Tokenize,
    EmbedAndForward,
    DecodeStep,
    ForwardRange,
    ForwardAndSample,
    Detokenize,
    Reset,
    Truncate,
    Status,
}

impl Op {
    fn named(name: &str) -> Option<Op> {
        Some(match name {
            "tokenize" => Op::Tokenize,
            "embed_and_forward" => Op::EmbedAndForward,
            "decode_step" => Op::DecodeStep,
            "forward_range" => Op::ForwardRange,
            "forward_and_sample" => Op::ForwardAndSample,
            "detokenize" => Op::Detokenize,
            "reset" => Op::Reset,
            "truncate" => Op::Truncate,
            "status" => Op::Status,
            _ => return None,
        })
    }

    /// The role that has the op; none: any stage does.
    pub fn role(self) -> Option<Role> {
        match self {
            Op::Tokenize | Op::EmbedAndForward | Op::DecodeStep => Some(Role::First),
            Op::ForwardRange => Some(Role::Middle),
            Op::ForwardAndSample | Op::Detokenize => Some(Role::Last),
            Op::Reset | Op::Truncate | Op::Status => None,
        }
    }
}

/// The members of a request that mean something. Of duplicates the last one counts; others are passed over.
#[derive(Debug, Default)]
pub(crate) struct Request<'a> {
    pub request_id: Option<Raw<'a>>,
    op: Option<Raw<'a>>,
    prompt: Option<Raw<'a>>,
    parse_special: Option<Raw<'a>>,
    tokens: Option<Raw<'a>>,
    token_id: Option<Raw<'a>>,
    position: Option<Raw<'a>>,
    seq_len: Option<Raw<'a>>,
    hidden_b64: Option<Raw<'a>>,
    sequence: Option<Raw<'a>>,
    sampling: Option<Raw<'a>>,
    length: Option<Raw<'a>>,
    stream: Option<Raw<'a>>,
    flush: Option<Raw<'a>>,
}

impl<'a> Request<'a> {
    /// Reads a line that is not blank.
    pub fn read(text: &'a str) -> Result<Self, Fault> {
        let mut request = Request::default();
        let is_object = members(text, |name, value| {
            let member = match name {
                "request_id" => &mut request.request_id,
                "op" => &mut request.op,
                "prompt" => &mut request.prompt,
                "parse_special" => &mut request.parse_special,
                "tokens" => &mut request.tokens,
                "token_id" => &mut request.token_id,
                "position" => &mut request.position,
                "seq_len" => &mut request.seq_len,
                "hidden_b64" => &mut request.hidden_b64,
                "sequence" => &mut request.sequence,
                "sampling" => &mut request.sampling,
                "length" => &mut request.length,
                "stream" => &mut request.stream,
                "flush" => &mut request.flush,
                _ => return,
            };
            *member = Some(value);
        });
        match is_object {
            Ok(true) => Ok(request),
            Ok(false) => {
                let found = Raw::new(text).map_or("none", Raw::kind);
                Err(Fault::new(Kind::NotAnObject, format!("a request must be a JSON object, found {found}")))
            }
            Err(error) => {
                let kind = match error {
                    JsonError::TooDeep { .. } => Kind::TooDeep,
                    JsonError::Malformed { .. } | JsonError::LoneSurrogate { .. } => Kind::InvalidJson,
                };
                Err(Fault::new(kind, error.to_string()))
            }
        }
    }

    pub fn op(&self) -> Result<Op, Fault> {
        let Some(op) = self.op else {
            return Err(Fault::new(Kind::MissingOp, "'op' is missing"));
        };
        let Some(name) = op.string() else {
            return Err(Fault::new(Kind::UnknownOp, format!("'op' must be a string, found {}", op.kind())));
        };
        Op::named(&name)
            .ok_or_else(|| Fault::new(Kind::UnknownOp, format!("unknown op {:?}", shortened(&name))))
    }

    pub fn prompt(&self) -> Result<Cow<'a, str>, Fault> {
        string("prompt", self.prompt)
    }

    /// Whether what spells a control token in `prompt` is one; it is not unless that is said.
    pub fn parse_special(&self) -> Result<bool, Fault> {
        flag("parse_special", self.parse_special)
    }

    /// Whether `tokens` continue the text of a sequence, and what then becomes of the bytes of half a character.
    pub fn stream(&self) -> Result<Option<Partial>, Fault> {
        match (flag("stream", self.stream)?, flag("flush", self.flush)?) {
            (true, true) => Ok(Some(Partial::Flush)),
            (true, false) => Ok(Some(Partial::Keep)),
            (false, false) => Ok(None),
            (false, true) => {
                Err(Fault::field("'flush' needs 'stream' to be true: nothing is held without it"))
            }
        }
    }

    /// `tokens`, into a list that is empty: each below `limit` if there is one.
    pub fn tokens(&self, limit: Option<u64>, most: usize, tokens: &mut Vec<u64>) -> Result<(), Fault> {
        let Some(elements) = self.tokens.and_then(Raw::elements) else {
            return Err(Fault::field(format!(
                "'tokens' must be a list of non-negative integers, found {}",
                kind(self.tokens)
            )));
        };
        for (i, element) in elements.enumerate() {
            if i == most {
                return Err(Fault::new(Kind::Limit, format!("'tokens' has more than {most} elements")));
            }
            match element.integer() {
                Integer::Is(token) => tokens.push(token),
                other => return Err(Fault::field(not_an_integer(&format!("tokens[{i}]"), other, element))),
            }
        }
        for (i, token) in tokens.iter().enumerate() {
            check_token(&|| format!("tokens[{i}]"), *token, limit)?;
        }
        Ok(())
    }

    pub fn token_id(&self, limit: Option<u64>) -> Result<u64, Fault> {
        let token = integer("token_id", self.token_id)?;
        check_token(&|| "token_id".into(), token, limit)?;
        Ok(token)
    }

    pub fn position(&self) -> Result<u64, Fault> {
        integer("position", self.position)
    }

    pub fn position_or_start(&self) -> Result<u64, Fault> {
        if self.position.is_some() { self.position() } else { Ok(0) }
    }

    pub fn seq_len(&self) -> Result<u64, Fault> {
        match integer("seq_len", self.seq_len)? {
            0 => Err(Fault::field("'seq_len' must be a positive integer, found 0")),
            seq_len => Ok(seq_len),
        }
    }

    pub fn hidden_b64(&self) -> Result<Cow<'a, str>, Fault> {
        string("hidden_b64", self.hidden_b64)
    }

    pub fn length(&self) -> Result<u64, Fault> {
        integer("length", self.length)
    }

    pub fn sequence(&self) -> Result<SequenceId, Fault> {
        self.sequence.map_or(Ok(SequenceId::Default), SequenceId::read)
    }

    pub fn sampling(&self) -> Result<Sampling, Fault> {
        let mut sampling = Sampling::default();
        let Some(asked) = self.sampling else { return Ok(sampling) };
        let mut fault = None;
        let is_object = members(asked.text(), |name, value| {
            if let Err(found) = read_sampling(&mut sampling, name, value) {
                fault.get_or_insert(found);
            }
        });
        match (is_object, fault) {
            (_, Some(fault)) => Err(fault),
            (Ok(true), None) => Ok(sampling),
            _ => Err(Fault::field(format!("'sampling' must be an object, found {}", asked.kind()))),
        }
    }
}

fn read_sampling(sampling: &mut Sampling, name: &str, value: Raw<'_>) -> Result<(), Fault> {
    let number = |what: &str, fits: fn(f64) -> bool| {
        let number = value.number().filter(|n| fits(*n));
        number.map(Some).ok_or_else(|| {
            let found = shortened(value.text());
            Fault::field(format!("'sampling.{name}' must be {what}, found {found}"))
        })
    };
    match name {
        "temperature" => sampling.temperature = number("a finite number of at least 0", |n| n >= 0.0)?,
        "top_k" => sampling.top_k = Some(integer("sampling.top_k", Some(value))?),
        "top_p" => sampling.top_p = number("a number over 0 and at most 1", |n| n > 0.0 && n <= 1.0)?,
        "min_p" => sampling.min_p = number("a number from 0 to 1", |n| (0.0..=1.0).contains(&n))?,
        "repeat_penalty" => sampling.repeat_penalty = number("a finite number over 0", |n| n > 0.0)?,
        "seed" => sampling.seed = Some(integer("sampling.seed", Some(value))?),
        _ => {}
    }
    Ok(())
}

fn check_token(name: &dyn Fn() -> String, token: u64, limit: Option<u64>) -> Result<(), Fault> {
    match limit {
        Some(limit) if token >= limit => Err(Fault::new(
            Kind::UnknownToken,
            format!("'{}' must be below the vocabulary's {limit}, found {token}", name()),
        )),
        _ => Ok(()),
    }
}

/// False where it is not there.
fn flag(name: &str, value: Option<Raw<'_>>) -> Result<bool, Fault> {
    match value.map(Raw::text) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        _ => Err(Fault::field(format!("'{name}' must be true or false, found {}", kind(value)))),
    }
}

fn integer(name: &str, value: Option<Raw<'_>>) -> Result<u64, Fault> {
    let Some(value) = value else {
        return Err(Fault::field(format!("'{name}' must be a non-negative integer, found nothing")));
    };
    match value.integer() {
        Integer::Is(number) => Ok(number),
        other => Err(Fault::field(not_an_integer(name, other, value))),
    }
}

fn not_an_integer(name: &str, found: Integer, value: Raw<'_>) -> String {
    let found = match found {
        Integer::TooLarge => format!("{}, which is over 2^64 - 1", shortened(value.text())),
        Integer::Negative => shortened(value.text()).into_owned(),
        Integer::Not | Integer::Is(_) if value.kind() == "a number" => shortened(value.text()).into_owned(),
        Integer::Not | Integer::Is(_) => value.kind().into(),
    };
    format!("'{name}' must be a non-negative integer, found {found}")
}

fn string<'a>(name: &str, value: Option<Raw<'a>>) -> Result<Cow<'a, str>, Fault> {
    value
        .and_then(Raw::string)
        .ok_or_else(|| Fault::field(format!("'{name}' must be a string, found {}", kind(value))))
}

fn kind(value: Option<Raw<'_>>) -> &'static str {
    value.map_or("nothing", Raw::kind)
}

/// What a message quotes of a text that may be long.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    /// Bytes of a request that a message may repeat.
    const MOST: usize = 64;
    if text.len() <= MOST {
        return text.into();
    }
    let cut = (0..=MOST).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    format!("{}... ({} bytes)", &text[..cut], text.len()).into()
}
