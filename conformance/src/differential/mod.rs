//! Random sequences of operations, on a database and on the model.
//!
//! [`run`] sends the same batches through [`Connection`]s of several sessions and through
//! [`Operation::model`], and compares every answer: tokens by their order, durations by whether
//! they are near.

pub mod admin;
mod limits;
pub mod permits;
pub mod queue;

use std::collections::BTreeMap;
use std::time::Duration;

use lockapi::LockId;
use lockapi::driver::{Connection, Script};
use lockapi::mutex::LockMode;
use lockapi::suite::driver::Operation;
use lockapi::suite::idempotency::{CompleteAnswer, RecallAnswer, RecordAnswer};
use lockapi::suite::lease::{Acquire, Acquired, Check, Peek, Peeked, Release, Renew};
use lockapi::suite::memory::ModelState;
use lockapi::suite::mutex::{DeadlockCheck, HasWaiters, LockAnswer, LockRequest};
use proptest::prelude::*;

pub use limits::LimitAction;

/// How many sessions take part.
pub const SESSIONS: usize = 3;

/// The times that leases are given are multiples of this; a run takes less.
const UNIT: i64 = 60_000_000;

/// One batch, by a session; keys and tokens are small numbers.
#[derive(Clone, Debug)]
pub enum Action {
    /// Releases and tries locks: key, whether shared, whether to release.
    LockRequest(usize, Vec<(u8, bool, bool)>),
    /// Notes that holders of some locks wait for another, and takes the notes away: what is waited
    /// for, what is held.
    DeadlockCheck(usize, u8, Vec<u8>),
    /// Acquires leases: key, acquisition, ttl and hold.
    Acquire(usize, Vec<(u8, u8, u8, u8)>),
    /// Renews leases: key, which token, ttl.
    Renew(usize, Vec<(u8, u8, u8)>),
    /// Releases leases: key, which token.
    Release(usize, Vec<(u8, u8)>),
    /// Reads leases.
    Peek(usize, Vec<u8>),
    /// Checks a holder: key, which token.
    Check(usize, u8, u8),
    /// Records answers: key, token, answer, how long it is kept.
    Record(usize, Vec<(u8, u8, u8, u8)>),
    /// Records an answer while a lease is held: key, which token, answer, how long it is kept.
    Complete(usize, u8, u8, u8, u8),
    /// Reads answers.
    Recall(usize, Vec<u8>),
    /// What rate limits do.
    Limit(usize, LimitAction),
    /// Lets time go by.
    Elapse(u8),
}

/// Random actions.
pub fn actions() -> impl Strategy<Value = Vec<Action>> {
    let session = 0..SESSIONS;
    let key = 0..4u8;
    let some = 1..6usize;
    let distinct = |keys: Vec<u8>| {
        let mut keys = keys;
        keys.sort_unstable();
        keys.dedup();
        keys
    };
    let (answering, completing, recalling) = (session.clone(), session.clone(), session.clone());
    let action = prop_oneof![
        3 => (session.clone(), prop::collection::vec((key.clone(), any::<bool>(), any::<bool>()), some.clone()))
            .prop_map(|(session, steps)| Action::LockRequest(session, steps)),
        1 => (session.clone(), key.clone(), prop::collection::vec(key.clone(), some.clone()).prop_map(distinct))
            .prop_map(|(session, lock, holding)| Action::DeadlockCheck(session, lock, holding)),
        // A batch of one has a statement of its own.
        4 => (session.clone(), key.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(session, key, shared, release)| Action::LockRequest(session, vec![(key, shared, release)])),
        4 => (
            session.clone(),
            prop::collection::vec((key.clone(), 0..6u8, 1..4u8, 0..4u8), some.clone())
        )
            .prop_map(|(session, wants)| Action::Acquire(session, wants)),
        2 => (
            session.clone(),
            prop::collection::vec(key.clone(), some.clone()).prop_map(distinct),
            0..3u8,
            1..4u8
        )
            .prop_map(|(session, keys, back, ttl)| Action::Renew(
                session,
                keys.into_iter().map(|key| (key, back, ttl)).collect()
            )),
        2 => (
            session.clone(),
            prop::collection::vec(key.clone(), some.clone()).prop_map(distinct),
            0..3u8
        )
            .prop_map(|(session, keys, back)| Action::Release(
                session,
                keys.into_iter().map(|key| (key, back)).collect()
            )),
        2 => (session.clone(), prop::collection::vec(key.clone(), some))
            .prop_map(|(session, keys)| Action::Peek(session, keys)),
        2 => (session, key, 0..3u8)
            .prop_map(|(session, key, back)| Action::Check(session, key, back)),
        2 => (answering, prop::collection::vec((0..4u8, 0..3u8, any::<u8>(), 1..4u8), 1..6usize))
            .prop_map(|(session, wants)| Action::Record(session, wants)),
        2 => (completing, 0..4u8, 0..3u8, any::<u8>(), 1..4u8)
            .prop_map(|(session, key, back, answer, kept)| Action::Complete(session, key, back, answer, kept)),
        2 => (recalling, prop::collection::vec(0..4u8, 1..6usize))
            .prop_map(|(session, keys)| Action::Recall(session, keys)),
        8 => limits::actions().prop_map(|(session, action)| Action::Limit(session, action)),
        3 => (1..3u8).prop_map(Action::Elapse),
    ];
    prop::collection::vec(action, 1..40)
}

