//! The store's table of keys, the same in SQLite and Postgres. Times are Unix microseconds, 0 for none.

use super::KeyError;
use super::entry::{Entry, Grant};
use crate::config::{Moment, Name};
use crate::tenant::ledger::{Place, connect};
use sqlx::any::AnyRow;
use sqlx::{Any, AnyConnection, Connection, Row, Transaction};
use std::sync::Arc;
use std::time::Duration;

/// `version` is raised by every change within its transaction, so that those who read it see changes in their order.
const TABLES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS api_keys (hash TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, terms TEXT NOT NULL, \
     created BIGINT NOT NULL, revoked BIGINT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS api_keys_by_name ON api_keys (tenant, name)",
    "CREATE TABLE IF NOT EXISTS api_keys_version (id BIGINT PRIMARY KEY, version BIGINT NOT NULL)",
    "INSERT INTO api_keys_version (id, version) VALUES (1, 0) ON CONFLICT (id) DO NOTHING",
];
const RAISE: &str = "UPDATE api_keys_version SET version = version + 1 WHERE id = 1";
const VERSION: &str = "SELECT version FROM api_keys_version WHERE id = 1";
const ALL: &str = "SELECT hash, tenant, name, terms, created, revoked FROM api_keys ORDER BY created, hash";
const NAMED: &str =
    "SELECT hash, tenant, name, terms, created, revoked FROM api_keys WHERE tenant = $1 AND name = $2 ORDER BY created DESC, hash";
const INSERT: &str = "INSERT INTO api_keys (hash, tenant, name, terms, created, revoked) VALUES ($1, $2, $3, $4, $5, $6)";
/// What ends already never ends later.
const END_NAMED: &str = "UPDATE api_keys SET revoked = $1 WHERE tenant = $2 AND name = $3 AND (revoked = 0 OR revoked > $1)";
const END_OF_FILE: &str = "INSERT INTO api_keys (hash, tenant, name, terms, created, revoked) VALUES ($1, $2, $3, '', $4, $5) \
     ON CONFLICT (hash) DO UPDATE SET revoked = excluded.revoked WHERE api_keys.revoked = 0 OR api_keys.revoked > excluded.revoked";

/// A connection to the table.
pub(super) struct Table(AnyConnection);

/// What changes the table.
#[derive(Debug)]
pub(super) enum Change {
    /// A new key.
    Make { hash: [u8; 32], grant: Box<Grant> },
    /// All secrets of a name end now.
    Revoke,
    /// Another secret for a name; those it has end after `overlap`.
    Rotate { hash: [u8; 32], overlap: Duration },
}

/// Whose key is changed.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) tenant: Name,
    pub(super) name: Name,
    /// The hash of the file's key of this name, if it has one.
    pub(super) of_file: Option<[u8; 32]>,
}

// === impl Table ===

