//! A tensor as naively as can be: the source element at every index, and a storage with strides beside it.
//!
//! The two sides are kept apart on purpose. Operations say on the logical side which index of the old tensor each
//! index of the new one is, and on the physical side what torch does to strides and offset; [`Tensor::agrees`]
//! then looks up every element in the storage. A wrong stride in the model shows as a wrong element.

use std::rc::Rc;

/// Most elements of a tensor of the model.
pub const MOST_ELEMENTS: i64 = 20_000;

/// Most dimensions of a tensor of the model, so that the limit of the crate stays out of the comparison.
pub const MOST_DIMS: usize = 12;

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// torch raises.
    ByTorch,
    /// The result is legal, and too large to be enumerated here.
    TooLarge,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Sizes.
    pub shape: Vec<i64>,
    /// The source element at each index, in row-major order.
    pub elements: Vec<i64>,
    /// torch's strides, in places of the storage.
    pub strides: Vec<i64>,
    /// Place of the first element.
    pub offset: i64,
    /// The source element at each place.
    pub storage: Rc<[i64]>,
    /// True once the storage is no longer the source's.
    pub copied: bool,
}

impl Tensor {
    /// A whole source, which counts its elements.
    pub fn source(shape: &[i64]) -> Tensor {
        let elements: Vec<i64> = (0..shape.iter().product()).collect();
        Tensor {
            shape: shape.to_vec(),
            storage: elements.clone().into(),
            elements,
            strides: dense_strides(shape),
            offset: 0,
            copied: false,
        }
    }

    /// Number of dimensions.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.elements.len() as i64
    }

    /// The elements of a result of this shape: `from` writes, for each of its indices, the index of this tensor
    /// that it is.
    pub fn enumerate(&self, shape: &[i64], from: impl Fn(&[i64], &mut [i64])) -> Result<Vec<i64>, Refused> {
        check_size(shape)?;
        let mut index = vec![0; self.ndim()];
        let mut out = Vec::new();
        each_index(shape, |place| {
            from(place, &mut index);
            let mut flat = 0;
            for (&i, &n) in index.iter().zip(&self.shape) {
                assert!((0..n).contains(&i), "the model reads index {index:?} of {:?}", self.shape);
                flat = flat * n + i;
            }
            out.push(self.elements[flat as usize]);
        });
        Ok(out)
    }

    /// A result that looks at the same storage.
    pub fn aliased(&self, shape: Vec<i64>, strides: Vec<i64>, offset: i64, elements: Vec<i64>) -> Tensor {
        Tensor { shape, elements, strides, offset, storage: self.storage.clone(), copied: self.copied }
    }

    /// A result in new storage with these strides, which must be dense.
    pub fn copied_to(shape: Vec<i64>, strides: Vec<i64>, elements: Vec<i64>) -> Tensor {
        let mut storage = vec![-1; elements.len()];
        let mut at = 0;
        if !elements.is_empty() {
            each_index(&shape, |index| {
                storage[place(index, &strides, 0) as usize] = elements[at];
                at += 1;
            });
        }
        Tensor { shape, elements, strides, offset: 0, storage: storage.into(), copied: true }
    }

    /// The same in new row-major storage.
    pub fn cloned(&self) -> Tensor {
        Tensor::copied_to(self.shape.clone(), dense_strides(&self.shape), self.elements.clone())
    }

    /// True when the storage holds every element where strides and offset say.
    pub fn agrees(&self) -> bool {
        let mut at = 0;
        let mut right =
            self.shape.iter().product::<i64>() == self.numel() && self.strides.len() == self.ndim();
        each_index(&self.shape, |index| {
            let place = place(index, &self.strides, self.offset);
            right &= usize::try_from(place).ok().and_then(|p| self.storage.get(p)) == self.elements.get(at);
            at += 1;
        });
        right
    }

    /// torch's `is_contiguous`: each element is one place after the one before, in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut at = 0;
        let mut dense = true;
        each_index(&self.shape, |index| {
            dense &= place(index, &self.strides, self.offset) == self.offset + at;
            at += 1;
        });
        dense
    }
}

/// The place of an index.
pub fn place(index: &[i64], strides: &[i64], offset: i64) -> i64 {
    // A stride that is never stepped by may be anything.
    let steps = index.iter().zip(strides).filter(|(i, _)| **i != 0).map(|(i, s)| i * s);
    offset + steps.sum::<i64>()
}

/// Every index of a shape, in row-major order.
pub fn each_index(shape: &[i64], mut f: impl FnMut(&[i64])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        let Some(d) = (0..shape.len()).rev().find(|&d| index[d] + 1 < shape[d]) else { return };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}

/// Strides of new row-major storage; a size of 0 counts as 1.
pub fn dense_strides(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|d| shape[d + 1..].iter().map(|&n| n.max(1)).product()).collect()
}

/// Refuses what is too large to be enumerated.
pub fn check_size(shape: &[i64]) -> Result<(), Refused> {
    if shape.iter().any(|&n| n < 0) {
        return Err(Refused::ByTorch);
    }
    let numel = shape.iter().try_fold(1i64, |n, &s| n.checked_mul(s.max(1)));
    match numel {
        Some(n) if n <= MOST_ELEMENTS && shape.len() <= MOST_DIMS => Ok(()),
        _ => Err(Refused::TooLarge),
    }
}
