//! What the suite cannot reach: tasks that never run, and what is left behind inside.

#[cfg(shuttle)]
mod interleavings;
pub(crate) mod refusing;
mod unanswered;
mod wakers;

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{BackendOptions, ManualClock, start};
use crate::admin::Filter;
use crate::backend::Backend;
use crate::blocking::{self, block_on};
use crate::driver::{BackgroundTask, Connector, Mode};
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::id;
use crate::idempotency::{Begun, IdempotencyOptions};
use crate::lease::LeaseOptions;
use crate::limit::{PermitRequest, Quota};
use crate::memory::{Database, Session};
use crate::queue::{Claim, Job, QueueOptions};
use crate::random::EXHAUSTED;

/// Runs the probe; then the runtime has shut down, and drops what it is given.
struct Gone(Database);

impl Connector for Gone {
    type Connection = Session;
    type Listener = Session;

    async fn connect(&self, mode: Mode) -> std::result::Result<Session, Failure> {
        Connector::connect(&self.0, mode).await
    }

    async fn listener(&self) -> std::result::Result<Session, Failure> {
        self.0.listener().await
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        if name == "lockapi-probe" {
            self.0.spawn(name, task);
        }
    }
}

/// A call, made anew each time.
type Calls = Vec<(
    &'static str,
    Box<dyn Fn() -> BoxFuture<'static, Result<()>> + Send>,
)>;

/// Every call that asks the server.
fn calls(backend: &Arc<dyn Backend>) -> Calls {
    let mut calls: Calls = Vec::new();
    macro_rules! calls {
        ($($name:literal |$of:ident = $handle:ident| $call:expr;)*) => {
            $({
                let $of = $handle.clone();
                calls.push(($name, Box::new(move || {
                    let $of = $of.clone();
                    async move { $call.await.map(drop) }.boxed()
                })));
            })*
        };
    }
    let options = || LeaseOptions::new(Duration::from_secs(1));
    let mutex = backend.mutex("a").unwrap();
    let lock = backend.rw_lock("b").unwrap();
    let lease = backend.lease("a", options()).unwrap();
    let semaphore = backend.semaphore("a", 2, options()).unwrap();
    let seat = backend.election("a", options()).unwrap();
    let leased = backend.leased_mutex("a", options()).unwrap();
    let queue = backend.queue("a").unwrap();
    let limiter = backend.rate_limiter(Quota::per_second(1)).unwrap();
    let ids = backend.id_gen("a", id::IdOptions::default()).unwrap();
    let blocks = backend.id_gen("b", id::IdOptions::blocks(10)).unwrap();
    let scheduler = backend.scheduler("a").unwrap();
    let inspector = backend.inspector();
    calls! {
        "lock" |it = mutex| it.lock();
        "try_lock" |it = mutex| it.try_lock();
        "read" |it = lock| it.read();
        "write" |it = lock| it.write();
        "acquire" |it = lease| it.acquire();
        "try_acquire" |it = lease| it.try_acquire();
        "peek of a lease" |it = lease| it.peek();
        "acquire_many" |it = semaphore| it.acquire_many(2);
        "try_acquire_many" |it = semaphore| it.try_acquire_many(2);
        "campaign" |it = seat| it.campaign();
        "try_campaign" |it = seat| it.try_campaign();
        "lock of a leased mutex" |it = leased| it.lock();
        "try_lock of a leased mutex" |it = leased| it.try_lock();
        "push" |it = queue| it.push(Job::new("a", &1).unwrap());
        "push of a key" |it = queue| it.push(Job::new("a", &1).unwrap().idempotency_key("a"));
        "claim" |it = queue| it.claim(&Claim::new(1));
        "pause" |it = queue| it.pause();
        "statistics" |it = queue| it.statistics();
        "purge" |it = queue| it.purge();
        "check" |it = limiter| it.check("a");
        "check_all" |it = limiter| it.check_all(&[PermitRequest::new("a"), PermitRequest::new("b")]);
        "peek" |it = limiter| it.peek(&PermitRequest::new("a"));
        "reserve" |it = limiter| it.reserve(&PermitRequest::new("a"), Duration::from_secs(1));
        "until_ready" |it = limiter| it.until_ready(&PermitRequest::new("a"), Duration::from_secs(1));
        "reset" |it = limiter| it.reset(&"a".into());
        "next" |it = ids| it.next();
        "next of a block" |it = blocks| it.next();
        "tasks" |it = scheduler| it.tasks("", 10);
        "locks" |it = inspector| it.locks(&Filter::default());
        "leases" |it = inspector| it.leases(&Filter::default());
        "audit" |it = inspector| it.audit(&Filter::default());
        "migrate" |it = backend| it.migrate();
    }
    calls
}

