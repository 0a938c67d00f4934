//! What is told when a round trip breaks: never that something did not happen which did.

use std::error::Error as _;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use lockapi::BackendOptions;
use lockapi::lease::LeaseOptions;
use lockapi::limit::{PermitRequest, Quota};
use lockapi::queue::{Claim, Job};
use lockapi::{Backend, ErrorKind};

use crate::context::{Context, MINUTE};
use crate::fixture::{Answer, Fault, Point};
use crate::harness::register;
use crate::patience::{SOON, soon};

register! { "unknown":
    W06 push_is_not_done_twice_and_not_denied @ Relay [Relay];
    W06 push_behind_a_proxy_is_not_done_twice_and_not_denied @ RelayedProxy [Relay, Proxy];
    W06 commit_behind_a_proxy_is_no_proof @ RelayedProxy [Relay, Proxy];
    W06 lost_claim_counts_no_attempt @ Relay [Relay];
    W06 lost_claim_counts_no_attempt_after_a_pause @ Relay [Relay];
    W06 lock_is_held_once_or_not_at_all @ Relay [Relay];
    W06 lock_whose_session_ended_is_unavailable @ Relay [Relay];
    W06 lease_is_not_denied @ Relay [Relay];
    W06 check_is_not_denied @ Relay [Relay];
    W06 nothing_was_sent_while_connecting @ Relay [Relay, OwnConnections];
    V07 data_of_the_program_is_not_in_errors @ Own [Sql];
}

/// What a server or a pooler tells when it ends a session.
const CODES: &[&str] = &[
    "08000", "08003", "08006", "08P01", "40003", "57P01", "57P02", "57P03", "57P05", "25P03",
    "25P04",
];

/// All that may come in place of an answer.
fn answers() -> impl Iterator<Item = Answer> {
    let reports = CODES
        .iter()
        .flat_map(|code| ["FATAL", "PANIC"].map(|severity| Answer::Report(severity, code)));
    // Codes that say that a statement failed do so only if the session lives on.
    let others = ["57014", "53200", "XX000"].map(|code| Answer::Report("FATAL", code));
    let unknown = Answer::Report("ERROR", "40003");
    reports.chain(others).chain([unknown, Answer::Nothing])
}

/// All points of a round trip with all that may come in place of its answer.
pub(super) fn faults(statement: &'static str) -> impl Iterator<Item = Fault> {
    answers().flat_map(move |answer| {
        [Point::Before, Point::After].map(|point| Fault {
            statement,
            point,
            answer,
        })
    })
}

/// As what is noted and renewed in the background would meet with the fault as well.
pub(super) async fn quiet(cx: &Context) -> std::sync::Arc<dyn Backend> {
    let options = BackendOptions::default().notes(false);
    cx.connect(options).await.expect("a backend")
}

async fn pushes(cx: &Context, statement: &'static str) {
    let backend = quiet(cx).await;
    let queue = backend.queue("work").unwrap();
    let job = |number: usize| Job::new("count", &number).unwrap();
    queue.push(job(0)).await.unwrap();
    for (number, fault) in (1..).zip(faults(statement)) {
        let told = format!("{fault:?}");
        let before = cx.jobs().await.waiting;
        cx.break_next(fault.clone(), 1).await;
        let pushed = soon("an answer", queue.push(job(number))).await;
        assert_eq!(cx.mend().await, 0, "not met: {told}");
        let more = cx.jobs().await.waiting - before;
        assert!(more <= 1, "one push, {more} jobs: {told}");
        match pushed {
            Ok(_) => assert_eq!(more, 1, "{told}"),
            Err(error) if error.kind() == ErrorKind::Indeterminate => {}
            Err(error) => {
                assert!(error.is_retryable(), "{told}: {error}");
                assert_eq!(more, 0, "it was denied: {told}: {error}");
            }
        }
    }
}

async fn push_is_not_done_twice_and_not_denied(cx: Context) {
    pushes(&cx, "INSERT INTO lockapi.job (").await;
}

async fn push_behind_a_proxy_is_not_done_twice_and_not_denied(cx: Context) {
    pushes(&cx, "INSERT INTO lockapi.job (").await;
}

