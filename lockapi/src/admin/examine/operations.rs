//! The statements of an examination; batches of one.

use super::Fault;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;

/// Reads what is wrong with the server.
#[derive(Clone, Copy, Debug)]
pub struct ExamineServer;

/// Reads who keeps old rows from being vacuumed.
#[derive(Clone, Copy, Debug)]
pub struct ExamineSessions {
    /// From which age on, in microseconds.
    pub age: i64,
}

/// Reads what is wrong with the tables.
#[derive(Clone, Copy, Debug)]
pub struct ExamineTables;

/// Reads what does not go on.
#[derive(Clone, Copy, Debug)]
pub struct ExamineWork {
    /// From which age on, in microseconds.
    pub age: i64,
}

/// Reads what is larger than it needs to be.
#[derive(Clone, Copy, Debug)]
pub struct ExamineSpace;

/// Reads which indexes nobody has read.
#[derive(Clone, Copy, Debug)]
pub struct ExamineIndexes;

/// Reads which rate limits refuse whatever is asked of them.
#[derive(Clone, Copy, Debug)]
pub struct ExamineLimits {
    /// How long a block has to last at least, in nanoseconds.
    pub block: i64,
}

/// Reads which leases were acquired.
#[derive(Clone, Copy, Debug)]
pub struct ListAcquired {
    /// From which time on, in microseconds since 1970.
    pub since: i64,
}

/// A lease that was acquired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// Its namespace and key.
    pub lease: String,
    /// Whether it is that of an election.
    pub leads: bool,
    /// Its token.
    pub fence: i64,
    /// Who has acquired it.
    pub owner: String,
}

/// Reads the clock of the server.
#[derive(Clone, Copy, Debug)]
pub struct ReadClock;

/// Reads what there is in the schema.
#[derive(Clone, Copy, Debug)]
pub struct ListObjects;

/// Something in the schema.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    /// `table`, `column`, `index`, `sequence`, `view` or `function`.
    pub kind: String,
    /// Its name, in the schema.
    pub name: String,
    /// What it is made of.
    pub made_of: String,
}

fn faults(rows: Rows) -> Result<Vec<Vec<Fault>>, Failure> {
    let fault = |mut row: Row| {
        Ok(Fault {
            name: row.text(0)?,
            subject: row.text(1)?,
            detail: row.text(2)?,
            mend: None,
        })
    };
    let faults: Result<_, Failure> = rows.into_iter().map(fault).collect();
    Ok(vec![faults?])
}

/// Declares statements that find faults. In memory there are none.
macro_rules! examines {
    ($($operation:ident $name:literal $file:literal [$($field:ident)?];)*) => {
        $(impl Operation for $operation {
            type Output = Vec<Fault>;

            const STATEMENT: Statement = Statement {
                name: $name,
                sql: include_str!($file),
                params: &[$(examines!(@type $field))?],
                columns: &[Type::Text, Type::Text, Type::Text],
            };

            fn params(batch: &[Self]) -> Vec<Value> {
                examines!(@params batch $($field)?)
            }

            fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<Fault>>, Failure> {
                faults(rows)
            }

            fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
                Some(Rows::new())
            }
        })*
    };
    (@type $field:ident) => { Type::Int };
    (@params $batch:ident) => {{
        let _: &[Self] = $batch;
        Vec::new()
    }};
    (@params $batch:ident $field:ident) => {
        $batch.iter().map(|one| Value::Int(one.$field)).collect()
    };
}

examines! {
    ExamineServer "examine.server" "server.sql" [];
    ExamineSessions "examine.sessions" "sessions.sql" [age];
    ExamineTables "examine.tables" "tables.sql" [];
    ExamineWork "examine.work" "work.sql" [age];
    ExamineSpace "examine.space" "space.sql" [];
    ExamineIndexes "examine.indexes" "indexes.sql" [];
    ExamineLimits "examine.limits" "limits.sql" [block];
}

impl Operation for ReadClock {
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "examine.clock",
        sql: include_str!("clock.sql"),
        params: &[],
        columns: &[Type::Int],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(_: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(vec![Row(vec![Value::Int(model.now)])])
    }
}

impl Operation for ListAcquired {
    type Output = Vec<Acquired>;

    const STATEMENT: Statement = Statement {
        name: "examine.acquired",
        sql: include_str!("acquired.sql"),
        params: &[Type::Int],
        columns: &[Type::Text, Type::Bool, Type::Int, Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        batch.iter().map(|one| Value::Int(one.since)).collect()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<Acquired>>, Failure> {
        let acquired = |mut row: Row| {
            Ok(Acquired {
                lease: row.text(0)?,
                leads: row.bool(1)?,
                fence: row.int(2)?,
                owner: row.text(3)?,
            })
        };
        let acquired: Result<_, Failure> = rows.into_iter().map(acquired).collect();
        Ok(vec![acquired?])
    }

    /// Nobody watches leases in memory.
    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        Some(Rows::new())
    }
}

impl Operation for ListObjects {
    type Output = Vec<Object>;

    const STATEMENT: Statement = Statement {
        name: "examine.objects",
        sql: include_str!("objects.sql"),
        params: &[],
        columns: &[Type::Text, Type::Text, Type::Text],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<Object>>, Failure> {
        let object = |mut row: Row| {
            Ok(Object {
                kind: row.text(0)?,
                name: row.text(1)?,
                made_of: row.text(2)?,
            })
        };
        let objects: Result<_, Failure> = rows.into_iter().map(object).collect();
        Ok(vec![objects?])
    }

    /// The schema of the model is that of this version.
    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        let row = |object: Object| {
            let texts = [object.kind, object.name, object.made_of];
            Row(texts.map(Value::Text).to_vec())
        };
        Some(super::schema::expected().map(row).collect())
    }
}
