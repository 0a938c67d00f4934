//! Rows come in the order that a statement promises, also where the server reads them in another.

use std::sync::Arc;

use lockapi::suite::queue::{NewJob, Push};

use super::agree;
use super::permits::{self, abandon, acquire};
use super::queue::{claim, new_job, take};
use super::sides::{Plans, Side, Step, UNIT, elapse};

/// Pushes a job that is due after so many minutes.
pub(super) fn push_for_later(name: &'static str, delay: i64) -> Step {
    Arc::new(move |side: &mut Side| {
        let job = NewJob {
            group: String::new(),
            delay: delay * UNIT,
            ..new_job()
        };
        let push = Push {
            namespace: side.namespace.clone(),
            queue: "work".to_owned(),
            jobs: vec![job],
            topic: None,
        };
        let ids = side.perform(&[push]).remove(0);
        side.give(&format!("job {name}"), ids[0]);
        String::new()
    })
}

#[test]
fn jobs_are_claimed_in_the_order_of_their_times() {
    let jobs = [
        &push_for_later("a", 2),
        &push_for_later("b", 1),
        &push_for_later("c", 0),
        &elapse(3),
    ];
    for first in [claim(1), claim(2), take(1), take(3)] {
        for second in [claim(1), take(1)] {
            let steps = [&jobs[..], &[&first, &second]].concat();
            agree(Plans::Scans, &steps);
        }
    }
}

#[test]
fn slots_are_taken_in_their_order() {
    let all = permits::take(3, 3, 2);
    let free = [&acquire(&[3, 2, 1]), &abandon()];
    agree(Plans::Scans, &[free[0], free[1], &all, &all]);
    let (one, other) = (permits::take(3, 1, 3), permits::take(3, 1, 4));
    agree(Plans::Scans, &[free[0], free[1], &one, &other, &one]);
}
