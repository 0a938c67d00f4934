//! Locks that belong to a transaction of the caller.

use std::time::Duration;

use super::Mutex;
use super::lock_request::LockMode;
use crate::driver::{
    Connection, Library, Operation, Row, Rows, Statement, Transaction, Type, Value,
};
use crate::engine::{CallerConnection, is_standby};
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::key::{Key, LockId};
use crate::memory::ModelState;
use crate::random;
use crate::table::{check_timeout, no_transaction};

impl dyn Mutex + '_ {
    /// Tries to lock it for the transaction that is open on `connection`, without waiting. Without an
    /// open transaction the lock is released when the call ends.
    ///
    /// There is no guard: commit or rollback releases the lock. It excludes the guards of the same
    /// mutex on every backend. The examples of the backend crates show it on each library.
    ///
    /// # Cancel safety
    /// When dropped, the lock may be held until the transaction ends.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad key, [`ErrorKind::Unsupported`] for a leased mutex,
    /// [`ErrorKind::Unavailable`] on a hot standby, where nothing is locked, and those of the
    /// connection.
    pub fn try_lock_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
    ) -> L::Outcome<'c, Result<bool>> {
        let connection = CallerConnection::new(connection);
        L::outcome(Box::pin(try_lock(connection, self)))
    }

    /// Waits for the lock for the transaction that is open on `connection`.
    ///
    /// # Guarantees
    /// If it times out, the transaction continues as if it had not been called. The transaction's
    /// `lock_timeout` and `statement_timeout` are the same afterwards. Any other error of the server
    /// ends the transaction, as an error in a statement of its own would.
    ///
    /// # Cancel safety
    /// When dropped, the lock may be held until the transaction ends, whose timeouts stay changed.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] after `timeout`; [`ErrorKind::Invalid`] for a bad key, for a `timeout`
    /// of zero or more than 24 days, and where no transaction is open; [`ErrorKind::Unsupported`] for a
    /// leased mutex, where the tables are missing and where the role may not use them;
    /// [`ErrorKind::Unavailable`] on a hot standby, where nothing is locked; and those of the
    /// connection. [`ErrorKind::Deadlock`] where the session that holds the lock waits for one that this transaction has, for two
    /// seconds or longer; so also where it does that for another caller of its process.
    pub fn lock_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
        timeout: Duration,
    ) -> L::Outcome<'c, Result<()>> {
        let connection = CallerConnection::new(connection);
        L::outcome(Box::pin(lock(connection, self, timeout)))
    }
}

async fn try_lock(mut connection: CallerConnection<'_>, mutex: &dyn Mutex) -> Result<bool> {
    const OPERATION: &str = "try_lock_in";
    let (key, lock) = lock_of(mutex, OPERATION)?;
    let answers = connection.perform(&[TryIn { lock }]).await;
    match answers {
        Ok(answers) if answers == [Tried::Standby] => Err(is_standby().error(OPERATION).on(key)),
        Ok(answers) => Ok(answers == [Tried::Granted]),
        Err(failure) => Err(failure.error(OPERATION).on(key)),
    }
}

async fn lock(
    mut connection: CallerConnection<'_>,
    mutex: &dyn Mutex,
    timeout: Duration,
) -> Result<()> {
    const OPERATION: &str = "lock_in";
    let (key, lock) = lock_of(mutex, OPERATION)?;
    check_timeout(OPERATION, timeout).map_err(|error| error.on(key))?;
    match wait(&mut connection, lock, timeout).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::not_granted(OPERATION, timeout).on(key)),
        Err(failure) => Err(failure.error(OPERATION).on(key)),
    }
}

/// The lock that stands for a mutex, unless that is a lease.
fn lock_of<'a>(mutex: &'a dyn Mutex, operation: &'static str) -> Result<(&'a Key, LockId)> {
    let key = mutex.key();
    key.check().map_err(|error| error.during(operation))?;
    if mutex.is_leased() {
        let message = "a leased mutex has no lock that a transaction could take; lock it before the transaction, and check its fence there with `check_in`";
        return Err(Error::new(ErrorKind::Unsupported, operation, message).on(key));
    }
    Ok((key, key.lock_id(mutex.namespace())))
}

