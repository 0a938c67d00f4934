//! A program without an async runtime, on the `postgres` crate: imports files, each once, however many of it run.
//!
//! `DATABASE_URL=postgres://user@host/database cargo run -p lockapi-examples --bin import -- one.csv two.csv`

use std::env;

use lockapi::blocking::Backend;
use postgres::{Client, NoTls};

type Problem = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Problem> {
    let url = env::var("DATABASE_URL")?;
    let mut client = Client::connect(&url, NoTls)?;
    let backend = Backend::connect(lockapi_postgres::connect_url(&url))?;
    backend.migrate()?;
    // Two that create a table at the same time may fail.
    let guard = backend.mutex("tables")?.lock()?;
    client.batch_execute(
        "CREATE TABLE IF NOT EXISTS imported (file text PRIMARY KEY, lines int8 NOT NULL)",
    )?;
    guard.unlock()?;

    for file in env::args().skip(1) {
        // Free at once when this process dies.
        let Some(guard) = backend.mutex(format!("import of {file}"))?.try_lock()? else {
            println!("{file}: another process is at it");
            continue;
        };
        let mut tx = client.transaction()?;
        // Before anything is read: an earlier holder may have been about to commit.
        guard.fence().check_in(&mut tx)?;
        if tx
            .query_opt("SELECT FROM imported WHERE file = $1", &[&file])?
            .is_some()
        {
            println!("{file}: imported already");
        } else {
            let lines = i64::try_from(std::fs::read_to_string(&file)?.lines().count())?;
            tx.execute("INSERT INTO imported VALUES ($1, $2)", &[&file, &lines])?;
            println!("{file}: {lines} lines");
        }
        tx.commit()?;
        guard.unlock()?;
    }
    backend.close()?;
    Ok(())
}
