//! What the listeners of each library hear, and how they end.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use diesel::PgConnection;
use futures_util::future::{Either, select};
use lockapi::driver::{
    Connection, Connector, Listener, Mode, Rows, Script, Statement, Type, Value,
};
use lockapi::memory::Database;
use lockapi::queue::{Job, QueueOptions};
use lockapi::suite::driver::Operation;
use lockapi::suite::engine::{Notify, listen};
use lockapi::suite::memory::ModelState;
use lockapi::{Failure, Queue, advisory_key};
use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, NoTls};
use r2d2::{ManageConnection, Pool};
use tokio::runtime::Builder;
use tokio::sync::Notify as Bell;

use crate::connection::{Library, LibraryConnection};

/// How long something that has to happen may take on a busy machine.
const SOON: Duration = Duration::from_secs(15);

/// How long the role lets a session be idle.
const IDLE: Duration = Duration::from_millis(400);

/// A listener on a task of its connector.
struct Ear {
    pid: i64,
    heard: Receiver<Result<String, Failure>>,
    stop: Arc<Bell>,
}

impl Ear {
    fn open<C: Connector>(connector: &Arc<C>) -> Self {
        let (sender, heard) = mpsc::channel();
        let (opened, pid) = mpsc::channel();
        let stop = Arc::new(Bell::new());
        let (on, stopped) = (Arc::clone(connector), Arc::clone(&stop));
        let task = async move {
            let mut listener = listen(&*on).await.expect("a listener");
            let pid = listener.perform(&[Pid]).await.expect("answered")[0];
            opened.send(pid).expect("the test waits");
            let mut stopped = pin!(stopped.notified());
            loop {
                let next = pin!(listener.next());
                let Either::Right((heard, _)) = select(stopped.as_mut(), next).await else {
                    return;
                };
                let ended = heard.is_err();
                if sender.send(heard).is_err() || ended {
                    return;
                }
            }
        };
        connector.spawn("ear", Box::pin(task));
        Self {
            pid: pid.recv_timeout(SOON).expect("a listener"),
            heard,
            stop,
        }
    }

    /// What it hears up to a topic; others may send theirs at the same time.
    fn hears(&self, last: i64) -> Vec<i64> {
        let mut topics = Vec::new();
        while topics.last() != Some(&last) {
            let heard = self.heard.recv_timeout(SOON).expect("something to hear");
            topics.extend(heard.expect("a payload").parse::<i64>());
        }
        topics
    }
}

/// The number of the server's process.
#[derive(Clone)]
struct Pid;

impl Operation for Pid {
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "driver.pid",
        sql: "SELECT pg_backend_pid()::int8 AS pid",
        params: &[],
        columns: &[Type::Int],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        None
    }
}

