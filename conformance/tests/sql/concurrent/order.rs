//! Statements that lock several rows lock them in the order of their keys.
//!
//! A session A has the second of three rows. B is sent a batch in the order of the keys: it locks the
//! first row and waits for A. C is sent the batch the other way round. If it began with the third row, B
//! and C would wait for each other when A ends. It begins with the first, and waits for B.

use std::collections::BTreeMap;

use super::Running;
use super::admin::note;
use super::answers::record;
use super::ids::{blocks, claim_all};
use super::leases::{abandon, acquire, release, renew};
use super::limits::{By, block, charge, ensure, refund, reset, take};
use super::permits;
use super::queue_keys::{Key, push_keys};
use super::reservations::{expire, settle};
use super::sides::{Plans, Side, Step, elapse, sql, url};

/// What is there, what A does to the row in the middle, and the batch in both orders.
pub(super) struct Order {
    before: Vec<Step>,
    first: Step,
    forward: Step,
    backward: Step,
    /// Whether those that wait are told to try again, which the model never is.
    retries: bool,
}

impl Order {
    pub(super) fn new(before: &[&Step], first: &Step, forward: &Step, backward: &Step) -> Self {
        Self {
            before: before.iter().map(|step| Step::clone(step)).collect(),
            first: Step::clone(first),
            forward: Step::clone(forward),
            backward: Step::clone(backward),
            retries: false,
        }
    }

    fn retries(mut self) -> Self {
        self.retries = true;
        self
    }

    /// With the plans of the engine.
    pub(super) fn run(&self) {
        for committed in [true, false] {
            for (second, third) in [
                (&self.forward, &self.backward),
                (&self.backward, &self.forward),
            ] {
                self.meet(committed, second, third, [Plans::Engine; 2]);
            }
        }
    }

    /// Also where one of them reads the rows in another order, that of the table.
    fn run_however_planned(&self) {
        self.run();
        for plans in [[Plans::Engine, Plans::Scans], [Plans::Scans, Plans::Engine]] {
            self.meet(true, &self.forward, &self.backward, plans);
        }
    }

    fn meet(&self, committed: bool, second: &Step, third: &Step, plans: [Plans; 2]) {
        let namespace = format!("n{:016x}", fastrand::u64(..));
        let side = |session| {
            let plans = if session == 3 { plans[1] } else { plans[0] };
            let mut side = Side::server(url(), plans);
            (side.session, side.namespace) = (session, namespace.clone());
            side
        };
        let (mut observer, mut first) = (side(0), side(1));
        let mut given = BTreeMap::new();
        for step in &self.before {
            observer.run(step, &mut given);
        }
        first.script("BEGIN");
        first.run(&self.first, &mut given);
        let second_runs = Running::start(side(2), second, given.clone());
        second_runs.waits_for(first.pid(), &mut observer);
        let third_runs = Running::start(side(3), third, given.clone());
        third_runs.waits_for(second_runs.pid, &mut observer);
        first.script(if committed { "COMMIT" } else { "ROLLBACK" });
        let (_, second_answer) = second_runs.answer(&mut given);
        let (_, third_answer) = third_runs.answer(&mut given);
        if !self.retries {
            let answers = self.on_model(committed, second, third);
            assert_eq!(
                [second_answer, third_answer],
                answers,
                "the server and the model"
            );
        }
    }

    /// What B and C answer.
    fn on_model(&self, committed: bool, second: &Step, third: &Step) -> [String; 2] {
        let mut model = Side::model();
        "n".clone_into(&mut model.namespace);
        let mut given = BTreeMap::new();
        let first = committed.then_some(&self.first);
        for step in self.before.iter().chain(first) {
            model.run(step, &mut given);
        }
        [second, third].map(|step| model.run(step, &mut given))
    }
}

pub(super) const FORWARD: &[&str] = &["1", "2", "3"];
pub(super) const BACKWARD: &[&str] = &["3", "2", "1"];
pub(super) const MIDDLE: &[&str] = &["2"];

/// The rows of limits, in the table the other way round.
fn limits() -> [Step; 3] {
    [ensure(&["3"]), ensure(&["2"]), ensure(&["1"])]
}

#[test]
fn takes_lock_limits_in_the_order_of_keys() {
    let [three, two, one] = limits();
    let before = [&three, &two, &one];
    Order::new(&before, &take(MIDDLE), &take(FORWARD), &take(BACKWARD)).run();
    Order::new(&before, &take(MIDDLE), &refund(FORWARD), &refund(BACKWARD)).run();
}

#[test]
fn charges_lock_limits_in_the_order_of_keys() {
    let [three, two, one] = limits();
    let before = [&three, &two, &one];
    for by in [By::Cells, By::Window] {
        for reserved in [None, Some(("it", 5))] {
            let of = |keys| charge(by, keys, reserved);
            let order = Order::new(&before, &of(MIDDLE), &of(FORWARD), &of(BACKWARD));
            order.run_however_planned();
        }
    }
}

#[test]
fn resets_and_blocks_lock_limits_in_the_order_of_keys() {
    let [three, two, one] = limits();
    let before = [&three, &two, &one];
    let lock =
        sql("SELECT FROM lockapi.rate_limit WHERE namespace = $n AND key LIKE '%2' FOR UPDATE");
    Order::new(&before, &lock, &reset(FORWARD), &reset(BACKWARD)).run_however_planned();
    Order::new(&before, &lock, &block(FORWARD), &block(BACKWARD)).run_however_planned();
}

