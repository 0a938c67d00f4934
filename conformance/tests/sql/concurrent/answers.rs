//! Answers to requests with idempotency keys.

use lockapi::suite::idempotency::{RecallAnswer, RecordAnswer};

use super::sides::{Side, Step, elapse, sql, step};
use super::{Meets, Schedule};

const HOUR: i64 = 3600 * 1_000_000;

/// Records answers: keys, and the tokens of who answers.
pub(super) fn record(answers: &'static [(&'static str, i64)]) -> Step {
    let batch = |side: &Side| {
        let of = |(key, fence): &(&str, i64)| RecordAnswer {
            namespace: side.namespace.clone(),
            key: side.key(key),
            fence: *fence,
            fingerprint: vec![7; 32],
            answer: fence.to_be_bytes().to_vec(),
            retention: HOUR,
        };
        answers.iter().map(of).collect()
    };
    step(batch, |_, own| format!("own {own}"))
}

pub(super) fn recall() -> Step {
    let batch = |side: &Side| {
        let of = |key: &str| RecallAnswer {
            namespace: side.namespace.clone(),
            key: side.key(key),
        };
        vec![of("a"), of("b")]
    };
    step(batch, |_, recalled| {
        format!("{:?}", recalled.map(|it| it.answer))
    })
}

#[test]
fn the_first_answer_of_a_key_is_kept() {
    let first = record(&[("a", 1)]);
    // One that was repeated because its answer was lost changes its own.
    for second in [
        &[("a", 2)][..],
        &[("a", 1)],
        &[("b", 3), ("a", 2), ("a", 4)],
    ] {
        let second = record(second);
        let schedule = Schedule::new(&[], &first, &second, Meets::Waits);
        schedule.then(&recall()).run();
        let before = [&record(&[("a", 9)]), &elapse(61)];
        let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
        schedule.then(&recall()).run();
    }
}

#[test]
fn an_answer_is_not_changed_by_who_waited_for_it() {
    let before = [&record(&[("a", 1)])];
    let lock = sql("SELECT FROM lockapi.answer WHERE namespace = $n FOR UPDATE");
    let schedule = Schedule::new(&before, &lock, &record(&[("a", 2)]), Meets::Waits);
    schedule.then(&recall()).run();
}

#[test]
fn nobody_waits_to_read() {
    let before = [&record(&[("a", 1)])];
    let lock = sql("SELECT FROM lockapi.answer WHERE namespace = $n FOR UPDATE");
    Schedule::new(&before, &lock, &recall(), Meets::Passes).run();
}
