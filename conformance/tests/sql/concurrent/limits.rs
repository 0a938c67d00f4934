//! Two sessions at one rate limit.

use std::time::Duration;

use lockapi::limit::Quota;
use lockapi::suite::limit::{
    Block, Charge, ChargeLine, Ensure, Outcome, RawDecision, ReadLevel, Refund, Reset, Take,
};

use super::sides::Plans;
use super::sides::{Side, Step, UNIT, elapse, minutes, sql, step};
use super::{Meets, Schedule, agree};

/// A minute in nanoseconds.
pub(super) const MINUTE: i64 = UNIT * 1000;

/// Takes a permit, which is a minute, of each of these keys; there are three, and a bit.
pub(super) fn take(keys: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |key: &&str| Take {
            namespace: side.namespace.clone(),
            key: side.key(key),
            price: MINUTE,
            depth: 3 * MINUTE + MINUTE / 2,
            times: 1,
            relaxed: false,
            read_first: false,
        };
        keys.iter().map(of).collect()
    };
    step(batch, |side, decision| decided(side, &decision))
}

fn decided(side: &mut Side, decision: &RawDecision) -> String {
    if matches!(decision.outcome, Outcome::Taken(_)) {
        side.give("nanos taken", decision.now);
    }
    format!("{:?}", decision.outcome)
}

/// The quotas of charges.
#[derive(Clone, Copy)]
pub(super) enum By {
    Cells,
    Window,
    /// A window of a minute.
    Short,
    /// A fixed window of ten minutes.
    Long,
}

impl By {
    fn quota(self) -> Quota {
        let minute = Duration::from_mins(1);
        match self {
            Self::Cells => Quota::new(1, minute).burst(4),
            Self::Window => Quota::new(4, minute * 4).sliding_window(),
            Self::Short => Quota::new(9, minute).sliding_window(),
            Self::Long => Quota::new(9, minute * 10).fixed_window(),
        }
    }
}

/// Charges a permit of each of these keys in a request; with a number it is reserved for so many minutes.
pub(super) fn charge(
    by: By,
    keys: &'static [&'static str],
    reserved: Option<(&'static str, i64)>,
) -> Step {
    std::sync::Arc::new(move |side: &mut Side| {
        let line = |key: &&str| ChargeLine {
            key: side.key(key),
            quota: by.quota(),
            cost: 1,
            id: reserved.map_or(0, |_| fastrand::i64(1..)),
            ttl: reserved.map_or(0, |(_, ttl)| ttl * MINUTE),
        };
        let charge = Charge {
            namespace: side.namespace.clone(),
            lines: keys.iter().map(line).collect(),
            times: 1,
            relaxed: false,
        };
        if let Some((name, _)) = reserved {
            // That of the first key.
            side.give(&format!("reservation {name}"), charge.lines[0].id);
        }
        let answers = side.perform(&[charge]).remove(0);
        let words = answers.iter().map(|answer| decided(side, answer));
        words.collect::<Vec<_>>().join(", ")
    })
}

pub(super) fn ensure(keys: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |key: &&str| Ensure {
            namespace: side.namespace.clone(),
            key: side.key(key),
        };
        keys.iter().map(of).collect()
    };
    step(batch, |_, done| done.to_string())
}

/// Gives back half a permit of what was taken last.
pub(super) fn refund(keys: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |key: &&str| Refund {
            namespace: side.namespace.clone(),
            key: side.key(key),
            price: MINUTE,
            window: 0,
            at: side.given("nanos taken"),
        };
        keys.iter().map(of).collect()
    };
    step(batch, |_, done| done.to_string())
}

pub(super) fn reset(keys: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |key: &&str| Reset {
            namespace: side.namespace.clone(),
            key: side.key(key),
        };
        keys.iter().map(of).collect()
    };
    step(batch, |_, done| done.to_string())
}

pub(super) fn block(keys: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |key: &&str| Block {
            namespace: side.namespace.clone(),
            key: side.key(key),
            time: 2 * MINUTE,
        };
        keys.iter().map(of).collect()
    };
    step(batch, |_, done| done.to_string())
}

/// The state of a key.
pub(super) fn look() -> Step {
    let batch = |side: &Side| {
        let of = |key: &str| ReadLevel {
            namespace: side.namespace.clone(),
            key: side.key(key),
        };
        vec![of("a"), of("b")]
    };
    step(batch, |_, current| {
        let (level, now) = (current.level, current.now);
        let left = |time: i64| minutes((time - now).max(0) / 1000);
        let due = if current.due == i64::MAX {
            None
        } else {
            Some(left(current.due))
        };
        let started = (level.started > 0).then(|| minutes((now - level.started) / 1000));
        format!(
            "debt {} blocked {} window {started:?} of {} used {} before {} due {due:?}",
            left(level.tat),
            left(level.blocked_until),
            level.span / MINUTE,
            level.used,
            level.before,
        )
    })
}

