//! Whoever holds something, and writes under its token.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lockapi::lease::LeaseOptions;
use lockapi::mutex::MutexSetGuard;
use lockapi::{ErrorKind, Fence, Key, LeaseGuard, MutexGuard, ReadGuard, Result};

use super::store::Inside;
use super::{Context, KEYS, PERMITS, TTL, Transacted, before, pick, rest};
use crate::args::Control;
use crate::log::{Answer, Kind, Op};

/// For how long some hold a mutex without a write that would tell them.
const ALONE: Duration = Duration::from_secs(20);

/// In place of a token, of those who have none.
const UNTOKENED: i64 = 0;

/// A guard of any kind that has a token.
#[async_trait]
trait Guard: Send + Sync {
    fn fence(&self) -> Fence;
    fn lost(&self) -> bool;
    async fn give_back(self: Box<Self>) -> Result<()>;
}

#[async_trait]
impl Guard for Box<dyn MutexGuard> {
    fn fence(&self) -> Fence {
        (**self).fence()
    }

    fn lost(&self) -> bool {
        self.is_lost()
    }

    async fn give_back(self: Box<Self>) -> Result<()> {
        self.unlock().await
    }
}

#[async_trait]
impl Guard for Box<dyn LeaseGuard> {
    fn fence(&self) -> Fence {
        (**self).fence()
    }

    fn lost(&self) -> bool {
        self.is_lost()
    }

    async fn give_back(self: Box<Self>) -> Result<()> {
        self.release().await
    }
}

/// Sometimes without renewal; also whether there is.
fn terms() -> (LeaseOptions, bool) {
    let most = u64::try_from(TTL.as_millis()).unwrap_or(1000);
    let options = LeaseOptions::new(Duration::from_millis(fastrand::u64(1000..=most)));
    if fastrand::u8(..10) == 0 {
        (options.renewed_by_hand(), false)
    } else {
        (options, true)
    }
}

fn granted<G: Guard>(guard: &G) -> Answer {
    Answer::Token(guard.fence().token())
}

#[expect(clippy::ref_option, reason = "it is what a call answers")]
fn tried<G: Guard>(guard: &Option<G>) -> Answer {
    guard.as_ref().map_or(Answer::Nothing, granted)
}

/// Holds for a while and writes, then gives back or drops the guard.
async fn hold<G: Guard + 'static>(
    context: &Context,
    (kind, key): (Kind, &str),
    (call, guard): (u64, G),
) {
    if kind == Kind::Semaphore && context.is_control(Control::Hoard) {
        while !context.is_over() {
            rest(100).await;
        }
    }
    let fence = guard.fence();
    let token = fence.token();
    let unchecked = context.is_control(Control::Unchecked);
    // Some hold a lease for longer than its time to live: until they lose it, where they do not renew it.
    let long = kind != Kind::Mutex && fastrand::u8(..12) == 0;
    // And a mutex for so long that they would have to know by themselves that they have lost it.
    let alone = kind == Kind::Mutex && fastrand::u8(..40) == 0;
    let time = if alone { ALONE } else { TTL * 5 / 4 };
    let until = before() + u64::try_from(time.as_nanos()).unwrap_or(0);
    let mut left = fastrand::u8(1..8);
    while left > 0 || (long || alone) && before() < until && context.may_go_on() {
        left = left.saturating_sub(1);
        let at = before();
        if !guard.lost() {
            context.log.held(at, call, token);
        } else if !unchecked {
            break;
        }
        let writes = kind != Kind::Semaphore && !alone;
        if writes && write(context, kind, key, &fence).await == Transacted::Lost {
            break;
        }
        rest(100).await;
    }
    if fastrand::u8(..4) == 0 {
        return drop(guard);
    }
    let op = Op::Release {
        kind,
        key: key.to_owned(),
        token,
    };
    let releasing = Box::new(guard).give_back();
    let (_, released) = context.call(op, releasing, |()| Answer::Done).await;
    if released.is_err() {
        rest(200).await;
    }
}

