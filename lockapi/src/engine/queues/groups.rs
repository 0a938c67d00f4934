//! Admitting jobs of groups.
//!
//! Whoever claims admits: a claim that finds fewer jobs than it wants, while others are parked, is followed
//! by an admission and by another claim. So it does not matter who ended a job, or who pushed one, and how: a
//! place that was left is found by the next that has nothing better to do. A process that is idle claims nothing
//! until its next poll, so it also admits when it has left a place itself. Where many are admitted at once, the next ones are
//! before the last of them are claimed, on a connection of its own: what else there is to do for jobs goes on meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::Queues;
use super::handle::Handle;
use super::limiting;
use super::topic::Topic;
use crate::engine::batcher::{ALONE, Batcher, Queued};
use crate::engine::timer::Timer;
use crate::error::Result;
use crate::lease::micros;
use crate::queue::{Admit, Admitted, SetGroupLimit, SetGroups};

/// How many groups a statement looks at, which takes a few milliseconds.
const GROUPS: i64 = 256;
/// Where a statement admits so many jobs, the next one is sent when half of them are left.
const MANY: usize = 128;
/// How many such statements follow each other where no group has room.
const LOOKS: usize = 16;
/// Where there is always enough to claim, jobs are admitted as often nevertheless.
const OFTEN: Duration = Duration::from_millis(250);
/// How often somebody looks whether there are any, who has seen none.
const SELDOM: Duration = Duration::from_secs(1);
/// Nobody looks more often than this because of a permit that comes.
const NEXT: Duration = Duration::from_millis(1);

impl Queued for Admit {
    const NAME: &'static str = "admit";
    const REPEATABLE: bool = true;

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Queued for SetGroups {
    const NAME: &'static str = "set_groups";
    const REPEATABLE: bool = true;

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Queued for SetGroupLimit {
    const NAME: &'static str = "set_group_limit";
    const REPEATABLE: bool = true;

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Handle {
    fn admission(&self) -> Admit {
        Admit {
            name: self.name.clone(),
            groups: GROUPS,
        }
    }

    /// Admits jobs; whether there may be any now.
    pub(super) async fn admit(&self) -> Result<bool> {
        let timer = &self.core.queues.timer;
        for _ in 0..LOOKS {
            let begun = self.topic.admission_begins();
            let admitting = self.core.queues.admitting(&self.topic);
            let answer = admitting.call(self.admission()).await;
            let answer = answer.map_err(|error| error.on(&self.name.queue))?;
            let Some(admitted) = answer else {
                // What another process admits may be claimed here, and what it has not seen is admitted by the next one.
                timer.sleep(self.topic.admission_was_busy()).await;
                self.topic.bump();
                return Ok(true);
            };
            self.topic.admitted(timer, begun, &admitted);
            if admitted.jobs > 0 {
                // There may be more than this process has room for.
                self.notifier().notify();
                // Others of it may have been told that there are none.
                self.topic.bump();
                return Ok(true);
            }
            if admitted.examined < GROUPS {
                break;
            }
        }
        Ok(false)
    }

    /// Admits jobs for one of those who wait, whose claim was sent after so many admissions. `None` if one is under way, which
    /// is repeated, or if one that began since has found nothing: who waits is woken by what is admitted.
    pub(super) async fn admit_for_all(&self, before: u64) -> Option<Result<bool>> {
        // A claim that was answered since may have seen none parked.
        let parked = true;
        if self.topic.has_found_nothing_since(before)
            || !self.topic.begin_admission_or_repeat(parked)
        {
            return None;
        }
        let mut running = RunningAdmission {
            handle: self,
            answered: false,
        };
        let admitted = self.admit().await;
        running.answered = true;
        Some(admitted)
    }

    /// So many jobs of groups were claimed: before none are left, others are admitted.
    pub(super) fn claimed_of_groups(&self, jobs: usize) {
        if jobs > 0 && self.topic.is_running_low(jobs) {
            self.admit_later();
        }
    }

    /// Admits jobs in the background, unless that is under way.
    pub(super) fn admit_later(&self) {
        if self.topic.begin_admission() {
            self.core.queues.admit(&self.topic, self.admission());
        }
    }

    /// A job of this process has left its place, if it was of a group: what is parked may take it, although no
    /// claim is due that would find out. An admission that is under way may have looked before.
    pub(super) fn place_left(&self) {
        if self.topic.begin_admission_or_repeat(false) {
            self.core.queues.admit(&self.topic, self.admission());
        }
    }

    /// Admits jobs although nobody misses any: where there are always enough without groups, or as many as a limit of the queue
    /// allows, or where they are taken in transactions.
    pub(super) fn admit_now_and_then(&self) {
        if self.topic.is_admission_due(self.core.queues.timer.now()) {
            self.admit_later();
        }
    }
}

/// An admission that a caller waits for, who may leave.
struct RunningAdmission<'h> {
    handle: &'h Handle,
    answered: bool,
}

impl Drop for RunningAdmission<'_> {
    fn drop(&mut self) {
        if self.handle.topic.end_admission() {
            self.handle.admit_later();
        }
        // The server may admit jobs of which nobody is told then. Who waits asks behind it.
        if !self.answered {
            self.handle.topic.bump();
        }
    }
}

impl Queues {
    /// Where an admission takes its time, nothing else waits behind it.
    fn admitting(&self, topic: &Topic) -> &Arc<Batcher> {
        let admission = topic.admission();
        let takes_long = admission.examined >= GROUPS || admission.last >= MANY;
        if takes_long {
            &self.admissions
        } else {
            &self.batcher
        }
    }

