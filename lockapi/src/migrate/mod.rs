//! The schema and its versions.

pub(crate) mod version;

mod plan;

pub use plan::plan;

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::driver::{Connection, Operation, Row, Rows, Script, Statement, Type, Value};
use crate::engine::{Timer, Watch, begin};
use crate::error::{Error, ErrorKind, Failure};
use crate::key::internal_key;
use crate::memory::ModelState;

/// One version of the schema, in plain SQL that other migration tools can run.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number; migrations are applied in this order.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    /// The script.
    pub sql: &'static str,
}

/// All migrations of this version of the library, in order.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "base",
        sql: include_str!("../../migrations/0001_base.sql"),
    },
    Migration {
        version: 2,
        name: "lease",
        sql: include_str!("../../migrations/0002_lease.sql"),
    },
    Migration {
        version: 3,
        name: "queue",
        sql: include_str!("../../migrations/0003_queue.sql"),
    },
    Migration {
        version: 4,
        name: "limit",
        sql: include_str!("../../migrations/0004_limit.sql"),
    },
    Migration {
        version: 5,
        name: "id",
        sql: include_str!("../../migrations/0005_id.sql"),
    },
    Migration {
        version: 6,
        name: "schedule",
        sql: include_str!("../../migrations/0006_schedule.sql"),
    },
    Migration {
        version: 7,
        name: "epoch",
        sql: include_str!("../../migrations/0007_epoch.sql"),
    },
    Migration {
        version: 8,
        name: "admin",
        sql: include_str!("../../migrations/0008_admin.sql"),
    },
    Migration {
        version: 9,
        name: "groups",
        sql: include_str!("../../migrations/0009_groups.sql"),
    },
    Migration {
        version: 10,
        name: "push",
        sql: include_str!("../../migrations/0010_push.sql"),
    },
    Migration {
        version: 11,
        name: "idempotency",
        sql: include_str!("../../migrations/0011_idempotency.sql"),
    },
    Migration {
        version: 12,
        name: "refund",
        sql: include_str!("../../migrations/0012_refund.sql"),
    },
    Migration {
        version: 13,
        name: "corrections",
        sql: include_str!("../../migrations/0013_corrections.sql"),
    },
    Migration {
        version: 14,
        name: "headers",
        sql: include_str!("../../migrations/0014_headers.sql"),
    },
    Migration {
        version: 15,
        name: "pauses",
        sql: include_str!("../../migrations/0015_pauses.sql"),
    },
    Migration {
        version: 16,
        name: "delayed_groups",
        sql: include_str!("../../migrations/0016_delayed_groups.sql"),
    },
    Migration {
        version: 17,
        name: "progress",
        sql: include_str!("../../migrations/0017_progress.sql"),
    },
    Migration {
        version: 18,
        name: "results",
        sql: include_str!("../../migrations/0018_results.sql"),
    },
    Migration {
        version: 19,
        name: "paused_names",
        sql: include_str!("../../migrations/0019_paused_names.sql"),
    },
    Migration {
        version: 20,
        name: "queue_limits",
        sql: include_str!("../../migrations/0020_queue_limits.sql"),
    },
    Migration {
        version: 21,
        name: "history",
        sql: include_str!("../../migrations/0021_history.sql"),
    },
    Migration {
        version: 22,
        name: "group_rates",
        sql: include_str!("../../migrations/0022_group_rates.sql"),
    },
    Migration {
        version: 23,
        name: "lost_claims",
        sql: include_str!("../../migrations/0023_lost_claims.sql"),
    },
    Migration {
        version: 24,
        name: "jobs_of_tasks",
        sql: include_str!("../../migrations/0024_jobs_of_tasks.sql"),
    },
    Migration {
        version: 25,
        name: "limit_keys",
        sql: include_str!("../../migrations/0025_limit_keys.sql"),
    },
    Migration {
        version: 26,
        name: "fence_marks",
        sql: include_str!("../../migrations/0026_fence_marks.sql"),
    },
    Migration {
        version: 27,
        name: "rights",
        sql: include_str!("../../migrations/0027_rights.sql"),
    },
    Migration {
        version: 28,
        name: "key_turns",
        sql: include_str!("../../migrations/0028_key_turns.sql"),
    },
];

impl Migration {
    /// The SHA-256 of the script, in hexadecimal, as it is recorded.
    #[must_use]
    pub fn checksum(&self) -> String {
        Sha256::digest(self.sql)
            .iter()
            .fold(String::new(), |mut text, byte| {
                // Writing to a string cannot fail.
                let _ok = write!(text, "{byte:02x}");
                text
            })
    }
}

