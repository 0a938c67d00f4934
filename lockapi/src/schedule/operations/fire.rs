//! Firing tasks.

use super::{Name, TaskName, maybe_int};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::schedule::recurrence::Planned;

/// The most runs of a task that are held back.
pub(crate) const MAX_HELD: i64 = 1000;

/// Fires tasks of one scheduler.
#[derive(Clone, Debug)]
pub struct Fire {
    /// The scheduler.
    pub name: Name,
    /// The tasks, each once.
    pub requests: Vec<Request>,
    /// The node that fires.
    pub node: String,
    /// The topic of the queue.
    pub topic: i64,
}

/// A task that was found due; times in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name of the task.
    pub task: String,
    /// The version that it was found with.
    pub version: i64,
    /// The time that it was due.
    pub due: i64,
    /// When it is due next.
    pub next: Option<i64>,
    /// What to record and to push.
    pub runs: Vec<Planned>,
}

/// The outcome of a due time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// Name of the task.
    pub task: String,
    /// When it was due, in microseconds since 1970.
    pub at: i64,
    /// The number of its job.
    pub job: Option<i64>,
    /// What was decided.
    pub decision: FireDecision,
}

/// What was decided about a due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FireDecision {
    /// Its job was pushed.
    Fired,
    /// It waits for the end of an earlier run.
    Held,
    /// It is recorded only, because an earlier run had not ended.
    Overlapped,
    /// It is recorded only, because it was noticed too late.
    Missed,
}

impl FireDecision {
    const WORDS: [(Self, &'static str); 4] = [
        (Self::Fired, "fired"),
        (Self::Held, "held"),
        (Self::Overlapped, "overlap"),
        (Self::Missed, "missed"),
    ];
}

/// Fires a task at once.
#[derive(Clone, Debug)]
pub struct RunNow {
    /// The task.
    pub name: TaskName,
    /// The version that it was found with.
    pub version: i64,
    /// The node that fires.
    pub node: String,
    /// The topic of the queue.
    pub topic: i64,
}

const FIRED: &[Type] = &[Type::Text, Type::Int, Type::Int, Type::Text, Type::Int];

fn fired(row: &mut Row) -> Result<Fired, Failure> {
    let task = row.text(0)?;
    let word = row.text(3)?;
    let decision = FireDecision::WORDS.iter().find(|(_, known)| *known == word);
    let (decision, _) = decision.ok_or_else(|| Failure::corrupt("an unknown outcome"))?;
    Ok(Fired {
        task,
        at: row.int(1)?,
        job: row.maybe_int(2)?,
        decision: *decision,
    })
}

fn rows(fired: Vec<Fired>) -> Rows {
    let row = |fired: Fired| {
        let word = FireDecision::WORDS
            .iter()
            .find(|(decision, _)| *decision == fired.decision);
        let word = word.map_or("", |(_, word)| word);
        Row(vec![
            Value::Text(fired.task),
            Value::Int(fired.at),
            maybe_int(fired.job),
            Value::Text(word.to_owned()),
            Value::Int(0),
        ])
    };
    fired.into_iter().map(row).collect()
}

impl Operation for Fire {
    /// What became of each due time of the requests that counted.
    type Output = Vec<Fired>;

    const STATEMENT: Statement = Statement {
        name: "schedule.fire",
        sql: include_str!("fire.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Bools,
            Type::Ints,
            Type::Int,
            Type::Text,
            Type::Ints,
        ],
        columns: FIRED,
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let ints =
            |field: fn(&Request) -> i64| Value::Ints(one.requests.iter().map(field).collect());
        let runs = || {
            (1..)
                .zip(&one.requests)
                .flat_map(|(n, request)| request.runs.iter().map(move |run| (n, run)))
        };
        let names = one.requests.iter().map(|request| request.task.clone());
        let mut params = one.name.params();
        params.extend([
            Value::Texts(names.collect()),
            ints(|request| request.version),
            ints(|request| request.due),
            ints(|request| request.next.unwrap_or(-1)),
            Value::Ints(runs().map(|(n, _)| n).collect()),
            Value::Ints(runs().map(|(_, run)| run.at).collect()),
            Value::Bools(runs().map(|(_, run)| run.skipped).collect()),
            Value::Ints(runs().map(|(_, run)| run.missed).collect()),
            Value::Int(MAX_HELD),
            Value::Text(one.node.clone()),
            Value::Ints(vec![one.topic]),
        ]);
        params
    }

    fn decode(_: &[Self], mut rows: Rows) -> Result<Vec<Vec<Fired>>, Failure> {
        let fired: Result<Vec<_>, _> = rows.iter_mut().map(fired).collect();
        let mut fired = fired?;
        fired.sort_unstable_by(|a, b| (&a.task, a.at).cmp(&(&b.task, b.at)));
        Ok(vec![fired])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let fired = model.fire_tasks(one);
        if fired.iter().any(|fired| fired.job.is_some()) {
            model.notify([one.topic]);
        }
        Some(rows(fired))
    }
}

impl Operation for RunNow {
    /// What became of it; `None` when there is no such task of that version.
    type Output = Option<Fired>;

    const STATEMENT: Statement = Statement {
        name: "schedule.run_now",
        sql: include_str!("run_now.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Ints,
            Type::Int,
        ],
        columns: FIRED,
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let mut params = one.name.params();
        params.extend([
            Value::Int(MAX_HELD),
            Value::Text(one.node.clone()),
            Value::Ints(vec![one.topic]),
            Value::Int(one.version),
        ]);
        params
    }

    fn decode(_: &[Self], mut rows: Rows) -> Result<Vec<Option<Fired>>, Failure> {
        Ok(vec![rows.first_mut().map(fired).transpose()?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let fired = model.run_task_now(one);
        if fired.as_ref().is_some_and(|fired| fired.job.is_some()) {
            model.notify([one.topic]);
        }
        Some(rows(fired.into_iter().collect()))
    }
}
