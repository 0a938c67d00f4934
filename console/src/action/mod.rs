//! What an operator does on a screen: each with a reason, which the audit log has.

mod perform;

pub(crate) use perform::Outcome;
#[cfg(feature = "web")]
pub(crate) use perform::signed;

use std::time::Duration;

#[cfg(any(feature = "web", test))]
use lockapi::{Error, ErrorKind};

use crate::output::spoken;

/// Something that a screen offers to do. `top` offers some of them, the page all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "web"),
    allow(dead_code, reason = "only the page offers all")
)]
pub(crate) enum Action {
    /// Nothing is claimed from the queue any more, or not for a time.
    Pause(String, Option<Duration>),
    /// Jobs are claimed again.
    Resume(String),
    /// Nothing is claimed any more, and whoever asks is told how many jobs still run.
    Drain(String),
    /// Of one name of jobs nothing is claimed any more, or not for a time.
    PauseName(String, String, Option<Duration>),
    /// Jobs of a name are claimed again.
    ResumeName(String, String),
    /// Deletes all jobs that wait.
    Purge(String),
    /// Deletes all dead letters.
    Discard(String),
    /// Puts all dead letters back.
    Redrive(String),
    /// Cancels a job that waits or runs.
    Cancel(String, i64),
    /// Makes a job that waits for its time due at once.
    RunJob(String, i64),
    /// Puts a dead letter back.
    Retry(String, i64),
    /// Takes the leases of a key from their holders.
    Release(String),
    /// Ends the sessions that hold a mutex.
    Terminate(String),
    /// Forgets what was taken of a limit.
    Reset(String),
    /// Refuses everything of a limit for a time; none ends that.
    Block(String, Duration),
    /// Fires a task when it is due.
    Enable(String, String),
    /// Fires a task no more.
    Disable(String, String),
    /// Fires a task at once.
    Run(String, String),
}

/// How long a limit is blocked unless somebody says otherwise.
pub(crate) const BLOCK: Duration = Duration::from_mins(10);

impl Action {
    /// The word that forms and keys use.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Pause(..) => "pause",
            Self::Resume(_) => "resume",
            Self::Drain(_) => "drain",
            Self::PauseName(..) => "pause-name",
            Self::ResumeName(..) => "resume-name",
            Self::Purge(_) => "purge",
            Self::Discard(_) => "discard",
            Self::Redrive(_) => "redrive",
            Self::Cancel(..) => "cancel",
            Self::RunJob(..) => "run-job",
            Self::Retry(..) => "retry",
            Self::Release(_) => "release",
            Self::Terminate(_) => "terminate",
            Self::Reset(_) => "reset",
            Self::Block(_, time) if time.is_zero() => "unblock",
            Self::Block(..) => "block",
            Self::Enable(..) => "enable",
            Self::Disable(..) => "disable",
            Self::Run(..) => "run",
        }
    }

    /// The one of a word, on `on`, of a job, a name or a task `item`, and for a `time`, where it has one.
    ///
    /// # Errors
    /// `Invalid` for what is none.
    #[cfg(any(feature = "web", test))]
    pub(crate) fn new(word: &str, on: &str, item: &str, time: &str) -> Result<Self, Error> {
        let on = on.to_owned();
        let name = || item.to_owned();
        let action = match (word, item.parse::<i64>()) {
            ("pause", _) => Self::Pause(on, some(lasting(time)?)?),
            ("resume", _) => Self::Resume(on),
            ("drain", _) => Self::Drain(on),
            ("pause-name", _) => Self::PauseName(on, name(), some(lasting(time)?)?),
            ("resume-name", _) => Self::ResumeName(on, name()),
            ("purge", _) => Self::Purge(on),
            ("discard", _) => Self::Discard(on),
            ("redrive", _) => Self::Redrive(on),
            ("cancel", Ok(id)) => Self::Cancel(on, id),
            ("run-job", Ok(id)) => Self::RunJob(on, id),
            ("retry", Ok(id)) => Self::Retry(on, id),
            ("release", _) => Self::Release(on),
            ("terminate", _) => Self::Terminate(on),
            ("reset", _) => Self::Reset(on),
            ("block", _) => Self::Block(on, lasting(time)?.unwrap_or(BLOCK)),
            ("unblock", _) => Self::Block(on, Duration::ZERO),
            ("enable", _) => Self::Enable(on, name()),
            ("disable", _) => Self::Disable(on, name()),
            ("run", _) => Self::Run(on, name()),
            _ => {
                let message = "an action that is none; allowed are pause, resume, drain, pause-name, resume-name, purge, \
                               discard, redrive, release, terminate, reset, block, unblock, enable, disable and run, and \
                               cancel, run-job and retry with the number of a job";
                return Err(invalid(message));
            }
        };
        Ok(action)
    }

    /// What it is done on, and to which job, name or task of it.
    pub(crate) fn target(&self) -> (&str, String) {
        match self {
            Self::Pause(on, _)
            | Self::Resume(on)
            | Self::Drain(on)
            | Self::Purge(on)
            | Self::Discard(on)
            | Self::Redrive(on)
            | Self::Release(on)
            | Self::Terminate(on)
            | Self::Reset(on)
            | Self::Block(on, _) => (on, String::new()),
            Self::Cancel(on, id) | Self::RunJob(on, id) | Self::Retry(on, id) => {
                (on, id.to_string())
            }
            Self::PauseName(on, item, _)
            | Self::ResumeName(on, item)
            | Self::Enable(on, item)
            | Self::Disable(on, item)
            | Self::Run(on, item) => (on, item.clone()),
        }
    }

    /// The queue that it changes; empty where it changes none.
    pub(crate) fn queue(&self) -> &str {
        match self {
            Self::Release(_) | Self::Terminate(_) | Self::Reset(_) | Self::Block(..) => "",
            // Schedulers push to a queue of their name.
            _ => self.target().0,
        }
    }

    /// For how long, as a form sends it; `None` for what has no time.
    #[cfg(any(feature = "web", test))]
    pub(crate) fn time(&self) -> Option<String> {
        let told = |time: &Duration| humantime::format_duration(*time).to_string();
        match self {
            Self::Pause(_, time) | Self::PauseName(.., time) => {
                Some(time.as_ref().map(told).unwrap_or_default())
            }
            Self::Block(_, time) if !time.is_zero() => Some(told(time)),
            _ => None,
        }
    }

    /// What it will do, for a person who is asked.
    pub(crate) fn question(&self) -> String {
        let until = |time: &Option<Duration>| {
            time.map_or_else(String::new, |time| format!(" for {}", spoken(time)))
        };
        match self {
            Self::Pause(queue, time) => {
                format!(
                    "Pause the queue {queue}{}: no further job of it is started",
                    until(time)
                )
            }
            Self::Resume(queue) => format!("Resume the queue {queue}"),
            Self::Drain(queue) => {
                format!(
                    "Drain the queue {queue}: no further job of it is started, and those that run go on to their end"
                )
            }
            Self::PauseName(queue, name, time) => {
                format!(
                    "Pause the jobs {name} of {queue}{}: the others go on",
                    until(time)
                )
            }
            Self::ResumeName(queue, name) => format!("Resume the jobs {name} of {queue}"),
            Self::Purge(queue) => {
                format!("Delete all jobs of {queue} that wait; those that run go on")
            }
            Self::Discard(queue) => format!("Delete all dead letters of {queue}"),
            Self::Redrive(queue) => {
                format!("Put all dead letters of {queue} back, with all their attempts")
            }
            Self::Cancel(queue, id) => {
                format!("Cancel job {id} of {queue}; a worker that runs it loses it")
            }
            Self::RunJob(queue, id) => {
                format!("Run job {id} of {queue} now, as soon as a worker has room")
            }
            Self::Retry(queue, id) => {
                format!("Put job {id} back into {queue}, with all its attempts")
            }
            Self::Release(key) => {
                format!("Take the lease {key}, its permits and its leadership from their holders")
            }
            Self::Terminate(key) => {
                format!("End the sessions that hold {key}: all mutexes of their processes are lost")
            }
            Self::Reset(key) => {
                format!("Forget what was taken of the limit {key}, its reservations and its block")
            }
            Self::Block(key, time) if time.is_zero() => format!("End the block of the limit {key}"),
            Self::Block(key, time) => {
                format!("Refuse everything of the limit {key} for {}", spoken(*time))
            }
            Self::Enable(of, task) => format!("Enable the task {task} of {of}"),
            Self::Disable(of, task) => format!("Disable the task {task} of {of}"),
            Self::Run(of, task) => format!("Run the task {task} of {of} now"),
        }
    }
}

