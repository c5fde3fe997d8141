//! Small models.
