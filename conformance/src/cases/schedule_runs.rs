//! Schedulers: runs that overlap or last too long, and the log of all of them.

use futures_util::future::join_all;
use lockapi::ErrorKind;
use lockapi::queue::Claim;
use lockapi::schedule::{Misfire, Overlap, SchedulerOptions, Status};

use super::schedule::{HOUR, chores, count, finish_all, hourly, log, node, one, state, statuses};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::eventually;

register! { "schedule":
    S04 overlapping_runs_are_allowed_skipped_or_held_back;
    S04 task_is_fired_in_the_round_that_releases_a_run;
    S04 no_more_than_a_thousand_runs_are_held_back;
    S04 run_that_is_tried_again_has_not_ended;
    S05 run_that_lasts_too_long_is_failed_and_released;
    S07 log_tells_node_status_and_error;
    S07 log_is_readable_in_sql [Sql];
    S07 log_is_kept_for_as_long_as_it_says;
}

async fn overlapping_runs_are_allowed_skipped_or_held_back(cx: Context) {
    use Status::{Completed, Held, Pending, Running, Skipped};

    let here = node(&cx, "here").await;
    let queue = chores(&cx).await;
    here.set(hourly("queue").overlap(Overlap::Queue))
        .await
        .unwrap();
    cx.elapse(HOUR).await;
    here.tick().await.unwrap();
    let first = one(&queue).await;
    for (task, overlap) in [("allow", Overlap::Allow), ("skip", Overlap::Skip)] {
        here.set(hourly(task).overlap(overlap)).await.unwrap();
    }
    for _ in 0..2 {
        cx.elapse(HOUR).await;
        assert_eq!(here.tick().await.unwrap().decisions.len(), 3);
    }
    assert_eq!(statuses(&here, "allow").await, [Pending, Pending]);
    assert_eq!(statuses(&here, "skip").await, [Pending, Skipped]);
    assert_eq!(statuses(&here, "queue").await, [Running, Held, Held]);
    let why = log(&here, "skip").await[1].error.clone();
    assert_eq!(why.as_deref(), Some("the run before had not ended"));
    assert_eq!(finish_all(&queue).await, 3, "two of allow, one of skip");

    assert_eq!(here.tick().await.unwrap().released, 0);
    first.ack().await.unwrap();
    let ticks = join_all([here.tick(), here.tick(), here.tick()]).await;
    let released = ticks.iter().map(|round| round.as_ref().unwrap().released);
    assert_eq!(released.sum::<u64>(), 1, "one at a time");
    assert_eq!(statuses(&here, "queue").await, [Completed, Pending, Held]);
    assert_eq!(finish_all(&queue).await, 1);
    assert_eq!(here.tick().await.unwrap().released, 1);
    assert_eq!(finish_all(&queue).await, 1);
    assert_eq!(here.tick().await.unwrap().released, 0);
    assert_eq!(statuses(&here, "queue").await, [Completed; 3]);

    cx.elapse(HOUR).await;
    let round = here.tick().await.unwrap();
    assert_eq!(count(&round, Pending), 3, "all are free again");
}

async fn task_is_fired_in_the_round_that_releases_a_run(cx: Context) {
    use Status::{Completed, Held, Pending};

    let here = node(&cx, "here").await;
    let queue = chores(&cx).await;
    let task = hourly("only").overlap(Overlap::Queue);
    here.set(task).await.unwrap();
    cx.elapse(HOUR).await;
    here.tick().await.unwrap();
    let first = one(&queue).await;
    cx.elapse(HOUR).await;
    here.tick().await.unwrap();
    first.ack().await.unwrap();
    cx.elapse(HOUR).await;
    let round = here.tick().await.unwrap();
    assert_eq!((round.released, count(&round, Held)), (1, 1));
    assert_eq!(statuses(&here, "only").await, [Completed, Pending, Held]);
    let missed: u32 = log(&here, "only").await.iter().map(|run| run.missed).sum();
    assert_eq!(missed, 0);
}

async fn no_more_than_a_thousand_runs_are_held_back(cx: Context) {
    let here = node(&cx, "here").await;
    let task = hourly("only").overlap(Overlap::Queue);
    here.set(task.misfire(Misfire::CatchUp(1000)))
        .await
        .unwrap();
    cx.elapse(HOUR * 1001).await;
    let round = here.tick().await.unwrap();
    let counts = [Status::Pending, Status::Held, Status::Skipped].map(|it| count(&round, it));
    assert_eq!(counts, [1, 999, 0]);
    cx.elapse(HOUR * 2).await;
    let round = here.tick().await.unwrap();
    let counts = [Status::Pending, Status::Held, Status::Skipped].map(|it| count(&round, it));
    assert_eq!(counts, [0, 1, 1]);
}

async fn run_that_is_tried_again_has_not_ended(cx: Context) {
    let here = node(&cx, "here").await;
    let queue = chores(&cx).await;
    here.set(hourly("only")).await.unwrap();
    cx.elapse(HOUR).await;
    here.tick().await.unwrap();
    one(&queue).await.nack("no", HOUR * 10).await.unwrap();
    cx.elapse(HOUR).await;
    let round = here.tick().await.unwrap();
    assert_eq!(count(&round, Status::Skipped), 1);
    let log = log(&here, "only").await;
    assert_eq!(log[0].status, Status::Pending);
    assert_eq!(log[0].error.as_deref(), Some("no"));
}

