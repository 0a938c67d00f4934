//! Claims of callers that wait, sent together.
//!
//! Where many callers of a process wait for jobs of one queue, a job that arrives wakes them all, and each would ask for it.
//! Instead one claim is sent for all that ask meanwhile, for as many jobs as they want together, and its jobs are given out
//! in the order in which they asked.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::exchange::Taken;
use super::handle::Handle;
use crate::engine::batcher::answer_lost;
use crate::engine::clock::Time;
use crate::engine::contained;
use crate::error::Result;
use crate::queue::{Claim, MAX_CLAIM, POLL, Waiting};
use crate::sync::MutexGuard;

/// For how many kinds of claims it is remembered that nothing was found.
const MOST_KINDS: usize = 64;

/// With fewer callers nobody looks for those that have left.
const SWEEP: usize = 1024;

/// What claims have in common that are sent together.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Kind {
    names: Arc<[String]>,
    lease: Duration,
    renewed: bool,
    begun_within: Option<Duration>,
    worker: Option<String>,
    keep_dead: i64,
}

/// The claims of callers that wait for one queue.
#[derive(Default)]
pub(super) struct WaitingClaims(FxHashMap<Kind, Line>);

/// Whether a claim was sent.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Sent {
    #[default]
    No,
    /// It is being sent.
    Begun,
    /// It was answered before that had ended.
    Answered,
    Yes,
}

/// Those of one kind.
#[derive(Default)]
struct Line {
    waiting: VecDeque<WaitingClaim>,
    sent: Sent,
    /// How many have joined it.
    joined: u64,
    /// From this number of callers on, those that have left are looked for.
    sweeps_from: usize,
    /// When one was last sent that found nothing, and how much had arrived before.
    found_nothing: Option<(Time, u64)>,
}

struct WaitingClaim {
    number: u64,
    most: usize,
    is_repeated: bool,
    answer: oneshot::Sender<Result<Taken>>,
}

impl Line {
    fn is_idle(&self) -> bool {
        self.sent == Sent::No && self.waiting.is_empty()
    }

    /// Takes as many of those that still wait as one claim may serve, and those that have left.
    fn take(&mut self) -> (Vec<WaitingClaim>, Vec<WaitingClaim>) {
        let (mut taken, mut left, mut most) = (Vec::new(), Vec::new(), 0);
        while let Some(next) = self.waiting.pop_front() {
            if next.answer.is_closed() {
                left.push(next);
            } else if taken.is_empty() || most + next.most <= MAX_CLAIM {
                most += next.most;
                taken.push(next);
            } else {
                self.waiting.push_front(next);
                break;
            }
        }
        (taken, left)
    }

    /// Takes those that have left, once there are twice as many callers as the last time.
    fn sweep(&mut self) -> Vec<WaitingClaim> {
        if self.waiting.len() < self.sweeps_from.max(SWEEP) {
            return Vec::new();
        }
        let all = self.waiting.drain(..);
        let (left, waiting): (Vec<_>, Vec<_>) = all.partition(|one| one.answer.is_closed());
        self.waiting.extend(waiting);
        self.sweeps_from = 2 * self.waiting.len();
        left
    }
}

/// A claim that was sent for several callers. However it ends, the next one is sent for those that asked meanwhile.
struct SentClaim {
    handle: Arc<Handle>,
    kind: Kind,
    /// How many had joined when it was sent.
    joined: u64,
}

impl Drop for SentClaim {
    fn drop(&mut self) {
        let mut claims = self.handle.waiting_claims();
        match claims.0.get_mut(&self.kind) {
            // Whoever sends it goes on: thousands may be answered at once.
            Some(line) if line.sent == Sent::Begun => line.sent = Sent::Answered,
            _ => {
                drop(claims);
                self.handle.send_waiting(&self.kind);
            }
        }
    }
}

/// Sends claims. If it panics, those that wait are told so, and later ones begin anew.
struct Sending<'h> {
    handle: &'h Handle,
    kind: &'h Kind,
    has_ended: bool,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut claims = self.handle.waiting_claims();
        let line = claims.0.remove(self.kind);
        drop(claims);
        drop(line);
    }
}

impl Handle {
    fn kind_of(&self, claim: &Claim) -> Kind {
        Kind {
            names: Arc::clone(&claim.names),
            lease: claim.lease,
            renewed: claim.renewed,
            begun_within: claim.begun_within,
            worker: claim.worker.clone(),
            keep_dead: self.options.keep_dead(),
        }
    }

    fn waiting_claims(&self) -> MutexGuard<'_, WaitingClaims> {
        let claims = &self.topic.waiting_claims;
        claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another caller has just asked for the same, and found nothing, and nothing has arrived since. Then a poll
    /// is not worth a statement; the last one of a caller is sent.
    pub(super) fn was_just_asked(&self, claim: &Claim) -> bool {
        if claim.waiting != Waiting::Again {
            return false;
        }
        let (now, arrived) = (self.core.queues.timer.now(), self.topic.generation());
        let claims = self.waiting_claims();
        let line = claims.0.get(&self.kind_of(claim));
        line.and_then(|line| line.found_nothing)
            .is_some_and(|(at, before)| before == arrived && now < at + POLL / 2)
    }

