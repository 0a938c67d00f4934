//! Groups decide what the requests would decide one by one.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::limit::{Level, Limits};

const NOW: i64 = 1_700_000_000_000_000_000;
const KEYS: usize = 5;

/// How often, and of which keys how much.
type Drawn = (i64, Vec<(usize, u64)>);

/// Of a key those of a size, which differ in their burst, and by the cell rate algorithm in their rate.
fn quota(key: usize, size: u64) -> Quota {
    let minute = Duration::from_mins(1);
    match key % 3 {
        0 => Quota::new(1 + size, minute).burst(9 + 2 * size),
        1 => Quota::new(9 - size, minute).fixed_window(),
        _ => Quota::new(9 - size, minute).sliding_window(),
    }
}

fn charge(drawn: &Drawn) -> Charge {
    sized(&(0, drawn.clone()))
}

/// With quotas of a size.
fn sized((size, (times, lines)): &(u64, Drawn)) -> Charge {
    let line = |(key, cost): &(usize, u64)| ChargeLine {
        key: key.to_string(),
        quota: quota(*key, *size),
        cost: *cost,
        id: 0,
        ttl: 0,
    };
    Charge {
        namespace: String::new(),
        lines: lines.iter().map(line).collect(),
        times: *times,
        relaxed: false,
    }
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let lines = prop::collection::btree_map(0..KEYS, 1..4u64, 1..4);
    let lines = lines.prop_map(|lines| lines.into_iter().collect::<Vec<_>>());
    (1..4i64, lines)
}

fn requests() -> impl Strategy<Value = Vec<Drawn>> {
    prop::collection::vec(drawn(), 1..12)
}

fn sized_requests() -> impl Strategy<Value = Vec<(u64, Drawn)>> {
    prop::collection::vec((0..4u64, drawn()), 1..12)
}

fn limits(before: &[Drawn]) -> Limits {
    let mut limits = Limits::default();
    for key in 0..KEYS {
        limits.ensure("", &key.to_string());
    }
    for one in before {
        limits.charge(&charge(one), NOW - 1_000_000_000);
    }
    limits
}

/// What is told of a time that a request was wanted: the state of each line if it was admitted.
type Admitted = Option<Vec<Level>>;

fn levels(answers: &[RawDecision]) -> Vec<Level> {
    let level_of = |one: &RawDecision| Level {
        at: 0,
        ..one.level.clone()
    };
    answers.iter().map(level_of).collect()
}

/// One by one, in their order.
fn one_by_one(limits: &mut Limits, requests: &[Charge]) -> Vec<Vec<Admitted>> {
    let mut ask = |one: &Charge| {
        let answers = limits.charge(
            &Charge {
                times: 1,
                ..one.clone()
            },
            NOW,
        );
        let taken = answers.iter().all(|one| one.outcome == Outcome::Taken(1));
        taken.then(|| levels(&answers))
    };
    requests
        .iter()
        .map(|one| (0..one.times).map(|_| ask(one)).collect())
        .collect()
}

/// What the answer to so many of a request tells each.
fn admitted_levels(charge: &Charge, times: i64, answers: &[RawDecision]) -> Vec<Admitted> {
    let one = |nth| {
        let mut levels = levels(answers);
        for (line, level) in charge.lines.iter().zip(&mut levels) {
            let later = (times - nth) * line.price();
            match line.quota.window() {
                0 => level.tat -= later,
                _ => level.used -= later,
            }
        }
        Some(levels)
    };
    (1..=times).map(one).collect()
}

