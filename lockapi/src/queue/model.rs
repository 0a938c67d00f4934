//! What the statements of queues mean.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::operations::{
    Ack, Cancel, Claimed, CountJobs, Counted, DeadRow, Discard, Floor, Name, NewJob, Purge,
    PushKeyed, ReadDead, Redrive, Settle, SweepQueue, Take, Turn,
};
use super::{How, Pushed, Settled, Ticket, Unique};
use crate::seam::{Row, Rows, Value};

const DAY: i64 = 24 * 3600 * 1_000_000;

/// The tables of queues.
#[derive(Debug, Default)]
pub struct Jobs {
    numbers: i64,
    tokens: i64,
    pub(super) live: HashMap<i64, Live>,
    /// By queue, priority, time and number: the index that claims use.
    due: BTreeMap<Name, BTreeSet<(i64, i64, i64)>>,
    pub(super) ended: BTreeMap<i64, Ended>,
    keys: HashMap<(Name, String), (i64, i64)>,
    paused: HashSet<Name>,
}

#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) queue: Name,
    pub(super) job: NewJob,
    pub(super) unique_key: String,
    pub(super) run_at: i64,
    pub(super) created_at: i64,
    pub(super) attempt: i64,
    pub(super) running: Option<Running>,
    pub(super) started_at: Option<i64>,
    pub(super) worker: String,
    pub(super) error: String,
    /// The recurring task that it is a run of; empty is none.
    pub(super) task: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) token: i64,
    pub(super) lease_until: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Completed,
    Failed,
    Cancelled,
}

#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: Status,
    pub(super) at: i64,
    pub(super) job: Live,
}

impl Live {
    pub(super) fn is_held(&self, now: i64) -> bool {
        self.running
            .is_some_and(|running| running.lease_until > now)
    }

    fn has(&self, ticket: Ticket) -> bool {
        self.running
            .is_some_and(|running| running.token == ticket.token)
    }
}

fn time_of(now: i64, job: &NewJob) -> i64 {
    job.at.max(now).saturating_add(job.delay)
}

impl Jobs {
    pub(crate) fn push(
        &mut self,
        now: i64,
        namespace: &str,
        queue: &str,
        job: &NewJob,
        unique_key: &str,
    ) -> i64 {
        self.numbers += 1;
        let id = self.numbers;
        let queue = Name {
            namespace: namespace.to_owned(),
            queue: queue.to_owned(),
        };
        self.insert(
            id,
            Live {
                queue,
                run_at: time_of(now, job),
                job: job.clone(),
                unique_key: unique_key.to_owned(),
                created_at: now,
                attempt: 0,
                running: None,
                started_at: None,
                worker: String::new(),
                error: String::new(),
                task: String::new(),
            },
        );
        id
    }

    fn insert(&mut self, id: i64, live: Live) {
        let place = (live.job.priority, live.run_at, id);
        self.due
            .entry(live.queue.clone())
            .or_default()
            .insert(place);
        self.live.insert(id, live);
    }

    fn remove(&mut self, id: i64) -> Option<Live> {
        let live = self.live.remove(&id)?;
        if let Some(due) = self.due.get_mut(&live.queue) {
            due.remove(&(live.job.priority, live.run_at, id));
        }
        Some(live)
    }

    pub(super) fn end(&mut self, id: i64, status: Status, now: i64, error: &str) {
        if let Some(mut job) = self.remove(id) {
            if !error.is_empty() {
                error.clone_into(&mut job.error);
            }
            let ended = Ended {
                status,
                at: now,
                job,
            };
            self.ended.insert(id, ended);
        }
    }

    pub(crate) fn with_unique_key(&self, queue: &Name, key: &str) -> Option<i64> {
        let mut found = self
            .live
            .iter()
            .filter(|(_, live)| live.queue == *queue && live.unique_key == key);
        found.next().map(|(id, _)| *id)
    }

