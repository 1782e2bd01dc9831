//! The ledger's tables and statements, the same for SQLite and Postgres. Times are Unix microseconds, money nano-units,
//! device time nanoseconds; what isn't known is an empty text.

use super::database::Kind;
use std::sync::LazyLock;

/// Columns of a request, ended or in flight.
const COLUMNS: &str =
    "replica, seq, time, request, tenant, key_name, model, rule, variant, backend, prompt, cached, output, device, cost, outcome, config";
const COUNT: usize = 17;
/// Rows of one statement at most: a group is cut into these, so that each statement is prepared once.
const MOST_ROWS: usize = 64;

pub(super) const TABLES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS requests (replica BIGINT NOT NULL, seq BIGINT NOT NULL, time BIGINT NOT NULL, request TEXT NOT NULL, \
     tenant TEXT NOT NULL, key_name TEXT NOT NULL, model TEXT NOT NULL, rule TEXT NOT NULL, variant TEXT NOT NULL, backend TEXT NOT NULL, prompt BIGINT NOT NULL, \
     cached BIGINT NOT NULL, output BIGINT NOT NULL, device BIGINT NOT NULL, cost BIGINT NOT NULL, outcome TEXT NOT NULL, \
     config BIGINT NOT NULL, PRIMARY KEY (replica, seq))",
    "CREATE INDEX IF NOT EXISTS requests_by_tenant ON requests (tenant, time)",
    "CREATE TABLE IF NOT EXISTS in_flight (replica BIGINT NOT NULL, seq BIGINT NOT NULL, time BIGINT NOT NULL, request TEXT NOT NULL, \
     tenant TEXT NOT NULL, key_name TEXT NOT NULL, model TEXT NOT NULL, rule TEXT NOT NULL, variant TEXT NOT NULL, backend TEXT NOT NULL, prompt BIGINT NOT NULL, \
     cached BIGINT NOT NULL, output BIGINT NOT NULL, device BIGINT NOT NULL, cost BIGINT NOT NULL, outcome TEXT NOT NULL, \
     config BIGINT NOT NULL, PRIMARY KEY (replica, seq))",
    "CREATE TABLE IF NOT EXISTS replicas (replica BIGINT PRIMARY KEY, beat BIGINT NOT NULL)",
];

/// Columns that tables of earlier versions don't have.
pub(super) const ADD_RULE_POSTGRES: [&str; 2] = [
    "ALTER TABLE requests ADD COLUMN IF NOT EXISTS rule TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE in_flight ADD COLUMN IF NOT EXISTS rule TEXT NOT NULL DEFAULT ''",
];
/// SQLite has no `IF NOT EXISTS` for columns: first the question, then the same without it.
pub(super) const HAS_RULE_SQLITE: &str = "SELECT COUNT(*) FROM pragma_table_info('requests') WHERE name = 'rule'";
pub(super) const ADD_RULE_SQLITE: [&str; 2] =
    ["ALTER TABLE requests ADD COLUMN rule TEXT NOT NULL DEFAULT ''", "ALTER TABLE in_flight ADD COLUMN rule TEXT NOT NULL DEFAULT ''"];

/// Statements for so many rows each.
pub(super) struct Statements {
    /// With parameters that have no names: SQLite looks for a name from the beginning of all names, for each parameter.
    sqlite: Vec<(usize, String)>,
    postgres: Vec<(usize, String)>,
}

/// A request's own end outranks what another process took it to be when this one seemed dead.
pub(super) static INSERT_ROWS: LazyLock<Statements> = LazyLock::new(|| {
    Statements::new(
        "requests",
        "ON CONFLICT (replica, seq) DO UPDATE SET prompt = excluded.prompt, cached = excluded.cached, output = excluded.output, \
         device = excluded.device, cost = excluded.cost, outcome = excluded.outcome, rule = excluded.rule, variant = excluded.variant, backend = excluded.backend",
        |_| true, // one statement for a group, since each one costs two changes of threads
    )
});

pub(super) static UPSERT_OPEN: LazyLock<Statements> = LazyLock::new(|| {
    Statements::new(
        "in_flight",
        "ON CONFLICT (replica, seq) DO UPDATE SET prompt = excluded.prompt, cached = excluded.cached, output = excluded.output, \
         device = excluded.device, cost = excluded.cost, rule = excluded.rule, variant = excluded.variant, backend = excluded.backend",
        |rows| [64, 16, 4, 1].contains(rows),
    )
});

