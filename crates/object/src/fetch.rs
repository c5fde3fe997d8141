//! One range of one object, and the checks that it was answered as asked.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Attribute, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use crate::error::chain;

/// An object as it was when it was registered.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    /// How messages call it.
    pub name: Arc<str>,
    pub store: Arc<dyn ObjectStore>,
    pub path: Path,
    /// Its length, in bytes.
    pub size: u64,
    /// What the store calls this version of it, if it does.
    pub etag: Option<String>,
}

/// Why a range did not come.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// Fewer bytes than asked for.
    Short { found: u64 },
    /// Anything else.
    Failed { kind: ErrorKind, reason: String },
}

impl Fault {
    fn answer(reason: String) -> Self {
        Fault::Failed { kind: ErrorKind::InvalidData, reason }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::NotFound { .. } => ErrorKind::NotFound,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => ErrorKind::PermissionDenied,
            Error::Precondition { .. } => ErrorKind::InvalidData,
            _ => ErrorKind::Other,
        };
        Fault::Failed { kind, reason: chain(&error) }
    }
}

/// Asks for an object's length and version.
pub(crate) async fn head(
    store: Arc<dyn ObjectStore>,
    path: Path,
    name: Arc<str>,
    deadline: Duration,
) -> Result<Object, Error> {
    let asked = tokio::time::timeout(deadline, store.head(&path)).await;
    let meta = asked.map_err(|_| late(deadline))??;
    Ok(Object { name, store, path, size: meta.size, etag: meta.e_tag })
}

/// The error of a store that does not answer in time.
pub(crate) fn late(deadline: Duration) -> Error {
    let reason = format!("no answer within {} s", deadline.as_secs_f32());
    Error::Generic { store: "object", source: reason.into() }
}

/// Reads a range of at least one byte, all of it or nothing.
pub(crate) async fn range(object: Object, range: Range<u64>, deadline: Duration) -> Result<Vec<u8>, Fault> {
    match tokio::time::timeout(deadline, answer(object, range)).await {
        Ok(answer) => answer,
        Err(_) => {
            let reason = format!("not answered within {} s", deadline.as_secs_f32());
            Err(Fault::Failed { kind: ErrorKind::TimedOut, reason })
        }
    }
}

async fn answer(object: Object, range: Range<u64>) -> Result<Vec<u8>, Fault> {
    let length = range.end - range.start;
    // So that the bytes of two versions are never mixed; where the store keeps no versions, the length is all that
    // can be compared.
    let options = GetOptions {
        if_match: object.etag.clone(),
        range: Some(GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    let result = object.store.get_opts(&object.path, options).await?;
    // The stores of the crate compare these with what they asked for; one that a caller brings may not.
    if result.range != range {
        return Err(Fault::answer(format!("bytes {:?} asked for, {:?} answered", range, result.range)));
    }
    if result.meta.size != object.size {
        let (was, is) = (object.size, result.meta.size);
        return Err(Fault::answer(format!("the object had {was} bytes and now has {is}")));
    }
    if let (Some(was), Some(is)) = (&object.etag, &result.meta.e_tag)
        && was != is
    {
        return Err(Fault::answer(format!("the object was version {was} and now is {is}")));
    }
    // Bytes of a range of something compressed are not the object's.
    if let Some(encoding) = result.attributes.get(&Attribute::ContentEncoding)
        && !encoding.as_ref().is_empty()
        && !encoding.as_ref().eq_ignore_ascii_case("identity")
    {
        return Err(Fault::answer(format!("answered with content encoding {:?}", encoding.as_ref())));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    let mut body = result.into_stream();
    while let Some(part) = body.next().await {
        let part = part?;
        if part.len() as u64 > length - bytes.len() as u64 {
            let reason = format!("{length} bytes asked for, more answered");
            return Err(Fault::answer(reason));
        }
        bytes.extend_from_slice(&part);
    }
    match bytes.len() as u64 {
        found if found == length => Ok(bytes),
        found => Err(Fault::Short { found }),
    }
}
