//! Which variant serves a call: the first rule that matches, then its weights. Pure: no I/O, no waiting but for a thread
//! where a large prompt has to be tokenized anew.

use super::render::{LARGE, Renderings};
use super::rules::{self, Request};
use crate::call::{Call, Error, Reply};
use crate::config::Name;
use futures_util::future::{BoxFuture, Either};
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{Layer, Service, layer::layer_fn};

/// Sets a call's route and makes it one for its variant.
#[derive(Clone)]
pub struct Choose<S> {
    inner: S,
    renderings: Renderings,
}

// === impl Choose ===

impl<S> Choose<S> {
    /// Chooses among the variants of the model that is asked for.
    pub fn layer(renderings: Renderings) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |inner| Self { inner, renderings: renderings.clone() })
    }
}

/// The variant that a call's rule gives, and those to try instead.
fn choose(call: &Call) -> Result<(Name, Arc<[Name]>), Error> {
    let model = &call.model;
    let request = Request::of(call);
    let chosen = match rules::find(model, &request) {
        None => model.variants.keys().next().map(|only| (only.clone(), Arc::default())),
        Some(rule) => {
            call.record.lock().rule = Some(rule.name.clone());
            let variant = rules::pick(model, rule, &rules::subject(rule, &request), |_, weight| weight);
            variant.map(|variant| (variant.clone(), rule.fallback.clone()))
        }
    };
    chosen.ok_or_else(|| Error::ModelNotFound { model: model.name.to_string() })
}

/// Makes the call one for the first of these variants that can be.
async fn render(renderings: Renderings, mut call: Call, chosen: Name, fallback: Arc<[Name]>) -> Result<Call, Error> {
    let mut refusal = match renderings.render(&mut call, &chosen).await {
        Ok(()) => return Ok(routed(call, &chosen, fallback)),
        Err(error) => error,
    };
    for variant in fallback.iter().filter(|variant| **variant != chosen) {
        match renderings.render(&mut call, variant).await {
            Ok(()) => return Ok(routed(call, &chosen, fallback.clone())),
            Err(error @ Error::NoCapacity { .. }) => refusal = error,
            Err(_) => {}
        }
    }
    call.record.lock().variant = Some(chosen);
    Err(refusal)
}

fn routed(mut call: Call, chosen: &Name, fallback: Arc<[Name]>) -> Call {
    if let Some(route) = &mut call.route {
        let by_fallback = route.variant != *chosen;
        // What comes before it in the chain couldn't even be asked.
        let tried = fallback.iter().position(|variant| by_fallback && *variant == route.variant).map_or(0, |at| at + 1);
        route.fallback = if tried == 0 { fallback } else { fallback[tried..].into() };
        let mut notes = call.record.lock();
        notes.variant = Some(route.variant.clone());
        notes.fallback_from = by_fallback.then(|| chosen.clone());
    }
    call
}

impl<S> Service<Call> for Choose<S>
where
    S: Service<Call, Response = Reply, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Reply;
    type Error = Error;
    type Future = Either<Ready<Result<Reply, Error>>, Either<S::Future, BoxFuture<'static, Result<Reply, Error>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut call: Call) -> Self::Future {
        let (variant, fallback) = match choose(&call) {
            Ok(chosen) => chosen,
            Err(error) => return Either::Left(ready(Err(error))),
        };
        // The usual case takes no allocation: nothing is to be tokenized, or little.
        let here = call.asked.bytes <= LARGE || self.renderings.reads_alike(&call, &variant);
        if here && self.renderings.render_here(&mut call, &variant).is_ok() {
            return Either::Right(Either::Left(self.inner.call(routed(call, &variant, fallback))));
        }
        let (mut inner, renderings) = (self.inner.clone(), self.renderings.clone());
        Either::Right(Either::Right(Box::pin(async move {
            let call = render(renderings, call, variant, fallback).await?;
            inner.call(call).await
        })))
    }
}
