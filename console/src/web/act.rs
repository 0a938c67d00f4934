//! Acting: what is about to be done is shown first, and a reason asked for.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lockapi::admin::MAX_REASON_BYTES;
use lockapi::{Error, ErrorKind};
use maud::{Markup, html};
use serde::Deserialize;

use super::guard::{Visit, refuse};
use super::markup::encoded;
use super::sent::{Bounded, Sent};
use super::sessions::is_form;
use super::{Shared, errands, markup, preview};
use crate::action::{Action, Outcome};
use crate::output::plain;

/// What was written into the form. What it is for is in its address: in fields browsers change the ends of lines, which
/// names may have.
#[derive(Deserialize)]
pub(super) struct Order {
    #[serde(default)]
    form: String,
    #[serde(default, rename = "for")]
    time: String,
    #[serde(default)]
    reason: String,
}

/// The screen of the menu to return to, and its address.
fn back(action: &Action) -> (&'static str, String) {
    let screen = match action {
        Action::Release(_) => "leases",
        Action::Terminate(_) => "locks",
        Action::Reset(_) | Action::Block(..) => "limits",
        Action::Enable(..) | Action::Disable(..) | Action::Run(..) => "schedules",
        _ => "queues",
    };
    let queue = |state: &str| {
        let pairs = [("name", action.queue()), ("state", state)];
        format!("queue?{}", encoded(&pairs))
    };
    let address = match action {
        Action::Drain(_) => queue("running"),
        Action::Discard(_) | Action::Redrive(_) => queue("failed"),
        Action::Purge(_) | Action::PauseName(..) | Action::ResumeName(..) => queue(""),
        _ => screen.to_owned(),
    };
    (screen, address)
}

impl Bounded for Order {
    const BOUND: &str = "16 KiB";
}

pub(super) fn forbidden() -> Response {
    let message = "This page is read-only; allowed are actions where it was started with --allow-actions, or where the \
                   program lets you act.";
    refuse(StatusCode::FORBIDDEN, message.to_owned())
}

pub(super) fn forged() -> Response {
    let message = "The form was made for another browser or before the page was started; nothing was done: go back \
                   and try again.";
    refuse(StatusCode::FORBIDDEN, message.to_owned())
}

/// What would be done, and a form for the reason.
pub(super) async fn ask(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Extension<Visit>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    if !visit.may_act() {
        return forbidden();
    }
    let get = |name: &str| query.get(name).map_or("", String::as_str);
    let action = match Action::new(get("do"), get("on"), get("item"), get("for")) {
        Ok(action) => action,
        Err(error) => return markup::failed(&visit, "", &error),
    };
    let (screen, _) = back(&action);
    let shown = match preview::of(&shared, &visit, &action).await {
        Ok(shown) => shown,
        Err(error) => return markup::failed(&visit, screen, &error),
    };
    let time = action.time();
    let main = form(&visit, &action, (time.as_deref(), ""), None, &shown);
    markup::page(&visit, "Confirm", screen, None, &main).into_response()
}

fn form(
    visit: &Visit,
    action: &Action,
    (time, reason): (Option<&str>, &str),
    wrong: Option<&str>,
    shown: &Markup,
) -> Markup {
    let (on, item) = action.target();
    let (_, address) = back(action);
    let endless = !matches!(action, Action::Block(..));
    html! {
        h1 { "Confirm" }
        p .question { (plain(&action.question())) "." }
        (shown)
        @if let Some(wrong) = wrong { p .alarm role="alert" { (plain(wrong)) } }
        form .act method="post" action={ (visit.base) "/act?" (encoded(&[("do", action.word()), ("on", on), ("item", &item)])) } {
            input type="hidden" name="form" value=(visit.form_token);
            @if let Some(time) = time {
                label for="time" {
                    "For how long, such as 30s, 10m or 2h"
                    @if endless { "; until somebody resumes it if this is empty" }
                }
                input #time type="text" name="for" value=(time) required[!endless] maxlength="40" autocomplete="off";
            }
            (reason_field(reason, true))
            button type="submit" { (action.word()) }
            a href={ (visit.base) "/" (address) } { "Leave it" }
        }
    }
}

/// Where a reason is written, and whether a person begins there.
pub(super) fn reason_field(reason: &str, first: bool) -> Markup {
    html! {
        label for="reason" { "Reason, for the audit log" }
        input #reason type="text" name="reason" value=(reason) required maxlength=(MAX_REASON_BYTES)
            autofocus[first] autocomplete="off";
    }
}

/// Does it.
pub(super) async fn act(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Extension<Visit>,
    Query(query): Query<HashMap<String, String>>,
    Sent(order): Sent<Order>,
) -> Response {
    if !visit.may_act() {
        return forbidden();
    }
    if !is_form(&visit, &order.form) {
        return forged();
    }
    let get = |name: &str| query.get(name).map_or("", String::as_str);
    let action = match Action::new(get("do"), get("on"), get("item"), &order.time) {
        Ok(action) => action,
        Err(error) => return markup::failed(&visit, "", &error),
    };
    let (screen, address) = back(&action);
    match perform(&shared, &visit, &action, &order.reason).await {
        Ok(outcome) => ended(&visit, (screen, &address), &outcome),
        Err(error) if error.kind() == ErrorKind::Invalid => {
            let shown = preview::of(&shared, &visit, &action).await;
            let shown = shown.unwrap_or_default();
            let time = action.time();
            let written = (time.as_deref(), &*order.reason);
            let main = form(&visit, &action, written, Some(&error.to_string()), &shown);
            let page = markup::page(&visit, "Confirm", screen, None, &main);
            (StatusCode::BAD_REQUEST, page).into_response()
        }
        Err(error) => markup::failed(&visit, screen, &error),
    }
}

/// What came of an action, with the way back to what is there now.
pub(super) fn ended(visit: &Visit, (screen, address): (&str, &str), outcome: &Outcome) -> Response {
    let told = plain(outcome.told());
    let (status, heading) = match outcome {
        Outcome::Done(_) => (StatusCode::OK, "Done"),
        Outcome::Idle(_) => (StatusCode::OK, "Nothing to do"),
        Outcome::Absent(_) => (StatusCode::CONFLICT, "Nothing was done"),
    };
    let main = html! {
        h1 { (heading) }
        @if status == StatusCode::OK {
            p .done role="status" { (told) "." }
        } @else {
            p .alarm role="alert" { (told) "." }
        }
        p { a href={ (visit.base) "/" (address) } { "Back" } " · " a href={ (visit.base) "/audit" } { "Audit" } }
    };
    let page = markup::page(visit, heading, screen, None, &main);
    (status, page).into_response()
}

/// What takes long is begun here, and goes on when the answer is there.
async fn perform(
    shared: &Arc<Shared>,
    visit: &Visit,
    action: &Action,
    reason: &str,
) -> Result<Outcome, Error> {
    let _turn = shared.turn().await?;
    let backend = shared.watch.backend();
    let done = if action.is_long() {
        errands::run(shared, action, reason, visit.name()).await
    } else {
        action.perform(backend, reason, visit.name()).await
    };
    shared.watch.forget(action.queue()).await;
    done
}
