//! Random sequences of what is noted, seen and taken from others, on a database and on the model.

use std::time::{Duration, SystemTime};

use lockapi::LockId;
use lockapi::admin::AuditEntry;
use lockapi::driver::Connection;
use lockapi::mutex::LockMode;
use lockapi::suite::admin::{
    ForceRelease, ListAudit, ListLeases, ListLocks, ListWaits, Note, NotedLock, Record, SweepNotes,
};
use lockapi::suite::driver::Operation;
use lockapi::suite::lease::Acquire;
use lockapi::suite::memory::ModelState;
use lockapi::suite::mutex::{LockAnswer, LockRequest};
use proptest::prelude::*;

use super::{MARK, SESSIONS, UNIT, mark, near, perform, place};

const DAY: i64 = 24 * 3600 * 1_000_000;

/// What a backend does, which is here a session, or what is asked; keys are small numbers.
#[derive(Clone, Debug)]
pub enum Action {
    /// Tries or releases a lock.
    LockRequest(usize, u8, bool),
    /// Notes names, holds and waits (key, whether it waits, token, age), and takes back others.
    Note(
        usize,
        Vec<u8>,
        Vec<(u8, bool, u8, u8)>,
        Vec<(u8, bool)>,
        bool,
    ),
    /// A session ends, is swept, and another begins in its place.
    End(usize),
    /// Lists who holds locks, or one lock.
    Locks(Option<u8>),
    /// Lists who waits for locks, or for one lock.
    Waits(Option<u8>),
    /// Acquires a lease.
    Acquire(u8, u8),
    /// Takes the leases of a key.
    ForceRelease(u8),
    /// Records an act.
    Record(u8),
    /// Lists at most so many leases, or those of a key.
    Leases(Option<u8>, u8),
    /// Lists at most so many acts.
    Audit(u8),
    /// Lets so many days go by for names, and sweeps.
    Days(u8),
    /// Lets time go by.
    Elapse(u8),
}

/// Random actions.
pub fn actions() -> impl Strategy<Value = Vec<Action>> {
    let (session, key, some) = (0..SESSIONS, 0..6u8, 0..4usize);
    let noted = (key.clone(), any::<bool>(), 0..3u8, 0..5u8);
    let note = (
        session.clone(),
        prop::collection::vec(key.clone(), some.clone()),
        prop::collection::vec(noted, some.clone()),
        prop::collection::vec((key.clone(), any::<bool>()), some),
        prop::bool::weighted(0.2),
    );
    let action = prop_oneof![
        6 => (session.clone(), key.clone(), prop::bool::weighted(0.4))
            .prop_map(|(session, key, release)| Action::LockRequest(session, key, release)),
        6 => note.prop_map(|(session, names, noted, ended, all)| {
            Action::Note(session, names, noted, ended, all)
        }),
        1 => session.prop_map(Action::End),
        4 => prop::option::of(key.clone()).prop_map(Action::Locks),
        4 => prop::option::of(key.clone()).prop_map(Action::Waits),
        3 => (key.clone(), 1..4u8).prop_map(|(key, ttl)| Action::Acquire(key, ttl)),
        1 => (0..3u8).prop_map(Action::ForceRelease),
        1 => (0..3u8).prop_map(Action::Record),
        2 => (prop::option::of(0..3u8), 1..5u8).prop_map(|(key, most)| Action::Leases(key, most)),
        1 => (1..4u8).prop_map(Action::Audit),
        1 => (10..40u8).prop_map(Action::Days),
        2 => (1..3u8).prop_map(Action::Elapse),
    ];
    prop::collection::vec(action, 1..40)
}

/// What grows older.
#[derive(Clone, Copy, Debug)]
pub enum Older {
    /// Leases and notes.
    Rows(Duration),
    /// Names.
    Names(Duration),
}

struct Pair<'a, C> {
    sessions: &'a mut [C],
    model: ModelState,
    namespace: &'a str,
}

