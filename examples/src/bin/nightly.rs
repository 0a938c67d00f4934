//! A job of cron on Diesel, started on several machines at the same time: one runs, and one that was stopped for too
//! long cannot write any more.
//!
//! `0 3 * * * DATABASE_URL=postgres://user@host/database nightly`

use std::env;
use std::time::Duration;

use diesel::prelude::*;
use diesel::{connection::SimpleConnection, sql_query};
use lockapi::blocking::Backend;
use lockapi::lease::LeaseOptions;

type Problem = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Problem> {
    let url = env::var("DATABASE_URL")?;
    let mut conn = PgConnection::establish(&url)?;
    let backend = Backend::connect(lockapi_diesel::connect_url(&url))?;
    backend.migrate()?;
    // Two that create a table at the same time may fail.
    let guard = backend.mutex("tables")?.lock()?;
    conn.batch_execute(
        "CREATE TABLE IF NOT EXISTS report (day date PRIMARY KEY, fence int8 NOT NULL)",
    )?;
    guard.unlock()?;

    // Kept for a minute at least: a machine whose clock is late finds it taken.
    let options = LeaseOptions::new(Duration::from_secs(90)).minimum_hold(Duration::from_mins(1));
    let ran = backend.lease("nightly-report", options)?.run_exclusive(|guard| {
        conn.transaction(|conn| {
            // Fails if another may have begun, whatever this process believes.
            guard.fence().check_in(conn)?;
            let insert = "INSERT INTO report VALUES (current_date, $1) ON CONFLICT (day) DO UPDATE SET fence = $1";
            let token = guard.fence().token();
            sql_query(insert).bind::<diesel::sql_types::BigInt, _>(token).execute(conn)?;
            Ok::<_, Problem>(())
        })
    })?;
    println!(
        "{}",
        if ran.is_some() {
            "done"
        } else {
            "another machine is at it"
        }
    );
    backend.close()?;
    Ok(())
}
