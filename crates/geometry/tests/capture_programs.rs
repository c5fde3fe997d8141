//! Random loaders, captured and carried out, against an interpreter that runs them on arrays at once. It has
//! tensors as torch does: a storage, and a position in it for each element.

mod carry_out;

use std::collections::BTreeSet;

use carry_out::{APART, carry_out};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index as Pick;
use restage_geometry::{Capture, CaptureError, DestView, Dtype, Index, LazyTensor, Op, Scalar, ValueOp};

const SOURCES: &[&[i64]] = &[&[4, 5], &[5, 4], &[3], &[]];
/// One has too small a type for what most sources hold.
const TEMPORARIES: &[(Dtype, &[i64])] =
    &[(Dtype::I64, &[4, 5]), (Dtype::I64, &[2, 3, 4]), (Dtype::I8, &[4, 5]), (Dtype::I64, &[1, 6])];
const PARAMS: &[&[i64]] = &[&[4, 5], &[3, 4], &[8]];

/// An element: its value, the source that it is from, and whether an unknown operation was applied.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    value: i64,
    source: Option<usize>,
    bad: bool,
}

/// Storages by number; an element that nothing was written to is `None`.
type Stores = Vec<Vec<Option<Cell>>>;

#[derive(Debug, Clone)]
struct Tensor {
    store: usize,
    shape: Vec<i64>,
    /// Position of each element, in row-major order.
    at: Vec<usize>,
    /// Type of the elements: I64, or I8, to which values wrap.
    dtype: Dtype,
}

impl Cell {
    fn cast(self, to: Dtype) -> Self {
        let value = if to == Dtype::I8 { i64::from(self.value as i8) } else { self.value };
        Cell { value, ..self }
    }
}

fn numel(shape: &[i64]) -> usize {
    shape.iter().product::<i64>() as usize
}

impl Tensor {
    fn new(stores: &mut Stores, shape: &[i64], cells: Vec<Option<Cell>>) -> Self {
        stores.push(cells);
        let (store, at) = (stores.len() - 1, (0..numel(shape)).collect());
        Tensor { store, shape: shape.to_vec(), at, dtype: Dtype::I64 }
    }

    /// A tensor of another shape that has at each index the element of this one at `from(index)`.
    fn index(&self, shape: Vec<i64>, from: impl Fn(&[i64]) -> Vec<i64>) -> Self {
        let at = (0..numel(&shape)).map(|n| {
            let (mut n, mut index) = (n as i64, vec![0; shape.len()]);
            for (d, &size) in shape.iter().enumerate().rev() {
                index[d] = n % size;
                n /= size;
            }
            let flat = from(&index).iter().zip(&self.shape).fold(0, |flat, (i, size)| flat * size + i);
            self.at[flat as usize]
        });
        Tensor { at: at.collect(), shape, ..self.clone() }
    }

    /// The same in a storage of its own.
    fn copied(&self, stores: &mut Stores, f: impl Fn(Cell) -> Cell) -> Self {
        let cells = self.at.iter().map(|&at| stores[self.store][at].map(&f)).collect();
        Tensor { dtype: self.dtype, ..Tensor::new(stores, &self.shape, cells) }
    }

    /// The step between neighbours, where all have the same: then the elements are a view in one dimension.
    fn step(&self) -> Option<i64> {
        let mut steps = self.at.windows(2).map(|w| w[1] as i64 - w[0] as i64);
        let first = steps.next().unwrap_or(1);
        steps.all(|step| step == first).then_some(first)
    }