async fn run_that_lasts_too_long_is_failed_and_released(cx: Context) {
    let here = node(&cx, "here").await;
    let queue = chores(&cx).await;
    let task = |name| hourly(name).timeout(MINUTE * 10);
    here.set(task("slow").overlap(Overlap::Queue))
        .await
        .unwrap();
    cx.elapse(HOUR).await;
    here.tick().await.unwrap();
    // It waits for longer than the timeout, which counts from the delivery on.
    cx.elapse(MINUTE * 11).await;
    assert_eq!(here.tick().await.unwrap().expired, 0);
    let slow = one(&queue).await;
    let token = slow.ticket().token;
    cx.elapse(MINUTE * 9).await;
    assert_eq!(here.tick().await.unwrap().expired, 0);
    cx.elapse(HOUR).await;
    let round = here.tick().await.unwrap();
    assert_eq!(round.expired, 1);
    let refused = slow.ack().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Lost);
    let log = log(&here, "slow").await;
    assert_eq!(log[0].status, Status::Failed);
    assert_eq!(
        log[0].error.as_deref(),
        Some("it lasted longer than its timeout")
    );
    assert_eq!(log[0].node.as_deref(), Some("worker-1"));
    assert_eq!(log[0].token, Some(token));
    assert!(log[0].completed_at.is_some());
    assert_eq!(log[1].status, Status::Pending, "the task is free");
    one(&queue).await.ack().await.unwrap();
}

async fn log_tells_node_status_and_error(cx: Context) {
    let here = node(&cx, "node-7").await;
    let queue = chores(&cx).await;
    for task in ["done", "failed", "crashed", "cancelled"] {
        here.set(hourly(task)).await.unwrap();
        let fired = here.run_now(task).await.unwrap().expect("the task");
        let pending = &log(&here, task).await[0];
        assert_eq!((pending.status, pending.job), (Status::Pending, fired.job));
        assert_eq!((&pending.node, pending.attempts), (&None, 0));
        let delivery = one(&queue).await;
        assert_eq!(log(&here, task).await[0].status, Status::Running);
        match task {
            "done" => delivery.ack().await.unwrap(),
            "failed" => delivery.reject("the disk is full").await.unwrap(),
            "crashed" => {
                drop(delivery);
                eventually("it is given back", async || cx.jobs().await.waiting == 1).await;
                let claim = Claim::new(1).worker("worker-2");
                let again = queue.claim(&claim).await.unwrap().pop();
                again.expect("a delivery").ack().await.unwrap();
            }
            _ => {
                let cancelled = queue.cancel(vec![delivery.id()]).await.unwrap();
                assert_eq!(cancelled, [delivery.id()]);
            }
        }
    }
    let expected = [
        ("done", Status::Completed, None, "worker-1", 1),
        (
            "failed",
            Status::Failed,
            Some("the disk is full"),
            "worker-1",
            1,
        ),
        (
            "crashed",
            Status::Completed,
            Some("the delivery was dropped without an answer"),
            "worker-2",
            2,
        ),
        ("cancelled", Status::Cancelled, None, "worker-1", 1),
    ];
    for (task, status, error, worker, attempts) in expected {
        let run = &log(&here, task).await[0];
        assert_eq!(
            (run.status, run.error.as_deref()),
            (status, error),
            "{task}"
        );
        assert_eq!(run.node.as_deref(), Some(worker));
        assert_eq!((run.attempts, &*run.fired_by), (attempts, "node-7"));
        assert!(run.token.is_some() && run.started_at.is_some(), "{task}");
        assert!(run.completed_at >= run.started_at, "{task}");
    }
    let state = state(&here, "done").await;
    assert_eq!(state.last_at, Some(log(&here, "done").await[0].fire_at));
}

async fn log_is_readable_in_sql(cx: Context) {
    let here = node(&cx, "here").await;
    let queue = chores(&cx).await;
    here.set(hourly("only")).await.unwrap();
    here.run_now("only").await.unwrap();
    here.run_now("only").await.unwrap();
    one(&queue).await.reject("no").await.unwrap();
    let namespace = cx.namespace();
    let rows = cx
        .sql(&format!(
            "SELECT concat_ws(' ', task, status, node, error, started_at < completed_at, token > 0)
               FROM lockapi.task_log WHERE namespace = '{namespace}' ORDER BY fire_at"
        ))
        .await;
    let expected = [
        "only failed worker-1 no t t",
        "only skipped the run before had not ended",
    ];
    assert_eq!(rows, expected);
}

async fn log_is_kept_for_as_long_as_it_says(cx: Context) {
    let queue = chores(&cx).await;
    let open = async || {
        let options = SchedulerOptions::default().keep(HOUR * 24);
        let backend = cx.backend().await;
        backend
            .open_scheduler("chores".to_owned(), options)
            .unwrap()
    };
    let here = open().await;
    here.set(hourly("only").overlap(Overlap::Allow))
        .await
        .unwrap();
    for _ in 0..2 {
        here.run_now("only").await.unwrap();
    }
    assert_eq!(finish_all(&queue).await, 2);
    here.run_now("only").await.unwrap();
    cx.elapse(HOUR * 25).await;
    here.run_now("only").await.unwrap();
    // A node sweeps in its first round, and then every few minutes.
    open().await.tick().await.unwrap();
    eventually("what has ended is deleted", async || {
        cx.jobs().await.ended == 0
    })
    .await;
    let left = statuses(&here, "only").await;
    let pending = left.iter().filter(|status| **status == Status::Pending);
    assert_eq!(pending.count(), left.len(), "{left:?}");
    assert!(left.len() >= 2);
}
