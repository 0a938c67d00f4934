//! Doing it: what has no audited operation of its own is recorded first.

use std::time::Duration;

use lockapi::admin::{JobEdit, JobState, MAX_REASON_BYTES};
use lockapi::limit::Quota;
use lockapi::memory::Database;
use lockapi::queue::Pause;
use lockapi::{Backend, Error, ErrorKind, Key};

use super::Action;
use crate::common::refused;
use crate::output::spoken;
use crate::present;

/// The quota does not matter where nothing is decided.
const ANY: Quota = Quota::per_second(1);

/// A reason with who gave it, once the action is recorded where that has to come first.
#[derive(Clone, Debug)]
pub(crate) struct Reason(String);

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done.
    Done(String),
    /// It was for all of something, of which there is none; nothing is recorded.
    Idle(String),
    /// Nothing was done: what it was for is not there, or not any more.
    Absent(String),
}

impl Outcome {
    /// What a person is told.
    pub(crate) fn told(&self) -> &str {
        let (Self::Done(told) | Self::Idle(told) | Self::Absent(told)) = self;
        told
    }

    fn new(done: bool, told: String) -> Self {
        if done {
            Self::Done(told)
        } else {
            Self::Absent(told)
        }
    }
}

impl Action {
    /// Whether it may take minutes: it deletes or moves as many jobs as there are.
    #[cfg(feature = "web")]
    pub(crate) fn is_long(&self) -> bool {
        matches!(self, Self::Purge(_) | Self::Discard(_) | Self::Redrive(_))
    }

    /// What the audit log calls it, and to what it is done; `None` where an operation of the library records itself.
    fn entry(&self) -> Option<(String, String)> {
        let entry = |action: &str, target: String| Some((action.to_owned(), target));
        let within = |time: &Option<Duration>| {
            time.map_or_else(String::new, |time| format!(" for {}", spoken(time)))
        };
        match self {
            Self::Pause(queue, time) => entry("pause queue", format!("{queue}{}", within(time))),
            Self::Resume(queue) => entry("resume queue", queue.clone()),
            Self::Drain(queue) => entry("drain queue", queue.clone()),
            Self::PauseName(queue, name, time) => {
                entry("pause name", format!("{queue}/{name}{}", within(time)))
            }
            Self::ResumeName(queue, name) => entry("resume name", format!("{queue}/{name}")),
            Self::Purge(queue) => entry("purge queue", queue.clone()),
            Self::Discard(queue) => entry("discard", format!("all of {queue}")),
            Self::Redrive(queue) => entry("redrive", format!("all of {queue}")),
            Self::Retry(queue, id) => entry("redrive job", format!("{id} of {queue}")),
            Self::Reset(key) => entry("reset limit", key.clone()),
            Self::Block(key, time) => entry("block limit", format!("{key} for {time:?}")),
            Self::Enable(of, task) => entry("enable task", format!("{task} of {of}")),
            Self::Disable(of, task) => entry("disable task", format!("{task} of {of}")),
            Self::Run(of, task) => entry("run task", format!("{task} of {of}")),
            Self::Cancel(..) | Self::RunJob(..) | Self::Release(_) | Self::Terminate(_) => None,
        }
    }

    /// Refuses names that are none and times that are too long, before anything is recorded.
    async fn check(&self, reason: &Reason) -> Result<(), Error> {
        let memory = Database::new().connect().await?;
        refused(self.finish(&*memory, reason).await)
    }

    /// Does it, and answers what came of it. The audit log has the reason, and who gave it; nothing of what is absent.
    ///
    /// # Errors
    /// `Invalid` without a reason, and those of what it calls.
    pub(crate) async fn perform(
        &self,
        backend: &dyn Backend,
        reason: &str,
        by: &str,
    ) -> Result<Outcome, Error> {
        match self.begin(backend, reason, by).await? {
            Ok(reason) => self.finish(backend, &reason).await,
            Err(outcome) => Ok(outcome),
        }
    }

    /// Records it, unless what it calls does; or answers that there is nothing to do.
    ///
    /// # Errors
    /// `Invalid` without a reason, and those of [`Operator::record`](lockapi::admin::Operator::record).
    pub(crate) async fn begin(
        &self,
        backend: &dyn Backend,
        reason: &str,
        by: &str,
    ) -> Result<Result<Reason, Outcome>, Error> {
        let reason = Reason(signed(reason, by)?);
        self.check(&reason).await?;
        if let Some((action, target)) = self.entry() {
            if let Some(outcome) = self.look(backend).await? {
                return Ok(Err(outcome));
            }
            let operator = backend.operator();
            operator.record(&action, &target, &reason.0).await?;
        }
        Ok(Ok(reason))
    }

