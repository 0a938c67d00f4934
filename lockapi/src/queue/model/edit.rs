//! Changing a job that waits.

use super::Jobs;
use super::job::LiveJob;
use super::listing::first;
use crate::admin::{Edit, EditJobs, JobEdit, MAX_PAYLOAD_CHARS, Seen};
use crate::queue::Priority;

impl Jobs {
    pub(crate) fn edit(&mut self, now: i64, want: &EditJobs, id: i64) -> Edit {
        let live = self.live.get(&id);
        let waits = live.filter(|live| {
            live.queue == want.name
                && want.only.as_ref().is_none_or(|only| live.is_matched(only))
                && live.running.is_none()
                && !live.is_expired(now)
        });
        let seen = want.edit.seen.as_ref();
        let waits = waits.filter(|live| seen.is_none_or(|seen| live.is_as(seen)));
        let Some(attempt) = waits.map(|live| live.attempt) else {
            return Edit::Left;
        };
        let most = want.edit.max_attempts.map(i64::from);
        if most.is_some_and(|most| most <= attempt) {
            return Edit::UsedUp(attempt);
        }
        let Some(mut live) = self.remove(id) else {
            return Edit::Left;
        };
        let before = live.due_at.unwrap_or(live.run_at);
        let is_admitted = !live.job.group.is_empty() && live.due_at.is_none();
        let priority = want.edit.priority.map(Priority::number);
        let wanted = want.edit.at.filter(|at| before.max(*at) > now);
        let due = match (wanted, priority) {
            (Some(at), _) => at.max(now),
            (None, Some(priority)) if priority != live.job.priority => before.max(now),
            (None, _) => before,
        };
        if want.again && due == before && live.has_rest(&want.edit) {
            self.insert(id, live);
            return Edit::Same;
        }
        if live.due_at.is_some() || due > now {
            live.set_due(due);
        } else {
            live.run_at = due;
        }
        if wanted.is_some()
            && let Some(expires) = live.expires_at.as_mut()
        {
            // When it was due at first is not known of what was admitted or deferred.
            let from = if is_admitted || *expires <= before {
                live.created_at
            } else {
                before
            };
            *expires = due.saturating_add(*expires - from);
        }
        live.job.priority = priority.unwrap_or(live.job.priority);
        live.job.max_attempts = most.unwrap_or(live.job.max_attempts);
        if let Some(payload) = &want.edit.payload {
            live.job.payload.clone_from(payload);
        }
        self.insert(id, live);
        Edit::Done
    }
}

impl LiveJob {
    /// Whether it is as somebody saw it.
    fn is_as(&self, seen: &Seen) -> bool {
        self.due_at.unwrap_or(self.run_at) == seen.due
            && self.job.priority == seen.priority
            && self.job.max_attempts == seen.max_attempts
            && self.attempt == seen.attempt
            && (seen.payload.is_empty()
                || first(&self.job.payload, MAX_PAYLOAD_CHARS) == seen.payload)
    }

    /// Whether it has what an edit sets besides the time.
    fn has_rest(&self, edit: &JobEdit) -> bool {
        let priority = edit.priority.map(Priority::number);
        let most = edit.max_attempts.map(i64::from);
        let payload = edit.payload.as_ref();
        priority.is_none_or(|priority| priority == self.job.priority)
            && most.is_none_or(|most| most == self.job.max_attempts)
            && payload.is_none_or(|payload| *payload == self.job.payload)
    }
}
