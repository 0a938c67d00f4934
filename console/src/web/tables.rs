//! The screens that show a snapshot.

use std::time::{Duration, SystemTime};

use lockapi::admin::{HeldLease, Waiter};
use lockapi::mutex::LockMode;
use lockapi::schedule::TaskState;
use maud::{Markup, html};

use super::graph::{graph, program};
use super::guard::Visit;
use super::markup::{badge, encoded, lasting, maybe, moment, offer, table, text, unread};
use super::timeline::{sparkline, timeline};
use crate::output::{plain, spoken};
use crate::watch::{MAX_ENTRIES, MAX_QUEUES, Part, QueueLine, Snapshot};

fn shown<T>(part: &Part<T>, show: impl FnOnce(&[T]) -> Markup) -> Markup {
    match part {
        Ok(entries) => show(entries),
        Err(why) => unread(why),
    }
}

/// Says where a list ends early.
fn cut(entries: usize, most: usize) -> Markup {
    html! { @if entries >= most { p .lead { "The first " (most) " are shown; the command `lockapi` lists all." } } }
}

pub(super) fn overview(visit: &Visit, seen: &Snapshot) -> Markup {
    let number = |part: Result<usize, ()>| part.map_or("?".to_owned(), |n| n.to_string());
    let of = |n: Option<usize>| number(n.ok_or(()));
    let leaders = |leases: &Vec<HeldLease>| leases.iter().filter(|lease| lease.slot == -1).count();
    let dead = |queues: &Vec<QueueLine>| {
        queues
            .iter()
            .filter(|line| line.statistics.dead.count > 0)
            .count()
    };
    let oldest = seen.queues.as_ref().ok().and_then(|queues| {
        queues
            .iter()
            .filter_map(|line| Some((line.statistics.oldest?, &line.queue.name)))
            .max()
    });
    let tiles = [
        (
            "locks",
            "Locks held",
            of(seen.locks.as_ref().ok().map(Vec::len)),
            format!("{} wait", of(seen.waiters.as_ref().ok().map(Vec::len))),
        ),
        (
            "leases",
            "Leases held",
            of(seen.leases.as_ref().ok().map(Vec::len)),
            format!("leaders: {}", of(seen.leases.as_ref().ok().map(leaders))),
        ),
        (
            "queues",
            "Queues",
            of(seen.queues.as_ref().ok().map(Vec::len)),
            format!(
                "{} with dead letters",
                of(seen.queues.as_ref().ok().map(dead))
            ),
        ),
        (
            "schedules",
            "Recurring tasks",
            of(seen.tasks.as_ref().ok().map(Vec::len)),
            seen.tasks
                .as_ref()
                .ok()
                .and_then(|tasks| tasks.first()?.task.next_at)
                .map_or_else(String::new, |at| format!("next {}", ahead(at, seen.at))),
        ),
        (
            "limits",
            "Limits in use",
            of(seen.limits.as_ref().ok().map(Vec::len)),
            format!(
                "{} blocked",
                of(seen.limits.as_ref().ok().map(|limits| limits
                    .iter()
                    .filter(|limit| limit.blocked.is_some())
                    .count()))
            ),
        ),
        (
            "ids",
            "Worker numbers",
            of(seen.workers.as_ref().ok().map(Vec::len)),
            String::new(),
        ),
    ];
    html! {
        h1 { "Overview" }
        ul .tiles {
            @for (screen, words, count, detail) in tiles {
                li { a href={ (visit.base) "/" (screen) } { span .count { (count) } span { (words) } span .detail { (detail) } } }
            }
        }
        @if let Some((age, queue)) = oldest.filter(|(age, _)| *age > Duration::from_mins(1)) {
            p .alarm role="status" { "The oldest job that is due waits for " (spoken(age)) ", in " a href={ (visit.base) "/queue?" (encoded(&[("name", queue)])) } { (text(queue)) } "." }
        }
        h2 { "Who waits for whom" }
        (shown(&seen.waiters, |waiters| html! { (graph(waiters)) @if waiters.is_empty() { p .empty { "Nobody waits for a lock." } } }))
        h2 { "Jobs that run" }
        (shown(&seen.running, |running| {
            let rows: Vec<Markup> = running.iter().take(20).map(|job| html! {
                td .id { a href={ (visit.base) "/job?id=" (job.id) } { (job.id) } }
                td { (text(&job.queue)) } td { (text(&job.name)) } td { (text(&job.worker)) }
                td .number { (spoken(job.runs_for)) } td .number { (spoken(job.lease_left)) }
            }).collect();
            table("Jobs that run", &["Job", "Queue", "Name", "Worker", "For", "Lease left"], &rows, "No job runs.")
        }))
    }
}

