//! D08: duplicates of requests, in processes that are killed.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockapi::BackendOptions;
use lockapi::idempotency::{Begun, Execution, Idempotency, IdempotencyOptions};
use lockapi_conformance::cluster::Cluster;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio_postgres::NoTls;

/// What a child reads its part from: its number, the namespace and the URL.
const CHILD: &str = "LOCKAPI_IDEMPOTENCY_CHILD";
const KEYS: usize = 250;
/// For each key, at least: a process that is started again sends its part again.
const DUPLICATES: usize = 4;
const PROCESSES: usize = 4;
/// How often a process is killed before they are left to finish.
const KILLS: usize = 60;
/// Long enough for renewals on a busy machine; what a dead one held is free after it.
const TTL: Duration = Duration::from_secs(2);

type Problem = Box<dyn std::error::Error + Send + Sync>;

/// Many are killed before, and after they have written.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(..30))).await;
}

/// The effect of a request on sqlx, with its answer.
async fn on_sqlx(pool: &PgPool, execution: &Execution, key: &str) -> Result<Vec<u8>, Problem> {
    let mut tx = pool.begin().await?;
    let insert = "INSERT INTO conformance.effect (key) VALUES ($1) RETURNING id";
    let id: i64 = sqlx::query_scalar(insert)
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
    let insert = "INSERT INTO conformance.effect (key) VALUES ($1) RETURNING id";
    let id: i64 = tx.query_one(insert, &[&key]).await?.get(0);
    let answer = id.to_string().into_bytes();
    pause().await;
    execution.complete_in(&mut tx, answer.clone()).await?;
    pause().await;
    tx.commit().await?;
    Ok(answer)
}

/// Sends a request until it is answered, and records what the answer was.
async fn request(
    requests: &Idempotency,
    pool: &PgPool,
    url: &str,
    namespace: &str,
    nth: usize,
    number: usize,
) {
    let key = format!("{namespace} {}", number % KEYS);
    let answer = loop {
        let begun = requests
            .begin_timeout(&key, b"pay", Duration::from_secs(1))
            .await;
        let executed = match begun {
            Ok(Begun::Replay(answer)) => break answer,
            Ok(Begun::Execute(execution)) if nth.is_multiple_of(2) => {
                on_sqlx(pool, &execution, &key).await
            }
            Ok(Begun::Execute(execution)) => on_tokio_postgres(url, &execution, &key).await,
            Ok(Begun::InProgress) => continue,
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.into()),
        };
        match executed {
            Ok(answer) => break answer,
            Err(error) => eprintln!("{key}: {error}"),
        }
    };
    let record = "INSERT INTO conformance.answered (key, number, answer) VALUES ($1, $2, $3)";
    let answer = String::from_utf8(answer).expect("a number");
    let record = sqlx::query(record)
        .bind(&key)
        .bind(i64::try_from(number).expect("small"));
    record.bind(answer).execute(pool).await.expect("recorded");
}

/// Sends what has not been answered yet, in an order of its own.
async fn serve(nth: usize, namespace: &str, url: &str) {
    let options = BackendOptions::default().namespace(namespace).notes(false);
    let pool = PgPoolOptions::new().max_connections(4).connect(url).await;
    let pool = pool.expect("a pool");
    let backend = if nth.is_multiple_of(2) {
        lockapi_sqlx::connect_with(&pool, options).await
    } else {
        lockapi_tokio_postgres::connect_url_with(url, NoTls, options).await
    };
    let backend = backend.expect("connected");
    let requests = backend.idempotency(IdempotencyOptions::default().ttl(TTL));
    let requests = requests.expect("options");
    let mut numbers: Vec<_> = (0..KEYS * DUPLICATES)
        .filter(|number| number / KEYS % PROCESSES == nth % PROCESSES)
        .collect();
    fastrand::shuffle(&mut numbers);
    for some in numbers.chunks(25) {
        let sent = some
            .iter()
            .map(|number| request(&requests, &pool, url, namespace, nth, *number));
        join_all(sent).await;
    }
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
        runtime.block_on(serve(nth, namespace, url));
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
    for _ in 0..KILLS {
        thread::sleep(Duration::from_millis(fastrand::u64(20..150)));
        let nth = fastrand::usize(..PROCESSES);
        running[nth].kill().expect("killed");
        running[nth].wait().expect("ended");
        running[nth] = start(nth, &namespace, url);
    }
    let begun = Instant::now();
    for child in &mut running {
        while child.try_wait().expect("a process").is_none() {
            assert!(begun.elapsed() < Duration::from_mins(2), "it does not end");
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
    let keys = i64::try_from(KEYS).expect("small");
    let duplicates = i64::try_from(KEYS * DUPLICATES).expect("small");
    assert_eq!(
        counts,
        (keys, keys, duplicates, 0),
        "effects, their keys, requests answered, wrong answers"
    );
}