/// How long a migration goes on trying to get its locks, each of which it waits for a short time.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long it lets others have the tables in between.
const PAUSE: Duration = Duration::from_secs(1);

const SETTINGS: &str = include_str!("settings.sql");

/// How long the server has to answer.
pub(crate) struct Limits {
    /// What takes no time.
    pub(crate) usual: Arc<Watch>,
    /// A script, and its commit.
    pub(crate) script: Arc<Watch>,
}

/// Applies what is missing.
pub(crate) async fn run<N: Connection>(
    connection: &mut N,
    timer: &Timer,
    limits: &Limits,
) -> Result<(), Failure> {
    // Since it had its turn for the first time, and did not get a lock.
    let mut until = None;
    loop {
        limits.usual.bound(begin(connection)).await?;
        let mut is_turn_of_another = false;
        let failure = match apply(connection, &mut is_turn_of_another, limits).await {
            Ok(()) => {
                let committing = connection.script(Script::Commit);
                return limits.script.bound(committing).await;
            }
            Err(failure) => failure,
        };
        if !failure.broken {
            let undoing = connection.script(Script::Rollback);
            limits.usual.bound(undoing).await?;
        }
        if failure.sqlstate.as_deref() != Some("55P03") {
            return Err(failure);
        }
        // Another that has its turn may get on, and leave nothing to do.
        if until.is_none() && !is_turn_of_another {
            until = Some(timer.now() + PATIENCE);
        }
        if until.is_some_and(|until| timer.now() + PAUSE > until) {
            return Err(failure);
        }
        timer.sleep(PAUSE).await;
    }
}

/// One transaction of them. If it ends while another transaction applies migrations, `is_turn_of_another` is set.
async fn apply<N: Connection>(
    connection: &mut N,
    is_turn_of_another: &mut bool,
    limits: &Limits,
) -> Result<(), Failure> {
    let usual = &limits.usual;
    let setting = connection.script(Script::Run(SETTINGS));
    usual.bound(setting).await?;
    let (missing, seen) = usual.bound(missing(connection)).await?;
    if missing.is_empty() {
        return Ok(());
    }
    if let (false, Some(first)) = (seen.can_change, missing.first()) {
        let message = format!(
            "{}, and this role may not change it; run `migrate()` as its owner",
            version::state(first.version - 1)
        );
        return Err(refused(ErrorKind::Unsupported, message));
    }
    let key = internal_key("lockapi", "migrate");
    *is_turn_of_another = true;
    let locking = [LockMigrations { key }];
    usual.bound(connection.perform(&locking)).await?;
    *is_turn_of_another = false;
    let (missing, _) = usual.bound(self::missing(connection)).await?;
    for migration in &missing {
        let applying = connection.script(Script::Run(migration.sql));
        let applied = limits.script.bound(applying).await;
        applied.map_err(|failure| explain_existing_objects(migration, failure))?;
        let record = Record {
            version: migration.version,
            name: migration.name,
            checksum: migration.checksum(),
        };
        usual.bound(connection.perform(&[record])).await?;
    }
    // Somebody may have made the schema after it was looked at.
    usual.bound(act_as_owner(connection)).await.map(drop)
}

/// What a script fails with that finds its own objects.
fn explain_existing_objects(migration: &Migration, failure: Failure) -> Failure {
    match failure.sqlstate.as_deref() {
        Some("42701" | "42P07" | "42710" | "42723") => {
            let message = format!(
                "objects of version {} exist ({}), but lockapi.migration does not record that version: its row was deleted; \
                 insert it again, or drop the schema",
                migration.version,
                failure.message()
            );
            refused(ErrorKind::Corrupt, message)
        }
        _ => failure,
    }
}

/// Looks at what there is, and acts as its owner where this role may: before anything of the schema is read, because
/// what the owner has put there may execute something. Refuses what others own.
async fn act_as_owner<N: Connection>(connection: &mut N) -> Result<SchemaState, Failure> {
    let mut seen = read_schema_state(connection).await?;
    if !seen.act_as.is_empty() {
        let role = seen.act_as;
        connection.perform(&[ActAs { role }]).await?;
        seen = read_schema_state(connection).await?;
    }
    // Who cannot change the schema does not say by using it that it is right.
    if seen.can_change && !seen.untrusted.is_empty() {
        let message = format!(
            "{}, of which this role is not a member, so its tables and functions cannot be trusted; migrate as \
             the owner, or remove it",
            seen.untrusted.join("; ")
        );
        return Err(refused(ErrorKind::Unsupported, message));
    }
    if !seen.is_table {
        let message = "lockapi.migration is not an ordinary table; remove it";
        return Err(refused(ErrorKind::Unsupported, message.to_owned()));
    }
    Ok(seen)
}

