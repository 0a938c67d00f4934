//! What each of the processes does, on one of the libraries.

mod holders;
mod jobs;
mod numbers;
mod parent;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lockapi::Backend;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Result;
use crate::record::{Kind, Record, Source};
use holders::Holder;
pub(crate) use jobs::QUEUE;
use parent::Parent;

/// How many keys there are of each kind.
const KEYS: [(Kind, u32); 3] = [(Kind::Mutex, 4), (Kind::Lease, 4), (Kind::Leader, 1)];
const LIMITS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Sqlx,
    Diesel,
    Sync,
}

impl Library {
    pub(crate) const ALL: [Self; 3] = [Self::Sqlx, Self::Diesel, Self::Sync];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sqlx => "sqlx",
            Self::Diesel => "diesel",
            Self::Sync => "sync",
        }
    }

    pub(crate) async fn connect(self, url: &str) -> lockapi::Result<Arc<dyn Backend>> {
        loop {
            let connected = match self {
                Self::Sqlx => lockapi_sqlx::connect_url(url).await,
                Self::Diesel => lockapi_diesel::connect_url(url).await,
                Self::Sync => lockapi_postgres::connect_url(url).await,
            };
            match connected {
                // The cluster is changing its primary.
                Err(error) if error.is_retryable() => sleep(Duration::from_millis(100)).await,
                connected => return connected,
            }
        }
    }
}

/// Does everything until the input ends.
pub(crate) async fn run(
    library: Library,
    url: &str,
    jobs: Range<u64>,
    over: Duration,
) -> Result<()> {
    let parent = Parent::listen();
    let backend = library.connect(url).await?;
    let mut tasks = JoinSet::new();
    for (kind, keys) in KEYS {
        for key in 0..keys {
            tasks.spawn(Holder::open(&*backend, &parent, kind, key)?.run());
        }
    }
    let queue = backend.queue(QUEUE)?;
    tasks.spawn(jobs::push(
        Arc::clone(&queue),
        Arc::clone(&parent),
        jobs,
        over,
    ));
    tasks.spawn(jobs::work(queue, Arc::clone(&parent)));
    let limiter = numbers::limiter(&*backend)?;
    for limit in 0..LIMITS {
        tasks.spawn(numbers::ask(
            Arc::clone(&limiter),
            Arc::clone(&parent),
            limit,
        ));
    }
    for source in [Source::Snowflake, Source::Blocks] {
        tasks.spawn(numbers::make(
            Arc::clone(&backend),
            Arc::clone(&parent),
            source,
        ));
    }
    parent.tell(&Record::Ready);
    while let Some(ended) = tasks.join_next().await {
        // A panic is a violation as well.
        ended?;
    }
    // The thread that listens ends the process.
    std::future::pending().await
}
