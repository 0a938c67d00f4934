//! How the server is reached, and whether it is one that excludes.

use std::time::Duration;

use futures_util::future::join;

use super::connection::apply_settings;
use super::driver::{Driver, DriverConnection};
use super::session_settings::SessionSettings;
use super::timer::Timer;
use crate::driver::{Connection, Mode, Operation, Row, Rows, Script, Statement, Type, Value};
use crate::error::{Error, ErrorKind, Failure};
use crate::memory::ModelState;
use crate::mutex::LockMode;
use crate::wait::unless;
use crate::{LockId, random};

/// Begins each of its transactions.
pub use crate::driver::first_statement::BEGIN;
use crate::driver::first_statement::perform_in_transaction;

/// How long a statement of the probe may take at the server.
const LIMIT: Duration = Duration::from_secs(5);

/// For how long a proxy is given to find a second session, at least. Whoever waits for it has the first one
/// meanwhile.
const SECOND_SESSION: Duration = Duration::from_millis(100);

/// How long it is left alone when it has found none, on average, after each attempt longer by as much.
const PAUSE: Duration = Duration::from_millis(50);

/// How often a proxy is asked for two simultaneous transactions. A proxy with a single session cannot
/// open them.
const ATTEMPTS: u32 = 3;

/// How often the first client looks for its session while the second one connects.
const CHECKS: usize = 3;

/// The first version that has what the statements need.
const OLDEST: i64 = 130_000;

/// Refuses a standby, a server that is too old and one whose locks do not exclude, and tells whether
/// sessions are shared behind a transaction-pooling proxy.
pub(crate) async fn probe(driver: &Driver, timer: &Timer) -> Result<Mode, Failure> {
    let (mut attempts, mut shared) = (0, 0);
    // Connecting has a time limit.
    loop {
        let mut one = driver.connect(Mode::Proxied).await?;
        let took = check_server(&mut one, timer).await?;
        let patience = SECOND_SESSION.max(took * 3);
        let found = sessions(driver, &mut one, timer, patience).await;
        match found.map_err(foreign)? {
            Sessions::Own => return Ok(Mode::Direct),
            Sessions::Shared => {
                shared += 1;
                let compared = transactions_exclude(driver, &mut one, timer, patience).await;
                if compared.map_err(foreign)? || shared == ATTEMPTS {
                    return Ok(Mode::Proxied);
                }
            }
            Sessions::Busy => {}
        }
        // Nobody waits for a session while it keeps another from the rest of the world.
        drop(one);
        let pause = PAUSE.mul_f64(0.5 + fastrand::f64());
        attempts += 1;
        timer.sleep(pause * attempts).await;
    }
}

/// What connections are.
#[derive(Debug)]
enum Sessions {
    /// Each is a session.
    Own,
    /// They are given one for each transaction.
    Shared,
    /// A proxy did not find a second session in time.
    Busy,
}

/// Refuses a server by what it says of itself, and tells how long two statements take that need not wait for a
/// session.
async fn check_server(one: &mut DriverConnection, timer: &Timer) -> Result<Duration, Failure> {
    one.script(Script::Begin(BEGIN)).await?;
    let began = timer.now();
    let seen = perform(one, Marker::read()).await.map_err(foreign)?;
    if seen.number < OLDEST {
        let message = format!(
            "the server reports that it is {}; allowed is PostgreSQL 13 or newer",
            seen.version
        );
        return Err(unsupported(message));
    }
    let set = apply_settings(one, SessionSettings::transaction(Duration::ZERO, LIMIT));
    set.await.map_err(foreign)?;
    let took = timer.now().saturating_sub(began);
    one.script(Script::Commit).await?;
    Ok(took)
}

