//! How a process ends: it can use everything before, and holds nothing after.

use std::time::Duration;

use futures_util::future::try_join_all;
use lockapi::id::IdOptions;
use lockapi::lease::LeaseOptions;
use lockapi::limit::Quota;
use lockapi::{Error, Result};

use super::Context;

/// As many locks as the tasks of a process use, and a few more.
pub(super) const MOST_LOCKS: usize = 16;
/// So long after the faults have stopped nothing fails any more.
pub(super) const RECOVERED: Duration = Duration::from_secs(60);

/// A process that has lived through faults, and holds nothing, can have everything.
pub(super) async fn use_all(context: &Context) {
    loop {
        let Err(error) = used_all(context).await else {
            return context.history.answered("process");
        };
        if context.history.calm_for() > RECOVERED {
            let promise = "who has lived through faults can use everything";
            return context.runtime.violate(promise, format!("{error:?}"));
        }
        context.rest(Duration::from_millis(500)).await;
    }
}

async fn used_all(context: &Context) -> Result<()> {
    let backend = context.backend();
    let own = |what: &str| format!("{what}-of-{}", context.program.0);
    let locks = (0..MOST_LOCKS).map(async |at| {
        let mutex = backend.mutex(own(&format!("lock-{at}")))?;
        mutex.lock_timeout(Duration::from_secs(20)).await
    });
    drop(try_join_all(locks).await?);
    let lease = backend.lease(own("lease"), LeaseOptions::new(Duration::from_secs(5)))?;
    drop(lease.acquire_timeout(Duration::from_secs(20)).await?);
    let limiter = backend.rate_limiter(Quota::per_second(100))?;
    drop(limiter.check(own("limit")).await?);
    backend.id_gen("used", IdOptions::default())?.next().await?;
    backend.queue("used")?.statistics().await?;
    Ok(())
}

/// Closes while it holds something: afterwards others can have that.
pub(super) async fn close(context: &Context) {
    let backend = context.backend();
    let key = format!("last-of-{}", context.program.0);
    let lease = backend.lease(&*key, LeaseOptions::new(Duration::from_secs(60)));
    let guard = lease.expect("a key").try_acquire().await;
    let closed: std::result::Result<(), Error> = backend.close().await;
    if let Err(error) = closed {
        context.history.failed(&error);
        drop(guard);
        return;
    }
    let held = context
        .server
        .model(|model| model.state().lease_held("default", &key));
    // What another server does not know to be released is kept.
    if let Some(held) = held
        && !context.history.calm_for().is_zero()
    {
        let what = format!("{key}: {held:?}");
        context
            .runtime
            .violate("who has closed holds nothing", what);
    }
    drop(guard);
}
