//! Admitting jobs of groups.
//!
//! Whoever claims admits: a claim that finds fewer jobs than it wants, while others are parked, is followed
//! by an admission and by another claim. So it does not matter who ended a job, or who pushed one, and how: a
//! place that was left is found by the next that has nothing better to do. A process that is idle claims nothing
//! until its next poll, so it also admits when it has left a place itself.

use std::sync::Arc;
use std::time::Duration;

use super::Queues;
use super::handle::Handle;
use super::limiting;
use super::topic::Topic;
use crate::engine::batcher::{ALONE, Queued};
use crate::engine::timer::Timer;
use crate::error::{Error, ErrorKind, LOCKED, Result};
use crate::lease::micros;
use crate::queue::{Admit, Admitted, SetGroupLimit, SetGroups};

/// How many groups a statement looks at, which takes a few milliseconds.
const GROUPS: i64 = 256;
/// How many such statements follow each other where no group has room.
const LOOKS: usize = 16;
/// Where there is always enough to claim, jobs are admitted as often nevertheless.
const OFTEN: Duration = Duration::from_millis(250);
/// Others that were met so far apart have nothing to do with each other.
const APART: Duration = Duration::from_secs(2);
/// Whoever is met again and again for so long, so often at least, does not end.
const BLOCKED: Duration = Duration::from_secs(30);
const MANY_TIMES: u32 = 64;
/// The pause of a claim that does not wait, by how many had to pause before.
const PAUSE: u32 = 2;
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

    /// Admits jobs for one that asks once, or for a worker; whether there may be any now.
    pub(super) async fn admit(&self, asks_once: bool) -> Result<bool> {
        let looked = if self.topic.is_admission_paused() {
            Look::Busy { after_looks: true }
        } else {
            self.look().await?
        };
        match looked {
            Look::Some => Ok(true),
            Look::None => Ok(false),
            Look::Busy { .. } if asks_once => {
                // What others admit may be claimed here.
                self.core.queues.timer.sleep(limiting::pause(PAUSE)).await;
                Ok(true)
            }
            Look::Busy { after_looks } => {
                if !after_looks && self.topic.begin_admission_or_repeat(true) {
                    self.core.queues.admit_again(&self.topic, self.admission());
                }
                Ok(false)
            }
        }
    }

    /// Admits jobs, unless others do.
    async fn look(&self) -> Result<Look> {
        for nth in 0..LOOKS {
            let begun = self.topic.admission_begins();
            let timer = &self.core.queues.timer;
            let Some(admitted) = self.call(self.admission()).await? else {
                if self.topic.met_another(timer.now()) {
                    let message = format!("admitting jobs is {LOCKED}");
                    let error = Error::new(ErrorKind::TimedOut, "admit", message);
                    return Err(error.on(&self.name.queue));
                }
                let after_looks = nth > 0;
                return Ok(Look::Busy { after_looks });
            };
            let was_busy = self.topic.admitted(timer, begun, &admitted);
            if admitted.jobs > 0 {
                // There may be more than this process has room for.
                self.notifier().notify();
            }
            if admitted.jobs > 0 || was_busy {
                // Others of it may have been told that there are none.
                self.topic.bump();
            }
            if admitted.jobs > 0 {
                return Ok(Look::Some);
            }
            if admitted.examined < GROUPS {
                break;
            }
        }
        Ok(Look::None)
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
            ends: true,
            answered: false,
        };
        let looked = self.look().await;
        running.answered = true;
        Some(looked.map(|looked| {
            if matches!(looked, Look::Busy { after_looks: false }) {
                // It goes on in the background, and who waits is told.
                running.ends = false;
                self.core.queues.admit_again(&self.topic, self.admission());
            }
            matches!(looked, Look::Some)
        }))
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

/// What became of an admission.
#[derive(Clone, Copy, Debug)]
enum Look {
    Some,
    None,
    /// Another session admits jobs of the queue; whether that goes on behind groups that were looked at here in vain.
    Busy {
        after_looks: bool,
    },
}

/// An admission that a caller waits for, who may leave.
struct RunningAdmission<'h> {
    handle: &'h Handle,
    /// Whether it does not go on in the background.
    ends: bool,
    answered: bool,
}

impl Drop for RunningAdmission<'_> {
    fn drop(&mut self) {
        if self.ends && self.handle.topic.end_admission() {
            self.handle.admit_later();
        }
        // The server may admit jobs of which nobody is told then. Who waits asks behind it.
        if !self.answered {
            self.handle.topic.bump();
        }
    }
}

