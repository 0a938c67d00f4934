//! Doing it: what has no audited operation of its own is recorded first.

use std::time::Duration;

use lockapi::admin::{JobEdit, MAX_REASON_BYTES};
use lockapi::limit::Quota;
use lockapi::memory::Database;
use lockapi::queue::Pause;
use lockapi::{Backend, Error, ErrorKind, Key};

use super::Action;
use crate::common::refused;
use crate::output::spoken;

/// The quota does not matter where nothing is decided.
const ANY: Quota = Quota::per_second(1);

/// A reason with who gave it, once the action is recorded where that has to come first.
#[derive(Clone, Debug)]
pub(crate) struct Reason(String);

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

    /// Does it, and answers what came of it. The audit log has the reason, and who gave it.
    ///
    /// # Errors
    /// `Invalid` without a reason, and those of what it calls.
    pub(crate) async fn perform(
        &self,
        backend: &dyn Backend,
        reason: &str,
        by: &str,
    ) -> Result<String, Error> {
        let reason = self.begin(backend, reason, by).await?;
        self.finish(backend, &reason).await
    }

    /// Records it, unless what it calls does.
    ///
    /// # Errors
    /// `Invalid` without a reason, and those of [`Operator::record`](lockapi::admin::Operator::record).
    pub(crate) async fn begin(
        &self,
        backend: &dyn Backend,
        reason: &str,
        by: &str,
    ) -> Result<Reason, Error> {
        let reason = Reason(signed(reason, by)?);
        self.check(&reason).await?;
        if let Some((action, target)) = self.entry() {
            let operator = backend.operator();
            operator.record(&action, &target, &reason.0).await?;
        }
        Ok(reason)
    }

    /// Does what was recorded.
    ///
    /// # Errors
    /// Those of what it calls.
    pub(crate) async fn finish(
        &self,
        backend: &dyn Backend,
        reason: &Reason,
    ) -> Result<String, Error> {
        match self {
            Self::Pause(..)
            | Self::Resume(_)
            | Self::Drain(_)
            | Self::PauseName(..)
            | Self::ResumeName(..)
            | Self::Purge(_)
            | Self::Discard(_)
            | Self::Redrive(_) => self.of_queue(backend).await,
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
    ) -> Result<String, Error> {
        let operator = backend.operator();
        let told = match self {
            Self::Cancel(..) => {
                if operator.cancel_job(name, id, &reason.0).await? {
                    format!("job {id} is cancelled")
                } else {
                    format!("job {id} does not wait or run any more")
                }
            }
            Self::RunJob(..) => {
                let now = JobEdit::new().now();
                if operator.edit_job(name, id, now, &reason.0).await? {
                    format!("job {id} is due now")
                } else {
                    format!("job {id} does not wait any more")
                }
            }
            _ => {
                if backend.queue(name)?.redrive(vec![id]).await? == 1 {
                    format!("job {id} is back in {name}")
                } else {
                    format!("job {id} stays: it is no dead letter, or its unique key is taken")
                }
            }
        };
        Ok(told)
    }

    async fn of_task(&self, backend: &dyn Backend, of: &str, task: &str) -> Result<String, Error> {
        let scheduler = backend.scheduler(of)?;
        if matches!(self, Self::Run(..)) {
            return Ok(match scheduler.run_now(task).await? {
                Some(decision) => format!("{task} is {}", decision.status),
                None => format!("{of} has no task {task}"),
            });
        }
        let enabled = matches!(self, Self::Enable(..));
        Ok(if scheduler.set_enabled(task, enabled).await? {
            format!("{task} is {}d", self.word())
        } else {
            format!("{of} has no task {task}")
        })
    }

    async fn of_key(&self, backend: &dyn Backend, reason: &Reason) -> Result<String, Error> {
        let (text, _) = self.target();
        let key = key(text)?;
        Ok(match self {
            Self::Release(_) => {
                let owners = backend.operator().release_lease(key, &reason.0).await?;
                if owners.is_empty() {
                    format!("nobody holds the lease {text}")
                } else {
                    format!("{text} is taken from {}", owners.join(", "))
                }
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
                format!("{} sessions that held {text} are ended", ended.len())
            }
        })
    }
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
