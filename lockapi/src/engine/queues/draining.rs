//! Draining a queue: pausing it, and waiting until no job of it runs.
//!
//! Once the pause is committed, no further job of the queue begins to run. So a part of it in which none runs is
//! not read again, and a wait reads each job once, and the part in which one still runs with each look.

use std::time::Duration;

use super::handle::Handle;
use crate::engine::clock::Time;
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{CountRunning, Drained, Floor, Pause, Priority, RunningPart, Tally};

/// How many jobs of a priority a look examines.
const EXAMINED: i64 = 2500;
/// The first and the longest pause between two looks.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What the looks have found so far.
struct Drain {
    /// Below these places no job runs.
    priorities: Vec<(i64, Floor)>,
    /// Transactions that had begun when the queue was paused, one of which may be a claim that has not seen it;
    /// `None` before the first look.
    before: Option<Vec<i64>>,
    /// When the queue was paused, as the first look has found it.
    paused_at: i64,
}

/// What a look has found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// No job runs.
    Nothing,
    /// The next look goes further.
    Further,
    /// These do.
    Running(Tally),
}

impl Drain {
    fn new() -> Self {
        Self {
            priorities: Priority::ALL.map(|it| (it.number(), (0, 0))).to_vec(),
            before: None,
            paused_at: 0,
        }
    }

    /// Whether somebody has resumed the queue, and paused it again, since the first look: jobs may have begun to run
    /// anywhere.
    fn is_outdated(&self, part: &RunningPart) -> bool {
        self.before.is_some() && part.changed_at != self.paused_at
    }

    /// A look was answered. Transactions count no longer where they are `settled`.
    fn looked(&mut self, part: &RunningPart, settled: bool) -> Found {
        // The part may have been read before the last of them ended.
        let sees_all = settled || self.before.as_ref().is_some_and(Vec::is_empty);
        let first = self.before.is_none();
        let before = self.before.get_or_insert_with(|| part.transactions.clone());
        before.retain(|it| part.transactions.contains(it));
        let full = part.levels.iter().any(|level| level.examined >= EXAMINED);
        let running: i64 = part.levels.iter().map(|level| level.running).sum();
        if first {
            self.paused_at = part.changed_at;
            return Found::Further;
        }
        if !sees_all {
            return Found::Running(tally(running, true));
        }
        let mut further = false;
        for level in part.levels.iter().filter(|level| level.running == 0) {
            let mut places = self.priorities.iter_mut();
            if let Some(place) = places.find(|place| place.0 == level.priority)
                && let Some(reached) = level.reached
            {
                place.1 = reached;
                further |= level.examined >= EXAMINED;
            }
        }
        if further {
            Found::Further
        } else if running == 0 {
            Found::Nothing
        } else {
            Found::Running(tally(running, full))
        }
    }
}

fn tally(count: i64, more: bool) -> Tally {
    Tally {
        count: count.max(0).unsigned_abs(),
        more,
    }
}

/// Whether it may help to ask again.
fn passes(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Indeterminate | ErrorKind::TimedOut
    )
}

impl Handle {
    /// Waits before another look, or answers that there is no time for one.
    async fn look_later(&self, wait: &mut Duration, until: Time) -> bool {
        let timer = &self.core.connections.timer;
        let left = until.saturating_sub(timer.now());
        if left.is_zero() {
            return false;
        }
        timer.sleep((*wait).min(left)).await;
        *wait = (*wait * 2).min(PAUSES.1);
        true
    }

