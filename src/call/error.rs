//! Everything that can go wrong between a client and its answer, one variant a row of the wire's error table.

use super::Outcome;
use std::time::Duration;

/// Why a call has no (or no complete) answer. `gateway/respond` turns each variant into a status and an error body.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// No key, or one that isn't configured. `shown` is at most the key's first characters.
    #[error("{}", match shown { Some(shown) => format!("Incorrect API key provided: {shown}. Check the key, or ask your administrator for a new one."), None => "You didn't provide an API key. Send it in an Authorization header: 'Authorization: Bearer KEY'.".to_owned() })]
    Unauthenticated {
        /// The start of what the client sent, if it sent anything.
        shown: Option<String>,
    },
    /// The key is known, and not for this endpoint or not for where it was sent from.
    #[error("This API key may not {deed}. Ask your administrator for one that may.")]
    OutOfScope {
        /// What it may not, as `be used from 10.0.0.7`.
        deed: String,
    },
    /// The model doesn't exist or isn't the tenant's or the key's: one answer for all, so that names can't be probed.
    #[error("The model `{model}` does not exist or you do not have access to it.")]
    ModelNotFound {
        /// As the client named it.
        model: String,
    },
    /// A value of the wrong type or outside its range, or a body that isn't JSON.
    #[error("{message}")]
    Invalid {
        /// The path of the parameter, `messages[2].role`.
        param: Option<String>,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A parameter that is unknown, or known and not possible here.
    #[error("{message}")]
    Unsupported {
        /// The path of the parameter.
        param: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// The prompt, or prompt and `max_tokens` together, don't fit. Clients match the message's start.
    #[error("This model's maximum context length is {limit} tokens. However, {}", match max_tokens { Some(max) => format!("you requested {} tokens ({prompt_tokens} in the prompt, {max} in the completion). Reduce the length of the prompt or of the completion.", prompt_tokens + max), None => format!("your prompt has {prompt_tokens} tokens. Reduce its length.") })]
    ContextLength {
        /// `messages` or `prompt`.
        param: &'static str,
        /// Tokens that fit.
        limit: u64,
        /// Tokens of the prompt; a lower bound where the prompt was refused before it was tokenized.
        prompt_tokens: u64,
        /// Tokens asked for on top, where they are what doesn't fit.
        max_tokens: Option<u64>,
    },
    /// There is no shard of this name.
    #[error("There is no shard `{shard}`; there are {known}.")]
    ShardNotFound {
        /// As the operator named it.
        shard: String,
        /// Those that there are, as a list.
        known: String,
    },
    /// There is no experiment of this name.
    #[error("There is no experiment `{experiment}`. GET /admin/v1/experiments lists those that there are.")]
    ExperimentNotFound {
        /// As the operator named it.
        experiment: String,
    },
    /// A path that isn't served.
    #[error("Invalid URL ({method} {path})")]
    UnknownUrl {
        /// The request's method.
        method: String,
        /// The request's path.
        path: String,
    },
    /// A path that is served, by another method.
    #[error("Not allowed to {method} on {path}. Use {allow}.")]
    MethodNotAllowed {
        /// The request's method.
        method: String,
        /// The request's path.
        path: String,
        /// What would be right, as the `allow` header says it.
        allow: &'static str,
    },
    /// The request's head is larger than what is read.
    #[error("The request's headers are more than 100 or larger than {limit} bytes. Send fewer or shorter ones.")]
    HeadersTooLarge {
        /// Bytes of header names and values that are taken.
        limit: u64,
    },
    /// The body is larger than `server.max_body`.
    #[error("The request's body is larger than {limit} bytes. Send a smaller one.")]
    BodyTooLarge {
        /// `server.max_body` in bytes.
        limit: u64,
    },
    /// The body didn't arrive within `server.body_timeout`.
    #[error("The request's body did not arrive within {}s. Send it faster, or a smaller one.", limit.as_secs_f64())]
    BodyTimeout {
        /// `server.body_timeout`.
        limit: Duration,
    },
    /// The content type isn't JSON.
    #[error("Unsupported content type{}. Send 'content-type: application/json'.", match found { Some(found) => format!(" '{found}'"), None => String::new() })]
    NotJson {
        /// What the client said, if anything.
        found: Option<String>,
    },
    /// A limit per minute or on concurrency is reached; nothing was consumed.
    #[error("Rate limit reached for {subject} on {limited}: limit {limit}. Try again in {:.3}s.", retry_after.as_secs_f64())]
    RateLimited {
        /// Which limit.
        limited: Limited,
        /// Whose: a tenant, or a key of it.
        subject: String,
        /// The limit itself.
        limit: u64,
        /// When the same request would pass.
        retry_after: Duration,
    },
    /// One request is larger than a limit can ever be; trying again can't help.
    #[error(
        "This request needs up to {asked} tokens (prompt and max_tokens of all choices), and {subject} may use {limit} {limited}. Reduce the prompt or max_tokens."
    )]
    TooLargeForLimit {
        /// Which limit.
        limited: Limited,
        /// Whose.
        subject: String,
        /// The limit itself.
        limit: u64,
        /// What the request could use.
        asked: u64,
    },
    /// A quota is spent until its window ends.
    #[error("The quota of {quota} per {per} for {subject} is spent. It begins anew in {}.", in_words(*resets_in))]
    QuotaSpent {
        /// Whose.
        subject: String,
        /// How much of what.
        quota: String,
        /// The window.
        per: &'static str,
        /// When the next one begins.
        resets_in: Duration,
    },
    /// What is left of a quota is held by requests in flight, which may give some of it back.
    #[error("What is left of the quota of {quota} per {per} for {subject} is reserved by requests in flight. Try again in {:.3}s.", retry_after.as_secs_f64())]
    QuotaReserved {
        /// Whose.
        subject: String,
        /// How much of what.
        quota: String,
        /// The window.
        per: &'static str,
        /// When it is worth another try.
        retry_after: Duration,
    },
    /// A store of limits or bills doesn't answer, and the configuration says to refuse then.
    #[error("The store of limits and bills doesn't answer. Try again in {:.3}s.", retry_after.as_secs_f64())]
    StoreLost {
        /// When it is worth another try.
        retry_after: Duration,
    },
    /// The backends are there but their queue is full.
    #[error("The model `{model}` is overloaded. Try again in {:.3}s.", retry_after.as_secs_f64())]
    Overloaded {
        /// The model asked for.
        model: String,
        /// When it is worth another try.
        retry_after: Duration,
    },
    /// No backend of the model can serve at all: loading, lost or draining.
    #[error("No backend of the model `{model}` can serve right now. Try again in {:.3}s.", retry_after.as_secs_f64())]
    NoCapacity {
        /// The model asked for.
        model: String,
        /// When it is worth another try.
        retry_after: Duration,
    },
    /// The shard that worked on the call is gone.
    #[error("The backend `{backend}` was lost while it worked on this request. Try again.")]
    ShardLost {
        /// Its configured name.
        backend: String,
    },
    /// The remote server that worked on the call can't be reached, broke off or says what can't be understood.
    #[error("The backend `{backend}` {failure}. Try again.")]
    UpstreamFailed {
        /// Its configured name.
        backend: String,
        /// What it did, as `can't be reached`.
        failure: String,
    },
    /// It wasn't answered in the time that it may take.
    #[error("The request wasn't finished within {}. Ask for fewer tokens, or try again later.", in_words(*after))]
    DeadlinePassed {
        /// How long it might have taken.
        after: Duration,
    },
    /// A bug of ours; details are in the log under the request's id.
    #[error("The server had an error while processing your request. Tell your administrator the request id.")]
    Internal,
}

// === impl Error ===

impl Error {
    /// How a request ends that gets this error instead of an answer.
    pub fn outcome(&self) -> Outcome {
        match self {
            Error::DeadlinePassed { .. } => Outcome::Deadline,
            Error::ShardLost { .. } | Error::UpstreamFailed { .. } | Error::Internal => Outcome::Error,
            _ => Outcome::Refused,
        }
    }
}

/// What a limit counts; the `type` of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// Requests per minute.
    Requests,
    /// Tokens per minute.
    Tokens,
    /// Requests at work at once.
    Concurrency,
    /// Tokens of one request.
    Request,
}

impl std::fmt::Display for Limited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Limited::Requests => "requests per minute",
            Limited::Tokens => "tokens per minute",
            Limited::Concurrency => "concurrent requests",
            Limited::Request => "tokens per request",
        })
    }
}

/// `3d 4h`, `2h 5m`, `7m 3s`, `12s`: the two largest units.
fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}
