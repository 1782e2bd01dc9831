//! What several test files share.

pub mod tiny_model;
