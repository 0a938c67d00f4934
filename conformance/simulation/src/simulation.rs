//! One world from its beginning to its end.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockapi::suite::simulation::seed;

use crate::history::History;
use crate::plan::{Fault, Plan};
use crate::programs::{self, Context};
use crate::server::Server;
use crate::world::{ProgramId, Violation, World};

/// Within this time they have to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// And within this time all that a process has left has to be found.
const AUDIT: Duration = Duration::from_secs(600);

/// What became of a world.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) violation: Option<Violation>,
    pub(crate) statements: u64,
    pub(crate) steps: u64,
    pub(crate) trace: u64,
    pub(crate) time: Duration,
    pub(crate) answers: BTreeMap<&'static str, u64>,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

/// Runs a plan; the same plan gives the same outcome.
pub(crate) fn simulate(plan: &Plan) -> Outcome {
    seed(Some(plan.seed));
    let world = World::new(plan.seed);
    let server = Server::new(&world, plan);
    let history = History::new(&world, plan);
    let context = Context::new(&world, &server, &history, plan);
    let programs: Programs = Arc::default();
    for _ in 0..plan.programs {
        programs.begin(&context);
    }
    schedule(&context, &programs);
    world.run(plan.time, || false);
    server.calm();
    for program in programs.all() {
        if world.is_alive(program) {
            world.stop(program, false);
        }
    }
    world.run(plan.time + plan.calm, || false);
    context.ending.store(true, Ordering::Relaxed);
    world.run(world.now() + PATIENCE, || world.tasks().is_empty());
    let left = world.tasks();
    if !left.is_empty() {
        world.violate("every call is answered", format!("{left:?} have not ended"));
    }
    programs::begin(&context, false);
    world.run(world.now() + AUDIT, || world.tasks().is_empty());
    if let Some(task) = world.tasks().first() {
        world.violate("all can be had in the end", format!("{task} has not ended"));
    }
    world.run(world.now() + PATIENCE, || server.sessions() == 0);
    if server.sessions() > 0 {
        world.violate("nothing is left", format!("{} sessions", server.sessions()));
    }
    let left = server.model(|model| model.state().locks());
    if left > 0 {
        world.violate("nothing is left", format!("{left} advisory locks"));
    }
    let (statements, faults) = server.figures();
    let (answers, errors) = history.figures();
    let outcome = Outcome {
        violation: world.violation(),
        statements,
        steps: world.steps(),
        trace: world.trace(),
        time: world.now(),
        answers,
        errors,
        faults,
    };
    world.end();
    seed(None);
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

    fn any(&self, world: &World) -> Option<ProgramId> {
        world.draw(|random| random.choice(self.all()))
    }

    fn end(&self, program: ProgramId) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|it| *it != program);
    }
}

/// Lets something that concerns a process or the server fail now and then.
fn schedule(context: &Context, programs: &Programs) {
    const ALL: [Fault; 9] = [
        Fault::Terminate,
        Fault::Restart,
        Fault::Unreachable,
        Fault::Partition,
        Fault::Deaf,
        Fault::Stop,
        Fault::Kill,
        Fault::Step,
        Fault::FailOver,
    ];
    let (world, every) = (&context.world, context.plan.every);
    let pause = every.mul_f64(world.draw(fastrand::Rng::f64) * 2.0);
    let (context, programs) = (context.clone(), Arc::clone(programs));
    world.after(pause, move |world| {
        if world.now() >= context.plan.time {
            return;
        }
        let possible = ALL.into_iter().filter(|fault| context.plan.has(*fault));
        let possible: Vec<_> = possible.collect();
        let fault = world.draw(|random| random.choice(possible));
        if let Some(fault) = fault
            && world.happens(context.plan.probability(fault))
        {
            strike(fault, &context, &programs);
        }
        schedule(&context, &programs);
    });
}

fn strike(fault: Fault, context: &Context, programs: &Programs) {
    let (world, server) = (&context.world, &context.server);
    let time = world.between(Duration::from_millis(5), Duration::from_secs(30));
    let time = time.min(context.plan.time.saturating_sub(world.now()));
    let another = server.clone();
    match fault {
        Fault::Terminate if !server.terminate_any() => return,
        Fault::Restart => server.restart(),
        Fault::Unreachable => {
            server.set_unreachable(true);
            world.after(time, move |_| another.set_unreachable(false));
        }
        Fault::Deaf => {
            server.set_deaf(true);
            world.after(time, move |_| another.set_deaf(false));
        }
        Fault::Step => {
            let by = i64::try_from(time.as_micros()).unwrap_or(0);
            let back = world.draw(fastrand::Rng::bool);
            server.set_clock(if back { -by } else { by });
        }
        Fault::FailOver => {
            let cut = world.now();
            server.cut_replication();
            let history = context.history.clone();
            world.after(time, move |world| {
                another.fail_over();
                history.failed_over(cut, world.now());
            });
        }
        Fault::Partition | Fault::Stop | Fault::Kill => {
            let Some(program) = programs.any(world) else {
                return;
            };
            match fault {
                Fault::Partition => server.cut_off(program, world.now() + time),
                Fault::Stop => {
                    world.stop(program, true);
                    world.after(time, move |world| {
                        if world.is_alive(program) {
                            world.stop(program, false);
                        }
                    });
                }
                _ => {
                    world.kill(program);
                    server.forget(program);
                    programs.end(program);
                    programs.begin(context);
                }
            }
        }
        _ => {}
    }
    if !matches!(fault, Fault::Unreachable | Fault::Partition) {
        server.note(fault);
    }
}
