//! What a plan may cost.

/// What a plan may cost, and what the one who carries it out is able to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Descriptors that one copy may need before it is served from staging instead.
    pub max_descriptors: u64,
    /// True when the transport takes a strided segment as one descriptor.
    pub strided: bool,
    /// True when casts and value operations may be carried out locally after the read; false refuses them.
    pub convert: bool,
    /// What is read into staging.
    pub staging: StagingMode,
    /// Most bytes of staging at any one time; none is set by default. With 0 nothing is ever staged: what is
    /// over the bound stays exact, and what can only be done by staging is refused.
    pub staging_bytes: Option<u64>,
    /// Every descriptor starts at a multiple of this many bytes of the session, and ends at one or at the end
    /// of a shard; 1 asks for nothing. What does not fall so is read with its surroundings into staging.
    pub alignment: u64,
}

/// What is read into staging for a copy that needs too many descriptors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StagingMode {
    /// The whole source, where it is cut along its first dimension and without a hole. Any other source stays
    /// exact and is listed as unbounded.
    RowShards,
    /// Of every shard that is needed the stretch from the first needed byte to the last, stretches that lie far
    /// apart one by one. A tile of a grid is contiguous too.
    #[default]
    Tiles,
}

impl Default for Limits {
    /// 64 descriptors a copy, flat, no conversion, tiles staged without a limit, no alignment.
    fn default() -> Self {
        Limits {
            max_descriptors: 64,
            strided: false,
            convert: false,
            staging: StagingMode::default(),
            staging_bytes: None,
            alignment: 1,
        }
    }
}

impl Limits {
    /// True when nothing may be staged at all.
    pub(crate) fn stages_nothing(&self) -> bool {
        self.staging_bytes == Some(0)
    }
}
