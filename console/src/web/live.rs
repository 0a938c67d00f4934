//! Telling pages of changes, by server-sent events.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::OwnedSemaphorePermit;

use super::Shared;
use super::guard::{SESSION, Visit, cookie, refuse};
use super::markup;
use super::screens::Screen;

/// How often is looked for changes.
const EVERY: Duration = Duration::from_secs(2);
/// After this time the browser connects again, and has to be let in again.
const LIFE: Duration = Duration::from_mins(10);

struct Updates {
    shared: Arc<Shared>,
    visit: Visit,
    /// That of a visitor who has signed in with a form: the stream ends with it.
    session: Option<String>,
    screen: Screen,
    told: String,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

impl Updates {
    /// What is shown now, once it is something else than before.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        while Instant::now() < self.until {
            tokio::time::sleep(EVERY).await;
            let sessions = &self.shared.sessions;
            if self
                .session
                .as_ref()
                .is_some_and(|session| !sessions.knows(session))
            {
                return None;
            }
            let main = match self.screen.main(&self.shared, &self.visit).await {
                Ok(Some(main)) => main,
                Ok(None) => markup::gone(&self.visit),
                // What cannot be read now may be read later; the page keeps what it has.
                Err(_) => {
                    // Once it can be read again the page is told, also if it is what the page shows.
                    self.told.clear();
                    let event = Event::default().event("away").data("away");
                    return Some((Ok(event), self));
                }
            };
            let main = main.into_string();
            if main != self.told {
                self.told.clone_from(&main);
                return Some((Ok(Event::default().data(main)), self));
            }
        }
        None
    }
}

pub(super) async fn live(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Extension<Visit>,
    Query(mut query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let Ok(place) = Arc::clone(&shared.live).try_acquire_owned() else {
        let message = "Too many pages are told of changes; reload this one instead.".to_owned();
        return refuse(StatusCode::SERVICE_UNAVAILABLE, message);
    };
    let name = query.remove("screen").unwrap_or_default();
    let session = visit.signed_in.then(|| cookie(&headers, SESSION)).flatten();
    let updates = Updates {
        shared,
        visit,
        session,
        screen: Screen { name, query },
        told: String::new(),
        until: Instant::now() + LIFE,
        _place: place,
    };
    let events = stream::unfold(updates, Updates::next);
    Sse::new(events)
        .keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
        .into_response()
}
