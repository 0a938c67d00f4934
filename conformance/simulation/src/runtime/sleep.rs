//! Waiting in virtual time.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Runtime, Time};

/// See [`Runtime::sleep`].
pub(crate) struct Sleep {
    pub(super) runtime: Runtime,
    pub(super) until: Time,
    pub(super) registered: Option<Arc<Mutex<Waker>>>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.runtime.now() >= self.until {
            return Poll::Ready(());
        }
        if let Some(waker) = &self.registered {
            context
                .waker()
                .clone_into(&mut waker.lock().unwrap_or_else(PoisonError::into_inner));
        } else {
            let waker = Arc::new(Mutex::new(context.waker().clone()));
            let woken = Arc::downgrade(&waker);
            self.runtime.at(self.until, move |_| {
                if let Some(waker) = woken.upgrade() {
                    waker
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .wake_by_ref();
                }
            });
            self.registered = Some(waker);
        }
        Poll::Pending
    }
}