async fn read_schema_state<N: Connection>(connection: &mut N) -> Result<SchemaState, Failure> {
    let seen = connection.perform(&[ReadSchemaState]).await?.pop();
    seen.ok_or_else(|| Failure::corrupt("the server returned no owner of the schema"))
}

/// A migration that was applied to a database.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppliedMigration {
    /// Its number.
    pub version: i64,
    /// The [checksum](Migration::checksum) of the script that was applied.
    pub checksum: String,
}

/// Reads which migrations were applied to a database, in order; none where there is no schema. It takes a connection of a
/// [connector](crate::driver::Connector), and works on a standby too.
///
/// # Errors
/// `Unavailable`, also where the role may not read them.
pub async fn applied<N: Connection>(connection: &mut N) -> Result<Vec<AppliedMigration>, Error> {
    const OPERATION: &str = "applied";
    let seen = read_schema_state(connection).await;
    let seen = seen.map_err(|failure| failure.error(OPERATION))?;
    if !seen.found {
        return Ok(Vec::new());
    }
    let applied = connection.perform(&[Applied]).await;
    let applied = applied.map_err(|failure| failure.error(OPERATION))?;
    let applied = applied.into_iter().flatten();
    Ok(applied
        .map(|(version, checksum)| AppliedMigration { version, checksum })
        .collect())
}

/// The migrations that were not applied, and what there is.
async fn missing<N: Connection>(
    connection: &mut N,
) -> Result<(Vec<Migration>, SchemaState), Failure> {
    let seen = act_as_owner(connection).await?;
    if !seen.found {
        return Ok((MIGRATIONS.to_vec(), seen));
    }
    let applied = connection.perform(&[Applied]).await?.concat();
    if applied.is_empty() {
        let message = "lockapi.migration has no rows, although each migration adds one: a restore is not complete, \
                       or they were deleted; restore them";
        return Err(refused(ErrorKind::Corrupt, message.to_owned()));
    }
    let latest = version::latest(&applied);
    let mut missing = Vec::new();
    for migration in MIGRATIONS {
        match applied
            .iter()
            .find(|(version, _)| *version == migration.version)
        {
            // Each is recorded together with what it makes, after those before it.
            None if migration.version < latest => {
                let message = format!(
                    "the row of version {} was deleted from lockapi.migration; insert it again, or drop the schema",
                    migration.version
                );
                return Err(refused(ErrorKind::Corrupt, message));
            }
            None => missing.push(*migration),
            Some((_, checksum)) if *checksum == migration.checksum() => {}
            Some(_) => {
                let message = format!(
                    "migration {} ({}) was applied with a text that differs from the one in this version of the library",
                    migration.version, migration.name
                );
                return Err(refused(ErrorKind::Corrupt, message));
            }
        }
    }
    Ok((missing, seen))
}

fn refused(kind: ErrorKind, message: String) -> Failure {
    Failure::refused(None, Error::new(kind, "migrate", message))
}

/// Reads who owns what is in the schema; a batch of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSchemaState;

/// What is in the schema before a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SchemaState {
    found: bool,
    is_table: bool,
    can_change: bool,
    untrusted: Vec<String>,
    act_as: String,
}

/// Lists applied migrations with their checksums; a batch of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applied;

/// Acts as a role until the transaction ends; a batch of one.
#[derive(Clone, Debug)]
pub(crate) struct ActAs {
    /// Its name.
    pub role: String,
}

/// Keeps other migrations out until the transaction ends; a batch of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockMigrations {
    /// The advisory lock key.
    pub key: i64,
}

/// Records an applied migration; a batch of one.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    /// See [`Migration::checksum`].
    pub checksum: String,
}

impl Operation for ReadSchemaState {
    type Output = SchemaState;

    const STATEMENT: Statement = Statement {
        name: "migrate.schema_state",
        sql: include_str!("schema_state.sql"),
        params: &[],
        columns: &[Type::Bool, Type::Bool, Type::Bool, Type::Texts, Type::Text],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<SchemaState>, Failure> {
        rows.into_iter()
            .map(|mut row| {
                Ok(SchemaState {
                    found: row.bool(0)?,
                    is_table: row.bool(1)?,
                    can_change: row.bool(2)?,
                    untrusted: row.texts(3)?,
                    act_as: row.text(4)?,
                })
            })
            .collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        let there = || Value::Bool(true);
        Some(vec![Row(vec![
            there(),
            there(),
            there(),
            Value::Texts(Vec::new()),
            Value::Text(String::new()),
        ])])
    }
}

impl Operation for Applied {
    type Output = Vec<(i64, String)>;

