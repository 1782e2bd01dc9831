//! The models a caller may use.

use serde::Serialize;

/// `GET /v1/models`
#[derive(Debug, Serialize)]
pub struct ModelList<'a> {
    /// `list`
    pub object: &'static str,
    /// The models the caller may use.
    pub data: Vec<Model<'a>>,
}

/// `GET /v1/models/ID`
#[derive(Debug, Serialize)]
pub struct Model<'a> {
    /// The configured name.
    pub id: &'a str,
    /// `model`
    pub object: &'static str,
    /// Seconds since the epoch.
    pub created: u64,
    /// Who offers it.
    pub owned_by: &'static str,
}
