//! Pushing.

use std::sync::Arc;

use super::handle::{Handle, PAUSE, TRIES};
use crate::engine::batcher::Queued;
use crate::engine::notify::Notify;
use crate::error::{ErrorKind, Result};
use crate::queue::{Job, Push, PushKeyed, Pushed, in_transaction};
use crate::seam::Connector;

/// A push of more than this weight would keep completions and claims waiting.
const BULK: usize = 256;

impl<C: Connector> Handle<C> {
    /// The topic to tell listeners of with a push, unless they have just been told; then they are
    /// told a moment later.
    fn ring(&self) -> Option<i64> {
        let queues = &self.core.queues;
        match self.topic.ring(queues.keeper.now()) {
            Ok(()) => Some(self.number),
            Err(None) => None,
            Err(Some(at)) => {
                let (topic, number) = (Arc::downgrade(&self.topic), self.number);
                let queues = Arc::downgrade(queues);
                self.core.queues.keeper.run_at(at, move || {
                    if let (Some(topic), Some(queues)) = (topic.upgrade(), queues.upgrade()) {
                        topic.rung(queues.keeper.now());
                        // Who is not told looks by itself after a while.
                        queues.batcher.submit(Notify(number), drop);
                    }
                });
                None
            }
        }
    }

    pub(super) async fn push_plain(&self, jobs: &[&Job]) -> Result<Vec<i64>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let push = Push {
            namespace: self.name.namespace.clone(),
            queue: self.name.queue.clone(),
            jobs: jobs.iter().map(|job| job.row()).collect(),
            topic: self.ring(),
        };
        if push.weight() > BULK {
            return self.call_in_bulk(push).await;
        }
        self.call(push).await
    }

    pub(super) async fn push_keyed(&self, job: &Job) -> Result<Pushed> {
        let push = PushKeyed {
            namespace: self.name.namespace.clone(),
            queue: self.name.queue.clone(),
            job: job.row(),
            keys: job.keys(),
            topic: self.ring(),
        };
        let mut repeat = job.is_idempotent();
        for _ in 0..TRIES {
            match self.call(push.clone()).await {
                Ok(Some(pushed)) => return Ok(pushed),
                Ok(None) => {}
                Err(error) if repeat && error.kind() == ErrorKind::Indeterminate => {
                    repeat = false;
                }
                Err(error) => return Err(error),
            }
            self.core
                .links
                .keeper
                .sleep(PAUSE.mul_f64(fastrand::f64()))
                .await;
        }
        Err(in_transaction::key_is_busy("push").on(&self.name.queue))
    }
}
