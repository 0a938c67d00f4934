//! What the log says in the end.

use std::fmt;

use crate::args::Safety;
use crate::disturb::Tally;
use crate::store::Counts;

/// The findings. A due time is a time at which a task was due.
#[derive(Clone, Debug, Default)]
pub(crate) struct Audit {
    pub(crate) tasks: i64,
    pub(crate) disabled: i64,
    /// How many due times there were.
    pub(crate) due: i64,
    /// Due times with one completed run.
    pub(crate) once: i64,
    /// Due times with several completed runs.
    pub(crate) twice: i64,
    /// Due times without a completed run.
    pub(crate) missed: i64,
    /// Completed runs of disabled tasks, or for times at which the task was not due.
    pub(crate) uncalled: i64,
    /// Due times that one worker began and another completed.
    pub(crate) recovered: i64,
    /// From the disturbance to the next attempt, in seconds.
    pub(crate) recovery_median: Option<f64>,
    pub(crate) recovery_longest: Option<f64>,
    /// Runs completed by the workers on each library.
    pub(crate) completed_by: Vec<(String, i64)>,
    /// Runs of a task that followed one on another library.
    pub(crate) passed_on: i64,
    pub(crate) counts: Counts,
}

impl Audit {
    pub(crate) fn passed(&self) -> bool {
        self.due > 0
            && self.once == self.due
            && self.twice == 0
            && self.missed == 0
            && self.uncalled == 0
    }

    /// The last line: what it all means.
    pub(crate) fn verdict(&self, tally: &Tally, safety: Safety) -> String {
        if self.passed() {
            let what = "every due run was completed exactly once";
            return if tally.is_empty() {
                format!("PASSED: {what}.")
            } else {
                format!("PASSED: {what},\nalthough {tally}.")
            };
        }
        let mut faults = Vec::new();
        for (count, fault) in [
            (self.twice, "run more than once"),
            (self.missed, "missed"),
            (self.uncalled, "run without being due"),
        ] {
            if count > 0 {
                faults.push(format!("{count} {fault}"));
            }
        }
        if faults.is_empty() {
            faults.push("nothing was due".to_owned());
        }
        let faults = faults.join(", ");
        match safety.lacks() {
            None => format!("FAILED: {faults}."),
            Some(missing) => {
                format!(
                    "FAILED: {faults}.
This is what happens without {missing}."
                )
            }
        }
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (due, tasks, disabled) = (self.due, self.tasks, self.disabled);
        writeln!(f, "The log says about {tasks} tasks ({disabled} disabled):")?;
        let mut line =
            |name: &str, count: i64, note: &str| writeln!(f, "  {name:<10}{count:>7}   {note}");
        line("due", due, "times a task was due")?;
        line("once", self.once, "completed exactly once, as it should be")?;
        line("twice", self.twice, "completed more than once")?;
        line("missed", self.missed, "never completed")?;
        line("uncalled", self.uncalled, "completed without being due")?;
        let mut recovered = "begun by a worker that lost it, completed by another".to_owned();
        if let (Some(median), Some(longest)) = (self.recovery_median, self.recovery_longest) {
            recovered = format!(
                "{recovered};\n{:22}begun again after {:.0} ms (median), {:.0} ms (longest)",
                "",
                median * 1e3,
                longest * 1e3
            );
        }
        line("recovered", self.recovered, &recovered)?;
        if self.completed_by.len() > 1 {
            for (library, completed) in &self.completed_by {
                line(
                    library,
                    *completed,
                    "completed by the processes that use it",
                )?;
            }
            let note = "times the next run of a task was on another library";
            line("passed on", self.passed_on, note)?;
        }
        let counts = self.counts;
        line(
            "abandoned",
            counts.abandoned,
            "runs ended because their delivery was lost",
        )?;
        line(
            "refused",
            counts.refused,
            "writes of runs whose delivery was lost, stopped by its token",
        )
    }
}
