//! Operations on values, as data: casts, a multiplication or an addition of a constant, a change of sign.
//!
//! The rules are torch's on CPU, as of 2.15.0. All work element by element, on little-endian bytes.

use thiserror::Error;

use crate::dtype::Dtype;
use crate::number::{Element, Number, with_element};

/// A constant of Python: an integer or a float, which torch promotes differently.
#[derive(Debug, Clone, Copy)]
pub enum Scalar {
    /// An `int`.
    Int(i64),
    /// A `float`.
    Float(f64),
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Scalar {}

impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl Scalar {
    /// What makes two constants the same: a float by its bits, so that a chain can be compared and hashed.
    fn key(self) -> (bool, u64) {
        match self {
            Scalar::Int(i) => (false, i as u64),
            Scalar::Float(f) => (true, f.to_bits()),
        }
    }

    fn number(self) -> Number {
        match self {
            Scalar::Int(i) => Number::Int(i),
            Scalar::Float(f) => Number::Float(f),
        }
    }
}

/// One operation on the value of each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueOp {
    /// `to(dtype)`
    To(Dtype),
    /// `tensor * value`
    Mul(Scalar),
    /// `tensor + value`
    Add(Scalar),
    /// `-tensor`
    Neg,
}

/// A value operation that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ValueError {
    /// torch does not define the operation for the type, or restage does not know the type's values.
    #[error("{op} is not defined for {dtype}")]
    Undefined {
        /// Name of the operation.
        op: &'static str,
        /// The type.
        dtype: Dtype,
    },
    /// Bytes that are no whole number of elements.
    #[error("{found} bytes are no whole number of {dtype} elements")]
    Length {
        /// Type of the elements.
        dtype: Dtype,
        /// Bytes given.
        found: usize,
    },
}

impl ValueOp {
    /// torch's name of the operation.
    pub fn name(&self) -> &'static str {
        match self {
            ValueOp::To(_) => "to",
            ValueOp::Mul(_) => "mul",
            ValueOp::Add(_) => "add",
            ValueOp::Neg => "neg",
        }
    }

    /// Type of the result, by torch's promotion: a float constant makes integers `F32`, an integer constant
    /// makes booleans `I64`, and everything else stays what it is.
    ///
    /// # Errors
    /// [`ValueError::Undefined`] where torch does not define the operation.
    ///
    /// ```
    /// use restage_geometry::{Dtype, Scalar, ValueOp};
    /// assert_eq!(ValueOp::Mul(Scalar::Float(0.5)).result(Dtype::BF16), Ok(Dtype::BF16));
    /// assert_eq!(ValueOp::Mul(Scalar::Float(0.5)).result(Dtype::I8), Ok(Dtype::F32));
    /// assert!(ValueOp::Neg.result(Dtype::Bool).is_err());
    /// ```
    pub fn result(&self, dtype: Dtype) -> Result<Dtype, ValueError> {
        let undefined = |dtype| ValueError::Undefined { op: self.name(), dtype };
        let known = |dtype: Dtype| with_element!(dtype, E => E::SIZE).map(|_| dtype).ok_or(undefined(dtype));
        known(dtype)?;
        let wide_unsigned = matches!(dtype, Dtype::U16 | Dtype::U32 | Dtype::U64);
        match self {
            ValueOp::To(to) => known(*to),
            _ if matches!(dtype, Dtype::F8E4m3 | Dtype::F8E5m2) => Err(undefined(dtype)),
            ValueOp::Neg if wide_unsigned || dtype == Dtype::Bool => Err(undefined(dtype)),
            ValueOp::Neg => Ok(dtype),
            ValueOp::Mul(Scalar::Float(_)) | ValueOp::Add(Scalar::Float(_)) if !is_float(dtype) => {
                Ok(Dtype::F32)
            }
            ValueOp::Add(Scalar::Int(_)) if wide_unsigned => Err(undefined(dtype)),
            ValueOp::Mul(Scalar::Int(_)) | ValueOp::Add(Scalar::Int(_)) if dtype == Dtype::Bool => {
                Ok(Dtype::I64)
            }
            ValueOp::Mul(_) | ValueOp::Add(_) => Ok(dtype),
        }
    }

    /// Applies the operation to elements of type `from`; gives the type and the bytes of the results.
    ///
    /// Casts round to nearest, ties to even; floats of 8 and 16 bits are cast by way of `F32`. NaN stays NaN,
    /// with no promise on its sign and payload. What is too large becomes infinity, except in
    /// [`Dtype::F8E4m3`], where it becomes the largest value. A float is cut to an integer towards zero; where
    /// it does not fit, torch leaves the result open, and here it is what x86-64 gives. Integers wrap.
    ///
    /// Arithmetic on floats of 16 bits is done in `F32` and rounded once; there, the constant of `mul` is
    /// rounded to `F32`, and that of `add` to the tensor's type.
    ///
    /// # Errors
    /// [`ValueError`].
    ///
    /// ```
    /// use restage_geometry::{Dtype, ValueOp};
    /// let halves = 1.5f32.to_le_bytes();
    /// assert_eq!(ValueOp::To(Dtype::BF16).apply(Dtype::F32, &halves), Ok((Dtype::BF16, vec![0xc0, 0x3f])));
    /// ```
    pub fn apply(&self, from: Dtype, src: &[u8]) -> Result<(Dtype, Vec<u8>), ValueError> {
        let to = self.result(from)?;
        let undefined = |dtype| ValueError::Undefined { op: self.name(), dtype };
        // Promotion comes first: the computation is in the type of the result.
        let cast = with_element!(from, F => with_element!(to, T => cast::<F, T>(src)).ok_or(undefined(to)));
        let mut dst =
            cast.ok_or(undefined(from))??.ok_or(ValueError::Length { dtype: from, found: src.len() })?;
        match *self {
            ValueOp::To(_) => {}
            ValueOp::Neg => {
                with_element!(to, T => each::<T>(&mut dst, Number::negated));
            }
            ValueOp::Mul(by) => {
                with_element!(to, T => each::<T>(&mut dst, |n| n.times::<T>(by.number())));
            }
            ValueOp::Add(by) => {
                with_element!(to, T => {
                    let by = by.number().rounded::<T>();
                    each::<T>(&mut dst, |n| n.plus::<T>(by));
                });
            }
        }
        Ok((to, dst))
    }
}

/// Elements of one type as those of another; `None` when the bytes are no whole number of elements.
fn cast<F: Element, T: Element>(src: &[u8]) -> Option<Vec<u8>> {
    if !src.len().is_multiple_of(F::SIZE) {
        return None;
    }
    let mut dst = vec![0; src.len() / F::SIZE * T::SIZE];
    for (from, to) in src.chunks_exact(F::SIZE).zip(dst.chunks_exact_mut(T::SIZE)) {
        T::write(F::read(from), to);
    }
    Some(dst)
}

/// Replaces each element in place.
fn each<E: Element>(bytes: &mut [u8], f: impl Fn(Number) -> Number) {
    for element in bytes.chunks_exact_mut(E::SIZE) {
        let number = f(E::read(element));
        E::write(number, element);
    }
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F8E4m3 | Dtype::F8E5m2)
}