    /// An operation that the capture has accepted.
    fn apply(&self, stores: &mut Stores, op: &Op) -> Self {
        let dim = |d: i64, ndim: usize| (if d < 0 { d + ndim as i64 } else { d }) as usize;
        let mut shape = self.shape.clone();
        match op {
            &Op::Narrow { dim: d, start, length } => {
                let d = dim(d, shape.len());
                let start = if start < 0 { start + shape[d] } else { start };
                shape[d] = length;
                self.index(shape, |i| moved(i, d, |i| i + start))
            }
            &Op::Select { dim: d, index } => {
                let d = dim(d, shape.len());
                let size = shape.remove(d);
                let index = if index < 0 { index + size } else { index };
                self.index(shape, |i| [&i[..d], &[index], &i[d..]].concat())
            }
            Op::GetItem(items) => {
                let [Index::Slice(Some(start), None, Some(step))] = items[..] else { panic!("{op:?}") };
                shape[0] = (shape[0] - start).max(0).div_euclid(step)
                    + i64::from((shape[0] - start).max(0).rem_euclid(step) > 0);
                self.index(shape, |i| moved(i, 0, |i| start + i * step))
            }
            Op::T => {
                shape.reverse();
                self.index(shape, |i| i.iter().rev().copied().collect())
            }
            &Op::Unsqueeze(d) => {
                let d = dim(d, shape.len() + 1);
                shape.insert(d, 1);
                self.index(shape, |i| [&i[..d], &i[d + 1..]].concat())
            }
            Op::Diagonal { .. } => {
                let size = shape[0].min(shape[1]);
                let shape = [&shape[2..], &[size]].concat();
                self.index(shape, |i| {
                    let (last, rest) = i.split_last().unwrap();
                    [&[*last, *last], rest].concat()
                })
            }
            // A scalar has one element in any order.
            Op::Flip(_) if shape.is_empty() => self.copied(stores, |cell| cell),
            Op::Flip(_) => {
                let last = shape[0] - 1;
                self.index(shape, |i| moved(i, 0, |i| last - i)).copied(stores, |cell| cell)
            }
            Op::Repeat(times) => {
                let more = times.len() - shape.len();
                let old = shape.clone();
                let shape =
                    times.iter().enumerate().map(|(d, t)| if d < more { *t } else { t * old[d - more] });
                let new =
                    self.index(shape.collect(), |i| i[more..].iter().zip(&old).map(|(i, n)| i % n).collect());
                new.copied(stores, |cell| cell)
            }
            Op::Contiguous if self.step() == Some(1) => self.clone(),
            Op::Contiguous => self.copied(stores, |cell| cell),
            Op::Reshape(_) | Op::View(_) => {
                let flat = match self.step() {
                    Some(_) => self.clone(),
                    None => self.copied(stores, |cell| cell),
                };
                Tensor { shape: vec![flat.at.len() as i64], ..flat }
            }
            &Op::Value(ValueOp::Add(Scalar::Int(n))) => {
                self.copied(stores, |cell| Cell { value: cell.value + n, ..cell }.cast(self.dtype))
            }
            &Op::Value(ValueOp::To(dtype)) if dtype == self.dtype => self.clone(),
            &Op::Value(ValueOp::To(dtype)) => {
                Tensor { dtype, ..self.copied(stores, |cell| cell.cast(dtype)) }
            }
            Op::Opaque(_) => self.copied(stores, |cell| Cell { bad: true, ..cell }),
            other => panic!("{other:?}"),
        }
    }

    fn expand(&self, to: &[i64]) -> Option<Self> {
        let more = to.len().checked_sub(self.shape.len())?;
        let fits = self.shape.iter().zip(&to[more..]).all(|(&from, &to)| from == to || from == 1);
        fits.then(|| {
            self.index(to.to_vec(), |i| i[more..].iter().zip(&self.shape).map(|(i, n)| i % n).collect())
        })
    }
}

fn moved(index: &[i64], d: usize, f: impl Fn(i64) -> i64) -> Vec<i64> {
    let mut out = index.to_vec();
    out[d] = f(out[d]);
    out
}

#[derive(Debug, Clone)]
enum Statement {
    /// Keeps a view of a source, or of a view of a temporary.
    Read {
        base: Pick,
        dest_ops: Vec<Op>,
        ops: Vec<Op>,
    },
    /// Writes something kept to a view of a temporary or of a parameter.
    Copy {
        to: Pick,
        dest_ops: Vec<Op>,
        from: Pick,
    },
    Fill {
        to: Pick,
        dest_ops: Vec<Op>,
        value: i64,
    },
}

fn view_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (-2i64..3, -2i64..4, 0i64..4).prop_map(|(dim, start, length)| Op::Narrow { dim, start, length }),
        3 => Just(Op::T),
        2 => (-1i64..3, -2i64..4).prop_map(|(dim, index)| Op::Select { dim, index }),
        1 => (0i64..3, 1i64..3).prop_map(|(a, s)| Op::GetItem(vec![Index::Slice(Some(a), None, Some(s))])),
        1 => (-1i64..2).prop_map(Op::Unsqueeze),
        2 => Just(Op::View(vec![-1])),
        1 => Just(Op::Diagonal { offset: 0, dim1: 0, dim2: 1 }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => view_op(),
        1 => Just(Op::Contiguous),
        1 => Just(Op::Flip(vec![0])),
        1 => Just(Op::Repeat(vec![2, 1])),
        1 => Just(Op::Reshape(vec![-1])),
        1 => (1i64..9).prop_map(|n| Op::Value(ValueOp::Add(Scalar::Int(n)))),
        1 => prop_oneof![Just(Dtype::I8), Just(Dtype::I64)].prop_map(|d| Op::Value(ValueOp::To(d))),
        1 => Just(Op::Opaque("sqrt".into())),
    ]
}

