//! Each time that a task is due has one run, or is told to be missed, and each run is done once.

use std::collections::{BTreeMap, BTreeSet};

use super::{History, TaskRun, Violation};
use crate::log::{Nanos, Op};
use crate::programs::schedules::{COALESCED, TASKS};

/// Missed due times are counted up to this.
const COUNTED: i64 = 100;

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut violations = due(history);
    violations.extend(done(history));
    violations.extend(waiting(history));
    violations
}

/// In the calm each task runs, and no run waits for ever.
fn waiting(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut violate = |what| {
        violations.push(Violation::new("everybody is served in the end", what));
    };
    // By the server's clock, in microseconds.
    let calm = i64::try_from((history.calm.1 + history.wall) / 1000).unwrap_or(i64::MAX);
    let nodes = history.calls.iter().map(|call| &call.op);
    let are_nodes = nodes
        .into_iter()
        .any(|op| matches!(op, Op::RunTasks { .. }));
    let is_judged = are_nodes && history.is_quick && !history.clock_was_set(0, Nanos::MAX);
    for (task, _) in TASKS {
        let none = Vec::new();
        let runs = history.tables.runs.get(task).unwrap_or(&none);
        let is_done = |run: &&TaskRun| run.status == "completed";
        let last = runs.iter().filter(is_done).map(|run| run.fire_at).max();
        // Runs that wait for each other may take longer than the calm, after an outage.
        let since = if task == COALESCED { calm } else { 0 };
        if is_judged && last.is_none_or(|last| last < since) {
            violate(format!(
                "{task}: no run that was due after {since} was done"
            ));
        }
        for run in runs.iter().filter(|run| run.job.is_none()) {
            let is_passed = run.status == "held" && last.is_some_and(|last| run.fire_at < last);
            if is_passed || task == COALESCED {
                let TaskRun {
                    fire_at, status, ..
                } = run;
                violate(format!(
                    "{task} at {fire_at}: {status}, and others were done"
                ));
            }
        }
    }
    violations
}

/// Between two runs as many due times have passed as are told to be missed.
fn due(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    // Times that are computed again, as the clock was far ahead, are another series.
    if history.clock_was_set(0, Nanos::MAX) {
        return violations;
    }
    for (task, interval) in TASKS {
        let none = Vec::new();
        let runs = history.tables.runs.get(task).unwrap_or(&none);
        for pair in runs.windows(2) {
            let passed = pair[1].fire_at - pair[0].fire_at;
            let told = interval * 1000 * (pair[1].missed + 1);
            if passed != told && pair[1].missed < COUNTED {
                let what = format!(
                    "{task}: {passed} µs between {} and {}, with {} missed",
                    pair[0].fire_at, pair[1].fire_at, pair[1].missed
                );
                let promise = "every due time has a run, or is told to be missed";
                violations.push(Violation::new(promise, what));
            }
        }
    }
    violations
}

/// What a run does it does once, and what is done is the run of a time that was due.
fn done(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut effects: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for (job, token) in &history.tables.ran {
        effects.entry(*job).or_default().push(*token);
    }
    let runs = || history.tables.runs.iter();
    let with_jobs = runs().flat_map(|(task, runs)| {
        runs.iter()
            .filter_map(move |run| Some((task, run, run.job?)))
    });
    let mut jobs = BTreeSet::new();
    for (task, run, job) in with_jobs {
        if !jobs.insert(job) {
            let what = format!("{task}: {job} is the job of two runs");
            violations.push(Violation::new("each run has a job of its own", what));
        }
        let tokens = effects.get(&job).map_or(&[][..], Vec::as_slice);
        if tokens.len() != 1 || run.status != "completed" {
            let TaskRun {
                fire_at, status, ..
            } = run;
            let what = format!("{task} at {fire_at}: {job} is {status}, done under {tokens:?}");
            violations.push(Violation::new("each run is done once", what));
        }
    }
    for job in effects.keys().filter(|job| !jobs.contains(job)) {
        let what = format!("{job} was done, and is the job of no run");
        violations.push(Violation::new("what is done was due", what));
    }
    violations
}
