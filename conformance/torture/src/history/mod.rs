//! What all programs saw, merged, and checked.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use postgres::Client;

use crate::Result;
use crate::args::Role;
use crate::conductor::AppliedFault;
use crate::crew::Incarnation;
use crate::log::{Answer, Event, Kind, Nanos, Op, Record, SECOND, read};
use crate::plan::Fault;
use crate::programs::schedules::SCHEDULER;

mod answers;
mod attempts;
mod delays;
mod jobs;
mod limited;
mod locks;
mod numbers;
mod order;
mod pauses;
mod registers;
mod results;
mod schedules;
mod sessions;
#[cfg(test)]
mod tests;
mod unique;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Violation {
    pub(crate) promise: &'static str,
    pub(crate) what: String,
}

impl Violation {
    fn new(promise: &'static str, what: String) -> Self {
        Self { promise, what }
    }
}

/// A call of a program.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Which program, by its place in the history.
    pub(crate) program: usize,
    pub(crate) op: Op,
    pub(crate) asked: Nanos,
    /// Programs that were killed are not answered.
    pub(crate) answer: Option<(Nanos, Answer)>,
    /// Until when what was granted was held, as the holder saw it, by token.
    pub(crate) held: BTreeMap<i64, Nanos>,
}

impl Call {
    /// When it was answered, if it was done.
    fn done(&self) -> Option<Nanos> {
        let (at, answer) = self.answer.as_ref()?;
        answer.is_done().then_some(*at)
    }

    fn is_refused(&self) -> bool {
        matches!(&self.answer, Some((_, answer)) if answer.is_refused())
    }

    /// Whether it may have had an effect: it was not refused, and not told that nothing is there.
    fn may_be_done(&self) -> bool {
        let nothing = matches!(&self.answer, Some((_, Answer::Nothing)));
        !self.is_refused() && !nothing
    }
}

/// A job in the hands of a handler of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Handled {
    pub(crate) program: usize,
    pub(crate) job: i64,
    pub(crate) token: i64,
    pub(crate) at: Nanos,
    pub(crate) held: Nanos,
}

/// While others rested, a program was to be granted one of each of these kinds.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    /// Its number.
    pub(crate) program: u64,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

/// A write that was accepted.
#[derive(Clone, Debug)]
pub(crate) struct Accepted {
    pub(crate) version: i64,
    pub(crate) token: i64,
    pub(crate) value: i64,
}

/// What the tables say in the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    /// Writes by register, in the order of their versions.
    pub(crate) accepted: BTreeMap<String, Vec<Accepted>>,
    pub(crate) counters: BTreeMap<String, i64>,
    /// Effects: job, token, and whether it was written in the transaction that acknowledged.
    pub(crate) effects: Vec<(i64, i64, bool)>,
    pub(crate) sent: Vec<i64>,
    /// Jobs that are still there, and what is known of them.
    pub(crate) left: Vec<(i64, String)>,
    /// Results, by what the library calls the jobs.
    pub(crate) results: Vec<(i64, i64)>,
    pub(crate) cancelled: BTreeSet<i64>,
    /// Runs of tasks, by task, in the order of the times that they were due.
    pub(crate) runs: BTreeMap<String, Vec<TaskRun>>,
    /// What they did: job and token.
    pub(crate) ran: Vec<(i64, i64)>,
    /// Dead letters, by job.
    pub(crate) dead: BTreeMap<i64, Dead>,
}

/// What was decided of a time that a task was due.
#[derive(Clone, Debug)]
pub(crate) struct TaskRun {
    /// In microseconds of the server's clock.
    pub(crate) fire_at: i64,
    /// How many due times before it have no run.
    pub(crate) missed: i64,
    pub(crate) job: Option<i64>,
    pub(crate) status: String,
}

/// A job that failed for good.
#[derive(Clone, Debug)]
pub(crate) struct Dead {
    pub(crate) attempts: u32,
    /// Of which attempts there are errors.
    pub(crate) errors: Vec<i64>,
}

impl Tables {
    pub(crate) fn read(client: &mut Client) -> Result<Self> {
        let mut tables = Self::default();
        let sql = "SELECT name, version, token, value FROM torture.accepted ORDER BY name, version";
        for row in client.query(sql, &[])? {
            let writes = tables.accepted.entry(row.get(0)).or_default();
            writes.push(Accepted {
                version: row.get(1),
                token: row.get(2),
                value: row.get(3),
            });
        }
        for row in client.query("SELECT name, n FROM torture.counter", &[])? {
            tables.counters.insert(row.get(0), row.get(1));
        }
        for row in client.query("SELECT job, token, exact FROM torture.effect", &[])? {
            tables.effects.push((row.get(0), row.get(1), row.get(2)));
        }
        for row in client.query("SELECT job FROM torture.sent", &[])? {
            tables.sent.push(row.get(0));
        }
        let sql = "SELECT payload::text::int8, to_jsonb(j)::text FROM lockapi.job AS j";
        for row in client.query(sql, &[])? {
            tables.left.push((row.get(0), row.get(1)));
        }
        for row in client.query("SELECT id, result::text::int8 FROM lockapi.job_result", &[])? {
            tables.results.push((row.get(0), row.get(1)));
        }
        let sql = "SELECT payload::text::int8 FROM lockapi.job_archive WHERE status = 'cancelled'";
        for row in client.query(sql, &[])? {
            tables.cancelled.insert(row.get(0));
        }
        let sql = "SELECT payload::text::int8, attempt,
                          ARRAY(SELECT (e.error ->> 'attempt')::int8
                                  FROM jsonb_array_elements(a.errors) WITH ORDINALITY AS e (error, n) ORDER BY e.n)
                     FROM lockapi.job_archive AS a WHERE a.status = 'failed'";
        for row in client.query(sql, &[])? {
            let attempts: i32 = row.get(1);
            let dead = Dead {
                attempts: u32::try_from(attempts)?,
                errors: row.get(2),
            };
            tables.dead.insert(row.get(0), dead);
        }
        let sql = format!(
            "SELECT task, (extract(epoch FROM fire_at) * 1000000)::int8, missed::int8, job, status
               FROM lockapi.task_log WHERE scheduler = '{SCHEDULER}' ORDER BY task, fire_at"
        );
        for row in client.query(&sql, &[])? {
            let runs = tables.runs.entry(row.get(0)).or_default();
            runs.push(TaskRun {
                fire_at: row.get(1),
                missed: row.get(2),
                job: row.get(3),
                status: row.get(4),
            });
        }
        for row in client.query("SELECT job, token FROM torture.ran", &[])? {
            tables.ran.push((row.get(0), row.get(1)));
        }
        Ok(tables)
    }
}

