//! The statements of ids and their model give the same answers: numbers, times and blocks.

use std::sync::{Mutex, PoisonError};

use lockapi::driver::Connection;
use lockapi::suite::driver::Operation;
use lockapi::suite::id::{ClaimWorker, ClaimedWorker, NextBlock, ReleaseWorker, RenewWorker};
use lockapi::suite::memory::ModelState;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::connection::{Library, LibraryConnection};

const HOUR: i64 = 3_600_000_000;
/// 2021, and a time that has not come.
const EPOCHS: [i64; 2] = [1_609_459_200_000, 4_102_444_800_000];

#[derive(Clone, Debug)]
enum Action {
    /// Name, layout, epoch, whether it ends at once, and how far ahead the claimer is.
    Claim(u8, u8, usize, bool, u16),
    /// Several of one name.
    Together(u8, usize),
    /// A claim whose answer was lost: which of the claims.
    Again(usize),
    /// Which of the claims, and how far ahead the owner is.
    Renew(usize, u16),
    Release(usize, u16),
    Blocks(Vec<(u8, u16)>),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let name = 0..3u8;
    let action = prop_oneof![
        4 => (
            name.clone(),
            prop_oneof![9 => Just(2u8), 1 => Just(3)],
            prop_oneof![9 => Just(0usize), 1 => Just(1)],
            any::<bool>(),
            any::<u16>()
        )
            .prop_map(|(name, bits, epoch, ends, ahead)| {
                Action::Claim(name, bits, epoch, ends, ahead)
            }),
        1 => (name.clone(), 2..5usize).prop_map(|(name, count)| Action::Together(name, count)),
        2 => any::<usize>().prop_map(Action::Again),
        2 => (any::<usize>(), any::<u16>()).prop_map(|(which, ahead)| Action::Renew(which, ahead)),
        2 => (any::<usize>(), any::<u16>()).prop_map(|(which, back)| Action::Release(which, back)),
        1 => prop::collection::vec((name, 1..100u16), 1..5).prop_map(Action::Blocks),
    ];
    prop::collection::vec(action, 1..40)
}

