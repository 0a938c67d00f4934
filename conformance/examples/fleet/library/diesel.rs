//! A worker on Diesel: plain threads, and one pool for the worker and for its locks.

use backend_diesel::CheckIn;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};
use diesel::sql_query;
use diesel::sql_types::{Array, BigInt, Bool, Nullable, Text};
use lockapi::Fence;
use lockapi::blocking::Backend;

use super::{
    BEGIN, COMPLETE, CONNECTIONS, CONNECTIONS_OF_BACKEND, Library, PATIENCE, PICK, REPORT,
};
use crate::Result;
use crate::store::{BlockingStore, Counts, Pick, Run, StoreError, Stored};
use crate::worker::{Node, threads};

pub(super) fn work(url: &str, node: Node) -> Result<()> {
    let pool = Pool::builder()
        .max_size(CONNECTIONS + CONNECTIONS_OF_BACKEND)
        .connection_timeout(PATIENCE)
        .build(ConnectionManager::new(url))?;
    let backend = Backend::connect(backend_diesel::connect(&pool))?;
    threads::Worker::new(node, backend, Tables(pool)).work();
    Ok(())
}

struct Tables(Pool<ConnectionManager<PgConnection>>);

#[derive(QueryableByName)]
struct Picked {
    #[diesel(sql_type = Array<Text>)]
    due: Vec<String>,
    #[diesel(sql_type = Bool)]
    over: bool,
}

#[derive(QueryableByName)]
struct Begun {
    #[diesel(sql_type = BigInt)]
    id: i64,
    #[diesel(sql_type = BigInt)]
    work: i64,
}

impl BlockingStore for Tables {
    fn report(&self, node: &str, counts: Counts) -> Stored<()> {
        sql_query(REPORT)
            .bind::<Text, _>(node)
            .bind::<Text, _>(Library::Diesel.name())
            .bind::<BigInt, _>(counts.contended)
            .bind::<BigInt, _>(counts.abandoned)
            .bind::<BigInt, _>(counts.refused)
            .execute(&mut self.0.get()?)?;
        Ok(())
    }

    fn pick(&self, order: &str, limit: i64) -> Stored<Pick> {
        let row: Option<Picked> = sql_query(PICK)
            .bind::<Text, _>(order)
            .bind::<BigInt, _>(limit)
            .get_result(&mut self.0.get()?)
            .optional()?;
        // Before the start there is no row.
        Ok(row.map_or_else(Pick::default, |Picked { due, over }| Pick { due, over }))
    }

    fn begin(&self, task: &str, node: &str, fence: Option<&Fence>) -> Stored<Option<Run>> {
        self.0.get()?.transaction(|connection| {
            if let Some(fence) = fence {
                fence.check_in(connection)?;
            }
            let row: Option<Begun> = sql_query(BEGIN)
                .bind::<Text, _>(task)
                .bind::<Text, _>(node)
                .bind::<Nullable<BigInt>, _>(fence.map(Fence::token))
                .get_result(connection)
                .optional()?;
            Ok(row.map(|Begun { id, work }| Run::new(id, work)))
        })
    }

    fn complete(&self, run: &Run, fence: Option<&Fence>) -> Stored<()> {
        self.0.get()?.transaction(|connection| {
            if let Some(fence) = fence {
                fence.check_in(connection)?;
            }
            sql_query(COMPLETE)
                .bind::<BigInt, _>(run.id)
                .execute(connection)?;
            Ok::<_, StoreError>(())
        })
    }
}
