//! A FIFO queue for each key: the callers of this process that wait for the same, in the order of arrival.

use std::hash::Hash;
use std::sync::{Arc, PoisonError};

use rustc_hash::FxHashMap;
use tokio::sync::Semaphore;

use crate::engine::contained;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, MutexGuard, Notify};

/// The queues that are not empty.
pub(crate) struct KeyedFifo<K>(Mutex<State<K>>);

struct State<K> {
    queues: FxHashMap<K, Queue>,
    /// Of all keys.
    waiting: usize,
}

struct Queue {
    /// Its holder is the first.
    first: Arc<Semaphore>,
    changed: Arc<Notify>,
    length: usize,
    /// How many have joined it.
    joined: u64,
    /// How many had when the first made its latest attempt.
    asked: u64,
    /// The error of an attempt, and how many had joined when that was made.
    refused: Option<(u64, Error)>,
}

/// A position in a queue, until this is dropped.
pub(crate) struct Position<'a, K: Eq + Hash> {
    fifo: &'a KeyedFifo<K>,
    key: K,
    first: Arc<Semaphore>,
    changed: Arc<Notify>,
    number: u64,
}

impl<K> Default for KeyedFifo<K> {
    fn default() -> Self {
        Self(Mutex::new(State {
            queues: FxHashMap::default(),
            waiting: 0,
        }))
    }
}

impl<K: Clone + Eq + Hash> KeyedFifo<K> {
    /// Whether there are no waiters for a key.
    pub(crate) fn is_empty(&self, key: &K) -> bool {
        !self.lock().queues.contains_key(key)
    }

    /// Wakes whoever waits for a [change](Position::changed) of a key.
    pub(crate) fn wake(&self, key: &K) {
        let state = self.lock();
        let changed = state.queues.get(key).map(|it| Arc::clone(&it.changed));
        drop(state);
        if let Some(changed) = changed {
            changed.notify_waiters();
        }
    }

    /// Joins the queue of a key at its end.
    pub(crate) fn join(&self, key: K) -> Position<'_, K> {
        self.position(self.lock(), key)
    }

    /// The same, unless this number of callers wait already, for any key.
    pub(crate) fn try_join(&self, key: K, most: usize) -> Option<Position<'_, K>> {
        let state = self.lock();
        (state.waiting < most).then(|| self.position(state, key))
    }

    fn position(&self, mut state: MutexGuard<'_, State<K>>, key: K) -> Position<'_, K> {
        state.waiting += 1;
        let queue = state.queues.entry(key.clone()).or_insert_with(|| Queue {
            first: Arc::new(Semaphore::new(1)),
            changed: Arc::default(),
            length: 0,
            joined: 0,
            asked: 0,
            refused: None,
        });
        queue.length += 1;
        queue.joined += 1;
        Position {
            fifo: self,
            first: Arc::clone(&queue.first),
            changed: Arc::clone(&queue.changed),
            number: queue.joined,
            key,
        }
    }
}

impl<K> KeyedFifo<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Position<'_, K> {
    /// Runs `work` once everybody who came before has left.
    pub(crate) async fn first<T>(&self, work: impl Future<Output = T>) -> T {
        // It is never closed: that would let everybody in at once.
        let _first = contained(self.first.acquire()).await;
        work.await
    }
}

impl<K: Eq + Hash> Position<'_, K> {
    /// The same with work that makes attempts: who joined before one was made that was [refused](Self::refused) has waited
    /// for its answer, and does not work.
    pub(crate) async fn first_unless_refused<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let work = async {
            let refused = self.queue(|queue| queue.refused.clone());
            match refused.flatten() {
                Some((joined, error)) if joined >= self.number => Err(error),
                _ => work.await,
            }
        };
        self.first(work).await
    }

    /// Completes when the key is [woken](KeyedFifo::wake) after this call.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> {
        contained(self.changed.notified())
    }

    /// An attempt is made now.
    pub(crate) fn attempts(&self) {
        self.queue(|queue| queue.asked = queue.joined);
    }

    /// It has failed. If the server cannot be asked, those in line would hear it as well, one after the other.
    pub(crate) fn refused(&self, error: &Error) {
        if error.is_outage() {
            self.refuse(error);
        }
    }

    fn refuse(&self, error: &Error) {
        self.queue(|queue| queue.refused = Some((queue.asked, error.clone())));
    }

    /// As [`first_unless_refused`](Self::first_unless_refused), with work that is one attempt. Who waited while it waited for a
    /// lock has waited as long.
    pub(crate) async fn attempt<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let attempt = async {
            self.attempts();
            let outcome = work.await;
            if let Err(error) = &outcome
                && (error.is_outage() || error.kind() == ErrorKind::TimedOut)
            {
                self.refuse(error);
            }
            outcome
        };
        self.first_unless_refused(attempt).await
    }

    fn queue<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        self.fifo.lock().queues.get_mut(&self.key).map(work)
    }
}