fn client(url: &str) -> Client {
    Client::connect(url, NoTls).expect("a connection")
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let started = Instant::now();
    while !check() {
        assert!(started.elapsed() < SOON, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_gone(observer: &mut Client, pid: i64) -> bool {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int8";
    let sessions: i64 = observer.query_one(sql, &[&pid]).expect("a row").get(0);
    sessions == 0
}

fn all_who_listen_hear<C: Connector>(connector: &Arc<C>, url: &str) {
    let ears = [Ear::open(connector), Ear::open(connector)];
    let (topic, last) = (fastrand::i64(..), fastrand::i64(..));
    for library in Library::ALL {
        let mut connection = LibraryConnection::connect(library, url);
        let twice = [Notify(topic), Notify(topic)];
        let sent = pollster::block_on(connection.perform(&twice));
        assert_eq!(sent.expect("sent").len(), 2);
        let sent = pollster::block_on(connection.perform(&[Notify(last)]));
        assert_eq!(sent.expect("sent").len(), 1);
        for ear in &ears {
            let heard = ear.hears(last);
            let heard = heard.iter().filter(|heard| **heard == topic);
            assert_eq!(heard.count(), 1, "sent on {library:?}");
        }
    }
}

fn what_is_rolled_back_is_not_heard<C: Connector>(connector: &Arc<C>, url: &str) {
    let ear = Ear::open(connector);
    let (topic, last) = (fastrand::i64(..), fastrand::i64(..));
    let mut connection = LibraryConnection::connect(Library::Sync, url);
    let sending = async {
        connection.script(Script::Begin("BEGIN")).await?;
        connection.perform(&[Notify(topic)]).await?;
        connection.script(Script::Rollback).await?;
        connection.perform(&[Notify(last)]).await
    };
    pollster::block_on(sending).expect("sent");
    assert!(!ear.hears(last).contains(&topic));
}

fn a_push_in_a_transaction_notifies_unless_that_is_left_out<C: Connector>(
    connector: &Arc<C>,
    url: &str,
) {
    let ear = Ear::open(connector);
    // Of a queue the call needs namespace, name and options only.
    let backend = pollster::block_on(Database::new().connect()).expect("a backend");
    let name = || format!("work {}", fastrand::u64(..));
    let options = QueueOptions::default().notify_on_commit(false);
    let quiet = backend.queue_with(name(), options).expect("a queue");
    let loud = backend.queue(name()).expect("a queue");
    let topic = |queue: &Arc<dyn Queue>| {
        advisory_key(queue.namespace(), &format!("queue {}", queue.name()))
    };
    for library in Library::ALL {
        let mut connection = LibraryConnection::connect(library, url);
        let jobs = [Job::new("job", &1).expect("a job")];
        pollster::block_on(async {
            connection
                .script(Script::Begin("BEGIN"))
                .await
                .expect("begun");
            for queue in [&quiet, &loud] {
                let pushed = queue.push_in(&mut connection, &jobs).await;
                assert_eq!(pushed.expect("pushed").len(), 1);
            }
            connection.script(Script::Commit).await.expect("committed");
        });
        let heard = ear.hears(topic(&loud));
        assert!(!heard.contains(&topic(&quiet)), "on {library:?}");
    }
}

fn the_end_of_the_session_is_told<C: Connector>(connector: &Arc<C>, url: &str) {
    let ear = Ear::open(connector);
    let pid = i32::try_from(ear.pid).expect("a process");
    let sql = "SELECT pg_terminate_backend($1)";
    client(url).execute(sql, &[&pid]).expect("terminated");
    let ended = loop {
        match ear.heard.recv_timeout(SOON).expect("told") {
            Ok(_) => {}
            Err(failure) => break failure,
        }
    };
    assert!(ended.broken, "{ended:?}");
}

fn a_dropped_listener_is_closed<C: Connector>(connector: &Arc<C>, url: &str) {
    let ear = Ear::open(connector);
    let mut observer = client(url);
    assert!(!is_gone(&mut observer, ear.pid));
    ear.stop.notify_one();
    eventually("closed", || is_gone(&mut observer, ear.pid));
}

fn settings_of_its_role_do_not_end_it<C: Connector>(connector: &Arc<C>, url: &str) {
    let ear = Ear::open(connector);
    std::thread::sleep(IDLE * 3);
    let topic = fastrand::i64(..);
    let mut connection = LibraryConnection::connect(Library::Sync, url);
    pollster::block_on(connection.perform(&[Notify(topic)])).expect("sent");
    assert!(ear.hears(topic).contains(&topic));
}

/// The URL with a limit for sessions that are idle, which servers have since version 14.
fn impatient(url: &str) -> String {
    let known = "SELECT count(*) FROM pg_settings WHERE name = 'idle_session_timeout'";
    let known: i64 = client(url).query_one(known, &[]).expect("a row").get(0);
    if known == 0 {
        return url.to_owned();
    }
    let separator = if url.contains('?') { '&' } else { '?' };
    let idle = IDLE.as_millis();
    format!("{url}{separator}options=-c%20idle_session_timeout%3D{idle}")
}

macro_rules! each {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn on_sqlx() {
                let (plain, runtime) = crate::server();
                let _entered = runtime.enter();
                let url = super::impatient(&plain);
                let connector = lockapi_sqlx::connector_url(&url).expect("a connector");
                super::$name(&connector.into(), &plain);
            }

            #[test]
            fn on_diesel() {
                let (plain, runtime) = crate::server();
                let _entered = runtime.enter();
                let url = super::impatient(&plain);
                let connector = lockapi_diesel::connector_url(&url).expect("a connector");
                super::$name(&connector.into(), &plain);
            }

            #[test]
            fn on_sync() {
                let (plain, runtime) = crate::server();
                let _entered = runtime.enter();
                let url = super::impatient(&plain);
                let connector = lockapi_postgres::connector_url(&url).expect("a connector");
                super::$name(&connector.into(), &plain);
            }
        }
    )*};
}

each! {
    all_who_listen_hear
    what_is_rolled_back_is_not_heard
    a_push_in_a_transaction_notifies_unless_that_is_left_out
    the_end_of_the_session_is_told
    a_dropped_listener_is_closed
    settings_of_its_role_do_not_end_it
}

#[test]
fn a_listener_on_sqlx_takes_no_slot_of_the_pool() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(1);
    let pool = runtime.block_on(options.connect(&url)).expect("a pool");
    let only = runtime.block_on(pool.acquire()).expect("its connection");
    let connector = Arc::new(lockapi_sqlx::connector(&pool).expect("a connector"));
    let ear = Ear::open(&connector);
    let mut observer = client(&url);
    drop(connector);
    assert!(!is_gone(&mut observer, ear.pid));
    ear.stop.notify_one();
    eventually("closed", || is_gone(&mut observer, ear.pid));
    drop(only);
}

