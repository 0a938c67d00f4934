//! `lockapi migrate`: the version of the schema, and who may do what in it.

use std::fmt::Write;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use lockapi::driver::{Connector, Mode};
use lockapi::rights::{self, Role};
use lockapi::{MIGRATIONS, migrate};
use serde::Serialize;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Row};
use tokio::time::timeout;

use crate::arguments::Global;
use crate::common::close;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Entry;

/// How long the server has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Look at the version of the schema, bring it up to date, and see to rights
#[derive(Debug, Subcommand)]
pub(crate) enum Migrate {
    /// Show which migrations were applied; exits with 3 if some are missing, with 4 if one differs
    Status,
    /// Print the SQL of what is missing, for the owner to read and run
    Plan {
        /// Of all migrations, without looking at a database
        #[arg(long)]
        all: bool,
    },
    /// Apply what is missing
    Up,
    /// Print the SQL that gives a role its rights, or check those it has
    Grants(Grants),
}

/// Print the SQL that gives a role its rights, or check those it has
#[derive(Debug, Args)]
pub(crate) struct Grants {
    /// What the role does
    #[arg(value_enum)]
    does: Does,

    /// The role
    role: String,

    /// Check the role instead; exits with 3 if it has too much, with 4 if it lacks something
    #[arg(long)]
    check: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Does {
    /// Runs migrations
    Owner,
    /// Uses the primitives
    Worker,
    /// Reads the views
    Reader,
    /// Takes locks and jobs from others
    Operator,
}

impl From<Does> for Role {
    fn from(does: Does) -> Self {
        match does {
            Does::Owner => Self::Owner,
            Does::Worker => Self::Worker,
            Does::Reader => Self::Reader,
            Does::Operator => Self::Operator,
        }
    }
}

/// A migration, and whether the database has it.
#[derive(Debug, Serialize)]
struct Step {
    version: i64,
    name: Option<&'static str>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Applied,
    Missing,
    /// Applied with another text.
    Differs,
    /// Of a later version of this program.
    Later,
}

impl Entry for Step {
    const COLUMNS: &'static [&'static str] = &["version", "name", "state"];

    fn cells(&self) -> Vec<String> {
        let state = match self.state {
            State::Applied => "applied",
            State::Missing => "missing",
            State::Differs => "applied with another text",
            State::Later => "of a later version than this program",
        };
        let name = self.name.unwrap_or("-");
        vec![self.version.to_string(), name.to_owned(), state.to_owned()]
    }
}

/// A right that a role has too much or too little.
#[derive(Debug, Serialize)]
struct Right {
    object: String,
    privilege: String,
    excess: bool,
}

impl Entry for Right {
    const COLUMNS: &'static [&'static str] = &["object", "privilege", "it"];

    fn cells(&self) -> Vec<String> {
        let it = if self.excess {
            "has it and should not"
        } else {
            "lacks it"
        };
        vec![self.object.clone(), self.privilege.clone(), it.to_owned()]
    }
}

impl Migrate {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        match self {
            Self::Status => {
                let steps = steps(global).await?;
                global.output().entries(&steps)?;
                let any = |state| steps.iter().any(|step| step.state == state);
                Ok(match () {
                    () if any(State::Differs) => Exit::Critical,
                    () if any(State::Missing) => Exit::Warning,
                    () => Exit::Success,
                })
            }
            Self::Plan { all } => {
                let after = if all {
                    0
                } else {
                    latest(&steps(global).await?)?
                };
                let plan = migrate::plan(after);
                global.output().value(&plan, |plan| {
                    if plan.is_empty() {
                        return "-- Nothing is missing.".to_owned();
                    }
                    plan.clone()
                })?;
                Ok(Exit::Success)
            }
            Self::Up => {
                let backend = global.place.connect().await?;
                let migrated = backend.migrate().await;
                close(&*backend).await;
                migrated?;
                let version = MIGRATIONS.last().map_or(0, |last| last.version);
                let words = |version: &i64| format!("The schema is at version {version}.");
                global.output().value(&version, words)?;
                Ok(Exit::Success)
            }
            Self::Grants(grants) => grants.run(global).await,
        }
    }
}