async fn commit_behind_a_proxy_is_no_proof(cx: Context) {
    pushes(&cx, "COMMIT\n").await;
}

async fn lost_claim_counts_no_attempt(cx: Context) {
    let backend = quiet(&cx).await;
    let queue = backend.queue("work").unwrap();
    let claim = Claim::new(1).lease(MINUTE).extended_by_hand();
    queue.push(Job::new("count", &1).unwrap()).await.unwrap();
    for fault in faults("UPDATE lockapi.job AS j") {
        let told = format!("{fault:?}");
        cx.break_next(fault, 1).await;
        let claimed = soon("an answer", queue.claim(&claim)).await;
        assert_eq!(cx.mend().await, 0, "not met: {told}");
        let mut claimed = claimed.unwrap_or_else(|error| panic!("{told}: {error}"));
        let start = Instant::now();
        while claimed.is_empty() {
            // The server may still work on the first.
            assert!(start.elapsed() < SOON, "nobody has it: {told}");
            claimed = queue.claim(&claim).await.unwrap();
        }
        let delivery = claimed.remove(0);
        assert_eq!(delivery.attempt(), 1, "{told}");
        delivery.snooze(Duration::ZERO).await.unwrap();
    }
}

async fn lost_claim_counts_no_attempt_after_a_pause(cx: Context) {
    const LEASE: Duration = Duration::from_millis(200);
    let backend = quiet(&cx).await;
    let queue = backend.queue("work").unwrap();
    let claim = Claim::new(1).lease(LEASE).extended_by_hand();
    let job = Job::new("count", &1).unwrap().max_attempts(1);
    queue.push(job).await.unwrap();
    let fault = Fault {
        statement: "UPDATE lockapi.job AS j",
        point: Point::After,
        answer: Answer::Nothing,
    };
    // It is repeated once.
    cx.break_next(fault, 2).await;
    let failed = soon("an answer", queue.claim(&claim)).await.unwrap_err();
    assert_eq!(cx.mend().await, 0, "not met");
    assert_eq!(failed.kind(), ErrorKind::Indeterminate);
    queue.pause().await.unwrap();
    cx.pass(LEASE * 2).await;
    // A claim of a paused queue has not looked for what was lost.
    assert!(queue.claim(&claim).await.unwrap().is_empty());
    queue.resume().await.unwrap();
    let delivery = queue.claim(&claim.lease(MINUTE)).await.unwrap().remove(0);
    assert_eq!(delivery.attempt(), 1, "nobody has had it");
}

async fn lock_is_held_once_or_not_at_all(cx: Context) {
    let backend = quiet(&cx).await;
    let mutex = backend.mutex("door").unwrap();
    mutex.lock().await.unwrap().unlock().await.unwrap();
    let lock = cx.lock_id("door");
    for fault in faults("pg_try_advisory_lock(") {
        let told = format!("{fault:?}");
        cx.break_next(fault, 1).await;
        let locked = soon("an answer", mutex.lock()).await;
        assert_eq!(cx.mend().await, 0, "not met: {told}");
        let guard = locked.unwrap_or_else(|error| panic!("{told}: {error}"));
        assert_eq!(cx.locks(lock).await.granted, 1, "{told}");
        assert!(!guard.is_lost(), "{told}");
        guard.unlock().await.unwrap();
    }
}

async fn lock_whose_session_ended_is_unavailable(cx: Context) {
    let backend = quiet(&cx).await;
    let mutex = backend.mutex("door").unwrap();
    for fault in faults("pg_try_advisory_lock(") {
        let told = format!("{fault:?}");
        mutex.lock().await.unwrap().unlock().await.unwrap();
        // Also the session in which it is tried once more.
        cx.break_next(fault, 100).await;
        let error = soon("an answer", mutex.lock()).await.unwrap_err();
        assert!(cx.mend().await < 99, "not tried again: {told}");
        // 53200 is a full lock table, which is retryable, too.
        assert_ne!(error.kind(), ErrorKind::Indeterminate, "{told}: {error}");
        assert!(error.is_retryable(), "{told}: {error}");
    }
}