    pub(super) async fn drain(&self, pause: Pause, timeout: Duration) -> Result<Drained> {
        let timer = &self.core.connections.timer;
        let until = timer.now().saturating_add(timeout);
        let mut wait = PAUSES.0;
        while let Err(error) = self.set_paused(Some(pause)).await {
            if !passes(&error) || !self.look_later(&mut wait, until).await {
                return Err(error.during("drain"));
            }
        }
        // No claim takes longer than that.
        let mut settled = timer.now() + self.core.connections.timeout;
        let mut drain = Drain::new();
        let mut wait = PAUSES.0;
        let mut first = true;
        loop {
            let sent = timer.now();
            let count = CountRunning {
                name: self.name.clone(),
                priorities: drain.priorities.clone(),
                most: EXAMINED,
            };
            let part = match self.call_in_bulk(count).await {
                Ok(part) => part,
                Err(error) if passes(&error) && self.look_later(&mut wait, until).await => continue,
                Err(error) => return Err(error.during("drain")),
            };
            if drain.is_outdated(&part) {
                drain = Drain::new();
                settled = timer.now() + self.core.connections.timeout;
            }
            let (running, further) = match drain.looked(&part, sent >= settled) {
                Found::Nothing => (tally(0, false), false),
                Found::Further => (tally(0, true), true),
                Found::Running(tally) => (tally, false),
            };
            let drained = Drained {
                running,
                paused: part.paused,
            };
            if !part.paused || drained.is_complete() {
                return Ok(drained);
            }
            // The first look tells only whom to wait for.
            if further && (std::mem::take(&mut first) || timer.now() < until) {
                continue;
            }
            if !self.look_later(&mut wait, until).await {
                return Ok(drained);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::operations::RunningLevel;

    fn part(levels: &[(i64, i64, i64)], transactions: &[i64]) -> RunningPart {
        let level = |(priority, examined, running): &(i64, i64, i64)| RunningLevel {
            priority: *priority,
            examined: *examined,
            running: *running,
            reached: (*examined > 0).then_some((*examined, 7)),
        };
        RunningPart {
            levels: levels.iter().map(level).collect(),
            paused: true,
            changed_at: 1,
            transactions: transactions.to_vec(),
        }
    }

    fn place(drain: &Drain, priority: i64) -> Floor {
        let mut places = drain.priorities.iter();
        places.find(|place| place.0 == priority).unwrap().1
    }

    #[test]
    fn claims_that_began_before_the_pause_are_waited_for() {
        let mut drain = Drain::new();
        let clean = [(1, 10, 0), (2, 0, 0)];
        let unknown = Found::Running(tally(0, true));
        assert_eq!(drain.looked(&part(&clean, &[1, 2]), false), Found::Further);
        // Others that begin later have seen it.
        assert_eq!(drain.looked(&part(&clean, &[2, 3]), false), unknown);
        // This was read before the last one ended, perhaps.
        assert_eq!(drain.looked(&part(&clean, &[3]), false), unknown);
        assert_eq!(place(&drain, 1), (0, 0));
        assert_eq!(drain.looked(&part(&clean, &[3]), false), Found::Nothing);

        let mut drain = Drain::new();
        assert_eq!(drain.looked(&part(&clean, &[]), false), Found::Further);
        assert_eq!(drain.looked(&part(&clean, &[]), false), Found::Nothing);
        let mut drain = Drain::new();
        assert_eq!(drain.looked(&part(&clean, &[1]), false), Found::Further);
        assert_eq!(drain.looked(&part(&clean, &[1]), false), unknown);
        assert_eq!(drain.looked(&part(&clean, &[1]), true), Found::Nothing);
    }

    #[test]
    fn another_pause_than_the_first_makes_it_outdated() {
        let mut drain = Drain::new();
        let mut clean = part(&[(1, 10, 0)], &[]);
        assert!(!drain.is_outdated(&clean));
        assert_eq!(drain.looked(&clean, false), Found::Further);
        assert!(!drain.is_outdated(&clean));
        clean.changed_at += 1;
        assert!(drain.is_outdated(&clean));
    }

    #[test]
    fn parts_in_which_none_runs_are_not_read_again() {
        let mut drain = Drain::new();
        drain.before = Some(Vec::new());
        let full = part(&[(1, EXAMINED, 3), (2, EXAMINED, 0)], &[]);
        assert_eq!(drain.looked(&full, false), Found::Further);
        assert_eq!(place(&drain, 1), (0, 0));
        assert_eq!(place(&drain, 2), (EXAMINED, 7));
        let rest = part(&[(1, EXAMINED, 3), (2, 5, 0)], &[]);
        assert_eq!(drain.looked(&rest, false), Found::Running(tally(3, true)));
        let rest = part(&[(1, EXAMINED, 0), (2, 0, 0)], &[]);
        assert_eq!(drain.looked(&rest, false), Found::Further);
        let rest = part(&[(1, 4, 1), (2, 0, 0)], &[]);
        assert_eq!(drain.looked(&rest, false), Found::Running(tally(1, false)));
        let rest = part(&[(1, 4, 0), (2, 0, 0)], &[]);
        assert_eq!(drain.looked(&rest, false), Found::Nothing);
    }
}