#[test]
fn reservations_end_in_the_order_of_keys() {
    let [three, two, one] = limits();
    let reserve = [
        charge(By::Cells, &["3"], Some(("3", 5))),
        charge(By::Cells, &["2"], Some(("2", 5))),
        charge(By::Cells, &["1"], Some(("1", 5))),
    ];
    let before = [&three, &two, &one, &reserve[0], &reserve[1], &reserve[2]];
    let all = settle(&[("1", "1"), ("2", "2"), ("3", "3")]);
    let turned = settle(&[("3", "3"), ("2", "2"), ("1", "1")]);
    Order::new(&before, &take(MIDDLE), &all, &turned).run_however_planned();
    let later = elapse(6);
    let before = [&before[..], &[&later]].concat();
    let lock =
        sql("SELECT FROM lockapi.rate_limit WHERE namespace = $n AND key LIKE '%2' FOR UPDATE");
    Order::new(&before, &lock, &expire(FORWARD), &expire(BACKWARD)).run_however_planned();
}

#[test]
fn limits_are_created_in_the_order_of_keys() {
    Order::new(&[], &take(MIDDLE), &take(FORWARD), &take(BACKWARD))
        .retries()
        .run();
    Order::new(&[], &take(MIDDLE), &ensure(FORWARD), &ensure(BACKWARD)).run();
    Order::new(&[], &take(MIDDLE), &block(FORWARD), &block(BACKWARD)).run();
}

#[test]
fn answers_are_recorded_in_the_order_of_keys() {
    let (forward, backward) = (
        record(&[("1", 1), ("2", 1), ("3", 1)]),
        record(&[("3", 2), ("2", 2), ("1", 2)]),
    );
    Order::new(&[], &record(&[("2", 9)]), &forward, &backward).run_however_planned();
    let old = record(&[("3", 5), ("2", 5), ("1", 5)]);
    Order::new(
        &[&old, &elapse(61)],
        &record(&[("2", 9)]),
        &forward,
        &backward,
    )
    .run_however_planned();
}

#[test]
fn leases_are_locked_in_the_order_of_keys() {
    let before = [
        &acquire(&[("3", "3", 3)]),
        &acquire(&[("2", "2", 2)]),
        &acquire(&[("1", "1", 1)]),
    ];
    let (all, turned): (&[_], &[_]) = (
        &[("1", "1"), ("2", "2"), ("3", "3")],
        &[("3", "3"), ("2", "2"), ("1", "1")],
    );
    let first = renew(&[("2", "2")]);
    Order::new(&before, &first, &renew(all), &renew(turned)).run();
    Order::new(&before, &first, &release(all), &release(turned)).run();
    Order::new(&before, &first, &renew(all), &release(turned)).run();
    let (all, turned): (&[_], &[_]) = (
        &[("1", 1), ("2", 2), ("3", 3)],
        &[("3", 3), ("2", 2), ("1", 1)],
    );
    Order::new(&before, &first, &abandon(all), &abandon(turned)).run_however_planned();
}

#[test]
fn slots_of_a_key_are_locked_in_their_order() {
    let before = [&permits::acquire(&[3, 2, 1])];
    let lock = sql("SELECT FROM lockapi.lease WHERE namespace = $n AND slot = 2 FOR UPDATE");
    let (second, third) = (permits::abandon(), permits::abandon());
    Order::new(&before, &lock, &second, &third).run_however_planned();
}

#[test]
fn leases_are_created_in_the_order_of_keys() {
    let all = acquire(&[("1", "1", 1), ("2", "2", 2), ("3", "3", 3)]);
    let turned = acquire(&[("3", "3", 6), ("2", "2", 5), ("1", "1", 4)]);
    let first = acquire(&[("2", "2", 7)]);
    Order::new(&[], &first, &all, &turned).retries().run();
}

#[test]
fn blocks_of_ids_are_allocated_in_the_order_of_names() {
    let before: [&[&Step]; 2] = [&[], &[&blocks(BACKWARD)]];
    for before in before {
        let order = Order::new(before, &blocks(MIDDLE), &blocks(FORWARD), &blocks(BACKWARD));
        order.run_however_planned();
    }
}

#[test]
fn numbers_and_names_are_created_in_the_order_of_names() {
    let before: [&[&Step]; 2] = [&[], &[&claim_all(BACKWARD)]];
    for before in before {
        let (all, turned) = (claim_all(FORWARD), claim_all(BACKWARD));
        let order = Order::new(before, &claim_all(MIDDLE), &all, &turned);
        order.retries().run_however_planned();
    }
}

#[test]
fn keys_of_jobs_are_created_in_their_order() {
    for key in [Key::Skip, Key::Replace, Key::Idempotency] {
        let of = |keys| push_keys("it", key, keys);
        Order::new(&[], &of(MIDDLE), &of(FORWARD), &of(BACKWARD))
            .retries()
            .run();
    }
}

#[test]
fn names_of_locks_are_noted_in_their_order() {
    Order::new(&[], &note(MIDDLE), &note(FORWARD), &note(BACKWARD)).run();
}