/// Runs actions on both sides. `elapse` makes what is in the namespace older.
///
/// # Panics
/// When the two sides answer differently.
pub async fn run<C: Connection>(
    sessions: &mut [C],
    namespace: &str,
    actions: &[Action],
    mut elapse: impl FnMut(Older),
) {
    let mut model = ModelState::default();
    mark(sessions, &mut model).await;
    let mut pair = Pair {
        sessions,
        model,
        namespace,
    };
    for session in 0..SESSIONS {
        pair.step(session, pair.mark(session), LockMode::Exclusive, false)
            .await;
    }
    for action in actions {
        let time = |micros: i64| Duration::from_micros(micros.unsigned_abs());
        match action {
            Action::Elapse(units) => {
                let micros = i64::from(*units) * UNIT + UNIT / 64;
                pair.model.now += micros;
                elapse(Older::Rows(time(micros)));
            }
            Action::Days(days) => {
                // A bit more, so that nothing falls on the border of a month.
                let micros = i64::from(*days) * DAY + UNIT;
                pair.model.now += micros;
                elapse(Older::Names(time(micros)));
                elapse(Older::Rows(time(micros)));
                pair.sweep().await;
            }
            action => pair.act(action).await,
        }
    }
}

impl<C: Connection> Pair<'_, C> {
    async fn both<O: Operation + Clone>(
        &mut self,
        session: usize,
        one: O,
    ) -> (O::Output, O::Output) {
        let batch = [one];
        let mut real = perform(&mut self.sessions[session], &batch).await;
        let id = u64::try_from(session).expect("a small number");
        let rows = Operation::model(&batch, &mut self.model, id);
        let mut model = O::decode(&batch, rows.expect("nobody waits")).expect("the model decodes");
        (real.remove(0), model.remove(0))
    }

    async fn act(&mut self, action: &Action) {
        match action {
            Action::LockRequest(session, key, release) => {
                // Of one lock a session has one mode.
                let mode = if key % 3 == 2 {
                    LockMode::Shared
                } else {
                    LockMode::Exclusive
                };
                self.step(*session, self.lock(*key), mode, *release).await;
            }
            Action::Note(session, names, noted, ended, all) => {
                let note = self.note(*session, names, noted, ended, *all);
                let (real, model) = self.both(*session, note).await;
                assert_eq!(real, model, "rows changed");
            }
            Action::End(session) => {
                let mark = self.mark(*session);
                self.step(*session, mark, LockMode::Exclusive, true).await;
                self.sweep().await;
                self.step(*session, mark, LockMode::Exclusive, false).await;
            }
            Action::Locks(key) => self.locks(*key).await,
            Action::Waits(key) => self.waits(*key).await,
            Action::Acquire(key, ttl) => {
                let (key, slot) = place(*key);
                let acquire = Acquire {
                    namespace: self.namespace.to_owned(),
                    acquisition: self.model.now,
                    ttl: i64::from(*ttl) * UNIT,
                    hold: 0,
                    owner: format!("owner {ttl}"),
                    data: format!("data {slot}"),
                    key,
                    slot,
                };
                self.both(0, acquire).await;
            }
            Action::ForceRelease(key) => {
                let release = ForceRelease {
                    namespace: self.namespace.to_owned(),
                    key: key.to_string(),
                    reason: "it is stuck".to_owned(),
                };
                let (real, model) = self.both(0, release).await;
                assert_eq!(real, model, "owners");
            }
            Action::Record(target) => {
                let record = Record {
                    namespace: self.namespace.to_owned(),
                    action: "pause queue".to_owned(),
                    target: format!("queue {target}"),
                    reason: "it is too long".to_owned(),
                };
                self.both(0, record).await;
            }
            Action::Leases(key, most) => self.leases(*key, *most).await,
            Action::Audit(most) => self.audit(*most).await,
            Action::Days(_) | Action::Elapse(_) => {}
        }
    }

    async fn step(&mut self, session: usize, lock: LockId, mode: LockMode, release: bool) {
        let (real, model) = self
            .both(
                session,
                LockRequest {
                    lock,
                    mode,
                    release,
                    session: MARK,
                },
            )
            .await;
        let taken = |stepped| matches!(stepped, LockAnswer::Taken(_));
        assert!(
            real == model || taken(real) && taken(model),
            "{real:?}, {model:?}"
        );
    }

    async fn sweep(&mut self) {
        // Others have left things that go with it.
        let sweep = SweepNotes {
            after: i64::MIN,
            most: 10_000,
        };
        self.both(0, sweep).await;
    }

    fn note(
        &self,
        session: usize,
        names: &[u8],
        noted: &[(u8, bool, u8, u8)],
        ended: &[(u8, bool)],
        all: bool,
    ) -> Note {
        let mut names: Vec<_> = names.iter().map(|key| key & !1).collect();
        names.sort_unstable();
        names.dedup();
        let mut once = Vec::new();
        for (key, waits, fence, age) in noted {
            let lock = self.lock(*key);
            if !once
                .iter()
                .any(|one: &NotedLock| (one.lock, one.waits) == (lock, *waits))
            {
                once.push(NotedLock {
                    lock,
                    waits: *waits,
                    fence: i64::from(*fence),
                    age: i64::from(*age) * UNIT,
                });
            }
        }
        let ended = ended.iter().map(|(key, waits)| (self.lock(*key), *waits));
        let ended = ended.filter(|ended| once.iter().all(|one| (one.lock, one.waits) != *ended));
        Note {
            backend: self.mark(session).key,
            namespace: self.namespace.to_owned(),
            owner: format!("backend {session}"),
            names: names
                .iter()
                .map(|key| (self.lock(*key).key, key.to_string()))
                .collect(),
            marks: vec![self.mark(session).key],
            ended: ended.collect(),
            noted: once,
            all,
        }
    }

    fn list(&self, key: Option<u8>) -> ListLocks {
        ListLocks {
            namespace: Some(self.namespace.to_owned()),
            lock: key.map(|key| self.lock(key)),
            most: 1000,
        }
    }

    async fn locks(&mut self, key: Option<u8>) {
        let (mut real, mut model) = self.both(0, self.list(key)).await;
        for held in [&mut real, &mut model] {
            // What only a server knows, by which those who share a lock are sorted.
            for one in held.iter_mut() {
                (one.pid, one.application, one.username) = (None, None, None);
            }
            held.sort_by_key(|one| (one.name.clone(), one.owner.clone()));
        }
        assert_eq!(real.len(), model.len(), "{real:?}, {model:?}");
        for (mut real, mut model) in real.into_iter().zip(model) {
            same_time(real.held_for.take(), model.held_for.take());
            assert_eq!(real, model);
        }
    }

    async fn waits(&mut self, key: Option<u8>) {
        let list = ListWaits {
            locks: self.list(key),
            statements: true,
        };
        let (mut real, mut model) = self.both(0, list).await;
        for waits in [&mut real, &mut model] {
            for one in waits.iter_mut() {
                one.blockers.clear();
            }
            waits.sort_by_key(|one| (one.name.clone(), one.owner.clone()));
        }
        assert_eq!(real.len(), model.len(), "{real:?}, {model:?}");
        for (mut real, mut model) in real.into_iter().zip(model) {
            same_time(real.waits_for.take(), model.waits_for.take());
            assert_eq!(real, model);
        }
    }

    async fn leases(&mut self, key: Option<u8>, most: u8) {
        let list = ListLeases {
            namespace: Some(self.namespace.to_owned()),
            key: key.map(|key| key.to_string()),
            after: (String::new(), String::new(), -1),
            // Other programs have leases, too.
            examined: 1_000_000,
            most: i64::from(most),
        };
        let (real, model) = self.both(0, list).await;
        let (real, model) = (real.leases, model.leases);
        assert_eq!(real.len(), model.len(), "{real:?}, {model:?}");
        for (mut real, mut model) in real.into_iter().zip(model) {
            for (real, model) in [
                (&mut real.held_for, &mut model.held_for),
                (&mut real.remaining, &mut model.remaining),
            ] {
                same_time(Some(std::mem::take(real)), Some(std::mem::take(model)));
            }
            (real.fence, model.fence) = (0, 0);
            assert_eq!(real, model);
        }
    }

    async fn audit(&mut self, most: u8) {
        let list = ListAudit {
            namespace: Some(self.namespace.to_owned()),
            most: i64::from(most),
        };
        let (real, model) = self.both(0, list).await;
        // What each side has of its own.
        let common = |mut one: AuditEntry| {
            (one.id, one.at) = (0, SystemTime::UNIX_EPOCH);
            (one.by_user, one.application) = (String::new(), String::new());
            one
        };
        let common = |all: Vec<AuditEntry>| all.into_iter().map(common).collect::<Vec<_>>();
        assert_eq!(common(real), common(model));
    }

    fn lock(&self, key: u8) -> LockId {
        LockId {
            key: lockapi::advisory_key(self.namespace, &key.to_string()),
            pair: key % 2 == 1,
        }
    }

    /// What a session marks itself with.
    fn mark(&self, session: usize) -> LockId {
        LockId {
            key: lockapi::advisory_key(self.namespace, &format!("mark {session}")),
            pair: false,
        }
    }
}

/// About the same on both sides.
fn same_time(real: Option<Duration>, model: Option<Duration>) {
    let micros = |time: Duration| i64::try_from(time.as_micros()).expect("a short time");
    match (real, model) {
        (Some(real), Some(model)) => near(micros(real), micros(model)),
        (real, model) => assert_eq!(real, model),
    }
}
