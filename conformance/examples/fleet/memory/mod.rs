//! The fleet in memory: every worker is a future with a backend of its own on one database.

use std::sync::Arc;

use lockapi::memory::Database;

use crate::Result;
use crate::args::Settings;
use crate::conduct::{self, Verdict};
use crate::view::Screen;

mod tables;
mod tasks;

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
        let tables = Arc::new(Tables::new(database.clone()));
        let fleet = Tasks::new(database, Arc::clone(&tables), settings.safety);
        let subject = "all in one process, with the in-memory backend";
        conduct::conduct(settings, &*tables, &fleet, &screen, subject).await
    })
}
