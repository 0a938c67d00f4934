//! Coordination on PostgreSQL for programs that use tokio-postgres.
//!
//! [`connect_url`] and [`connect_config`] return a [`Backend`]. The primitives, their guarantees and their
//! errors are described in [`lockapi`].
//!
//! ```no_run
//! use tokio_postgres::NoTls;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = lockapi_tokio_postgres::connect_url("postgres://localhost/app", NoTls).await?;
//! backend.migrate().await?;
//!
//! let guard = backend.mutex("reports/daily")?.lock().await?;
//! println!("holder {}", guard.fence());
//! guard.unlock().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Pools
//! A backend opens its own connections and takes none of a pool, so that a pool which is used up does not matter.
//! Give it the configuration and the TLS connector that your pool is made of. The features `deadpool` and
//! `bb8` let connections of these pools take part in operations [of your own transaction](#in-your-own-transaction).
//!
//! ```no_run
//! use tokio_postgres::{Config, NoTls};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config: Config = "postgres://localhost/app".parse()?;
//! let backend = lockapi_tokio_postgres::connect_config(config.clone(), NoTls).await?;
//! # #[cfg(feature = "deadpool")]
//! # {
//! let pool = deadpool_postgres::Pool::builder(deadpool_postgres::Manager::new(config, NoTls)).build()?;
//! let queue = backend.queue("mails")?;
//! let mut client = pool.get().await?;
//! let mut tx = client.transaction().await?;
//! queue.push_in(&mut tx, &[lockapi::queue::Job::new("send-welcome", "ada")?]).await?;
//! tx.commit().await?;
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! # Connections
//! Two at the start, closed again after the probe; then one for leases and other tables, one for
//! renewals, one for jobs, two for rate limits, one that holds the mutexes, at most
//! [`BackendOptions::waiters`] that wait for mutexes, one that receives notifications while there are
//! subscribers, and now and then one that deletes what is old. Each is opened when it is first needed.
//!
//! # Runtime
//! The work is done by tasks on the tokio runtime that [`connect_url`] is called on, or on a runtime
//! with one thread of the backend's own when there is none. A thread watches the deadlines.
//!
//! # In your own transaction
//! Methods whose names end in `_in` take your transaction, or a client on which one is open, and need no
//! import. No prepared statement is left behind:
//!
//! ```no_run
//! use std::time::Duration;
//! use lockapi::limit::PermitRequest;
//! use lockapi::queue::Job;
//! use lockapi::table::{TableMode, lock_table_in};
//! # use lockapi_tokio_postgres as _;
//! # async fn example(
//! #     mut client: tokio_postgres::Client,
//! #     mutex: std::sync::Arc<dyn lockapi::Mutex>,
//! #     limiter: std::sync::Arc<dyn lockapi::RateLimiter>,
//! #     queue: std::sync::Arc<dyn lockapi::Queue>,
//! #     delivery: lockapi::queue::Delivery,
//! #     guard: Box<dyn lockapi::LeaseGuard>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = client.transaction().await?;
//! // A lock that commit or rollback releases.
//! if mutex.try_lock_in(&mut tx).await? {
//!     tx.execute("UPDATE account SET balance = balance + 1", &[]).await?;
//! }
//! // `Lost` if somebody else may hold it by now: roll back.
//! guard.fence().check_in(&mut tx).await?;
//! // The effects of a job, its completion, and the next job: all of them, or none.
//! tx.execute("UPDATE account SET welcomed = true", &[]).await?;
//! delivery.ack_in(&mut tx).await?;
//! queue.push_in(&mut tx, &[Job::new("send-welcome", "ada")?]).await?;
//! if limiter.check_all_in(&mut tx, &[PermitRequest::new("mail:123")]).await?.is_allowed() {
//!     tx.execute("INSERT INTO mail (recipient) VALUES (123)", &[]).await?;
//! }
//! // Work that is done in the transaction that takes its job.
//! for job in queue.take_in(&mut tx, 10).await? {
//!     tx.execute("INSERT INTO sent (name) VALUES ($1)", &[&job.name()]).await?;
//! }
//! lock_table_in(&mut tx, "orders", TableMode::Share, Duration::from_secs(5)).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```

mod connector;
mod transaction;
mod versioned;

use std::sync::Arc;
use std::time::Duration;

use lockapi::BackendOptions;
use lockapi::driver::{Connector, HOST_LIMIT, Hosts, Runtime, each_host};
use lockapi::engine::start;
use lockapi::{Backend, Error, ErrorKind, Result};
use lockapi_postgres_types::{parse_config, with_limits};
use tokio_postgres::Config;

pub use connector::{Borrowed, Tls};
pub use transaction::TokioPostgres;
pub use versioned::{VersionedUpdate, Work, is_conflict, transact};

