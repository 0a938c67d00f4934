//! Queues: what handlers return, and what became of jobs.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::queue::{
    Claim, Delivery, Job, JobResult, MAX_RESULT_BYTES, MAX_RESULT_RETENTION, MIN_RESULT_RETENTION,
    QueueOptions,
};
use lockapi::worker::{BatchJob, BatchOptions, Context as Working, Failed, Worker, WorkerOptions};
use lockapi::{Backend, BackendOptions, ErrorKind, Queue, blocking};

use super::queue::{by_hand_from, job, lost, one};
use super::worker::summary;
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{A_MOMENT, not_yet, poll_then_drop, soon};

register! { "queue_results":
    Q31 result_is_stored_with_the_completion;
    Q31 result_needs_no_more_rights_than_are_noted @ PoorRole [Schema];
    Q31 result_under_hostile_settings @ HostileRole [Schema];
    Q31 result_behind_a_proxy @ HostileProxy [Proxy];
    Q31 result_of_an_attempt_that_failed_is_not_stored;
    Q31 result_of_a_lost_delivery_is_not_stored;
    Q31 result_of_a_delivery_dropped_in_its_ack_is_stored;
    Q31 results_are_set_by_handlers;
    Q31 results_are_set_by_handlers_on_threads;
    Q31 results_are_set_for_jobs_of_a_batch;
    Q31 result_is_stored_with_the_transaction [Transactions];
    Q31 lookup_tells_what_became_of_a_job;
    Q31 result_is_kept_for_its_time;
    Q31 result_has_limits;
    Q31 wait_ends_with_the_job;
    Q31 wait_ends_when_another_process_ends_the_job;
    Q31 wait_that_is_dropped_is_forgotten;
    Q31 thousands_wait_for_jobs_of_their_own;
    Q31 result_and_wait_outlive_a_crash @ Own;
    Q31 wait_ends_when_the_backend_is_closed;
    Q31 wait_ends_where_the_server_is_silent @ Own;
}

const STRANGE: &str = "'\"\\ \u{1}\u{0}\n{}, \u{e4}\u{1F980}";

/// What is strange in JSON, in SQL or to a driver.
type Strange = (i64, Vec<Option<String>>);

fn strange(number: i64) -> Strange {
    let words = vec![None, Some(STRANGE.to_owned()), Some(String::new())];
    (number, words)
}

async fn read(queue: &Arc<dyn Queue>, id: i64) -> JobResult<i64> {
    queue.result(id).await.unwrap()
}

async fn pushed(queue: &Arc<dyn Queue>) -> Delivery {
    let id = queue.push(job(1)).await.unwrap().id;
    let delivery = one(queue).await;
    assert_eq!(delivery.id(), id);
    delivery
}

