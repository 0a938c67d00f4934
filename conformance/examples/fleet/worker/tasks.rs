//! A worker on an async runtime.

use std::sync::Arc;

use futures_util::future::join_all;
use lockapi::{Backend, BackendExt, Fence, MutexGuard};
use tokio::time::sleep;

use super::{HANDS, LOOK_AHEAD, Node, POLL, REPORT, RETRY, key};
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
    pub(crate) async fn work(&self) {
        tokio::select! {
            _ = join_all((0..HANDS).map(|hand| self.run_all(hand))) => {}
            () = self.report_all() => {}
        }
        self.report().await;
    }

    /// Runs one task after the other.
    async fn run_all(&self, hand: usize) {
        let order = format!("{} {hand}", self.node.name);
        'look: loop {
            // The database may be out of reach for a moment: look again.
            let pick = self.store.pick(&order, LOOK_AHEAD).await;
            let pick = pick.unwrap_or_default();
            if pick.over {
                return;
            }
            for task in pick.due {
                if self.try_run(&task).await {
                    continue 'look;
                }
            }
            sleep(POLL).await;
        }
    }

    /// Runs a task, and answers `false` when that was not to be done.
    async fn try_run(&self, task: &str) -> bool {
        if self.node.safety == Safety::NoLocks {
            return self.run(task, None).await;
        }
        let Ok(mutex) = self.backend.mutex(key(task)) else {
            return false;
        };
        let guard = match mutex.try_lock().await {
            Ok(Some(guard)) => guard,
            Ok(None) => {
                self.node.contended();
                return false;
            }
            // The connection has ended: the next look tries again.
            Err(_) => return false,
        };
        let ran = self.run(task, Some(&*guard)).await;
        // Whether it was still held no longer matters: what was written was checked.
        drop(guard.unlock().await);
        ran
    }

    async fn run(&self, task: &str, guard: Option<&dyn MutexGuard>) -> bool {
        let fence = guard.map(MutexGuard::fence);
        let begun = self.store.begin(task, &self.node.name, fence.as_ref());
        let run = match begun.await {
            Ok(Some(run)) => run,
            // Another worker ran it between the look and the lock.
            Ok(None) => return false,
            Err(error) => {
                self.node.gave_up(error.is_lost());
                return false;
            }
        };
        let worked = tokio::select! {
            biased;
            () = sleep(run.work) => true,
            () = lost(guard) => false,
        };
        if worked {
            let fence = fence.filter(|_| self.node.safety == Safety::Full);
            self.complete(&run, guard, fence.as_ref()).await;
        } else {
            self.node.gave_up(false);
        }
        true
    }

    /// Tries until it is known whether the run counts.
    async fn complete(&self, run: &Run, guard: Option<&dyn MutexGuard>, fence: Option<&Fence>) {
        loop {
            match self.store.complete(run, fence).await {
                Ok(()) => return,
                Err(error) if error.is_lost() => return self.node.gave_up(true),
                // Nobody else has the lock, so the same can be written again.
                Err(_) => sleep(RETRY).await,
            }
            if guard.is_some_and(MutexGuard::is_lost) {
                return self.node.gave_up(false);
            }
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
        let _ok = self.store.report(&self.node.name, self.node.counts()).await;
    }
}

async fn lost(guard: Option<&dyn MutexGuard>) {
    match guard {
        Some(guard) => guard.lost().await,
        None => std::future::pending().await,
    }
}
