//! Noting what a program holds and waits for; batches of one.

use crate::driver::columns::maybe_int;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::key::LockId;
use crate::memory::ModelState;
use crate::sweep::{self, SweepResult};

/// Notes what has lasted, and takes back what has ended.
#[derive(Clone, Debug, Default)]
pub struct Note {
    /// Random number of the backend.
    pub backend: i64,
    /// Its namespace.
    pub namespace: String,
    /// The program, in its own words.
    pub owner: String,
    /// Numbers and names that are to be known.
    pub names: Vec<(i64, String)>,
    /// Marks of sessions that are to be known.
    pub marks: Vec<i64>,
    /// Holds and waits.
    pub noted: Vec<NotedLock>,
    /// Holds (`false`) and waits (`true`) that ended.
    pub ended: Vec<(LockId, bool)>,
    /// Whether everything else of the backend has ended as well.
    pub all: bool,
}

/// A hold or a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedLock {
    /// The lock.
    pub lock: LockId,
    /// Whether it is waited for, or held.
    pub waits: bool,
    /// The holder's token; 0 of a wait.
    pub fence: i64,
    /// For how long, in microseconds.
    pub age: i64,
}

/// Deletes what nobody needs any more: of names in a part of their table.
#[derive(Clone, Copy, Debug)]
pub struct SweepNotes {
    /// The key of the name that the part comes after.
    pub after: i64,
    /// How many names are looked at, and how many sessions are deleted at most.
    pub most: i64,
}

impl Operation for Note {
    /// How many rows were changed.
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "admin.note",
        sql: include_str!("note.sql"),
        params: &[
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Ints,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Bools,
            Type::Bools,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Bools,
            Type::Bools,
            Type::Bool,
        ],
        columns: &[Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let noted = || one.noted.iter();
        let ended = || one.ended.iter();
        vec![
            Value::Int(one.backend),
            Value::Text(one.namespace.clone()),
            Value::Text(one.owner.clone()),
            Value::Ints(one.names.iter().map(|(key, _)| *key).collect()),
            Value::Texts(one.names.iter().map(|(_, name)| name.clone()).collect()),
            Value::Ints(one.marks.clone()),
            Value::Ints(noted().map(|note| note.lock.key).collect()),
            Value::Bools(noted().map(|note| note.lock.pair).collect()),
            Value::Bools(noted().map(|note| note.waits).collect()),
            Value::Ints(noted().map(|note| note.fence).collect()),
            Value::Ints(noted().map(|note| note.age).collect()),
            Value::Ints(ended().map(|(lock, _)| lock.key).collect()),
            Value::Bools(ended().map(|(lock, _)| lock.pair).collect()),
            Value::Bools(ended().map(|(_, waits)| *waits).collect()),
            Value::Bool(one.all),
        ]
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let changed = model.notes.note(now, batch.first()?);
        Some(vec![Row(vec![Value::Int(changed)])])
    }
}

impl Operation for SweepNotes {
    type Output = SweepResult<i64>;

    const STATEMENT: Statement = Statement {
        name: "admin.sweep",
        sql: include_str!("sweep.sql"),
        params: &[Type::Int, Type::Int],
        columns: &[Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| [Value::Int(one.after), Value::Int(one.most)];
        batch.iter().take(1).flat_map(of).collect()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<SweepResult<i64>>, Failure> {
        let most = batch.first().map(|one| one.most);
        sweep::decode(most, rows, |row| row.int(2))
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let (deleted, names) = model.sweep_notes(one.after, one.most);
        let last = maybe_int(names.last().copied());
        let seen = Value::Int(sweep::count(&names));
        Some(vec![Row(vec![Value::Int(deleted), seen, last])])
    }
}
