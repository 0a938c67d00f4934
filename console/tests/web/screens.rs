//! What is shown.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use lockapi::Backend;
use lockapi::lease::LeaseOptions;
use lockapi::limit::Quota;
use lockapi::queue::{Claim, Job};
use lockapi::schedule::Task;
use lockapi_console::web::{WebOptions, service};
use tower::ServiceExt;

use crate::visitor::{Browser, HERE, MINUTE, backend};

const SCREENS: [&str; 9] = [
    "/",
    "/locks",
    "/leases",
    "/queues",
    "/schedules",
    "/limits",
    "/ids",
    "/audit",
    "/queue?name=mails",
];
/// A name that would do something if it were taken for markup.
const NASTY: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\u{202e}";

/// A program that has something on each screen, by names of somebody hostile. Answers the number of a dead letter.
async fn hostile(backend: &Arc<dyn Backend>) -> (i64, Vec<Box<dyn std::any::Any>>) {
    let mutex = backend.mutex(NASTY).unwrap().lock().await.unwrap();
    let options = LeaseOptions::new(MINUTE).owner(NASTY).data(NASTY);
    let lease = backend.lease(NASTY, options).unwrap();
    let lease = lease.acquire().await.unwrap();
    let election = backend.election("chief", LeaseOptions::new(MINUTE).owner(NASTY));
    let queue = backend.queue(NASTY).unwrap();
    for _ in 0..2 {
        let job = Job::new(NASTY, &NASTY).unwrap();
        queue.push(job).await.unwrap();
    }
    let claim = Claim::new(2).worker(NASTY).lease(MINUTE);
    let mut claimed = queue.claim(&claim).await.unwrap();
    let dead = claimed.remove(0);
    let id = dead.id();
    dead.progress(0.4, NASTY).unwrap();
    is_told(backend, id).await;
    dead.reject(NASTY).await.unwrap();
    let limiter = backend.rate_limiter(Quota::per_hour(2)).unwrap();
    assert!(limiter.check(NASTY).await.unwrap().is_allowed());
    let task = Task::every(NASTY, MINUTE, Job::new(NASTY, &1).unwrap());
    backend
        .scheduler("upkeep")
        .unwrap()
        .set(task)
        .await
        .unwrap();
    let operator = backend.operator();
    operator.record("pause queue", NASTY, NASTY).await.unwrap();
    (
        id,
        vec![
            Box::new(mutex),
            Box::new(lease),
            Box::new(election),
            Box::new(claimed),
        ],
    )
}