/// A token on both sides; the n-th that was given for a key.
type Tokens = BTreeMap<u8, Vec<(i64, i64)>>;

struct Pair<'a, C> {
    sessions: &'a mut [C],
    model: ModelState,
    namespace: &'a str,
    tokens: Tokens,
    limits: limits::Known,
}

/// Runs actions on both sides. `elapse` makes the leases and limits of the namespace older.
///
/// # Panics
/// When the two sides answer differently.
pub async fn run<C: Connection>(
    sessions: &mut [C],
    namespace: &str,
    actions: &[Action],
    mut elapse: impl FnMut(Duration),
) {
    let mut model = ModelState::default();
    mark(sessions, &mut model).await;
    let mut pair = Pair {
        sessions,
        model,
        namespace,
        tokens: Tokens::new(),
        limits: limits::Known::default(),
    };
    for action in actions {
        if let Action::Elapse(units) = action {
            // A bit more, so that nothing falls on the border between two minutes.
            let micros = i64::from(*units) * UNIT + UNIT / 64;
            pair.model.now += micros;
            pair.limits.older(micros);
            elapse(Duration::from_micros(micros.unsigned_abs()));
        } else {
            pair.act(action).await;
        }
    }
}

/// The mark that the sessions have on both sides; it is no lock.
pub(crate) const MARK: i64 = 7;

/// Has sessions take requests for locks.
pub(crate) async fn mark<C: Connection>(sessions: &mut [C], model: &mut ModelState) {
    const SET: &str = "SELECT set_config('lockapi.session', pg_backend_pid() || ' 7', false)";
    for (id, session) in (0..).zip(sessions) {
        session.script(Script::Run(SET)).await.expect("marked");
        model.set_mark(id, MARK);
    }
}

