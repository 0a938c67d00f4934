//! [`Scheduler`](crate::Scheduler) for blocking callers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::block_on;
use crate::error::Result;
use crate::schedule::{Decision, Round, Run, SchedulerOptions, Task, TaskState};
use crate::stop::Stop;

/// A [scheduler](crate::Scheduler) for blocking callers.
#[derive(Clone, Debug)]
pub struct Scheduler(Arc<dyn crate::Scheduler>);

impl From<Arc<dyn crate::Scheduler>> for Scheduler {
    fn from(scheduler: Arc<dyn crate::Scheduler>) -> Self {
        Self(scheduler)
    }
}

impl Scheduler {
    /// Its name, which is that of the queue of its runs as well.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The namespace that it is in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.namespace()
    }

    /// How this handle uses it.
    #[must_use]
    pub fn options(&self) -> &SchedulerOptions {
        self.0.options()
    }

    /// Adds or changes a task; see [`Scheduler::set`](crate::Scheduler::set).
    ///
    /// # Errors
    /// As for the async method.
    pub fn set(&self, task: Task) -> Result<bool> {
        block_on(self.0.set(task))
    }

    /// Removes a task; see [`Scheduler::remove`](crate::Scheduler::remove).
    ///
    /// # Errors
    /// As for the async method.
    pub fn remove(&self, task: &str) -> Result<bool> {
        block_on(self.0.remove(task))
    }

    /// Lets a task be fired when it is due; answers whether there is one.
    ///
    /// # Errors
    /// As for [`Scheduler::set_enabled`](crate::Scheduler::set_enabled).
    pub fn enable(&self, task: &str) -> Result<bool> {
        block_on(self.0.enable(task))
    }

    /// Keeps a task from being fired; answers whether there is one.
    ///
    /// # Errors
    /// As for [`Scheduler::set_enabled`](crate::Scheduler::set_enabled).
    pub fn disable(&self, task: &str) -> Result<bool> {
        block_on(self.0.disable(task))
    }

    /// Fires a task at once; see [`Scheduler::run_now`](crate::Scheduler::run_now).
    ///
    /// # Errors
    /// As for the async method.
    pub fn run_now(&self, task: &str) -> Result<Option<Decision>> {
        block_on(self.0.run_now(task))
    }

    /// Reads tasks; see [`Scheduler::tasks`](crate::Scheduler::tasks).
    ///
    /// # Errors
    /// As for the async method.
    pub fn tasks(&self, after: &str, most: usize) -> Result<Vec<TaskState>> {
        block_on(self.0.tasks(after, most))
    }

    /// Reads all tasks in the order of their names.
    ///
    /// # Errors
    /// As for [`Scheduler::list`](crate::Scheduler#method.list).
    pub fn list(&self) -> Result<Vec<TaskState>> {
        block_on(self.0.list())
    }

    /// Reads the log of a task; see [`Scheduler::runs`](crate::Scheduler::runs).
    ///
    /// # Errors
    /// As for the async method.
    pub fn runs(&self, task: &str, before: Option<SystemTime>, most: usize) -> Result<Vec<Run>> {
        block_on(self.0.runs(task, before, most))
    }

    /// Does once what is to be done; see [`Scheduler::tick`](crate::Scheduler::tick).
    ///
    /// # Errors
    /// As for the async method.
    pub fn tick(&self) -> Result<Round> {
        block_on(self.0.tick())
    }

    /// Does all that is to be done by now; see [`Scheduler::run_due`](crate::Scheduler#method.run_due).
    ///
    /// # Errors
    /// As for [`tick`](Self::tick).
    pub fn run_due(&self) -> Result<Vec<Decision>> {
        block_on(self.0.run_due())
    }

    /// Returns when there may be something to do; see
    /// [`Scheduler::changed`](crate::Scheduler::changed).
    pub fn changed(&self, seen: u64, at_most: Duration) {
        block_on(self.0.changed(seen, at_most));
    }

    /// Does what is to be done, round by round, until it is told to [stop](Stop); see
    /// [`Scheduler::run`](crate::Scheduler#method.run).
    ///
    /// # Errors
    /// As for the async method.
    pub fn run(&self, stop: impl Into<Stop>) -> Result<()> {
        block_on(self.0.run(stop.into()))
    }
}
