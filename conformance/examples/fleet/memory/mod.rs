//! The fleet in memory: every worker is a future with a backend of its own on one database.

use std::sync::Arc;

use lockapi::memory::Database;

use crate::Result;
use crate::args::Settings;
use crate::conduct::{self, Verdict};
use crate::view::Screen;
use crate::worker::NAME;

mod state;
mod tables;
mod tasks;
mod watch;

use tables::Tables;
use tasks::Tasks;

/// Runs the fleet.
pub(crate) fn run(settings: &Settings) -> Result<Verdict> {
    let screen = Screen::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let database = Database::new();
        let scheduler = database.connect().await?.scheduler(NAME)?;
        let tables = Arc::new(Tables::new(database.clone(), scheduler));
        let fleet = Tasks::new(database, Arc::clone(&tables), settings.safety);
        let subject = format!(
            "{} workers share {} recurring tasks in one process, without a database.",
            settings.workers, settings.tasks
        );
        conduct::conduct(settings, &*tables, &fleet, &screen, &subject).await
    })
}
