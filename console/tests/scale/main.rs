//! What the screens, the metrics and the commands read: no more where there are more jobs, and never for long.
//!
//! `make operators` loads as many jobs as JOBS says, and prints how long each takes.
#![cfg(feature = "web")]

#[path = "../common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use common::{Database, soon};
use http_body_util::BodyExt;
use lockapi::{Backend, BackendOptions};
use lockapi_console::web::{WebOptions, service};
use tower::ServiceExt;

/// The addresses of the page that read something; `{job}` is one that waits, and `{dead}` one that has ended.
const PAGES: &[&str] = &[
    "/",
    "/locks",
    "/leases",
    "/queues",
    "/schedules",
    "/limits",
    "/ids",
    "/audit",
    "/metrics",
    "/queue?name=mails",
    "/queue?name=mails&state=running",
    "/queue?name=mails&state=delayed",
    "/queue?name=mails&state=failed",
    "/queue?name=mails&state=completed",
    "/queue?name=mails&state=cancelled",
    "/queue?name=mails&kind=nobody",
    "/queue?name=thumbnails&state=running",
    "/queue?name=tenants",
    "/job?id={job}",
    "/job?id={dead}",
    "/edit?name=mails&id={job}",
    "/act?do=purge&on=mails",
    "/act?do=redrive&on=mails",
    "/act?do=drain&on=mails",
];

/// The commands that list and show.
const COMMANDS: &[&[&str]] = &[
    &["queue", "list"],
    &["queue", "show", "mails"],
    &["queue", "jobs", "mails"],
    &["queue", "jobs", "mails", "--state", "delayed"],
    &["queue", "jobs", "mails", "--name", "nobody"],
    &["queue", "dead", "mails"],
    &["queue", "running", "mails"],
    &["queue", "running"],
    &["queue", "purge", "mails", "--reason", "a dry run"],
    &["schedule", "list"],
    &["lock", "list"],
    &["lock", "waits"],
    &["lease", "list"],
    &["limit", "list"],
    &["id", "workers"],
    &["audit"],
];

/// The most rows of a screen that counts all 43 queues: of the large one 5,000 that are due, that are delayed and that
/// are dead; the others have few. A first look counts each queue once.
const MOST: i64 = 60_000;

/// So many jobs more in the large queue, of each state that is counted.
fn crowd(jobs: i64) -> String {
    format!(
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         SELECT now() + (CASE WHEN n % 2 = 0 THEN -n ELSE n END) * interval '1 second', 25, 2, 'default', 'mails', 'send', '1'
           FROM generate_series(3600, 3600 + {jobs}) AS n;
         INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority, namespace, queue,
                                          name, payload, error)
         SELECT nextval('lockapi.job_seq'), 'failed', now(), now(), 1, 1, 2, 'default', 'mails', 'send', '1', 'no'
           FROM generate_series(1, {jobs}) AS n;"
    )
}

fn load(database: &Database, jobs: i64) {
    let sql = include_str!("load.sql");
    database.sql(&format!(
        "SELECT set_config('scale.jobs', '{jobs}', false);\n{sql}"
    ));
}

/// Before: the planner knows nothing of the tables, and takes them for empty.
fn forget_statistics(database: &Database) {
    database.sql(
        "DELETE FROM pg_statistic WHERE starelid IN
             (SELECT oid FROM pg_class WHERE relnamespace = 'lockapi'::regnamespace);
         UPDATE pg_class SET reltuples = 0, relpages = 0 WHERE relnamespace = 'lockapi'::regnamespace AND relkind IN ('r', 'i')",
    );
}

/// How many rows and index entries were read, once all sessions but this one have ended and told it.
fn read(database: &Database) -> i64 {
    let name = &database.name;
    soon("the end of sessions", || {
        let others = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
        );
        (database.sql(&others).trim() == "0").then_some(())
    });
    let sum = "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_all_tables WHERE schemaname = 'lockapi')
                    + (SELECT sum(idx_tup_read) FROM pg_stat_all_indexes WHERE schemaname = 'lockapi')";
    database.sql(sum).trim().parse().expect("a number")
}

async fn connect(database: &Database) -> Arc<dyn Backend> {
    let options = BackendOptions::default().notes(false);
    let connected = lockapi_sqlx::connect_url_with(&database.url(), options).await;
    connected.expect("a backend")
}

