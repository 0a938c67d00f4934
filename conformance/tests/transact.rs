//! `transact` leaves no transaction open on the connection of the program, and tells what became of it.

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use diesel::Connection as _;
use diesel::connection::SimpleConnection as _;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::FutureExt;
use lockapi::ErrorKind;
use lockapi::versioned::{BoxError, Conflict, Outcome, Retry, Table};
use lockapi_conformance::cluster::Cluster;
use sqlx::encode::{Encode, IsNull};
use sqlx::postgres::{PgArgumentBuffer, PgPoolOptions, PgTypeInfo};
use sqlx::{Connection as _, Executor, PgConnection, PgPool, Row};
use tokio::sync::Notify;
use tokio_postgres::NoTls;
use tokio_postgres::types::Type;

/// More polls than one transaction takes.
const POLLS: usize = 40;

/// Polls a future so often, with a pause between, and drops it; answers whether it ended.
async fn poll_then_drop<T>(work: impl Future<Output = T>, polls: usize) -> bool {
    let mut work = pin!(work);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if work.as_mut().poll(&mut context).is_ready() {
            return true;
        }
        // Sooner or later than the answer of the server.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..400))).await;
    }
    false
}

/// A statement that is sent as text begins when its transaction does, unless that is open already.
async fn is_clean(pool: &PgPool) -> bool {
    let own = sqlx::raw_sql("SELECT now() = statement_timestamp() AS clean");
    let row = pool.fetch_one(own).await;
    row.expect("the pool has a connection").get(0)
}

#[tokio::test]
async fn dropped_at_any_poll_it_leaves_no_transaction_in_the_pool_of_sqlx() {
    let url = Cluster::shared().expect("a server").url();
    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(url).await.expect("connected");
    let retry = Retry::default();
    let mut ended = 0;
    for round in 0..10 {
        for polls in 1..POLLS {
            let work = lockapi_sqlx::transact(&pool, &retry, &["row"], |mut tx| async move {
                sqlx::query("SELECT 1").execute(&mut *tx).await?;
                Ok::<_, BoxError>(())
            });
            ended += usize::from(poll_then_drop(work, polls).await);
            assert!(is_clean(&pool).await, "round {round}, {polls} polls");
        }
    }
    assert!(ended > 0, "none got to its end");
}

#[tokio::test]
async fn dropped_at_any_poll_it_leaves_no_transaction_on_a_client_of_tokio_postgres() {
    const OWN: &str = "SELECT now() = statement_timestamp() AS clean";
    let url = Cluster::shared().expect("a server").url();
    let connected = tokio_postgres::connect(url, tokio_postgres::NoTls).await;
    let (mut client, socket) = connected.expect("connected");
    drop(tokio::spawn(socket));
    let retry = Retry::default();
    let mut ended = 0;
    for round in 0..10 {
        for polls in 1..POLLS {
            let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
                Box::pin(async move {
                    tx.batch_execute("SELECT 1").await?;
                    Ok::<_, BoxError>(())
                })
            });
            ended += usize::from(poll_then_drop(work, polls).await);
            let answers = client.simple_query(OWN).await.expect("it is connected");
            let clean = answers.iter().find_map(|answer| match answer {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            });
            assert_eq!(clean, Some("t"), "round {round}, {polls} polls");
        }
    }
    assert!(ended > 0, "none got to its end");
}

#[tokio::test]
async fn dropped_at_any_poll_it_leaves_no_transaction_in_a_pool_of_diesel_async() {
    #[derive(diesel::QueryableByName)]
    struct Clean {
        #[diesel(sql_type = diesel::sql_types::Bool)]
        clean: bool,
    }

    const OWN: &str = "SELECT pg_current_xact_id_if_assigned() IS NULL AS clean";
    let url = Cluster::shared().expect("a server").url();
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(url);
    let pool = Pool::builder(manager).max_size(1);
    let pool = pool.build().expect("a pool");
    let retry = Retry::default();
    let mut ended = 0;
    for polls in 1..POLLS {
        let mut connection = pool.get().await.expect("a connection");
        let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |conn, _| {
            Box::pin(async move {
                conn.batch_execute("SELECT pg_current_xact_id()").await?;
                Ok::<_, BoxError>(())
            })
        });
        ended += usize::from(poll_then_drop(work, polls).await);
        let given_back = polls % 2 == 0;
        if given_back {
            drop(connection);
            connection = pool.get().await.expect("a connection");
        }
        let answered = diesel::sql_query(OWN).get_result::<Clean>(&mut connection);
        let answer = answered.await.expect("it is connected");
        assert!(answer.clean, "{polls} polls");
        // The library knows that as well.
        let next = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |_, _| {
            Box::pin(async { Ok::<_, BoxError>(()) })
        });
        next.await.expect("it goes on");
    }
    assert!(ended > 0, "none got to its end");
}

