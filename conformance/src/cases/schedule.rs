//! Schedulers: what is due is fired once, by whomever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::queue::{Claim, Delivery, Job};
use lockapi::schedule::{Misfire, Overlap, Round, Run, Status, Task, TaskState, Terms};
use lockapi::{BackendExt, ErrorKind, Queue, QueueExt, Scheduler, SchedulerExt};

use super::Role;
use crate::child::Parent;
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, not_yet, poll_then_drop, soon};

register! { "schedule":
    S01 due_tasks_are_fired_once_by_many_nodes;
    S01 nodes_that_tick_at_once_fire_once;
    S01 killed_nodes_lose_and_double_nothing [Processes];
    S01 crash_of_the_server_loses_and_doubles_nothing @ Own [Processes];
    S01 running_node_fires_what_is_due_and_hears_of_changes;
    S01 namespaces_and_schedulers_never_meet;
    S02 cron_task_is_due_on_the_minute;
    S02 bad_expressions_zones_and_tasks_are_refused;
    S03 missed_times_are_skipped_coalesced_or_made_up_for;
    S04 overlapping_runs_are_allowed_skipped_or_held_back;
    S04 run_that_is_tried_again_has_not_ended;
    S05 run_that_lasts_too_long_is_failed_and_released;
    S06 disabled_task_is_not_fired_and_nothing_is_made_up_for;
    S06 changed_task_keeps_its_time_unless_it_recurs_otherwise;
    S06 removed_task_is_not_fired;
    S06 task_is_run_at_once_when_asked;
    S07 log_tells_node_status_and_error;
    S07 log_is_readable_in_sql [Sql];
    S07 log_is_kept_for_as_long_as_it_says;
    V08 dropped_rounds_fire_once [Futures];
}

pub(super) const ROLES: &[(&str, Role)] = &[("schedule", |cx, arguments, parent| {
    Box::pin(schedule(cx, arguments, parent))
})];

const HOUR: Duration = Duration::from_hours(1);

/// Runs a scheduler until it is killed.
async fn schedule(cx: Context, _: Vec<String>, parent: Parent) {
    let terms = Terms::default().poll(Duration::from_millis(10));
    let backend = cx.backend().await;
    let scheduler = backend.open_scheduler("chores".to_owned(), terms).unwrap();
    parent.say("ready");
    scheduler.run(std::future::pending()).await.unwrap();
}

async fn node(cx: &Context, name: &str) -> Arc<dyn Scheduler> {
    let terms = Terms::default().node(name).poll(Duration::from_millis(10));
    let backend = cx.backend().await;
    backend.open_scheduler("chores".to_owned(), terms).unwrap()
}

async fn chores(cx: &Context) -> Arc<dyn Queue> {
    cx.backend().await.queue("chores").unwrap()
}

fn job(name: &str) -> Job {
    Job::new(name, &name).unwrap().max_attempts(3)
}

fn hourly(name: &str) -> Task {
    Task::every(name, HOUR, job("chore"))
}

fn count(round: &Round, status: Status) -> usize {
    let decided = round.decisions.iter();
    decided.filter(|one| one.status == status).count()
}

/// The log of a task, the earliest run first.
async fn log(scheduler: &Arc<dyn Scheduler>, task: &str) -> Vec<Run> {
    let mut runs = scheduler.runs(task, None, 1000).await.unwrap();
    runs.reverse();
    runs
}

async fn statuses(scheduler: &Arc<dyn Scheduler>, task: &str) -> Vec<Status> {
    let runs = log(scheduler, task).await;
    runs.iter().map(|run| run.status).collect()
}

async fn state(scheduler: &Arc<dyn Scheduler>, task: &str) -> TaskState {
    let mut tasks = scheduler.list().await.unwrap();
    tasks.retain(|one| one.name == task);
    tasks.pop().expect("the task")
}

async fn one(queue: &Arc<dyn Queue>) -> Delivery {
    let claim = Claim::new(1).lease(HOUR * 10).worker("worker-1");
    let mut claimed = queue.claim(&claim).await.unwrap();
    assert_eq!(claimed.len(), 1, "a job is there");
    claimed.remove(0)
}

