//! How a process ends: it can use everything before, and holds nothing after.

use std::time::Duration;

use futures_util::future::try_join_all;
use lockapi::id::IdOptions;
use lockapi::lease::LeaseOptions;
use lockapi::limit::Quota;
use lockapi::queue::{Claim, Job};
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
    let locks = try_join_all(locks).await?;
    let beyond = backend.mutex(own("lock-beyond"))?.try_lock().await;
    if matches!(beyond, Ok(Some(_))) && locks.iter().all(|guard| !guard.is_lost()) {
        let promise = "no more is locked than may be";
        context
            .runtime
            .violate(promise, format!("{MOST_LOCKS} and one"));
    }
    drop(locks);
    let lease = backend.lease(own("lease"), LeaseOptions::new(Duration::from_secs(5)))?;
    drop(lease.acquire_timeout(Duration::from_secs(20)).await?);
    let limiter = backend.rate_limiter(Quota::per_second(100))?;
    drop(limiter.check(own("limit")).await?);
    backend.id_gen("used", IdOptions::default())?.next().await?;
    backend.queue("used")?.statistics().await?;
    Ok(())
}

/// For longer than it takes to see that something was not given back.
const LONG: Duration = Duration::from_secs(60);

/// What a process has when it closes; what it did not get is not looked for.
struct Last {
    held: Vec<Box<dyn std::any::Any + Send>>,
    /// Leases, permits and terms.
    keys: Vec<String>,
    /// Deliveries.
    jobs: Vec<(i64, i64)>,
    /// The name of a generator.
    ids: Option<String>,
}

impl Last {
    async fn of(context: &Context) -> Self {
        let backend = context.backend();
        let own = |what: &str| format!("last-{what}-of-{}", context.program.0);
        let mut last = Self {
            held: Vec::new(),
            keys: Vec::new(),
            jobs: Vec::new(),
            ids: None,
        };
        let options = LeaseOptions::new(LONG);
        let lease = backend.lease(own("lease"), options.clone()).expect("a key");
        if let Ok(Some(guard)) = lease.try_acquire().await {
            last.hold(guard, own("lease"));
        }
        let semaphore = backend.semaphore(own("permit"), 2, options.clone());
        if let Ok(Some(guard)) = semaphore.expect("a key").try_acquire().await {
            last.hold(guard, own("permit"));
        }
        let election = backend.election(own("term"), options).expect("a key");
        if let Ok(Some(guard)) = election.try_campaign().await {
            last.hold(guard, own("term"));
        }
        let queue = backend.queue(own("queue")).expect("a queue");
        let job = Job::new("last", &context.program.0).expect("a job");
        if queue.push(job).await.is_ok()
            && let Ok(claimed) = queue.claim(&Claim::new(1).lease(LONG)).await
        {
            for delivery in claimed {
                last.jobs.push((delivery.id(), delivery.ticket().token));
                last.held.push(Box::new(delivery));
            }
        }
        let ids = backend
            .id_gen(own("ids"), IdOptions::default())
            .expect("options");
        if ids.next().await.is_ok() {
            last.held.push(Box::new(ids));
            last.ids = Some(own("ids"));
        }
        last
    }

    fn hold(&mut self, guard: impl Send + 'static, key: String) {
        self.held.push(Box::new(guard));
        self.keys.push(key);
    }

    /// What others cannot have.
    fn is_kept(&self, context: &Context) -> Vec<String> {
        context.server.model(|model| {
            let state = model.state();
            let keys = self.keys.iter();
            let taken = keys.filter(|key| !state.slots_held("default", key).is_empty());
            let mut kept: Vec<_> = taken.cloned().collect();
            let deliveries = state.jobs().sights().filter_map(|job| {
                let (token, _) = job.delivery?;
                self.jobs.contains(&(job.id, token)).then_some(job.id)
            });
            kept.extend(deliveries.map(|id| format!("job {id}")));
            let ids = self.ids.iter();
            kept.extend(
                ids.filter(|ids| state.id_workers("default", ids) > 0)
                    .cloned(),
            );
            kept
        })
    }
}

/// Closes while it holds something: afterwards others can have that.
pub(super) async fn close(context: &Context) {
    let backend = context.backend();
    let last = Last::of(context).await;
    let closing = context.history.soon("close", backend.close());
    let closed: std::result::Result<(), Error> = closing.await;
    if let Err(error) = closed {
        return context.history.failed(&error);
    }
    let kept = last.is_kept(context);
    // What another server does not know to be released is kept.
    if !kept.is_empty() && !context.history.calm_for().is_zero() {
        context
            .runtime
            .violate("who has closed holds nothing", format!("{kept:?}"));
    }
}