/// A transaction that is left open, as by a future that was dropped, is not continued: what is written there would
/// be reported as committed, and be lost.
#[tokio::test]
async fn a_connection_in_a_transaction_is_refused_by_diesel_async() {
    let url = Cluster::shared().expect("a server").url();
    let connected = AsyncPgConnection::establish(url).await;
    let mut connection = connected.expect("connected");
    let retry = Retry::default();
    let work = connection.transaction::<(), diesel::result::Error, _>(async |conn| {
        conn.batch_execute("SELECT pg_sleep(2)").await
    });
    let dropped = tokio::time::timeout(Duration::from_millis(200), work).await;
    assert!(dropped.is_err(), "it sleeps");
    let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |_, _| {
        Box::pin(async { Ok::<_, BoxError>(()) })
    });
    assert_invalid(work.await);
}

/// Work that panics, or that is dropped, holds no lock: not in a pool that keeps the connection, nor on a connection
/// that goes on.
#[tokio::test]
async fn given_up_it_holds_no_lock_on_any_library() {
    const LOCK: &str = "SELECT pg_advisory_xact_lock(5208)";
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();

    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(url).await.expect("connected");
    let work = lockapi_sqlx::transact(&pool, &retry, &["row"], |mut tx| async move {
        sqlx::query(LOCK).execute(&mut *tx).await?;
        gives_up()
    });
    assert_panics(work).await;
    assert_free(LOCK, url).await;

    let pool = sqlx_08::postgres::PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(url).await.expect("connected");
    let work = lockapi_sqlx::v0_8::transact(&pool, &retry, &["row"], |mut tx| async move {
        sqlx_08::query(LOCK).execute(&mut *tx).await?;
        gives_up()
    });
    assert_panics(work).await;
    assert_free(LOCK, url).await;

    let manager = deadpool_postgres::Manager::new(url.parse().expect("a URL"), NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(1);
    let pool = pool.build().expect("a pool");
    let mut client = pool.get().await.expect("a connection");
    let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
        Box::pin(async move {
            tx.batch_execute(LOCK).await?;
            gives_up()
        })
    });
    assert_panics(work).await;
    drop(client);
    assert_free(LOCK, url).await;

    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(url);
    let pool = Pool::builder(manager).max_size(1);
    let pool = pool.build().expect("a pool");
    let mut connection = pool.get().await.expect("a connection");
    for panics in [true, false] {
        let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |conn, _| {
            Box::pin(async move {
                conn.batch_execute(LOCK).await?;
                if panics {
                    return gives_up();
                }
                std::future::pending().await
            })
        });
        if panics {
            assert_panics(work).await;
        } else {
            let dropped = tokio::time::timeout(Duration::from_millis(200), work).await;
            assert!(dropped.is_err(), "it waits");
        }
        assert_free(LOCK, url).await;
        // It is usable, and in no transaction.
        let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |conn, _| {
            Box::pin(async move { Ok(conn.batch_execute(WRITE).await?) })
        });
        work.await.expect("committed");
    }
}

fn gives_up() -> Result<(), BoxError> {
    panic!("the work panics, as the case has it")
}

async fn assert_panics<T>(work: impl Future<Output = T>) {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    assert!(outcome.is_err(), "it panics");
}

/// Nobody holds what the statement locks.
async fn assert_free(lock: &str, url: &str) {
    let connected = tokio_postgres::connect(url, NoTls).await;
    let (client, socket) = connected.expect("connected");
    tokio::spawn(socket);
    let bounded = format!("BEGIN; SET LOCAL lock_timeout = '5s'; {lock}; ROLLBACK");
    client.batch_execute(&bounded).await.expect("it is free");
}

#[test]
fn a_connection_in_a_transaction_is_refused_by_diesel() {
    let url = Cluster::shared().expect("a server").url();
    let mut connection = diesel::PgConnection::establish(url).expect("connected");
    let retry = Retry::default();
    let nested = connection.transaction::<_, BoxError, _>(|conn| {
        let work = lockapi_diesel::transact(conn, &retry, &["row"], |_, _| Ok(()));
        assert_invalid(work);
        Ok(())
    });
    nested.expect("the transaction goes on");
    // One for tests is never committed, and does not count.
    connection.begin_test_transaction().expect("begun");
    let work = lockapi_diesel::transact(&mut connection, &retry, &["row"], |_, _| Ok(()));
    work.expect("as if committed");
}

