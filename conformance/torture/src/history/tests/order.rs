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
    // Which of two that overlap is first is not known.
    let calls = vec![
        push(1, ORDERED, Some("a"), (1, 3)),
        push(2, ORDERED, Some("a"), (2, 4)),
        claim(2, ORDERED, (5, 6, 7)),
    ];
    assert_eq!(limits(calls), NONE);
}
