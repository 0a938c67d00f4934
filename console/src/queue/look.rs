//! Listing queues with what is in them, and telling of those that nobody knows.

use std::io::Write;
use std::time::Duration;

use lockapi::Backend;
use lockapi::admin::PausedName;
use lockapi::queue::Statistics;
use lockapi::{ErrorKind, admin::MAX_PAGE};
use serde::Serialize;
use tokio::time::timeout;

use super::entries::{Counts, Listed, state};
use super::limit::Limited;
use crate::arguments::Global;
use crate::common::Extent;
use crate::failure::Result;
use crate::output::{Entry, spoken_or_unknown};
use crate::present;

/// Nobody waits longer than this to be told of a name that is wrong.
const GLANCE: Duration = Duration::from_secs(1);

/// A queue with what is in it.
#[derive(Debug, Serialize)]
struct Counted {
    namespace: String,
    name: String,
    #[serde(flatten)]
    counts: Counts,
}

impl Entry for Counted {
    const COLUMNS: &'static [&'static str] = &[
        "queue", "state", "ready", "oldest", "running", "delayed", "dead",
    ];

    fn cells(&self) -> Vec<String> {
        let counts = &self.counts;
        vec![
            self.name.clone(),
            state(counts.paused).to_owned(),
            counts.ready.to_string(),
            spoken_or_unknown(counts.oldest),
            counts.running.to_string(),
            counts.delayed.to_string(),
            counts.dead.to_string(),
        ]
    }
}

fn note(words: &str) {
    // Nobody may be there to read it.
    let _told = writeln!(std::io::stderr(), "{words}");
}

/// Lists queues, and counts their jobs where that is asked for.
pub(super) async fn list(
    global: &Global,
    backend: &dyn Backend,
    extent: Extent,
    counts: bool,
) -> Result<()> {
    let inspector = backend.inspector();
    let queues = inspector.queues(&extent.filter(None), None).await?;
    if queues.is_empty() && !extent.is_everywhere() {
        let namespace = backend.namespace();
        note(&format!(
            "There is no queue in the namespace {namespace:?}; --everywhere lists those of all."
        ));
    }
    if !counts {
        let queues: Vec<Listed> = queues.into_iter().map(Listed::from).collect();
        return global.output().entries(&queues);
    }
    let mut counted = Vec::with_capacity(queues.len());
    for queue in queues {
        let statistics = backend.queue(&*queue.name)?.statistics().await?;
        counted.push(Counted {
            namespace: queue.namespace,
            name: queue.name,
            counts: Counts::from(&statistics),
        });
    }
    global.output().entries(&counted)
}

/// What is in a queue, with the names of jobs that are paused.
pub(super) async fn show(global: &Global, backend: &dyn Backend, queue: &str) -> Result<()> {
    let handle = backend.queue(queue)?;
    let statistics = handle.statistics().await?;
    tell_unknown(backend, queue, &statistics).await?;
    let names = match backend.inspector().paused_names(queue, MAX_PAGE).await {
        // A schema from before there were any.
        Err(error) if error.kind() == ErrorKind::Unsupported => Vec::<PausedName>::new(),
        names => names?,
    };
    let mut counts = Counts::from(&statistics).with_names(names);
    counts.limit = match handle.limit().await {
        // As above.
        Err(error) if error.kind() == ErrorKind::Unsupported => None,
        limit => limit?.map(Limited::from),
    };
    global.output().value(&counts, Counts::words)
}

/// A queue is there once it has jobs: whoever writes its name wrong is told of an empty one.
pub(super) async fn tell_unknown(
    backend: &dyn Backend,
    queue: &str,
    statistics: &Statistics,
) -> Result<()> {
    let counts = [
        statistics.ready,
        statistics.running,
        statistics.delayed,
        statistics.dead,
    ];
    if statistics.paused || counts.iter().any(|tally| tally.count > 0) {
        return Ok(());
    }
    if !present::queue(backend, queue).await? {
        note(&unknown(backend, queue));
    }
    Ok(())
}

/// What is told of a queue that is none.
pub(super) fn unknown(backend: &dyn Backend, queue: &str) -> String {
    let namespace = backend.namespace();
    format!(
        "No queue {queue:?} of the namespace {namespace:?} has jobs or was ever paused; `lockapi queue list` lists those \
         that have or were."
    )
}

/// Who limits a queue before its first job is told that it has none, in case its name is wrong.
pub(super) async fn tell_new(backend: &dyn Backend, queue: &str) {
    let look = timeout(GLANCE, present::queue(backend, queue)).await;
    if let Ok(Ok(false)) = look {
        let namespace = backend.namespace();
        note(&format!(
            "The queue {queue:?} of the namespace {namespace:?} has no jobs yet."
        ));
    }
}

/// The same beside something else, which a slow or failed look does not keep from being done.
pub(super) async fn look_first(backend: &dyn Backend, queue: &str) {
    let look = async {
        let statistics = backend.queue(queue)?.statistics().await?;
        tell_unknown(backend, queue, &statistics).await
    };
    let _looked: std::result::Result<Result<()>, _> = timeout(GLANCE, look).await;
}