pub(super) const BEAT_SQLITE: &str = "INSERT INTO replicas (replica, beat) VALUES ($1, CAST(strftime('%s', 'now') AS INTEGER)) ON CONFLICT (replica) DO UPDATE SET beat = excluded.beat";
pub(super) const BEAT_POSTGRES: &str = "INSERT INTO replicas (replica, beat) VALUES ($1, CAST(extract(epoch FROM now()) AS BIGINT)) ON CONFLICT (replica) DO UPDATE SET beat = excluded.beat";
/// The other replicas, and the seconds since each one's last beat.
pub(super) const OTHERS_SQLITE: &str = "SELECT replica, CAST(strftime('%s', 'now') AS INTEGER) - beat FROM replicas WHERE replica <> $1";
pub(super) const OTHERS_POSTGRES: &str =
    "SELECT replica, CAST(extract(epoch FROM now()) AS BIGINT) - beat FROM replicas WHERE replica <> $1";
pub(super) const ALIVE: &str = "SELECT replica FROM replicas";
/// Each replica's connection holds a lock with its number: the server lets go of it when the process is gone.
pub(super) const LOCK: &str = "SELECT CAST(CAST(pg_try_advisory_lock($1) AS INTEGER) AS BIGINT)";
pub(super) const UNLOCK: &str = "SELECT CAST(CAST(pg_advisory_unlock($1) AS INTEGER) AS BIGINT)";
pub(super) static SETTLE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO requests ({COLUMNS}) SELECT {COLUMNS} FROM in_flight WHERE replica = $1 ON CONFLICT (replica, seq) DO NOTHING \
         RETURNING tenant, key_name, model, time, prompt, cached, output, cost"
    )
});

pub(super) const USED: &str = "SELECT CAST(COALESCE(SUM(prompt + output - $6 * cached), 0) AS BIGINT), CAST(COALESCE(SUM(cost), 0) AS BIGINT), CAST(0 AS BIGINT) FROM requests \
     WHERE tenant = $1 AND time >= $2 AND time < $3 AND ($4 = '' OR key_name = $4) AND ($5 = '' OR model = $5)";

/// Sums by model, key, day (since the Unix epoch) and variant, in this order.
pub(super) static SUMS: LazyLock<[String; 4]> = LazyLock::new(|| {
    ["model", "key_name", "CAST(time / 86400000000 AS TEXT)", "variant"].map(|of| {
        let sum = |column: &str| format!("CAST(COALESCE(SUM({column}), 0) AS BIGINT)");
        let sums = ["prompt", "cached", "output", "device", "cost"].map(sum).join(", ");
        format!(
            "SELECT tenant, {of}, CAST(COUNT(*) AS BIGINT), {sums} FROM requests \
             WHERE ($1 = '' OR tenant = $1) AND time >= $2 AND time < $3 GROUP BY 1, 2 ORDER BY 1, 2"
        )
    })
});
/// The same by replica.
pub(super) static SHARES: LazyLock<String> = LazyLock::new(|| USED.replace("CAST(0 AS BIGINT)", "replica") + " GROUP BY replica");

// === impl Statements ===

impl Statements {
    /// Of every size that `is_wanted`, the largest first.
    fn new(table: &str, conflict: &str, is_wanted: fn(&usize) -> bool) -> Self {
        let of = |parameter: fn(usize) -> String| {
            let sizes = (1..=MOST_ROWS).rev().filter(is_wanted);
            sizes.map(|rows| (rows, statement(table, rows, parameter, conflict))).collect()
        };
        Self { sqlite: of(|_| "?".to_owned()), postgres: of(|number| format!("${number}")) }
    }

    /// For this kind of database.
    pub(super) fn of(&self, kind: Kind) -> &[(usize, String)] {
        match kind {
            Kind::Sqlite => &self.sqlite,
            Kind::Postgres => &self.postgres,
        }
    }
}

fn statement(table: &str, rows: usize, parameter: fn(usize) -> String, conflict: &str) -> String {
    let row = |row: usize| {
        let parameters: Vec<_> = (1..=COUNT).map(|column| parameter(row * COUNT + column)).collect();
        format!("({})", parameters.join(", "))
    };
    let rows: Vec<_> = (0..rows).map(row).collect();
    format!("INSERT INTO {table} ({COLUMNS}) VALUES {} {conflict}", rows.join(", "))
}
