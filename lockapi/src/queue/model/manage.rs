//! What is done to queues as a whole, and what is told of them.

use std::collections::BTreeMap;
use std::ops::Bound;

use rustc_hash::FxHashMap;

use super::{DAY, Jobs, LiveJob, NOT_IN_TIME, Running, Status};
use crate::admin::JobMatch;
use crate::driver::{Row, Rows, Value};
use crate::queue::operations::{
    Cancel, Cancelled, CountJobs, CountRunning, Counted, DeadLetterRow, Discard, ExpireJobs, Floor,
    Name, Purge, QueuePlace, ReadDeadLetters, ReadUnhandled, Redrive, RunningLevel, SetNamePaused,
    SetPaused, SweepQueues,
};
use crate::sweep::count;

/// The first `most` of these, in order.
fn first<T: Ord>(most: usize, all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    all.truncate(most);
    all
}

impl Jobs {
    /// What an operator cancels has the reason in the place of an error.
    pub(crate) fn blame(&mut self, id: i64, reason: &str) {
        if let Some(ended) = self.ended.get_mut(&id) {
            reason.clone_into(&mut ended.job.error);
        }
    }

    pub(crate) fn cancel(&mut self, now: i64, want: &Cancel) -> Cancelled {
        let mut ids = want.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| {
            self.live
                .get(id)
                .is_some_and(|live| live.queue == want.name)
        });
        let (locked, cancelled) = ids.into_iter().partition(|id| self.locked.contains(id));
        let cancelled = Cancelled { cancelled, locked };
        for id in &cancelled.cancelled {
            self.end(*id, Status::Cancelled, now, "", want.keep);
        }
        cancelled
    }

    /// Answers as well the places that were examined.
    pub(crate) fn purge(&mut self, want: &Purge) -> (i64, Vec<QueuePlace>) {
        let most = usize::try_from(want.most).unwrap_or(0);
        let after = (Bound::Excluded(want.after), Bound::Unbounded);
        let due = self.due.get(&want.name).into_iter();
        let waiting = due
            .flat_map(|due| due.range(after))
            .filter(|(_, _, id)| self.live.get(id).is_some_and(|live| live.running.is_none()));
        let part: Vec<QueuePlace> = waiting.take(most).copied().collect();
        let ids = part.iter().map(|(_, _, id)| *id);
        let ids: Vec<i64> = ids.filter(|id| !self.locked.contains(id)).collect();
        let deleted = ids.into_iter().filter_map(|id| self.remove(id)).map(|_| 1);
        (deleted.sum(), part)
    }

    fn dead<'a>(
        &'a self,
        queue: &'a Name,
        ids: &'a [i64],
        after: i64,
    ) -> impl Iterator<Item = i64> + 'a {
        self.ended
            .range((Bound::Excluded(after), Bound::Unbounded))
            .filter(|(_, ended)| ended.status == Status::Failed && ended.job.queue == *queue)
            .map(|(id, _)| *id)
            .filter(|id| ids.is_empty() || ids.contains(id))
    }

    /// Answers as well which were examined, and the tasks that its runs were looked at of.
    pub(crate) fn redrive(&mut self, now: i64, want: &Redrive) -> (i64, Vec<i64>, Vec<String>) {
        let most = usize::try_from(want.most).unwrap_or(0);
        let free = |id: &i64| {
            let key = self.ended.get(id).map(|ended| &ended.job.unique_key);
            key.is_some_and(|key| key.is_empty() || self.with_unique_key(&want.name, key).is_none())
        };
        let held: Vec<i64> = self
            .dead(&want.name, &want.ids, want.after)
            .filter(free)
            .take(most)
            .collect();
        let looked_at = held.iter().filter_map(|id| self.ended.get(id));
        let keyed = looked_at.filter(|ended| !ended.job.unique_key.is_empty());
        let tasks = keyed.map(|ended| ended.job.task.clone()).collect();
        let mut redriven = 0;
        for &id in &held {
            let Some(ended) = self.ended.remove(&id) else {
                continue;
            };
            let key = &ended.job.unique_key;
            if !key.is_empty() && self.with_unique_key(&want.name, key).is_some() {
                self.ended.insert(id, ended);
                continue;
            }
            let mut live = ended.job;
            live.set_due(now);
            live.attempt = 0;
            live.expires_at = None;
            live.running = None;
            live.started_at = None;
            self.insert(id, live);
            redriven += 1;
        }
        (redriven, held, tasks)
    }

    pub(crate) fn discard(&mut self, want: &Discard) -> Vec<i64> {
        let most = usize::try_from(want.most).unwrap_or(0);
        let dead = self.dead(&want.name, &want.ids, want.after);
        let ids: Vec<i64> = dead.take(most).collect();
        for id in &ids {
            self.ended.remove(id);
        }
        ids
    }

    /// Answers how many were deleted and examined, and from when on the next part begins.
    pub(crate) fn sweep(&mut self, now: i64, want: &SweepQueues) -> [i64; 4] {
        let most = usize::try_from(want.most).unwrap_or(0);
        let old = self.ended.iter().filter_map(|(id, ended)| {
            let at = ended.expires_at.filter(|at| *at < now)?;
            (ended.job.queue.namespace == want.namespace).then_some((at, *id))
        });
        let old = first(most, old.filter(|(at, _)| *at >= want.from.0));
        let stale = self.keys.iter().map(|(key, (_, used))| (*used, key));
        let stale = stale.filter(|(used, _)| (want.from.1..now - DAY).contains(used));
        let stale: Vec<_> = first(most, stale)
            .into_iter()
            .map(|(used, key)| (used, key.clone()))
            .collect();
        let from = [
            old.last().map_or(want.from.0, |(at, _)| *at),
            stale.last().map_or(want.from.1, |(used, _)| *used),
        ];
        for (_, id) in &old {
            self.ended.remove(id);
        }
        for (_, key) in &stale {
            self.keys.remove(key);
        }
        let (jobs, keys) = (count(&old), count(&stale));
        [jobs + keys, jobs.max(keys), from[0], from[1]]
    }

    /// Answers how many were moved, what was examined, and whether there may be more.
    pub(crate) fn expire(&mut self, now: i64, want: &ExpireJobs) -> (i64, Vec<Floor>, bool) {
        let most = usize::try_from(want.most).unwrap_or(0);
        let live = self.live.iter();
        let of = live.filter(|(_, live)| live.queue.namespace == want.namespace);
        let mut part: Vec<Floor> = of
            .filter_map(|(id, live)| Some((live.expires_at?, *id)))
            .filter(|place| place.0 <= now && *place > want.after)
            .collect();
        part.sort_unstable();
        part.truncate(most);
        let mut before = 0;
        let fits = |(_, id): &Floor| {
            let fits = before < want.bytes;
            let live = self.live.get(id).filter(|live| live.attempt == 0);
            before += live.map_or(0, LiveJob::size);
            fits
        };
        let examined: Vec<Floor> = part.iter().copied().take_while(fits).collect();
        let mut moved = 0;
        for (_, id) in &examined {
            let Some(live) = self.live.get(id) else {
                continue;
            };
            if live.is_expired(now) && !live.is_held(now) && !self.locked.contains(id) {
                let keep = want.keep(&live.queue.queue);
                self.end(*id, Status::Failed, now, NOT_IN_TIME, keep);
                moved += 1;
            }
        }
        let full = examined.len() < part.len() || part.len() >= most;
        (moved, examined, full)
    }

    pub(crate) fn set_paused(&mut self, now: i64, want: &SetPaused) {
        if !want.paused || !self.is_paused(now, &want.name) {
            self.switched.insert(want.name.clone(), now);
        }
        if want.paused {
            let until = (want.time > 0).then(|| now.saturating_add(want.time));
            self.paused.insert(want.name.clone(), until);
        } else {
            self.paused.remove(&want.name);
        }
    }

    pub(crate) fn set_name_paused(&mut self, now: i64, want: &SetNamePaused) {
        let names = self.paused_names.entry(want.name.clone()).or_default();
        if want.paused {
            let until = (want.time > 0).then(|| now.saturating_add(want.time));
            names.insert(want.job.clone(), until);
        } else {
            names.remove(&want.job);
        }
    }

    /// By name, how many jobs of other names are due and wait, and for how long the first has.
    pub(crate) fn unhandled(&self, now: i64, want: &ReadUnhandled) -> BTreeMap<String, (i64, i64)> {
        let mut seen = FxHashMap::<i64, i64>::default();
        let mut found = BTreeMap::<String, (i64, i64)>::new();
        let places = self.due.get(&want.name).into_iter().flatten();
        for (priority, at, id) in places.filter(|(_, at, _)| *at <= now) {
            let seen = seen.entry(*priority).or_default();
            *seen += 1;
            let live = self.live.get(id).filter(|live| live.running.is_none());
            let Some(live) = live.filter(|_| *seen <= want.most) else {
                continue;
            };
            if !want.names.contains(&live.job.name) {
                let found = found.entry(live.job.name.clone()).or_default();
                *found = (found.0 + 1, found.1.max(now - at));
            }
        }
        found
    }

    pub(crate) fn count(&self, now: i64, want: &CountJobs) -> Counted {
        let mut counted = Counted {
            paused: self.is_paused(now, &want.name),
            resumes_in: self.resumes_in(now, &want.name),
            ..Counted::default()
        };
        let mut seen = FxHashMap::<(i64, bool), i64>::default();
        let places = self.due.get(&want.name).into_iter().flatten();
        for (priority, at, id) in places {
            let is_due = *at <= now;
            let seen = seen.entry((*priority, is_due)).or_default();
            if *seen >= want.most {
                continue;
            }
            *seen += 1;
            let full = *seen == want.most;
            if !is_due {
                counted.delayed += 1;
                counted.more_delayed |= full;
                continue;
            }
            counted.more_due |= full;
            if self.live.get(id).is_some_and(|live| live.is_held(now)) {
                counted.running += 1;
            } else {
                counted.ready += 1;
                counted.oldest = counted.oldest.max(Some(now - at));
            }
        }
        let dead = i64::try_from(self.dead(&want.name, &[], 0).count()).unwrap_or(i64::MAX);
        counted.dead = dead.min(want.most);
        counted.more_dead = dead >= want.most;
        counted
    }

    pub(crate) fn count_running(&self, now: i64, want: &CountRunning) -> Vec<RunningLevel> {
        let most = usize::try_from(want.most).unwrap_or(0);
        let level = |(priority, from): &(i64, Floor)| {
            let places = self.due.get(&want.name).into_iter().flatten();
            let examined: Vec<_> = places
                .filter(|(of, at, id)| of == priority && *at <= now && (*at, *id) > *from)
                .take(most)
                .collect();
            let held = |id: &i64| self.live.get(id).is_some_and(|live| live.is_held(now));
            let running = examined.iter().filter(|(.., id)| held(id)).count();
            let count = |many: usize| i64::try_from(many).unwrap_or(i64::MAX);
            RunningLevel {
                priority: *priority,
                examined: count(examined.len()),
                running: count(running),
                reached: examined.last().map(|(_, at, id)| (*at, *id)),
            }
        };
        want.priorities.iter().map(level).collect()
    }

    pub(crate) fn dead_letters(&self, want: &ReadDeadLetters) -> Vec<DeadLetterRow> {
        let most = usize::try_from(want.most).unwrap_or(0);
        let after = self.dead(&want.name, &[], want.after).take(most);
        after
            .filter_map(|id| {
                let ended = self.ended.get(&id)?;
                Some(DeadLetterRow {
                    id,
                    name: ended.job.job.name.clone(),
                    payload: ended.job.job.payload.clone(),
                    error: ended.job.error.clone(),
                    attempt: ended.job.attempt,
                    worker: ended.job.worker.clone(),
                    created_at: ended.job.created_at,
                    failed_at: ended.at,
                    errors: ended.job.errors.clone(),
                    headers: ended.job.job.headers.clone(),
                })
            })
            .collect()
    }

    /// When the first lease of a delivery in a namespace ends.
    #[must_use]
    pub fn first_end(&self, namespace: &str) -> Option<i64> {
        let live = self.live.values();
        let of = live.filter(|live| live.queue.namespace == namespace);
        of.filter_map(|live| live.running.map(|running| running.lease_until))
            .min()
    }

    /// What kind of job of this queue it is, as long as it waits or runs.
    pub(crate) fn kind(&self, queue: &Name, id: i64) -> Option<&str> {
        let live = self.live.get(&id).filter(|live| live.queue == *queue);
        live.map(|live| live.job.name.as_str())
    }

    /// Whether the job is one that is looked for.
    pub(crate) fn is_of(&self, id: i64, only: Option<&JobMatch>) -> bool {
        self.live
            .get(&id)
            .is_some_and(|live| only.is_none_or(|only| live.is_matched(only)))
    }

    /// Whether the job runs.
    pub(crate) fn runs(&self, now: i64, id: i64) -> bool {
        self.live.get(&id).is_some_and(|live| live.is_held(now))
    }

    /// The rows that tell which jobs run.
    pub(crate) fn running(
        &self,
        now: i64,
        namespace: Option<&str>,
        queue: Option<&str>,
        most: i64,
    ) -> Rows {
        let wanted = |name: &Name| {
            namespace.is_none_or(|it| it == name.namespace)
                && queue.is_none_or(|it| it == name.queue)
        };
        let live = self.live.iter().filter(|(_, live)| wanted(&live.queue));
        let mut running: Vec<_> = live
            .filter_map(|(id, live)| Some((*id, live, live.running?)))
            .filter(|(.., running)| running.lease_until > now)
            .collect();
        running.sort_by_key(|(id, ..)| *id);
        let row = |(id, live, running): (i64, &LiveJob, Running)| {
            Row(vec![
                Value::Int(id),
                Value::Text(live.queue.namespace.clone()),
                Value::Text(live.queue.queue.clone()),
                Value::Text(live.job.name.clone()),
                Value::Text(live.worker.clone()),
                Value::Int(live.attempt),
                Value::Int(now - live.started_at.unwrap_or(now)),
                Value::Int(running.lease_until - now),
            ])
        };
        let most = usize::try_from(most).unwrap_or_default();
        running.into_iter().take(most).map(row).collect()
    }

    /// How many jobs of a namespace wait, are delivered, and have ended.
    #[must_use]
    pub fn count_all(&self, namespace: &str) -> (usize, usize, usize) {
        let live = self.live.values();
        let (running, waiting): (Vec<_>, Vec<_>) = live
            .filter(|live| live.queue.namespace == namespace)
            .partition(|live| live.running.is_some());
        let ended = self.ended.values();
        let ended = ended.filter(|ended| ended.job.queue.namespace == namespace);
        (waiting.len(), running.len(), ended.count())
    }
}