/// These libraries know of no transaction that the program has begun by a statement: it would be committed, or rolled back
/// and begun anew without what was done in it.
#[tokio::test]
async fn a_client_in_a_transaction_is_refused_by_tokio_postgres() {
    let url = Cluster::shared().expect("a server").url();
    let (mut client, socket) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("connected");
    tokio::spawn(socket);
    let retry = Retry::default();
    for (begun, ended) in [
        ("BEGIN", false),
        ("BEGIN; SAVEPOINT a", false),
        ("SELECT 1", true),
    ] {
        client.batch_execute(begun).await.expect("begun");
        let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |_, _| {
            Box::pin(async { Ok::<_, BoxError>(()) })
        });
        let outcome = work.await;
        if ended {
            outcome.expect("committed");
            continue;
        }
        assert_invalid(outcome);
        let failed = client.batch_execute("SELECT 1 / 0").await;
        failed.expect_err("the transaction goes on");
        let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |_, _| {
            Box::pin(async { Ok::<_, BoxError>(()) })
        });
        assert_invalid(work.await);
        client.batch_execute("ROLLBACK").await.expect("ended");
    }
}

#[test]
fn a_client_in_a_transaction_is_refused_by_postgres() {
    let url = Cluster::shared().expect("a server").url();
    let mut client = postgres::Client::connect(url, postgres::NoTls).expect("connected");
    let retry = Retry::default();
    client.batch_execute("BEGIN").expect("begun");
    assert_invalid(lockapi_postgres::transact(
        &mut client,
        &retry,
        &["row"],
        |_, _| Ok(()),
    ));
    client.batch_execute("ROLLBACK").expect("ended");
    let work = lockapi_postgres::transact(&mut client, &retry, &["row"], |_, _| Ok(()));
    work.expect("committed");
}

/// A statement that fails, and whose error the work does not return, takes all that the work has written with it.
const WRITE: &str = "SELECT txid_current()";
const FAIL: &str = "SELECT 1 / 0";

#[tokio::test]
async fn work_that_keeps_an_error_to_itself_is_no_success() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();

    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(url).await.expect("connected");
    let work = lockapi_sqlx::transact(&pool, &retry, &["row"], |mut tx| async move {
        sqlx::query(WRITE).execute(&mut *tx).await?;
        let _lost = sqlx::query(FAIL).execute(&mut *tx).await;
        Ok(())
    });
    assert_invalid(work.await);
    assert!(is_clean(&pool).await);

    let pool = sqlx_08::postgres::PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(url).await.expect("connected");
    let work = lockapi_sqlx::v0_8::transact(&pool, &retry, &["row"], |mut tx| async move {
        sqlx_08::query(WRITE).execute(&mut *tx).await?;
        let _lost = sqlx_08::query(FAIL).execute(&mut *tx).await;
        Ok(())
    });
    assert_invalid(work.await);

    let connected = tokio_postgres::connect(url, tokio_postgres::NoTls).await;
    let (mut client, connection) = connected.expect("connected");
    tokio::spawn(connection);
    let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
        Box::pin(async move {
            tx.batch_execute(WRITE).await?;
            let _lost = tx.batch_execute(FAIL).await;
            Ok(())
        })
    });
    assert_invalid(work.await);
    client.batch_execute(WRITE).await.expect("it goes on");

    let connected = AsyncPgConnection::establish(url).await;
    let mut connection = connected.expect("connected");
    for again in [false, true] {
        let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |conn, _| {
            Box::pin(async move {
                conn.batch_execute(WRITE).await?;
                if !again {
                    let _lost = conn.batch_execute(FAIL).await;
                }
                Ok(())
            })
        });
        match work.await {
            Ok(()) => assert!(again),
            lost => assert_invalid(lost),
        }
    }
}

#[test]
fn blocking_work_that_keeps_an_error_to_itself_is_no_success() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();

    let mut connection = diesel::PgConnection::establish(url).expect("connected");
    let work = lockapi_diesel::transact(&mut connection, &retry, &["row"], |conn, _| {
        conn.batch_execute(WRITE)?;
        let _lost = conn.batch_execute(FAIL);
        Ok(())
    });
    assert_invalid(work);
    let work = lockapi_diesel::transact(&mut connection, &retry, &["row"], |conn, _| {
        Ok(conn.batch_execute(WRITE)?)
    });
    work.expect("it goes on");

    let mut client = postgres::Client::connect(url, postgres::NoTls).expect("connected");
    let work = lockapi_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
        tx.batch_execute(WRITE)?;
        let _lost = tx.batch_execute(FAIL);
        Ok(())
    });
    assert_invalid(work);
}

