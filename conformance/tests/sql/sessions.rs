//! What a server shows of the sessions of a backend.

use std::sync::Arc;
use std::thread;

use lockapi::{Backend, Result};
use postgres::error::SqlState;
use postgres::{Client, NoTls};

use crate::connection::Library;
use crate::server;

async fn connect(library: Library, url: &str) -> Result<Arc<dyn Backend>> {
    match library {
        Library::Sqlx | Library::SeaOrm => lockapi_sqlx::connect_url(url).await,
        Library::Diesel => lockapi_diesel::connect_url(url).await,
        Library::Sync => lockapi_postgres::connect_url(url).await,
        Library::DieselAsync => lockapi_diesel_async::connect_url(url, tokio_postgres::NoTls).await,
    }
}

/// How many sessions have this name while a backend of this URL holds a mutex.
fn named(library: Library, url: &str, name: &str) -> i64 {
    let (plain, runtime) = server();
    let mut client = Client::connect(&plain, NoTls).expect("a connection");
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    runtime.block_on(async {
        let backend = connect(library, url).await.expect("a backend");
        let mutex = backend
            .mutex(format!("{library:?}/{name}"))
            .expect("a mutex");
        let guard = mutex.lock().await.expect("locked");
        let found = tokio::task::block_in_place(|| client.query_one(count, &[&name]));
        guard.unlock().await.expect("unlocked");
        found.expect("a count").get(0)
    })
}

#[test]
fn sessions_have_the_name_of_their_program() {
    let (url, _runtime) = server();
    let program = std::env::current_exe().expect("a program");
    let program = program.file_stem().expect("a name").to_string_lossy();
    let sign = if url.contains('?') { '&' } else { '?' };
    for library in Library::ALL {
        let id = fastrand::u32(..);
        let short = format!("billing{id:08x}");
        let long = format!("{short}{}", "x".repeat(60));
        for (own, shown) in [(&short, &*short), (&long, &long[..55])] {
            let url = format!("{url}{sign}application_name={own}");
            let shown = format!("{shown} lockapi");
            assert_eq!(named(library, &url, &shown), 1, "{library:?}: {shown}");
        }
        let shown = format!("{} lockapi", &program[..program.len().min(55)]);
        assert!(named(library, &url, &shown) >= 1, "{library:?}: {shown}");
    }
}

/// Two that wait for each other for a while, as sessions of the library do in slices, are no deadlock of whoever waits ahead of
/// one of them; the server takes it for one.
#[test]
fn a_wait_beside_two_that_wait_for_each_other_goes_on() {
    let (url, _runtime) = server();
    let keys = [(); 2].map(|()| fastrand::i64(..));
    let connect = |settings: &str| {
        let mut client = Client::connect(&url, NoTls).expect("a connection");
        client.batch_execute(settings).expect(settings);
        client
    };
    let lock = |client: &mut Client, key: i64| {
        client
            .query_one("SELECT pg_advisory_lock($1)", &[&key])
            .map(drop)
    };
    // They do not find out themselves, and give up.
    let slices = "SET deadlock_timeout = '1min'; SET lock_timeout = '4s'";
    let [mut one, mut other] = [(); 2].map(|()| connect(slices));
    lock(&mut one, keys[0]).expect("locked");
    lock(&mut other, keys[1]).expect("locked");
    let mut observer = connect("");
    let mut until_waiting = |key: i64, many: i64| {
        let waiting = "SELECT count(*) FROM pg_locks
                        WHERE locktype = 'advisory' AND NOT granted AND objsubid = 1
                          AND (classid::int8 << 32) | objid::int8 = $1";
        while observer
            .query_one(waiting, &[&key])
            .expect("a count")
            .get::<_, i64>(0)
            < many
        {
            thread::yield_now();
        }
    };
    let mut ahead = connect("SET deadlock_timeout = '2s'; BEGIN");
    let awaiting = thread::spawn(move || {
        let wait = "SELECT lockapi.await_lock($1, false, false, true)";
        ahead.query_one(wait, &[&keys[1]]).map(|row| row.get(0))
    });
    until_waiting(keys[1], 1);
    let behind = thread::spawn(move || {
        let answer = lock(&mut one, keys[1]);
        (one, answer)
    });
    until_waiting(keys[1], 2);
    let answer = lock(&mut other, keys[0]);
    let (one, answer_behind) = behind.join().expect("answered");
    for answer in [answer, answer_behind] {
        let error = answer.expect_err("the slice has ended");
        assert_eq!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE));
    }
    drop(one);
    drop(other);
    let locked: Result<bool, _> = awaiting.join().expect("answered");
    assert!(locked.expect("no deadlock"));
}
