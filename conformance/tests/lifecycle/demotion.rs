//! A primary that becomes a standby under programs that hold, wait and have a transaction open; and hosts that are
//! not there.

use std::fs;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection;
use diesel::{Connection as _, PgConnection};
use lockapi::lease::LeaseOptions;
use lockapi::queue::{Claim, Job};
use lockapi::{Backend, BackendOptions, ErrorKind, Lease, LeaseGuard, MutexGuard, Queue, Result};
use lockapi_conformance::cluster::{Cluster, StopMode};
use postgres::{Client, NoTls};
use sqlx::Connection as _;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{sleep, timeout};

const SOON: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(2);

async fn connect(library: &str, url: &str, namespace: &str) -> Result<Arc<dyn Backend>> {
    let options = BackendOptions::default().namespace(namespace);
    match library {
        "sqlx" => lockapi_sqlx::connect_url_with(url, options).await,
        "diesel" => lockapi_diesel::connect_url_with(url, options).await,
        _ => lockapi_postgres::connect_url_with(url, options).await,
    }
}

const LIBRARIES: [&str; 3] = ["sqlx", "diesel", "sync"];

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = timeout(SOON, work).await;
    done.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

/// It begins again as a standby, on the same port.
fn demote(cluster: &mut Cluster) {
    cluster.stop(StopMode::Fast).expect("it stops");
    let signal = cluster
        .data_dir()
        .expect("a directory")
        .join("standby.signal");
    fs::write(signal, "").expect("a file");
    cluster.start().expect("it starts");
}

/// A transaction of the program, of the same library.
enum Transaction {
    Sqlx(sqlx::PgConnection),
    Diesel(PgConnection),
    Sync(Client),
}

impl Transaction {
    /// Opens one and pushes a job in it.
    async fn push(library: &str, url: &str, queue: &Arc<dyn Queue>) -> Self {
        let jobs = [Job::new("undone", &1).expect("a job")];
        match library {
            "sqlx" => {
                let connection = sqlx::PgConnection::connect(url).await;
                let mut connection = connection.expect("a connection");
                let begun = sqlx::query("BEGIN").execute(&mut connection).await;
                begun.expect("begun");
                let pushed = queue.push_in(&mut connection, &jobs).await;
                pushed.expect("pushed");
                Self::Sqlx(connection)
            }
            "diesel" => block_in_place(|| {
                let mut connection = PgConnection::establish(url).expect("a connection");
                connection.batch_execute("BEGIN").expect("begun");
                let pushed = queue.push_in(&mut connection, &jobs);
                pushed.expect("pushed");
                Self::Diesel(connection)
            }),
            _ => block_in_place(|| {
                let mut client = Client::connect(url, NoTls).expect("a connection");
                client.batch_execute("BEGIN").expect("begun");
                let pushed = queue.push_in(&mut client, &jobs);
                pushed.expect("pushed");
                Self::Sync(client)
            }),
        }
    }

    async fn commit(self) -> std::result::Result<(), String> {
        let told = |error: &dyn std::error::Error| error.to_string();
        match self {
            Self::Sqlx(mut connection) => {
                let done = sqlx::query("COMMIT").execute(&mut connection).await;
                done.map(drop).map_err(|error| told(&error))
            }
            Self::Diesel(mut connection) => block_in_place(|| {
                let done = connection.batch_execute("COMMIT");
                let done = done.map_err(|error| told(&error));
                drop(connection);
                done
            }),
            Self::Sync(mut client) => block_in_place(|| {
                let done = client.batch_execute("COMMIT");
                let done = done.map_err(|error| told(&error));
                drop(client);
                done
            }),
        }
    }
}

/// One that was not ended yet. A client that blocks cannot be dropped by a task that does not.
struct Open(Option<Transaction>);

impl Drop for Open {
    fn drop(&mut self) {
        block_in_place(|| drop(self.0.take()));
    }
}

