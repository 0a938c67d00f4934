//! The fleet on `PostgreSQL`: every worker is a process.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::Result;
use crate::args::Settings;
use crate::conduct::{self, Verdict};
use crate::library::{Library, URL};
use crate::plan;
use crate::view::Screen;
use crate::worker::NAME;

mod page;
mod processes;
mod server;
mod watch;

use page::Page;
use processes::Processes;
use server::Server;
use watch::Tables;

/// Runs the fleet, with workers that use these libraries by turns.
pub(crate) fn run(settings: &Settings, libraries: &'static [Library]) -> Result<Verdict> {
    let screen = Screen::new();
    let server = Server::get(settings.workers, &screen)?;
    // One thread starts the workers, and lives until they have ended.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let verdict = runtime.block_on(conduct(settings, libraries, server.url(), &screen));
    drop(server);
    verdict
}

async fn conduct(
    settings: &Settings,
    libraries: &'static [Library],
    url: &str,
    screen: &Screen,
) -> Result<Verdict> {
    let pool = pool(url)?;
    let backend = lockapi_sqlx::connect(&pool).await?;
    backend.migrate().await?;
    let only = backend.mutex("fleet/demo")?.try_lock().await?;
    let only = only.ok_or("another fleet is running on this database")?;
    let version = watch::prepare(&pool).await?;
    let scheduler = backend.scheduler(NAME)?;
    plan::clear(&*scheduler, &*backend.queue(NAME)?).await?;
    let tables = Tables::new(pool.clone(), Arc::clone(&scheduler));
    let fleet = Processes::new(url, pool, libraries, settings.safety);
    let subject = format!(
        "{} processes share {} recurring tasks on PostgreSQL {version}: {}.",
        settings.workers,
        settings.tasks,
        shares(settings.workers, libraries)
    );
    let page = settings.web.then(|| Page::serve(url)).transpose()?;
    if let Some(page) = &page {
        screen.line(&format!("Watch it at {}", page.address()))?;
        // The URL of somebody's own server may hold a password.
        if std::env::var_os(URL).is_none_or(|url| url.is_empty()) {
            screen.line(&format!(
                "or in a terminal: {URL}='{url}' {} top",
                page.command.display()
            ))?;
        }
    }
    let verdict = conduct::conduct(settings, &tables, &fleet, screen, &subject).await;
    drop((fleet, page));
    plan::clear(&*scheduler, &*backend.queue(NAME)?).await?;
    only.unlock().await?;
    verdict
}

/// How many workers use which library.
fn shares(workers: usize, libraries: &[Library]) -> String {
    let mut parts = Vec::new();
    for (turn, library) in libraries.iter().enumerate() {
        let count = (turn..workers).step_by(libraries.len()).count();
        if count > 0 {
            parts.push(format!("{count} on {}", library.name()));
        }
    }
    parts.join(", ")
}

fn pool(url: &str) -> Result<PgPool> {
    // The parser's error may quote the URL, which may hold a password.
    let options: PgConnectOptions = url
        .parse()
        .map_err(|_| format!("{URL} is not understood"))?;
    Ok(PgPoolOptions::new()
        .max_connections(4)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with(options.application_name("fleet")))
}
