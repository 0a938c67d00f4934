//! Transactions on the blocking `postgres` crate.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postgres::{Client, Config, NoTls, SimpleQueryMessage};

use super::{Idle, Inside, LOCK, SETTLE, Store, StoreError, blocking, not_done, unknown};

pub(super) struct Connections {
    config: Config,
    idle: Arc<Idle<Client>>,
}

impl Connections {
    pub(super) fn new(url: &str) -> crate::Result<Self> {
        let mut config: Config = url.parse()?;
        config.connect_timeout(Duration::from_secs(5));
        Ok(Self {
            config,
            idle: Idle::new(),
        })
    }
}

#[async_trait]
impl Store for Connections {
    async fn transact(&self, inside: Inside, sql: String) -> Result<i64, StoreError> {
        let (config, idle) = (self.config.clone(), Arc::clone(&self.idle));
        blocking(move || {
            let mut client = match idle.take() {
                Some(client) => client,
                None => config.connect(NoTls).map_err(not_done)?,
            };
            // What fails is dropped with its transaction.
            let number = run(&mut client, &inside, &sql)?;
            idle.put(client);
            Ok(number)
        })
        .await
    }
}

fn run(client: &mut Client, inside: &Inside, sql: &str) -> Result<i64, StoreError> {
    let mut transaction = client.transaction().map_err(not_done)?;
    transaction.batch_execute(SETTLE).map_err(not_done)?;
    match inside {
        Inside::Nothing => {}
        Inside::CheckIn(fence) => fence.check_in(&mut transaction)?,
        Inside::Lock(mutex) => mutex.lock_in(&mut transaction, LOCK)?,
        Inside::Push(queue, job) => {
            drop(queue.push_in(&mut transaction, std::slice::from_ref(job))?);
        }
        Inside::Ack(delivery) => delivery.ack_in(&mut transaction)?,
    }
    let rows = transaction.simple_query(sql).map_err(not_done)?;
    let number = rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    });
    let number = number.ok_or_else(|| not_done("no number was answered"))?;
    transaction.commit().map_err(unknown)?;
    Ok(number)
}