    /// Claims together with others that wait.
    pub(super) async fn claim_together(self: &Arc<Self>, claim: &Claim) -> Result<Taken> {
        let answer = self.join_waiting(claim);
        // A waker that panics keeps no other caller from its answer.
        contained(answer)
            .await
            .unwrap_or_else(|_| Err(answer_lost("claim")))
    }

    fn join_waiting(self: &Arc<Self>, claim: &Claim) -> oneshot::Receiver<Result<Taken>> {
        let kind = self.kind_of(claim);
        let (sender, answer) = oneshot::channel();
        let mut claims = self.waiting_claims();
        if claims.0.len() >= MOST_KINDS && !claims.0.contains_key(&kind) {
            claims.0.retain(|_, line| !line.is_idle());
        }
        let line = claims.0.entry(kind.clone()).or_default();
        line.joined += 1;
        line.waiting.push_back(WaitingClaim {
            number: line.joined,
            most: claim.most,
            is_repeated: claim.is_repeated(),
            answer: sender,
        });
        let left = line.sweep();
        let is_first = line.sent == Sent::No;
        if is_first {
            line.sent = Sent::Begun;
        }
        drop(claims);
        // Wakers of the program are dropped with no lock held.
        drop(left);
        if is_first {
            self.send_waiting(&kind);
        }
        answer
    }

    /// Sends a claim for those that wait, if there are any, and the next ones as long as they are answered at once.
    fn send_waiting(self: &Arc<Self>, kind: &Kind) {
        let mut sending = Sending {
            handle: self,
            kind,
            has_ended: false,
        };
        self.send_all_waiting(kind);
        sending.has_ended = true;
    }

    fn send_all_waiting(self: &Arc<Self>, kind: &Kind) {
        loop {
            let (callers, left, joined) = {
                let mut claims = self.waiting_claims();
                let Some(line) = claims.0.get_mut(kind) else {
                    return;
                };
                let (callers, left) = line.take();
                line.sent = if callers.is_empty() {
                    Sent::No
                } else {
                    Sent::Begun
                };
                (callers, left, line.joined)
            };
            drop(left);
            if callers.is_empty() {
                return;
            }
            self.send_together(kind, callers, joined);
            if let Some(line) = self.waiting_claims().0.get_mut(kind)
                && line.sent == Sent::Begun
            {
                line.sent = Sent::Yes;
                return;
            }
        }
    }

    fn send_together(self: &Arc<Self>, kind: &Kind, callers: Vec<WaitingClaim>, joined: u64) {
        let mut claim = Claim::new(callers.iter().map(|one| one.most).sum());
        claim.names = Arc::clone(&kind.names);
        claim.lease = kind.lease;
        claim.renewed = kind.renewed;
        claim.begun_within = kind.begun_within;
        claim.worker.clone_from(&kind.worker);
        let repeated = callers.iter().all(|one| one.is_repeated);
        claim.waiting = if repeated {
            Waiting::Again
        } else {
            Waiting::First
        };
        let (now, arrived) = (self.core.queues.timer.now(), self.topic.generation());
        let sent = SentClaim {
            handle: Arc::clone(self),
            kind: kind.clone(),
            joined,
        };
        self.turn_then(Vec::new(), &claim, move |outcome| {
            let outcome = outcome.map(|(_, taken)| taken);
            sent.answered(callers, outcome, (now, arrived));
        });
    }
}

impl SentClaim {
    /// Those in line who have waited for this answer as well: they would hear the same, one claim after the other.
    fn waited(&self) -> Vec<WaitingClaim> {
        let mut claims = self.handle.waiting_claims();
        let Some(line) = claims.0.get_mut(&self.kind) else {
            return Vec::new();
        };
        let later = line
            .waiting
            .partition_point(|one| one.number <= self.joined);
        line.waiting.drain(..later).collect()
    }

    /// Gives out what was claimed.
    fn answered(&self, callers: Vec<WaitingClaim>, outcome: Result<Taken>, asked: (Time, u64)) {
        let found_nothing = outcome.as_ref().is_ok_and(Taken::is_nothing);
        if let Some(line) = self.handle.waiting_claims().0.get_mut(&self.kind) {
            line.found_nothing = found_nothing.then_some(asked);
        }
        let mut taken = match outcome {
            Ok(taken) => taken,
            Err(error) => {
                let line = error.is_outage().then(|| self.waited()).into_iter();
                for caller in callers.into_iter().chain(line.flatten()) {
                    drop(caller.answer.send(Err(error.clone())));
                }
                return;
            }
        };
        let found_some = !taken.is_used_up();
        let mut callers = VecDeque::from(callers);
        while let Some(caller) = callers.pop_front() {
            // One answer has only so many bytes: the others are served by the next ones, in their order.
            if found_some && taken.is_used_up() {
                callers.push_front(caller);
                break;
            }
            let own = taken.first(caller.most);
            if let Err(Ok(own)) = caller.answer.send(Ok(own)) {
                // It has left: the next ones get them, and what nobody takes is released.
                taken.put_back(own);
            }
        }
        if let Some(line) = self.handle.waiting_claims().0.get_mut(&self.kind) {
            for caller in callers.into_iter().rev() {
                line.waiting.push_front(caller);
            }
        }
    }
}