async fn result_is_stored_with_the_completion(cx: Context) {
    let queue = cx.queue().await;
    queue.push_all((0..3).map(job).collect()).await.unwrap();
    let claimed = queue.claim(&Claim::new(3)).await.unwrap();
    let [first, second, third] = <[Delivery; 3]>::try_from(claimed).unwrap();
    let (id, other, plain) = (first.id(), second.id(), third.id());
    first.set_result("an earlier one").unwrap();
    first.set_result(&strange(7)).unwrap();
    second.set_result(&()).unwrap();
    assert_eq!(read(&queue, id).await, JobResult::Pending);
    let (done, also, alone) = tokio::join!(first.ack(), second.ack(), third.ack());
    done.and(also).and(alone).unwrap();
    let found = queue.result::<Strange>(id).await.unwrap();
    assert_eq!(found, JobResult::Value(strange(7)));
    assert_eq!(found.value(), Some(strange(7)));
    let found = queue.result::<()>(other).await.unwrap();
    assert_eq!(found, JobResult::Value(()));
    assert_eq!(read(&queue, plain).await, JobResult::Unknown);
    // It is of another type.
    let error = queue.result::<i64>(id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(!error.to_string().contains("1F980"), "{error}");
    let jobs = cx.jobs().await;
    assert_eq!((jobs.waiting, jobs.delivered), (0, 0), "all are done");
}

async fn result_needs_no_more_rights_than_are_noted(cx: Context) {
    result_is_stored_with_the_completion(cx.clone()).await;
    lookup_tells_what_became_of_a_job(cx).await;
}

async fn result_under_hostile_settings(cx: Context) {
    result_is_stored_with_the_completion(cx).await;
}

async fn result_behind_a_proxy(cx: Context) {
    result_is_stored_with_the_completion(cx).await;
}

async fn result_of_an_attempt_that_failed_is_not_stored(cx: Context) {
    let queue = cx.queue().await;
    let first = pushed(&queue).await;
    let id = first.id();
    first.set_result(&1).unwrap();
    first.nack("it rains", Duration::ZERO).await.unwrap();
    assert_eq!(read(&queue, id).await, JobResult::Pending);
    let second = one(&queue).await;
    second.set_result(&2).unwrap();
    second.release().await.unwrap();
    let third = one(&queue).await;
    third.set_result(&3).unwrap();
    drop(third);
    let fourth = soon("it is given back", async {
        queue.claim(&Claim::new(1).wait(MINUTE)).await
    });
    let fourth = fourth.await.unwrap().remove(0);
    fourth.ack().await.unwrap();
    assert_eq!(read(&queue, id).await, JobResult::Unknown);
    let dead = pushed(&queue).await;
    let id = dead.id();
    dead.set_result(&4).unwrap();
    dead.reject("no").await.unwrap();
    let error = "no".to_owned();
    assert_eq!(read(&queue, id).await, JobResult::Failed { error });
}

async fn result_of_a_lost_delivery_is_not_stored(cx: Context) {
    let queue = cx.queue().await;
    let id = queue.push(job(1)).await.unwrap().id;
    let first = by_hand_from(&queue).await;
    first.set_result(&1).unwrap();
    cx.elapse(MINUTE * 2).await;
    let second = by_hand_from(&queue).await;
    lost(first.ack().await);
    assert_eq!(read(&queue, id).await, JobResult::Pending);
    second.set_result(&2).unwrap();
    second.ack().await.unwrap();
    assert_eq!(read(&queue, id).await, JobResult::Value(2));
    // Neither is that of a job that was cancelled meanwhile.
    let cancelled = pushed(&queue).await;
    let id = cancelled.id();
    cancelled.set_result(&3).unwrap();
    assert_eq!(queue.cancel(vec![id]).await.unwrap(), [id]);
    lost(cancelled.ack().await);
    assert_eq!(read(&queue, id).await, JobResult::Cancelled);
}

async fn result_of_a_delivery_dropped_in_its_ack_is_stored(cx: Context) {
    let queue = cx.queue().await;
    for polls in 0..3 {
        let delivery = pushed(&queue).await;
        let id = delivery.id();
        delivery.set_result(&polls).unwrap();
        if let Some(done) = poll_then_drop(delivery.ack(), polls).await {
            done.unwrap();
        }
        let wait = queue.wait_result::<usize>(id, MINUTE);
        let seen = soon("it is sent all the same", wait).await.unwrap();
        assert_eq!(seen, JobResult::Value(polls));
    }
}

async fn results_are_set_by_handlers(cx: Context) {
    let queue = cx.queue().await;
    let jobs = (0..20).map(|number| job(number).max_attempts(2));
    let ids = queue.push_all(jobs.collect()).await.unwrap();
    let handler = async |number: usize, job: Working| {
        if number.is_multiple_of(2) {
            job.set_result(&(number, job.attempt()))?;
        }
        if number.is_multiple_of(5) && job.attempt() == 1 {
            return Err(Failed::retry_after("it rains", Duration::ZERO));
        }
        Ok(())
    };
    let worker = Worker::new(Arc::clone(&queue)).handle("count", handler);
    let summary = worker.run_until_idle().await.unwrap();
    assert_eq!(summary, summary! { claimed: 24, done: 20, failed: 4 });
    for (number, pushed) in ids.iter().enumerate() {
        let found = queue.result::<(usize, u32)>(pushed.id).await.unwrap();
        let attempt = if number % 5 == 0 { 2 } else { 1 };
        let expected = if number % 2 == 0 {
            JobResult::Value((number, attempt))
        } else {
            JobResult::Unknown
        };
        assert_eq!(found, expected, "{number}");
    }
}

async fn results_are_set_by_handlers_on_threads(cx: Context) {
    let queue = cx.queue().await;
    let id = queue.push(job(1)).await.unwrap().id;
    let handler = |number: i64, job: blocking::Context| {
        job.set_result(&(number + 1))?;
        Ok(())
    };
    let options = WorkerOptions::default();
    let on_threads = Arc::clone(&queue).into();
    let worker = blocking::Worker::new(&on_threads).handle_with("count", options, handler);
    let run = tokio::task::spawn_blocking(move || worker.run_until_idle()).await;
    assert_eq!(run.unwrap().unwrap(), summary! { claimed: 1, done: 1 });
    assert_eq!(read(&queue, id).await, JobResult::Value(2));
}

async fn results_are_set_for_jobs_of_a_batch(cx: Context) {
    let queue = cx.queue().await;
    let jobs = (0..6).map(|number| job(number).max_attempts(1));
    let ids = queue.push_all(jobs.collect()).await.unwrap();
    let handler = async |jobs: Vec<(i64, BatchJob)>| {
        for (number, job) in jobs {
            job.set_result(&(number * 10))?;
            if number != 3 {
                job.answer(Ok(()));
            }
        }
        Ok(())
    };
    let worker = Worker::new(Arc::clone(&queue));
    let worker = worker.handle_batch("count", BatchOptions::new(10), handler);
    let summary = worker.run_until_idle().await.unwrap();
    assert_eq!(summary, summary! { claimed: 6, done: 5, dead: 1 });
    for (number, pushed) in (0..).zip(&ids) {
        let found = read(&queue, pushed.id).await;
        if number == 3 {
            assert!(matches!(found, JobResult::Failed { .. }), "{found:?}");
        } else {
            assert_eq!(found, JobResult::Value(number * 10));
        }
    }
}

async fn result_is_stored_with_the_transaction(cx: Context) {
    let queue = cx.queue().await;
    for commit in [false, true] {
        let delivery = Arc::new(pushed(&queue).await);
        let id = delivery.id();
        delivery.set_result(&7).unwrap();
        let mut tx = cx.begin().await.unwrap();
        tx.ack_in(&delivery).await.unwrap();
        let late = delivery.set_result(&8).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Invalid, "{late}");
        assert!(late.to_string().contains("; allowed"), "{late}");
        assert_eq!(read(&queue, id).await, JobResult::Pending);
        if commit {
            tx.commit().await;
            assert_eq!(read(&queue, id).await, JobResult::Value(7));
        } else {
            tx.rollback().await;
            assert_eq!(read(&queue, id).await, JobResult::Pending);
            assert_eq!(queue.cancel(vec![id]).await.unwrap(), [id]);
        }
    }
}

