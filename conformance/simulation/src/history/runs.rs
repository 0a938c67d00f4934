//! Runs of recurring tasks.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use lockapi::schedule::{Misfire, Overlap, Run, Status};

use super::{Entry, Held, History};
use crate::runtime::{ProgramId, Time};

/// The log counts the times that were missed up to here.
const COUNTED: u32 = 100;
/// A run that was completed in a transaction has ended when that is committed, so much later at most.
const COMMITTED: Duration = Duration::from_secs(10);
/// Whoever fires all that is due is so much later than the last time at most.
const LATE: Duration = Duration::from_secs(1);
/// Somebody who fires tasks has begun to within this time, and ends so long after he was told to.
const BEGUN: Duration = Duration::from_secs(1);
/// Within this time of its due time a task is fired.
const FIRED: Duration = Duration::from_millis(300);

/// The runs of a task by the time at which they were due.
pub(super) type Runs = BTreeMap<SystemTime, Known>;

/// A run that was delivered before.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// The number of the job in the queue, and here.
    job: i64,
    number: u64,
    /// When that delivery was made, and known.
    given: (Time, Time),
}

/// A run that was delivered.
pub(crate) struct Delivered {
    pub(crate) task: &'static str,
    pub(crate) due: SystemTime,
    pub(crate) job: i64,
    /// Whether no two runs of the task are at work at the same time.
    pub(crate) is_alone: bool,
}

impl History {
    /// A run was delivered to a claim that began at `asked`; answers the number of its job as well.
    pub(crate) fn ran(
        &self,
        run: &Delivered,
        program: ProgramId,
        (token, asked): (i64, Time),
        held: Held,
    ) -> Option<(u64, Entry)> {
        self.answered("run");
        let now = self.runtime.now();
        let mut state = self.lock();
        let known = state.runs.get(run.task).and_then(|it| it.get(&run.due));
        let known = known.copied();
        let number = match known {
            Some(known) if known.job == run.job => known.number,
            _ => state.add_job(now, &[], None),
        };
        let given = known.map_or((asked, now), |known| known.given);
        // What was fired, or ended, may be lost, and fired again.
        let lost = state.is_lost((asked, now));
        let runs = state.runs.entry(run.task).or_default();
        if !lost {
            let job = run.job;
            runs.insert(run.due, Known { job, number, given });
        }
        let others: Vec<_> = runs
            .values()
            .filter(|other| other.number != number)
            .copied()
            .collect();
        let late = !held();
        let jobs = others.iter().filter_map(|other| {
            let open = state.jobs.get(&other.number)?.open.values();
            let running = open.filter(|hold| self.runtime.is_running(hold.program));
            let mut running = running.filter(|hold| !state.may_forget(&self.runtime, hold));
            (running.any(|hold| !late && (hold.held)())).then_some(other.job)
        });
        let at_work: Vec<_> = jobs.collect();
        let exact = !self.stepped && !lost;
        let known = known.filter(|known| exact && !state.is_lost(known.given));
        drop(state);
        let one_job = "a due time has one job";
        known.inspect(|_| self.runtime.looks_at(one_job));
        let alone = "runs do not overlap";
        if run.is_alone && exact && !others.is_empty() {
            self.runtime.looks_at(alone);
        }
        let (task, due) = (run.task, run.due);
        if let Some(known) = known.filter(|known| known.job != run.job) {
            let what = format!("{task} of {due:?}: {} and {}", known.job, run.job);
            self.runtime.violate(one_job, what);
        }
        if run.is_alone && exact && !at_work.is_empty() {
            let what = format!("{task}: {} began while {at_work:?} ran", run.job);
            self.runtime.violate(alone, what);
        }
        let entry = self.delivered(number, program, (token, asked), held)?;
        Some((number, entry))
    }