/// Writes to the register of a lock, under the token.
async fn write(context: &Context, kind: Kind, key: &str, fence: &Fence) -> Transacted {
    let (token, value) = (fence.token(), context.log.number());
    let register = format!("{kind:?} {key}");
    let sql = format!("SELECT torture.write('{register}', {token}, {value})");
    let op = Op::Write {
        register,
        token,
        value,
    };
    let inside = if context.is_control(Control::Unchecked) {
        Inside::Nothing
    } else {
        Inside::CheckIn(fence.clone())
    };
    context.transact(op, inside, sql).await
}

fn asks(kind: Kind, key: &str, wait: u64, kept: bool) -> Op {
    Op::Acquire {
        kind,
        key: key.to_owned(),
        wait,
        kept,
    }
}

/// Without waiting, or for some time.
fn patience() -> Option<Duration> {
    fastrand::bool().then(|| Duration::from_millis(fastrand::u64(1..5000)))
}

fn millis(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(0))
}

/// After a refusal, which may be as quick as it likes.
async fn after<T>(outcome: &Result<T>) {
    match outcome {
        Err(error) if error.kind() != ErrorKind::TimedOut => rest(300).await,
        _ => rest(60).await,
    }
}

/// Asks for something, and holds it if it is granted.
async fn take<G: Guard + 'static>(
    context: &Context,
    (kind, key, kept): (Kind, &str, bool),
    wait: Option<Duration>,
    asking: impl Future<Output = Result<Option<G>>>,
) {
    let op = asks(kind, key, millis(wait), kept);
    let (call, guard) = context.call(op, asking, tried).await;
    after(&guard).await;
    if let Ok(Some(guard)) = guard {
        hold(context, (kind, key), (call, guard)).await;
    }
}

pub(super) async fn mutex(context: Context) {
    while context.may_hold().await {
        let (key, wait) = (pick(&KEYS), patience());
        let mutex = context.backend.mutex(key).expect("a key");
        let lock = context.backend.rw_lock(key).expect("a key");
        let writes = fastrand::bool();
        let locking = async {
            match wait {
                None if writes => lock.try_write().await,
                None => mutex.try_lock().await,
                Some(wait) if writes => lock.write_timeout(wait).await.map(Some),
                Some(wait) => mutex.lock_timeout(wait).await.map(Some),
            }
        };
        take(&context, (Kind::Mutex, key, true), wait, locking).await;
    }
}

/// Several of the same mutexes: all of them, or as many as are free.
pub(super) async fn set(context: Context) {
    while context.may_hold().await {
        let (left_out, wait) = (pick(&KEYS), patience());
        let keys: Vec<_> = KEYS.into_iter().filter(|key| *key != left_out).collect();
        let set = context.backend.mutex_set(keys.clone()).expect("keys");
        let begin = |key| {
            let op = asks(Kind::Mutex, key, millis(wait), true);
            (key, context.log.begin(op))
        };
        let asked: Vec<_> = keys.into_iter().map(begin).collect();
        let locked = match (wait, fastrand::bool()) {
            (None, true) => set.try_lock_all().await,
            (None, false) => set.try_lock_any(2).await,
            (Some(wait), true) => set.lock_all_timeout(wait).await.map(Some),
            (Some(wait), false) => set.lock_any_timeout(2, wait).await.map(Some),
        };
        let (mut guards, outcome) = match locked {
            Ok(locked) => (
                locked.map_or_else(Vec::new, MutexSetGuard::into_guards),
                Ok(()),
            ),
            Err(error) => (Vec::new(), Err(error)),
        };
        let mut held = Vec::new();
        for (key, pending) in asked {
            let key_of = Key::from(key);
            let guard = guards
                .iter()
                .position(|guard| *guard.fence().key() == key_of);
            let guard = guard.map(|at| guards.swap_remove(at));
            let call = pending.end(match &outcome {
                Ok(()) => tried(&guard),
                Err(error) => Answer::failed(error),
            });
            held.extend(guard.map(|guard| hold(&context, (Kind::Mutex, key), (call, guard))));
        }
        after(&outcome).await;
        join_all(held).await;
    }
}