async fn lookup_tells_what_became_of_a_job(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let archived = QueueOptions::default().archive(MINUTE * 60);
    let kept = backend.queue_with("work", archived).unwrap();
    let other = backend.queue("other").unwrap();
    let delayed = job(0).delay(MINUTE * 60);
    let waiting = queue.push(delayed).await.unwrap().id;
    assert_eq!(read(&queue, waiting).await, JobResult::Pending);
    let dead = pushed(&queue).await;
    let id = dead.id();
    dead.reject("no such address").await.unwrap();
    let error = "no such address".to_owned();
    assert_eq!(read(&queue, id).await, JobResult::Failed { error });
    // What is put back is pending again, and is looked up as ever.
    assert_eq!(queue.redrive(vec![id]).await.unwrap(), 1);
    assert_eq!(read(&queue, id).await, JobResult::Pending);
    let again = one(&queue).await;
    again.set_result(&9).unwrap();
    again.ack().await.unwrap();
    assert_eq!(read(&queue, id).await, JobResult::Value(9));
    assert_eq!(read(&other, id).await, JobResult::Unknown, "of others");
    let sibling = cx.elsewhere().await.queue().await;
    assert_eq!(read(&sibling, id).await, JobResult::Unknown, "of others");
    let plain = pushed(&kept).await;
    let id = plain.id();
    plain.ack().await.unwrap();
    assert_eq!(read(&queue, id).await, JobResult::NoValue);
    let valued = pushed(&kept).await;
    let id = valued.id();
    valued.set_result(&10).unwrap();
    valued.ack().await.unwrap();
    assert_eq!(read(&queue, id).await, JobResult::Value(10));
    assert_eq!(queue.cancel(vec![waiting]).await.unwrap(), [waiting]);
    assert_eq!(read(&queue, waiting).await, JobResult::Cancelled);
    for never in [i64::MIN, -1, 0, i64::MAX] {
        assert_eq!(read(&queue, never).await, JobResult::Unknown);
    }
}

