//! Acting on whole queues, on names of jobs and on limits.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use lockapi::Backend;
use lockapi::admin::Filter;
use lockapi::limit::Quota;
use lockapi::memory::Database;
use lockapi::queue::{Claim, Delivery, Job};
use lockapi_console::web::WebOptions;

use crate::visitor::{Browser, MINUTE, backend};

fn actor(backend: &Arc<dyn Backend>) -> Browser {
    Browser::of(backend, WebOptions::new().actions(true))
}

async fn push(backend: &dyn Backend, name: &str, jobs: usize) {
    let queue = backend.queue("mails").unwrap();
    for n in 0..jobs {
        queue.push(Job::new(name, &n).unwrap()).await.unwrap();
    }
}

async fn claim(backend: &dyn Backend, jobs: usize) -> Vec<Delivery> {
    let queue = backend.queue("mails").unwrap();
    queue.claim(&Claim::new(jobs).lease(MINUTE)).await.unwrap()
}

/// The actions and targets in the audit log, in their order.
async fn audit(backend: &dyn Backend) -> Vec<(String, String)> {
    let entries = backend.inspector().audit(&Filter::new()).await.unwrap();
    let entries = entries.into_iter().rev();
    entries.map(|entry| (entry.action, entry.target)).collect()
}

#[tokio::test]
async fn a_purge_shows_what_it_would_delete_first() {
    let backend = backend().await;
    push(&*backend, "send", 12).await;
    let queue = backend.queue("mails").unwrap();
    let later = Job::new("later", &1).unwrap().delay(MINUTE);
    queue.push(later).await.unwrap();
    let running = claim(&*backend, 1).await;
    let mut browser = actor(&backend);
    let screen = browser.get("/queue?name=mails").await;
    assert!(screen.body.contains("/act?do=purge&amp;on=mails"));
    let dry = browser.get("/act?do=purge&on=mails").await;
    assert_eq!(dry.status, StatusCode::OK);
    for told in [
        "Due and waiting: 11 would be deleted.",
        "Delayed: 1 would be deleted.",
        "later",
    ] {
        assert!(dry.body.contains(told), "no {told}: {}", dry.body);
    }
    assert_eq!(dry.body.matches("<td class=\"id\">").count(), 11);
    let blank = browser.act("purge", "mails", "", " ").await;
    assert_eq!(blank.status, StatusCode::BAD_REQUEST);
    assert!(blank.body.contains("no reason is given"), "{}", blank.body);
    assert_eq!(queue.statistics().await.unwrap().ready.count, 11);
    assert!(audit(&*backend).await.is_empty());

    let done = browser.act("purge", "mails", "", "a faulty import").await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    assert!(done.body.contains("12 jobs of mails were deleted"));
    let left = queue.statistics().await.unwrap();
    let counts = (left.ready.count, left.delayed.count, left.running.count);
    assert_eq!(counts, (0, 0, 1), "what runs goes on");
    assert_eq!(
        audit(&*backend).await,
        [("purge queue".to_owned(), "mails".to_owned())]
    );
    let screen = browser.get("/queue?name=mails").await;
    assert!(
        screen.body.contains("purge: 12 jobs of mails were deleted"),
        "{}",
        screen.body
    );
    assert!(!screen.body.contains("do=purge"), "nothing waits any more");
    drop(running);
}

#[tokio::test]
async fn dead_letters_are_deleted_or_put_back_together() {
    let backend = backend().await;
    let queue = backend.queue("mails").unwrap();
    let fail = async |jobs| {
        push(&*backend, "send", jobs).await;
        for delivery in claim(&*backend, jobs).await {
            delivery.reject("no such address").await.unwrap();
        }
    };
    fail(3).await;
    let mut browser = actor(&backend);
    let dry = browser.get("/act?do=redrive&on=mails").await;
    assert!(
        dry.body.contains("Dead letters: 3 would be put back."),
        "{}",
        dry.body
    );
    let done = browser.act("redrive", "mails", "", "it is back").await;
    assert!(done.body.contains("3 dead letters are back in mails"));
    assert_eq!(queue.statistics().await.unwrap().ready.count, 3);
    claim(&*backend, 3).await;
    fail(2).await;
    let dry = browser.get("/act?do=discard&on=mails").await;
    assert!(
        dry.body.contains("Dead letters: 2 would be deleted."),
        "{}",
        dry.body
    );
    assert_eq!(queue.statistics().await.unwrap().dead.count, 2);
    let done = browser.act("discard", "mails", "", "they are old").await;
    assert!(done.body.contains("2 dead letters of mails were deleted"));
    assert_eq!(queue.statistics().await.unwrap().dead.count, 0);
    let all = || "all of mails".to_owned();
    assert_eq!(
        audit(&*backend).await,
        [("redrive".to_owned(), all()), ("discard".to_owned(), all())]
    );
}

