//! What an operator does on a screen: each with a reason, which the audit log has.

use lockapi::admin::{JobEdit, MAX_REASON_BYTES};
use lockapi::{Backend, Error, ErrorKind, Key};

/// Something that a screen offers to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing is claimed from the queue any more.
    Pause(String),
    /// Jobs are claimed again.
    Resume(String),
    /// Cancels a job that waits or runs.
    Cancel(String, i64),
    /// Makes a job that waits for its time due at once.
    #[cfg_attr(
        not(feature = "web"),
        allow(dead_code, reason = "only the page offers it")
    )]
    RunJob(String, i64),
    /// Puts a dead letter back.
    #[cfg_attr(
        not(feature = "web"),
        allow(dead_code, reason = "only the page lists them")
    )]
    Retry(String, i64),
    /// Takes the leases of a key from their holders.
    Release(String),
    /// Ends the sessions that hold a mutex.
    Terminate(String),
    /// Fires a task when it is due.
    Enable(String, String),
    /// Fires a task no more.
    Disable(String, String),
    /// Fires a task at once.
    Run(String, String),
}

impl Action {
    /// The word that forms and keys use.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Pause(_) => "pause",
            Self::Resume(_) => "resume",
            Self::Cancel(..) => "cancel",
            Self::RunJob(..) => "run-job",
            Self::Retry(..) => "retry",
            Self::Release(_) => "release",
            Self::Terminate(_) => "terminate",
            Self::Enable(..) => "enable",
            Self::Disable(..) => "disable",
            Self::Run(..) => "run",
        }
    }

    /// The one of a word, on `on`, and of a job or a task `item`.
    ///
    /// # Errors
    /// `Invalid` for what is none.
    #[cfg(any(feature = "web", test))]
    pub(crate) fn new(word: &str, on: &str, item: &str) -> Result<Self, Error> {
        let on = on.to_owned();
        let number = || item.parse::<i64>();
        let action = match (word, number()) {
            ("pause", _) => Self::Pause(on),
            ("resume", _) => Self::Resume(on),
            ("cancel", Ok(id)) => Self::Cancel(on, id),
            ("run-job", Ok(id)) => Self::RunJob(on, id),
            ("retry", Ok(id)) => Self::Retry(on, id),
            ("release", _) => Self::Release(on),
            ("terminate", _) => Self::Terminate(on),
            ("enable", _) => Self::Enable(on, item.to_owned()),
            ("disable", _) => Self::Disable(on, item.to_owned()),
            ("run", _) => Self::Run(on, item.to_owned()),
            _ => {
                let message = "an action that is none; allowed are pause, resume, cancel, run-job, retry, release, terminate, \
                               enable, disable and run, the third to fifth with the number of a job";
                return Err(Error::new(ErrorKind::Invalid, "act", message));
            }
        };
        Ok(action)
    }

    /// What it is done on, and to which job or task of it.
    #[cfg(any(feature = "web", test))]
    pub(crate) fn target(&self) -> (&str, String) {
        match self {
            Self::Pause(on) | Self::Resume(on) | Self::Release(on) | Self::Terminate(on) => {
                (on, String::new())
            }
            Self::Cancel(on, id) | Self::RunJob(on, id) | Self::Retry(on, id) => {
                (on, id.to_string())
            }
            Self::Enable(on, task) | Self::Disable(on, task) | Self::Run(on, task) => {
                (on, task.clone())
            }
        }
    }

    /// What it will do, for a person who is asked.
    pub(crate) fn question(&self) -> String {
        match self {
            Self::Pause(queue) => {
                format!("Pause the queue {queue}: no further job of it is started")
            }
            Self::Resume(queue) => format!("Resume the queue {queue}"),
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
            Self::Enable(of, task) => format!("Enable the task {task} of {of}"),
            Self::Disable(of, task) => format!("Disable the task {task} of {of}"),
            Self::Run(of, task) => format!("Run the task {task} of {of} now"),
        }
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
        let reason = signed(reason, by)?;
        let operator = backend.operator();
        let record =
            async |action: &str, target: &str| operator.record(action, target, &reason).await;
        let told = match self {
            Self::Pause(name) => {
                let queue = backend.queue(&**name)?;
                record("pause queue", name).await?;
                queue.pause().await?;
                format!("{name} is paused")
            }
            Self::Resume(name) => {
                let queue = backend.queue(&**name)?;
                record("resume queue", name).await?;
                queue.resume().await?;
                format!("{name} is resumed")
            }
            Self::Cancel(queue, id) => {
                if operator.cancel_job(queue, *id, &reason).await? {
                    format!("job {id} is cancelled")
                } else {
                    format!("job {id} does not wait or run any more")
                }
            }
            Self::RunJob(queue, id) => {
                let now = JobEdit::new().now();
                if operator.edit_job(queue, *id, now, &reason).await? {
                    format!("job {id} is due now")
                } else {
                    format!("job {id} does not wait any more")
                }
            }
            Self::Retry(name, id) => {
                let queue = backend.queue(&**name)?;
                record("redrive job", &format!("{id} of {name}")).await?;
                if queue.redrive(vec![*id]).await? == 1 {
                    format!("job {id} is back in {name}")
                } else {
                    format!("job {id} stays: it is no dead letter, or its unique key is taken")
                }
            }
            Self::Release(text) => {
                let owners = operator.release_lease(key(text)?, &reason).await?;
                if owners.is_empty() {
                    format!("nobody holds the lease {text}")
                } else {
                    format!("{text} is taken from {}", owners.join(", "))
                }
            }
            Self::Terminate(text) => {
                let ended = operator.terminate_holder(key(text)?, &reason).await?;
                format!("{} sessions that held {text} are ended", ended.len())
            }
            Self::Enable(of, task) | Self::Disable(of, task) => {
                let enabled = matches!(self, Self::Enable(..));
                let scheduler = backend.scheduler(&**of)?;
                record(&format!("{} task", self.word()), &format!("{task} of {of}")).await?;
                if scheduler.set_enabled(task, enabled).await? {
                    format!("{task} is {}d", self.word())
                } else {
                    format!("{of} has no task {task}")
                }
            }
            Self::Run(of, task) => {
                let scheduler = backend.scheduler(&**of)?;
                record("run task", &format!("{task} of {of}")).await?;
                match scheduler.run_now(task).await? {
                    Some(decision) => format!("{task} is {}", decision.status),
                    None => format!("{of} has no task {task}"),
                }
            }
        };
        Ok(told)
    }
}

