//! Pushing and completing in a transaction of the caller.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use super::operations::{Ack, AckWithResult, Claimed, HoldKey, Name, Push, PushKeyed, Take};
use super::{Claim, Delivery, Headers, How, Job, Priority, Pushed, Queue, delivery, job};
use crate::driver::{Connection, Library, Transaction};
use crate::engine::CallerConnection;
use crate::error::{Error, ErrorKind, Result};

/// One call in this number begins with the low priorities.
pub(crate) const LOW_FIRST: u32 = 16;
/// How often a push that met another push of its key is repeated.
const TRIES: usize = 10;

impl dyn Queue + '_ {
    /// Pushes jobs in the transaction that is open on `connection`: commit delivers them, rollback
    /// removes them. The examples of the backend crates show it for each library. Without an open
    /// transaction each of its statements is a transaction of its own.
    ///
    /// # Guarantees
    /// All jobs are pushed or none, together with everything else in the transaction, and their numbers increase
    /// as with [`push_all`](Queue::push_all). The commit
    /// notifies workers, unless
    /// [`QueueOptions::notify_on_commit`](super::QueueOptions::notify_on_commit) is `false`.
    ///
    /// # Cancel safety
    /// When dropped, the transaction goes on with or without the jobs.
    ///
    /// # Errors
    /// `Invalid` as for [`Queue::push_all`]; those of the connection. Where another transaction has pushed
    /// a job of the same key and is open, this one waits for it, as long as its `lock_timeout` allows:
    /// `TimedOut` after that, `Deadlock` where the other waits for this one. Under REPEATABLE READ or
    /// stricter it is `Unavailable` once the other has committed.
    pub fn push_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
        jobs: &'c [Job],
    ) -> L::Outcome<'c, Result<Vec<Pushed>>> {
        let connection = CallerConnection::new(connection);
        L::outcome(Box::pin(push(connection, self, jobs)))
    }

    /// Claims at most `most` jobs and completes them in the transaction that is open on `connection`:
    /// the work is done in the same transaction, and all of it happens once or not at all. Without an
    /// open transaction the jobs are done when this returns, before the work is.
    ///
    /// # Guarantees
    /// No other worker gets the jobs while the transaction lasts. After a rollback, or the death of the
    /// program, they are unchanged, and no attempt was counted: a job that always fails is taken again
    /// and again, so cancel such a job by its number. One whose attempts were used up by workers that claim is not
    /// taken; the next claim makes it a dead letter. A job that is taken has no [result](Delivery::set_result): what its work gives
    /// belongs into the same transaction.
    ///
    /// Jobs of [groups](Job::group) are taken once they have been admitted: by a program that claims, or in
    /// the background after a take that found fewer jobs than it wanted, within about a second.
    ///
    /// # Cancel safety
    /// When dropped, the transaction may have the jobs: roll it back.
    ///
    /// # Errors
    /// `Invalid` for more than [`MAX_CLAIM`](super::MAX_CLAIM), and for a queue that has a [limit](super::JobLimit): claim
    /// its jobs, and complete them with [`ack_in`](Delivery::ack_in). Those of the connection.
    pub fn take_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
        most: usize,
    ) -> L::Outcome<'c, Result<Vec<Taken>>> {
        let connection = CallerConnection::new(connection);
        L::outcome(Box::pin(take(connection, self, most)))
    }
}

impl Delivery {
    /// Completes the delivery in the transaction that is open on `connection`, with its [result](Self::set_result) if one was
    /// set, so that it is done when, and only when, the transaction commits. Without an open transaction it is done when this
    /// returns.
    ///
    /// The delivery is still extended, and may be dropped after the transaction has ended: if that was
    /// rolled back, the job is released then.
    ///
    /// # In a worker
    /// Call it before the handler returns. The worker then waits until the transaction has ended and
    /// checks its outcome. If it was committed, the job is done, even if the handler returns an error
    /// or panics. If it was rolled back, the job is not done: `Ok` counts as a failed attempt, `Err`
    /// and a panic as usual. See [`Context`](crate::worker::Context).
    ///
    /// # Cancel safety
    /// When dropped, the transaction goes on with or without the completion.
    ///
    /// # Errors
    /// `Lost` when it is not the latest delivery of its job any more: roll back; and those of the
    /// connection.
    pub fn ack_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
    ) -> L::Outcome<'c, Result<()>> {
        let connection = CallerConnection::new(connection);
        L::outcome(Box::pin(ack(connection, self)))
    }
}

