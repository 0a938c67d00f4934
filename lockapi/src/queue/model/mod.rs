//! What the statements of queues mean.

mod edit;
mod groups;
mod history;
mod job;
mod limits;
mod listing;
mod manage;
mod progress;
mod result;
#[cfg(feature = "suite")]
mod sight;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

#[cfg(feature = "suite")]
pub use groups::GroupRule;
pub(super) use job::{Ended, LiveJob, Running, Status};
#[cfg(feature = "suite")]
pub use sight::Sight;

use super::operations::{
    Ack, Claimed, CompleteAndClaim, Floor, NEVER, Name, NewJob, PushKeyed, SearchBelowFloors,
    SearchRange, Settle, Take,
};
use super::{How, Pushed, Settled, Ticket, Unique};

const DAY: i64 = 24 * 3600 * 1_000_000;
/// Why a job is a dead letter that expired before it was delivered.
const NOT_IN_TIME: &str = "it was not delivered in time";

/// The tables of queues.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    numbers: i64,
    tokens: i64,
    /// No token of the epoch is smaller.
    first_token: i64,
    pub(super) live: FxHashMap<i64, LiveJob>,
    /// By queue, priority, time and number: the index that claims use.
    due: BTreeMap<Name, BTreeSet<(i64, i64, i64)>>,
    pub(super) ended: BTreeMap<i64, Ended>,
    keys: FxHashMap<(Name, String), (i64, i64)>,
    /// What handlers told of their jobs, by the numbers of these.
    told: BTreeMap<i64, progress::Told>,
    /// What they returned, by the numbers of the jobs.
    results: BTreeMap<i64, result::Kept>,
    /// Queues that are paused, and until when; `None`: until they are resumed.
    paused: FxHashMap<Name, Option<i64>>,
    /// Names of jobs that are paused, and until when; `None`: until they are resumed.
    paused_names: FxHashMap<Name, BTreeMap<String, Option<i64>>>,
    /// What programs have counted.
    pub history: history::History,
    groups: groups::Groups,
    limits: FxHashMap<Name, limits::Limit>,
    /// Queues that somebody has paused or resumed, and when they did last.
    switched: FxHashMap<Name, i64>,
    /// Jobs whose rows an open transaction has locked.
    locked: FxHashSet<i64>,
}

fn expiry(due: i64, job: &NewJob) -> Option<i64> {
    (job.ttl > 0).then(|| due.saturating_add(job.ttl))
}

fn time_of(now: i64, job: &NewJob) -> i64 {
    job.at.max(now).saturating_add(job.delay)
}