/// What it has written is gone, or is there already: the commit that follows does nothing.
#[tokio::test]
async fn work_that_ends_its_transaction_itself_is_no_success() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();
    for end in ["ROLLBACK", "COMMIT"] {
        let pool = PgPoolOptions::new().connect(url).await.expect("connected");
        let work = lockapi_sqlx::transact(&pool, &retry, &["row"], |mut tx| async move {
            sqlx::raw_sql(end).execute(&mut *tx).await?;
            Ok(())
        });
        assert_invalid(work.await);
        let connected = tokio_postgres::connect(url, NoTls).await;
        let (mut client, socket) = connected.expect("connected");
        tokio::spawn(socket);
        let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
            Box::pin(async move { Ok(tx.batch_execute(end).await?) })
        });
        assert_invalid(work.await);
        let connected = AsyncPgConnection::establish(url).await;
        let mut connection = connected.expect("connected");
        let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |conn, _| {
            Box::pin(async move { Ok(conn.batch_execute(end).await?) })
        });
        assert_invalid(work.await);
    }
}

#[test]
fn blocking_work_that_ends_its_transaction_itself_is_no_success() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();
    for end in ["ROLLBACK", "COMMIT"] {
        let mut connection = diesel::PgConnection::establish(url).expect("connected");
        let work = lockapi_diesel::transact(&mut connection, &retry, &["row"], |conn, _| {
            Ok(conn.batch_execute(end)?)
        });
        assert_invalid(work);
        let mut client = postgres::Client::connect(url, postgres::NoTls).expect("connected");
        let work = lockapi_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
            Ok(tx.batch_execute(end)?)
        });
        assert_invalid(work);
    }
}

/// What it writes in another transaction is not of the attempt, and neither is what it has rolled back.
#[tokio::test]
async fn work_that_begins_another_transaction_is_no_success() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();
    for end in [
        "ROLLBACK; BEGIN; SELECT txid_current()",
        "COMMIT; BEGIN",
        "ROLLBACK AND CHAIN",
        "COMMIT AND CHAIN",
        "COMMIT; BEGIN; SET LOCAL lock_timeout = '1s'; SAVEPOINT again",
    ] {
        let pool = PgPoolOptions::new().max_connections(1);
        let pool = pool.connect(url).await.expect("connected");
        let work = lockapi_sqlx::transact(&pool, &retry, &["row"], |mut tx| async move {
            sqlx::raw_sql(end).execute(&mut *tx).await?;
            Ok(())
        });
        assert_invalid(work.await);
        assert!(is_clean(&pool).await, "{end}");
        let pool = sqlx_08::postgres::PgPoolOptions::new().max_connections(1);
        let pool = pool.connect(url).await.expect("connected");
        let work = lockapi_sqlx::v0_8::transact(&pool, &retry, &["row"], |mut tx| async move {
            sqlx_08::raw_sql(end).execute(&mut *tx).await?;
            Ok(())
        });
        assert_invalid(work.await);
        let connected = tokio_postgres::connect(url, NoTls).await;
        let (mut client, socket) = connected.expect("connected");
        tokio::spawn(socket);
        let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
            Box::pin(async move { Ok(tx.batch_execute(end).await?) })
        });
        assert_invalid(work.await);
        let connected = AsyncPgConnection::establish(url).await;
        let mut connection = connected.expect("connected");
        let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |conn, _| {
            Box::pin(async move { Ok(conn.batch_execute(end).await?) })
        });
        assert_invalid(work.await);
        let blocking = tokio::task::spawn_blocking({
            let retry = retry.clone();
            move || {
                let mut connection = diesel::PgConnection::establish(url).expect("connected");
                let work =
                    lockapi_diesel::transact(&mut connection, &retry, &["row"], |conn, _| {
                        Ok(conn.batch_execute(end)?)
                    });
                assert_invalid(work);
            }
        });
        blocking.await.expect("refused");
    }
}

/// It may choose how its transaction runs, and change settings: what tells the transaction is not in its way.
#[tokio::test]
async fn work_that_sets_up_its_transaction_is_committed() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();
    for setting in [
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET TRANSACTION READ ONLY, DEFERRABLE",
        "SET LOCAL search_path = ''",
        "SET SESSION search_path = 'pg_temp'",
        "SAVEPOINT one; SET LOCAL lock_timeout = '1s'; ROLLBACK TO SAVEPOINT one",
        "DECLARE one CURSOR FOR SELECT 1; FETCH one",
    ] {
        let pool = PgPoolOptions::new().connect(url).await.expect("connected");
        let work = lockapi_sqlx::transact(&pool, &retry, &["row"], |mut tx| async move {
            Ok(sqlx::raw_sql(setting).execute(&mut *tx).await.map(drop)?)
        });
        work.await.expect(setting);
        let connected = tokio_postgres::connect(url, NoTls).await;
        let (mut client, socket) = connected.expect("connected");
        tokio::spawn(socket);
        let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
            Box::pin(async move { Ok(tx.batch_execute(setting).await?) })
        });
        work.await.expect(setting);
        let connected = AsyncPgConnection::establish(url).await;
        let mut connection = connected.expect("connected");
        let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |conn, _| {
            Box::pin(async move { Ok(conn.batch_execute(setting).await?) })
        });
        work.await.expect(setting);
        let blocking = tokio::task::spawn_blocking({
            let retry = retry.clone();
            move || {
                let mut connection = diesel::PgConnection::establish(url).expect("connected");
                let work =
                    lockapi_diesel::transact(&mut connection, &retry, &["row"], |conn, _| {
                        Ok(conn.batch_execute(setting)?)
                    });
                work.expect(setting);
                let client = postgres::Client::connect(url, postgres::NoTls);
                let mut client = client.expect("connected");
                let work = lockapi_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
                    Ok(tx.batch_execute(setting)?)
                });
                work.expect(setting);
            }
        });
        blocking.await.expect("all are");
    }
}

