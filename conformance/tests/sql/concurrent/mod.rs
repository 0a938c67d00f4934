//! Sessions that meet at the same rows, step by step.
//!
//! A session A has changed or locked rows in an open transaction when a session B begins the statement
//! under test. B waits for A, which is seen in the lock table of the server, or it does without the
//! rows and is answered while A is still open. When A has committed or rolled back, the answers and
//! what is read afterwards are those that the model gives for A and then B, or for B alone.

mod admin;
mod alone;
mod answers;
mod batches;
mod expiring;
mod groups;
mod history;
mod ids;
mod late;
mod leases;
mod limited;
mod limits;
mod order;
mod permits;
mod progress;
mod queue;
mod queue_keys;
mod reservations;
mod results;
mod scans;
mod schedule;
mod settling;
mod sides;
mod stopped;
mod sweeps;
mod times;

use std::collections::BTreeMap;
use std::thread::{self, JoinHandle};

use sides::{Plans, Side, Step, until, url};

/// What B finds where A has been.
#[derive(Clone, Copy)]
enum Meets {
    /// It waits, and does afterwards what the model does.
    Waits,
    /// It waits. If A commits it has done nothing, answers this, and has to be run again.
    WaitsAndRetries(&'static str),
    /// It does not wait, and does nothing to the rows of A: it answers this, and has to be run again.
    Skips(&'static str),
    /// It does not wait, because what A does is no hindrance.
    Passes,
}

impl Meets {
    fn waits(self) -> bool {
        !matches!(self, Self::Skips(_) | Self::Passes)
    }

    /// What B answers if it does nothing.
    fn in_vain(self, committed: bool) -> Option<&'static str> {
        match self {
            Self::Skips(answer) => Some(answer),
            Self::WaitsAndRetries(answer) if committed => Some(answer),
            _ => None,
        }
    }
}

/// Two sessions, step by step.
struct Schedule {
    url: &'static str,
    before: Vec<Step>,
    /// A has locked the rows in this way before, and does the rest while B waits.
    looked: Option<Step>,
    first: Step,
    meanwhile: Vec<Step>,
    second: Step,
    meets: Meets,
    /// What B does besides, to rows that A has not touched.
    partly: Option<Step>,
    after: Vec<Step>,
    ends: Vec<bool>,
}

impl Schedule {
    /// What is there, what A does in its transaction, what B does, and how they meet.
    fn new(before: &[&Step], first: &Step, second: &Step, meets: Meets) -> Self {
        Self {
            url: url(),
            before: before.iter().map(|step| Step::clone(step)).collect(),
            looked: None,
            first: Step::clone(first),
            meanwhile: Vec::new(),
            second: Step::clone(second),
            meets,
            partly: None,
            after: Vec::new(),
            ends: vec![true, false],
        }
    }

    /// In the database of this URL.
    fn at(mut self, url: &'static str) -> Self {
        self.url = url;
        self
    }

    /// A does this before, and the rest while B waits, which thus waits with nothing that A needs.
    fn looked(mut self, step: &Step) -> Self {
        self.looked = Some(Step::clone(step));
        self
    }

    /// Somebody else does this after A and before B.
    fn meanwhile(mut self, step: &Step) -> Self {
        self.meanwhile.push(Step::clone(step));
        self
    }

    /// B does this although it skips rows.
    fn partly(mut self, step: &Step) -> Self {
        self.partly = Some(Step::clone(step));
        self
    }

    /// What is compared in the end.
    fn then(mut self, step: &Step) -> Self {
        self.after.push(Step::clone(step));
        self
    }

    /// Where the model of B alone does not tell what B does while A is open.
    fn only_if_committed(mut self) -> Self {
        self.ends = vec![true];
        self
    }

    /// Runs it on the server and on the model, with a commit and with a rollback.
    ///
    /// # Panics
    /// When B waits and should not, or the other way round, and when the two sides differ.
    fn run(&self) {
        for committed in &self.ends {
            let end = if *committed { "COMMIT" } else { "ROLLBACK" };
            let (server, model) = (self.on_server(*committed), self.on_model(*committed));
            assert_eq!(server, model, "with {end}: the server and the model");
        }
    }

