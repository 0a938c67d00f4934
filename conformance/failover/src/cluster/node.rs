//! A node: a server, the Patroni beside it, and its links to the others.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::Child;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

use super::Setup;
use super::etcd::Etcd;
use super::host::{Host, free_ports, signal_all};
use super::link::Link;
use super::patroni::{self, Places};
use crate::Result;

const ASKING: Duration = Duration::from_secs(2);

/// The server on a port.
pub(crate) struct Session(u16);

impl Session {
    pub(crate) async fn open(&self) -> Result<Client> {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", self.0);
        let (client, connection) = timeout(ASKING, tokio_postgres::connect(&url, NoTls)).await??;
        // Its end is seen by the client.
        tokio::spawn(connection);
        Ok(client)
    }
}

pub(crate) struct Node {
    pub(crate) name: String,
    dir: PathBuf,
    port: u16,
    rest: u16,
    /// What the others have of its server.
    pub(crate) replication: Link,
    rest_link: Link,
    etcd: Link,
    patroni: Option<Child>,
}

impl Node {
    pub(super) async fn create(
        host: &Host,
        name: &str,
        etcd: &Etcd,
        setup: &Setup,
    ) -> Result<Self> {
        let [port, rest] = free_ports()?;
        let node = Self {
            name: name.to_owned(),
            dir: host.directory(name)?,
            port,
            rest,
            replication: Link::to(port).await?,
            rest_link: Link::to(rest).await?,
            etcd: Link::to(etcd.port()).await?,
            patroni: None,
        };
        let places = Places {
            name,
            dir: &node.dir,
            bin_dir: &host.bin_dir,
            server: port,
            rest,
            server_link: node.replication.port(),
            rest_link: node.rest_link.port(),
            etcd_link: node.etcd.port(),
        };
        let configuration = patroni::configuration(&places, setup);
        host.write(&node.dir.join("patroni.yml"), &configuration)?;
        Ok(node)
    }

    /// Starts Patroni, which starts the server.
    pub(super) fn start(&mut self, host: &Host) -> Result<()> {
        let mut patroni = host.command("patroni", &self.dir)?;
        self.patroni = Some(patroni.arg("patroni.yml").spawn()?);
        Ok(())
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn rest(&self) -> u16 {
        self.rest
    }

    /// Everything on it ends at once.
    pub(super) async fn crash(&mut self) -> Result<()> {
        signal_all(&self.dir, Signal::KILL)?;
        self.end_patroni().await
    }

    async fn end_patroni(&mut self) -> Result<()> {
        if let Some(mut patroni) = self.patroni.take() {
            patroni.kill().await?;
        }
        Ok(())
    }

    /// The server ends at once; Patroni goes on.
    pub(super) fn kill_server(&self) -> Result<()> {
        signal_all(&self.dir.join("data"), Signal::KILL).map(drop)
    }

    /// Everything on it stands still.
    pub(super) fn stop(&self) -> Result<()> {
        signal_all(&self.dir, Signal::STOP).map(drop)
    }

    /// The server goes on, and Patroni begins anew. Patroni 3.0 that was stopped between reading the
    /// cluster and renewing its key puts the key over that of its successor, and leads again.
    pub(super) async fn go_on(&mut self, host: &Host) -> Result<()> {
        self.end_patroni().await?;
        signal_all(&self.dir, Signal::CONT)?;
        self.start(host)
    }

    /// Neither etcd nor the other nodes hear of it; its clients do.
    pub(super) fn isolate(&self) {
        for link in [&self.replication, &self.rest_link, &self.etcd] {
            link.cut();
        }
    }

    pub(super) fn rejoin(&self) {
        for link in [&self.replication, &self.rest_link, &self.etcd] {
            link.mend();
        }
    }

    /// What opens sessions with its server.
    pub(crate) fn session(&self) -> Session {
        Session(self.port)
    }

    /// The timeline that its server writes, if it is a primary whose commits are answered.
    pub(super) async fn accepts_writes(&self) -> Result<Option<u32>> {
        let client = self.session().open().await?;
        let recovers = "SELECT pg_is_in_recovery()";
        if timeout(ASKING, client.query_one(recovers, &[]))
            .await??
            .try_get(0)?
        {
            return Ok(None);
        }
        // The message makes it a transaction with something to replicate.
        let write = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8), \
             pg_logical_emit_message(true, 'failover', '')::text";
        let row = timeout(ASKING, client.query_one(write, &[])).await??;
        Ok(Some(u32::from_str_radix(row.try_get(0)?, 16)?))
    }
}