/// How the work leaves its first attempt: as done, or as one to be done again.
fn left(first: bool, done: bool) -> Result<(), BoxError> {
    if first && !done {
        return Err(CONFLICT.into());
    }
    Ok(())
}

/// A table for what is committed, and how many rows it has.
async fn written(url: &str) -> (tokio_postgres::Client, String) {
    let table = format!("nested_{:016x}", fastrand::u64(..));
    let connected = tokio_postgres::connect(url, NoTls).await;
    let (client, socket) = connected.expect("connected");
    tokio::spawn(socket);
    let created = format!("CREATE TABLE {table} (one int)");
    client.batch_execute(&created).await.expect("created");
    (client, table)
}

async fn assert_rows(client: &tokio_postgres::Client, table: &str, rows: i64) {
    let count = format!("SELECT count(*) FROM {table}");
    let counted = client.query_one(&count, &[]).await.expect("counted");
    assert_eq!(counted.get::<_, i64>(0), rows);
}

/// For the library the commit would end the inner one, and the outer one would be rolled back later.
#[tokio::test]
async fn a_transaction_that_is_left_open_in_another_is_not_taken_for_it_by_diesel_async() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();
    let (client, table) = written(url).await;
    let write = format!("INSERT INTO {table} VALUES (1)");
    for done in [true, false] {
        let connected = AsyncPgConnection::establish(url).await;
        let mut connection = connected.expect("connected");
        let work =
            lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |conn, attempt| {
                let write = write.clone();
                Box::pin(async move {
                    conn.batch_execute(&write).await?;
                    let first = attempt.number() == 1;
                    if first {
                        let entered = Notify::new();
                        let inner =
                            conn.transaction::<(), diesel::result::Error, _>(async |conn| {
                                conn.batch_execute("SELECT 1").await?;
                                entered.notify_one();
                                std::future::pending().await
                            });
                        tokio::select! {
                            ended = inner => panic!("it waits: {ended:?}"),
                            () = entered.notified() => {}
                        }
                    }
                    left(first, done)
                })
            });
        let outcome = work.await;
        if done {
            assert_invalid(outcome);
        } else {
            outcome.expect("the second attempt is committed");
        }
        drop(connection);
        assert_rows(&client, &table, i64::from(!done)).await;
    }
}

#[tokio::test]
async fn a_transaction_that_is_left_open_in_another_is_not_taken_for_it_by_diesel() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();
    let (client, table) = written(url).await;
    let write = format!("INSERT INTO {table} VALUES (1)");
    for done in [true, false] {
        let (retry, write) = (retry.clone(), write.clone());
        let blocking = tokio::task::spawn_blocking(move || {
            let mut connection = diesel::PgConnection::establish(url).expect("connected");
            let work =
                lockapi_diesel::transact(&mut connection, &retry, &["row"], |conn, attempt| {
                    conn.batch_execute(&write)?;
                    let first = attempt.number() == 1;
                    if first {
                        let inner = AssertUnwindSafe(|| {
                            conn.transaction::<(), diesel::result::Error, _>(|_| {
                                panic!("the inner work panics, as the case has it")
                            })
                        });
                        std::panic::catch_unwind(inner).expect_err("it panics");
                    }
                    left(first, done)
                });
            if done {
                assert_invalid(work);
            } else {
                work.expect("the second attempt is committed");
            }
            // Nothing is open on it.
            let work = lockapi_diesel::transact(&mut connection, &retry, &["row"], |_, _| Ok(()));
            work.expect("it goes on");
        });
        blocking.await.expect("as it should be");
        assert_rows(&client, &table, i64::from(!done)).await;
    }
}

/// With sqlx a savepoint that is given up while it is under way takes the whole transaction with it: what follows is
/// outside of it, and is told of.
#[tokio::test]
async fn a_savepoint_that_is_given_up_ends_the_transaction_of_sqlx() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();
    let (client, table) = written(url).await;
    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(url).await.expect("connected");
    let work = lockapi_sqlx::transact(&pool, &retry, &["row"], |mut tx| {
        let write = format!("INSERT INTO {table} VALUES (1)");
        async move {
            let write = sqlx::raw_sql(sqlx::AssertSqlSafe(write));
            write.execute(&mut *tx).await?;
            // One that the server has answered already is rolled back to, and the transaction goes on.
            while poll_then_drop(tx.begin(), 1).await {}
            Ok(())
        }
    });
    assert_invalid(work.await);
    assert!(is_clean(&pool).await);
    assert_rows(&client, &table, 0).await;
}

