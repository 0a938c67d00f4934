//! Two sessions at one lease.

use std::sync::Arc;

use lockapi::suite::admin::ForceRelease;
use lockapi::suite::idempotency::{CompleteAnswer, RecordAnswer};
use lockapi::suite::lease::{Abandon, Acquire, Acquired, Check, Peek, Release, Renew};

use super::answers::{recall, record};
use super::sides::{Place, Plans, Side, Step, UNIT, elapse, minutes, sql, step};
use super::{Meets, Schedule, agree};

/// Acquires leases: what the tokens are called, the keys and the numbers of the acquisitions.
pub(super) fn acquire(wants: &'static [(&'static str, &'static str, i64)]) -> Step {
    let batch = |side: &Side| {
        let of = |(_, key, acquisition): &(&str, &str, i64)| Acquire {
            namespace: side.namespace.clone(),
            key: side.key(key),
            slot: 0,
            acquisition: *acquisition,
            ttl: UNIT,
            hold: 0,
            owner: format!("owner {acquisition}"),
            data: String::new(),
        };
        wants.iter().map(of).collect::<Vec<_>>()
    };
    Arc::new(move |side: &mut Side| {
        let answers = side.perform(&batch(side));
        let words = answers
            .into_iter()
            .zip(wants)
            .map(|(answer, want)| match answer {
                Acquired::Granted(fence) => side.larger("token", want.0, fence),
                Acquired::Held(left) => format!("held {}", minutes(left)),
            });
        words.collect::<Vec<_>>().join("; ")
    })
}

/// Who has the leases of keys.
pub(super) fn peek(keys: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |key: &&str| Peek {
            namespace: side.namespace.clone(),
            key: side.key(key),
            slot: 0,
        };
        keys.iter().map(of).collect()
    };
    step(batch, |side, held| {
        held.map_or_else(
            || "free".to_owned(),
            |held| {
                let token = side.name_of("token", held.fence);
                let (left, released) = (minutes(held.remaining), held.released);
                format!("{} {token} {left} {released}", held.owner)
            },
        )
    })
}

/// Something that is done with leases of these keys and their tokens.
fn with_tokens<O>(
    wants: &'static [(&'static str, &'static str)],
    of: impl Fn(String, String, i64) -> O + Send + Sync + 'static,
) -> Step
where
    O: lockapi::suite::driver::Operation<Output = bool>,
{
    let batch = move |side: &Side| {
        let of = |(key, token): &(&str, &str)| {
            let fence = side.given(&format!("token {token}"));
            of(side.namespace.clone(), side.key(key), fence)
        };
        wants.iter().map(of).collect()
    };
    step(batch, |_, done| done.to_string())
}

pub(super) fn renew(wants: &'static [(&'static str, &'static str)]) -> Step {
    with_tokens(wants, |namespace, key, fence| Renew {
        namespace,
        key,
        slots: [0].into(),
        fence,
        ttl: 3 * UNIT,
    })
}

pub(super) fn release(wants: &'static [(&'static str, &'static str)]) -> Step {
    with_tokens(wants, |namespace, key, fence| Release {
        namespace,
        key,
        slots: [0].into(),
        fence,
    })
}

fn check(key: &'static str, token: &'static str) -> Step {
    let batch = move |side: &Side| {
        vec![Check {
            namespace: side.namespace.clone(),
            key: side.key(key),
            slots: [0].into(),
            fence: side.given(&format!("token {token}")),
        }]
    };
    step(batch, |_, held| held.to_string())
}

/// Answers the request whose lease it is.
pub(super) fn complete(key: &'static str, token: &'static str) -> Step {
    let batch = move |side: &Side| {
        let fence = side.given(&format!("token {token}"));
        let record = RecordAnswer {
            namespace: side.namespace.clone(),
            key: side.key(key),
            fence,
            fingerprint: vec![7; 32],
            answer: token.into(),
            retention: 60 * UNIT,
        };
        vec![CompleteAnswer {
            lease: side.key(key),
            slot: 0,
            record,
        }]
    };
    step(batch, |_, recorded| recorded.to_string())
}

/// Gives acquisitions back of which nobody was told.
pub(super) fn abandon(wants: &'static [(&'static str, i64)]) -> Step {
    abandon_in("", wants)
}

