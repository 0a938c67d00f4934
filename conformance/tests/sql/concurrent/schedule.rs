//! Two nodes at one task.

use std::sync::{Arc, Mutex};

use lockapi::queue::Outcome;
use lockapi::schedule::{Planned, Recurrence};
use lockapi::suite::schedule::{
    Expire, Fire, Fired, Name, ReadDueTasks, ReadRuns, ReadTasks, Release, RemoveTask, Request,
    RunNow, SetTask, SweepRuns, SwitchTask, TaskName, TaskRow,
};

use super::queue::{self, ack, cancel, claim, claim_and_reject, count, new_job, redrive, settle};
use super::sides::{Place, Plans, Side, Step, UNIT, elapse, minutes, number, own_url, sql, step};
use super::{Meets, Schedule, agree, on_server};

fn name(side: &Side) -> Name {
    Name {
        namespace: side.namespace.clone(),
        // The queue of the jobs has the same name.
        scheduler: "work".to_owned(),
    }
}

fn task(side: &Side) -> TaskName {
    TaskName {
        of: name(side),
        task: "it".to_owned(),
    }
}

/// Runs of a task that overlap.
#[derive(Clone, Copy)]
pub(super) enum Overlap {
    Allowed = 0,
    Skipped = 1,
    Held = 2,
}

/// Sets the task, which has been due for a minute, with a timeout in minutes.
pub(super) fn set(overlap: Overlap, timeout: i64) -> Step {
    Arc::new(move |side: &mut Side| {
        let due = side.now() - UNIT;
        let row = TaskRow {
            name: "it".to_owned(),
            version: 1,
            next: Some(due),
            now: 0,
            enabled: true,
            recurrence: Recurrence::Every(10 * UNIT),
            timeout: timeout * UNIT,
            misfire: 0,
            misfire_most: UNIT,
            overlap: overlap as i64,
            job: new_job(),
            last: None,
        };
        let name = task(side);
        let topic = 0;
        let set = side.perform(&[SetTask { name, row, topic }]).remove(0);
        // A task that is set again keeps the time when it is due.
        if !side.given.contains_key("micros due") {
            side.give("micros due", due);
        }
        format!("set {set}")
    })
}

fn fired(side: &mut Side, fired: &Fired) -> String {
    if let Some(job) = fired.job {
        side.give("job a", job);
    }
    format!("{:?} {}", fired.decision, fired.job.is_some())
}

/// Fires so many times that were due.
pub(super) fn fire(times: i64) -> Step {
    let batch = move |side: &Side| {
        let due = side.given("micros due");
        let run = |nth| Planned {
            at: due - nth * UNIT,
            skipped: false,
            missed: 0,
        };
        vec![Fire {
            name: name(side),
            requests: vec![Request {
                task: "it".to_owned(),
                version: 1,
                due,
                next: Some(due + 10 * UNIT),
                runs: (0..times).rev().map(run).collect(),
            }],
            node: "node".to_owned(),
            topic: 0,
        }]
    };
    step(batch, |side, all| {
        let words = all.iter().map(|one| fired(side, one));
        words.collect::<Vec<_>>().join(", ")
    })
}

pub(super) fn run_now(version: i64) -> Step {
    let batch = move |side: &Side| {
        vec![RunNow {
            name: task(side),
            version,
            node: "node".to_owned(),
            topic: 0,
        }]
    };
    step(batch, |side, run| {
        run.map_or_else(|| "no task".to_owned(), |one| fired(side, &one))
    })
}

pub(super) fn switch_off(version: i64) -> Step {
    let batch = move |side: &Side| {
        vec![SwitchTask {
            name: task(side),
            enabled: false,
            next: None,
            version,
            topic: 0,
        }]
    };
    step(batch, |_, found| format!("switched {found}"))
}

pub(super) fn remove() -> Step {
    remove_task(false)
}

