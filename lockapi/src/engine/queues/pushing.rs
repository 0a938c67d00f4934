//! Pushing.

use std::hash::BuildHasher;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxBuildHasher;
use tokio::sync::oneshot;

use super::coalescing::Coalesced;
use super::handle::{Handle, PAUSE};
use super::{Queues, Topic};
use crate::driver::Connection;
use crate::engine::batcher::{ALONE, Answer, Batch, Batcher, Queued, Repeated, Reply, answer_lost};
use crate::engine::connection::OpenConnection;
use crate::engine::notify::Notify;
use crate::error::{Error, ErrorKind, Failure, LOCKED, Result};
use crate::queue::{How, Job, Push, PushKeyed, PushTogether, Pushed};

/// A push of more than this weight would keep completions and claims waiting.
const BULK: usize = 256;
/// The longest pause between two pushes of a key whose job is locked.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Tells that something was pushed to a queue.
pub(super) struct PushNotifier {
    queues: Arc<Queues>,
    topic: Arc<Topic>,
    number: i64,
}

impl PushNotifier {
    /// Notifies listeners, in a statement of its own: a transaction that notifies blocks all others of
    /// the cluster that do so until its commit is on disk. Listeners that have just been notified are
    /// notified a moment later.
    pub(super) fn notify(self) {
        let Self {
            queues,
            topic,
            number,
        } = self;
        match topic.ring(queues.timer.now()) {
            // Listeners that are not notified poll.
            Ok(()) => queues.batcher.submit(Notify(number), drop),
            Err(None) => {}
            Err(Some(at)) => {
                let later = Arc::downgrade(&queues);
                queues.timer.run_at(at, move || {
                    if let Some(queues) = later.upgrade() {
                        topic.rung(queues.timer.now());
                        queues.batcher.submit(Notify(number), drop);
                    }
                });
            }
        }
    }
}

/// A caller that pushes. Claims are told when the answer comes, whether or not the caller still waits for
/// it, and also when it never comes: the job may be there.
struct Pushing<T> {
    sender: oneshot::Sender<Result<T>>,
    /// Whether such an answer says that something is there.
    is_pushed: fn(&T) -> bool,
    notifier: PushNotifier,
}

impl<T: Send> Answer<T> for Pushing<T> {
    fn answer(self: Box<Self>, outcome: Result<T>, _: Repeated) {
        let Self {
            sender,
            is_pushed,
            notifier,
        } = *self;
        let is_there = match &outcome {
            Ok(answer) => is_pushed(answer),
            Err(error) => matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Corrupt),
        };
        if is_there {
            notifier.topic.bump();
            notifier.notify();
        }
        // A caller that left does not want the answer.
        drop(sender.send(outcome));
    }

    fn is_awaited(&self) -> bool {
        !self.sender.is_closed()
    }
}

impl Handle {
    pub(super) fn notifier(&self) -> PushNotifier {
        PushNotifier {
            queues: Arc::clone(&self.core.queues),
            topic: Arc::clone(&self.topic),
            number: self.number,
        }
    }

    /// Sends a push and waits for its answer. If the caller leaves before it is sent, it is not sent.
    async fn send<O: Queued>(
        &self,
        batcher: &Arc<Batcher>,
        push: O,
        is_pushed: fn(&O::Output) -> bool,
    ) -> Result<O::Output> {
        let (sender, answer) = oneshot::channel();
        let pushing = Pushing {
            sender,
            is_pushed,
            notifier: self.notifier(),
        };
        batcher.queue(push, 1, Reply::new(pushing));
        let outcome = answer.await.unwrap_or_else(|_| Err(answer_lost(O::NAME)));
        outcome.map_err(|error| error.during(O::NAME).on(&self.name.queue))
    }

    async fn push_plain(&self, jobs: &[Job]) -> Result<Vec<i64>> {
        let rows = jobs.iter().map(|job| job.pushed_row(&self.name.queue));
        let push = Push {
            namespace: self.name.namespace.clone(),
            queue: self.name.queue.clone(),
            jobs: rows.collect(),
            topic: None,
        };
        let batcher = if push.weight() > BULK {
            self.core.sweeps.batcher()
        } else {
            &self.core.queues.batcher
        };
        self.send(batcher, push, |ids| !ids.is_empty()).await
    }

    /// Pushes all jobs or none.
    pub(super) async fn push_all(&self, jobs: &[Job]) -> Result<Vec<Pushed>> {
        self.sweep_later();
        match jobs {
            [] => Ok(Vec::new()),
            [job] if job.is_keyed() => {
                let push = self.push_keyed(self.keyed(job), job.is_idempotent());
                Ok(vec![push.await?])
            }
            jobs if jobs.iter().any(Job::is_keyed) => {
                let push = jobs.iter().map(|job| self.keyed(job)).collect();
                let repeat = jobs.iter().all(Job::is_idempotent);
                self.push_together(PushTogether(push), repeat).await
            }
            jobs => {
                let ids = self.push_plain(jobs).await?;
                let new = |id| Pushed { id, how: How::New };
                Ok(ids.into_iter().map(new).collect())
            }
        }
    }

    fn keyed(&self, job: &Job) -> PushKeyed {
        PushKeyed {
            namespace: self.name.namespace.clone(),
            queue: self.name.queue.clone(),
            job: job.pushed_row(&self.name.queue),
            keys: job.keys(),
            topic: None,
        }
    }

