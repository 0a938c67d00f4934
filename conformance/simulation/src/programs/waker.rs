//! Wakers of programs that panic.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use crate::runtime::{WAKER_PANIC, may_panic};

/// Wakes its task, and panics.
struct Panicking(Waker);

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
        assert!(!may_panic(), "{WAKER_PANIC}");
    }
}

/// Makes a call of which each waker panics.
pub(super) async fn panicking<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    poll_fn(|waiting: &mut Context<'_>| {
        let waker = Waker::from(Arc::new(Panicking(waiting.waker().clone())));
        call.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}
