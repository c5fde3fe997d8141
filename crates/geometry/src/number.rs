//! One element as a number, whatever its type, and the conversions between them.

use half::{bf16, f16};

use crate::float8::{E4M3FN, E5M2};

/// A number that an element holds. Floats of every width fit an `f64` exactly.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Number {
    Float(f64),
    Int(i64),
    Unsigned(u64),
}

/// A type of elements whose values are known, in little-endian bytes.
pub(crate) trait Element {
    /// Bytes of one.
    const SIZE: usize;
    /// True when torch computes with it in double precision.
    const DOUBLE: bool = false;
    /// Reads one from as many bytes.
    fn read(bytes: &[u8]) -> Number;
    /// Writes one to as many bytes.
    fn write(number: Number, bytes: &mut [u8]);
}

macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident: $raw:ty, $read:expr, $write:expr $(, $double:literal)?;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name;

            impl Element for $name {
                const SIZE: usize = size_of::<$raw>();
                $(const DOUBLE: bool = $double;)?

                #[inline]
                fn read(bytes: &[u8]) -> Number {
                    let mut raw = [0; size_of::<$raw>()];
                    raw.copy_from_slice(bytes);
                    $read(<$raw>::from_le_bytes(raw))
                }

                #[inline]
                fn write(number: Number, bytes: &mut [u8]) {
                    let raw: $raw = $write(number);
                    bytes.copy_from_slice(&raw.to_le_bytes());
                }
            }
        )*
    };
}

elements! {
    /// A byte that is zero or not.
    Bool: u8, |x| int(i64::from(x != 0)), |n: Number| u8::from(n.is_nonzero());
    U8: u8, int, |n: Number| n.to_i32() as u8;
    I8: i8, int, |n: Number| n.to_i32() as i8;
    U16: u16, int, |n: Number| n.to_i32() as u16;
    I16: i16, int, |n: Number| n.to_i32() as i16;
    I32: i32, int, Number::to_i32;
    U32: u32, int, |n: Number| n.to_i64() as u32;
    I64: i64, int, Number::to_i64;
    U64: u64, Number::Unsigned, Number::to_u64;
    F16: f16, |x: f16| float(x.to_f32()), |n: Number| f16::from_f32(n.to_f32());
    BF16: bf16, |x: bf16| float(x.to_f32()), |n: Number| bf16::from_f32(n.to_f32());
    F32: f32, float, Number::to_f32;
    F64: f64, Number::Float, Number::to_f64, true;
    F8E4m3: u8, |x| float(E4M3FN.decode(x)), |n: Number| E4M3FN.encode(n.to_f32());
    F8E5m2: u8, |x| float(E5M2.decode(x)), |n: Number| E5M2.encode(n.to_f32());
}

/// Evaluates an expression with `$element` standing for the [`Element`] of a dtype: `Some`, or `None` where
/// the dtype has none.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $value:expr) => {
        with_element!(@ $dtype, $element, $value;
            Bool U8 I8 U16 I16 I32 U32 I64 U64 F16 BF16 F32 F64 F8E4m3 F8E5m2)
    };
    (@ $dtype:expr, $element:ident, $value:expr; $($name:ident)*) => {
        match $dtype {
            $($crate::Dtype::$name => {
                type $element = $crate::number::$name;
                Some($value)
            })*
            _ => None,
        }
    };
}
pub(crate) use with_element;

fn int(x: impl Into<i64>) -> Number {
    Number::Int(x.into())
}

fn float(x: f32) -> Number {
    Number::Float(x.into())
}

impl Number {
    fn is_nonzero(self) -> bool {
        match self {
            // NaN is not zero.
            Number::Float(x) => x != 0.0,
            Number::Int(x) => x != 0,
            Number::Unsigned(x) => x != 0,
        }
    }

    pub(crate) fn to_f32(self) -> f32 {
        match self {
            Number::Float(x) => x as f32,
            Number::Int(x) => x as f32,
            Number::Unsigned(x) => x as f32,
        }
    }

    fn to_f64(self) -> f64 {
        match self {
            Number::Float(x) => x,
            Number::Int(x) => x as f64,
            Number::Unsigned(x) => x as f64,
        }
    }

    /// Integers wrap. Floats are cut towards zero. For those out of range C++ defines nothing, and torch's
    /// scalar and vector paths differ; here they give what x86-64's conversion gives, as the scalar path.
    fn to_i32(self) -> i32 {
        match self {
            Number::Float(x) if x > -2147483649.0 && x < 2147483648.0 => x as i32,
            Number::Float(_) => i32::MIN,
            Number::Int(x) => x as i32,
            Number::Unsigned(x) => x as i32,
        }
    }

    /// As [`to_i32`](Self::to_i32).
    fn to_i64(self) -> i64 {
        match self {
            Number::Float(x) if (-TWO_63..TWO_63).contains(&x) => x as i64,
            Number::Float(_) => i64::MIN,
            Number::Int(x) => x,
            Number::Unsigned(x) => x as i64,
        }
    }

    /// As [`to_i32`](Self::to_i32).
    fn to_u64(self) -> u64 {
        match self {
            Number::Float(x) if x >= TWO_63 => Number::Float(x - TWO_63).to_i64() as u64 ^ 1 << 63,
            Number::Unsigned(x) => x,
            other => other.to_i64() as u64,
        }
    }

    /// The number as one of its type would hold it.
    pub(crate) fn rounded<E: Element>(self) -> Number {
        // No element is wider than this.
        let mut bytes = [0; 8];
        E::write(self, &mut bytes[..E::SIZE]);
        E::read(&bytes[..E::SIZE])
    }

    pub(crate) fn negated(self) -> Number {
        match self {
            Number::Float(x) => Number::Float(-x),
            Number::Int(x) => Number::Int(x.wrapping_neg()),
            Number::Unsigned(x) => Number::Unsigned(x.wrapping_neg()),
        }
    }

    pub(crate) fn times<E: Element>(self, by: Number) -> Number {
        match (self, by) {
            (Number::Int(a), b) => Number::Int(a.wrapping_mul(b.to_i64())),
            (Number::Unsigned(a), b) => Number::Unsigned(a.wrapping_mul(b.to_i64() as u64)),
            (Number::Float(a), b) if E::DOUBLE => Number::Float(a * b.to_f64()),
            (a, b) => float(a.to_f32() * b.to_f32()),
        }
    }

    pub(crate) fn plus<E: Element>(self, by: Number) -> Number {
        match (self, by) {
            (Number::Int(a), b) => Number::Int(a.wrapping_add(b.to_i64())),
            (Number::Unsigned(a), b) => Number::Unsigned(a.wrapping_add(b.to_i64() as u64)),
            (Number::Float(a), b) if E::DOUBLE => Number::Float(a + b.to_f64()),
            (a, b) => float(a.to_f32() + b.to_f32()),
        }
    }
}

const TWO_63: f64 = 9_223_372_036_854_775_808.0;
