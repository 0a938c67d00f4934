//! Random sequences of what rate limits do.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use lockapi::driver::Connection;
use lockapi::limit::Quota;
use lockapi::suite::limit::{
    Block, Charge, ChargeLine, EndReservation, Ensure, Expire, Level, Outcome, RawDecision,
    ReadLevel, Refund, Reset, Take,
};
use proptest::prelude::*;

use super::{Pair, SESSIONS, UNIT, perform};

/// A minute in nanoseconds, and a part of it that keeps times off the borders: on the database time
/// goes on a little.
const MINUTE: i64 = UNIT * 1000;
const BIT: i64 = MINUTE / 64;

/// A line of a key, by an algorithm, at a cost, reserved or not.
type Drawn = (u8, u8, u8, bool);

/// One batch; keys and times are small numbers.
#[derive(Clone, Debug)]
pub enum LimitAction {
    /// Takes of keys, each at a price and so many times.
    Take(Vec<(u8, u8, u8)>),
    /// Charges requests of lines, so often each; those that have keys in common one after the other.
    Charge(Vec<(u8, Vec<Drawn>)>),
    /// Gives back of keys.
    Refund(Vec<(u8, u8)>),
    /// Ends reservations of a key: which, and how much is given back of each.
    EndReservation(u8, Vec<(u8, u8)>),
    /// Blocks a key.
    Block(u8, u8),
    /// Forgets a key.
    Reset(u8),
    /// Reads keys.
    ReadLevel(Vec<u8>),
}

pub(super) fn actions() -> impl Strategy<Value = (usize, LimitAction)> {
    let key = 0..4u8;
    // Most lines of a key are of one quota.
    let algorithm = prop_oneof![3 => Just(None), 1 => (0..6u8).prop_map(Some)];
    let line = (key.clone(), algorithm, 1..4u8, prop::bool::weighted(0.3));
    let lines = prop::collection::vec(line, 1..4).prop_map(|lines| {
        let own = |(key, algorithm, cost, reserved): (u8, Option<u8>, u8, bool)| {
            (key, algorithm.unwrap_or(key % 3), cost, reserved)
        };
        let mut lines: Vec<_> = lines.into_iter().map(own).collect();
        lines.sort_unstable();
        // Lines of one key have one quota.
        for at in 1..lines.len() {
            if lines[at].0 == lines[at - 1].0 {
                lines[at].1 = lines[at - 1].1;
            }
        }
        lines
    });
    let action = prop_oneof![
        4 => prop::collection::vec((key.clone(), 1..4u8, 1..5u8), 1..4).prop_map(|mut takes| {
            takes.sort_unstable();
            takes.dedup_by_key(|take| take.0);
            LimitAction::Take(takes)
        }),
        4 => prop::collection::vec((1..4u8, lines), 1..4).prop_map(LimitAction::Charge),
        2 => prop::collection::vec((key.clone(), 1..4u8), 1..4).prop_map(LimitAction::Refund),
        2 => (key.clone(), prop::collection::vec((0..4u8, 0..4u8), 1..4))
            .prop_map(|(key, ended)| LimitAction::EndReservation(key, ended)),
        1 => (key.clone(), 0..3u8).prop_map(|(key, units)| LimitAction::Block(key, units)),
        1 => key.clone().prop_map(LimitAction::Reset),
        2 => prop::collection::vec(key, 1..4).prop_map(LimitAction::ReadLevel),
    ];
    (0..SESSIONS, action)
}

/// What was taken and reserved of the keys.
#[derive(Default)]
pub(super) struct Known {
    /// When something was taken last, on both sides.
    taken: BTreeMap<u8, (i64, i64)>,
    reserved: BTreeMap<u8, Vec<i64>>,
    /// Those that have a row.
    present: BTreeSet<u8>,
    next: Option<i64>,
}

impl Known {
    /// On the database what was done becomes older, and the time of now stays.
    pub(super) fn older(&mut self, micros: i64) {
        for (real, _) in self.taken.values_mut() {
            *real -= micros * 1000;
        }
    }
}

