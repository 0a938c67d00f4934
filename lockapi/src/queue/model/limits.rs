//! Limits of queues.

use super::{Jobs, LiveJob};
use crate::queue::operations::{CompleteAndClaim, LimitRow, Limited, Name, SetQueueLimit, Take};

/// The limit of a queue. Its places are not noted: what runs has one.
#[derive(Clone, Debug, Default)]
pub(super) struct Limit {
    row: LimitRow,
    /// The theoretical arrival time, as of `at`, in nanoseconds.
    tat: i64,
    at: i64,
    /// Without a limit of what runs, deliveries with larger tokens are noted.
    noted_from: i64,
}

impl Limit {
    /// What was taken and is not replenished, in nanoseconds.
    fn owed(&self, now: i64) -> i64 {
        (self.tat - self.at.max(now * 1000)).max(0)
    }

    /// How many permits there are, and when the next comes, in microseconds, if there is none.
    fn permits(&self, now: i64) -> Option<(i64, Option<i64>)> {
        let step = self.row.step?;
        let burst = self.row.burst.unwrap_or_default();
        let owed = self.owed(now);
        let wait = owed - (burst - 1) * step;
        let next_in = (wait > 0).then_some((wait + 999) / 1000);
        Some((((burst * step - owed) / step).max(0), next_in))
    }
}

/// What a claim may take.
pub(super) struct Room {
    pub(super) jobs: usize,
    /// The jobs that are claimed again, and no others.
    pub(super) again: Option<Vec<i64>>,
    next_in: Option<i64>,
}

/// What a limit did to a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) room: usize,
    pub(crate) held_back: Limited,
    /// When the next permit comes.
    pub(crate) next_in: Option<i64>,
}

impl Jobs {
    /// Whether the queue limits how many of its jobs run.
    pub(super) fn limits_running(&self, queue: &Name) -> bool {
        let limit = self.limits.get(queue);
        limit.is_some_and(|limit| limit.row.running.is_some())
    }

    fn held<'a>(&'a self, now: i64, queue: &'a Name) -> impl Iterator<Item = (i64, &'a LiveJob)> {
        let live = self.live.iter();
        let of_queue = live.filter(move |(_, live)| live.queue == *queue);
        // Nobody knows what becomes of a job whose row is locked.
        let holds = move |id, live: &LiveJob| live.running.is_some() && self.locked.contains(id);
        of_queue
            .filter(move |(id, live)| live.is_held(now) || holds(id, live))
            .map(|(id, live)| (*id, live))
    }

    /// Moves the times of a limit back where the clock was set back.
    pub(super) fn move_limit_back(&mut self, now: i64, queue: &Name) {
        if let Some(limit) = self.limits.get_mut(queue)
            && limit.row.step.is_some()
            && limit.at > now * 1000
        {
            limit.tat -= limit.at - now * 1000;
            limit.at = now * 1000;
        }
    }

    /// What a claim may take of a queue that has a limit and is not paused.
    pub(super) fn room(&self, now: i64, want: &CompleteAndClaim) -> Option<Room> {
        let queue = want.queue_name();
        let limit = self.limits.get(&queue)?;
        if self.is_paused(now, &queue) {
            return None;
        }
        let mut room = i64::MAX;
        if let Some(most) = limit.row.running {
            let held = i64::try_from(self.held(now, &queue).count()).unwrap_or(i64::MAX);
            room = (most - held).max(0);
        }
        let noted_from = match limit.row.running {
            Some(_) => 0,
            None => limit.noted_from,
        };
        let is_noted = |live: &LiveJob| live.running.is_some_and(|it| it.token > noted_from);
        let mut again = Vec::new();
        if !want.lost.is_empty() {
            again = self
                .held(now, &queue)
                .filter(|(_, live)| is_noted(live))
                .filter(|(_, live)| live.is_held(now) && live.is_of(&want.lost))
                .filter(|(_, live)| live.is_named(&want.names))
                .filter(|(_, live)| !self.is_held_back(now, live))
                .map(|(id, _)| id)
                .collect();
        }
        let permits = limit.permits(now);
        room = room.min(permits.map_or(i64::MAX, |(permits, _)| permits));
        let again = Some(again).filter(|again| !again.is_empty());
        Some(Room {
            jobs: match &again {
                Some(again) => again.len(),
                None => usize::try_from(room).unwrap_or(usize::MAX),
            },
            again,
            next_in: permits.and_then(|(_, next_in)| next_in),
        })
    }

    /// Takes permits.
    pub(super) fn charge(&mut self, now: i64, want: &CompleteAndClaim, taken: i64) {
        let limit = self.limits.get_mut(&want.queue_name());
        if let Some(limit) = limit
            && let Some(step) = limit.row.step
        {
            limit.tat = now * 1000 + limit.owed(now) + taken * step;
            limit.at = now * 1000;
        }
    }

    /// After it was charged for what was claimed.
    pub(super) fn limit_outcome(
        &self,
        now: i64,
        want: &CompleteAndClaim,
        room: &Room,
        (found, claimed, buried): (usize, usize, usize),
    ) -> Outcome {
        let again = room.again.is_some();
        let held_back = if i64::try_from(found).unwrap_or(i64::MAX) >= want.most {
            if !again && claimed >= room.jobs {
                Limited::Spent
            } else {
                Limited::No
            }
        } else if (again && found > 0) || (found >= room.jobs && buried > 0) {
            Limited::Again
        } else if again || found >= room.jobs {
            Limited::Full
        } else {
            Limited::No
        };
        let limit = self.limits.get(&want.queue_name());
        let after = limit.and_then(|limit| limit.permits(now)?.1);
        Outcome {
            room: room.jobs,
            held_back,
            next_in: if room.jobs == 0 {
                room.next_in
            } else {
                after.filter(|_| claimed > 0)
            },
        }
    }

    pub(crate) fn set_limit(&mut self, now: i64, want: &SetQueueLimit) {
        let Some(row) = want.limit else {
            self.limits.remove(&want.name);
            return;
        };
        // It has a row.
        self.switched.entry(want.name.clone()).or_insert(now);
        let last = self.tokens;
        let limit = self.limits.entry(want.name.clone()).or_default();
        limit.noted_from = if row.running.is_none() { last } else { 0 };
        let depth = row.burst.unwrap_or_default() * row.step.unwrap_or_default();
        limit.tat = now * 1000 + limit.owed(now).min(depth);
        limit.at = if row.step.is_some() { now * 1000 } else { 0 };
        limit.row = row;
    }

    /// The limit of a queue, and how many places are taken.
    pub(crate) fn limit(&self, now: i64, queue: &Name) -> Option<(LimitRow, i64)> {
        let limit = self.limits.get(queue)?;
        let held = self.held(now, queue).count();
        let held = if limit.row.running.is_some() { held } else { 0 };
        Some((limit.row, i64::try_from(held).unwrap_or(i64::MAX)))
    }

    /// The limit of a queue, as it was set.
    #[cfg(feature = "suite")]
    #[must_use]
    pub fn queue_limit(&self, queue: &Name) -> Option<LimitRow> {
        self.limits.get(queue).map(|limit| limit.row)
    }

    pub(crate) fn is_limited(&self, take: &Take) -> bool {
        let queue = Name {
            namespace: take.namespace.clone(),
            queue: take.queue.clone(),
        };
        self.limits.contains_key(&queue)
    }
}
