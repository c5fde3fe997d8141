//! The sources file: what is published, in JSON.

use restage_geometry::View;
use restage_plan::{Catalog, CatalogError, Source};
use serde::{Deserialize, Serialize};

use crate::json::{Head, MAX_ELEMENTS, Named, read};
use crate::tables::{SourceForm, TableError};
use crate::{JsonPath, WireError, WireProblem};

/// The `format` of a sources file.
pub const SOURCES_FORMAT: &str = "restage-sources";

/// The `version` of a sources file.
pub const SOURCES_VERSION: u64 = 1;

/// The sources of a file, in its order, with all that it says of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourcesFile {
    /// Names and sources.
    pub sources: Vec<(String, SourceForm)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    format: String,
    version: u64,
    sources: Named<SourceForm>,
}

impl SourcesFile {
    /// Reads a sources file, or a bare object of sources, to a catalog.
    ///
    /// # Errors
    /// [`WireError`] with the path of what is wrong.
    ///
    /// ```
    /// use restage_wire::SourcesFile;
    /// let shards = r#"[{"offset": [2], "shape": [4], "session": "host-0", "addr": 4096}]"#;
    /// let json = format!(r#"{{"w": {{"dtype": "F32", "shape": [4], "shards": {shards}}}}}"#);
    /// let error = SourcesFile::parse(json.as_bytes()).unwrap_err().to_string();
    /// assert_eq!(error, r#"w.shards[0]: shard [2..6] on session "host-0" lies outside of shape [4]"#);
    /// ```
    pub fn parse(json: &[u8]) -> Result<Catalog, WireError> {
        let (file, top) = SourcesFile::forms(json)?;
        file.checked(&top)
    }

    /// Reads and checks a file, and keeps all that it says.
    ///
    /// # Errors
    /// Those of [`SourcesFile::parse`].
    pub fn read(json: &[u8]) -> Result<Self, WireError> {
        let (file, top) = SourcesFile::forms(json)?;
        file.checked(&top)?;
        Ok(file)
    }

    /// The catalog of what the sources say.
    ///
    /// # Errors
    /// [`WireError`], its path from a bare object of sources, for what cannot be true.
    pub fn catalog(&self) -> Result<Catalog, WireError> {
        self.checked(&JsonPath::top())
    }

    /// The file, one source a line.
    pub fn write(&self) -> String {
        crate::lines::write(&Form {
            format: SOURCES_FORMAT.to_owned(),
            version: SOURCES_VERSION,
            sources: Named(self.sources.clone()),
        })
    }

    /// The forms, and the path of the object that holds them.
    fn forms(json: &[u8]) -> Result<(Self, JsonPath), WireError> {
        let head: Head = read(json)?;
        // A source may be called "format"; what it holds is an object then.
        if !head.is_versioned() {
            let Named(sources) = read(json)?;
            return Ok((SourcesFile { sources }, JsonPath::top()));
        }
        head.check(SOURCES_FORMAT, SOURCES_VERSION)?;
        let form: Form = read(json)?;
        Ok((SourcesFile { sources: form.sources.0 }, JsonPath::top().key("sources")))
    }

    fn checked(&self, top: &JsonPath) -> Result<Catalog, WireError> {
        let mut catalog = Catalog::new();
        let mut total = 0i64;
        for (name, form) in &self.sources {
            let path = top.key(name);
            View::whole(&form.shape).map_err(|e| WireError::at(path.key("shape"), e))?;
            for (at, shard) in form.shards.iter().enumerate() {
                let path = path.key("shards").at(at);
                let shard = shard.shard().map_err(|e| WireError::at(path.clone(), e))?;
                let sum = shard.region.numel().and_then(|n| total.checked_add(n));
                total = sum.filter(|&sum| sum <= MAX_ELEMENTS).ok_or_else(|| {
                    let what = "the shards";
                    WireError::at(path.clone(), WireProblem::TooMany { what, limit: MAX_ELEMENTS })
                })?;
            }
            let source = form.source().map_err(|e| {
                let field = if matches!(e, TableError::ElementSize { .. }) { "elsize" } else { "dtype" };
                WireError::at(path.key(field), e)
            })?;
            catalog.insert(name.as_str(), source.clone()).map_err(|e| at_fault(&path, &source, e))?;
        }
        Ok(catalog)
    }
}

/// The shard that the catalog refuses, or the source where it refuses all of it.
fn at_fault(path: &JsonPath, source: &Source, error: CatalogError) -> WireError {
    for (at, shard) in source.shards.iter().enumerate() {
        let alone = Source { shards: vec![shard.clone()], ..source.clone() };
        if let Err(alone) = Catalog::new().insert(error.source_name.as_str(), alone) {
            return WireError::at(path.key("shards").at(at), alone.problem);
        }
    }
    WireError::at(path.clone(), error.problem)
}

/// Writes a catalog as a sources file.
pub fn write_sources(catalog: &Catalog) -> String {
    let sources = catalog.iter().map(|(name, source)| (name.to_owned(), SourceForm::from(source)));
    SourcesFile { sources: sources.collect() }.write()
}