#[test]
fn a_listener_on_sqlx_ends_with_its_runtime() {
    let (url, _runtime) = crate::server();
    let mut observer = client(&url);
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let runtime = builder.enable_all().build().expect("a runtime");
        let entered = runtime.enter();
        let connector = Arc::new(lockapi_sqlx::connector_url(&url).expect("a connector"));
        let opening = tokio::task::spawn_blocking(move || Ear::open(&connector));
        let ear = runtime.block_on(opening).expect("opened");
        assert!(!is_gone(&mut observer, ear.pid));
        drop(entered);
        drop(runtime);
        eventually("closed", || is_gone(&mut observer, ear.pid));
    }
}

/// The only connection of a pool listens to a channel of the program's; then it is pooled.
fn goes_back_as_it_was<M: ManageConnection, C: Connector>(
    manager: M,
    connector: fn(&Pool<M>) -> C,
    ask: fn(&mut M::Connection, &str) -> Option<String>,
    pending: fn(&mut M::Connection) -> usize,
) {
    const LISTENS: &str = "SELECT string_agg(c, ',') AS answer FROM pg_listening_channels() AS c";
    let builder = Pool::builder().max_size(1).min_idle(Some(0));
    let pool = builder.build(manager).expect("a pool");
    ask(&mut *pool.get().expect("a connection"), "LISTEN mine");
    let connector = Arc::new(connector(&pool));
    let lane_connector = Arc::clone(&connector);
    let (sender, done) = mpsc::channel();
    let task = async move {
        let mut listener = listen(&*lane_connector).await.expect("a listener");
        // It waits in the driver, unread, when the listener is dropped.
        listener.perform(&[Notify(1)]).await.expect("sent");
        drop(listener);
        sender.send(()).expect("the test waits");
    };
    connector.spawn("ear", Box::pin(task));
    done.recv_timeout(SOON).expect("done");
    let mut connection = pool.get_timeout(SOON).expect("it went back");
    let listens = ask(&mut connection, LISTENS);
    assert_eq!(listens.as_deref(), Some("mine"));
    assert_eq!(pending(&mut connection), 0);

    drop(connection);
    let ear = Ear::open(&connector);
    assert!(pool.get_timeout(Duration::from_millis(1)).is_err());
    ear.stop.notify_one();
    let mut connection = pool.get_timeout(SOON).expect("it went back");
    assert_eq!(ask(&mut connection, LISTENS).as_deref(), Some("mine"));
}

#[test]
fn a_connection_of_a_diesel_pool_goes_back_as_it_was() {
    #[derive(diesel::QueryableByName)]
    struct Answer {
        #[diesel(sql_type = diesel::sql_types::Nullable<diesel::sql_types::Text>)]
        answer: Option<String>,
    }

    fn ask(connection: &mut PgConnection, sql: &str) -> Option<String> {
        use diesel::RunQueryDsl;
        let rows = diesel::sql_query(sql).load::<Answer>(connection);
        rows.expect("an answer").pop()?.answer
    }

    let (url, _runtime) = crate::server();
    let manager = diesel::r2d2::ConnectionManager::new(url);
    goes_back_as_it_was(manager, lockapi_diesel::connector, ask, |connection| {
        connection.notifications_iter().count()
    });
}

#[test]
fn a_connection_of_a_postgres_pool_goes_back_as_it_was() {
    fn ask(connection: &mut Client, sql: &str) -> Option<String> {
        let rows = connection.query(sql, &[]).expect("an answer");
        rows.first()?.get(0)
    }

    let (url, _runtime) = crate::server();
    let config = url.parse().expect("a URL");
    let manager = r2d2_postgres::PostgresConnectionManager::new(config, NoTls);
    goes_back_as_it_was(manager, lockapi_postgres::connector, ask, |connection| {
        let mut notifications = connection.notifications();
        notifications.iter().count().expect("they are counted")
    });
}

/// The statements that the server keeps for the session.
#[derive(Clone)]
struct Prepared;

impl Operation for Prepared {
    type Output = i64;

    const STATEMENT: Statement = Statement {
        name: "driver.prepared",
        sql: "SELECT count(*) AS prepared FROM pg_prepared_statements",
        params: &[],
        columns: &[Type::Int],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], rows: Rows) -> Result<Vec<i64>, Failure> {
        rows.into_iter().map(|mut row| row.int(0)).collect()
    }

    fn model(_: &[Self], _: &mut ModelState, _: u64) -> Option<Rows> {
        None
    }
}

/// A program may have none for its own connections, as behind a proxy.
#[test]
fn sessions_of_a_pool_without_prepared_statements_keep_each_once() {
    let (url, runtime) = crate::server();
    let _runtime = runtime.enter();
    let options: sqlx::postgres::PgConnectOptions = url.parse().expect("options");
    let options = options.statement_cache_capacity(0);
    let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy_with(options);
    let connector = lockapi_sqlx::connector(&pool).expect("a connector");
    let prepared = runtime.block_on(async {
        let mut connection = connector.connect(Mode::Direct).await.expect("connected");
        for _ in 0..10 {
            connection.perform(&[Pid]).await.expect("answered");
        }
        connection.perform(&[Prepared]).await.expect("answered")
    });
    assert_eq!(prepared, [2]);
}