/// Completes all that is there, and answers how many.
async fn finish_all(queue: &Arc<dyn Queue>) -> usize {
    let mut done = 0;
    loop {
        let claimed = queue.claim(&Claim::new(100)).await.unwrap();
        if claimed.is_empty() {
            return done;
        }
        for delivery in claimed {
            delivery.ack().await.unwrap();
            done += 1;
        }
    }
}

async fn due_tasks_are_fired_once_by_many_nodes(cx: Context) {
    const TASKS: usize = 30;
    const ROUNDS: usize = 4;
    let mut nodes = vec![
        node(&cx, "a").await,
        node(&cx, "b").await,
        node(&cx, "c").await,
    ];
    let queue = chores(&cx).await;
    for number in 0..TASKS {
        // Every node sets them all.
        let task = || hourly(&format!("task-{number}"));
        assert!(nodes[0].set(task()).await.unwrap());
        assert!(!nodes[1].set(task()).await.unwrap());
    }
    assert_eq!(nodes[1].tick().await.unwrap().decisions, []);
    let mut fired = BTreeMap::<String, usize>::new();
    for round in 0..ROUNDS {
        cx.elapse(HOUR).await;
        if round == 2 {
            nodes.remove(0);
        }
        let ticks = nodes.iter().map(|node| node.tick());
        for outcome in join_all(ticks).await {
            for decision in outcome.unwrap().decisions {
                assert_eq!(decision.status, Status::Pending);
                *fired.entry(decision.task).or_default() += 1;
            }
        }
        // Whom another was in the way of is told nothing; a further round has nothing to do.
        for node in &nodes {
            assert_eq!(node.tick().await.unwrap().decisions, []);
        }
        assert_eq!(finish_all(&queue).await, TASKS);
    }
    assert_eq!(fired.len(), TASKS);
    assert!(fired.values().all(|times| *times == ROUNDS), "{fired:?}");
    for number in 0..TASKS {
        let log = statuses(&nodes[0], &format!("task-{number}")).await;
        assert_eq!(log, [Status::Completed; ROUNDS]);
    }
}

async fn nodes_that_tick_at_once_fire_once(cx: Context) {
    const NODES: usize = 8;
    let nodes = join_all((0..NODES).map(|_| node(&cx, "n"))).await;
    let task = hourly("only").overlap(Overlap::Allow);
    nodes[0].set(task).await.unwrap();
    for round in 1..=5 {
        cx.elapse(HOUR).await;
        let ticks = nodes.iter().cloned();
        let ticks = ticks.map(|node| tokio::spawn(async move { node.tick().await }));
        let mut fired = 0;
        for tick in ticks.collect::<Vec<_>>() {
            fired += tick.await.unwrap().unwrap().decisions.len();
        }
        assert_eq!(fired, 1);
        assert_eq!(cx.jobs().await.waiting, round);
    }
}

async fn killed_nodes_lose_and_double_nothing(cx: Context) {
    const TASKS: usize = 20;
    const ROUNDS: usize = 6;
    let here = node(&cx, "here").await;
    for number in 0..TASKS {
        let task = hourly(&format!("task-{number}")).overlap(Overlap::Allow);
        here.set(task).await.unwrap();
    }
    let mut children: Vec<_> = (0..4).map(|_| cx.child("schedule", &[])).collect();
    for child in &mut children {
        assert_eq!(child.line().await, "ready");
    }
    for round in 1..=ROUNDS {
        cx.elapse(HOUR).await;
        if round % 2 == 0 {
            // Whatever it is doing about what is due by now.
            children.pop().expect("a child").kill();
        }
        eventually("all of them are fired", async || {
            cx.jobs().await.waiting >= TASKS * round
        })
        .await;
        assert_eq!(cx.jobs().await.waiting, TASKS * round);
    }
    for number in 0..TASKS {
        let log = log(&here, &format!("task-{number}")).await;
        assert_eq!(log.len(), ROUNDS);
        assert!(log.iter().all(|run| run.missed == 0));
    }
}

