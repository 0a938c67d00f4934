//! What a backend is connected with.

use std::str::FromStr;
use std::sync::Arc;

use lockapi::BackendOptions;
use lockapi::driver::{Connector, HOST_LIMIT, Hosts, Runtime, each_host, not_understood};
use lockapi::{Backend, Result};
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use super::connector::SqlxConnector;
use super::sqlx;

const NAME: &str = "sqlx";

/// Connects a backend with the options of the program's pool.
///
/// # Cancel safety
/// When dropped, the probe ends in the background and its connections are closed.
///
/// # Errors
/// `Unavailable` when the server cannot be reached or is a standby.
pub async fn connect(pool: &PgPool) -> Result<Arc<dyn Backend>> {
    connect_with(pool, BackendOptions::default()).await
}

/// Connects a backend with the options of the program's pool and with options of its own.
///
/// # Errors
/// `Invalid` for bad options; otherwise as for [`connect`].
pub async fn connect_with(pool: &PgPool, options: BackendOptions) -> Result<Arc<dyn Backend>> {
    lockapi::engine::start(NAME, connector(pool)?, options).await
}

/// The connector of [`connect`], for what is built on the [driver](lockapi::driver) itself.
///
/// # Errors
/// `Unavailable` when there is no runtime, and none can be started.
pub fn connector(pool: &PgPool) -> Result<impl Connector + use<>> {
    let connect = pool.connect_options().as_ref().clone();
    let pool = Some(pool.options().clone());
    Ok(SqlxConnector::new(current_or_own()?, pool, connect, None))
}

/// Connects a backend to a URL, such as `postgres://user@host/database`, or to the primary among several
/// hosts: `postgres://user@one,two:5433/database?target_session_attrs=read-write`.
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed; otherwise as for [`connect`].
pub async fn connect_url(url: &str) -> Result<Arc<dyn Backend>> {
    connect_url_with(url, BackendOptions::default()).await
}

/// Connects a backend to a URL with options.
///
/// # Errors
/// `Invalid` for bad options or a URL that cannot be parsed; otherwise as for [`connect`].
pub async fn connect_url_with(url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
    lockapi::engine::start(NAME, connector_url(url)?, options).await
}

/// The connector of [`connect_url`], for what is built on the [driver](lockapi::driver) itself.
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed; otherwise as for [`connector`].
pub fn connector_url(url: &str) -> Result<impl Connector + use<>> {
    let urls = each_host(url)?;
    let limit = (urls.len() > 1).then_some(HOST_LIMIT);
    let runtime = current_or_own()?;
    let hosts = urls.iter().map(|url| {
        // The parser's error may quote the URL, which may hold a password.
        let connect = PgConnectOptions::from_str(url).map_err(|_| not_understood())?;
        Ok(SqlxConnector::new(runtime.clone(), None, connect, limit))
    });
    Hosts::new(hosts.collect::<Result<_>>()?)
}

/// The runtime of a connector.
fn current_or_own() -> Result<Runtime> {
    Runtime::current_or_own("lockapi-sqlx")
}