#[tokio::test]
async fn a_drain_tells_what_still_runs_and_waits_for_nothing() {
    let backend = backend().await;
    push(&*backend, "send", 3).await;
    let mut running = claim(&*backend, 1).await;
    let mut browser = actor(&backend);
    let asked = browser.get("/act?do=drain&on=mails").await;
    assert!(
        asked.body.contains("Running: 1 run to the end."),
        "{}",
        asked.body
    );
    let done = browser.act("drain", "mails", "", "release 1.7").await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    let address = "/queue?name=mails&state=running";
    assert!(
        done.body
            .contains("href=\"/queue?name=mails&amp;state=running\"")
    );
    assert!(claim(&*backend, 1).await.is_empty(), "nothing is delivered");
    let shown = browser.get(address).await;
    assert!(shown.body.contains("1 still run."), "{}", shown.body);
    assert!(shown.body.contains("/act?do=resume&amp;on=mails"));
    assert!(!shown.body.contains("do=drain"), "it is drained already");
    running.remove(0).ack().await.unwrap();
    let drained = "none runs: the queue is drained";
    while !browser.get(address).await.body.contains(drained) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let done = browser.act("resume", "mails", "", "it is out").await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    assert!(!browser.get(address).await.body.contains("is drained"));
    assert_eq!(claim(&*backend, 1).await.len(), 1);
    let mails = || "mails".to_owned();
    assert_eq!(
        audit(&*backend).await,
        [
            ("drain queue".to_owned(), mails()),
            ("resume queue".to_owned(), mails())
        ]
    );
}

#[tokio::test]
async fn one_name_of_jobs_is_paused_and_resumed() {
    let backend = backend().await;
    push(&*backend, "digest", 1).await;
    push(&*backend, "send", 1).await;
    let mut browser = actor(&backend);
    let all = browser.get("/queue?name=mails").await;
    assert!(!all.body.contains("do=pause-name"), "no name is chosen");
    let screen = browser.get("/queue?name=mails&kind=digest").await;
    let offer = |word| format!("/act?do={word}&amp;on=mails&amp;item=digest");
    assert!(screen.body.contains(&offer("pause-name")));
    assert!(!screen.body.contains("resume-name"), "none is paused");
    let done = browser
        .act("pause-name", "mails", "digest", "it fails")
        .await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    let screen = browser.get("/queue?name=mails").await;
    assert!(
        screen.body.contains(&offer("resume-name")),
        "{}",
        screen.body
    );
    assert!(screen.body.contains("The jobs <b>digest</b> are paused"));
    let claimed = claim(&*backend, 2).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].name(), "send");
    let done = browser
        .act("resume-name", "mails", "digest", "mended")
        .await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    assert_eq!(claim(&*backend, 2).await.len(), 1);
    let screen = browser.get("/queue?name=mails").await;
    assert!(!screen.body.contains("are paused"), "{}", screen.body);
    let target = || "mails/digest".to_owned();
    assert_eq!(
        audit(&*backend).await,
        [
            ("pause name".to_owned(), target()),
            ("resume name".to_owned(), target())
        ]
    );
}

#[tokio::test]
async fn a_pause_ends_by_itself_when_it_has_a_time() {
    let backend = backend().await;
    push(&*backend, "send", 1).await;
    let queue = backend.queue("mails").unwrap();
    let mut browser = actor(&backend);
    for wrong in ["soon", "0s", "-1h"] {
        let done = browser.act_for("pause", "mails", wrong, "why").await;
        assert_eq!(done.status, StatusCode::BAD_REQUEST, "{wrong}");
        assert!(done.body.contains("allowed are times"), "{}", done.body);
    }
    assert!(!queue.statistics().await.unwrap().paused);
    assert!(audit(&*backend).await.is_empty());
    let done = browser.act_for("pause", "mails", "2h", "it is down").await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    let left = queue.statistics().await.unwrap().resumes_in.unwrap();
    assert!(left > 110 * MINUTE && left <= 120 * MINUTE, "{left:?}");
}