    /// Admits jobs in the background, and once more if a place was left meanwhile.
    fn admit(self: &Arc<Self>, topic: &Arc<Topic>, admission: Admit) {
        let (queues, topic) = (Arc::clone(self), Arc::clone(topic));
        let begun = topic.admission_begins();
        let admitting = Arc::clone(self.admitting(&topic));
        admitting.submit(admission.clone(), move |answer| {
            // The next claim that finds nothing meets the error as well.
            match &answer {
                Ok(None) => return queues.admit_again(topic, admission),
                Ok(Some(admitted)) => topic.admitted(&queues.timer, begun, admitted),
                Err(_) => {}
            }
            if topic.end_admission() && answer.is_ok() && topic.begin_admission() {
                queues.admit(&topic, admission);
            }
            // Last, because it runs wakers.
            if matches!(answer, Ok(Some(admitted)) if admitted.jobs > 0) {
                topic.bump();
            }
        });
    }

    /// Another process admits, and may not have seen the place that was left here.
    fn admit_again(self: &Arc<Self>, topic: Arc<Topic>, admission: Admit) {
        let at = self.timer.now() + topic.admission_was_busy();
        let queues = Arc::downgrade(self);
        self.timer.run_at(at, move || {
            if let Some(queues) = queues.upgrade() {
                queues.admit(&topic, admission);
            }
        });
    }
}

/// What a process knows of the groups of a queue.
#[derive(Default)]
pub(super) struct Admission {
    /// When jobs were last admitted, or there were none to admit.
    at: Option<Duration>,
    /// Whether there were parked jobs then.
    grouped: bool,
    /// Whether some are being admitted in the background.
    running: bool,
    /// Whether a place was left since that began.
    repeat: bool,
    /// How often some were admitted.
    count: u64,
    /// How many have begun.
    begun: u64,
    /// The latest of these that has found nothing in any group.
    found_nothing: u64,
    /// How many jobs the last one has admitted.
    last: usize,
    /// At how many groups it has looked.
    examined: i64,
    /// How many were admitted here that nobody has claimed yet, as far as this process knows.
    ahead: usize,
    /// How many in a row met another process that was admitting.
    busy: u32,
}

impl Topic {
    /// Counts how often this process has admitted jobs.
    pub(super) fn admissions(&self) -> u64 {
        self.admission().count
    }

    /// Whether an admission that others wait for is under way, or was not answered.
    pub(super) fn is_admission_running(&self) -> bool {
        self.admission().running
    }

    /// Counts how many admissions of this process have begun.
    pub(super) fn admissions_begun(&self) -> u64 {
        self.admission().begun
    }

    fn admission_begins(&self) -> u64 {
        let mut admission = self.admission();
        admission.begun += 1;
        admission.begun
    }

    /// Whether one that began after so many has found nothing.
    fn has_found_nothing_since(&self, begun: u64) -> bool {
        self.admission().found_nothing > begun
    }

    /// One met another process that was admitting; how long to wait now.
    fn admission_was_busy(&self) -> Duration {
        let mut admission = self.admission();
        admission.busy = admission.busy.saturating_add(1);
        limiting::pause(admission.busy)
    }

