//! The limit of a queue.
//!
//! A claim that finds all places or permits taken tells the process when it is worth asking again. Until then callers that have
//! asked before are not sent, and then one of them is, for all.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::handle::Handle;
use super::topic::Topic;
use crate::engine::batcher::{ALONE, Queued};
use crate::engine::clock::Time;
use crate::engine::timer::Timer;
use crate::error::Result;
use crate::queue::{
    Claim, CompletedAndClaimed, CurrentLimit, JobLimit, Limited, ReadQueueLimit, SetQueueLimit,
};
use crate::sync::MutexGuard;

/// Where nobody knows when a place will be free, the server is asked so often.
const PLACE: Duration = Duration::from_secs(1);
/// Nobody waits for a permit longer than this without asking, nor shorter.
const LONGEST: Duration = Duration::from_secs(10);
const SHORTEST: Duration = Duration::from_millis(1);
/// After a claim that met another one, and how often that is doubled.
const BUSY: Duration = Duration::from_millis(2);
const DOUBLINGS: u32 = 5;
/// How often a claim that has not asked before is repeated then, and for how long where each answer takes its time.
pub(super) const TRIES: u32 = 12;
pub(super) const TRIES_FOR: Duration = Duration::from_secs(1);

impl Queued for SetQueueLimit {
    const NAME: &'static str = "set_limit";
    const REPEATABLE: bool = true;

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Queued for ReadQueueLimit {
    const NAME: &'static str = "limit";
    const REPEATABLE: bool = true;

    fn weight(&self) -> usize {
        ALONE
    }
}

/// A pause of a random length after so many claims in a row that met another one.
pub(super) fn pause(busy: u32) -> Duration {
    let longest = BUSY * (1 << busy.min(DOUBLINGS));
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Whether claims are sent.
#[derive(Default)]
pub(super) struct Gate {
    closed: Option<Closed>,
    /// How often room was left.
    left: u64,
    /// How many claims in a row met another one.
    busy: u32,
    /// Whether there was a limit when a claim was last answered.
    limited: bool,
    /// When those who wait are woken: one timer does it for all answers.
    armed: Option<Time>,
}

struct Closed {
    until: Time,
    /// Whether one of those who have asked before asks again.
    asking: bool,
}

/// A claim that was sent.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// How often room was left before.
    left: u64,
    completes: bool,
    /// Whether others that have asked before wait for its answer.
    for_all: bool,
    /// Whether there was a limit before.
    pub(super) limited: bool,
}

impl Topic {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a claim is sent. One that completes something always is.
    pub(super) fn ask(&self, now: Time, claim: &Claim, completes: bool) -> Option<Asked> {
        let mut gate = self.gate();
        let mut asked = Asked {
            left: gate.left,
            completes,
            for_all: false,
            limited: gate.limited,
        };
        if let Some(closed) = &mut gate.closed
            && claim.is_repeated()
            && !completes
        {
            if now < closed.until || closed.asking {
                return None;
            }
            closed.asking = true;
            asked.for_all = true;
        }
        Some(asked)
    }

    /// A claim failed: it is not known what it has done.
    pub(super) fn limit_unanswered(self: &Arc<Self>, timer: &Timer, asked: Asked) {
        if asked.completes {
            self.room_left();
        } else if asked.for_all {
            let mut gate = self.gate();
            if let Some(closed) = &mut gate.closed {
                closed.asking = false;
            }
            drop(gate);
            self.bump_at(timer, timer.now() + pause(DOUBLINGS));
        }
    }

    /// A place may be free, or the limit is another one: whoever waits asks.
    pub(super) fn room_left(&self) {
        let mut gate = self.gate();
        gate.left += 1;
        let was_closed = gate.closed.take().is_some();
        drop(gate);
        if was_closed {
            self.bump();
        }
    }

    /// A claim was answered.
    pub(super) fn limit_answered(
        self: &Arc<Self>,
        timer: &Timer,
        asked: Asked,
        turned: &CompletedAndClaimed,
    ) {
        if asked.completes {
            self.room_left();
        }
        let mut gate = self.gate();
        gate.limited = turned.limited.is_some();
        let wait = match turned.limited {
            Some(Limited::Full | Limited::Spent) => {
                let next = turned.next_due.map(|next| next.max(0).unsigned_abs());
                next.map_or(PLACE.mul_f64(0.75 + fastrand::f64() / 2.0), |next| {
                    Duration::from_micros(next).clamp(SHORTEST, LONGEST)
                })
            }
            Some(Limited::Busy) => pause(gate.busy),
            Some(Limited::No | Limited::Again) | None => {
                gate.busy = 0;
                let was_closed = gate.closed.take().is_some();
                drop(gate);
                if was_closed {
                    self.bump();
                }
                return;
            }
        };
        let busy = turned.limited == Some(Limited::Busy);
        gate.busy = if busy { gate.busy + 1 } else { 0 };
        if gate.left != asked.left + u64::from(asked.completes) {
            // Who waits was told so only where claims were held back.
            gate.closed = None;
            drop(gate);
            self.bump();
            return;
        }
        let now = timer.now();
        let mut until = now + wait;
        // Those who ask for the first time do not put off the others.
        if let Some(closed) = &gate.closed
            && closed.until > now
        {
            until = until.min(closed.until);
        }
        gate.closed = Some(Closed {
            until,
            asking: false,
        });
        drop(gate);
        self.bump_at(timer, until);
    }

