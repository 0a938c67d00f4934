//! What makes a promotion necessary.

use std::time::Duration;

use tokio::time::sleep;

use crate::Result;
use crate::cluster::{Cluster, Primary};

/// How long standbys hear nothing of what is committed, where replication is cut.
const UNREPLICATED: Duration = Duration::from_millis(1500);
/// How long a primary that was replaced stays away.
const AWAY: Duration = Duration::from_secs(2);
/// The longest that a promotion may take.
const PROMOTION: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    SwitchOver,
    Kill,
    Crash,
    Stop,
    Partition,
    Cut,
}

impl Fault {
    pub(crate) const ALL: [Self; 6] = [
        Self::SwitchOver,
        Self::Kill,
        Self::Crash,
        Self::Stop,
        Self::Partition,
        Self::Cut,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SwitchOver => "switch-over",
            Self::Kill => "kill",
            Self::Crash => "crash",
            Self::Stop => "stop",
            Self::Partition => "partition",
            Self::Cut => "cut",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// What happens, for those who watch.
    pub(crate) fn story(self, primary: &str) -> String {
        match self {
            Self::SwitchOver => format!("{primary} hands over as planned"),
            Self::Kill => format!("the server of {primary} is killed, its Patroni is not"),
            Self::Crash => format!("{primary} is killed, with its Patroni"),
            Self::Stop => format!("{primary} stands still, for longer than its key in etcd lives"),
            Self::Partition => {
                format!("{primary} is cut off from etcd and the standbys, not from its clients")
            }
            Self::Cut => {
                format!(
                    "{primary} does not reach its standbys, loses its clients, and is killed a moment later"
                )
            }
        }
    }

    /// Makes it happen, waits for the next primary, and brings the old one back.
    pub(crate) async fn inflict(self, cluster: &mut Cluster, primary: Primary) -> Result<Primary> {
        let old = primary.node;
        match self {
            Self::SwitchOver => {
                let cluster = &*cluster;
                let promoted = cluster.promoted(primary.timeline, PROMOTION);
                tokio::pin!(promoted);
                // Patroni answers when it has seen the new primary, which may be later.
                tokio::select! {
                    biased;
                    promoted = &mut promoted => promoted,
                    switched = cluster.switch_over(old) => {
                        switched?;
                        promoted.await
                    }
                }
            }
            Self::Kill => {
                cluster.kill_server(old)?;
                cluster.promoted(primary.timeline, PROMOTION).await
            }
            Self::Crash => {
                cluster.crash(old).await?;
                let promoted = cluster.promoted(primary.timeline, PROMOTION).await?;
                sleep(AWAY).await;
                cluster.restart(old)?;
                Ok(promoted)
            }
            Self::Stop => {
                cluster.stop(old)?;
                let promoted = cluster.promoted(primary.timeline, PROMOTION).await?;
                sleep(AWAY).await;
                cluster.go_on(old).await?;
                Ok(promoted)
            }
            Self::Partition => {
                cluster.isolate(old);
                let promoted = cluster.promoted(primary.timeline, PROMOTION).await?;
                sleep(AWAY).await;
                cluster.rejoin(old);
                Ok(promoted)
            }
            Self::Cut => {
                cluster.node(old).replication.cut();
                sleep(UNREPLICATED / 3).await;
                // What new sessions take from sequences is lost as well.
                cluster.end_sessions(primary).await?;
                sleep(UNREPLICATED * 2 / 3).await;
                cluster.crash(old).await?;
                let promoted = cluster.promoted(primary.timeline, PROMOTION).await?;
                cluster.node(old).replication.mend();
                sleep(AWAY).await;
                cluster.restart(old)?;
                Ok(promoted)
            }
        }
    }
}