impl<C: Connection> Pair<'_, C> {
    async fn both<O: Operation>(
        &mut self,
        session: usize,
        batch: &[O],
    ) -> (Vec<O::Output>, Vec<O::Output>) {
        let real = perform(&mut self.sessions[session], batch).await;
        let id = u64::try_from(session).expect("a small number");
        let rows = Operation::model(batch, &mut self.model, id).expect("nobody waits");
        let model = O::decode(batch, rows).expect("the model decodes");
        assert_eq!(real.len(), model.len());
        (real, model)
    }

    async fn act(&mut self, action: &Action) {
        match action {
            Action::LockRequest(session, steps) => {
                let batch: Vec<_> = steps
                    .iter()
                    .map(|(key, shared, release)| LockRequest {
                        lock: self.lock(*key),
                        mode: if *shared {
                            LockMode::Shared
                        } else {
                            LockMode::Exclusive
                        },
                        release: *release,
                        session: MARK,
                    })
                    .collect();
                let (real, model) = self.both(*session, &batch).await;
                for ((real, model), (key, ..)) in real.iter().zip(&model).zip(steps) {
                    self.stepped(*key, *real, *model);
                }
            }
            Action::DeadlockCheck(session, lock, holding) => {
                self.cycle(*session, *lock, holding).await;
            }
            Action::Acquire(session, wants) => self.acquire(*session, wants).await,
            Action::Renew(session, wants) => {
                let renew = |key, fence, ttl: u8| Renew {
                    namespace: self.namespace.to_owned(),
                    key: place(key).0,
                    slots: [place(key).1].into(),
                    fence,
                    ttl: i64::from(ttl) * UNIT,
                };
                let known: Vec<_> = wants
                    .iter()
                    .map(|(key, back, ttl)| (*key, self.token(*key, *back), *ttl))
                    .collect();
                let of = |real: bool| {
                    known
                        .iter()
                        .map(|(key, token, ttl)| {
                            renew(*key, if real { token.0 } else { token.1 }, *ttl)
                        })
                        .collect::<Vec<_>>()
                };
                let (real, model) = (of(true), of(false));
                self.compare(*session, &real, &model).await;
            }
            Action::Release(session, wants) => {
                let known: Vec<_> = wants
                    .iter()
                    .map(|(key, back)| (*key, self.token(*key, *back)))
                    .collect();
                let of = |real: bool| {
                    known
                        .iter()
                        .map(|(key, token)| Release {
                            namespace: self.namespace.to_owned(),
                            key: place(*key).0,
                            slots: [place(*key).1].into(),
                            fence: if real { token.0 } else { token.1 },
                        })
                        .collect::<Vec<_>>()
                };
                let (real, model) = (of(true), of(false));
                self.compare(*session, &real, &model).await;
            }
            Action::Peek(session, keys) => self.peek(*session, keys).await,
            Action::Check(session, key, back) => {
                let (real, model) = self.checks(*key, *back);
                self.compare(*session, &[real], &[model]).await;
            }
            Action::Complete(session, key, back, answer, kept) => {
                let (real, model) = self.checks(*key, *back);
                let of = |lease: Check| CompleteAnswer {
                    record: self.answer(*key, lease.fence, *answer, *kept),
                    lease: lease.key,
                    slot: place(*key).1,
                };
                self.compare(*session, &[of(real)], &[of(model)]).await;
            }
            Action::Record(session, wants) => self.record(*session, wants).await,
            Action::Recall(session, keys) => self.recall(*session, keys).await,
            Action::Limit(session, action) => self.limit(*session, action).await,
            Action::Elapse(_) => {}
        }
    }

    /// Checks of a holder, on the server and in memory.
    fn checks(&self, key: u8, back: u8) -> (Check, Check) {
        let token = self.token(key, back);
        let check = |fence| Check {
            namespace: self.namespace.to_owned(),
            key: place(key).0,
            slots: [place(key).1].into(),
            fence,
        };
        (check(token.0), check(token.1))
    }

    fn answer(&self, key: u8, fence: i64, answer: u8, kept: u8) -> RecordAnswer {
        RecordAnswer {
            namespace: self.namespace.to_owned(),
            key: place(key).0,
            fence,
            fingerprint: vec![answer / 2; 32],
            answer: vec![answer; usize::from(answer % 3)],
            retention: i64::from(kept) * UNIT,
        }
    }

    async fn record(&mut self, session: usize, wants: &[(u8, u8, u8, u8)]) {
        // No holder has a token below zero.
        let record = |(key, fence, answer, kept): &(u8, u8, u8, u8)| {
            self.answer(*key, -1 - i64::from(*fence), *answer, *kept)
        };
        let batch: Vec<_> = wants.iter().map(record).collect();
        let (real, model) = self.both(session, &batch).await;
        assert_eq!(real, model, "{wants:?}");
    }

    async fn recall(&mut self, session: usize, keys: &[u8]) {
        let recall = |key: &u8| RecallAnswer {
            namespace: self.namespace.to_owned(),
            key: place(*key).0,
        };
        let batch: Vec<_> = keys.iter().map(recall).collect();
        let (real, model) = self.both(session, &batch).await;
        assert_eq!(real, model, "{keys:?}");
    }

    async fn cycle(&mut self, session: usize, lock: u8, holding: &[u8]) {
        let cycle = DeadlockCheck {
            lock: self.lock(lock),
            holding: holding.iter().map(|key| self.lock(*key)).collect(),
            session: MARK,
        };
        let notes = cycle.forget();
        let awaited: Vec<_> = cycle.holding.iter().map(|lock| HasWaiters(*lock)).collect();
        let (real, model) = self.both(session, &[cycle]).await;
        assert_eq!(real, model, "nobody waits but for itself");
        let (real, model) = self.both(session, &notes).await;
        assert_eq!(real, model);
        let (real, model) = self.both(session, &awaited).await;
        assert_eq!(real, model, "nobody waits");
    }

    async fn peek(&mut self, session: usize, keys: &[u8]) {
        let batch: Vec<_> = keys
            .iter()
            .map(|key| Peek {
                namespace: self.namespace.to_owned(),
                key: place(*key).0,
                slot: place(*key).1,
            })
            .collect();
        let (real, model) = self.both(session, &batch).await;
        for ((real, model), key) in real.iter().zip(&model).zip(keys) {
            self.peeked(*key, real.as_ref(), model.as_ref());
        }
    }

    async fn acquire(&mut self, session: usize, wants: &[(u8, u8, u8, u8)]) {
        let batch: Vec<_> = wants
            .iter()
            .map(|(key, acquisition, ttl, hold)| Acquire {
                namespace: self.namespace.to_owned(),
                key: place(*key).0,
                slot: place(*key).1,
                // A request that is repeated is one of the same key.
                acquisition: i64::from(*key) * 100 + i64::from(*acquisition),
                ttl: i64::from(*ttl) * UNIT,
                hold: i64::from(*hold) * UNIT,
                owner: format!("owner {acquisition}"),
                data: format!("data {hold}"),
            })
            .collect();
        let (real, model) = self.both(session, &batch).await;
        for ((real, model), (key, ..)) in real.iter().zip(&model).zip(wants) {
            match (real, model) {
                (Acquired::Granted(real), Acquired::Granted(model)) => {
                    self.given(*key, *real, *model);
                }
                (Acquired::Held(real), Acquired::Held(model)) => near(*real, *model),
                other => panic!("key {key}: {other:?}"),
            }
        }
    }

    /// Runs batches that differ in their tokens only.
    async fn compare<O: Operation<Output = bool>>(
        &mut self,
        session: usize,
        real: &[O],
        model: &[O],
    ) {
        let real = perform(&mut self.sessions[session], real).await;
        let rows = Operation::model(model, &mut self.model, 0).expect("nobody waits");
        let model = O::decode(model, rows).expect("the model decodes");
        assert_eq!(real, model, "{}", O::STATEMENT.name);
    }

    fn stepped(&mut self, key: u8, real: LockAnswer, model: LockAnswer) {
        match (real, model) {
            (LockAnswer::Taken(real), LockAnswer::Taken(model)) => {
                self.given(key + 100, real, model);
            }
            (real, model) => assert_eq!(real, model, "key {key}"),
        }
    }

    fn peeked(&mut self, key: u8, real: Option<&Peeked>, model: Option<&Peeked>) {
        let (Some(real), Some(model)) = (real, model) else {
            assert!(
                real.is_none() && model.is_none(),
                "key {key}: {real:?}, {model:?}"
            );
            return;
        };
        assert_eq!((&real.owner, &real.data), (&model.owner, &model.data));
        self.given(key, real.fence, model.fence);
        near(real.age, model.age);
        near(real.remaining, model.remaining);
    }

    /// A token was seen on both sides: both know it, or to both it is the largest so far.
    fn given(&mut self, key: u8, real: i64, model: i64) {
        let known = self.tokens.entry(key).or_default();
        if known.contains(&(real, model)) {
            return;
        }
        let largest = known.last().copied().unwrap_or_default();
        assert!(
            real > largest.0 && model > largest.1,
            "key {key}: {real} and {model} after {largest:?}"
        );
        known.push((real, model));
    }

    /// The last token of a key, or one before it.
    fn token(&self, key: u8, back: u8) -> (i64, i64) {
        let known = self.tokens.get(&key).map_or(&[][..], Vec::as_slice);
        let at = known.len().checked_sub(1 + usize::from(back));
        at.map_or((0, 0), |at| known[at])
    }

    fn lock(&self, key: u8) -> LockId {
        LockId {
            key: lockapi::advisory_key(self.namespace, &key.to_string()),
            pair: key % 2 == 1,
        }
    }
}

/// Two of the small numbers are slots of one key.
fn place(key: u8) -> (String, i64) {
    ((key / 2).to_string(), -i64::from(key % 2))
}

/// What a statement answers. The server may refuse a serializable transaction because of those of other tests, which
/// are none of its rows, but of its pages: nothing has happened then, and it is run again.
///
/// # Panics
/// When it fails.
async fn perform<O: Operation>(connection: &mut impl Connection, batch: &[O]) -> Vec<O::Output> {
    loop {
        match connection.perform(batch).await {
            Ok(answers) => return answers,
            Err(failure) if failure.sqlstate.as_deref() == Some("40001") => {}
            Err(failure) => panic!("{}: {failure:?}", O::STATEMENT.name),
        }
    }
}

/// The two clocks do not stand still.
fn near(real: i64, model: i64) {
    assert!(
        (real - model).abs() < UNIT / 2,
        "{real} is not near {model}"
    );
}
