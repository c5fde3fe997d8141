//! The dtypes of the safetensors format, and the same ones in the geometry's words.

use restage_geometry::Dtype;
use safetensors::tensor::Dtype as Stored;

macro_rules! pairs {
    ($($dtype:ident = $stored:ident,)*) => {
        /// The geometry's word for a stored dtype, or `None` for one that a later version of the format added.
        pub fn from_safetensors(stored: Stored) -> Option<Dtype> {
            match stored { $(Stored::$stored => Some(Dtype::$dtype),)* _ => None }
        }

        /// The stored dtype, or `None` when the safetensors format has none (GGUF's blocks).
        pub fn to_safetensors(dtype: Dtype) -> Option<Stored> {
            match dtype { $(Dtype::$dtype => Some(Stored::$stored),)* _ => None }
        }

        /// A dtype by the exact name that headers use.
        pub(crate) fn stored_by_name(name: &str) -> Option<(Stored, Dtype)> {
            match name { $(stringify!($stored) => Some((Stored::$stored, Dtype::$dtype)),)* _ => None }
        }
    };
}

pairs! {
    Bool = BOOL,
    F4 = F4,
    F6E2m3 = F6_E2M3,
    F6E3m2 = F6_E3M2,
    U8 = U8,
    I8 = I8,
    F8E5m2 = F8_E5M2,
    F8E4m3 = F8_E4M3,
    F8E8m0 = F8_E8M0,
    F8E4m3Fnuz = F8_E4M3FNUZ,
    F8E5m2Fnuz = F8_E5M2FNUZ,
    I16 = I16,
    U16 = U16,
    F16 = F16,
    BF16 = BF16,
    I32 = I32,
    U32 = U32,
    F32 = F32,
    C64 = C64,
    F64 = F64,
    I64 = I64,
    U64 = U64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_agree_on_names_and_sizes() {
        let mut stored_ones = 0;
        for &dtype in Dtype::ALL {
            let Some(stored) = to_safetensors(dtype) else { continue };
            stored_ones += 1;
            assert_eq!(from_safetensors(stored), Some(dtype));
            assert_eq!(stored_by_name(dtype.name()), Some((stored, dtype)));
            assert_eq!(serde_json::to_string(&stored).unwrap(), format!("{:?}", dtype.name()));
            assert_eq!(dtype.bytes(24), Some(stored.bitsize() as u64 * 3), "{dtype}");
        }
        assert_eq!(stored_ones, 22);
        assert_eq!(stored_by_name("Q4_0"), None);
        assert_eq!(stored_by_name("bf16"), None);
    }
}
