//! Each primitive at 1 to 1,000 callers, against what a program would write itself, in one run.
//!
//! Every caller asks, waits for the answer and asks again. Prints a table and writes a line for each figure
//! to `target/bench/figures.jsonl`, and draws a picture of each primitive beside it.
//! `-- limit,lease --callers 1,8` measures less.

#[path = "common/chart.rs"]
mod chart;
#[allow(dead_code, reason = "shared with other benches")]
mod common;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chart::Line;
use common::{Better, Report, runtime};
use lockapi::lease::LeaseOptions;
use lockapi::limit::{Quota, Want};
use lockapi::queue::Job;
use lockapi::{Backend, LeaseGuard};
use lockapi_conformance::cluster::Cluster;
use sqlx::postgres::{PgAdvisoryLock, PgPoolOptions};
use sqlx::{Acquire, Executor, PgPool};
use tokio::sync::OnceCell;

/// How many ask at the same time.
const CALLERS: &[usize] = &[1, 2, 4, 8, 16, 64, 256, 1000];
/// How long each figure is measured.
const TIME: Duration = Duration::from_secs(1);

/// What a program has that needs leases, limits and jobs, and no library.
const TABLES: &str = "
    CREATE TABLE bench_lease (key text PRIMARY KEY, token int8 NOT NULL, owner text NOT NULL,
                              expires timestamptz NOT NULL) WITH (fillfactor = 50);
    CREATE SEQUENCE bench_token;
    CREATE TABLE bench_job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL,
                            payload jsonb NOT NULL, run_at timestamptz NOT NULL DEFAULT now());
    CREATE TABLE bench_window (key text PRIMARY KEY, started timestamptz NOT NULL, used int NOT NULL)
        WITH (fillfactor = 50);
    CREATE FUNCTION bench_check(the_key text, the_limit int, length interval) RETURNS bool
    LANGUAGE plpgsql AS $$
    DECLARE w bench_window;
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtext(the_key));
        SELECT * INTO w FROM bench_window WHERE key = the_key;
        IF NOT FOUND OR w.started + length <= clock_timestamp() THEN
            INSERT INTO bench_window VALUES (the_key, clock_timestamp(), 1)
            ON CONFLICT (key) DO UPDATE SET started = excluded.started, used = 1;
            RETURN true;
        END IF;
        IF w.used >= the_limit THEN
            RETURN false;
        END IF;
        UPDATE bench_window SET used = used + 1 WHERE key = the_key;
        RETURN true;
    END $$;";

type Work = Arc<dyn Fn(usize, u64) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

fn work<F: Future<Output = ()> + Send + 'static>(
    work: impl Fn(usize, u64) -> F + Send + Sync + 'static,
) -> Work {
    Arc::new(move |caller, round| Box::pin(work(caller, round)))
}

