//! Requests and answers that are unusual, behind the layers for tower services.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use lockapi::idempotency::{Begun, IdempotencyOptions};
use lockapi::memory::Database;
use lockapi::tower::{HttpRules, IdempotencyLayer, Network, Rule, Rules, peer};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt};

/// A body of frames, some of which fail.
#[derive(Default)]
struct Body(std::collections::VecDeque<Result<Frame<Bytes>, String>>);

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self([Ok(Frame::data(bytes.into()))].into())
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = String;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        Poll::Ready(self.0.pop_front())
    }
}

type Service = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

async fn service<F, W>(
    handler: F,
    with: impl FnOnce(IdempotencyLayer<Body>) -> IdempotencyLayer<Body>,
) -> Service
where
    F: Fn(Request<Body>) -> W + Clone + Send + Sync + 'static,
    W: Future<Output = Response<Body>> + Send + 'static,
{
    let backend = Database::new().connect().await.unwrap();
    let requests = backend.idempotency(IdempotencyOptions::default()).unwrap();
    let layer = with(IdempotencyLayer::new(requests, |_| String::new()));
    let inner = tower::service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    BoxCloneSyncService::new(layer.layer(inner))
}

fn post(uri: &str) -> Request<Body> {
    let request = Request::post(uri).header("idempotency-key", "\"7\"");
    request.body(Body::from(b"pay".to_vec())).unwrap()
}

async fn send(service: &Service, request: Request<Body>) -> Response<Body> {
    service.clone().oneshot(request).await.unwrap()
}

#[tokio::test]
async fn the_target_is_the_same_over_http_1_and_http_2() {
    let service = service(async |_| Response::new(Body::default()), |it| it).await;
    // As hyper has it of a request over HTTP/1.1 with `Host: api.example`, and over HTTP/2 with `:authority`.
    assert_eq!(send(&service, post("/pay")).await.status(), 200);
    let again = send(&service, post("https://api.example/pay")).await;
    assert_eq!(again.status(), 200, "the same request over HTTP/2");
}

