//! A running worker as a state machine: the jobs that it has, and its next step.

mod calls;
mod ending;
mod exchange;

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Waiting, Poll, ready};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::queue::{Delivery, Outcome, Queue, Unhandled};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::telemetry::Handling;
use crate::wait::unless;
use crate::worker::attempt::{Verdict, attempt};
use crate::worker::context::Context;
use crate::worker::handlers::{Handlers, Runs};
use crate::worker::observe::{Ending, Observe, Summary};
use crate::worker::pace::{BEGUN_WITHIN, Pace, Pauses, UNHANDLED};
use crate::worker::report::Quiet;
use crate::worker::settling::Settlement;
use crate::worker::slots::{Slot, Slots};
use crate::worker::{Settings, Spawned};
use calls::Calls;
use ending::Confirmed;
use exchange::PendingExchange;

/// How often it checks for jobs without a handler, and how long these have waited by then.
const WATCH: Duration = Duration::from_secs(60);
/// How long a job is put off that no handler could be started for, through no fault of its own.
const UNSPAWNED: Duration = Duration::from_secs(1);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A running worker. When dropped, it releases its jobs.
#[allow(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub(super) struct Run {
    queue: Arc<dyn Queue>,
    handlers: Handlers,
    settings: Settings,
    /// Claimed and not begun.
    prefetched: VecDeque<Delivery>,
    /// Runs while there are prefetched jobs; at its end those that could not begin were released.
    prefetch_timer: Option<Boxed<()>>,
    running: FxHashMap<u64, Running>,
    attempts: FuturesUnordered<Quiet<(u64, Verdict)>>,
    slots: Arc<Slots>,
    calls: Calls,
    /// Done, but not sent yet.
    done: Vec<Done>,
    /// Done, and to be sent again after a delay, because sending failed.
    delayed: Vec<Done>,
    delay: Option<Boxed<()>>,
    exchange: Option<PendingExchange>,
    settling: FuturesUnordered<Boxed<(Outcome, Settlement)>>,
    /// Ended, and acknowledged by their handlers themselves.
    confirming: FuturesUnordered<Boxed<Confirmed>>,
    /// Whether there may be jobs to claim.
    may_have_jobs: bool,
    seen: u64,
    arrival: Option<Boxed<()>>,
    /// Checks now and then for jobs without a handler.
    watch: Option<Boxed<Result<Vec<Unhandled>>>>,
    pause: Option<Boxed<()>>,
    /// Runs after a handler that nobody ran, and puts off the next claim.
    spawn_pause: Option<Boxed<()>>,
    grace: Option<Boxed<()>>,
    /// Set when the time of grace is over: what fails now is not tried again.
    grace_over: Arc<AtomicBool>,
    stopping: bool,
    /// Whether it ends when there is nothing to do.
    until_idle: bool,
    /// Whether it has found nothing since it had something.
    found_nothing: bool,
    refused: Option<Error>,
    pace: Pace,
    pauses: Pauses,
    spawn_pauses: Pauses,
    begun: u64,
    summary: Summary,
}

struct Running {
    delivery: Arc<Delivery>,
    since: Duration,
    handling: Handling,
    /// Whether it is one of the jobs of a call.
    in_batch: bool,
}

struct Done {
    delivery: Arc<Delivery>,
    /// Whether it was sent before and no answer came.
    unsure: bool,
}

impl Run {
    pub(super) fn new(
        queue: Arc<dyn Queue>,
        mut handlers: Handlers,
        mut settings: Settings,
    ) -> Result<Self> {
        handlers.put_layers();
        settings.claim = settings.claim.names(handlers.names());
        let slots = Arc::new(settings.concurrency.slots()?);
        Ok(Self {
            queue,
            handlers,
            settings,
            prefetched: VecDeque::new(),
            prefetch_timer: None,
            running: FxHashMap::default(),
            attempts: FuturesUnordered::new(),
            slots,
            calls: Calls::default(),
            done: Vec::new(),
            delayed: Vec::new(),
            delay: None,
            exchange: None,
            settling: FuturesUnordered::new(),
            confirming: FuturesUnordered::new(),
            may_have_jobs: true,
            seen: 0,
            arrival: None,
            watch: None,
            pause: None,
            spawn_pause: None,
            grace: None,
            grace_over: Arc::default(),
            stopping: false,
            until_idle: false,
            found_nothing: false,
            refused: None,
            pace: Pace::default(),
            pauses: Pauses::default(),
            spawn_pauses: Pauses::default(),
            begun: 0,
            summary: Summary::default(),
        })
    }

    pub(super) fn poll<S: Future<Output = ()>>(
        &mut self,
        cx: &mut Waiting<'_>,
        mut shutdown: Pin<&mut S>,
    ) -> Poll<Result<Summary>> {
        loop {
            if !self.stopping && shutdown.as_mut().poll(cx).is_ready() {
                self.stop();
            }
            if self.until_idle && !self.stopping && self.has_nothing() && self.exchange.is_none() {
                if self.found_nothing {
                    self.stop();
                } else {
                    self.may_have_jobs = true;
                }
            }
            if self.is_finished() {
                return Poll::Ready(match self.refused.take() {
                    Some(error) => Err(error),
                    None => Ok(self.summary),
                });
            }
            ready!(self.step(cx));
        }
    }

