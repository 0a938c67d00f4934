//! Inspectors and operators, called on threads that may block.

use async_trait::async_trait;
use lockapi::admin::{
    AuditEntry, Contention, Filter, FoundQueue, HeldLease, HeldLock, Inspector, JobDetails,
    JobEdit, JobFilter, JobPage, LimitLevel, MatchedJobs, Operator, PausedName, Priority,
    PriorityScope, RunningJob, TerminatedSession, Waiter, WorkerNumber,
};
use lockapi::blocking;
use lockapi::queue::{HistoryPoint, HistoryStep};
use lockapi::{Key, Result};

use super::Blocking;

#[async_trait]
impl Inspector for Blocking<blocking::Inspector> {
    async fn locks(&self, filter: &Filter) -> Result<Vec<HeldLock>> {
        let filter = filter.clone();
        self.with(move |inner| inner.locks(&filter)).await
    }

    async fn leases(&self, filter: &Filter) -> Result<Vec<HeldLease>> {
        let filter = filter.clone();
        self.with(move |inner| inner.leases(&filter)).await
    }

    async fn waiters(&self, filter: &Filter) -> Result<Vec<Waiter>> {
        let filter = filter.clone();
        self.with(move |inner| inner.waiters(&filter)).await
    }

    async fn running(&self, filter: &Filter) -> Result<Vec<RunningJob>> {
        let filter = filter.clone();
        self.with(move |inner| inner.running(&filter)).await
    }

    fn contention(&self, filter: &Filter) -> Result<Vec<Contention>> {
        self.0.contention(filter)
    }

    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>> {
        let filter = filter.clone();
        self.with(move |inner| inner.audit(&filter)).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<JobPage> {
        let filter = filter.clone();
        self.with(move |inner| inner.jobs(&filter)).await
    }

    async fn job(&self, id: i64, payload: bool) -> Result<Option<JobDetails>> {
        self.with(move |inner| inner.job(id, payload)).await
    }

    async fn queues(
        &self,
        filter: &Filter,
        after: Option<(&str, &str)>,
    ) -> Result<Vec<FoundQueue>> {
        let filter = filter.clone();
        let after = after.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        self.with(move |inner| {
            let after = after.as_ref();
            inner.queues(
                &filter,
                after.map(|(namespace, name)| (namespace.as_str(), name.as_str())),
            )
        })
        .await
    }

    async fn schedulers(&self, after: &str, most: usize) -> Result<Vec<String>> {
        let after = after.to_owned();
        self.with(move |inner| inner.schedulers(&after, most)).await
    }

    async fn paused_names(&self, queue: &str, most: usize) -> Result<Vec<PausedName>> {
        let queue = queue.to_owned();
        self.with(move |inner| inner.paused_names(&queue, most))
            .await
    }

    async fn history(
        &self,
        queue: &str,
        name: Option<&str>,
        step: HistoryStep,
    ) -> Result<Vec<HistoryPoint>> {
        let (queue, name) = (queue.to_owned(), name.map(str::to_owned));
        self.with(move |inner| inner.history(&queue, name.as_deref(), step))
            .await
    }

    async fn limits(&self, after: &str, most: usize) -> Result<Vec<LimitLevel>> {
        let after = after.to_owned();
        self.with(move |inner| inner.limits(&after, most)).await
    }

    async fn worker_numbers(&self, most: usize) -> Result<Vec<WorkerNumber>> {
        self.with(move |inner| inner.worker_numbers(most)).await
    }
}

#[async_trait]
impl Operator for Blocking<blocking::Operator> {
    async fn release_lease(&self, key: Key, reason: &str) -> Result<Vec<String>> {
        let reason = reason.to_owned();
        self.with(move |inner| inner.release_lease(key, &reason))
            .await
    }

    async fn terminate_holder(&self, key: Key, reason: &str) -> Result<Vec<TerminatedSession>> {
        let reason = reason.to_owned();
        self.with(move |inner| inner.terminate_holder(key, &reason))
            .await
    }

    async fn cancel_job(&self, queue: &str, id: i64, reason: &str) -> Result<bool> {
        let (queue, reason) = (queue.to_owned(), reason.to_owned());
        self.with(move |inner| inner.cancel_job(&queue, id, &reason))
            .await
    }

    async fn edit_job(&self, queue: &str, id: i64, edit: JobEdit, reason: &str) -> Result<bool> {
        let (queue, reason) = (queue.to_owned(), reason.to_owned());
        self.with(move |inner| inner.edit_job(&queue, id, edit, &reason))
            .await
    }

    async fn cancel_jobs(&self, filter: &JobFilter, reason: &str) -> Result<MatchedJobs> {
        let (filter, reason) = (filter.clone(), reason.to_owned());
        self.with(move |inner| inner.cancel_jobs(&filter, &reason))
            .await
    }

    async fn edit_jobs(
        &self,
        filter: &JobFilter,
        edit: JobEdit,
        reason: &str,
    ) -> Result<MatchedJobs> {
        let (filter, reason) = (filter.clone(), reason.to_owned());
        self.with(move |inner| inner.edit_jobs(&filter, edit, &reason))
            .await
    }

    async fn record(&self, action: &str, target: &str, reason: &str) -> Result<()> {
        let texts = [action, target, reason].map(str::to_owned);
        self.with(move |inner| {
            let [action, target, reason] = &texts;
            inner.record(action, target, reason)
        })
        .await
    }

    fn prioritize(&self, pid: i64, priority: Priority) -> Result<PriorityScope> {
        self.0.prioritize(pid, priority)
    }
}
