//! `lockapi schedule`: recurring tasks.

use std::time::Duration;

use clap::{Args, Subcommand};
use lockapi::admin::MAX_PAGE;
use lockapi::queue::Job;
use lockapi::schedule::{Decision, Run, Task, TaskState};
use lockapi::{Backend, Error, Scheduler};
use serde::Serialize;

use crate::arguments::Global;
use crate::common::{Why, recorded, recorded_where, with_backend};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::{Entry, spoken, time};
use crate::present;
use crate::values::duration;

/// See recurring tasks and their runs, set, run, enable, disable and remove them
#[derive(Debug, Subcommand)]
pub(crate) enum Schedule {
    /// List the tasks of a scheduler, or of all of them
    List {
        /// The scheduler; all unless given
        scheduler: Option<String>,
    },
    /// List the runs of a task, the latest first
    Runs {
        /// The scheduler
        scheduler: String,
        /// The task
        task: String,
        /// At most so many, up to 1000
        #[arg(long, value_name = "NUMBER", default_value_t = 20)]
        limit: usize,
    },
    /// Add a task, or change the one of its name
    Set(Set),
    /// Run a task at once; its next due time stays
    Run(One),
    /// Fire a task again when it is due
    Enable(One),
    /// Do not fire a task any more
    Disable(One),
    /// Remove a task; its log stays
    Remove(One),
}

/// A task, and why something is done to it.
#[derive(Debug, Args)]
pub(crate) struct One {
    /// The scheduler
    scheduler: String,
    /// The task
    task: String,
    #[command(flatten)]
    why: Why,
}

/// A task to set.
#[derive(Debug, Args)]
pub(crate) struct Set {
    /// The scheduler
    scheduler: String,
    /// The task
    task: String,
    /// The name of its jobs
    job: String,
    /// Their payload, as JSON
    #[arg(default_value = "null", allow_hyphen_values = true)]
    payload: String,
    /// How often, such as 1h
    #[arg(long, value_name = "TIME", value_parser = duration, required_unless_present = "cron", conflicts_with = "cron")]
    every: Option<Duration>,
    /// When, as a cron expression such as '0 3 * * *'
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// The time zone of the expression
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    zone: String,
    /// How long a run may last
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Serialize)]
struct Listed {
    scheduler: String,
    name: String,
    when: String,
    enabled: bool,
    next_at: Option<String>,
    last_at: Option<String>,
    job: String,
    #[serde(
        rename = "timeout_seconds",
        serialize_with = "crate::output::maybe_seconds"
    )]
    timeout: Option<Duration>,
}

impl Listed {
    fn new(scheduler: &str, task: TaskState) -> Self {
        let when = match (task.every, task.cron) {
            (Some(every), _) => format!("every {}", spoken(every)),
            (None, Some((expression, zone))) => format!("{expression} ({zone})"),
            (None, None) => String::new(),
        };
        Self {
            scheduler: scheduler.to_owned(),
            name: task.name,
            when,
            enabled: task.enabled,
            next_at: task.next_at.map(time),
            last_at: task.last_at.map(time),
            job: task.job,
            timeout: task.timeout,
        }
    }
}

impl Entry for Listed {
    const COLUMNS: &'static [&'static str] = &["scheduler", "task", "when", "next", "last", "job"];

    fn cells(&self) -> Vec<String> {
        let known = |time: &Option<String>| time.clone().unwrap_or_else(|| "-".to_owned());
        let next = if self.enabled {
            known(&self.next_at)
        } else {
            "disabled".to_owned()
        };
        vec![
            self.scheduler.clone(),
            self.name.clone(),
            self.when.clone(),
            next,
            known(&self.last_at),
            self.job.clone(),
        ]
    }
}

#[derive(Debug, Serialize)]
struct Logged {
    fire_at: String,
    status: String,
    job: Option<String>,
    node: Option<String>,
    attempts: u32,
    missed: u32,
    started_at: Option<String>,
    completed_at: Option<String>,
    error: Option<String>,
}

impl From<Run> for Logged {
    fn from(run: Run) -> Self {
        Self {
            fire_at: time(run.fire_at),
            status: run.status.to_string(),
            job: run.job.map(|job| job.to_string()),
            node: run.node,
            attempts: run.attempts,
            missed: run.missed,
            started_at: run.started_at.map(time),
            completed_at: run.completed_at.map(time),
            error: run.error,
        }
    }
}

/// What came of firing a task.
#[derive(Debug, Serialize)]
struct Ran {
    status: String,
    /// What was pushed, if anything was.
    job: Option<String>,
}

impl From<Decision> for Ran {
    fn from(decision: Decision) -> Self {
        Self {
            status: decision.status.to_string(),
            job: decision.job.map(|job| job.to_string()),
        }
    }
}

impl Entry for Logged {
    const COLUMNS: &'static [&'static str] = &[
        "due",
        "status",
        "job",
        "node",
        "started",
        "completed",
        "error",
    ];

    fn cells(&self) -> Vec<String> {
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.fire_at.clone(),
            self.status.clone(),
            known(&self.job),
            known(&self.node),
            known(&self.started_at),
            known(&self.completed_at),
            known(&self.error),
        ]
    }
}

