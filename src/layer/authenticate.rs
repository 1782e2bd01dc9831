//! Who is it: a key, a token or a client's certificate becomes its holder.

use super::Incoming;
use crate::call::Error;
use crate::tenant::Keys;
use futures_util::future::Either;
use http::{HeaderMap, header};
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{Layer, Service, layer::layer_fn};

/// Lets only requests pass that are known to be somebody's.
#[derive(Clone)]
pub struct Authenticate<S> {
    inner: S,
    keys: Arc<Keys>,
}

// === impl Authenticate ===

impl<S> Authenticate<S> {
    /// Checks against `keys`.
    pub fn layer(keys: Arc<Keys>) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |inner| Self { inner, keys: keys.clone() })
    }
}

impl<S, B> Service<Incoming<B>> for Authenticate<S>
where
    S: Service<Incoming<B>, Error = Error>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Either<Ready<Result<S::Response, Error>>, S::Future>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut incoming: Incoming<B>) -> Self::Future {
        let holder = match self.keys.identify(secret(incoming.http.headers()), &incoming.peer) {
            Ok(holder) => holder,
            Err(error) => return Either::Left(ready(Err(error))),
        };
        {
            let mut notes = incoming.record.lock();
            notes.tenant = Some(holder.tenant.name.clone());
            notes.key = Some(holder.key.name.clone());
        }
        incoming.holder = Some(holder);
        Either::Right(self.inner.call(incoming))
    }
}

/// The secret a client sent: as OpenAI's clients do, or as Anthropic's do.
fn secret(headers: &HeaderMap) -> Option<&str> {
    let Some(authorization) = headers.get(header::AUTHORIZATION) else {
        return headers.get("x-api-key")?.to_str().ok().map(str::trim);
    };
    let (scheme, secret) = authorization.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(secret.trim())
}
