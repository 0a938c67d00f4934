//! Patroni, which promotes: its configuration and its REST interface.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Setup;
use crate::Result;

const LOOP_WAIT: u64 = 1;

const ASKING: Duration = Duration::from_secs(2);

/// Where a node's parts are.
pub(super) struct Places<'a> {
    pub(super) name: &'a str,
    pub(super) dir: &'a Path,
    pub(super) bin_dir: &'a Path,
    /// Its server and its interface, as the node itself listens.
    pub(super) server: u16,
    pub(super) rest: u16,
    /// The same for the other nodes, and etcd for this one, through links that can be cut.
    pub(super) server_link: u16,
    pub(super) rest_link: u16,
    pub(super) etcd_link: u16,
}

/// The configuration of a node, in JSON, which is YAML as well.
pub(super) fn configuration(at: &Places<'_>, setup: &Setup) -> String {
    // Patroni wants the key to live for at least `loop_wait + 2 * retry_timeout`.
    let retry_timeout = (setup.key_lives.saturating_sub(LOOP_WAIT) / 2).max(1);
    let here = |port: u16| format!("127.0.0.1:{port}");
    let superuser = json!({ "username": "postgres" });
    json!({
        "scope": "failover",
        "name": at.name,
        "restapi": { "listen": here(at.rest), "connect_address": here(at.rest_link) },
        // As a proxy, or Patroni would ask for the addresses of etcd and go around the link.
        "etcd3": { "hosts": [here(at.etcd_link)], "use_proxies": true },
        "bootstrap": {
            "dcs": {
                "ttl": setup.key_lives,
                "loop_wait": LOOP_WAIT,
                "retry_timeout": retry_timeout,
                // A standby that lacks commits is promoted as well, unless commits wait for it.
                "maximum_lag_on_failover": 1 << 30,
                // A primary that has crashed is replaced, not recovered.
                "primary_start_timeout": 0,
                "synchronous_mode": setup.synchronous,
                "postgresql": {
                    "use_pg_rewind": true,
                    "use_slots": true,
                    "parameters": {
                        "max_connections": 300,
                        "max_locks_per_transaction": 512,
                        "shared_buffers": "128MB",
                        // In the data directory, because servers that are killed leave it behind.
                        "dynamic_shared_memory_type": "mmap",
                        "wal_log_hints": "on",
                        "wal_sender_timeout": "3s",
                        "wal_receiver_timeout": "3s",
                        "wal_retrieve_retry_interval": "500ms",
                        "log_min_messages": "warning",
                    },
                },
            },
            "initdb": [
                { "encoding": "UTF8" }, { "locale": "C" }, { "auth": "trust" }, "data-checksums",
            ],
            "pg_hba": [
                "local all all trust",
                "host all all 127.0.0.1/32 trust",
                "host replication all 127.0.0.1/32 trust",
            ],
        },
        "watchdog": { "mode": "off" },
        "postgresql": {
            "listen": here(at.server),
            "connect_address": here(at.server_link),
            "data_dir": at.dir.join("data"),
            "bin_dir": at.bin_dir,
            "pgpass": at.dir.join("pgpass"),
            "basebackup": [{ "checkpoint": "fast" }],
            "use_unix_socket": true,
            "use_unix_socket_repl": true,
            "remove_data_directory_on_rewind_failure": true,
            "remove_data_directory_on_diverged_timelines": true,
            "authentication": {
                "superuser": superuser, "replication": superuser, "rewind": superuser,
            },
            "parameters": { "unix_socket_directories": at.dir },
        },
    })
    .to_string()
}

/// A node as Patroni lists it.
#[derive(Debug, Deserialize)]
pub(crate) struct Member {
    pub(crate) role: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) timeline: Option<u32>,
    /// In bytes, or `"unknown"`.
    #[serde(default)]
    pub(crate) lag: Value,
}

impl Member {
    pub(crate) fn leads(&self) -> bool {
        self.role == "leader"
    }
}

/// Whether the node with this interface believes to be the primary.
pub(super) async fn is_primary(rest: u16) -> bool {
    matches!(ask(rest, "GET /primary", "").await, Ok((200, _)))
}

/// The cluster, as one of the nodes sees it.
pub(super) async fn members(rest: u16) -> Result<Vec<Member>> {
    #[derive(Deserialize)]
    struct Cluster {
        members: Vec<Member>,
    }
    match ask(rest, "GET /cluster", "").await? {
        (200, body) => Ok(serde_json::from_str::<Cluster>(&body)?.members),
        (status, body) => Err(format!("Patroni answers {status}: {body}").into()),
    }
}

/// Asks for a planned change of the primary.
pub(super) async fn switch_over(rest: u16, from: &str) -> Result<()> {
    let body = json!({ "leader": from }).to_string();
    // It answers when it is done.
    let answer = timeout(
        Duration::from_secs(30),
        send(rest, "POST /switchover", &body),
    )
    .await??;
    match answer {
        (200..=202, _) => Ok(()),
        (status, body) => Err(format!("the switch-over is refused, {status}: {body}").into()),
    }
}

async fn ask(rest: u16, what: &str, body: &str) -> Result<(u16, String)> {
    timeout(ASKING, send(rest, what, body)).await?
}

async fn send(rest: u16, what: &str, body: &str) -> Result<(u16, String)> {
    let mut socket = TcpStream::connect(("127.0.0.1", rest)).await?;
    let request = format!(
        "{what} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("half an answer")?;
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok((status, body.to_owned()))
}
