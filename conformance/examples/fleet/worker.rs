//! What a worker does.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lockapi::{Backend, BackendExt, Fence, MutexGuard};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::args::Safety;
use crate::store::{Counts, Run, Store};

/// How many tasks a worker runs at the same time.
const AT_ONCE: usize = 4;
/// How many tasks a worker looks at in one go.
const LOOK_AHEAD: i64 = 16;
const POLL: Duration = Duration::from_millis(100);
const REPORT: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(100);

/// One node of the fleet.
pub(crate) struct Worker {
    node: String,
    backend: Arc<dyn Backend>,
    store: Arc<dyn Store>,
    safety: Safety,
    mine: Mutex<HashSet<String>>,
    contended: AtomicI64,
    abandoned: AtomicI64,
    refused: AtomicI64,
}

/// A task that this worker may run.
struct Claimed {
    task: String,
    /// `None` only without locks.
    guard: Option<Box<dyn MutexGuard>>,
    _room: OwnedSemaphorePermit,
}

impl Worker {
    pub(crate) fn new(
        node: &str,
        backend: Arc<dyn Backend>,
        store: Arc<dyn Store>,
        safety: Safety,
    ) -> Self {
        Self {
            node: node.to_owned(),
            backend,
            store,
            safety,
            mine: Mutex::default(),
            contended: AtomicI64::new(0),
            abandoned: AtomicI64::new(0),
            refused: AtomicI64::new(0),
        }
    }

    /// Works until nothing is due any more.
    pub(crate) async fn work(&self) {
        let (claimed, claims) = mpsc::unbounded_channel();
        let working = async { tokio::join!(self.claim_all(claimed), self.run_all(claims)) };
        tokio::select! {
            _ = working => {}
            () = self.report_all() => {}
        }
        self.report().await;
    }

    /// Claims due tasks as long as there is room.
    async fn claim_all(&self, claimed: UnboundedSender<Claimed>) {
        let room = Arc::new(Semaphore::new(AT_ONCE));
        loop {
            // The database may be out of reach for a moment: look again.
            let pick = self.store.pick(&self.node, LOOK_AHEAD).await;
            let pick = pick.unwrap_or_default();
            if pick.over {
                return;
            }
            for task in pick.due {
                let Ok(room) = Arc::clone(&room).acquire_owned().await else {
                    return;
                };
                self.claim(task, room, &claimed).await;
            }
            sleep(POLL).await;
        }
    }

    async fn claim(
        &self,
        task: String,
        room: OwnedSemaphorePermit,
        claimed: &UnboundedSender<Claimed>,
    ) {
        if self.mine().contains(&task) {
            return;
        }
        let guard = if self.safety == Safety::NoLocks {
            None
        } else {
            let Ok(mutex) = self.backend.mutex(format!("fleet/task/{task}")) else {
                return;
            };
            match mutex.try_lock().await {
                Ok(Some(guard)) => Some(guard),
                Ok(None) => {
                    self.contended.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                // The connection has ended: the next look tries again.
                Err(_) => return,
            }
        };
        self.mine().insert(task.clone());
        let claim = Claimed {
            task,
            guard,
            _room: room,
        };
        // The receiver lives as long as this worker.
        let _ok = claimed.send(claim);
    }

    async fn run_all(&self, mut claims: UnboundedReceiver<Claimed>) {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                claim = claims.recv() => match claim {
                    Some(claim) => running.push(self.run(claim)),
                    None => break,
                },
                Some(()) = running.next() => {}
            }
        }
        while running.next().await.is_some() {}
    }

    async fn run(&self, claimed: Claimed) {
        let Claimed { task, guard, _room } = claimed;
        self.run_locked(&task, guard.as_deref()).await;
        if let Some(guard) = guard {
            // Whether it was still held no longer matters: what was written was checked.
            drop(guard.unlock().await);
        }
        self.mine().remove(&task);
    }

    async fn run_locked(&self, task: &str, guard: Option<&dyn MutexGuard>) {
        let fence = guard.map(MutexGuard::fence);
        let run = match self.store.begin(task, &self.node, fence.as_ref()).await {
            Ok(Some(run)) => run,
            // Another worker ran it between the look and the lock.
            Ok(None) => return,
            Err(error) => {
                self.gave_up(error.is_lost());
                return;
            }
        };
        let worked = tokio::select! {
            biased;
            () = sleep(run.work) => true,
            () = lost(guard) => false,
        };
        if worked {
            let fence = fence.filter(|_| self.safety == Safety::Full);
            self.complete(&run, guard, fence.as_ref()).await;
        } else {
            self.gave_up(false);
        }
    }

    /// Tries until it is known whether the run counts.
    async fn complete(&self, run: &Run, guard: Option<&dyn MutexGuard>, fence: Option<&Fence>) {
        loop {
            match self.store.complete(run, fence).await {
                Ok(()) => return,
                Err(error) if error.is_lost() => return self.gave_up(true),
                // Nobody else has the lock, so the same can be written again.
                Err(_) => sleep(RETRY).await,
            }
            if guard.is_some_and(MutexGuard::is_lost) {
                return self.gave_up(false);
            }
        }
    }

    fn gave_up(&self, refused: bool) {
        let counter = if refused {
            &self.refused
        } else {
            &self.abandoned
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    async fn report_all(&self) {
        loop {
            self.report().await;
            sleep(REPORT).await;
        }
    }

    async fn report(&self) {
        let counts = Counts {
            contended: self.contended.load(Ordering::Relaxed),
            abandoned: self.abandoned.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        };
        // The next report has the same and more.
        let _ok = self.store.report(&self.node, counts).await;
    }

    fn mine(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.mine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn lost(guard: Option<&dyn MutexGuard>) {
    match guard {
        Some(guard) => guard.lost().await,
        None => std::future::pending().await,
    }
}