    async fn push_keyed(&self, push: PushKeyed, repeat: bool) -> Result<Pushed> {
        let timer = &self.core.connections.timer;
        let timeout = self.core.connections.timeout;
        let mut until = timer.now() + timeout;
        // What the first attempt may have done stays unknown until another has succeeded.
        let mut unknown = None;
        let mut longest = PAUSE;
        loop {
            let batcher = &self.core.queues.batcher;
            match self.send(batcher, push.clone(), Option::is_some).await {
                Ok(Some(pushed)) => return Ok(pushed),
                Ok(None) => {}
                Err(error)
                    if repeat && unknown.is_none() && error.kind() == ErrorKind::Indeterminate =>
                {
                    unknown = Some(error);
                    until = timer.now() + timeout;
                }
                Err(error) => return Err(unknown.unwrap_or(error)),
            }
            // A transaction may have the job locked for long.
            let left = until.saturating_sub(timer.now());
            if left.is_zero() {
                break;
            }
            let pause = longest.mul_f64(fastrand::f64());
            timer.sleep(pause.min(left)).await;
            longest = (longest * 2).min(LONGEST_PAUSE);
        }
        let locked = || {
            let message = format!("a job of the same key is {LOCKED}");
            Error::new(ErrorKind::TimedOut, "push", message).on(&self.name.queue)
        };
        Err(unknown.unwrap_or_else(locked))
    }

    async fn push_together(&self, push: PushTogether, repeat: bool) -> Result<Vec<Pushed>> {
        let batcher = self.core.sweeps.batcher();
        let send = |push| self.send(batcher, push, |pushed: &Vec<_>| !pushed.is_empty());
        let pushed = match send(push.clone()).await {
            Err(error) if repeat && error.kind() == ErrorKind::Indeterminate => {
                let again = send(push).await;
                again.map_err(|_| error)?
            }
            pushed => pushed?,
        };
        Ok(pushed.into_iter().flatten().collect())
    }
}

impl Queued for PushKeyed {
    const NAME: &'static str = "push";
    const REPEATABLE: bool = false;

    fn weight(&self) -> usize {
        self.job.weight()
    }

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        let keys = &self.keys;
        let of = (&self.queue, &keys.unique_key, &keys.idempotency_key);
        iter::once(FxBuildHasher.hash_one(of))
    }

    async fn serve(
        batch: &mut Batch<Self>,
        connection: &mut OpenConnection,
    ) -> std::result::Result<(), Failure> {
        let coalesced = Coalesced::of(&batch.requests);
        let answers = coalesced.answers(&connection.perform(&coalesced.pushes).await?);
        for ((_, callers), answer) in batch.take().zip(answers) {
            let answered = callers.first();
            answered.send_repeated(Ok(answer), connection.repeated);
        }
        Ok(())
    }
}

impl Queued for PushTogether {
    const NAME: &'static str = "push";
    const REPEATABLE: bool = false;

    fn weight(&self) -> usize {
        ALONE
    }

    async fn serve(
        batch: &mut Batch<Self>,
        connection: &mut OpenConnection,
    ) -> std::result::Result<(), Failure> {
        while let Some(PushTogether(jobs)) = batch.requests.first().cloned() {
            let push =
                connection.run_in_transaction(|connection| Box::pin(push_on(connection, jobs)));
            let pushed = push.await?;
            batch.requests.remove(0);
            let callers = batch.callers.remove(0);
            callers
                .first()
                .send_repeated(Ok(pushed), connection.repeated);
        }
        Ok(())
    }
}

/// Pushes jobs in the open transaction; repeats those that met another push of their key, as long as
/// that makes progress.
async fn push_on<N: Connection>(
    connection: &mut N,
    mut left: Vec<PushKeyed>,
) -> std::result::Result<Vec<Option<Pushed>>, Failure> {
    let mut places: Vec<usize> = (0..left.len()).collect();
    let mut all = vec![None; left.len()];
    while !left.is_empty() {
        let before = left.len();
        let coalesced = Coalesced::of(&left);
        let answers = coalesced.answers(&connection.perform(&coalesced.pushes).await?);
        let mut answers = answers.into_iter().zip(std::mem::take(&mut places));
        left.retain(|_| {
            answers.next().is_some_and(|(pushed, at)| {
                all[at] = pushed;
                if pushed.is_none() {
                    places.push(at);
                }
                pushed.is_none()
            })
        });
        if left.len() == before {
            let message = format!("a job of the same key is {LOCKED}");
            return Err(Failure::statement(Some("55P03".to_owned()), false, message));
        }
    }
    if !are_in_order(&all) {
        // It is taken back and tried again, as after a deadlock.
        let message = "a job of the list that met another push of its key came after later ones";
        return Err(Failure::statement(Some("40P01".to_owned()), false, message));
    }
    Ok(all)
}

/// Whether the numbers of new jobs increase. One that was there, and has ended before it was pushed again, has its number later
/// than those behind it.
fn are_in_order(pushed: &[Option<Pushed>]) -> bool {
    let new = pushed.iter().flatten().filter(|it| it.how == How::New);
    new.map(|it| it.id).is_sorted()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_jobs_of_a_list_are_in_its_order() {
        let pushed = |id, how| Some(Pushed { id, how });
        let list = [
            pushed(1, How::New),
            pushed(0, How::Changed),
            None,
            pushed(2, How::New),
        ];
        assert!(are_in_order(&list));
        assert!(!are_in_order(&[pushed(2, How::New), pushed(1, How::New)]));
    }
}
