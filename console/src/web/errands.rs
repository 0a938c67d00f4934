//! What goes on when its answer has been sent: deleting or moving as many jobs as there are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockapi::{Error, ErrorKind};
use tokio::time::timeout;

use super::Shared;
use crate::action::{Action, Outcome};

/// Who asks waits no longer than this.
const PATIENCE: Duration = Duration::from_secs(2);
/// So many go on at the same time.
const MOST: usize = 4;
/// So many outcomes are remembered.
const REMEMBERED: usize = 50;

/// What goes on and what came of the latest, by queue: `None` while it goes on.
#[derive(Debug, Default)]
pub(super) struct Errands(Mutex<BTreeMap<String, (&'static str, Option<String>)>>);

impl Errands {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, (&'static str, Option<String>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What goes on in a queue, or what came of it.
    pub(super) fn told(&self, queue: &str) -> Option<String> {
        self.all().get(queue).map(|(word, outcome)| match outcome {
            None => format!("{word} goes on"),
            Some(told) => format!("{word}: {told}"),
        })
    }

    /// Takes the place of a queue, if nothing goes on in it.
    fn begin(&self, queue: &str, word: &'static str) -> Result<(), Error> {
        let mut all = self.all();
        let busy = |message| Err(Error::new(ErrorKind::Capacity, "act", message));
        if let Some((other, None)) = all.get(queue) {
            return busy(format!(
                "{other} of {queue} goes on; wait until it has ended"
            ));
        }
        if all
            .values()
            .filter(|(_, outcome)| outcome.is_none())
            .count()
            >= MOST
        {
            return busy(format!("{MOST} others go on; wait until one has ended"));
        }
        if all.len() >= REMEMBERED {
            all.retain(|_, (_, outcome)| outcome.is_none());
        }
        all.insert(queue.to_owned(), (word, None));
        Ok(())
    }

    fn end(&self, queue: &str, told: String) {
        if let Some((_, outcome)) = self.all().get_mut(queue) {
            *outcome = Some(told);
        }
    }
}

/// Ends an errand however its task ends.
struct Going {
    shared: Arc<Shared>,
    queue: String,
}

impl Going {
    /// Nothing was begun.
    fn forget(mut self) {
        let queue = std::mem::take(&mut self.queue);
        self.shared.errands.all().remove(&queue);
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        // No queue is called so: it was forgotten, and another one may have begun.
        if self.queue.is_empty() {
            return;
        }
        let mut all = self.shared.errands.all();
        if let Some((_, outcome @ None)) = all.get_mut(&self.queue) {
            *outcome = Some("it ended early; what was done stays done".to_owned());
        }
    }
}

/// Records an action and does it, and answers when it is done, or after a moment.
pub(super) async fn run(
    shared: &Arc<Shared>,
    action: &Action,
    reason: &str,
    by: &str,
) -> Result<Outcome, Error> {
    let queue = action.queue().to_owned();
    shared.errands.begin(&queue, action.word())?;
    let going = Going {
        shared: Arc::clone(shared),
        queue,
    };
    let reason = match action.begin(shared.watch.backend(), reason, by).await {
        Ok(Ok(reason)) => reason,
        Ok(Err(outcome)) => {
            going.forget();
            return Ok(outcome);
        }
        Err(error) => {
            going.forget();
            return Err(error);
        }
    };
    let action = action.clone();
    let task = tokio::spawn(async move {
        let backend = going.shared.watch.shared_backend();
        let done = action.finish(&*backend, &reason).await;
        let told = match &done {
            Ok(outcome) => outcome.told().to_owned(),
            Err(error) => format!("it failed: {error}; what was done until then stays done"),
        };
        going.shared.errands.end(&going.queue, told);
        going.shared.watch.forget(&going.queue).await;
        done
    });
    match timeout(PATIENCE, task).await {
        Ok(Ok(done)) => done,
        Ok(Err(_)) => Err(Error::new(
            ErrorKind::Unavailable,
            "act",
            "it ended early; what was done stays done",
        )),
        Err(_) => Ok(Outcome::Done(
            "It goes on, also when you leave; the screen of the queue tells what is left"
                .to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_goes_on_in_a_queue_and_few_in_all() {
        let errands = Errands::default();
        let refused = |queue: &str| {
            let refused = errands.begin(queue, "purge").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Capacity);
            refused.to_string()
        };
        for n in 0..MOST {
            errands.begin(&format!("queue {n}"), "discard").unwrap();
        }
        assert!(refused("queue 0").contains("discard of queue 0 goes on"));
        assert!(refused("another").contains("others go on"));
        assert_eq!(errands.told("queue 0").as_deref(), Some("discard goes on"));
        assert_eq!(errands.told("another"), None);
        errands.end("queue 0", "7 dead letters were deleted".to_owned());
        let told = errands.told("queue 0");
        assert_eq!(
            told.as_deref(),
            Some("discard: 7 dead letters were deleted")
        );
        errands.begin("queue 0", "purge").unwrap();
        assert!(refused("queue 0").contains("purge of queue 0 goes on"));
    }

    #[test]
    fn outcomes_are_forgotten_before_they_are_many() {
        let errands = Errands::default();
        errands.begin("goes on", "purge").unwrap();
        for n in 0..3 * REMEMBERED {
            let queue = format!("queue {n}");
            errands.begin(&queue, "purge").unwrap();
            errands.end(&queue, "done".to_owned());
        }
        assert!(errands.all().len() <= REMEMBERED);
        assert!(errands.told("goes on").is_some());
        let last = format!("queue {}", 3 * REMEMBERED - 1);
        assert_eq!(errands.told(&last).as_deref(), Some("purge: done"));
    }
}
