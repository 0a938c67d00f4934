//! The store in which the servers agree who is the primary.

use tokio::process::Child;

use super::host::{Host, free_ports};
use crate::Result;

pub(crate) struct Etcd {
    port: u16,
    /// It ends with this value.
    _process: Child,
}

impl Etcd {
    pub(super) fn start(host: &Host) -> Result<Self> {
        let dir = host.directory("etcd")?;
        let [port, peers] = free_ports()?;
        let (clients, peers) = (url(port), url(peers));
        let process = host
            .command("etcd", &dir)?
            .args(["--name", "etcd", "--data-dir", "data"])
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("etcd={peers}")])
            .spawn()?;
        Ok(Self {
            port,
            _process: process,
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}