impl Queues {
    /// Admits jobs in the background, and once more if a place was left meanwhile.
    fn admit(self: &Arc<Self>, topic: &Arc<Topic>, admission: Admit) {
        let (queues, topic) = (Arc::clone(self), Arc::clone(topic));
        let begun = topic.admission_begins();
        self.batcher.submit(admission.clone(), move |answer| {
            let now = queues.timer.now();
            let admitted = match answer {
                Ok(Some(admitted)) => admitted,
                Ok(None) if !topic.met_another(now) => {
                    return queues.admit_again(&topic, admission);
                }
                // The next claim that finds nothing is told the same.
                failed => {
                    let was_busy = topic.admission_failed(now, failed.is_ok());
                    if was_busy {
                        topic.bump();
                    }
                    return;
                }
            };
            let was_busy = topic.admitted(&queues.timer, begun, &admitted);
            if topic.end_admission() && topic.begin_admission() {
                queues.admit(&topic, admission);
            }
            // Last, because it runs wakers. What others have admitted meanwhile may be claimed here.
            if was_busy || admitted.jobs > 0 {
                topic.bump();
            }
        });
    }

    /// Another session admits, and may not have seen the place that was left here: tries again in a while.
    fn admit_again(self: &Arc<Self>, topic: &Arc<Topic>, admission: Admit) {
        let at = self.timer.now() + topic.pause_admission();
        let (queues, topic) = (Arc::downgrade(self), Arc::downgrade(topic));
        self.timer.run_at(at, move || {
            if let (Some(queues), Some(topic)) = (queues.upgrade(), topic.upgrade()) {
                topic.resume_admission();
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
    /// Whether some are being admitted for all who wait.
    state: State,
    /// Whether a place was left since that began.
    repeat: bool,
    /// How often some were admitted.
    count: u64,
    /// How many have begun.
    begun: u64,
    /// The latest of these that has found nothing in any group.
    found_nothing: u64,
    /// The last ones met another session that admits.
    busy: Option<Busy>,
    /// What the last one has told that has not.
    last: Option<Admitted>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    UnderWay,
    /// Another session admits: it is tried again.
    Paused,
}

/// Admissions that met another session that admits, one after the other.
#[derive(Clone, Copy)]
struct Busy {
    since: Duration,
    last: Duration,
    times: u32,
}

impl Admission {
    /// Whether none is under way: now one is.
    fn begin(&mut self) -> bool {
        let begins = self.state == State::Idle;
        if begins {
            self.state = State::UnderWay;
        }
        begins
    }
}

impl Topic {
    /// Counts how often this process has admitted jobs.
    pub(super) fn admissions(&self) -> u64 {
        self.admission().count
    }

    /// Whether an admission that others wait for is under way, or was not answered.
    pub(super) fn is_admission_running(&self) -> bool {
        self.admission().state == State::UnderWay
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

    /// One met another session that admits; whether all have for so long that this does not go on.
    fn met_another(&self, now: Duration) -> bool {
        let mut admission = self.admission();
        let before = admission.busy.filter(|it| now < it.last + APART);
        let since = before.map_or(now, |it| it.since);
        let times = before.map_or(0, |it| it.times).saturating_add(1);
        admission.busy = Some(Busy {
            since,
            last: now,
            times,
        });
        now >= since + BLOCKED && times >= MANY_TIMES
    }

    /// One failed, or another session admits all the time: nothing is tried again at once. Whether those before it met another
    /// session.
    fn admission_failed(&self, now: Duration, is_blocked: bool) -> bool {
        let mut admission = self.admission();
        admission.at = Some(now);
        admission.state = State::Idle;
        admission.repeat = false;
        let was_busy = admission.busy.is_some();
        if !is_blocked {
            admission.busy = None;
        }
        was_busy
    }

    /// Whether another session admits, and it is waited for the next try.
    fn is_admission_paused(&self) -> bool {
        self.admission().state == State::Paused
    }

    /// The pause is over.
    fn resume_admission(&self) {
        let mut admission = self.admission();
        admission.state = State::UnderWay;
        admission.repeat = false;
    }

    /// It is tried again; how long to wait. Where no group has room there is no hurry.
    fn pause_admission(&self) -> Duration {
        let mut admission = self.admission();
        admission.state = State::Paused;
        let times = admission.busy.map_or(0, |busy| busy.times);
        let is_vain = |last: Admitted| last.jobs == 0 && last.examined >= GROUPS;
        if admission.last.is_some_and(is_vain) {
            OFTEN.mul_f64(0.75 + fastrand::f64() / 2.0)
        } else {
            limiting::pause(times)
        }
    }

    fn begin_admission(&self) -> bool {
        self.admission().begin()
    }

    /// The same for a place that was left, or where jobs are parked: an admission that is under way is repeated.
    fn begin_admission_or_repeat(&self, parked: bool) -> bool {
        let mut admission = self.admission();
        admission.grouped |= parked;
        if !admission.grouped {
            return false;
        }
        admission.repeat |= admission.state != State::Idle;
        admission.begin()
    }

    /// Whether it has to be repeated.
    fn end_admission(&self) -> bool {
        let mut admission = self.admission();
        admission.state = State::Idle;
        std::mem::take(&mut admission.repeat)
    }

    fn is_admission_due(&self, now: Duration) -> bool {
        let admission = self.admission();
        let often = if admission.grouped { OFTEN } else { SELDOM };
        admission.at.is_none_or(|at| now >= at + often)
    }

    /// A claim that found fewer jobs than it wanted has seen whether some are parked.
    pub(super) fn saw_parked(&self, now: Duration, parked: bool) {
        let mut admission = self.admission();
        admission.grouped = parked;
        if !parked {
            admission.at = Some(now);
        }
    }

    /// What one has answered; whether those before it met another session that admits.
    fn admitted(self: &Arc<Self>, timer: &Timer, begun: u64, admitted: &Admitted) -> bool {
        let now = timer.now();
        let was_busy = {
            let mut admission = self.admission();
            admission.at = Some(now);
            admission.last = Some(*admitted);
            admission.grouped = admitted.examined > 0 || admitted.next_due.is_some();
            admission.count += u64::from(admitted.jobs > 0);
            if admitted.jobs == 0 && admitted.examined < GROUPS {
                admission.found_nothing = admission.found_nothing.max(begun);
            }
            admission.busy.take().is_some()
        };
        if let Some(next) = admitted.next_due {
            self.due_in(timer, next.max(micros(NEXT)));
        }
        was_busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::clock::Clock;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_meets_another_that_admits_waits_longer_each_time() {
        let timer = Timer::start(&Clock::real()).unwrap();
        let topic = Arc::new(Topic::default());
        let pause = |examined| {
            let none = Admitted {
                jobs: 0,
                examined,
                next_due: None,
            };
            topic.admitted(&timer, topic.admission_begins(), &none);
            assert!(!topic.met_another(timer.now()));
            topic.pause_admission()
        };
        assert!(pause(1) < MS * 5);
        assert!(pause(GROUPS) > MS * 180, "nothing has room: no hurry");
        assert!(pause(1) < MS * 5);
        for _ in 0..6 {
            topic.met_another(timer.now());
        }
        let pause = topic.pause_admission();
        assert!(pause > MS * 30 && pause < MS * 65, "{pause:?}");
    }

    #[test]
    fn another_that_admits_all_the_time_is_told() {
        let topic = Topic::default();
        let near = MS * 999;
        let met = |from: Duration, times: u32, apart: Duration| {
            (0..=times).any(|nth| topic.met_another(from + apart * nth))
        };
        assert!(!met(MS, 59, BLOCKED / 60), "not for long enough");
        assert!(!met(BLOCKED * 2, 1000, MS), "not for long enough");
        assert!(!met(BLOCKED * 4, 1000, APART), "not the same one");
        assert!(!met(BLOCKED * 100, 62, near), "not often enough");
        assert!(met(BLOCKED * 200, 64, near));
    }

    #[test]
    fn what_is_tried_again_is_not_under_way() {
        let topic = Topic::default();
        assert!(topic.begin_admission() && topic.is_admission_running());
        topic.met_another(MS);
        topic.pause_admission();
        assert!(!topic.is_admission_running() && !topic.begin_admission());
        assert!(topic.is_admission_paused() && !topic.begin_admission_or_repeat(true));
        topic.resume_admission();
        assert!(topic.is_admission_running());
        assert!(topic.admission_failed(MS, true), "who waits is told");
        assert!(topic.begin_admission() && topic.admission_failed(MS, false));
        assert!(topic.begin_admission() && !topic.admission_failed(MS, false));
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
