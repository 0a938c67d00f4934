//! Several hosts over a driver that blocks.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{Answers, HOST_LIMIT, Host, HostConnection, Hosts};
use crate::blocking::block_on;
use crate::driver::threaded::Attempt;
use crate::driver::{
    BlockingConnection, BlockingConnector, BlockingListener, Inline, Mode, Rows, Script, Statement,
    Value,
};
use crate::error::Failure;

/// A host that has not answered for so long is tried after the others: an attempt keeps a thread.
pub(super) const SLOW: Duration = Duration::from_secs(1);

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
    let begun = host.attempts.begin(Instant::now(), 1, Duration::ZERO);
    let attempt = begun.map_err(|_| {
        let failure = "a host has not answered an earlier attempt to connect";
        Failure::connect(None, failure)
    })?;
    let (host, sender) = (Arc::clone(host), sender.clone());
    let run = move || {
        let answer = host.attempt(&attempt, mode);
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

impl<C: BlockingConnector> Host<C> {
    fn attempt(&self, attempt: &Attempt, mode: Mode) -> Answer<C::Connection> {
        let connected = self.connector.connect(mode);
        let answer = connected.and_then(|connection| {
            let primary = block_on(self.if_primary(Inline(connection), mode))?;
            Ok(primary.map(|Inline(connection)| self.connection(connection)))
        });
        attempt.answered();
        answer
    }
}

impl<C> Host<C> {
    /// Whether an attempt has waited for long.
    fn is_slow(&self, now: Instant) -> bool {
        self.attempts.age(now).is_some_and(|age| age > SLOW)
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
