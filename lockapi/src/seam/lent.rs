//! Connections that belong to a pool of the program.

use std::fmt;

use super::call::{Operation, Statement};
use super::connector::{Connection, Mode};
use super::hosted::{BlockingConnection, Inline};
use super::value::{Row, Rows, Type, Value};
use crate::blocking::block_on;
use crate::error::Failure;
use crate::memory::World;

const ROLLBACK: &str = include_str!("rollback.sql");
const TERMINATE: &str = include_str!("terminate.sql");

/// A connection that goes back to where it came from when it is dropped, as it was.
///
/// # Guarantees
/// What the next user gets holds no lock of this library, has no transaction open and has the
/// settings that it had before; or its session has ended. Behind a transaction-pooling proxy the
/// session is another's and is left alone.
pub struct Lent<N: BlockingConnection> {
    connection: N,
    before: Option<Settings>,
}

impl<N: BlockingConnection> Lent<N> {
    /// Takes a connection; notes its settings.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn take(mut connection: N, mode: Mode) -> Result<Self, Failure> {
        let before = match mode {
            Mode::Direct => block_on(Inline(&mut connection).perform(&[Remember]))?.pop(),
            Mode::Proxied => None,
        };
        Ok(Self { connection, before })
    }

    fn give_back(&mut self) -> Result<(), Failure> {
        let mut connection = Inline(&mut self.connection);
        match block_on(connection.perform(&[Idle])) {
            Ok(answers) if answers == [true] => {}
            Err(failure) if failure.broken => return Err(failure),
            // It was given up in the middle of a transaction.
            _ => block_on(connection.script(ROLLBACK))?,
        }
        if let Some(before) = self.before.take() {
            block_on(connection.perform(&[Restore(before)]))?;
        }
        Ok(())
    }
}

impl<N: BlockingConnection> fmt::Debug for Lent<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").finish_non_exhaustive()
    }
}

impl<N: BlockingConnection> BlockingConnection for Lent<N> {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        self.connection.run(statement, params)
    }

    fn script(&mut self, sql: &'static str) -> Result<(), Failure> {
        self.connection.script(sql)
    }
}

impl<N: BlockingConnection> Drop for Lent<N> {
    fn drop(&mut self) {
        if self.give_back().is_err() {
            // It ends the session if that has not ended; the answer is an error in any case.
            let _ended = self.connection.script(TERMINATE);
        }
    }
}

/// The settings of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    names: Vec<String>,
    values: Vec<String>,
}

/// Tells whether no transaction is open; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct Idle;

/// Reads the settings of a session; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct Remember;

/// Puts the settings of a session back and releases its advisory locks; a batch of one.
#[derive(Clone, Debug)]
pub struct Restore(pub Settings);

impl Operation for Idle {
    type Output = bool;

    const STATEMENT: Statement = Statement {
        name: "seam.idle",
        sql: include_str!("idle.sql"),
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

impl Operation for Remember {
    type Output = Settings;

    const STATEMENT: Statement = Statement {
        name: "seam.remember",
        sql: include_str!("remember.sql"),
        params: &[],
        columns: &[Type::Texts, Type::Texts],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Settings>, Failure> {
        rows.into_iter()
            .map(|mut row| {
                Ok(Settings {
                    names: row.texts(0)?,
                    values: row.texts(1)?,
                })
            })
            .collect()
    }

    fn model(_: &[Self], _: &mut World, _: u64) -> Option<Rows> {
        // Settings have no meaning in memory.
        let none = || Value::Texts(Vec::new());
        Some(vec![Row(vec![none(), none()])])
    }
}

impl Operation for Restore {
    /// How many settings were put back.
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "seam.restore",
        sql: include_str!("restore.sql"),
        params: &[Type::Texts, Type::Texts],
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|Self(former)| {
                [
                    Value::Texts(former.names.clone()),
                    Value::Texts(former.values.clone()),
                ]
            })
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(_: &[Self], world: &mut World, session: u64) -> Option<Rows> {
        world.release_all(session);
        Some(vec![Row(vec![Value::Int(0)])])
    }
}
