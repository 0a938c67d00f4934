//! The jobs of a queue, and the life of one.

use std::time::SystemTime;

use lockapi::admin::{JobDetails, JobFilter, JobState, ListedJob, PausedName};
use lockapi::queue::Statistics;
use lockapi::{Error, ErrorKind};
use maud::{Markup, html};

use super::Shared;
use super::guard::Visit;
use super::history;
use super::markup::{badge, encoded, lasting, maybe, moment, offer, table, text};
use super::screens::Screen;
use crate::output::{plain, spoken, time};

/// The most jobs of a page.
const PAGE: usize = 50;

pub(super) async fn queue(
    shared: &Shared,
    visit: &Visit,
    screen: &Screen,
) -> Result<Markup, Error> {
    let (name, kind) = (screen.get("name"), screen.get("kind"));
    let state = match screen.get("state") {
        "" => JobState::Ready,
        state => state.parse()?,
    };
    let mut filter = JobFilter::queue(name).state(state).name(kind).limit(PAGE);
    if !screen.get("after").is_empty() {
        filter = filter.after(screen.get("after").parse()?);
    }
    let page = shared.watch.inspector().jobs(&filter).await?;
    let statistics = shared.watch.counted(name).await?;
    let paused = paused_names(shared, name).await?;
    let now = SystemTime::now();
    let rows: Vec<Markup> = page
        .jobs
        .iter()
        .map(|job| row(visit, name, state, job, now))
        .collect();
    let counts = [
        (JobState::Ready, statistics.ready.to_string()),
        (JobState::Running, statistics.running.to_string()),
        (JobState::Delayed, statistics.delayed.to_string()),
        (JobState::Failed, statistics.dead.to_string()),
        (JobState::Completed, String::new()),
        (JobState::Cancelled, String::new()),
    ];
    let here = |state: JobState, after: &str| {
        let pairs = [
            ("name", name),
            ("state", state.as_str()),
            ("kind", kind),
            ("after", after),
        ];
        format!("{}/queue?{}", visit.base, encoded(&pairs))
    };
    Ok(html! {
        h1 {
            (text(name)) " "
            @if statistics.paused { (badge("warn", "paused")) }
        }
        (state_of(shared, name, &statistics))
        (queue_actions(visit, name, kind, &statistics))
        (names_of(visit, name, &paused))
        (history::of(shared, name, kind, now).await)
        nav .tabs aria-label="States" {
            @for (of, count) in counts {
                a href=(here(of, "")) aria-current=[(of == state).then_some("page")] {
                    (of.as_str()) @if !count.is_empty() { " " span .count { (count) } }
                }
            }
        }
        form .filter method="get" action={ (visit.base) "/queue" } {
            input type="hidden" name="name" value=(name);
            input type="hidden" name="state" value=(state.as_str());
            label for="kind" { "Name of the jobs" }
            input #kind type="search" name="kind" value=(kind) maxlength="255";
            button type="submit" { "Filter" }
        }
        (table(
            &format!("Jobs that are {state}"),
            &["Job", "Name", "Priority", "Attempt", "When", "Worker", "Error", ""],
            &rows,
            if page.next.is_some() { "None among the jobs that were looked at; there are more." } else { "No jobs." },
        ))
        @if let Some(next) = page.next {
            p { a .button rel="next" href=(here(state, &next.to_string())) { "Further jobs" } }
        }
    })
}

/// What an operator waits for: the end of what runs while nothing is delivered, and of what goes on.
fn state_of(shared: &Shared, name: &str, statistics: &Statistics) -> Markup {
    html! {
        @if statistics.paused {
            p .drain role="status" {
                "No job is delivered" @if let Some(left) = statistics.resumes_in { " for " (spoken(left)) }
                @if statistics.running.count == 0 && !statistics.running.more { ", and none runs: the queue is drained." }
                @else { ". " (statistics.running) " still run." }
            }
        }
        @if let Some(told) = shared.errands.told(name) { p .drain role="status" { (text(&told)) "." } }
    }
}