/// Names of the threads of this process that backends started.
fn threads() -> Vec<String> {
    let each = fs::read_dir("/proc/self/task").expect("a directory");
    let names = each.filter_map(|thread| {
        // A thread may have ended meanwhile.
        fs::read_to_string(thread.ok()?.path().join("comm")).ok()
    });
    names.filter(|name| name.starts_with("lockapi")).collect()
}

/// A program that holds, and one that waits for what it holds.
struct Programs {
    library: &'static str,
    there: Arc<dyn Backend>,
    locked: Box<dyn MutexGuard>,
    leased: Box<dyn LeaseGuard>,
    waits: Vec<(&'static str, JoinHandle<Result<Waited>>)>,
    transaction: Open,
}

/// What a wait ended with.
enum Waited {
    Locked(Box<dyn MutexGuard>),
    Leased(Box<dyn LeaseGuard>),
    NoJob,
}

fn lease(backend: &Arc<dyn Backend>) -> Arc<dyn Lease> {
    backend
        .lease("job", LeaseOptions::new(TTL))
        .expect("a lease")
}

async fn start(library: &'static str, url: &str) -> Programs {
    let here = connect(library, url, library).await.expect("a backend");
    let there = connect(library, url, library).await.expect("a backend");
    here.migrate().await.expect("migrated");
    let locked = here.mutex("door").expect("a mutex").lock().await;
    let leased = lease(&here).acquire().await.expect("acquired");
    let mutex = there.mutex("door").expect("a mutex");
    let other = lease(&there);
    let queue = there.queue("work").expect("a queue");
    let waits = vec![
        (
            "the mutex",
            tokio::spawn(async move { mutex.lock_timeout(SOON * 2).await.map(Waited::Locked) }),
        ),
        (
            "the lease",
            tokio::spawn(async move { other.acquire_timeout(SOON * 2).await.map(Waited::Leased) }),
        ),
        (
            "a job",
            tokio::spawn(async move {
                let claimed = queue.claim(&Claim::new(1).wait(SOON * 2)).await?;
                assert!(claimed.is_empty(), "nothing was pushed: {claimed:?}");
                Ok(Waited::NoJob)
            }),
        ),
    ];
    let queue = here.queue("work").expect("a queue");
    let transaction = Transaction::push(library, url, &queue).await;
    Programs {
        library,
        there,
        locked: locked.expect("locked"),
        leased,
        waits,
        transaction: Open(Some(transaction)),
    }
}

impl Programs {
    /// What was held is lost, and nobody is given anything.
    async fn on_a_standby(&mut self, url: &str) {
        let library = self.library;
        let transaction = self.transaction.0.take().expect("one is open");
        let committed = transaction.commit().await;
        assert!(committed.is_err(), "{library}: its session has ended");
        soon("the mutex is lost", self.locked.lost()).await;
        soon("the lease is lost", self.leased.lost()).await;
        let mutex = self.there.mutex("else").expect("a mutex");
        let queue = self.there.queue("work").expect("a queue");
        let lease = lease(&self.there);
        let job = || Job::new("refused", &1).expect("a job");
        refused("a mutex", || mutex.try_lock()).await;
        refused("a lease", || lease.try_acquire()).await;
        refused("a push", || queue.push(job())).await;
        refused("a connection", || connect(library, url, library)).await;
        let ended = self.waits.extract_if(.., |(_, wait)| wait.is_finished());
        for (what, wait) in ended.collect::<Vec<_>>() {
            match wait.await.expect("it waited") {
                // The session of the one before ended first, as the server stopped.
                Ok(Waited::Locked(guard)) => soon("it is lost", guard.lost()).await,
                // Before the server stopped: a machine that is busy does not renew in time.
                Ok(Waited::Leased(guard)) => soon("it is lost", guard.lost()).await,
                Ok(Waited::NoJob) => panic!("{library}: {what} did not wait"),
                Err(error) => {
                    let kinds = [ErrorKind::Unavailable, ErrorKind::Indeterminate];
                    assert!(kinds.contains(&error.kind()), "{library}, {what}: {error}");
                }
            }
        }
    }