/// Something that is done in two ways.
struct Scenario {
    name: &'static str,
    /// How many rounds are run before: after them every key is there.
    before: u64,
    ours: Work,
    others: Vec<(&'static str, Work)>,
}

/// What was measured of one way.
struct Measured {
    rate: f64,
    /// Microseconds.
    median: f64,
    p99: f64,
}

async fn measure(callers: usize, work: &Work) -> Measured {
    // What is done only once has been done then.
    for caller in 0..callers {
        work(caller, 0).await;
    }
    let start = Instant::now();
    let running: Vec<_> = (0..callers)
        .map(|caller| {
            let work = Arc::clone(work);
            tokio::spawn(async move {
                let mut took = Vec::new();
                let mut round = 1;
                while start.elapsed() < TIME {
                    let began = Instant::now();
                    work(caller, round).await;
                    took.push(began.elapsed());
                    round += 1;
                }
                took
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in running {
        all.extend(task.await.expect("a caller"));
    }
    let elapsed = start.elapsed();
    all.sort_unstable();
    let micros = |at: usize| all[at.min(all.len() - 1)].as_secs_f64() * 1e6;
    Measured {
        rate: f64::from(u32::try_from(all.len()).expect("fewer than four billion"))
            / elapsed.as_secs_f64(),
        median: micros(all.len() / 2),
        p99: micros(all.len() * 99 / 100),
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|one| one != "--bench");
    let (mut only, mut callers) = (Vec::new(), CALLERS.to_vec());
    while let Some(argument) = arguments.next() {
        if argument == "--callers" {
            let list = arguments.next().unwrap_or_default();
            let numbers = list.split(',').map(|one| one.parse().expect("a number"));
            callers = numbers.collect();
        } else {
            only.extend(argument.split(',').map(str::to_owned));
        }
    }
    let mut report = Report::open("callers");
    report.of("sqlx");
    // On a worker, as the tasks of a service are.
    let report = runtime().block_on(async {
        tokio::spawn(all(report, only, callers))
            .await
            .expect("the figures")
    });
    report.print();
}

async fn all(mut report: Report, only: Vec<String>, callers: Vec<usize>) -> Report {
    // Nobody else's work is to be measured, unless the caller names a server.
    let named = std::env::var("DATABASE_URL").ok();
    let private = named.is_none().then(|| Cluster::private(&[]));
    let private = private.map(|started| started.unwrap_or_else(|error| panic!("{error}")));
    let url = match (&private, &named) {
        (Some(cluster), _) => cluster.url(),
        (None, url) => url.as_deref().unwrap_or_default(),
    };
    let backend = lockapi_sqlx::connect_url(url).await.expect("a backend");
    backend.migrate().await.expect("tables");
    let pool = PgPoolOptions::new()
        .min_connections(16)
        .test_before_acquire(false)
        .max_connections(16)
        .acquire_timeout(Duration::from_mins(1))
        .connect(url)
        .await
        .expect("a pool");
    pool.execute(TABLES).await.expect("tables");
    for scenario in scenarios(&backend, &pool) {
        let wanted = only.is_empty() || only.iter().any(|one| scenario.name.starts_with(one));
        if wanted {
            let others = scenario.others.iter().map(|(_, work)| work);
            for work in [&scenario.ours].into_iter().chain(others) {
                for round in 0..scenario.before {
                    work(0, round).await;
                }
            }
            let mut lines = lines(&scenario);
            for callers in &callers {
                compare(&mut report, &scenario, *callers, &mut lines).await;
            }
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench");
            let path = Path::new(folder).join(format!("{}.svg", scenario.name));
            chart::draw(&path, scenario.name, &lines);
        }
    }
    report
}

/// Ours, and the others.
fn lines(scenario: &Scenario) -> Vec<Line> {
    let others = scenario.others.iter().map(|(name, _)| *name);
    let line = |name: &str| Line {
        name: name.to_owned(),
        points: Vec::new(),
    };
    ["lockapi"].into_iter().chain(others).map(line).collect()
}

async fn compare(report: &mut Report, scenario: &Scenario, callers: usize, lines: &mut [Line]) {
    let x = f64::from(u32::try_from(callers).expect("fewer than four billion"));
    let name = |what: &str| format!("{}.{what}.{callers}", scenario.name);
    let ours = measure(callers, &scenario.ours).await;
    lines[0].points.push((x, ours.rate, ours.p99));
    for ((other, work), line) in scenario.others.iter().zip(&mut lines[1..]) {
        if std::env::var_os("ONLY_OURS").is_some() {
            eprintln!(
                "{} {:.0} {:.1} {:.1}",
                scenario.name, ours.rate, ours.median, ours.p99
            );
            continue;
        }
        let other_is = *other;
        let other = measure(callers, work).await;
        line.points.push((x, other.rate, other.p99));
        let rates = (ours.rate, other.rate);
        report.add(
            &name("rate"),
            "/s",
            rates.0,
            rates.1,
            other_is,
            Better::Higher,
        );
        let medians = (ours.median, other.median);
        report.add(
            &name("p50"),
            "us",
            medians.0,
            medians.1,
            other_is,
            Better::Lower,
        );
        report.add(
            &name("p99"),
            "us",
            ours.p99,
            other.p99,
            other_is,
            Better::Lower,
        );
    }
}

fn scenarios(backend: &Arc<dyn Backend>, pool: &PgPool) -> Vec<Scenario> {
    vec![
        locks(backend, pool),
        leases(backend, pool),
        renewals(backend, pool),
        limit(backend, pool, "limit.one_key", |_, _| 0),
        limit(backend, pool, "limit.1000_keys", |caller, round| {
            (caller as u64 * 7919 + round * 104_729) % 1000
        }),
        windows(backend),
        pairs(backend),
        pushes(backend, pool),
    ]
}

/// A handle for each caller.
fn handles<T>(open: impl Fn(usize) -> T) -> Vec<T> {
    let most = CALLERS.iter().max().copied().unwrap_or_default();
    (0..most).map(open).collect()
}

/// Lock and unlock, a key for each caller.
fn locks(backend: &Arc<dyn Backend>, pool: &PgPool) -> Scenario {
    let all = handles(|caller| backend.mutex(format!("bench/{caller}")).expect("a mutex"));
    let ours = work(move |caller, _| {
        let mutex = Arc::clone(&all[caller]);
        async move {
            let guard = mutex.lock().await.expect("the lock");
            guard.unlock().await.expect("unlocked");
        }
    });
    let raw = {
        let pool = pool.clone();
        work(move |caller, _| {
            let pool = pool.clone();
            async move {
                let mut connection = pool.acquire().await.expect("a connection");
                let connection = connection.acquire().await.expect("the connection");
                for sql in [
                    "SELECT pg_try_advisory_lock($1)",
                    "SELECT pg_advisory_unlock($1)",
                ] {
                    let key = i64::try_from(caller).expect("a small number");
                    let query = sqlx::query(sql).bind(key);
                    query.fetch_one(&mut *connection).await.expect("a row");
                }
            }
        })
    };
    let advisory = {
        let pool = pool.clone();
        work(move |caller, _| {
            let pool = pool.clone();
            async move {
                let lock = PgAdvisoryLock::new(format!("bench/{caller}"));
                let connection = pool.acquire().await.expect("a connection");
                let guard = lock.acquire(connection).await.expect("the lock");
                guard.release_now().await.expect("unlocked");
            }
        })
    };
    Scenario {
        name: "lock",
        before: 0,
        ours,
        others: vec![("two raw round trips", raw), ("PgAdvisoryLock", advisory)],
    }
}

/// Acquire and release, a key for each caller.
fn leases(backend: &Arc<dyn Backend>, pool: &PgPool) -> Scenario {
    let all = handles(|caller| {
        let options = LeaseOptions::new(Duration::from_secs(30));
        let lease = backend.lease(format!("bench/{caller}"), options);
        lease.expect("a lease")
    });
    let ours = work(move |caller, _| {
        let lease = Arc::clone(&all[caller]);
        async move {
            let guard = lease
                .try_acquire()
                .await
                .expect("an answer")
                .expect("the lease");
            guard.release().await.expect("released");
        }
    });
    let raw = {
        let pool = pool.clone();
        work(move |caller, _| {
            let pool = pool.clone();
            async move {
                let mut connection = pool.acquire().await.expect("a connection");
                let key = format!("bench/{caller}");
                let token: i64 = sqlx::query_scalar(
                    "INSERT INTO bench_lease AS l VALUES ($1, nextval('bench_token'), $2, now() + interval '30 s')
                     ON CONFLICT (key) DO UPDATE SET token = excluded.token, owner = excluded.owner,
                                                     expires = excluded.expires
                      WHERE l.expires <= now() RETURNING token",
                )
                .bind(&key)
                .bind("me")
                .fetch_one(&mut *connection)
                .await
                .expect("the lease");
                sqlx::query("UPDATE bench_lease SET expires = now() WHERE key = $1 AND token = $2")
                    .bind(&key)
                    .bind(token)
                    .execute(&mut *connection)
                    .await
                    .expect("released");
            }
        })
    };
    Scenario {
        name: "lease",
        before: 0,
        ours,
        others: vec![("a raw upsert", raw)],
    }
}

/// Renewals of a lease that each caller holds.
fn renewals(backend: &Arc<dyn Backend>, pool: &PgPool) -> Scenario {
    let all: Arc<Vec<_>> = Arc::new(handles(|caller| {
        let options = LeaseOptions::new(Duration::from_mins(10)).renewed_by_hand();
        let lease = backend.lease(format!("bench/renewed/{caller}"), options);
        let guard: OnceCell<Box<dyn LeaseGuard>> = OnceCell::new();
        (lease.expect("a lease"), guard)
    }));
    let ours = work(move |caller, _| {
        let all = Arc::clone(&all);
        async move {
            let (lease, guard) = &all[caller];
            let acquire = || async { lease.try_acquire().await.expect("an answer").expect("it") };
            let guard = guard.get_or_init(acquire).await;
            guard.renew().await.expect("renewed");
        }
    });
    let pool = pool.clone();
    let raw = work(move |caller, round| {
        let pool = pool.clone();
        async move {
            let key = format!("bench/renewed/{caller}");
            let sql = if round == 0 {
                "INSERT INTO bench_lease VALUES ($1, 1, 'me', now()) ON CONFLICT DO NOTHING"
            } else {
                "UPDATE bench_lease SET expires = now() + interval '30 s' WHERE key = $1 AND token = 1"
            };
            let query = sqlx::query(sql).bind(&key);
            query.execute(&pool).await.expect("renewed");
        }
    });
    Scenario {
        name: "renew",
        before: 0,
        ours,
        others: vec![("a raw update", raw)],
    }
}

/// A limit that is never reached.
fn limit(
    backend: &Arc<dyn Backend>,
    pool: &PgPool,
    name: &'static str,
    key: fn(usize, u64) -> u64,
) -> Scenario {
    let quota = Quota::per_second(10_000).burst(1_000_000_000);
    let limiter = backend.rate_limiter(quota).expect("a limiter");
    let ours = work(move |caller, round| {
        let limiter = Arc::clone(&limiter);
        async move {
            let key = format!("bench/{}", key(caller, round));
            let decision = limiter.check(&*key).await.expect("a decision");
            assert!(decision.is_admitted());
        }
    });
    let pool = pool.clone();
    let function = work(move |caller, round| {
        let pool = pool.clone();
        async move {
            let query = sqlx::query_scalar("SELECT bench_check($1, $2, interval '1 s')");
            let query = query.bind(format!("bench/{}", key(caller, round)));
            let admitted: bool = query
                .bind(i32::MAX)
                .fetch_one(&pool)
                .await
                .expect("a decision");
            assert!(admitted);
        }
    });
    Scenario {
        name,
        before: 1000,
        ours,
        others: vec![("a function with an advisory lock", function)],
    }
}

/// A check of one limit.
fn check(backend: &Arc<dyn Backend>, quota: Quota) -> Work {
    let limiter = backend.rate_limiter(quota).expect("a limiter");
    work(move |caller, round| {
        let limiter = Arc::clone(&limiter);
        async move {
            let key = format!("bench/{}", (caller as u64 * 7919 + round * 104_729) % 1000);
            let decision = limiter.check(&*key).await.expect("a decision");
            assert!(decision.is_admitted());
        }
    })
}

/// A fixed window against the cell rate algorithm.
fn windows(backend: &Arc<dyn Backend>) -> Scenario {
    Scenario {
        name: "window",
        before: 1000,
        ours: check(backend, Quota::per_second(1_000_000_000).fixed_window()),
        others: vec![("a check of one limit", check(backend, plenty()))],
    }
}

fn plenty() -> Quota {
    Quota::per_second(10_000).burst(1_000_000_000)
}

/// Two keys at once against one.
fn pairs(backend: &Arc<dyn Backend>) -> Scenario {
    let limiter = backend.rate_limiter(plenty()).expect("a limiter");
    let ours = work(move |caller, round| {
        let limiter = Arc::clone(&limiter);
        async move {
            let user = format!("bench/user/{caller}");
            let tenant = format!("bench/tenant/{}", round % 100);
            let wants = [Want::new(&*user), Want::new(&*tenant)];
            let verdict = limiter.check_all(&wants).await.expect("a decision");
            assert!(verdict.is_admitted());
        }
    });
    Scenario {
        name: "check_all",
        before: 1000,
        ours,
        others: vec![("a check of one limit", check(backend, plenty()))],
    }
}

/// Pushes of one job.
fn pushes(backend: &Arc<dyn Backend>, pool: &PgPool) -> Scenario {
    let queue = backend.queue("bench").expect("a queue");
    let payload = serde_json::json!({"customer": 4711, "action": "remind"});
    let job = Job::new("remind", &payload).expect("a job");
    let ours = work(move |_, _| {
        let (queue, job) = (Arc::clone(&queue), job.clone());
        async move {
            queue.push(job).await.expect("pushed");
        }
    });
    let pool = pool.clone();
    let raw = work(move |_, _| {
        let (pool, payload) = (pool.clone(), payload.clone());
        async move {
            let query = sqlx::query_scalar(
                "INSERT INTO bench_job (queue, payload) VALUES ($1, $2::text::jsonb) RETURNING id",
            );
            let query = query.bind("bench").bind(payload.to_string());
            let _id: i64 = query.fetch_one(&pool).await.expect("pushed");
        }
    });
    Scenario {
        name: "push",
        before: 0,
        ours,
        others: vec![("a raw insert", raw)],
    }
}