fn ahead(at: SystemTime, now: SystemTime) -> String {
    at.duration_since(now)
        .map_or_else(|_| "now".to_owned(), |left| format!("in {}", spoken(left)))
}

pub(super) fn locks(visit: &Visit, seen: &Snapshot, payloads: bool) -> Markup {
    html! {
        h1 { "Locks" }
        (shown(&seen.waiters, |waiters| html! {
            (graph(waiters))
            (waits(waiters, payloads))
            (cut(waiters.len(), MAX_ENTRIES))
        }))
        h2 { "Held" }
        (shown(&seen.locks, |locks| {
            let rows: Vec<Markup> = locks.iter().map(|lock| html! {
                td .key { (text(&lock.name)) @if lock.mode == LockMode::Shared { " " (badge("", "shared")) } }
                td { (maybe(lock.namespace.as_deref())) }
                td { (maybe(program(lock.application.as_deref()).or(lock.owner.as_deref()))) }
                td { (maybe(lock.username.as_deref())) }
                td .number { @if let Some(pid) = lock.pid { (pid) } }
                td .number { (lasting(lock.held_for)) }
                td .number { @if let Some(fence) = lock.fence { (fence) } }
                td .actions {
                    // Keys of other namespaces would be taken for names of this one.
                    @if lock.namespace.as_ref().is_none_or(|it| *it == seen.namespace) { (offer(visit, "terminate", &lock.name, "", "End the holder")) }
                }
            }).collect();
            html! {
                (table("Locks that are held", &["Lock", "Namespace", "Holder", "Role", "Pid", "Held for", "Token", ""], &rows, "No lock is held."))
                (cut(locks.len(), MAX_ENTRIES))
            }
        }))
    }
}

/// A statement on one line, as far as anybody reads it.
fn brief(statement: &str) -> String {
    let words: Vec<&str> = statement.split_whitespace().collect();
    let line = words.join(" ");
    if line.chars().count() <= 300 {
        return line;
    }
    line.chars().take(299).chain(['…']).collect()
}

fn waits(waiters: &[Waiter], payloads: bool) -> Markup {
    let rows: Vec<Markup> = waiters
        .iter()
        .map(|waiter| {
            html! {
                td .key { (text(&waiter.name)) }
                td { (maybe(program(waiter.application.as_deref()).or(waiter.owner.as_deref()))) }
                td .number { @if let Some(pid) = waiter.pid { (pid) } }
                td .number { (lasting(waiter.waits_for)) }
                td {
                    @for (n, blocker) in waiter.blockers.iter().enumerate() {
                        @if n > 0 { br; }
                        (blocker.pid) " " (maybe(program(blocker.application.as_deref()))) " " (maybe(blocker.state.as_deref()))
                        @if let Some(age) = blocker.transaction_age { ", in a transaction for " (spoken(age)) }
                    }
                }
                td .words { @if payloads { code { (maybe(waiter.statement.as_deref().map(brief).as_deref())) } } @else { span .none { "not shown" } } }
            }
        })
        .collect();
    html! {
        h2 { "Waits" }
        (table("Who waits for a lock", &["Lock", "Who waits", "Pid", "For", "In the way", "Statement"], &rows, "Nobody waits for a lock."))
    }
}