    /// In the end: every time at which a task was due is in its log, once, the earliest first.
    pub(crate) fn check_log(
        &self,
        task: &str,
        (every, misfire, overlap): (Duration, Misfire, Overlap),
        log: &[Run],
    ) {
        if self.stepped {
            return;
        }
        if let Some(what) = self.fired_late(log) {
            let promise = "tasks are fired when they are due";
            self.runtime.violate(promise, format!("{task}: {what}"));
        }
        if let Some(what) = not_caught_up(misfire, log) {
            let promise = "what was missed is caught up with as is set";
            self.runtime.violate(promise, format!("{task}: {what}"));
        }
        for (run, next) in log.iter().zip(log.iter().skip(1)) {
            let times = next.fire_at.duration_since(run.fire_at);
            let expected = every * (1 + next.missed);
            let counted = next.missed < COUNTED;
            if times
                .as_ref()
                .map_or(true, |times| counted && *times != expected)
            {
                let what = format!("{task}: {run:?}, and then {next:?}");
                return self.runtime.violate("every due time is in the log", what);
            }
        }
        let open = |run: &&Run| matches!(run.status, Status::Pending | Status::Running);
        if let Some(run) = log.iter().find(open) {
            let what = format!("{task}: {run:?} has not ended");
            self.runtime.violate("runs end", what);
        }
        // Another server may not know what has ended.
        if self.replaced {
            return;
        }
        let slack = if self.checks_in {
            COMMITTED
        } else {
            Duration::ZERO
        };
        let needless =
            |run: &&Run| run.status == Status::Skipped && !overlaps(overlap, run, log, slack);
        let promise = "no run is skipped without a cause";
        if log.iter().any(|run| run.status == Status::Skipped) {
            self.runtime.looks_at(promise);
        }
        if let Some(run) = log.iter().find(needless) {
            let what = format!("{task}: nothing ran beside {run:?}");
            self.runtime.violate(promise, what);
        }
    }

    /// Somebody fired tasks meanwhile, by the server's clock.
    pub(crate) fn scheduled(&self, from: SystemTime, to: SystemTime) {
        self.lock().scheduled.push((from, to));
    }

    /// A run that was fired late, or missed, while somebody fired tasks.
    fn fired_late(&self, log: &[Run]) -> Option<String> {
        // Where processes close, so do their schedulers.
        if !self.in_order || !self.answers || self.checks_in {
            return None;
        }
        let state = self.lock();
        let (first, last) = (log.first()?.fire_at, log.last()?.fire_at);
        for (from, to) in &state.scheduled {
            let spans = first.max(*from + BEGUN)..last.min(*to).checked_sub(BEGUN)?;
            let mut runs = log.iter().filter(|run| spans.contains(&run.fire_at));
            let late = |run: &&Run| run.missed > 0 || run.fired_at > run.fire_at + FIRED;
            self.runtime.looks_at("tasks are fired when they are due");
            if let Some(run) = runs.find(late) {
                return Some(format!("{run:?}, and fired from {from:?} to {to:?}"));
            }
        }
        None
    }

    /// All that is due at a time of the server was fired: this is the last run of a task.
    pub(crate) fn check_fired(&self, every: Duration, last: &Run, now: SystemTime) {
        let since = now.duration_since(last.fire_at);
        if !self.stepped && since.is_ok_and(|since| since > every + LATE) {
            let what = format!("at {now:?}, and the last was {last:?}");
            self.runtime.violate("what is due is fired", what);
        }
    }
}

/// Where some times were missed, those that were fired instead are as many as is set, and the latest.
fn not_caught_up(misfire: Misfire, log: &[Run]) -> Option<String> {
    let most = match misfire {
        Misfire::CatchUp(most) => most,
        Misfire::Coalesce => 1,
        _ => return None,
    };
    log.iter().enumerate().find_map(|(at, run)| {
        let together = log[at..].iter().take_while(|it| it.fire_at <= run.fired_at);
        let together = together.filter(|it| it.fired_at == run.fired_at).count();
        let wrong = together > most || (run.missed > 0 && together < most);
        wrong.then(|| format!("{together} of {most} at {run:?}"))
    })
}

/// Whether another run of the task had not ended when this one was fired, or so much earlier, so that it may be skipped.
fn overlaps(overlap: Overlap, run: &Run, log: &[Run], slack: Duration) -> bool {
    let earlier = log.iter().filter(|it| it.fire_at < run.fire_at);
    let mut had_jobs = earlier.filter(|it| it.job.is_some());
    let lasts = |it: &Run| it.completed_at.is_none_or(|at| at + slack >= run.fired_at);
    overlap == Overlap::Skip && had_jobs.any(lasts)
}