async fn crash_of_the_server_loses_and_doubles_nothing(cx: Context) {
    let (here, there) = (node(&cx, "here").await, node(&cx, "there").await);
    here.set(hourly("only")).await.unwrap();
    cx.elapse(HOUR).await;
    assert_eq!(here.tick().await.unwrap().decisions.len(), 1);
    cx.crash().await;
    eventually("a round gets through", async || {
        let round = there.tick().await;
        round.is_ok_and(|round| round.decisions.is_empty())
    })
    .await;
    assert_eq!(statuses(&there, "only").await, [Status::Pending]);
    assert_eq!(cx.jobs().await.waiting, 1);
    assert_eq!(finish_all(&chores(&cx).await).await, 1);
}

async fn running_node_fires_what_is_due_and_hears_of_changes(cx: Context) {
    let terms = Terms::default().poll(HOUR);
    let backend = cx.backend().await;
    let running = backend.open_scheduler("chores".to_owned(), terms).unwrap();
    let other = node(&cx, "other").await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let run = tokio::spawn(async move {
        let shutdown = async { drop(stopped.await) };
        running.run(shutdown).await
    });
    tokio::pin!(run);
    not_yet("it runs until it is told to stop", &mut run).await;
    let task = hourly("soon").first_in(Duration::from_millis(1));
    if cx.backend().await.capabilities().notifications {
        other.set(task).await.unwrap();
        eventually("it is fired", async || {
            // The clocks of some subjects stand still until they are moved.
            cx.pass(Duration::from_millis(1)).await;
            cx.jobs().await.waiting == 1
        })
        .await;
    }
    drop(stop);
    soon("it stops", run).await.unwrap().unwrap();
}

async fn namespaces_and_schedulers_never_meet(cx: Context) {
    let backend = cx.backend().await;
    let (one, two) = (
        backend.scheduler("one").unwrap(),
        backend.scheduler("two").unwrap(),
    );
    let elsewhere = cx.elsewhere().await.backend().await;
    let elsewhere = elsewhere.scheduler("one").unwrap();
    one.set(hourly("only")).await.unwrap();
    cx.elapse(HOUR).await;
    for other in [&two, &elsewhere] {
        assert_eq!(other.tick().await.unwrap().decisions, []);
        assert!(other.list().await.unwrap().is_empty());
        assert!(!other.disable("only").await.unwrap());
        assert!(!other.remove("only").await.unwrap());
        assert_eq!(other.run_now("only").await.unwrap(), None);
    }
    assert_eq!(one.tick().await.unwrap().decisions.len(), 1);
    assert!(two.runs("only", None, 10).await.unwrap().is_empty());
    let queue = backend.queue("two").unwrap();
    assert!(queue.claim(&Claim::new(1)).await.unwrap().is_empty());
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
        (Task::every("bad", HOUR, job("chore").delay(HOUR)), "delay"),
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
    for terms in [
        Terms::default().poll(Duration::ZERO),
        Terms::default().keep(Duration::MAX),
        Terms::default().node("n".repeat(256)),
    ] {
        let error = backend.open_scheduler("chores".to_owned(), terms);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!(backend.scheduler("").is_err());
    assert!(here.tasks("", 1001).await.is_err());
    assert!(here.runs("bad", None, 1001).await.is_err());
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
        let terms = Terms::default().keep(HOUR * 24);
        let backend = cx.backend().await;
        backend.open_scheduler("chores".to_owned(), terms).unwrap()
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

async fn dropped_rounds_fire_once(cx: Context) {
    let here = node(&cx, "here").await;
    let task = hourly("only").overlap(Overlap::Allow);
    here.set(task).await.unwrap();
    let mut rounds = 0;
    loop {
        cx.elapse(HOUR).await;
        rounds += 1;
        let ended = poll_then_drop(here.tick(), rounds).await.is_some();
        let rest = here.tick().await.unwrap();
        assert!(rest.decisions.len() <= 1);
        eventually("it is fired", async || cx.jobs().await.waiting == rounds).await;
        if ended {
            break;
        }
    }
    let log = log(&here, "only").await;
    assert_eq!(log.len(), rounds);
}