#[cfg(any(feature = "web", test))]
fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, "act", message)
}

/// A pause of no time would be none.
#[cfg(any(feature = "web", test))]
fn some(time: Option<Duration>) -> Result<Option<Duration>, Error> {
    if time.is_some_and(|time| time.is_zero()) {
        return Err(invalid(
            "a pause of 0s; allowed are times such as 10m or 2h, or none until it is resumed",
        ));
    }
    Ok(time)
}

/// A time, or none where nothing is written.
#[cfg(any(feature = "web", test))]
fn lasting(text: &str) -> Result<Option<Duration>, Error> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let time = crate::values::duration(text);
    let time = time.map_err(|why| {
        invalid(format!(
            "the time {text:?} is none ({why}); allowed are times such as 30s, 10m or 2h"
        ))
    })?;
    Ok(Some(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_come_back_from_their_words() {
        let (q, n) = (|| "q".to_owned(), || "n".to_owned());
        for action in [
            Action::Pause(q(), None),
            Action::Pause(q(), Some(BLOCK)),
            Action::Resume(q()),
            Action::Drain(q()),
            Action::PauseName(q(), n(), Some(Duration::from_millis(90_500))),
            Action::PauseName(q(), n(), None),
            Action::ResumeName(q(), n()),
            Action::Purge(q()),
            Action::Discard(q()),
            Action::Redrive(q()),
            Action::Cancel(q(), 7),
            Action::RunJob(q(), 7),
            Action::Retry(q(), 7),
            Action::Release("k".to_owned()),
            Action::Terminate("k".to_owned()),
            Action::Reset("k".to_owned()),
            Action::Block("k".to_owned(), BLOCK * 3),
            Action::Block("k".to_owned(), Duration::ZERO),
            Action::Enable("s".to_owned(), "t".to_owned()),
            Action::Disable("s".to_owned(), "t".to_owned()),
            Action::Run("s".to_owned(), "t".to_owned()),
        ] {
            let ((on, item), time) = (action.target(), action.time().unwrap_or_default());
            assert_eq!(
                Action::new(action.word(), on, &item, &time).unwrap(),
                action
            );
            assert!(!action.question().is_empty());
        }
        assert!(Action::new("cancel", "q", "x", "").is_err());
        assert!(Action::new("run-job", "q", "x", "").is_err());
        assert!(Action::new("drop", "q", "", "").is_err());
        for never in ["0s", "soon", "-1m"] {
            assert!(Action::new("pause", "q", "", never).is_err(), "{never}");
        }
    }
}
