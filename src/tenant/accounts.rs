//! Limits, quotas and bills of all tenants: what a call reserves on its way down and settles at its end.

use super::asked::Asked;
use super::ledger::{self, Ledger, LedgerError, OnSettled, Open, Used};
use super::local::{Held, Levels, Local};
use super::shared::{self, Shared, SharedError};
use super::subject::Subject;
use super::usage::{UsageQuery, UsageRow};
use super::window::Counted;
use crate::call::{Call, Error, Outcome, Record, Release, Usage};
use crate::clock::Clock;
use crate::config::{Config, LimitStore, Name, OnStoreLoss, Store};
use crate::metrics::Metrics;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// When a refusal for a lost store is worth another try.
const RETRY: Duration = Duration::from_secs(1);

/// The accounts of all tenants. They outlive a reload: what was used belongs to names.
pub struct Accounts {
    local: Arc<Local>,
    /// Counts in the place of `local` where limits are shared. Ends before the ledger, which it asks.
    shared: Option<Shared>,
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
}

/// What a call holds until it ends.
#[must_use = "belongs into the reply's lease, which settles it at the end"]
pub struct Reservation {
    accounts: Arc<Accounts>,
    call: Asked,
    held: Holding,
    open: Arc<Open>,
}

/// Where a reservation is counted.
enum Holding {
    Local(Held),
    Shared(shared::Held),
}

/// What comes of asking for a reservation: where the limits stand, and what was granted.
pub type Granting = (Levels, Result<Granted, Error>);

/// The answer to a call that asks for a reservation.
#[expect(clippy::large_enum_variant, reason = "`Now` is the common one, and a box would be an allocation for each request")]
pub enum Reserving {
    /// This process knows.
    Now(Granting),
    /// Redis is asked.
    Later(BoxFuture<'static, Granting>),
}

/// Why accounts can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum AccountsError {
    /// The ledger can't be opened or read.
    #[error("store.ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// Limits can't be shared.
    #[error("store.limits: {0}")]
    Limits(#[from] SharedError),
}

// === impl Accounts ===

impl Accounts {
    /// Opens the stores. Blocks until requests that a dead process left in flight are settled, and until it is known what
    /// other replicas hold.
    ///
    /// # Errors
    /// A store can't be opened.
    pub fn open(store: &Store, clock: Clock, metrics: &Metrics) -> Result<Self, AccountsError> {
        let local = Arc::new(Local::new(clock.clone()));
        let on_settled: OnSettled = match store.limits {
            LimitStore::Local => Box::new({
                let local = local.clone();
                move |request| local.settled(request)
            }),
            // Whoever buries the dead replica in Redis counts it there.
            LimitStore::Redis(_) => Box::new(|_| ()),
        };
        let ledger = Ledger::open(store, metrics.store_lost("ledger"), on_settled)?;
        let shared = match &store.limits {
            LimitStore::Local => None,
            LimitStore::Redis(url) => {
                let replica = ledger.as_ref().map_or_else(replica, |ledger| Ok(ledger.replica))?;
                let inquiry = ledger.as_ref().map(Ledger::inquiry);
                Some(Shared::open(url, store, clock, replica, inquiry, metrics.store_lost("limits"))?)
            }
        };
        Ok(Self { local, shared, ledger, on_store_loss: store.on_store_loss, next: AtomicU64::new(0) })
    }

    /// Makes the counters of quotas that are new in `config` and fills them with what the ledger knows was used. To be
    /// done before a request meets these quotas. Blocks on the ledger's thread.
    ///
    /// # Errors
    /// The ledger can't be read.
    pub fn configure(&self, config: &Config) -> Result<(), AccountsError> {
        let quotas = config.tenants.values().flat_map(|tenant| {
            let of_keys = tenant.keys.iter().flat_map(|key| key.quotas.iter().map(|quota| (Some(key.name.clone()), quota)));
            let all = tenant.quotas.iter().map(|quota| (None, quota)).chain(of_keys);
            all.map(|(key, quota)| (&tenant.name, Counted::by(tenant, Subject { key, model: quota.model.clone() }, quota)))
        });
        if let Some(shared) = &self.shared {
            return Ok(shared.prepare(quotas.map(|(tenant, counted)| (tenant.clone(), counted)).collect())?);
        }
        let Some(ledger) = &self.ledger else { return Ok(()) };
        let mut sums = Vec::new();
        for (tenant, counted) in quotas {
            self.local.begin(tenant, counted.clone(), |window| {
                let (subject, cached) = (counted.subject.clone(), counted.cached);
                let used = ledger.used(Used { tenant: tenant.to_string(), subject, cached, span: window.span.clone() });
                sums.push((tenant.clone(), counted, window.span.start, used));
            });
        }
        for (tenant, counted, start, used) in sums {
            let used = used.recv().map_err(|_| LedgerError::Closed)??;
            self.local.found(&tenant, &counted, start, used);
        }
        Ok(())
    }