fn what(lease: &HeldLease) -> String {
    match lease.slot {
        0 => "lease".to_owned(),
        -1 => "leader".to_owned(),
        -2 => "leased mutex".to_owned(),
        slot => format!("permit {slot}"),
    }
}

pub(super) fn leases(visit: &Visit, seen: &Snapshot) -> Markup {
    let row = |lease: &HeldLease| {
        html! {
            td .key { (text(&lease.key)) }
            td { (badge(if lease.slot == -1 { "busy" } else { "" }, &what(lease))) }
            td { (text(&lease.owner)) }
            td .words { (maybe(Some(&lease.data))) }
            td .number { (spoken(lease.held_for)) }
            td .number { (spoken(lease.remaining)) }
            td .number { (lease.fence) }
            td .actions { (offer(visit, "release", &lease.key, "", "Release")) }
        }
    };
    let columns = [
        "Key", "What", "Holder", "Data", "Held for", "Left", "Token", "",
    ];
    html! {
        h1 { "Leases" }
        p .lead { "Leases, permits, leaders and leased mutexes that are held now." }
        (shown(&seen.leases, |leases| {
            let (leaders, others): (Vec<_>, Vec<_>) = leases.iter().partition(|lease| lease.slot == -1);
            let rows = |of: Vec<&HeldLease>| of.into_iter().map(row).collect::<Vec<_>>();
            html! {
                h2 { "Leaders" }
                (table("Leaders", &columns, &rows(leaders), "There is no leader."))
                h2 { "Leases and permits" }
                (table("Leases and permits", &columns, &rows(others), "No lease is held."))
                (cut(leases.len(), MAX_ENTRIES))
            }
        }))
    }
}

pub(super) fn queues(visit: &Visit, seen: &Snapshot) -> Markup {
    html! {
        h1 { "Queues" }
        (shown(&seen.queues, |queues| {
            let rows: Vec<Markup> = queues.iter().map(|line| queue_row(visit, line)).collect();
            html! {
                (table("Queues", &["Queue", "Ready", "Lately", "Growth", "Running", "Delayed", "Dead", "Oldest due", ""], &rows, "There is no queue yet."))
                (cut(queues.len(), MAX_QUEUES))
            }
        }))
    }
}

fn queue_row(visit: &Visit, line: &QueueLine) -> Markup {
    let (name, statistics) = (&line.queue.name, &line.statistics);
    let link = |state: &str| {
        format!(
            "{}/queue?{}",
            visit.base,
            encoded(&[("name", name), ("state", state)])
        )
    };
    let late = statistics
        .oldest
        .is_some_and(|age| age > Duration::from_mins(1));
    html! {
        td .key {
            a href=(link("")) { (text(name)) }
            @if statistics.paused { " " (badge("warn", "paused")) }
        }
        td .number { (statistics.ready) }
        td { (sparkline(&line.history)) }
        td .number { @match line.growth() { Some(rate) => { (format!("{rate:+.1}/s")) } None => { span .none { "–" } } } }
        td .number { a href=(link("running")) { (statistics.running) } }
        td .number { a href=(link("delayed")) { (statistics.delayed) } }
        td .number { @if statistics.dead.count > 0 { a .bad href=(link("failed")) { (statistics.dead) } } @else { "0" } }
        td class=(if late { "number bad" } else { "number" }) { (lasting(statistics.oldest)) }
        td .actions {
            @if statistics.paused { (offer(visit, "resume", name, "", "Resume")) } @else {
                (offer(visit, "pause", name, "", "Pause"))
                (offer(visit, "drain", name, "", "Drain"))
            }
        }
    }
}

fn cadence(task: &TaskState) -> String {
    match (&task.every, &task.cron) {
        (Some(every), _) => format!("every {}", spoken(*every)),
        (None, Some((expression, zone))) => format!("{expression} ({zone})"),
        (None, None) => String::new(),
    }
}