    pub(crate) fn push_keyed(&mut self, now: i64, want: &PushKeyed) -> Pushed {
        let queue = Name {
            namespace: want.namespace.clone(),
            queue: want.queue.clone(),
        };
        let existing = |id| Pushed {
            id,
            how: How::Existing,
        };
        let key = (queue.clone(), want.keys.idempotency_key.clone());
        if !key.1.is_empty()
            && let Some((id, _)) = self.keys.get(&key)
        {
            return existing(*id);
        }
        let unique_key = &want.keys.unique_key;
        if !unique_key.is_empty()
            && let Some(id) = self.with_unique_key(&queue, unique_key)
        {
            let unique = want.keys.unique;
            let waits = self
                .live
                .get(&id)
                .is_some_and(|live| live.running.is_none());
            if unique == Unique::Skip || !waits {
                return existing(id);
            }
            if let Some(mut live) = self.remove(id) {
                if unique == Unique::Replace {
                    live.run_at = time_of(now, &want.job);
                    live.job = want.job.clone();
                } else {
                    live.job.name.clone_from(&want.job.name);
                    live.job.payload.clone_from(&want.job.payload);
                }
                self.insert(id, live);
            }
            return Pushed {
                id,
                how: How::Changed,
            };
        }
        let id = self.push(now, &want.namespace, &want.queue, &want.job, unique_key);
        if !key.1.is_empty() {
            self.keys.insert(key, (id, now));
        }
        Pushed { id, how: How::New }
    }

