//! Reading jobs and queues page by page; batches of one.

use crate::admin::{
    EXAMINED, FoundQueue, JobDetails, JobFilter, JobPage, JobPlace, JobState, ListedJob,
    MAX_PAYLOAD_CHARS, PausedName, duration, since_epoch,
};
use crate::driver::columns::{maybe_int, maybe_text};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::{AttemptError, Headers, Name, Priority, Progress, attempts};

/// Lists jobs.
#[derive(Clone, Debug)]
pub struct ListJobs {
    /// The queue.
    pub name: Name,
    /// In this state; without one those that wait or run.
    pub state: Option<JobState>,
    /// Of this name; empty is any.
    pub job: String,
    /// Of this group; empty is any.
    pub group: String,
    /// With this tag; empty is any.
    pub tag: String,
    /// Pushed from the first time on and before the second, in microseconds since 1970.
    pub created: (i64, i64),
    /// Those after this place.
    pub after: Option<JobPlace>,
    /// How many are examined at most.
    pub examined: i64,
    /// How many at most.
    pub most: i64,
}

/// Reads a job.
#[derive(Clone, Debug)]
pub struct ReadJob {
    /// Namespace of the backend.
    pub namespace: String,
    /// Its number.
    pub id: i64,
    /// Whether its payload is read.
    pub payload: bool,
}

/// Reads the names of queues.
#[derive(Clone, Debug)]
pub struct ListQueues {
    /// Of this namespace, or of all.
    pub namespace: Option<String>,
    /// Those after this one, by namespace and name.
    pub after: (String, String),
    /// How many at most.
    pub most: i64,
}

/// Reads the names of schedulers that have tasks.
#[derive(Clone, Debug)]
pub struct ListSchedulers {
    /// Namespace of the backend.
    pub namespace: String,
    /// Those after this one.
    pub after: String,
    /// How many at most.
    pub most: i64,
}

/// Reads which names of jobs are paused in a queue.
#[derive(Clone, Debug)]
pub struct ListPausedNames {
    /// The queue.
    pub name: Name,
    /// How many at most.
    pub most: i64,
    /// How many are examined at most.
    pub examined: i64,
}

impl ListJobs {
    pub(crate) fn new(namespace: &str, filter: &JobFilter) -> Self {
        Self {
            name: Name {
                namespace: namespace.to_owned(),
                queue: filter.queue.clone(),
            },
            state: filter.state,
            job: filter.name.clone(),
            group: filter.group.clone(),
            tag: filter.tag.clone(),
            created: filter.created,
            after: filter.after,
            examined: EXAMINED,
            most: i64::try_from(filter.limit).unwrap_or(i64::MAX),
        }
    }

    /// The same among fewer jobs, where most of them are probably on the page: of any name, group and tag, in a state that has an
    /// order of its own. Where many others are before them, that page is not full.
    pub(crate) fn few(&self) -> Option<Self> {
        let few = self.most.saturating_mul(2);
        let mixed = matches!(
            self.state,
            Some(JobState::Running | JobState::Completed | JobState::Cancelled)
        );
        let any = [&self.job, &self.group, &self.tag];
        let any = any.iter().all(|label| label.is_empty());
        (any && !mixed && few < self.examined).then(|| Self {
            examined: few,
            ..self.clone()
        })
    }

    /// The priorities that are left to list, each with the time and the number after which.
    pub(crate) fn levels(&self) -> Vec<(i64, i64, i64)> {
        if self.state.is_some_and(JobState::has_ended) {
            return Vec::new();
        }
        let from = |priority: i64| match self.after {
            Some(place) if place.priority > priority => None,
            Some(place) if place.priority == priority => Some((priority, place.at, place.id)),
            _ => Some((priority, 0, 0)),
        };
        let all = Priority::ALL.into_iter().map(Priority::number);
        all.filter_map(from).collect()
    }

    /// Of jobs that ended only smaller numbers are listed.
    pub(crate) fn below(&self) -> i64 {
        self.after.map_or(i64::MAX, |place| place.id)
    }
}

fn state(row: &mut Row, at: usize) -> Result<JobState, Failure> {
    let state = row.text(at)?.parse();
    state.map_err(|_| Failure::corrupt("a job has a state that does not exist"))
}

