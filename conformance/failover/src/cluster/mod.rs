//! Three PostgreSQL servers under Patroni, with etcd, on this machine.

mod etcd;
mod gate;
mod host;
mod link;
mod node;
mod patroni;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use crate::Result;
use crate::clock;
use etcd::Etcd;
use host::Host;
pub(crate) use node::{Node, Session};
use patroni::Member;

const NAMES: [&str; 3] = ["n1", "n2", "n3"];
/// How long the cluster may take to be whole.
const WHOLE: Duration = Duration::from_mins(5);
/// How far a standby may be behind when the next promotion begins, in bytes.
const LAG: i64 = 1 << 20;

pub(crate) struct Cluster {
    nodes: Vec<Node>,
    /// `None`: programs choose among the servers themselves.
    gate: Option<u16>,
    synchronous: bool,
    _etcd: Etcd,
    host: Host,
}

/// How a cluster is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Commits wait for a standby.
    pub(crate) synchronous: bool,
    /// Programs reach the primary through a proxy.
    pub(crate) proxy: bool,
    /// How long the leader's key lives in etcd, in seconds: a primary that cannot renew it is replaced
    /// after that.
    pub(crate) key_lives: u64,
}

/// A primary that answers writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Primary {
    /// The number of the node.
    pub(crate) node: usize,
    pub(crate) timeline: u32,
    /// Since when, at the latest.
    pub(crate) since: u64,
}

impl Cluster {
    pub(crate) async fn start(setup: &Setup) -> Result<Self> {
        let host = Host::new()?;
        let etcd = Etcd::start(&host)?;
        let mut nodes = Vec::new();
        for name in NAMES {
            nodes.push(Node::create(&host, name, &etcd, setup).await?);
        }
        let gate = if setup.proxy {
            let nodes = nodes.iter().map(|node: &Node| (node.port(), node.rest()));
            Some(gate::open(nodes.collect()).await?)
        } else {
            None
        };
        let mut cluster = Self {
            nodes,
            gate,
            synchronous: setup.synchronous,
            _etcd: etcd,
            host,
        };
        for node in &mut cluster.nodes {
            node.start(&cluster.host)?;
        }
        Ok(cluster)
    }

    /// How the programs find the primary: by themselves among the three, or through the gate.
    pub(crate) fn url(&self) -> String {
        let ports = match self.gate {
            Some(gate) => vec![gate],
            None => self.nodes.iter().map(Node::port).collect(),
        };
        let hosts: Vec<_> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let hosts = hosts.join(",");
        format!("postgres://postgres@{hosts}/postgres?target_session_attrs=read-write")
    }

    pub(crate) fn sessions(&self) -> Vec<Session> {
        self.nodes.iter().map(Node::session).collect()
    }

    pub(crate) fn node(&self, number: usize) -> &Node {
        &self.nodes[number]
    }

    /// Waits until there is a primary and two standbys that have caught up.
    pub(crate) async fn whole(&self) -> Result<Primary> {
        let begun = Instant::now();
        let mut seen = Vec::new();
        while begun.elapsed() < WHOLE {
            seen.clear();
            for node in &self.nodes {
                let sees = match patroni::members(node.rest()).await {
                    Ok(members) if is_whole(&members, self.synchronous) => {
                        return self.promoted(0, WHOLE).await;
                    }
                    Ok(members) => format!("{members:?}"),
                    Err(error) => error.to_string(),
                };
                seen.push(format!("{} sees {sees}", node.name));
            }
            sleep(Duration::from_millis(500)).await;
        }
        let seen = seen.join("\n");
        Err(format!("the cluster is not whole after {WHOLE:?}:\n{seen}").into())
    }

    /// Waits for a primary on a later timeline than this one.
    pub(crate) async fn promoted(&self, before: u32, at_most: Duration) -> Result<Primary> {
        // Each is asked by itself: one that stands still does not answer.
        let asked = (0..self.nodes.len()).map(|node| Box::pin(self.accepts(node, before)));
        match timeout(at_most, select_all(asked)).await {
            Ok((primary, ..)) => Ok(primary),
            Err(_) => Err(format!("no server is promoted within {at_most:?}").into()),
        }
    }

    async fn accepts(&self, node: usize, before: u32) -> Primary {
        loop {
            let timeline = self.nodes[node].accepts_writes().await.ok().flatten();
            let since = clock::now();
            if let Some(timeline) = timeline.filter(|timeline| *timeline > before) {
                return Primary {
                    node,
                    timeline,
                    since,
                };
            }
            sleep(Duration::from_millis(30)).await;
        }
    }

    pub(crate) async fn switch_over(&self, from: usize) -> Result<()> {
        let from = &self.nodes[from];
        patroni::switch_over(from.rest(), &from.name).await
    }

    /// Ends the sessions of all clients.
    pub(crate) async fn end_sessions(&self, primary: Primary) -> Result<()> {
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND application_name LIKE '%lockapi'";
        self.session(primary).await?.query_one(end, &[]).await?;
        Ok(())
    }

    /// A session with the primary.
    pub(crate) async fn session(&self, primary: Primary) -> Result<Client> {
        self.nodes[primary.node].session().open().await
    }

    pub(crate) async fn crash(&mut self, number: usize) -> Result<()> {
        self.nodes[number].crash().await
    }

    pub(crate) fn restart(&mut self, number: usize) -> Result<()> {
        self.nodes[number].start(&self.host)
    }

    pub(crate) fn kill_server(&self, number: usize) -> Result<()> {
        self.nodes[number].kill_server()
    }

    pub(crate) fn stop(&self, number: usize) -> Result<()> {
        self.nodes[number].stop()
    }

    pub(crate) async fn go_on(&mut self, number: usize) -> Result<()> {
        self.nodes[number].go_on(&self.host).await
    }

    pub(crate) fn isolate(&self, number: usize) {
        self.nodes[number].isolate();
    }

    pub(crate) fn rejoin(&self, number: usize) {
        self.nodes[number].rejoin();
    }

    /// A file for what the processes have to say to nobody.
    pub(crate) fn messages(&self) -> PathBuf {
        self.host.path().join("processes")
    }

    /// Copies what the servers and the programs beside them logged, as far as there are logs yet.
    pub(crate) fn keep_logs(&self, to: &Path) -> Result<()> {
        fs::create_dir_all(to)?;
        let mut logs: Vec<_> = self.nodes.iter().map(|it| (it.log(), &*it.name)).collect();
        logs.push((self.messages(), "processes"));
        for (log, name) in logs {
            match fs::copy(&log, to.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                copied => drop(copied.map_err(|error| format!("{}: {error}", log.display()))?),
            }
        }
        Ok(())
    }

    /// Ends and removes everything.
    pub(crate) async fn remove(mut self) -> Result<()> {
        self.host.remove().await
    }
}

fn is_whole(members: &[Member], synchronous: bool) -> bool {
    let leader = members.iter().find(|member| member.leads());
    let timeline = leader.and_then(|leader| leader.timeline);
    let follows = |member: &&Member| {
        let runs = ["running", "streaming"].contains(&member.state.as_str());
        let near = member.lag.as_i64().is_some_and(|lag| lag < LAG);
        !member.leads() && runs && near && member.timeline == timeline
    };
    let waited_for = members.iter().any(|member| member.role == "sync_standby");
    leader.is_some_and(|leader| leader.state == "running")
        && members.iter().filter(follows).count() == NAMES.len() - 1
        && (waited_for || !synchronous)
}