/// Names that are paused; none where the schema is from before there were any.
async fn paused_names(shared: &Shared, queue: &str) -> Result<Vec<PausedName>, Error> {
    match shared.watch.inspector().paused_names(queue, PAGE).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Vec::new()),
        read => read,
    }
}

fn names_of(visit: &Visit, queue: &str, paused: &[PausedName]) -> Markup {
    html! {
        @for one in paused {
            p .drain role="status" {
                "The jobs " b { (text(&one.name)) } " are paused"
                @if let Some(left) = one.resumes_in { " for " (spoken(left)) }
                ". " (offer(visit, "resume-name", queue, &one.name, &format!("Resume {}", plain(&one.name))))
            }
        }
    }
}

fn queue_actions(visit: &Visit, name: &str, kind: &str, statistics: &Statistics) -> Markup {
    html! {
        p .actions {
            @if statistics.paused { (offer(visit, "resume", name, "", "Resume")) }
            @else {
                (offer(visit, "pause", name, "", "Pause"))
                (offer(visit, "drain", name, "", "Drain"))
            }
            @if !kind.is_empty() {
                (offer(visit, "pause-name", name, kind, &format!("Pause {}", plain(kind))))
            }
            @if statistics.dead.count > 0 {
                (offer(visit, "redrive", name, "", "Retry dead letters"))
                (offer(visit, "discard", name, "", "Delete dead letters"))
            }
            @if statistics.ready.count + statistics.delayed.count > 0 { (offer(visit, "purge", name, "", "Purge")) }
        }
    }
}

fn row(visit: &Visit, queue: &str, state: JobState, job: &ListedJob, now: SystemTime) -> Markup {
    let id = job.id.to_string();
    html! {
        td .id { a href={ (visit.base) "/job?id=" (id) } { (id) } }
        td { (text(&job.name)) }
        td { (format!("{:?}", job.priority).to_lowercase()) }
        td .number { (job.attempt) " of " (job.max_attempts) }
        td {
            @match state {
                JobState::Running => {
                    "since " (moment(job.started_at.unwrap_or(now), now)) ", has " (lasting(job.lease_left)) " left"
                    @if let Some(progress) = &job.progress { ", " (progress.percent()) "% done" }
                }
                _ => (moment(job.ended_at.unwrap_or(job.run_at), now)),
            }
        }
        td { (maybe(job.worker.as_deref())) }
        td .words { (maybe(job.error.as_deref())) }
        td .actions { (actions(visit, queue, state, &id)) }
    }
}

fn actions(visit: &Visit, queue: &str, state: JobState, id: &str) -> Markup {
    match state {
        JobState::Failed => offer(visit, "retry", queue, id, "Retry"),
        JobState::Delayed => html! {
            (offer(visit, "run-job", queue, id, "Run now"))
            (offer(visit, "cancel", queue, id, "Cancel"))
        },
        state if !state.has_ended() => offer(visit, "cancel", queue, id, "Cancel"),
        _ => html! {},
    }
}

pub(super) async fn job(
    shared: &Shared,
    visit: &Visit,
    screen: &Screen,
) -> Result<Option<Markup>, Error> {
    let id = screen.get("id").parse::<i64>().map_err(|_| {
        let message = "the number of a job that is none; allowed are whole numbers";
        Error::new(ErrorKind::Invalid, "job", message)
    })?;
    let shown = shared.options.payloads;
    let read = shared.watch.inspector().job(id, shown).await?;
    Ok(read.map(|job| life(visit, &job)))
}

/// A step of a job's life.
struct Step {
    at: SystemTime,
    kind: &'static str,
    words: String,
    error: Option<String>,
}

