//! What programs did and what they were told, on disk before anything else happens.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockapi::Error;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Result;

/// Nanoseconds of the clock that all processes of the machine share.
pub(crate) type Nanos = u64;

pub(crate) const SECOND: Nanos = 1_000_000_000;

pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    part(time.tv_sec) * SECOND + part(time.tv_nsec)
}

/// Something that one holder at a time has, or a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Also as one of a set, and as the writer of a reader-writer lock, which is the same lock.
    Mutex,
    /// A mutex that is shared.
    Reader,
    Lease,
    /// Of an election.
    Term,
    LeasedMutex,
    Semaphore,
}

/// How a delivery ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum How {
    Ack,
    /// In the transaction of the effect.
    AckIn,
    Nack,
    Snooze,
    Release,
    /// Its holder drops it without a word.
    Abandon,
}

impl How {
    /// Whether the delivery does not count where it ends so.
    pub(crate) fn is_free(self) -> bool {
        matches!(self, Self::Snooze | Self::Release)
    }
}

/// How a queue, or the jobs of a name in it, are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Paused {
    No,
    UntilResumed,
    ForMillis(u64),
    /// Until resumed; and it is waited for what runs, for so many milliseconds at most.
    Drained(u64),
}

/// What a program asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Op {
    Connect,
    Close,
    Acquire {
        kind: Kind,
        key: String,
        /// For how long it may wait, in milliseconds.
        wait: u64,
        /// Whether the library keeps it as long as it is held.
        kept: bool,
    },
    Release {
        kind: Kind,
        key: String,
        token: i64,
    },
    /// A write under a token.
    Write {
        register: String,
        token: i64,
        value: i64,
    },
    /// A count under a lock of the transaction or the session.
    Count {
        counter: String,
    },
    Push {
        job: i64,
        queue: String,
        group: Option<String>,
        /// After so many milliseconds.
        delay: u64,
        /// What is pushed together with it.
        with: Option<i64>,
        /// In a transaction of the program.
        inside: bool,
        /// A key that one job has at a time.
        unique: Option<String>,
        /// How often it is delivered at most.
        attempts: u32,
    },
    Claim {
        queue: String,
        wait: u64,
        /// Whether the library extends the leases of what it gets.
        extended: bool,
    },
    /// Something that a handler does before it acknowledges.
    Effect {
        job: i64,
    },
    Settle {
        job: i64,
        token: i64,
        how: How,
    },
    /// What became of a job.
    Result {
        job: i64,
        /// For how long it may wait, in milliseconds.
        wait: u64,
    },
    Cancel {
        job: i64,
    },
    Edit {
        job: i64,
        /// When it is to be due, in microseconds of this machine's clock, if that is what changes.
        due: Option<i64>,
    },
    /// How many jobs of a queue, or of a group of it, run at once; `None`: as in other groups.
    SetLimit {
        queue: String,
        group: Option<String>,
        most: Option<u32>,
    },
    /// A rate is set to what it is.
    SetRate {
        queue: String,
    },
    /// A queue, or its jobs of a name, are paused or resumed.
    Pause {
        queue: String,
        name: Option<String>,
        how: Paused,
    },
    /// Counts what the tables have beyond the limits.
    Audit {
        queue: String,
    },
    SetTask {
        task: String,
    },
    /// Is a node of the scheduler, for so many milliseconds at most.
    RunTasks {
        wait: u64,
    },
    /// Claims runs of tasks.
    ClaimRuns {
        wait: u64,
    },
    /// Ends a delivery of one, in one way or another.
    EndRun {
        /// What the library calls its job.
        job: i64,
        token: i64,
    },
    Check {
        key: String,
    },
    /// Reserves a permit and uses it, or gives it back.
    Reserve {
        key: String,
    },
    Ids {
        generator: String,
    },
    /// A look at the views, or a snapshot that is held.
    Look,
}

