//! What judges of a simulation see of jobs: the rows, and nothing that follows from them.

use super::Jobs;
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
    /// While it is parked: when it is due, in microseconds since 1970.
    pub parked: Option<i64>,
    /// How often it was delivered.
    pub attempt: i64,
    /// The token of its latest delivery, and when the lease of that ends.
    pub delivery: Option<(i64, i64)>,
}

impl Jobs {
    /// All jobs that have not ended, in no order.
    pub fn sights(&self) -> impl Iterator<Item = Sight<'_>> {
        self.live.iter().map(|(id, live)| Sight {
            id: *id,
            queue: &live.queue,
            group: &live.job.group,
            parked: live.due_at,
            attempt: live.attempt,
            delivery: live.running.map(|it| (it.token, it.lease_until)),
        })
    }
}
