//! Cancelling and changing jobs: one, or all that a filter matches.

use std::collections::BTreeSet;

use super::Admin;
use crate::admin::{
    CancelJobs, EditJobs, Edited, JobEdit, JobFilter, JobState, ListJobs, MAX_PAGE, MatchedJobs,
    check_reason,
};
use crate::error::{Error, ErrorKind, LOCKED, Result};
use crate::key::check_name;
use crate::queue::{Name, topic};

/// How many jobs a statement changes at most, which takes some 20 ms; others have their turn in between.
const PART: usize = 1000;

impl Admin {
    fn queue_name(&self, queue: &str) -> Name {
        Name {
            namespace: self.0.namespace.to_string(),
            queue: queue.to_owned(),
        }
    }

    pub(super) async fn cancel_one(&self, queue: &str, id: i64, reason: &str) -> Result<bool> {
        const OPERATION: &str = "cancel_job";
        let checked = check_name("queue", queue, 1).and_then(|()| check_reason(reason));
        checked.map_err(|error| error.during(OPERATION).on(queue))?;
        let cancel = CancelJobs {
            name: self.queue_name(queue),
            ids: vec![id],
            running: true,
            reason: reason.to_owned(),
        };
        let cancelled = self.0.jobs.call(cancel).await;
        let cancelled = cancelled.map_err(|error| error.on(queue))?;
        if cancelled.locked > 0 {
            return Err(locked(OPERATION, queue, id));
        }
        Ok(cancelled.jobs > 0)
    }

    pub(super) async fn edit_one(
        &self,
        queue: &str,
        id: i64,
        edit: JobEdit,
        reason: &str,
    ) -> Result<bool> {
        const OPERATION: &str = "edit_job";
        let checked = check_name("queue", queue, 1).and_then(|()| check_reason(reason));
        let checked = checked.and_then(|()| edit.check());
        checked.map_err(|error| error.during(OPERATION).on(queue))?;
        let most = edit.max_attempts.unwrap_or_default();
        let edited = self.edit_part(queue, vec![id], edit, reason).await?;
        if edited.locked > 0 {
            return Err(locked(OPERATION, queue, id));
        }
        if let Some(attempts) = edited.attempts {
            let message = format!(
                "max_attempts of {most} for job {id}, which has been delivered {attempts} times; allowed are {} to 1,000,000",
                attempts + 1
            );
            return Err(Error::new(ErrorKind::Invalid, OPERATION, message).on(queue));
        }
        Ok(edited.jobs > 0)
    }

    async fn edit_part(
        &self,
        queue: &str,
        ids: Vec<i64>,
        edit: JobEdit,
        reason: &str,
    ) -> Result<Edited> {
        let topic = topic(&self.0.namespace, queue);
        let edit = EditJobs {
            name: self.queue_name(queue),
            ids,
            edit,
            topic,
            reason: reason.to_owned(),
        };
        let edited = self.0.jobs.call(edit).await;
        let edited = edited.map_err(|error| error.on(queue))?;
        if edited.jobs > 0 {
            // The next claim looks where the jobs are, and anew for when the next one is due.
            self.0.queues.topic(topic).bump();
        }
        Ok(edited)
    }

    pub(super) async fn cancel_matching(
        &self,
        filter: &JobFilter,
        reason: &str,
    ) -> Result<MatchedJobs> {
        let allowed = [JobState::Ready, JobState::Running, JobState::Delayed];
        let waits = filter.state.is_some_and(|state| state != JobState::Running);
        let mut matched = MatchedJobs::default();
        for ids in self
            .matching("cancel_jobs", filter, reason, &allowed)
            .await?
        {
            let sent = ids.len();
            let cancel = CancelJobs {
                name: self.queue_name(&filter.queue),
                ids,
                running: !waits,
                reason: reason.to_owned(),
            };
            let cancelled = self.0.jobs.call(cancel).await;
            let cancelled = cancelled.map_err(|error| error.on(&filter.queue))?;
            matched.add(sent, cancelled.jobs, cancelled.locked);
        }
        Ok(matched)
    }

    pub(super) async fn edit_matching(
        &self,
        filter: &JobFilter,
        edit: JobEdit,
        reason: &str,
    ) -> Result<MatchedJobs> {
        const OPERATION: &str = "edit_jobs";
        let allowed = [JobState::Ready, JobState::Delayed];
        let checked = edit.check();
        checked.map_err(|error| error.during(OPERATION).on(&filter.queue))?;
        let mut matched = MatchedJobs::default();
        for ids in self.matching(OPERATION, filter, reason, &allowed).await? {
            let sent = ids.len();
            let edit = edit.clone();
            let edited = self.edit_part(&filter.queue, ids, edit, reason).await?;
            matched.add(sent, edited.jobs, edited.locked);
        }
        Ok(matched)
    }

    /// The numbers of the jobs that a filter matches, in parts. All are read before the first is changed: a change moves
    /// jobs in the list.
    async fn matching(
        &self,
        operation: &'static str,
        filter: &JobFilter,
        reason: &str,
        allowed: &[JobState],
    ) -> Result<Vec<Vec<i64>>> {
        let mut page = filter.clone().limit(MAX_PAGE);
        page.after = None;
        let checked = page.check().and_then(|()| check_reason(reason));
        let checked = checked.and_then(|()| check_state(filter.state, allowed));
        checked.map_err(|error| error.during(operation).on(&filter.queue))?;
        let mut ids = BTreeSet::new();
        loop {
            let list = ListJobs::new(&self.0.namespace, &page);
            let listed = self.0.jobs.call(list).await;
            let listed = listed.map_err(|error| error.during(operation).on(&filter.queue))?;
            ids.extend(listed.jobs.iter().map(|job| job.id));
            let Some(next) = listed.next else {
                break;
            };
            page.after = Some(next);
        }
        let ids: Vec<i64> = ids.into_iter().collect();
        Ok(ids.chunks(PART).map(<[i64]>::to_vec).collect())
    }
}

impl MatchedJobs {
    fn add(&mut self, sent: usize, changed: i64, locked: i64) {
        let [changed, locked] = [changed, locked].map(|jobs| u64::try_from(jobs).unwrap_or(0));
        let sent = u64::try_from(sent).unwrap_or(u64::MAX);
        self.changed += changed;
        self.locked += locked;
        self.unchanged += sent.saturating_sub(changed + locked);
    }
}

fn check_state(state: Option<JobState>, allowed: &[JobState]) -> Result<()> {
    let Some(state) = state.filter(|state| !allowed.contains(state)) else {
        return Ok(());
    };
    let allowed: Vec<_> = allowed.iter().map(|state| state.as_str()).collect();
    let message = format!("jobs that are {state}; allowed are {}", allowed.join(", "));
    Err(Error::new(ErrorKind::Invalid, "check", message))
}

fn locked(operation: &'static str, queue: &str, id: i64) -> Error {
    let message = format!("job {id} is {LOCKED}");
    Error::new(ErrorKind::Unavailable, operation, message).on(queue)
}
