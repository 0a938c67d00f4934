//! D05, D08: requests whose transaction is rolled back, and duplicates in processes that are killed. `LOCKAPI_KILLS=1000` kills as often, with as many more
//! requests.

use std::convert::Infallible;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use axum::body::Body;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use lockapi::idempotency::{Begun, Execution, Idempotency, IdempotencyOptions};
use lockapi::tower::{IdempotencyLayer, stored};
use lockapi::{BackendOptions, blocking};
use lockapi_conformance::cluster::Cluster;
use postgres::Client;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio_postgres::NoTls;
use tower::{Layer, ServiceExt, service_fn};

/// What a child reads its part from: its number, the namespace and the URL.
const CHILD: &str = "LOCKAPI_IDEMPOTENCY_CHILD";
const KEYS_A_KILL: usize = 4;
/// For each key, at least: a process that is started again sends its part again.
const DUPLICATES: usize = 4;
const PROCESSES: usize = 4;
/// Long enough for renewals on a busy machine; what a dead one held is free after it.
const TTL: Duration = Duration::from_secs(2);

/// How often a process is killed before they are left to finish.
fn kills() -> usize {
    let many = std::env::var("LOCKAPI_KILLS").ok();
    many.map_or(60, |many| many.parse().expect("a number"))
}

/// What a process sends.
struct Part<'a> {
    nth: usize,
    namespace: &'a str,
    url: &'a str,
}

impl Part<'_> {
    fn key(&self, number: usize) -> String {
        format!("{} {}", self.namespace, number % keys())
    }

    /// The numbers of its requests, in an order of its own.
    fn numbers(&self) -> Vec<usize> {
        let mut numbers: Vec<_> = (0..keys() * DUPLICATES)
            .filter(|number| number / keys() % PROCESSES == self.nth % PROCESSES)
            .collect();
        fastrand::shuffle(&mut numbers);
        numbers
    }

    fn options(&self) -> BackendOptions {
        BackendOptions::default()
            .namespace(self.namespace)
            .notes(false)
    }
}

fn keys() -> usize {
    kills() * KEYS_A_KILL
}

const EFFECT: &str = "INSERT INTO conformance.effect (key) VALUES ($1) RETURNING id";
const RECORD: &str = "INSERT INTO conformance.answered (key, number, answer) VALUES ($1, $2, $3)";

type Problem = Box<dyn std::error::Error + Send + Sync>;

/// Many are killed before, and after they have written.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(..30))).await;
}

/// The effect of a request on sqlx, with its answer.
async fn on_sqlx(pool: &PgPool, execution: &Execution, key: &str) -> Result<Vec<u8>, Problem> {
    let mut tx = pool.begin().await?;
    let id: i64 = sqlx::query_scalar(EFFECT)
        .bind(key)
        .fetch_one(&mut *tx)
        .await?;
    let answer = id.to_string().into_bytes();
    pause().await;
    execution.complete_in(&mut *tx, answer.clone()).await?;
    pause().await;
    tx.commit().await?;
    Ok(answer)
}

/// The same on tokio-postgres.
async fn on_tokio_postgres(
    url: &str,
    execution: &Execution,
    key: &str,
) -> Result<Vec<u8>, Problem> {
    let (mut client, socket) = tokio_postgres::connect(url, NoTls).await?;
    drop(tokio::spawn(socket));
    let mut tx = client.transaction().await?;
    let id: i64 = tx.query_one(EFFECT, &[&key]).await?.get(0);
    let answer = id.to_string().into_bytes();
    pause().await;
    execution.complete_in(&mut tx, answer.clone()).await?;
    pause().await;
    tx.commit().await?;
    Ok(answer)
}

/// The same on the blocking face.
fn on_postgres(
    client: &mut Client,
    execution: &blocking::Execution,
    key: &str,
) -> Result<Vec<u8>, Problem> {
    let pause = || thread::sleep(Duration::from_millis(fastrand::u64(..30)));
    let mut tx = client.transaction()?;
    let id: i64 = tx.query_one(EFFECT, &[&key])?.get(0);
    let answer = id.to_string().into_bytes();
    pause();
    execution.complete_in(&mut tx, answer.clone())?;
    pause();
    tx.commit()?;
    Ok(answer)
}

