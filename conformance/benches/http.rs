//! What a rate limit adds to a request: the layer for tower services beside one that counts in its own process.
//!
//! A service that answers at once is called by tasks that do nothing else. `tower_governor` holds in one process;
//! the layer of this project holds over all of them. Prints a table and writes a line for each figure to
//! `target/bench/figures.jsonl`.

mod common;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use common::{Better, Report, SECONDS, Server, connect, runtime};
use http::{Request, Response};
use lockapi::limit::{Policy, Quota};
use lockapi::tower::{HttpRules, RateLimitLayer, Rule, path};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::GlobalKeyExtractor;

/// The most that a quota allows in a second, and more than any of them is called.
const PLENTY: u32 = 10_000_000;
const PERMITS: u64 = 10_000;
const CALLERS: [usize; 3] = [1, 64, 1000];

type Answer = Response<Body>;

fn main() {
    let mut report = Report::open("http");
    report.of("sqlx");
    let report = runtime().block_on(async {
        let measured = tokio::spawn(layers(report));
        measured.await.expect("the figures")
    });
    report.print();
}

fn service() -> impl Service<
    Request<()>,
    Response = Answer,
    Error = Infallible,
    Future = Ready<Result<Answer, Infallible>>,
> + Clone
+ Send
+ 'static {
    service_fn(|_| ready(Ok(Response::new(Body::empty()))))
}

async fn layers(mut report: Report) -> Report {
    let server = Server::start();
    let backend = connect(server.url()).await;
    let governor = GovernorConfigBuilder::default()
        .period(Duration::from_secs(1) / PLENTY)
        .burst_size(PLENTY)
        .key_extractor(GlobalKeyExtractor)
        .finish()
        .expect("a configuration");
    let governor = GovernorLayer::new(governor).layer(service());
    // Each has a key of its own.
    let limited = |name: &'static str, quota: Quota| {
        let limiter = backend.rate_limiter(Policy::new(quota));
        let rules = HttpRules::<Body>::new([Rule::new(name, path())]);
        RateLimitLayer::new(limiter.expect("a limiter"), rules.expect("rules"))
    };
    let plenty = Quota::per_second(u64::from(PLENTY));
    let blocks = limited("blocks", plenty).blocks(PERMITS).layer(service());
    let each = limited("each", plenty).layer(service());
    let refused = limited("refused", Quota::per_hour(1)).layer(service());
    for callers in CALLERS {
        let bare = latencies(&service(), callers).await;
        let local = latencies(&governor, callers).await;
        let measured = [
            ("blocks", latencies(&blocks, callers).await),
            ("each", latencies(&each, callers).await),
            ("refused", latencies(&refused, callers).await),
        ];
        for (layer, ours) in measured {
            for (name, of) in [("p50", 50), ("p99", 99)] {
                let added = |latencies: &[Duration]| {
                    let added = at(latencies, of).saturating_sub(at(&bare, of));
                    added.as_secs_f64() * 1e6
                };
                report.add(
                    &format!("http.{layer}.{callers}.{name}"),
                    "us added",
                    added(&ours),
                    added(&local),
                    "tower_governor, of one process",
                    Better::Lower,
                );
            }
        }
    }
    report
}

/// How long requests took, in order.
async fn latencies<S>(service: &S, callers: usize) -> Vec<Duration>
where
    S: Service<Request<()>, Response = Answer, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let until = Instant::now() + SECONDS;
    let running: Vec<_> = (0..callers)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                while Instant::now() < until {
                    let request = Request::new(());
                    let began = Instant::now();
                    let answer = service.clone().oneshot(request).await;
                    took.push(began.elapsed());
                    assert!(answer.is_ok());
                    // A service that answers at once would keep the thread.
                    if took.len().is_multiple_of(16) {
                        tokio::task::yield_now().await;
                    }
                }
                took
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in running {
        all.extend(task.await.expect("a task"));
    }
    all.sort_unstable();
    all
}

fn at(latencies: &[Duration], percent: usize) -> Duration {
    latencies[(latencies.len() - 1) * percent / 100]
}