fn statement() -> impl Strategy<Value = Statement> {
    let (pick, dest_ops) = (any::<Pick>, || vec(view_op(), 0..3));
    prop_oneof![
        2 => (pick(), dest_ops(), vec(op(), 0..4))
            .prop_map(|(base, dest_ops, ops)| Statement::Read { base, dest_ops, ops }),
        4 => (pick(), dest_ops(), pick()).prop_map(|(to, dest_ops, from)| Statement::Copy { to, dest_ops, from }),
        1 => (pick(), dest_ops(), -99i64..-1)
            .prop_map(|(to, dest_ops, value)| Statement::Fill { to, dest_ops, value }),
    ]
}

/// A place to write to, in the capture and in the interpreter.
type Place<'c> = (DestView<'c>, Tensor);
type Kept<'c> = (LazyTensor<'c>, Tensor);

fn narrowed<'c>((dest, tensor): &Place<'c>, ops: &[Op], stores: &mut Stores) -> Place<'c> {
    ops.iter().fold((dest.clone(), tensor.clone()), |(dest, tensor), op| match dest.apply(op.clone()) {
        Ok(next) => (next, tensor.apply(stores, op)),
        Err(_) => (dest, tensor),
    })
}

fn applied<'c>(kept: Kept<'c>, ops: &[Op], stores: &mut Stores) -> Kept<'c> {
    ops.iter().fold(kept, |(lazy, tensor), op| match lazy.apply(op.clone()) {
        Ok(next) => (next, tensor.apply(stores, op)),
        Err(_) => (lazy, tensor),
    })
}

/// Brings two of as many dimensions to the sizes that both have, so that more of the copies are possible.
fn common<'c>(dest: Place<'c>, from: Kept<'c>, stores: &mut Stores) -> (Place<'c>, Kept<'c>) {
    let (a, b) = (dest.1.shape.clone(), from.1.shape.clone());
    let cut = |shape: &[i64], other: &[i64]| -> Vec<Op> {
        let larger = |&(_, (n, m)): &(usize, (&i64, &i64))| n > m && *m > 1;
        let sizes = shape.iter().zip(other).enumerate().filter(larger);
        sizes.map(|(d, (_, &m))| Op::Narrow { dim: d as i64, start: 0, length: m }).collect()
    };
    if a.len() != b.len() {
        return (dest, from);
    }
    (narrowed(&dest, &cut(&a, &b), stores), applied(from, &cut(&b, &a), stores))
}

/// What was written to the parameters: where, and the elements.
type Writes = Vec<(usize, Vec<usize>, Vec<Cell>)>;

