//! Schedulers: when tasks are due, and what becomes of times that were missed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::ErrorKind;
use lockapi::schedule::{Misfire, Overlap, SchedulerOptions, Status, Task, TaskState};

use super::schedule::{HOUR, chores, count, finish_all, hourly, job, log, node, state, statuses};
use crate::context::{Context, MINUTE};
use crate::harness::register;

register! { "schedule":
    S02 cron_task_is_due_on_the_minute;
    S02 bad_expressions_zones_and_tasks_are_refused;
    S03 missed_times_are_skipped_coalesced_or_made_up_for;
    S06 disabled_task_is_not_fired_and_nothing_is_made_up_for;
    S06 changed_task_keeps_its_time_unless_it_recurs_otherwise;
    S06 removed_task_is_not_fired;
    S06 task_is_run_at_once_when_asked;
    S06 hundreds_may_run_a_task_at_once;
    S02 tasks_that_are_not_understood_hide_no_other [Sql];
}

async fn cron_task_is_due_on_the_minute(cx: Context) {
    let here = node(&cx, "here").await;
    let task = Task::cron("every-minute", "* * * * *", "Europe/Berlin", job("chore"));
    here.set(task).await.unwrap();
    let on_the_minute = |state: &TaskState| {
        let next = state.next_at.expect("it is due again");
        let since = next.duration_since(std::time::UNIX_EPOCH).unwrap();
        since.as_micros().is_multiple_of(60_000_000)
    };
    let before = state(&here, "every-minute").await;
    assert!(on_the_minute(&before), "{before:?}");
    cx.elapse(HOUR).await;
    let round = here.tick().await.unwrap();
    assert_eq!(round.decisions.len(), 1);
    assert!(round.next.expect("it is due again") <= MINUTE);
    let after = state(&here, "every-minute").await;
    assert!(on_the_minute(&after), "{after:?}");
    let run = &log(&here, "every-minute").await[0];
    assert!(run.missed >= 58, "{run:?}");
    assert_eq!(run.fired_by, "here");
    assert_eq!(here.tick().await.unwrap().decisions, []);
}

