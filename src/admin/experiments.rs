//! Experiments as operators see and steer them.

use crate::call::Error;
use crate::config::Name;
use crate::gateway::{Body, read, respond};
use crate::route::{Experiment, Experiments};
use http::{HeaderMap, Response};
use serde_json::json;
use std::sync::Arc;

/// All of them.
pub(super) fn list(experiments: &Experiments) -> Response<Body> {
    respond::json(&json!({ "experiments": experiments.reports() }))
}

/// One of them.
pub(super) fn one(experiments: &Experiments, name: &Name) -> Result<Response<Body>, Error> {
    Ok(respond::json(&find(experiments, name)?.report()))
}

/// Lets the variants that a guardrail took out have requests again.
pub(super) fn resume(experiments: &Experiments, name: &Name, headers: &HeaderMap) -> Result<Response<Body>, Error> {
    read::check_content_type(headers)?; // what no foreign page can make a browser send
    let experiment = find(experiments, name)?;
    experiment.resume();
    Ok(respond::json(&experiment.report()))
}

/// Begins one again from nothing.
pub(super) fn reset(experiments: &Experiments, name: &Name, headers: &HeaderMap) -> Result<Response<Body>, Error> {
    read::check_content_type(headers)?; // likewise
    let experiment = find(experiments, name)?;
    experiments.reset(&experiment);
    Ok(respond::json(&experiment.report()))
}

fn find(experiments: &Experiments, name: &Name) -> Result<Arc<Experiment>, Error> {
    experiments.find(name.as_str()).ok_or_else(|| Error::ExperimentNotFound { experiment: name.to_string() })
}
