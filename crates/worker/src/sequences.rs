//! The sequences a worker holds: each has its own state and its own length, whatever comes between.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::fault::{Fault, Kind};
use crate::raw::{Integer, Raw};
use crate::request::shortened;

/// Which sequence an op is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum SequenceId {
    /// The one that ops without a `sequence` are about.
    Default,
    /// A number. It names another sequence than the text of its digits.
    Number(i128),
    /// A text.
    Name(String),
}

impl SequenceId {
    /// Bytes that a name may have.
    const MAX_NAME_BYTES: usize = 256;

    /// Reads a `sequence` member.
    pub(crate) fn read(value: Raw<'_>) -> Result<Self, Fault> {
        if let Some(name) = value.string() {
            if name.len() > Self::MAX_NAME_BYTES {
                let most = Self::MAX_NAME_BYTES;
                let found = name.len();
                return Err(Fault::field(format!("'sequence' may have {most} bytes, found {found}")));
            }
            return Ok(SequenceId::Name(name.into_owned()));
        }
        let number = match value.integer() {
            Integer::Is(number) => Some(i128::from(number)),
            Integer::Negative => value.text().parse::<i64>().ok().map(i128::from),
            Integer::TooLarge => None,
            Integer::Not => {
                let found = value.kind();
                return Err(Fault::field(format!(
                    "'sequence' must be a string or an integer, found {found}"
                )));
            }
        };
        let found = || shortened(value.text());
        number
            .map(SequenceId::Number)
            .ok_or_else(|| Fault::field(format!("'sequence' must fit in 64 bits, found {}", found())))
    }
}

/// A sequence that is held.
#[derive(Debug)]
pub(crate) struct Slot<S> {
    pub state: S,
    /// Positions it has.
    pub length: u64,
}

/// All sequences that are held, up to a number of them.
#[derive(Debug)]
pub(crate) struct Sequences<S> {
    slots: BTreeMap<SequenceId, Slot<S>>,
    most: usize,
}

impl<S> Sequences<S> {
    pub fn new(most: usize) -> Self {
        Sequences { slots: BTreeMap::new(), most }
    }

    pub fn get(&mut self, id: &SequenceId) -> Option<&mut Slot<S>> {
        self.slots.get_mut(id)
    }

    pub fn length(&self, id: &SequenceId) -> u64 {
        self.slots.get(id).map_or(0, |slot| slot.length)
    }

    /// Whether there is room for another one.
    pub fn room(&self) -> Result<(), Fault> {
        if self.slots.len() < self.most {
            return Ok(());
        }
        let most = self.most;
        Err(Fault::new(Kind::Limit, format!("{most} sequences are held, which is all: reset one first")))
    }

    pub fn insert(&mut self, id: SequenceId, slot: Slot<S>) {
        self.slots.insert(id, slot);
    }

    /// Forgets a sequence, and gives the positions it had.
    pub fn remove(&mut self, id: &SequenceId) -> u64 {
        self.slots.remove(id).map_or(0, |slot| slot.length)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&SequenceId, &Slot<S>)> {
        self.slots.iter()
    }
}
