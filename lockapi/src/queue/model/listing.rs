//! What is listed of jobs and queues.

use std::collections::BTreeSet;

use serde_json::json;

use super::progress::Told;
use super::{Ended, Jobs, LiveJob, Status};
use crate::admin::{JobMatch, JobState, ListJobs, ListQueues, MAX_PAYLOAD_CHARS, ReadJob};
use crate::driver::columns::{maybe_int, maybe_text};
use crate::driver::{Row, Rows, Value};
use crate::queue::{Name, TAGS};

fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

pub(super) fn first(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

/// The columns of what a handler told.
fn progress(told: Option<&Told>) -> [Value; 3] {
    [
        maybe_int(told.map(|told| told.millionths)),
        maybe_text(told.map(|told| told.note.as_str())),
        maybe_int(told.map(|told| told.reported_at)),
    ]
}

fn state_of(ended: &Ended) -> JobState {
    match ended.status {
        Status::Completed => JobState::Completed,
        Status::Failed => JobState::Failed,
        Status::Cancelled => JobState::Cancelled,
    }
}

impl LiveJob {
    fn state(&self, now: i64) -> JobState {
        if self.is_held(now) {
            JobState::Running
        } else if self.run_at > now {
            JobState::Delayed
        } else {
            JobState::Ready
        }
    }

    /// The time that its lease has left, as the row of a job that has not ended shows it.
    fn lease_left(&self, now: i64, ended: Option<i64>) -> Value {
        let running = self.running.filter(|_| ended.is_none());
        maybe_int(running.map(|running| running.lease_until - now))
    }

    fn listed(
        &self,
        id: i64,
        now: i64,
        state: JobState,
        ended: Option<i64>,
        told: Option<&Told>,
    ) -> Row {
        let mut row = vec![
            Value::Int(id),
            Value::Text(self.job.name.clone()),
            Value::Int(self.job.priority),
            Value::Int(self.attempt),
            Value::Int(self.job.max_attempts),
            Value::Int(self.run_at),
            Value::Int(self.created_at),
            maybe_int(self.started_at),
            maybe_int(ended),
            self.lease_left(now, ended),
            maybe_text(some(&self.worker)),
            maybe_text(some(&self.error).map(|error| first(error, 1000)).as_deref()),
            maybe_int(None),
            Value::Text(state.as_str().to_owned()),
            maybe_int(self.due_at.filter(|_| ended.is_none())),
        ];
        row.extend(progress(told));
        row.extend(self.labels());
        Row(row)
    }

    /// The columns of its group and its tags.
    fn labels(&self) -> [Value; 2] {
        [
            maybe_text(some(&self.job.group)),
            maybe_text(self.job.headers.get(TAGS)),
        ]
    }

    /// Whether it is one of those that are listed, whatever its state.
    fn matches(&self, want: &ListJobs) -> bool {
        let (from, before) = want.created;
        self.queue == want.name
            && self.is_labelled(&want.job, &want.group, &want.tag)
            && (from..before).contains(&self.created_at)
    }

    pub(super) fn is_matched(&self, only: &JobMatch) -> bool {
        self.is_labelled(&only.name, &only.group, &only.tag)
    }

    /// Empty is any.
    fn is_labelled(&self, name: &str, group: &str, tag: &str) -> bool {
        (name.is_empty() || self.job.name == name)
            && (group.is_empty() || self.job.group == group)
            && (tag.is_empty() || self.job.headers.tags().any(|it| it == tag))
    }

    fn details(
        &self,
        id: i64,
        now: i64,
        state: JobState,
        ended: Option<i64>,
        payload: bool,
    ) -> Row {
        let errors: serde_json::Value = self
            .errors
            .iter()
            .map(|it| json!({ "attempt": it.attempt, "at": it.at, "worker": it.worker, "error": it.error }))
            .collect();
        let headers = payload.then(|| self.job.headers.column()).flatten();
        let payload = payload.then(|| first(&self.job.payload, MAX_PAYLOAD_CHARS));
        Row(vec![
            Value::Int(id),
            Value::Text(self.queue.queue.clone()),
            Value::Text(state.as_str().to_owned()),
            Value::Text(self.job.name.clone()),
            Value::Int(self.job.priority),
            Value::Int(self.attempt),
            Value::Int(self.job.max_attempts),
            Value::Int(self.due_at.unwrap_or(self.run_at)),
            Value::Int(self.created_at),
            maybe_int(self.started_at),
            maybe_int(ended),
            self.lease_left(now, ended),
            maybe_int(self.expires_at.filter(|_| ended.is_none())),
            maybe_text(some(&self.worker)),
            maybe_text(some(&self.error)),
            maybe_text(some(&self.unique_key)),
            maybe_text(some(&self.task)),
            Value::Text(errors.to_string()),
            Value::Int(self.size()),
            maybe_text(payload.as_deref()),
            maybe_text(headers.as_deref()),
        ])
    }
}

impl Jobs {
    /// The rows of a list of jobs.
    pub(crate) fn list(&self, now: i64, want: &ListJobs) -> Rows {
        let examined = usize::try_from(want.examined).unwrap_or_default();
        let rows = if want.state.is_some_and(JobState::has_ended) {
            self.examine_ended(want, examined)
        } else {
            self.examine_live(now, want, examined)
        };
        let full = rows.len() >= examined;
        let last = rows.last().map(|(id, live, ..)| (*id, *live));
        let most = usize::try_from(want.most).unwrap_or_default();
        let wanted = rows.into_iter().filter(|(_, live, state, _)| {
            live.matches(want) && want.state.is_none_or(|it| it == *state)
        });
        let mut listed: Rows = wanted
            .take(most)
            .map(|(id, live, state, ended)| live.listed(id, now, state, ended, self.told(id, live)))
            .collect();
        if let Some((id, live)) = last.filter(|_| full) {
            let mut row = vec![maybe_int(None); 20];
            for text in [1, 10, 11, 13, 16, 18, 19] {
                row[text] = maybe_text(None);
            }
            row[2] = Value::Int(live.job.priority);
            row[5] = Value::Int(live.run_at);
            row[12] = Value::Int(id);
            listed.push(Row(row));
        }
        listed
    }

    fn examine_live(
        &self,
        now: i64,
        want: &ListJobs,
        examined: usize,
    ) -> Vec<(i64, &LiveJob, JobState, Option<i64>)> {
        let due = self.due.get(&want.name).into_iter().flatten();
        let levels = want.levels();
        let after = |(priority, at, id): &&(i64, i64, i64)| {
            let level = levels.iter().find(|level| level.0 == *priority);
            let in_time = match want.state {
                None => true,
                Some(JobState::Delayed) => *at > now,
                Some(_) => *at <= now,
            };
            in_time && level.is_some_and(|level| (level.1, level.2) < (*at, *id))
        };
        due.filter(after)
            .take(examined)
            .filter_map(|(_, _, id)| {
                let live = self.live.get(id)?;
                Some((*id, live, live.state(now), None))
            })
            .collect()
    }

    fn examine_ended(
        &self,
        want: &ListJobs,
        examined: usize,
    ) -> Vec<(i64, &LiveJob, JobState, Option<i64>)> {
        let below = self.ended.range(..want.below()).rev();
        // Dead letters of a queue have an index of their own.
        let indexed = |ended: &Ended| {
            want.state != Some(JobState::Failed)
                || (ended.status == Status::Failed && ended.job.queue == want.name)
        };
        below
            .filter(|(_, ended)| indexed(ended))
            .take(examined)
            .map(|(id, ended)| (*id, &ended.job, state_of(ended), Some(ended.at)))
            .collect()
    }

    /// The row of a job.
    pub(crate) fn read(&self, now: i64, want: &ReadJob) -> Option<Row> {
        let (live, state, ended) = if let Some(live) = self.live.get(&want.id) {
            (live, live.state(now), None)
        } else {
            let ended = self.ended.get(&want.id)?;
            (&ended.job, state_of(ended), Some(ended.at))
        };
        let of = live.queue.namespace == want.namespace;
        of.then(|| {
            let mut row = live.details(want.id, now, state, ended, want.payload);
            row.0.extend(progress(self.told(want.id, live)));
            let result = self.kept_result(now, want.id);
            let result = result.filter(|_| want.payload && ended.is_some());
            let result = result.map(|result| first(result.as_str(), MAX_PAYLOAD_CHARS));
            row.0.push(maybe_text(result.as_deref()));
            row.0.extend(live.labels());
            row
        })
    }

    /// The rows of a list of queues.
    pub(crate) fn queues(&self, now: i64, want: &ListQueues) -> Rows {
        let live = self.live.values().map(|live| &live.queue);
        let ended = self.ended.values();
        let dead = ended.filter(|ended| ended.status == Status::Failed);
        let dead = dead.map(|dead| &dead.job.queue);
        let all: BTreeSet<&Name> = live.chain(dead).chain(self.switched.keys()).collect();
        let after = (want.after.0.as_str(), want.after.1.as_str());
        let wanted = all.into_iter().filter(|name| {
            (name.namespace.as_str(), name.queue.as_str()) > after
                && want
                    .namespace
                    .as_ref()
                    .is_none_or(|it| *it == name.namespace)
        });
        let row = |name: &Name| {
            Row(vec![
                Value::Text(name.namespace.clone()),
                Value::Text(name.queue.clone()),
                Value::Bool(self.is_paused(now, name)),
            ])
        };
        let most = usize::try_from(want.most).unwrap_or_default();
        wanted.take(most).map(row).collect()
    }
}