/// In groups, and how many statements that took.
fn together(limits: &mut Limits, requests: &[Charge], tries: u32) -> (Vec<Vec<Admitted>>, usize) {
    let mut decided = vec![Vec::new(); requests.len()];
    let mut open: Vec<_> = requests.iter().cloned().enumerate().collect();
    let mut known = KnownLevels::default();
    for round in 0.. {
        if open.is_empty() {
            return (decided, round);
        }
        assert!(round < 100, "{open:?}");
        let (places, charges): (Vec<_>, Vec<_>) = open.drain(..).unzip();
        let mut left: Vec<_> = charges.iter().map(|one: &Charge| one.times).collect();
        let mut keys = std::collections::HashSet::new();
        for group in divide(&charges, |_| tries, &known) {
            let own: std::collections::HashSet<_> = group
                .charge
                .lines
                .iter()
                .map(|line| line.key.clone())
                .collect();
            assert!(
                own.iter().all(|key| keys.insert(key.clone())),
                "a key is in two"
            );
            let (_, at) = group.charge.keys();
            let answers = limits.charge(&group.charge, NOW);
            let raw: Vec<_> = at.into_iter().map(|at| answers[at].clone()).collect();
            for (line, one) in group.charge.lines.iter().zip(&raw) {
                known.note(&line.key, one);
            }
            match raw[0].outcome {
                Outcome::Taken(times) if group.is_alone() => {
                    let (at, _) = group.members[0];
                    decided[places[at]].extend(admitted_levels(&charges[at], times, &raw));
                    left[at] -= times;
                }
                Outcome::Taken(_) => {
                    let answers = group.divide(&charges, &raw);
                    for ((at, times), answers) in group.members.iter().zip(answers) {
                        decided[places[*at]].extend(admitted_levels(
                            &charges[*at],
                            *times,
                            &answers,
                        ));
                        left[*at] -= times;
                    }
                }
                _ => {}
            }
        }
        for ((at, charge), left) in places.into_iter().zip(charges).zip(left) {
            if left == 0 {
            } else if known.availability_of(&charge) == Availability::Refused {
                decided[at].extend((0..left).map(|_| None));
            } else {
                let times = left;
                open.push((at, Charge { times, ..charge }));
            }
        }
    }
    (decided, 0)
}

proptest! {
    #[test]
    fn groups_decide_as_their_requests_one_by_one(
        before in requests(),
        requests in sized_requests(),
        tries in 0..6u32,
    ) {
        let requests: Vec<_> = requests.iter().map(sized).collect();
        let mut alone = limits(&before);
        let mut grouped = alone.clone();
        let expected = one_by_one(&mut alone, &requests);
        let (decided, _) = together(&mut grouped, &requests, tries);
        prop_assert_eq!(decided, expected);
        for key in 0..KEYS {
            let row = |limits: &Limits| limits.level("", &key.to_string());
            prop_assert_eq!(row(&grouped), row(&alone));
        }
    }
}

#[test]
fn what_fits_is_one_statement_and_what_does_not_is_two() {
    let of = |count: usize| -> Vec<_> {
        let pair = |user: usize| charge(&(1, vec![(user * 3, 1), (1, 1)]));
        (0..count).map(pair).collect()
    };
    for (count, statements) in [(1, 1), (4, 1), (5, 2)] {
        let mut limits = limits(&[(5, vec![(1, 1)])]);
        for user in 0..count {
            limits.ensure("", &(user * 3).to_string());
        }
        let (decided, took) = together(&mut limits, &of(count), 0);
        let admitted = decided.iter().flatten().filter(|levels| levels.is_some());
        assert_eq!((admitted.count(), took), (count.min(4), statements));
    }
    // Where nothing is left, all are refused by one look.
    let mut limits = limits(&[(9, vec![(1, 1)])]);
    for user in 0..8 {
        limits.ensure("", &(user * 3).to_string());
    }
    let (decided, took) = together(&mut limits, &of(8), 0);
    assert!(decided.iter().flatten().all(Option::is_none));
    assert_eq!(took, 1);
}

/// Each fits by its own burst; what a quota with other windows does is decided after that.
#[test]
fn requests_of_one_key_and_two_quotas_are_charged_together() {
    let minute = Duration::from_mins(1);
    let kinds = [
        Quota::new(1, minute).burst(90),
        Quota::new(3, minute).burst(200),
        Quota::new(9, minute).fixed_window(),
    ];
    let of = |kind: usize| {
        let mut request = charge(&(1, vec![(0, 1)]));
        request.lines[0].quota = kinds[kind];
        request
    };
    let members = |groups: Vec<Group>| -> Vec<Vec<usize>> {
        let places = |group: Group| group.members.into_iter().map(|(at, _)| at).collect();
        groups.into_iter().map(places).collect()
    };
    let requests: Vec<_> = (0..40).map(|nth| of(nth % 2)).collect();
    let groups = divide(&requests, |_| 0, &KnownLevels::default());
    let (keys, _) = groups[0].charge.keys();
    // By the smaller burst the last may come when there is this much behind it.
    let (one, other) = (kinds[0].price(1), kinds[1].price(1));
    assert_eq!(keys[0].price, 20 * (one + other));
    assert_eq!(keys[0].depth, kinds[1].price(200));
    assert_eq!(members(groups), [(0..40).collect::<Vec<_>>()]);
    let requests: Vec<_> = (0..9).map(|nth| of(nth % 3)).collect();
    let groups = divide(&requests, |_| 0, &KnownLevels::default());
    assert_eq!(members(groups), [[0, 1, 3, 4, 6, 7]]);
}
