//! Changing a job that waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lockapi::admin::{JobDetails, JobEdit, JobState, MAX_PAYLOAD_CHARS};
use lockapi::queue::Priority;
use lockapi::{Error, ErrorKind};
use maud::{Markup, html};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::act::{ended, forbidden, forged, reason_field};
use super::guard::{Visit, refuse};
use super::jobs::plain_lines;
use super::markup::encoded;
use super::sent::{Bounded, Sent};
use super::sessions::{hex, is_form};
use super::{Shared, markup};
use crate::action::{Outcome, signed};
use crate::output::{plain, time};

/// The largest form: a payload of the most characters that are shown, each in its longest form.
pub(super) const MAX_FORM: usize = MAX_PAYLOAD_CHARS * 12 + (16 << 10);

const PRIORITIES: [(&str, Priority); 4] = [
    ("urgent", Priority::Urgent),
    ("high", Priority::High),
    ("normal", Priority::Normal),
    ("low", Priority::Low),
];

/// What was written into the form.
#[derive(Default, Deserialize)]
pub(super) struct Written {
    #[serde(default)]
    form: String,
    /// The queue and the job, which are in the address of the form.
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    id: String,
    /// `keep`, `now` or `at`.
    #[serde(default)]
    due: String,
    #[serde(default)]
    at: String,
    #[serde(default)]
    priority: String,
    #[serde(default)]
    attempts: String,
    payload: Option<String>,
    /// What the job was that the form was made with, as a hash.
    #[serde(default)]
    seen: String,
    #[serde(default)]
    reason: String,
}

impl Bounded for Written {
    const BOUND: &str = "payloads of 65,535 characters; `lockapi queue edit` takes larger ones";
}

/// Why a form is not taken: what the visitor may not do, or what is wrong with it.
enum Refusal {
    Masked,
    /// The job is not what the form showed.
    Changed,
    Wrong(String),
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        if error.kind() == ErrorKind::Invalid {
            Self::Wrong(error.to_string())
        } else {
            Self::Failed(error)
        }
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, "edit", message)
}

/// What a form shows of a job, as a hash.
fn hash(job: &JobDetails) -> String {
    let listed = &job.job;
    let due = listed.run_at.duration_since(SystemTime::UNIX_EPOCH);
    let shown = (
        due.unwrap_or_default(),
        listed.priority,
        (listed.attempt, listed.max_attempts),
        &job.payload,
    );
    hex(&Sha256::digest(format!("{shown:?}")))
}

/// Browsers send each end of a line as two characters, also what is only the first of them.
fn lines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// The whole payload, if it may be shown and is not cut.
fn payload(job: &JobDetails) -> Option<&str> {
    let payload = job.payload.as_deref()?;
    (payload.chars().count() < MAX_PAYLOAD_CHARS).then_some(payload)
}

fn waits(job: &JobDetails) -> bool {
    matches!(job.job.state, JobState::Ready | JobState::Delayed)
}

/// The job of a form, with its payload if that may be shown.
async fn read(shared: &Shared, queue: &str, id: &str) -> Result<JobDetails, Error> {
    let id = id.parse::<i64>();
    let id =
        id.map_err(|_| invalid("the number of a job that is none; allowed are whole numbers"))?;
    let shown = shared.options.payloads;
    let job = shared.watch.inspector().job(id, shown).await?;
    let job = job.filter(|job| job.queue == queue);
    job.ok_or_else(|| {
        invalid(format!(
            "there is no job {id} in {queue:?}, or none any more"
        ))
    })
}

/// A form with what the job has.
pub(super) async fn ask(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Extension<Visit>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    if !visit.may_act() {
        return forbidden();
    }
    let get = |name: &str| query.get(name).cloned().unwrap_or_default();
    let written = Written {
        name: get("name"),
        id: get("id"),
        due: "keep".to_owned(),
        ..Written::default()
    };
    let job = match shared.turn().await {
        Ok(_turn) => read(&shared, &written.name, &written.id).await,
        Err(error) => Err(error),
    };
    match job {
        Ok(job) => {
            let main = form(&visit, &job, &written, None);
            markup::page(&visit, "Edit", "queues", None, &main).into_response()
        }
        Err(error) => markup::failed(&visit, "queues", &error),
    }
}

