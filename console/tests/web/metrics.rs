//! What Prometheus reads, and what the dashboard and the alerts ask it for.

use std::collections::BTreeSet;
use std::time::Instant;

use axum::http::StatusCode;
use lockapi::queue::Job;
use lockapi::schedule::Task;
use lockapi_console::web::WebOptions;

use crate::visitor::{Browser, MINUTE, backend};

const DASHBOARD: &str = include_str!("../../grafana/lockapi.json");
const ALERTS: &str = include_str!("../../prometheus/lockapi.rules.yml");

/// The metrics that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let of = words.filter(|word| word.starts_with("lockapi_"));
    of.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_database_that_is_away_is_a_metric() {
    let backend = backend().await;
    let mut browser = Browser::of(&backend, WebOptions::new());
    let up = "lockapi_up{namespace=\"default\"}";
    let is = |body: &str, value: &str| {
        let sample = format!("{up} {value}");
        assert!(body.lines().any(|line| line == sample), "{sample}: {body}");
    };
    is(&browser.get("/metrics").await.body, "1");
    backend.close().await.unwrap();
    // What was read a moment ago is told for a second.
    let begun = Instant::now();
    let away = loop {
        let answer = browser.get("/metrics").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        if !answer.body.contains(&format!("{up} 1")) {
            break answer;
        }
        assert!(begun.elapsed() < MINUTE, "{}", answer.body);
        tokio::task::yield_now().await;
    };
    is(&away.body, "0");
    assert!(!away.body.contains("lockapi_queue_jobs{"), "{}", away.body);
    assert!(ALERTS.contains("expr: lockapi_up == 0"));
}

#[tokio::test]
async fn every_metric_that_is_asked_for_is_served() {
    let backend = backend().await;
    let queue = backend.queue("mails").unwrap();
    queue.push(Job::new("send", &1).unwrap()).await.unwrap();
    let task = Task::every("vacuum", MINUTE, Job::new("vacuum", &1).unwrap());
    backend
        .scheduler("upkeep")
        .unwrap()
        .set(task)
        .await
        .unwrap();
    let mut browser = Browser::of(&backend, WebOptions::new());
    let answer = browser.get("/metrics").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(
        answer
            .header("content-type")
            .starts_with("text/plain; version=0.0.4")
    );
    let served: BTreeSet<String> = answer
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    for (file, text) in [("dashboard", DASHBOARD), ("alerts", ALERTS)] {
        let asked = named(text);
        assert!(asked.len() >= 5, "{file}: {asked:?}");
        let missing: Vec<_> = asked.difference(&served).collect();
        assert!(missing.is_empty(), "{file}: {missing:?} are not served");
    }
    let unasked: Vec<_> = served
        .iter()
        .filter(|name| !named(DASHBOARD).contains(*name))
        .collect();
    assert!(
        unasked.is_empty(),
        "the dashboard does not show {unasked:?}"
    );
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    assert!(dashboard["panels"].as_array().unwrap().len() >= 6);

    for sample in [
        "lockapi_queue_jobs{namespace=\"default\",queue=\"mails\",state=\"ready\"} 1",
        "lockapi_task_enabled{namespace=\"default\",scheduler=\"upkeep\",task=\"vacuum\"} 1",
        "lockapi_queue_paused{namespace=\"default\",queue=\"mails\"} 0",
    ] {
        assert!(
            answer.body.lines().any(|line| line == sample),
            "{sample}: {}",
            answer.body
        );
    }
    for line in answer.body.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a value");
        assert!(
            name.starts_with("lockapi_") && name.ends_with('}'),
            "{line}"
        );
        assert!(
            value.parse::<f64>().is_ok_and(|value| value >= 0.0),
            "{line}"
        );
    }
}