#[test]
fn tasks_that_never_run_fail_every_call() {
    let backend = block_on(start(
        "gone",
        Gone(Database::new()),
        BackendOptions::default(),
    ))
    .unwrap();
    let (sender, outcomes) = mpsc::channel();
    std::thread::spawn(move || {
        for (name, call) in calls(&backend) {
            // Callers that leave at once change nothing.
            for _ in 0..3 {
                drop(call().now_or_never());
            }
            let kind = block_on(call()).map_err(|error| error.kind());
            sender.send((name, kind)).unwrap();
        }
    });
    let mut last = "none";
    while let Ok((name, kind)) = outcomes
        .recv_timeout(Duration::from_secs(5))
        .map_err(|error| {
            assert_eq!(error, mpsc::RecvTimeoutError::Disconnected, "after {last}");
        })
    {
        assert_eq!(kind, Err(ErrorKind::Unavailable), "{name}");
        last = name;
    }
    assert_eq!(last, "migrate");
}

#[test]
fn work_that_was_done_is_not_taken_back_by_an_outage() {
    let database = Database::new();
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    let lease = backend
        .lease("a", LeaseOptions::new(Duration::from_secs(30)))
        .unwrap();
    let ran = lease.run_exclusive(|_| {
        database.set_reachable(false);
        Ok::<_, Error>(7)
    });
    assert_eq!(ran.unwrap(), Some(7));

    database.set_reachable(true);
    let backend = block_on(database.connect()).unwrap();
    let lease = backend
        .lease("b", LeaseOptions::new(Duration::from_secs(30)))
        .unwrap();
    let ran = block_on(lease.run_exclusive(async |_| {
        database.set_reachable(false);
        Ok::<_, Error>(7)
    }));
    assert_eq!(ran.unwrap(), Some(7));
}