/// In another namespace, whose name goes on like this.
fn abandon_in(other: &'static str, wants: &'static [(&'static str, i64)]) -> Step {
    let batch = move |side: &Side| {
        let of = |(key, acquisition): &(&str, i64)| Abandon {
            namespace: format!("{}{other}", side.namespace),
            key: side.key(key),
            first: 0,
            last: 0,
            acquisition: *acquisition,
            granted: 0,
        };
        wants.iter().map(of).collect()
    };
    step(batch, |_, found| found.to_string())
}

/// Gives the first acquisition of `a` back, of which this token was told.
fn abandon_but(token: &'static str) -> Step {
    let batch = move |side: &Side| {
        vec![Abandon {
            namespace: side.namespace.clone(),
            key: side.key("a"),
            first: 0,
            last: 0,
            acquisition: 1,
            granted: side.given(&format!("token {token}")),
        }]
    };
    step(batch, |_, found| found.to_string())
}

pub(super) fn force_release(key: &'static str) -> Step {
    let batch = move |side: &Side| {
        vec![ForceRelease {
            namespace: side.namespace.clone(),
            key: side.key(key),
            reason: "it is stuck".to_owned(),
        }]
    };
    step(batch, |_, owners| format!("from {owners:?}"))
}

/// As an acquisition has it.
fn lock() -> Step {
    sql("SELECT FROM lockapi.lease WHERE namespace = $n FOR UPDATE")
}

/// As a batch and alone: each has a statement of its own.
type Forms<T> = [&'static [T]; 2];

const FIRST: &[(&str, &str, i64)] = &[("first", "a", 1)];
const SECOND: &[(&str, &str, i64)] = &[("second", "a", 2)];
const THIRD: Forms<(&str, &str, i64)> = [
    &[("third", "a", 3)],
    &[("third", "a", 3), ("other", "b", 4)],
];
const MINE: Forms<(&str, &str)> = [&[("a", "first")], &[("a", "first"), ("b", "none")]];
const KEYS: &[&str] = &["a", "b"];

#[test]
fn an_acquisition_skips_an_ended_lease_that_another_acquires() {
    let (first, other) = (acquire(FIRST), acquire(&[("other", "b", 4)]));
    for (third, answer) in THIRD.iter().zip(["held 0", "held 0; a larger token"]) {
        for taken in [acquire(SECOND), lock()] {
            let meets = Meets::Skips(answer);
            let before = [&first, &elapse(2)];
            let schedule = Schedule::new(&before, &taken, &acquire(third), meets);
            let schedule = match third.len() {
                1 => schedule,
                _ => schedule.partly(&other),
            };
            schedule.then(&peek(KEYS)).run();
        }
    }
}

#[test]
fn an_acquisition_skips_a_lease_that_a_transaction_has_checked_in() {
    for (third, answer) in THIRD.iter().zip(["held 0", "held 0; a larger token"]) {
        for first in [check("a", "first"), complete("a", "first")] {
            let (before, meets) = ([&acquire(FIRST)], Meets::Skips(answer));
            let schedule = Schedule::new(&before, &first, &acquire(third), meets);
            let schedule = match third.len() {
                1 => schedule,
                _ => schedule.partly(&acquire(&[("other", "b", 4)])),
            };
            schedule.meanwhile(&elapse(2)).then(&peek(KEYS)).run();
        }
    }
}

#[test]
fn a_repeated_acquisition_skips_its_lease_while_it_is_locked() {
    for (first, answer) in [
        (FIRST, "held 1"),
        (&[("first", "a", 1), ("other", "b", 4)], "held 1; held 1"),
    ] {
        let (before, again) = ([&acquire(first)], acquire(first));
        let schedule = Schedule::new(&before, &lock(), &again, Meets::Skips(answer));
        schedule.then(&peek(KEYS)).run();
    }
}

#[test]
fn an_acquisition_waits_for_another_that_creates_the_row() {
    for (third, answer) in THIRD.iter().zip(["held 0", "held 0; a larger token"]) {
        let meets = Meets::WaitsAndRetries(answer);
        let schedule = Schedule::new(&[], &acquire(SECOND), &acquire(third), meets);
        let schedule = match third.len() {
            1 => schedule,
            // What it acquired besides is acquired again.
            _ => schedule
                .only_if_committed()
                .partly(&acquire(&[("other", "b", 4)])),
        };
        schedule.then(&peek(KEYS)).run();
    }
}

#[test]
fn a_renewal_waits_for_what_ends_the_lease() {
    for mine in MINE {
        for first in [
            release(&[("a", "first")]),
            release(&[("a", "first"), ("b", "none")]),
            renew(&[("a", "first")]),
            abandon(&[("a", 1)]),
            force_release("a"),
            lock(),
        ] {
            let before = [&acquire(FIRST)];
            let schedule = Schedule::new(&before, &first, &renew(mine), Meets::Waits);
            schedule.then(&peek(KEYS)).run();
        }
    }
}

#[test]
fn a_release_waits_for_what_changes_the_lease() {
    for mine in MINE {
        for first in [
            release(&[("a", "first")]),
            renew(&[("a", "first")]),
            abandon(&[("a", 1)]),
            force_release("a"),
            lock(),
        ] {
            let before = [&acquire(FIRST)];
            let schedule = Schedule::new(&before, &first, &release(mine), Meets::Waits);
            schedule.then(&peek(KEYS)).run();
        }
    }
}

#[test]
fn renewals_and_releases_of_a_holder_pass_its_check_in() {
    for second in [
        renew(MINE[0]),
        renew(MINE[1]),
        release(MINE[0]),
        release(MINE[1]),
        check("a", "first"),
        force_release("a"),
    ] {
        for first in [check("a", "first"), complete("a", "first")] {
            let before = [&acquire(FIRST)];
            let schedule = Schedule::new(&before, &first, &second, Meets::Passes);
            schedule.then(&peek(KEYS)).then(&recall()).run();
        }
    }
}

#[test]
fn a_check_in_waits_while_somebody_acquires_the_lease() {
    let before = [&acquire(FIRST)];
    for second in [check("a", "first"), complete("a", "first")] {
        let schedule = Schedule::new(&before, &lock(), &second, Meets::Waits);
        schedule.then(&recall()).run();
        // The repetition of an acquisition, whose holder checks in.
        let schedule = Schedule::new(&before, &acquire(FIRST), &second, Meets::Waits);
        schedule.then(&peek(KEYS)).then(&recall()).run();
    }
}

#[test]
fn an_answer_of_the_holder_waits_for_one_that_is_recorded() {
    let before = [&acquire(FIRST)];
    let other = record(&[("a", -1)]);
    let schedule = Schedule::new(&before, &other, &complete("a", "first"), Meets::Waits);
    schedule.then(&recall()).run();
    let schedule = Schedule::new(&before, &complete("a", "first"), &other, Meets::Waits);
    schedule.then(&recall()).run();
    // Its own is changed.
    let schedule = Schedule::new(
        &before,
        &complete("a", "first"),
        &complete("a", "first"),
        Meets::Waits,
    );
    schedule.then(&recall()).run();
}

#[test]
fn who_has_lost_the_lease_of_a_request_records_no_answer() {
    let late = complete("a", "first");
    for before in [
        vec![acquire(FIRST), elapse(2)],
        vec![acquire(FIRST), elapse(2), acquire(SECOND)],
        vec![acquire(FIRST), release(&[("a", "first")])],
    ] {
        let before: Vec<_> = before.iter().collect();
        Schedule::new(&before, &late, &recall(), Meets::Passes).run();
    }
}

/// It waits before it has anything of the row.
#[test]
fn what_is_given_back_does_not_hinder_who_looked_at_the_lease() {
    let before = [&acquire(FIRST)];
    let share = sql("SELECT FROM lockapi.lease WHERE namespace = $n FOR SHARE");
    for second in [
        abandon(&[("a", 1)]),
        force_release("a"),
        release(MINE[0]),
        renew(MINE[1]),
    ] {
        let schedule = Schedule::new(&before, &renew(MINE[0]), &second, Meets::Waits);
        schedule.looked(&share).then(&peek(KEYS)).run();
    }
}

#[test]
fn what_is_given_back_or_taken_away_waits_for_what_changes_the_lease() {
    for second in [abandon(&[("a", 1)]), force_release("a")] {
        for first in [
            release(&[("a", "first")]),
            renew(&[("a", "first")]),
            abandon(&[("a", 1)]),
            force_release("a"),
            lock(),
        ] {
            let before = [&acquire(FIRST)];
            let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
            schedule.then(&peek(KEYS)).run();
        }
    }
}

#[test]
fn only_the_acquisition_that_is_meant_is_given_back() {
    let (first, other) = (acquire(FIRST), acquire(&[("other", "b", 2)]));
    for given_back in [
        abandon(&[("a", 9)]),
        abandon(&[("b", 1)]),
        abandon(&[("a", 1), ("b", 9)]),
        abandon_in(" too", &[("a", 1)]),
        abandon_but("first"),
        abandon_but("other"),
    ] {
        agree(
            Plans::Engine,
            &[&first, &other, &given_back, &peek(KEYS), &given_back],
        );
    }
    // Nor does it wait for a row of another namespace.
    let elsewhere = abandon_in(" too", &[("a", 1)]);
    let schedule = Schedule::new(&[&first], &lock(), &elsewhere, Meets::Passes);
    schedule.then(&peek(KEYS)).run();
}

/// So many requests by different acquisitions, in turn for each of the keys.
fn acquire_many(many: i64, keys: &'static [&'static str]) -> Step {
    let batch = move |side: &Side| {
        let of = |(n, key): (i64, &&str)| Acquire {
            namespace: side.namespace.clone(),
            key: side.key(key),
            slot: 0,
            acquisition: n,
            ttl: UNIT,
            hold: 0,
            owner: format!("owner {n}"),
            data: String::new(),
        };
        let keys = keys.iter().cycle();
        (10..10 + many).zip(keys).map(of).collect()
    };
    step(batch, |_, acquired| match acquired {
        Acquired::Granted(_) => "granted".to_owned(),
        Acquired::Held(left) => format!("held {}", minutes(left)),
    })
}

#[test]
fn of_many_requests_for_a_lease_the_first_takes_effect() {
    let (first, freed) = (acquire(FIRST), release(MINE[0]));
    for (many, keys) in [(100, KEYS), (3, &KEYS[..1])] {
        let many = acquire_many(many, keys);
        for before in [
            &[] as &[&Step],
            &[&first],
            &[&first, &freed],
            &[&first, &elapse(2)],
        ] {
            agree(Plans::Engine, &[before, &[&many, &peek(KEYS)]].concat());
        }
    }
}

#[test]
fn requests_for_one_lease_skip_it_while_another_has_it() {
    let before = [&acquire(FIRST), &elapse(2)];
    let twice = acquire(&[("third", "a", 3), ("fourth", "a", 4)]);
    for first in [acquire(SECOND), lock()] {
        let meets = Meets::Skips("held 0; held 0");
        let schedule = Schedule::new(&before, &first, &twice, meets);
        schedule.then(&peek(KEYS)).run();
    }
}

#[test]
fn an_acquisition_that_is_repeated_after_its_end_has_a_new_token() {
    for wants in [FIRST, &[("first", "a", 1), ("other", "b", 4)]] {
        let (first, again) = (acquire(FIRST), acquire(wants));
        for until in [&elapse(2), &release(MINE[0])] {
            agree(Plans::Engine, &[&first, until, &again, &peek(KEYS)]);
        }
    }
}

/// Acquires these leases for five minutes, and at least so many.
fn acquire_and_hold(keys: &'static [&'static str], least: i64) -> Step {
    Arc::new(move |side: &mut Side| {
        let of = |(n, key): (i64, &&str)| Acquire {
            namespace: side.namespace.clone(),
            key: side.key(key),
            slot: 0,
            acquisition: n,
            ttl: 5 * UNIT,
            hold: least * UNIT,
            owner: format!("owner {n}"),
            data: String::new(),
        };
        let batch: Vec<_> = (20..).zip(keys).map(of).collect();
        let answers = side.perform(&batch);
        let words = answers
            .into_iter()
            .zip(keys)
            .map(|(answer, key)| match answer {
                Acquired::Granted(fence) => side.larger("token", key, fence),
                Acquired::Held(left) => format!("held {}", minutes(left)),
            });
        words.collect::<Vec<_>>().join("; ")
    })
}

#[test]
fn a_lease_that_is_released_early_is_held_for_its_minimum() {
    let (first, freed) = (acquire(FIRST), release(MINE[0]));
    for least in [0, 3] {
        for keys in [&KEYS[..1], KEYS] {
            let (held, release) = (acquire_and_hold(keys, least), release(&[("a", "a")]));
            for third in THIRD {
                let steps = [&held, &peek(KEYS), &release, &acquire(third), &peek(KEYS)];
                agree(Plans::Engine, &steps);
                agree(Plans::Engine, &[&[&first, &freed], &steps[..]].concat());
            }
        }
    }
}

/// A lease without a minimum hold has none, also if the clock was set back since it was acquired.
#[test]
fn a_lease_that_is_released_is_free_whatever_the_clock_shows() {
    let (first, back, release) = (acquire(FIRST), elapse(-1), release(MINE[0]));
    for third in THIRD {
        let steps = [&first, &back, &release, &acquire(third), &peek(KEYS)];
        agree(Plans::Engine, &steps);
    }
}

/// The lease ends now.
fn end() -> Step {
    Arc::new(|side: &mut Side| {
        if let Place::Model(model) = &mut side.place {
            model.now += 2 * UNIT;
        }
        let end = "UPDATE lockapi.lease SET expires_at = pg_catalog.clock_timestamp() WHERE namespace = '$n'";
        let end = end.replace("$n", &side.namespace);
        side.script(&end);
        String::new()
    })
}

#[test]
fn a_lease_that_ends_while_it_is_awaited_has_ended() {
    let before = [&acquire(FIRST)];
    let share = sql("SELECT FROM lockapi.lease WHERE namespace = $n FOR SHARE");
    for second in [
        abandon(&[("a", 1)]),
        force_release("a"),
        renew(MINE[0]),
        renew(MINE[1]),
        release(MINE[0]),
        release(MINE[1]),
    ] {
        let schedule = Schedule::new(&before, &end(), &second, Meets::Waits);
        let schedule = schedule.looked(&share).only_if_committed();
        schedule.then(&peek(KEYS)).run();
    }
}
