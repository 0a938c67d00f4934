//! Runs of recurring tasks.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use lockapi::schedule::{Run, Status};

use super::{Entry, Held, History};
use crate::runtime::{ProgramId, Time};

/// The log counts the times that were missed up to here.
const COUNTED: u32 = 100;

/// The runs of a task by the time at which they were due: the number of the job in the queue, and here.
pub(super) type Runs = BTreeMap<SystemTime, (i64, u64)>;

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
            Some((job, number)) if job == run.job => number,
            _ => state.add_job(now, &[], None),
        };
        let runs = state.runs.entry(run.task).or_default();
        runs.insert(run.due, (run.job, number));
        let others: Vec<_> = runs
            .values()
            .filter(|(_, other)| *other != number)
            .copied()
            .collect();
        let late = !held();
        let jobs = others.iter().filter_map(|(job, number)| {
            let open = state.jobs.get(number)?.open.values();
            let mut running = open.filter(|hold| self.runtime.is_running(hold.program));
            (running.any(|hold| !late && (hold.held)())).then_some(*job)
        });
        let at_work: Vec<_> = jobs.collect();
        // What was fired, or ended, may be lost, and fired again.
        let exact = state.fail_overs.is_empty() && !self.stepped;
        drop(state);
        let (task, due) = (run.task, run.due);
        if let Some((job, _)) = known.filter(|(job, _)| *job != run.job && exact) {
            let what = format!("{task} of {due:?}: {job} and {}", run.job);
            self.runtime.violate("a due time has one job", what);
        }
        if run.is_alone && exact && !at_work.is_empty() {
            let what = format!("{task}: {} began while {at_work:?} ran", run.job);
            self.runtime.violate("runs do not overlap", what);
        }
        let entry = self.delivered(number, program, (token, asked), held)?;
        Some((number, entry))
    }

    /// In the end: every time at which a task was due is in its log, once, the earliest first.
    pub(crate) fn check_log(&self, task: &str, every: Duration, log: &[Run]) {
        if self.stepped {
            return;
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
    }
}
