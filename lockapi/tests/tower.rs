//! The layer for rate limits, on the in-memory backend.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderName, Request, Response, StatusCode};
use lockapi::engine::ManualClock;
use lockapi::limit::{Decision, Outage, PermitRequest, Policy, Quota, Verdict};
use lockapi::memory::Database;
use lockapi::tower::{HttpRules, RateLimitLayer, Rule, Rules, extension, header, path};
use lockapi::{Backend, Error, RateLimiter};
use tower::{Layer, Service, ServiceExt};

/// Answers each request, and counts them.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Service<Request<String>> for Counting {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        self.0.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::new("served".to_owned())))
    }
}

struct Bench {
    database: Database,
    clock: ManualClock,
    backend: Arc<dyn Backend>,
}

impl Bench {
    async fn new() -> Self {
        let clock = ManualClock::default();
        let database = Database::with_clock(&clock);
        let backend = database.connect().await.unwrap();
        Self {
            database,
            clock,
            backend,
        }
    }

    fn limiter(&self, policy: impl Into<Policy>) -> Arc<dyn RateLimiter> {
        self.backend.rate_limiter(policy).unwrap()
    }
}

fn request(path: &str, key: Option<&str>) -> Request<String> {
    let mut request = Request::builder().uri(path);
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    request.body(String::new()).unwrap()
}

fn api_key() -> Rule {
    Rule::new("key", header(HeaderName::from_static("x-api-key")))
}

fn rules(rules: impl IntoIterator<Item = Rule>) -> HttpRules<String> {
    HttpRules::new(rules).unwrap()
}

fn field<'r>(response: &'r Response<String>, name: &str) -> Option<&'r str> {
    response.headers().get(name).map(|it| it.to_str().unwrap())
}

async fn send<S>(service: &S, request: Request<String>) -> Response<String>
where
    S: Service<Request<String>, Response = Response<String>, Error = Infallible> + Clone,
{
    service.clone().oneshot(request).await.unwrap()
}

