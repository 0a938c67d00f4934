//! What an action on many jobs would do: a dry run.

use lockapi::Error;
use lockapi::admin::{JobFilter, JobState};
use maud::{Markup, html};

use super::Shared;
use super::guard::Visit;
use super::markup::{moment, table, text};
use crate::action::Action;

/// The most jobs of each state that are shown.
const SHOWN: usize = 10;

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
    let counted = shared.watch.backend().queue(queue)?.statistics().await?;
    let verb = match action {
        Action::Redrive(_) => "would be put back",
        Action::Drain(_) => "run to the end",
        _ => "would be deleted",
    };
    let now = std::time::SystemTime::now();
    let mut parts = Vec::new();
    for state in states {
        let (count, words) = match state {
            JobState::Ready => (counted.ready, "Due and waiting"),
            JobState::Delayed => (counted.delayed, "Delayed"),
            JobState::Running => (counted.running, "Running"),
            _ => (counted.dead, "Dead letters"),
        };
        let filter = JobFilter::queue(queue).state(*state).limit(SHOWN);
        let page = shared.watch.inspector().jobs(&filter).await?;
        let rows: Vec<Markup> = page
            .jobs
            .iter()
            .map(|job| {
                html! {
                    td .id { a href={ (visit.base) "/job?id=" (job.id) } { (job.id) } }
                    td { (text(&job.name)) }
                    td { (moment(job.ended_at.unwrap_or(job.run_at), now)) }
                }
            })
            .collect();
        parts.push((count, words, rows));
    }
    Ok(html! {
        @for (count, words, rows) in parts {
            p .dry { (words) ": " (count) " " (verb) "." @if !rows.is_empty() { " The first of them:" } }
            @if !rows.is_empty() { (table(words, &["Job", "Name", "When"], &rows, "")) }
        }
    })
}
