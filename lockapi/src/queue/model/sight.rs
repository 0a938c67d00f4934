//! What judges of a simulation see of jobs: the rows, and nothing that follows from them.

use std::collections::BTreeSet;

use super::Jobs;
use crate::queue::Ticket;
use crate::queue::operations::Name;

/// A job that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// Its number.
    pub id: i64,
    /// Its queue.
    pub queue: &'a Name,
    /// Its group; empty is none.
    pub group: &'a str,
    /// The key that it is limited by, if that is not its group.
    pub key: Option<&'a str>,
    /// Its unique key; empty is none.
    pub unique: &'a str,
    /// While it is parked: when it is due, in microseconds since 1970.
    pub parked: Option<i64>,
    /// When it is due, or its lease ends, in microseconds since 1970.
    pub due: i64,
    /// How often it was delivered.
    pub attempt: i64,
    /// The token of its latest delivery, and when the lease of that ends.
    pub delivery: Option<(i64, i64)>,
}

/// Rows that an open transaction has locked, as with `SELECT … FOR UPDATE`. Statements skip them, but those that complete
/// deliveries without looking for a lock: whoever runs these asks first.
impl Jobs {
    /// Locks the rows of these jobs, but those that are locked, or are runs of tasks; answers which.
    pub(crate) fn lock_rows(&mut self, ids: &[i64]) -> Vec<i64> {
        let is_run = |id| self.live.get(id).is_none_or(|live| !live.task.is_empty());
        let free = ids.iter().filter(|id| !is_run(id));
        let free: Vec<_> = free.copied().collect();
        self.lock_rows_of(&free)
    }

    /// Locks the rows of these jobs, but those that are locked; answers which.
    pub(crate) fn lock_rows_of(&mut self, ids: &[i64]) -> Vec<i64> {
        let free = ids.iter().filter(|id| !self.locked.contains(id));
        let free: Vec<_> = free.copied().collect();
        self.locked.extend(&free);
        free
    }

    /// The transactions have ended.
    pub(crate) fn unlock_rows(&mut self, ids: &[i64]) {
        self.locked.retain(|id| !ids.contains(id));
    }

    /// No transaction is open any more.
    pub(crate) fn unlock_all_rows(&mut self) {
        self.locked.clear();
    }

    /// A copy in which a statement that reads no job that has ended can be tried.
    pub(crate) fn trial(&mut self) -> Self {
        let ended = std::mem::take(&mut self.ended);
        let trial = self.clone();
        self.ended = ended;
        trial
    }

    /// The number of the latest job.
    pub(crate) fn last_number(&self) -> i64 {
        self.numbers
    }

    /// Jobs that are pushed get the numbers after this one.
    pub(crate) fn set_last_number(&mut self, number: i64) {
        self.numbers = number;
    }

    /// The jobs that have not ended, in their order.
    pub(crate) fn numbers(&self) -> BTreeSet<i64> {
        self.live.keys().copied().collect()
    }

    /// Locks the rows of all jobs but these, and answers which it has locked.
    pub(crate) fn lock_all_but(&mut self, ids: &[i64]) -> Vec<i64> {
        let others = self.live.keys().filter(|id| !ids.contains(id));
        let others: Vec<_> = others
            .filter(|id| !self.locked.contains(id))
            .copied()
            .collect();
        self.locked.extend(&others);
        others
    }

    /// Whether the row of a job is locked.
    #[must_use]
    pub fn is_row_locked(&self, id: i64) -> bool {
        self.locked.contains(&id)
    }

    /// Whether somebody who completes these deliveries waits for a row.
    #[must_use]
    pub fn waits_to_complete(&self, ids: &[i64], tokens: &[i64]) -> bool {
        let tickets = ids.iter().zip(tokens);
        let mut tickets = tickets.map(|(id, token)| Ticket {
            id: *id,
            token: *token,
        });
        tickets.any(|ticket| self.locked.contains(&ticket.id) && self.delivered(ticket).is_some())
    }
}

impl Jobs {
    /// All jobs that have not ended, in no order.
    pub fn sights(&self) -> impl Iterator<Item = Sight<'_>> {
        self.live.iter().map(|(id, live)| Sight {
            id: *id,
            queue: &live.queue,
            group: &live.job.group,
            key: live.other_key(),
            unique: &live.unique_key,
            parked: live.due_at,
            due: live.run_at,
            attempt: live.attempt,
            delivery: live.running.map(|it| (it.token, it.lease_until)),
        })
    }
}