#[tokio::test]
async fn what_is_refused_does_not_reach_the_service() {
    let bench = Bench::new().await;
    let inner = Counting::default();
    let layer = RateLimitLayer::new(bench.limiter(Quota::per_minute(2)), rules([api_key()]));
    let service = layer.layer(inner.clone());
    let first = send(&service, request("/", Some("ada"))).await;
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(field(&first, "ratelimit-policy"), Some(r#""key";q=2;w=60"#));
    assert_eq!(field(&first, "ratelimit"), Some(r#""key";r=1;t=30"#));
    assert_eq!(
        send(&service, request("/", Some("ada"))).await.status(),
        200
    );
    let refused = send(&service, request("/", Some("ada"))).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.body(), "");
    assert_eq!(field(&refused, "retry-after"), Some("30"));
    assert_eq!(field(&refused, "ratelimit"), Some(r#""key";r=0;t=30"#));
    // Others have limits of their own; those without a key share one.
    assert_eq!(
        send(&service, request("/", Some("eve"))).await.status(),
        200
    );
    for status in [200, 200, 429] {
        assert_eq!(send(&service, request("/", None)).await.status(), status);
    }
    assert_eq!(inner.0.load(Ordering::Relaxed), 5);
    bench.clock.advance(Duration::from_secs(30));
    assert_eq!(
        send(&service, request("/", Some("ada"))).await.status(),
        200
    );
}

#[tokio::test]
async fn a_flood_of_refused_requests_is_not_asked_for() {
    let bench = Bench::new().await;
    let limiter = bench.limiter(Quota::per_minute(1));
    let layer = RateLimitLayer::new(Arc::clone(&limiter), rules([Rule::new("path", path())]));
    let service = layer.layer(Counting::default());
    assert_eq!(
        send(&service, request("/", Some("ada"))).await.status(),
        200
    );
    let refused = send(&service, request("/", Some("ada"))).await;
    assert_eq!(field(&refused, "retry-after"), Some("60"));
    // Nobody could answer now.
    bench.database.set_reachable(false);
    bench.database.sever();
    for _ in 0..1000 {
        assert_eq!(
            send(&service, request("/", Some("ada"))).await.status(),
            429
        );
    }
    bench.database.set_reachable(true);
    // After a second it is asked again, and told what is left of the wait.
    bench.clock.advance(Duration::from_millis(900));
    limiter.reset(&"path:/".into()).await.unwrap();
    assert_eq!(
        send(&service, request("/", Some("ada"))).await.status(),
        429
    );
    bench.clock.advance(Duration::from_millis(200));
    assert_eq!(
        send(&service, request("/", Some("ada"))).await.status(),
        200
    );
}

#[tokio::test]
async fn several_rules_are_decided_together() {
    let bench = Bench::new().await;
    let limiter = bench.limiter(Quota::per_minute(10));
    let tenant = Rule::new("tenant", extension(|tenant: &i64| tenant.to_string()))
        .quota(|_| Quota::per_hour(3))
        .optional();
    let user = api_key().cost(|head| if head.uri.path() == "/search" { 5 } else { 1 });
    let rules = rules([user, tenant]).skip(|head| head.uri.path() == "/health");
    let service = RateLimitLayer::new(Arc::clone(&limiter), rules).layer(Counting::default());
    let of = |path: &str, key: &str| {
        let mut request = request(path, Some(key));
        request.extensions_mut().insert(7_i64);
        request
    };
    let first = send(&service, of("/search", "ada")).await;
    let policies = r#""key";q=10;w=60, "tenant";q=3;w=3600"#;
    assert_eq!(field(&first, "ratelimit-policy"), Some(policies));
    assert_eq!(send(&service, of("/search", "ada")).await.status(), 200);
    // Her ten are used up, and what she is refused costs the tenant nothing.
    for _ in 0..5 {
        assert_eq!(send(&service, of("/", "ada")).await.status(), 429);
    }
    let left = limiter
        .peek(&PermitRequest::new("tenant:7").quota(Quota::per_hour(3)))
        .await;
    assert_eq!(left.unwrap().remaining(), 1);
    assert_eq!(send(&service, of("/", "eve")).await.status(), 200);
    let refused = send(&service, of("/", "eve")).await;
    assert_eq!(field(&refused, "retry-after"), Some("1200"));
    // Who has no tenant is not counted as one, and who asks for its health is not counted.
    assert_eq!(
        send(&service, request("/", Some("eve"))).await.status(),
        200
    );
    for _ in 0..20 {
        assert_eq!(send(&service, of("/health", "ada")).await.status(), 200);
    }
}

#[tokio::test]
async fn the_program_chooses_the_answers() {
    let bench = Bench::new().await;
    let rules = rules([api_key()])
        .refuse(|verdict| {
            let left = verdict.binding().map_or(0, Decision::remaining);
            let response = Response::builder().status(503).header("retry-after", "7");
            response.body(format!("{left} left")).unwrap()
        })
        .fail(|error| Response::new(format!("{:?}", error.kind())));
    let layer = RateLimitLayer::new(bench.limiter(Quota::per_minute(1)), rules);
    let service = layer.layer(Counting::default());
    assert_eq!(send(&service, request("/", None)).await.status(), 200);
    let refused = send(&service, request("/", None)).await;
    assert_eq!(
        (refused.status().as_u16(), &**refused.body()),
        (503, "0 left")
    );
    assert_eq!(field(&refused, "retry-after"), Some("7"));
    bench.database.set_reachable(false);
    bench.database.sever();
    let failed = send(&service, request("/", Some("new"))).await;
    assert!(failed.body().contains("Unavailable"), "{}", failed.body());
}

#[tokio::test]
async fn the_policy_decides_when_the_database_is_away() {
    let bench = Bench::new().await;
    let service = |outage| {
        let policy = Policy::new(Quota::per_minute(4)).outage(outage);
        RateLimitLayer::new(bench.limiter(policy), rules([api_key()])).layer(Counting::default())
    };
    let (fail, open) = (service(Outage::Fail), service(Outage::Open));
    let (closed, share) = (service(Outage::Closed), service(Outage::Share(4)));
    bench.database.set_reachable(false);
    bench.database.sever();
    let status = async |service| send(service, request("/", None)).await.status().as_u16();
    assert_eq!(status(&fail).await, 503);
    assert_eq!((status(&open).await, status(&open).await), (200, 200));
    assert_eq!((status(&closed).await, status(&closed).await), (429, 429));
    assert_eq!((status(&share).await, status(&share).await), (200, 429));
    // As soon as it is back it decides again.
    bench.database.set_reachable(true);
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!((status(&closed).await, status(&fail).await), (200, 200));
}

#[tokio::test]
async fn headers_name_a_rule_as_it_is_named() {
    let bench = Bench::new().await;
    for name in ["#a", "##a", "a#"] {
        let limiter = bench.limiter(Quota::per_minute(1));
        let layer = RateLimitLayer::new(limiter, rules([Rule::new(name, path())]));
        let served = send(&layer.layer(Counting::default()), request("/", None)).await;
        let told = field(&served, "ratelimit").unwrap();
        assert!(told.starts_with(&format!("\"{name}\";")), "{told}");
    }
}

#[tokio::test]
async fn shadow_mode_refuses_nothing() {
    let bench = Bench::new().await;
    let policy = Policy::new(Quota::per_minute(1)).shadow();
    let layer = RateLimitLayer::new(bench.limiter(policy), rules([api_key()]));
    let service = layer.layer(Counting::default());
    for left in ["r=0", "r=0", "r=0"] {
        let served = send(&service, request("/", None)).await;
        assert_eq!(served.status(), 200);
        assert!(field(&served, "ratelimit").unwrap().contains(left));
    }
}

/// Each request that would be refused is decided, and told so, also where many of them ask for blocks.
#[tokio::test]
async fn shadow_mode_tells_what_it_would_refuse_with_blocks() {
    let bench = Bench::new().await;
    let policy = Policy::new(Quota::per_hour(100)).shadow();
    let layer = RateLimitLayer::new(bench.limiter(policy), rules([Rule::new("path", path())]));
    let service = layer.blocks(50).layer(Counting::default());
    let mut told = 0;
    for _ in 0..300 {
        let served = send(&service, request("/", None)).await;
        assert_eq!(served.status(), 200);
        let field = field(&served, "ratelimit");
        told += usize::from(field.is_some_and(|field| field.contains("r=0")));
    }
    // Those that the quota admits are 100.
    assert!((200..=210).contains(&told), "{told}");
}

#[tokio::test]
async fn blocks_admit_no_more() {
    let bench = Bench::new().await;
    let service = || {
        let limiter = bench.limiter(Quota::per_hour(1000));
        let layer = RateLimitLayer::new(limiter, rules([Rule::new("path", path())]));
        layer.blocks(50).layer(Counting::default())
    };
    let services = [service(), service(), service()];
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..30 {
        let service = services[nth % 3].clone();
        tasks.spawn(async move {
            let mut admitted = 0;
            for _ in 0..100 {
                let served = send(&service, request("/", None)).await;
                admitted += usize::from(served.status() == 200);
            }
            admitted
        });
    }
    let admitted: usize = tasks.join_all().await.into_iter().sum();
    assert!((900..=1000).contains(&admitted), "{admitted}");
}

/// Lengths of texts, as a protocol of the program's own.
struct Lengths;

impl Rules<String, usize> for Lengths {
    fn permit_requests(&self, request: &String) -> Vec<PermitRequest> {
        vec![PermitRequest::new("length").cost(request.len() as u64)]
    }

    fn refused(&self, _: &Verdict) -> usize {
        usize::MAX
    }

    fn failed(&self, _: &Error) -> usize {
        0
    }
}

#[tokio::test]
async fn other_protocols_have_rules_of_their_own() {
    let bench = Bench::new().await;
    let inner = tower::service_fn(|text: String| ready(Ok::<_, Infallible>(text.len())));
    let mut service = RateLimitLayer::new(bench.limiter(Quota::per_hour(9)), Lengths).layer(inner);
    for (text, answer) in [("four", 4), ("eight888", usize::MAX), ("five5", 5)] {
        let ready = ServiceExt::<String>::ready(&mut service).await.unwrap();
        assert_eq!(ready.call(text.to_owned()).await.unwrap(), answer);
    }
}
