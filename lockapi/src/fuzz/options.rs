//! Options, with values at the edges of their types.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq};

use super::{check, is_refused};
use crate::BackendOptions;
use crate::admin::JobEdit;
use crate::lease::{LeaseOptions, MAX_TTL, MIN_TTL, micros};
use crate::queue::{
    Job, MAX_DELAY, MAX_PAYLOAD_BYTES, MAX_PROGRESS_NOTE, QueueOptions, Ticket, checked_report,
};
use crate::schedule::{MAX_EVERY, MIN_EVERY, Misfire, Overlap, Task};

const DAY: u64 = 24 * 3600;
const TEN_YEARS: Duration = Duration::from_secs(10 * 366 * DAY);

/// Whether a name that may be empty can be stored.
fn is_name(name: &str) -> bool {
    name.len() <= 255 && !name.contains('\0')
}

fn duration() -> impl Strategy<Value = Duration> {
    let edges = vec![
        MIN_TTL,
        MAX_TTL,
        MAX_DELAY,
        MIN_EVERY,
        MAX_EVERY,
        Duration::ZERO,
    ];
    let near = (proptest::sample::select(edges), 0..3_u32).prop_map(|(edge, by)| match by {
        0 => edge.saturating_sub(Duration::from_nanos(1)),
        1 => edge,
        _ => edge + Duration::from_nanos(1),
    });
    prop_oneof![
        3 => near,
        1 => (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
        2 => (0..100_000_000_000_u64).prop_map(Duration::from_nanos),
        1 => Just(Duration::MAX),
    ]
}

#[test]
fn leases_are_checked() {
    let cases = (duration(), duration(), any::<String>(), 0..5000_usize);
    let edges = [MIN_TTL, MAX_TTL, Duration::ZERO, Duration::MAX];
    let known = edges.into_iter().flat_map(|ttl| {
        let holds = [
            Duration::ZERO,
            ttl,
            ttl.saturating_add(Duration::from_nanos(1)),
        ];
        holds.map(|hold| (ttl, hold, String::new(), 0))
    });
    let accepted = Cell::new(0);
    check(known, &cases, |(ttl, hold, owner, data)| {
        let allowed = ttl >= Duration::from_millis(10)
            && ttl <= Duration::from_secs(366 * DAY)
            && hold <= ttl
            && is_name(&owner)
            && data <= 4096;
        let options = LeaseOptions::new(ttl)
            .minimum_hold(hold)
            .owner(owner)
            .data("d".repeat(data));
        let checked = options.check();
        prop_assert_eq!(checked.is_ok(), allowed, "{:?}", checked);
        if checked.is_ok() {
            accepted.set(accepted.get() + 1);
            let request = options.acquire("namespace", "key", 0)?;
            prop_assert!(request.ttl > 0 && request.hold <= request.ttl);
            prop_assert_eq!(request.ttl, micros(ttl));
        } else {
            prop_assert!(is_refused(&checked));
        }
        Ok(())
    });
    assert!(accepted.get() > 0, "none was accepted");
}

#[test]
fn reports_are_checked() {
    let fractions = prop_oneof![any::<f64>(), -0.1..1.1_f64];
    let notes = prop_oneof![any::<String>(), "\\PC{0,400}", "[a\u{0}]{0,20}"];
    let edges = [
        0.0,
        -0.0,
        1.0,
        1.0 + f64::EPSILON,
        f64::MIN_POSITIVE,
        f64::NAN,
        f64::INFINITY,
    ];
    let known = edges.into_iter().flat_map(|fraction| {
        [0, MAX_PROGRESS_NOTE, MAX_PROGRESS_NOTE + 1].map(|length| (fraction, "n".repeat(length)))
    });
    check(known, &(fractions, notes), |(fraction, note)| {
        let checked = checked_report(Ticket { id: 1, token: 1 }, fraction, &note);
        let allowed = (0.0..=1.0).contains(&fraction)
            && note.len() <= MAX_PROGRESS_NOTE
            && !note.contains('\0');
        prop_assert_eq!(checked.is_ok(), allowed);
        match checked {
            Ok(report) => prop_assert!((0..=1_000_000).contains(&report.millionths)),
            refused => prop_assert!(is_refused(&refused)),
        }
        Ok(())
    });
}

#[test]
fn backends_are_checked() {
    let numbers = || prop_oneof![4 => 0..100_usize, 1 => any::<usize>()];
    let cases = (
        prop_oneof!["[a-z]{1,255}", any::<String>()],
        numbers(),
        numbers(),
        duration(),
        duration(),
        numbers(),
    );
    let (accepted, too_small) = (Cell::new(0), Cell::new(0));
    let second = Duration::from_secs(1);
    let known = [
        ("n".to_owned(), 10, 10, second, second, 100),
        ("n".to_owned(), 10, 10, second, second, 0),
        (
            "n".to_owned(),
            usize::MAX,
            usize::MAX,
            Duration::MAX,
            Duration::MAX,
            usize::MAX,
        ),
        (String::new(), 0, 0, Duration::ZERO, Duration::ZERO, 0),
    ];
    check(
        known,
        &cases,
        |(namespace, locks, waiters, timeout, heartbeat, pool)| {
            let options = BackendOptions::default()
                .namespace(namespace)
                .max_locks(locks)
                .waiters(waiters)
                .timeout(timeout)
                .heartbeat(heartbeat);
            let checked = options.check_pool(pool);
            prop_assert!(checked.is_ok() || is_refused(&checked));
            prop_assert!(checked.is_err() || pool > options.connections());
            accepted.set(accepted.get() + u32::from(checked.is_ok()));
            let is_too_small =
                options.check_pool(usize::MAX).is_ok() && pool <= options.connections();
            too_small.set(too_small.get() + u32::from(is_too_small));
            Ok(())
        },
    );
    assert!(accepted.get() > 0 && too_small.get() > 0, "all alike");
}

#[test]
fn queues_and_jobs_are_checked() {
    let cases = (
        duration(),
        (proptest::option::of(duration()), duration()),
        prop_oneof![
            1..=MAX_PAYLOAD_BYTES,
            MAX_PAYLOAD_BYTES - 1..MAX_PAYLOAD_BYTES + 2,
            any::<usize>(),
        ],
        (
            duration(),
            duration(),
            prop_oneof![1..=1_000_000_u32, 999_999..1_000_003_u32, any::<u32>()],
            // Until the year 2096.
            prop_oneof![0..4_000_000_000_000_000_u64, any::<u64>()],
        ),
    );
    let (queues, jobs) = (Cell::new(0), Cell::new(0));
    let second = Duration::from_secs(1);
    let known = [
        (second, (Some(second), second), 100, (second, second, 1, 0)),
        (
            MAX_DELAY,
            (None, MAX_DELAY),
            MAX_PAYLOAD_BYTES,
            (MAX_DELAY, MAX_DELAY, 1_000_000, u64::MAX),
        ),
    ];
    check(
        known,
        &cases,
        |(keep, (dead, results), payload, (delay, ttl, attempts, at))| {
            let options = QueueOptions::default()
                .archive(keep)
                .dead_letters(dead)
                .results(results)
                .max_payload(payload);
            let checked = options.check("queue");
            let allowed = (1..=16_777_216).contains(&payload)
                && results >= Duration::from_secs(1)
                && results <= Duration::from_secs(30 * DAY)
                && keep <= TEN_YEARS
                && dead.is_none_or(|dead| dead <= TEN_YEARS);
            prop_assert_eq!(checked.is_ok(), allowed, "{:?}", checked);
            prop_assert!(checked.is_ok() || is_refused(&checked));
            if checked.is_ok() {
                queues.set(queues.get() + 1);
                prop_assert_eq!(options.keep(), micros(keep));
                prop_assert!(options.keep_dead() >= 0 || dead.is_none());
                prop_assert_eq!(options.keep_results(), micros(results));
            }
            let mut job = Job::new("job", "payload")?
                .delay(delay)
                .ttl(ttl)
                .max_attempts(attempts);
            let mut edit = JobEdit::new().max_attempts(attempts);
            let at = Duration::from_micros(at);
            if let Some(at) = std::time::UNIX_EPOCH.checked_add(at) {
                job = job.at(at);
                edit = edit.at(at);
            }
            // The last second of the year 9999.
            let allowed =
                (1..=1_000_000).contains(&attempts) && at.as_micros() <= 253_402_300_799_000_000;
            let checked = edit.check();
            prop_assert_eq!(checked.is_ok(), allowed, "{:?}", checked);
            prop_assert!(checked.is_ok() || is_refused(&checked));
            let allowed = allowed && delay <= TEN_YEARS && ttl <= TEN_YEARS;
            let checked = job.check(100);
            prop_assert_eq!(checked.is_ok(), allowed, "{:?}", checked);
            prop_assert!(checked.is_ok() || is_refused(&checked));
            if checked.is_ok() {
                jobs.set(jobs.get() + 1);
                let row = job.row();
                prop_assert_eq!((row.delay, row.ttl), (micros(delay), micros(ttl)));
                prop_assert!(row.at.checked_add(row.delay).is_some());
            }
            Ok(())
        },
    );
    assert!(queues.get() > 0 && jobs.get() > 0, "none was accepted");
}

#[test]
fn tasks_are_checked() {
    let misfire = prop_oneof![
        duration().prop_map(|late| Misfire::Skip { late }),
        Just(Misfire::Coalesce),
        any::<usize>().prop_map(Misfire::CatchUp),
        (0..1002_usize).prop_map(Misfire::CatchUp),
    ];
    let overlap = proptest::sample::select(vec![Overlap::Allow, Overlap::Skip, Overlap::Queue]);
    let cases = (duration(), duration(), duration(), misfire, overlap);
    let known = [MIN_EVERY, MAX_EVERY, Duration::ZERO, Duration::MAX]
        .map(|time| (time, time, time, Misfire::CatchUp(1000), Overlap::Queue));
    let accepted = Cell::new(0);
    check(
        known,
        &cases,
        |(every, first, timeout, misfire, overlap)| {
            let task = Task::every("task", every, Job::new("job", "payload")?)
                .first_in(first)
                .timeout(timeout)
                .misfire(misfire)
                .overlap(overlap);
            let checked = task.check();
            let interval = |time| time >= Duration::from_millis(100) && time <= TEN_YEARS;
            let is_caught_up = match misfire {
                Misfire::Skip { late } => late <= TEN_YEARS,
                Misfire::Coalesce => true,
                Misfire::CatchUp(most) => {
                    (1..=1000).contains(&most) && (most == 1 || overlap != Overlap::Skip)
                }
            };
            // An interval has whole microseconds.
            let allowed = interval(Duration::from_micros(
                u64::try_from(every.as_micros()).unwrap_or(u64::MAX),
            )) && first <= TEN_YEARS
                && (timeout.is_zero() || interval(timeout))
                && is_caught_up;
            prop_assert_eq!(checked.is_ok(), allowed, "{:?}", checked);
            prop_assert!(checked.is_ok() || is_refused(&checked));
            accepted.set(accepted.get() + u32::from(allowed));
            Ok(())
        },
    );
    assert!(accepted.get() > 0, "none was accepted");
}
