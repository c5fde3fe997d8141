//! Element types and how they are packed into bytes.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// How elements are stored: `elements` of them in one block of `bytes` bytes. Cuts must fall on blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packing {
    /// Elements per block.
    pub elements: u64,
    /// Bytes per block.
    pub bytes: u64,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $elements:literal, $bytes:literal;)*) => {
        /// The type of a tensor's elements. The plain ones carry the names of the safetensors format, in its
        /// order of alignment; the quantised blocks carry those of GGUF.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Dtype { $($(#[$doc])* $variant,)* }

        impl Dtype {
            /// Every dtype, in declaration order.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant,)*];

            /// The name in the file format that defines the dtype.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name,)* }
            }

            /// Elements and bytes of one block.
            pub fn packing(self) -> Packing {
                match self { $(Dtype::$variant => Packing { elements: $elements, bytes: $bytes },)* }
            }
        }
    };
}

dtypes! {
    /// One byte, 0 or 1.
    Bool, "BOOL", 1, 1;
    /// 4-bit float (e2m1), two to a byte.
    F4, "F4", 2, 1;
    /// 6-bit float, 2 exponent and 3 mantissa bits, four to three bytes.
    F6E2m3, "F6_E2M3", 4, 3;
    /// 6-bit float, 3 exponent and 2 mantissa bits, four to three bytes.
    F6E3m2, "F6_E3M2", 4, 3;
    /// Unsigned 8-bit integer.
    U8, "U8", 1, 1;
    /// Signed 8-bit integer.
    I8, "I8", 1, 1;
    /// 8-bit float, 5 exponent bits.
    F8E5m2, "F8_E5M2", 1, 1;
    /// 8-bit float, 4 exponent bits, finite only.
    F8E4m3, "F8_E4M3", 1, 1;
    /// 8-bit power-of-two scale.
    F8E8m0, "F8_E8M0", 1, 1;
    /// 8-bit float, 4 exponent bits, no negative zero.
    F8E4m3Fnuz, "F8_E4M3FNUZ", 1, 1;
    /// 8-bit float, 5 exponent bits, no negative zero.
    F8E5m2Fnuz, "F8_E5M2FNUZ", 1, 1;
    /// Signed 16-bit integer.
    I16, "I16", 1, 2;
    /// Unsigned 16-bit integer.
    U16, "U16", 1, 2;
    /// IEEE half precision.
    F16, "F16", 1, 2;
    /// bfloat16.
    BF16, "BF16", 1, 2;
    /// Signed 32-bit integer.
    I32, "I32", 1, 4;
    /// Unsigned 32-bit integer.
    U32, "U32", 1, 4;
    /// IEEE single precision.
    F32, "F32", 1, 4;
    /// Complex of two single-precision floats.
    C64, "C64", 1, 8;
    /// IEEE double precision.
    F64, "F64", 1, 8;
    /// Signed 64-bit integer.
    I64, "I64", 1, 8;
    /// Unsigned 64-bit integer.
    U64, "U64", 1, 8;
    /// GGUF blocks of 32 4-bit weights with an f16 scale.
    Q4_0, "Q4_0", 32, 18;
    /// GGUF blocks of 32 4-bit weights with an f16 scale and minimum.
    Q4_1, "Q4_1", 32, 20;
    /// GGUF blocks of 32 8-bit weights with an f16 scale.
    Q8_0, "Q8_0", 32, 34;
    /// GGUF super-blocks of 256 4-bit weights.
    Q4K, "Q4_K", 256, 144;
    /// GGUF super-blocks of 256 6-bit weights.
    Q6K, "Q6_K", 256, 210;
}

/// A dtype name that is not known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown dtype {0:?}")]
pub struct UnknownDtype(pub String);

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Dtype::ALL
            .iter()
            .copied()
            .find(|d| d.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownDtype(name.to_owned()))
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Dtype {
    /// Bytes of `elements` elements, or `None` when they are no whole number of blocks or the product
    /// does not fit in 64 bits.
    ///
    /// ```
    /// use restage_geometry::Dtype;
    /// assert_eq!(Dtype::BF16.bytes(3), Some(6));
    /// assert_eq!(Dtype::Q4_1.bytes(64), Some(40));
    /// assert_eq!(Dtype::Q4_1.bytes(48), None);
    /// ```
    pub fn bytes(self, elements: u64) -> Option<u64> {
        let packing = self.packing();
        elements
            .is_multiple_of(packing.elements)
            .then(|| (elements / packing.elements).checked_mul(packing.bytes))?
    }

    /// True when several elements share a block, so that not every cut is possible.
    pub fn is_packed(self) -> bool {
        self.packing().elements > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_are_unique() {
        for &d in Dtype::ALL {
            assert_eq!(d.name().parse(), Ok(d));
        }
        assert_eq!("bf16".parse(), Ok(Dtype::BF16));
        assert_eq!("f12".parse::<Dtype>(), Err(UnknownDtype("f12".into())));
    }

    #[test]
    fn bytes_refuse_cut_blocks_and_overflow() {
        assert_eq!(Dtype::F4.bytes(3), None);
        assert_eq!(Dtype::F6E2m3.bytes(8), Some(6));
        assert_eq!(Dtype::F64.bytes(u64::MAX / 4), None);
    }
}
