//! Queues: draining.

use std::sync::Arc;
use std::time::Duration;

use lockapi::queue::{Claim, Drained, Job, Pause, Priority};
use lockapi::{BackendOptions, ErrorKind, Queue, Result};
use tokio::task::JoinHandle;

use super::queue::{by_hand, by_hand_from, job, none, one};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{not_yet, soon};

register! { "queue_drains":
    Q33 drain_waits_for_what_runs;
    Q33 drain_needs_no_more_rights_than_are_noted @ PoorRole [Schema];
    Q33 drain_under_hostile_settings @ HostileRole [Schema];
    Q33 drain_behind_a_proxy @ HostileProxy [Proxy];
    Q33 drain_tells_what_runs_when_its_time_is_over;
    Q33 drain_ends_when_the_queue_is_resumed;
    Q33 drain_finds_what_runs_behind_thousands;
    Q33 drain_sees_the_end_of_a_lease;
    Q33 drain_waits_for_what_a_transaction_has_taken [Transactions];
    Q33 drain_outlasts_an_outage @ Own;
    Q33 pause_of_a_paused_queue_changes_nothing [Sql];
}

const A_WHILE: Duration = Duration::from_millis(300);

fn draining(queue: &Arc<dyn Queue>, timeout: Duration) -> JoinHandle<Result<Drained>> {
    let queue = queue.clone();
    tokio::spawn(async move { queue.drain(Pause::UntilResumed, timeout).await })
}

fn count(drained: Drained) -> (bool, u64, bool) {
    (drained.paused, drained.running.count, drained.running.more)
}

const COMPLETE: (bool, u64, bool) = (true, 0, false);

/// A drain begins anew where somebody may have resumed the queue.
async fn pause_of_a_paused_queue_changes_nothing(cx: Context) {
    let queue = cx.queue().await;
    let changed = format!(
        "SELECT changed_at::text FROM lockapi.queue WHERE namespace = '{}'",
        cx.namespace()
    );
    let changed = async || cx.sql(&changed).await;
    queue.pause().await.unwrap();
    let first = changed().await;
    queue.pause_for(MINUTE).await.unwrap();
    assert_eq!(changed().await, first);
    queue.resume().await.unwrap();
    queue.pause().await.unwrap();
    assert_ne!(changed().await, first);
    // What has run out is no pause.
    queue.pause_for(MINUTE).await.unwrap();
    let second = changed().await;
    cx.elapse(MINUTE * 2).await;
    let elapsed = changed().await;
    queue.pause().await.unwrap();
    assert_ne!(changed().await, elapsed, "{second:?}");
}

async fn drain_waits_for_what_runs(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push_all((0..3).map(job).collect()).await.unwrap();
    let (running, failing) = (by_hand_from(&there).await, one(&there).await);
    let draining = draining(&here, MINUTE);
    tokio::pin!(draining);
    not_yet("two run", &mut draining).await;
    none(&there).await;
    failing.nack("again", Duration::ZERO).await.unwrap();
    not_yet("one runs", &mut draining).await;
    running.ack().await.unwrap();
    let drained = soon("the end", draining).await.unwrap().unwrap();
    assert!(drained.is_complete(), "{drained:?}");
    assert_eq!(count(drained), COMPLETE);
    assert_eq!(cx.jobs().await.waiting, 2, "nothing is deleted");
    none(&there).await;
    there.resume().await.unwrap();
    assert_eq!(there.claim(&Claim::new(9)).await.unwrap().len(), 2);
}

async fn drain_needs_no_more_rights_than_are_noted(cx: Context) {
    drain_waits_for_what_runs(cx).await;
}

async fn drain_under_hostile_settings(cx: Context) {
    drain_waits_for_what_runs(cx).await;
}

async fn drain_behind_a_proxy(cx: Context) {
    drain_waits_for_what_runs(cx).await;
}

