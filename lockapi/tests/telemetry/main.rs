//! What is told to `tracing` and `metrics`.

mod recorder;
mod subscriber;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockapi::BackendOptions;
use lockapi::blocking::{self, Backend};
use lockapi::engine::ManualClock;
use lockapi::lease::LeaseOptions;
use lockapi::limit::{PermitRequest, Quota};
use lockapi::memory::Database;
use lockapi::queue::{Claim, Job};
use lockapi::worker::{self, Failed, Worker};
use lockapi::{ErrorKind, Stop};
use recorder::Kept;
use subscriber::{SpanSeen, Told};

fn eventually(what: &str, check: impl Fn() -> bool) {
    for _ in 0..1500 {
        if check() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it never happened: {what}");
}

/// One test: the recorder and the subscriber are the process's.
#[test]
fn everything_is_told() {
    let kept = Kept::default();
    assert!(metrics::set_global_recorder(kept.clone()).is_ok());
    let told = Told::default();
    tracing::subscriber::set_global_default(told.clone()).unwrap();

    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let options = BackendOptions::default()
        .warn_waited(Duration::from_secs(5))
        .warn_held(Duration::from_secs(10));
    let backend = Backend::connect(database.connect_with(options)).unwrap();
    mutexes(&kept, &told, &clock, &backend);
    leases(&kept, &told, &clock, &backend);
    limits(&kept, &told, &backend);
    queues(&kept, &told, &clock, &backend);
    workers(&kept, &told, &backend);

    let guard = backend.mutex("gone").unwrap().lock().unwrap();
    database.sever();
    clock.leap(Duration::from_secs(2));
    guard.lost();
    eventually("the loss is counted", || {
        kept.total("lockapi_lost_total mutex") >= 1.0
    });
    drop(guard);
    let held = told.spans(&["hold DEBUG", "key=gone"]);
    assert!(held[0].text.contains("lost=true"));

    for metric in kept.names() {
        assert!(kept.is_described(&metric), "{metric} is not described");
    }
    let seen = told.0.lock().unwrap();
    let texts = seen.spans.iter().map(|span| &span.text);
    for text in texts.chain(&seen.events) {
        assert!(!text.contains("secret"), "{text}");
    }
}

fn mutexes(kept: &Kept, told: &Told, clock: &ManualClock, backend: &Backend) {
    // Held for 4 s and waited for just as long: nobody is warned.
    let mutex = backend.mutex("brief").unwrap();
    let caller = tracing::info_span!(target: "program", "caller");
    let guard = caller.in_scope(|| mutex.lock().unwrap());
    assert!(mutex.try_lock().unwrap().is_none());
    clock.leap(Duration::from_secs(4));
    guard.unlock().unwrap();
    assert_eq!(kept.values("lockapi_hold_seconds mutex"), [4.0]);
    assert_eq!(kept.values("lockapi_wait_seconds mutex"), [0.0]);
    assert!(kept.total("lockapi_contended_total mutex") >= 1.0);
    assert!(kept.counts("lockapi_acquisitions_total mutex granted", 1.0));
    assert!(kept.counts("lockapi_acquisitions_total mutex refused", 1.0));
    assert!(!told.has(&["WARN", "long", "brief"]));

    let spans = told.spans(&["acquire DEBUG kind=\"mutex\"", "key=brief"]);
    let [locking, trying] = &spans[..] else {
        panic!("there are {} spans", spans.len());
    };
    let of = |span: &SpanSeen, parts: &[&str]| parts.iter().all(|part| span.text.contains(part));
    let namespace = "namespace=\"default\"";
    assert!(of(
        locking,
        &["operation=\"lock\"", namespace, "outcome=\"granted\""]
    ));
    assert!(of(
        trying,
        &["operation=\"try_lock\"", namespace, "outcome=\"refused\""]
    ));
    let caller = caller.id().map(|id| id.into_u64());
    assert_eq!((locking.parent, trying.parent), (caller, None));
    let held = told.spans(&["hold DEBUG kind=\"mutex\"", "key=brief", "lost=false"]);
    let [held] = &held[..] else {
        panic!("it was held {} times", held.len());
    };
    assert_eq!((held.parent, Some(held.follows[0])), (None, caller));

    // Held for 20 s, waited for likewise.
    let mutex = backend.mutex("long").unwrap();
    let guard = mutex.lock().unwrap();
    let contended = kept.total("lockapi_contended_total mutex");
    let waiter = mutex.clone();
    let waiting = std::thread::spawn(move || waiter.lock().unwrap().unlock().unwrap());
    eventually("it waits", || {
        kept.total("lockapi_contended_total mutex") > contended
    });
    let error = mutex.lock_timeout(Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(kept.counts("lockapi_acquisitions_total mutex refused", 2.0));
    clock.leap(Duration::from_secs(20));
    let warned = [
        ["WARN", "held long", "key=long"],
        ["WARN", "waited long", "key=long"],
    ];
    eventually("it is warned of while it lasts", || {
        warned.iter().all(|event| told.has(event))
    });
    guard.unlock().unwrap();
    waiting.join().unwrap();
    assert!(kept.values("lockapi_wait_seconds mutex").contains(&20.0));
    for event in warned {
        assert_eq!(told.events(&event), 1, "once");
    }

    // A call that is dropped has been left.
    let guard = mutex.lock().unwrap();
    let inner = backend.inner().mutex("long").unwrap();
    {
        let waiting = pin!(inner.lock());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.poll(&mut context).is_pending());
    }
    guard.unlock().unwrap();
    assert!(kept.counts("lockapi_acquisitions_total mutex left", 1.0));
    assert_eq!(told.spans(&["acquire", "key=long", "\"left\""]).len(), 1);

    let door = backend.rw_lock("door").unwrap();
    door.read().unwrap().unlock().unwrap();
    let reading = told.spans(&["acquire", "operation=\"read\"", "key=door"]);
    assert_eq!(reading.len(), 1);
    assert!(
        !kept
            .values("lockapi_batch_size mutex.lock_request")
            .is_empty()
    );
    let statements = told.spans(&[
        "statement TRACE",
        "mutex.lock_request",
        "requests=1",
        "failed=false",
    ]);
    assert!(statements.iter().all(|span| span.parent.is_none()));
    assert!(!statements.is_empty());
}

fn leases(kept: &Kept, told: &Told, clock: &ManualClock, backend: &Backend) {
    let options = || LeaseOptions::new(Duration::from_secs(60)).renewed_by_hand();
    let lease = backend.lease("job", options()).unwrap();
    let guard = lease.acquire().unwrap();
    assert!(lease.try_acquire().unwrap().is_none());
    guard.renew().unwrap();
    clock.leap(Duration::from_secs(61));
    guard.lost();
    drop(guard);
    assert!(kept.counts("lockapi_renewals_total lease done", 1.0));
    assert!(kept.counts("lockapi_contended_total lease", 1.0));
    assert!(kept.counts("lockapi_lost_total lease", 1.0));
    assert!(kept.counts("lockapi_acquisitions_total lease refused", 1.0));
    assert_eq!(kept.values("lockapi_hold_seconds lease"), [61.0]);
    assert!(told.has(&["WARN", "lost", "lease"]));

    let semaphore = backend.semaphore("pool", 2, options()).unwrap();
    let both = semaphore.acquire_many(2).unwrap();
    assert!(semaphore.try_acquire().unwrap().is_none());
    both.release().unwrap();
    let election = backend.election("head", options()).unwrap();
    election.campaign().unwrap().release().unwrap();
    let mutex = backend.leased_mutex("door", options()).unwrap();
    mutex.lock().unwrap().unlock().unwrap();
    for kind in ["semaphore", "election", "leased_mutex"] {
        let granted = format!("lockapi_acquisitions_total {kind} granted");
        assert!(kept.counts(&granted, 1.0), "{kind}");
        assert_eq!(kept.values(&format!("lockapi_hold_seconds {kind}")), [0.0]);
        let spans = told.spans(&["acquire", &format!("kind=\"{kind}\""), "granted"]);
        assert_eq!(spans.len(), 1, "{kind}");
    }
    assert!(kept.counts("lockapi_acquisitions_total semaphore refused", 1.0));
    assert!(kept.counts("lockapi_contended_total semaphore", 1.0));
}

fn limits(kept: &Kept, told: &Told, backend: &Backend) {
    let limiter = backend.rate_limiter(Quota::per_minute(2)).unwrap();
    let decide = |cost| limiter.check_cost("caller", cost).unwrap();
    assert!(decide(2).is_allowed());
    assert!(!decide(1).is_allowed());
    let requests = [PermitRequest::new("caller"), PermitRequest::new("other")];
    assert!(!limiter.check_all(&requests).unwrap().is_allowed());
    let permits = limiter.permits(&PermitRequest::new("third")).unwrap();
    assert!(permits.take().unwrap());
    assert!(kept.counts("lockapi_decisions_total admitted", 2.0));
    assert!(kept.counts("lockapi_decisions_total refused", 2.0));
    assert!(told.has(&["DEBUG", "refused", "key=caller"]));
    assert!(!told.has(&["refused", "key=other"]));
    let request = PermitRequest::new("fourth");
    assert!(
        limiter
            .until_ready(&request, Duration::from_secs(5 * 60))
            .is_ok()
    );
    assert_eq!(kept.values("lockapi_wait_seconds rate_limiter"), [0.0]);
    let spans = told.spans(&["acquire", "rate_limiter", "until_ready", "key=fourth"]);
    assert!(spans[0].text.contains("granted"));
    assert!(!kept.values("lockapi_batch_size limit.take").is_empty());
}

fn queues(kept: &Kept, told: &Told, clock: &ManualClock, backend: &Backend) {
    let queue = backend.queue("work").unwrap();
    let jobs = (0..3).map(|n| Job::new("send", &n).unwrap()).collect();
    queue.push_all(jobs).unwrap();
    let claimed = queue.claim(&Claim::new(2)).unwrap();
    queue.statistics().unwrap();
    assert!(kept.counts("lockapi_claimed_total work", 2.0));
    assert_eq!(kept.values("lockapi_queue_jobs work ready"), [1.0]);
    assert_eq!(kept.values("lockapi_queue_jobs work running"), [2.0]);
    assert!(!kept.values("lockapi_batch_size queue.push").is_empty());
    clock.leap(Duration::from_secs(11));
    eventually("the deliveries are extended", || {
        kept.total("lockapi_renewals_total job done") >= 2.0
    });
    clock.leap(Duration::from_secs(3600));
    eventually("the deliveries are lost", || {
        kept.total("lockapi_lost_total job") >= 2.0
    });
    assert!(told.has(&["WARN", "lost", "job"]));
    drop(claimed);
    queue.purge().unwrap();
}

fn workers(kept: &Kept, told: &Told, backend: &Backend) {
    for threads in [false, true] {
        let queue = backend
            .queue(if threads { "threads" } else { "tasks" })
            .unwrap();
        queue
            .push(Job::new("send", "secret payload").unwrap())
            .unwrap();
        queue
            .push(Job::new("fail", "secret payload").unwrap())
            .unwrap();
        let stop = Stop::new();
        let done = |left: &AtomicUsize, stop: &Stop| {
            tracing::info!(target: "program", "at work");
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                stop.stop();
            }
        };
        let left = Arc::new(AtomicUsize::new(2));
        if threads {
            let counts = [(Arc::clone(&left), stop.clone()), (left, stop.clone())];
            let [(one, first), (other, second)] = counts;
            blocking::Worker::new(&queue)
                .handle("send", move |_: String, _: blocking::Context| {
                    done(&one, &first);
                    Ok(())
                })
                .handle("fail", move |_: String, _: blocking::Context| {
                    done(&other, &second);
                    Err(Failed::reject("secret reason"))
                })
                .run(&stop)
                .unwrap();
        } else {
            let counts = [(Arc::clone(&left), stop.clone()), (left, stop.clone())];
            let [(one, first), (other, second)] = counts;
            let worker = Worker::new(Arc::clone(queue.inner()))
                .handle("send", move |_: String, _: worker::Context| {
                    let (left, stop) = (Arc::clone(&one), first.clone());
                    async move {
                        // What waits between two polls has left the span.
                        yield_now().await;
                        done(&left, &stop);
                        Ok(())
                    }
                })
                .handle("fail", move |_: String, _: worker::Context| {
                    let (left, stop) = (Arc::clone(&other), second.clone());
                    async move {
                        done(&left, &stop);
                        Err(Failed::reject("secret reason"))
                    }
                });
            blocking::block_on(worker.run(&stop)).unwrap();
        }
    }
    for queue in ["tasks", "threads"] {
        for (name, outcome) in [("send", "done"), ("fail", "rejected")] {
            let parts = [
                "job INFO",
                &format!("queue=\"{queue}\""),
                &format!("name=\"{name}\""),
                "namespace=\"default\"",
                "attempt=1",
                &format!("outcome=\"{outcome}\""),
            ];
            assert_eq!(told.spans(&parts).len(), 1, "{queue} {name}");
            let ran = kept.values(&format!("lockapi_job_seconds {queue} {outcome}"));
            assert_eq!(ran.len(), 1, "{queue} {name}");
        }
    }
    assert!(told.has(&["job: INFO", "at work"]));
    let seen = told.0.lock().unwrap();
    let at_work: Vec<_> = seen
        .events
        .iter()
        .filter(|text| text.contains("at work"))
        .collect();
    assert_eq!(at_work.len(), 4);
    assert!(
        at_work.iter().all(|text| text.starts_with("job: ")),
        "{at_work:?}"
    );
}

/// Lets others run once.
async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
