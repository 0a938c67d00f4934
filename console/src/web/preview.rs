//! What an action on many jobs would do: a dry run.

use std::time::SystemTime;

use lockapi::Error;
use lockapi::admin::{Filter, JobFilter, JobState, ListedJob};
use maud::{Markup, html};

use super::Shared;
use super::guard::Visit;
use super::markup::{moment, table, text};
use crate::action::Action;
use crate::watch::MAX_ENTRIES;

/// The most jobs of each state that are shown.
const SHOWN: usize = 10;

/// The first jobs that run, with the times since when: a list of jobs would read thousands that wait.
async fn running(
    shared: &Shared,
    queue: &str,
    now: SystemTime,
) -> Result<Vec<(i64, SystemTime, String)>, Error> {
    let filter = Filter::queue(queue).limit(MAX_ENTRIES);
    let running = shared.watch.inspector().running(&filter).await?;
    let first = running.into_iter().take(SHOWN);
    Ok(first
        .map(|job| (job.id, now - job.runs_for, job.name))
        .collect())
}

/// The jobs that would be deleted or moved: how many, and the first of them; nothing for other actions.
pub(super) async fn of(shared: &Shared, visit: &Visit, action: &Action) -> Result<Markup, Error> {
    let queue = action.queue();
    let states = match action {
        Action::Purge(_) => &[JobState::Ready, JobState::Delayed][..],
        Action::Discard(_) | Action::Redrive(_) => &[JobState::Failed],
        Action::Drain(_) => &[JobState::Running],
        _ => return Ok(html! {}),
    };
    let _turn = shared.turn().await?;
    let counted = shared.watch.counted(queue).await?;
    let verb = match action {
        Action::Redrive(_) => "would be put back",
        Action::Drain(_) => "run to the end",
        _ => "would be deleted",
    };
    let now = SystemTime::now();
    let mut parts = Vec::new();
    for state in states {
        let (count, words) = match state {
            JobState::Ready => (counted.ready, "Due and waiting"),
            JobState::Delayed => (counted.delayed, "Delayed"),
            JobState::Running => (counted.running, "Running"),
            _ => (counted.dead, "Dead letters"),
        };
        let jobs = if *state == JobState::Running {
            running(shared, queue, now).await?
        } else {
            let filter = JobFilter::queue(queue).state(*state).limit(SHOWN);
            let page = shared.watch.inspector().jobs(&filter).await?;
            let when = |job: &ListedJob| job.ended_at.unwrap_or(job.run_at);
            let jobs = page.jobs.into_iter();
            jobs.map(|job| (job.id, when(&job), job.name)).collect()
        };
        let row = |(id, at, name): &(i64, SystemTime, String)| {
            html! {
                td .id { a href={ (visit.base) "/job?id=" (id) } { (id) } }
                td { (text(name)) }
                td { (moment(*at, now)) }
            }
        };
        let rows: Vec<Markup> = jobs.iter().map(row).collect();
        parts.push((count, words, rows));
    }
    Ok(html! {
        @for (count, words, rows) in parts {
            p .dry { (words) ": " (count) " " (verb) "." @if !rows.is_empty() { " The first of them:" } }
            @if !rows.is_empty() { (table(words, &["Job", "Name", "When"], &rows, "")) }
        }
    })
}
