//! What programs use in their own tests, and the obvious forms of their handlers.

#![allow(
    clippy::needless_pass_by_value,
    clippy::unused_async,
    reason = "as users write them"
)]

use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use lockapi::engine::ManualClock;
use lockapi::lease::LeaseOptions;
use lockapi::memory::Database;
use lockapi::queue::{Job, JobKind};
use lockapi::schedule::Task;
use lockapi::worker::{Context, Failed, Observe, Worker, any_error};
use lockapi::{Error, ErrorKind, Queue, Stop, blocking};
use serde::{Deserialize, Serialize};

const SECOND: Duration = Duration::from_secs(1);

async fn queue() -> Arc<dyn Queue> {
    let backend = Database::new().connect().await.unwrap();
    backend.queue("work").unwrap()
}

#[tokio::test]
async fn clock_that_is_advanced_keeps_what_is_renewed() {
    for _ in 0..50 {
        let clock = ManualClock::default();
        let backend = Database::with_clock(&clock).connect().await.unwrap();
        let lease = backend.lease("k", LeaseOptions::new(30 * SECOND)).unwrap();
        let guard = lease.try_acquire().await.unwrap().unwrap();
        for _ in 0..6 {
            clock.advance(11 * SECOND);
        }
        assert!(!guard.is_lost());
        clock.advance(100 * SECOND);
        assert!(!guard.is_lost(), "not in one step either");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn clock_that_is_advanced_loses_what_cannot_be_renewed() {
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let backend = database.connect().await.unwrap();
    let lease = backend.lease("k", LeaseOptions::new(30 * SECOND)).unwrap();
    let guard = lease.try_acquire().await.unwrap().unwrap();
    database.set_reachable(false);
    clock.advance(60 * SECOND);
    assert!(guard.is_lost());
}

#[tokio::test]
async fn one_of_several_backends_is_taken_away_alone() {
    let database = Database::new();
    let link = database.link();
    let (gone, stays) = (
        link.connect().await.unwrap(),
        database.connect().await.unwrap(),
    );
    let held = stays.mutex("stays").unwrap().lock().await.unwrap();
    let lost = gone.mutex("goes").unwrap().lock().await.unwrap();
    link.set_reachable(false);
    lost.lost().await;
    let error = link.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let other = database.connect().await.unwrap();
    let taken = other.mutex("goes").unwrap().try_lock().await.unwrap();
    assert!(taken.is_some(), "its lock is free");
    assert!(!held.is_lost());
    held.unlock().await.unwrap();
    link.set_reachable(true);
    let back = gone.mutex("goes").unwrap().try_lock().await;
    assert!(back.unwrap().is_none(), "another has it");
}

#[tokio::test]
async fn silence_of_one_link_is_heard_by_nobody_else() {
    let database = Database::new();
    let link = database.link();
    let silent = link.connect().await.unwrap().queue("work").unwrap();
    let other = database.connect().await.unwrap().queue("work").unwrap();
    link.set_silent(true);
    let asked = silent.statistics();
    assert!(tokio::time::timeout(SECOND / 5, asked).await.is_err());
    assert_eq!(other.statistics().await.unwrap().ready.count, 0);
    link.set_silent(false);
    assert_eq!(silent.statistics().await.unwrap().ready.count, 0);
}

#[tokio::test]
async fn worker_runs_until_it_is_idle() {
    let queue = queue().await;
    for number in 0..100 {
        queue
            .push(Job::new("count", &number).unwrap())
            .await
            .unwrap();
    }
    let later = Job::new("count", &0).unwrap().delay(60 * SECOND);
    queue.push(later).await.unwrap();
    let more = Arc::clone(&queue);
    let worker = Worker::new(Arc::clone(&queue)).data(more).handle(
        "count",
        async |number: usize, job: Context| {
            tokio::task::yield_now().await;
            match number {
                7 => return Err(Failed::retry("no")),
                8 => {
                    let more = job.data::<Arc<dyn Queue>>();
                    more.push(Job::new("count", &1000)?).await?;
                }
                _ => {}
            }
            Ok(())
        },
    );
    let summary = worker.run_until_idle().await.unwrap();
    assert_eq!((summary.done, summary.failed), (100, 1));
    assert_eq!(queue.statistics().await.unwrap().delayed.count, 2);
    let idle = Worker::new(queue).handle("count", async |_: usize, _| Ok(()));
    assert_eq!(idle.run_until_idle().await.unwrap().claimed, 0);
}

#[tokio::test]
async fn scheduler_fires_what_is_due() {
    let clock = ManualClock::default();
    let backend = Database::with_clock(&clock).connect().await.unwrap();
    let scheduler = backend.scheduler("chores").unwrap();
    let job = Job::new("chore", &1).unwrap();
    let task = Task::every("hourly", 3600 * SECOND, job);
    scheduler.set(task).await.unwrap();
    assert_eq!(scheduler.run_due().await.unwrap(), []);
    clock.advance(3600 * SECOND);
    assert_eq!(scheduler.run_due().await.unwrap().len(), 1);
    let worker = Worker::new(backend.queue("chores").unwrap());
    let worker = worker.handle("chore", async |_: u8, _| Ok(()));
    assert_eq!(worker.run_until_idle().await.unwrap().done, 1);
    let blocking = blocking::Scheduler::from(scheduler);
    assert_eq!(blocking.run_due().unwrap(), []);
}

/// Hears of jobs that nobody handles.
#[derive(Clone, Default)]
struct Unhandled(Arc<Mutex<Vec<(String, u64)>>>);

impl Observe for Unhandled {
    fn unhandled(&self, queue: &str, jobs: &lockapi::queue::Unhandled) {
        let told = (format!("{queue}: {}", jobs.name), jobs.jobs);
        self.0.lock().unwrap().push(told);
    }
}

#[tokio::test]
async fn worker_tells_of_jobs_that_nobody_handles() {
    let clock = ManualClock::default();
    let backend = Database::with_clock(&clock).connect().await.unwrap();
    let queue = backend.queue("work").unwrap();
    queue.push(Job::new("new", &1).unwrap()).await.unwrap();
    let (told, stop) = (Unhandled::default(), Stop::new());
    let worker = Worker::new(queue)
        .observe(told.clone())
        .handle("count", async |_: usize, _| Ok(()));
    let stopped = stop.clone();
    let running = tokio::spawn(async move { worker.run(stopped).await });
    while told.0.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        clock.advance(10 * SECOND);
    }
    stop.stop();
    assert_eq!(running.await.unwrap().unwrap().claimed, 0);
    assert_eq!(told.0.lock().unwrap()[0], ("work: new".to_owned(), 1));
}

#[derive(Serialize, Deserialize)]
struct Welcome {
    to: String,
}

impl JobKind for Welcome {
    const NAME: &'static str = "welcome";
}

/// As `anyhow::Error`: no error itself, but one turns into it, and it into any.
#[derive(Debug)]
struct AnyError(String);

impl<E: std::error::Error> From<E> for AnyError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl From<AnyError> for Box<dyn std::error::Error + Send + Sync> {
    fn from(error: AnyError) -> Self {
        error.0.into()
    }
}

struct Mailer(AtomicUsize);

impl Mailer {
    async fn send(&self, to: &str) -> Result<(), AnyError> {
        let _: u16 = to.parse()?;
        self.0.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

async fn welcome(mail: Welcome, job: Context) -> Result<(), AnyError> {
    job.data::<Arc<Mailer>>().send(&mail.to).await
}

fn mail(to: &str) -> Welcome {
    Welcome { to: to.to_owned() }
}

#[tokio::test]
async fn handlers_have_state_kinds_and_errors_of_their_own() {
    let queue = queue().await;
    for to in ["1", "2", "nobody"] {
        queue.push_kind(&mail(to)).await.unwrap();
    }
    let mailer = Arc::new(Mailer(AtomicUsize::new(0)));
    let worker = Worker::new(Arc::clone(&queue))
        .data(Arc::clone(&mailer))
        .handle_kind(any_error(welcome));
    let summary = worker.run_until_idle().await.unwrap();
    assert_eq!((summary.done, summary.failed), (2, 1));
    assert_eq!(mailer.0.load(Ordering::Acquire), 2);
    queue.push_kind(&mail("3")).await.unwrap();
    let worker = Worker::new(queue).data(Arc::clone(&mailer)).handle_kind(
        async |mail: Welcome, job: Context| {
            job.data::<Arc<Mailer>>().send(&mail.to).await?;
            Ok(())
        },
    );
    assert_eq!(worker.run_until_idle().await.unwrap().done, 1);
}

#[tokio::test]
async fn data_that_was_not_given_fails_the_job() {
    let queue = queue().await;
    queue.push_kind(&mail("1")).await.unwrap();
    let worker = Worker::new(queue).handle_kind(any_error(welcome));
    assert_eq!(worker.run_until_idle().await.unwrap().failed, 1);
}

#[test]
fn blocking_handlers_have_the_same() {
    fn welcome(mail: Welcome, job: blocking::Context) -> Result<(), AnyError> {
        let _: u16 = mail.to.parse()?;
        job.data::<Arc<Mailer>>().0.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    let backend = blocking::Backend::connect(Database::new().connect()).unwrap();
    let queue = backend.queue("work").unwrap();
    queue.push_kind(&mail("1")).unwrap();
    queue.push_kind(&mail("nobody")).unwrap();
    let mailer = Arc::new(Mailer(AtomicUsize::new(0)));
    let worker = blocking::Worker::new(&queue)
        .data(Arc::clone(&mailer))
        .handle_kind(blocking::any_error(welcome));
    let summary = worker.run_until_idle().unwrap();
    assert_eq!((summary.done, summary.failed), (1, 1));
    assert_eq!(mailer.0.load(Ordering::Acquire), 1);
}

#[test]
fn one_stop_ends_everything_that_blocks() {
    let database = Database::new();
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    let stop = Stop::new();
    let mails = backend.queue("mails").unwrap();
    let worker = blocking::Worker::new(&mails).handle("mail", |_: String, _| Ok(()));
    let scheduler = backend.scheduler("chores").unwrap();
    let options = LeaseOptions::new(Duration::from_secs(10));
    let (here, there) = (
        backend.election("head", options.clone()).unwrap(),
        backend.election("head", options).unwrap(),
    );
    let (leads, led) = mpsc::channel();
    thread::scope(|scope| {
        let working = scope.spawn(|| worker.run(&stop));
        let scheduling = scope.spawn(|| scheduler.run(&stop));
        let leading = scope.spawn(|| {
            here.lead_until(&stop, |term| {
                leads.send(()).unwrap();
                while !stop.is_stopped() && !term.is_lost() {
                    thread::sleep(Duration::from_millis(1));
                }
                Ok::<_, Error>("done")
            })
        });
        led.recv().unwrap();
        let waiting = scope.spawn(|| {
            let never = |_: &_| -> Result<(), Error> { panic!("another leads") };
            there.lead_until(ready(()), never)
        });
        assert_eq!(waiting.join().unwrap().unwrap(), None);
        stop.stop();
        working.join().unwrap().unwrap();
        scheduling.join().unwrap().unwrap();
        assert_eq!(leading.join().unwrap().unwrap(), Some("done"));
    });
}

#[test]
fn who_leads_goes_on_after_an_outage() {
    let database = Database::new();
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    let election = backend
        .election("head", LeaseOptions::new(Duration::from_secs(10)))
        .unwrap();
    database.set_reachable(false);
    let back = thread::spawn({
        let database = database.clone();
        move || {
            thread::sleep(Duration::from_millis(200));
            database.set_reachable(true);
        }
    });
    let led = election.lead_until(Stop::new(), |term| Ok::<_, Error>(term.fence().token()));
    assert!(led.unwrap().is_some());
    back.join().unwrap();
}

#[test]
fn work_that_outlives_its_term_is_done_again_in_the_next() {
    let clock = ManualClock::default();
    let backend = blocking::Backend::connect(Database::with_clock(&clock).connect()).unwrap();
    let options = LeaseOptions::new(Duration::from_secs(10));
    let election = backend.election("head", options).unwrap();
    for failing in [false, true] {
        let mut terms = Vec::new();
        let led = election.lead_until(Stop::new(), |term| {
            terms.push(term.fence().token());
            if terms.len() > 1 {
                return Ok("done");
            }
            clock.leap(Duration::from_secs(11));
            if failing {
                let message = "as when a check-in is refused";
                return Err(Error::new(ErrorKind::Lost, "check_in", message));
            }
            Ok("too late")
        });
        assert_eq!(led.unwrap(), Some("done"));
        assert!(terms.len() == 2 && terms[1] > terms[0], "{terms:?}");
    }
}
