//! Ordered groups.

use super::limited::{NONE, claim, limits, push, settle};
use crate::log::{Answer, How};
use crate::programs::limited::ORDERED;

#[test]
fn order() {
    let checked = |begun, acked| {
        limits(vec![
            push(1, ORDERED, Some("a"), (1, 2)),
            push(2, ORDERED, Some("a"), (3, 4)),
            claim(1, ORDERED, (5, 6, 7)),
            settle(1, How::Nack, (7, 8), Answer::Done),
            claim(1, ORDERED, (9, 10, 11)),
            settle(1, How::Ack, acked, Answer::Done),
            claim(2, ORDERED, (begun - 1, begun, begun)),
        ])
    };
    assert_eq!(checked(14, (12, 13)), NONE);
    assert_eq!(checked(14, (12, 20)), NONE);
    assert_eq!(
        checked(9, (12, 13)),
        ["jobs of an ordered group have an order"]
    );
    // What may have been done was not, if it was delivered again.
    let unknown = |delivered_again: bool| {
        let mut again = claim(1, ORDERED, (12, 13, 14));
        if let Some((_, Answer::Jobs(jobs))) = &mut again.answer {
            jobs[0].token = 9;
        }
        let mut calls = vec![
            push(1, ORDERED, Some("a"), (1, 2)),
            push(2, ORDERED, Some("a"), (3, 4)),
            claim(1, ORDERED, (5, 6, 7)),
            settle(1, How::Ack, (7, 8), super::unknown()),
            claim(2, ORDERED, (9, 10, 11)),
        ];
        calls.extend(delivered_again.then_some(again));
        limits(calls)
    };
    assert_eq!(unknown(false), NONE);
    assert_eq!(unknown(true), ["jobs of an ordered group have an order"]);
    // Which of two that overlap is first is not known.
    let calls = vec![
        push(1, ORDERED, Some("a"), (1, 3)),
        push(2, ORDERED, Some("a"), (2, 4)),
        claim(2, ORDERED, (5, 6, 7)),
    ];
    assert_eq!(limits(calls), NONE);
}
