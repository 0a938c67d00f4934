//! Acting: only where it is allowed, by forms of the page, with a reason.

use axum::http::StatusCode;
use lockapi::admin::Filter;
use lockapi::lease::LeaseOptions;
use lockapi::limit::Quota;
use lockapi::queue::{Claim, Job};
use lockapi::schedule::Task;
use lockapi_console::web::WebOptions;

use crate::visitor::{Browser, MINUTE, backend};

#[tokio::test]
async fn a_page_that_may_only_be_read_changes_nothing() {
    let backend = backend().await;
    let queue = backend.queue("mails").unwrap();
    queue.push(Job::new("send", &1).unwrap()).await.unwrap();
    let mut browser = Browser::of(&backend, WebOptions::new());
    let page = browser.get("/queues").await;
    assert!(!page.body.contains("/act?"), "{}", page.body);
    assert!(page.body.contains("Read-only."));
    assert_eq!(
        browser.get("/act?do=pause&on=mails").await.status,
        StatusCode::FORBIDDEN
    );
    // A form of the page that is not for this.
    let fields = [("reason", "why not"), ("form", "")];
    assert_eq!(
        browser.post("/act?do=pause&on=mails", &fields).await.status,
        StatusCode::FORBIDDEN
    );
    assert!(!queue.statistics().await.unwrap().paused);
    assert!(
        backend
            .inspector()
            .audit(&Filter::new())
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn forms_of_others_change_nothing() {
    let backend = backend().await;
    let queue = backend.queue("mails").unwrap();
    queue.push(Job::new("send", &1).unwrap()).await.unwrap();
    let mut browser = Browser::of(&backend, WebOptions::new().actions(true));
    let form = browser.get("/act?do=pause&on=mails").await.field("form");
    let with = |form| [("form", form), ("reason", "why")];
    let pause = "/act?do=pause&on=mails";
    for wrong in ["", "0", &form[1..]] {
        let refused = browser.post(pause, &with(wrong)).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{wrong}");
    }
    for headers in [
        [("origin", "https://evil.example")],
        [("origin", "null")],
        [("origin", "http://localhost:8080")],
        [("sec-fetch-site", "cross-site")],
        [("sec-fetch-site", "same-site")],
    ] {
        let refused = browser.post_with(pause, &with(&form), &headers).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{headers:?}");
    }
    // The form of one browser in another, as a page of others would have it.
    let mut other = Browser::of(&backend, WebOptions::new().actions(true));
    other.get("/queues").await;
    assert_eq!(
        other.post(pause, &with(&form)).await.status,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        browser
            .get(&format!("/act?do=pause&on=mails&form={form}&reason=why"))
            .await
            .status,
        StatusCode::OK
    );
    assert!(
        !queue.statistics().await.unwrap().paused,
        "nothing of it did anything"
    );

    let own = [
        ("origin", "http://localhost:7070"),
        ("sec-fetch-site", "same-origin"),
    ];
    let done = browser.post_with(pause, &with(&form), &own).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    assert!(queue.statistics().await.unwrap().paused);
}

#[tokio::test]
async fn what_is_done_has_a_reason_in_the_audit() {
    let backend = backend().await;
    let queue = backend.queue("mails").unwrap();
    let mut browser = Browser::of(&backend, WebOptions::new().actions(true));
    let first = queue.push(Job::new("send", &1).unwrap()).await.unwrap().id;
    let second = queue.push(Job::new("send", &2).unwrap()).await.unwrap().id;
    let later = Job::new("send", &3).unwrap().delay(MINUTE);
    let later = queue.push(later).await.unwrap().id.to_string();
    let mut claimed = queue.claim(&Claim::new(1).lease(MINUTE)).await.unwrap();
    claimed.remove(0).reject("no such address").await.unwrap();
    let lease = backend.lease("nightly", LeaseOptions::new(MINUTE)).unwrap();
    let guard = lease.acquire().await.unwrap();
    let task = Task::every("vacuum", MINUTE, Job::new("vacuum", &1).unwrap());
    let scheduler = backend.scheduler("upkeep").unwrap();
    scheduler.set(task).await.unwrap();

    for blank in ["", "   "] {
        let asked_again = browser.act("pause", "mails", "", blank).await;
        assert_eq!(asked_again.status, StatusCode::BAD_REQUEST);
        assert!(
            asked_again.body.contains("no reason is given"),
            "{}",
            asked_again.body
        );
    }
    let long = "x".repeat(2000);
    assert_eq!(
        browser.act("pause", "mails", "", &long).await.status,
        StatusCode::BAD_REQUEST
    );
    assert!(!queue.statistics().await.unwrap().paused);

    let (first, second) = (first.to_string(), second.to_string());
    for (action, on, item, reason) in [
        ("pause", "mails", "", "the server is down"),
        ("retry", "mails", &*first, "the address was mended"),
        ("cancel", "mails", &*second, "sent by hand"),
        ("run-job", "mails", &*later, "they wait for it"),
        ("release", "nightly", "", "its node is gone"),
        ("disable", "upkeep", "vacuum", "too much load"),
        ("run", "upkeep", "vacuum", "once by hand"),
    ] {
        let done = browser.act(action, on, item, reason).await;
        assert_eq!(done.status, StatusCode::OK, "{action}: {}", done.body);
    }
    let statistics = queue.statistics().await.unwrap();
    assert!(statistics.paused);
    assert_eq!((statistics.ready.count, statistics.dead.count), (2, 0));
    assert_eq!(statistics.delayed.count, 0);
    assert!(
        backend
            .inspector()
            .leases(&Filter::new())
            .await
            .unwrap()
            .is_empty()
    );
    assert!(!scheduler.list().await.unwrap()[0].enabled);
    assert_eq!(scheduler.runs("vacuum", None, 10).await.unwrap().len(), 1);
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    let actions: Vec<_> = audit.iter().rev().map(|entry| &*entry.action).collect();
    assert_eq!(
        actions,
        [
            "pause queue",
            "redrive job",
            "cancel job",
            "edit job",
            "release lease",
            "disable task",
            "run task"
        ]
    );
    assert_eq!(audit[6].reason, "the server is down (on this machine)");
    let page = browser.get("/audit").await;
    assert!(
        page.body.contains("the address was mended"),
        "{}",
        page.body
    );
    // Its holder hears of it by itself.
    drop(guard);
}

/// Browsers change the ends of lines of what a form sends, and names may have any.
#[tokio::test]
async fn what_a_form_is_for_does_not_depend_on_the_browser() {
    let backend = backend().await;
    let mut browser = Browser::of(&backend, WebOptions::new().actions(true));
    for key in ["odd\rkey", "odd\nkey", "odd\r\nkey", "a&b=c+d%0D \"ü"] {
        let lease = backend.lease(key, LeaseOptions::new(MINUTE)).unwrap();
        let _guard = lease.acquire().await.unwrap();
        let done = browser.act("release", key, "", "its node is gone").await;
        assert_eq!(done.status, StatusCode::OK, "{key:?}: {}", done.body);
        let held = backend.inspector().leases(&Filter::new()).await.unwrap();
        assert!(held.is_empty(), "{held:?}");
        let job = Job::new("send", &1).unwrap().delay(MINUTE);
        let id = backend.queue(key).unwrap().push(job).await.unwrap().id;
        let edit = form_urlencoded::Serializer::new(String::new())
            .extend_pairs([("name", key), ("id", &id.to_string())])
            .finish();
        let asked = browser.get(&format!("/edit?{edit}")).await;
        let written = [("due", "now"), ("reason", "they wait")];
        let done = browser.submit(&asked, &written).await;
        assert_eq!(done.status, StatusCode::OK, "{key:?}: {}", done.body);
    }
}

#[tokio::test]
async fn a_job_that_waits_for_its_time_can_be_run_now() {
    let backend = backend().await;
    let queue = backend.queue("mails").unwrap();
    let ready = queue.push(Job::new("send", &1).unwrap()).await.unwrap().id;
    let later = Job::new("send", &2).unwrap().delay(MINUTE);
    let later = queue.push(later).await.unwrap().id;
    let offers = async |id: i64, allowed: bool| {
        let mut browser = Browser::of(&backend, WebOptions::new().actions(allowed));
        let page = browser.get(&format!("/job?id={id}")).await;
        assert_eq!(page.status, StatusCode::OK);
        let offered = page.body.contains("/act?do=run-job&amp;on=mails");
        assert_eq!(offered, page.body.contains("Run now"), "{}", page.body);
        offered
    };
    assert!(offers(later, true).await);
    assert!(!offers(later, false).await, "the page is read-only");
    assert!(!offers(ready, true).await, "it is due");
    let mut reader = Browser::of(&backend, WebOptions::new());
    let asked = format!("/act?do=run-job&on=mails&item={later}");
    assert_eq!(reader.get(&asked).await.status, StatusCode::FORBIDDEN);
    let mut browser = Browser::of(&backend, WebOptions::new().actions(true));
    let item = later.to_string();
    let blank = browser.act("run-job", "mails", &item, " ").await;
    assert_eq!(blank.status, StatusCode::BAD_REQUEST);
    assert_eq!(queue.statistics().await.unwrap().delayed.count, 1);
    let done = browser.act("run-job", "mails", &item, "they wait").await;
    assert!(done.body.contains("is due now"), "{}", done.body);
    let claimed = queue.claim(&Claim::new(2).lease(MINUTE)).await.unwrap();
    assert_eq!(claimed.len(), 2);
    let late = browser.act("run-job", "mails", &item, "again").await;
    assert_eq!(late.status, StatusCode::CONFLICT);
    assert!(
        late.body.contains("does not wait any more"),
        "{}",
        late.body
    );
}

/// The log has what was done, and nothing of what was not there any more.
#[tokio::test]
async fn what_is_absent_is_told_and_not_recorded() {
    let backend = backend().await;
    let queue = backend.queue("mails").unwrap();
    let runs = queue.push(Job::new("send", &1).unwrap()).await.unwrap().id;
    let claimed = queue.claim(&Claim::new(1).lease(MINUTE)).await.unwrap();
    assert_eq!(claimed.len(), 1);
    let limiter = backend.rate_limiter(Quota::per_hour(9)).unwrap();
    assert!(limiter.check("b").await.unwrap().is_allowed());
    let runs = runs.to_string();
    let mut browser = Browser::of(&backend, WebOptions::new().actions(true));
    for (action, on, item, told) in [
        ("release", "nightly", "", "nobody holds the lease nightly"),
        ("cancel", "mails", "999", "there is no job 999 in mails"),
        ("cancel", "other", &*runs, "there is no job"),
        ("run-job", "mails", &*runs, "is running: it does not wait"),
        ("retry", "mails", &*runs, "is running: it is no dead letter"),
        ("reset", "a", "", "nothing is kept of the limit a"),
        ("unblock", "a", "", "nothing is kept of the limit a"),
        ("resume", "other", "", "there is no queue other"),
        ("resume-name", "other", "send", "there is no queue other"),
        ("enable", "upkeep", "vacuum", "upkeep has no task vacuum"),
        ("disable", "upkeep", "vacuum", "upkeep has no task vacuum"),
        ("run", "upkeep", "vacuum", "upkeep has no task vacuum"),
    ] {
        let answer = browser.act(action, on, item, "a test").await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{action}");
        let is_told = answer.body.contains(told) && answer.body.contains("Nothing was done");
        assert!(is_told, "{action}: {}", answer.body);
    }
    for (action, told) in [
        ("purge", "no jobs of mails wait"),
        ("discard", "mails has no dead letters"),
        ("redrive", "mails has no dead letters"),
    ] {
        let answer = browser.act(action, "mails", "", "a test").await;
        assert_eq!(answer.status, StatusCode::OK, "{action}");
        let is_told = answer.body.contains(told) && answer.body.contains("Nothing to do");
        assert!(is_told, "{action}: {}", answer.body);
    }
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    assert!(audit.is_empty(), "{audit:?}");
    for (action, on) in [("reset", "b"), ("pause", "mails"), ("resume", "mails")] {
        let done = browser.act(action, on, "", "a test").await;
        assert_eq!(done.status, StatusCode::OK, "{action}: {}", done.body);
    }
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    assert_eq!(audit.len(), 3, "{audit:?}");
}

#[tokio::test]
async fn nonsense_is_answered_and_not_done() {
    let backend = backend().await;
    let mut browser = Browser::of(&backend, WebOptions::new().actions(true));
    for query in [
        "",
        "do=drop&on=q",
        "do=cancel&on=q&item=x",
        "do=cancel&on=q&item=99999999999999999999",
        "do=run-job&on=q&item=x",
    ] {
        let answer = browser.get(&format!("/act?{query}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
    }
    let no_queue = browser.act("pause", "", "", "why").await;
    assert_eq!(
        no_queue.status,
        StatusCode::BAD_REQUEST,
        "{}",
        no_queue.body
    );
    let large = "x".repeat(20 << 10);
    let answer = browser.post("/act", &[("reason", &large)]).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(
        answer.body.contains("allowed are 16 KiB"),
        "{}",
        answer.body
    );
    assert!(
        backend
            .inspector()
            .audit(&Filter::new())
            .await
            .unwrap()
            .is_empty()
    );
}

/// The log has what was done, and not what was refused.
#[tokio::test]
async fn a_time_that_is_refused_is_not_recorded() {
    let backend = backend().await;
    let mut browser = Browser::of(&backend, WebOptions::new().actions(true));
    for (action, time) in [("block", "400days"), ("pause", "40000days")] {
        let refused = browser.act_for(action, "a", time, "a test").await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{action}");
        assert!(refused.body.contains("allowed"), "{}", refused.body);
    }
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    assert!(audit.is_empty(), "{audit:?}");
}
