//! A worker on Diesel: plain threads, and one pool for the worker and for its locks.

use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};
use diesel::sql_query;
use diesel::sql_types::{BigInt, Bool, Text};
use lockapi::BackendOptions;
use lockapi::blocking::Backend;
use lockapi::queue::Delivery;

use super::{
    BEGIN, COMPLETE, CONNECTIONS, CONNECTIONS_OF_BACKEND, Library, OVER, PATIENCE, REPORT,
};
use crate::Result;
use crate::store::{BlockingStore, Counts, Run, StoreError, Stored};
use crate::worker::{Node, threads};

pub(super) fn work(url: &str, node: Node) -> Result<()> {
    let pool = Pool::builder()
        .max_size(CONNECTIONS + CONNECTIONS_OF_BACKEND)
        .min_idle(Some(1))
        .connection_timeout(PATIENCE)
        .build(ConnectionManager::new(url))?;
    let backend = Backend::connect(lockapi_diesel::connect_with(
        &pool,
        BackendOptions::default().waiters(0),
    ))?;
    threads::Worker::new(node, backend, Tables(pool)).work()?;
    Ok(())
}

struct Tables(Pool<ConnectionManager<PgConnection>>);

#[derive(QueryableByName)]
struct Over {
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
            .bind::<BigInt, _>(counts.abandoned)
            .bind::<BigInt, _>(counts.refused)
            .execute(&mut self.0.get()?)?;
        Ok(())
    }

    fn over(&self) -> Stored<bool> {
        let row: Option<Over> = sql_query(OVER).get_result(&mut self.0.get()?).optional()?;
        // Before the start there is no row.
        Ok(row.is_some_and(|row| row.over))
    }

    fn begin(&self, delivery: &Delivery, node: &str) -> Stored<Option<Run>> {
        let row: Option<Begun> = sql_query(BEGIN)
            .bind::<BigInt, _>(delivery.id())
            .bind::<Text, _>(node)
            .bind::<BigInt, _>(delivery.ticket().token)
            .get_result(&mut self.0.get()?)
            .optional()?;
        Ok(row.map(|Begun { id, work }| Run::new(id, work)))
    }

    fn complete(&self, run: &Run, delivery: Option<&Delivery>) -> Stored<()> {
        self.0.get()?.transaction(|connection| {
            if let Some(delivery) = delivery {
                delivery.ack_in(connection)?;
            }
            sql_query(COMPLETE)
                .bind::<BigInt, _>(run.id)
                .execute(connection)?;
            Ok::<_, StoreError>(())
        })
    }
}