/// Shares with other readers what nobody else has then.
pub(super) async fn reader(context: Context) {
    while context.may_hold().await {
        let (key, wait) = (pick(&KEYS), patience());
        let lock = context.backend.rw_lock(key).expect("a key");
        let op = asks(Kind::Reader, key, millis(wait), true);
        let locking = async {
            match wait {
                None => lock.try_read().await,
                Some(wait) => lock.read_timeout(wait).await.map(Some),
            }
        };
        let (call, guard) = context.call(op, locking, shared).await;
        after(&guard).await;
        if let Ok(Some(guard)) = guard {
            share(&context, key, (call, guard)).await;
        }
    }
}

#[expect(clippy::ref_option, reason = "it is what a call answers")]
fn shared(guard: &Option<Box<dyn ReadGuard>>) -> Answer {
    guard
        .as_ref()
        .map_or(Answer::Nothing, |_| Answer::Token(UNTOKENED))
}

/// Holds for a while, then gives back or drops the guard.
async fn share(context: &Context, key: &str, (call, guard): (u64, Box<dyn ReadGuard>)) {
    for _ in 0..fastrand::u8(1..8) {
        let at = before();
        if guard.is_lost() {
            break;
        }
        context.log.held(at, call, UNTOKENED);
        rest(100).await;
    }
    if fastrand::u8(..4) == 0 {
        return drop(guard);
    }
    let op = Op::Release {
        kind: Kind::Reader,
        key: key.to_owned(),
        token: UNTOKENED,
    };
    let (_, released) = context.call(op, guard.unlock(), |()| Answer::Done).await;
    if released.is_err() {
        rest(200).await;
    }
}

pub(super) async fn lease(context: Context) {
    while context.may_hold().await {
        let (key, wait) = (pick(&KEYS), patience());
        let (terms, kept) = terms();
        let lease = context.backend.lease(key, terms).expect("a key");
        let acquiring = async {
            match wait {
                None => lease.try_acquire().await,
                Some(wait) => lease.acquire_timeout(wait).await.map(Some),
            }
        };
        take(&context, (Kind::Lease, key, kept), wait, acquiring).await;
    }
}

pub(super) async fn term(context: Context) {
    while context.may_hold().await {
        let (key, wait) = (pick(&KEYS), patience());
        let (terms, kept) = terms();
        let election = context.backend.election(key, terms).expect("a key");
        let campaign = async {
            match wait {
                None => election.try_campaign().await,
                Some(wait) => election.campaign_timeout(wait).await.map(Some),
            }
        };
        take(&context, (Kind::Term, key, kept), wait, campaign).await;
    }
}

pub(super) async fn leased_mutex(context: Context) {
    while context.may_hold().await {
        let (key, wait) = (pick(&KEYS), patience());
        let (terms, kept) = terms();
        let mutex = context.backend.leased_mutex(key, terms).expect("a key");
        let locking = async {
            match wait {
                None => mutex.try_lock().await,
                Some(wait) => mutex.lock_timeout(wait).await.map(Some),
            }
        };
        take(&context, (Kind::LeasedMutex, key, kept), wait, locking).await;
    }
}

pub(super) async fn semaphore(context: Context) {
    while context.may_hold().await {
        let (key, wait) = ("permits", patience());
        let (terms, kept) = terms();
        let semaphore = context.backend.semaphore(key, PERMITS, terms);
        let semaphore = semaphore.expect("a key");
        let acquiring = async {
            match wait {
                None => semaphore.try_acquire().await,
                Some(wait) => semaphore.acquire_timeout(wait).await.map(Some),
            }
        };
        take(&context, (Kind::Semaphore, key, kept), wait, acquiring).await;
    }
}

/// Counts under a mutex that belongs to the transaction.
pub(super) async fn counter(context: Context) {
    while context.may_hold().await {
        let counter = pick(&KEYS);
        let mutex = context.backend.mutex(counter).expect("a key");
        let pause = fastrand::f64() * 0.05;
        let op = Op::Count {
            counter: counter.to_owned(),
        };
        let sql = format!("SELECT torture.count('{counter}', {pause})");
        context.transact(op, Inside::Lock(mutex), sql).await;
        rest(400).await;
    }
}
