//! The process that started this one, as seen from here.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};

use crate::clock;
use crate::record::{Call, Grant, Order, Outcome, Record};

/// What is to be done at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Working,
    Hurrying,
    Finishing,
}

pub(super) struct Parent {
    grants: AtomicU64,
    writes: Mutex<HashMap<u64, oneshot::Sender<bool>>>,
    pub(super) phase: watch::Sender<Phase>,
}

impl Parent {
    /// Listens; the process ends when the parent does.
    pub(super) fn listen() -> Arc<Self> {
        let parent = Arc::new(Self {
            grants: AtomicU64::new(0),
            writes: Mutex::default(),
            phase: watch::Sender::new(Phase::Working),
        });
        let listening = Arc::clone(&parent);
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(order) => listening.obey(order),
                    Err(error) => eprintln!("not an order: {error}: {line}"),
                }
            }
            std::process::exit(0);
        });
        parent
    }

    fn obey(&self, order: Order) {
        match order {
            Order::Written { grant, accepted } => {
                if let Some(asked) = self.writes().remove(&grant) {
                    // Whoever asked may have left.
                    let _left = asked.send(accepted);
                }
            }
            Order::Hurry => drop(self.phase.send_replace(Phase::Hurrying)),
            Order::Finish => drop(self.phase.send_replace(Phase::Finishing)),
        }
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<bool>>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[expect(clippy::unused_self, reason = "one talks to somebody")]
    pub(super) fn tell(&self, record: &Record) {
        let line = serde_json::to_string(record).unwrap_or_default();
        let mut output = std::io::stdout().lock();
        if writeln!(output, "{line}")
            .and_then(|()| output.flush())
            .is_err()
        {
            // Nobody listens any more.
            std::process::exit(0);
        }
    }

    pub(super) fn granted(&self, granted: Grant) -> u64 {
        let grant = self.grants.fetch_add(1, Ordering::Relaxed);
        self.tell(&Record::Granted { grant, granted });
        grant
    }

    /// Writes to the register of the grant's key; `false` when it was refused.
    pub(super) async fn write(&self, grant: u64) -> bool {
        let (asked, answer) = oneshot::channel();
        self.writes().insert(grant, asked);
        self.tell(&Record::Write { grant });
        answer.await.unwrap_or(false)
    }

    /// Counts a call that failed.
    pub(super) fn failed(&self, error: &lockapi::Error) -> Outcome {
        self.tell(&Record::Failed {
            operation: error.operation().to_owned(),
            error: format!("{:?}", error.kind()),
        });
        match error.kind() {
            lockapi::ErrorKind::Indeterminate => Outcome::Unknown,
            _ => Outcome::Refused,
        }
    }

    pub(super) fn is(&self, phase: Phase) -> bool {
        *self.phase.borrow() >= phase
    }
}

/// Measures a call.
pub(super) async fn timed<T>(work: impl Future<Output = T>) -> (T, Call) {
    let from = clock::now();
    let answer = work.await;
    (
        answer,
        Call {
            from,
            to: clock::now(),
        },
    )
}