    const STATEMENT: Statement = Statement {
        name: "migrate.applied",
        sql: include_str!("applied.sql"),
        params: &[],
        columns: &[Type::Int, Type::Text],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<(i64, String)>>, Failure> {
        let applied: Result<_, Failure> = rows
            .into_iter()
            .map(|mut row| Ok((row.int(0)?, row.text(1)?)))
            .collect();
        Ok(vec![applied?])
    }

    /// The model is always of this version.
    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        let row = |migration: &Migration| {
            Row(vec![
                Value::Int(migration.version),
                Value::Text(migration.checksum()),
            ])
        };
        Some(MIGRATIONS.iter().map(row).collect())
    }
}

impl Operation for ActAs {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "migrate.act_as",
        sql: include_str!("act_as.sql"),
        params: &[Type::Text],
        columns: &[Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let roles = batch.iter().map(|one| one.role.clone());
        roles.map(Value::Text).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        let acted = rows.into_iter().map(|mut row| row.text(0).map(drop));
        acted.collect()
    }

    fn model(batch: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        let role = |one: &Self| Row(vec![Value::Text(one.role.clone())]);
        Some(batch.iter().map(role).collect())
    }
}

impl Operation for LockMigrations {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "migrate.lock",
        sql: include_str!("lock.sql"),
        params: &[Type::Int],
        columns: &[Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch.iter().map(|one| Value::Int(one.key)).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        Ok(rows.into_iter().map(drop).collect())
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Text(String::new())])])
    }
}

impl Operation for Record {
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "migrate.record",
        sql: include_str!("record.sql"),
        params: &[Type::Int, Type::Text, Type::Text],
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|one| {
                [
                    Value::Int(one.version),
                    Value::Text(one.name.to_owned()),
                    Value::Text(one.checksum.clone()),
                ]
            })
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(batch: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Int(batch.first()?.version)])])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::blocking::block_on;
    use crate::driver::Call;
    use crate::engine::{Clock, ManualClock};

    /// Somebody has locked what every migration looks at.
    struct Locked<'a> {
        tries: &'a AtomicU32,
    }

    impl Connection for Locked<'_> {
        async fn run(&mut self, _: Call<'_>) -> Result<Rows, Failure> {
            self.tries.fetch_add(1, Ordering::SeqCst);
            Err(Failure::statement(
                Some("55P03".to_owned()),
                false,
                "locked",
            ))
        }

        async fn script(&mut self, _: Script) -> Result<(), Failure> {
            Ok(())
        }
    }

    #[test]
    fn a_lock_that_stays_is_told_of_in_the_end() {
        let clock = ManualClock::default();
        let timer = Timer::start(&Clock::Manual(clock.clone())).unwrap();
        let began = timer.now();
        let tries = AtomicU32::new(0);
        let mut connection = Locked { tries: &tries };
        let watch = || Watch::new(timer.clone(), Duration::from_secs(5));
        let limits = Limits {
            usual: watch(),
            script: watch(),
        };
        let outcome = std::thread::scope(|scope| {
            let migration = scope.spawn(|| block_on(run(&mut connection, &timer, &limits)));
            let mut seen = (0, std::time::Instant::now());
            while !migration.is_finished() {
                // Two pauses for a try: the clock does not run away from a thread that is slow. If it has begun
                // to sleep only after both, it needs another.
                let tried = tries.load(Ordering::SeqCst);
                if tried > seen.0 {
                    seen = (tried, std::time::Instant::now());
                }
                let until = PAUSE * 2 * tried;
                let sleeps = seen.1.elapsed() > Duration::from_millis(200);
                if timer.now().saturating_sub(began) < until || sleeps {
                    clock.advance(PAUSE / 10);
                }
                std::thread::yield_now();
            }
            migration.join().unwrap()
        });
        let failure = outcome.unwrap_err();
        assert_eq!(failure.kind(), ErrorKind::TimedOut);
        let took = timer.now().saturating_sub(began);
        assert!(took + 2 * PAUSE >= PATIENCE, "{took:?}");
        let tries = tries.load(Ordering::SeqCst);
        assert!((20..=41).contains(&tries), "{tries}");
    }
}
