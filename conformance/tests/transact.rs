//! `transact` leaves no transaction open on the connection of the program.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use lockapi::versioned::{BoxError, Retry};
use lockapi_conformance::cluster::Cluster;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor, PgPool, Row};

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
        drop(connection);
        let mut connection = pool.get().await.expect("a connection");
        let answered = diesel::sql_query(OWN).get_result::<Clean>(&mut connection);
        let answer = answered.await.expect("it is connected");
        assert!(answer.clean, "{polls} polls");
    }
    assert!(ended > 0, "none got to its end");
}
