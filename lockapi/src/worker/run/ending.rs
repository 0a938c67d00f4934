//! What becomes of deliveries whose handlers have ended.

use std::sync::Arc;
use std::time::Duration;

use super::{Boxed, Done, Run, Running, UNSPAWNED};
use crate::queue::{Delivery, MAX_DELAY, Outcome, Settled};
use crate::worker::attempt::Verdict;
use crate::worker::failed::{Failed, Kind};
use crate::worker::observe::{Ending, Observe};
use crate::worker::report::Observer;
use crate::worker::settling::{Settlement, Settling};

/// What is known of a delivery that its handler has acknowledged itself; nothing where the worker had
/// to stop before that.
pub(super) struct Confirmed {
    running: Running,
    took: Duration,
    known: Option<(Ending, Settlement)>,
    observer: Observer,
    is_told: bool,
}

impl Confirmed {
    fn tell(&mut self, ending: &Ending) {
        self.is_told = true;
        self.running.tell(&self.observer, ending, self.took);
    }
}

impl Drop for Confirmed {
    /// The worker was dropped.
    fn drop(&mut self) {
        if !self.is_told {
            self.tell(&Ending::Lost);
        }
    }
}

impl Running {
    /// Tells how its handler has ended.
    fn tell(&self, observer: &Observer, ending: &Ending, took: Duration) {
        self.handling.ended(&self.delivery, ending, took);
        observer.finished(&self.delivery, ending, took);
    }
}

impl Run {
    pub(super) fn decide(&mut self, number: u64, verdict: Verdict) {
        let Some(running) = self.running.remove(&number) else {
            return;
        };
        let took = self.queue.now().saturating_sub(running.since);
        if !running.in_batch {
            self.pace.handled(took);
        }
        let verdict = match verdict {
            Verdict::Answered(Err(Failed(Kind::NotRun))) => Verdict::NotRun { reported: false },
            verdict => verdict,
        };
        if !matches!(verdict, Verdict::NotRun { .. }) {
            self.spawn_pauses.end();
        }
        let ending = match verdict {
            Verdict::Answered(Ok(())) => Ending::Done,
            Verdict::Answered(Err(failed)) => self.failed_ending(&running.delivery, failed),
            Verdict::Lost => Ending::Lost,
            Verdict::NotRun { .. } if self.stopping => {
                if running.delivery.is_left_to_transaction() {
                    self.confirm(running, took, Ending::Released);
                    return;
                }
                self.notify_observer(&running, &Ending::Released, took);
                self.settle(running.delivery, Outcome::Release);
                return;
            }
            Verdict::NotRun { reported } => {
                if !reported {
                    self.settings.observer.dropped(&running.delivery);
                }
                self.pause_claims();
                if running.delivery.is_left_to_transaction() {
                    self.confirm(running, took, Ending::Snoozed(UNSPAWNED));
                    return;
                }
                self.notify_observer(&running, &Ending::Snoozed(UNSPAWNED), took);
                self.settle(running.delivery, Outcome::Defer(UNSPAWNED));
                return;
            }
        };
        self.finish(running, took, ending);
    }

    /// Whoever does not run one handler may run no other either: it claims no more for a while.
    fn pause_claims(&mut self) {
        if self.spawn_pause.is_none() {
            let (queue, time) = (Arc::clone(&self.queue), self.spawn_pauses.next());
            self.spawn_pause = Some(Box::pin(async move { queue.sleep(time).await }));
        }
    }

    fn failed_ending(&self, delivery: &Delivery, failed: Failed) -> Ending {
        match failed.0 {
            Kind::Retry { error, after } => {
                let after = after.map(|after| after.min(MAX_DELAY));
                let after = after.unwrap_or_else(|| self.backoff(delivery));
                Ending::Failed { error, after }
            }
            Kind::Reject(error) => Ending::Rejected { error },
            Kind::Snooze(time) => Ending::Snoozed(time.min(MAX_DELAY)),
            Kind::NotRun => Ending::Snoozed(UNSPAWNED),
        }
    }

    fn backoff(&self, delivery: &Delivery) -> Duration {
        let handler = self.handlers.of(delivery.name());
        let options = handler.and_then(|handler| handler.options.as_ref());
        let options = options.unwrap_or(&self.settings.options);
        let (after, panic) = options.after(delivery.attempt());
        if let Some(panic) = panic {
            let whose = "the backoff of a worker";
            self.settings.observer.panicked(whose, panic);
        }
        after
    }