/// Work that panics leaves a connection that goes on, in no transaction.
#[tokio::test]
async fn blocking_work_that_panics_leaves_no_transaction_open() {
    const LOCK: &str = "SELECT pg_advisory_xact_lock(5209)";
    let url = Cluster::shared().expect("a server").url();
    let (client, table) = written(url).await;
    let write = format!("INSERT INTO {table} VALUES (1)");
    let (kept, other) = tokio::task::spawn_blocking(move || {
        let retry = Retry::default();
        let mut connection = diesel::PgConnection::establish(url).expect("connected");
        let panics = AssertUnwindSafe(|| {
            lockapi_diesel::transact(&mut connection, &retry, &["row"], |conn, _| {
                conn.batch_execute(LOCK)?;
                gives_up()
            })
        });
        std::panic::catch_unwind(panics).expect_err("it panics");
        connection.batch_execute(&write).expect("it goes on");
        let mut other = postgres::Client::connect(url, postgres::NoTls).expect("connected");
        let panics = AssertUnwindSafe(|| {
            lockapi_postgres::transact(&mut other, &retry, &["row"], |tx, _| {
                tx.batch_execute(LOCK)?;
                gives_up()
            })
        });
        std::panic::catch_unwind(panics).expect_err("it panics");
        other.batch_execute(&write).expect("it goes on");
        (connection, other)
    })
    .await
    .expect("both are left");
    assert_free(LOCK, url).await;
    assert_rows(&client, &table, 2).await;
    drop(kept);
    tokio::task::spawn_blocking(move || drop(other))
        .await
        .expect("closed");
}

/// A statement that failed and was rolled back to a savepoint takes nothing with it.
#[tokio::test]
async fn work_that_rolls_back_to_a_savepoint_is_committed() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();
    let table = format!("saved_{:016x}", fastrand::u64(..));
    let connected = tokio_postgres::connect(url, NoTls).await;
    let (mut client, socket) = connected.expect("connected");
    tokio::spawn(socket);
    let created = format!("CREATE TABLE {table} (name text)");
    client.batch_execute(&created).await.expect("created");
    let write = |name| format!("INSERT INTO {table} VALUES ('{name}'); SAVEPOINT before");
    let back =
        |name| format!("ROLLBACK TO SAVEPOINT before; INSERT INTO {table} VALUES ('{name}')");
    // A failure, and one that a library acts upon.
    for (round, fail) in [FAIL, "DO 'BEGIN RAISE SQLSTATE ''40001''; END'"]
        .iter()
        .enumerate()
    {
        let pool = PgPoolOptions::new().connect(url).await.expect("connected");
        let work = lockapi_sqlx::transact(&pool, &retry, &["row"], |mut tx| {
            let (write, back) = (write("sqlx"), back("sqlx"));
            async move {
                sqlx::raw_sql(sqlx::AssertSqlSafe(write))
                    .execute(&mut *tx)
                    .await?;
                sqlx::raw_sql(*fail)
                    .execute(&mut *tx)
                    .await
                    .expect_err("it fails");
                sqlx::raw_sql(sqlx::AssertSqlSafe(back))
                    .execute(&mut *tx)
                    .await?;
                Ok(())
            }
        });
        work.await.expect("committed");
        let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
            let (write, back) = (write("tokio-postgres"), back("tokio-postgres"));
            Box::pin(async move {
                tx.batch_execute(&write).await?;
                tx.batch_execute(fail).await.expect_err("it fails");
                Ok(tx.batch_execute(&back).await?)
            })
        });
        work.await.expect("committed");
        let connected = AsyncPgConnection::establish(url).await;
        let mut connection = connected.expect("connected");
        let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |conn, _| {
            let (write, back) = (write("diesel-async"), back("diesel-async"));
            Box::pin(async move {
                conn.batch_execute(&write).await?;
                conn.batch_execute(fail).await.expect_err("it fails");
                Ok(conn.batch_execute(&back).await?)
            })
        });
        work.await.expect("committed");
        let (written, backed) = (write("diesel"), back("diesel"));
        let (writing, backing) = (write("postgres"), back("postgres"));
        let blocking = tokio::task::spawn_blocking({
            let retry = retry.clone();
            move || {
                let mut connection = diesel::PgConnection::establish(url).expect("connected");
                let work =
                    lockapi_diesel::transact(&mut connection, &retry, &["row"], |conn, _| {
                        conn.batch_execute(&written)?;
                        conn.batch_execute(fail).expect_err("it fails");
                        Ok(conn.batch_execute(&backed)?)
                    });
                work.expect("committed");
                let client = postgres::Client::connect(url, postgres::NoTls);
                let mut client = client.expect("connected");
                let work = lockapi_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
                    tx.batch_execute(&writing)?;
                    tx.batch_execute(fail).expect_err("it fails");
                    Ok(tx.batch_execute(&backing)?)
                });
                work.expect("committed");
            }
        });
        blocking.await.expect("all are");
        let count = format!("SELECT count(*) FROM {table}");
        let counted = client.query_one(&count, &[]).await.expect("counted");
        let each_twice = 2 * 5 * (i64::try_from(round).expect("small") + 1);
        assert_eq!(counted.get::<_, i64>(0), each_twice);
    }
}

