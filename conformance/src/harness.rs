//! Lists the cases as tests and runs them.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Builder;

use crate::cases;
use crate::child;
use crate::context::Context;
use crate::face::Face;
use crate::fixture::{Need, Place, Subject};

/// How long a case may take: what does not end is found, whatever else the machine does.
const LIMIT: Duration = Duration::from_mins(4);

pub(crate) type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One promise, and how it is tested.
pub(crate) struct Case {
    pub(crate) module: &'static str,
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    pub(crate) place: Place,
    pub(crate) needs: &'static [Need],
    pub(crate) run: fn(Context) -> Running,
}

/// Registers the cases of a module: `M02 second_holder_waits;`, with a place and needs if they
/// matter: `M06 counts_across_processes @ Own [Processes];`.
macro_rules! register {
    ($module:literal: $($id:ident $name:ident $(@ $place:ident)? $([$($need:ident),+])?;)*) => {
        pub(crate) const CASES: &[crate::harness::Case] = &[$(crate::harness::Case {
            module: $module,
            id: stringify!($id),
            name: stringify!($name),
            place: crate::harness::register!(@ $($place)?),
            needs: &[$($(crate::fixture::Need::$need),+)?],
            run: |context| Box::pin($name(context)),
        }),*];
    };
    (@) => { crate::fixture::Place::Shared };
    (@ $place:ident) => { crate::fixture::Place::$place };
}
pub(crate) use register;

/// Runs the suite on subjects as a test target without a harness, and ends the process.
///
/// It understands the arguments of `cargo test` and of `cargo nextest`.
pub fn run(subjects: &[Arc<dyn Subject>]) -> ! {
    run_through(&Face::ALL, subjects)
}

/// As [`run`], through some of the faces only: for another way to connect a backend that is mounted
/// as well.
pub fn run_through(faces: &[Face], subjects: &[Arc<dyn Subject>]) -> ! {
    mount(subjects, faces, |subject, face| {
        let name = |case: &Case| format!("{}::{}_{}", case.module, case.id, case.name);
        cases::all()
            .map(|case| trial(subject, face, &name(case), case))
            .collect()
    })
}

/// Runs the cases in which two backends meet, as a test target without a harness; see
/// [`Postgres::pairs`](crate::Postgres::pairs).
pub fn run_pairs(subjects: &[Arc<dyn Subject>]) -> ! {
    mount(subjects, &[Face::Dyn], |subject, face| {
        let name = |case: &Case, id| format!("interop::{id}_{}", case.name);
        cases::interop()
            .map(|(id, case)| trial(subject, face, &name(case, id), case))
            .collect()
    })
}

fn mount(
    subjects: &[Arc<dyn Subject>],
    faces: &[Face],
    trials: impl Fn(&Arc<dyn Subject>, Face) -> Vec<Trial>,
) -> ! {
    child::play_if_asked(subjects);
    let arguments = Arguments::from_args();
    let mounted = subjects
        .iter()
        .flat_map(|subject| faces.iter().flat_map(|face| trials(subject, *face)));
    libtest_mimic::run(&arguments, mounted.collect()).exit()
}

fn trial(subject: &Arc<dyn Subject>, face: Face, name: &str, case: &'static Case) -> Trial {
    let name = format!("{}::{face}::{name}", subject.name());
    let missing = case
        .needs
        .iter()
        .find(|need| !subject.offers(**need) || !face.offers(**need));
    let subject = Arc::clone(subject);
    match missing {
        None => Trial::test(name, move || perform(subject, face, case)),
        Some(need) => {
            let kind = format!("needs {need}");
            Trial::test(name, move || Err(format!("it needs {need}").into()))
                .with_kind(kind)
                .with_ignored_flag(true)
        }
    }
}

fn perform(subject: Arc<dyn Subject>, face: Face, case: &Case) -> Result<(), Failed> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let (run, place) = (case.run, case.place);
    let outcome = runtime.block_on(async {
        let work = async move { run(Context::new(subject, face, place).await).await };
        let work = tokio::spawn(AssertUnwindSafe(work).catch_unwind());
        tokio::time::timeout(LIMIT, work).await
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    match outcome {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(panic))) => Err(message(&*panic).into()),
        Ok(Err(_)) => Err("the case was cancelled".into()),
        Err(_) => Err(format!("the case did not end within {LIMIT:?}").into()),
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_else(|| "the case panicked".to_owned())
}
