use super::*;
use crate::driver::Operation;
use crate::engine::tests::refusing::{Process, eventually};
use crate::limit::Sweep;

fn first_part() -> Sweep {
    Sweep {
        after: Default::default(),
        most: PART,
    }
}

/// Sweeps of limits, which have no table with anything in it: one part is all.
fn sweeps() -> (Process, Arc<Sweeps>) {
    let process = Process::new(Sweep::STATEMENT.name);
    let sweeps = Sweeps::new(process.connections());
    (process, sweeps)
}

fn ended(sweeps: &Sweeps) -> bool {
    sweeps.lock().is_empty()
}

#[test]
fn a_part_that_failed_is_tried_again_after_a_while() {
    let (process, sweeps) = sweeps();
    process.refuse(2);
    sweeps.now(0, first_part());
    process.pass_until_sent(3);
    eventually(|| ended(&sweeps));
    for pair in process.sent().windows(2) {
        let (failed, next) = (pair[0].at, pair[1].at);
        assert!(next >= failed + AGAIN, "{failed:?}, {next:?}");
    }
}

#[test]
fn a_part_that_fails_each_time_ends_the_sweep() {
    let (process, sweeps) = sweeps();
    process.refuse(usize::MAX);
    sweeps.now(0, first_part());
    let times = 1 + usize::try_from(TRIES).unwrap();
    process.pass_until_sent(times);
    eventually(|| ended(&sweeps));
    process.refuse(0);
    sweeps.now(0, first_part());
    process.pass_until_sent(times + 1);
}

#[test]
fn what_is_swept_already_is_not_swept_twice() {
    let (process, sweeps) = sweeps();
    for _ in 0..2 {
        sweeps.later(0, first_part);
    }
    sweeps.now(0, first_part());
    process.pass_until_sent(1);
    assert!(process.now() >= Sweep::EVERY);
    eventually(|| ended(&sweeps));
    process.pass(Sweep::EVERY * 3);
    process.pass_until_sent(1);
    sweeps.later(0, first_part);
    process.pass_until_sent(2);
}
