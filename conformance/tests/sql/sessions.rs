//! What a server shows of the sessions of a backend.

use lockapi::{Backend, Result};
use postgres::{Client, NoTls};
use std::sync::Arc;

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