async fn bad_expressions_zones_and_tasks_are_refused(cx: Context) {
    let here = node(&cx, "here").await;
    let cron = |expression: &str, zone: &str| Task::cron("bad", expression, zone, job("chore"));
    let long = "x".repeat(251);
    let every = |interval| Task::every("bad", interval, job("chore"));
    let bad = [
        (cron("", "UTC"), "not understood"),
        (cron("* * * *", "UTC"), "not understood"),
        (cron("61 * * * *", "UTC"), "not understood"),
        (cron("0 0 0 1 1 * 2030", "UTC"), "not understood"),
        (cron("every day", "UTC"), "not understood"),
        (cron("0 0 30 2 *", "UTC"), "never due"),
        (cron("0 3 * * *", "Europe/Atlantis"), "no time zone"),
        (cron("0 3 * * *", ""), "no time zone"),
        (cron("0 3 * * *", "UTC").first_in(HOUR), "first time"),
        (every(Duration::ZERO), "interval"),
        (every(Duration::from_millis(99)), "interval"),
        (every(Duration::MAX), "interval"),
        (hourly(""), "name of the task"),
        (hourly("nul\0"), "NUL"),
        (hourly(&long), "250"),
        (hourly("bad").timeout(Duration::from_millis(1)), "timeout"),
        (hourly("bad").misfire(Misfire::CatchUp(0)), "1 to 1000"),
        (hourly("bad").misfire(Misfire::CatchUp(1001)), "1 to 1000"),
        (
            hourly("bad")
                .overlap(Overlap::Skip)
                .misfire(Misfire::CatchUp(2)),
            "Overlap::Skip",
        ),
        (Task::every("bad", HOUR, job("chore").delay(HOUR)), "delay"),
        (Task::every("bad", HOUR, job("chore").group("g")), "group"),
        (
            Task::every("bad", HOUR, job("chore").header("a", "b")),
            "headers",
        ),
        (
            Task::every("bad", HOUR, job("chore").idempotency_key("k")),
            "key",
        ),
    ];
    for (task, words) in bad {
        let error = here.set(task.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{task:?}: {error}");
        assert!(error.to_string().contains(words), "{task:?}: {error}");
    }
    assert!(here.list().await.unwrap().is_empty());
    let backend = cx.backend().await;
    for options in [
        SchedulerOptions::default().poll(Duration::ZERO),
        SchedulerOptions::default().keep(Duration::MAX),
        SchedulerOptions::default().node("n".repeat(256)),
    ] {
        let error = backend.open_scheduler("chores".to_owned(), options);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!(backend.scheduler("").is_err());
    assert!(here.tasks("", 1001).await.is_err());
    assert!(here.runs("bad", None, 1001).await.is_err());
}

async fn hundreds_may_run_a_task_at_once(cx: Context) {
    let here = node(&cx, "here").await;
    here.set(hourly("only").overlap(Overlap::Allow))
        .await
        .unwrap();
    let runs = (0..300).map(|_| {
        let here = Arc::clone(&here);
        tokio::spawn(async move { here.run_now("only").await })
    });
    for run in runs.collect::<Vec<_>>() {
        run.await.unwrap().unwrap().expect("the task");
    }
    assert_eq!(cx.jobs().await.waiting, 300);
}

async fn tasks_that_are_not_understood_hide_no_other(cx: Context) {
    let here = node(&cx, "here").await;
    let task = Task::every("mine", MINUTE, job("chore")).first_in(Duration::ZERO);
    here.set(task).await.unwrap();
    // As a program with a later list of time zones would set them.
    cx.sql(&format!(
        "INSERT INTO lockapi.task (namespace, scheduler, name, job, payload, priority, max_attempts, enabled, next_at,
                cron, zone, timeout, misfire, misfire_most, overlap, version, changed_at)
         SELECT t.namespace, t.scheduler, 'cron ' || n, t.job, t.payload, t.priority, t.max_attempts, true,
                now() - interval '1 hour', '* * * * *', 'Europe/Atlantis', t.timeout, t.misfire, t.misfire_most,
                t.overlap, 1, now()
           FROM lockapi.task AS t, generate_series(1, 2500) AS n
          WHERE t.namespace = '{}'
         RETURNING name",
        cx.namespace()
    ))
    .await;
    let round = here.tick().await.unwrap();
    assert_eq!((round.left.len(), round.decisions.len()), (2500, 1));
}

async fn missed_times_are_skipped_coalesced_or_made_up_for(cx: Context) {
    let here = node(&cx, "here").await;
    let with = |name, misfire| hourly(name).overlap(Overlap::Allow).misfire(misfire);
    let late = |minutes| Misfire::Skip {
        late: MINUTE * minutes,
    };
    for task in [
        with("coalesce", Misfire::Coalesce),
        with("three", Misfire::CatchUp(3)),
        with("all", Misfire::CatchUp(10)),
        with("late", late(10)),
        with("in-time", late(50)),
    ] {
        here.set(task).await.unwrap();
    }
    // The fifth time was half an hour ago.
    cx.elapse(HOUR * 11 / 2).await;
    let round = here.tick().await.unwrap();
    assert_eq!(count(&round, Status::Pending), 1 + 3 + 5 + 1);
    assert_eq!(count(&round, Status::Skipped), 1);
    for (task, missed) in [
        ("coalesce", &[4][..]),
        ("three", &[2, 0, 0]),
        ("all", &[0; 5]),
        ("late", &[4]),
        ("in-time", &[4]),
    ] {
        let log = log(&here, task).await;
        let found: Vec<_> = log.iter().map(|run| run.missed).collect();
        assert_eq!(found, missed, "{task}");
        let last = log.last().expect("a run");
        let ago = last.fired_at.duration_since(last.fire_at).unwrap();
        assert!(ago >= HOUR / 2 && ago < HOUR, "{task}: {ago:?}");
        let gaps = log
            .windows(2)
            .map(|two| two[1].fire_at.duration_since(two[0].fire_at).unwrap());
        assert!(gaps.into_iter().all(|gap| gap == HOUR), "{task}");
    }
    let skipped = &log(&here, "late").await[0];
    assert_eq!(skipped.error.as_deref(), Some("its time was missed"));
    assert_eq!(here.tick().await.unwrap().decisions, []);
    // Nothing was missed this time.
    cx.elapse(HOUR).await;
    let round = here.tick().await.unwrap();
    assert_eq!(round.decisions.len(), 5);
}

async fn disabled_task_is_not_fired_and_nothing_is_made_up_for(cx: Context) {
    let here = node(&cx, "here").await;
    let there = node(&cx, "there").await;
    let task = || hourly("only").misfire(Misfire::CatchUp(100));
    here.set(task()).await.unwrap();
    assert!(there.disable("only").await.unwrap());
    cx.elapse(HOUR * 3).await;
    assert_eq!(here.tick().await.unwrap().decisions, []);
    assert!(!here.set(task()).await.unwrap(), "as it is");
    assert!(!state(&here, "only").await.enabled);
    assert!(here.enable("only").await.unwrap());
    assert!(here.enable("only").await.unwrap(), "again");
    assert_eq!(here.tick().await.unwrap().decisions, []);
    cx.elapse(HOUR).await;
    assert_eq!(there.tick().await.unwrap().decisions.len(), 1);
    assert!(!here.enable("other").await.unwrap(), "there is none");
}

async fn changed_task_keeps_its_time_unless_it_recurs_otherwise(cx: Context) {
    let here = node(&cx, "here").await;
    here.set(hourly("only")).await.unwrap();
    let before = state(&here, "only").await;
    let other = Task::every("only", HOUR, job("other")).timeout(MINUTE);
    assert!(here.set(other).await.unwrap());
    let after = state(&here, "only").await;
    assert_eq!(after.next_at, before.next_at);
    assert_eq!((&*after.job, after.timeout), ("other", Some(MINUTE)));
    let daily = Task::every("only", HOUR * 24, job("other"));
    assert!(here.set(daily).await.unwrap());
    assert!(state(&here, "only").await.next_at > after.next_at);
    cx.elapse(HOUR * 2).await;
    assert_eq!(here.tick().await.unwrap().decisions, []);
    let cron = || Task::cron("only", "* * * * *", "UTC", job("other"));
    assert!(here.set(cron()).await.unwrap());
    assert!(!here.set(cron()).await.unwrap());
    let now = state(&here, "only").await;
    assert_eq!(now.every, None);
    assert_eq!(now.cron, Some(("* * * * *".to_owned(), "UTC".to_owned())));
    cx.elapse(MINUTE).await;
    assert_eq!(here.tick().await.unwrap().decisions.len(), 1);
}

async fn removed_task_is_not_fired(cx: Context) {
    let here = node(&cx, "here").await;
    here.set(hourly("only").overlap(Overlap::Queue))
        .await
        .unwrap();
    for _ in 0..2 {
        cx.elapse(HOUR).await;
        here.tick().await.unwrap();
    }
    cx.elapse(HOUR).await;
    assert!(here.remove("only").await.unwrap());
    assert!(!here.remove("only").await.unwrap());
    assert_eq!(here.tick().await.unwrap().decisions, []);
    assert!(here.list().await.unwrap().is_empty());
    let log = statuses(&here, "only").await;
    assert_eq!(log, [Status::Pending, Status::Skipped]);
    assert_eq!(finish_all(&chores(&cx).await).await, 1);
}

async fn task_is_run_at_once_when_asked(cx: Context) {
    let here = node(&cx, "here").await;
    here.set(hourly("only")).await.unwrap();
    here.disable("only").await.unwrap();
    let before = state(&here, "only").await;
    let decided = here.run_now("only").await.unwrap().expect("the task");
    assert_eq!(decided.status, Status::Pending);
    assert!(decided.job.is_some());
    let again = here.run_now("only").await.unwrap().expect("the task");
    assert_eq!(again.status, Status::Skipped, "the first has not ended");
    assert_eq!(state(&here, "only").await.next_at, before.next_at);
    assert_eq!(finish_all(&chores(&cx).await).await, 1);
    let log = statuses(&here, "only").await;
    assert_eq!(log, [Status::Completed, Status::Skipped]);
    // Many at once, of which one finds the task free.
    let asked = join_all((0..8).map(|_| here.run_now("only"))).await;
    let pending = asked
        .into_iter()
        .filter(|one| one.as_ref().unwrap().as_ref().unwrap().status == Status::Pending);
    assert_eq!(pending.count(), 1);
}
