//! What several commands have.

use std::sync::Arc;

use clap::Args;
use lockapi::admin::Filter;
use lockapi::memory::Database;
use lockapi::{Backend, Error, ErrorKind, Key};

use crate::arguments::Global;
use crate::exit::Exit;
use crate::failure::{Failure, Result};

/// Why something is done to others.
#[derive(Clone, Debug, Args)]
pub(crate) struct Why {
    /// Why; it is kept in the audit log
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// How much is listed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Extent {
    /// Of all namespaces, and also what has no name
    #[arg(long)]
    everywhere: bool,

    /// At most so many entries
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    limit: usize,
}

impl Extent {
    pub(crate) fn is_everywhere(self) -> bool {
        self.everywhere
    }

    pub(crate) fn filter(self, key: Option<Key>) -> Filter {
        let filter = key.map_or_else(Filter::new, Filter::key);
        self.widen(filter)
    }

    pub(crate) fn widen(self, filter: Filter) -> Filter {
        let filter = filter.limit(self.limit);
        if self.everywhere {
            filter.everywhere()
        } else {
            filter
        }
    }
}

/// Does something that is recorded first. What is refused before anything is sent, such as a pause for a thousand years, is
/// not recorded.
pub(crate) async fn recorded<T>(
    backend: &dyn Backend,
    (action, target): (&str, &str),
    why: &Why,
    act: impl AsyncFn(&dyn Backend) -> Result<T, Error>,
) -> Result<T, Error> {
    try_it(&act).await?;
    let operator = backend.operator();
    operator.record(action, target, &why.reason).await?;
    act(backend).await
}

/// The same to something that may be absent: then nothing is done, nothing recorded, and `None` answered.
pub(crate) async fn recorded_where<T>(
    backend: &dyn Backend,
    present: impl AsyncFnOnce(&dyn Backend) -> Result<bool, Error>,
    named: (&str, &str),
    why: &Why,
    act: impl AsyncFn(&dyn Backend) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    try_it(&act).await?;
    if !present(backend).await? {
        return Ok(None);
    }
    recorded(backend, named, why, act).await.map(Some)
}

/// Refuses what is refused everywhere.
async fn try_it<T>(act: impl AsyncFn(&dyn Backend) -> Result<T, Error>) -> Result<(), Error> {
    let memory = Database::new().connect().await?;
    refused(act(&*memory).await)
}

/// Whether what was tried in memory, where there is nothing, would be refused everywhere.
pub(crate) fn refused<T>(tried: Result<T, Error>) -> Result<(), Error> {
    match tried {
        Err(error) if error.kind() == ErrorKind::Invalid => Err(error),
        _ => Ok(()),
    }
}

/// Gives back what was opened.
pub(crate) async fn close(backend: &dyn Backend) {
    if let Err(error) = backend.close().await {
        Failure::from(error).tell();
    }
}

/// Connects, does the work, and gives back what was opened, whatever came of it. Where that fails it is told: what was done is done.
pub(crate) async fn with_backend(
    global: &Global,
    work: impl AsyncFnOnce(&Arc<dyn Backend>) -> Result<Exit>,
) -> Result<Exit> {
    let backend = global.place.connect().await?;
    let outcome = work(&backend).await;
    close(&*backend).await;
    outcome
}