async fn push(
    mut connection: CallerConnection<'_>,
    queue: &dyn Queue,
    jobs: &[Job],
) -> Result<Vec<Pushed>> {
    const OPERATION: &str = "push_in";
    let jobs = check(queue, jobs);
    let jobs = jobs.map_err(|error| error.during(OPERATION).on(queue.name()))?;
    queue.used();
    let failed = |failure: crate::error::Failure| failure.error(OPERATION).on(queue.name());
    let tells = queue.options().notify_on_commit;
    let topic = tells.then(|| topic(queue.namespace(), queue.name()));
    let mut pushed = Vec::new();
    // In the order of the jobs, so that their numbers are: those without keys that follow one another at once.
    for jobs in jobs.chunk_by(|one, next| !one.is_keyed() && !next.is_keyed()) {
        match jobs {
            [job] if job.is_keyed() => {
                pushed.push(push_keyed(&mut connection, queue, job, topic).await?);
            }
            jobs => {
                let rows = jobs.iter().map(|job| job.pushed_row(queue.name()));
                let push = Push {
                    namespace: queue.namespace().to_owned(),
                    queue: queue.name().to_owned(),
                    jobs: rows.collect(),
                    topic,
                };
                let ids = connection.perform(&[push]).await.map_err(failed)?;
                let new = |id| Pushed { id, how: How::New };
                pushed.extend(ids.concat().into_iter().map(new));
            }
        }
    }
    Ok(pushed)
}

async fn push_keyed(
    connection: &mut CallerConnection<'_>,
    queue: &dyn Queue,
    job: &Job,
    topic: Option<i64>,
) -> Result<Pushed> {
    let failed = |failure: crate::error::Failure| failure.error("push_in").on(queue.name());
    let push = PushKeyed {
        namespace: queue.namespace().to_owned(),
        queue: queue.name().to_owned(),
        job: job.pushed_row(queue.name()),
        keys: job.keys(),
        topic,
    };
    for _ in 0..TRIES {
        let sent = connection.perform(std::slice::from_ref(&push)).await;
        if let Some(pushed) = sent.map_err(failed)?.pop().flatten() {
            return Ok(pushed);
        }
        if !push.keys.unique_key.is_empty() {
            // Another transaction has locked the job: this one waits for it.
            let hold = HoldKey {
                name: Name {
                    namespace: push.namespace.clone(),
                    queue: push.queue.clone(),
                },
                key: push.keys.unique_key.clone(),
            };
            connection.perform(&[hold]).await.map_err(failed)?;
        }
    }
    Err(key_is_busy().on(queue.name()))
}

async fn ack(mut connection: CallerConnection<'_>, delivery: &Delivery) -> Result<()> {
    const OPERATION: &str = "ack_in";
    let queue = delivery.queue();
    let about = || format!("{} of {}", delivery.id(), queue.name());
    let ack = Ack {
        ticket: delivery.ticket(),
        keep: queue.options().keep(),
    };
    let lost = || Error::new(ErrorKind::Lost, OPERATION, delivery::LOST).on(about());
    if delivery.is_lost() {
        return Err(lost());
    }
    delivery.asked_in_transaction();
    let acked = match delivery.result() {
        None => connection.perform(&[ack]).await,
        Some(result) => {
            let retention = queue.options().keep_results();
            let ack = AckWithResult {
                ack,
                result,
                retention,
            };
            connection.perform(&[ack]).await
        }
    };
    match acked {
        Ok(answers) if answers == [true] => {
            delivery.acked_in_transaction();
            Ok(())
        }
        Ok(_) => {
            delivery.refused_in_transaction();
            Err(lost())
        }
        Err(failure) => {
            let error = failure.error(OPERATION).on(about());
            if error.kind() != ErrorKind::Indeterminate {
                delivery.refused_in_transaction();
            }
            Err(error)
        }
    }
}