impl Op {
    /// What it is called in the table of answers.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Close => "close",
            Self::Acquire { kind, .. } => match kind {
                Kind::Mutex => "mutex",
                Kind::Reader => "reader",
                Kind::Lease => "lease",
                Kind::Term => "term",
                Kind::LeasedMutex => "leased mutex",
                Kind::Semaphore => "semaphore",
            },
            Self::Release { .. } => "release",
            Self::Write { .. } => "write",
            Self::Count { .. } => "count",
            Self::Push { inside: false, .. } => "push",
            Self::Push { inside: true, .. } => "push_in",
            Self::Claim { .. } => "claim",
            Self::Effect { .. } => "effect",
            Self::Settle { how, .. } => match how {
                How::Ack => "ack",
                How::AckIn => "ack_in",
                How::Nack => "nack",
                How::Snooze => "snooze",
                How::Release => "give back",
                How::Abandon => "drop",
            },
            Self::Result { .. } => "result",
            Self::Cancel { .. } => "cancel",
            Self::Edit { .. } => "edit",
            Self::SetLimit { .. } => "set limit",
            Self::SetRate { .. } => "set rate",
            Self::Pause {
                how: Paused::Drained(_),
                ..
            } => "drain",
            Self::Pause { name: None, .. } => "pause queue",
            Self::Pause { .. } => "pause name",
            Self::Audit { .. } => "audit",
            Self::SetTask { .. } => "set task",
            Self::RunTasks { .. } => "run tasks",
            Self::ClaimRuns { .. } => "claim run",
            Self::EndRun { .. } => "end run",
            Self::Reserve { .. } => "reserve",
            Self::Check { .. } => "limit",
            Self::Ids { .. } => "ids",
            Self::Look => "look",
        }
    }

    /// For how long it may wait by what was asked, in milliseconds.
    pub(crate) fn wait(&self) -> u64 {
        match self {
            Self::Acquire { wait, .. }
            | Self::Claim { wait, .. }
            | Self::RunTasks { wait }
            | Self::ClaimRuns { wait }
            | Self::Result { wait, .. }
            | Self::Pause {
                how: Paused::Drained(wait),
                ..
            } => *wait,
            _ => 0,
        }
    }
}

/// A job that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claimed {
    pub(crate) job: i64,
    /// Of this delivery.
    pub(crate) token: i64,
    /// When it was due, or admitted if it has a group, in microseconds of the server's clock.
    pub(crate) due: i64,
    /// Which of its job it is, and how many there are at most.
    pub(crate) attempt: u32,
    pub(crate) most: u32,
}

/// What a program is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    /// Held by another, nothing there, or refused.
    Nothing,
    Token(i64),
    Jobs(Vec<Claimed>),
    Ids(Vec<i64>),
    /// A number, of a version, a count, or what the library calls a job.
    Number(i64),
    /// No job is new: the library calls so the one that has the key.
    Existing(i64),
    /// The job was cancelled.
    Cancelled,
    /// The job is a dead letter.
    Dead,
    /// A permit, taken at this time of the server's clock, in nanoseconds.
    Taken(i64),
    Failed {
        what: Failed,
        kind: String,
        message: String,
    },
}

/// The kind of a failure that the library tells in another way than by an error: the row of the job is locked.
pub(crate) const LOCKED: &str = "Locked";

/// What a failure says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failed {
    /// It did not happen.
    NotDone,
    /// It may have happened, or may happen yet.
    Unknown,
}

impl Answer {
    pub(crate) fn failed(error: &Error) -> Self {
        let what = match error.kind() {
            lockapi::ErrorKind::Indeterminate => Failed::Unknown,
            _ => Failed::NotDone,
        };
        let code = error.sqlstate().unwrap_or_default();
        Self::Failed {
            what,
            kind: format!("{:?}", error.kind()),
            message: format!("{error} {code}"),
        }
    }

    pub(crate) fn is_failed(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }

    /// Whether it is known to have happened.
    pub(crate) fn is_done(&self) -> bool {
        !self.is_failed() && !matches!(self, Self::Nothing | Self::Existing(_))
    }

    /// Whether it is known not to have happened.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(
            self,
            Self::Failed {
                what: Failed::NotDone,
                ..
            }
        )
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Nothing => "nothing",
            Self::Existing(_) => "existing",
            Self::Failed { kind, .. } => kind,
            _ => "done",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Event {
    Asked {
        call: u64,
        op: Op,
    },
    Answered {
        call: u64,
        answer: Answer,
    },
    /// What was granted under this token was still held at that time, as its holder sees it.
    Held {
        call: u64,
        token: i64,
    },
    /// A handler of a worker begins.
    Delivered {
        call: u64,
        job: i64,
        token: i64,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) at: Nanos,
    pub(crate) event: Event,
}

