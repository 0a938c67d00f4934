//! Fail-over on the real thing: three PostgreSQL servers under Patroni, which are promoted again and again
//! while ten processes work on them: `failover --help`.

mod args;
mod audit;
mod clock;
mod cluster;
mod conduct;
mod crew;
mod fault;
mod history;
mod programs;
mod record;
mod register;
mod reigns;
mod view;

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use args::{Settings, Task};
use audit::Audit;
use cluster::Cluster;
use view::View;

/// What goes wrong outside of the processes ends the program with a message.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let task = match args::parse() {
        Ok(task) => task,
        Err(error) => {
            eprintln!("failover: {error}\nTry --help.");
            return ExitCode::from(2);
        }
    };
    let done = match task {
        Task::Help => {
            println!("{}", args::HELP);
            return ExitCode::SUCCESS;
        }
        Task::Process {
            library,
            jobs,
            over,
        } => process(library, jobs, over),
        Task::Drill(settings) => drill(&settings),
    };
    done.unwrap_or_else(|error| {
        eprintln!("failover: {error}");
        ExitCode::from(3)
    })
}

#[tokio::main(worker_threads = 2)]
async fn process(
    library: programs::Library,
    jobs: std::ops::Range<u64>,
    over: std::time::Duration,
) -> Result<ExitCode> {
    let url = std::env::var(crew::URL)?;
    programs::run(library, &url, jobs, over).await?;
    Ok(ExitCode::SUCCESS)
}

#[tokio::main(worker_threads = 2)]
async fn drill(settings: &Settings) -> Result<ExitCode> {
    let view = View::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut cluster = Cluster::start(&settings.setup).await?;
    let audit = tokio::select! {
        biased;
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
        _ = hangup.recv() => None,
        audit = conduct::conduct(settings, &mut cluster, &view) => Some(audit),
    };
    let kept = settings.log.as_ref().map(|keep| cluster.keep_logs(keep));
    cluster.remove().await?;
    if let Some(Err(error)) = kept {
        eprintln!("failover: the logs are not kept: {error}");
    }
    let Some(audit) = audit else {
        eprintln!("failover: interrupted; the servers are removed");
        return Ok(ExitCode::from(130));
    };
    let (audit, driven) = audit?;
    if let Err(error) = driven {
        // What was recorded until then is judged as well.
        if audit.passed() {
            println!("\n{audit}");
            return Err(error);
        }
        eprintln!("failover: {error}");
    }
    Ok(verdict(settings, &audit, &view))
}

fn verdict(settings: &Settings, audit: &Audit, view: &View) -> ExitCode {
    println!("\n{audit}");
    let command = format!(
        "--seed {} --promotions {}",
        settings.seed, settings.promotions
    );
    if audit.passed() {
        view.verdict(true, &format!("PASSED ({command})"));
        ExitCode::SUCCESS
    } else {
        view.verdict(
            false,
            &format!("FAILED: what is marked must be 0 ({command})"),
        );
        ExitCode::FAILURE
    }
}