async fn lease_is_not_denied(cx: Context) {
    let backend = quiet(&cx).await;
    let options = LeaseOptions::new(MINUTE).renewed_by_hand();
    for (number, fault) in faults("lockapi.lease").enumerate() {
        let told = format!("{fault:?}");
        let key = format!("job-{number}");
        let lease = backend.lease(&*key, options.clone()).unwrap();
        cx.break_next(fault, 1).await;
        let leased = soon("an answer", lease.try_acquire()).await;
        assert_eq!(cx.mend().await, 0, "not met: {told}");
        match leased {
            Ok(guard) => {
                let guard = guard.unwrap_or_else(|| panic!("nobody else has it: {told}"));
                assert_eq!(cx.holder(&key).await.fence, guard.fence().token(), "{told}");
            }
            Err(error) if error.kind() == ErrorKind::Indeterminate => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{told}: {error}");
                assert!(cx.lease(&key).await.is_none(), "it was denied: {told}");
            }
        }
    }
}

async fn check_is_not_denied(cx: Context) {
    let backend = quiet(&cx).await;
    let quota = Quota::per_hour(2).burst(2);
    for (nth, fault) in faults("lockapi.rate_limit").enumerate() {
        // One after the other by the cell rate algorithm, in a window, and several at once.
        let quota = if nth % 3 == 1 {
            Quota::per_hour(2).fixed_window()
        } else {
            quota
        };
        let limiter = backend.rate_limiter(quota).unwrap();
        let told = format!("{fault:?}");
        let key = format!("door-{nth}");
        let ask = async |key: &str| {
            if nth % 3 == 2 {
                let verdict = limiter.check_all(&[PermitRequest::new(key)]).await;
                return verdict.map(|verdict| verdict.is_allowed());
            }
            let decision = limiter.check(key).await;
            decision.map(|decision| decision.is_allowed())
        };
        // What breaks is not the preparation of the statement.
        assert!(ask(&key).await.unwrap());
        cx.break_next(fault, 1).await;
        let admitted = soon("an answer", ask(&key)).await;
        assert_eq!(cx.mend().await, 0, "not met: {told}");
        let left = limiter
            .peek(&PermitRequest::new(&*key))
            .await
            .unwrap()
            .remaining();
        match admitted {
            Ok(true) => assert_eq!(left, 0, "{told}"),
            Ok(false) => panic!("it was refused, and nobody else had asked: {told}"),
            Err(error) if error.kind() == ErrorKind::Indeterminate => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{told}: {error}");
                assert_eq!(left, 1, "it was denied: {told}");
            }
        }
    }
}

async fn nothing_was_sent_while_connecting(cx: Context) {
    for answer in answers() {
        let backend = quiet(&cx).await;
        let fault = Fault {
            statement: "",
            point: Point::Connecting,
            answer,
        };
        // The connection for leases is opened when it is needed.
        cx.break_next(fault, 1000).await;
        let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
        let error = soon("an answer", lease.try_acquire()).await.unwrap_err();
        cx.mend().await;
        let expected = match answer {
            Answer::Report(_, "53200") => ErrorKind::Capacity,
            _ => ErrorKind::Unavailable,
        };
        assert_eq!(error.kind(), expected, "{answer:?}: {error}");
    }
}

async fn data_of_the_program_is_not_in_errors(cx: Context) {
    const SECRET: &str = "payload-4711";
    cx.sql(
        "ALTER TABLE lockapi.job ADD CONSTRAINT no_numbers CHECK (payload::text NOT LIKE '%4711%');
         SELECT ''",
    )
    .await;
    let queue = cx.queue().await;
    let pushing = queue.push(Job::new("tell", &SECRET).unwrap());
    let error = pushing.await.unwrap_err();
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(error) = source {
        let _ok = write!(shown, " {error} {error:#} {error:?} {error:#?}");
        source = error.source();
    }
    assert!(shown.contains("no_numbers"), "{shown}");
    assert!(!shown.contains("4711"), "{shown}");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
