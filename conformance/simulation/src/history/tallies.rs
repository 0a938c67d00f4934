//! What a worker says that it has done, and what its handlers know of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockapi::worker::Summary;

use super::History;

/// How handlers have ended.
#[derive(Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
    snoozed: AtomicU64,
}

/// How the handlers of a worker have ended; clones are one and the same.
#[derive(Clone, Default)]
pub(crate) struct Tally(Arc<Counts>);

impl Tally {
    pub(crate) fn done(&self) {
        self.0.done.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.0.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snoozed(&self) {
        self.0.snoozed.fetch_add(1, Ordering::Relaxed);
    }
}

impl History {
    /// A worker has ended.
    pub(crate) fn ended(&self, summary: &Summary, tally: &Tally) {
        self.answered("worker");
        let Summary {
            claimed,
            done,
            failed,
            dead,
            snoozed,
            released,
            lost,
            unknown,
            ..
        } = *summary;
        let sum = done + failed + dead + snoozed + released + lost + unknown;
        let [was_done, had_failed, was_snoozed] =
            [&tally.0.done, &tally.0.failed, &tally.0.snoozed].map(|it| it.load(Ordering::Relaxed));
        // Those that nobody ran are put off, too.
        let agree = (done, failed, lost, unknown) == (was_done, had_failed, 0, 0);
        let agree = agree && snoozed >= was_snoozed && dead == 0;
        let promise = "a worker counts what it has done";
        let is_known = self.is_plain() && !self.checks_in;
        if is_known && claimed > 0 {
            self.runtime.looks_at(promise);
        }
        if claimed != sum || (is_known && !agree) {
            let known = format!("{was_done} done, {had_failed} failed, {was_snoozed} snoozed");
            self.runtime
                .violate(promise, format!("{summary:?}: {known}"));
        }
    }
}
