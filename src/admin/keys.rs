//! Keys as operators make, list, revoke and rotate them.

use crate::call::Error;
use crate::config::{Name, duration};
use crate::gateway::{Body, read, respond};
use crate::tenant::{Grant, KeyError, Keys, NewKey};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::time::Duration;

/// Bytes of a request's body; none needs a hundredth of it.
const MOST_BODY: u64 = 64 << 10;
/// When a change that the store didn't take is worth another try.
const RETRY: Duration = Duration::from_secs(1);

/// How a rotation is asked for.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Rotation {
    /// How long the old secret is taken beside the new one, `"1h"`.
    overlap: Option<String>,
}

/// All keys, or those of `?tenant=`.
pub(super) fn list(keys: &Keys, query: Option<&str>) -> Response<Body> {
    let tenant = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("tenant=")));
    let tenant = tenant.map(|tenant| Name::from(crate::gateway::decoded(tenant)));
    respond::json(&json!({ "keys": keys.list(tenant.as_ref()) }))
}

/// Makes a key; the answer is the only place its secret ever appears in.
pub(super) async fn make<B>(keys: &Keys, http: Request<B>, time: Duration) -> Result<Response<Body>, Error>
where
    B: http_body::Body<Data = Bytes, Error: Display>,
{
    let mut asked: Map<String, Value> = parse(http, time).await?;
    let mut name = |key: &str| match asked.remove(key) {
        Some(Value::String(name)) => Ok(Name::from(name)),
        _ => Err(invalid(Some(key), format!("`{key}` names the {}", if key == "name" { "new key" } else { "key's tenant" }))),
    };
    let (tenant, name) = (name("tenant")?, name("name")?);
    let grant: Grant = serde_json::from_value(Value::Object(asked)).map_err(|error| invalid(None, error.to_string()))?;
    let key = keys.make(&tenant, &name, grant).await.map_err(refuse)?;
    Ok(secret(&tenant, &name, &key))
}

/// Revokes a key.
pub(super) async fn revoke(keys: &Keys, tenant: &Name, name: &Name, headers: &HeaderMap) -> Result<Response<Body>, Error> {
    read::check_content_type(headers)?; // what no foreign page can make a browser send
    keys.revoke(tenant, name).await.map_err(refuse)?;
    Ok(respond::json(&json!({ "tenant": tenant, "name": name, "state": "revoked" })))
}

/// Gives a key another secret.
pub(super) async fn rotate<B>(keys: &Keys, tenant: &Name, name: &Name, http: Request<B>, time: Duration) -> Result<Response<Body>, Error>
where
    B: http_body::Body<Data = Bytes, Error: Display>,
{
    let Rotation { overlap } = parse(http, time).await?;
    let overlap = match &overlap {
        None => Duration::ZERO,
        Some(text) => {
            duration(text).ok_or_else(|| invalid(Some("overlap"), "a length of time has a unit: 30s, 5m, 1h or 7d".to_owned()))?
        }
    };
    let key = keys.rotate(tenant, name, overlap).await.map_err(refuse)?;
    Ok(secret(tenant, name, &key))
}

/// The body's JSON; none at all is an empty object.
async fn parse<B, T>(http: Request<B>, time: Duration) -> Result<T, Error>
where
    B: http_body::Body<Data = Bytes, Error: Display>,
    T: DeserializeOwned,
{
    let (head, body) = http.into_parts();
    read::check_content_type(&head.headers)?; // what no foreign page can make a browser send
    let body = read::body(&head.headers, body, MOST_BODY, time).await?;
    let body = if body.is_empty() { Bytes::from_static(b"{}") } else { body };
    serde_json::from_slice(&body).map_err(|error| invalid(None, format!("The body isn't what it should be: {error}")))
}

fn secret(tenant: &Name, name: &Name, key: &NewKey) -> Response<Body> {
    let mut response = respond::json(&json!({ "tenant": tenant, "name": name, "secret": key.secret.expose() }));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn invalid(param: Option<&str>, message: String) -> Error {
    Error::Invalid { param: param.map(str::to_owned), message }
}

fn refuse(error: KeyError) -> Error {
    let param = match &error {
        KeyError::NoTenant(_) => Some("tenant"),
        KeyError::NoModel(_) => Some("models"),
        KeyError::Name(_) | KeyError::Exists { .. } | KeyError::Unknown { .. } | KeyError::Revoked | KeyError::Expired => Some("name"),
        KeyError::NoStore => None,
        KeyError::Store(_) | KeyError::Late | KeyError::Closed | KeyError::Random(_) => {
            tracing::error!(%error, "a key can't be changed");
            return Error::StoreLost { retry_after: RETRY };
        }
    };
    invalid(param, error.to_string())
}
