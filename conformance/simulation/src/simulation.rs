//! One runtime from its beginning to its end.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockapi::suite::simulation::seed;

use crate::history::History;
use crate::plan::{Fault, Plan};
use crate::programs::{self, Context};
use crate::runtime::{ProgramId, Runtime, Violation, words};
use crate::server::Server;

/// Within this time they have to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// And within this time all that a process has left has to be found.
const AUDIT: Duration = Duration::from_secs(1200);

/// Before a connection that is congested fails, answers are late by so much at most.
const CONGESTED: Duration = Duration::from_millis(900);

/// What became of a runtime.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) violation: Option<Violation>,
    pub(crate) statements: u64,
    pub(crate) steps: u64,
    pub(crate) trace: u64,
    pub(crate) time: Duration,
    pub(crate) answers: BTreeMap<&'static str, u64>,
    /// How many ids were drawn.
    pub(crate) ids: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    /// How often each promise was looked at where it might have been broken.
    pub(crate) looks: BTreeMap<&'static str, u64>,
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

/// Runs a plan; the same plan gives the same outcome. A panic of the simulation itself is one, too.
pub(crate) fn simulate(plan: &Plan) -> Outcome {
    seed(Some(plan.seed));
    let outcome = catch_unwind(AssertUnwindSafe(|| run(plan)));
    seed(None);
    outcome.unwrap_or_else(|panic| Outcome {
        violation: Some(Violation {
            promise: "the simulation does not panic",
            what: words(&*panic),
            at: Duration::ZERO,
        }),
        ..Outcome::default()
    })
}

fn run(plan: &Plan) -> Outcome {
    let runtime = Runtime::new(plan.seed);
    let server = Server::new(&runtime, plan);
    let history = History::new(&runtime, plan);
    let context = Context::new(&runtime, &server, &history, plan);
    let programs: Programs = Arc::default();
    for _ in 0..plan.programs {
        programs.begin(&context);
    }
    schedule(&context, &programs);
    watch(&context);
    runtime.run(plan.time, || false);
    server.calm();
    for program in programs.all() {
        if runtime.is_alive(program) {
            runtime.stop(program, false);
            runtime.block(program, false);
        }
    }
    history.calm();
    runtime.run(plan.time + plan.calm, || false);
    context.ending.store(true, Ordering::Relaxed);
    runtime.run(runtime.now() + PATIENCE, || runtime.tasks().is_empty());
    let left = runtime.tasks();
    if !left.is_empty() {
        runtime.violate("every call is answered", format!("{left:?} have not ended"));
    }
    programs::begin(&context, false);
    runtime.run(runtime.now() + AUDIT, || runtime.tasks().is_empty());
    if let Some(task) = runtime.tasks().first() {
        runtime.violate("all can be had in the end", format!("{task} has not ended"));
    }
    runtime.run(runtime.now() + PATIENCE, || server.sessions() == 0);
    if server.sessions() > 0 {
        runtime.violate("nothing is left", format!("{} sessions", server.sessions()));
    }
    let left = server.model(|model| model.state().locks());
    if left > 0 {
        runtime.violate("nothing is left", format!("{left} advisory locks"));
    }
    let (statements, judged, faults) = server.figures();
    let (answers, errors) = history.figures();
    let mut looks = runtime.looks();
    looks.extend(judged);
    let outcome = Outcome {
        violation: runtime.violation(),
        statements,
        steps: runtime.steps(),
        trace: runtime.trace(),
        time: runtime.now(),
        answers,
        ids: history.ids(),
        errors,
        looks,
        faults,
    };
    runtime.end();
    outcome
}

/// The processes that were begun and not killed.
type Programs = Arc<Running>;

#[derive(Default)]
struct Running(Mutex<Vec<ProgramId>>);

impl Running {
    fn begin(&self, context: &Context) {
        let program = programs::begin(context, true);
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(program);
    }

    fn all(&self) -> Vec<ProgramId> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn any(&self, runtime: &Runtime) -> Option<ProgramId> {
        runtime.draw(|random| random.choice(self.all()))
    }

    fn end(&self, program: ProgramId) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|it| *it != program);
    }
}

/// Looks at the tables twice a second, as long as tasks run.
fn watch(context: &Context) {
    let context = context.clone();
    context
        .runtime
        .clone()
        .after(Duration::from_millis(500), move |runtime| {
            if runtime.tasks().is_empty() {
                return;
            }
            let jobs = context.server.jobs();
            context.history.watched(&jobs);
            context.history.check_ends(&context.server);
            // Who audits in the end tells the history nothing.
            if !context.is_over() {
                context.history.check_refunds(&context.server);
            }
            watch(&context);
        });
}