impl Grants {
    async fn run(self, global: &Global) -> Result<Exit> {
        let role = self.does.into();
        if !self.check {
            let sql = rights::grants(role, &self.role)?;
            global.output().value(&sql, String::clone)?;
            return Ok(Exit::Success);
        }
        let sql = rights::check(role, &self.role)?;
        let mut connection = connection(&global.place.url()?).await?;
        let rows = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_all(&mut connection)
            .await;
        let rows = rows.map_err(|error| failed(&error, &self.role))?;
        let right = |row: &sqlx::postgres::PgRow| {
            Ok(Right {
                object: row.try_get(0)?,
                privilege: row.try_get(1)?,
                excess: row.try_get(2)?,
            })
        };
        let rights: Result<Vec<Right>, sqlx::Error> = rows.iter().map(right).collect();
        let rights = rights.map_err(|error| failed(&error, &self.role))?;
        connection
            .close()
            .await
            .map_err(|error| failed(&error, &self.role))?;
        if rights.is_empty() && !global.json {
            let mut words = String::new();
            // Writing to a string cannot fail.
            let _ok = write!(
                words,
                "{} has the rights of its task, and no others.",
                self.role
            );
            global.output().value(&words, String::clone)?;
        } else {
            global.output().entries(&rights)?;
        }
        Ok(match rights.iter().all(|right| right.excess) {
            true if rights.is_empty() => Exit::Success,
            true => Exit::Warning,
            false => Exit::Critical,
        })
    }
}

/// All migrations that this program or the database knows.
async fn steps(global: &Global) -> Result<Vec<Step>> {
    let connector = lockapi_sqlx::connector_url(&global.place.url()?)?;
    let applied = async {
        let connected = connector.connect(Mode::Direct).await;
        let mut connection = connected.map_err(|failure| failure.error("connect"))?;
        migrate::applied(&mut connection).await
    };
    let applied = timeout(PATIENCE, applied).await;
    let applied = applied.map_err(|_| unanswered())??;
    let known = MIGRATIONS.iter().map(|migration| {
        let found = applied.iter().find(|it| it.version == migration.version);
        Step {
            version: migration.version,
            name: Some(migration.name),
            state: match found {
                None => State::Missing,
                Some(it) if it.checksum == migration.checksum() => State::Applied,
                Some(_) => State::Differs,
            },
        }
    });
    let mut steps: Vec<Step> = known.collect();
    let last = MIGRATIONS.last().map_or(0, |last| last.version);
    let later = applied.iter().filter(|it| it.version > last);
    steps.extend(later.map(|it| Step {
        version: it.version,
        name: None,
        state: State::Later,
    }));
    Ok(steps)
}

/// The version that the database has.
fn latest(steps: &[Step]) -> Result<i64> {
    if let Some(step) = steps.iter().find(|step| step.state == State::Differs) {
        let message = format!(
            "version {} was applied with another text than this program has",
            step.version
        );
        return Err(Failure::new(Exit::Failed, message).advise(
            "Find out who changed it: `lockapi migrate status`. No plan can be made of it.",
        ));
    }
    let missing = steps.iter().find(|step| step.state == State::Missing);
    let Some(first) = missing else {
        return Ok(i64::MAX);
    };
    let after = |step: &&Step| step.version > first.version && step.state != State::Missing;
    if let Some(step) = steps.iter().find(after) {
        let message = format!(
            "version {} is not recorded although {} is: its row was deleted from lockapi.migration",
            first.version, step.version
        );
        return Err(
            Failure::new(Exit::Failed, message).advise("Insert the row again, or drop the schema.")
        );
    }
    Ok(first.version - 1)
}

/// A connection to the first host that answers.
async fn connection(url: &str) -> Result<PgConnection> {
    let mut failure = unanswered();
    for host in lockapi::driver::each_host(url)? {
        // The parser's error may quote the URL, which may hold a password.
        let options: PgConnectOptions = host
            .parse()
            .map_err(|_| lockapi::driver::not_understood())?;
        match timeout(PATIENCE, PgConnection::connect_with(&options)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => {
                failure = Failure::new(Exit::Unreachable, format!("connect: {error}"));
            }
            Err(_) => failure = unanswered(),
        }
    }
    Err(failure)
}

fn failed(error: &sqlx::Error, role: &str) -> Failure {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    match code.as_deref() {
        Some("42704") => Failure::new(Exit::Absent, format!("there is no role {role:?}")),
        Some("3F000") => Failure::new(Exit::Absent, "there is no schema lockapi")
            .advise("`lockapi migrate up` makes it."),
        _ => Failure::new(Exit::Failed, format!("the rights cannot be read: {error}")),
    }
}

fn unanswered() -> Failure {
    Failure::new(
        Exit::Unreachable,
        format!("the server did not answer within {PATIENCE:?}"),
    )
}
