//! Schedulers, called through generics.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lockapi::Result;
use lockapi::schedule::{Decision, Round, Run, Scheduler, SchedulerOptions, Task, TaskState};

use super::Through;

#[async_trait]
impl<S: Scheduler + ?Sized> Scheduler for Through<S> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn namespace(&self) -> &str {
        self.0.namespace()
    }

    fn options(&self) -> &SchedulerOptions {
        self.0.options()
    }

    async fn set(&self, task: Task) -> Result<bool> {
        self.0.set(task).await
    }

    async fn remove(&self, task: &str) -> Result<bool> {
        self.0.remove(task).await
    }

    async fn set_enabled(&self, task: &str, enabled: bool) -> Result<bool> {
        self.0.set_enabled(task, enabled).await
    }

    async fn run_now(&self, task: &str) -> Result<Option<Decision>> {
        self.0.run_now(task).await
    }

    async fn tasks(&self, after: &str, most: usize) -> Result<Vec<TaskState>> {
        self.0.tasks(after, most).await
    }

    async fn runs(&self, task: &str, before: Option<SystemTime>, most: usize) -> Result<Vec<Run>> {
        self.0.runs(task, before, most).await
    }

    async fn tick(&self) -> Result<Round> {
        self.0.tick().await
    }

    async fn changed(&self, seen: u64, at_most: Duration) {
        self.0.changed(seen, at_most).await;
    }
}
