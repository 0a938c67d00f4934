//! The connection of one session, and the statements that it runs.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Locks;
use super::table::{Batch, Command, Next, Reply, Slice, WaitOutcome};
use crate::engine::connection::{Connections, OpenConnection, Watch};
use crate::engine::reconnect::Reconnect;
use crate::error::Failure;
use crate::fence::HAND_OVER_BITS;
use crate::key::LockId;
use crate::mutex::{
    AsyncCommit, DeadlockCheck, FlushTokens, HasWaiters, Interrupt, LockAnswer, LockRequest,
    MarkSession, MarkedSession, Ping, TOKENS_AT_RISK, Wait, is_taken,
};
use crate::random;
use crate::wait::{unless, yield_now};

/// How long a session that waited is kept without work.
const IDLE: Duration = Duration::from_secs(10);

/// A session that holds locks is lost to whoever has heard nothing from the server for so long: sooner than the server, which ends one
/// after some 12 s without a client.
const ANSWER: Duration = Duration::from_secs(9);

/// How long the disk may take: much longer than a server that lives is silent otherwise. Holders whose server has
/// vanished meanwhile learn of it afterwards.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(20);

/// The worker of a session: of the main one, which never waits, or of one that waits.
pub(crate) fn run(
    locks: Arc<Locks>,
    connections: Arc<Connections>,
    session: usize,
) -> impl Future<Output = ()> + Send {
    let mut guard = ExitGuard {
        locks: Some(Arc::clone(&locks)),
        session,
        began: false,
    };
    async move {
        guard.began = true;
        let worker = Worker::new(locks, connections, session);
        if session == 0 {
            worker.hold().await;
        } else {
            worker.wait().await;
        }
        guard.finished();
    }
}

/// Notifies the table if a worker ends before it has finished, or before it has begun.
struct ExitGuard {
    locks: Option<Arc<Locks>>,
    session: usize,
    began: bool,
}

impl ExitGuard {
    /// The table knows already: it decided that the worker ends.
    fn finished(mut self) {
        self.locks = None;
    }
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        if let Some(locks) = self.locks.take() {
            let failure = Failure::connect(None, crate::engine::batcher::ended("lock"));
            locks.worker_ended(self.session, self.began, &failure);
        }
    }
}

/// The connection is opened when it is needed.
struct Worker {
    locks: Arc<Locks>,
    connections: Arc<Connections>,
    watch: Arc<Watch>,
    session: usize,
    connection: Option<OpenConnection>,
    /// Pauses after a connection that could not be opened, or whose session failed.
    reconnect: Reconnect,
    /// The mark of its session.
    mark: i64,
    /// A value of the token sequence that is known to be safe on disk.
    safe: i64,
    /// Answers of the server that have not been delivered to the callers.
    answered: Option<Vec<Reply>>,
}

impl Worker {
    fn new(locks: Arc<Locks>, connections: Arc<Connections>, session: usize) -> Self {
        Self {
            watch: connections.watch_of(ANSWER.min(connections.timeout)),
            locks,
            connections,
            session,
            connection: None,
            reconnect: Reconnect::default(),
            mark: 0,
            safe: 0,
            answered: None,
        }
    }

    /// Holds every lock that was free when it was tried.
    async fn hold(mut self) {
        loop {
            let undelivered = self.undelivered();
            let waiting = self.locks.requests(self.session);
            if undelivered > 0 && (waiting == 0 || undelivered + waiting <= Batch::WHOLE) {
                self.deliver();
                if undelivered + waiting > 1 {
                    // Callers that were just answered may send their next request, in the same statement.
                    yield_now().await;
                }
            }
            let next = self.locks.next(self.session, Batch::HalfWith(undelivered));
            if !matches!(next, Next::Run(_)) {
                // No statement follows during which they could be delivered.
                self.deliver();
            }
            match next {
                Next::Run(commands) => self.run(commands).await,
                Next::Ping => self.ping().await,
                Next::Wait(_) | Next::Idle => self.locks.woken(self.session).await,
                Next::Close => break,
            }
        }
    }

    /// Waits in the server's queue, for one lock at a time, and holds the locks that it was granted.
    async fn wait(mut self) {
        loop {
            match self.locks.next(self.session, Batch::All) {
                Next::Run(commands) => {
                    self.run(commands).await;
                    self.deliver();
                }
                Next::Wait(slice) => {
                    if let Some(waited) = self.wait_for(slice).await {
                        self.locks.waited(self.session, waited);
                    }
                }
                Next::Ping => self.ping().await,
                Next::Idle => {
                    let sleep = self.connections.timer.sleep(IDLE);
                    let woken = unless(sleep, self.locks.woken(self.session)).await;
                    if woken.is_none() && self.locks.retire(self.session) {
                        break;
                    }
                }
                Next::Close => break,
            }
        }
    }

    /// Opens and marks a connection, unless there is one.
    async fn open(&mut self) -> Result<(), Failure> {
        if self.connection.is_none() {
            self.reconnect.pause(&self.connections.timer).await;
            let opened = self.open_marked().await;
            self.connection = Some(opened.inspect_err(|_| self.failed())?);
        }
        Ok(())
    }

