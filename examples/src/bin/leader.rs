//! A service of which one instance leads, on tokio-postgres: the leader does the work, the others know where it is and take
//! over when it dies.
//!
//! `DATABASE_URL=postgres://user@host/database cargo run -p lockapi-examples --bin leader -- node-1`

use std::convert::Infallible;
use std::env;
use std::time::Duration;

use lockapi::lease::LeaseOptions;
use lockapi::{Election, ErrorKind, Fence, Stop};
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::{Config, NoTls};

type Problem = Box<dyn std::error::Error + Send + Sync>;

/// Between two attempts during an outage.
const PAUSE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Problem> {
    let name = env::args().nth(1).ok_or("give the node a name")?;
    let config: Config = env::var("DATABASE_URL")?.parse()?;
    let backend = lockapi_tokio_postgres::connect_config(config.clone(), NoTls).await?;
    backend.migrate().await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = Stop::from(async move {
        terminate.recv().await;
    });

    // Another leads this long after the leader was lost.
    let options = LeaseOptions::new(Duration::from_secs(5)).owner(name);
    let election = backend.election("compactor", options)?;
    // The work is dropped when the term ends, before another begins; it is begun again with the next term.
    let leading = election.lead_until(&stop, async |fence| work(&config, fence).await);
    let ended = tokio::select! {
        ended = watch(&*election) => ended,
        ended = leading => ended.map(|_: Option<()>| ()),
    };
    backend.close().await?;
    Ok(ended?)
}

/// Tells who leads, also after an outage.
async fn watch(election: &dyn Election) -> lockapi::Result<()> {
    let mut leaders = election.observe();
    loop {
        match leaders.next().await {
            Ok(Some(leader)) => println!("{} leads", leader.owner),
            Ok(None) => println!("nobody leads"),
            Err(error) if error.is_retryable() || error.kind() == ErrorKind::Indeterminate => {
                eprintln!("{error}");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Works again after errors of its own connection, for as long as it leads.
async fn work(config: &Config, fence: Fence) -> lockapi::Result<()> {
    loop {
        match compact(config, &fence).await {
            Ok(never) => match never {},
            Err(error) => eprintln!("compacting: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What the leader does for as long as it leads.
async fn compact(config: &Config, fence: &Fence) -> Result<Infallible, Problem> {
    let (mut client, connection) = config.connect(NoTls).await?;
    drop(tokio::spawn(connection));
    // One leads, so nobody else creates it at the same time.
    client
        .batch_execute("CREATE TABLE IF NOT EXISTS compaction (at timestamptz, fence int8)")
        .await?;
    loop {
        let mut tx = client.transaction().await?;
        // Rejects a leader that was stopped and does not know yet that it leads no more.
        fence.check_in(&mut tx).await?;
        tx.execute(
            "INSERT INTO compaction VALUES (now(), $1)",
            &[&fence.token()],
        )
        .await?;
        tx.commit().await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
