//! Limits on a connection of the program, whether or not it has a transaction open.

use lockapi::driver::{Connection, Script};
use lockapi::limit::{PermitRequest, Quota};
use lockapi::memory::Database;
use lockapi::suite::driver::Operation;
use lockapi::suite::limit::Expire;
use postgres::{Client, NoTls};

use crate::connection::{Library, LibraryConnection};
use crate::server;

#[test]
fn limits_are_taken_with_and_without_a_transaction() {
    let (url, runtime) = server();
    let _entered = runtime.enter();
    // Of a limiter the call needs the policy and the namespace only.
    let backend = pollster::block_on(Database::new().connect()).expect("a backend");
    let limiter = backend.rate_limiter(Quota::per_hour(2)).expect("a limiter");
    for library in Library::ALL {
        let mut connection = LibraryConnection::connect(library, &url);
        let key = format!("driver {}", fastrand::u64(..));
        let requests = [PermitRequest::new(&*key)];
        let allowed = async |connection: &mut LibraryConnection| {
            let verdict = limiter.check_all_in(connection, &requests).await;
            verdict.expect("a verdict").is_allowed()
        };
        pollster::block_on(async {
            assert!(allowed(&mut connection).await, "{library:?}");
            for (end, left) in [("ROLLBACK", true), ("COMMIT", true)] {
                connection
                    .script(Script::Begin("BEGIN"))
                    .await
                    .expect("begun");
                assert_eq!(allowed(&mut connection).await, left, "{library:?}");
                assert!(!allowed(&mut connection).await, "{library:?}");
                connection.script(Script::Run(end)).await.expect("ended");
            }
            assert!(!allowed(&mut connection).await, "{library:?}");
        });
    }
}

/// What is reserved after the statement began, and has expired when it has the row, keeps the key due.
#[test]
fn reservation_that_expires_while_the_row_is_awaited_is_ended_by_the_next() {
    let (url, _runtime) = server();
    let connect = || Client::connect(&url, NoTls).expect("connected");
    let (mut holder, mut watcher, mut other) = (connect(), connect(), connect());
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let id = fastrand::i64(1..);
    holder
        .execute(
            "INSERT INTO lockapi.rate_limit (namespace, key, due) VALUES ($1, 'door', 0)",
            &[&namespace],
        )
        .expect("a row");
    let pid: i32 = other
        .query_one("SELECT pg_backend_pid()", &[])
        .expect("a process")
        .get(0);
    let mut transaction = holder.transaction().expect("begun");
    transaction
        .execute(
            "UPDATE lockapi.rate_limit SET reserved = 1 WHERE namespace = $1",
            &[&namespace],
        )
        .expect("locked");
    transaction
        .execute(
            "INSERT INTO lockapi.rate_reservation (id, namespace, key, at, expires, price, span)
             VALUES ($2, $1, 'door', 0, 1, 1, 0)",
            &[&namespace, &id],
        )
        .expect("reserved");
    let params = (vec![namespace.clone()], vec!["door".to_owned()]);
    let expire = move |client: &mut Client| {
        let ended = client.query(Expire::STATEMENT.sql, &[&params.0, &params.1]);
        assert_eq!(ended.expect("ended").len(), 1);
    };
    let state = |client: &mut Client| {
        let row = client
            .query_one(
                "SELECT l.due, l.reserved, (SELECT count(*) FROM lockapi.rate_reservation AS r WHERE r.id = $2)
                   FROM lockapi.rate_limit AS l WHERE l.namespace = $1",
                &[&namespace, &id],
            )
            .expect("a row");
        (
            row.get::<_, Option<i64>>(0),
            row.get::<_, i64>(1),
            row.get::<_, i64>(2),
        )
    };
    let waiter = std::thread::spawn({
        let expire = expire.clone();
        move || expire(&mut other)
    });
    loop {
        let row = watcher.query_one("SELECT cardinality(pg_blocking_pids($1))", &[&pid]);
        if row.expect("a number").get::<_, i32>(0) > 0 {
            break;
        }
        assert!(!waiter.is_finished(), "it does not wait for the row");
        std::thread::yield_now();
    }
    transaction.commit().expect("committed");
    waiter.join().expect("ended");
    assert_eq!(state(&mut watcher), (Some(1), 1, 1));
    expire(&mut watcher);
    assert_eq!(state(&mut watcher), (None, 0, 0));
}
