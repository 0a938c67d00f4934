//! Cancelling and changing jobs: one, or all that a filter matches.

use super::Admin;
use crate::admin::{
    CancelJobs, EditJobs, Edited, JobEdit, JobFilter, JobMatch, JobState, ListJobs, ListedJob,
    MAX_PAGE, MatchedJobs, check_reason,
};
use crate::error::{Error, ErrorKind, LOCKED, Result};
use crate::key::check_name;
use crate::queue::{Name, topic};

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
            only: None,
            running: true,
            reason: reason.to_owned(),
        };
        let cancelled = self.0.jobs.call(cancel.clone()).await;
        let mut cancelled = cancelled.map_err(|error| error.on(queue))?;
        // What has just ended was locked only for a statement that began before.
        if cancelled.locked > 0 {
            let again = self.0.jobs.call(cancel).await;
            cancelled = again.map_err(|error| error.on(queue))?;
        }
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
        let mut edited = self
            .edit_part((queue, None), vec![id], (edit.clone(), false), reason)
            .await?;
        // As where one is cancelled.
        if edited.locked > 0 {
            edited = self
                .edit_part((queue, None), vec![id], (edit, false), reason)
                .await?;
        }
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
        (queue, only): (&str, Option<&JobMatch>),
        ids: Vec<i64>,
        (edit, again): (JobEdit, bool),
        reason: &str,
    ) -> Result<Edited> {
        let topic = topic(&self.0.namespace, queue);
        let edit = EditJobs {
            name: self.queue_name(queue),
            ids,
            only: only.cloned(),
            edit,
            again,
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
        let change = Change::Cancel { running: !waits };
        let checked = check_matching(filter, reason, &allowed);
        let failed = |error: Error| error.during("cancel_jobs").on(&filter.queue);
        checked.map_err(failed)?;
        self.change_matching(filter, &change, reason)
            .await
            .map_err(failed)
    }

    pub(super) async fn edit_matching(
        &self,
        filter: &JobFilter,
        edit: JobEdit,
        reason: &str,
    ) -> Result<MatchedJobs> {
        let allowed = [JobState::Ready, JobState::Delayed];
        let checked = check_matching(filter, reason, &allowed).and_then(|()| edit.check());
        let checked = checked.and_then(|()| edit.check_many());
        let failed = |error: Error| error.during("edit_jobs").on(&filter.queue);
        checked.map_err(failed)?;
        // What moves jobs may move them to where they are listed later.
        let again = edit.moves();
        self.change_matching(filter, &Change::Edit { edit, again }, reason)
            .await
            .map_err(failed)
    }

    /// Changes the jobs that a filter matches page by page, so that nothing has to be remembered of them: the list is read on
    /// from where the page ended. What a change moves to a place behind that is found again, and left. A job that waits for
    /// room in its group has a place behind all that are due, and one before them once there is room: where the list has
    /// more than one page, it is gone through again, unless a state is wanted, which such a job changes.
    async fn change_matching(
        &self,
        filter: &JobFilter,
        change: &Change,
        reason: &str,
    ) -> Result<MatchedJobs> {
        let mut matched = MatchedJobs::default();
        let pages = self.change_listed(filter, change, reason, &mut matched);
        if pages.await? > 1 && filter.state.is_none() {
            // Those that were locked, or that the change does not fit, are found again.
            let before = std::mem::take(&mut matched.unchanged);
            matched.locked = 0;
            let again = change.again();
            let late = self.change_listed(filter, &again, reason, &mut matched);
            late.await?;
            matched.unchanged = matched.unchanged.max(before);
        }
        Ok(matched)
    }

    /// Goes through the list once; answers how many pages it had.
    async fn change_listed(
        &self,
        filter: &JobFilter,
        change: &Change,
        reason: &str,
        matched: &mut MatchedJobs,
    ) -> Result<u64> {
        let mut page = filter.clone().limit(MAX_PAGE);
        page.after = None;
        let mut pages = 0;
        let only = JobMatch::of(filter);
        loop {
            let list = ListJobs::new(&self.0.namespace, &page);
            let listed = self.0.jobs.call(list).await;
            let listed = listed.map_err(|error| matched.noted(error, 0))?;
            pages += 1;
            let jobs = listed.jobs.iter();
            let ids: Vec<i64> = jobs
                .filter(|job| !change.is_had_by(job))
                .map(|job| job.id)
                .collect();
            if !ids.is_empty() {
                let sent = ids.len();
                let of = (&*filter.queue, Some(&only));
                let changed = self.change_part(of, ids, change, reason).await;
                let changed = changed.map_err(|error| matched.noted(error, sent))?;
                matched.add(sent, changed);
            }
            let Some(next) = listed.next else {
                return Ok(pages);
            };
            page.after = Some(next);
        }
    }

    async fn change_part(
        &self,
        (queue, only): (&str, Option<&JobMatch>),
        ids: Vec<i64>,
        change: &Change,
        reason: &str,
    ) -> Result<Edited> {
        let running = match change {
            Change::Edit { edit, again } => {
                let edit = (edit.clone(), *again);
                return self.edit_part((queue, only), ids, edit, reason).await;
            }
            Change::Cancel { running } => *running,
        };
        let cancel = CancelJobs {
            name: self.queue_name(queue),
            ids,
            only: only.cloned(),
            running,
            reason: reason.to_owned(),
        };
        let cancelled = self.0.jobs.call(cancel).await?;
        Ok(Edited {
            jobs: cancelled.jobs,
            locked: cancelled.locked,
            ..Edited::default()
        })
    }
}

/// What is done to jobs.
enum Change {
    Cancel {
        running: bool,
    },
    /// With `again`, jobs may be found again that have it already.
    Edit {
        edit: JobEdit,
        again: bool,
    },
}

impl Change {
    /// The same for jobs that it was done to already.
    fn again(&self) -> Self {
        match self {
            Self::Cancel { running } => Self::Cancel { running: *running },
            Self::Edit { edit, .. } => Self::Edit {
                edit: edit.clone(),
                again: true,
            },
        }
    }

    /// Whether a job is known to have all that it would get, as one that was moved to a place further on.
    fn is_had_by(&self, job: &ListedJob) -> bool {
        match self {
            Self::Cancel { .. } => false,
            Self::Edit { edit, again } => *again && edit.is_had_by(job),
        }
    }
}

impl MatchedJobs {
    fn add(&mut self, sent: usize, part: Edited) {
        let [changed, locked, same] =
            [part.jobs, part.locked, part.same].map(|jobs| u64::try_from(jobs).unwrap_or(0));
        let sent = u64::try_from(sent).unwrap_or(u64::MAX);
        self.changed += changed;
        self.locked += locked;
        self.unchanged += sent.saturating_sub(changed + locked + same);
    }

    /// The error of a part of so many jobs, with what was done before it.
    fn noted(&self, error: Error, sent: usize) -> Error {
        let unknown = error.kind() == ErrorKind::Indeterminate && sent > 0;
        let error = match self.changed {
            0 => error,
            changed => error.noting(format_args!("{changed} jobs were changed before")),
        };
        if unknown {
            return error.noting(format_args!("{sent} more may have been"));
        }
        error
    }
}

fn check_matching(filter: &JobFilter, reason: &str, allowed: &[JobState]) -> Result<()> {
    filter.clone().limit(MAX_PAGE).check()?;
    check_reason(reason)?;
    check_state(filter.state, allowed)
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
    Error::new(ErrorKind::TimedOut, operation, message).on(queue)
}
