//! The hello: both sides say their version, and each proves to the other that it has the token.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use thiserror::Error;

use crate::limits::{TOKEN_BYTES, VERSION};

const MAGIC: [u8; 8] = *b"RESTAGE\0";
const NONCE: usize = 32;
const HELLO: usize = 8 + 4 + 4 + NONCE;
/// This side has a token and wants the other to prove that it has it too.
const WITH_TOKEN: u32 = 1;
/// The publisher has as many connections as it takes.
const FULL: u32 = 2;

/// A secret that a publisher and its clients share.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// A token of given bytes; `None` unless it has 16 to 4096.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<Self> {
        let bytes = bytes.into();
        TOKEN_BYTES.contains(&bytes.len()).then_some(Token(bytes))
    }

    /// Reads a token from a file, without the white space around it.
    ///
    /// # Errors
    /// The file cannot be read, or what it holds is shorter than 16 bytes or longer than 4096.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(2 * *TOKEN_BYTES.end() as u64).read_to_end(&mut bytes)?;
        let refused = || {
            let what = format!("a token has 16 to 4096 bytes, this has {}", bytes.trim_ascii().len());
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        Token::new(bytes.trim_ascii()).ok_or_else(refused)
    }

    fn proof(&self, who: &[u8], nonces: [&[u8]; 2]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        for part in [b"restage remote 2 ", who, nonces[0], nonces[1]] {
            mac.update(part);
        }
        Some(mac)
    }
}

/// Why two sides did not come together.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HelloError {
    /// The peer does not speak this protocol.
    #[error("the peer does not speak the protocol of a restage publisher")]
    Stranger,
    /// The peer speaks another version.
    #[error("the peer speaks version {found} of the protocol, this is version {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// The publisher wants a token and none is at hand.
    #[error("the publisher wants a token")]
    TokenWanted,
    /// A token is at hand and the publisher has none, so it cannot prove who it is.
    #[error("the publisher has no token, one was given")]
    NoToken,
    /// The peer does not have the same token.
    #[error("the peer does not have the same token")]
    WrongToken,
    /// The publisher takes no more connections.
    #[error("the publisher has as many connections as it takes")]
    Full,
    /// The connection failed.
    #[error("the connection failed during the hello")]
    Io(#[from] io::Error),
}

fn nonce() -> io::Result<[u8; NONCE]> {
    let mut nonce = [0; NONCE];
    let got = getrandom(&mut nonce, GetRandomFlags::empty())?;
    if got != NONCE {
        return Err(io::Error::other("the system gave too few random bytes"));
    }
    Ok(nonce)
}

fn send(to: &mut impl Write, flags: u32, nonce: &[u8; NONCE]) -> io::Result<()> {
    let mut hello = Vec::with_capacity(HELLO);
    hello.extend_from_slice(&MAGIC);
    hello.extend_from_slice(&VERSION.to_le_bytes());
    hello.extend_from_slice(&flags.to_le_bytes());
    hello.extend_from_slice(nonce);
    to.write_all(&hello)
}

fn receive(from: &mut impl Read) -> Result<(u32, [u8; NONCE]), HelloError> {
    let mut hello = [0; HELLO];
    from.read_exact(&mut hello)?;
    if hello[..8] != MAGIC {
        return Err(HelloError::Stranger);
    }
    let word = |at: usize| u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]);
    if word(8) != VERSION {
        return Err(HelloError::Version { found: word(8) });
    }
    let mut nonce = [0; NONCE];
    nonce.copy_from_slice(&hello[16..]);
    Ok((word(12), nonce))
}

/// Sends a proof of one side and checks that of the other.
fn prove(to: &mut impl Write, mac: Option<Hmac<Sha256>>) -> Result<(), HelloError> {
    let mac = mac.ok_or(HelloError::WrongToken)?;
    Ok(to.write_all(&mac.finalize().into_bytes())?)
}

fn demand(from: &mut impl Read, mac: Option<Hmac<Sha256>>) -> Result<(), HelloError> {
    let mut proof = [0; 32];
    from.read_exact(&mut proof).map_err(|e| match e.kind() {
        // Whoever sees a wrong proof says nothing and closes.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => HelloError::WrongToken,
        _ => HelloError::Io(e),
    })?;
    // Compares in constant time.
    let same = mac.is_some_and(|mac| mac.verify_slice(&proof).is_ok());
    if same { Ok(()) } else { Err(HelloError::WrongToken) }
}

/// The client's part.
///
/// # Errors
/// [`HelloError`]; the connection is of no more use.
pub fn as_client<S: Read + Write>(stream: &mut S, token: Option<&Token>) -> Result<(), HelloError> {
    let ours = nonce()?;
    send(stream, token.map_or(0, |_| WITH_TOKEN), &ours)?;
    let (flags, theirs) = receive(stream)?;
    if flags & FULL != 0 {
        return Err(HelloError::Full);
    }
    match (token, flags & WITH_TOKEN != 0) {
        (None, false) => Ok(()),
        (None, true) => Err(HelloError::TokenWanted),
        (Some(_), false) => Err(HelloError::NoToken),
        (Some(token), true) => {
            prove(stream, token.proof(b"client", [&ours, &theirs]))?;
            demand(stream, token.proof(b"publisher", [&ours, &theirs]))
        }
    }
}

/// The publisher's part; one that is `full` says so and ends.
///
/// # Errors
/// [`HelloError`]; the connection is of no more use.
pub fn as_publisher<S: Read + Write>(
    stream: &mut S,
    token: Option<&Token>,
    full: bool,
) -> Result<(), HelloError> {
    let (flags, theirs) = receive(stream)?;
    let ours = nonce()?;
    send(stream, token.map_or(0, |_| WITH_TOKEN) | if full { FULL } else { 0 }, &ours)?;
    if full {
        return Err(HelloError::Full);
    }
    match (token, flags & WITH_TOKEN != 0) {
        (None, false) => Ok(()),
        (None, true) => Err(HelloError::NoToken),
        (Some(_), false) => Err(HelloError::TokenWanted),
        (Some(token), true) => {
            demand(stream, token.proof(b"client", [&theirs, &ours]))?;
            prove(stream, token.proof(b"publisher", [&theirs, &ours]))
        }
    }
}