impl<K: Eq + Hash> Drop for Position<'_, K> {
    fn drop(&mut self) {
        let mut state = self.fifo.lock();
        state.waiting -= 1;
        if let Some(queue) = state.queues.get_mut(&self.key) {
            queue.length -= 1;
            if queue.length == 0 {
                state.queues.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_first_of_a_key_works_and_nothing_is_left_of_those_who_leave() {
        let fifo = KeyedFifo::default();
        let (one, two, other) = (fifo.join("a"), fifo.join("a"), fifo.join("b"));
        assert!(fifo.try_join("c", 3).is_none());
        let mut first = Box::pin(one.first(std::future::pending::<()>()));
        assert!((&mut first).now_or_never().is_none());
        assert!(two.first(async {}).now_or_never().is_none());
        assert!(other.first(async {}).now_or_never().is_some());
        drop(first);
        assert!(two.first(async {}).now_or_never().is_some());
        drop((one, two));
        assert!(fifo.is_empty(&"a") && !fifo.is_empty(&"b"));
        assert!(fifo.try_join("c", 2).is_some());
    }
}

#[cfg(test)]
mod refusals {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn who_joined_before_an_attempt_that_was_refused_makes_none() {
        let fifo = KeyedFifo::default();
        let gone = || Error::new(ErrorKind::Unavailable, "acquire", "gone");
        let (one, two) = (fifo.join("a"), fifo.join("a"));
        let late = async {
            one.attempts();
            // Comes while the attempt is under way.
            let late = fifo.join("a");
            one.refused(&gone());
            Ok::<_, Error>(late)
        };
        let late = one.first_unless_refused(late).now_or_never().unwrap();
        let late = late.unwrap();
        let work = || async { Ok::<_, Error>(()) };
        let two = two.first_unless_refused(work()).now_or_never().unwrap();
        assert_eq!(two.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(
            late.first_unless_refused(work())
                .now_or_never()
                .unwrap()
                .is_ok()
        );
    }
}

#[cfg(test)]
mod told {
    use futures_util::FutureExt;

    use super::*;

    /// Whether the next in line is told of an error of the first.
    fn is_told(error: &Error) -> bool {
        let fifo = KeyedFifo::default();
        let (one, two) = (fifo.join("a"), fifo.join("a"));
        let work = one.attempt(async { Err::<(), _>(error.clone()) });
        assert!(work.now_or_never().unwrap().is_err());
        let work = two.attempt(async { Ok(()) });
        work.now_or_never().unwrap().is_err()
    }

    #[test]
    fn an_error_that_all_would_hear_is_told_to_all() {
        let error = |kind| Error::new(kind, "run_now", "no");
        assert!(is_told(&error(ErrorKind::Unavailable)));
        assert!(is_told(&error(ErrorKind::TimedOut)));
        let full = error(ErrorKind::Capacity);
        assert!(!is_told(&full), "in this process only");
        let source = Arc::new(std::io::Error::other("too many clients"));
        assert!(is_told(&full.caused(Some("53300".to_owned()), source)));
        assert!(!is_told(&error(ErrorKind::Invalid)));
    }
}

#[cfg(all(test, not(shuttle)))]
mod wakers {
    use std::pin::pin;
    use std::task::Context;

    use super::*;
    use crate::engine::panicking_waker;

    #[test]
    fn waker_that_panics_does_not_reach_the_one_who_wakes() {
        let fifo = KeyedFifo::default();
        let place = fifo.join("key");
        let mut waits = pin!(place.first(async { place.changed().await }));
        let waker = panicking_waker();
        let polled = waits.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        fifo.wake(&"key");
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use futures_util::FutureExt;

    use super::*;
    use crate::sync::atomic::{AtomicUsize, Ordering};
    use crate::sync::{explore, thread};

    #[test]
    fn one_of_a_key_works_at_a_time() {
        explore(|| {
            let fifo = Arc::new(KeyedFifo::default());
            let inside = Arc::new(AtomicUsize::new(0));
            let caller = || {
                let (fifo, inside) = (Arc::clone(&fifo), Arc::clone(&inside));
                thread::spawn(move || {
                    let place = fifo.join("key");
                    let work = async {
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        shuttle::future::yield_now().await;
                        inside.fetch_sub(1, Ordering::Relaxed);
                    };
                    shuttle::future::block_on(place.first(work));
                })
            };
            let callers = [caller(), caller(), caller()];
            for caller in callers {
                caller.join().unwrap();
            }
            assert!(fifo.is_empty(&"key"));
        });
    }

    /// Its work waits for changes, and it leaves: the next one is not left waiting.
    #[test]
    fn the_first_is_woken_by_a_change_and_the_next_when_it_leaves() {
        explore(|| {
            let fifo = Arc::new(KeyedFifo::default());
            let free = Arc::new(AtomicUsize::new(0));
            let callers = [(); 2].map(|()| {
                let (fifo, free) = (Arc::clone(&fifo), Arc::clone(&free));
                thread::spawn(move || {
                    let place = fifo.join("key");
                    let work = async {
                        loop {
                            // Registered before the look.
                            let changed = place.changed();
                            if free.swap(0, Ordering::AcqRel) > 0 {
                                return;
                            }
                            changed.await;
                        }
                    };
                    shuttle::future::block_on(place.first(work));
                    // It gives back what it had, and whoever waits may take it.
                    free.store(1, Ordering::Release);
                    fifo.wake(&"key");
                })
            });
            let leaving = fifo.join("key");
            {
                let first = leaving.first(std::future::pending::<()>());
                assert!(first.now_or_never().is_none());
            }
            drop(leaving);
            free.store(1, Ordering::Release);
            fifo.wake(&"key");
            for caller in callers {
                caller.join().unwrap();
            }
            assert!(fifo.is_empty(&"key"));
        });
    }
}