async fn wait(
    connection: &mut CallerConnection<'_>,
    lock: LockId,
    timeout: Duration,
) -> Result<bool, Failure> {
    let millis = timeout.as_nanos().div_ceil(1_000_000);
    let mark = random::text().map_err(|error| Failure::refused(None, error))?;
    let bounded = Timeouts {
        lock: format!("{millis}ms"),
        statement: "0".to_owned(),
        mark: mark.clone(),
    };
    let before = connection.perform(&[bounded]).await?;
    let granted = connection.perform(&[WaitIn { lock, mark }]).await?;
    if granted == [Tried::NoTransaction] {
        return Err(Failure::refused(None, no_transaction("lock_in")));
    }
    connection.perform(&before).await?;
    if granted == [Tried::Standby] {
        return Err(is_standby());
    }
    Ok(granted == [Tried::Granted])
}

/// Tries a transaction's lock; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct TryIn {
    /// The lock.
    pub lock: LockId,
}

/// Waits for a transaction's lock; a batch of one.
#[derive(Clone, Debug)]
pub struct WaitIn {
    /// The lock.
    pub lock: LockId,
    /// What the transaction was marked with.
    pub mark: String,
}

/// Sets the two timeouts of a transaction, marks it, and answers the former timeouts; a batch of
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// `lock_timeout`, with its unit.
    pub lock: String,
    /// `statement_timeout`, with its unit.
    pub statement: String,
    /// Marks the transaction; empty takes the mark away.
    pub mark: String,
}

/// What became of a lock for a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// The transaction has it.
    Granted,
    /// Another holds it.
    Refused,
    /// No transaction is open.
    NoTransaction,
    /// The server is a hot standby, whose locks do not exclude clients of the primary.
    Standby,
}

impl Tried {
    pub(crate) fn read(mut row: Row) -> Result<Self, Failure> {
        Ok(match (row.maybe_bool(0)?, row.bool(1)?) {
            (_, true) => Self::Standby,
            (Some(true), _) => Self::Granted,
            (Some(false), _) => Self::Refused,
            (None, _) => Self::NoTransaction,
        })
    }
}

impl Operation for TryIn {
    type Output = Tried;

    const STATEMENT: Statement = Statement {
        name: "mutex.try_in",
        sql: include_str!("try_in.sql"),
        params: &[Type::Int, Type::Bool],
        columns: &[Type::Bool, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        lock_params(batch.first().map(|one| one.lock))
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Tried>, Failure> {
        rows.into_iter().map(Tried::read).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let ok = model.try_lock(batch.first()?.lock, LockMode::Exclusive, session);
        Some(vec![Row(vec![Value::Bool(ok), Value::Bool(false)])])
    }
}

impl Operation for WaitIn {
    type Output = Tried;

    const STATEMENT: Statement = Statement {
        name: "mutex.wait_in",
        sql: include_str!("wait_in.sql"),
        params: &[Type::Int, Type::Bool, Type::Text],
        columns: &[Type::Bool, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let mut params = lock_params(batch.first().map(|one| one.lock));
        params.extend(batch.first().map(|one| Value::Text(one.mark.clone())));
        params
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Tried>, Failure> {
        rows.into_iter().map(Tried::read).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let granted = model.wait_lock(batch.first()?.lock, LockMode::Exclusive, session)?;
        Some(vec![Row(vec![Value::Bool(granted), Value::Bool(false)])])
    }
}

impl Operation for Timeouts {
    type Output = Timeouts;

    const STATEMENT: Statement = Statement {
        name: "mutex.timeouts",
        sql: include_str!("timeouts.sql"),
        params: &[Type::Text, Type::Text, Type::Text],
        columns: &[Type::Text, Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|one| {
                [
                    Value::Text(one.lock.clone()),
                    Value::Text(one.statement.clone()),
                    Value::Text(one.mark.clone()),
                ]
            })
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Timeouts>, Failure> {
        rows.into_iter()
            .map(|mut row| {
                Ok(Timeouts {
                    lock: row.text(0)?,
                    statement: row.text(1)?,
                    mark: String::new(),
                })
            })
            .collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        // Settings have no meaning in memory.
        let off = || Value::Text("0".to_owned());
        Some(vec![Row(vec![off(), off()])])
    }
}

fn lock_params(lock: Option<LockId>) -> Vec<Value> {
    lock.map(|lock| vec![Value::Int(lock.key), Value::Bool(lock.pair)])
        .unwrap_or_default()
}
