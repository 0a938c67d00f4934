//! What a rate limit adds to a request: the layer for tower services beside one that counts in its own process.
//!
//! A service that answers at once is called by tasks that do nothing else, and by tasks that together keep to a
//! rate which is near the quota, as requests that come from elsewhere do. `tower_governor` and `axum-governor` hold
//! in one process; the layer of this project holds over all of them. Prints a table and writes a line for each figure
//! to `target/bench/figures.jsonl`.

mod common;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::num::NonZeroU32;
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

/// Of the requests that keep to a rate: how many a second all callers make, and how many are allowed.
const PACE: u32 = 10_000;
const PACED_QUOTA: u64 = 12_000;
/// The shortest time that the runtime sleeps.
const TICK: Duration = Duration::from_millis(1);

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
    let tower = GovernorConfigBuilder::default()
        .period(Duration::from_secs(1) / PLENTY)
        .burst_size(PLENTY)
        .key_extractor(GlobalKeyExtractor)
        .finish()
        .expect("a configuration");
    let tower = GovernorLayer::new(tower).layer(service());
    let axum = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(axum_governor::extractor::Global)
        .quota_default(axum_governor::Quota::requests_per_second(
            NonZeroU32::new(PLENTY).expect("not zero"),
        ))
        .finish()
        .expect("a configuration");
    let axum = axum_governor::GovernorLayer::new(axum).layer(service());
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
    let near = Quota::per_second(PACED_QUOTA);
    let paced_blocks = limited("paced-blocks", near)
        .blocks(PERMITS)
        .layer(service());
    let paced_each = limited("paced-each", near).layer(service());
    for callers in CALLERS {
        let bare = latencies(&service(), callers, None).await;
        let others = [
            ("tower_governor", latencies(&tower, callers, None).await),
            ("axum-governor", latencies(&axum, callers, None).await),
        ];
        let measured = [
            ("blocks", latencies(&blocks, callers, None).await),
            ("each", latencies(&each, callers, None).await),
            ("refused", latencies(&refused, callers, None).await),
        ];
        add(&mut report, callers, &bare, &others, &measured);
        let bare = latencies(&service(), callers, Some(PACE)).await;
        let others = [(
            "tower_governor",
            latencies(&tower, callers, Some(PACE)).await,
        )];
        let measured = [
            (
                "paced.blocks",
                latencies(&paced_blocks, callers, Some(PACE)).await,
            ),
            (
                "paced.each",
                latencies(&paced_each, callers, Some(PACE)).await,
            ),
        ];
        add(&mut report, callers, &bare, &others, &measured);
    }
    report
}

/// What the layers added to requests without one, beside what those of one process added.
fn add(
    report: &mut Report,
    callers: usize,
    bare: &[Duration],
    others: &[(&str, Vec<Duration>)],
    measured: &[(&str, Vec<Duration>)],
) {
    for (layer, ours) in measured {
        for (name, of) in [("p50", 50), ("p99", 99)] {
            let added = |latencies: &[Duration]| {
                let added = at(latencies, of).saturating_sub(at(bare, of));
                added.as_secs_f64() * 1e6
            };
            for (other, theirs) in others {
                report.add(
                    &format!("http.{layer}.{callers}.{name}"),
                    "us added",
                    added(ours),
                    added(theirs),
                    &format!("{other}, of one process"),
                    Better::Lower,
                );
            }
        }
    }
}

/// How long requests took, in order: as many as can be, or at a pace for all callers together.
async fn latencies<S>(service: &S, callers: usize, pace: Option<u32>) -> Vec<Duration>
where
    S: Service<Request<()>, Response = Answer, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let until = Instant::now() + SECONDS;
    let callers_count = u32::try_from(callers).expect("a number of callers");
    // How many requests one caller makes at a time, and how often.
    let paced = pace.map(|pace| {
        let each = Duration::from_secs(1) * callers_count / pace;
        let together = (TICK.as_nanos() / each.as_nanos()).max(1);
        let together = u32::try_from(together).expect("a number of requests");
        (together, each * together)
    });
    let running: Vec<_> = (0..callers_count)
        .map(|caller| {
            let service = service.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                // One after the other, not all at once.
                let phase = paced.map_or(Duration::ZERO, |(_, period)| period * caller);
                let mut next = Instant::now() + phase / callers_count;
                while Instant::now() < until {
                    if let Some((together, period)) = paced
                        && took.len().is_multiple_of(together as usize)
                    {
                        tokio::time::sleep_until(next.into()).await;
                        next += period;
                    }
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