/// Runs the statements in both, and compares what they refuse. Gives the writes to the parameters.
fn run(statements: &[Statement], capture: &Capture) -> Result<Writes, TestCaseError> {
    let mut stores = Stores::new();
    let mut sources = Vec::new();
    for (n, shape) in SOURCES.iter().enumerate() {
        let lazy = capture.source(&format!("s{n}"), Dtype::I64, shape).unwrap();
        let cell = |i| Some(Cell { value: i as i64 + n as i64 * APART, source: Some(n), bad: false });
        sources.push((lazy, Tensor::new(&mut stores, shape, (0..numel(shape)).map(cell).collect())));
    }
    let mut places: Vec<Place<'_>> = Vec::new();
    for &(dtype, shape) in TEMPORARIES {
        let tensor = Tensor { dtype, ..Tensor::new(&mut stores, shape, vec![None; numel(shape)]) };
        places.push((capture.temporary(dtype, shape).unwrap(), tensor));
    }
    let first_param = stores.len();
    for (n, shape) in PARAMS.iter().enumerate() {
        let dest = capture.param(&format!("p{n}"), Dtype::I64, shape).unwrap();
        places.push((dest, Tensor::new(&mut stores, shape, vec![None; numel(shape)])));
    }
    let params = first_param..first_param + PARAMS.len();
    let mut kept = sources.clone();
    let mut writes = Writes::new();
    for statement in statements {
        let (target, cells, outcome) = match statement {
            Statement::Read { base, dest_ops, ops } => {
                let base = base.index(sources.len() + TEMPORARIES.len());
                let read = match base.checked_sub(sources.len()) {
                    None => applied(sources[base].clone(), dest_ops, &mut stores),
                    Some(at) => {
                        let (dest, tensor) = narrowed(&places[at], dest_ops, &mut stores);
                        (dest.read().unwrap(), tensor)
                    }
                };
                kept.push(applied(read, ops, &mut stores));
                continue;
            }
            Statement::Copy { to, dest_ops, from } => {
                let place = narrowed(to.get(&places), dest_ops, &mut stores);
                let (place, from) = common(place, from.get(&kept).clone(), &mut stores);
                let outcome = place.0.copy_from(&from.0);
                let wide = from.1.expand(&place.1.shape);
                prop_assert_eq!(wide.is_none(), matches!(outcome, Err(CaptureError::Shape { .. })));
                let Some(wide) = wide else { continue };
                let cells: Vec<_> = wide.at.iter().map(|&at| stores[wide.store][at]).collect();
                (place.1, cells, outcome)
            }
            Statement::Fill { to, dest_ops, value } => {
                let (dest, tensor) = narrowed(to.get(&places), dest_ops, &mut stores);
                let cell = Cell { value: *value, source: None, bad: false };
                let cells = vec![Some(cell); tensor.at.len()];
                let element = &value.to_le_bytes()[..tensor.dtype.packing().bytes as usize];
                let outcome = dest.fill(element);
                (tensor, cells, outcome)
            }
        };
        match outcome {
            Ok(()) => {
                prop_assert!(cells.iter().all(Option::is_some));
                for (&at, &cell) in target.at.iter().zip(&cells) {
                    stores[target.store][at] = cell.map(|cell| cell.cast(target.dtype));
                }
                if params.contains(&target.store) {
                    writes.push((
                        target.store - first_param,
                        target.at,
                        cells.into_iter().flatten().collect(),
                    ));
                }
            }
            Err(CaptureError::Unwritten { missing, .. }) => {
                prop_assert_eq!(missing as usize, cells.iter().filter(|cell| cell.is_none()).count());
                prop_assert!(missing > 0);
            }
            // The unknown operation was applied to a constant, so that there is no source to refuse.
            Err(CaptureError::ReadsValues { op, .. }) => {
                prop_assert_eq!(op, "sqrt");
                prop_assert!(cells.iter().flatten().any(|cell| cell.bad && cell.source.is_none()));
            }
            // A write to a temporary that is no box, or a read that no subscripts give.
            Err(CaptureError::Temporary { .. }) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
    Ok(writes)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// A record, carried out, leaves what the loader itself would have left, without the sources that it refuses.
    #[test]
    fn a_record_is_what_the_loader_did(statements in vec(statement(), 1..25)) {
        let capture = Capture::new();
        let writes = run(&statements, &capture)?;
        let captured = capture.finish();
        let cells = || writes.iter().flat_map(|(_, _, cells)| cells);
        let refused: BTreeSet<usize> = cells().filter(|c| c.bad).filter_map(|c| c.source).collect();
        let found: Vec<_> = captured.unsupported.keys().map(|n| n.to_string()).collect();
        prop_assert_eq!(found, refused.iter().map(|n| format!("s{n}")).collect::<Vec<_>>());
        let mut expect: Vec<Vec<i64>> = PARAMS.iter().map(|shape| vec![-1; numel(shape)]).collect();
        for (param, at, cells) in &writes {
            for (&at, cell) in at.iter().zip(cells) {
                if !cell.source.is_some_and(|s| refused.contains(&s)) {
                    expect[*param][at] = cell.value;
                }
            }
        }
        let got = carry_out(&captured);
        for (n, expect) in expect.iter().enumerate() {
            let name = format!("p{n}");
            prop_assert_eq!(&got[&name], expect);
            let mut only = captured.only(|p| p == name);
            // The sources are numbered by their names, and those of the others are gone.
            only.sources = captured.sources.clone();
            prop_assert_eq!(&carry_out(&only)[&name], expect);
        }
        // Every parameter that lacks something of a refused source is named.
        for source in &refused {
            let wanted: BTreeSet<usize> = writes
                .iter()
                .filter(|(_, _, cells)| cells.iter().any(|c| c.source == Some(*source)))
                .map(|&(param, _, _)| param)
                .collect();
            let named = &captured.unsupported[format!("s{source}").as_str()].params;
            prop_assert_eq!(named, &wanted.into_iter().collect::<Vec<_>>());
        }
    }
}