    /// Wakes those who wait at this time, unless they are woken before.
    fn bump_at(self: &Arc<Self>, timer: &Timer, at: Time) {
        let mut gate = self.gate();
        if gate.armed.is_some_and(|armed| armed <= at) {
            return;
        }
        gate.armed = Some(at);
        drop(gate);
        let this = Arc::downgrade(self);
        timer.run_at(at, move || {
            if let Some(topic) = this.upgrade() {
                topic.armed(at);
            }
        });
    }

    /// The timer that was set for this time fires: who still has to wait then sets another.
    fn armed(&self, at: Time) {
        let mut gate = self.gate();
        // One that was set later fires earlier.
        let is_first = gate.armed.take_if(|armed| *armed == at).is_some();
        drop(gate);
        if is_first {
            self.bump();
        }
    }

    /// A claim was not sent: it is woken when one may be.
    pub(super) fn bump_when_open(self: &Arc<Self>, timer: &Timer) {
        let gate = self.gate();
        let until = gate.closed.as_ref().filter(|closed| !closed.asking);
        let until = until.map(|closed| closed.until);
        drop(gate);
        // Where the time has come meanwhile it is woken at once.
        if let Some(until) = until {
            self.bump_at(timer, until);
        }
    }
}

impl Handle {
    pub(super) async fn set_limit(&self, limit: Option<JobLimit>) -> Result<()> {
        let row = limit.map(|limit| limit.row()).transpose();
        let set = SetQueueLimit {
            name: self.name.clone(),
            limit: row.map_err(self.failed("set_limit"))?,
            topics: vec![self.number, self.limit_number],
        };
        self.call(set).await?;
        self.topic.room_left();
        self.topic.bump();
        Ok(())
    }

    pub(super) async fn limit(&self) -> Result<Option<CurrentLimit>> {
        let name = self.name.clone();
        let limit = self.call(ReadQueueLimit { name }).await?;
        Ok(limit.map(CurrentLimit::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking::block_on;
    use crate::engine::clock::Clock;
    use crate::queue::Waiting;

    fn answer(limited: Limited, next_due: Option<i64>) -> CompletedAndClaimed {
        CompletedAndClaimed {
            acked: Vec::new(),
            claimed: Vec::new(),
            picked: 0,
            paused: None,
            read: None,
            now: 0,
            next_due,
            limited: Some(limited),
            parked: false,
        }
    }

    fn repeated() -> Claim {
        let mut claim = Claim::new(1);
        claim.waiting = Waiting::Worker;
        claim
    }

    #[test]
    fn one_asks_for_all_when_the_next_permit_comes() {
        let timer = Timer::start(&Clock::real()).unwrap();
        let topic = Arc::new(Topic::default());
        let (first, again) = (Claim::new(1), repeated());
        let now = timer.now();
        let asked = topic.ask(now, &again, false).unwrap();
        topic.limit_answered(&timer, asked, &answer(Limited::Spent, Some(5_000_000)));
        assert!(topic.ask(now, &again, false).is_none());
        assert!(topic.ask(now, &first, false).is_some(), "it asks anyway");
        assert!(topic.ask(now, &again, true).is_some(), "so does this one");
        let later = now + Duration::from_secs(6);
        let asked = topic.ask(later, &again, false).unwrap();
        assert!(topic.ask(later, &again, false).is_none(), "one is enough");
        topic.limit_unanswered(&timer, asked);
        let asked = topic.ask(later, &again, false).unwrap();
        topic.limit_answered(&timer, asked, &answer(Limited::No, None));
        assert!(topic.ask(later, &again, false).is_some());
        assert!(topic.ask(later, &again, false).is_some());
    }

    #[test]
    fn one_timer_wakes_who_waits_for_many_answers() {
        let timer = Timer::start(&Clock::real()).unwrap();
        let topic = Arc::new(Topic::default());
        let (first, again) = (Claim::new(1), repeated());
        let seen = topic.generation();
        let full = answer(Limited::Full, Some(100_000));
        for _ in 0..100 {
            let asked = topic.ask(timer.now(), &first, false).unwrap();
            topic.limit_answered(&timer, asked, &full);
        }
        // The answers of those who ask first do not put it off.
        assert!(topic.ask(timer.now(), &again, false).is_none());
        block_on(topic.arrival(seen));
        assert!(topic.ask(timer.now(), &again, false).is_some());
        block_on(timer.sleep(Duration::from_millis(150)));
        assert_eq!(topic.generation(), seen + 1);
    }

    #[test]
    fn room_that_is_left_while_a_claim_is_under_way_is_not_missed() {
        let timer = Timer::start(&Clock::real()).unwrap();
        let topic = Arc::new(Topic::default());
        let again = repeated();
        let now = timer.now();
        let asked = topic.ask(now, &again, false).unwrap();
        topic.room_left();
        let seen = topic.generation();
        topic.limit_answered(&timer, asked, &answer(Limited::Full, None));
        assert!(topic.generation() > seen, "who waits is told");
        let asked = topic.ask(now, &again, false).expect("it asks again");
        topic.limit_answered(&timer, asked, &answer(Limited::Full, None));
        assert!(topic.ask(now, &again, false).is_none());
        let seen = topic.generation();
        topic.room_left();
        assert!(topic.generation() > seen);
        assert!(topic.ask(now, &again, false).is_some());
        let asked = topic.ask(now, &again, true).unwrap();
        topic.limit_answered(&timer, asked, &answer(Limited::Full, None));
        assert!(topic.ask(now, &again, false).is_none(), "it is full again");
    }
}