/// As somebody has the rows who looks at them before a change.
pub(super) fn share() -> Step {
    sql("SELECT FROM lockapi.rate_limit WHERE namespace = $n FOR SHARE")
}

/// As a decision has the rows.
pub(super) fn lock() -> Step {
    sql("SELECT FROM lockapi.rate_limit WHERE namespace = $n FOR UPDATE")
}

const A: &[&str] = &["a"];
/// A batch has a statement of its own.
const BATCH: &[&str] = &["a", "b"];

#[test]
fn a_take_waits_for_what_changes_the_row() {
    for first in [
        take(A),
        block(A),
        refund(A),
        charge(By::Cells, A, None),
        lock(),
    ] {
        // There is room for both.
        let before = [&take(A)];
        let schedule = Schedule::new(&before, &first, &take(A), Meets::Waits);
        schedule.then(&look()).then(&take(A)).then(&look()).run();
    }
}

#[test]
fn takes_of_several_keys_wait_for_what_changes_a_row() {
    for first in [take(A), refund(A), charge(By::Cells, A, None), lock()] {
        let before = [&take(BATCH)];
        let schedule = Schedule::new(&before, &first, &take(BATCH), Meets::Waits);
        schedule
            .then(&look())
            .then(&take(BATCH))
            .then(&look())
            .run();
    }
}

#[test]
fn the_last_permit_goes_to_one_of_two() {
    let before = [&take(BATCH), &take(A)];
    let schedule = Schedule::new(&before, &take(A), &take(A), Meets::Waits);
    schedule.then(&look()).run();
    // Without another look at the row nobody knows why there was no room.
    let meets = Meets::WaitsAndRetries("Again; Taken(1)");
    let schedule = Schedule::new(&before, &take(A), &take(BATCH), meets);
    let schedule = schedule.only_if_committed().partly(&take(&["b"]));
    schedule.then(&look()).run();
    for quota in [By::Cells, By::Window] {
        let (one, both) = (charge(quota, A, None), charge(quota, BATCH, None));
        let before = [&ensure(BATCH), &one, &one, &one];
        let schedule = Schedule::new(&before, &one, &both, Meets::Waits);
        schedule.then(&look()).run();
        let reserving = charge(quota, BATCH, Some(("it", 3)));
        let schedule = Schedule::new(&before, &one, &reserving, Meets::Waits);
        schedule.then(&look()).run();
    }
}

#[test]
fn nothing_is_taken_of_a_key_that_is_blocked_meanwhile() {
    let before = [&take(BATCH)];
    let schedule = Schedule::new(&before, &block(A), &take(A), Meets::Waits);
    schedule.then(&look()).run();
    for reserved in [None, Some(("it", 3))] {
        let charge = charge(By::Cells, BATCH, reserved);
        let schedule = Schedule::new(&before, &block(A), &charge, Meets::Waits);
        schedule.then(&look()).run();
    }
}

#[test]
fn a_row_that_is_created_meanwhile_is_waited_for() {
    for first in [take(A), ensure(A), block(A)] {
        let meets = Meets::WaitsAndRetries("Again");
        let schedule = Schedule::new(&[], &first, &take(A), meets);
        schedule.then(&look()).run();
        let schedule = Schedule::new(&[], &first, &ensure(BATCH), Meets::Waits);
        schedule.then(&look()).run();
        let schedule = Schedule::new(&[], &first, &block(BATCH), Meets::Waits);
        schedule.then(&look()).run();
    }
}

#[test]
fn a_row_that_is_deleted_meanwhile_is_waited_for() {
    let before = [&take(BATCH)];
    let schedule = Schedule::new(&before, &reset(A), &take(A), Meets::Waits);
    schedule.then(&look()).run();
    for second in [refund(A), reset(BATCH), block(A)] {
        let schedule = Schedule::new(&before, &reset(A), &second, Meets::Waits);
        schedule.then(&look()).run();
    }
    for reserved in [None, Some(("it", 3))] {
        // What is not taken because of another line is not told apart from what is refused.
        let meets = Meets::WaitsAndRetries("Again, Refused");
        let charge = charge(By::Cells, BATCH, reserved);
        let schedule = Schedule::new(&before, &reset(A), &charge, meets);
        schedule.then(&look()).run();
    }
}

