//! A job that runs on one machine at a time, without an async runtime.
//!
//! `DATABASE_URL=postgres://user@host/database cargo run -p lockapi-postgres --example nightly`

use std::env;
use std::error::Error;
use std::time::Duration;

use lockapi::blocking::Backend;
use lockapi::lease::LeaseOptions;
use r2d2_postgres::PostgresConnectionManager;
use r2d2_postgres::postgres::NoTls;

fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("DATABASE_URL")?;
    let pool = r2d2::Pool::new(PostgresConnectionManager::new(url.parse()?, NoTls))?;
    // Connections of its own: the pool stays the program's.
    let backend = Backend::connect(lockapi_postgres::connect_url(&url))?;
    backend.migrate()?;

    let nightly = backend.lease("nightly-report", LeaseOptions::new(Duration::from_secs(30)))?;
    let ran = nightly.run_exclusive(|guard| -> Result<(), Box<dyn Error>> {
        let mut client = pool.get()?;
        let mut tx = client.transaction()?;
        // Fails if the lease was lost, whatever this process believes.
        guard.fence().check_in(&mut tx)?;
        let row = tx.query_one("SELECT count(*) FROM pg_catalog.pg_class", &[])?;
        tx.commit()?;
        println!(
            "{} relations, says holder {}",
            row.get::<_, i64>(0),
            guard.fence()
        );
        Ok(())
    })?;
    if ran.is_none() {
        println!("another process is at it");
    }
    Ok(())
}