    /// What came of it, where what it is for is absent. What sets a state is done whichever it was.
    async fn look(&self, backend: &dyn Backend) -> Result<Option<Outcome>, Error> {
        let outcome = match self {
            Self::Pause(..)
            | Self::Drain(_)
            | Self::PauseName(..)
            | Self::Cancel(..)
            | Self::RunJob(..)
            | Self::Release(_)
            | Self::Terminate(_) => None,
            Self::Resume(queue) | Self::ResumeName(queue, _) => {
                let known = present::queue(backend, queue).await?;
                (!known).then(|| Outcome::Absent(format!("there is no queue {queue}")))
            }
            Self::Purge(queue) => {
                let waiting = present::waiting(backend, queue).await?;
                (!waiting).then(|| Outcome::Idle(format!("no jobs of {queue} wait")))
            }
            Self::Discard(queue) | Self::Redrive(queue) => {
                let dead = present::dead_letters(backend, queue, &[]).await?;
                (!dead).then(|| Outcome::Idle(format!("{queue} has no dead letters")))
            }
            Self::Retry(queue, id) => {
                let dead = present::dead_letters(backend, queue, &[*id]).await?;
                if dead {
                    None
                } else {
                    let now = now(backend, queue, *id).await?;
                    Some(Outcome::Absent(format!("{now}: it is no dead letter")))
                }
            }
            Self::Enable(of, task) | Self::Disable(of, task) | Self::Run(of, task) => {
                let has = present::task(backend, of, task).await?;
                (!has).then(|| no_task(of, task))
            }
            Self::Block(_, time) if !time.is_zero() => None,
            Self::Reset(text) | Self::Block(text, _) => {
                let kept = present::limit(backend, &key(text)?).await?;
                let none = || Outcome::Absent(format!("nothing is kept of the limit {text}"));
                kept.is_none().then(none)
            }
        };
        Ok(outcome)
    }

    /// Does what was recorded.
    ///
    /// # Errors
    /// Those of what it calls.
    pub(crate) async fn finish(
        &self,
        backend: &dyn Backend,
        reason: &Reason,
    ) -> Result<Outcome, Error> {
        match self {
            Self::Pause(..)
            | Self::Resume(_)
            | Self::Drain(_)
            | Self::PauseName(..)
            | Self::ResumeName(..)
            | Self::Purge(_)
            | Self::Discard(_)
            | Self::Redrive(_) => self.of_queue(backend).await.map(Outcome::Done),
            Self::Cancel(queue, id) | Self::RunJob(queue, id) | Self::Retry(queue, id) => {
                self.of_job(backend, queue, *id, reason).await
            }
            Self::Enable(of, task) | Self::Disable(of, task) | Self::Run(of, task) => {
                self.of_task(backend, of, task).await
            }
            Self::Release(_) | Self::Terminate(_) | Self::Reset(_) | Self::Block(..) => {
                self.of_key(backend, reason).await
            }
        }
    }

    async fn of_queue(&self, backend: &dyn Backend) -> Result<String, Error> {
        let pause = |time: &Option<Duration>| time.map_or(Pause::UntilResumed, Pause::For);
        let (name, _) = self.target();
        let queue = backend.queue(name)?;
        Ok(match self {
            Self::Pause(_, time) => {
                queue.set_paused(Some(pause(time))).await?;
                format!("{name} is paused")
            }
            Self::Drain(_) => {
                queue.pause().await?;
                format!("{name} is paused; what runs goes on to its end")
            }
            Self::PauseName(_, of, time) => {
                queue.set_name_paused(of, Some(pause(time))).await?;
                format!("the jobs {of} of {name} are paused")
            }
            Self::ResumeName(_, of) => {
                queue.set_name_paused(of, None).await?;
                format!("the jobs {of} of {name} are resumed")
            }
            Self::Purge(_) => format!("{} jobs of {name} were deleted", queue.purge().await?),
            Self::Discard(_) => {
                let count = queue.discard(Vec::new()).await?;
                format!("{count} dead letters of {name} were deleted")
            }
            Self::Redrive(_) => {
                let count = queue.redrive(Vec::new()).await?;
                format!("{count} dead letters are back in {name}")
            }
            _ => {
                queue.resume().await?;
                format!("{name} is resumed")
            }
        })
    }

    async fn of_job(
        &self,
        backend: &dyn Backend,
        name: &str,
        id: i64,
        reason: &Reason,
    ) -> Result<Outcome, Error> {
        let operator = backend.operator();
        let (done, told, why) = match self {
            Self::Cancel(..) => {
                let done = operator.cancel_job(name, id, &reason.0).await?;
                let why = "it does not wait or run any more";
                (done, format!("job {id} is cancelled"), why)
            }
            Self::RunJob(..) => {
                let edit = JobEdit::new().now();
                let done = operator.edit_job(name, id, edit, &reason.0).await?;
                let why = "it does not wait any more, or its worker has stopped and nobody has taken it again yet";
                (done, format!("job {id} is due now"), why)
            }
            _ => {
                let done = backend.queue(name)?.redrive(vec![id]).await? == 1;
                let why = "it is no dead letter, or its unique key is taken";
                (done, format!("job {id} is back in {name}"), why)
            }
        };
        if done {
            return Ok(Outcome::Done(told));
        }
        let now = now(backend, name, id).await?;
        Ok(Outcome::Absent(format!("{now}: {why}")))
    }

