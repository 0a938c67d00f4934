//! What all screens are made of.

use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lockapi::{Error, ErrorKind};
use maud::{DOCTYPE, Markup, html};

use super::guard::Visit;
use crate::output::{plain, spoken};

/// The screens of the menu: their names in addresses, and for people.
pub(super) const SCREENS: [(&str, &str); 7] = [
    ("locks", "Locks"),
    ("leases", "Leases"),
    ("queues", "Queues"),
    ("schedules", "Schedules"),
    ("limits", "Limits"),
    ("ids", "Ids"),
    ("audit", "Audit"),
];

/// A whole page. `live` is the address that tells of changes to `main`.
pub(super) fn page(
    visit: &Visit,
    title: &str,
    screen: &str,
    live: Option<&str>,
    main: &Markup,
) -> Markup {
    let base = &visit.base;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (plain(title)) " · lockapi" }
                link rel="icon" type="image/svg+xml" href={ (base) "/assets/icon.svg" };
                link rel="stylesheet" href={ (base) "/assets/style.css" };
                script src={ (base) "/assets/live.js" } defer {}
            }
            body {
                a .skip href="#main" { "Skip to the content" }
                header {
                    a .name href={ (base) "/" } { "lockapi" }
                    @if visit.visitor.is_some() {
                        nav aria-label="Screens" {
                            @for (name, words) in SCREENS {
                                a href={ (base) "/" (name) } aria-current=[(name == screen).then_some("page")] { (words) }
                            }
                        }
                        div .aside {
                            @if live.is_some() {
                                button #pause type="button" aria-pressed="false" hidden { "Pause updates" }
                            }
                            @if visit.signed_in {
                                form method="post" action={ (base) "/logout" } {
                                    input type="hidden" name="form" value=(visit.form_token);
                                    button type="submit" { "Sign out" }
                                }
                            }
                        }
                    }
                }
                main #main tabindex="-1" data-live=[live] { (main) }
                footer {
                    @if visit.visitor.is_some() {
                        (if visit.may_act() { "Actions are allowed, and audited." } else { "Read-only." })
                    }
                }
            }
        }
    }
}

/// What is shown of something that was there before.
pub(super) fn gone(visit: &Visit) -> Markup {
    html! {
        h1 { "It is not there any more" }
        p { a href={ (visit.base) "/" } { "To the overview" } }
    }
}

/// A page that is not there.
pub(super) fn missing(visit: &Visit) -> Response {
    let main = html! {
        h1 { "There is no such page" }
        p { a href={ (visit.base) "/" } { "To the overview" } }
    };
    let page = page(visit, "Not found", "", None, &main);
    (StatusCode::NOT_FOUND, page).into_response()
}

/// What went wrong, with a status that says whose fault it was.
pub(super) fn failed(visit: &Visit, screen: &str, error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::Unavailable
        | ErrorKind::Indeterminate
        | ErrorKind::TimedOut
        | ErrorKind::Capacity => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let main = html! {
        h1 { "That did not work" }
        p .alarm role="alert" { (plain(&error.to_string())) }
    };
    (status, page(visit, "Failed", screen, None, &main)).into_response()
}

/// A table, or a sentence where it would be empty.
pub(super) fn table(caption: &str, columns: &[&str], rows: &[Markup], empty: &str) -> Markup {
    html! {
        @if rows.is_empty() {
            p .empty { (empty) }
        } @else {
            div .scroll role="region" aria-label=(caption) tabindex="0" {
                table {
                    caption { (caption) }
                    thead { tr { @for column in columns { th scope="col" { (column) } } } }
                    tbody { @for row in rows { tr { (row) } } }
                }
            }
        }
    }
}

/// What could not be read.
pub(super) fn unread(why: &str) -> Markup {
    html! { p .alarm role="alert" { "This could not be read: " (plain(why)) } }
}

/// A text of others, in which nothing can hide.
pub(super) fn text(text: &str) -> Markup {
    html! { (plain(text)) }
}

pub(super) fn maybe(text: Option<&str>) -> Markup {
    match text {
        Some(text) if !text.is_empty() => self::text(text),
        _ => html! { span .none { "–" } },
    }
}

pub(super) fn lasting(time: Option<Duration>) -> Markup {
    time.map_or_else(
        || html! { span .none { "–" } },
        |time| html! { (spoken(time)) },
    )
}

/// A time, with how far it is from now.
pub(super) fn moment(time: SystemTime, now: SystemTime) -> Markup {
    let exact = crate::output::time(time);
    let words = match (time.duration_since(now), now.duration_since(time)) {
        (Ok(ahead), _) if !ahead.is_zero() => format!("in {}", spoken(ahead)),
        (_, Ok(past)) => format!("{} ago", spoken(past)),
        _ => "now".to_owned(),
    };
    html! { time datetime=(exact) title=(exact) { (words) } }
}

/// A word on a background.
pub(super) fn badge(kind: &str, words: &str) -> Markup {
    html! { span class={ "badge " (kind) } { (words) } }
}

/// A link to where an action is asked for, if the visitor may act.
pub(super) fn offer(visit: &Visit, word: &str, on: &str, item: &str, words: &str) -> Markup {
    if !visit.may_act() {
        return html! {};
    }
    let query = encoded(&[("do", word), ("on", on), ("item", item)]);
    html! {
        a .button href={ (visit.base) "/act?" (query) } aria-label={ (words) " " (plain(on)) " " (plain(item)) } { (words) }
    }
}

/// Pairs as the query of an address.
pub(super) fn encoded(pairs: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in pairs {
        if !value.is_empty() {
            query.append_pair(name, value);
        }
    }
    query.finish()
}