    fn failed(&self) {
        self.reconnect.failed(self.connections.timer.now());
    }

    async fn open_marked(&mut self) -> Result<OpenConnection, Failure> {
        let opening = self.connections.watch();
        let mut connection = self.connections.open(&opening, Duration::ZERO).await?;
        connection
            .keep_within(&self.watch)
            .await
            .map_err(Failure::undone)?;
        let mark = random::number().map_err(|error| Failure::connect(None, error))?;
        let answers = connection
            .perform(&[MarkSession { mark }])
            .await
            .map_err(Failure::undone)?;
        let [
            MarkedSession {
                marked: true,
                safe,
                process,
            },
        ] = answers[..]
        else {
            return Err(is_taken());
        };
        connection
            .perform(&[AsyncCommit { session: mark }])
            .await
            .map_err(Failure::undone)?;
        self.locks.opened(self.session, mark, process);
        self.mark = mark;
        self.safe = safe;
        Ok(connection)
    }

    /// Flushes the log if a crash of the server could make it issue this token again.
    async fn make_safe(&mut self, token: i64) -> Result<(), Failure> {
        let value = token >> HAND_OVER_BITS;
        if value > self.safe + TOKENS_AT_RISK {
            // A slow disk must not make a session that holds locks seem dead.
            let watch = self.connections.watch_of(FLUSH_TIMEOUT);
            let session = self.mark;
            let connection = self.connection()?;
            let flushed = connection.perform_within(&watch, &[FlushTokens]).await;
            // The settings of a session were set with its limits.
            if flushed.as_ref().err().is_none_or(|failure| !failure.broken) {
                connection.perform(&[AsyncCommit { session }]).await?;
            }
            flushed?;
            self.safe = value;
        }
        Ok(())
    }

    fn connection(&mut self) -> Result<&mut OpenConnection, Failure> {
        let closed = || Failure::corrupt("the session is not open").undone();
        self.connection.as_mut().ok_or_else(closed)
    }

    fn requests(&self, commands: &[Command]) -> Vec<LockRequest> {
        let request = |command: &Command| lock_request(command, self.mark);
        commands.iter().filter_map(request).collect()
    }

    async fn send(&mut self, commands: &[Command]) -> Result<Vec<Reply>, Failure> {
        let checks: Vec<HasWaiters> = commands.iter().filter_map(waiters_check).collect();
        let requests = self.requests(commands);
        let interrupts: Vec<Interrupt> = commands.iter().filter_map(interrupt).collect();
        let connection = self.connection()?;
        let answers = if requests.is_empty() {
            Vec::new()
        } else {
            connection.perform(&requests).await?
        };
        let has_waiters = if checks.is_empty() {
            Vec::new()
        } else {
            connection.perform(&checks).await?
        };
        if !interrupts.is_empty()
            && let Err(failure) = connection.perform(&interrupts).await
            && failure.broken
        {
            // An interrupt that is refused has no effect: the wait lasts to the end of its slice.
            return Err(failure);
        }
        let taken = answers.iter().find_map(|answer| match answer {
            // All that one statement takes has one token.
            LockAnswer::Taken(token) => Some(*token),
            _ => None,
        });
        if let Some(token) = taken {
            self.make_safe(token).await?;
        }
        let (mut answers, mut has_waiters) = (answers.into_iter(), has_waiters.into_iter());
        let reply = |command: &Command| match command {
            Command::CheckWaiters { .. } => has_waiters.next().map(Reply::HasWaiters),
            Command::Try { .. } | Command::Release { .. } => answers.next().map(Reply::Lock),
            Command::Interrupt { .. } => Some(Reply::Interrupted),
        };
        Ok(commands.iter().filter_map(reply).collect())
    }

    /// Runs commands, and settles them whatever happens.
    async fn run(&mut self, commands: Vec<Command>) {
        if let Err(failure) = self.open().await {
            self.deliver();
            self.locks.refuse_session(self.session, &failure);
            return;
        }
        let answered = self.answered.take();
        let (locks, session) = (Arc::clone(&self.locks), self.session);
        // The callers of the previous statement get their answers while the server works on this one.
        let delivering = async move {
            if let Some(replies) = answered {
                locks.apply_replies(session, &replies);
            }
        };
        let (outcome, ()) = futures_util::future::join(self.send(&commands), delivering).await;
        match outcome {
            Ok(replies) => self.answered = Some(replies),
            Err(failure) => self.recover(&commands, &failure).await,
        }
    }

    /// How many answers to the last statement have not been delivered.
    fn undelivered(&self) -> usize {
        self.answered.as_ref().map_or(0, Vec::len)
    }

    /// Delivers the answers to the last statement.
    fn deliver(&mut self) {
        if let Some(replies) = self.answered.take() {
            self.locks.apply_replies(self.session, &replies);
        }
    }