fn steps(job: &JobDetails) -> Vec<Step> {
    let listed = &job.job;
    let step = |at, kind, words: String| Step {
        at,
        kind,
        words,
        error: None,
    };
    let mut steps = vec![step(listed.created_at, "", "pushed".to_owned())];
    for attempt in &job.history {
        let worker = if attempt.worker.is_empty() {
            String::new()
        } else {
            format!(" on {}", attempt.worker)
        };
        steps.push(Step {
            at: attempt.at,
            kind: "bad",
            words: format!("attempt {} failed{worker}", attempt.attempt),
            error: Some(attempt.error.clone()),
        });
    }
    if let Some(started) = listed.started_at {
        let worker = listed.worker.as_deref().unwrap_or("a worker");
        let words = format!("attempt {} began on {worker}", listed.attempt);
        steps.push(step(started, "", words));
    }
    if let Some(ended) = listed.ended_at {
        let kind = if listed.state == JobState::Completed {
            "good"
        } else {
            "bad"
        };
        steps.push(step(ended, kind, listed.state.as_str().to_owned()));
    } else if listed.state != JobState::Running {
        steps.push(step(listed.run_at, "ahead", "due".to_owned()));
    }
    steps.sort_by_key(|step| step.at);
    steps
}

fn life(visit: &Visit, job: &JobDetails) -> Markup {
    let now = SystemTime::now();
    let listed = &job.job;
    let id = listed.id.to_string();
    let kind = match listed.state {
        JobState::Completed => "good",
        JobState::Failed | JobState::Cancelled => "bad",
        JobState::Running => "busy",
        _ => "",
    };
    let queue = encoded(&[("name", &job.queue), ("state", listed.state.as_str())]);
    html! {
        h1 { "Job " (id) " " (badge(kind, listed.state.as_str())) }
        p .actions {
            (actions(visit, &job.queue, listed.state, &id))
            @if visit.may_act() && matches!(listed.state, JobState::Ready | JobState::Delayed) {
                a .button href={ (visit.base) "/edit?" (encoded(&[("name", &job.queue), ("id", &id)])) } aria-label={ "Edit job " (id) } { "Edit" }
            }
        }
        dl {
            dt { "Queue" } dd { a href={ (visit.base) "/queue?" (queue) } { (text(&job.queue)) } }
            dt { "Name" } dd { (text(&listed.name)) }
            dt { "Attempts" } dd { (listed.attempt) " of " (listed.max_attempts) }
            dt { "Priority" } dd { (format!("{:?}", listed.priority).to_lowercase()) }
            @if let Some(left) = listed.lease_left { dt { "Lease" } dd { (spoken(left)) " left" } }
            @if let Some(progress) = &listed.progress {
                dt { "Progress" }
                dd {
                    progress max="100" value=(progress.percent()) {} " " (progress.percent()) "% "
                    (text(progress.note())) ", told " (moment(progress.reported_at(), now))
                }
            }
            @if let Some(key) = &job.unique_key { dt { "Unique key" } dd { (text(key)) } }
            @if let Some(task) = &job.task { dt { "Task" } dd { (text(task)) } }
            @if let Some(at) = job.expires_at { dt { "Expires" } dd { (moment(at, now)) } }
        }
        h2 { "Life" }
        ol .life {
            @for step in steps(job) {
                li class=(step.kind) {
                    time datetime=(time(step.at)) { (time(step.at)) } " " (moment(step.at, now))
                    div { (text(&step.words)) }
                    @if let Some(error) = &step.error { pre { (plain_lines(error)) } }
                }
            }
        }
        @if let Some(error) = listed.error.as_ref().filter(|_| job.history.is_empty()) {
            h2 { "Error" }
            pre { (plain_lines(error)) }
        }
        @if !job.headers.is_empty() {
            h2 { "Headers" }
            dl { @for (name, value) in job.headers.iter() { dt { (text(name)) } dd { (text(value)) } } }
        }
        h2 { "Payload" }
        @match &job.payload {
            Some(payload) => {
                pre { (plain_lines(payload)) }
                @if payload.chars().count() >= lockapi::admin::MAX_PAYLOAD_CHARS { p { "The rest is not shown." } }
            }
            None => { p .empty { (job.payload_bytes) " bytes, which are not shown: this page was started without --payloads." } }
        }
        @if let Some(result) = &job.result {
            h2 { "Result" }
            pre { (plain_lines(result)) }
            @if result.chars().count() >= lockapi::admin::MAX_PAYLOAD_CHARS { p { "The rest is not shown." } }
        }
    }
}

/// As [`plain`], with the ends of lines.
pub(super) fn plain_lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(plain).collect();
    lines.join("\n")
}