    async fn of_task(&self, backend: &dyn Backend, of: &str, task: &str) -> Result<Outcome, Error> {
        let scheduler = backend.scheduler(of)?;
        if matches!(self, Self::Run(..)) {
            return Ok(match scheduler.run_now(task).await? {
                Some(decision) => Outcome::Done(format!("{task} is {}", decision.status)),
                None => no_task(of, task),
            });
        }
        let enabled = matches!(self, Self::Enable(..));
        Ok(if scheduler.set_enabled(task, enabled).await? {
            Outcome::Done(format!("{task} is {}d", self.word()))
        } else {
            no_task(of, task)
        })
    }

    async fn of_key(&self, backend: &dyn Backend, reason: &Reason) -> Result<Outcome, Error> {
        let (text, _) = self.target();
        let key = key(text)?;
        let told = match self {
            Self::Release(_) => {
                let owners = backend.operator().release_lease(key, &reason.0).await?;
                let taken = format!("{text} is taken from {}", owners.join(", "));
                let none = format!("nobody holds the lease {text}");
                let told = if owners.is_empty() { none } else { taken };
                return Ok(Outcome::new(!owners.is_empty(), told));
            }
            Self::Block(_, time) => {
                backend.rate_limiter(ANY)?.block(&key, *time).await?;
                if time.is_zero() {
                    format!("{text} is not blocked any more")
                } else {
                    format!("{text} is blocked for {}", spoken(*time))
                }
            }
            Self::Reset(_) => {
                backend.rate_limiter(ANY)?.reset(&key).await?;
                format!("{text} begins anew: nothing is taken of it")
            }
            _ => {
                let ended = backend.operator().terminate_holder(key, &reason.0).await?;
                let told = match ended.len() {
                    0 => format!("no session holds {text}"),
                    some => format!("{some} sessions that held {text} are ended"),
                };
                return Ok(Outcome::new(!ended.is_empty(), told));
            }
        };
        Ok(Outcome::Done(told))
    }
}

fn no_task(of: &str, task: &str) -> Outcome {
    Outcome::Absent(format!("{of} has no task {task}"))
}

/// What a job is now, for a person who took it for something else.
async fn now(backend: &dyn Backend, queue: &str, id: i64) -> Result<String, Error> {
    let job = backend.inspector().job(id, false).await?;
    let job = job.filter(|job| job.queue == queue);
    Ok(match job {
        Some(job) if job.job.state == JobState::Failed => format!("job {id} is a dead letter"),
        Some(job) => format!("job {id} is {}", job.job.state),
        None => format!("there is no job {id} in {queue}"),
    })
}

/// The reason with who gave it.
///
/// # Errors
/// `Invalid` without a reason, and for one that is too long.
pub(crate) fn signed(reason: &str, by: &str) -> Result<String, Error> {
    let reason = reason.trim();
    if reason.is_empty() {
        let message = "no reason is given; allowed are 1 to 1000 bytes, which the audit log keeps";
        return Err(Error::new(ErrorKind::Invalid, "act", message));
    }
    let signed = format!("{reason} ({by})");
    if signed.len() > MAX_REASON_BYTES {
        let message = format!(
            "a reason of {} bytes with the name of who gives it; allowed are 1 to {MAX_REASON_BYTES}",
            signed.len()
        );
        return Err(Error::new(ErrorKind::Invalid, "act", message));
    }
    Ok(signed)
}

/// A key as tables show it.
fn key(text: &str) -> Result<Key, Error> {
    let key = crate::values::key(text);
    key.map_err(|why| {
        let message = format!("{text:?} is no key: {why}");
        Error::new(ErrorKind::Invalid, "act", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_tables_show_them() {
        for of in [
            Key::from("reports/daily"),
            Key::from("#1"),
            Key::from(-42),
            Key::from((7, -42)),
        ] {
            assert_eq!(key(&of.to_string()).unwrap(), of);
        }
        for text in ["#", "#x", "#1,x", "#99999999999999999999"] {
            assert_eq!(key(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }

    #[test]
    fn reasons_say_who_gave_them() {
        assert_eq!(signed(" it is stuck ", "ada").unwrap(), "it is stuck (ada)");
        assert!(signed("  ", "ada").is_err());
        assert!(signed(&"x".repeat(999), "ada").is_err());
    }
}
