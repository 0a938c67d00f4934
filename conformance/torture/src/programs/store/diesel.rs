//! Transactions on Diesel.

use std::sync::Arc;

use async_trait::async_trait;
use diesel::connection::{AnsiTransactionManager, SimpleConnection, TransactionManager};
use diesel::prelude::*;
use diesel::sql_types::BigInt;

use super::{Idle, Inside, LOCK, SETTLE, Store, StoreError, blocking, not_done, unknown};

pub(super) struct Connections {
    url: String,
    idle: Arc<Idle<PgConnection>>,
}

impl Connections {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: format!("{url}&connect_timeout=5"),
            idle: Idle::new(),
        }
    }
}

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    number: i64,
}

#[async_trait]
impl Store for Connections {
    async fn transact(&self, inside: Inside, sql: String) -> Result<i64, StoreError> {
        let (url, idle) = (self.url.clone(), Arc::clone(&self.idle));
        blocking(move || {
            let mut connection = match idle.take() {
                Some(connection) => connection,
                None => PgConnection::establish(&url).map_err(not_done)?,
            };
            // What fails is dropped with its transaction.
            let number = run(&mut connection, &inside, &sql)?;
            idle.put(connection);
            Ok(number)
        })
        .await
    }
}

fn run(connection: &mut PgConnection, inside: &Inside, sql: &str) -> Result<i64, StoreError> {
    AnsiTransactionManager::begin_transaction(connection).map_err(not_done)?;
    connection.batch_execute(SETTLE).map_err(not_done)?;
    match inside {
        Inside::Nothing => {}
        Inside::CheckIn(fence) => fence.check_in(connection)?,
        Inside::Lock(mutex) => mutex.lock_in(connection, LOCK)?,
        Inside::Push(queue, job) => drop(queue.push_in(connection, std::slice::from_ref(job))?),
        Inside::Ack(delivery) => delivery.ack_in(connection)?,
    }
    let sql = format!("SELECT q.number FROM ({sql}) AS q (number)");
    let row: Number = diesel::sql_query(sql)
        .get_result(connection)
        .map_err(not_done)?;
    AnsiTransactionManager::commit_transaction(connection).map_err(unknown)?;
    Ok(row.number)
}
