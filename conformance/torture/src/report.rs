//! The tables in the end.

use std::collections::{BTreeMap, BTreeSet};

use crate::args::Control;
use crate::conductor::AppliedFault;
use crate::history::{History, Violation};
use crate::plan::Fault;
use crate::screen::{Colour, Screen};

/// How many violations of a promise are told.
const TOLD: usize = 5;

/// Whether all was as it had to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// Nothing was violated, and not all could be judged.
    Inconclusive,
    /// A rule was broken on purpose, and no promise that depends on it was.
    NotFound,
}

impl Outcome {
    /// `is_judged`: whether failures without a cause could be told from those of a machine that is too busy.
    fn of(
        violations: &[Violation],
        idle: usize,
        is_judged: bool,
        control: Option<Control>,
    ) -> Self {
        let broken = control.map_or(&[][..], Control::breaks);
        let is_broken = |violation: &Violation| broken.contains(&violation.promise);
        if !broken.is_empty() && !violations.iter().any(is_broken) {
            Self::NotFound
        } else if violations.len() + idle > 0 {
            Self::Failed
        } else if is_judged {
            Self::Passed
        } else {
            Self::Inconclusive
        }
    }
}

/// What a round came to.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) outcome: Outcome,
    pub(crate) calls: usize,
    pub(crate) applied: usize,
    pub(crate) violations: usize,
}

/// Prints what happened and what is wrong with it. `missing` are faults that could not be applied, with reasons.
pub(crate) fn print(
    screen: &Screen,
    history: &History,
    violations: &[Violation],
    (faults, missing): (&[Fault], &[(Fault, String)]),
    control: Option<Control>,
) -> Verdict {
    answers(screen, history);
    let idle = applied(screen, &history.applied, faults);
    for (fault, reason) in missing {
        let name = screen.paint(Colour::Grey, &format!("{:<16}", fault.name()));
        screen.line(&format!("  {name} left out: {reason}"));
    }
    screen.line("");
    broken(screen, violations);
    for fault in &idle {
        let name = screen.paint(Colour::Red, fault.name());
        screen.line(&format!("  WITHOUT EFFECT: {name}"));
    }
    let outcome = Outcome::of(violations, idle.len(), history.is_quick, control);
    if !history.is_quick {
        screen.line(
            "  NOT JUDGED, what fails or is late in the calm: the machine was too busy to tell it from its own failures",
        );
    }
    if outcome == Outcome::NotFound {
        let broken = control.map_or(&[][..], Control::breaks).join(", ");
        screen.line(&format!("  NOT FOUND: {broken}"));
    }
    let verdict = Verdict {
        outcome,
        calls: history.calls.len(),
        applied: history.applied.len(),
        violations: violations.len(),
    };
    let colour = match outcome {
        Outcome::Passed => Colour::Green,
        Outcome::Failed | Outcome::NotFound => Colour::Red,
        Outcome::Inconclusive => Colour::Yellow,
    };
    let calls = history.calls_by_library();
    let calls = calls
        .iter()
        .map(|(library, calls)| format!("{library} {calls}"));
    let calls = calls.collect::<Vec<_>>().join(", ");
    let text = format!(
        "{} calls ({calls}), {} faults, {} violations",
        verdict.calls, verdict.applied, verdict.violations
    );
    screen.line(&screen.paint(colour, &text));
    verdict
}

/// Prints what was violated.
pub(crate) fn broken(screen: &Screen, violations: &[Violation]) {
    let mut told: BTreeMap<&str, usize> = BTreeMap::new();
    for violation in violations {
        let count = told.entry(violation.promise).or_default();
        *count += 1;
        if *count <= TOLD {
            let promise = screen.paint(Colour::Red, violation.promise);
            screen.line(&format!("  BROKEN: {promise}: {}", violation.what));
        }
    }
    for (promise, count) in &told {
        screen.line(&format!("  {count} times: {promise}"));
    }
}

fn answers(screen: &Screen, history: &History) {
    let answers = history.answers();
    let mut kinds: Vec<&str> = vec!["done", "nothing"];
    let others: BTreeSet<&str> = answers
        .values()
        .flat_map(|of| of.keys().map(String::as_str))
        .filter(|kind| !kinds.contains(kind))
        .collect();
    kinds.extend(others);
    screen.line("\n  Answers");
    for (name, of) in &answers {
        let counts = kinds.iter().filter_map(|kind| {
            let count = of.get(*kind)?;
            Some(format!("{count} {kind}"))
        });
        let counts: Vec<_> = counts.collect();
        screen.line(&format!("  {name:<16} {}", counts.join(", ")));
    }
}

/// Prints the faults by kind; answers those that had no effect at all.
fn applied(screen: &Screen, applied: &[AppliedFault], faults: &[Fault]) -> Vec<Fault> {
    screen.line("\n  Faults            times  effect");
    let mut idle = Vec::new();
    for fault in faults {
        let of = applied.iter().filter(|it| it.fault == *fault);
        let (times, effect) = of.fold((0, 0), |(times, effect), fault| {
            (times + 1, effect + fault.effect)
        });
        screen.line(&format!("  {:<16} {times:>6} {effect:>7}", fault.name()));
        if effect == 0 {
            idle.push(*fault);
        }
    }
    idle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_judged_has_not_passed() {
        let violation = || Violation {
            promise: "limits hold",
            what: String::new(),
        };
        let of = |violations: &[_], idle, is_judged| {
            Outcome::of(violations, idle, is_judged, Some(Control::Quiet))
        };
        assert_eq!(of(&[], 0, true), Outcome::Passed);
        assert_eq!(of(&[], 0, false), Outcome::Inconclusive);
        assert_eq!(of(&[violation()], 0, false), Outcome::Failed);
        assert_eq!(of(&[], 1, true), Outcome::Failed);
        // That something else fails says nothing of the rule that is broken.
        let found = |control| Outcome::of(&[violation()], 0, true, Some(control));
        assert_eq!(found(Control::Greedy), Outcome::Failed);
        assert_eq!(found(Control::Hoard), Outcome::NotFound);
        let none = |idle| Outcome::of(&[], idle, false, Some(Control::Greedy));
        assert_eq!([none(0), none(1)], [Outcome::NotFound; 2]);
    }
}