/// What a handler told, from this column on.
fn progress(row: &mut Row, at: usize) -> Result<Option<Progress>, Failure> {
    let Some(millionths) = row.maybe_int(at)? else {
        return Ok(None);
    };
    let progress = Progress::new(millionths, row.text(at + 1)?, row.int(at + 2)?);
    Ok(Some(progress))
}

fn tags(column: Option<&str>) -> Vec<String> {
    let tags = column.map(Headers::tags_of).into_iter().flatten();
    tags.map(str::to_owned).collect()
}

/// The job of a row of [`ListJobs`], of which these columns are taken already.
fn listed(row: &mut Row, priority: i64, at: i64) -> Result<ListedJob, Failure> {
    // A job that is parked is due then, and has the place that it was given in the meantime.
    let due = row.maybe_int(14)?.unwrap_or(at);
    Ok(ListedJob {
        id: row.int(0)?,
        name: row.text(1)?,
        state: state(row, 13)?,
        priority: Priority::numbered(priority).unwrap_or_default(),
        attempt: row.int(3)?,
        max_attempts: row.int(4)?,
        run_at: since_epoch(due),
        created_at: since_epoch(row.int(6)?),
        started_at: row.maybe_int(7)?.map(since_epoch),
        ended_at: row.maybe_int(8)?.map(since_epoch),
        lease_left: row.maybe_int(9)?.filter(|left| *left > 0).map(duration),
        worker: row.maybe_text(10)?,
        error: row.maybe_text(11)?,
        progress: progress(row, 15)?,
        group: row.maybe_text(18)?,
        tags: tags(row.maybe_text(19)?.as_deref()),
    })
}

impl Operation for ListJobs {
    type Output = JobPage;

