//! Pushing.

use std::collections::HashMap;

use crate::driver::columns::{batch_index, texts};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::{Headers, How, Pushed, Unique};

/// A job to insert; times in microseconds.
#[derive(Clone, PartialEq, Eq)]
pub struct NewJob {
    /// What kind of job it is.
    pub name: String,
    /// Its payload, as JSON.
    pub payload: String,
    /// The number of its priority.
    pub priority: i64,
    /// The point in time that its delay counts from, since 1970; what is past means now.
    pub at: i64,
    /// Its delay.
    pub delay: i64,
    /// How often it is delivered at most.
    pub max_attempts: i64,
    /// How long it may be delivered from then on; 0 means for ever.
    pub ttl: i64,
    /// Its group; an empty text means none.
    pub group: String,
    /// Its headers.
    pub headers: Headers,
}

impl NewJob {
    /// How many plain jobs it counts as in a statement.
    pub(crate) fn weight(&self) -> usize {
        1 + (self.payload.len() + self.headers.bytes()) / 4096
    }
}

/// Without the payload.
impl std::fmt::Debug for NewJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NewJob({:?})", self.name)
    }
}

/// One call's jobs without keys, for one queue.
#[derive(Clone, Debug)]
pub struct Push {
    /// Namespace of the backend.
    pub namespace: String,
    /// Name of the queue.
    pub queue: String,
    /// The jobs.
    pub jobs: Vec<NewJob>,
    /// The topic to notify, if listeners are to be notified.
    pub topic: Option<i64>,
}

/// The keys of a job; an empty text means none.
#[derive(Clone, Debug)]
pub struct Keys {
    /// See [`Job::unique`](crate::queue::Job::unique).
    pub unique_key: String,
    /// What happens to the one that is there.
    pub unique: Unique,
    /// See [`Job::idempotency_key`](crate::queue::Job::idempotency_key).
    pub idempotency_key: String,
}

/// Pushes one job that may have a key.
#[derive(Clone, Debug)]
pub struct PushKeyed {
    /// Namespace of the backend.
    pub namespace: String,
    /// Name of the queue.
    pub queue: String,
    /// The job.
    pub job: NewJob,
    /// Its keys: one of the two, or none.
    pub keys: Keys,
    /// The topic to notify, if listeners are to be notified.
    pub topic: Option<i64>,
}

/// Jobs that are pushed in one transaction; a batch of one.
#[derive(Clone, Debug)]
pub struct PushTogether(pub Vec<PushKeyed>);

/// Which parameter of a push has the topics to notify, which the groups, and which the headers.
const TOPICS: usize = 8;
const GROUPS: usize = 10;
const HEADERS: usize = 11;

impl Operation for Push {
    /// The numbers of the jobs.
    type Output = Vec<i64>;

    const STATEMENT: Statement = Statement {
        name: "queue.push",
        sql: include_str!("push.sql"),
        params: &[
            Type::Texts,
            Type::Texts,
            Type::Texts,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Texts,
            Type::Texts,
        ],
        columns: &[Type::Ints, Type::Int],
    };

    const SIMPLE: Option<Statement> = Some(Statement {
        name: "queue.push_one",
        sql: include_str!("push_one.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
        ],
        columns: Self::STATEMENT.columns,
    });

    fn is_simple(batch: &[Self]) -> bool {
        let is_plain = |jobs: &[NewJob]| matches!(jobs, [job] if job.group.is_empty() && job.headers.is_empty());
        matches!(batch, [one] if is_plain(&one.jobs) && one.topic.is_none())
    }

    fn simple_params(batch: &[Self]) -> Vec<Value> {
        let mut params = Self::params(batch);
        // There is no header, no group, and nobody is notified.
        params.remove(HEADERS);
        params.remove(GROUPS);
        params.remove(TOPICS);
        params.into_iter().map(Value::scalar).collect()
    }

