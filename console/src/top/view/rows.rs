//! Rows that take more than their cells.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use lockapi::admin::Waiter;

use super::{Line, told};
use crate::action::Action;
use crate::output::{spoken, spoken_or_unknown, time};
use crate::watch::{QueueLine, Sample, TaskLine};

pub(super) fn queue(line: &QueueLine) -> Line {
    let (name, counted) = (&line.queue.name, &line.statistics);
    let paused = if counted.paused { " (paused)" } else { "" };
    let count = |tally: lockapi::queue::Tally| {
        let more = if tally.more { "+" } else { "" };
        format!("{}{more}", tally.count)
    };
    let growth = line.growth();
    let grown = growth.map_or_else(|| "-".to_owned(), |rate| format!("{rate:+.1}/s"));
    let oldest = counted.oldest.unwrap_or_default();
    let mut row = Line::new()
        .text(&format!("{name}{paused}"))
        .number(counted.ready.count, count(counted.ready))
        .text(&bars(&line.history, 12))
        .text(&grown)
        .number(counted.running.count, count(counted.running))
        .number(counted.delayed.count, count(counted.delayed))
        .number(counted.dead.count, count(counted.dead))
        .lasting(counted.oldest)
        .detail("Queue", name)
        .detail("Ready", counted.ready.to_string())
        .detail("Running", counted.running.to_string())
        .detail("Delayed", counted.delayed.to_string())
        .detail("Dead letters", counted.dead.to_string())
        .detail("Lately", bars(&line.history, 48));
    row.alarming = counted.paused || counted.dead.count > 0 || oldest > Duration::from_mins(1);
    if counted.paused {
        row = row.offer(Action::Resume(name.clone()));
    } else {
        row = row
            .offer(Action::Pause(name.clone(), None))
            .offer(Action::Drain(name.clone()));
    }
    if counted.dead.count > 0 {
        row = row.offer(Action::Redrive(name.clone()));
    }
    row
}

/// A sparkline of the jobs that were due and waited.
fn bars(history: &[Sample], most: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let last = &history[history.len().saturating_sub(most)..];
    let top = last
        .iter()
        .map(|sample| sample.ready)
        .max()
        .unwrap_or_default();
    last.iter()
        .map(|sample| {
            let height = sample.ready * 7 / top.max(1);
            BARS[usize::try_from(height).unwrap_or_default().min(7)]
        })
        .collect()
}

pub(super) fn wait(waiter: &Waiter, all: &[Waiter]) -> Line {
    let who = waiter
        .owner
        .as_deref()
        .or(waiter.application.as_deref())
        .unwrap_or("-");
    let mut line = Line::new()
        .text(&waiter.name)
        .text(who)
        .lasting(waiter.waits_for)
        .text(&chain(waiter, all))
        .detail("Lock", &waiter.name)
        .detail("Mode", waiter.mode.as_deref().unwrap_or_default())
        .detail("Pid", told(waiter.pid))
        .detail("Role", waiter.username.as_deref().unwrap_or_default())
        .detail("Chain", chain(waiter, all));
    for blocker in &waiter.blockers {
        let state = blocker.state.as_deref().unwrap_or("-");
        let age = spoken_or_unknown(blocker.transaction_age);
        line = line.detail(
            "In the way",
            format!("{} {state}, in a transaction for {age}", blocker.pid),
        );
    }
    line
}

/// Who is in the way, and who in theirs.
fn chain(waiter: &Waiter, all: &[Waiter]) -> String {
    let waits: BTreeMap<i64, &Waiter> =
        all.iter().filter_map(|one| Some((one.pid?, one))).collect();
    let mut words = Vec::new();
    let mut seen = Vec::new();
    let mut at = Some(waiter);
    while let Some(blocker) = at.and_then(|waiter| waiter.blockers.first()) {
        let others = at.map_or(0, |waiter| waiter.blockers.len().saturating_sub(1));
        let who = blocker.application.as_deref().filter(|who| !who.is_empty());
        let mut word = format!("{} {}", blocker.pid, who.unwrap_or("-"));
        if others > 0 {
            word = format!("{word} and {others} more");
        }
        words.push(word);
        if seen.contains(&blocker.pid) {
            words.push("…, a cycle".to_owned());
            break;
        }
        seen.push(blocker.pid);
        at = waits.get(&blocker.pid).copied();
    }
    words.join(" < ")
}

pub(super) fn task(line: &TaskLine, now: SystemTime) -> Line {
    let (of, task) = (&line.scheduler, &line.task);
    let disabled = if task.enabled { "" } else { " (disabled)" };
    let when = match (&task.every, &task.cron) {
        (Some(every), _) => format!("every {}", spoken(*every)),
        (None, Some((expression, zone))) => format!("{expression} {zone}"),
        (None, None) => String::new(),
    };
    let next = task.next_at.filter(|_| task.enabled);
    let left = next.map(|at| at.duration_since(now).unwrap_or_default());
    let late = next.and_then(|at| now.duration_since(at).ok());
    let latest = task
        .last_at
        .map(|at| now.duration_since(at).unwrap_or_default());
    let ago = latest.map_or_else(|| "never".to_owned(), |ago| format!("{} ago", spoken(ago)));
    let ahead = match (left, late) {
        (_, Some(late)) if !late.is_zero() => format!("due {} ago", spoken(late)),
        (Some(left), _) => format!("in {}", spoken(left)),
        (None, _) => "-".to_owned(),
    };
    let exact = |at: Option<SystemTime>| at.map_or_else(String::new, time);
    let mut row = Line::new()
        .text(&format!("{}{disabled}", task.name))
        .text(of)
        .text(&when)
        .number(left.map_or(u128::MAX, |left| left.as_micros()), ahead)
        .number(latest.map_or(u128::MAX, |ago| ago.as_micros()), ago)
        .detail("Task", &task.name)
        .detail("When", &when)
        .detail("Next", exact(task.next_at))
        .detail("Latest", exact(task.last_at))
        .detail("Jobs", &task.job)
        .detail("Attempts", task.max_attempts.to_string())
        .offer(Action::Run(of.clone(), task.name.clone()));
    row.alarming = task.enabled
        && task
            .next_at
            .is_some_and(|at| at + Duration::from_mins(1) < now);
    row.offer(if task.enabled {
        Action::Disable(of.clone(), task.name.clone())
    } else {
        Action::Enable(of.clone(), task.name.clone())
    })
}
