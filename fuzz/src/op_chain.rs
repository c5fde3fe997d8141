//! Any chain on any shape: never a panic; a chain gives what its operations give one by one; and the gather of
//! a view writes every element once, from inside of the source.

use restage_geometry::{Dest, Op, Replay, View, gather, replay};
use restage_wire::OpForm;
use serde_json::{Map, Value, json};

/// Most elements of a view that is enumerated.
const ENUMERATED: i64 = 4096;

/// Most operations of a chain.
const CHAIN: usize = 12;

/// What a field of an operation holds.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Int,
    IntOrNull,
    List,
    OneOrMany,
    OneOrManyOrNull,
    Subscript,
    Number,
    Dtype,
}

use Kind::{Dtype, Int, IntOrNull, List, Number, OneOrMany, OneOrManyOrNull, Subscript};

/// The operations by their written names. Those that the vocabulary does not have are left out of a chain.
const OPS: &[(&str, &[(&str, Kind)])] = &[
    ("narrow", &[("dim", Int), ("start", Int), ("length", Int)]),
    ("select", &[("dim", Int), ("index", Int)]),
    ("getitem", &[("index", Subscript)]),
    ("view", &[("shape", List)]),
    ("reshape", &[("shape", List)]),
    ("unsqueeze", &[("dim", Int)]),
    ("squeeze", &[("dim", OneOrManyOrNull)]),
    ("transpose", &[("dim0", Int), ("dim1", Int)]),
    ("t", &[]),
    ("permute", &[("dims", List)]),
    ("flatten", &[("start_dim", Int), ("end_dim", Int)]),
    ("unflatten", &[("dim", Int), ("sizes", List)]),
    ("chunk", &[("chunks", Int), ("dim", Int), ("index", Int)]),
    ("split", &[("size", OneOrMany), ("dim", Int), ("index", Int)]),
    ("unbind", &[("dim", Int), ("index", Int)]),
    ("contiguous", &[]),
    ("expand", &[("shape", List)]),
    ("broadcast_to", &[("shape", List)]),
    ("movedim", &[("source", OneOrMany), ("destination", OneOrMany)]),
    ("swapaxes", &[("axis0", Int), ("axis1", Int)]),
    ("swapdims", &[("dim0", Int), ("dim1", Int)]),
    ("flip", &[("dims", OneOrMany)]),
    ("roll", &[("shifts", OneOrMany), ("dims", OneOrManyOrNull)]),
    ("repeat", &[("repeats", List)]),
    ("repeat_interleave", &[("repeats", Int), ("dim", IntOrNull)]),
    ("tile", &[("dims", List)]),
    ("tensor_split", &[("indices_or_sections", OneOrMany), ("dim", Int), ("index", Int)]),
    ("hsplit", &[("indices_or_sections", OneOrMany), ("index", Int)]),
    ("vsplit", &[("indices_or_sections", OneOrMany), ("index", Int)]),
    ("dsplit", &[("indices_or_sections", OneOrMany), ("index", Int)]),
    ("diagonal", &[("offset", Int), ("dim1", Int), ("dim2", Int)]),
    ("unfold", &[("dimension", Int), ("size", Int), ("step", Int)]),
    ("index_select", &[("dim", Int), ("index", List)]),
    ("take", &[("index", List)]),
    ("to", &[("dtype", Dtype)]),
    ("mul", &[("value", Number)]),
    ("add", &[("value", Number)]),
    ("neg", &[]),
];

/// Numbers at which arithmetic on sizes and positions breaks, if it does.
const EXTREMES: &[i64] = &[
    i64::MIN,
    i64::MIN + 1,
    i64::MAX,
    i64::MAX - 1,
    1 << 62,
    -(1 << 62),
    1 << 32,
    -(1 << 32),
    (1 << 31) - 1,
    3_037_000_500,
    1 << 16,
    4097,
];

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    /// The next byte; 0 past the end.
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    /// Small nearly always, since nothing else fits a small shape.
    fn int(&mut self) -> i64 {
        match self.byte() {
            b @ 0..=159 => i64::from(b % 8),
            b @ 160..=229 => -i64::from(b % 5),
            b @ 230..=243 => i64::from(b) - 222,
            b => EXTREMES[usize::from(b - 244) % EXTREMES.len()],
        }
    }

    fn list(&mut self) -> Vec<i64> {
        (0..self.below(6)).map(|_| self.int()).collect()
    }

    fn one_or_many(&mut self) -> Value {
        if self.byte().is_multiple_of(2) { json!(self.int()) } else { json!(self.list()) }
    }

    fn or_null(&mut self, value: impl Fn(&mut Self) -> Value) -> Value {
        if self.byte().is_multiple_of(4) { Value::Null } else { value(self) }
    }

    fn subscript(&mut self) -> Value {
        let item = |bytes: &mut Self| match bytes.below(5) {
            0 => json!({"int": bytes.int()}),
            1 => json!({"ellipsis": true}),
            2 => json!({"newaxis": true}),
            _ => {
                let bound = |bytes: &mut Self| bytes.or_null(|b| json!(b.int()));
                json!({"slice": [bound(bytes), bound(bytes), bound(bytes)]})
            }
        };
        (0..self.below(5)).map(|_| item(self)).collect()
    }

    fn field(&mut self, kind: Kind) -> Value {
        match kind {
            Int => json!(self.int()),
            IntOrNull => self.or_null(|b| json!(b.int())),
            List => json!(self.list()),
            OneOrMany => self.one_or_many(),
            OneOrManyOrNull => self.or_null(Self::one_or_many),
            Subscript => self.subscript(),
            Number if self.byte().is_multiple_of(2) => json!(self.int()),
            Number => json!(self.int() as f64 / 4.0),
            Dtype => json!(["f32", "bf16", "f8_e4m3", "i32", "bool"][self.below(5)]),
        }
    }

    fn op(&mut self) -> Option<Op> {
        let (name, fields) = OPS[self.below(OPS.len())];
        let mut op = Map::from_iter([("op".to_owned(), json!(name))]);
        for (field, kind) in fields {
            op.insert((*field).to_owned(), self.field(*kind));
        }
        serde_json::from_value::<OpForm>(Value::Object(op)).ok().map(Op::from)
    }
}