fn assert_invalid<T: std::fmt::Debug>(outcome: Result<T, BoxError>) {
    let error = outcome.expect_err("nothing would be written");
    let error = error
        .downcast_ref::<lockapi::Error>()
        .expect("of this library");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// The error of the work is what the caller acts upon. A conflict is not tried again on a connection that has ended,
/// whose own error would hide it.
#[tokio::test]
async fn the_error_of_the_work_is_told_when_its_connection_has_ended() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();
    let connected = tokio_postgres::connect(url, NoTls).await;
    let (mut client, socket) = connected.expect("connected");
    tokio::spawn(socket);
    let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
        Box::pin(async move {
            tx.batch_execute(END).await.expect_err("it has ended");
            Err::<(), _>(CONFLICT.into())
        })
    });
    assert_conflict(work.await);
    let connected = AsyncPgConnection::establish(url).await;
    let mut connection = connected.expect("connected");
    let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |conn, _| {
        Box::pin(async move {
            conn.batch_execute(END).await.expect_err("it has ended");
            Err::<(), _>(CONFLICT.into())
        })
    });
    assert_conflict(work.await);
}

#[test]
fn the_error_of_blocking_work_is_told_when_its_connection_has_ended() {
    let url = Cluster::shared().expect("a server").url();
    let retry = Retry::default();
    let mut connection = diesel::PgConnection::establish(url).expect("connected");
    let work = lockapi_diesel::transact(&mut connection, &retry, &["row"], |conn, _| {
        conn.batch_execute(END).expect_err("it has ended");
        Err::<(), BoxError>("of the work".into())
    });
    let error = work.expect_err("it failed");
    assert_eq!(error.to_string(), "of the work");
    let mut connection = diesel::PgConnection::establish(url).expect("connected");
    let work = lockapi_diesel::transact(&mut connection, &retry, &["row"], |conn, _| {
        conn.batch_execute(END).expect_err("it has ended");
        Err::<(), _>(CONFLICT.into())
    });
    assert_conflict(work);
    let mut client = postgres::Client::connect(url, postgres::NoTls).expect("connected");
    let work = lockapi_postgres::transact(&mut client, &retry, &["row"], |tx, _| {
        tx.batch_execute(END).expect_err("it has ended");
        Err::<(), _>(CONFLICT.into())
    });
    assert_conflict(work);
}

const END: &str = "SELECT pg_terminate_backend(pg_backend_pid())";
const CONFLICT: Conflict = Conflict { current: Some(1) };

fn assert_conflict(outcome: Result<(), BoxError>) {
    let error = outcome.expect_err("it failed");
    assert!(error.is::<Conflict>(), "{error}");
}

/// Nothing was sent on a client that is known to be closed.
#[tokio::test]
async fn an_update_on_a_closed_client_is_unavailable() {
    let url = Cluster::shared().expect("a server").url();
    let connected = tokio_postgres::connect(url, NoTls).await;
    let (mut client, socket) = connected.expect("connected");
    let socket = tokio::spawn(socket);
    client.batch_execute(END).await.expect_err("it has ended");
    // The error of the end is that of the statement.
    let _ended = socket.await.expect("it did not panic");
    let table = Table::new("account", &["id"], "version").expect("a table");
    let update = lockapi_tokio_postgres::VersionedUpdate::of(&table).key(7_i64, Type::INT8);
    let error = update.run(&client, 1).await.expect_err("it is closed");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let retry = Retry::default();
    let work = lockapi_tokio_postgres::transact(&mut client, &retry, &["row"], |_, _| {
        Box::pin(async { Ok::<_, BoxError>(()) })
    });
    assert_unavailable(work.await);
    let ended = tokio::task::spawn_blocking(move || {
        let mut client = postgres::Client::connect(url, postgres::NoTls).expect("connected");
        client.batch_execute(END).expect_err("it has ended");
        lockapi_postgres::transact(&mut client, &retry, &["row"], |_, _| Ok(()))
    });
    assert_unavailable(ended.await.expect("no panic"));
}

