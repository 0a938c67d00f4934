//! Schedulers: rules that hold together: what is made up for, what is tried again, what a run knows, and
//! what is left of it.

use std::time::Duration;

use lockapi::queue::{Claim, Job};
use lockapi::schedule::{Misfire, Round, SchedulerOptions, Status, Task};

use super::schedule::{HOUR, chores, finish_all, hourly, job, log, node, one, state, statuses};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::eventually;

register! { "schedule":
    S03 missed_times_are_made_up_for_one_after_the_other;
    S04 run_that_fails_does_not_silence_its_task;
    S07 run_knows_the_time_that_it_was_due;
    S07 log_of_a_scheduler_without_tasks_is_swept_by_others;
    W09 next_time_follows_a_clock_that_is_set_back;
    W09 next_time_follows_the_clock_of_a_server @ SetClock [Schema];
}

async fn missed_times_are_made_up_for_one_after_the_other(cx: Context) {
    let here = node(&cx, "here").await;
    let queue = chores(&cx).await;
    here.set(hourly("only").misfire(Misfire::CatchUp(10)))
        .await
        .unwrap();
    cx.elapse(HOUR * 21 / 2).await;
    let round = here.tick().await.unwrap();
    assert_eq!(round.decisions.len(), 10);
    // The next ones do not wait until something is due.
    let soon = |round: &Round| round.next.is_some_and(|next| next < Duration::from_secs(1));
    assert!(soon(&round), "{round:?}");
    for nth in 1..=10 {
        assert_eq!(finish_all(&queue).await, 1, "one at a time");
        let round = here.tick().await.unwrap();
        assert_eq!(round.released, u64::from(nth < 10), "{nth}");
        assert!(soon(&round), "{round:?}");
    }
    assert_eq!(statuses(&here, "only").await, [Status::Completed; 10]);
}

async fn run_that_fails_does_not_silence_its_task(cx: Context) {
    let here = node(&cx, "here").await;
    let queue = chores(&cx).await;
    let job = Job::new("chore", "chore").unwrap();
    here.set(Task::every("only", MINUTE, job)).await.unwrap();
    here.set(hourly("other")).await.unwrap();
    assert_eq!(state(&here, "only").await.max_attempts, 3);
    cx.elapse(MINUTE).await;
    here.tick().await.unwrap();
    for attempt in 1..=3 {
        let delivery = one(&queue).await;
        let dead = delivery.nack("no", MINUTE / 12).await.unwrap();
        assert_eq!(dead, attempt == 3);
        cx.elapse(MINUTE / 12).await;
    }
    cx.elapse(MINUTE).await;
    here.tick().await.unwrap();
    let log = statuses(&here, "only").await;
    assert_eq!(log, [Status::Failed, Status::Pending], "the next one runs");
}

async fn run_knows_the_time_that_it_was_due(cx: Context) {
    let here = node(&cx, "here").await;
    let queue = chores(&cx).await;
    here.set(hourly("only").misfire(Misfire::CatchUp(3)))
        .await
        .unwrap();
    cx.elapse(HOUR * 7 / 2).await;
    here.tick().await.unwrap();
    let due: Vec<_> = log(&here, "only").await;
    for run in due {
        let delivery = one(&queue).await;
        assert_eq!(delivery.due_at(), run.fire_at);
        delivery.nack("no", Duration::ZERO).await.unwrap();
        let delivery = one(&queue).await;
        assert_eq!(delivery.due_at(), run.fire_at, "in every attempt");
        delivery.ack().await.unwrap();
        here.tick().await.unwrap();
    }
}

async fn log_of_a_scheduler_without_tasks_is_swept_by_others(cx: Context) {
    let keep = || SchedulerOptions::default().keep(HOUR * 24);
    let open = async |name: &str| {
        let backend = cx.backend().await;
        backend.open_scheduler(name.to_owned(), keep()).unwrap()
    };
    let (old, kept) = (open("old").await, open("kept").await);
    for scheduler in [&old, &kept] {
        scheduler.set(hourly("only")).await.unwrap();
        scheduler.run_now("only").await.unwrap().unwrap();
        let queue = cx.backend().await.queue(scheduler.name()).unwrap();
        assert_eq!(finish_all(&queue).await, 1);
    }
    assert_eq!(cx.jobs().await.ended, 2);
    old.remove("only").await.unwrap();
    cx.elapse(HOUR * 25).await;
    let other = open("other").await;
    other.set(hourly("only")).await.unwrap();
    other.tick().await.unwrap();
    eventually("the old one is swept", async || cx.jobs().await.ended == 1).await;
    assert!(old.runs("only", None, 10).await.unwrap().is_empty());
    assert_eq!(kept.runs("only", None, 10).await.unwrap().len(), 1);
}

async fn next_time_follows_a_clock_that_is_set_back(cx: Context) {
    let here = node(&cx, "here").await;
    let queue = chores(&cx).await;
    let step = HOUR * 100;
    here.set(hourly("every")).await.unwrap();
    let cron = Task::cron("cron", "0 * * * *", "UTC", job("chore"));
    here.set(cron).await.unwrap();
    cx.set_clock_ahead(step).await;
    assert_eq!(here.tick().await.unwrap().decisions.len(), 2);
    assert_eq!(finish_all(&queue).await, 2);
    cx.set_clock_back(step).await;
    // Nothing is due, but when it is due next is computed anew.
    let fired = here.tick().await.unwrap();
    assert_eq!(fired.decisions, []);
    let rounds = here.tick().await.unwrap();
    assert!(rounds.next.unwrap() <= HOUR, "{rounds:?}");
    cx.elapse(HOUR).await;
    assert_eq!(here.tick().await.unwrap().decisions.len(), 2);
    let claimed = queue.claim(&Claim::new(10)).await.unwrap();
    assert_eq!(claimed.len(), 2);
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
}

async fn next_time_follows_the_clock_of_a_server(cx: Context) {
    next_time_follows_a_clock_that_is_set_back(cx).await;
}
