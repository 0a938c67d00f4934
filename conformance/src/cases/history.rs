//! Queues: what became of the attempts, by the minute and by the hour.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockapi::queue::{Claim, HistoryPoint, HistoryStep, Job};
use lockapi::worker::{Context as Working, Failed, Worker, WorkerOptions};
use lockapi::{Backend, BackendOptions, ErrorKind};

use super::Role;
use super::queue::one;
use super::unknown::faults;
use crate::child::Parent;
use crate::context::{Context, MINUTE};
use crate::fixture::{Answer, Point};
use crate::harness::register;
use crate::patience::{eventually, poll_then_drop, soon};

register! { "history":
    H14 history_counts_what_became_of_attempts;
    H14 history_needs_no_more_rights_than_are_noted @ PoorRole [Schema];
    H14 history_under_hostile_settings @ HostileRole [Schema];
    H14 history_behind_a_proxy @ HostileProxy [Proxy];
    H14 history_counts_deliveries_without_a_worker;
    H14 history_counts_what_was_committed [Transactions];
    H14 history_tells_how_long_jobs_waited_and_ran;
    H14 history_of_two_programs_adds_up;
    H14 history_tells_a_hundred_names_apart;
    H14 history_keeps_an_hour_of_minutes_and_a_week_of_hours;
    H14 history_of_a_killed_program_is_what_it_has_written [Processes];
    H14 history_counts_nothing_twice @ Relay [Relay];
    H14 history_that_is_off_writes_nothing;
    H14 history_is_read_by_thousands_at_once;
    H14 history_has_limits;
    H14 history_can_be_queried [Sql];
    H14 history_delays_no_job_while_the_server_is_away @ Own;
}

pub(super) const ROLES: &[(&str, Role)] = &[("attempts", |cx, arguments, parent| {
    Box::pin(attempts(cx, arguments, parent))
})];

/// Completed jobs, failed attempts and dead letters.
type Sums = (u64, u64, u64);

async fn points(
    backend: &Arc<dyn Backend>,
    name: Option<&str>,
    step: HistoryStep,
) -> Vec<HistoryPoint> {
    let inspector = backend.inspector();
    inspector.history("work", name, step).await.unwrap()
}

async fn sums(backend: &Arc<dyn Backend>, name: Option<&str>, step: HistoryStep) -> Sums {
    let points = points(backend, name, step).await;
    let add = |(completed, failed, dead): Sums, point: &HistoryPoint| {
        (
            completed + point.completed,
            failed + point.failed,
            dead + point.dead,
        )
    };
    points.iter().fold((0, 0, 0), add)
}

async fn both(backend: &Arc<dyn Backend>, name: Option<&str>) -> Sums {
    let minutes = sums(backend, name, HistoryStep::Minute).await;
    let hours = sums(backend, name, HistoryStep::Hour).await;
    assert_eq!(minutes, hours, "{name:?}");
    minutes
}

fn named(name: &str) -> Job {
    Job::new(name, &1).unwrap()
}

/// Completes so many jobs of a name, in a program that ends.
async fn complete(cx: &Context, name: &str, many: usize) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let jobs = (0..many).map(|_| named(name)).collect();
    queue.push_all(jobs).await.unwrap();
    for _ in 0..many {
        one(&queue).await.ack().await.unwrap();
    }
    backend.close().await.unwrap();
}

async fn history_counts_what_became_of_attempts(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    for name in ["send", "send", "send", "result", "fail", "reject", "snooze"] {
        queue.push(named(name).max_attempts(3)).await.unwrap();
    }
    let other = backend.queue("other").unwrap();
    other.push(named("send")).await.unwrap();
    let options = WorkerOptions::default().backoff(|_| Duration::ZERO);
    let worker = Worker::new(Arc::clone(&queue))
        .options(options)
        .handle("send", async |_: usize, _: Working| Ok(()))
        .handle("result", async |_: usize, job: Working| {
            job.set_result(&7)?;
            Ok(())
        })
        .handle("fail", async |_: usize, _: Working| {
            Err(Failed::retry("it rains"))
        })
        .handle("reject", async |_: usize, _: Working| {
            Err(Failed::reject("never"))
        })
        .handle("snooze", async |_: usize, _: Working| {
            Err(Failed::snooze(MINUTE * 60))
        });
    soon("it ends", worker.run_until_idle()).await.unwrap();
    one(&other).await.ack().await.unwrap();
    backend.close().await.unwrap();
    let reader = cx.backend().await;
    for (name, expected) in [
        (Some("send"), (3, 0, 0)),
        (Some("result"), (1, 0, 0)),
        (Some("fail"), (0, 3, 1)),
        (Some("reject"), (0, 1, 1)),
        (Some("snooze"), (0, 0, 0)),
        (Some(""), (0, 0, 0)),
        (None, (4, 4, 2)),
    ] {
        assert_eq!(both(&reader, name).await, expected, "{name:?}");
    }
    let elsewhere = cx.elsewhere().await.backend().await;
    assert_eq!(both(&elsewhere, None).await, (0, 0, 0));
    let now = SystemTime::now();
    for point in points(&reader, None, HistoryStep::Minute).await {
        let since = point.at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since.as_micros() % 60_000_000, 0, "{point:?}");
        let age = now.duration_since(point.at).unwrap_or_default();
        assert!(age < MINUTE * 30, "{point:?}");
    }
}