/// ```no_run
/// use std::time::Duration;
/// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = client.transaction().await?;
/// lockapi_tokio_postgres::with_lock_timeout_in(&mut tx, Duration::from_secs(1), async |tx| {
///     tx.batch_execute("ALTER TABLE orders ADD note text").await?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })
/// .await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
#[doc(inline)]
pub use lockapi::table::with_lock_timeout_in;
/// ```no_run
/// use lockapi::admin::Priority;
/// # async fn example(mut client: tokio_postgres::Client, backend: std::sync::Arc<dyn lockapi::Backend>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = client.transaction().await?;
/// let priority = Priority::new("add a column to orders");
/// let (_, report) = lockapi_tokio_postgres::with_priority_in(&*backend, &mut tx, priority, async |tx| {
///     tx.batch_execute("ALTER TABLE orders ADD note text").await?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })
/// .await?;
/// tx.commit().await?;
/// println!("{} sessions were in the way", report.signalled.len());
/// # Ok(())
/// # }
/// ```
#[doc(inline)]
pub use lockapi::table::with_priority_in;

use connector::Opening;

const NAME: &str = "tokio-postgres";

/// Connects a backend to a URL, such as `postgres://user@host/database`, or to the primary among several
/// hosts: `postgres://user@one,two:5433/database?target_session_attrs=read-write`.
///
/// # Cancel safety
/// When dropped, the probe ends in the background and its connections are closed.
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed, `Unavailable` when the server cannot be reached or is a
/// standby.
pub async fn connect_url(url: &str, tls: impl Tls) -> Result<Arc<dyn Backend>> {
    connect_url_with(url, tls, BackendOptions::default()).await
}

/// Connects a backend to a URL with options.
///
/// # Errors
/// `Invalid` for bad options; otherwise as for [`connect_url`].
pub async fn connect_url_with(
    url: &str,
    tls: impl Tls,
    options: BackendOptions,
) -> Result<Arc<dyn Backend>> {
    start(NAME, connector_url(url, tls)?, options).await
}

/// The connector of [`connect_url`], for what is built on the [driver](lockapi::driver) itself.
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed; `Unavailable` when there is no runtime, and none can be started.
pub fn connector_url<T: Tls>(url: &str, tls: T) -> Result<impl Connector + use<T>> {
    let urls = each_host(url)?.into_iter();
    let configs: Vec<Config> = urls.map(|url| parse_config(&url)).collect::<Result<_>>()?;
    let limit = (configs.len() > 1).then_some(HOST_LIMIT);
    connector_of(configs, tls, limit)
}

fn connector_of<T: Tls>(
    configs: Vec<Config>,
    tls: T,
    limit: Option<Duration>,
) -> Result<Hosts<Opening<T>>> {
    let runtime = Runtime::current_or_own("lockapi-tokio-postgres")?;
    let host = move |config| Opening {
        config,
        tls: tls.clone(),
        runtime: runtime.clone(),
        limit,
    };
    Hosts::new(configs.into_iter().map(host).collect())
}

/// Connects a backend with a configuration, such as that of the program's pool.
///
/// # Errors
/// `Invalid` for a configuration of several hosts; otherwise as for [`connect_url`].
pub async fn connect_config(config: Config, tls: impl Tls) -> Result<Arc<dyn Backend>> {
    connect_config_with(config, tls, BackendOptions::default()).await
}

/// Connects a backend with a configuration and options.
///
/// # Errors
/// `Invalid` for bad options; otherwise as for [`connect_config`].
pub async fn connect_config_with(
    config: Config,
    tls: impl Tls,
    options: BackendOptions,
) -> Result<Arc<dyn Backend>> {
    start(NAME, connector_config(config, tls)?, options).await
}

/// The connector of [`connect_config`], for what is built on the [driver](lockapi::driver) itself.
///
/// # Errors
/// `Invalid` for a configuration of several hosts; otherwise as for [`connector_url`].
pub fn connector_config<T: Tls>(config: Config, tls: T) -> Result<impl Connector + use<T>> {
    let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
    if hosts > 1 {
        // The driver asks one after the other, and knows nothing of a primary that another has taken over from.
        let message = format!(
            "a configuration of {hosts} hosts; allowed is 1; `connect_url` takes several, as in \
             postgres://one:5432,two:5433/database"
        );
        return Err(Error::new(ErrorKind::Invalid, "connect", message));
    }
    connector_of(vec![with_limits(config)], tls, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_postgres::NoTls;

    #[test]
    fn a_configuration_of_several_hosts_is_refused() {
        let mut config = Config::new();
        config.host("one");
        assert!(connector_config(config.clone(), NoTls).is_ok());
        config.host("two");
        let Err(error) = connector_config(config, NoTls) else {
            panic!("it names two hosts");
        };
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("2 hosts"), "{error}");
    }
}