/// The reason with who gave it.
fn signed(reason: &str, by: &str) -> Result<String, Error> {
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

/// A key as tables show it: a name whose leading `#` is doubled, `#42` or `#7,42`.
fn key(text: &str) -> Result<Key, Error> {
    let Some(rest) = text.strip_prefix('#') else {
        return Ok(Key::from(text));
    };
    if rest.starts_with('#') {
        return Ok(Key::from(rest));
    }
    let key = match rest.split_once(',') {
        Some((class, object)) => match (class.parse::<i32>(), object.parse::<i32>()) {
            (Ok(class), Ok(object)) => Some(Key::from((class, object))),
            _ => None,
        },
        None => rest.parse::<i64>().ok().map(Key::from),
    };
    key.ok_or_else(|| {
        let message = "a key that begins with # and is no number; allowed are #42, #7,42, and names with ## for a #";
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
    fn actions_come_back_from_their_words() {
        for action in [
            Action::Pause("q".to_owned()),
            Action::Resume("q".to_owned()),
            Action::Cancel("q".to_owned(), 7),
            Action::RunJob("q".to_owned(), 7),
            Action::Retry("q".to_owned(), 7),
            Action::Release("k".to_owned()),
            Action::Terminate("k".to_owned()),
            Action::Enable("s".to_owned(), "t".to_owned()),
            Action::Disable("s".to_owned(), "t".to_owned()),
            Action::Run("s".to_owned(), "t".to_owned()),
        ] {
            let (on, item) = action.target();
            assert_eq!(Action::new(action.word(), on, &item).unwrap(), action);
            assert!(!action.question().is_empty());
        }
        assert!(Action::new("cancel", "q", "x").is_err());
        assert!(Action::new("run-job", "q", "x").is_err());
        assert!(Action::new("drop", "q", "").is_err());
    }

    #[test]
    fn reasons_say_who_gave_them() {
        assert_eq!(signed(" it is stuck ", "ada").unwrap(), "it is stuck (ada)");
        assert!(signed("  ", "ada").is_err());
        assert!(signed(&"x".repeat(999), "ada").is_err());
    }
}
