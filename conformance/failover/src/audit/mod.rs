//! What the history says in the end.

mod holders;
mod jobs;
mod limits;
mod recovery;

use std::fmt;

use crate::args::Settings;
use crate::conduct::{Course, Promotion};
use crate::history::History;
use crate::record::{Kind, Outcome};
use crate::reigns::{self, Reigns};

/// Answers that say that something is wrong, whatever the servers do.
const WRONG: [&str; 4] = ["Invalid", "Unsupported", "Corrupt", "Deadlock"];

/// A figure, and whether it breaks a promise.
#[derive(Clone, Debug)]
struct Finding {
    name: &'static str,
    count: u64,
    note: String,
    broken: bool,
}

pub(crate) struct Audit {
    findings: Vec<Finding>,
    promotions: Vec<Promotion>,
    failed: Vec<(String, u64)>,
}

impl Audit {
    pub(crate) fn of(
        settings: &Settings,
        history: &History,
        course: Course,
        reigns: &Reigns,
    ) -> Self {
        let mut audit = Self {
            findings: Vec::new(),
            promotions: course.promotions,
            failed: Vec::new(),
        };
        audit.holders(settings, history, reigns);
        audit.registers(history);
        audit.ids(history);
        audit.jobs(settings, history, course.left);
        audit.limits(settings, history);
        let mut failed: Vec<_> = history.failed.clone().into_iter().collect();
        failed.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        audit.failed = failed;
        let stuck: usize = audit.promotions.iter().map(|one| one.unanswered).sum();
        let wrong = audit.failed.iter().filter(|(what, _)| {
            let kind = what.rsplit(' ').next();
            WRONG.iter().any(|wrong| kind == Some(wrong))
        });
        let wrong: u64 = wrong.map(|(_, times)| times).sum();
        audit.never(
            "wrong",
            wrong,
            "calls that failed in a way that no promotion explains",
        );
        audit.never(
            "ended",
            course.fallen.len(),
            "processes that ended by themselves",
        );
        audit.never(
            "not answered",
            stuck,
            "kinds of calls that no promotion may leave without an answer",
        );
        audit
    }

    pub(crate) fn passed(&self) -> bool {
        self.findings.iter().all(|finding| !finding.broken)
    }

    /// A figure that is as it is.
    fn figure(&mut self, name: &'static str, count: impl TryInto<u64>, note: impl Into<String>) {
        self.findings.push(Finding {
            name,
            count: count.try_into().unwrap_or(u64::MAX),
            note: note.into(),
            broken: false,
        });
    }

    /// A figure that has to be 0.
    fn never(&mut self, name: &'static str, count: impl TryInto<u64>, note: impl Into<String>) {
        self.figure(name, count, note);
        if let Some(finding) = self.findings.last_mut() {
            finding.broken = finding.count > 0;
        }
    }

    /// A figure that has to be 0 where commits wait for a standby.
    fn never_if(
        &mut self,
        synchronous: bool,
        name: &'static str,
        count: impl TryInto<u64>,
        note: impl Into<String>,
    ) {
        if synchronous {
            self.never(name, count, note);
        } else {
            self.figure(
                name,
                count,
                format!("{}, which may happen here", note.into()),
            );
        }
    }

    fn holders(&mut self, settings: &Settings, history: &History, reigns: &Reigns) {
        for (kind, name) in [
            (Kind::Mutex, "locks"),
            (Kind::Lease, "leases"),
            (Kind::Leader, "terms"),
        ] {
            let of_kind = history.held.iter().filter(|held| held.grant.kind == kind);
            self.figure(name, of_kind.count(), "granted");
        }
        let tokens = holders::tokens(&history.held);
        self.never(
            "repeated",
            tokens.repeated,
            "tokens that two holders of a key had",
        );
        let back = "tokens smaller than one that was known before the holder asked";
        self.never("back", tokens.back, back);
        let epochs = reigns::back(reigns);
        self.never(
            "epochs",
            epochs,
            "epochs with a smaller number than one before",
        );
        let (second, replaced) = holders::second(&history.held, reigns);
        let note = "holders of a lease, or leaders, while another still believed to be it";
        self.never("second", second, note);
        let note = "likewise, of a primary that went on after it was replaced";
        self.never_if(settings.setup.synchronous, "split", replaced, note);
        let note =
            "tokens of an earlier epoch than the process had been answered by before it asked";
        self.never("returned", holders::returned(&history.held), note);
        self.figure(
            "late",
            tokens.late,
            "tokens of a primary that went on after it was replaced",
        );
    }