async fn result_is_kept_for_its_time(cx: Context) {
    let backend = cx.backend().await;
    let open = |options| backend.queue_with("work", options).unwrap();
    let options = QueueOptions::default;
    let (short, day) = (open(options().results(MINUTE)), open(options()));
    let archived = open(options().results(MINUTE).archive(MINUTE * 60 * 24 * 7));
    let mut ids = Vec::new();
    for queue in [&short, &archived, &day] {
        let delivery = pushed(queue).await;
        delivery.set_result(&5).unwrap();
        ids.push(delivery.id());
        delivery.ack().await.unwrap();
    }
    cx.elapse(MINUTE / 2).await;
    for id in &ids {
        assert_eq!(read(&day, *id).await, JobResult::Value(5));
    }
    cx.elapse(MINUTE).await;
    assert_eq!(read(&day, ids[0]).await, JobResult::Unknown);
    assert_eq!(read(&day, ids[1]).await, JobResult::NoValue);
    assert_eq!(read(&day, ids[2]).await, JobResult::Value(5));
    cx.elapse(MINUTE * 60 * 24).await;
    assert_eq!(read(&day, ids[2]).await, JobResult::Unknown);
    for refused in [
        Duration::ZERO,
        MIN_RESULT_RETENTION.saturating_sub(Duration::from_nanos(1)),
        MAX_RESULT_RETENTION + Duration::from_nanos(1),
        Duration::MAX,
    ] {
        let refused = backend.queue_with("work", options().results(refused));
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("; allowed"), "{error}");
    }
    for allowed in [MIN_RESULT_RETENTION, MAX_RESULT_RETENTION] {
        open(options().results(allowed));
    }
}

async fn result_has_limits(cx: Context) {
    let queue = cx.queue().await;
    let delivery = pushed(&queue).await;
    let id = delivery.id();
    let longest = "a".repeat(MAX_RESULT_BYTES - 2);
    delivery.set_result(&longest).unwrap();
    let keys = std::collections::BTreeMap::from([((1, 2), 3)]);
    for refused in [
        delivery.set_result(&format!("{longest}a")),
        delivery.set_result(&keys),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("; allowed"), "{error}");
    }
    delivery.ack().await.unwrap();
    let found = queue.result::<String>(id).await.unwrap();
    assert!(found.value() == Some(longest), "it is as before");
}

/// Jobs that wait, run, are done, failed, were cancelled, deleted or never there.
async fn wait_ends_with_the_job(cx: Context) {
    let queue = cx.queue().await;
    wait_ends(&queue, &queue).await;
}

