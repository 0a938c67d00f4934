//! Spans, events and metrics of the engine, with the features `tracing` and `metrics`, and traces through queues, with
//! the feature `opentelemetry`.
//!
//! No feature changes what a program does. With all of them off nothing is measured, kept or sent.
//! Payloads, the errors of handlers, addresses and passwords are never reported. Keys are fields of
//! spans and events, but not labels of metrics, whose cardinality they would inflate.
//!
//! # Spans
//!
//! With the feature `tracing`, under the target `lockapi`. A span is entered only while its own future
//! is polled.
//!
//! | Span | Level | Fields | What it covers |
//! |---|---|---|---|
//! | `acquire` | debug | `kind`, `operation`, `namespace`, `key`, `outcome` | a call that acquires something or tries to, until it is answered or dropped |
//! | `hold` | debug | `kind`, `namespace`, `key`, `lost` | from the grant until its guard is released or dropped |
//! | `job` | info | `namespace`, `queue`, `name`, `id`, `attempt`, `outcome` | an attempt: layers and the handler of a job, with all their events inside; of a job in a batch not the call |
//! | `statement` | trace | `statement`, `requests`, `failed` | a statement from sending it to its answer |
//!
//! A `hold` has no parent, because a guard may outlive the span in which it was acquired; it follows
//! from that span. A `statement` has no parent, because it carries requests of many callers. The parent
//! of the others is the span of their caller: a `job` to that of
//! [`Worker::run`](crate::worker::Worker::run).
//!
//! `kind` is what is acquired: `mutex` (reader-writer locks as well, which differ in `operation`),
//! `lease`, `semaphore`, `election`, `leased_mutex`, `rate_limiter` (`until_ready`) or `job`.
//! `operation` is the method. `outcome` is recorded at the end:
//!
//! | Of | Outcomes |
//! |---|---|
//! | `acquire` | `granted`; `refused`, at once or when the time was over; `failed`, by an error; `left`, when the call was dropped |
//! | `job` | `done`, `failed`, `rejected`, `snoozed`, `lost`, `released`, as in [`Ending`](crate::worker::Ending) |
//!
//! # Events
//!
//! | Event | Level | Fields |
//! |---|---|---|
//! | `waited long` | warn | `kind`, `key`, `waited`, once, while it waits; see [`warn_waited`](crate::BackendOptions::warn_waited) |
//! | `held long` | warn | `kind`, `key`, `held`, once, while it is held; see [`warn_held`](crate::BackendOptions::warn_held) |
//! | `lost` | warn | `kind`, `times` |
//! | `fault` | warn | `fault`, as of `lockapi_faults_total` |
//! | `job … failed`, and other messages of a [`Report`](crate::worker::Report) | warn | none; of workers that have no observer |
//! | `not renewed` | warn | `kind`, `name`, `outcome` |
//! | `renewed` | trace | `kind`, `name` |
//! | `granted` | debug | `kind`, `key`, `waited` |
//! | `given up` | debug | `kind`, `key`, `held`, `lost` |
//! | `refused` | debug | `key`, by a rate limit |
//! | `claimed` | debug | `queue`, `jobs` |
//! | `counted` | debug | `queue`, `ready`, `running` |
//!
//! # Metrics
//!
//! With the feature `metrics`. They are described to the recorder whenever a backend is connected.
//!
//! | Metric | Kind | Unit | Labels | What |
//! |---|---|---|---|---|
//! | `lockapi_wait_seconds` | histogram | seconds | `kind` | from the call until the grant |
//! | `lockapi_hold_seconds` | histogram | seconds | `kind` | from the grant until the guard was released or dropped |
//! | `lockapi_acquisitions_total` | counter | calls | `kind`, `outcome` | as of the span `acquire` |
//! | `lockapi_contended_total` | counter | attempts | `kind` | attempts that found another holder |
//! | `lockapi_lost_total` | counter | holds | `kind` | holds that were lost |
//! | `lockapi_renewals_total` | counter | renewals | `kind`, `outcome` | `done`, `lost`, `failed` |
//! | `lockapi_faults_total` | counter | faults | `fault` | faults that were recovered from: `worker_ended`, a background task that ended early and is started again; `waiter_unopened`, a connection for waiting for locks that could not be opened; `panicked`, a callback or waker of the program that panicked on the timer; `progress_unwritten`, reports of handlers that could not be written; `history_unwritten`, a minute of the history that could not be written, or not as a whole |
//! | `lockapi_decisions_total` | counter | decisions | `outcome` | decisions of rate limits: `admitted`, `refused` |
//! | `lockapi_claimed_total` | counter | jobs | `queue` | jobs that were claimed |
//! | `lockapi_job_seconds` | histogram | seconds | `queue`, `outcome` | how long a handler ran |
//! | `lockapi_queue_jobs` | gauge | jobs | `queue`, `state` | as the latest call of [`statistics`](crate::Queue::statistics) counted them |
//! | `lockapi_batch_size` | histogram | requests | `statement` | requests that were sent in one statement |
//!
//! # Traces through queues
//!
//! With the feature `opentelemetry`, for what the program has set as the provider of tracers and as the
//! propagator (`opentelemetry::global`); without these, nothing happens.
//!
//! A push writes the current context into the [headers](crate::queue::Headers) of its jobs, which are
//! `traceparent` and `tracestate` of the usual propagator. A job that has one of its headers already keeps those
//! of the program, and a header that does not fit beside those of the program is left out.
//!
//! Each handler runs in a span `process <queue>` of the kind consumer. That of the first attempt is a child of the
//! context in the headers. Each further attempt, which may be days later, is a trace of its own, with a link to that
//! context. What counts is [`attempt`](crate::queue::Delivery::attempt): a job that was snoozed or redriven is at its
//! first again. What the handler pushes goes on with its trace. A propagator or a provider that panics is a fault that is
//! reported, and neither a failed push nor a failed job.
//!
//! | Attribute | Value |
//! |---|---|
//! | `messaging.system` | `lockapi` |
//! | `messaging.destination.name` | the queue |
//! | `messaging.operation.type`, `messaging.operation.name` | `process` |
//! | `messaging.message.id` | the number of the job |
//! | `lockapi.namespace`, `lockapi.job.name`, `lockapi.job.attempt` | those of the delivery |
//! | `lockapi.job.outcome` | as of the span `job` |
//! | `error.type` | `failed`, `rejected` or `lost`, with the status `Error`; otherwise neither is set |
//!
//! With the feature `tracing` as well, the span `job` begins inside of it.
//!
//! Metrics go to the provider of meters that the program has set before its first push or claim:
//!
//! | Metric | Kind | Unit | What |
//! |---|---|---|---|
//! | `messaging.client.sent.messages` | counter | messages | jobs that were to be pushed, also in transactions |
//! | `messaging.client.consumed.messages` | counter | messages | jobs that were claimed |
//! | `messaging.process.duration` | histogram | seconds | how long a handler ran, with `error.type` as above |
//!
//! Their attributes are `messaging.system`, `messaging.destination.name` and `messaging.operation.name`: `push`, `claim`
//! or `process`.

