//! Limits, quotas and bills of all tenants: what a call reserves on its way down and settles at its end.

use super::ledger::{self, Ledger, LedgerError, Open};
use super::local::{Held, Levels, Local};
use super::need::Need;
use super::subject::{Asker, Subject};
use super::usage::{UsageQuery, UsageRow};
use super::window::Counted;
use crate::call::{Call, Error, Outcome, Release, Usage};
use crate::clock::Clock;
use crate::config::{Config, Key, Model, Name, OnStoreLoss, Quota, Store, Tenant};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// When a refusal for a lost store is worth another try.
const RETRY: Duration = Duration::from_secs(1);

/// The accounts of all tenants. They outlive a reload: what was used belongs to names.
pub struct Accounts {
    local: Local,
    ledger: Option<Ledger>,
    on_store_loss: OnStoreLoss,
    /// The number of the next reservation.
    next: AtomicU64,
}

/// What a call was granted.
pub struct Granted {
    /// Belongs into the reply's lease.
    pub reservation: Reservation,
    /// Most tokens for each choice, at least 1 and at most what was asked for.
    pub max_tokens: u32,
    /// Where its limits stand with it.
    pub levels: Levels,
}

/// What a call holds until it ends.
#[must_use = "belongs into the reply's lease, which settles it at the end"]
pub struct Reservation {
    accounts: Arc<Accounts>,
    call: Asked,
    held: Held,
    open: Arc<Open>,
}

/// The parts of a call that its reservation was made for; a reload in between doesn't change them.
struct Asked {
    tenant: Arc<Tenant>,
    key: Arc<Key>,
    model: Arc<Model>,
    prompt: u64,
    choices: u64,
    max_tokens: u32,
}

// === impl Accounts ===

impl Accounts {
    /// Opens the stores. Blocks until requests that a dead process left in flight are settled.
    ///
    /// # Errors
    /// A store can't be opened.
    pub fn open(store: &Store, clock: Clock) -> Result<Self, LedgerError> {
        Ok(Self { local: Local::new(clock), ledger: Ledger::open(store)?, on_store_loss: store.on_store_loss, next: AtomicU64::new(0) })
    }

    /// Makes the counters of quotas that are new in `config` and fills them with what the ledger knows was used. To be
    /// done before a request meets these quotas. Blocks on the ledger's thread.
    ///
    /// # Errors
    /// The ledger can't be read.
    pub fn configure(&self, config: &Config) -> Result<(), LedgerError> {
        let Some(ledger) = &self.ledger else { return Ok(()) };
        let mut sums = Vec::new();
        for tenant in config.tenants.values() {
            let of_keys = tenant.keys.iter().flat_map(|key| key.quotas.iter().map(|quota| (Some(key.name.clone()), quota)));
            for (key, quota) in tenant.quotas.iter().map(|quota| (None, quota)).chain(of_keys) {
                let counted = counted(Subject { key, model: quota.model.clone() }, quota);
                self.local.begin(&tenant.name, counted.clone(), |window| {
                    let used = ledger.used(tenant, counted.clone(), window.span.clone());
                    sums.push((tenant.name.clone(), counted, window.span.start, used));
                });
            }
        }
        for (tenant, counted, start, used) in sums {
            let used = used.recv().map_err(|_| LedgerError::Closed)??;
            self.local.found(&tenant, &counted, start, used);
        }
        Ok(())
    }

    /// Reserves what the call could use at most, in all dimensions at once; a refused call has consumed nothing.
    ///
    /// # Errors
    /// The first limit or quota that doesn't let it pass, or a store that is lost where the configuration refuses then.
    pub fn reserve(self: &Arc<Self>, call: &Call) -> Result<Granted, Error> {
        self.stores_allow()?;
        let asked = Asked::new(call);
        let (held, levels) = self.local.reserve(&asked.need())?;
        let open = Arc::new(Open {
            seq: self.next.fetch_add(1, Ordering::Relaxed),
            at: held.at,
            tenant: asked.tenant.name.clone(),
            key: Some(asked.key.name.clone()),
            model: asked.model.name.clone(),
            prices: asked.model.prices.unwrap_or_default(),
            record: call.record.clone(),
        });
        if let Some(ledger) = &self.ledger {
            ledger.begin(open.clone());
        }
        Ok(Granted { max_tokens: held.max_tokens, levels, reservation: Reservation { accounts: self.clone(), call: asked, held, open } })
    }

    /// Where the limits of a call stand that was refused.
    pub fn levels(&self, call: &Call) -> Levels {
        self.local.levels(&Asked::new(call).need())
    }

    /// Unix time, by which requests are billed.
    pub fn now(&self) -> Duration {
        self.local.now()
    }

    /// What ended requests used, by the ledger. Without a ledger there is nothing to sum up.
    ///
    /// # Errors
    /// The ledger can't be read.
    pub async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageRow>, LedgerError> {
        match &self.ledger {
            Some(ledger) => ledger.sums(query).await,
            None => Ok(Vec::new()),
        }
    }

    /// Requests of a tenant in flight, and the tokens they could use at most.
    pub fn in_flight(&self, tenant: &Name) -> (u64, u64) {
        self.local.in_flight(tenant)
    }

    fn stores_allow(&self) -> Result<(), Error> {
        let Some(ledger) = self.ledger.as_ref().filter(|ledger| ledger.is_lost()) else { return Ok(()) };
        match self.on_store_loss {
            OnStoreLoss::Allow => Ok(()),
            OnStoreLoss::Local if !ledger.is_full() => Ok(()),
            OnStoreLoss::Local | OnStoreLoss::Deny => Err(Error::StoreLost { retry_after: RETRY }),
        }
    }
}

fn counted(subject: Subject, quota: &Quota) -> Counted {
    Counted { subject, per: quota.per, zone: quota.zone.clone() }
}

// === impl Asked ===

impl Asked {
    fn new(call: &Call) -> Self {
        Self {
            tenant: call.tenant.clone(),
            key: call.key.clone(),
            model: call.model.clone(),
            prompt: call.prompts.iter().map(|prompt| u64::from(prompt.tokens)).sum(),
            choices: call.prompts.len() as u64 * u64::from(call.sampling.n),
            max_tokens: call.sampling.max_tokens,
        }
    }

    fn need(&self) -> Need<'_> {
        let asker = Asker { tenant: &self.tenant, key: &self.key, model: &self.model };
        Need { asker, prompt: self.prompt, choices: self.choices, max_tokens: self.max_tokens }
    }
}

// === impl Reservation ===

impl Release for Reservation {
    /// Settles at once; the future is the row's commit.
    fn release(self: Box<Self>, end: Outcome, _: &Usage) -> Option<BoxFuture<'static, ()>> {
        let Self { accounts, call, held, open } = *self;
        let need = call.need();
        let row = open.row(ledger::outcome(end));
        let used = need.counted(row.usage());
        let mut commit = None;
        accounts.local.settle(&need, held, used, end, || {
            let Some(ledger) = &accounts.ledger else { return };
            if end == Outcome::Refused {
                ledger.forget(open.seq);
            } else {
                commit = Some(ledger.close(row));
            }
        });
        commit
    }
}