async fn history_needs_no_more_rights_than_are_noted(cx: Context) {
    history_counts_what_became_of_attempts(cx.clone()).await;
    cx.sweep_history().await;
}

async fn history_under_hostile_settings(cx: Context) {
    history_counts_what_became_of_attempts(cx).await;
}

async fn history_behind_a_proxy(cx: Context) {
    history_counts_what_became_of_attempts(cx).await;
}

async fn history_counts_deliveries_without_a_worker(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue
        .push_all((0..7).map(|_| named("send").max_attempts(2)).collect())
        .await
        .unwrap();
    one(&queue).await.ack().await.unwrap();
    let failed = one(&queue).await;
    assert!(!failed.nack("it rains", MINUTE * 60).await.unwrap());
    one(&queue).await.reject("never").await.unwrap();
    one(&queue).await.snooze(MINUTE * 60).await.unwrap();
    let released = one(&queue).await;
    let id = released.id();
    released.release().await.unwrap();
    assert!(queue.cancel(vec![id]).await.unwrap() == [id]);
    let stale = one(&queue).await;
    queue.cancel(vec![stale.id()]).await.unwrap();
    assert_eq!(stale.ack().await.unwrap_err().kind(), ErrorKind::Lost);
    // Dropped without an answer it is a failed attempt.
    drop(one(&queue).await);
    backend.close().await.unwrap();
    let reader = cx.backend().await;
    assert_eq!(both(&reader, Some("send")).await, (1, 3, 1));
}

async fn history_counts_what_was_committed(cx: Context) {
    for commits in [true, false] {
        let backend = cx.backend().await;
        let queue = backend.queue("work").unwrap();
        queue.push(named("send")).await.unwrap();
        let fixture = cx.clone();
        let worker = Worker::new(Arc::clone(&queue))
            .options(WorkerOptions::default().backoff(|_| MINUTE * 60))
            .handle("send", move |_: usize, job: Working| {
                let cx = fixture.clone();
                async move {
                    let mut tx = cx.begin().await.unwrap();
                    tx.ack_in(job.delivery()).await.unwrap();
                    if commits {
                        tx.commit().await;
                    } else {
                        tx.rollback().await;
                    }
                    Ok(())
                }
            });
        soon("it ends", worker.run_until_idle()).await.unwrap();
        backend.close().await.unwrap();
    }
    let reader = cx.backend().await;
    assert_eq!(both(&reader, None).await, (1, 1, 0));
}

async fn history_tells_how_long_jobs_waited_and_ran(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push_all(vec![named("send"); 4]).await.unwrap();
    cx.elapse(MINUTE).await;
    let fixture = cx.clone();
    let worker = Worker::new(Arc::clone(&queue)).concurrency(1).handle(
        "send",
        move |_: usize, _: Working| {
            let cx = fixture.clone();
            async move {
                cx.pass(Duration::from_millis(50)).await;
                Ok(())
            }
        },
    );
    soon("it ends", worker.run_until_idle()).await.unwrap();
    backend.close().await.unwrap();
    let reader = cx.backend().await;
    let points = points(&reader, Some("send"), HistoryStep::Hour).await;
    for point in points {
        let (wait, run) = (point.mean_wait().unwrap(), point.mean_run().unwrap());
        assert!(wait > MINUTE * 9 / 10 && wait < MINUTE * 2, "{wait:?}");
        let p95 = point.wait_quantile(0.95).unwrap();
        assert!(p95 > MINUTE / 2 && p95 < MINUTE * 4, "{p95:?}");
        let least = Duration::from_millis(50);
        assert!(run >= least && run < MINUTE / 2, "{run:?}");
        let p50 = point.run_quantile(0.5).unwrap();
        assert!(p50 >= least / 2 && p50 < MINUTE / 2, "{p50:?}");
    }
}