impl<C: Connection> Pair<'_, C> {
    pub(super) async fn limit(&mut self, session: usize, action: &LimitAction) {
        let namespace = self.namespace.to_owned();
        match action {
            LimitAction::Take(takes) => {
                let of = |(key, price, times): &(u8, u8, u8)| Take {
                    namespace: namespace.clone(),
                    key: key.to_string(),
                    price: i64::from(*price) * MINUTE,
                    depth: (2 + i64::from(*times)) * MINUTE + MINUTE / 2,
                    times: i64::from(*times),
                    relaxed: *key == 0,
                    read_first: false,
                };
                let batch: Vec<_> = takes.iter().map(of).collect();
                let (real, model) = self.both(session, &batch).await;
                for ((key, ..), (real, model)) in takes.iter().zip(real.iter().zip(&model)) {
                    self.decided(*key, real, model);
                }
            }
            LimitAction::Charge(requests) => self.charge(session, requests).await,
            LimitAction::Refund(refunds) => {
                let refund = |(key, units): &(u8, u8), at| Refund {
                    namespace: namespace.clone(),
                    key: key.to_string(),
                    price: i64::from(*units) * MINUTE + BIT,
                    window: 0,
                    at,
                };
                let at = |key| self.limits.taken.get(key).copied().unwrap_or_default();
                let real = refunds.iter().map(|one| refund(one, at(&one.0).0));
                let model = refunds.iter().map(|one| refund(one, at(&one.0).1));
                let (real, model): (Vec<_>, Vec<_>) = (real.collect(), model.collect());
                self.compare(session, &real, &model).await;
            }
            LimitAction::EndReservation(key, ended) => {
                let known = self.limits.reserved.get(key).map_or(&[][..], Vec::as_slice);
                let of = |(back, units): &(u8, u8)| {
                    let at = known.len().checked_sub(1 + usize::from(*back));
                    EndReservation {
                        namespace: namespace.clone(),
                        key: key.to_string(),
                        id: at.map_or(-1, |at| known[at]),
                        price: (i64::from(*units) * MINUTE - BIT).max(0),
                    }
                };
                let batch: Vec<_> = ended.iter().map(of).collect();
                let (real, model) = self.both(session, &batch).await;
                assert_eq!(real, model, "settle {key}");
            }
            LimitAction::Block(key, units) => {
                let block = Block {
                    namespace,
                    key: key.to_string(),
                    time: i64::from(*units) * MINUTE,
                };
                let (real, model) = self.both(session, &[block]).await;
                assert_eq!(real, model);
            }
            LimitAction::Reset(key) => {
                self.limits.present.remove(key);
                let key = key.to_string();
                let reset = Reset { namespace, key };
                let (real, model) = self.both(session, &[reset]).await;
                assert_eq!(real, model);
            }
            LimitAction::ReadLevel(keys) => {
                let of = |key: &u8| ReadLevel {
                    namespace: namespace.clone(),
                    key: key.to_string(),
                };
                let batch: Vec<_> = keys.iter().map(of).collect();
                let (real, model) = self.both(session, &batch).await;
                for ((real, model), key) in real.iter().zip(&model).zip(keys) {
                    same(*key, (&real.level, real.now), (&model.level, model.now));
                    let due = |due: i64, now| (due < i64::MAX).then(|| due - now);
                    let due = (due(real.due, real.now), due(model.due, model.now));
                    match due {
                        (Some(real), Some(model)) => near(*key, real, model),
                        due => assert_eq!(due.0, due.1, "key {key}"),
                    }
                }
            }
        }
    }

    async fn charge(&mut self, session: usize, wants: &[(u8, Vec<Drawn>)]) {
        let mut waiting: Vec<_> = wants
            .iter()
            .map(|(times, lines)| {
                let lines: Vec<_> = lines.iter().map(|line| self.line(*line)).collect();
                // What is reserved is taken once.
                let reserves = lines.iter().any(|line| line.id != 0);
                Charge {
                    namespace: self.namespace.to_owned(),
                    lines,
                    times: if reserves { 1 } else { i64::from(*times) },
                    relaxed: false,
                }
            })
            .collect();
        // Rows are created first, and what has expired is ended.
        for _ in 0..9 {
            let mut left = Vec::new();
            let mut keys = HashSet::new();
            let charges: Vec<_> = waiting
                .drain(..)
                .filter_map(|charge| {
                    let shares = charge.lines.iter().any(|line| keys.contains(&line.key));
                    keys.extend(charge.lines.iter().map(|line| line.key.clone()));
                    if shares {
                        left.push(charge);
                        return None;
                    }
                    Some(charge)
                })
                .collect();
            self.restore_swept(session, &charges).await;
            let (real, model) = self.both(session, &charges).await;
            for (charge, (real, model)) in charges.into_iter().zip(real.iter().zip(&model)) {
                let mut again = false;
                for (line, (real, model)) in charge.lines.iter().zip(real.iter().zip(model)) {
                    let key = line.key.parse().expect("a small number");
                    self.decided(key, real, model);
                    self.maintain(session, &charge.namespace, line, real.outcome)
                        .await;
                    again |= matches!(
                        real.outcome,
                        Outcome::Absent | Outcome::Overdue | Outcome::Again
                    );
                    if matches!(real.outcome, Outcome::Taken(_)) && line.id != 0 {
                        self.limits.reserved.entry(key).or_default().push(line.id);
                    }
                }
                if again {
                    left.push(charge);
                }
            }
            waiting = left;
            if waiting.is_empty() {
                break;
            }
        }
    }

    /// Somebody else who uses the database may have swept rows that are equivalent to none, which the model has.
    async fn restore_swept(&mut self, session: usize, charges: &[Charge]) {
        let keys = charges.iter().flat_map(|charge| &charge.lines);
        let keys: BTreeSet<_> = keys.map(|line| line.key.clone()).collect();
        let is_present = |key: &String| {
            let key = key.parse().expect("a small number");
            self.limits.present.contains(&key)
        };
        let ensure = |key| Ensure {
            namespace: self.namespace.to_owned(),
            key,
        };
        let present: Vec<_> = keys.into_iter().filter(is_present).map(ensure).collect();
        if !present.is_empty() {
            perform(&mut self.sessions[session], &present).await;
        }
    }

    fn line(&mut self, (key, algorithm, cost, reserve): Drawn) -> ChargeLine {
        let minute = Duration::from_micros(UNIT.unsigned_abs());
        // A random beginning: others have used the server before.
        let next = self
            .limits
            .next
            .get_or_insert_with(|| fastrand::i64(1..i64::MAX / 2));
        *next += 1;
        let id = *next;
        ChargeLine {
            key: key.to_string(),
            quota: match algorithm {
                0 => Quota::new(1, minute).burst(5),
                1 => Quota::new(5, minute * 4).fixed_window(),
                3 => Quota::new(1, minute).burst(3),
                4 => Quota::new(7, minute * 9).fixed_window(),
                5 => Quota::new(3, minute * 2).sliding_window(),
                _ => Quota::new(5, minute * 4).sliding_window(),
            },
            cost: u64::from(cost),
            id: if reserve { id } else { 0 },
            ttl: 3 * MINUTE,
        }
    }

    async fn maintain(
        &mut self,
        session: usize,
        namespace: &str,
        line: &ChargeLine,
        outcome: Outcome,
    ) {
        let (namespace, key) = (namespace.to_owned(), line.key.clone());
        match outcome {
            Outcome::Absent => {
                let ensure = Ensure { namespace, key };
                let (real, model) = self.both(session, &[ensure]).await;
                assert_eq!(real, model);
                let key = line.key.parse().expect("a small number");
                self.limits.present.insert(key);
            }
            Outcome::Overdue => {
                let expire = Expire { namespace, key };
                let (real, model) = self.both(session, &[expire]).await;
                assert_eq!(real, model);
            }
            _ => {}
        }
    }

    fn decided(&mut self, key: u8, real: &RawDecision, model: &RawDecision) {
        assert_eq!(
            real.outcome, model.outcome,
            "key {key}: {real:?}, {model:?}"
        );
        same(key, (&real.level, real.now), (&model.level, model.now));
        if matches!(real.outcome, Outcome::Taken(_)) {
            self.limits.taken.insert(key, (real.now, model.now));
            self.limits.present.insert(key);
        }
    }
}

/// What has passed is all the same.
fn same(key: u8, (real, real_now): (&Level, i64), (model, model_now): (&Level, i64)) {
    near(
        key,
        (real.tat - real_now).max(0),
        (model.tat - model_now).max(0),
    );
    let left = |level: &Level, now: i64| (level.blocked_until - now).max(0);
    near(key, left(real, real_now), left(model, model_now));
    assert_eq!(
        (real.used, real.before),
        (model.used, model.before),
        "key {key}"
    );
    assert_eq!(real.span, model.span, "key {key}");
    if model.started > 0 || real.started > 0 {
        near(key, real_now - real.started, model_now - model.started);
    }
}

fn near(key: u8, real: i64, model: i64) {
    assert!(
        (real - model).abs() < MINUTE / 2,
        "key {key}: {real} is not near {model}"
    );
}