    fn registers(&mut self, history: &History) {
        let registers = &history.registers;
        self.figure(
            "written",
            registers.accepted,
            "writes that registers accepted",
        );
        self.figure(
            "refused",
            registers.refused,
            "stale writes that they refused",
        );
        self.never(
            "stale",
            registers.stale_accepted,
            "stale writes that they accepted",
        );
        let replaced = "of them, writes of the latest holder of a primary that was replaced";
        self.figure("", registers.replaced, replaced);
        self.never(
            "shut out",
            registers.fresh_refused,
            "writes of the latest holder that they refused",
        );
    }

    fn ids(&mut self, history: &History) {
        let made: usize = history.ids.values().map(Vec::len).sum();
        self.figure("ids", made, "made, of both sorts");
        for (source, ids) in &history.ids {
            let note = format!("ids made twice ({source:?})");
            self.never("twice", holders::repeated(ids), note);
        }
    }

    fn jobs(&mut self, settings: &Settings, history: &History, left: Option<i64>) {
        let jobs = jobs::Jobs::of(history);
        let synchronous = settings.setup.synchronous;
        self.figure("jobs", history.pushed.len(), "pushed and acknowledged");
        let acknowledged = history.acks.iter();
        let done = acknowledged
            .filter(|(.., outcome)| *outcome == Outcome::Done)
            .count();
        self.figure("done", done, "completions that were acknowledged");
        let is_over = left.is_some();
        if let Some(left) = left {
            let unpushed = settings.jobs.saturating_sub(history.pushed.len() as u64);
            let note = "jobs that were to be pushed and were not";
            self.never("unpushed", unpushed, note);
            self.never("left", left, "jobs that nobody has come to in the end");
        }
        let lost = "acknowledged jobs that were never delivered";
        // Before its end they wait.
        self.never_if(synchronous && is_over, "lost", jobs.lost.len(), lost);
        let found = "of them, found by the push that was answered, and made by one that was not";
        self.figure("found", jobs.lost_found, found);
        for (promotion, times) in recovery::before(&self.promotions, &jobs.lost) {
            self.figure("", times, format!("of them, before {promotion}"));
        }
        // Those that were left have been counted.
        let left = usize::try_from(left.unwrap_or(0)).unwrap_or(0);
        let vanished = jobs.vanished.saturating_sub(left);
        let note = "acknowledged jobs that are gone, and that nobody has completed";
        self.never_if(synchronous && is_over, "vanished", vanished, note);
        let again = "deliveries of a job after its completion was acknowledged";
        self.never_if(synchronous, "again", jobs.again, again);
        let tickets = "deliveries that have the number and the token of another";
        self.never("tickets", jobs.tickets, tickets);
        let confused = "of them, deliveries of different jobs";
        self.figure("confused", jobs.confused, confused);
    }

    fn limits(&mut self, settings: &Settings, history: &History) {
        let permits: usize = history.admitted.values().map(Vec::len).sum();
        self.figure("permits", permits, "given");
        let beyond: u64 = history
            .admitted
            .values()
            .map(|calls| limits::beyond(calls))
            .sum();
        let note = "permits more than a limit allows, at most";
        self.never_if(settings.setup.synchronous, "beyond", beyond, note);
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "What the processes were told:")?;
        for Finding {
            name,
            count,
            note,
            broken,
        } in &self.findings
        {
            let mark = if *broken { "!!" } else { "  " };
            writeln!(f, "{mark} {name:<12}{count:>9}   {note}")?;
        }
        write!(f, "{}", recovery::table(&self.promotions))?;
        let failed: Vec<_> = self
            .failed
            .iter()
            .map(|(what, times)| format!("{what} {times}"))
            .collect();
        writeln!(f, "Calls that failed: {}", failed.join(", "))
    }
}