/// The log of a process. Each record is one write to the end of a file, which survives the process.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    calls: AtomicU64,
    /// Makes numbers that no other process makes.
    number: u64,
    numbers: AtomicU64,
}

impl Log {
    pub(crate) fn open(path: &Path, number: u64) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Arc::new(Inner {
            file,
            calls: AtomicU64::new(0),
            number,
            numbers: AtomicU64::new(0),
        })))
    }

    /// A number that no other process of the run draws.
    pub(crate) fn number(&self) -> i64 {
        let next = self.0.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        i64::try_from((self.0.number << 32) | next).unwrap_or(i64::MAX)
    }

    pub(crate) fn asked(&self, op: Op) -> u64 {
        let call = self.0.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.write(now(), Event::Asked { call, op });
        call
    }

    pub(crate) fn answered(&self, call: u64, answer: Answer) {
        self.write(now(), Event::Answered { call, answer });
    }

    /// `at` is a time before the holder was asked whether it holds.
    pub(crate) fn held(&self, at: Nanos, call: u64, token: i64) {
        self.write(at, Event::Held { call, token });
    }

    pub(crate) fn delivered(&self, job: i64, token: i64) -> u64 {
        let call = self.0.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.write(now(), Event::Delivered { call, job, token });
        call
    }

    fn write(&self, at: Nanos, event: Event) {
        let mut line = serde_json::to_vec(&Record { at, event }).expect("a record is plain data");
        line.push(b'\n');
        // A program without a log proves nothing.
        (&self.0.file).write_all(&line).expect("the log is written");
    }

    /// Makes a call, with its answer in the log.
    pub(crate) async fn call<T>(
        &self,
        op: Op,
        call: impl Future<Output = Result<T, Error>>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> (u64, Result<T, Error>) {
        let pending = self.begin(op);
        let outcome = call.await;
        let told = match &outcome {
            Ok(value) => answer(value),
            Err(error) => Answer::failed(error),
        };
        (pending.end(told), outcome)
    }

    /// Begins a call that may be dropped.
    pub(crate) fn begin(&self, op: Op) -> Pending {
        Pending {
            log: self.clone(),
            call: Some(self.asked(op)),
        }
    }
}

/// A call without an answer yet. One that is dropped may have happened.
#[derive(Debug)]
pub(crate) struct Pending {
    log: Log,
    call: Option<u64>,
}

impl Pending {
    pub(crate) fn end(mut self, answer: Answer) -> u64 {
        let call = self.call.take().unwrap_or_default();
        self.log.answered(call, answer);
        call
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            let answer = Answer::Failed {
                what: Failed::Unknown,
                kind: "dropped".to_owned(),
                message: String::new(),
            };
            self.log.answered(call, answer);
        }
    }
}

/// Reads a log; the last line may be cut off.
pub(crate) fn read(path: &Path) -> Result<Vec<Record>> {
    parse(&fs::read(path)?)
}

/// Whether one of each of these kinds was asked for and granted after so many bytes of a log.
pub(crate) fn were_granted(path: &Path, after: u64, kinds: &[Kind]) -> Result<bool> {
    let (mut file, mut text) = (File::open(path)?, Vec::new());
    file.seek(SeekFrom::Start(after))?;
    file.read_to_end(&mut text)?;
    let (mut asked, mut missing) = (HashMap::new(), kinds.to_vec());
    for record in parse(&text)? {
        match record.event {
            Event::Asked {
                call,
                op: Op::Acquire { kind, .. },
            } => drop(asked.insert(call, kind)),
            Event::Answered { call, answer } if answer.is_done() => {
                if let Some(granted) = asked.remove(&call) {
                    missing.retain(|kind| *kind != granted);
                }
            }
            _ => {}
        }
    }
    Ok(missing.is_empty())
}

fn parse(text: &[u8]) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut lines = text.split(|byte| *byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        // What follows the last line end is empty, or was being written when the process ended.
        if lines.peek().is_none() {
            break;
        }
        records.push(serde_json::from_slice(line)?);
    }
    Ok(records)
}
