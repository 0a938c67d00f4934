use super::*;
use crate::history::TaskRun;

const TASK: &str = "coalesced";
const INTERVAL: i64 = 700_000;

/// Runs of a task, each with the number of its job, when it was due, and how many before it were missed; all completed. And what was done.
fn ran(runs: &[(i64, i64, i64)], ran: &[i64]) -> History {
    let mut history = history([]);
    let run = |&(job, fire_at, missed): &(i64, i64, i64)| TaskRun {
        fire_at,
        missed,
        job: Some(job),
        status: "completed".to_owned(),
    };
    let runs = runs.iter().map(run).collect();
    history.tables.runs.insert(TASK.to_owned(), runs);
    history.tables.ran = ran.iter().map(|job| (*job, *job)).collect();
    history
}

#[test]
fn every_due_time_has_a_run_or_is_told_to_be_missed() {
    let promise = "every due time has a run, or is told to be missed";
    let of = |next, missed| broken(&ran(&[(1, 5, 0), (2, next, missed)], &[1, 2]));
    assert_eq!(of(5 + INTERVAL, 0), [""; 0]);
    assert_eq!(of(5 + 3 * INTERVAL, 2), [""; 0]);
    assert_eq!(of(5 + 3 * INTERVAL, 0), [promise]);
    assert_eq!(of(5 + INTERVAL, 1), [promise]);
    assert_eq!(of(5 + INTERVAL / 2, 0), [promise]);
    // They are counted up to a hundred.
    assert_eq!(of(5 + 300 * INTERVAL, 100), [""; 0]);
}

#[test]
fn runs_are_done_once() {
    let runs = [(1, 0, 0), (2, INTERVAL, 0)];
    assert_eq!(broken(&ran(&runs, &[1, 2])), [""; 0]);
    assert_eq!(broken(&ran(&runs, &[1])), ["each run is done once"]);
    assert_eq!(broken(&ran(&runs, &[1, 2, 2])), ["each run is done once"]);
    assert_eq!(broken(&ran(&runs, &[1, 2, 3])), ["what is done was due"]);
    let same = [(1, 0, 0), (1, INTERVAL, 0)];
    assert_eq!(broken(&ran(&same, &[1])), ["each run has a job of its own"]);
    let mut failed = ran(&runs, &[1, 2]);
    let of_task = failed.tables.runs.get_mut(TASK).unwrap();
    of_task[0].status = "failed".to_owned();
    assert_eq!(broken(&failed), ["each run is done once"]);
    let of_task = failed.tables.runs.get_mut(TASK).unwrap();
    (of_task[0].status, of_task[0].job) = ("skipped".to_owned(), None);
    failed.tables.ran = vec![(2, 2)];
    assert_eq!(broken(&failed), ["everybody is served in the end"]);
    let of_task = failed.tables.runs.remove(TASK).unwrap();
    let of_task = |nth: usize, status: &str| {
        let mut runs = of_task.clone();
        for (run, at) in runs.iter_mut().zip([0, 1_100_000]) {
            run.fire_at = at;
        }
        (runs[nth].status, runs[nth].job) = (status.to_owned(), None);
        runs[1 - nth].status = "completed".to_owned();
        runs[1 - nth].job = Some(2);
        let mut history = history([]);
        history.tables.runs.insert("caught up".to_owned(), runs);
        history.tables.ran = vec![(2, 2)];
        broken(&history)
    };
    assert_eq!(of_task(0, "skipped"), [""; 0]);
    assert_eq!(of_task(0, "held"), ["everybody is served in the end"]);
    assert_eq!(of_task(1, "held"), [""; 0]);
}

#[test]
fn tasks_run_in_the_calm() {
    let mut history = ran(&[(1, 0, 0), (2, INTERVAL, 0)], &[1, 2]);
    let mut other = history.tables.runs[TASK].clone();
    other.truncate(1);
    history.tables.runs.insert("caught up".to_owned(), other);
    history.tables.runs.get_mut("caught up").unwrap()[0].job = Some(3);
    history.tables.ran.push((3, 3));
    history.is_quick = true;
    history.calm = (0, 0);
    let node = call(0, Op::RunTasks { wait: 1 }, (0, 1), Answer::Done);
    history.calls.push(node);
    assert_eq!(broken(&history), [""; 0]);
    history.calm.1 = SECOND;
    let late = "everybody is served in the end";
    assert_eq!(broken(&history), [late]);
    history.calm.1 = 0;
    assert_eq!(broken(&history), [""; 0]);
    history.tables.runs.remove("caught up");
    history.tables.ran.pop();
    assert_eq!(broken(&history), [late], "one has no run");
}
