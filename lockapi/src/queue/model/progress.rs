//! What handlers told of their jobs.

use super::{Jobs, LiveJob};
use crate::queue::operations::{Report, SweepProgress};

/// What the latest delivery that told anything told last.
#[derive(Clone, Debug)]
pub(super) struct Told {
    token: i64,
    pub(super) millionths: i64,
    pub(super) note: String,
    pub(super) reported_at: i64,
}

impl Jobs {
    /// How many jobs have a report, there or gone.
    #[must_use]
    pub fn reports(&self) -> usize {
        self.told.len()
    }

    /// The server has crashed: the table is not logged.
    pub(crate) fn forget_reports(&mut self) {
        self.told.clear();
    }

    /// Answers whether it was stored.
    pub(crate) fn report(&mut self, now: i64, want: &Report) -> bool {
        let (id, token) = (want.ticket.id, want.ticket.token);
        let ended = || self.ended.get(&id).map(|ended| &ended.job);
        let job = self.live.get(&id).or_else(ended);
        let is_latest = job.is_some_and(|job| job.has(want.ticket));
        let before = self.told.get(&id);
        if !is_latest || before.is_some_and(|told| told.token > token) {
            return false;
        }
        let told = Told {
            token,
            millionths: want.millionths,
            note: want.note.clone(),
            reported_at: now,
        };
        self.told.insert(id, told);
        true
    }

    /// What is shown of a job: not what was told by a delivery before the latest, and nothing of a job that
    /// begins anew.
    pub(super) fn told(&self, id: i64, job: &LiveJob) -> Option<&Told> {
        let told = self.told.get(&id)?;
        let token = job.running.map_or(told.token, |running| running.token);
        (job.attempt > 0 && told.token == token).then_some(told)
    }

    /// Answers how many were deleted, how many were looked at, and the last of them.
    pub(crate) fn sweep_progress(&mut self, want: &SweepProgress) -> (i64, i64, Option<i64>) {
        let most = usize::try_from(want.most).unwrap_or(0);
        let part = self.told.range(want.after.saturating_add(1)..);
        let part: Vec<i64> = part.take(most).map(|(id, _)| *id).collect();
        let mut deleted = 0;
        for id in &part {
            if !self.live.contains_key(id) && !self.ended.contains_key(id) {
                self.told.remove(id);
                deleted += 1;
            }
        }
        let seen = i64::try_from(part.len()).unwrap_or(i64::MAX);
        (deleted, seen, part.last().copied())
    }
}