    /// Waits that have not ended are served, or end with their own time.
    async fn on_a_primary(self, url: &str) {
        let library = self.library;
        drop((self.locked, self.leased));
        for (what, wait) in self.waits {
            if what == "a job" {
                wait.abort();
                continue;
            }
            if let Err(error) = soon(what, wait).await.expect("it waited") {
                let kinds = [ErrorKind::Unavailable, ErrorKind::TimedOut];
                assert!(kinds.contains(&error.kind()), "{library}, {what}: {error}");
            }
        }
        let mutex = self.there.mutex("door").expect("a mutex");
        let locked = served(|| mutex.lock_timeout(Duration::from_secs(1))).await;
        let other = connect(library, url, library).await.expect("a backend");
        let second = other.mutex("door").expect("a mutex").try_lock().await;
        assert!(second.expect("answered").is_none(), "{library}: held twice");
        drop(locked);
        let queue = other.queue("work").expect("a queue");
        let left = queue.claim(&Claim::new(1)).await.expect("answered");
        assert!(left.is_empty(), "{library}: {left:?}");
        soon("it is closed", other.close()).await.expect("closed");
        soon("it is closed", self.there.close())
            .await
            .expect("closed");
    }
}

/// Whatever was sent to a session that has ended may have another error first.
async fn refused<T, F: Future<Output = Result<T>>>(what: &str, mut call: impl FnMut() -> F) {
    let began = Instant::now();
    loop {
        let Err(error) = call().await else {
            panic!("{what} was given on a standby");
        };
        if error.to_string().contains("standby") {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
            return;
        }
        assert!(began.elapsed() < SOON, "{what}: {error}");
        sleep(Duration::from_millis(50)).await;
    }
}

async fn served<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(began.elapsed() < SOON, "{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f09_what_a_primary_gave_ends_when_it_becomes_a_standby() {
    let start_server = || Cluster::private(&[]).expect("a server");
    let mut cluster = block_in_place(start_server);
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let url = cluster.url().to_owned();
    let mut programs = Vec::new();
    for library in LIBRARIES {
        programs.push(start(library, &url).await);
    }
    // All waits are under way.
    sleep(Duration::from_millis(500)).await;
    block_in_place(|| demote(&mut cluster));
    for programs in &mut programs {
        programs.on_a_standby(&url).await;
    }
    let promote = || cluster.psql("SELECT pg_promote()").expect("promoted");
    assert_eq!(block_in_place(promote), "t");
    assert!(tasks() > before && !threads().is_empty(), "they have some");
    for programs in programs {
        programs.on_a_primary(&url).await;
    }
    let began = Instant::now();
    while tasks() > before || !threads().is_empty() {
        let (tasks, threads) = (tasks() - before, threads());
        assert!(began.elapsed() < SOON, "{tasks} tasks, {threads:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Each of these takes longer than the role's limit, as it may on a busy server: how a connection begins, a
/// migration, and a call. What a driver itself runs on a new connection stays far below the limit.
const SLOW: &str = "
    CREATE FUNCTION public.linger() RETURNS event_trigger LANGUAGE plpgsql
        AS $$BEGIN PERFORM pg_catalog.pg_sleep(1.5); END$$;
    CREATE EVENT TRIGGER linger ON ddl_command_start WHEN TAG IN ('CREATE SCHEMA')
        EXECUTE FUNCTION public.linger();
    CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql
        AS $$BEGIN PERFORM pg_catalog.pg_sleep(1.5); RETURN NULL; END$$";
const SLOW_PUSH: &str = "CREATE TRIGGER dawdle AFTER INSERT ON lockapi.job
    FOR EACH STATEMENT EXECUTE FUNCTION public.dawdle()";

/// Holds for a while a lock on the settings, which are read and written where a connection begins.
fn hold_settings(url: &str) -> std::thread::JoinHandle<()> {
    let mut client = Client::connect(url, NoTls).expect("a connection");
    let lock = "BEGIN; LOCK TABLE pg_catalog.pg_settings IN ACCESS EXCLUSIVE MODE";
    client.batch_execute(lock).expect("locked");
    std::thread::spawn(move || {
        let held = client.batch_execute("SELECT pg_catalog.pg_sleep(1.5); COMMIT");
        held.expect("released");
    })
}

/// Whatever a role's defaults are, a program is told what is the matter, and works where nothing is.
#[tokio::test(flavor = "multi_thread")]
async fn f09_settings_of_the_role_hide_no_standby() {
    let start_server = || {
        let cluster = Cluster::private(&[]).expect("a server");
        let roles = "CREATE ROLE strict SUPERUSER LOGIN; CREATE ROLE hasty SUPERUSER LOGIN;
             ALTER ROLE strict SET default_transaction_isolation = 'serializable';
             ALTER ROLE hasty SET statement_timeout = '500ms'";
        cluster.psql(roles).expect("roles");
        for library in LIBRARIES {
            let database = format!("CREATE DATABASE {library}_");
            cluster.psql(&database).expect("a database");
        }
        cluster
    };
    let mut cluster = block_in_place(start_server);
    let mut programs = Vec::new();
    for library in LIBRARIES {
        let (server, _) = cluster.url().rsplit_once('/').expect("a database");
        let database = format!("{server}/{library}_");
        for role in ["hasty", "strict"] {
            let url = database.replacen("//postgres@", &format!("//{role}@"), 1);
            let run = |sql: &'static str| {
                block_in_place(|| {
                    let mut client = Client::connect(&database, NoTls).expect("a connection");
                    client.batch_execute(sql).expect("it ran");
                });
            };
            let slow = role == "hasty";
            let held = slow.then(|| {
                run(SLOW);
                block_in_place(|| hold_settings(&database))
            });
            let backend = connect(library, &url, library).await.expect("a backend");
            if let Some(held) = held {
                block_in_place(|| held.join()).expect("released");
            }
            backend.migrate().await.expect("migrated");
            let queue = backend.queue("work").expect("a queue");
            if slow {
                run(SLOW_PUSH);
            }
            let pushed = queue.push(Job::new("job", &1).expect("a job")).await;
            pushed.unwrap_or_else(|error| panic!("{library}, {role}: {error}"));
            if slow {
                run("DROP TRIGGER dawdle ON lockapi.job");
            }
            let door = backend.mutex(role).expect("a mutex");
            let locked = door.lock().await;
            drop(locked.unwrap_or_else(|error| panic!("{library}, {role}: {error}")));
            programs.push((library, url, backend, door));
        }
    }
    block_in_place(|| demote(&mut cluster));
    for (library, url, backend, door) in programs {
        refused(library, || door.try_lock()).await;
        let database = format!("/{library}_");
        let hosts = url.replacen(&database, &format!(",127.0.0.1:1{database}"), 1);
        let error = connect(library, &hosts, library).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{library}: {error}");
        assert!(error.to_string().contains("none of the 2 hosts"), "{error}");
        soon("it is closed", backend.close()).await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f10_hosts_that_are_not_there_are_unavailable() {
    for library in LIBRARIES {
        for hosts in [
            "no-such-host.invalid",
            "no-such-host.invalid,other.invalid:5433",
            "no-such-host.invalid,127.0.0.1:1",
        ] {
            let url = format!("postgres://postgres@{hosts}/postgres");
            let began = Instant::now();
            let error = connect(library, &url, "n").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{library}: {error}");
            assert!(
                began.elapsed() < Duration::from_secs(15),
                "{library}: {error}"
            );
            assert!(
                error.to_string().contains("hosts") || !hosts.contains(','),
                "{library}: {error}"
            );
        }
    }
}
