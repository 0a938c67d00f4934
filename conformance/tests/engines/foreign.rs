//! A connector that answers as a server of another make does.

use lockapi::driver::{
    BackgroundTask, Call, Connection, Connector, Listener, Mode, Row, Rows, Script, Value,
};
use lockapi::suite::driver::Operation;
use lockapi::suite::engine::{Lock, Marker, Started};
use lockapi::{Failure, Report};

/// How a server differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Every lock is granted, and nothing is locked: `CockroachDB` for many years.
    LocksAreStubs,
    /// Locks of transactions work, those of sessions do nothing: `CockroachDB` since 2026.
    SessionLocksAreStubs,
    /// Every lock is refused.
    NoLockIsFree,
    /// The functions are missing.
    NoLocks,
    /// `PostgreSQL` 12.
    Version12,
    /// `LISTEN` is refused: `CockroachDB`, `YugabyteDB` before 2025.2.3.
    NoListen,
    /// `SKIP LOCKED` is refused: `CockroachDB` before 22.2.
    NoSkipLocked,
    /// None: each connection reaches another server, such as a primary and its successor behind one name.
    TwoServers,
}

/// Connects to a real server, and changes what it answers.
pub(crate) struct Foreign<C> {
    real: C,
    engine: Engine,
}

impl<C> Foreign<C> {
    pub(crate) fn new(real: C, engine: Engine) -> Self {
        Self { real, engine }
    }
}

impl<C: Connector> Connector for Foreign<C> {
    type Connection = ForeignConnection<C::Connection>;
    type Listener = ForeignConnection<C::Listener>;

    async fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        let real = self.real.connect(mode).await?;
        let engine = self.engine;
        Ok(ForeignConnection { real, engine })
    }

    async fn listener(&self) -> Result<Self::Listener, Failure> {
        let real = self.real.listener().await?;
        let engine = self.engine;
        Ok(ForeignConnection { real, engine })
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        self.real.spawn(name, task);
    }
}

pub(crate) struct ForeignConnection<N> {
    real: N,
    engine: Engine,
}

/// What a server says that refuses a statement and stays.
fn refused(code: &str, message: &str) -> Failure {
    Failure::statement(
        Some(code.to_owned()),
        false,
        Report::new(Some(code.to_owned()), message),
    )
}

impl<N: Connection> ForeignConnection<N> {
    /// Runs the statement of the probe, with the lock done by `engine`.
    async fn probe(&mut self, marker: &str, lock: &str, call: Call<'_>) -> Result<Rows, Failure> {
        let stub = match self.engine {
            Engine::LocksAreStubs | Engine::TwoServers => !lock.is_empty(),
            Engine::SessionLocksAreStubs => matches!(lock, "session" | "give back"),
            Engine::NoLocks if !lock.is_empty() => {
                let message = "unknown function: pg_try_advisory_xact_lock()";
                return Err(refused("42883", message));
            }
            _ => false,
        };
        let mut rows = if stub {
            let unlocked = Marker {
                marker: marker.to_owned(),
                lock: Lock::None,
            };
            let seen = self.real.perform(&[unlocked]).await?.remove(0);
            vec![Row(vec![
                Value::Text(seen.marker),
                Value::Bool(true),
                Value::Int(seen.pid),
                Value::Int(seen.number),
                Value::Text(seen.version),
            ])]
        } else {
            self.real.run(call).await?
        };
        for row in &mut rows {
            match self.engine {
                Engine::LocksAreStubs | Engine::SessionLocksAreStubs => {
                    row.0[4] = Value::Text("CockroachDB CCL v26.1.0".to_owned());
                }
                Engine::NoLockIsFree if !lock.is_empty() => row.0[1] = Value::Bool(false),
                Engine::Version12 => {
                    row.0[3] = Value::Int(120_022);
                    row.0[4] = Value::Text("PostgreSQL 12.22 on x86_64-pc-linux-gnu".to_owned());
                }
                _ => {}
            }
        }
        Ok(rows)
    }
}

impl<N: Connection> Connection for ForeignConnection<N> {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let (statement, params) = call.query();
        if call.name() == Marker::STATEMENT.name
            && let [Value::Text(marker), Value::Text(lock), _] = &params[..]
        {
            return self.probe(marker, lock, call).await;
        }
        if self.engine == Engine::TwoServers && call.name() == Started::STATEMENT.name {
            return Ok(vec![Row(vec![Value::Int(fastrand::i64(..))])]);
        }
        if self.engine == Engine::NoSkipLocked && statement.sql.contains("SKIP LOCKED") {
            return Err(refused(
                "0A000",
                "unimplemented: SKIP LOCKED is not supported",
            ));
        }
        self.real.run(call).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        if self.engine == Engine::NoListen && script == Script::Listen {
            return Err(refused("0A000", "LISTEN is not supported"));
        }
        self.real.script(script).await
    }
}

impl<N: Listener> Listener for ForeignConnection<N> {
    async fn next(&mut self) -> Result<String, Failure> {
        self.real.next().await
    }
}
