//! Waiting for things that happen soon, and making sure that others do not.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How long something that has to happen may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// How long something that must not happen is given to happen.
pub(crate) const A_MOMENT: Duration = Duration::from_millis(120);

/// Asks until the answer is yes; panics when it does not become so [`SOON`].
///
/// # Panics
/// With `what` when the answer stays no.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    while !check().await {
        assert!(start.elapsed() < SOON, "not within {SOON:?}: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Waits for a future that has to end [`SOON`].
///
/// # Panics
/// With `what` when it does not.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work)
        .await
        .unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

/// Drives a future for [`A_MOMENT`] and expects that it does not end.
///
/// # Panics
/// With `what` when it ends.
pub(crate) async fn not_yet<T>(what: &str, work: impl Future<Output = T>) {
    let ended = tokio::time::timeout(A_MOMENT, work).await.is_ok();
    assert!(!ended, "{what}");
}

/// Polls `work` at most `polls` times, each time after it was woken, and then drops it.
///
/// Answers whether it ended.
///
/// # Panics
/// When it is not woken [`SOON`].
pub(crate) async fn poll_then_drop<T>(work: impl Future<Output = T>, polls: usize) -> Option<T> {
    let waker = Arc::new(Counter::default());
    let mut work = Box::pin(work);
    for nth in 0..polls {
        let mut context = std::pin::pin!(Waker::from(Arc::clone(&waker)));
        let poll = poll_once(work.as_mut(), &mut context);
        if let Poll::Ready(value) = poll {
            return Some(value);
        }
        if nth + 1 < polls {
            soon("a pending future is woken", waker.woken()).await;
        }
    }
    None
}

fn poll_once<F: Future>(work: Pin<&mut F>, waker: &mut Waker) -> Poll<F::Output> {
    work.poll(&mut Context::from_waker(waker))
}

#[derive(Default)]
struct Counter {
    wakes: AtomicUsize,
    seen: AtomicUsize,
    notify: Notify,
}

impl Counter {
    async fn woken(&self) {
        loop {
            let notified = self.notify.notified();
            let wakes = self.wakes.load(Ordering::Acquire);
            if self.seen.swap(wakes, Ordering::AcqRel) != wakes {
                return;
            }
            notified.await;
        }
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_one();
    }
}