fn assert_unavailable(outcome: Result<(), BoxError>) {
    let error = outcome.expect_err("it is closed");
    let error = error
        .downcast_ref::<lockapi::Error>()
        .expect("an error of lockapi");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// A value of a type that the server does not have was not sent.
#[tokio::test]
async fn an_update_with_a_type_that_is_not_there_is_invalid() {
    let url = Cluster::shared().expect("a server").url();
    let mut connection = PgConnection::connect(url).await.expect("connected");
    let table = Table::new("account", &["id"], "version").expect("a table");
    let update = lockapi_sqlx::VersionedUpdate::of(&table).key(Missing);
    let error = update.run(&mut connection, 1).await.expect_err("no type");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

struct Missing;

impl sqlx::Type<sqlx::Postgres> for Missing {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("missing")
    }
}

impl Encode<'_, sqlx::Postgres> for Missing {
    fn encode_by_ref(&self, _: &mut PgArgumentBuffer) -> Result<IsNull, BoxError> {
        Ok(IsNull::Yes)
    }
}

/// As behind a proxy, a connection forgets what was prepared on it.
#[tokio::test]
async fn an_update_that_is_not_persistent_outlives_prepared_statements() {
    let url = Cluster::shared().expect("a server").url();
    let mut connection = PgConnection::connect(url).await.expect("connected");
    let name = format!("forgotten_{:016x}", fastrand::u64(..));
    let created = format!(
        "CREATE TABLE {name} (id bigint, version bigint); INSERT INTO {name} VALUES (7, 1)"
    );
    let created = sqlx::raw_sql(sqlx::AssertSqlSafe(created));
    created.execute(&mut connection).await.expect("created");
    let table = Table::new(&name, &["id"], "version").expect("a table");
    let mut versions = Vec::new();
    for (persistent, seen) in [(false, 1), (false, 2), (true, 3), (true, 4)] {
        let update = lockapi_sqlx::VersionedUpdate::of(&table).key(7_i64);
        let updated = update
            .persistent(persistent)
            .run(&mut connection, seen)
            .await;
        versions.push(updated.map_err(|error| error.kind()));
        let forget = sqlx::raw_sql("DEALLOCATE ALL");
        forget.execute(&mut connection).await.expect("forgotten");
    }
    let expected = [
        Ok(Outcome::Updated(2)),
        Ok(Outcome::Updated(3)),
        Ok(Outcome::Updated(4)),
        Err(ErrorKind::Unavailable),
    ];
    assert_eq!(versions, expected);
}

/// Accepts one connection, and ends its session at the commit, with a report in words that nobody knows.
fn server_that_ends_the_session() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || serve(listener.accept().expect("a client").0).expect("a conversation"));
    port
}

fn serve(mut socket: TcpStream) -> io::Result<()> {
    // The startup message has no tag.
    let mut tag = Vec::new();
    loop {
        let mut length = [0; 4];
        socket.read_exact(&mut tag)?;
        socket.read_exact(&mut length)?;
        let mut body = vec![0; u32::from_be_bytes(length) as usize - 4];
        socket.read_exact(&mut body)?;
        let answer: &[u8] = match tag.as_slice() {
            [] => b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I",
            b"Q" if body.starts_with(b"COMMIT") => {
                let report = b"SFATAL\0VFATAL\0C57P01\0MVerbindung wird abgebrochen\0\0";
                let length = u32::try_from(report.len() + 4).expect("short");
                return socket.write_all(&[b"E", &length.to_be_bytes()[..], report].concat());
            }
            b"Q" => b"C\0\0\0\x08SET\0Z\0\0\0\x05T",
            b"P" => b"1\0\0\0\x04",
            b"D" => b"t\0\0\0\x06\0\0n\0\0\0\x04",
            b"B" => b"2\0\0\0\x04",
            b"C" => b"3\0\0\0\x04",
            b"E" => b"C\0\0\0\x08SET\0",
            _ => b"Z\0\0\0\x05T",
        };
        socket.write_all(answer)?;
        tag = vec![0];
    }
}

#[tokio::test]
async fn a_commit_that_ended_the_session_is_indeterminate_in_any_language_on_diesel_async() {
    let url = format!(
        "postgres://app@127.0.0.1:{}/app",
        server_that_ends_the_session()
    );
    let connected = AsyncPgConnection::establish(&url).await;
    let mut connection = connected.expect("connected");
    let retry = Retry::default();
    let work = lockapi_diesel_async::transact(&mut connection, &retry, &["row"], |_, _| {
        Box::pin(async { Ok::<_, BoxError>(()) })
    });
    let error = work.await.expect_err("nobody knows");
    let error = error
        .downcast_ref::<lockapi::Error>()
        .expect("of this library");
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
}