async fn wait_ends_when_another_process_ends_the_job(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    wait_ends(&here, &there).await;
}

async fn wait_ends_where_the_server_is_silent(cx: Context) {
    let queue = cx.queue().await;
    let delivery = pushed(&queue).await;
    cx.set_silent(true).await;
    let waited = queue.wait_result::<i64>(delivery.id(), A_MOMENT).await;
    // Not what becomes of the lookup, which takes longer.
    let error = waited.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.to_string().contains("has not answered within"),
        "{error}"
    );
    cx.set_silent(false).await;
}

/// Waits `here` for jobs that end `there`.
async fn wait_ends(here: &Arc<dyn Queue>, there: &Arc<dyn Queue>) {
    let wait = |id| {
        let here = Arc::clone(here);
        tokio::spawn(async move { here.wait_result::<i64>(id, MINUTE * 30).await.unwrap() })
    };
    // A time of zero looks once.
    let delivery = pushed(there).await;
    let id = delivery.id();
    for time in [Duration::ZERO, Duration::from_millis(80)] {
        let waited = here.wait_result::<i64>(id, time);
        let waited = soon("its time is over", waited).await.unwrap();
        assert_eq!(waited, JobResult::Pending);
    }
    let mut waiting = wait(id);
    let others = [wait(id), wait(id)];
    not_yet("it runs", &mut waiting).await;
    // It goes on over attempts.
    delivery.nack("it rains", Duration::ZERO).await.unwrap();
    not_yet("it will be tried again", &mut waiting).await;
    let delivery = one(there).await;
    delivery.set_result(&11).unwrap();
    delivery.ack().await.unwrap();
    for waiting in others.into_iter().chain([waiting]) {
        let seen = soon("it is done", waiting).await.unwrap();
        assert_eq!(seen, JobResult::Value(11));
    }
    let waited = here.wait_result::<i64>(id, MINUTE).await.unwrap();
    assert_eq!(waited, JobResult::Value(11), "at once");
    for end in ["ack", "reject", "cancel", "purge"] {
        let (id, delivery) = if end == "purge" {
            (there.push(job(1)).await.unwrap().id, None)
        } else {
            let delivery = pushed(there).await;
            (delivery.id(), Some(delivery))
        };
        let mut waiting = wait(id);
        not_yet("nothing came of it", &mut waiting).await;
        match (end, delivery) {
            ("ack", Some(delivery)) => delivery.ack().await.unwrap(),
            ("reject", Some(delivery)) => delivery.reject("no").await.unwrap(),
            ("cancel", _) => assert_eq!(there.cancel(vec![id]).await.unwrap(), [id]),
            _ => assert_eq!(there.purge().await.unwrap(), 1),
        }
        let error = "no".to_owned();
        let expected = match end {
            "reject" => JobResult::Failed { error },
            "cancel" => JobResult::Cancelled,
            _ => JobResult::Unknown,
        };
        let seen = soon("it has ended", waiting).await.unwrap();
        assert_eq!(seen, expected, "{end}");
    }
    let never = here.wait_result::<i64>(i64::MAX, MINUTE);
    let never = soon("nothing will come of it", never).await.unwrap();
    assert_eq!(never, JobResult::Unknown);
}

async fn wait_that_is_dropped_is_forgotten(cx: Context) {
    let queue = cx.queue().await;
    let delivery = pushed(&queue).await;
    let id = delivery.id();
    let forever = || queue.wait_result::<i64>(id, Duration::MAX);
    // A blocking call wakes nobody before it returns.
    let most = if cx.calls_arrive_together() { 3 } else { 2 };
    for polls in 0..most {
        // Where the first lookup is answered at once nothing wakes it any more.
        not_yet("it runs", async {
            if poll_then_drop(forever(), polls).await.is_none() {
                pending::<()>().await;
            }
        })
        .await;
    }
    let mut waiting = Box::pin(forever());
    not_yet("it runs", &mut waiting).await;
    not_yet("it runs", forever()).await;
    delivery.set_result(&12).unwrap();
    delivery.ack().await.unwrap();
    let seen = soon("the other still waits", waiting).await.unwrap();
    assert_eq!(seen, JobResult::Value(12));
}

