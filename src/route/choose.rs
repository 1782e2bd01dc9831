//! Which variant serves a call: the first rule that matches, then its weights. Pure: no I/O, no waiting but for a thread
//! where a large prompt has to be tokenized anew.

use super::experiment::{Experiments, Trial};
use super::render::{LARGE, Renderings};
use super::rules::{self, Request};
use crate::call::{Call, Error, Reply, Shadow};
use crate::clock::Clock;
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
    experiments: Arc<Experiments>,
    clock: Clock,
}

/// What a call's rule says of it.
struct Chosen {
    variant: Name,
    /// The variants to try instead.
    fallback: Arc<[Name]>,
    /// Where it is part of an experiment.
    trial: Option<Trial>,
    /// Where a copy of it goes.
    shadow: Option<Shadow>,
}

// === impl Choose ===

impl<S> Choose<S> {
    /// Chooses among the variants of the model that is asked for, and counts what comes of it in its experiment.
    pub fn layer(renderings: Renderings, experiments: Arc<Experiments>, clock: Clock) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |inner| Self { inner, renderings: renderings.clone(), experiments: experiments.clone(), clock: clock.clone() })
    }

    fn choose(&self, call: &Call) -> Result<Chosen, Error> {
        let model = &call.model;
        let request = Request::of(call);
        let none = || Error::ModelNotFound { model: model.name.to_string() };
        let Some(rule) = rules::find(model, &request) else {
            let only = model.variants.keys().next().ok_or_else(none)?;
            return Ok(Chosen { variant: only.clone(), fallback: Arc::default(), trial: None, shadow: None });
        };
        call.record.lock().rule = Some(rule.name.clone());
        let subject = rules::subject(rule, &request);
        let experiment = rule.experiment.as_ref().and_then(|experiment| self.experiments.find(experiment.name.as_str()));
        let weight = |variant: &Name, weight| experiment.as_ref().map_or(weight, |experiment| experiment.weight(variant, weight));
        let variant = rules::pick(model, rule, &subject, weight).ok_or_else(none)?.clone();
        let shadow = rule.experiment.as_ref().and_then(|experiment| {
            let mirror = rules::mirror(experiment).filter(|mirror| **mirror != variant)?;
            Some(Shadow { variant: mirror.clone(), experiment: experiment.name.clone(), unit: subject.number() })
        });
        let trial = experiment.map(|experiment| Trial {
            experiment,
            variant: variant.clone(),
            unit: subject.number(),
            record: call.record.clone(),
            prices: model.prices,
            clock: self.clock.clone(),
            failed: Arc::default(),
        });
        Ok(Chosen { variant, fallback: rule.fallback.clone(), trial, shadow })
    }
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

fn mirrored(mut call: Call, shadow: Option<Shadow>) -> Call {
    if let Some(route) = &mut call.route {
        route.shadow = shadow;
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
        let Chosen { variant, fallback, trial, shadow } = match self.choose(&call) {
            Ok(chosen) => chosen,
            Err(error) => return Either::Left(ready(Err(error))),
        };
        let renderings = self.renderings.clone();
        // The usual case takes no other thread: nothing is to be tokenized, or little.
        let here = call.asked.bytes <= LARGE || renderings.reads_alike(&call, &variant);
        if here && renderings.render_here(&mut call, &variant).is_ok() {
            let below = self.inner.call(mirrored(routed(call, &variant, fallback), shadow));
            return Either::Right(match trial {
                None => Either::Left(below),
                Some(trial) => Either::Right(Box::pin(trial.over(below))),
            });
        }
        let mut inner = self.inner.clone();
        let below = async move {
            let call = render(renderings, call, variant, fallback).await?;
            inner.call(mirrored(call, shadow)).await
        };
        Either::Right(Either::Right(match trial {
            None => Box::pin(below),
            Some(trial) => Box::pin(trial.over(below)),
        }))
    }
}
