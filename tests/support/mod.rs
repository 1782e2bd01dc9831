//! What several test files share.

pub(crate) mod tiny_model;