/// Sends a request until it is answered, and records what the answer was.
async fn request(requests: &Idempotency, pool: &PgPool, part: &Part<'_>, number: usize) {
    let key = part.key(number);
    let answer = loop {
        let begun = requests
            .begin_timeout(&key, b"pay", Duration::from_secs(1))
            .await;
        let executed = match begun {
            Ok(Begun::Replay(answer)) => break answer,
            Ok(Begun::Execute(execution)) if part.nth.is_multiple_of(2) => {
                on_sqlx(pool, &execution, &key).await
            }
            Ok(Begun::Execute(execution)) => on_tokio_postgres(part.url, &execution, &key).await,
            Ok(Begun::InProgress) => continue,
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.into()),
        };
        match executed {
            Ok(answer) => break answer,
            Err(error) => eprintln!("{key}: {error}"),
        }
    };
    let record = sqlx::query(RECORD)
        .bind(&key)
        .bind(i64::try_from(number).expect("small"));
    let answer = String::from_utf8(answer).expect("a number");
    record.bind(answer).execute(pool).await.expect("recorded");
}

/// The same on the blocking face.
fn request_blocking(
    requests: &blocking::Idempotency,
    client: &mut Client,
    part: &Part<'_>,
    number: usize,
) {
    let key = part.key(number);
    let answer = loop {
        let begun = requests.begin_timeout(&key, b"pay", Duration::from_secs(1));
        let executed = match begun {
            Ok(blocking::Begun::Replay(answer)) => break answer,
            Ok(blocking::Begun::Execute(execution)) => on_postgres(client, &execution, &key),
            Ok(blocking::Begun::InProgress) => continue,
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.into()),
        };
        match executed {
            Ok(answer) => break answer,
            Err(error) => eprintln!("{key}: {error}"),
        }
    };
    let answer = String::from_utf8(answer).expect("a number");
    let number = i64::try_from(number).expect("small");
    let recorded = client.execute(RECORD, &[&key, &number, &answer]);
    recorded.expect("recorded");
}

/// Sends what has not been answered yet.
async fn serve(part: &Part<'_>) {
    let pool = PgPoolOptions::new().max_connections(4);
    let pool = pool.connect(part.url).await.expect("a pool");
    let backend = if part.nth.is_multiple_of(2) {
        lockapi_sqlx::connect_with(&pool, part.options()).await
    } else {
        lockapi_tokio_postgres::connect_url_with(part.url, NoTls, part.options()).await
    };
    let backend = backend.expect("connected");
    let requests = backend.idempotency(IdempotencyOptions::default().ttl(TTL));
    let requests = requests.expect("options");
    for some in part.numbers().chunks(25) {
        let sent = some
            .iter()
            .map(|number| request(&requests, &pool, part, *number));
        join_all(sent).await;
    }
}

/// The same on the blocking face, on eight threads.
fn serve_blocking(part: &Part<'_>) {
    let backend = lockapi_postgres::connect_url_with(part.url, part.options());
    let backend = blocking::Backend::connect(backend).expect("connected");
    let requests = backend.idempotency(IdempotencyOptions::default().ttl(TTL));
    let requests = requests.expect("options");
    let (numbers, next) = (part.numbers(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(part.url, NoTls).expect("a connection");
                while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    request_blocking(&requests, &mut client, part, *number);
                }
            });
        }
    });
}

fn start(nth: usize, namespace: &str, url: &str) -> Child {
    Command::new(std::env::current_exe().expect("a program"))
        .args([
            "--exact",
            "d08_duplicates_in_processes_that_are_killed_have_one_effect",
        ])
        .args(["--nocapture", "--test-threads", "1"])
        .env(CHILD, format!("{nth} {namespace} {url}"))
        .stdout(Stdio::null())
        .spawn()
        .expect("a process")
}

