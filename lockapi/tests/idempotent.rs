//! The layer for idempotency keys, on the in-memory backend.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use lockapi::engine::ManualClock;
use lockapi::idempotency::{Execution, IdempotencyOptions};
use lockapi::memory::Database;
use lockapi::tower::{IdempotencyLayer, Refusal};
use tokio::sync::Notify;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt};

type Body = Full<Bytes>;
type Service = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// A service that answers with how often it was called, and with what its request's path says: `/status/500`,
/// `/large`, `/wait`, which waits until it is told.
#[derive(Clone, Default)]
struct Inner {
    calls: Arc<AtomicUsize>,
    go_on: Arc<Notify>,
}

impl Inner {
    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let nth = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let path = request.uri().path().to_owned();
        let executed = request.extensions().get::<Arc<Execution>>().is_some();
        if path == "/wait" {
            self.go_on.notified().await;
        }
        let status = path.strip_prefix("/status/").map_or("201", |it| it);
        let mut body = format!("{nth} {executed}").into_bytes();
        if path == "/large" {
            body = vec![7; 600_000];
        }
        let response = Response::builder().status(status).header("x-nth", nth);
        Ok(response.body(Full::from(body)).unwrap())
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

struct Bench {
    clock: ManualClock,
    database: Database,
    inner: Inner,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::default();
        Self {
            database: Database::with_clock(&clock),
            clock,
            inner: Inner::default(),
        }
    }

    /// An instance of the service.
    async fn service(
        &self,
        with: impl FnOnce(IdempotencyLayer<Body>) -> IdempotencyLayer<Body>,
    ) -> Service {
        let backend = self.database.connect().await.unwrap();
        let requests = backend.idempotency(IdempotencyOptions::default()).unwrap();
        let layer = IdempotencyLayer::new(requests, |head| {
            let user = head.headers.get("x-user");
            user.map_or_else(String::new, |it| it.to_str().unwrap().to_owned())
        });
        let inner = self.inner.clone();
        let inner = tower::service_fn(move |request| inner.clone().answer(request));
        BoxCloneSyncService::new(with(layer).layer(inner))
    }
}

struct Sent<'a> {
    method: &'a str,
    path: &'a str,
    key: &'a str,
    user: &'a str,
    body: &'a str,
}

const PAY: Sent<'static> = Sent {
    method: "POST",
    path: "/",
    key: "\"8e03978e-40d5\"",
    user: "ada",
    body: "pay",
};

/// Status, whether it was replayed, and the body.
async fn send(service: &Service, sent: Sent<'_>) -> (u16, bool, String) {
    let mut request = Request::builder().method(sent.method).uri(sent.path);
    request = request.header("x-user", sent.user);
    if !sent.key.is_empty() {
        request = request.header("idempotency-key", sent.key);
    }
    let request = request.body(Full::from(sent.body.to_owned())).unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    let replayed = response.headers().contains_key("idempotency-replayed");
    if response.status() == StatusCode::CREATED {
        assert!(response.headers().contains_key("x-nth"));
    }
    let status = response.status().as_u16();
    let retry_after = response.headers().get("retry-after").cloned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    // Of the layer, and not of the handler.
    if status == 409 && body.is_empty() {
        assert_eq!(retry_after.unwrap(), "1");
    }
    let body = String::from_utf8_lossy(&body).into_owned();
    (status, replayed, body)
}

fn answered(nth: usize, replayed: bool) -> (u16, bool, String) {
    (201, replayed, format!("{nth} true"))
}

#[tokio::test]
async fn a_request_that_is_sent_again_is_executed_once() {
    let bench = Bench::new();
    let (here, there) = (bench.service(|it| it).await, bench.service(|it| it).await);
    assert_eq!(send(&here, PAY).await, answered(1, false));
    for service in [&here, &there] {
        assert_eq!(send(service, PAY).await, answered(1, true));
    }
    // Without quotes it is the same key.
    let key = "8e03978e-40d5";
    assert_eq!(send(&there, Sent { key, ..PAY }).await, answered(1, true));
    // The keys of others are others, however they are put together.
    for user in ["eve", "", "ad"] {
        let nth = bench.inner.calls() + 1;
        let key = if user == "ad" { "a8e03978e-40d5" } else { key };
        assert_eq!(
            send(&here, Sent { key, user, ..PAY }).await,
            answered(nth, false)
        );
    }
    bench.clock.leap(Duration::from_secs(24 * 3600));
    assert_eq!(send(&here, PAY).await, answered(5, false));
}

#[tokio::test]
async fn another_request_with_the_key_is_refused() {
    let bench = Bench::new();
    let service = bench.service(|it| it).await;
    assert_eq!(send(&service, PAY).await, answered(1, false));
    let (method, path, body) = ("PATCH", "/other", "pay more");
    for other in [
        Sent { method, ..PAY },
        Sent { path, ..PAY },
        Sent { body, ..PAY },
    ] {
        assert_eq!(send(&service, other).await.0, 422);
    }
    assert_eq!(bench.inner.calls(), 1);
}

