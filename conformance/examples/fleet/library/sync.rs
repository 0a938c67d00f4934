//! A worker on the blocking `postgres` crate: plain threads, and one pool for the worker and for
//! its locks.

use backend_sync::CheckIn;
use lockapi::Fence;
use lockapi::blocking::Backend;
use r2d2::Pool;
use r2d2_postgres::PostgresConnectionManager;
use r2d2_postgres::postgres::{Config, NoTls};

use super::{
    BEGIN, COMPLETE, CONNECTIONS, CONNECTIONS_OF_BACKEND, Library, PATIENCE, PICK, REPORT, URL,
};
use crate::Result;
use crate::store::{BlockingStore, Counts, Pick, Run, Stored};
use crate::worker::{Node, threads};

pub(super) fn work(url: &str, node: Node) -> Result<()> {
    // The parser's error may quote the URL, which may hold a password.
    let config: Config = url
        .parse()
        .map_err(|_| format!("the postgres crate does not understand {URL}"))?;
    let pool = Pool::builder()
        .max_size(CONNECTIONS + CONNECTIONS_OF_BACKEND)
        .connection_timeout(PATIENCE)
        .build(PostgresConnectionManager::new(config, NoTls))?;
    let backend = Backend::connect(backend_sync::connect(&pool))?;
    threads::Worker::new(node, backend, Tables(pool)).work();
    Ok(())
}

struct Tables(Pool<PostgresConnectionManager<NoTls>>);

impl BlockingStore for Tables {
    fn report(&self, node: &str, counts: Counts) -> Stored<()> {
        let Counts {
            contended,
            abandoned,
            refused,
        } = counts;
        self.0.get()?.execute(
            REPORT,
            &[
                &node,
                &Library::Sync.name(),
                &contended,
                &abandoned,
                &refused,
            ],
        )?;
        Ok(())
    }

    fn pick(&self, order: &str, limit: i64) -> Stored<Pick> {
        let row = self.0.get()?.query_opt(PICK, &[&order, &limit])?;
        // Before the start there is no row.
        let Some(row) = row else {
            return Ok(Pick::default());
        };
        Ok(Pick {
            due: row.try_get("due")?,
            over: row.try_get("over")?,
        })
    }

    fn begin(&self, task: &str, node: &str, fence: Option<&Fence>) -> Stored<Option<Run>> {
        let mut client = self.0.get()?;
        let mut transaction = client.transaction()?;
        if let Some(fence) = fence {
            fence.check_in(&mut transaction)?;
        }
        let token = fence.map(Fence::token);
        let row = transaction.query_opt(BEGIN, &[&task, &node, &token])?;
        transaction.commit()?;
        let Some(row) = row else {
            return Ok(None);
        };
        Ok(Some(Run::new(row.try_get("id")?, row.try_get("work")?)))
    }

    fn complete(&self, run: &Run, fence: Option<&Fence>) -> Stored<()> {
        let mut client = self.0.get()?;
        let mut transaction = client.transaction()?;
        if let Some(fence) = fence {
            fence.check_in(&mut transaction)?;
        }
        transaction.execute(COMPLETE, &[&run.id])?;
        transaction.commit()?;
        Ok(())
    }
}