async fn get(router: &Router, address: &str) {
    let peer: SocketAddr = "127.0.0.1:40000".parse().expect("an address");
    let request = Request::get(address)
        .header("host", "localhost")
        .extension(ConnectInfo(peer));
    let request = request.body(Body::empty()).expect("a request");
    let answer = router.clone().oneshot(request).await.expect("an answer");
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("a body");
    let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    assert!(status.is_success(), "{address}: {status}: {body}");
    assert!(
        !body.contains("This could not be read:"),
        "{address}: {body}"
    );
}

fn pages(database: &Database) -> Vec<String> {
    let number = |sql: &str| database.sql(sql).trim().to_owned();
    let job = number("SELECT min(id) FROM lockapi.job WHERE queue = 'mails'");
    let dead = number("SELECT max(id) FROM lockapi.job_archive");
    let page = |page: &&str| page.replace("{job}", &job).replace("{dead}", &dead);
    PAGES.iter().map(page).collect()
}

fn options() -> WebOptions {
    WebOptions::new().actions(true).payloads(true)
}

/// What each page, asked for alone, and each command reads.
fn reads(database: &Database) -> Vec<(String, i64)> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut before = read(database);
    let mut all = Vec::new();
    let mut next = |what: String| {
        let now = read(database);
        all.push((what, now - before));
        before = now;
    };
    for page in pages(database) {
        before_page(database, &runtime, &page);
        next(page);
    }
    for command in COMMANDS {
        database.lockapi(*command).succeeds();
        next(format!("lockapi {}", command.join(" ")));
    }
    all
}

fn before_page(database: &Database, runtime: &tokio::runtime::Runtime, page: &str) {
    runtime.block_on(async {
        let backend = connect(database).await;
        get(&service(Arc::clone(&backend), options()), page).await;
        backend.close().await.expect("closed");
    });
}

#[test]
fn no_screen_reads_more_where_there_are_more_jobs() {
    let database = Database::new();
    database.sql(
        "ALTER TABLE lockapi.job SET (autovacuum_enabled = off);
         ALTER TABLE lockapi.job_archive SET (autovacuum_enabled = off)",
    );
    load(&database, 20_000);
    database.sql(&crowd(22_000));
    forget_statistics(&database);
    let few = reads(&database);
    database.sql(&crowd(22_000));
    forget_statistics(&database);
    let many = reads(&database);
    database.sql("ANALYZE");
    let analysed = reads(&database);
    let mut wrong = Vec::new();
    for ((what, before), others) in few.iter().zip(many.iter().zip(&analysed)) {
        for (when, now) in [("not analysed", others.0.1), ("analysed", others.1.1)] {
            // A crowd has 44,000 jobs; what is read of the same anew differs a little.
            if now > before + before / 10 + 500 || now > MOST {
                wrong.push(format!("{what}: {before}, and then {now} rows, {when}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The times of one page, beginning with the first.
async fn times(router: &Router, page: &str, turns: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..turns {
        let began = Instant::now();
        get(router, page).await;
        times.push(began.elapsed());
        // Until then what was read before is shown.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    times
}

#[test]
#[ignore = "takes minutes and gigabytes: make operators"]
fn every_screen_is_there_at_once_at_full_scale() {
    let jobs =
        std::env::var("LOCKAPI_SCALE").map_or(10_000_000, |jobs| jobs.parse().expect("a number"));
    let database = Database::apart();
    load(&database, jobs);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut late = Vec::new();
    for analysed in [false, true] {
        if analysed {
            database.sql("VACUUM ANALYZE lockapi.job, lockapi.job_archive; ANALYZE");
        } else {
            forget_statistics(&database);
        }
        println!(
            "{jobs} jobs, analysed: {analysed}\n{:<45}{:>10}{:>10}{:>10}",
            "", "rows", "ms", "first ms"
        );
        let rows = reads(&database);
        for (page, rows) in rows.into_iter().filter(|(page, _)| page.starts_with('/')) {
            let all = runtime.block_on(async {
                let backend = connect(&database).await;
                let all = times(&service(Arc::clone(&backend), options()), &page, 5).await;
                backend.close().await.expect("closed");
                all
            });
            // Others use the machine, too: the shortest of several is what it takes.
            let best = all[1..].iter().min().copied().unwrap_or_default();
            let ms = |time: Duration| time.as_secs_f64() * 1000.0;
            println!("{page:<45}{rows:>10}{:>10.1}{:>10.1}", ms(best), ms(all[0]));
            // Metrics wait until all is counted.
            if best > Duration::from_millis(100) && page != "/metrics" {
                late.push(format!("{page}: {best:?}"));
            }
        }
    }
    assert!(late.is_empty(), "{late:#?}");
}
