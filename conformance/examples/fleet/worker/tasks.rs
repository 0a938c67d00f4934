//! A worker on an async runtime.

use std::sync::Arc;

use futures_util::future::join_all;
use lockapi::queue::Delivery;
use lockapi::{Backend, Queue, Stop};
use tokio::time::sleep;

use super::{HANDS, NAME, Node, POLL, REPORT, RETRY};
use crate::args::Safety;
use crate::store::{Run, Store};

pub(crate) struct Worker {
    node: Node,
    backend: Arc<dyn Backend>,
    store: Arc<dyn Store>,
}

impl Worker {
    pub(crate) fn new(node: Node, backend: Arc<dyn Backend>, store: Arc<dyn Store>) -> Self {
        Self {
            node,
            backend,
            store,
        }
    }

    /// Works until nothing is due any more.
    pub(crate) async fn work(&self) -> lockapi::Result<()> {
        let queue = self.backend.queue(NAME)?;
        let scheduler = self.backend.scheduler_with(NAME, self.node.options())?;
        tokio::select! {
            _ = join_all((0..HANDS).map(|_| self.run_all(&queue))) => {}
            failed = scheduler.run(Stop::new()) => failed?,
            () = self.report_all() => {}
        }
        self.report().await;
        Ok(())
    }

    /// Works on one run after the other.
    async fn run_all(&self, queue: &Arc<dyn Queue>) {
        let claim = self.node.claim();
        loop {
            let ran = match queue.claim(&claim).await.map(|mut jobs| jobs.pop()) {
                Ok(Some(delivery)) => self.run(delivery).await,
                Ok(None) => false,
                // The database may be out of reach for a moment.
                Err(_) => {
                    sleep(POLL).await;
                    false
                }
            };
            if !ran && self.store.over().await.unwrap_or(false) {
                return;
            }
        }
    }

    /// Works on a run, and answers `false` when that was not to be done.
    async fn run(&self, delivery: Delivery) -> bool {
        let run = match self.store.begin(&delivery, self.node.name()).await {
            Ok(Some(run)) => run,
            outcome => {
                // It is given back in any case.
                drop(delivery.snooze(POLL).await);
                return outcome.is_err();
            }
        };
        let worked = tokio::select! {
            biased;
            () = sleep(run.work) => true,
            () = delivery.lost(), if self.node.safety == Safety::Full => false,
        };
        if worked {
            self.complete(&run, delivery).await;
        } else {
            self.node.gave_up(false);
        }
        true
    }

    /// Tries until it is known whether the run counts.
    async fn complete(&self, run: &Run, delivery: Delivery) {
        let fenced = self.node.safety == Safety::Full;
        loop {
            match self.store.complete(run, fenced.then_some(&delivery)).await {
                Ok(()) => break,
                Err(error) if error.is_lost() => return self.node.gave_up(true),
                Err(_) => sleep(RETRY).await,
            }
        }
        if !fenced {
            // Another may have it by now; what was written stays.
            drop(delivery.ack().await);
        }
    }

    async fn report_all(&self) {
        loop {
            self.report().await;
            sleep(REPORT).await;
        }
    }

    async fn report(&self) {
        // The next report has the same and more.
        let _ok = self
            .store
            .report(self.node.name(), self.node.counts())
            .await;
    }
}
