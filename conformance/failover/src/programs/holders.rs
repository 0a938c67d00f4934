//! Holders of mutexes, leases and a leadership, who write to a register under their tokens.

use std::sync::Arc;
use std::time::Duration;

use lockapi::lease::LeaseOptions;
use lockapi::{Backend, Election, ErrorKind, Lease, LeaseGuard, Mutex, MutexGuard};
use tokio::time::sleep;

use super::parent::{Parent, Phase, timed};
use crate::clock;
use crate::record::{Grant, Kind, Record};

const TTL: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
/// How long a holder that has lost goes on writing, as one that did not look.
const UNAWARE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(50);

enum Lock {
    Mutex(Arc<dyn Mutex>),
    Lease(Arc<dyn Lease>),
    Election(Arc<dyn Election>),
}

enum Guard {
    Session(Box<dyn MutexGuard>),
    Lease(Box<dyn LeaseGuard>),
}

pub(super) struct Holder {
    parent: Arc<Parent>,
    kind: Kind,
    key: u32,
    lock: Lock,
}

impl Holder {
    pub(super) fn open(
        backend: &dyn Backend,
        parent: &Arc<Parent>,
        kind: Kind,
        key: u32,
    ) -> lockapi::Result<Self> {
        let options = LeaseOptions::new(TTL);
        let lock = match kind {
            Kind::Mutex => Lock::Mutex(backend.mutex(format!("mutex {key}"))?),
            Kind::Lease => Lock::Lease(backend.lease(format!("lease {key}"), options)?),
            Kind::Leader => Lock::Election(backend.election(format!("leader {key}"), options)?),
        };
        Ok(Self {
            parent: Arc::clone(parent),
            kind,
            key,
            lock,
        })
    }

    /// Acquires again and again.
    pub(super) async fn run(self) {
        while !self.parent.is(Phase::Finishing) {
            let (guard, call) = timed(self.acquire()).await;
            match guard {
                Ok(guard) => {
                    let grant = self.parent.granted(Grant {
                        kind: self.kind,
                        key: self.key,
                        token: guard.token(),
                        call,
                    });
                    self.hold(guard, grant).await;
                    sleep(Duration::from_millis(fastrand::u64(20..400))).await;
                }
                Err(error) => {
                    if error.kind() != ErrorKind::TimedOut {
                        self.parent.failed(&error);
                    }
                    sleep(RETRY).await;
                }
            }
        }
    }

    async fn acquire(&self) -> lockapi::Result<Guard> {
        Ok(match &self.lock {
            Lock::Mutex(mutex) => Guard::Session(mutex.lock_timeout(WAIT).await?),
            Lock::Lease(lease) => Guard::Lease(lease.acquire_timeout(WAIT).await?),
            Lock::Election(election) => Guard::Lease(election.campaign_timeout(WAIT).await?),
        })
    }

    async fn hold(&self, guard: Guard, grant: u64) {
        let most = match self.kind {
            Kind::Mutex => 200,
            Kind::Lease | Kind::Leader => 1500,
        };
        let until = clock::now() + fastrand::u64(20..most) * 1000;
        let mut held_until = guard.held_until();
        while clock::now() < until && !guard.is_lost() {
            self.parent.write(grant).await;
            sleep(LOOK * 2).await;
            held_until = held_until.max(guard.held_until());
        }
        // Where it was lost between two looks, and this process had to wait for its turn, the end was
        // earlier: when it had to end as of the last look.
        let lost = guard.is_lost();
        let now = clock::now();
        let at = if lost { now.min(held_until) } else { now };
        self.parent.tell(&Record::Ended { grant, at });
        if lost {
            let until = clock::now() + u64::try_from(UNAWARE.as_micros()).unwrap_or(0);
            while clock::now() < until {
                self.parent.write(grant).await;
                sleep(LOOK * 5).await;
            }
        } else if let Err(error) = guard.release().await {
            self.parent.failed(&error);
        }
    }
}

impl Guard {
    fn token(&self) -> i64 {
        match self {
            Self::Session(guard) => guard.fence().token(),
            Self::Lease(guard) => guard.fence().token(),
        }
    }

    fn is_lost(&self) -> bool {
        match self {
            Self::Session(guard) => guard.is_lost(),
            Self::Lease(guard) => guard.is_lost(),
        }
    }

    /// Until when it was surely held, as far as is known now.
    fn held_until(&self) -> u64 {
        let now = clock::now();
        match self {
            // It ends with its session, whenever that is.
            Self::Session(guard) if guard.is_lost() => 0,
            Self::Session(_) => now,
            Self::Lease(guard) => match guard.remaining() {
                Duration::ZERO => 0,
                left => now + u64::try_from(left.as_micros()).unwrap_or(0),
            },
        }
    }

    async fn release(self) -> lockapi::Result<()> {
        match self {
            Self::Session(guard) => guard.unlock().await,
            Self::Lease(guard) => guard.release().await,
        }
    }
}