use std::time::Duration;

use crate::engine::Timer;
use crate::key::Key;
use crate::limit::Decision;

#[cfg(feature = "opentelemetry")]
mod instruments;
#[cfg(not(any(feature = "tracing", feature = "metrics", feature = "opentelemetry")))]
mod off;
#[cfg(any(feature = "tracing", feature = "metrics", feature = "opentelemetry"))]
mod on;
#[cfg(feature = "tracing")]
mod overdue;
#[cfg(feature = "opentelemetry")]
mod traces;

#[cfg(not(any(feature = "tracing", feature = "metrics", feature = "opentelemetry")))]
pub(crate) use off::*;
#[cfg(any(feature = "tracing", feature = "metrics", feature = "opentelemetry"))]
pub(crate) use on::*;

/// Writes a line on standard error.
#[cfg(not(feature = "tracing"))]
fn write(what: std::fmt::Arguments<'_>) {
    use std::io::Write;
    // A program without standard error does not want it.
    drop(writeln!(std::io::stderr(), "lockapi: {what}"));
}

/// The kind of object that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    Lease,
    Semaphore,
    Election,
    LeasedMutex,
    RateLimiter,
    Job,
}

/// The object that is reported.
#[cfg_attr(
    not(feature = "tracing"),
    allow(dead_code, reason = "metrics name no keys")
)]
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) kind: Kind,
    pub(crate) namespace: &'a str,
    pub(crate) key: &'a Key,
    pub(crate) warn: Warn,
    pub(crate) timer: &'a Timer,
}

/// The times after which waits and holds are warned about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Warn {
    pub(crate) waited: Option<Duration>,
    pub(crate) held: Option<Duration>,
}

/// The outcome of a renewal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Renewal {
    Done,
    Lost,
    Failed,
}

/// A background fault that is recovered from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    WorkerEnded,
    WaiterUnopened,
    Panicked,
    ProgressUnwritten,
    HistoryUnwritten,
}

/// The answer to a call that acquires.
#[cfg_attr(
    not(any(feature = "tracing", feature = "metrics", feature = "opentelemetry")),
    allow(dead_code, reason = "nobody asks")
)]
pub(crate) trait Answer {
    fn is_granted(&self) -> bool {
        true
    }
}

impl<T> Answer for Option<T> {
    fn is_granted(&self) -> bool {
        self.is_some()
    }
}

impl<T: ?Sized> Answer for Box<T> {}

impl Answer for Decision {}