    /// A statement that fails may have taken or released some of its locks. Afterwards none of
    /// them is held, or the session is gone.
    async fn recover(&mut self, commands: &[Command], failure: &Failure) {
        let requests = self.requests(commands).into_iter();
        let releases: Vec<LockRequest> = requests
            .map(|request| LockRequest {
                release: true,
                ..request
            })
            .collect();
        let alive = !failure.broken && !failure.sent;
        if alive && self.release_or_ping(&releases).await.is_ok() {
            self.locks.batch_failed(self.session, failure);
        } else {
            self.lose(failure);
        }
    }

    /// The session and what it holds is gone.
    fn lose(&mut self, failure: &Failure) {
        self.connection = None;
        self.answered = None;
        self.failed();
        self.locks.session_lost(self.session, failure);
    }

    /// Checks whether the session is still alive.
    async fn ping(&mut self) {
        if self.connection.is_some()
            && let Err(failure) = self.release_or_ping(&[]).await
        {
            self.lose(&failure);
        }
    }

    /// Releases locks, or pings if there are none. A cancelled statement does not show that the session
    /// has ended: it is sent again.
    async fn release_or_ping(&mut self, releases: &[LockRequest]) -> Result<(), Failure> {
        match self.try_once(releases).await {
            Err(failure) if !failure.broken && !failure.sent => self.try_once(releases).await,
            outcome => outcome,
        }
    }

    async fn try_once(&mut self, releases: &[LockRequest]) -> Result<(), Failure> {
        let session = self.mark;
        let connection = self.connection()?;
        if releases.is_empty() {
            return connection.perform(&[Ping { session }]).await.map(drop);
        }
        connection.perform(releases).await.map(drop)
    }

    /// Waits for a lock; `None` when the session was lost meanwhile.
    async fn wait_for(&mut self, slice: Slice) -> Option<WaitOutcome> {
        if let Err(failure) = self.open().await {
            self.locks.refuse_session(self.session, &failure);
            return Some(WaitOutcome::Unopened);
        }
        let cycle = (!slice.holding.is_empty()).then(|| DeadlockCheck {
            lock: slice.lock,
            holding: slice.holding.clone(),
            session: self.mark,
        });
        let outcome = self.wait_within(&slice, cycle.as_ref()).await;
        self.locks.interrupts_end(self.session).await;
        let granted = matches!(outcome, Ok(WaitOutcome::Granted(_)));
        let mut left = cycle.map(|cycle| cycle.forget()).unwrap_or_default();
        if !granted {
            // The time can run out, or the interrupt come, in the moment of the grant.
            left.push(LockRequest {
                lock: slice.lock,
                mode: slice.mode,
                release: true,
                session: self.mark,
            });
        }
        if let Err(failure) = &outcome
            && failure.broken
        {
            self.lose(failure);
            return None;
        }
        if !left.is_empty()
            && let Err(failure) = self.release_or_ping(&left).await
        {
            self.lose(&failure);
            return None;
        }
        Some(match outcome {
            Ok(waited) => waited,
            Err(failure) => WaitOutcome::Failed(failure),
        })
    }

    /// Waits in the server's queue; for a lock owner that holds other locks, only after a deadlock check.
    async fn wait_within(
        &mut self,
        slice: &Slice,
        cycle: Option<&DeadlockCheck>,
    ) -> Result<WaitOutcome, Failure> {
        if let Some(cycle) = cycle {
            let closed = self
                .connection()?
                .perform(std::slice::from_ref(cycle))
                .await?;
            let closed: Vec<LockId> = closed.into_iter().flatten().collect();
            if !closed.is_empty() {
                return Ok(WaitOutcome::Cycle(closed));
            }
        }
        if !self.locks.is_wanted(self.session) {
            return Ok(WaitOutcome::NotGranted);
        }
        let wait = Wait {
            lock: slice.lock,
            mode: slice.mode,
            millis: i64::try_from(slice.time.as_millis())
                .unwrap_or(i64::MAX)
                .max(1),
            session: self.mark,
        };
        let answers = self.connection()?.perform(&[wait]).await;
        self.locks.interrupts_end(self.session).await;
        let answers = answers?;
        let Some(taken @ (LockAnswer::Taken(_) | LockAnswer::Shared)) = answers.into_iter().next()
        else {
            return Ok(WaitOutcome::NotGranted);
        };
        if let LockAnswer::Taken(token) = taken {
            self.make_safe(token).await?;
        }
        Ok(WaitOutcome::Granted(taken))
    }
}

fn lock_request(command: &Command, session: i64) -> Option<LockRequest> {
    let (lock, mode, release) = match *command {
        Command::Try { lock, mode } => (lock, mode, false),
        Command::Release { lock, mode } => (lock, mode, true),
        Command::CheckWaiters { .. } | Command::Interrupt { .. } => return None,
    };
    Some(LockRequest {
        lock,
        mode,
        release,
        session,
    })
}

fn waiters_check(command: &Command) -> Option<HasWaiters> {
    match command {
        Command::CheckWaiters { lock } => Some(HasWaiters(*lock)),
        _ => None,
    }
}

fn interrupt(command: &Command) -> Option<Interrupt> {
    match *command {
        Command::Interrupt { mark, process, .. } => Some(Interrupt { mark, process }),
        _ => None,
    }
}