async fn history_of_two_programs_adds_up(cx: Context) {
    complete(&cx, "send", 2).await;
    complete(&cx, "send", 3).await;
    complete(&cx, "resize", 1).await;
    let reader = cx.backend().await;
    let all = async || {
        assert_eq!(both(&reader, Some("send")).await, (5, 0, 0));
        assert_eq!(both(&reader, None).await, (6, 0, 0));
    };
    all().await;
    assert_eq!(cx.history_rows().await.1, 0);
    // What may still be sent again stays by itself.
    cx.sweep_history().await;
    assert_eq!(cx.history_rows().await.1, 0);
    all().await;
    cx.elapse(MINUTE * 6).await;
    cx.sweep_history().await;
    assert_eq!(cx.history_rows().await.0, 0);
    all().await;
    // And what comes later is added to it.
    complete(&cx, "resize", 1).await;
    cx.elapse(MINUTE * 6).await;
    cx.sweep_history().await;
    assert_eq!(cx.history_rows().await.0, 0);
    assert_eq!(both(&reader, None).await, (7, 0, 0));
    assert_eq!(both(&reader, Some("resize")).await, (2, 0, 0));
}

async fn history_tells_a_hundred_names_apart(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let jobs = (0..150).map(|n| named(&format!("job {n}")));
    queue.push_all(jobs.collect()).await.unwrap();
    for delivery in queue.claim(&Claim::new(150)).await.unwrap() {
        delivery.ack().await.unwrap();
    }
    backend.close().await.unwrap();
    let reader = cx.backend().await;
    assert_eq!(both(&reader, None).await, (150, 0, 0));
    assert_eq!(both(&reader, Some("")).await, (50, 0, 0));
    assert_eq!(both(&reader, Some("job 7")).await, (1, 0, 0));
    assert_eq!(both(&reader, Some("job 120")).await, (0, 0, 0));
}

async fn history_keeps_an_hour_of_minutes_and_a_week_of_hours(cx: Context) {
    const HOUR: Duration = Duration::from_hours(1);
    let reader = cx.backend().await;
    let look = async || {
        let minutes = sums(&reader, None, HistoryStep::Minute).await.0;
        (minutes, sums(&reader, None, HistoryStep::Hour).await.0)
    };
    complete(&cx, "send", 1).await;
    cx.elapse(MINUTE * 50).await;
    cx.sweep_history().await;
    assert_eq!(look().await, (1, 1));
    // One row of a minute, and one of an hour.
    assert_eq!(cx.history_rows().await, (0, 2));
    cx.elapse(MINUTE * 13).await;
    assert_eq!(look().await, (0, 1));
    cx.sweep_history().await;
    assert_eq!(cx.history_rows().await, (0, 1));
    cx.elapse(HOUR * 160).await;
    cx.sweep_history().await;
    assert_eq!(look().await, (0, 1));
    cx.elapse(HOUR * 10).await;
    assert_eq!(look().await, (0, 0));
    cx.sweep_history().await;
    assert_eq!(cx.history_rows().await, (0, 0));
}

/// Completes a job and closes its first backend, completes another with the second, and stays until it is killed.
async fn attempts(cx: Context, _: Vec<String>, mut parent: Parent) {
    complete(&cx, "written", 1).await;
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push(named("unwritten")).await.unwrap();
    one(&queue).await.ack().await.unwrap();
    parent.say("done");
    parent.line().await;
}

async fn history_of_a_killed_program_is_what_it_has_written(cx: Context) {
    let mut child = cx.child("attempts", &[]);
    assert_eq!(soon("it says so", child.line()).await, "done");
    child.kill();
    let reader = cx.backend().await;
    assert_eq!(both(&reader, Some("written")).await, (1, 0, 0));
    assert_eq!(both(&reader, Some("unwritten")).await, (0, 0, 0));
    complete(&cx, "send", 1).await;
    assert_eq!(both(&reader, None).await, (2, 0, 0));
}

async fn history_counts_nothing_twice(cx: Context) {
    let reader = cx.backend().await;
    let lost = faults("INSERT INTO lockapi.job_history_part").filter(|fault| {
        matches!(
            fault.answer,
            Answer::Nothing | Answer::Report("FATAL", "57P01")
        )
    });
    let mut least = 0;
    let mut most = 0;
    for fault in lost {
        let told = format!("{fault:?}");
        let executed = fault.point == Point::After;
        cx.break_next(fault, 1).await;
        let backend = cx
            .connect(BackendOptions::default().notes(false))
            .await
            .unwrap();
        let queue = backend.queue("work").unwrap();
        queue.push_all(vec![named("send"); 3]).await.unwrap();
        for _ in 0..3 {
            one(&queue).await.ack().await.unwrap();
        }
        // What cannot be written is no error of the program.
        backend.close().await.unwrap();
        assert_eq!(cx.mend().await, 0, "not met: {told}");
        most += 3;
        least += if executed { 3 } else { 0 };
        let counted = both(&reader, None).await.0;
        assert!(counted >= least && counted <= most, "{told}: {counted}");
        least = least.max(counted);
        most = counted;
    }
}

