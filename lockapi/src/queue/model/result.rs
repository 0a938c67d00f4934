//! The results of jobs.

use super::{Jobs, Status};
use crate::queue::operations::{AckWithResult, Name, ReadResult, SweepResults};
use crate::queue::{JobResult, ResultValue};

/// What the handler of a job returned.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    queue: Name,
    result: ResultValue,
    expires_at: i64,
}

impl Jobs {
    /// How many results there are, also those whose time is over.
    #[must_use]
    pub fn results(&self) -> usize {
        self.results.len()
    }

    /// Answers whether the delivery completed its job.
    pub(crate) fn ack_with_result(&mut self, now: i64, want: &AckWithResult) -> bool {
        let Some(live) = self.delivered(want.ack.ticket) else {
            return false;
        };
        let kept = Kept {
            queue: live.queue.clone(),
            result: want.result.clone(),
            expires_at: now.saturating_add(want.retention),
        };
        self.ack(now, &[want.ack]);
        self.results.insert(want.ack.ticket.id, kept);
        true
    }

    /// The result of a job of any queue.
    pub(super) fn kept_result(&self, now: i64, id: i64) -> Option<&ResultValue> {
        let kept = self.results.get(&id);
        Some(&kept.filter(|kept| kept.expires_at > now)?.result)
    }

    pub(crate) fn result(&self, now: i64, want: &ReadResult) -> JobResult<ResultValue> {
        let is_of = |queue: &Name| *queue == want.name;
        if self
            .live
            .get(&want.id)
            .is_some_and(|live| is_of(&live.queue))
        {
            return JobResult::Pending;
        }
        let kept = self.results.get(&want.id);
        if let Some(kept) = kept.filter(|kept| kept.expires_at > now && is_of(&kept.queue)) {
            return JobResult::Value(kept.result.clone());
        }
        match self.ended.get(&want.id) {
            Some(ended) if is_of(&ended.job.queue) => match ended.status {
                Status::Completed => JobResult::NoValue,
                Status::Failed => JobResult::Failed {
                    error: ended.job.error.clone(),
                },
                Status::Cancelled => JobResult::Cancelled,
            },
            _ => JobResult::Unknown,
        }
    }

    /// Answers how many were deleted, how many were looked at, and the last of them.
    pub(crate) fn sweep_results(
        &mut self,
        now: i64,
        want: &SweepResults,
    ) -> (i64, i64, Option<i64>) {
        let most = usize::try_from(want.most).unwrap_or(0);
        let part = self.results.range(want.after.saturating_add(1)..);
        let part: Vec<_> = part
            .take(most)
            .map(|(id, kept)| (*id, kept.expires_at <= now))
            .collect();
        let mut deleted = 0;
        for (id, _) in part.iter().filter(|(_, expired)| *expired) {
            self.results.remove(id);
            deleted += 1;
        }
        let seen = i64::try_from(part.len()).unwrap_or(i64::MAX);
        (deleted, seen, part.last().map(|(id, _)| *id))
    }
}