async fn tasks(backend: &dyn Backend, scheduler: &str) -> Result<Vec<Listed>> {
    let tasks = backend.scheduler(scheduler)?.list().await?;
    let listed = tasks.into_iter().map(|task| Listed::new(scheduler, task));
    Ok(listed.collect())
}

async fn all_tasks(backend: &dyn Backend) -> Result<Vec<Listed>> {
    let inspector = backend.inspector();
    let mut listed = Vec::new();
    let mut after = String::new();
    loop {
        let schedulers = inspector.schedulers(&after, MAX_PAGE).await?;
        let Some(last) = schedulers.last().cloned() else {
            return Ok(listed);
        };
        for scheduler in &schedulers {
            listed.extend(tasks(backend, scheduler).await?);
        }
        after = last;
    }
}

impl Schedule {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        with_backend(global, async |backend| {
            self.perform(global, &**backend).await
        })
        .await
    }

    async fn perform(self, global: &Global, backend: &dyn Backend) -> Result<Exit> {
        match self {
            Self::List { scheduler } => {
                let listed = match scheduler {
                    Some(scheduler) => tasks(backend, &scheduler).await?,
                    None => all_tasks(backend).await?,
                };
                global.output().entries(&listed)?;
            }
            Self::Runs {
                scheduler,
                task,
                limit,
            } => {
                let runs = backend
                    .scheduler(scheduler)?
                    .runs(&task, None, limit)
                    .await?;
                let runs: Vec<Logged> = runs.into_iter().map(Logged::from).collect();
                global.output().entries(&runs)?;
            }
            Self::Set(set) => set.run(global, backend).await?,
            Self::Run(one) => {
                let run = async |scheduler: &dyn Scheduler| scheduler.run_now(&one.task).await;
                let decision = one.recorded(backend, "run task", run).await?;
                let ran = Ran::from(decision.ok_or_else(|| one.absent())?);
                global.output().value(&ran, |ran| ran.status.clone())?;
            }
            Self::Enable(one) => {
                let act = async |scheduler: &dyn Scheduler| scheduler.enable(&one.task).await;
                one.act(global, backend, "enable task", act).await?;
            }
            Self::Disable(one) => {
                let act = async |scheduler: &dyn Scheduler| scheduler.disable(&one.task).await;
                one.act(global, backend, "disable task", act).await?;
            }
            Self::Remove(one) => {
                let act = async |scheduler: &dyn Scheduler| scheduler.remove(&one.task).await;
                one.act(global, backend, "remove task", act).await?;
            }
        }
        Ok(Exit::Success)
    }
}

impl One {
    fn target(&self) -> String {
        format!("{} of {}", self.task, self.scheduler)
    }

    /// Does something to the task, if there is one.
    async fn recorded<T>(
        &self,
        backend: &dyn Backend,
        action: &str,
        act: impl AsyncFn(&dyn Scheduler) -> Result<T, Error>,
    ) -> Result<T> {
        let target = self.target();
        let present =
            async |backend: &dyn Backend| present::task(backend, &self.scheduler, &self.task).await;
        let act = async |backend: &dyn Backend| act(&*backend.scheduler(&*self.scheduler)?).await;
        let done = recorded_where(backend, present, (action, &target), &self.why, act);
        done.await?.ok_or_else(|| self.absent())
    }

    /// Does something that tells whether the task was found.
    async fn act(
        &self,
        global: &Global,
        backend: &dyn Backend,
        action: &str,
        act: impl AsyncFn(&dyn Scheduler) -> Result<bool, Error>,
    ) -> Result<()> {
        if !self.recorded(backend, action, act).await? {
            return Err(self.absent());
        }
        global.output().done(action, &self.target())
    }

    fn absent(&self) -> Failure {
        Failure::new(
            Exit::Absent,
            format!("{:?} has no task {:?}", self.scheduler, self.task),
        )
        .advise("`lockapi schedule list SCHEDULER` lists its tasks.")
    }
}

impl Set {
    async fn run(self, global: &Global, backend: &dyn Backend) -> Result<()> {
        let job = Job::json(self.job, self.payload)?;
        let task = match (self.every, self.cron) {
            (Some(every), _) => Task::every(&self.task, every, job),
            (None, Some(expression)) => Task::cron(&self.task, expression, self.zone, job),
            (None, None) => return Err(Failure::usage("no time; allowed are --every and --cron")),
        };
        let task = match self.timeout {
            Some(timeout) => task.timeout(timeout),
            None => task,
        };
        let (action, target) = ("set task", format!("{} of {}", self.task, self.scheduler));
        recorded(backend, (action, &target), &self.why, async |backend| {
            backend.scheduler(&*self.scheduler)?.set(task.clone()).await
        })
        .await?;
        global.output().done(action, &target)
    }
}
