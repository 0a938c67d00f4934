//! Faults that other clients of the server cause.

use std::thread;
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client, Config, NoTls, Transaction};

use super::{Conductor, Draw, Effect, seconds};
use crate::Result;
use crate::server::USER;

/// How long a server that has ended is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// Tables that programs read and write all the time.
const TABLES: [&str; 16] = [
    "job",
    "queue_limit",
    "queue_groups",
    "lease",
    "rate_limit",
    "fence_mark",
    "id_worker",
    "id_block",
    "push_key",
    "lock_session",
    "lock_note",
    "group_limit",
    "group_rate",
    "paused_name",
    "job_progress",
    "job_result",
];

impl Conductor<'_> {
    /// Takes advisory locks until the lock table of the server is full, and keeps it full.
    pub(super) fn full_locks(&self, draw: &mut Draw) -> Result<Effect> {
        let mut client = self.server.client()?;
        let (mut taken, mut refusals) = (0_i64, 0);
        let mut full = None;
        let take = "SELECT count(pg_advisory_lock(8000000000 + n)) FROM generate_series($1::int8, $2::int8) AS n";
        let begun = Instant::now();
        loop {
            // A batch that is refused takes what fits before.
            match client.query_one(take, &[&taken, &(taken + 49)]) {
                Ok(_) => {}
                Err(error) if error.code() == Some(&SqlState::OUT_OF_MEMORY) => {
                    refusals += 1;
                    full.get_or_insert_with(Instant::now);
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error.into()),
            }
            taken += 50;
            if full.is_some_and(|since| since.elapsed() > draw.time) {
                break;
            }
            if begun.elapsed() > draw.time + Duration::from_secs(20) {
                break;
            }
        }
        client.batch_execute("SELECT pg_advisory_unlock_all()")?;
        Ok(Effect::new(
            refusals,
            format!("about {taken} locks, full for {}", seconds(draw.time)),
        ))
    }

    /// Opens sessions until there is no room for another, and takes each that becomes free.
    pub(super) fn full_connections(&self, draw: &mut Draw) -> Result<Effect> {
        let mut config: Config = self.server.url().parse()?;
        config.user(USER).application_name("idler");
        let (mut idle, mut refusals) = (Vec::<Client>::new(), 0);
        let mut full = None;
        let begun = Instant::now();
        while begun.elapsed() < draw.time + Duration::from_secs(10) {
            match config.connect(NoTls) {
                Ok(client) => idle.push(client),
                Err(error) if error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) => {
                    refusals += 1;
                    full.get_or_insert_with(Instant::now);
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error.into()),
            }
            if full.is_some_and(|since| since.elapsed() > draw.time) {
                break;
            }
        }
        Ok(Effect::new(
            refusals,
            format!("{} sessions, full for {}", idle.len(), seconds(draw.time)),
        ))
    }

    pub(super) fn index(&self, draw: &mut Draw) -> Result<Effect> {
        const INDEXES: [&str; 4] = [
            "lockapi.job (name)",
            "lockapi.lease (owner)",
            "lockapi.rate_limit (namespace)",
            "lockapi.fence_mark (namespace)",
        ];
        let mut client = self.server.client()?;
        let index = draw.random.choice(INDEXES).unwrap_or(INDEXES[0]);
        let name = format!("torture_{}", draw.place);
        let end = Instant::now() + draw.time;
        let mut built = 0;
        // One that was not finished before is there, and invalid.
        client.batch_execute(&format!("DROP INDEX CONCURRENTLY IF EXISTS lockapi.{name}"))?;
        while Instant::now() < end {
            client.batch_execute(&format!("CREATE INDEX CONCURRENTLY {name} ON {index}"))?;
            client.batch_execute(&format!("DROP INDEX CONCURRENTLY lockapi.{name}"))?;
            built += 1;
        }
        Ok(Effect::new(built, format!("{built} times on {index}")))
    }

    pub(super) fn vacuum(&self, draw: &mut Draw) -> Result<Effect> {
        let mut client = self.server.client()?;
        let end = Instant::now() + draw.time;
        let mut count = 0;
        while Instant::now() < end {
            let table = draw.random.choice(TABLES).unwrap_or(TABLES[0]);
            client.batch_execute(&format!("VACUUM FULL lockapi.{table}"))?;
            count += 1;
            thread::sleep(Duration::from_millis(draw.random.u64(..200)));
        }
        Ok(Effect::new(count, format!("{count} tables, in full")))
    }

    /// The most sessions of programs that wait for a transaction of ours at a time.
    fn most_waiters(&self, ours: &mut Transaction<'_>, time: Duration) -> Result<u64> {
        let ours = ours.query_one("SELECT pg_backend_pid()", &[])?;
        let ours: i32 = ours.get(0);
        let waiters = "SELECT count(*) FROM pg_stat_activity
                        WHERE usename = $1 AND wait_event_type = 'Lock' AND $2 = ANY (pg_blocking_pids(pid))";
        let mut client = self.server.client()?;
        let end = Instant::now() + time;
        let mut most = 0;
        while Instant::now() < end {
            let waiting: i64 = client.query_one(waiters, &[&USER, &ours])?.get(0);
            most = most.max(waiting.unsigned_abs());
            thread::sleep(Duration::from_millis(100));
        }
        Ok(most)
    }

    pub(super) fn lock_table(&self, draw: &mut Draw) -> Result<Effect> {
        const MODES: [&str; 3] = ["SHARE", "EXCLUSIVE", "ACCESS EXCLUSIVE"];
        let mut client = self.server.client()?;
        let table = draw.random.choice(&TABLES[..3]).unwrap_or(&TABLES[0]);
        let mode = draw.random.choice(MODES).unwrap_or(MODES[0]);
        let mut transaction = client.transaction()?;
        transaction.batch_execute(&format!(
            "SET LOCAL lock_timeout = '10s'; LOCK TABLE lockapi.{table} IN {mode} MODE"
        ))?;
        let waiters = self.most_waiters(&mut transaction, draw.time)?;
        transaction.rollback()?;
        Ok(Effect::new(
            waiters,
            format!(
                "{table} in {mode} mode for {}, {waiters} waited",
                seconds(draw.time)
            ),
        ))
    }

    pub(super) fn row_locks(&self, draw: &mut Draw) -> Result<Effect> {
        let mut client = self.server.client()?;
        let table = draw.random.choice(&TABLES[..6]).unwrap_or(&TABLES[0]);
        let mut transaction = client.transaction()?;
        let sql = format!(
            "WITH locked AS (SELECT 1 FROM lockapi.{table} FOR UPDATE) SELECT count(*) FROM locked"
        );
        transaction.batch_execute("SET LOCAL lock_timeout = '10s'")?;
        let rows: i64 = transaction.query_one(&sql, &[])?.get(0);
        let waiters = self.most_waiters(&mut transaction, draw.time)?;
        transaction.rollback()?;
        Ok(Effect::new(
            rows.unsigned_abs(),
            format!(
                "{rows} rows of {table} for {}, {waiters} waited",
                seconds(draw.time)
            ),
        ))
    }

    /// Keeps a snapshot, so that nothing that is deleted meanwhile can be vacuumed. One that ends with the server
    /// is replaced by another.
    pub(super) fn snapshot(&self, draw: &mut Draw) -> Result<Effect> {
        let end = Instant::now() + draw.time;
        let (mut passed, mut snapshots) = (0, 0);
        while passed == 0 || Instant::now() < end {
            if Instant::now() > end + PATIENCE {
                break;
            }
            snapshots += 1;
            passed += self.keep_snapshot(end)?;
        }
        Ok(Effect::new(
            passed,
            format!(
                "{passed} transactions in {}, beside {snapshots} snapshots",
                seconds(draw.time)
            ),
        ))
    }

    /// How many transactions began while a snapshot was there for certain.
    fn keep_snapshot(&self, end: Instant) -> Result<u64> {
        const NEXT: &str = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8";
        let mut client = self.server.patient_client(PATIENCE)?;
        let mut others = self.server.patient_client(PATIENCE)?;
        let keeping = client
            .build_transaction()
            .isolation_level(postgres::IsolationLevel::RepeatableRead)
            .start();
        // From here on the server may end at any time.
        let Ok(mut keeping) = keeping else {
            return Ok(0);
        };
        let Ok(row) = keeping.query_one(NEXT, &[]) else {
            return Ok(0);
        };
        let (first, mut last): (i64, i64) = (row.get(0), row.get(0));
        while let Ok(next) = others.query_one(NEXT, &[])
            && keeping.query_one("SELECT", &[]).is_ok()
        {
            last = last.max(next.get(0));
            if Instant::now() > end {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok((last - first).max(0).unsigned_abs())
    }
}
