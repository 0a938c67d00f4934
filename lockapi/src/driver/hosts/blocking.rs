//! Several hosts over a driver that blocks.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Answers, HOST_LIMIT, Host, HostConnection, Hosts};
use crate::blocking::block_on;
use crate::driver::{
    BlockingConnection, BlockingConnector, BlockingListener, Inline, Mode, Rows, Script, Statement,
    Value,
};
use crate::error::Failure;

/// A host that has not answered for so long is tried after the others: an attempt keeps a thread.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// What hangs may do so for ever. After a pause, which doubles with each attempt that hangs, the host is tried all
/// the same.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

type Answer<N> = Result<Option<HostConnection<N>>, Failure>;

impl<C: BlockingConnector> BlockingConnector for Hosts<C> {
    type Connection = HostConnection<C::Connection>;

    fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        // One host needs no choice, and is asked by the engine.
        if let [host] = &self.each[..] {
            return Ok(host.connection(host.connector.connect(mode)?));
        }
        let began = Instant::now();
        let mut answers = Answers::default();
        // Without room: what nobody takes any more is dropped on the thread of its attempt.
        let (sender, receiver) = sync_channel(0);
        let (mut slow, quick): (Vec<_>, Vec<_>) =
            self.each.iter().partition(|host| host.is_slow(began));
        let mut under_way = 0;
        let mut next = quick;
        loop {
            for host in next.drain(..) {
                match try_host(host, mode, &sender) {
                    Ok(()) => under_way += 1,
                    Err(failure) => drop(answers.add(Err(failure))),
                }
            }
            let limit = if slow.is_empty() { HOST_LIMIT } else { SLOW };
            let left = limit.saturating_sub(began.elapsed());
            let answer = if under_way == 0 {
                None
            } else {
                receiver.recv_timeout(left).ok()
            };
            if let Some(answer) = answer {
                under_way -= 1;
                if let Some(primary) = answers.add(answer) {
                    return Ok(primary);
                }
            } else if slow.is_empty() {
                return answers.end(self.each.len());
            } else {
                // None of the others is the primary, or they are as slow.
                next = std::mem::take(&mut slow);
            }
        }
    }
}

/// Tries a host on a thread of its own.
fn try_host<C: BlockingConnector>(
    host: &Arc<Host<C>>,
    mode: Mode,
    sender: &SyncSender<Answer<C::Connection>>,
) -> Result<(), Failure> {
    let Some(attempt) = Attempt::begin(host) else {
        let failure = "a host has not answered an earlier attempt to connect";
        return Err(Failure::connect(None, failure));
    };
    let sender = sender.clone();
    let run = move || {
        let answer = attempt.run(mode);
        drop(attempt);
        // The others have been faster.
        let _late = sender.send(answer);
    };
    let thread = thread::Builder::new().name("lockapi-connect".to_owned());
    let spawned = thread.spawn(run);
    spawned
        .map(drop)
        .map_err(|error| Failure::connect(None, error))
}

/// An attempt to connect to a host, until its driver has returned.
struct Attempt<C> {
    host: Arc<Host<C>>,
    began: Instant,
}

impl<C: BlockingConnector> Attempt<C> {
    /// `None` while others hang.
    fn begin(host: &Arc<Host<C>>) -> Option<Self> {
        let mut attempts = host.attempts();
        let began = Instant::now();
        let hanging = attempts.iter().filter(|it| began - **it > HOST_LIMIT);
        let pause = hanging.fold(Duration::ZERO, |pause, _| {
            (pause * 2).clamp(HOST_LIMIT, LONGEST_PAUSE)
        });
        if attempts.last().is_some_and(|last| began - *last < pause) {
            return None;
        }
        attempts.push(began);
        drop(attempts);
        let host = Arc::clone(host);
        Some(Self { host, began })
    }

    fn run(&self, mode: Mode) -> Answer<C::Connection> {
        let connected = self.host.connector.connect(mode);
        let answer = connected.and_then(|connection| {
            let primary = block_on(self.host.if_primary(Inline(connection)))?;
            Ok(primary.map(|Inline(connection)| self.host.connection(connection)))
        });
        // It answers: what began earlier hangs for a reason of its own.
        self.host.attempts().retain(|began| *began >= self.began);
        answer
    }
}

impl<C> Drop for Attempt<C> {
    fn drop(&mut self) {
        let mut attempts = self.host.attempts();
        if let Some(at) = attempts.iter().position(|began| *began == self.began) {
            attempts.remove(at);
        }
    }
}

impl<C> Host<C> {
    /// Whether an attempt has waited for long.
    fn is_slow(&self, now: Instant) -> bool {
        let attempts = self.attempts();
        let first = attempts.first();
        first.is_some_and(|first| now.saturating_duration_since(*first) > SLOW)
    }

    /// In the order in which they began.
    fn attempts(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<N: BlockingConnection> BlockingConnection for HostConnection<N> {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        self.connection.run(statement, params)
    }

    fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.connection.script(script)
    }

    fn superseded(&self) {
        self.note_superseded();
    }
}

impl<N: BlockingListener> BlockingListener for HostConnection<N> {
    fn next(&mut self, at_most: Duration) -> Result<Option<String>, Failure> {
        self.connection.next(at_most)
    }
}
