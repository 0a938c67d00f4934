//! The life of a session that holds locks.

use super::lock_request::LockMode;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::{Error, ErrorKind, Failure};
use crate::key::LockId;
use crate::memory::ModelState;

/// How far a token may be above one that is known to be safe on disk, in values of the sequence.
pub const TOKENS_AT_RISK: i64 = 16_384;
/// How many values are left out after a crash: those at risk, and what the server logs ahead.
pub(crate) const SKIPPED: i64 = TOKENS_AT_RISK + 34;

/// Marks a new session; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct MarkSession {
    /// The advisory lock key that is the session's mark.
    pub mark: i64,
}

/// The answer to an [`MarkSession`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkedSession {
    /// Whether the mark was free, and the session was not marked before.
    pub marked: bool,
    /// A value of the token sequence that is safe on disk.
    pub safe: i64,
    /// The session's process at the server.
    pub process: i64,
}

/// Lets a session that is marked commit without waiting for the disk; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct AsyncCommit {
    /// Its mark.
    pub session: i64,
}

/// Asks a session whether it lives and has its locks; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct Ping {
    /// Its mark.
    pub session: i64,
}

/// Makes the tokens that all sessions drew so far safe on disk; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct FlushTokens;

impl Operation for MarkSession {
    type Output = MarkedSession;

    const STATEMENT: Statement = Statement {
        name: "mutex.mark_session",
        sql: include_str!("mark_session.sql"),
        params: &[Type::Int, Type::Int],
        columns: &[Type::Bool, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|one| [one.mark, SKIPPED].map(Value::Int))
            .collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<MarkedSession>, Failure> {
        rows.into_iter()
            .map(|mut row| {
                Ok(MarkedSession {
                    marked: row.bool(0)?,
                    safe: row.int(1)?,
                    process: row.int(2)?,
                })
            })
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let mark = batch.first()?.mark;
        let marked = !model.holds_any(session);
        if marked {
            model.set_mark(session, mark);
        }
        let mut take = || model.try_lock(mark_id(mark), LockMode::Exclusive, session);
        let marked = marked && take() && take();
        let safe = Value::Int(model.next_fence());
        let process = Value::Int(session.cast_signed());
        Some(vec![Row(vec![Value::Bool(marked), safe, process])])
    }
}

impl Operation for AsyncCommit {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "mutex.async_commit",
        sql: include_str!("async_commit.sql"),
        params: &[Type::Int],
        columns: &[Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch.iter().map(|one| Value::Int(one.session)).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        done(of_session(rows)?)
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let mut rows = vec![Row(vec![Value::Text("off".to_owned())])];
        rows.retain(|_| batch.iter().all(|one| model.has_mark(session, one.session)));
        Some(rows)
    }
}

impl Operation for Ping {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "mutex.ping",
        sql: include_str!("ping.sql"),
        params: &[Type::Int],
        columns: &[Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch.iter().map(|one| Value::Int(one.session)).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        let lives = |mut row: Row| row.bool(0).map(drop);
        of_session(rows)?.into_iter().map(lives).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let mut rows = vec![Row(vec![Value::Bool(true)])];
        let lives = |mark| model.has_mark(session, mark) && model.holds(mark_id(mark), session);
        rows.retain(|_| batch.iter().all(|one| lives(one.session)));
        Some(rows)
    }
}

impl Operation for FlushTokens {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "mutex.flush_tokens",
        sql: include_str!("flush_tokens.sql"),
        params: &[],
        columns: &[Type::Text],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<()>, Failure> {
        done(rows)
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Text("on".to_owned())])])
    }
}

fn done(rows: Rows) -> Result<Vec<()>, Failure> {
    rows.into_iter()
        .map(|mut row| row.text(0).map(drop))
        .collect()
}

/// The rows of a statement that answers none where it does not reach the session that it is meant for.
pub(super) fn of_session(rows: Rows) -> Result<Rows, Failure> {
    if rows.is_empty() {
        return Err(is_elsewhere());
    }
    Ok(rows)
}

/// What is known when a statement has reached another session: nothing was done, and where the locks are nobody
/// can tell.
pub(super) fn is_elsewhere() -> Failure {
    let message = "a proxy before the server began to share sessions, so the session that holds the locks of this \
         program cannot be reached; mutexes need a proxy in session mode";
    Failure::connect(None, Error::new(ErrorKind::Unavailable, "lock", message))
}

/// The failure for a session that cannot be marked: it holds locks of another program.
pub(crate) fn is_taken() -> Failure {
    let message = "the session of a new connection has advisory locks already: a proxy shares it with another program, or \
         the program left them on a connection of its pool";
    Failure::connect(None, Error::new(ErrorKind::Unavailable, "lock", message))
}

pub(crate) fn mark_id(mark: i64) -> LockId {
    LockId {
        key: mark,
        pair: false,
    }
}