/// Lets something that concerns a process or the server fail now and then.
fn schedule(context: &Context, programs: &Programs) {
    const ALL: [Fault; 13] = [
        Fault::Terminate,
        Fault::Restart,
        Fault::Unreachable,
        Fault::Partition,
        Fault::Deaf,
        Fault::Stop,
        Fault::Kill,
        Fault::Step,
        Fault::FailOver,
        Fault::Promote,
        Fault::RowLocks,
        Fault::Block,
        Fault::Hush,
    ];
    let (runtime, every) = (&context.runtime, context.plan.every);
    let pause = every.mul_f64(runtime.draw(fastrand::Rng::f64) * 2.0);
    let (context, programs) = (context.clone(), Arc::clone(programs));
    runtime.after(pause, move |runtime| {
        if runtime.now() >= context.plan.time {
            return;
        }
        let possible = ALL.into_iter().filter(|fault| context.plan.has(*fault));
        let possible: Vec<_> = possible.collect();
        let fault = runtime.draw(|random| random.choice(possible));
        if let Some(fault) = fault
            && runtime.happens(context.plan.probability(fault))
        {
            strike(fault, &context, &programs);
        }
        schedule(&context, &programs);
    });
}

fn strike(fault: Fault, context: &Context, programs: &Programs) {
    let (runtime, server) = (&context.runtime, &context.server);
    let time = runtime.between(Duration::from_millis(5), Duration::from_secs(30));
    let time = time.min(context.plan.time.saturating_sub(runtime.now()));
    let another = server.clone();
    match fault {
        Fault::Terminate if !server.terminate_any() => return,
        Fault::RowLocks if !server.lock_rows(time) => return,
        Fault::Hush if !server.hush_any() => return,
        Fault::Restart if server.sessions() == 0 => return,
        Fault::Restart => server.restart(),
        Fault::Unreachable => {
            server.set_unreachable(true);
            runtime.after(time, move |_| another.set_unreachable(false));
        }
        Fault::Deaf => {
            server.set_deaf(true);
            runtime.after(time, move |_| another.set_deaf(false));
        }
        Fault::Step => {
            let by = i64::try_from(time.as_micros()).unwrap_or(0);
            let back = runtime.draw(fastrand::Rng::bool);
            server.set_clock(if back { -by } else { by });
        }
        Fault::FailOver => {
            let cut = runtime.now();
            server.cut_replication();
            let history = context.history.clone();
            runtime.after(time, move |runtime| {
                another.note(fault);
                another.fail_over();
                history.failed_over(cut, runtime.now());
            });
        }
        Fault::Promote => {
            server.follow();
            let time = time.min(Duration::from_secs(2));
            runtime.after(time, move |_| {
                another.note(fault);
                another.promote();
            });
        }
        Fault::Partition | Fault::Stop | Fault::Kill | Fault::Block => {
            let Some(program) = programs.any(runtime) else {
                return;
            };
            match fault {
                Fault::Partition if runtime.draw(fastrand::Rng::bool) => {
                    // What the last answers tell is old, and nothing follows them.
                    let late = runtime.between(Duration::from_millis(50), CONGESTED);
                    let until = runtime.now() + time;
                    server.congest(program, (runtime.now() + late).min(until));
                    runtime.after(late, move |_| another.cut_off(program, until));
                }
                Fault::Partition => server.cut_off(program, runtime.now() + time),
                Fault::Block => {
                    let time = time.min(Duration::from_secs(10));
                    server.block_next(program, time);
                }
                Fault::Stop => {
                    runtime.stop(program, true);
                    let history = context.history.clone();
                    runtime.after(time, move |runtime| {
                        if runtime.is_alive(program) {
                            runtime.stop(program, false);
                            history.goes_on(program);
                        }
                    });
                }
                _ => {
                    runtime.kill(program);
                    server.forget(program);
                    programs.end(program);
                    programs.begin(context);
                }
            }
        }
        _ => {}
    }
    // Others are counted when they have an effect.
    let later = [
        Fault::Unreachable,
        Fault::Partition,
        Fault::Block,
        Fault::FailOver,
        Fault::Promote,
    ];
    if !later.contains(&fault) {
        server.note(fault);
    }
}
