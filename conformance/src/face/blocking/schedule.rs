//! Schedulers of the blocking face.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lockapi::schedule::{Decision, Round, Run, Scheduler, SchedulerOptions, Task, TaskState};
use lockapi::{Result, blocking};

use super::Blocking;

#[async_trait]
impl Scheduler for Blocking<blocking::Scheduler> {
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
        self.with(move |scheduler| scheduler.set(task)).await
    }

    async fn remove(&self, task: &str) -> Result<bool> {
        let task = task.to_owned();
        self.with(move |scheduler| scheduler.remove(&task)).await
    }

    async fn set_enabled(&self, task: &str, enabled: bool) -> Result<bool> {
        let task = task.to_owned();
        self.with(move |scheduler| {
            if enabled {
                scheduler.enable(&task)
            } else {
                scheduler.disable(&task)
            }
        })
        .await
    }

    async fn run_now(&self, task: &str) -> Result<Option<Decision>> {
        let task = task.to_owned();
        self.with(move |scheduler| scheduler.run_now(&task)).await
    }

    async fn tasks(&self, after: &str, most: usize) -> Result<Vec<TaskState>> {
        let after = after.to_owned();
        self.with(move |scheduler| scheduler.tasks(&after, most))
            .await
    }

    async fn runs(&self, task: &str, before: Option<SystemTime>, most: usize) -> Result<Vec<Run>> {
        let task = task.to_owned();
        self.with(move |scheduler| scheduler.runs(&task, before, most))
            .await
    }

    async fn tick(&self) -> Result<Round> {
        self.with(|scheduler| scheduler.tick()).await
    }

    async fn changed(&self, seen: u64, at_most: Duration) {
        self.with(move |scheduler| scheduler.changed(seen, at_most))
            .await;
    }
}