/// All that was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) programs: Vec<Incarnation>,
    pub(crate) calls: Vec<Call>,
    pub(crate) handled: Vec<Handled>,
    pub(crate) tables: Tables,
    pub(crate) applied: Vec<AppliedFault>,
    pub(crate) turns: Vec<Turn>,
    /// When the last fault had ended, and from when on nothing may fail any more.
    pub(crate) calm: (Nanos, Nanos),
    /// Whether the machine had time in the calm.
    pub(crate) is_quick: bool,
    /// When programs were told to end.
    pub(crate) end: Nanos,
    /// By how much the time since 1970 is ahead of the clock of the logs.
    pub(crate) wall: Nanos,
}

impl History {
    /// Reads the logs of programs.
    pub(crate) fn read(programs: Vec<Incarnation>) -> Result<Self> {
        let mut history = Self::default();
        for (number, program) in programs.iter().enumerate() {
            history.add(number, read(&program.log)?);
        }
        history.programs = programs;
        Ok(history)
    }

    fn add(&mut self, program: usize, records: Vec<Record>) {
        let mut calls = HashMap::new();
        let mut handled = HashMap::new();
        for Record { at, event } in records {
            match event {
                Event::Asked { call, op } => {
                    calls.insert(call, self.calls.len());
                    self.calls.push(Call {
                        program,
                        op,
                        asked: at,
                        answer: None,
                        held: BTreeMap::new(),
                    });
                }
                Event::Answered { call, answer } => {
                    if let Some(call) = calls.get(&call) {
                        self.calls[*call].answer = Some((at, answer));
                    }
                }
                Event::Delivered { call, job, token } => {
                    handled.insert(call, self.handled.len());
                    self.handled.push(Handled {
                        program,
                        job,
                        token,
                        at,
                        held: at,
                    });
                }
                Event::Held { call, token } => {
                    if let Some(call) = calls.get(&call) {
                        let held = self.calls[*call].held.entry(token).or_default();
                        *held = at.max(*held);
                    } else if let Some(handled) = handled.get(&call) {
                        let handled: &mut Handled = &mut self.handled[*handled];
                        handled.held = at.max(handled.held);
                    }
                }
            }
        }
    }

    /// Everything that was promised and did not come true.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let mut violations = Vec::new();
        violations.extend(locks::check(self));
        violations.extend(registers::check(self));
        violations.extend(jobs::check(self));
        violations.extend(limited::check(self));
        violations.extend(order::check(self));
        violations.extend(results::check(self));
        violations.extend(unique::check(self));
        violations.extend(schedules::check(self));
        violations.extend(delays::check(self));
        violations.extend(attempts::check(self));
        violations.extend(numbers::check(self));
        violations.extend(answers::check(self));
        violations
    }

    fn name(&self, program: usize) -> String {
        let program = &self.programs[program];
        format!("{} #{}", program.name, program.number)
    }

    /// Whether the server's clock was set in this time, or a moment before.
    fn clock_was_set(&self, from: Nanos, to: Nanos) -> bool {
        let mut steps = self.applied.iter().filter(|it| it.fault == Fault::Clock);
        steps.any(|step| step.from <= to && step.to + 5 * SECOND >= from)
    }

    /// For how long a program was stopped in this time.
    fn stopped(&self, program: usize, from: Nanos, to: Nanos) -> Nanos {
        let stops = self.programs[program].stops.iter();
        stops
            .map(|(stop, go)| to.min(*go).saturating_sub(from.max(*stop)))
            .sum()
    }

    /// Counts calls by the library of their programs.
    pub(crate) fn calls_by_library(&self) -> BTreeMap<&'static str, usize> {
        let mut calls = BTreeMap::new();
        for call in &self.calls {
            let name = match self.programs[call.program].role {
                Role::Library { library, .. } => library.name(),
                Role::Plain => "plain SQL",
            };
            *calls.entry(name).or_default() += 1;
        }
        calls
    }

    /// Counts answers by operation and by what they say.
    pub(crate) fn answers(&self) -> BTreeMap<&'static str, BTreeMap<String, u64>> {
        let mut answers: BTreeMap<_, BTreeMap<String, u64>> = BTreeMap::new();
        for call in &self.calls {
            let name = match &call.answer {
                Some((_, answer)) => answer.name(),
                None => "killed",
            };
            let of = answers.entry(call.op.name()).or_default();
            *of.entry(name.to_owned()).or_default() += 1;
        }
        answers
    }
}

/// A time, for people: seconds since the first call.
fn time(history: &History, at: Nanos) -> String {
    let first = history.programs.iter().map(|it| it.begun).min();
    let since = at.saturating_sub(first.unwrap_or(0));
    format!("{}.{:03} s", since / SECOND, since % SECOND / 1_000_000)
}