/// Also after it was removed before.
fn remove_task(again: bool) -> Step {
    step(
        move |side| {
            let task = task(side);
            vec![RemoveTask { task, again }]
        },
        |_, found| format!("removed {found}"),
    )
}

pub(super) fn release() -> Step {
    let batch = |side: &Side| {
        vec![Release {
            name: name(side),
            topic: 0,
        }]
    };
    step(batch, |_, released| format!("{released} released"))
}

fn expire() -> Step {
    step(
        |side| vec![Expire(name(side))],
        |_, expired| format!("{expired} expired"),
    )
}

fn is_overdue() -> Step {
    step(
        |side| {
            vec![ReadDueTasks {
                name: name(side),
                most: 10,
                behind: None,
            }]
        },
        |_, tasks| {
            let (due, overdue, releasable) = (tasks.due.len(), tasks.overdue, tasks.releasable);
            format!("{due} due, overdue {overdue} releasable {releasable}")
        },
    )
}

fn sweep() -> Step {
    sweep_as("work")
}

/// As a node of that scheduler does.
fn sweep_as(scheduler: &'static str) -> Step {
    let batch = move |side: &Side| {
        vec![SweepRuns {
            name: Name {
                scheduler: scheduler.to_owned(),
                ..name(side)
            },
            keep: UNIT,
            most: 10,
            from: (String::new(), 0),
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

/// The task, its log and its jobs.
fn look() -> Step {
    let tasks = step(
        |side| {
            vec![ReadTasks {
                name: name(side),
                task: String::new(),
                after: String::new(),
                most: 10,
            }]
        },
        |_, read| {
            let of = |task: &TaskRow| {
                let next = task.next.map(|next| minutes(next - read.now));
                format!(
                    "version {} {} next {next:?} {}",
                    task.version, task.enabled, task.timeout
                )
            };
            read.tasks.iter().map(of).collect::<Vec<_>>().join(", ")
        },
    );
    let runs = step(
        |side| {
            vec![ReadRuns {
                name: task(side),
                before: i64::MAX / 4,
                most: 10,
            }]
        },
        |_, runs| {
            let of = runs
                .iter()
                .map(|run| (run.status.clone(), run.error.clone()));
            format!("{:?}", of.collect::<Vec<_>>())
        },
    );
    let jobs = count();
    Arc::new(move |side| format!("{}; {}; {}", tasks(side), runs(side), jobs(side)))
}

const LOCK: &str = "SELECT FROM lockapi.task WHERE namespace = $n FOR UPDATE";
const LOCK_RUN: &str = "SELECT FROM lockapi.task_run WHERE namespace = $n FOR UPDATE";
/// The same rows as somebody has them who does not change them.
const SHARE: &str = "SELECT FROM lockapi.task WHERE namespace = $n FOR SHARE";
const SHARE_RUN: &str = "SELECT FROM lockapi.task_run WHERE namespace = $n FOR SHARE";

/// What changes the task, as it was set.
fn changes() -> Vec<Step> {
    vec![
        fire(1),
        run_now(1),
        switch_off(1),
        remove(),
        set(Overlap::Skipped, 7),
        sql(LOCK),
        sql(SHARE),
    ]
}

#[test]
fn a_task_that_another_node_changes_is_not_fired() {
    for overlap in [Overlap::Skipped, Overlap::Held] {
        for first in changes() {
            let before = [&set(overlap, 0)];
            let schedule = Schedule::new(&before, &first, &fire(1), Meets::Skips(""));
            schedule.then(&look()).run();
        }
    }
}

#[test]
fn what_operators_do_waits_for_what_changes_the_task() {
    for first in changes() {
        for second in [run_now(1), switch_off(1), remove(), set(Overlap::Held, 5)] {
            let before = [&set(Overlap::Held, 0)];
            let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
            schedule.then(&look()).then(&fire(1)).then(&look()).run();
        }
    }
}

/// They wait before they have anything of the task.
#[test]
fn what_operators_do_does_not_hinder_who_looked_at_the_task() {
    for second in [run_now(1), switch_off(1), remove(), set(Overlap::Held, 5)] {
        let (before, first) = ([&set(Overlap::Held, 0)], set(Overlap::Skipped, 7));
        let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
        schedule.looked(&sql(SHARE)).then(&look()).run();
    }
}

/// The removal does not see the run that was held back while it waited: the next one does.
#[test]
fn what_was_held_back_beside_a_removal_is_skipped() {
    let before = [&set(Overlap::Held, 0), &fire(1), &claim(1)];
    let (one, other) = (remove(), remove());
    let twice: Step = Arc::new(move |side| {
        one(side);
        other(side);
        String::new()
    });
    let schedule = Schedule::new(&before, &run_now(2), &twice, Meets::Waits);
    schedule.then(&look()).run();
}

#[test]
fn of_two_who_add_a_task_the_later_changes_it() {
    let first = set(Overlap::Skipped, 7);
    let schedule = Schedule::new(&[], &first, &set(Overlap::Held, 5), Meets::Waits);
    schedule.then(&look()).run();
}

#[test]
fn a_run_that_is_held_back_is_not_released_while_another_node_has_the_task() {
    let before = [&set(Overlap::Held, 0), &fire(2), &claim(1), &ack(&["a"])];
    for first in [
        release(),
        run_now(2),
        switch_off(2),
        remove(),
        sql(LOCK),
        sql(SHARE),
    ] {
        let schedule = Schedule::new(&before, &first, &release(), Meets::Skips("0 released"));
        schedule.then(&look()).run();
    }
    let schedule = Schedule::new(&before, &sql(LOCK_RUN), &release(), Meets::Waits);
    schedule.then(&look()).run();
    // It waits before it has anything of the run.
    let change = sql("UPDATE lockapi.task_run SET missed = missed WHERE namespace = $n");
    let schedule = Schedule::new(&before, &change, &release(), Meets::Waits);
    schedule.looked(&sql(SHARE_RUN)).then(&look()).run();
}

#[test]
fn a_run_that_is_no_longer_held_back_gets_no_job() {
    let before = [&set(Overlap::Held, 0), &fire(2), &claim(1), &ack(&["a"])];
    // Between the snapshot of a release and its lock on the task another may have released the run.
    let dropped = sql(
        "UPDATE lockapi.task_run SET decided = 'skipped' WHERE namespace = $n AND decided = 'held'",
    );
    let removed = remove();
    let first: Step = Arc::new(move |side| match side.place {
        Place::Server(_) => dropped(side),
        Place::Model(_) => removed(side).replace("removed true", ""),
    });
    let schedule = Schedule::new(&before, &first, &release(), Meets::Waits);
    schedule.then(&count()).run();
}

#[test]
fn a_run_is_not_ended_while_somebody_has_its_job() {
    let before = [&set(Overlap::Held, 2), &fire(1), &claim(1), &elapse(3)];
    let extension = Outcome::Extend(std::time::Duration::from_mins(5));
    for first in [
        expire(),
        ack(&["a"]),
        cancel(&["a"]),
        settle(&["a"], extension),
        sql(queue::LOCK),
        sql(queue::SHARE),
    ] {
        let schedule = Schedule::new(&before, &first, &expire(), Meets::Skips("0 expired"));
        schedule.then(&look()).run();
    }
}

#[test]
fn a_run_that_somebody_has_locked_is_not_swept() {
    let before = [
        &set(Overlap::Held, 0),
        &fire(1),
        &claim(1),
        &ack(&["a"]),
        &elapse(3),
    ];
    for first in [sweep(), sql(LOCK_RUN), sql(SHARE_RUN)] {
        let schedule = Schedule::new(&before, &first, &sweep(), Meets::Skips("0 swept"));
        schedule.then(&look()).run();
    }
}

#[test]
fn a_run_whose_job_is_put_back_is_not_swept() {
    let before = [
        &set(Overlap::Held, 0),
        &fire(1),
        &claim_and_reject(),
        &elapse(3),
    ];
    for first in [redrive(&[]), sql(queue::LOCK_DEAD), sql(queue::SHARE_DEAD)] {
        let schedule = Schedule::new(&before, &first, &sweep(), Meets::Skips("0 swept"));
        schedule.then(&look()).run();
    }
}

#[test]
fn a_failed_run_is_not_put_back_while_its_task_is_changed() {
    let before = [&set(Overlap::Skipped, 0), &fire(1), &claim_and_reject()];
    let answer = "0 put back, 1 busy";
    for first in [
        switch_off(2),
        set(Overlap::Skipped, 7),
        sql(LOCK),
        sql(SHARE),
    ] {
        for names in [&[] as &[&str], &["a"]] {
            let (second, meets) = (redrive(names), Meets::Skips(answer));
            let schedule = Schedule::new(&before, &first, &second, meets);
            schedule.then(&look()).run();
        }
    }
}

/// Tasks that have the same name, or are of the same scheduler; the model does not know them.
fn set_others() -> Step {
    sql(
        "INSERT INTO lockapi.task (namespace, scheduler, name, version, next_at, enabled, every, timeout, misfire, misfire_most,
                                   overlap, job, payload, max_attempts, priority)
         SELECT o.namespace, o.scheduler, o.name, 1, NULL, true, 1000, 0, 0, 0, 1, 'job', '1', 1, 1
           FROM (VALUES ($n, 'other', 'it'), ($n, 'other', 'one'), ($n, 'work', 'one'), ($n || ' other', 'work', 'it'))
                AS o (namespace, scheduler, name)",
    )
}

#[test]
fn a_failed_run_that_is_put_back_changes_its_own_task_alone() {
    const VERSIONS: &str = "SELECT pg_catalog.string_agg(t.version::text, '' ORDER BY t.scheduler, t.name, t.namespace)::int8
                              FROM lockapi.task AS t WHERE t.namespace IN ($n, $n || ' other')";
    let (failed, others) = ([fire(1), claim_and_reject()], set_others());
    for names in [&[] as &[&str], &["a"]] {
        let again = redrive(names);
        // Those of the other scheduler, of this one, and of the other namespace. A run that may overlap hinders no other.
        for (overlap, seen) in [(Overlap::Skipped, 11_311), (Overlap::Allowed, 11_211)] {
            let (own, seen, count) = (set(overlap, 0), number(VERSIONS, seen), count());
            let steps = [&own, &failed[0], &failed[1], &others, &again, &seen, &count];
            agree(Plans::Engine, &steps);
        }
        // Where the task is gone, those that have its name are no hindrance.
        let (own, remove, seen) = (set(Overlap::Skipped, 0), remove(), number(VERSIONS, 1111));
        let before = [&own, &failed[0], &failed[1], &remove, &others];
        agree(
            Plans::Engine,
            &[&before[..], &[&again, &seen, &count()]].concat(),
        );
    }
}

/// Nobody has those that have the same name.
#[test]
fn a_failed_run_is_not_put_back_while_its_own_task_is_locked() {
    let before = [
        &set(Overlap::Skipped, 0),
        &fire(1),
        &claim_and_reject(),
        &set_others(),
    ];
    let answer = "0 put back, 1 busy";
    let own = sql(
        "SELECT FROM lockapi.task WHERE namespace = $n AND scheduler = 'work' AND name = 'it' FOR UPDATE",
    );
    for names in [&[] as &[&str], &["a"]] {
        let (second, meets) = (redrive(names), Meets::Skips(answer));
        let schedule = Schedule::new(&before, &own, &second, meets);
        schedule.then(&count()).run();
    }
}

#[test]
fn a_failed_run_that_may_overlap_is_put_back_beside_its_locked_task() {
    let before = [&set(Overlap::Allowed, 0), &fire(1), &claim_and_reject()];
    for names in [&[] as &[&str], &["a"]] {
        let schedule = Schedule::new(&before, &sql(LOCK), &redrive(names), Meets::Passes);
        schedule.then(&look()).run();
    }
}

/// Somebody has those that have the same name.
#[test]
fn a_failed_run_is_put_back_beside_locked_tasks_of_others() {
    let before = [
        &set(Overlap::Skipped, 0),
        &fire(1),
        &claim_and_reject(),
        &set_others(),
    ];
    let others = sql(
        "SELECT FROM lockapi.task
          WHERE namespace IN ($n, $n || ' other') AND (namespace, scheduler, name) <> ($n, 'work', 'it') FOR UPDATE",
    );
    for names in [&[] as &[&str], &["a"]] {
        let schedule = Schedule::new(&before, &others, &redrive(names), Meets::Passes);
        schedule.then(&count()).run();
    }
}

/// What has been set since then stays, with its runs.
#[test]
fn a_removal_that_is_repeated_leaves_what_was_set_meanwhile() {
    let steps = [
        &set(Overlap::Held, 0),
        &fire(2),
        &remove_task(true),
        &look(),
        &remove(),
        &look(),
    ];
    agree(Plans::Engine, &steps);
}

/// Neither is a run of this task that is held back; the model does not know them.
#[test]
fn runs_that_are_held_back_of_others_and_that_have_ended_hold_no_run_up() {
    let log = sql(
        "INSERT INTO lockapi.task_run (job, decided, fire_at, namespace, scheduler, task, fired_by)
         SELECT NULL, 'held', now() - n * interval '1 hour', $n, 'work', 'one', 'node' FROM generate_series(1, 1001) AS n
          UNION ALL SELECT 0, NULL, now() - interval '1 hour', $n, 'work', 'it', 'node'",
    );
    for run in [fire(1), fire(2), run_now(1)] {
        let steps = [&set(Overlap::Held, 0), &log, &run, &count()];
        agree(Plans::Engine, &steps);
    }
}

/// The model does not know the jobs of others.
#[test]
fn jobs_of_others_do_not_keep_a_run_from_being_released() {
    let others = sql(
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, unique_key, name, payload)
         SELECT now(), 1, 2, o.namespace, o.queue, o.unique_key, 'job', '1'
           FROM (VALUES ($n || ' other', 'work', 'task/it'), ($n, 'other', 'task/it'), ($n, 'work', 'task/one'))
                AS o (namespace, queue, unique_key)",
    );
    let (set, fire, claim, ack) = (set(Overlap::Held, 0), fire(2), claim(1), ack(&["a"]));
    let steps = [
        &set,
        &fire,
        &claim,
        &ack,
        &others,
        &is_overdue(),
        &release(),
    ];
    agree(Plans::Engine, &steps);
}

#[test]
fn a_run_is_overdue_after_its_timeout() {
    let steps = [
        &set(Overlap::Held, 3),
        &fire(1),
        &elapse(5),
        // Nobody has begun it.
        &is_overdue(),
        &claim(1),
        &is_overdue(),
        &elapse(4),
        &is_overdue(),
    ];
    agree(Plans::Engine, &steps);
}

#[test]
fn the_log_of_a_scheduler_that_has_tasks_is_swept_by_its_nodes_alone() {
    let (set, fire, claim, ack) = (set(Overlap::Held, 0), fire(1), claim(1), ack(&["a"]));
    let (later, others, remove, look) = (elapse(3), sweep_as("other"), remove(), look());
    let steps = [
        &set,
        &fire,
        &claim,
        &ack,
        &later,
        &others,
        &look,
        &remove,
        &others,
        &look,
        &sweep(),
    ];
    agree(Plans::Engine, &steps);
}

#[test]
fn of_the_log_only_what_is_old_is_swept() {
    let (set, fire, claim, ack) = (set(Overlap::Held, 0), fire(1), claim(1), ack(&["a"]));
    let (one, later, now) = (elapse(2), elapse(3), run_now(2));
    let steps = [
        &set,
        &fire,
        &claim,
        &ack,
        &one,
        &now,
        &claim,
        &ack,
        &sweep(),
        &look(),
        &later,
        &sweep(),
        &look(),
    ];
    agree(Plans::Engine, &steps);
}

/// It has not run, so it has not ended, however long ago it was due.
#[test]
fn a_run_that_is_held_back_is_not_swept() {
    let (look, later) = (look(), elapse(3));
    let steps = [
        &set(Overlap::Held, 0),
        &fire(2),
        &claim(1),
        &ack(&["a"]),
        &later,
        &sweep(),
        &look,
        &release(),
        &look,
        &claim(1),
        &ack(&["a"]),
        &later,
        &sweep(),
        &look,
    ];
    agree(Plans::Engine, &steps);
}

/// As a node of `work` does, so many at most, each from where the one before has ended.
fn sweep_parts(most: i64) -> Step {
    let from = Arc::new(Mutex::new((String::new(), 0)));
    let next = Arc::clone(&from);
    let batch = move |side: &Side| {
        vec![SweepRuns {
            name: name(side),
            keep: UNIT,
            most,
            from: from.lock().unwrap().clone(),
        }]
    };
    step(batch, move |_, swept| {
        if let Some(last) = swept.last {
            *next.lock().unwrap() = last;
        }
        swept.deleted.to_string()
    })
}

/// Its own scheduler, and those that have no task any more; the model has one scheduler alone.
#[test]
fn only_old_runs_that_have_ended_are_swept_and_no_more_than_are_wanted() {
    const LEFT: &str =
        "SELECT count(*) * 10 + (SELECT count(*) FROM lockapi.job_archive WHERE namespace = $n)
                          FROM lockapi.task_run WHERE namespace IN ($n, $n || ' too')";
    let tasks = sql(
        "INSERT INTO lockapi.task (namespace, scheduler, name, version, next_at, enabled, every, timeout, misfire, misfire_most,
                                   overlap, job, payload, max_attempts, priority)
         SELECT r.namespace, r.scheduler, 'it', 1, NULL, true, 1000, 0, 0, 0, 1, 'job', '1', 1, 1
           FROM (VALUES ($n, 'kept'), ($n, 'work'), ($n || ' too', 'gone')) AS r (namespace, scheduler)",
    );
    let runs = sql(
        "INSERT INTO lockapi.task_run (job, decided, fire_at, fired_at, namespace, scheduler, task, fired_by)
         SELECT CASE WHEN r.decided IS NULL THEN pg_catalog.nextval('lockapi.job_seq') END, r.decided, now() - r.n * interval '1 s',
                now() - r.minutes * interval '1 min', r.namespace, r.scheduler, 'it', 'node'
           FROM (VALUES (1, $n, 'work', 60, NULL), (2, $n, 'work', 61, 'skipped'), (3, $n, 'gone', 60, NULL),
                        (4, $n, 'gone too', 60, NULL), (5, $n, 'zoo', 60, NULL), (6, $n, 'kept', 60, NULL),
                        (7, $n || ' too', 'work', 60, NULL), (8, $n || ' too', 'other', 60, NULL), (9, $n, 'work', 60, 'held'),
                        (10, $n, 'work', 0, NULL), (11, $n, 'a run', 60, NULL)) AS r (n, namespace, scheduler, minutes, decided)",
    );
    let jobs = sql(
        "INSERT INTO lockapi.job (id, run_at, max_attempts, priority, namespace, queue, name, payload)
         SELECT r.job, now(), 1, 2, $n, r.scheduler, 'job', '1' FROM lockapi.task_run AS r
          WHERE r.namespace = $n AND r.scheduler = 'a run';
         INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority, namespace, queue, name,
                                          payload)
         SELECT r.job, 'completed', now(), now(), 1, 1, 2, $n, r.scheduler, 'job', '1' FROM lockapi.task_run AS r
          WHERE r.namespace = $n AND r.job IS NOT NULL AND r.scheduler <> 'a run'",
    );
    // Of the runs six stay, and two jobs of them are in the archive: that of a young run, and of a scheduler that has a task.
    for (most, swept) in [(1, &["1"; 5][..]), (2, &["2", "2", "1"]), (10, &["5"])] {
        let (sweep, left) = (sweep_parts(most), number(LEFT, 62));
        let mut steps = vec![&tasks, &runs, &jobs];
        steps.extend(swept.iter().map(|_| &sweep));
        steps.extend([&sweep, &left]);
        let left = format!("{LEFT}: 62");
        let mut expected = swept.to_vec();
        expected.extend(["0", &left]);
        assert_eq!(on_server(own_url(), &steps)[3..], expected);
    }
}

