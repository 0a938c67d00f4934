//! Attempts, deadlines and turns.

use std::sync::atomic::AtomicU32;
use std::time::Instant;

use super::super::Conflict;
use super::*;

const STALE: Conflict = Conflict { current: Some(2) };

fn quick() -> Retry {
    Retry::default().pause(Duration::from_micros(10), Duration::from_micros(100))
}

fn failing(retry: &Retry, again: bool) -> u32 {
    let mut attempts = 0;
    let outcome: Result<(), BoxError> = retry.run_blocking(
        &["a"],
        |_| again,
        |attempt| {
            attempts += 1;
            assert_eq!(attempt.number(), attempts);
            Err(STALE.into())
        },
    );
    assert!(outcome.unwrap_err().is::<Conflict>());
    attempts
}

#[test]
fn attempts_are_bounded() {
    assert_eq!(failing(&quick().attempts(7), true), 7);
    assert_eq!(failing(&quick().attempts(7), false), 1);
    assert_eq!(failing(&quick().deadline(Duration::ZERO), true), 1);
    let short = quick().budget(12);
    let taken = [(); 3].map(|()| failing(&short, true));
    assert_eq!(taken, [10, 4, 1], "nine repetitions, three, and none");
    let value: Result<u32, BoxError> = short.run_blocking(&["a"], |_| true, |_| Ok(1));
    assert_eq!(value.unwrap(), 1);
    assert_eq!(failing(&short, true), 2, "success gives one back");
}

#[test]
fn hot_rows_are_locked_and_taken_in_turns() {
    let retry = quick().lock_after(2);
    let mut locked = Vec::new();
    let outcome = retry.run_blocking(
        &["a"],
        |_| true,
        |attempt| {
            locked.push(attempt.locks());
            if attempt.number() < 3 {
                Err(STALE.into())
            } else {
                Ok(())
            }
        },
    );
    outcome.unwrap();
    assert_eq!(locked, [false, true, true], "the row is hot");
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let done = retry.run_blocking(
                    &["b", "a"],
                    |_| true,
                    |attempt| {
                        assert!(attempt.locks());
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        Ok(())
                    },
                );
                done.unwrap();
            });
        }
    });
    let cold = retry.begin(&["c"]).unwrap().next_blocking().unwrap();
    assert!(!cold.locks());
}

/// Keys on which there was a conflict just now.
fn mark_contended(retry: &Retry, keys: &[&str]) {
    let mut attempts = retry.begin(keys).unwrap();
    attempts.next_blocking().unwrap();
    let stale: Result<(), Conflict> = attempts.again(STALE, true);
    assert!(stale.is_ok());
}

#[test]
fn first_attempt_begins_before_the_deadline_or_never() {
    let retry = quick();
    mark_contended(&retry, &["a"]);
    let mut holder = retry.begin(&["a"]).unwrap();
    assert!(holder.next_blocking().unwrap().locks());
    let short = retry.clone().deadline(Duration::from_millis(100));
    let began = Instant::now();
    let worked: Result<(), BoxError> =
        short.run_blocking(&["a"], |_| true, |_| panic!("it is not its turn"));
    let error = worked.unwrap_err();
    let kind = error.downcast_ref::<Error>().map(Error::kind);
    assert_eq!(kind, Some(ErrorKind::TimedOut));
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(100) && took < Duration::from_millis(600));
    holder.succeed(());
    short
        .run_blocking(&["a"], |_| true, |_| Ok(()))
        .expect("its turn");
}

#[test]
fn pause_beyond_the_deadline_is_not_waited_for() {
    let minute = Duration::from_secs(60);
    let retry = Retry::default().pause(minute, minute).deadline(minute / 60);
    for _ in 0..5 {
        let mut attempts = retry.begin(&[]).unwrap();
        attempts.next_blocking().unwrap();
        // A pause of up to a minute is nearly always too long.
        if attempts.again(STALE, true).is_err() {
            return;
        }
    }
    panic!("it waits for what begins too late");
}

#[test]
fn work_inside_work_does_not_wait_in_a_cycle() {
    let retry = quick();
    mark_contended(&retry, &["a", "b"]);
    let met = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for (outer, inner) in [("a", "b"), ("b", "a")] {
            let (retry, met) = (&retry, &met);
            scope.spawn(move || {
                let inside = |_| -> Result<(), BoxError> {
                    met.wait();
                    retry.run_blocking(
                        &[inner],
                        |_| true,
                        |attempt| {
                            assert!(attempt.locks(), "the server finds cycles");
                            Ok(())
                        },
                    )
                };
                retry.run_blocking(&[outer], |_| true, inside).unwrap();
            });
        }
    });
}

#[test]
fn those_who_pass_the_turn_on_are_waited_for() {
    let retry = quick();
    mark_contended(&retry, &["a"]);
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                // The last one waits for longer than anybody keeps the turn.
                let work = |_| {
                    most.fetch_max(1 + inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(250));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                };
                retry.run_blocking(&["a"], |_| true, work).unwrap();
            });
        }
    });
    assert_eq!(most.into_inner(), 1);
}

#[test]
fn what_is_outside_of_the_limits_is_refused() {
    let hours = Duration::from_secs(2 * 3600);
    for retry in [
        quick().attempts(0),
        quick().attempts(1001),
        quick().deadline(hours),
        quick().pause(hours, hours),
        quick().pause(Duration::from_millis(2), Duration::from_millis(1)),
    ] {
        assert_eq!(retry.begin(&[]).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
