//! Acting: what is about to be done is shown first, and a reason asked for.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Form};
use lockapi::admin::MAX_REASON_BYTES;
use maud::html;
use serde::Deserialize;

use super::guard::{Visit, refuse};
use super::sessions::is_form;
use super::{Shared, markup};
use crate::action::Action;
use crate::output::plain;

#[derive(Deserialize)]
pub(super) struct Order {
    #[serde(default)]
    form: String,
    #[serde(default, rename = "do")]
    word: String,
    #[serde(default)]
    on: String,
    #[serde(default)]
    item: String,
    #[serde(default)]
    reason: String,
}

/// The screen to return to.
fn back(action: &Action) -> &'static str {
    match action {
        Action::Pause(_)
        | Action::Resume(_)
        | Action::Cancel(..)
        | Action::RunJob(..)
        | Action::Retry(..) => "queues",
        Action::Release(_) => "leases",
        Action::Terminate(_) => "locks",
        Action::Enable(..) | Action::Disable(..) | Action::Run(..) => "schedules",
    }
}

fn forbidden() -> Response {
    let message = "This page is read-only; allowed are actions where it was started with --allow-actions, or where the \
                   program lets you act.";
    refuse(StatusCode::FORBIDDEN, message.to_owned())
}

/// What would be done, and a form for the reason.
pub(super) async fn ask(
    Extension(visit): Extension<Visit>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    if !visit.may_act() {
        return forbidden();
    }
    let get = |name: &str| query.get(name).map_or("", String::as_str);
    let action = match Action::new(get("do"), get("on"), get("item")) {
        Ok(action) => action,
        Err(error) => return markup::failed(&visit, "", &error),
    };
    let main = form(&visit, &action, "", None);
    markup::page(&visit, "Confirm", back(&action), None, &main).into_response()
}

fn form(visit: &Visit, action: &Action, reason: &str, wrong: Option<&str>) -> maud::Markup {
    let (on, item) = action.target();
    html! {
        h1 { "Confirm" }
        p .question { (plain(&action.question())) "." }
        @if let Some(wrong) = wrong { p .alarm role="alert" { (plain(wrong)) } }
        form .act method="post" action={ (visit.base) "/act" } {
            input type="hidden" name="form" value=(visit.form_token);
            input type="hidden" name="do" value=(action.word());
            input type="hidden" name="on" value=(on);
            input type="hidden" name="item" value=(item);
            label for="reason" { "Reason, for the audit log" }
            input #reason type="text" name="reason" value=(reason) required maxlength=(MAX_REASON_BYTES) autofocus
                autocomplete="off";
            button type="submit" { (action.word()) }
            a href={ (visit.base) "/" (back(action)) } { "Leave it" }
        }
    }
}

/// Does it.
pub(super) async fn act(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Extension<Visit>,
    Form(order): Form<Order>,
) -> Response {
    if !visit.may_act() {
        return forbidden();
    }
    if !is_form(&visit, &order.form) {
        let message = "The form was made for another browser or before the page was started; nothing was done: go back \
                       and try again.";
        return refuse(StatusCode::FORBIDDEN, message.to_owned());
    }
    let action = match Action::new(&order.word, &order.on, &order.item) {
        Ok(action) => action,
        Err(error) => return markup::failed(&visit, "", &error),
    };
    let screen = back(&action);
    let turn = shared.turn().await;
    let done = match &turn {
        Ok(_) => {
            let backend = shared.watch.backend();
            action.perform(backend, &order.reason, visit.name()).await
        }
        Err(error) => return markup::failed(&visit, screen, error),
    };
    shared.watch.forget().await;
    match done {
        Ok(told) => {
            let main = html! {
                h1 { "Done" }
                p .done role="status" { (plain(&told)) "." }
                p { a href={ (visit.base) "/" (screen) } { "Back" } " · " a href={ (visit.base) "/audit" } { "Audit" } }
            };
            markup::page(&visit, "Done", screen, None, &main).into_response()
        }
        Err(error) if error.kind() == lockapi::ErrorKind::Invalid => {
            let main = form(&visit, &action, &order.reason, Some(&error.to_string()));
            let page = markup::page(&visit, "Confirm", screen, None, &main);
            (StatusCode::BAD_REQUEST, page).into_response()
        }
        Err(error) => markup::failed(&visit, screen, &error),
    }
}