    /// Performs the next step. Everything that has ended is processed before anything is sent, so that
    /// it is sent together.
    fn step(&mut self, cx: &mut Waiting<'_>) -> Poll<()> {
        // Before any is looked for. A handler whose result is not used any more may still have one, too.
        self.slots.watch(cx.waker());
        self.want_slots();
        self.begin();
        if let Poll::Ready(Some((number, verdict))) = self.attempts.poll_next_unpin(cx) {
            self.decide(number, verdict);
            return Poll::Ready(());
        }
        if let Poll::Ready(Some(time)) = self.calls.poll_next(cx) {
            self.call_ended(&time);
            return Poll::Ready(());
        }
        if let Poll::Ready(Some((outcome, settlement))) = self.settling.poll_next_unpin(cx) {
            self.count(&outcome, settlement);
            return Poll::Ready(());
        }
        if let Poll::Ready(Some(confirmed)) = self.confirming.poll_next_unpin(cx) {
            self.confirmed(confirmed);
            return Poll::Ready(());
        }
        if ended(&mut self.prefetch_timer, cx) {
            self.drop_returned();
            return Poll::Ready(());
        }
        self.watch_unhandled(cx);
        if ended(&mut self.grace, cx) {
            self.grace_over.store(true, Ordering::Release);
            self.pause = None;
            self.delay = None;
            self.done.append(&mut self.delayed);
            self.give_up();
            return Poll::Ready(());
        }
        if ended(&mut self.pause, cx) {
            return Poll::Ready(());
        }
        if ended(&mut self.spawn_pause, cx) {
            return Poll::Ready(());
        }
        if ended(&mut self.delay, cx) {
            self.done.append(&mut self.delayed);
        }
        self.send();
        if let Some(exchange) = &mut self.exchange
            && let Poll::Ready(answer) = exchange.answer.as_mut().poll(cx)
        {
            self.answered(answer);
            return Poll::Ready(());
        }
        if ended(&mut self.arrival, cx) {
            self.may_have_jobs = true;
            self.calls.may_have_jobs = true;
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Others may have those that it has no use for, also between attempts to reach the server.
    fn want_slots(&self) {
        let paused = self.pause.is_some() || self.spawn_pause.is_some();
        let claims = self.may_have_jobs && !self.stopping && !paused;
        self.slots.want(claims || !self.prefetched.is_empty());
    }

    /// Reports jobs without a handler.
    fn watch_unhandled(&mut self, cx: &mut Waiting<'_>) {
        if self.settings.claim.names.is_empty() || self.stopping {
            self.watch = None;
            return;
        }
        let watch = self.watch.get_or_insert_with(|| {
            let queue = Arc::clone(&self.queue);
            let names = self.settings.claim.names.to_vec();
            let time = WATCH.mul_f64(0.75 + fastrand::f64() / 2.0);
            Box::pin(async move {
                queue.sleep(time).await;
                queue.unhandled(names).await
            })
        });
        let Poll::Ready(found) = watch.as_mut().poll(cx) else {
            return;
        };
        self.watch = None;
        // The next is waited for from now on.
        cx.waker().wake_by_ref();
        match found {
            Ok(found) => {
                for jobs in found.iter().filter(|jobs| jobs.waited >= WATCH) {
                    let queue = self.queue.name();
                    self.settings.observer.unhandled(queue, jobs);
                }
            }
            Err(error) => self.settings.observer.failed(&error),
        }
    }

    fn is_finished(&self) -> bool {
        self.stopping && self.has_nothing() && self.exchange.is_none()
    }

    /// Whether it has no work, apart from the exchange.
    fn has_nothing(&self) -> bool {
        self.running.is_empty()
            && self.calls.is_empty()
            && self.prefetched.is_empty()
            && self.done.is_empty()
            && self.delayed.is_empty()
            && self.settling.is_empty()
            && self.confirming.is_empty()
    }

    /// Has it end when there is nothing to do.
    pub(super) fn until_idle(mut self) -> Self {
        self.until_idle = true;
        self
    }

    /// Begins what can begin.
    fn begin(&mut self) {
        while !self.prefetched.is_empty()
            && let Some(slot) = self.slots.try_take()
            && let Some(delivery) = self.prefetched.pop_front()
        {
            self.begin_one(Arc::new(delivery), slot);
        }
        if !self.prefetched.is_empty() && self.prefetch_timer.is_none() {
            let queue = Arc::clone(&self.queue);
            self.prefetch_timer = Some(Box::pin(async move { queue.sleep(BEGUN_WITHIN).await }));
        }
    }

    /// Drops prefetched jobs that were released because no handler was free in time.
    fn drop_returned(&mut self) {
        let prefetched = std::mem::take(&mut self.prefetched).into_iter();
        let (returned, kept): (Vec<_>, _) = prefetched.partition(Delivery::is_lost);
        self.prefetched = kept.into();
        if !returned.is_empty() {
            self.pace.stalled(BEGUN_WITHIN);
        }
        for delivery in returned {
            self.give_back(Arc::new(delivery));
        }
    }

    fn begin_one(&mut self, delivery: Arc<Delivery>, slot: Slot) {
        if !delivery.begin() {
            self.give_back(delivery);
            return;
        }
        let Some(handler) = self.handlers.of(delivery.name()) else {
            // Another worker may have one, such as a newer version of this program.
            let time = UNHANDLED.mul_f64(0.5 + fastrand::f64());
            self.settle(delivery, Outcome::Defer(time));
            return;
        };
        let begin = match &handler.runs {
            Runs::Job(begin) => begin,
            Runs::Batch(number) => return self.gather(*number, delivery, slot),
        };
        self.settings.observer.started(&delivery);
        let context = Context::new(Arc::clone(&delivery), self.handlers.data());
        let handling = Handling::of(&delivery);
        let work = handling.run(|| begin(context.clone(), slot));
        let options = handler.options.as_ref().unwrap_or(&self.settings.options);
        let attempt = attempt(work, context, Arc::clone(&self.queue), options.time());
        self.run_attempt(delivery, handling, attempt, false);
    }

    fn run_attempt(
        &mut self,
        delivery: Arc<Delivery>,
        handling: Handling,
        attempt: impl Future<Output = Verdict> + Send + 'static,
        in_batch: bool,
    ) {
        self.begun += 1;
        let number = self.begun;
        let attempt = handling.around(attempt);
        self.attempts.push(match &self.settings.spawn {
            None => Quiet::new(async move { (number, attempt.await) }),
            Some(spawn) => {
                let (verdict, reported) = self.spawned(spawn, attempt);
                let not_run = Verdict::NotRun { reported };
                Quiet::new(async move { (number, verdict.await.unwrap_or(not_run)) })
            }
        });
        let since = self.queue.now();
        delivery.began_at(since);
        let running = Running {
            delivery,
            since,
            handling,
            in_batch,
        };
        self.running.insert(number, running);
    }

    /// Has the program run this. Also returns whether it has panicked at that, and the observer knows.
    fn spawned<T: Send + 'static>(
        &self,
        spawn: &Arc<dyn Fn(Spawned) + Send + Sync>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> (oneshot::Receiver<T>, bool) {
        let (mut sender, answer) = oneshot::channel();
        let work: Spawned = Box::pin(async move {
            if let Some(answer) = unless(sender.closed(), work).await {
                // A worker that has ended does not want it.
                drop(sender.send(answer));
            }
        });
        let spawned = catch_unwind(AssertUnwindSafe(|| spawn(work)));
        let panicked = spawned.is_err();
        if let Err(panic) = spawned {
            let whose = "the spawn function of a worker";
            self.settings.observer.panicked(whose, panic);
        }
        (answer, panicked)
    }

    fn stop(&mut self) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        self.arrival = None;
        self.calls.close();
        self.return_unbegun();
        let (queue, grace) = (Arc::clone(&self.queue), self.settings.grace);
        self.grace = Some(Box::pin(async move { queue.sleep(grace).await }));
    }

    fn return_unbegun(&mut self) {
        self.drop_returned();
        for delivery in std::mem::take(&mut self.prefetched) {
            self.settle(Arc::new(delivery), Outcome::Release);
        }
    }

    /// Drops the handlers that run, and returns their jobs.
    fn give_up(&mut self) {
        drop(std::mem::take(&mut self.attempts));
        self.calls.give_up();
        for (_, running) in std::mem::take(&mut self.running) {
            let took = self.queue.now().saturating_sub(running.since);
            // A handler that somebody else runs may not have been dropped yet: it is told before others have its job.
            running.delivery.lose();
            self.finish(running, took, Ending::Released);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.attempts));
        self.calls.give_up();
        self.slots.leave();
        let later = |delivery: &Delivery, outcome| {
            delivery.settled_by_caller();
            self.queue.settle_later(delivery.ticket(), outcome);
        };
        for running in self.running.values() {
            let took = self.queue.now().saturating_sub(running.since);
            self.notify_observer(running, &Ending::Released, took);
            running.delivery.lose();
            later(&running.delivery, Outcome::Interrupt);
        }
        for delivery in &self.prefetched {
            later(delivery, Outcome::Release);
        }
        // What the exchange has completed already is completed once.
        let sent = self.exchange.iter().flat_map(|exchange| &exchange.acks);
        for done in self.done.iter().chain(&self.delayed).chain(sent) {
            later(&done.delivery, Outcome::Ack);
        }
    }
}

/// Polls what is there, and takes it away when it has ended.
fn ended(waiting: &mut Option<Boxed<()>>, cx: &mut Waiting<'_>) -> bool {
    let ready = waiting
        .as_mut()
        .is_some_and(|waiting| waiting.as_mut().poll(cx).is_ready());
    if ready {
        *waiting = None;
    }
    ready
}

#[cfg(test)]
mod tests;