    /// A handler has ended. What it has acknowledged in a transaction of its own is looked after: this
    /// worker does not know whether that was committed.
    pub(super) fn finish(&mut self, running: Running, took: Duration, ending: Ending) {
        running.delivery.ended_at(running.since + took);
        if running.delivery.is_left_to_transaction() {
            self.confirm(running, took, ending);
            return;
        }
        self.notify_observer(&running, &ending, took);
        let delivery = running.delivery;
        match ending {
            Ending::Done => {
                // Not with the next claim, so that completions without a result cost what they did.
                if let Some(result) = delivery.result() {
                    self.settle(delivery, Outcome::AckWithResult(result));
                } else {
                    delivery.settled_by_caller();
                    self.done.push(Done {
                        delivery,
                        unsure: false,
                    });
                }
            }
            Ending::Lost => {
                delivery.settled_by_caller();
                self.summary.lost += 1;
            }
            _ => self.settle(delivery, ending.outcome()),
        }
    }

    pub(super) fn notify_observer(&self, running: &Running, ending: &Ending, took: Duration) {
        running.tell(&self.settings.observer, ending, took);
    }

    pub(super) fn settle(&mut self, delivery: Arc<Delivery>, outcome: Outcome) {
        let settling = self.settling_of(delivery);
        self.settling.push(Box::pin(settling.settle(outcome)));
    }

    /// Waits until what could not begin in time has gone back, for which it was asked in the background:
    /// before that this worker is not idle, as the job is due again. Asked for twice, it goes back once;
    /// where that fails its lease, which is not extended, ends by itself.
    pub(super) fn give_back(&mut self, delivery: Arc<Delivery>) {
        let settling = self.settling_of(delivery);
        self.settling.push(Box::pin(async move {
            let (outcome, _) = settling.settle(Outcome::Release).await;
            (outcome, Settlement::Settled(Settled::Done))
        }));
    }

    fn confirm(&mut self, running: Running, took: Duration, ending: Ending) {
        let rolled_back = Ending::Failed {
            error:
                "the handler returned Ok, but the transaction in which it acknowledged the job was \
                    rolled back"
                    .to_owned(),
            after: self.backoff(&running.delivery),
        };
        let settling = self.settling_of(Arc::clone(&running.delivery));
        let mut confirmed = Confirmed {
            running,
            took,
            known: None,
            observer: self.settings.observer.clone(),
            is_told: false,
        };
        let confirming: Boxed<Confirmed> = Box::pin(async move {
            confirmed.known = settling.confirm(ending, rolled_back).await;
            confirmed
        });
        self.confirming.push(confirming);
    }

    pub(super) fn confirmed(&mut self, mut confirmed: Confirmed) {
        let Some((ending, settlement)) = confirmed.known.take() else {
            // Dropped, it goes back if the transaction is rolled back by then.
            confirmed.tell(&Ending::Lost);
            self.summary.unknown += 1;
            return;
        };
        confirmed.tell(&ending);
        let delivery = &confirmed.running.delivery;
        delivery.settled_by_caller();
        let outcome = ending.outcome();
        if let Settlement::Settled(settled) = settlement {
            delivery.attempted(&outcome, settled);
        }
        self.count(&outcome, settlement);
    }

    fn settling_of(&self, delivery: Arc<Delivery>) -> Settling {
        Settling::new(
            Arc::clone(&self.queue),
            delivery,
            self.settings.observer.clone(),
            Arc::clone(&self.grace_over),
        )
    }

    pub(super) fn count(&mut self, outcome: &Outcome, settlement: Settlement) {
        let counter = match (settlement, outcome) {
            (Settlement::Unknown, _) => &mut self.summary.unknown,
            (Settlement::Lost | Settlement::Settled(Settled::Lost | Settled::Locked), _) => {
                &mut self.summary.lost
            }
            (Settlement::Settled(Settled::Dead), _) | (_, Outcome::Reject { .. }) => {
                &mut self.summary.dead
            }
            (_, Outcome::Ack | Outcome::AckWithResult(_)) => &mut self.summary.done,
            (_, Outcome::Snooze(_) | Outcome::Defer(_)) => &mut self.summary.snoozed,
            (_, Outcome::Release | Outcome::Interrupt) => &mut self.summary.released,
            _ => &mut self.summary.failed,
        };
        *counter += 1;
    }
}