/// Waits until what a job has told is written.
async fn is_told(backend: &Arc<dyn Backend>, id: i64) {
    let read = async || backend.inspector().job(id, false).await.unwrap().unwrap();
    while read().await.job.progress.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn without(text: &str, allowed: &str) -> String {
    text.replace(allowed, "")
}

#[tokio::test]
async fn names_of_others_are_text_on_every_screen() {
    let backend = backend().await;
    let (id, _held) = hostile(&backend).await;
    let options = WebOptions::new().actions(true).payloads(true);
    let mut browser = Browser::of(&backend, options);
    let name: String = form_urlencoded::byte_serialize(NASTY.as_bytes()).collect();
    let mut addresses: Vec<String> = SCREENS.map(str::to_owned).into();
    for state in ["ready", "running", "failed"] {
        addresses.push(format!("/queue?name={name}&state={state}&kind={name}"));
    }
    addresses.push(format!("/job?id={id}"));
    addresses.push(format!("/act?do=release&on={name}"));
    addresses.push(format!("/act?do={name}"));
    addresses.push(format!("/job?id={name}"));
    addresses.push(format!("/queue?name=mails&state={name}"));
    addresses.push(format!("/queue?name=mails&after={name}"));
    let mut shown = 0;
    for address in addresses {
        let page = browser.get(&address).await;
        let script = "<script src=\"/assets/live.js\" defer></script>";
        let body = without(&page.body, script);
        assert!(
            !body.contains("<script") && !body.contains("<img"),
            "{address}: {body}"
        );
        assert!(
            !body.contains("\"'><"),
            "{address}: a value left its quotes: {body}"
        );
        // But in fields, which have to send back what they were given.
        let mut outside = body.split("value=\"").enumerate();
        let turns = outside.any(|(n, part)| {
            let rest = part.split_once('"').map_or("", |(_, rest)| rest);
            (if n == 0 { part } else { rest }).contains('\u{202e}')
        });
        assert!(
            !turns,
            "{address}: the direction of writing changes: {body}"
        );
        for inline in [
            " style=",
            "<style",
            " onclick=",
            " onerror=alert(2)>",
            "javascript:",
        ] {
            assert!(!body.contains(inline), "{address}: {inline}: {body}");
        }
        shown += usize::from(body.contains("&lt;script&gt;alert(1)"));
    }
    assert!(shown >= 10, "it is shown, as text: {shown}");
}

#[tokio::test]
async fn every_answer_has_the_policy() {
    let backend = backend().await;
    let mut browser = Browser::of(&backend, WebOptions::new());
    let all = SCREENS.into_iter().chain([
        "/nothing",
        "/login",
        "/metrics",
        "/assets/live.js",
        "/job?id=x",
        "/queue?name=",
    ]);
    for address in all {
        let page = browser.get(address).await;
        let policy = page.header("content-security-policy");
        assert!(
            policy.contains("default-src 'none'") && policy.contains("script-src 'self'"),
            "{address}: {policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && policy.contains("form-action 'self'"));
        assert_eq!(
            page.header("x-content-type-options"),
            "nosniff",
            "{address}"
        );
        assert_eq!(page.header("x-frame-options"), "DENY", "{address}");
        assert_eq!(page.header("referrer-policy"), "same-origin", "{address}");
        assert_ne!(page.header("cache-control"), "", "{address}");
        assert!(!page.status.is_server_error(), "{address}: {}", page.status);
    }
}

#[tokio::test]
async fn payloads_are_shown_only_when_they_are_asked_for() {
    let backend = backend().await;
    let queue = backend.queue("mails").unwrap();
    let id = queue
        .push(
            Job::new("send", &"a secret")
                .unwrap()
                .header("tenant", "<a client>"),
        )
        .await
        .unwrap()
        .id;
    let address = format!("/job?id={id}");
    let mut masked = Browser::of(&backend, WebOptions::new().actions(true));
    let page = masked.get(&address).await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(
        !page.body.contains("a secret")
            && !page.body.contains("tenant")
            && page.body.contains("10 bytes"),
        "{}",
        page.body
    );
    let mut open = Browser::of(&backend, WebOptions::new().payloads(true));
    let shown = open.get(&address).await.body;
    for told in ["a secret", "tenant", "&lt;a client&gt;"] {
        assert!(shown.contains(told), "{shown}");
    }
}

#[tokio::test]
async fn each_screen_shows_what_is_there() {
    let backend = backend().await;
    let queue = backend.queue("mails").unwrap();
    for n in 0..60 {
        queue.push(Job::new("send", &n).unwrap()).await.unwrap();
    }
    queue
        .push(Job::new("later", &1).unwrap().delay(MINUTE))
        .await
        .unwrap();
    let claim = Claim::new(2).worker("node-7").lease(MINUTE);
    let mut claimed = queue.claim(&claim).await.unwrap();
    let dead = claimed.remove(0);
    let id = dead.id();
    dead.progress(0.4, "converted 40 of 100 files").unwrap();
    is_told(&backend, id).await;
    dead.reject("no such address").await.unwrap();
    let runs = claimed[0].id();
    claimed[0].progress(0.999_999, "").unwrap();
    is_told(&backend, runs).await;
    let options = LeaseOptions::new(MINUTE).owner("node-9");
    let lease = backend.lease("nightly", options).unwrap();
    let _held = lease.acquire().await.unwrap();
    let task = Task::every("vacuum", MINUTE, Job::new("vacuum", &1).unwrap());
    backend
        .scheduler("upkeep")
        .unwrap()
        .set(task)
        .await
        .unwrap();
    let limiter = backend.rate_limiter(Quota::per_hour(2)).unwrap();
    assert!(limiter.check("user:1").await.unwrap().is_allowed());
    let mutex = backend.mutex("door").unwrap();
    let _locked = mutex.lock().await.unwrap();

    let mut browser = Browser::of(&backend, WebOptions::new());
    for (address, words) in [
        ("/", &["Queues", "node-7"] as &[_]),
        ("/queues", &["mails"]),
        ("/leases", &["nightly", "node-9", "There is no leader."]),
        ("/schedules", &["vacuum", "upkeep", "every 1m 0s", "<svg"]),
        ("/limits", &["user:1"]),
        ("/ids", &["No worker number is held."]),
        ("/locks", &["Nobody waits for a lock."]),
        (
            "/queue?name=mails&state=running",
            &["node-7", "send", "99% done"],
        ),
        ("/queue?name=mails&state=failed", &["no such address"]),
        ("/queue?name=mails&state=delayed", &["later"]),
        ("/queue?name=mails&kind=nobody", &["No jobs."]),
        (
            &format!("/job?id={id}"),
            &[
                "attempt 1 began on node-7",
                "failed",
                "no such address",
                "<progress max=\"100\" value=\"40\">",
                "40% converted 40 of 100 files, told ",
            ],
        ),
    ] {
        let page = browser.get(address).await;
        assert_eq!(page.status, StatusCode::OK, "{address}");
        for word in words {
            assert!(
                page.body.contains(word),
                "{address}: no {word}: {}",
                page.body
            );
        }
    }
    // The second page has the rest.
    let first = browser.get("/queue?name=mails").await.body;
    let (_, rest) = first
        .split_once("rel=\"next\" href=\"")
        .expect("a further page");
    let next = rest.split('"').next().unwrap().replace("&amp;", "&");
    let second = browser.get(&next).await.body;
    assert_eq!(first.matches("<td class=\"id\">").count(), 50);
    assert_eq!(second.matches("<td class=\"id\">").count(), 8);
    for missing in ["/nothing", "/job?id=123456", "/queue/x"] {
        assert_eq!(
            browser.get(missing).await.status,
            StatusCode::NOT_FOUND,
            "{missing}"
        );
    }
    for bad in [
        "/queue",
        "/queue?name=mails&state=lost",
        "/queue?name=mails&after=1",
        "/job?id=%00",
    ] {
        assert_eq!(
            browser.get(bad).await.status,
            StatusCode::BAD_REQUEST,
            "{bad}"
        );
    }
}

#[tokio::test]
async fn changes_are_told() {
    let backend = backend().await;
    let queue = backend.queue("mails").unwrap();
    queue.push(Job::new("send", &1).unwrap()).await.unwrap();
    let router = service(Arc::clone(&backend), WebOptions::new());
    let mut request = Request::get("/live?screen=queues").header("host", "localhost");
    let peer: std::net::SocketAddr = HERE.parse().unwrap();
    request = request.extension(ConnectInfo(peer));
    let response = router
        .oneshot(request.body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let frame = tokio::time::timeout(Duration::from_secs(30), body.frame()).await;
    let data = frame
        .expect("in time")
        .unwrap()
        .unwrap()
        .into_data()
        .unwrap();
    let text = String::from_utf8(data.to_vec()).unwrap();
    assert!(
        text.starts_with("data: <h1>Queues</h1>") && text.contains("mails"),
        "{text}"
    );
    assert!(!text.contains("<html"), "the content alone: {text}");
}

#[tokio::test]
async fn more_than_enough_viewers_are_refused() {
    let backend = backend().await;
    let router = service(Arc::clone(&backend), WebOptions::new());
    let peer: std::net::SocketAddr = HERE.parse().unwrap();
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..70 {
        let request = Request::get("/live?screen=queues").header("host", "localhost");
        let request = request
            .extension(ConnectInfo(peer))
            .body(Body::empty())
            .unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            refused += 1;
        } else {
            open.push(response);
        }
    }
    assert_eq!((open.len(), refused), (64, 6));
    // Who leaves makes room.
    open.clear();
    let request = Request::get("/live?screen=queues").header("host", "localhost");
    let request = request
        .extension(ConnectInfo(peer))
        .body(Body::empty())
        .unwrap();
    assert_eq!(
        router.oneshot(request).await.unwrap().status(),
        StatusCode::OK
    );
}