async fn history_that_is_off_writes_nothing(cx: Context) {
    let options = BackendOptions::default().history(false);
    let backend = cx.connect(options).await.unwrap();
    let queue = backend.queue("work").unwrap();
    queue.push_all(vec![named("send"); 3]).await.unwrap();
    for _ in 0..3 {
        one(&queue).await.ack().await.unwrap();
    }
    // What others have counted is shown all the same.
    assert_eq!(both(&backend, None).await, (0, 0, 0));
    complete(&cx, "send", 1).await;
    assert_eq!(both(&backend, None).await, (1, 0, 0));
    backend.close().await.unwrap();
    let (parts, kept) = cx.history_rows().await;
    assert!((1..=2).contains(&parts) && kept == 0, "{parts} {kept}");
}

async fn history_is_read_by_thousands_at_once(cx: Context) {
    complete(&cx, "send", 1).await;
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push(named("send")).await.unwrap();
    let inspector = backend.inspector();
    let many = if cx.calls_arrive_together() {
        10_000
    } else {
        100
    };
    let read = async |n: usize| {
        let steps = [HistoryStep::Minute, HistoryStep::Hour];
        inspector.history("work", None, steps[n % 2]).await
    };
    // Those of callers that leave are not sent.
    let left = futures_util::future::join_all((0..many).map(read));
    poll_then_drop(left, 1).await;
    eventually("there is room again", async || read(0).await.is_ok()).await;
    let answers = futures_util::future::join_all((0..many).map(read));
    // A claim does not wait behind them.
    let (answers, claimed) =
        soon("answers", futures_util::future::join(answers, one(&queue))).await;
    claimed.ack().await.unwrap();
    let mut refused = 0;
    for answer in answers {
        match answer {
            Ok(points) => {
                let completed = points.iter().map(|point| point.completed);
                assert_eq!(completed.sum::<u64>(), 1);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Capacity);
                refused += 1;
            }
        }
    }
    assert!(refused < many, "{refused}");
    assert_eq!(both(&backend, None).await, (1, 0, 0));
}

async fn history_has_limits(cx: Context) {
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    let long = "x".repeat(256);
    for (queue, name) in [
        ("", None),
        (&*long, None),
        ("work", Some(&*long)),
        ("work\0", None),
    ] {
        let error = inspector.history(queue, name, HistoryStep::Minute).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

async fn history_can_be_queried(cx: Context) {
    complete(&cx, "send", 2).await;
    cx.elapse(MINUTE * 6).await;
    cx.sweep_history().await;
    complete(&cx, "send", 3).await;
    let (namespace, of) = (cx.namespace(), "queue = 'work' AND name = 'send'");
    for step in ["minute", "hour"] {
        let rows = cx
            .sql(&format!(
                "SELECT sum(completed) || ' ' || sum(failed) || ' ' || sum(dead) || ' '
                        || bool_and(run_p50 <= run_p95 AND wait_p50 <= wait_p95 AND waited_seconds >= 0 AND ran_seconds >= 0)
                   FROM lockapi.queue_history
                  WHERE namespace = '{namespace}' AND {of} AND step = '{step}'"
            ))
            .await;
        assert_eq!(rows, ["5 0 0 true"], "{step}");
    }
    // Both faces of an estimate.
    let reader = cx.backend().await;
    let point = points(&reader, None, HistoryStep::Hour).await.remove(0);
    let at = point.at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let rows = cx
        .sql(&format!(
            "SELECT round(extract(epoch FROM run_p95) * 1000000)::text FROM lockapi.queue_history
              WHERE namespace = '{namespace}' AND {of} AND step = 'hour' AND at = to_timestamp({})",
            at.as_secs_f64()
        ))
        .await;
    let micros: u128 = rows[0].parse().unwrap();
    let near = point.run_quantile(0.95).unwrap().as_micros();
    assert!(micros.abs_diff(near) <= 1, "{micros} {near}");
}

async fn history_delays_no_job_while_the_server_is_away(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push_all(vec![named("send"); 2]).await.unwrap();
    one(&queue).await.ack().await.unwrap();
    let second = one(&queue).await;
    cx.set_reachable(false).await;
    let error = soon("an answer", second.ack()).await.unwrap_err();
    assert!(error.is_retryable() || error.kind() == ErrorKind::Indeterminate);
    cx.set_reachable(true).await;
    queue.push(named("send")).await.unwrap();
    let third = soon("a job", queue.claim(&Claim::new(1).wait(MINUTE))).await;
    third.unwrap().remove(0).ack().await.unwrap();
    backend.close().await.unwrap();
    let reader = cx.backend().await;
    let counted = both(&reader, None).await.0;
    // Of what had no answer nothing is counted.
    assert_eq!(counted, 2);
}
