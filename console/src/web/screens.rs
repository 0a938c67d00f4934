//! The screens, by their addresses.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use lockapi::Error;
use lockapi::admin::Filter;
use maud::{Markup, html};

use super::guard::Visit;
use super::markup::{self, encoded, moment, table, text};
use super::{Shared, jobs, tables};
use crate::watch::MAX_ENTRIES;

/// A screen with what its address says.
#[derive(Clone, Debug)]
pub(super) struct Screen {
    pub(super) name: String,
    pub(super) query: HashMap<String, String>,
}

impl Screen {
    pub(super) fn get(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// The title, and the screen of the menu that it belongs to; `None` when there is no such screen.
    fn title(&self) -> Option<(String, &str)> {
        let title = match self.name.as_str() {
            "" => ("Overview".to_owned(), ""),
            "queue" => (self.get("name").to_owned(), "queues"),
            "job" => (format!("Job {}", self.get("id")), "queues"),
            name => {
                let known = markup::SCREENS.iter().find(|(known, _)| *known == name)?;
                (known.1.to_owned(), known.0)
            }
        };
        Some(title)
    }

    /// The address that tells of its changes.
    fn live(&self, visit: &Visit) -> String {
        let mut pairs = vec![("screen", self.name.as_str())];
        let mut rest: Vec<_> = self.query.iter().collect();
        rest.sort_unstable();
        pairs.extend(
            rest.iter()
                .map(|(name, value)| (name.as_str(), value.as_str())),
        );
        format!("{}/live?{}", visit.base, encoded(&pairs))
    }

    /// What is shown on it; `None` when there is no such thing.
    pub(super) async fn main(
        &self,
        shared: &Shared,
        visit: &Visit,
    ) -> Result<Option<Markup>, Error> {
        match self.name.as_str() {
            "queue" => {
                let _turn = shared.turn().await?;
                return jobs::queue(shared, visit, self).await.map(Some);
            }
            "job" => {
                let _turn = shared.turn().await?;
                return jobs::job(shared, visit, self).await;
            }
            "audit" => {
                let _turn = shared.turn().await?;
                return audit(shared).await.map(Some);
            }
            _ => {}
        }
        let seen = shared.watch.look().await?;
        let payloads = shared.options.payloads;
        Ok(match self.name.as_str() {
            "" => Some(tables::overview(visit, &seen)),
            "locks" => Some(tables::locks(visit, &seen, payloads)),
            "leases" => Some(tables::leases(visit, &seen)),
            "queues" => Some(tables::queues(visit, &seen)),
            "schedules" => Some(tables::schedules(visit, &seen)),
            "limits" => Some(tables::limits(visit, &seen)),
            "ids" => Some(tables::ids(&seen)),
            _ => None,
        })
    }
}

pub(super) async fn home(
    shared: State<Arc<Shared>>,
    visit: Extension<Visit>,
    query: Query<HashMap<String, String>>,
) -> Response {
    screen(shared, visit, Path(String::new()), query).await
}

pub(super) async fn screen(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Extension<Visit>,
    Path(name): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let screen = Screen { name, query };
    let Some((title, menu)) = screen.title() else {
        return markup::missing(&visit);
    };
    match screen.main(&shared, &visit).await {
        Ok(Some(main)) => {
            let live = screen.live(&visit);
            markup::page(&visit, &title, menu, Some(&live), &main).into_response()
        }
        Ok(None) => markup::missing(&visit),
        Err(error) => markup::failed(&visit, menu, &error),
    }
}

async fn audit(shared: &Shared) -> Result<Markup, Error> {
    let filter = Filter::new().limit(MAX_ENTRIES);
    let entries = shared.watch.inspector().audit(&filter).await?;
    let now = std::time::SystemTime::now();
    let rows: Vec<Markup> = entries
        .iter()
        .map(|entry| {
            html! {
                td { (moment(entry.at, now)) }
                td { (text(&entry.action)) }
                td .key { (text(&entry.target)) }
                td .words { (text(&entry.reason)) }
                td { (text(&entry.by_user)) }
                td { (text(&entry.application)) }
            }
        })
        .collect();
    Ok(html! {
        h1 { "Audit" }
        p .lead { "What operators did, the latest first." }
        (table(
            "What operators did",
            &["When", "Action", "To what", "Why", "Role", "Application"],
            &rows,
            "No operator has done anything yet.",
        ))
    })
}