    const STATEMENT: Statement = Statement {
        name: "admin.jobs",
        sql: include_str!("jobs.sql"),
        params: &[
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
        ],
        columns: &[
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Text,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let Some(one) = batch.first() else {
            return Vec::new();
        };
        let levels = one.levels();
        vec![
            Value::Text(one.name.namespace.clone()),
            Value::Text(one.name.queue.clone()),
            Value::Text(one.state.map_or("", JobState::as_str).to_owned()),
            Value::Text(one.job.clone()),
            Value::Ints(levels.iter().map(|level| level.0).collect()),
            Value::Ints(levels.iter().map(|level| level.1).collect()),
            Value::Ints(levels.iter().map(|level| level.2).collect()),
            Value::Int(one.below()),
            Value::Int(one.examined),
            Value::Int(one.most),
            Value::Text(one.group.clone()),
            Value::Text(one.tag.clone()),
            Value::Int(one.created.0),
            Value::Int(one.created.1),
        ]
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<JobPage>, Failure> {
        let most = batch.first().map_or(0, |one| one.most);
        let (mut jobs, mut examined, mut last) = (Vec::new(), None, None);
        for mut row in rows {
            let (priority, at) = (row.int(2)?, row.int(5)?);
            if let Some(id) = row.maybe_int(12)? {
                examined = Some(JobPlace { priority, at, id });
                continue;
            }
            let job = listed(&mut row, priority, at)?;
            let id = job.id;
            last = Some(JobPlace { priority, at, id });
            jobs.push(job);
        }
        let full = i64::try_from(jobs.len()).is_ok_and(|jobs| jobs >= most);
        let next = if full { last } else { examined };
        Ok(vec![JobPage { jobs, next }])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(model.jobs.list(model.now, batch.first()?))
    }
}

impl Operation for ReadJob {
    type Output = Option<JobDetails>;

    const STATEMENT: Statement = Statement {
        name: "admin.job",
        sql: include_str!("job.sql"),
        params: &[Type::Text, Type::Int, Type::Bool, Type::Int],
        columns: &[
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Text,
        ],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                Value::Text(one.namespace.clone()),
                Value::Int(one.id),
                Value::Bool(one.payload),
                Value::Int(i64::try_from(MAX_PAYLOAD_CHARS).unwrap_or(i64::MAX)),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Option<JobDetails>>, Failure> {
        let read = |mut row: Row| {
            let history = attempts(row.maybe_text(17)?)?;
            Ok(JobDetails {
                queue: row.text(1)?,
                job: ListedJob {
                    id: row.int(0)?,
                    name: row.text(3)?,
                    state: state(&mut row, 2)?,
                    priority: Priority::numbered(row.int(4)?).unwrap_or_default(),
                    attempt: row.int(5)?,
                    max_attempts: row.int(6)?,
                    run_at: since_epoch(row.int(7)?),
                    created_at: since_epoch(row.int(8)?),
                    started_at: row.maybe_int(9)?.map(since_epoch),
                    ended_at: row.maybe_int(10)?.map(since_epoch),
                    lease_left: row.maybe_int(11)?.filter(|left| *left > 0).map(duration),
                    worker: row.maybe_text(13)?,
                    error: row.maybe_text(14)?,
                    progress: progress(&mut row, 21)?,
                    group: row.maybe_text(25)?,
                    tags: tags(row.maybe_text(26)?.as_deref()),
                },
                expires_at: row.maybe_int(12)?.map(since_epoch),
                unique_key: row.maybe_text(15)?,
                task: row.maybe_text(16)?,
                history: history.into_iter().map(AttemptError::from).collect(),
                payload_bytes: row.int(18)?,
                payload: row.maybe_text(19)?,
                headers: Headers::read(row.maybe_text(20)?.as_deref()),
                result: row.maybe_text(24)?,
            })
        };
        let job = rows.into_iter().next().map(read).transpose()?;
        Ok(vec![job])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let row = model.jobs.read(model.now, batch.first()?);
        Some(row.into_iter().collect())
    }
}

impl Operation for ListQueues {
    type Output = Vec<FoundQueue>;

    const STATEMENT: Statement = Statement {
        name: "admin.queues",
        sql: include_str!("queues.sql"),
        params: &[Type::Text, Type::Text, Type::Text, Type::Int],
        columns: &[Type::Text, Type::Text, Type::Bool],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                maybe_text(one.namespace.as_deref()),
                Value::Text(one.after.0.clone()),
                Value::Text(one.after.1.clone()),
                Value::Int(one.most),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<FoundQueue>>, Failure> {
        let read = |mut row: Row| {
            Ok(FoundQueue {
                namespace: row.text(0)?,
                name: row.text(1)?,
                paused: row.bool(2)?,
            })
        };
        let read: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![read?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        Some(model.jobs.queues(model.now, batch.first()?))
    }
}

impl Operation for ListSchedulers {
    type Output = Vec<String>;

    const STATEMENT: Statement = Statement {
        name: "admin.schedulers",
        sql: include_str!("schedulers.sql"),
        params: &[Type::Text, Type::Text, Type::Int],
        columns: &[Type::Text],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                Value::Text(one.namespace.clone()),
                Value::Text(one.after.clone()),
                Value::Int(one.most),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<String>>, Failure> {
        let names: Result<_, Failure> = rows.into_iter().map(|mut row| row.text(0)).collect();
        Ok(vec![names?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let names = model.tasks.schedulers(&one.namespace).into_iter();
        let after = names.filter(|name| *name > one.after);
        let most = usize::try_from(one.most).unwrap_or_default();
        Some(
            after
                .take(most)
                .map(|name| Row(vec![Value::Text(name)]))
                .collect(),
        )
    }
}

impl Operation for ListPausedNames {
    type Output = Vec<PausedName>;

    const STATEMENT: Statement = Statement {
        name: "admin.paused_names",
        sql: include_str!("paused_names.sql"),
        params: &[Type::Text, Type::Text, Type::Int, Type::Int],
        columns: &[Type::Text, Type::Int],
    };

    fn params(batch: &[Self]) -> Vec<Value> {
        let of = |one: &Self| {
            vec![
                Value::Text(one.name.namespace.clone()),
                Value::Text(one.name.queue.clone()),
                Value::Int(one.most),
                Value::Int(one.examined),
            ]
        };
        batch.first().map(of).unwrap_or_default()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<Vec<PausedName>>, Failure> {
        let read = |mut row: Row| {
            Ok(PausedName {
                name: row.text(0)?,
                resumes_in: row.maybe_int(1)?.map(duration),
            })
        };
        let read: Result<_, Failure> = rows.into_iter().map(read).collect();
        Ok(vec![read?])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let most = usize::try_from(one.most).unwrap_or_default();
        let names = model.jobs.names_paused(model.now, &one.name);
        let row = |(name, until): (&str, Option<i64>)| {
            let left = maybe_int(until.map(|until| until - model.now));
            Row(vec![Value::Text(name.to_owned()), left])
        };
        Some(names.take(most).map(row).collect())
    }
}
