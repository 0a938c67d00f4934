//! Settling deliveries otherwise than by completing them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Queues;
use super::handle::{Handle, PAUSE, TRIES};
use super::topic::Topic;
use crate::engine::batcher::{Queued, ended};
use crate::error::{Error, ErrorKind, LOCKED, Result};
use crate::queue::{Ack, AckWithResult, FOR_EVER, Outcome, ResultValue, Settle, Settled, Ticket};

impl Handle {
    pub(super) async fn settle(&self, ticket: Ticket, outcome: &Outcome) -> Result<Settled> {
        let queues = &self.core.queues;
        let Some(settle) = Settle::new(ticket, outcome, self.options.keep_dead()) else {
            let mut acked = match outcome {
                Outcome::AckWithResult(result) => {
                    let ack = |ticket| self.ack_with_result(ticket, result);
                    self.complete_by(&[ticket], ack).await
                }
                _ => self.complete_all(vec![ticket]).await,
            };
            let acked = acked.pop().transpose()?;
            self.topic.room_left();
            if matches!(outcome, Outcome::AckWithResult(_)) {
                // No claim is in the same statement that would find out.
                self.place_left();
                queues.results.completed((self.number, ticket.id));
            }
            return Ok(if acked == Some(true) {
                Settled::Done
            } else {
                Settled::Lost
            });
        };
        if let Outcome::Extend(lease) = outcome {
            return self.extend(ticket, &settle, *lease).await;
        }
        let tickets = [ticket];
        let mut tries = TRIES;
        loop {
            let _settling = queues.heartbeats.settling(&tickets);
            let answer = queues.batcher.call(settle.clone()).await;
            let settled = answer.map_err(|error| error.on(&self.name.queue))?;
            tries -= 1;
            match settled {
                Settled::Locked if tries > 0 => {
                    queues.timer.sleep(PAUSE).await;
                    continue;
                }
                // Nothing was done: it is kept as it was.
                Settled::Locked => {}
                _ => {
                    queues.heartbeats.forget(ticket);
                    self.topic.returned();
                    self.place_left();
                    self.topic.room_left();
                }
            }
            return Ok(settled);
        }
    }

    /// Extends a delivery. What becomes of it is noted in the order of the statements, also when the caller has left.
    async fn extend(&self, ticket: Ticket, settle: &Settle, lease: Duration) -> Result<Settled> {
        let queues = &self.core.queues;
        let mut tries = TRIES;
        loop {
            let sent = queues.timer.now();
            let extending = queues.heartbeats.extending(ticket, sent, lease);
            let (sender, answer) = oneshot::channel();
            queues.renewals.submit(settle.clone(), move |outcome| {
                extending.answered(&outcome);
                // The caller may have left.
                drop(sender.send(outcome));
            });
            let answer = answer.await.unwrap_or_else(|_| Err(ended(Settle::NAME)));
            let failed = |error: Error| error.during(Settle::NAME).on(&self.name.queue);
            let settled = answer.map_err(failed)?;
            tries -= 1;
            if settled != Settled::Locked || tries == 0 {
                return Ok(settled);
            }
            queues.timer.sleep(PAUSE).await;
        }
    }

    fn ack_with_result(&self, ticket: Ticket, result: &ResultValue) -> AckWithResult {
        AckWithResult {
            ack: self.ack(ticket),
            result: result.clone(),
            retention: self.options.keep_results(),
        }
    }

    pub(super) fn settle_later(&self, ticket: Ticket, outcome: &Outcome) {
        let queues = &self.core.queues;
        if let Outcome::AckWithResult(result) = outcome {
            queues.heartbeats.forget(ticket);
            let topic = Arc::clone(&self.topic);
            queues
                .batcher
                .submit(self.ack_with_result(ticket, result), move |_| {
                    topic.room_left();
                });
            return;
        }
        let keep_dead = self.options.keep_dead();
        queues.settle_later(&self.topic, self.ack(ticket), outcome, keep_dead);
    }
}

impl Queues {
    /// Settles in the background; where that fails the lease ends by itself.
    pub(super) fn settle_later(
        self: &Arc<Self>,
        topic: &Arc<Topic>,
        ack: Ack,
        outcome: &Outcome,
        keep_dead: i64,
    ) {
        self.heartbeats.forget(ack.ticket);
        let topic = Arc::clone(topic);
        if let Some(settle) = Settle::new(ack.ticket, outcome, keep_dead) {
            let on_settled = Box::new(move |_| {
                topic.returned();
                topic.room_left();
            });
            self.settle_until_free(settle, TRIES, on_settled);
        } else {
            self.batcher.submit(ack, move |_| topic.room_left());
        }
    }

    /// Gives all deliveries back, uncounted; answers what became of each.
    pub(in crate::engine) fn release_all(self: &Arc<Self>) -> Vec<oneshot::Receiver<Result<()>>> {
        let release = |ticket| {
            let (sender, answer) = oneshot::channel();
            if let Some(release) = Settle::new(ticket, &Outcome::Release, FOR_EVER) {
                let on_settled = move |settled: Result<Settled>| {
                    let given_back = settled.and_then(|settled| match settled {
                        Settled::Locked => {
                            let message = format!("the job is {LOCKED}");
                            Err(Error::new(ErrorKind::TimedOut, "close", message))
                        }
                        // One that is completed already has nothing to give back.
                        _ => Ok(()),
                    });
                    // The caller of `close` may be gone.
                    drop(sender.send(given_back));
                };
                self.settle_until_free(release, TRIES, Box::new(on_settled));
            }
            answer
        };
        self.heartbeats
            .take_all()
            .into_iter()
            .map(release)
            .collect()
    }

    /// Settles, again while somebody has locked the row: an extension that is under way, or a
    /// transaction of the program.
    fn settle_until_free(self: &Arc<Self>, settle: Settle, tries: usize, on_settled: OnSettled) {
        let this = Arc::downgrade(self);
        // Closing waits for the tries.
        let busy = self.batcher.enter();
        self.batcher.submit(settle.clone(), move |answer| {
            if matches!(answer, Ok(Settled::Locked))
                && tries > 0
                && let Some(queues) = this.upgrade()
            {
                let at = queues.timer.now() + PAUSE;
                queues.timer.run_at(at, move || {
                    let _busy = busy;
                    if let Some(queues) = this.upgrade() {
                        queues.settle_until_free(settle, tries - 1, on_settled);
                    }
                });
                return;
            }
            on_settled(answer);
        });
    }
}

/// Hears what became of it.
type OnSettled = Box<dyn FnOnce(Result<Settled>) + Send>;
