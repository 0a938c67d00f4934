//! Nodes of a scheduler, and whoever does what its tasks are for.

use std::sync::Arc;
use std::time::Duration;

use lockapi::queue::{Claim, Delivery, Job};
use lockapi::schedule::{Misfire, Overlap, SchedulerOptions, Task};
use lockapi::{Scheduler, Stop};

use super::jobs::{AGAIN, ATTEMPTS};
use super::store::Inside;
use super::{Context, rest};
use crate::log::{Answer, Op};

pub(crate) const SCHEDULER: &str = "scheduled";
/// Tasks, with their intervals in milliseconds.
pub(crate) const TASKS: [(&str, i64); 2] = [(COALESCED, 700), (CAUGHT_UP, 1100)];
/// Its runs do not wait for each other.
pub(crate) const COALESCED: &str = "coalesced";
const CAUGHT_UP: &str = "caught up";
/// How many due times that were missed are caught up.
const CATCH_UP: usize = 20;

fn task((name, interval): (&str, i64)) -> Task {
    let interval = Duration::from_millis(interval.unsigned_abs());
    // All payloads in the tables are numbers.
    let job = Job::new(name, &0).expect("a job").max_attempts(ATTEMPTS);
    let task = Task::every(name, interval, job);
    if name == CAUGHT_UP {
        task.misfire(Misfire::CatchUp(CATCH_UP))
    } else {
        task.overlap(Overlap::Allow)
    }
}

/// Is one node after the other.
pub(super) async fn run(context: Context) {
    while !context.is_over() {
        let poll = Duration::from_millis(fastrand::u64(200..1500));
        let options = SchedulerOptions::default().poll(poll);
        let scheduler = context.backend.scheduler_with(SCHEDULER, options);
        let scheduler = scheduler.expect("a scheduler");
        if context.pushes() {
            set(&context, &*scheduler).await;
        }
        let stop = Stop::new();
        let mut left = fastrand::u64(5..100);
        let op = Op::RunTasks { wait: left * 100 };
        let stopping = async {
            while !context.is_over() && left > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                left -= 1;
            }
            stop.stop();
        };
        let running = context.call(op, scheduler.run(&stop), |()| Answer::Done);
        let ((_, ran), ()) = tokio::join!(running, stopping);
        if ran.is_err() {
            rest(300).await;
        }
    }
}

async fn set(context: &Context, scheduler: &dyn Scheduler) {
    for (name, interval) in TASKS {
        let op = Op::SetTask {
            task: name.to_owned(),
        };
        let setting = scheduler.set(task((name, interval)));
        let (_, set) = context.call(op, setting, |_| Answer::Done).await;
        if set.is_err() {
            rest(300).await;
        }
    }
}

/// Does what the tasks are for, exactly once.
pub(super) async fn work(context: Context) {
    let queue = context.backend.queue(SCHEDULER).expect("a queue");
    while !context.is_over() {
        let wait = fastrand::u64(1..1500);
        let claim = Claim::new(fastrand::usize(1..=3))
            .lease(Duration::from_millis(fastrand::u64(1000..4000)))
            .wait(Duration::from_millis(wait));
        let told = |_: &Vec<Delivery>| Answer::Done;
        let claiming = queue.claim(&claim);
        let (_, runs) = context.call(Op::ClaimRuns { wait }, claiming, told).await;
        let Ok(runs) = runs else {
            rest(300).await;
            continue;
        };
        for run in runs {
            rest(40).await;
            end(&context, run).await;
        }
    }
}

async fn end(context: &Context, run: Delivery) {
    let (job, token) = (run.id(), run.ticket().token);
    let op = Op::EndRun { job, token };
    match fastrand::u8(..10) {
        // Nobody is told what became of it.
        0 => drop(run),
        1 => {
            let failing = run.nack("again", AGAIN);
            let _failed = context.call(op, failing, |_| Answer::Done).await;
        }
        2 => {
            let _released = context.call(op, run.release(), |()| Answer::Done).await;
        }
        _ => {
            let sql = format!("SELECT torture.run({job}, {token})");
            let ack = Inside::Ack(Arc::new(run));
            let _done = context.transact(op, ack, sql).await;
        }
    }
}