#[tokio::test]
async fn a_limit_is_blocked_and_begins_anew() {
    let backend = backend().await;
    let limiter = backend.rate_limiter(Quota::per_hour(1)).unwrap();
    let is_allowed = async || limiter.check("user:1").await.unwrap().is_allowed();
    assert!(is_allowed().await);
    let mut browser = actor(&backend);
    let screen = browser.get("/limits").await;
    for word in ["reset", "block"] {
        let offer = format!("/act?do={word}&amp;on=user%3A1");
        assert!(screen.body.contains(&offer), "{}", screen.body);
    }
    let done = browser.act("reset", "user:1", "", "a faulty release").await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    let done = browser.act_for("block", "user:1", "30m", "abuse").await;
    assert!(
        done.body.contains("user:1 is blocked for 30m"),
        "{}",
        done.body
    );
    assert!(!is_allowed().await);
    let screen = browser.get("/limits").await;
    assert!(
        screen.body.contains("/act?do=unblock&amp;on=user%3A1"),
        "{}",
        screen.body
    );
    let done = browser.act("unblock", "user:1", "", "a mistake").await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    assert!(is_allowed().await, "what was taken is forgotten");
    let actions: Vec<_> = audit(&*backend).await;
    let actions: Vec<_> = actions.iter().map(|(action, _)| &**action).collect();
    assert_eq!(actions, ["reset limit", "block limit", "block limit"]);
    for wrong in ["#", "#x", ""] {
        let done = browser.act("reset", wrong, "", "why").await;
        assert_eq!(done.status, StatusCode::BAD_REQUEST, "{wrong}");
    }
    assert_eq!(audit(&*backend).await.len(), 3, "nonsense is not recorded");
}

#[tokio::test]
async fn who_may_only_look_and_forms_of_others_do_none_of_it() {
    let backend = backend().await;
    push(&*backend, "send", 2).await;
    let limiter = backend.rate_limiter(Quota::per_hour(1)).unwrap();
    assert!(limiter.check("user:1").await.unwrap().is_allowed());
    let mut reader = Browser::of(&backend, WebOptions::new());
    let mut browser = actor(&backend);
    let form = reader.form_of_nothing().await;
    for (word, on, item) in [
        ("drain", "mails", ""),
        ("pause-name", "mails", "send"),
        ("resume-name", "mails", "send"),
        ("purge", "mails", ""),
        ("discard", "mails", ""),
        ("redrive", "mails", ""),
        ("reset", "user:1", ""),
        ("block", "user:1", ""),
        ("unblock", "user:1", ""),
    ] {
        let address = format!("/act?do={word}&on={on}&item={item}");
        let asked = reader.get(&address).await;
        assert_eq!(asked.status, StatusCode::FORBIDDEN, "{word}");
        let fields = [("reason", "why"), ("form", &*form)];
        let sent = reader.post(&address, &fields).await;
        assert_eq!(sent.status, StatusCode::FORBIDDEN, "{word}");
        assert_eq!(browser.get(&address).await.status, StatusCode::OK, "{word}");
        let sent = browser.post(&address, &fields).await;
        assert_eq!(sent.status, StatusCode::FORBIDDEN, "{word}: another form");
    }
    assert!(audit(&*backend).await.is_empty());
    let counted = backend.queue("mails").unwrap().statistics().await.unwrap();
    assert!(!counted.paused);
    assert_eq!(counted.ready.count, 2);
}

#[tokio::test]
async fn a_queue_has_pictures_of_its_history() {
    let database = Database::new();
    let backend: Arc<dyn Backend> = database.connect().await.unwrap();
    let mut browser = actor(&backend);
    push(&*backend, "send", 3).await;
    let screen = browser.get("/queue?name=mails").await;
    assert!(!screen.body.contains("last hour"), "nothing is known yet");
    let mut claimed = claim(&*backend, 3).await;
    claimed.remove(0).ack().await.unwrap();
    claimed.remove(0).ack().await.unwrap();
    claimed.remove(0).reject("never").await.unwrap();
    // A second program of the same database shows what the first has written when it ended.
    let reader: Arc<dyn Backend> = database.connect().await.unwrap();
    backend.close().await.unwrap();
    let mut browser = actor(&reader);
    for (address, told) in [
        (
            "/queue?name=mails",
            "last hour: 2 completed, 1 failed, 1 dead",
        ),
        (
            "/queue?name=mails&kind=send",
            "last week: 2 completed, 1 failed, 1 dead",
        ),
    ] {
        let screen = browser.get(address).await;
        assert!(screen.body.contains(told), "no {told}: {}", screen.body);
        assert!(
            screen.body.contains("<rect class=\"bad\""),
            "{}",
            screen.body
        );
    }
    let other = browser.get("/queue?name=mails&kind=digest").await;
    assert!(!other.body.contains("last hour"));
}
