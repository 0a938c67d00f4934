//! Giving leases back.

use std::sync::Arc;
use std::time::Duration;

use super::{Entry, Leases, lost};
use crate::election::topic;
use crate::engine::Notify;
use crate::error::{ErrorKind, Result};
use crate::hold::Hold;
use crate::lease::{Release, slot};
use crate::seam::Connector;

/// The pause before a release that did not get through is sent again.
const RELEASE_AGAIN: Duration = Duration::from_millis(250);

type Answered = Box<dyn FnOnce(Result<()>) + Send>;

impl<C: Connector> Leases<C> {
    /// Releases; `answered` is told whether it was still held.
    pub(super) fn release(
        self: &Arc<Self>,
        id: u64,
        hold: &Hold,
        answered: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let entry = self.lock().remove(id);
        match entry {
            Some(entry) if hold.release() => self.send_release(entry, Some(Box::new(answered))),
            _ => answered(Err(lost("release"))),
        }
    }

    fn send_release(self: &Arc<Self>, entry: Entry, answered: Option<Answered>) {
        let release = Release {
            namespace: entry.namespace.to_string(),
            key: entry.key.to_string(),
            slots: Arc::clone(&entry.slots),
            fence: entry.fence,
        };
        let leases = Arc::clone(self);
        self.lane.submit(release, move |outcome| {
            let repeat = outcome.as_ref().is_err_and(|error| {
                matches!(
                    error.kind(),
                    ErrorKind::Unavailable | ErrorKind::Indeterminate
                )
            });
            if let Some(answered) = answered {
                answered(outcome.and_then(|held| if held { Ok(()) } else { Err(lost("release")) }));
            }
            let again = leases.keeper.now() + RELEASE_AGAIN;
            if repeat && again < entry.deadline {
                let this = Arc::downgrade(&leases);
                leases.keeper.run_at(again, move || {
                    if let Some(leases) = this.upgrade() {
                        leases.send_release(entry, None);
                    }
                });
            } else {
                leases.bucket(&entry.key).notify_waiters();
                leases.tell(&entry);
            }
        });
    }

    /// Notifies those who want to know who leads.
    pub(super) fn tell(&self, entry: &Entry) {
        if *entry.slots == [slot::LEADER] {
            let topic = topic(&entry.namespace, &entry.key);
            // Who was not notified looks.
            self.lane.submit(Notify(topic), drop);
        }
    }
}