    /// The jobs of a queue that are due, priority by priority, from places on.
    fn in_turn<'a>(
        &'a self,
        now: i64,
        queue: &Name,
        lanes: &'a [(i64, Floor)],
    ) -> impl Iterator<Item = i64> + use<'a> {
        let due = self.due.get(queue);
        let paused = self.paused.contains(queue);
        lanes
            .iter()
            .filter(move |_| !paused)
            .flat_map(move |(priority, floor)| {
                let from = (*priority, floor.0, floor.1);
                let to = (*priority, now, i64::MAX);
                due.filter(|_| from <= to)
                    .into_iter()
                    .flat_map(move |due| due.range(from..=to))
                    .filter(move |place| **place != from)
                    .map(|(_, _, id)| *id)
            })
    }

    pub(crate) fn claim(&mut self, now: i64, want: &Turn) -> (i64, Vec<Claimed>) {
        let most = usize::try_from(want.most).unwrap_or(0);
        let free = |id: &i64| {
            let acked = || want.acks.iter().any(|ack| ack.ticket.id == *id);
            self.live
                .get(id)
                .is_some_and(|live| live.running.is_none() || (!live.is_held(now) && !acked()))
        };
        let queue = Name {
            namespace: want.namespace.clone(),
            queue: want.queue.clone(),
        };
        let in_turn = self.in_turn(now, &queue, &want.lanes);
        let picked: Vec<i64> = in_turn.filter(free).take(most).collect();
        let mut claimed = Vec::new();
        for id in &picked {
            let Some(live) = self.live.get_mut(id) else {
                continue;
            };
            if live.attempt >= live.job.max_attempts {
                let error = "the lease of the last attempt ended without an answer";
                self.end(*id, Status::Failed, now, error);
                continue;
            }
            self.tokens += 1;
            live.attempt += 1;
            live.started_at = Some(now);
            live.worker.clone_from(&want.worker);
            live.running = Some(Running {
                token: self.tokens,
                lease_until: now.saturating_add(want.lease),
            });
            claimed.push(Claimed {
                ticket: Ticket {
                    id: *id,
                    token: self.tokens,
                },
                attempt: live.attempt,
                max_attempts: live.job.max_attempts,
                priority: live.job.priority,
                run_at: live.run_at,
                created_at: live.created_at,
                name: live.job.name.clone(),
                payload: live.job.payload.clone(),
            });
        }
        (i64::try_from(picked.len()).unwrap_or(i64::MAX), claimed)
    }

    pub(crate) fn take(&mut self, now: i64, want: &Take) -> Vec<Claimed> {
        let queue = Name {
            namespace: want.namespace.clone(),
            queue: want.queue.clone(),
        };
        let most = usize::try_from(want.most).unwrap_or(0);
        let lanes = [0, 1, 2, 3].map(|priority| (priority, (0, 0)));
        let free = |id: &i64| self.live.get(id).is_some_and(|live| !live.is_held(now));
        let in_turn = self.in_turn(now, &queue, &lanes);
        let picked: Vec<i64> = in_turn.filter(free).take(most).collect();
        let mut taken = Vec::new();
        for id in picked {
            let Some(live) = self.live.get_mut(&id) else {
                continue;
            };
            taken.push(Claimed {
                ticket: Ticket { id, token: 0 },
                attempt: live.attempt,
                max_attempts: live.job.max_attempts,
                priority: live.job.priority,
                run_at: live.run_at,
                created_at: live.created_at,
                name: live.job.name.clone(),
                payload: live.job.payload.clone(),
            });
            live.attempt += 1;
            live.running = None;
            live.started_at = Some(now);
            live.worker.clone_from(&want.worker);
            if want.archive || !live.task.is_empty() {
                self.end(id, Status::Completed, now, "");
            } else {
                self.remove(id);
            }
        }
        taken
    }

    pub(crate) fn next_due(&self, now: i64, want: &Turn) -> Option<i64> {
        let queue = Name {
            namespace: want.namespace.clone(),
            queue: want.queue.clone(),
        };
        let due = self.due.get(&queue)?;
        let next = want.lanes.iter().filter_map(|(priority, _)| {
            let from = (*priority, now, i64::MAX);
            let (of, at, _) = due.range(from..).find(|place| **place != from)?;
            (of == priority).then_some(at - now)
        });
        next.min()
    }

    fn ack(&mut self, now: i64, acks: &[Ack]) -> Vec<i64> {
        let mut done = Vec::new();
        for ack in acks {
            let id = ack.ticket.id;
            if let Some(live) = self.live.get(&id).filter(|live| live.has(ack.ticket)) {
                if ack.archive || !live.task.is_empty() {
                    self.end(id, Status::Completed, now, "");
                } else {
                    self.remove(id);
                }
                done.push(id);
            }
        }
        done
    }

    pub(crate) fn settle(&mut self, now: i64, want: &Settle) -> Settled {
        let id = want.ticket.id;
        let Some(live) = self.live.get(&id).filter(|live| live.has(want.ticket)) else {
            return Settled::Lost;
        };
        let last = live.attempt >= live.job.max_attempts;
        if want.kind == 1 || (matches!(want.kind, 0 | 4) && last) {
            self.end(id, Status::Failed, now, &want.error);
            return Settled::Dead;
        }
        if let Some(mut live) = self.remove(id) {
            if want.kind == 5 {
                if let Some(running) = &mut live.running {
                    running.lease_until = now.saturating_add(want.time);
                }
            } else {
                live.running = None;
            }
            if matches!(want.kind, 0 | 2) {
                live.run_at = now.saturating_add(want.time);
            }
            if matches!(want.kind, 2 | 3) {
                live.attempt -= 1;
            }
            if !want.error.is_empty() {
                live.error.clone_from(&want.error);
            }
            self.insert(id, live);
        }
        Settled::Done
    }

    pub(crate) fn cancel(&mut self, now: i64, want: &Cancel) -> Vec<i64> {
        let mut ids = want.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| {
            self.live
                .get(id)
                .is_some_and(|live| live.queue == want.name)
        });
        for id in &ids {
            self.end(*id, Status::Cancelled, now, "");
        }
        ids
    }

    pub(crate) fn purge(&mut self, want: &Purge) -> i64 {
        let places = self.due.get(&want.name).into_iter().flatten();
        let waiting = places
            .map(|(_, _, id)| *id)
            .filter(|id| self.live.get(id).is_some_and(|live| live.running.is_none()));
        let most = usize::try_from(want.most).unwrap_or(0);
        let ids: Vec<i64> = waiting.take(most).collect();
        ids.into_iter()
            .filter_map(|id| self.remove(id))
            .map(|_| 1)
            .sum()
    }

    fn dead<'a>(&'a self, queue: &'a Name, ids: &'a [i64]) -> impl Iterator<Item = i64> + 'a {
        self.ended
            .iter()
            .filter(|(_, ended)| ended.status == Status::Failed && ended.job.queue == *queue)
            .map(|(id, _)| *id)
            .filter(|id| ids.is_empty() || ids.contains(id))
    }

    pub(crate) fn redrive(&mut self, now: i64, want: &Redrive) -> i64 {
        let most = usize::try_from(want.most).unwrap_or(0);
        let free = |id: &i64| {
            let key = self.ended.get(id).map(|ended| &ended.job.unique_key);
            key.is_some_and(|key| key.is_empty() || self.with_unique_key(&want.name, key).is_none())
        };
        let held: Vec<i64> = self
            .dead(&want.name, &want.ids)
            .filter(free)
            .take(most)
            .collect();
        let mut count = 0;
        for id in held {
            let Some(ended) = self.ended.remove(&id) else {
                continue;
            };
            let key = &ended.job.unique_key;
            if !key.is_empty() && self.with_unique_key(&want.name, key).is_some() {
                self.ended.insert(id, ended);
                continue;
            }
            let mut live = ended.job;
            live.run_at = now;
            live.attempt = 0;
            live.running = None;
            self.insert(id, live);
            count += 1;
        }
        count
    }

    pub(crate) fn discard(&mut self, want: &Discard) -> i64 {
        let most = usize::try_from(want.most).unwrap_or(0);
        let ids: Vec<i64> = self.dead(&want.name, &want.ids).take(most).collect();
        ids.into_iter()
            .filter_map(|id| self.ended.remove(&id))
            .map(|_| 1)
            .sum()
    }

    pub(crate) fn sweep(&mut self, now: i64, want: &SweepQueue) -> i64 {
        let most = usize::try_from(want.most).unwrap_or(0);
        let old = self.ended.iter().filter(|(_, ended)| {
            ended.job.queue == want.name
                && ended.status != Status::Failed
                && ended.job.task.is_empty()
                && ended.at < now - want.keep
        });
        let old: Vec<i64> = old.map(|(id, _)| *id).take(most).collect();
        for id in &old {
            self.ended.remove(id);
        }
        let keys = self.keys.len();
        self.keys.retain(|_, (_, used)| *used >= now - DAY);
        i64::try_from(old.len().max(keys - self.keys.len())).unwrap_or(i64::MAX)
    }

    pub(crate) fn set_paused(&mut self, queue: &Name, paused: bool) {
        if paused {
            self.paused.insert(queue.clone());
        } else {
            self.paused.remove(queue);
        }
    }

    pub(crate) fn count(&self, now: i64, want: &CountJobs) -> Counted {
        let mut counted = Counted {
            paused: self.paused.contains(&want.name),
            ..Counted::default()
        };
        let mut seen = HashMap::<(i64, bool), i64>::new();
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
        let dead = i64::try_from(self.dead(&want.name, &[]).count()).unwrap_or(i64::MAX);
        counted.dead = dead.min(want.most);
        counted.more_dead = dead >= want.most;
        counted
    }

    pub(crate) fn dead_letters(&self, want: &ReadDead) -> Vec<DeadRow> {
        let most = usize::try_from(want.most).unwrap_or(0);
        let after = self
            .dead(&want.name, &[])
            .filter(|id| *id > want.after)
            .take(most);
        after
            .filter_map(|id| {
                let ended = self.ended.get(&id)?;
                Some(DeadRow {
                    id,
                    name: ended.job.job.name.clone(),
                    payload: ended.job.job.payload.clone(),
                    error: ended.job.error.clone(),
                    attempt: ended.job.attempt,
                    worker: ended.job.worker.clone(),
                    created_at: ended.job.created_at,
                    failed_at: ended.at,
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

    /// What kind of job it is, as long as it waits or runs.
    pub(crate) fn kind(&self, id: i64) -> Option<&str> {
        self.live.get(&id).map(|live| live.job.name.as_str())
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
        let row = |(id, live, running): (i64, &Live, Running)| {
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

impl crate::memory::World {
    /// The tables of queues.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    pub(crate) fn ack_jobs(&mut self, acks: &[Ack]) -> Vec<i64> {
        let now = self.now;
        self.jobs.ack(now, acks)
    }
}
