//! What is left of a limit that one task alone uses, as far as its answers tell.

use lockapi::limit::{Decision, Quota};

/// How much is taken of a limit by the cell rate algorithm: its theoretical arrival time, between two bounds, in nanoseconds of the
/// server's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    quota: Quota,
    least: i64,
    most: i64,
    /// It refuses everything between the first time and the second, and nothing because of that after the third.
    blocked: Option<(i64, i64, i64)>,
}

/// When a call was sent and answered, by the server's clock.
pub(crate) type Sent = (i64, i64);

fn nanos(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

impl Level {
    /// Nothing is taken.
    pub(crate) fn new(quota: Quota) -> Self {
        Self {
            quota,
            least: 0,
            most: 0,
            blocked: None,
        }
    }

    fn price(&self, cost: u64) -> i64 {
        let interval = self.quota.period().as_nanos() / u128::from(self.quota.permits());
        i64::try_from(interval * u128::from(cost)).unwrap_or(i64::MAX)
    }

    fn depth(&self) -> i64 {
        self.price(self.quota.limit())
    }

    /// How long a call that is sent now may have to wait for its permits.
    pub(crate) fn waits(&self, cost: u64, now: i64) -> i64 {
        let blocked = self.blocked.map_or(0, |(_, _, until)| until - now);
        let taken = self.most.saturating_add(self.price(cost) - self.depth());
        taken.saturating_sub(now).max(blocked).max(0)
    }

    /// What is wrong with a decision; `looks`: it took nothing. Unless it is `exact`, a statement whose answer was lost may have taken
    /// some as well.
    pub(crate) fn decided(
        &mut self,
        decision: &Decision,
        (asked, answered): Sent,
        (looks, exact): (bool, bool),
    ) -> Option<&'static str> {
        let price = self.price(decision.cost());
        let taken = decision.taken_at().map(|at| {
            let since = at.duration_since(std::time::UNIX_EPOCH);
            nanos(since.unwrap_or_default())
        });
        // A look does not tell when it was.
        let at = taken.unwrap_or(answered);
        if !decision.is_admitted() {
            let waits = self.waits(decision.cost(), asked);
            let told = nanos(decision.retry_after());
            return match () {
                () if waits == 0 && exact => Some("limits refuse only what is not there"),
                // It counts from when the server decided, and is never too long.
                () if (told > waits && exact) || told == 0 => {
                    Some("who is refused is told when to come again")
                }
                () => None,
            };
        }
        let blocks = |(from, until, _): &(i64, i64, i64)| *from < asked && answered < *until;
        if self.blocked.as_ref().is_some_and(blocks) {
            return Some("what is blocked is refused");
        }
        let least = self.least.max(at) + price;
        if least - at > self.depth()
            || (!looks && taken.is_none_or(|at| at < asked || at > answered))
        {
            return Some("limits hold");
        }
        if !looks {
            self.least = least;
            self.most = self.most.max(at).saturating_add(price);
        }
        // Of what is left after it; the times are read in microseconds.
        let level = |tat: i64| (self.depth() - (tat - at).max(0)) / self.price(1);
        let left = i64::try_from(decision.remaining()).unwrap_or(i64::MAX);
        let fewest = if looks {
            (self.depth() - (self.most - asked).max(0)) / self.price(1)
        } else {
            level(self.most)
        };
        let fewest = if exact { fewest.max(0) } else { 0 };
        let is_told = (fewest..=level(self.least)).contains(&left);
        (!is_told).then_some("what is told of a limit is true")
    }

    /// A decision is to be refunded, or was: what was not replenished since is there again.
    pub(crate) fn refunded(&mut self, decision: &Decision, (_, answered): Sent, is_known: bool) {
        let Some(at) = decision.taken_at() else {
            return;
        };
        let at = nanos(at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default());
        let price = self.price(decision.cost());
        self.least -= price;
        if is_known {
            self.most -= (price - (answered - at)).max(0);
        }
    }

    /// Nothing is taken, and it is not blocked.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.quota);
    }

    /// It was blocked for a time, and refuses everything meanwhile.
    pub(crate) fn blocked(&mut self, (asked, answered): Sent, time: std::time::Duration) {
        let time = nanos(time);
        self.blocked = Some((answered, asked + time, answered + time));
    }
}