fn form(visit: &Visit, job: &JobDetails, written: &Written, wrong: Option<&str>) -> Markup {
    let listed = &job.job;
    let (priority, attempts) = (&*written.priority, &*written.attempts);
    html! {
        h1 { "Edit job " (listed.id) }
        p .question { "Change the job " (plain(&listed.name)) " of " (plain(&job.queue)) ". What is left as it is stays as it is." }
        @if let Some(wrong) = wrong { p .alarm role="alert" { (plain(wrong)) } }
        @if !waits(job) { p .alarm role="alert" { "It is " (listed.state.as_str()) ": only a job that waits can be changed." } }
        form .act .edit method="post" action={ (visit.base) "/edit?" (encoded(&[("name", &job.queue), ("id", &listed.id.to_string())])) } {
            input type="hidden" name="form" value=(visit.form_token);
            input type="hidden" name="seen" value=(if written.seen.is_empty() { hash(job) } else { written.seen.clone() });
            fieldset {
                legend { "When it is due" }
                @for (value, words) in [("keep", format!("at {}, as it is", time(listed.run_at))), ("now", "now".to_owned()), ("at", "at this time, in UTC:".to_owned())] {
                    label { input type="radio" name="due" value=(value) checked[written.due == value]; " " (words) }
                }
                input type="text" name="at" value=(written.at) maxlength="40" placeholder="2030-01-01T03:00:00Z"
                    aria-label="The time, such as 2030-01-01T03:00:00Z" autocomplete="off";
            }
            label for="priority" { "Priority" }
            select #priority name="priority" {
                option value="" selected[priority.is_empty()] { (format!("{:?}", listed.priority).to_lowercase()) ", as it is" }
                @for (name, _) in PRIORITIES { option value=(name) selected[priority == name] { (name) } }
            }
            label for="attempts" { "Attempts at most; it has had " (listed.attempt) " of " (listed.max_attempts) }
            input #attempts type="number" name="attempts" min="1" max="1000000" value=(attempts) placeholder=(listed.max_attempts);
            @match payload(job) {
                Some(now) => {
                    label for="payload" { "Payload, as JSON" }
                    // The first end of a line in it is not part of the text.
                    textarea #payload name="payload" rows="10" spellcheck="false" { "\n" (written.payload.as_deref().unwrap_or(now)) }
                }
                None if job.payload.is_some() => { p .none { "The payload is too long to be changed here; `lockapi queue edit` changes it." } }
                None => { p .none { "The payload is not shown, so it cannot be changed here: this page was started without --payloads." } }
            }
            (reason_field(&written.reason, false))
            button type="submit" { "edit" }
            a href={ (visit.base) "/job?" (encoded(&[("id", &listed.id.to_string())])) } { "Leave it" }
        }
    }
}

/// What is to be changed.
fn edit(written: &Written, job: &JobDetails) -> Result<JobEdit, Refusal> {
    let mut edit = JobEdit::new();
    edit = match written.due.as_str() {
        "" | "keep" => edit,
        "now" => edit.now(),
        "at" => {
            let at = humantime::parse_rfc3339_weak(written.at.trim());
            edit.at(at.map_err(|_| {
                invalid(format!(
                    "the time {:?} is none; allowed are times in UTC such as 2030-01-01T03:00:00Z",
                    written.at
                ))
            })?)
        }
        other => {
            return Err(invalid(format!(
                "the time {other:?} is none; allowed are keep, now and at"
            ))
            .into());
        }
    };
    if !written.priority.is_empty() {
        let found = PRIORITIES
            .iter()
            .find(|(name, _)| *name == written.priority);
        let (_, priority) = found.ok_or_else(|| {
            invalid(format!(
                "the priority {:?} is none; allowed are urgent, high, normal and low",
                written.priority
            ))
        })?;
        edit = edit.priority(*priority);
    }
    if !written.attempts.trim().is_empty() {
        let attempts = written.attempts.trim().parse();
        edit = edit.max_attempts(attempts.map_err(|_| {
            invalid(format!(
                "attempts of {:?}; allowed are whole numbers from 1 to 1,000,000",
                written.attempts
            ))
        })?);
    }
    if let Some(wanted) = &written.payload {
        // Whoever cannot see a payload cannot know what he replaces.
        let now = payload(job).ok_or(Refusal::Masked)?;
        let wanted = lines(wanted);
        if wanted != lines(now) {
            let (many, most) = (wanted.chars().count(), MAX_PAYLOAD_CHARS - 1);
            if many > most {
                return Err(invalid(format!(
                    "a payload of {many} characters; allowed here are {most}, `lockapi queue edit` takes larger ones"
                ))
                .into());
            }
            edit = edit.payload(wanted);
        }
    }
    Ok(edit)
}

