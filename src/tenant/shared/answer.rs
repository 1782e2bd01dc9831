//! What Redis says of a call, in the words of a process that counts for itself.

use crate::call::{Error, Level, Limited};
use crate::config::Quota;
use crate::tenant::limits::tighter;
use crate::tenant::local::{Levels, SOON};
use crate::tenant::need::{Need, size};
use crate::tenant::window::span;
use redis::{FromRedisValue, ParsingError, Value};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// Where scripts begin to count time, in Unix seconds: doubles hold microseconds since then exactly.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// What `reserve.lua` returns.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) verdict: String,
    /// Which limit, quota or window, from 0.
    pub(super) index: usize,
    /// Microseconds to wait.
    value: u64,
    /// Unix time.
    pub(super) now: Duration,
    pub(super) max_tokens: u32,
    /// Of each limit: thousandths of requests used, tokens used, tokens held.
    requests: Vec<u64>,
    tokens: Vec<u64>,
    held: Vec<u64>,
    /// Of each quota: used and held.
    pub(super) quotas: Vec<u64>,
}

/// Unix time of a script's microseconds.
pub(super) fn moment(now: u64) -> Duration {
    EPOCH + Duration::from_micros(now)
}

// === impl Answer ===

impl FromRedisValue for Answer {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        type Parts = (String, usize, u64, u64, u32, Vec<u64>, Vec<u64>, Vec<u64>, Vec<u64>);
        let (verdict, index, value, now, max_tokens, requests, tokens, held, quotas) = Parts::from_redis_value(value)?;
        let index = index.saturating_sub(1);
        Ok(Self { verdict, index, value, now: moment(now), max_tokens, requests, tokens, held, quotas })
    }
}

impl Answer {
    /// Where limits and soft quotas stand.
    pub(super) fn levels(&self, need: &Need<'_>) -> Levels {
        let limits = || need.asker.limits().enumerate();
        let requests = limits().filter_map(|(index, (_, limit))| {
            let (limit, used) = (u64::from(limit.requests_per_minute?), *self.requests.get(index)?);
            let reset = if limit == 0 { MINUTE } else { MINUTE.mul_f64(used as f64 / 1000.0 / limit as f64) };
            Some(Level { limit, remaining: limit.saturating_sub(used.div_ceil(1000)), reset })
        });
        let tokens = limits().filter_map(|(index, (_, limit))| {
            let (limit, used, held) = (limit.tokens_per_minute?, *self.tokens.get(index)?, *self.held.get(index)?);
            let reset = MINUTE.mul_f64(used as f64 / limit.max(1) as f64);
            Some(Level { limit, remaining: limit.saturating_sub(used).saturating_sub(held), reset })
        });
        let passed = need.asker.quotas().zip(&self.quotas);
        let passed = passed.filter(|((_, quota), sum)| !quota.hard && **sum > size(quota.amount));
        Levels {
            requests: tighter(requests),
            tokens: tighter(tokens),
            passed: passed.map(|((_, quota), _)| format!("{} per {}", quota.amount, quota.per.as_str())).collect(),
        }
    }

    /// Why the call was refused; `None` where it was granted.
    pub(super) fn refusal(&self, need: &Need<'_>) -> Option<Error> {
        let tenant = &need.asker.tenant.name;
        let quota = |error: fn(String, &Quota, Duration) -> Error| {
            let (subject, quota) = need.asker.quotas().nth(self.index)?;
            let resets_in = span(quota.per, &quota.zone, self.now).end.saturating_sub(self.now);
            Some(error(subject.describe(tenant), quota, resets_in))
        };
        let (subject, limit) = need.asker.limits().nth(self.index)?;
        let subject = || subject.describe(tenant);
        let wait = Duration::from_micros(self.value);
        let limited = |limited, limit, retry_after| Some(Error::RateLimited { limited, subject: subject(), limit, retry_after });
        // With as many tokens as quotas left, as Redis says them.
        let asked = need.at_most(self.max_tokens).tokens;
        let large = |limited, limit| Some(Error::TooLargeForLimit { limited, subject: subject(), limit, asked });
        match self.verdict.as_str() {
            "spent" => quota(|subject, quota, resets_in| Error::QuotaSpent {
                subject,
                quota: quota.amount.to_string(),
                per: quota.per.as_str(),
                resets_in,
            }),
            "reserved" => quota(|subject, quota, _| Error::QuotaReserved {
                subject,
                quota: quota.amount.to_string(),
                per: quota.per.as_str(),
                retry_after: SOON,
            }),
            "large" => large(Limited::Request, limit.tokens_per_request?),
            "never" => large(Limited::Tokens, limit.tokens_per_minute?),
            "tokens" => limited(Limited::Tokens, limit.tokens_per_minute?, wait),
            "busy" => limited(Limited::Concurrency, limit.concurrent?.into(), SOON),
            "requests" => limited(Limited::Requests, limit.requests_per_minute?.into(), wait),
            _ => None,
        }
    }
}