/// Whether a client is in the session that it was in before, each time it looks.
async fn find_again(
    one: &mut DriverConnection,
    is_here: impl Fn(&SessionIdentity) -> bool,
) -> Result<bool, Failure> {
    for _ in 0..CHECKS {
        if !is_here(&mark(one, Marker::read()).await?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Tells whether each of two connections is a session of its own.
///
/// One client leaves markers in its session; another, inside a transaction, looks for them. A
/// proxy gives the second client the server session that the first one has just left, or the
/// first one does not find its marker again. A proxy that carries settings from session to session is
/// known by the number of the process that answers.
async fn sessions(
    driver: &Driver,
    one: &mut DriverConnection,
    timer: &Timer,
    patience: Duration,
) -> Result<Sessions, Failure> {
    let (mut pid, mut key) = (None, 0);
    // A proxy that uses the last session again, or that has them take turns, is known in the first round. One that
    // draws among n sessions goes unknown once in n to the eleventh; mutexes then find their session gone. A lock of the session would stay in one of a proxy, so that is tried last.
    for last in [false, true] {
        let drawn = random::text().map_err(|error| Failure::connect(None, error))?;
        let marker = format!("m{drawn}");
        key = number()?;
        let (first, second, third) = if last {
            (Lock::Session(key), Lock::Transaction(key), Lock::None)
        } else {
            (Lock::None, Lock::Transaction(key), Lock::Transaction(key))
        };
        let marked = mark(one, Marker::new(&marker, first)).await?;
        // Where sessions take turns the next one has not got it, where the last one is used again
        // the other client finds it.
        let pid = *pid.get_or_insert(marked.pid);
        let is_here = |seen: &SessionIdentity| seen.marker == marker && seen.pid == pid;
        if !is_here(&marked) || !last && !is_here(&mark(one, Marker::read()).await?) {
            return Ok(Sessions::Shared);
        }
        // Each time a new one: of several proxies it may reach another. Meanwhile the first client looks again:
        // where others take turns, each session it is given is as if it were drawn.
        let looking = find_again(one, is_here);
        let (other, found) = join(driver.connect(Mode::Proxied), looking).await;
        let mut other = other?;
        if !found? {
            return Ok(Sessions::Shared);
        }
        other.script(Script::Begin(BEGIN)).await?;
        let seen_there = perform(&mut other, Marker::new("", second)).await?;
        if seen_there.marker == marker || seen_there.pid == pid {
            // Where the proxy has one session only, the first client would wait for it for ever.
            other.script(Script::Commit).await?;
            return Ok(Sessions::Shared);
        }
        let asking = mark(one, Marker::new("", third));
        let seen_here = unless(timer.sleep(patience), asking).await;
        other.script(Script::Commit).await?;
        let Some(seen_here) = seen_here else {
            return Ok(Sessions::Busy);
        };
        let seen_here = seen_here?;
        if !is_here(&seen_here) {
            return Ok(Sessions::Shared);
        }
        // Both sessions have lived to here, so what the first to ask was given it had all the time.
        let (had, given) = if last {
            (&marked, &seen_there)
        } else {
            (&seen_there, &seen_here)
        };
        let scope = if last { "session" } else { "transaction" };
        if let Err(refusal) = excluded(had, given, scope) {
            return Err(of_one_server(one, &mut other, refusal).await);
        }
    }
    let gone = mark(one, Marker::new("-", Lock::GiveBack(key))).await?;
    let own = gone.locked == Some(true) && pid == Some(gone.pid);
    Ok(if own { Sessions::Own } else { Sessions::Shared })
}

/// Refuses a server that gives two transactions the same lock; false where the proxy did not open both.
async fn transactions_exclude(
    driver: &Driver,
    one: &mut DriverConnection,
    timer: &Timer,
    patience: Duration,
) -> Result<bool, Failure> {
    let key = number()?;
    let mut other = driver.connect(Mode::Proxied).await?;
    other.script(Script::Begin(BEGIN)).await?;
    let had = perform(&mut other, Marker::new("", Lock::Transaction(key))).await?;
    let asking = mark(one, Marker::new("", Lock::Transaction(key)));
    let given = unless(timer.sleep(patience), asking).await;
    // It has lived to here, so it had the lock all the time.
    other.script(Script::Commit).await?;
    let Some(given) = given else {
        return Ok(false);
    };
    match excluded(&had, &given?, "transaction") {
        Ok(()) => Ok(true),
        Err(refusal) => Err(of_one_server(one, &mut other, refusal).await),
    }
}

/// Answers the refusal of a server, unless the two connections have reached two: of those nothing is known.
async fn of_one_server(
    one: &mut DriverConnection,
    other: &mut DriverConnection,
    refusal: Failure,
) -> Failure {
    let here = perform_in_transaction(one, &[Started]);
    let started = join(here, perform_in_transaction(other, &[Started])).await;
    match started {
        (Ok(here), Ok(there)) if here != there => {
            let message = "two connections have reached two servers, which were not started at the same time; a name, a \
                 proxy or a fail-over leads to more than one: connect to the primary alone";
            Failure::connect(None, Error::new(ErrorKind::Unavailable, "connect", message))
        }
        _ => refusal,
    }
}

/// Refuses a server that granted a lock twice, or not at all.
fn excluded(had: &SessionIdentity, given: &SessionIdentity, scope: &str) -> Result<(), Failure> {
    let what = match (had.locked, given.locked) {
        (Some(true), Some(false)) => return Ok(()),
        (Some(true), _) => "granted the same lock to two sessions at the same time",
        _ => "refused a lock that was free",
    };
    Err(unsupported(format!(
        "the server {what} (an advisory lock of the {scope}), so its locks do not exclude; it reports that it is {}",
        had.version
    )))
}

fn unsupported(message: String) -> Failure {
    Failure::connect(None, Error::new(ErrorKind::Unsupported, "connect", message))
}

/// What it means that a server rejects a statement of the probe, which every `PostgreSQL` understands.
fn foreign(failure: Failure) -> Failure {
    match failure.sqlstate.as_deref() {
        // Syntax, what is not there, and features; but not rights.
        Some(code) if code == "0A000" || code.starts_with("42") && code != "42501" => {
            unsupported(format!(
                "the server does not understand a statement that PostgreSQL 13 understands: {} ({code})",
                failure.message()
            ))
        }
        _ => failure,
    }
}

fn number() -> Result<i64, Failure> {
    random::number().map_err(|error| Failure::connect(None, error))
}

async fn mark<N: Connection>(
    connection: &mut N,
    marker: Marker,
) -> Result<SessionIdentity, Failure> {
    connection.script(Script::Begin(BEGIN)).await?;
    let seen = perform(connection, marker).await?;
    connection.script(Script::Commit).await?;
    Ok(seen)
}

async fn perform<N: Connection>(
    connection: &mut N,
    marker: Marker,
) -> Result<SessionIdentity, Failure> {
    let mut answers = connection.perform(&[marker]).await?;
    answers
        .pop()
        .ok_or_else(|| Failure::corrupt("the server did not answer the probe"))
}

/// Leaves, reads or takes away a marker in a session, and tries a lock there; a batch of one. Each is in a
/// transaction of its own.
#[derive(Clone, Debug)]
pub struct Marker {
    /// Empty to read the one that is there, a hyphen to remove it.
    pub marker: String,
    /// What is done to a lock.
    pub lock: Lock,
}

impl Marker {
    /// Whether a statement leaves a lock in its session, or takes it away again; none of other statements.
    pub(crate) fn leaves_lock(statement: &Statement, params: &[Value]) -> Option<bool> {
        let what = match params {
            [_, Value::Text(what), _] if statement.name == Self::STATEMENT.name => what,
            _ => return None,
        };
        let is = |lock: Lock| lock.parts().0 == what;
        let kept = is(Lock::Session(0)).then_some(true);
        kept.or_else(|| is(Lock::GiveBack(0)).then_some(false))
    }
}

/// What a [`Marker`] does to an advisory lock.
#[derive(Clone, Copy, Debug)]
pub enum Lock {
    /// Nothing.
    None,
    /// Tries it for the transaction.
    Transaction(i64),
    /// Tries it for the session.
    Session(i64),
    /// Gives back that of the session.
    GiveBack(i64),
}

/// The answer to a [`Marker`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionIdentity {
    /// The marker in the session.
    pub marker: String,
    /// Whether the lock was given, or given back.
    pub locked: Option<bool>,
    /// The process that answers.
    pub pid: i64,
    /// The server's version, as `server_version_num`.
    pub number: i64,
    /// What the server calls itself.
    pub version: String,
}

/// Tells when the server was started, in microseconds; a batch of one.
#[derive(Clone, Copy, Debug)]
pub struct Started;

impl Operation for Started {
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "engine.started",
        sql: include_str!("started.sql"),
        params: &[],
        columns: &[Type::Int],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        // There is one, from the beginning.
        Some(vec![Row(vec![Value::Int(0)])])
    }
}

impl Marker {
    fn new(marker: &str, lock: Lock) -> Self {
        let marker = marker.to_owned();
        Self { marker, lock }
    }

    fn read() -> Self {
        Self::new("", Lock::None)
    }
}

impl Lock {
    fn parts(self) -> (&'static str, i64) {
        match self {
            Self::None => ("", 0),
            Self::Transaction(key) => ("transaction", key),
            Self::Session(key) => ("session", key),
            Self::GiveBack(key) => ("give back", key),
        }
    }
}

impl Operation for Marker {
    type Output = SessionIdentity;

    const STATEMENT: Statement = Statement {
        name: "engine.marker",
        sql: include_str!("marker.sql"),
        params: &[Type::Text, Type::Text, Type::Int],
        columns: &[Type::Text, Type::Bool, Type::Int, Type::Int, Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            let (what, key) = one.lock.parts();
            let marker = Value::Text(one.marker.clone());
            [marker, Value::Text(what.to_owned()), Value::Int(key)]
        };
        batch.iter().take(1).flat_map(of).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<SessionIdentity>, Failure> {
        let seen = |mut row: Row| {
            Ok(SessionIdentity {
                marker: row.text(0)?,
                locked: row.maybe_bool(1)?,
                pid: row.int(2)?,
                number: row.int(3)?,
                version: row.text(4)?,
            })
        };
        rows.into_iter().map(seen).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        let one = batch.first()?;
        let (_, key) = one.lock.parts();
        let lock = LockId { key, pair: false };
        // The transaction of the one before has ended.
        model.end_trial(session);
        let mut tried = || model.try_lock(lock, LockMode::Exclusive, session);
        let locked = match one.lock {
            Lock::None => None,
            Lock::Session(_) => Some(tried()),
            Lock::Transaction(_) => {
                let locked = tried();
                if locked {
                    model.begin_trial(session, lock);
                }
                Some(locked)
            }
            Lock::GiveBack(_) => Some(model.unlock(lock, LockMode::Exclusive, session)),
        };
        let marker = model.marker(session, &one.marker);
        Some(vec![Row(vec![
            Value::Text(marker),
            locked.map_or(Value::Null(Type::Bool), Value::Bool),
            Value::Int(session.cast_signed()),
            Value::Int(OLDEST),
            Value::Text("the model".to_owned()),
        ])])
    }
}
