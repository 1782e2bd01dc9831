//! Which variant serves a call. Pure: no I/O, no waiting.

use crate::call::{Call, Error, Route};
use futures_util::future::Either;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use tower::{Layer, Service, layer::layer_fn};

/// Sets a call's route.
#[derive(Clone)]
pub struct Choose<S> {
    inner: S,
}

// === impl Choose ===

impl<S> Choose<S> {
    /// Chooses among the variants of the model that is asked for.
    pub fn layer() -> impl Layer<S, Service = Self> + Clone {
        layer_fn(|inner| Self { inner })
    }
}

impl<S> Service<Call> for Choose<S>
where
    S: Service<Call, Error = Error>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Either<Ready<Result<S::Response, Error>>, S::Future>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut call: Call) -> Self::Future {
        let Some((name, variant)) = call.model.variants.first_key_value() else {
            return Either::Left(ready(Err(Error::ModelNotFound { model: call.model.name.to_string() })));
        };
        call.record.lock().variant = Some(name.clone());
        call.route = Some(Route { variant: name.clone(), backends: variant.backends.clone() });
        Either::Right(self.inner.call(call))
    }
}