    fn begin_admission(&self) -> bool {
        !std::mem::replace(&mut self.admission().running, true)
    }

    /// The same for a place that was left, or where jobs are parked: an admission that is under way is repeated.
    fn begin_admission_or_repeat(&self, parked: bool) -> bool {
        let mut admission = self.admission();
        admission.grouped |= parked;
        if !admission.grouped {
            return false;
        }
        admission.repeat |= admission.running;
        !std::mem::replace(&mut admission.running, true)
    }

    /// Whether it has to be repeated.
    fn end_admission(&self) -> bool {
        let mut admission = self.admission();
        admission.running = false;
        std::mem::take(&mut admission.repeat)
    }

    fn is_admission_due(&self, now: Duration) -> bool {
        let admission = self.admission();
        let often = if admission.grouped { OFTEN } else { SELDOM };
        admission.at.is_none_or(|at| now >= at + often)
    }

    /// Whether few are left of those that were admitted, now that so many were claimed.
    fn is_running_low(&self, claimed: usize) -> bool {
        let mut admission = self.admission();
        admission.ahead = admission.ahead.saturating_sub(claimed);
        admission.last >= MANY && admission.ahead <= admission.last / 2
    }

    /// A claim that found fewer jobs than it wanted has seen whether some are parked.
    pub(super) fn saw_parked(&self, now: Duration, parked: bool) {
        let mut admission = self.admission();
        admission.ahead = 0;
        admission.grouped = parked;
        if !parked {
            admission.at = Some(now);
        }
    }

    fn admitted(self: &Arc<Self>, timer: &Timer, begun: u64, admitted: &Admitted) {
        let now = timer.now();
        {
            let mut admission = self.admission();
            admission.at = Some(now);
            admission.busy = 0;
            admission.last = usize::try_from(admitted.jobs).unwrap_or_default();
            admission.ahead += admission.last;
            admission.examined = admitted.examined;
            admission.grouped = admitted.examined > 0 || admitted.next_due.is_some();
            admission.count += u64::from(admitted.jobs > 0);
            if admitted.jobs == 0 && admitted.examined < GROUPS {
                admission.found_nothing = admission.found_nothing.max(begun);
            }
        }
        if let Some(next) = admitted.next_due {
            self.due_in(timer, next.max(micros(NEXT)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::clock::Clock;

    #[test]
    fn others_are_admitted_before_none_are_left() {
        let timer = Timer::start(&Clock::real()).unwrap();
        let topic = Arc::new(Topic::default());
        let admitted = |jobs, examined| {
            let next_due = None;
            let answer = Admitted {
                jobs,
                examined,
                next_due,
            };
            topic.admitted(&timer, topic.admission_begins(), &answer);
        };
        admitted(10, GROUPS);
        assert!(!topic.is_running_low(10), "they are few");
        admitted(200, GROUPS);
        assert!(!topic.is_running_low(99));
        assert!(topic.is_running_low(1));
        admitted(200, GROUPS);
        assert!(!topic.is_running_low(16), "others were admitted meanwhile");
        topic.saw_parked(timer.now(), true);
        assert!(topic.is_running_low(1), "others have claimed them");
    }

    #[test]
    fn who_meets_another_that_admits_waits_longer_each_time() {
        let timer = Timer::start(&Clock::real()).unwrap();
        let topic = Arc::new(Topic::default());
        let pauses: Vec<_> = (0..6).map(|_| topic.admission_was_busy()).collect();
        assert!(pauses[0] < Duration::from_millis(8) && pauses[5] > Duration::from_millis(30));
        let none = Admitted {
            jobs: 0,
            examined: 0,
            next_due: None,
        };
        topic.admitted(&timer, topic.admission_begins(), &none);
        assert!(topic.admission_was_busy() < Duration::from_millis(8));
    }

    #[test]
    fn a_place_left_during_an_admission_repeats_it() {
        let topic = Arc::new(Topic::default());
        assert!(!topic.begin_admission_or_repeat(false), "nothing is parked");
        topic.admission().grouped = true;
        assert!(topic.begin_admission());
        assert!(!topic.begin_admission(), "one at a time");
        assert!(!topic.begin_admission_or_repeat(false), "one at a time");
        assert!(topic.end_admission(), "the place is seen by nobody else");
        assert!(topic.begin_admission_or_repeat(false));
        assert!(!topic.end_admission());
    }
}