#[test]
fn charges_wait_for_what_changes_a_row() {
    for quota in [By::Cells, By::Window] {
        for reserved in [None, Some(("it", 3))] {
            for first in [
                take(A),
                refund(A),
                charge(By::Cells, A, None),
                charge(By::Window, A, None),
                charge(quota, BATCH, Some(("other", 5))),
                lock(),
            ] {
                let before = [&take(BATCH), &charge(quota, BATCH, None), &elapse(1)];
                let second = charge(quota, BATCH, reserved);
                let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
                schedule.then(&look()).then(&take(BATCH)).run();
            }
        }
    }
}

/// They wait before they have anything of the row.
#[test]
fn charges_that_wait_do_not_hinder_who_looked_at_the_row() {
    for quota in [By::Cells, By::Window] {
        for reserved in [None, Some(("it", 3))] {
            let before = [&take(BATCH), &charge(quota, BATCH, None), &elapse(1)];
            let second = charge(quota, BATCH, reserved);
            let schedule = Schedule::new(&before, &take(A), &second, Meets::Waits);
            schedule.looked(&share()).then(&look()).run();
        }
    }
    let before = [&take(BATCH)];
    let schedule = Schedule::new(&before, &take(A), &reset(BATCH), Meets::Waits);
    schedule.looked(&share()).then(&look()).run();
}

#[test]
fn what_is_given_back_or_blocked_waits_for_what_changes_the_row() {
    for second in [refund(A), refund(BATCH), block(A), block(BATCH)] {
        for first in [
            take(A),
            refund(A),
            block(A),
            charge(By::Window, A, None),
            lock(),
        ] {
            let before = [&take(BATCH), &take(A)];
            let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
            schedule.then(&look()).run();
        }
    }
}

/// What was withheld before a clock was set back is not withheld once more when it gets there again.
#[test]
fn what_was_withheld_goes_back_with_the_clock() {
    let takes = [
        take(A),
        take(&["a", "b"]),
        charge(By::Cells, A, None),
        charge(By::Window, A, None),
    ];
    for again in takes {
        let steps = [
            &take(A),
            &elapse(2),
            &refund(A),
            &elapse(-5),
            &again,
            &look(),
            &super::reservations::expire(A),
            &look(),
            &again,
            &elapse(3),
            &take(A),
            &take(A),
            &elapse(1),
            &refund(A),
            &look(),
        ];
        agree(Plans::Engine, &steps);
    }
}

/// What has been replenished since it was taken is not given back, although the clock shows an earlier time than that.
#[test]
fn what_is_given_back_after_a_step_is_counted_at_the_time_of_the_row() {
    let reserved = charge(By::Cells, A, Some(("r", 9)));
    let of_one = [&ensure(A), &reserved, &elapse(1), &take(A), &elapse(-2)];
    for back in [super::reservations::settle(&[("a", "r")]), refund(A)] {
        let steps = [&back, &look(), &super::reservations::expire(A), &look()];
        agree(Plans::Engine, &[&of_one[..], &steps[..]].concat());
    }
}

/// What both have taken is given back at once.
#[test]
fn what_a_window_gets_back_is_no_part_of_what_has_been_replenished() {
    let both = step(
        |side: &Side| {
            let of = |(price, window)| Refund {
                namespace: side.namespace.clone(),
                key: side.key("a"),
                price,
                window,
                at: side.given("nanos taken"),
            };
            [(MINUTE / 4, 0), (MINUTE, 4 * MINUTE)].map(of).to_vec()
        },
        |_, done| done.to_string(),
    );
    let (take, window) = (take(A), charge(By::Window, A, None));
    let steps = [&window, &take, &take, &take, &elapse(1), &both, &look()];
    agree(Plans::Engine, &[&[&ensure(A)], &steps[..]].concat());
}

/// A window is as long as the longest that was used in it, and is followed by one as long as the longest that slides.
#[test]
fn windows_of_several_lengths_meet_in_one_row() {
    let orders = [
        [By::Long, By::Short, By::Short],
        [By::Short, By::Long, By::Short],
        [By::Window, By::Short, By::Long],
        [By::Short, By::Window, By::Cells],
    ];
    for order in orders {
        for pause in [2, 5, 9, 11, 21] {
            let [first, second, third] = order.map(|by| charge(by, A, None));
            let (pause, look) = (elapse(pause), look());
            let steps = [
                &ensure(A),
                &first,
                &pause,
                &second,
                &look,
                &pause,
                &third,
                &look,
            ];
            agree(Plans::Engine, &steps);
        }
    }
}
