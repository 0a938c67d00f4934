//! Jobs that are put off.

use super::*;

#[test]
fn jobs_that_are_put_off() {
    // Two seconds before anything else the clock of the machine was at zero.
    let edited = |due: Option<i64>, times, answer| {
        let edit = call(0, Op::Edit { job: 1, due }, times, answer);
        let calls = [push(1, Answer::Done), edit, claim(1, 7, (5, 6))];
        let mut history = history(calls.into_iter().chain([ack(1, 7, (8, 9), How::Ack)]));
        history.wall = 2 * SECOND;
        broken(&history).contains(&"what is put off begins when it is due")
    };
    let due = |seconds: i64| Some(seconds * 1_000_000);
    assert!(edited(due(9), (3, 4), Answer::Done));
    assert!(!edited(due(8), (3, 4), Answer::Done));
    assert!(!edited(None, (3, 4), Answer::Done));
    // It may have had an effect later, or none.
    assert!(!edited(due(9), (3, 5), Answer::Done));
    assert!(!edited(due(9), (3, 4), refused()));

    let pushed = |millis| {
        let mut push = push(1, Answer::Done);
        if let Op::Push { delay, .. } = &mut push.op {
            *delay = millis;
        }
        push
    };
    let early = |calls: Vec<Call>| {
        broken(&history(calls)).contains(&"what is put off begins when it is due")
    };
    assert!(early(vec![pushed(5100), claim(1, 7, (5, 6))]));
    assert!(!early(vec![pushed(5000), claim(1, 7, (5, 6))]));
    for how in [How::Nack, How::Snooze] {
        let again = |token, times| {
            let settled = ack(1, 7, (6, 6), how);
            vec![
                pushed(0),
                claim(1, 7, (5, 6)),
                settled,
                claim(1, token, times),
            ]
        };
        assert!(early(again(8, (6, 6))));
        assert!(!early(again(8, (6, 7))));
        assert!(!early(again(7, (6, 6))));
    }
}
