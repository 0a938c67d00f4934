//! Random sequences of operations on permits, on a database and on the model.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lockapi::driver::Connection;
use lockapi::suite::driver::Operation;
use lockapi::suite::lease::{Check, Release, Renew, Take, Taken};
use lockapi::suite::memory::ModelState;
use proptest::prelude::*;

use super::{UNIT, near, perform};

/// One batch; keys, acquisitions and tokens are small numbers.
#[derive(Clone, Debug)]
pub enum Action {
    /// Takes permits: key, how many there are, how many are wanted, acquisition, ttl and hold.
    Take(Vec<(u8, u8, u8, u8, u8, u8)>),
    /// Renews what was granted: which, and the ttl.
    Renew(u8, u8),
    /// Releases what was granted.
    Release(u8),
    /// Checks who was granted something.
    Check(u8),
    /// Lets time go by.
    Elapse(u8),
}

/// Random actions.
pub fn actions() -> impl Strategy<Value = Vec<Action>> {
    let want = (0..2u8, 1..5u8, 1..4u8, 0..8u8, 1..4u8, 0..4u8);
    let action = prop_oneof![
        4 => prop::collection::vec(want, 1..5).prop_map(Action::Take),
        1 => (0..4u8, 1..4u8).prop_map(|(which, ttl)| Action::Renew(which, ttl)),
        2 => (0..4u8).prop_map(Action::Release),
        1 => (0..4u8).prop_map(Action::Check),
        1 => (1..3u8).prop_map(Action::Elapse),
    ];
    prop::collection::vec(action, 1..40)
}

/// What was granted on both sides.
#[derive(Clone)]
struct Granted {
    key: u8,
    slots: Arc<[i64]>,
    real: i64,
    model: i64,
}

struct Pair<'a, C> {
    connection: &'a mut C,
    model: ModelState,
    namespace: &'a str,
    granted: Vec<Granted>,
}

/// Runs actions on both sides. `elapse` makes the leases of the namespace older.
///
/// # Panics
/// When the two sides answer differently.
pub async fn run<C: Connection>(
    connection: &mut C,
    namespace: &str,
    actions: &[Action],
    mut elapse: impl FnMut(Duration),
) {
    let mut pair = Pair {
        connection,
        model: ModelState::default(),
        namespace,
        granted: Vec::new(),
    };
    for action in actions {
        match action {
            Action::Take(wants) => pair.take(wants).await,
            Action::Renew(which, ttl) => {
                let ttl = i64::from(*ttl) * UNIT;
                let renew = |namespace, key, slots, fence| Renew {
                    namespace,
                    key,
                    slots,
                    fence,
                    ttl,
                };
                pair.of_granted(*which, renew).await;
            }
            Action::Release(which) => {
                let release = |namespace, key, slots, fence| Release {
                    namespace,
                    key,
                    slots,
                    fence,
                };
                pair.of_granted(*which, release).await;
            }
            Action::Check(which) => {
                let check = |namespace, key, slots, fence| Check {
                    namespace,
                    key,
                    slots,
                    fence,
                };
                pair.of_granted(*which, check).await;
            }
            Action::Elapse(units) => {
                pair.model.now += i64::from(*units) * UNIT;
                elapse(Duration::from_micros(UNIT.unsigned_abs()) * u32::from(*units));
            }
        }
    }
}

impl<C: Connection> Pair<'_, C> {
    async fn take(&mut self, wants: &[(u8, u8, u8, u8, u8, u8)]) {
        // Of one number there is one request at a time.
        let mut numbers = HashSet::new();
        let wants = wants.iter().filter(|one| numbers.insert((one.0, one.3)));
        let wants: Vec<_> = wants.copied().collect();
        let batch: Vec<_> = wants
            .iter()
            .map(|(key, permits, count, acquisition, ttl, hold)| Take {
                namespace: self.namespace.to_owned(),
                key: key.to_string(),
                permits: i64::from(*permits.max(count)),
                count: i64::from(*count),
                acquisition: i64::from(*key) * 100 + i64::from(*acquisition),
                ttl: i64::from(*ttl) * UNIT,
                hold: i64::from(*hold) * UNIT,
                owner: format!("owner {acquisition}"),
                data: String::new(),
            })
            .collect();
        let (real, model) = (self.real(&batch).await, self.model(&batch));
        for ((real, model), (key, ..)) in real.into_iter().zip(model).zip(wants) {
            match (real, model) {
                (
                    Taken::Granted { fence: real, slots },
                    Taken::Granted {
                        fence: model,
                        slots: same,
                    },
                ) => {
                    assert_eq!(slots, same, "key {key}");
                    self.granted.push(Granted {
                        key,
                        slots,
                        real,
                        model,
                    });
                }
                (
                    Taken::Refused { again, held_for },
                    Taken::Refused {
                        again: same,
                        held_for: about,
                    },
                ) => {
                    assert_eq!(again, same, "key {key}");
                    near(held_for, about);
                }
                other => panic!("key {key}: {other:?}"),
            }
        }
    }

    /// Does the same to something that was granted, on both sides.
    async fn of_granted<O: Operation<Output = bool>>(
        &mut self,
        which: u8,
        operation: impl Fn(String, String, Arc<[i64]>, i64) -> O,
    ) {
        let at = self.granted.len().checked_sub(1 + usize::from(which));
        let Some(granted) = at.map(|at| self.granted[at].clone()) else {
            return;
        };
        let of = |fence| {
            let (namespace, key) = (self.namespace.to_owned(), granted.key.to_string());
            [operation(namespace, key, Arc::clone(&granted.slots), fence)]
        };
        let (real, model) = (of(granted.real), of(granted.model));
        let (real, model) = (self.real(&real).await, self.model(&model));
        assert_eq!(real, model, "{}", O::STATEMENT.name);
    }

    async fn real<O: Operation>(&mut self, batch: &[O]) -> Vec<O::Output> {
        perform(self.connection, batch).await
    }

    fn model<O: Operation>(&mut self, batch: &[O]) -> Vec<O::Output> {
        let rows = Operation::model(batch, &mut self.model, 0);
        O::decode(batch, rows.expect("nobody waits")).expect("the model decodes")
    }
}