    fn params(batch: &[Self]) -> Vec<Value> {
        let jobs = || batch.iter().flat_map(|one| &one.jobs);
        let of_queue = |field: fn(&Self) -> &String| {
            let each = batch
                .iter()
                .flat_map(|one| std::iter::repeat_n(field(one), one.jobs.len()));
            Value::Texts(each.cloned().collect())
        };
        let texts =
            |field: fn(&NewJob) -> &String| Value::Texts(jobs().map(field).cloned().collect());
        let ints = |field: fn(&NewJob) -> i64| Value::Ints(jobs().map(field).collect());
        let with_headers = jobs().any(|job| !job.headers.is_empty());
        let grouped = jobs().any(|job| !job.group.is_empty());
        vec![
            of_queue(|one| &one.namespace),
            of_queue(|one| &one.queue),
            texts(|job| &job.name),
            texts(|job| &job.payload),
            ints(|job| job.priority),
            ints(|job| job.at),
            ints(|job| job.delay),
            ints(|job| job.max_attempts),
            topics(batch.iter().map(|one| one.topic)),
            ints(|job| job.ttl),
            if grouped {
                texts(|job| &job.group)
            } else {
                Value::Texts(Vec::new())
            },
            if with_headers {
                Value::Texts(jobs().map(|job| job.headers.written()).collect())
            } else {
                Value::Texts(Vec::new())
            },
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Vec<i64>>, Failure> {
        let mut ids = Vec::new();
        for mut row in rows {
            ids.extend(row.ints(0)?);
        }
        // Numbers were drawn in the order of the arrays; the rows may be told in another.
        ids.sort_unstable();
        let mut rest = ids.into_iter();
        let answers = batch
            .iter()
            .map(|one| rest.by_ref().take(one.jobs.len()).collect::<Vec<_>>());
        let answers: Vec<_> = answers.collect();
        let short = answers
            .iter()
            .zip(batch)
            .any(|(ids, one)| ids.len() != one.jobs.len());
        if short || rest.next().is_some() {
            return Err(Failure::corrupt(
                "the number of answers differs from the number of pushed jobs",
            ));
        }
        Ok(answers)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let mut ids = Vec::new();
        for one in batch {
            for job in &one.jobs {
                ids.push(model.jobs.push(now, &one.namespace, &one.queue, job, ""));
            }
        }
        model.notify(batch.iter().filter_map(|one| one.topic));
        Some(vec![Row(vec![Value::Ints(ids), Value::Int(0)])])
    }
}

impl Operation for PushKeyed {
    /// `None` means: repeat the request.
    type Output = Option<Pushed>;

    const STATEMENT: Statement = Statement {
        name: "queue.push_keyed",
        sql: include_str!("push_keyed.sql"),
        params: &[
            Type::Texts,
            Type::Texts,
            Type::Texts,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Texts,
            Type::Ints,
            Type::Texts,
            Type::Ints,
            Type::Ints,
            Type::Texts,
            Type::Texts,
        ],
        columns: &[Type::Int, Type::Int, Type::Int, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let ints = |field: fn(&Self) -> i64| Value::Ints(batch.iter().map(field).collect());
        vec![
            texts(batch, |one| &one.namespace),
            texts(batch, |one| &one.queue),
            texts(batch, |one| &one.job.name),
            texts(batch, |one| &one.job.payload),
            ints(|one| one.job.priority),
            ints(|one| one.job.at),
            ints(|one| one.job.delay),
            ints(|one| one.job.max_attempts),
            texts(batch, |one| &one.keys.unique_key),
            ints(|one| one.keys.unique.number()),
            texts(batch, |one| &one.keys.idempotency_key),
            topics(batch.iter().map(|one| one.topic)),
            ints(|one| one.job.ttl),
            texts(batch, |one| &one.job.group),
            Value::Texts(batch.iter().map(|one| one.job.headers.written()).collect()),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Option<Pushed>>, Failure> {
        let mut answers = vec![None; batch.len()];
        for mut row in rows {
            let at = batch_index(&mut row, batch.len())?;
            let id = row.maybe_int(1)?;
            let how = match row.int(2)? {
                0 => How::New,
                1 => How::Existing,
                2 => How::Changed,
                4 => How::Running,
                _ => continue,
            };
            answers[at] = id.map(|id| Pushed { id, how });
        }
        Ok(answers)
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let now = model.now;
        let mut rows = Rows::new();
        let mut seen = HashMap::new();
        for (n, one) in (1..).zip(batch) {
            let keys = &one.keys;
            let key = (
                &one.namespace,
                &one.queue,
                &keys.unique_key,
                &keys.idempotency_key,
            );
            let is_keyed = !keys.unique_key.is_empty() || !keys.idempotency_key.is_empty();
            if is_keyed && let Some(first) = seen.get(&key) {
                let changes = keys.idempotency_key.is_empty() && keys.unique != Unique::Skip;
                let (id, how) = if changes {
                    (Value::Null(Type::Int), 3)
                } else {
                    (Value::Int(*first), 1)
                };
                rows.push(Row(vec![Value::Int(n), id, Value::Int(how), Value::Int(0)]));
                continue;
            }
            let Pushed { id, how } = model.jobs.push_keyed(now, one);
            let how = match how {
                How::New => 0,
                How::Existing => 1,
                How::Changed => 2,
                How::Running => 4,
            };
            seen.insert(key, id);
            rows.push(Row([n, id, how, 0].map(Value::Int).to_vec()));
        }
        model.notify(batch.iter().filter_map(|one| one.topic));
        Some(rows)
    }
}

impl Operation for PushTogether {
    /// For each job; `None` means: repeat the request.
    type Output = Vec<Option<Pushed>>;

    const STATEMENT: Statement = PushKeyed::STATEMENT;

    fn params(batch: &[Self]) -> Vec<Value> {
        PushKeyed::params(batch.first().map_or(&[], |one| &one.0))
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<Self::Output>, Failure> {
        let one = batch.iter().take(1);
        one.map(|one| PushKeyed::decode(&one.0, rows.clone()))
            .collect()
    }

    fn model(batch: &[Self], model: &mut ModelState, session: u64) -> Option<Rows> {
        PushKeyed::model(&batch.first()?.0, model, session)
    }
}

/// Each topic once.
fn topics(of: impl Iterator<Item = Option<i64>>) -> Value {
    let mut topics: Vec<i64> = of.flatten().collect();
    topics.sort_unstable();
    topics.dedup();
    Value::Ints(topics)
}