/// A job that is done when the transaction that took it commits.
#[derive(Clone, Debug)]
pub struct Taken(Claimed);

impl Taken {
    /// The number of the job.
    #[must_use]
    pub fn id(&self) -> i64 {
        self.0.ticket.id
    }

    /// What kind of job it is.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The payload, as JSON.
    #[must_use]
    pub fn payload(&self) -> &str {
        &self.0.payload
    }

    /// Reads the payload.
    ///
    /// # Errors
    /// `Corrupt` when it is not what `T` expects.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        delivery::decode(&self.0)
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.0.headers
    }

    /// The value of a header, whose name is given in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name)
    }

    /// The [group](super::Job::group) that the job is in.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.0.group.as_deref()
    }
}

async fn take(
    mut connection: CallerConnection<'_>,
    queue: &dyn Queue,
    most: usize,
) -> Result<Vec<Taken>> {
    const OPERATION: &str = "take_in";
    let claim = Claim::new(most);
    let checked = claim.check();
    checked.map_err(|error| error.during(OPERATION).on(queue.name()))?;
    queue.used();
    let take = Take {
        namespace: queue.namespace().to_owned(),
        queue: queue.name().to_owned(),
        most: i64::try_from(most).unwrap_or(i64::MAX),
        priorities: priorities(),
        worker: claim.worker_name(),
        keep: queue.options().keep(),
    };
    match connection.perform(&[take]).await {
        Ok(taken) => {
            let Some(taken) = taken.into_iter().collect::<Option<Vec<_>>>() else {
                let message = "the queue has a limit, which would be locked as long as the transaction is open; \
                               claim its jobs, and complete them in the transaction with ack_in";
                return Err(Error::new(ErrorKind::Invalid, OPERATION, message).on(queue.name()));
            };
            let taken: Vec<_> = taken.into_iter().flatten().map(Taken).collect();
            if taken.len() < most {
                queue.missed();
            }
            Ok(taken)
        }
        Err(failure) => Err(failure.error(OPERATION).on(queue.name())),
    }
}

/// The priorities in the order in which a call reads them: one in sixteen begins with the low ones.
fn priorities() -> Vec<i64> {
    let mut priorities: Vec<_> = Priority::ALL.into_iter().map(Priority::number).collect();
    if fastrand::f64() * f64::from(LOW_FIRST) < 1.0 {
        priorities.reverse();
    }
    priorities
}

/// What listeners are told when something was pushed.
pub(crate) fn topic(namespace: &str, queue: &str) -> i64 {
    crate::key::advisory_key(namespace, &format!("queue {queue}"))
}

/// What listeners are told when the limit of a queue was set.
pub(crate) fn limit_topic(namespace: &str, queue: &str) -> i64 {
    crate::key::advisory_key(namespace, &format!("limit {queue}"))
}

fn key_is_busy() -> Error {
    let message = "another push of the same key is under way; nothing was pushed: try again";
    Error::new(ErrorKind::Unavailable, "push_in", message)
}

/// Checks what can be checked before anything is sent, and returns the jobs that are pushed.
pub(crate) fn check<'a>(queue: &dyn Queue, jobs: &'a [Job]) -> Result<Cow<'a, [Job]>> {
    let invalid = |message| Err(Error::new(ErrorKind::Invalid, "push", message));
    if jobs.len() > job::MAX_PUSH {
        return invalid(format!(
            "a push of {} jobs; allowed are at most {}",
            jobs.len(),
            job::MAX_PUSH
        ));
    }
    let jobs = queue.options().pushed(jobs)?;
    let bytes = jobs
        .iter()
        .map(|job| job.payload().len() + job.headers().bytes());
    let bytes: usize = bytes.sum();
    if bytes > job::MAX_PUSH_BYTES {
        return invalid(format!(
            "a push of {bytes} bytes of payload and headers; allowed are at most {}",
            job::MAX_PUSH_BYTES
        ));
    }
    jobs.iter()
        .try_for_each(|job| job.check(queue.options().max_payload))?;
    Ok(jobs)
}
