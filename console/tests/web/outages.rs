//! A database that is away for a time, or that refuses in the middle.

use std::sync::Arc;

use axum::http::StatusCode;
use lockapi::Backend;
use lockapi::queue::{Claim, Job};
use lockapi_console::web::WebOptions;

use crate::common::Database;
use crate::visitor::{Browser, backend, event};

async fn connect(database: &Database) -> Arc<dyn Backend> {
    let connected = lockapi_sqlx::connect_url(&database.url()).await;
    connected.expect("a backend")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_read_again_is_told_again() {
    let database = Database::new();
    let backend = connect(&database).await;
    let mut browser = Browser::of(&backend, WebOptions::new());
    let mut changes = browser.changes("/live?screen=audit").await;
    let before = event(&mut changes).await.expect("what is there");
    assert!(before.contains("<h1>Audit</h1>"), "{before}");
    database.is_there(false);
    let away = event(&mut changes).await.expect("an event");
    assert!(away.starts_with("event: away\n"), "{away}");
    database.is_there(true);
    // It is what it was, and the page shows that it is away.
    let mut after = away;
    while after.starts_with("event: away\n") {
        after = event(&mut changes).await.expect("an event");
    }
    assert_eq!(after, before);
    backend.close().await.expect("closed");
}

#[tokio::test]
async fn a_job_that_is_gone_is_told_to_be_gone() {
    let backend = backend().await;
    let queue = backend.queue("mails").expect("a queue");
    let id = queue.push(Job::new("send", &1).expect("a job")).await;
    let id = id.expect("pushed").id;
    let mut browser = Browser::of(&backend, WebOptions::new());
    let mut changes = browser.changes(&format!("/live?screen=job&id={id}")).await;
    let before = event(&mut changes).await.expect("the job");
    assert!(before.contains("send"), "{before}");
    for delivery in queue.claim(&Claim::new(1)).await.expect("the job") {
        delivery.ack().await.expect("acknowledged");
    }
    let mut after = event(&mut changes).await.expect("an event");
    while after.contains("send") {
        after = event(&mut changes).await.expect("an event");
    }
    assert!(after.contains("not there any more"), "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_in_the_middle_tells_that_a_part_is_done() {
    let database = Database::new();
    database.sql(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql
             AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
         CREATE TRIGGER refuse BEFORE DELETE ON lockapi.job FOR EACH ROW WHEN (OLD.name = 'stuck')
             EXECUTE FUNCTION public.refuse()",
    );
    let backend = connect(&database).await;
    let queue = backend.queue("mails").expect("a queue");
    let jobs = (0..2500).map(|n| Job::new("send", &n).expect("a job"));
    queue.push_all(jobs.collect()).await.expect("pushed");
    let stuck = Job::new("stuck", &1).expect("a job");
    queue.push(stuck).await.expect("pushed");
    let mut browser = Browser::of(&backend, WebOptions::new().actions(true));
    let answer = browser.act("purge", "mails", "", "a test").await;
    assert_eq!(
        answer.status,
        StatusCode::INTERNAL_SERVER_ERROR,
        "{}",
        answer.body
    );
    let screen = browser.get("/queue?name=mails").await;
    for told in ["purge: it failed: ", "what was done until then stays done"] {
        assert!(screen.body.contains(told), "{told}: {}", screen.body);
    }
    let left = database.sql("SELECT count(*) FROM lockapi.job");
    assert!(
        left.trim().parse::<u32>().is_ok_and(|left| left < 2501),
        "{left}"
    );
    backend.close().await.expect("closed");
}