    fn on_server(&self, committed: bool) -> Vec<String> {
        let namespace = format!("n{:016x}", fastrand::u64(..));
        let side = |session| {
            let mut side = Side::server(self.url, Plans::Engine);
            (side.session, side.namespace) = (session, namespace.clone());
            side
        };
        let (mut observer, mut first, second) = (side(0), side(1), side(2));
        let mut given = BTreeMap::new();
        let mut seen = Vec::new();
        for step in &self.before {
            seen.push(observer.run(step, &mut given));
        }
        first.script("BEGIN");
        let answer = first.run(self.looked.as_ref().unwrap_or(&self.first), &mut given);
        if committed && self.looked.is_none() {
            seen.push(answer);
        }
        for step in &self.meanwhile {
            seen.push(observer.run(step, &mut given));
        }
        let second = Running::start(second, &self.second, given.clone());
        if self.meets.waits() {
            second.waits_for(first.pid(), &mut observer);
            if self.looked.is_some() {
                let answer = first.run(&self.first, &mut given);
                seen.extend(committed.then_some(answer));
            }
            first.script(if committed { "COMMIT" } else { "ROLLBACK" });
        } else {
            second.passes(first.pid(), &mut observer);
        }
        let (mut second, answer) = second.answer(&mut given);
        if !self.meets.waits() {
            first.script(if committed { "COMMIT" } else { "ROLLBACK" });
        }
        if let Some(expected) = self.meets.in_vain(committed) {
            assert_eq!(answer, expected, "what B answers, having done nothing");
            seen.push(second.run(&self.second, &mut given));
        } else {
            seen.push(answer);
        }
        for step in &self.after {
            seen.push(observer.run(step, &mut given));
        }
        seen
    }

    fn on_model(&self, committed: bool) -> Vec<String> {
        let mut model = Side::model();
        let mut given = BTreeMap::new();
        let mut seen = Vec::new();
        "n".clone_into(&mut model.namespace);
        let mut run = |session, step: &Step| {
            model.session = session;
            model.run(step, &mut given)
        };
        for step in &self.before {
            seen.push(run(0, step));
        }
        if committed {
            seen.push(run(1, &self.first));
        }
        for step in &self.meanwhile {
            seen.push(run(0, step));
        }
        if let Some(step) = &self.partly {
            run(2, step);
        }
        seen.push(run(2, &self.second));
        for step in &self.after {
            seen.push(run(0, step));
        }
        seen
    }
}

/// One session does this, planned in some way: as the model does.
///
/// # Panics
/// When the two sides differ.
fn agree(plans: Plans, steps: &[&Step]) {
    let run = |mut side: Side| {
        side.namespace = format!("n{:016x}", fastrand::u64(..));
        let mut given = BTreeMap::new();
        let seen = steps.iter().map(|step| side.run(step, &mut given));
        seen.collect::<Vec<_>>()
    };
    let (server, model) = (run(Side::server(url(), plans)), run(Side::model()));
    assert_eq!(server, model, "the server and the model");
}

/// One session of a server does this, where the model knows nothing of it: what it answers.
fn on_server(url: &'static str, steps: &[&Step]) -> Vec<String> {
    let mut side = Side::server(url, Plans::Engine);
    side.namespace = format!("n{:016x}", fastrand::u64(..));
    let mut given = BTreeMap::new();
    let seen = steps.iter().map(|step| side.run(step, &mut given));
    seen.collect()
}

/// A session that runs a step on a thread of its own.
struct Running {
    pid: i32,
    thread: JoinHandle<(Side, BTreeMap<String, i64>, String)>,
}

impl Running {
    fn start(mut side: Side, step: &Step, mut given: BTreeMap<String, i64>) -> Self {
        let (pid, step) = (side.pid(), Step::clone(step));
        let thread = thread::spawn(move || {
            let seen = side.run(&step, &mut given);
            (side, given, seen)
        });
        Self { pid, thread }
    }

    /// Looks until the session waits for another.
    fn waits_for(&self, other: i32, observer: &mut Side) {
        until("B waits", || {
            let over = self.thread.is_finished();
            if observer.sees_wait(self.pid, other) {
                return Some(());
            }
            assert!(!over, "B does not wait");
            None
        });
    }

    /// Looks until the session has its answer.
    fn passes(&self, other: i32, observer: &mut Side) {
        until("B answers", || {
            assert!(!observer.sees_wait(self.pid, other), "B waits");
            self.thread.is_finished().then_some(())
        });
    }

    fn answer(self, given: &mut BTreeMap<String, i64>) -> (Side, String) {
        match self.thread.join() {
            Ok((side, known, seen)) => {
                given.extend(known);
                (side, seen)
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
