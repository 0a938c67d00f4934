//! A worker on the blocking `postgres` crate: plain threads, and one pool for the worker and for
//! its locks.

use lockapi::BackendOptions;
use lockapi::blocking::Backend;
use lockapi::queue::Delivery;
use r2d2::Pool;
use r2d2_postgres::PostgresConnectionManager;
use r2d2_postgres::postgres::{Config, NoTls};

use super::{
    BEGIN, COMPLETE, CONNECTIONS, CONNECTIONS_OF_BACKEND, Library, OVER, PATIENCE, REPORT, URL,
};
use crate::Result;
use crate::store::{BlockingStore, Counts, Run, Stored};
use crate::worker::{Node, threads};

pub(super) fn work(url: &str, node: Node) -> Result<()> {
    // The parser's error may quote the URL, which may hold a password.
    let config: Config = url
        .parse()
        .map_err(|_| format!("the postgres crate does not understand {URL}"))?;
    let pool = Pool::builder()
        .max_size(CONNECTIONS + CONNECTIONS_OF_BACKEND)
        .min_idle(Some(1))
        .connection_timeout(PATIENCE)
        .build(PostgresConnectionManager::new(config, NoTls))?;
    let backend = Backend::connect(lockapi_postgres::connect_with(
        &pool,
        BackendOptions::default().waiters(0),
    ))?;
    threads::Worker::new(node, backend, Tables(pool)).work()?;
    Ok(())
}

struct Tables(Pool<PostgresConnectionManager<NoTls>>);

impl BlockingStore for Tables {
    fn report(&self, node: &str, counts: Counts) -> Stored<()> {
        let Counts { abandoned, refused } = counts;
        self.0.get()?.execute(
            REPORT,
            &[&node, &Library::Sync.name(), &abandoned, &refused],
        )?;
        Ok(())
    }

    fn over(&self) -> Stored<bool> {
        let row = self.0.get()?.query_opt(OVER, &[])?;
        // Before the start there is no row.
        Ok(row
            .map(|row| row.try_get("over"))
            .transpose()?
            .unwrap_or(false))
    }

    fn begin(&self, delivery: &Delivery, node: &str) -> Stored<Option<Run>> {
        let (id, token) = (delivery.id(), delivery.ticket().token);
        let row = self.0.get()?.query_opt(BEGIN, &[&id, &node, &token])?;
        let Some(row) = row else {
            return Ok(None);
        };
        Ok(Some(Run::new(row.try_get("id")?, row.try_get("work")?)))
    }

    fn complete(&self, run: &Run, delivery: Option<&Delivery>) -> Stored<()> {
        let mut client = self.0.get()?;
        let mut transaction = client.transaction()?;
        if let Some(delivery) = delivery {
            delivery.ack_in(&mut transaction)?;
        }
        transaction.execute(COMPLETE, &[&run.id])?;
        transaction.commit()?;
        Ok(())
    }
}
