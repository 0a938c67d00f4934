//! What the backends do with the pool of a program.

use std::thread;
use std::time::{Duration, Instant};

use diesel::sql_types::Text;
use diesel::{PgConnection, QueryableByName, RunQueryDsl};
use lockapi::BackendOptions;
use lockapi::ErrorKind;
use lockapi::blocking::Backend;
use lockapi_conformance::cluster::Cluster;
use r2d2::{CustomizeConnection, ManageConnection, Pool};
use r2d2_postgres::PostgresConnectionManager;
use r2d2_postgres::postgres::{Client, NoTls};

/// A library with pools.
trait Library: std::fmt::Debug + 'static {
    type Manager: ManageConnection;

    fn manager(url: &str) -> Self::Manager;
    fn connect(pool: &Pool<Self::Manager>, options: BackendOptions) -> lockapi::Result<Backend>;
    fn answer(
        connection: &mut <Self::Manager as ManageConnection>::Connection,
        sql: &str,
    ) -> String;
}

#[derive(Debug)]
struct Sync;

impl Library for Sync {
    type Manager = PostgresConnectionManager<NoTls>;

    fn manager(url: &str) -> Self::Manager {
        PostgresConnectionManager::new(url.parse().expect("a URL"), NoTls)
    }

    fn connect(pool: &Pool<Self::Manager>, options: BackendOptions) -> lockapi::Result<Backend> {
        Backend::connect(lockapi_postgres::connect_with(pool, options))
    }

    fn answer(connection: &mut Client, sql: &str) -> String {
        connection.query_one(sql, &[]).expect("a row").get(0)
    }
}

#[derive(Debug)]
struct Diesel;

#[derive(QueryableByName)]
struct Answer {
    #[diesel(sql_type = Text)]
    answer: String,
}

impl Library for Diesel {
    type Manager = diesel::r2d2::ConnectionManager<PgConnection>;

    fn manager(url: &str) -> Self::Manager {
        Self::Manager::new(url)
    }

    fn connect(pool: &Pool<Self::Manager>, options: BackendOptions) -> lockapi::Result<Backend> {
        Backend::connect(lockapi_diesel::connect_with(pool, options))
    }

    fn answer(connection: &mut PgConnection, sql: &str) -> String {
        let rows = diesel::sql_query(sql).load::<Answer>(connection);
        rows.expect("a row").swap_remove(0).answer
    }
}

/// Gives every connection a setting, as programs do.
#[derive(Debug)]
struct Customized<L>(std::marker::PhantomData<fn() -> L>);

impl<L: Library> CustomizeConnection<Connection<L>, <L::Manager as ManageConnection>::Error>
    for Customized<L>
{
    fn on_acquire(
        &self,
        connection: &mut Connection<L>,
    ) -> Result<(), <L::Manager as ManageConnection>::Error> {
        L::answer(
            connection,
            "SELECT set_config('statement_timeout', '77s', false) AS answer",
        );
        Ok(())
    }
}

type Connection<L> = <<L as Library>::Manager as ManageConnection>::Connection;

fn url() -> String {
    match Cluster::shared() {
        Ok(cluster) => cluster.url().to_owned(),
        Err(error) => panic!("no server: {error}"),
    }
}

fn pool<L: Library>(size: u32) -> Pool<L::Manager> {
    Pool::builder()
        .max_size(size)
        .min_idle(Some(0))
        .connection_timeout(Duration::from_secs(1))
        .connection_customizer(Box::new(Customized::<L>(std::marker::PhantomData)))
        .build(L::manager(&url()))
        .expect("a pool")
}

fn in_use<M: ManageConnection>(pool: &Pool<M>) -> u32 {
    let state = pool.state();
    state.connections - state.idle_connections
}

fn options() -> BackendOptions {
    BackendOptions::default()
        .namespace(format!("n{:016x}", fastrand::u64(..)))
        .waiters(2)
        .notes(false)
}