#[tokio::test]
async fn fields_of_one_connection_are_not_given_again() {
    let handler = async |_| {
        let fields = Response::builder()
            .header("connection", "x-hop")
            .header("x-hop", "1")
            .header("keep-alive", "timeout=5")
            .header("proxy-authenticate", "Basic")
            .header("upgrade", "h2c")
            .header("trailer", "x-sum");
        fields.body(Body::default()).unwrap()
    };
    let service = service(handler, |it| it).await;
    send(&service, post("/")).await;
    let again = send(&service, post("/")).await;
    assert!(again.headers().contains_key("idempotency-replayed"));
    let left: Vec<_> = [
        "x-hop",
        "keep-alive",
        "proxy-authenticate",
        "upgrade",
        "trailer",
    ]
    .into_iter()
    .filter(|name| again.headers().contains_key(*name))
    .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn an_answer_that_fails_on_its_way_is_not_kept_as_an_error_for_a_day() {
    let calls = Arc::new(AtomicUsize::new(0));
    let called = Arc::clone(&calls);
    let handler = move |_| {
        let nth = called.fetch_add(1, Ordering::Relaxed);
        async move {
            let mut body = Body::from(b"paid".to_vec());
            if nth == 0 {
                body.0.push_back(Err("connection reset".to_owned()));
            }
            Response::new(body)
        }
    };
    let service = service(handler, |it| it).await;
    assert_eq!(send(&service, post("/")).await.status(), 500);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let again = send(&service, post("/")).await;
    assert_eq!(
        (again.status().as_u16(), calls.load(Ordering::Relaxed)),
        (200, 2)
    );
}

#[tokio::test]
async fn fields_that_are_too_long_leave_no_second_effect() {
    let calls = Arc::new(AtomicUsize::new(0));
    let called = Arc::clone(&calls);
    let handler = move |_| {
        called.fetch_add(1, Ordering::Relaxed);
        async {
            // Bytes above 127 are two in the stored answer.
            let value = vec![0xe9_u8; 600_000];
            let value = http::HeaderValue::from_bytes(&value).unwrap();
            Response::builder()
                .header("x-long", value)
                .body(Body::default())
                .unwrap()
        }
    };
    let service = service(handler, |it| it).await;
    let first = send(&service, post("/")).await.status();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let second = send(&service, post("/")).await.status();
    assert_eq!(
        calls.load(Ordering::Relaxed),
        1,
        "{first} and {second}: it was executed again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_leaves_the_request_to_others() {
    let calls = Arc::new(AtomicUsize::new(0));
    let called = Arc::clone(&calls);
    let handler = move |_| {
        let nth = called.fetch_add(1, Ordering::Relaxed);
        async move {
            assert!(nth > 0, "the first panics");
            Response::new(Body::default())
        }
    };
    let service = service(handler, |it| it).await;
    let first = service.clone();
    let first = tokio::spawn(async move { send(&first, post("/")).await.status() });
    assert!(first.await.is_err());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(send(&service, post("/")).await.status(), 200);
}

/// Waiters take the lease one after the other to read what is there already.
#[tokio::test(flavor = "multi_thread")]
async fn who_waited_gets_an_answer_that_is_there() {
    let handler = async |_| {
        tokio::time::sleep(Duration::from_millis(500)).await;
        Response::new(Body::default())
    };
    let service = service(handler, |it| it.wait(Duration::from_secs(2))).await;
    let mut waiting = Vec::new();
    for _ in 0..2_000 {
        let service = service.clone();
        waiting.push(tokio::spawn(async move {
            send(&service, post("/")).await.status().as_u16()
        }));
    }
    let mut refused = 0;
    for one in waiting {
        refused += usize::from(one.await.unwrap() == 409);
    }
    assert_eq!(
        refused, 0,
        "of 2,000, though the answer was there for 1.5 s"
    );
}

#[tokio::test]
async fn an_execution_of_one_key_blocks_no_other_key() {
    use std::fmt::Write;

    use sha2::{Digest, Sha256};

    let backend = Database::new().connect().await.unwrap();
    let requests = backend.idempotency(IdempotencyOptions::default()).unwrap();
    let long = "x".repeat(255);
    let mut hash = String::new();
    for byte in Sha256::digest(&long) {
        write!(hash, "{byte:02x}").unwrap();
    }
    let first = requests.begin(&long, b"1").await.unwrap();
    assert!(matches!(first, Begun::Execute(_)));
    let other = requests
        .begin(&format!("sha256:{hash}"), b"2")
        .await
        .unwrap();
    assert!(matches!(other, Begun::Execute(_)), "{other:?}");
}

#[test]
fn what_a_proxy_wrote_counts_whatever_came_before() {
    let proxies: Vec<Network> = vec!["10.0.0.0/8".parse().unwrap()];
    let address = peer(|_| "10.0.0.1".parse().ok(), proxies);
    let rules = HttpRules::<String>::new([Rule::new("address", address)]).unwrap();
    let key = |forwarded: &[u8]| {
        let forwarded = http::HeaderValue::from_bytes(forwarded).unwrap();
        let request = Request::get("/").header("x-forwarded-for", forwarded);
        let wanted = rules.permit_requests(&request.body(()).unwrap());
        format!("{wanted:?}")
    };
    let one = key(b"192.0.2.9");
    assert_eq!(key(b"198.51.100.1, 192.0.2.9"), one);
    // The client has sent the first byte, and the proxy appended what it saw.
    assert_eq!(key(b"\xff, 192.0.2.9"), one);
}

#[test]
fn a_blocking_execution_that_panics_leaves_the_request_to_others() {
    use lockapi::blocking;
    let backend = blocking::Backend::connect(Database::new().connect()).unwrap();
    let requests = backend.idempotency(IdempotencyOptions::default()).unwrap();
    let other = requests.clone();
    let panicked = std::thread::spawn(move || {
        let blocking::Begun::Execute(_execution) = other.begin("k", b"1").unwrap() else {
            return;
        };
        panic!("a handler");
    });
    assert!(panicked.join().is_err());
    std::thread::sleep(Duration::from_millis(200));
    let again = requests.begin("k", b"1").unwrap();
    assert!(matches!(again, blocking::Begun::Execute(_)), "{again:?}");
}

#[tokio::test]
async fn keys_of_other_characters_are_refused() {
    let service = service(async |_| Response::new(Body::default()), |it| it).await;
    let mut accepted = Vec::new();
    for key in [&b"a\tb"[..], b"\"a\", \"b\"", b"\"a", b"\"a\";p=1"] {
        let key = http::HeaderValue::from_bytes(key).unwrap();
        let request = Request::post("/").header("idempotency-key", &key);
        let request = request.body(Body::default()).unwrap();
        if send(&service, request).await.status() != 400 {
            accepted.push(key);
        }
    }
    assert!(accepted.is_empty(), "{accepted:?}");
}
