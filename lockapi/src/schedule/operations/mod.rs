//! What schedulers do to the database; batches of one.

mod due;
mod fire;
mod log;
mod manage;
mod round;

pub use due::{Due, DueTasks, ReadDueTasks};
pub(crate) use fire::MAX_HELD;
pub use fire::{Fire, FireDecision, Fired, Request, RunNow};
pub use log::{ReadRuns, RunRow, SweepRuns};
#[cfg(feature = "suite")]
pub use manage::Tasks;
pub use manage::{ReadTasks, RemoveTask, SetTask, SwitchTask, TaskName, TaskRow};
pub use round::{Expire, Release};

use crate::driver::columns::{maybe_int, maybe_text};
use crate::driver::{Row, Type, Value};
use crate::schedule::recurrence::Recurrence;

/// A scheduler by its names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Namespace of the backend.
    pub namespace: String,
    /// Name of the scheduler, and of the queue of its runs.
    pub scheduler: String,
}

impl Name {
    fn params(&self) -> Vec<Value> {
        vec![
            Value::Text(self.namespace.clone()),
            Value::Text(self.scheduler.clone()),
        ]
    }
}

/// A recurrence as an interval, an expression and a zone, of which there is the first or the others.
fn recurrence(
    every: Option<i64>,
    cron: Option<String>,
    zone: Option<String>,
) -> Result<Recurrence, crate::Failure> {
    match (every, cron, zone) {
        (Some(every), None, None) if every > 0 => Ok(Recurrence::Every(every)),
        (None, Some(expression), Some(zone)) => Ok(Recurrence::Cron { expression, zone }),
        _ => Err(crate::Failure::corrupt(
            "a task has neither an interval nor a cron expression",
        )),
    }
}

/// The columns of a recurrence.
fn recurrence_columns(recurrence: &Recurrence) -> [Value; 3] {
    let text = || Value::Null(Type::Text);
    match recurrence {
        Recurrence::Every(every) => [Value::Int(*every), text(), text()],
        Recurrence::Cron { expression, zone } => [
            Value::Null(Type::Int),
            Value::Text(expression.clone()),
            Value::Text(zone.clone()),
        ],
    }
}

/// One row of one number.
fn number(value: i64) -> Vec<Row> {
    vec![Row(vec![Value::Int(value)])]
}
