//! Receives notifications: one listener for all subscribers of a process.
//!
//! It saves them waiting until they look the next time. Nothing may depend on it: a notification
//! that is sent while the listener is away is not heard.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::select;

use super::catch_panic;
use super::connection::{Connections, Watch};
use super::notify::prepare;
use crate::driver::{Listener, Mode};
use crate::error::Failure;
use crate::sync::{Mutex, MutexGuard, Notify};
use crate::telemetry::{self, Fault};
use crate::wait::unless;

/// How long a connection is listened on. A network that lost it may never tell, so it is replaced;
/// and nobody listens longer than this without a reason.
const LIFETIME: Duration = Duration::from_secs(300);

/// The first and the longest pause before a connection that failed is replaced.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Listens on behalf of the subscribers of a backend, while there are any.
pub(crate) struct Notifier {
    connections: Arc<Connections>,
    shared: Arc<Shared>,
}

/// A subscription to a topic, until it is dropped.
pub(crate) struct Subscription {
    shared: Arc<Shared>,
    id: SubscriptionId,
}

/// A topic, and the number of the subscription.
type SubscriptionId = (i64, u64);

type Callback = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    closing: Notify,
}

#[derive(Default)]
struct State {
    callbacks: BTreeMap<SubscriptionId, Callback>,
    subscribed: u64,
    running: bool,
    listens: bool,
    closed: bool,
}

impl Notifier {
    pub(crate) fn new(connections: Arc<Connections>) -> Self {
        let shared = Arc::default();
        Self {
            connections,
            shared,
        }
    }

    /// Subscribes to a topic, and starts to listen unless that is under way. It only saves waiting:
    /// behind a transaction-pooling proxy nobody is ever told.
    ///
    /// `callback` is called when something may have happened: the topic was notified of, or the
    /// listener connected, because what was sent before that is not known. It must not block, and
    /// may be called once more while the subscription is dropped.
    pub(crate) fn subscribe(
        &self,
        topic: i64,
        callback: impl Fn() + Send + Sync + 'static,
    ) -> Subscription {
        let mut state = self.shared.lock();
        state.subscribed += 1;
        let id = (topic, state.subscribed);
        state.callbacks.insert(id, Arc::new(callback));
        let can = self.connections.mode == Mode::Direct && !state.closed;
        let starts = can && !std::mem::replace(&mut state.running, can);
        drop(state);
        if starts {
            start(Arc::clone(&self.connections), Arc::clone(&self.shared));
        }
        Subscription {
            shared: Arc::clone(&self.shared),
            id,
        }
    }

    /// Whether notifications are heard at the moment.
    pub(crate) fn listens(&self) -> bool {
        self.shared.lock().listens
    }

    /// Ends the task; no subscriber is notified any more.
    pub(crate) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.closing.notify_one();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let callback = self.shared.lock().callbacks.remove(&self.id);
        drop(callback);
    }
}

fn start(connections: Arc<Connections>, shared: Arc<Shared>) {
    let spawning = Arc::clone(&connections);
    let mut guard = ExitGuard {
        of: Some((Arc::clone(&connections), Arc::clone(&shared))),
        began: false,
    };
    let task = async move {
        guard.begin();
        run(&connections, &shared).await;
        guard.finish();
    };
    spawning.spawn("lockapi-notifier", task);
}

/// Listens until the backend ends, or until there are no subscribers.
async fn run(connections: &Connections, shared: &Shared) {
    let watch = connections.watch();
    let mut pause = PAUSES.0;
    while shared.goes_on() {
        let since = connections.timer.now();
        let heard = hear(connections, &watch, shared).await;
        shared.lock().listens = false;
        if heard.is_ok() {
            continue;
        }
        // A connection that lasted is not one that the server refuses again and again.
        if connections.timer.now().saturating_sub(since) > PAUSES.1 {
            pause = PAUSES.0;
        }
        let jittered = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        unless(shared.closing.notified(), connections.timer.sleep(jittered)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Listens on one connection, until it fails, has been listened on for long enough, or another server has taken
/// over: the old one may be silent for long.
async fn hear(
    connections: &Connections,
    watch: &Arc<Watch>,
    shared: &Shared,
) -> Result<(), Failure> {
    let mut advanced = pin!(connections.epochs.advanced.notified());
    advanced.as_mut().enable();
    let opening = async {
        let mut listener = connections.driver.listener().await?;
        prepare(&mut listener, &connections.epochs).await?;
        Ok(listener)
    };
    let mut listener = watch.bound(opening).await?;
    shared.lock().listens = true;
    shared.ring(i64::MIN, i64::MAX);
    let lifetime = LIFETIME.mul_f64(0.8 + fastrand::f64() / 5.0);
    let enough = connections.timer.sleep(lifetime);
    let closing = pin!(shared.closing.notified());
    let hearing = async {
        loop {
            let payload = listener.next().await?;
            // Other programs may use the channel for other purposes.
            if let Ok(topic) = payload.parse() {
                shared.ring(topic, topic);
            }
        }
    };
    let enough = select(enough, advanced);
    let stop = async { drop(select(closing, enough).await) };
    unless(stop, hearing).await.unwrap_or(Ok(()))
}

impl Shared {
    /// Whether there are subscribers; if not, the next one starts another task.
    fn goes_on(&self) -> bool {
        let mut state = self.lock();
        state.running = !state.closed && !state.callbacks.is_empty();
        state.running
    }

    /// Tells those who are subscribed to topics of a range.
    fn ring(&self, from: i64, to: i64) {
        let state = self.lock();
        let callbacks = state.callbacks.range((from, 0)..=(to, u64::MAX));
        let callbacks: Vec<_> = callbacks
            .map(|(_, callback)| Arc::clone(callback))
            .collect();
        drop(state);
        for callback in callbacks {
            catch_panic(|| callback());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notices that the task ended before its time, and starts another, unless this one could not even
/// begin: then the next who subscribes does.
struct ExitGuard {
    of: Option<(Arc<Connections>, Arc<Shared>)>,
    began: bool,
}

impl ExitGuard {
    fn begin(&mut self) {
        self.began = true;
    }

    fn finish(mut self) {
        self.of = None;
    }
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        let Some((connections, shared)) = self.of.take() else {
            return;
        };
        telemetry::fault(Fault::WorkerEnded);
        shared.lock().listens = false;
        if !self.began {
            shared.lock().running = false;
        } else if shared.goes_on() {
            start(connections, shared);
        }
    }
}

#[cfg(test)]
mod tests;
