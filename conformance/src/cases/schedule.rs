//! Schedulers: what is due is fired once, by whomever.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::queue::{Claim, Delivery, Job};
use lockapi::schedule::{Overlap, Round, Run, SchedulerOptions, Status, Task, TaskState};
use lockapi::{Queue, Scheduler, Stop};

use super::Role;
use crate::child::Parent;
use crate::context::Context;
use crate::harness::register;
use crate::patience::{eventually, not_yet, poll_then_drop, soon};

register! { "schedule":
    S01 due_tasks_are_fired_once_by_many_nodes;
    S01 nodes_that_tick_at_once_fire_once;
    S01 many_nodes_of_which_some_die_fire_each_task_once [Futures];
    S01 killed_nodes_lose_and_double_nothing [Processes];
    S01 crash_of_the_server_loses_and_doubles_nothing @ Own [Processes];
    S01 running_node_fires_what_is_due_and_hears_of_changes;
    S01 namespaces_and_schedulers_never_meet;
    V08 dropped_rounds_fire_once [Futures];
}

pub(super) const ROLES: &[(&str, Role)] = &[("schedule", |cx, arguments, parent| {
    Box::pin(schedule(cx, arguments, parent))
})];

pub(super) const HOUR: Duration = Duration::from_hours(1);

/// Runs a scheduler until it is killed.
async fn schedule(cx: Context, _: Vec<String>, parent: Parent) {
    let options = SchedulerOptions::default().poll(Duration::from_millis(10));
    let backend = cx.backend().await;
    let scheduler = backend
        .open_scheduler("chores".to_owned(), options)
        .unwrap();
    parent.say("ready");
    scheduler.run(Stop::new()).await.unwrap();
}

pub(super) async fn node(cx: &Context, name: &str) -> Arc<dyn Scheduler> {
    let options = SchedulerOptions::default()
        .node(name)
        .poll(Duration::from_millis(10));
    let backend = cx.backend().await;
    backend
        .open_scheduler("chores".to_owned(), options)
        .unwrap()
}

pub(super) async fn chores(cx: &Context) -> Arc<dyn Queue> {
    cx.backend().await.queue("chores").unwrap()
}

pub(super) fn job(name: &str) -> Job {
    Job::new(name, &name).unwrap().max_attempts(3)
}

pub(super) fn hourly(name: &str) -> Task {
    Task::every(name, HOUR, job("chore"))
}

pub(super) fn count(round: &Round, status: Status) -> usize {
    let decided = round.decisions.iter();
    decided.filter(|one| one.status == status).count()
}

/// The log of a task, the earliest run first.
pub(super) async fn log(scheduler: &Arc<dyn Scheduler>, task: &str) -> Vec<Run> {
    let mut runs = scheduler.runs(task, None, 1000).await.unwrap();
    runs.reverse();
    runs
}

pub(super) async fn statuses(scheduler: &Arc<dyn Scheduler>, task: &str) -> Vec<Status> {
    let runs = log(scheduler, task).await;
    runs.iter().map(|run| run.status).collect()
}

pub(super) async fn state(scheduler: &Arc<dyn Scheduler>, task: &str) -> TaskState {
    let mut tasks = scheduler.list().await.unwrap();
    tasks.retain(|one| one.name == task);
    tasks.pop().expect("the task")
}

pub(super) async fn one(queue: &Arc<dyn Queue>) -> Delivery {
    let claim = Claim::new(1).lease(HOUR * 10).worker("worker-1");
    let mut claimed = queue.claim(&claim).await.unwrap();
    assert_eq!(claimed.len(), 1, "a job is there");
    claimed.remove(0)
}

/// Completes all that is there, and answers how many.
pub(super) async fn finish_all(queue: &Arc<dyn Queue>) -> usize {
    let mut done = 0;
    loop {
        let claimed = queue.claim(&Claim::new(100)).await.unwrap();
        if claimed.is_empty() {
            return done;
        }
        for acked in join_all(claimed.into_iter().map(Delivery::ack)).await {
            acked.unwrap();
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

async fn many_nodes_of_which_some_die_fire_each_task_once(cx: Context) {
    const TASKS: usize = 100;
    const ROUNDS: usize = 5;
    let mut nodes = join_all((0..10).map(|_| node(&cx, "n"))).await;
    let queue = chores(&cx).await;
    let names: Vec<_> = (0..TASKS).map(|number| format!("task-{number}")).collect();
    let tasks = names.iter().enumerate();
    let set = tasks.map(|(number, name)| nodes[number % 10].set(hourly(name)));
    for set in join_all(set).await {
        assert!(set.unwrap());
    }
    for round in 0..ROUNDS {
        cx.elapse(HOUR).await;
        let ticks = nodes.iter().cloned();
        let ticks = ticks.map(|node| tokio::spawn(async move { node.tick().await }));
        let ticks: Vec<_> = ticks.collect();
        match round {
            // Nodes go in the middle of it, or all are cut off.
            1 | 3 => {
                tokio::task::yield_now().await;
                for tick in &ticks[..3] {
                    tick.abort();
                }
                nodes.drain(..3);
            }
            2 => cx.sever().await,
            _ => {}
        }
        for tick in ticks {
            // What it has done shows in the log.
            drop(tick.await);
        }
        eventually("nothing is left to be fired", async || {
            let rounds = join_all(nodes.iter().map(|node| node.tick())).await;
            let quiet =
                |round: lockapi::Result<Round>| round.is_ok_and(|round| round.decisions.is_empty());
            rounds.into_iter().all(quiet) && queue.statistics().await.is_ok()
        })
        .await;
        assert_eq!(finish_all(&queue).await, TASKS, "round {round}");
    }
    for runs in join_all(names.iter().map(|name| log(&nodes[0], name))).await {
        assert_eq!(runs.len(), ROUNDS);
        let completed = |run: &Run| run.status == Status::Completed && run.missed == 0;
        assert!(runs.iter().all(completed), "{runs:?}");
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
    let options = SchedulerOptions::default().poll(HOUR);
    let backend = cx.backend().await;
    let running = backend
        .open_scheduler("chores".to_owned(), options)
        .unwrap();
    let other = node(&cx, "other").await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let run = tokio::spawn(async move { running.run(stopped).await });
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