impl Jobs {
    /// Tokens go on at this one at least, and so many numbers are left out.
    pub(crate) fn begin_epoch(&mut self, token: i64, number: i64) {
        self.tokens = self.tokens.max(token);
        self.first_token = token;
        self.numbers = self.numbers.max(number);
    }

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
        let mut live = LiveJob {
            queue,
            run_at: 0,
            due_at: None,
            job: job.clone(),
            unique_key: unique_key.to_owned(),
            created_at: now,
            attempt: 0,
            running: None,
            started_at: None,
            worker: String::new(),
            error: String::new(),
            task: String::new(),
            expires_at: expiry(time_of(now, job), job),
            errors: Vec::new(),
        };
        live.set_due(time_of(now, job));
        self.insert(id, live);
        id
    }

    fn insert(&mut self, id: i64, live: LiveJob) {
        self.groups.inserted(id, &live);
        let place = (live.job.priority, live.run_at, id);
        self.due
            .entry(live.queue.clone())
            .or_default()
            .insert(place);
        self.live.insert(id, live);
    }

    fn remove(&mut self, id: i64) -> Option<LiveJob> {
        let live = self.live.remove(&id)?;
        self.groups.removed(id, &live);
        if let Some(due) = self.due.get_mut(&live.queue) {
            due.remove(&(live.job.priority, live.run_at, id));
        }
        Some(live)
    }

    /// Puts a job into the archive, for so long.
    pub(super) fn end(&mut self, id: i64, status: Status, now: i64, error: &str, keep: i64) {
        if let Some(mut job) = self.remove(id) {
            if !error.is_empty() {
                error.clone_into(&mut job.error);
                job.fail(now, error);
            }
            let kept = keep >= 0 && job.task.is_empty();
            let ended = Ended {
                status,
                at: now,
                job,
                expires_at: kept.then(|| now.saturating_add(keep)),
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

    /// Whether the job of a key is there and not delivered.
    pub(crate) fn waits_with_unique_key(&self, queue: &Name, key: &str) -> bool {
        let id = self.with_unique_key(queue, key).filter(|_| !key.is_empty());
        let live = id.and_then(|id| self.live.get(&id));
        live.is_some_and(|live| live.running.is_none())
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
            let live = self.live.get(&id);
            let waits = live.is_some_and(|live| live.running.is_none());
            let expired = waits && live.is_some_and(|live| live.is_expired(now));
            if unique == Unique::Skip && !expired {
                return existing(id);
            }
            if !waits {
                return Pushed {
                    id,
                    how: How::Running,
                };
            }
            if let Some(mut live) = self.remove(id) {
                if unique == Unique::Replace || expired {
                    let due = time_of(now, &want.job);
                    live.job = want.job.clone();
                    live.set_due(due);
                    live.attempt = 0;
                    live.error.clear();
                    live.errors.clear();
                    live.expires_at = expiry(due, &live.job);
                } else {
                    live.job.name.clone_from(&want.job.name);
                    live.job.payload.clone_from(&want.job.payload);
                    live.job.headers = want.job.headers.with_limit_key_of(&live.job.headers);
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
        priorities: &'a [(i64, Floor)],
    ) -> impl Iterator<Item = i64> + use<'a> {
        let due = self.due.get(queue);
        let paused = self.is_paused(now, queue);
        priorities
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

    pub(crate) fn claim(
        &mut self,
        now: i64,
        want: &CompleteAndClaim,
    ) -> (i64, Option<limits::Outcome>, Vec<Claimed>) {
        let most = usize::try_from(want.most).unwrap_or(0);
        if !self.is_paused(now, &want.queue_name()) {
            self.move_limit_back(now, &want.queue_name());
        }
        let limit = self.room(now, want);
        let room = limit.as_ref().map_or(most, |limit| limit.jobs.min(most));
        let again = limit.as_ref().and_then(|limit| limit.again.as_deref());
        let free = |id: &i64| {
            if self.locked.contains(id) {
                return false;
            }
            let acked = || want.acks.iter().any(|ack| ack.ticket.id == *id);
            let ended = |live: &LiveJob| live.is_of(&want.lost) || !live.is_held(now);
            let live = self.live.get(id);
            let live = live.filter(|live| live.is_named(&want.names));
            let live = live.filter(|live| !self.is_held_back(now, live));
            let live = live.filter(|_| again.is_none_or(|again| again.contains(id)));
            live.is_some_and(|live| live.running.is_none() || (ended(live) && !acked()))
        };
        let queue = want.queue_name();
        let in_turn = self.in_turn(now, &queue, &want.priorities);
        let found: Vec<i64> = in_turn.filter(free).take(room).collect();
        let mut before = 0;
        let fits = |id: &i64| {
            let fits = before < want.bytes;
            before += self.live.get(id).map_or(0, LiveJob::size);
            fits
        };
        let picked: Vec<i64> = found.iter().copied().take_while(fits).collect();
        let looked_at = if picked.len() < found.len() {
            most
        } else {
            found.len()
        };
        let mut claimed = Vec::new();
        let mut charged = 0;
        for id in &picked {
            let Some(live) = self.live.get_mut(id) else {
                continue;
            };
            let again = live.is_of(&want.lost);
            charged += i64::from(!again);
            let used_up = live.attempt >= live.job.max_attempts;
            if live.is_expired(now) || (used_up && !again) {
                let error = if live.attempt == 0 {
                    NOT_IN_TIME
                } else {
                    "the lease of the last attempt ended without an answer"
                };
                charged -= i64::from(!again);
                self.end(*id, Status::Failed, now, error, want.keep_dead);
                continue;
            }
            if live.running.is_some() && !again {
                live.fail(now, "its lease ended without an answer");
            }
            self.tokens += 1;
            live.attempt += i64::from(!again);
            live.started_at = Some(now);
            live.worker.clone_from(&want.worker);
            live.running = Some(Running {
                token: self.tokens,
                claim: want.claim,
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
                headers: live.job.headers.clone(),
                group: Some(live.job.group.clone()).filter(|group| !group.is_empty()),
            });
        }
        let buried = picked.len() - claimed.len();
        let outcome = limit.map(|limit| {
            self.charge(now, want, charged);
            self.limit_outcome(now, want, &limit, (looked_at, claimed.len(), buried))
        });
        (
            i64::try_from(looked_at).unwrap_or(i64::MAX),
            outcome,
            claimed,
        )
    }

    pub(crate) fn is_paused(&self, now: i64, queue: &Name) -> bool {
        let paused = self.paused.get(queue);
        paused.is_some_and(|until| until.is_none_or(|until| until > now))
    }

    /// When a queue was last paused or resumed.
    pub(crate) fn switched_at(&self, queue: &Name) -> i64 {
        self.switched.get(queue).copied().unwrap_or_default()
    }

    /// The names of jobs that are paused in a queue.
    pub(crate) fn names_paused(
        &self,
        now: i64,
        queue: &Name,
    ) -> impl Iterator<Item = (&str, Option<i64>)> {
        let names = self.paused_names.get(queue).into_iter().flatten();
        names
            .filter(move |(_, until)| until.is_none_or(|until| until > now))
            .map(|(name, until)| (name.as_str(), *until))
    }

    /// Whether the name of a job is paused in its queue.
    fn is_held_back(&self, now: i64, live: &LiveJob) -> bool {
        let mut names = self.names_paused(now, &live.queue);
        names.any(|(name, _)| name == live.job.name)
    }

    /// A hash of the names that are paused; `None` where none is.
    pub(crate) fn hash_of_paused(&self, now: i64, queue: &Name) -> Option<i64> {
        let names: Vec<_> = self
            .names_paused(now, queue)
            .map(|(name, _)| name)
            .collect();
        let hash = FxBuildHasher.hash_one(&names).cast_signed();
        (!names.is_empty()).then_some(hash)
    }

    /// For how long a queue is still paused, where that is known.
    fn resumes_in(&self, now: i64, queue: &Name) -> Option<i64> {
        let until = (*self.paused.get(queue)?)?;
        (until > now).then_some(until - now)
    }

    pub(crate) fn search_below_floors(
        &self,
        now: i64,
        want: &SearchBelowFloors,
    ) -> Vec<(i64, Floor)> {
        let Some(due) = self.due.get(&want.name) else {
            return Vec::new();
        };
        let first = |(priority, from, to): &SearchRange| {
            let from = (*priority, *from, i64::MAX);
            let to = (*priority, to.0, to.1);
            let mut places = due.iter().filter(|place| from < **place && **place <= to);
            let free = |(_, _, id): &&(i64, i64, i64)| {
                let live = self.live.get(id);
                live.is_some_and(|live| {
                    (!live.is_held(now) || live.is_of(&want.lost))
                        && live.is_named(&want.names)
                        && !self.is_held_back(now, live)
                })
            };
            let (_, at, id) = places.find(free)?;
            Some((*priority, (*at, *id)))
        };
        want.priorities.iter().filter_map(first).collect()
    }

    pub(crate) fn take(&mut self, now: i64, want: &Take) -> Vec<Claimed> {
        let queue = Name {
            namespace: want.namespace.clone(),
            queue: want.queue.clone(),
        };
        let most = usize::try_from(want.most).unwrap_or(0);
        let priorities: Vec<_> = want
            .priorities
            .iter()
            .map(|priority| (*priority, (0, 0)))
            .collect();
        let free = |id: &i64| {
            let live = self.live.get(id);
            live.is_some_and(|live| {
                let used_up = live.attempt >= live.job.max_attempts;
                !live.is_held(now)
                    && !live.is_expired(now)
                    && !used_up
                    && !self.locked.contains(id)
                    && !self.is_held_back(now, live)
            })
        };
        let in_turn = self.in_turn(now, &queue, &priorities);
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
                headers: live.job.headers.clone(),
                group: Some(live.job.group.clone()).filter(|group| !group.is_empty()),
            });
            live.attempt += 1;
            live.running = None;
            live.started_at = Some(now);
            live.worker.clone_from(&want.worker);
            if want.keep >= 0 || !live.task.is_empty() {
                self.end(id, Status::Completed, now, "", want.keep);
            } else {
                self.remove(id);
            }
        }
        taken
    }

    /// When there may be something to claim that is not there yet.
    pub(crate) fn next_due(&self, now: i64, want: &CompleteAndClaim) -> Option<i64> {
        let queue = want.queue_name();
        let due = self.due.get(&queue);
        let next = want.priorities.iter().filter_map(|(priority, _)| {
            let from = (*priority, now, i64::MAX);
            let (of, at, _) = due?.range(from..).find(|place| **place != from)?;
            (of == priority && *at < NEVER).then_some(at - now)
        });
        let resumed = self.names_paused(now, &queue);
        let resumed = resumed.filter_map(|(_, until)| Some(until? - now));
        next.chain(self.resumes_in(now, &queue))
            .chain(resumed)
            .min()
    }

    /// The job of a delivery that is its latest, and of this epoch.
    fn delivered(&self, ticket: Ticket) -> Option<&LiveJob> {
        let live = self.live.get(&ticket.id)?;
        (live.has(ticket) && ticket.token >= self.first_token).then_some(live)
    }

    fn ack(&mut self, now: i64, acks: &[Ack]) -> Vec<i64> {
        let mut done = Vec::new();
        // Who completes a delivery twice keeps it for the longer of both times.
        let mut longest = FxHashMap::<Ticket, i64>::default();
        for ack in acks {
            let keep = longest.entry(ack.ticket).or_insert(ack.keep);
            *keep = ack.keep.max(*keep);
        }
        for ack in acks {
            let (id, keep) = (ack.ticket.id, longest[&ack.ticket]);
            if let Some(live) = self.delivered(ack.ticket) {
                if keep >= 0 || !live.task.is_empty() {
                    self.end(id, Status::Completed, now, "", keep);
                } else {
                    self.remove(id);
                }
                done.push(ack.ticket);
            }
        }
        let tokens: Vec<_> = done.iter().map(|ticket| ticket.token).collect();
        done.iter().map(|ticket| ticket.id).chain(tokens).collect()
    }

    /// The token of the latest delivery of a job, or of the one that has completed it; and whether
    /// the job has ended.
    pub(crate) fn delivery_state(&self, id: i64) -> Option<(Option<i64>, bool)> {
        let token = |live: &LiveJob| live.running.map(|running| running.token);
        if let Some(live) = self.live.get(&id) {
            return Some((token(live), false));
        }
        let ended = self.ended.get(&id)?;
        let completed = ended.status == Status::Completed;
        Some((token(&ended.job).filter(|_| completed), true))
    }

    pub(crate) fn settle(&mut self, now: i64, want: &Settle) -> Settled {
        let id = want.ticket.id;
        let Some(live) = self.delivered(want.ticket) else {
            return Settled::Lost;
        };
        if self.locked.contains(&id) {
            return Settled::Locked;
        }
        if want.kind == 6 {
            let (ticket, keep) = (want.ticket, want.keep);
            self.ack(now, &[Ack { ticket, keep }]);
            return Settled::Done;
        }
        if want.kind == 5 && !live.is_held(now) && self.limits_running(&live.queue) {
            return Settled::Lost;
        }
        let last = live.attempt >= live.job.max_attempts;
        if want.kind == 1 || (matches!(want.kind, 0 | 4) && last) {
            self.end(id, Status::Failed, now, &want.error, want.keep);
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
            if matches!(want.kind, 0 | 2 | 7) {
                live.set_due(now.saturating_add(want.time));
            }
            if matches!(want.kind, 2 | 3 | 7 | 8) {
                live.attempt -= 1;
            }
            if matches!(want.kind, 2 | 8) {
                live.expires_at = None;
            }
            if !want.error.is_empty() {
                live.error.clone_from(&want.error);
                live.fail(now, &want.error);
            }
            self.insert(id, live);
        }
        Settled::Done
    }
}

impl crate::memory::ModelState {
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