#[tokio::test]
async fn keys_are_checked() {
    let bench = Bench::new();
    let optional = bench.service(|it| it).await;
    let required = bench.service(IdempotencyLayer::required).await;
    let long = "x".repeat(129);
    for key in ["\"\"", " ", &long] {
        assert_eq!(send(&optional, Sent { key, ..PAY }).await.0, 400, "{key}");
    }
    assert_eq!(send(&required, Sent { key: "", ..PAY }).await.0, 400);
    // Without a key it is executed each time, and what is safe to repeat always is.
    let method = "GET";
    for (service, sent) in [
        (&optional, Sent { key: "", ..PAY }),
        (&required, Sent { method, ..PAY }),
        (&required, Sent { method, ..PAY }),
    ] {
        let nth = bench.inner.calls() + 1;
        assert_eq!(
            send(service, sent).await,
            (201, false, format!("{nth} false"))
        );
    }
    let body = &"x".repeat(600_000);
    assert_eq!(send(&required, Sent { body, ..PAY }).await.0, 413);
    let told = bench.service(|it| {
        it.required().refuse(|refusal| {
            let body = if refusal == Refusal::MissingKey {
                "a key, please"
            } else {
                ""
            };
            Response::new(Full::from(body))
        })
    });
    let refused = send(&told.await, Sent { key: "", ..PAY }).await;
    assert_eq!(refused, (200, false, "a key, please".to_owned()));
}

#[tokio::test]
async fn what_failed_is_executed_again() {
    let bench = Bench::new();
    let service = bench.service(|it| it).await;
    for (path, kept) in [
        ("/status/500", false),
        ("/status/429", false),
        ("/status/409", false),
        ("/status/400", true),
        ("/status/204", true),
    ] {
        let key = &path.replace('/', "-");
        let before = bench.inner.calls();
        let status: u16 = path.rsplit('/').next().unwrap().parse().unwrap();
        assert_eq!(send(&service, Sent { path, key, ..PAY }).await.0, status);
        // What it held is given back in the background.
        for _ in 0..200 {
            let again = send(&service, Sent { path, key, ..PAY }).await;
            if again.1 || bench.inner.calls() > before + 1 {
                assert_eq!((again.0, again.1), (status, kept));
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(
            bench.inner.calls() - before,
            if kept { 1 } else { 2 },
            "{path}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_an_error_and_no_second_effect() {
    let bench = Bench::new();
    let service = bench.service(|it| it).await;
    let path = "/large";
    assert_eq!(
        send(&service, Sent { path, ..PAY }).await,
        (500, false, String::new())
    );
    assert_eq!(
        send(&service, Sent { path, ..PAY }).await,
        (500, true, String::new())
    );
    assert_eq!(bench.inner.calls(), 1);
}

#[tokio::test]
async fn concurrent_requests_wait_or_are_told() {
    let bench = Bench::new();
    let at_once = bench.service(|it| it).await;
    let patient = bench.service(|it| it.wait(Duration::from_secs(10))).await;
    let path = "/wait";
    let first = at_once.clone();
    let first = tokio::spawn(async move { send(&first, Sent { path, ..PAY }).await });
    while bench.inner.calls() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(send(&at_once, Sent { path, ..PAY }).await.0, 409);
    let body = "another";
    assert_eq!(send(&at_once, Sent { path, body, ..PAY }).await.0, 422);
    let waiting = tokio::spawn(async move { send(&patient, Sent { path, ..PAY }).await });
    bench.inner.go_on.notify_one();
    assert_eq!(first.await.unwrap(), answered(1, false));
    // Between processes a waiter polls.
    let moved = async {
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            bench.clock.advance(Duration::from_millis(100));
        }
    };
    tokio::select! {
        answer = waiting => assert_eq!(answer.unwrap(), answered(1, true)),
        () = moved => (),
    }
}

/// Sends it until the handler is called for the `nth` time, and answers what came of that call.
async fn call(service: Service, inner: Inner, nth: usize) -> (u16, bool, String) {
    loop {
        let answer = send(
            &service,
            Sent {
                path: "/wait",
                ..PAY
            },
        )
        .await;
        if inner.calls() >= nth {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_handler_that_is_dropped_or_lost_leaves_the_request_to_others() {
    let bench = Bench::new();
    let service = bench.service(|it| it).await;
    let start = |nth| tokio::spawn(call(service.clone(), bench.inner.clone(), nth));
    let called = async |nth| {
        while bench.inner.calls() < nth {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let dropped = start(1);
    called(1).await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    let lost = start(2);
    called(2).await;
    // As if the process had been stopped for longer than its lease.
    bench.clock.leap(Duration::from_secs(31));
    assert_eq!(lost.await.unwrap().0, 409);
    let last = start(3);
    called(3).await;
    bench.inner.go_on.notify_one();
    assert_eq!(last.await.unwrap(), answered(3, false));
    let again = send(
        &service,
        Sent {
            path: "/wait",
            ..PAY
        },
    )
    .await;
    assert_eq!(again, answered(3, true));
}
