//! The digests and signatures that the stores ask for, without a C library: SHA-256 and HMAC in Rust, RSA of the
//! TLS provider.

use hmac::{Hmac, KeyInit, Mac};
use object_store::client::{
    CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm,
};
use object_store::{Error, Result};
use sha2::{Digest, Sha256};

/// What the stores sign with.
#[derive(Debug)]
pub(crate) struct Crypto;

fn unsupported(what: String) -> Error {
    Error::NotSupported { source: what.into() }
}

impl CryptoProvider for Crypto {
    fn digest(&self, algorithm: DigestAlgorithm) -> Result<Box<dyn DigestContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Hashing { hash: Sha256::new(), done: [0; 32] })),
            other => Err(unsupported(format!("digest {other:?}"))),
        }
    }

    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> Result<Box<dyn HmacContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => {
                let mac = Hmac::<Sha256>::new_from_slice(secret).map_err(|e| unsupported(e.to_string()))?;
                Ok(Box::new(Authenticating { mac, done: [0; 32] }))
            }
            other => Err(unsupported(format!("HMAC with {other:?}"))),
        }
    }

    fn sign(&self, algorithm: SigningAlgorithm, pem: &[u8]) -> Result<Box<dyn Signer>> {
        use rustls::SignatureScheme;
        use rustls::pki_types::PrivateKeyDer;
        use rustls::pki_types::pem::PemObject;

        let SigningAlgorithm::RS256 = algorithm else {
            return Err(unsupported(format!("signature {algorithm:?}")));
        };
        let refuse = |what: String| Error::Generic { store: "signature", source: what.into() };
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|e| refuse(e.to_string()))?;
        let provider = rustls_graviola::default_provider();
        let key = provider.key_provider.load_private_key(key).map_err(|e| refuse(e.to_string()))?;
        let signer = key.choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256]);
        let signer = signer.ok_or_else(|| refuse("the key is not one of RSA".to_owned()))?;
        Ok(Box::new(Signing(signer)))
    }
}

struct Hashing {
    hash: Sha256,
    done: [u8; 32],
}

impl DigestContext for Hashing {
    fn update(&mut self, data: &[u8]) {
        self.hash.update(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.done = self.hash.finalize_reset().into();
        Ok(&self.done)
    }
}

struct Authenticating {
    mac: Hmac<Sha256>,
    done: [u8; 32],
}

impl HmacContext for Authenticating {
    fn update(&mut self, data: &[u8]) {
        self.mac.update(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.done = self.mac.clone().finalize().into_bytes().into();
        Ok(&self.done)
    }
}

#[derive(Debug)]
struct Signing(Box<dyn rustls::sign::Signer>);

impl Signer for Signing {
    fn sign(&self, string_to_sign: &[u8]) -> Result<Vec<u8>> {
        let refuse = |e: rustls::Error| Error::Generic { store: "signature", source: Box::new(e) };
        self.0.sign(string_to_sign).map_err(refuse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn digests_are_those_of_the_standards() {
        // FIPS 180-2, appendix B.1.
        let mut digest = Crypto.digest(DigestAlgorithm::Sha256).unwrap();
        digest.update(b"a");
        digest.update(b"bc");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(digest.finish().unwrap()), abc);
        // RFC 4231, test case 2.
        let mut mac = Crypto.hmac(DigestAlgorithm::Sha256, b"Jefe").unwrap();
        mac.update(b"what do ya want ");
        mac.update(b"for nothing?");
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(mac.finish().unwrap()), expected);
    }

    #[test]
    fn a_key_that_is_none_is_refused() {
        assert!(Crypto.sign(SigningAlgorithm::RS256, b"no key").is_err());
    }
}
