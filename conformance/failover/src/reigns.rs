//! Which epochs were served when: a primary that was replaced may not know yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use crate::Result;
use crate::clock;
use crate::cluster::Session;

const LOOK: Duration = Duration::from_millis(100);
const ANSWER: Duration = Duration::from_secs(2);
const SERVED: &str = include_str!("served.sql");

/// When a primary was first and last seen to serve an epoch.
pub(crate) type Reigns = BTreeMap<i64, (u64, u64)>;

/// Watches the servers for as long as it exists.
pub(crate) struct Watch(Arc<Mutex<Reigns>>);

impl Watch {
    pub(crate) fn start(servers: Vec<Session>) -> Self {
        let reigns: Arc<Mutex<Reigns>> = Arc::default();
        for server in servers {
            let reigns = Arc::downgrade(&reigns);
            tokio::spawn(async move {
                while reigns.strong_count() > 0 {
                    if let Ok(client) = server.open().await {
                        // A session that ends, or stands still, is opened again.
                        let _ended = follow(&client, &reigns).await;
                    }
                    sleep(LOOK).await;
                }
            });
        }
        Self(reigns)
    }

    pub(crate) fn reigns(&self) -> Reigns {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn follow(client: &Client, reigns: &std::sync::Weak<Mutex<Reigns>>) -> Result<()> {
    loop {
        let row = timeout(ANSWER, client.query_opt(SERVED, &[])).await??;
        let now = clock::now();
        let Some(reigns) = reigns.upgrade() else {
            return Ok(());
        };
        if let Some(row) = row {
            let epoch: i64 = row.try_get(0)?;
            let mut reigns = reigns.lock().unwrap_or_else(PoisonError::into_inner);
            let (_, last) = reigns.entry(epoch).or_insert((now, now));
            *last = now.max(*last);
        }
        drop(reigns);
        sleep(LOOK).await;
    }
}

/// How many epochs have a smaller number than one that began before them.
pub(crate) fn back(reigns: &Reigns) -> usize {
    let mut begun: Vec<_> = reigns
        .iter()
        .map(|(epoch, (first, _))| (first, epoch))
        .collect();
    begun.sort_unstable();
    begun
        .windows(2)
        .filter(|pair| pair[0].1 > pair[1].1)
        .count()
}