#[test]
fn a_renewal_that_is_answered_too_late_leaves_nothing_held() {
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let here = blocking::Backend::connect(database.connect()).unwrap();
    let options = LeaseOptions::new(Duration::from_secs(30));
    let guard = here.lease("a", options).unwrap().acquire().unwrap();
    database.set_silent(true);
    clock.advance(Duration::from_secs(10));
    // The renewal is sent by then.
    std::thread::sleep(Duration::from_millis(200));
    clock.advance(Duration::from_millis(19_500));
    guard.lost();
    database.set_silent(false);
    let start = Instant::now();
    while database.inspect(|model| model.lease_held("default", "a").is_some()) {
        assert!(start.elapsed() < Duration::from_secs(5), "still held");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn archives_are_swept_while_their_queue_is_used() {
    const HOUR: Duration = Duration::from_secs(3600);
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    let queue = |name: &str, keep| {
        let options = QueueOptions::default().archive(keep);
        backend.queue_with(name, options).unwrap()
    };
    for queue in [queue("short", HOUR), queue("long", HOUR * 24)] {
        queue.push(Job::new("job", &1).unwrap()).unwrap();
        let claimed = queue.claim(&Claim::new(1)).unwrap();
        for delivery in claimed {
            delivery.ack().unwrap();
        }
    }
    let ended = || database.inspect(|model| model.jobs().count_all("default").2);
    assert_eq!(ended(), 2);
    clock.leap(HOUR);
    let start = Instant::now();
    while ended() == 2 {
        // The sweep comes some minutes after the queue was used.
        assert!(
            queue("long", HOUR)
                .claim(&Claim::new(1))
                .unwrap()
                .is_empty()
        );
        clock.advance(Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30), "not swept");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ended(), 1, "the other is kept for a day");
}

#[test]
fn expired_jobs_are_swept_although_no_worker_claims_them() {
    const MINUTE: Duration = Duration::from_secs(60);
    for pushes in [true, false] {
        let clock = ManualClock::default();
        let database = Database::with_clock(&clock);
        let connect = || blocking::Backend::connect(database.connect()).unwrap();
        let queue = |backend: &blocking::Backend| backend.queue("work").unwrap();
        let job = |nth| Job::new("job", &nth).unwrap();
        // By a process that has gone.
        queue(&connect()).push(job(1).ttl(MINUTE)).unwrap();
        let backend = connect();
        let mut session = block_on(Connector::connect(&database, Mode::Direct)).unwrap();
        clock.leap(MINUTE * 2);
        let start = Instant::now();
        while queue(&backend).dead_letters(0, 10).unwrap().is_empty() {
            // The sweep comes some minutes after a queue was used.
            if pushes {
                let other = backend.queue("other").unwrap();
                other.push(job(2)).unwrap();
            } else {
                let work = queue(&backend);
                let taken = block_on(work.inner().take_in(&mut session, 1));
                assert!(taken.unwrap().is_empty());
            }
            clock.advance(MINUTE);
            assert!(start.elapsed() < Duration::from_secs(10), "not swept");
            std::thread::sleep(Duration::from_millis(5));
        }
        let counts = database.inspect(|model| model.jobs().count_all("default"));
        assert_eq!((counts.1, counts.2), (0, 1), "running and ended");
    }
}

#[test]
fn reports_of_jobs_that_have_gone_are_swept_while_a_queue_is_used() {
    const MINUTE: Duration = Duration::from_secs(60);
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    let queue = backend.queue("work").unwrap();
    let claim = Claim::new(1).lease(MINUTE * 60);
    let mut running = Vec::new();
    for nth in 0..2 {
        queue.push(Job::new("job", &nth).unwrap()).unwrap();
        let delivery = queue.claim(&claim).unwrap().pop().unwrap();
        delivery.progress(0.5, "half").unwrap();
        running.push(delivery);
    }
    let reports = || database.inspect(|model| model.jobs().reports());
    let start = Instant::now();
    while reports() < 2 {
        clock.advance(Duration::from_secs(1));
        assert!(start.elapsed() < Duration::from_secs(10), "not written");
    }
    running.remove(0).ack().unwrap();
    let start = Instant::now();
    while reports() == 2 {
        // The sweep comes some minutes after a queue was used.
        assert!(queue.claim(&claim).unwrap().is_empty());
        clock.advance(MINUTE);
        assert!(start.elapsed() < Duration::from_secs(10), "not swept");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(reports(), 1, "the other runs");
}

#[test]
fn results_whose_time_is_over_are_swept_while_a_queue_is_used() {
    const MINUTE: Duration = Duration::from_secs(60);
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    for keep in [MINUTE, MINUTE * 60 * 24 * 30] {
        let options = QueueOptions::default().results(keep);
        let queue = backend.queue_with("work", options).unwrap();
        queue.push(Job::new("job", &1).unwrap()).unwrap();
        let delivery = queue.claim(&Claim::new(1)).unwrap().pop().unwrap();
        delivery.set_result("done").unwrap();
        delivery.ack().unwrap();
    }
    let queue = backend.queue("work").unwrap();
    let results = || database.inspect(|model| model.jobs().results());
    assert_eq!(results(), 2);
    let start = Instant::now();
    while results() == 2 {
        // The sweep comes some minutes after a queue was used.
        assert!(queue.claim(&Claim::new(1)).unwrap().is_empty());
        clock.advance(MINUTE);
        assert!(start.elapsed() < Duration::from_secs(10), "not swept");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(results(), 1, "the other is kept");
}

#[test]
fn a_lease_is_lost_by_the_clock_and_not_by_a_thread() {
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    let options = LeaseOptions::new(Duration::from_secs(30)).renewed_by_hand();
    for n in 0..200 {
        let lease = backend.lease(format!("a{n}"), options.clone()).unwrap();
        let guard = lease.acquire().unwrap();
        clock.advance(Duration::from_secs(30));
        assert!(guard.is_lost(), "believed held after its end");
    }
}

#[test]
fn a_delivery_is_lost_by_the_clock_and_not_by_a_thread() {
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    let queue = backend.queue("work").unwrap();
    let claim = Claim::new(1).lease(Duration::from_secs(30));
    for n in 0..200 {
        queue.push(Job::new("job", &n).unwrap()).unwrap();
        let delivery = queue.claim(&claim).unwrap().pop().unwrap();
        assert!(!delivery.is_lost());
        clock.leap(Duration::from_secs(30));
        assert!(delivery.is_lost(), "believed held after its end");
    }
}

#[test]
fn a_lease_is_lost_by_the_clock_also_when_it_is_released() {
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    let options = LeaseOptions::new(Duration::from_secs(30)).renewed_by_hand();
    let lease = backend.lease("a", options).unwrap();
    for _ in 0..200 {
        let guard = lease.try_acquire().unwrap().expect("it is free");
        // The server keeps it for half a second more, and the timer may have had no turn yet.
        clock.leap(Duration::from_millis(29_500));
        assert!(guard.is_lost(), "believed held after its end");
        let released = guard.release().expect_err("it was lost");
        assert_eq!(released.kind(), ErrorKind::Lost);
        clock.leap(Duration::from_secs(1));
    }
}

#[test]
fn without_random_numbers_nothing_is_granted() {
    let database = Database::new();
    let backend = block_on(database.connect()).unwrap();
    let lease = backend
        .lease("a", LeaseOptions::new(Duration::from_secs(30)))
        .unwrap();
    let queue = backend.queue("work").unwrap();
    block_on(queue.push(Job::new("job", &1).unwrap())).unwrap();
    let limiter = backend.rate_limiter(Quota::per_hour(1)).unwrap();
    let refused = |outcome: Result<()>| {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("no random number"), "{error}");
    };
    let (claim, request) = (Claim::new(1), PermitRequest::new("key"));
    EXHAUSTED.set(true);
    refused(block_on(lease.try_acquire()).map(drop));
    refused(block_on(queue.claim(&claim)).map(drop));
    refused(block_on(limiter.reserve(&request, Duration::from_secs(60))).map(drop));
    refused(block_on(database.connect()).map(drop));
    EXHAUSTED.set(false);
    // Nothing was taken.
    assert!(block_on(lease.try_acquire()).unwrap().is_some());
    assert_eq!(block_on(queue.claim(&claim)).unwrap().len(), 1);
    let reserved = block_on(limiter.reserve(&request, Duration::from_secs(60)));
    assert!(reserved.unwrap().is_ok());
}

#[test]
fn answers_are_swept_although_all_are_recorded_in_transactions() {
    const HOUR: Duration = Duration::from_secs(3600);
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let backend = block_on(database.connect()).unwrap();
    let options = IdempotencyOptions::default().retention(HOUR);
    let requests = backend.idempotency(options).unwrap();
    let execute = |key: &str| match block_on(requests.begin(key, b"request")).unwrap() {
        Begun::Execute(execution) => execution,
        other => panic!("{other:?}"),
    };
    let mut session = block_on(Connector::connect(&database, Mode::Direct)).unwrap();
    let first = execute("first");
    block_on(first.complete_in(&mut session, b"answer".to_vec())).unwrap();
    let kept = || database.inspect(|model| model.answers.count());
    assert_eq!(kept(), 1);
    clock.leap(HOUR);
    let start = Instant::now();
    while kept() > 0 {
        // The sweep comes half an hour to an hour after a request was executed.
        drop(execute("other"));
        clock.advance(Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30), "not swept");
        std::thread::sleep(Duration::from_millis(5));
    }
}