async fn thousands_wait_for_jobs_of_their_own(cx: Context) {
    const MANY: usize = 3000;
    let (here, there) = (cx.queue().await, cx.queue().await);
    let jobs: Vec<Job> = (0..MANY).map(job).collect();
    let ids = there.push_all(jobs).await.unwrap();
    // Those of every second job leave.
    let waits = ids.iter().enumerate().map(|(number, pushed)| {
        let time = if number % 2 == 0 {
            MINUTE * 30
        } else {
            Duration::from_millis(300)
        };
        let (here, id) = (Arc::clone(&here), pushed.id);
        let calls_arrive_together = cx.calls_arrive_together();
        async move {
            // Each would need a thread.
            if !calls_arrive_together && number % 100 > 1 {
                return JobResult::Value(number);
            }
            here.wait_result::<usize>(id, time).await.unwrap()
        }
    });
    let waiting = tokio::spawn(join_all(waits));
    cx.pass(Duration::from_secs(1)).await;
    let handler = async |number: usize, job: Working| {
        job.set_result(&number)?;
        Ok(())
    };
    let worker = Worker::new(Arc::clone(&there));
    let worker = worker.handle("count", handler).concurrency(100);
    let ran = worker.run_until_idle().await.unwrap();
    assert_eq!(ran.done, MANY as u64);
    let seen = soon("all are done", waiting).await.unwrap();
    for (number, seen) in seen.into_iter().enumerate() {
        if number % 2 == 0 {
            assert_eq!(seen, JobResult::Value(number));
        } else {
            let left = [JobResult::Pending, JobResult::Value(number)];
            assert!(left.contains(&seen), "{number}: {seen:?}");
        }
    }
}

async fn result_and_wait_outlive_a_crash(cx: Context) {
    let options = BackendOptions::default().timeout(Duration::from_secs(2));
    let backend = cx.connect(options).await.unwrap();
    let queue = backend.queue("work").unwrap();
    let delivery = pushed(&queue).await;
    let done = delivery.id();
    delivery.set_result(&13).unwrap();
    delivery.ack().await.unwrap();
    let claim = Claim::new(1).lease(MINUTE * 30);
    let later = queue.push(job(2)).await.unwrap().id;
    let delivery = queue.claim(&claim).await.unwrap().remove(0);
    let mut waiting = Box::pin(queue.wait_result::<i64>(later, MINUTE * 60));
    not_yet("it runs", &mut waiting).await;
    cx.crash().await;
    assert_eq!(read(&queue, done).await, JobResult::Value(13));
    not_yet("it still runs", &mut waiting).await;
    cx.set_reachable(false).await;
    not_yet("the server is away", &mut waiting).await;
    // Who has no more time hears why.
    let short = queue.wait_result::<i64>(later, Duration::from_millis(100));
    let error = soon("its time is over", short).await.unwrap_err();
    assert!(
        error.is_retryable() || error.kind() == ErrorKind::Indeterminate,
        "{error}"
    );
    cx.set_reachable(true).await;
    delivery.set_result(&14).unwrap();
    soon("it is completed", async {
        delivery.ack().await.unwrap();
    })
    .await;
    let seen = soon("it is done", waiting).await.unwrap();
    assert_eq!(seen, JobResult::Value(14));
}

async fn wait_ends_when_the_backend_is_closed(cx: Context) {
    let backend: Arc<dyn Backend> = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let id = queue.push(job(1)).await.unwrap().id;
    let mut waiting = Box::pin(queue.wait_result::<i64>(id, MINUTE * 60));
    not_yet("it waits", &mut waiting).await;
    backend.close().await.unwrap();
    let ended = soon("nobody looks any more", waiting).await;
    ended.unwrap_err();
}