    /// Reserves what the call could use at most, in all dimensions at once; a refused call has consumed nothing. Refused is
    /// by the first limit or quota that doesn't let it pass, or for a store that is lost where the configuration refuses
    /// then.
    pub fn reserve(self: &Arc<Self>, call: &Call) -> Reserving {
        let asked = Asked::new(call);
        if let Err(error) = self.stores_allow() {
            let levels = if self.shared.is_some() { Levels::default() } else { self.local.levels(&asked.need()) };
            return Reserving::Now((levels, Err(error)));
        }
        if self.shared.is_some() {
            let (accounts, record) = (self.clone(), call.record.clone());
            return Reserving::Later(Box::pin(async move { accounts.reserve_shared(asked, record).await }));
        }
        Reserving::Now(match self.local.reserve(&asked.need()) {
            Ok((held, levels)) => {
                let (at, max_tokens) = (held.at, held.max_tokens);
                (levels, Ok(self.grant(asked, call.record.clone(), Holding::Local(held), at, max_tokens)))
            }
            Err(error) => (self.local.levels(&asked.need()), Err(error)),
        })
    }

    async fn reserve_shared(self: Arc<Self>, asked: Asked, record: Record) -> Granting {
        let shared = self.shared.as_ref().expect("invariant: asked only where limits are shared");
        let (levels, held) = shared.reserve(&asked).await;
        let granted = held.map(|held| {
            let (at, max_tokens) = (held.at(), held.max_tokens());
            self.grant(asked, record, Holding::Shared(held), at, max_tokens)
        });
        (levels, granted)
    }

    fn grant(self: &Arc<Self>, asked: Asked, record: Record, held: Holding, at: Duration, max_tokens: u32) -> Granted {
        let open = Arc::new(Open {
            seq: self.next.fetch_add(1, Ordering::Relaxed),
            at,
            tenant: asked.tenant.name.clone(),
            key: Some(asked.key.name.clone()),
            model: asked.model.name.clone(),
            prices: asked.model.prices.unwrap_or_default(),
            record,
        });
        if let Some(ledger) = &self.ledger {
            ledger.begin(open.clone());
        }
        Granted { max_tokens, reservation: Reservation { accounts: self.clone(), call: asked, held, open } }
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
        self.shared.as_ref().map_or_else(|| self.local.in_flight(tenant), |shared| shared.in_flight(tenant))
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

// === impl Reservation ===

impl Release for Reservation {
    /// Settles at once; the future is the row's commit.
    fn release(self: Box<Self>, end: Outcome, _: &Usage) -> Option<BoxFuture<'static, ()>> {
        let Self { accounts, call, held, open } = *self;
        let need = call.need();
        let row = open.row(ledger::outcome(end));
        let used = need.counted(row.usage());
        let mut commit = None;
        let enqueue = || {
            let Some(ledger) = &accounts.ledger else { return };
            if end == Outcome::Refused {
                ledger.forget(open.seq);
            } else {
                commit = Some(ledger.close(row));
            }
        };
        match (held, &accounts.shared) {
            (Holding::Local(held), _) => accounts.local.settle(&need, held, used, end, enqueue),
            (Holding::Shared(held), Some(shared)) => {
                let known = shared.settle(&need, held, used, end, enqueue);
                let commit = commit.take();
                return Some(Box::pin(async move {
                    // Both go on at once; whoever asks after this answer finds it counted everywhere.
                    futures_util::future::join(known, commit.unwrap_or_else(|| Box::pin(std::future::ready(())))).await;
                }));
            }
            (Holding::Shared(_), None) => {}
        }
        commit
    }
}

/// A number that tells this process from others.
fn replica() -> Result<i64, LedgerError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)?;
    Ok(i64::from_le_bytes(random) >> 1)
}
