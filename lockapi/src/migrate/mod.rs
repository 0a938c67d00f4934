//! The schema and its versions.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::engine::{COMMIT, ROLLBACK, begin};
use crate::error::{Error, ErrorKind, Failure};
use crate::key::advisory_key;
use crate::memory::World;
use crate::seam::{Connection, Operation, Row, Rows, Statement, Type, Value};

/// One step of the schema, plain enough to be copied into another migration tool.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number; migrations are applied in this order.
    pub version: i64,
    /// What it is about.
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
        version: 8,
        name: "sight",
        sql: include_str!("../../migrations/0008_sight.sql"),
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

/// Applies what is missing.
pub(crate) async fn run<N: Connection>(connection: &mut N) -> Result<(), Failure> {
    if missing(connection).await?.is_empty() {
        return Ok(());
    }
    begin(connection).await?;
    match apply(connection).await {
        Ok(()) => connection.script(COMMIT).await,
        Err(failure) => {
            if !failure.broken {
                connection.script(ROLLBACK).await?;
            }
            Err(failure)
        }
    }
}

async fn apply<N: Connection>(connection: &mut N) -> Result<(), Failure> {
    let key = advisory_key("lockapi", "migrate");
    connection.perform(&[Exclude { key }]).await?;
    for migration in missing(connection).await? {
        connection.script(migration.sql).await?;
        let record = Record {
            version: migration.version,
            name: migration.name,
            checksum: migration.checksum(),
        };
        connection.perform(&[record]).await?;
    }
    Ok(())
}

async fn missing<N: Connection>(connection: &mut N) -> Result<Vec<Migration>, Failure> {
    if connection.perform(&[Exists]).await? != [true] {
        return Ok(MIGRATIONS.to_vec());
    }
    let applied = connection.perform(&[Applied]).await?.concat();
    let mut missing = Vec::new();
    for migration in MIGRATIONS {
        match applied
            .iter()
            .find(|(version, _)| *version == migration.version)
        {
            None => missing.push(*migration),
            Some((_, checksum)) if *checksum == migration.checksum() => {}
            Some(_) => {
                let message = format!(
                    "migration {} ({}) was applied with another text than this version of the library has",
                    migration.version, migration.name
                );
                let error = Error::new(ErrorKind::Corrupt, "migrate", message);
                return Err(Failure {
                    sqlstate: None,
                    broken: false,
                    sent: false,
                    source: std::sync::Arc::new(error),
                });
            }
        }
    }
    Ok(missing)
}

/// Tells whether any migration was ever applied; a batch of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exists;

/// Lists applied migrations with their checksums; a batch of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applied;

/// Keeps other migrations out until the transaction ends; a batch of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exclude {
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

impl Operation for Exists {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "migrate.exists",
        sql: include_str!("exists.sql"),
        params: &[],
        columns: &[Type::Bool],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<bool>, Failure> {
        rows.into_iter().map(|mut row| row.bool(0)).collect()
    }

    fn model(_: &[Self], _: &mut World, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Bool(true)])])
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
    fn model(_: &[Self], _: &mut World, _: u64) -> Option<Rows> {
        let row = |migration: &Migration| {
            Row(vec![
                Value::Int(migration.version),
                Value::Text(migration.checksum()),
            ])
        };
        Some(MIGRATIONS.iter().map(row).collect())
    }
}

impl Operation for Exclude {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "migrate.exclude",
        sql: include_str!("exclude.sql"),
        params: &[Type::Int],
        columns: &[Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch.iter().map(|one| Value::Int(one.key)).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        Ok(rows.into_iter().map(drop).collect())
    }

    fn model(_: &[Self], _: &mut World, _: u64) -> Option<Rows> {
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

    fn model(batch: &[Self], _: &mut World, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Int(batch.first()?.version)])])
    }
}