async fn change(
    shared: &Shared,
    visit: &Visit,
    written: &Written,
    job: &JobDetails,
) -> Result<Outcome, Refusal> {
    if !waits(job) {
        return Ok(waits_no_more(job));
    }
    if hash(job) != written.seen {
        return Err(Refusal::Changed);
    }
    let edit = edit(written, job)?.if_unchanged(job);
    let reason = signed(&written.reason, visit.name())?;
    let id = job.job.id;
    let operator = shared.watch.backend().operator();
    if operator.edit_job(&job.queue, id, edit, &reason).await? {
        return Ok(Outcome::Done(format!("job {id} is changed")));
    }
    match read(shared, &job.queue, &id.to_string()).await {
        Ok(now) if waits(&now) && hash(&now) == written.seen => {
            let why = "nothing was done: its worker has stopped and nobody has taken the job again yet, or it has expired";
            Err(Refusal::Wrong(why.to_owned()))
        }
        Ok(now) if waits(&now) => Err(Refusal::Changed),
        Ok(now) => Ok(waits_no_more(&now)),
        Err(error) if error.kind() == ErrorKind::Invalid => {
            Ok(Outcome::Absent(format!("job {id} is not there any more")))
        }
        Err(error) => Err(Refusal::Failed(error)),
    }
}

fn waits_no_more(job: &JobDetails) -> Outcome {
    let (id, state) = (job.job.id, job.job.state);
    Outcome::Absent(format!(
        "job {id} is {state}: it does not wait any more, and is as it was"
    ))
}

/// What the job is now, and what was written into the form that showed something else.
fn changed(visit: &Visit, now: &JobDetails, written: Written) -> Markup {
    let why = "The job was changed by somebody else meanwhile, so nothing was done. The form shows it as it is now.";
    let mine = written.payload.as_deref().map(lines);
    let mine = mine.filter(|mine| payload(now).is_some_and(|now| lines(now) != *mine));
    let anew = Written {
        seen: String::new(),
        payload: None,
        ..written
    };
    html! {
        (form(visit, now, &anew, Some(why)))
        @if let Some(mine) = mine {
            h2 { "The payload that you wrote" }
            pre { (plain_lines(&mine)) }
        }
    }
}

/// Changes it.
pub(super) async fn act(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Extension<Visit>,
    Query(query): Query<HashMap<String, String>>,
    Sent(mut written): Sent<Written>,
) -> Response {
    let get = |name: &str| query.get(name).cloned().unwrap_or_default();
    (written.name, written.id) = (get("name"), get("id"));
    if !visit.may_act() {
        return forbidden();
    }
    if !is_form(&visit, &written.form) {
        return forged();
    }
    let _turn = match shared.turn().await {
        Ok(turn) => turn,
        Err(error) => return markup::failed(&visit, "queues", &error),
    };
    let job = match read(&shared, &written.name, &written.id).await {
        Ok(job) => job,
        Err(error) if error.kind() == ErrorKind::Invalid && written.id.parse::<i64>().is_ok() => {
            let outcome = Outcome::Absent(error.to_string());
            let address = format!("queue?{}", encoded(&[("name", &*written.name)]));
            return ended(&visit, ("queues", &address), &outcome);
        }
        Err(error) => return markup::failed(&visit, "queues", &error),
    };
    let changed = change(&shared, &visit, &written, &job).await;
    shared.watch.forget(&job.queue).await;
    match changed {
        Ok(outcome) => {
            let address = format!("job?id={}", job.job.id);
            ended(&visit, ("queues", &address), &outcome)
        }
        Err(Refusal::Masked) => {
            let message = "The payload is not shown on this page, so it cannot be changed here; nothing was done.";
            refuse(StatusCode::FORBIDDEN, message.to_owned())
        }
        Err(Refusal::Changed) => match read(&shared, &written.name, &written.id).await {
            Ok(now) => {
                let main = self::changed(&visit, &now, written);
                let page = markup::page(&visit, "Edit", "queues", None, &main);
                (StatusCode::CONFLICT, page).into_response()
            }
            Err(error) => markup::failed(&visit, "queues", &error),
        },
        Err(Refusal::Wrong(why)) => {
            let main = form(&visit, &job, &written, Some(&why));
            let page = markup::page(&visit, "Edit", "queues", None, &main);
            (StatusCode::BAD_REQUEST, page).into_response()
        }
        Err(Refusal::Failed(error)) => markup::failed(&visit, "queues", &error),
    }
}