/// Those of others, of tasks that have no timeout, and those that nobody has begun stay; the model has one task alone.
#[test]
fn only_runs_of_the_scheduler_that_exceed_their_own_timeout_are_ended() {
    const LEFT: &str = "SELECT count(*) FROM lockapi.job WHERE namespace IN ($n, $n || ' too')";
    let tasks = sql(
        "INSERT INTO lockapi.task (namespace, scheduler, name, version, next_at, enabled, every, timeout, misfire, misfire_most,
                                   overlap, job, payload, max_attempts, priority)
         SELECT r.namespace, r.scheduler, r.name, 1, NULL, true, 1000, r.minutes * 60000000, 0, 0, 1, 'job', '1', 1, 1
           FROM (VALUES ($n, 'work', 'short', 2), ($n, 'work', 'long', 5), ($n, 'work', 'endless', 0), ($n, 'other', 'long', 1),
                        ($n, 'other', 'endless', 1), ($n || ' too', 'work', 'long', 1)) AS r (namespace, scheduler, name, minutes)",
    );
    let jobs = sql(
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, unique_key, name, payload, task, token, attempt,
                                  started_at, errors)
         SELECT now(), 25, 2, r.namespace, r.queue, r.queue || r.task, 'job', '1', r.task, r.token, r.attempt,
                now() - interval '3 min', (SELECT jsonb_agg(jsonb_build_object('attempt', n)) FROM generate_series(1, r.attempt) AS n)
           FROM (VALUES ($n, 'work', 'short', 1, 9), ($n, 'work', 'long', 1, 1), ($n, 'work', 'endless', 1, 1),
                        ($n, 'work', 'none', 1, 1), ($n, 'other', 'short', 1, 1), ($n || ' too', 'work', 'short', 1, 1))
                AS r (namespace, queue, task, token, attempt)",
    );
    let settled = sql(
        "UPDATE lockapi.job SET task = 'short', unique_key = 'it', token = NULL WHERE namespace = $n AND task = 'none'",
    );
    let mut expected = vec!["1 expired".to_owned(), "0 expired".to_owned()];
    expected.push(format!("{LEFT}: 5"));
    let (expire, left) = (expire(), number(LEFT, 5));
    let steps = [&tasks, &jobs, &settled, &expire, &expire, &left];
    assert_eq!(on_server(super::sides::url(), &steps)[3..], expected);
}

#[test]
fn a_run_that_is_ended_keeps_its_last_ten_errors() {
    const KEPT: &str =
        "SELECT pg_catalog.jsonb_array_length(errors) * 100 + (errors->0->>'attempt')::int8
                          FROM lockapi.job_archive WHERE namespace = $n";
    for (had, kept) in [(0, 101), (9, 1001), (10, 1002), (11, 1102)] {
        let errors = format!(
            "UPDATE lockapi.job
                SET errors = (SELECT jsonb_agg(jsonb_build_object('attempt', n)) FROM generate_series(1, {had}) AS n)
              WHERE namespace = $n"
        );
        let steps = [
            &set(Overlap::Held, 2),
            &fire(1),
            &claim(1),
            &sql(errors.leak()),
            &elapse(3),
            &expire(),
            &number(KEPT, kept),
        ];
        agree(Plans::Engine, &steps);
    }
}