#[test]
fn d08_duplicates_in_processes_that_are_killed_have_one_effect() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Ok(part) = std::env::var(CHILD) {
        let mut parts = part.splitn(3, ' ');
        let mut next = || parts.next().expect("three parts");
        let nth = next().parse().expect("a number");
        let (namespace, url) = (next(), next());
        let part = Part {
            nth,
            namespace,
            url,
        };
        if nth % PROCESSES == 3 {
            serve_blocking(&part);
        } else {
            runtime.block_on(serve(&part));
        }
        return;
    }
    let url = Cluster::shared().expect("a server").url();
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let pool = runtime.block_on(async {
        let pool = PgPool::connect(url).await.expect("a pool");
        let backend = lockapi_sqlx::connect(&pool).await.expect("connected");
        backend.migrate().await.expect("migrated");
        let tables = "
            SELECT pg_advisory_xact_lock(-728, 3);
            CREATE SCHEMA IF NOT EXISTS conformance;
            CREATE TABLE IF NOT EXISTS conformance.effect (
                id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL);
            CREATE TABLE IF NOT EXISTS conformance.answered (
                key text NOT NULL, number int8 NOT NULL, answer text NOT NULL)";
        sqlx::raw_sql(tables).execute(&pool).await.expect("tables");
        pool
    });
    let mut running: Vec<_> = (0..PROCESSES)
        .map(|nth| start(nth, &namespace, url))
        .collect();
    for _ in 0..kills() {
        thread::sleep(Duration::from_millis(fastrand::u64(20..150)));
        let nth = fastrand::usize(..PROCESSES);
        running[nth].kill().expect("killed");
        running[nth].wait().expect("ended");
        running[nth] = start(nth, &namespace, url);
    }
    let begun = Instant::now();
    for child in &mut running {
        while child.try_wait().expect("a process").is_none() {
            assert!(
                begun.elapsed()
                    < Duration::from_mins(2)
                        + Duration::from_millis(100) * u32::try_from(keys()).expect("small"),
                "it does not end"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
    let counts = runtime.block_on(async {
        let sql = "
            SELECT (SELECT count(*) FROM conformance.effect WHERE key LIKE $1),
                   (SELECT count(DISTINCT key) FROM conformance.effect WHERE key LIKE $1),
                   (SELECT count(DISTINCT number) FROM conformance.answered WHERE key LIKE $1),
                   (SELECT count(*) FROM conformance.answered AS a
                     WHERE key LIKE $1 AND NOT EXISTS (
                           SELECT FROM conformance.effect AS e WHERE e.key = a.key AND e.id::text = a.answer))";
        let counted = sqlx::query_as::<_, (i64, i64, i64, i64)>(sql).bind(format!("{namespace} %"));
        counted.fetch_one(&pool).await.expect("counts")
    });
    let duplicates = i64::try_from(keys() * DUPLICATES).expect("small");
    let keys = i64::try_from(keys()).expect("small");
    assert_eq!(
        counts,
        (keys, keys, duplicates, 0),
        "effects, their keys, requests answered, wrong answers"
    );
}

/// A handler completes its request in a transaction, rolls back and refuses: the refusal is kept, as any other.
#[tokio::test(flavor = "multi_thread")]
async fn d05_refusal_after_a_rollback_is_kept() {
    let url = Cluster::shared().expect("a server").url();
    let pool = PgPool::connect(url).await.expect("a pool");
    let options = BackendOptions::default().namespace(format!("n{:016x}", fastrand::u64(..)));
    let backend = lockapi_sqlx::connect_with(&pool, options).await;
    let backend = backend.expect("connected");
    backend.migrate().await.expect("migrated");
    let executed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&executed);
    let handler = service_fn(move |request: Request<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let pool = pool.clone();
        async move {
            let execution = request.extensions().get::<Arc<Execution>>();
            let execution = execution.expect("the execution");
            let mut tx = pool.begin().await.expect("begun");
            let paid = stored(&Response::new("paid"));
            let completed = execution.complete_in(&mut *tx, paid).await;
            completed.expect("completed");
            tx.rollback().await.expect("rolled back");
            let mut refused = Response::new(Body::from("no money"));
            *refused.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
            Ok::<_, Infallible>(refused)
        }
    });
    let requests = backend.idempotency(IdempotencyOptions::default());
    let layer = IdempotencyLayer::new(requests.expect("options"), |_| String::new());
    let service = layer.layer(handler);
    for again in [false, true] {
        let request = Request::post("/").header("idempotency-key", "7");
        let request = request.body(Body::from("pay")).expect("a request");
        let Ok(answer) = service.clone().oneshot(request).await;
        assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
        let replayed = answer.headers().contains_key("idempotency-replayed");
        assert_eq!(replayed, again);
    }
    assert_eq!(executed.load(Ordering::Relaxed), 1);
}