pub(super) fn schedules(visit: &Visit, seen: &Snapshot) -> Markup {
    html! {
        h1 { "Schedules" }
        (shown(&seen.tasks, |tasks| {
            let rows: Vec<Markup> = tasks.iter().take(MAX_ENTRIES).map(|line| {
                let (scheduler, task) = (&line.scheduler, &line.task);
                let late = task.enabled && task.next_at.is_some_and(|at| at + Duration::from_mins(1) < seen.at);
                html! {
                    td .key { (text(&task.name)) @if !task.enabled { " " (badge("warn", "disabled")) } }
                    td { a href={ (visit.base) "/queue?" (encoded(&[("name", scheduler)])) } { (text(scheduler)) } }
                    td { (plain(&cadence(task))) }
                    td class=(if late { "bad" } else { "" }) { @match task.next_at.filter(|_| task.enabled) { Some(at) => { (moment(at, seen.at)) } None => { span .none { "–" } } } }
                    td { @match task.last_at { Some(at) => { (moment(at, seen.at)) } None => { "never" } } }
                    td .actions {
                        (offer(visit, "run", scheduler, &task.name, "Run now"))
                        @if task.enabled { (offer(visit, "disable", scheduler, &task.name, "Disable")) }
                        @else { (offer(visit, "enable", scheduler, &task.name, "Enable")) }
                    }
                }
            }).collect();
            html! {
                (timeline(tasks, seen.at))
                (table("Recurring tasks", &["Task", "Scheduler", "When", "Next", "Latest", ""], &rows, "There are no recurring tasks."))
                (cut(tasks.len(), MAX_ENTRIES))
            }
        }))
    }
}

pub(super) fn limits(visit: &Visit, seen: &Snapshot) -> Markup {
    html! {
        h1 { "Limits" }
        p .lead { "What was taken lately. How much is allowed is known to the programs, which have the quotas." }
        (shown(&seen.limits, |limits| {
            let mut limits: Vec<_> = limits.iter().collect();
            limits.sort_by_key(|limit| std::cmp::Reverse((limit.blocked, limit.backlog, limit.used)));
            let most = limits.iter().map(|limit| limit.backlog).max().unwrap_or_default();
            let rows: Vec<Markup> = limits.iter().map(|limit| html! {
                td .key { (text(&limit.key)) @if limit.blocked.is_some() { " " (badge("bad", "blocked")) } }
                td .number {
                    (lasting(Some(limit.backlog).filter(|it| !it.is_zero())))
                    @if !limit.backlog.is_zero() { " " meter min="0" max=(most.as_millis()) value=(limit.backlog.as_millis()) aria-label="Backlog beside the largest" {} }
                }
                td .number { @if let Some(window) = limit.window { (limit.used) " in " (spoken(window)) ", " (limit.before) " before" } }
                td .number { (lasting(limit.blocked)) }
                td .number { (limit.reservations) }
                td .number { (spoken(limit.decided)) " ago" }
                td .actions {
                    (offer(visit, "reset", &limit.key, "", "Reset"))
                    @if limit.blocked.is_some() { (offer(visit, "unblock", &limit.key, "", "Unblock")) }
                    @else { (offer(visit, "block", &limit.key, "", "Block")) }
                }
            }).collect();
            html! {
                (table("Limits", &["Key", "Flows back in", "Window", "Blocked for", "Reservations", "Used", ""], &rows, "No limit is in use."))
                (cut(limits.len(), MAX_ENTRIES))
            }
        }))
    }
}

pub(super) fn ids(seen: &Snapshot) -> Markup {
    html! {
        h1 { "Ids" }
        p .lead { "Who makes ids with which worker number." }
        (shown(&seen.workers, |workers| {
            let rows: Vec<Markup> = workers.iter().map(|worker| html! {
                td .key { (text(&worker.name)) }
                td .number { (worker.worker) }
                td { (text(&worker.owner)) }
                td .number { (spoken(worker.held_for)) }
                td .number { (spoken(worker.remaining)) }
            }).collect();
            html! {
                (table("Worker numbers", &["Ids", "Number", "Owner", "Held for", "Left"], &rows, "No worker number is held."))
                (cut(workers.len(), MAX_ENTRIES))
            }
        }))
    }
}