#[test]
fn x04_database_and_model_agree_on_ids() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let links = Mutex::new(Library::ALL.map(|library| LibraryConnection::connect(library, &url)));
    let config = Config {
        cases: 60,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&actions(), |actions| {
            let mut links = links.lock().unwrap_or_else(PoisonError::into_inner);
            let mut pair = Pair {
                model: ModelState::default(),
                namespace: format!("n{:016x}", fastrand::u64(..)),
                claims: Vec::new(),
            };
            for (at, action) in actions.into_iter().enumerate() {
                pair.act(&mut links[at % Library::ALL.len()], action);
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn x04_repeated_claim_is_given_its_own_number() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let mut connection = LibraryConnection::connect(Library::Sync, &url);
    let mut pair = Pair {
        model: ModelState::default(),
        namespace: format!("n{:016x}", fastrand::u64(..)),
        claims: Vec::new(),
    };
    let claims = [pair.claim(0, 2, 0, HOUR, 0), pair.claim(0, 2, 0, HOUR, 0)];
    pair.claimed(&mut connection, &claims);
    // Together with one that is new, and in another order.
    let new = pair.claim(0, 2, 0, HOUR, 0);
    pair.claimed(
        &mut connection,
        &[claims[1].clone(), new, claims[0].clone()],
    );
    let workers: Vec<_> = pair.claims.iter().map(|(_, worker, _)| *worker).collect();
    assert_eq!(workers, [0, 1, 1, 2, 0]);
}

#[test]
fn x04_repeated_claim_starts_after_the_time_of_its_owner() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let mut connection = LibraryConnection::connect(Library::Sync, &url);
    let mut pair = Pair {
        model: ModelState::default(),
        namespace: format!("n{:016x}", fastrand::u64(..)),
        claims: Vec::new(),
    };
    for (name, reserve) in [(0, 3000), (1, 500)] {
        let mut claim = pair.claim(name, 2, 0, HOUR, 0);
        claim.reserve = reserve;
        pair.claimed(&mut connection, &[claim.clone()]);
        claim.least = pair.model.now / 1000 + 50_000;
        pair.claimed(&mut connection, &[claim]);
    }
}

struct Pair {
    model: ModelState,
    namespace: String,
    /// Name, number and token of what was granted.
    claims: Vec<(String, i64, i64)>,
}

impl Pair {
    fn claim(&self, name: u8, bits: u8, epoch: usize, ttl: i64, ahead: u16) -> ClaimWorker {
        ClaimWorker {
            namespace: self.namespace.clone(),
            name: name.to_string(),
            worker_bits: bits.into(),
            sequence_bits: 12,
            epoch: EPOCHS[epoch],
            token: fastrand::i64(1..),
            ttl,
            reserve: 3000,
            least: self.model.now / 1000 + i64::from(ahead) - 30_000,
            owner: "o'wner".to_owned(),
        }
    }

    /// What the database answers, and the model at the same time.
    fn both<O: Operation>(
        &mut self,
        connection: &mut LibraryConnection,
        batch: &[O],
        now: impl Fn(&O::Output) -> Option<i64>,
    ) -> Vec<O::Output> {
        let real = pollster::block_on(connection.perform(batch));
        let real = real.unwrap_or_else(|failure| panic!("{}: {failure:?}", O::STATEMENT.name));
        if let Some(now) = real.iter().find_map(now) {
            self.model.now = now;
        }
        let rows = Operation::model(batch, &mut self.model, 0).expect("nobody waits");
        let model = O::decode(batch, rows).expect("the model decodes");
        assert_eq!(real, model, "{}", O::STATEMENT.name);
        real
    }

    fn act(&mut self, connection: &mut LibraryConnection, action: Action) {
        match action {
            Action::Claim(name, bits, epoch, ends, ahead) => {
                let ttl = if ends { 0 } else { HOUR };
                let claim = self.claim(name, bits, epoch, ttl, ahead);
                self.claimed(connection, &[claim]);
            }
            Action::Together(name, count) => {
                let claims: Vec<_> = (0..count)
                    .map(|_| self.claim(name, 2, 0, HOUR, 0))
                    .collect();
                self.claimed(connection, &claims);
            }
            Action::Again(which) => {
                let Some((name, _, token)) = self.known(which) else {
                    return;
                };
                let claim = ClaimWorker {
                    name,
                    token,
                    ..self.claim(0, 2, 0, HOUR, 0)
                };
                self.claimed(connection, &[claim]);
            }
            Action::Renew(which, ahead) => {
                let Some((name, worker, token)) = self.known(which) else {
                    return;
                };
                let renew = RenewWorker {
                    namespace: self.namespace.clone(),
                    name,
                    worker,
                    token,
                    ttl: HOUR,
                    reserve: 3000,
                    least: self.model.now / 1000 + i64::from(ahead) - 30_000,
                };
                self.both(connection, &[renew], |renewed| Some(renewed.now));
            }
            Action::Release(which, back) => {
                let Some((name, worker, token)) = self.known(which) else {
                    return;
                };
                let release = ReleaseWorker {
                    namespace: self.namespace.clone(),
                    name,
                    worker,
                    token,
                    floor: self.model.now / 1000 + 30_000 - i64::from(back),
                };
                self.model.now += 1;
                self.both(connection, &[release], |_| None);
            }
            Action::Blocks(sizes) => {
                let batch: Vec<_> = sizes
                    .into_iter()
                    .map(|(name, size)| NextBlock {
                        namespace: self.namespace.clone(),
                        name: name.to_string(),
                        size: size.into(),
                    })
                    .collect();
                self.both(connection, &batch, |_| None);
            }
        }
    }

    fn claimed(&mut self, connection: &mut LibraryConnection, batch: &[ClaimWorker]) {
        // The model has no time of its own; a claim that is refused does not tell it.
        let answers = self.both(connection, batch, |claimed| match claimed {
            ClaimedWorker::Granted { now, .. } | ClaimedWorker::TooEarly(now) => Some(*now),
            _ => None,
        });
        for (claim, answer) in batch.iter().zip(answers) {
            if let ClaimedWorker::Granted { worker, .. } = answer {
                self.claims.push((claim.name.clone(), worker, claim.token));
            }
        }
    }

    fn known(&self, which: usize) -> Option<(String, i64, i64)> {
        let at = which.checked_rem(self.claims.len())?;
        Some(self.claims[at].clone())
    }
}
