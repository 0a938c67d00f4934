//! The server to use.

use lockapi_conformance::cluster::{Cluster, ClusterError};

use crate::Result;
use crate::library::{CONNECTIONS_OF_WORKER, URL};
use crate::view::Screen;

/// A server of this program, or one that is there.
pub(super) enum Server {
    Private(Box<Cluster>),
    Given(&'static Cluster),
}

impl Server {
    pub(super) fn get(workers: usize, screen: &Screen) -> Result<Self> {
        if std::env::var_os(URL).is_some_and(|url| !url.is_empty()) {
            return Ok(Self::Given(Cluster::shared()?));
        }
        screen.line("Starting a private PostgreSQL server ...")?;
        let connections = (workers * CONNECTIONS_OF_WORKER + 40).to_string();
        match Cluster::private(&[("max_connections", &connections)]) {
            Ok(cluster) => Ok(Self::Private(Box::new(cluster))),
            Err(ClusterError::NoServer) => Err(
                "no PostgreSQL server (version 13 or newer) is installed. `make demo` installs one \
                 on Debian and Ubuntu; LOCKAPI_PG_BIN names the directory of its programs, \
                 DATABASE_URL a running server; `--backend memory` does without"
                    .into(),
            ),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn url(&self) -> &str {
        match self {
            Self::Private(cluster) => cluster.url(),
            Self::Given(cluster) => cluster.url(),
        }
    }
}
