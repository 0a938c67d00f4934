//! One handler at work on one delivery.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, pending, select};

use super::context::Context;
use super::failed::Failed;
use super::report::drop_quietly;
use crate::queue::Queue;

/// A handler that has begun.
pub type Work = Pin<Box<dyn Future<Output = Result<(), Failed>> + Send>>;

/// How an attempt ended.
pub(super) enum Verdict {
    Answered(Result<(), Failed>),
    Lost,
    /// Nobody ran it to its end; `reported` if the observer knows why.
    NotRun {
        reported: bool,
    },
}

/// Runs a handler unless its delivery is lost or its time runs out.
pub(super) async fn attempt(
    work: Work,
    context: Context,
    queue: Arc<dyn Queue>,
    timeout: Option<Duration>,
) -> Verdict {
    let end_context = EndContext(context.clone());
    let work = AssertUnwindSafe(work).catch_unwind();
    let given_up = pin!(async {
        let lost = pin!(lost(&context));
        if let Some(time) = timeout {
            matches!(select(lost, queue.sleep(time)).await, Either::Left(_))
        } else {
            lost.await;
            true
        }
    });
    let verdict = match select(work, given_up).await {
        Either::Left((Ok(answer), _)) => Verdict::Answered(answer),
        Either::Left((Err(panic), _)) => Verdict::Answered(Err(panicked(panic))),
        Either::Right((true, work)) => {
            drop_quietly(work);
            Verdict::Lost
        }
        Either::Right((false, work)) => {
            drop_quietly(work);
            Verdict::Answered(Err(timed_out(timeout.unwrap_or_default())))
        }
    };
    drop(end_context);
    verdict
}

/// Returns once another may have the job. What was acknowledged in a transaction of the handler is
/// nobody's: the handler goes on.
pub(super) async fn lost(context: &Context) {
    context.delivery().lost().await;
    if context.is_acked_in_transaction() {
        pending::<()>().await;
    }
}

pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> Failed {
    let failed = Failed::retry(format!("the handler panicked: {}", panic_message(&*panic)));
    drop_quietly(panic);
    failed
}

pub(super) fn timed_out(time: Duration) -> Failed {
    Failed::retry(format!("the handler did not end within {time:?}"))
}

pub(super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it did not say why")
}

/// Tells the handler's clones of its context that it is over, however that came.
struct EndContext(Context);

impl Drop for EndContext {
    fn drop(&mut self) {
        self.0.end();
    }
}