async fn drain_tells_what_runs_when_its_time_is_over(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..5).map(job).collect()).await.unwrap();
    let running = queue.claim(&by_hand().lease(MINUTE * 9)).await.unwrap();
    let drained = queue.drain(Pause::For(MINUTE * 2), A_WHILE).await.unwrap();
    assert!(!drained.is_complete(), "{drained:?}");
    assert_eq!((drained.paused, drained.running.count), (true, 1));
    // It stays paused, for that time.
    none(&queue).await;
    cx.elapse(MINUTE * 3).await;
    assert_eq!(queue.claim(&Claim::new(9)).await.unwrap().len(), 4);
    drop(running);
    let refused = queue.drain(Pause::For(Duration::ZERO), MINUTE).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn drain_ends_when_the_queue_is_resumed(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push(job(1)).await.unwrap();
    let _running = by_hand_from(&there).await;
    let draining = draining(&here, MINUTE);
    tokio::pin!(draining);
    not_yet("one runs", &mut draining).await;
    there.resume().await.unwrap();
    let drained = soon("the end", draining).await.unwrap().unwrap();
    assert!(!drained.paused && !drained.is_complete(), "{drained:?}");
}

async fn drain_finds_what_runs_behind_thousands(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    for priority in [Priority::Normal, Priority::Low] {
        let jobs = (0..6000).map(|nth| job(nth).priority(priority));
        here.push_all(jobs.collect()).await.unwrap();
    }
    let last = Job::new("last", &1).unwrap().priority(Priority::Normal);
    here.push(last).await.unwrap();
    let claim = by_hand().lease(MINUTE * 9).names(["last"]);
    let running = there.claim(&claim).await.unwrap().remove(0);
    let draining = draining(&here, MINUTE);
    tokio::pin!(draining);
    let late = tokio::time::timeout(A_WHILE * 3, &mut draining).await;
    assert!(late.is_err(), "one runs");
    running.ack().await.unwrap();
    let drained = soon("the end", draining).await.unwrap().unwrap();
    assert_eq!(count(drained), COMPLETE);
}

async fn drain_sees_the_end_of_a_lease(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1)).await.unwrap();
    let lost = by_hand().lease(Duration::from_secs(1));
    let _lost = queue.claim(&lost).await.unwrap();
    let drained = soon("the end", queue.drain(Pause::UntilResumed, MINUTE)).await;
    assert_eq!(count(drained.unwrap()), COMPLETE);
    let left = cx.jobs().await;
    assert_eq!(left.waiting + left.delivered, 1);
}

async fn drain_waits_for_what_a_transaction_has_taken(cx: Context) {
    // After that time it waits no more for transactions that may not have taken anything.
    let short = Duration::from_secs(2);
    let options = BackendOptions::default().timeout(short);
    let backend = cx.connect(options).await.unwrap();
    let queue = backend.queue("work").unwrap();
    queue.push_all((0..2).map(job).collect()).await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    assert_eq!(tx.take_in(&queue, 1).await.unwrap().len(), 1);
    let drained = queue.drain(Pause::UntilResumed, short * 2).await.unwrap();
    assert_eq!(count(drained), (true, 1, false));
    let draining = draining(&queue, MINUTE);
    tokio::pin!(draining);
    not_yet("it is taken", &mut draining).await;
    tx.commit().await;
    let drained = soon("the end", draining).await.unwrap().unwrap();
    assert_eq!(count(drained), COMPLETE);
    assert_eq!(cx.jobs().await.waiting, 1);
}

async fn drain_outlasts_an_outage(cx: Context) {
    let options = BackendOptions::default().timeout(Duration::from_secs(2));
    let backend = cx.connect(options).await.unwrap();
    let queue = backend.queue("work").unwrap();
    queue.push(job(1)).await.unwrap();
    let claim = by_hand().lease(MINUTE * 30);
    let running = queue.claim(&claim).await.unwrap().remove(0);
    cx.set_reachable(false).await;
    let failed = queue.drain(Pause::UntilResumed, A_WHILE).await;
    let kind = failed.unwrap_err().kind();
    assert!(
        matches!(kind, ErrorKind::Unavailable | ErrorKind::Indeterminate),
        "{kind:?}"
    );
    let draining = draining(&queue, MINUTE);
    tokio::pin!(draining);
    not_yet("the server is away", &mut draining).await;
    cx.set_reachable(true).await;
    cx.pass(Duration::from_secs(2)).await;
    cx.set_reachable(false).await;
    cx.pass(Duration::from_secs(2)).await;
    cx.set_reachable(true).await;
    not_yet("one runs", &mut draining).await;
    running.ack().await.unwrap();
    let drained = soon("the end", draining).await.unwrap().unwrap();
    assert_eq!(count(drained), COMPLETE);
}
