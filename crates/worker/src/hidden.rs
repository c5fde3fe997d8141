//! Hidden states on the wire: base64 of `seq_len * hidden_dim` elements.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::engine::Description;
use crate::fault::{Fault, Kind};

/// The standard alphabet, padding required; bits that the last character has too many are passed over, as Python's
/// decoder does.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// Appends a hidden state in base64.
pub(crate) fn encode(hidden: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + hidden.len().div_ceil(3) * 4, 0);
    let written = BASE64.encode_slice(hidden, &mut out[start..]).unwrap_or(0);
    out.truncate(start + written);
}

/// Reads a hidden state into a buffer, and checks its length.
pub(crate) fn decode(
    text: &str,
    seq_len: u64,
    description: &Description,
    hidden: &mut Vec<u8>,
) -> Result<(), Fault> {
    let Description { hidden_dim, element_bytes, .. } = *description;
    hidden.clear();
    BASE64
        .decode_vec(text, hidden)
        .map_err(|e| Fault::new(Kind::InvalidBase64, format!("'hidden_b64' is not base64: {e}")))?;
    let expected = u128::from(seq_len) * u128::from(hidden_dim) * u128::from(element_bytes);
    let found = hidden.len();
    if found as u128 != expected {
        return Err(Fault::new(
            Kind::HiddenLength,
            format!(
                "'hidden_b64' holds {found} bytes, which is not seq_len * hidden_dim * {element_bytes} = \
                 {seq_len} * {hidden_dim} * {element_bytes} = {expected}"
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Engine as _, Stub};

    fn halves(hidden_dim: u32) -> Description {
        Description { hidden_dim, ..Stub::new().description().clone() }
    }

    fn decoded(text: &str, seq_len: u64) -> Result<Vec<u8>, Kind> {
        let mut hidden = vec![9];
        decode(text, seq_len, &halves(1), &mut hidden).map(|()| hidden).map_err(|f| f.kind)
    }

    #[test]
    fn what_counts_as_base64() {
        assert_eq!(decoded("AAE=", 1), Ok(vec![0, 1]));
        assert_eq!(decoded("AAF=", 1), Ok(vec![0, 1]), "bits too many");
        assert_eq!(decoded("+/8=", 1), Ok(vec![0xfb, 0xff]));
        for text in [
            "AAE", "AAE==", "AA E=", "AAE=\n", " AAE=", "-_8=", "AA==AA==", "=", "A", "AAE=A", "AAé=",
            "====", "AAEAAE==",
        ] {
            let kind = if text == "AAEAAE==" { Kind::HiddenLength } else { Kind::InvalidBase64 };
            assert_eq!(decoded(text, 1), Err(kind), "{text:?}");
        }
        assert_eq!(decoded("", 1), Err(Kind::HiddenLength));
    }

    #[test]
    fn the_largest_numbers_are_only_wrong() {
        let fault = decode("", u64::MAX, &halves(u32::MAX), &mut Vec::new()).unwrap_err();
        assert_eq!(fault.kind, Kind::HiddenLength);
        let expected = u128::from(u64::MAX) * u128::from(u32::MAX) * 2;
        for number in [u64::MAX.to_string(), u32::MAX.to_string(), expected.to_string(), "0 bytes".into()] {
            assert!(fault.message.contains(&number), "{}", fault.message);
        }
    }

    proptest! {
        #[test]
        fn there_and_back(mut bytes in prop::collection::vec(any::<u8>(), 2..400)) {
            bytes.truncate(bytes.len() / 2 * 2);
            let mut text = Vec::new();
            encode(&bytes, &mut text);
            let text = String::from_utf8(text).unwrap();
            prop_assert_eq!(decoded(&text, bytes.len() as u64 / 2), Ok(bytes.clone()));
            prop_assert_eq!(decoded(&text, bytes.len() as u64 / 2 + 1), Err(Kind::HiddenLength));
        }
    }
}
