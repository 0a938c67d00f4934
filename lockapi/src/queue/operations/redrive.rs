//! Putting dead letters back.

use super::manage::Name;
use crate::driver::columns::maybe_int;
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::sweep::count;

/// Puts dead letters back, in a part of them; a batch of one.
#[derive(Clone, Debug)]
pub struct Redrive {
    /// The queue.
    pub name: Name,
    /// Their numbers; an empty list means all.
    pub ids: Vec<i64>,
    /// The number that the part comes after.
    pub after: i64,
    /// How many at most.
    pub most: i64,
    /// The topic to notify.
    pub topic: i64,
}

/// The answer to a [`Redrive`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redriven {
    /// How many were put back.
    pub count: i64,
    /// The number of the last one that was examined, unless there are no more. Of two with one unique key only one is put
    /// back.
    pub last: Option<i64>,
    /// Which are to be requested again, because the tasks that they are runs of are being fired.
    pub busy: Vec<i64>,
}

impl Operation for Redrive {
    type Output = Redriven;

    const STATEMENT: Statement = Statement {
        name: "queue.redrive",
        sql: include_str!("redrive.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Ints,
            Type::Int,
            Type::Int,
            Type::Ints,
        ],
        columns: &[Type::Int, Type::Int, Type::Int, Type::Ints, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params().to_vec();
        params.extend([
            Value::Ints(one.ids.clone()),
            Value::Int(one.after),
            Value::Int(one.most),
            Value::Ints(vec![one.topic]),
        ]);
        params
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Redriven>, Failure> {
        let most = batch.first().map(|one| one.most);
        let read = |mut row: Row| {
            let full = Some(row.int(2)?) >= most;
            Ok(Redriven {
                count: row.int(0)?,
                last: if full { row.maybe_int(4)? } else { None },
                busy: row.ints(3)?,
            })
        };
        rows.into_iter().map(read).collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let (redriven, examined, tasks) = model.jobs.redrive(model.now, one);
        model.tasks.note(&one.name, &tasks);
        model.notify([one.topic]);
        let mut row = [redriven, 0, count(&examined)].map(Value::Int).to_vec();
        row.extend([Value::Ints(Vec::new()), maybe_int(examined.last().copied())]);
        Some(vec![Row(row)])
    }
}