fn no_more_is_taken_than_is_stated<L: Library>() {
    let pool = pool::<L>(25);
    let options = options();
    let backend = L::connect(&pool, options.clone()).expect("a backend");
    backend.migrate().expect("migrated");
    let other = L::connect(&pool, options).expect("a backend");
    let guards: Vec<_> = (0..8)
        .map(|key| {
            let mutex = other.mutex(format!("door {key}")).expect("a mutex");
            mutex.lock().expect("locked")
        })
        .collect();
    let waiting: Vec<_> = (0..8)
        .map(|key| {
            let mutex = backend.mutex(format!("door {key}")).expect("a mutex");
            thread::spawn(move || drop(mutex.lock().expect("locked")))
        })
        .collect();
    let options = lockapi::lease::LeaseOptions::new(Duration::from_secs(30));
    let lease = backend.lease("job", options).expect("a lease");
    drop(lease.acquire().expect("acquired"));
    // The other one has no waiters, and no statements on tables.
    let started = Instant::now();
    while in_use(&pool) < 6 {
        assert!(started.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(300));
    assert_eq!(in_use(&pool), 2 + 3 + 1);
    drop(guards);
    for waiter in waiting {
        waiter.join().expect("it was served");
    }
}

fn what_goes_back_is_as_it_was<L: Library>() {
    // The settings of plpgsql are there once a session has loaded it.
    const LEFT: &str = "SELECT concat_ws(' ', current_setting('statement_timeout'),
            (SELECT string_agg(concat_ws(' ', name, setting, source), ',' ORDER BY name)
               FROM pg_settings WHERE context IN ('user', 'superuser') AND name NOT LIKE 'plpgsql.%'),
            coalesce(current_setting('lockapi.marker', true), ''),
            (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
            (SELECT count(*) FROM pg_stat_activity WHERE pid = pg_backend_pid()
                AND xact_start < query_start - interval '50ms')) AS answer";
    let pool = pool::<L>(12);
    let before = L::answer(&mut pool.get().expect("a connection"), LEFT);
    assert!(before.starts_with("77s "), "{before}");
    let backend = L::connect(&pool, options()).expect("a backend");
    backend.migrate().expect("migrated");
    let guard = backend.mutex("door").expect("a mutex").lock();
    let guard = guard.expect("locked");
    let options = lockapi::lease::LeaseOptions::new(Duration::from_secs(30));
    let lease = backend.lease("job", options).expect("a lease");
    drop(lease.acquire().expect("acquired"));
    assert_eq!(in_use(&pool), 3);
    drop((guard, backend, lease));
    let started = Instant::now();
    while in_use(&pool) > 0 {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "not given back"
        );
        thread::sleep(Duration::from_millis(5));
    }
    let known = pool.state().connections;
    let mut all: Vec<_> = (0..known)
        .map(|_| pool.get().expect("a connection"))
        .collect();
    for connection in &mut all {
        assert_eq!(L::answer(connection, LEFT), before);
    }
}

fn a_full_pool_is_told_of<L: Library>() {
    let pool = pool::<L>(12);
    let all: Vec<_> = (0..12).map(|_| pool.get().expect("one")).collect();
    let started = Instant::now();
    let error = L::connect(&pool, options()).expect_err("nothing is left");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(started.elapsed() < Duration::from_secs(4));
    drop(all);
    L::connect(&pool, options()).expect("a backend");
}

fn a_pool_that_is_too_small_is_refused<L: Library>() {
    let error = L::connect(&pool::<L>(11), options()).expect_err("too small");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let words = error.to_string();
    assert!(words.contains("a pool of 11"), "{words}");
    assert!(words.contains("12 or more"), "{words}");
    let default = Pool::new(L::manager(&url())).expect("a pool");
    let error = L::connect(&default, BackendOptions::default()).expect_err("the default of r2d2");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

macro_rules! each {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn on_diesel() {
                super::$name::<super::Diesel>();
            }

            #[test]
            fn on_sync() {
                super::$name::<super::Sync>();
            }
        }
    )*};
}

each! {
    no_more_is_taken_than_is_stated
    what_goes_back_is_as_it_was
    a_full_pool_is_told_of
    a_pool_that_is_too_small_is_refused
}