/// Source position of each element of a view, in row-major order; `None` where the view is too large, or falls
/// into more pieces than are allowed.
fn positions(view: &View, source: i64) -> Option<Vec<i64>> {
    let numel = usize::try_from(view.numel()).ok()?;
    if view.numel() > ENUMERATED {
        return None;
    }
    let whole = Dest::whole(view.shape());
    // Every second place from 1 on: a gather must write those and no others. Strides of a view of no elements may
    // be as large as numbers get.
    let strides = whole.strides.iter().map(|s| s.saturating_mul(2)).collect();
    let spread = Dest { offset: 1, shape: whole.shape.clone(), strides };
    let mut found: Option<Vec<i64>> = None;
    for (dest, first, step) in [(&whole, 0, 1), (&spread, 1, 2)] {
        let mut out = vec![-1; numel];
        for nest in gather(view, dest).ok()? {
            for run in nest.runs() {
                for i in 0..run.len {
                    let at = run.dst + i;
                    assert!(at >= first && (at - first).is_multiple_of(step), "{at} is no place of {dest:?}");
                    let place = &mut out[((at - first) / step) as usize];
                    assert_eq!(*place, -1, "place {at} is written twice");
                    *place = (run.src + i) as i64;
                }
            }
        }
        assert!(
            out.iter().all(|&p| 0 <= p && p < source),
            "not every element comes from the source: {out:?}"
        );
        assert!(found.is_none_or(|f| f == out), "the destination changes what is gathered");
        found = Some(out);
    }
    found
}

/// Reads a shape and a chain from any bytes, and checks them.
pub fn check(data: &[u8]) {
    let mut bytes = Bytes(data);
    let shape: Vec<i64> = (0..bytes.below(7)).map(|_| bytes.int()).collect();
    let mut ops = Vec::new();
    while !bytes.0.is_empty() && ops.len() < CHAIN {
        ops.extend(bytes.op());
    }
    check_chain(&shape, &ops);
}

/// Checks one chain.
pub fn check_chain(shape: &[i64], ops: &[Op]) {
    let source = View::whole(shape).map_or(0, |view| view.numel());
    let whole = replay(shape, ops);
    let mut before: Option<(View, Vec<i64>)> = None;
    for len in 0..=ops.len() {
        let part = match replay(shape, &ops[..len]) {
            Ok(Replay::Exact(view)) => view,
            // Values are needed: the rest of the chain is for a full pull.
            Ok(Replay::Opaque { .. }) => return,
            Err(error) => {
                assert_eq!(error.at, len.saturating_sub(1), "{error}");
                assert_eq!(whole, Err(error), "the chain goes past an operation that is rejected");
                return;
            }
        };
        let Some(found) = positions(&part, source) else {
            // Not enumerated, and still no reason to fail. Only the whole chain: it may be as many pieces as are
            // allowed, which take seconds in the build of the fuzzer, and a shorter chain is an input of its own.
            if len == ops.len() {
                let _ = gather(&part, &Dest::whole(part.shape()));
            }
            before = None;
            continue;
        };
        assert_eq!(found.len() as i64, part.numel());
        if let Some((view, positions)) = &before {
            let op = &ops[len - 1];
            // The same operation on a row-major tensor of the same shape says which elements it takes.
            let alone = replay(view.shape(), std::slice::from_ref(op));
            let Ok(Replay::Exact(alone)) = alone else {
                panic!("{op:?} on {:?}: {alone:?}, and not in a chain", view.shape());
            };
            assert_eq!(alone.shape(), part.shape(), "{op:?} on {:?}", view.shape());
            if let Some(taken) = self::positions(&alone, positions.len() as i64) {
                let composed: Vec<i64> = taken.iter().map(|&t| positions[t as usize]).collect();
                assert_eq!(composed, found, "{op:?} on {:?} in {ops:?} of {shape:?}", view.shape());
            }
        }
        before = Some((part, found));
    }
}