impl Table {
    /// Connects, and makes what is missing.
    pub(super) async fn open(place: &Place) -> Result<Self, sqlx::Error> {
        let mut connection = connect(place).await?;
        let mut transaction = connection.begin().await?;
        place.take_turns(&mut transaction).await?;
        for statement in TABLES {
            sqlx::query(*statement).execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(Self(connection))
    }

    /// How many changes there were.
    pub(super) async fn version(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query(VERSION).fetch_one(&mut self.0).await?.try_get(0)
    }

    /// All entries. One that can't be read is left out: a key whose confines aren't known is not taken.
    pub(super) async fn all(&mut self) -> Result<Vec<Entry>, sqlx::Error> {
        let rows = sqlx::query(ALL).fetch_all(&mut self.0).await?;
        Ok(rows.iter().map(entry).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Makes a change, or none at all.
    pub(super) async fn change(&mut self, named: &Named, change: Change, now: Moment) -> Result<(), KeyError> {
        let mut transaction = self.0.begin().await?;
        // First of all: it locks, so changes of all processes happen one after the other.
        sqlx::query(RAISE).execute(&mut *transaction).await?;
        match change {
            Change::Make { hash, grant } => named.make(&mut transaction, hash, &grant, now).await?,
            Change::Revoke => named.revoke(&mut transaction, now).await?,
            Change::Rotate { hash, overlap } => named.rotate(&mut transaction, hash, overlap, now).await?,
        }
        Ok(transaction.commit().await?)
    }
}

// === impl Named ===

impl Named {
    async fn make(&self, transaction: &mut Transaction<'_, Any>, hash: [u8; 32], grant: &Grant, now: Moment) -> Result<(), KeyError> {
        let taken = self.of_file.is_some() || self.entries(transaction).await?.iter().any(|entry| !entry.is_revoked(now));
        if taken {
            return Err(KeyError::Exists { tenant: self.tenant.clone(), name: self.name.clone() });
        }
        let terms = serde_json::to_string(grant).expect("invariant: a grant is JSON");
        self.insert(transaction, hash, terms, now).await
    }

    async fn revoke(&self, transaction: &mut Transaction<'_, Any>, now: Moment) -> Result<(), KeyError> {
        if self.of_file.is_none() && self.entries(transaction).await?.is_empty() {
            return Err(self.unknown());
        }
        self.end(transaction, now, now).await
    }

    async fn rotate(&self, transaction: &mut Transaction<'_, Any>, hash: [u8; 32], overlap: Duration, now: Moment) -> Result<(), KeyError> {
        let entries = self.entries(transaction).await?;
        let current = entries.iter().find(|entry| entry.revoked.is_none());
        let terms = match current.map(|entry| entry.key.as_deref()) {
            Some(Some(key)) if key.expires.is_some_and(|expires| expires <= now) => return Err(KeyError::Expired),
            Some(Some(key)) => serde_json::to_string(&Grant::of(key)).expect("invariant: a grant is JSON"),
            Some(None) => String::new(),
            // The file's own secret: unless it was taken back, it is the current one.
            None if self.of_file.is_some_and(|hash| !entries.iter().any(|entry| entry.hash == hash)) => String::new(),
            None => return Err(if entries.is_empty() { self.unknown() } else { KeyError::Revoked }),
        };
        let end = Moment::from_unix(now.unix().saturating_add(overlap));
        self.end(transaction, end, now).await?;
        self.insert(transaction, hash, terms, now).await
    }

    /// Ends all secrets of the name, the file's too.
    async fn end(&self, transaction: &mut Transaction<'_, Any>, end: Moment, now: Moment) -> Result<(), KeyError> {
        let (tenant, name) = (self.tenant.to_string(), self.name.to_string());
        let ended = sqlx::query(END_NAMED).bind(micros(end)).bind(tenant.clone()).bind(name.clone());
        ended.execute(&mut **transaction).await?;
        if let Some(hash) = self.of_file {
            let ended = sqlx::query(END_OF_FILE).bind(hex(&hash)).bind(tenant).bind(name).bind(micros(now)).bind(micros(end));
            ended.execute(&mut **transaction).await?;
        }
        Ok(())
    }

    async fn insert(&self, transaction: &mut Transaction<'_, Any>, hash: [u8; 32], terms: String, now: Moment) -> Result<(), KeyError> {
        let row = sqlx::query(INSERT).bind(hex(&hash)).bind(self.tenant.to_string()).bind(self.name.to_string());
        row.bind(terms).bind(micros(now)).bind(0_i64).execute(&mut **transaction).await?;
        Ok(())
    }

    async fn entries(&self, transaction: &mut Transaction<'_, Any>) -> Result<Vec<Entry>, KeyError> {
        let rows = sqlx::query(NAMED).bind(self.tenant.to_string()).bind(self.name.to_string()).fetch_all(&mut **transaction).await?;
        Ok(rows.iter().map(entry).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    fn unknown(&self) -> KeyError {
        KeyError::Unknown { tenant: self.tenant.clone(), name: self.name.clone() }
    }
}

/// An entry of a row; `None` where another version of this program has written what this one doesn't know.
fn entry(row: &AnyRow) -> Result<Option<Entry>, sqlx::Error> {
    let text = |index: usize| row.try_get::<String, _>(index);
    let (hash, tenant, name, terms) = (text(0)?, Name::from(text(1)?), Name::from(text(2)?), text(3)?);
    let (created, revoked): (i64, i64) = (row.try_get(4)?, row.try_get(5)?);
    let Ok(hash) = blake3::Hash::from_hex(&hash).map(<[u8; 32]>::from) else {
        tracing::error!(%tenant, key = %name, "a key of the store has no hash: it isn't taken");
        return Ok(None);
    };
    let key = match terms.as_str() {
        "" => None,
        terms => match serde_json::from_str::<Grant>(terms) {
            Ok(grant) => Some(Arc::new(grant.key(name.clone(), hash))),
            Err(error) => {
                tracing::error!(%tenant, key = %name, %error, "the terms of a key of the store can't be read: it isn't taken");
                return Ok(None);
            }
        },
    };
    let revoked = (revoked != 0).then(|| moment(revoked));
    Ok(Some(Entry { hash, tenant, name, key, created: moment(created), revoked }))
}

fn micros(moment: Moment) -> i64 {
    i64::try_from(moment.unix().as_micros()).unwrap_or(i64::MAX)
}

fn moment(micros: i64) -> Moment {
    Moment::from_unix(Duration::from_micros(micros.unsigned_abs()))
}

fn hex(hash: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}
