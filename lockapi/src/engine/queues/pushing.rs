//! Pushing.

use std::hash::BuildHasher;
use std::iter;
use std::sync::Arc;

use rustc_hash::FxBuildHasher;

use super::coalescing::Coalesced;
use super::handle::{Handle, PAUSE};
use crate::driver::Connection;
use crate::engine::batcher::{ALONE, Batch, Queued};
use crate::engine::connection::OpenConnection;
use crate::engine::notify::Notify;
use crate::error::{Error, ErrorKind, Failure, LOCKED, Result};
use crate::queue::{How, Job, Push, PushKeyed, PushTogether, Pushed};

/// A push of more than this weight would keep completions and claims waiting.
const BULK: usize = 256;

impl Handle {
    /// Notifies listeners, in a statement of its own: a transaction that notifies blocks all others of
    /// the cluster that do so until its commit is on disk. Listeners that have just been notified are
    /// notified a moment later.
    pub(super) fn tell(&self) {
        let queues = &self.core.queues;
        let number = self.number;
        match self.topic.ring(queues.timer.now()) {
            // Listeners that are not notified poll.
            Ok(()) => queues.batcher.submit(Notify(number), drop),
            Err(None) => {}
            Err(Some(at)) => {
                let topic = Arc::clone(&self.topic);
                let queues = Arc::downgrade(queues);
                self.core.queues.timer.run_at(at, move || {
                    if let Some(queues) = queues.upgrade() {
                        topic.rung(queues.timer.now());
                        queues.batcher.submit(Notify(number), drop);
                    }
                });
            }
        }
    }

    async fn push_plain(&self, jobs: &[Job]) -> Result<Vec<i64>> {
        let push = Push {
            namespace: self.name.namespace.clone(),
            queue: self.name.queue.clone(),
            jobs: jobs.iter().map(Job::row).collect(),
            topic: None,
        };
        if push.weight() > BULK {
            return self.call_in_bulk(push).await;
        }
        self.call(push).await
    }

    /// Pushes all jobs or none.
    pub(super) async fn push_all(&self, jobs: &[Job]) -> Result<Vec<Pushed>> {
        self.sweep_later();
        let pushed = self.push_untold(jobs).await?;
        if !jobs.is_empty() {
            self.topic.bump();
            self.tell();
        }
        Ok(pushed)
    }

    async fn push_untold(&self, jobs: &[Job]) -> Result<Vec<Pushed>> {
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
            job: job.row(),
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
        while timer.now() < until {
            match self.call(push.clone()).await {
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
            timer.sleep(PAUSE.mul_f64(fastrand::f64())).await;
        }
        let locked = || {
            let message = format!("a job of the same key is {LOCKED}");
            Error::new(ErrorKind::TimedOut, "push", message).on(&self.name.queue)
        };
        Err(unknown.unwrap_or_else(locked))
    }

    async fn push_together(&self, push: PushTogether, repeat: bool) -> Result<Vec<Pushed>> {
        let pushed = match self.call_in_bulk(push.clone()).await {
            Err(error) if repeat && error.kind() == ErrorKind::Indeterminate => {
                let again = self.call_in_bulk(push).await;
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
        1 + self.job.payload.len() / 4096
    }

    fn places(&self) -> impl Iterator<Item = u64> {
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
            answered.send_told(Ok(answer), connection.repeated);
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
            callers.first().send_told(Ok(pushed), connection.repeated);
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
    Ok(all)
}
