//! Rate limits of services on several backends, in several processes of which some are killed: no more is admitted than
//! the quotas allow, by a judge that knows the recorded times and the definition alone.

/// The version of sqlx that the driver is for.
mod version {
    pub(crate) use ::{lockapi_sqlx, sqlx};
}

#[path = "drivers/sqlx.rs"]
mod sqlx_driver;
#[path = "drivers/sync.rs"]
mod sync_driver;
#[path = "drivers/tokio_postgres.rs"]
mod tokio_postgres_driver;

use std::convert::Infallible;
use std::future::ready;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{Request, Response};
use lockapi::BackendOptions;
use lockapi::limit::Quota;
use lockapi::tower::{HttpRules, RateLimitLayer, Rule, path};
use lockapi_conformance::Driver;
use lockapi_conformance::cluster::Cluster;
use lockapi_conformance::flood::{Record, check};
use tower::{Layer, ServiceExt};

/// What a child reads its part from: the number of its driver, the namespace and the URL.
const CHILD: &str = "LOCKAPI_TOWER_CHILD";
const CALLERS: usize = 16;
const PROCESSES: usize = 8;
const TIME: Duration = Duration::from_secs(6);
/// Each is a path, its quota and whether it is taken in blocks.
const QUOTAS: [(&str, Quota); 2] = [
    ("/plain", Quota::per_second(200).burst(50)),
    ("/blocks", Quota::per_second(2000).burst(1000)),
];

fn micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.expect("after 1970").as_micros()).expect("a time")
}

fn driver(nth: usize) -> Arc<dyn Driver> {
    match nth % 3 {
        0 => Arc::new(sqlx_driver::Sqlx),
        1 => Arc::new(tokio_postgres_driver::TokioPostgres),
        _ => Arc::new(sync_driver::Sync),
    }
}

/// An instance of a service, which is called until it is killed. Each admission is a line: path, from, until.
async fn serve(nth: usize, namespace: &str, url: &str) {
    let options = BackendOptions::default().namespace(namespace);
    let backend = driver(nth).connect(url, options).await.expect("connected");
    let mut callers = tokio::task::JoinSet::new();
    for (at, (path_of, quota)) in QUOTAS.into_iter().enumerate() {
        let limiter = backend.rate_limiter(quota).expect("a limiter");
        let rules = HttpRules::<String>::new([Rule::new("path", path())]).expect("rules");
        let mut layer = RateLimitLayer::new(limiter, rules);
        if path_of == "/blocks" {
            layer = layer.blocks(100);
        }
        let inner = tower::service_fn(|_: Request<()>| {
            ready(Ok::<_, Infallible>(Response::new(String::new())))
        });
        let service = layer.layer(inner);
        for _ in 0..CALLERS {
            let service = service.clone();
            callers.spawn(async move {
                loop {
                    let request = Request::builder().uri(path_of).body(()).expect("a request");
                    let from = micros();
                    let Ok(answer) = service.clone().oneshot(request).await;
                    let until = micros();
                    assert!(matches!(answer.status().as_u16(), 200 | 429), "{answer:?}");
                    if answer.status() == 200 {
                        let line = format!("{at} {from} {until}\n");
                        let written = std::io::stdout().lock().write_all(line.as_bytes());
                        written.expect("the parent reads");
                    } else {
                        // What is refused without a query must not keep the processor from the others.
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            });
        }
    }
    let ended = callers.join_next().await.expect("callers");
    ended.expect("a caller does not end");
}

struct Instance {
    child: Child,
    lines: thread::JoinHandle<Vec<Record>>,
}

impl Instance {
    fn start(nth: usize, namespace: &str, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a program"))
            .args([
                "--exact",
                "no_more_is_admitted_over_processes_that_are_killed",
            ])
            .args(["--nocapture", "--test-threads", "1"])
            .env(CHILD, format!("{nth} {namespace} {url}"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut output = child.stdout.take().expect("its output");
        let lines = thread::spawn(move || {
            // The last line of one that was killed may be a part.
            let mut text = String::new();
            output.read_to_string(&mut text).expect("text");
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            whole.lines().filter_map(record).collect()
        });
        Self { child, lines }
    }

    fn kill(mut self) -> Vec<Record> {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
        self.lines.join().expect("read")
    }
}

fn record(line: &str) -> Option<Record> {
    let mut parts = line.split(' ').map(str::parse::<i64>);
    let mut next = || parts.next()?.ok();
    Some(Record {
        door: usize::try_from(next()?).ok()?,
        permits: 1,
        from: next()?,
        until: next()?,
        window: 0,
    })
}

#[test]
fn no_more_is_admitted_over_processes_that_are_killed() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Ok(part) = std::env::var(CHILD) {
        let mut parts = part.splitn(3, ' ');
        let mut next = || parts.next().expect("three parts");
        let nth = next().parse().expect("a number");
        let (namespace, url) = (next(), next());
        runtime.block_on(serve(nth, namespace, url));
        return;
    }
    let url = Cluster::shared().expect("a server").url();
    let namespace = format!("n{:016x}", fastrand::u64(..));
    runtime.block_on(async {
        let options = BackendOptions::default().namespace(&namespace);
        let backend = driver(0).connect(url, options).await.expect("connected");
        backend.migrate().await.expect("migrated");
    });
    let mut started = 0..;
    let mut start = || Instance::start(started.next().expect("a number"), &namespace, url);
    let mut running: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    let (mut history, begun, mut killed) = (Vec::new(), Instant::now(), 0);
    while begun.elapsed() < TIME {
        thread::sleep(Duration::from_millis(400));
        let victim = running.swap_remove(fastrand::usize(..running.len()));
        history.extend(victim.kill());
        killed += 1;
        running.push(start());
    }
    history.extend(running.into_iter().flat_map(Instance::kill));
    for (at, (path, quota)) in QUOTAS.iter().enumerate() {
        let of = history.iter().filter(|one| one.door == at);
        let found = check(quota, &of.copied().collect::<Vec<_>>(), 0);
        println!(
            "{path}: {} admitted, {killed} processes killed",
            found.admitted
        );
        assert_eq!(found.excess, None, "{path}");
        // A killed process loses the permits that it had in hand, and others what those were worth.
        let due = quota.limit() / 10;
        assert!(found.admitted >= due, "{path}: {} of {due}", found.admitted);
    }
}
