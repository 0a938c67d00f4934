//! Owners of several locks, and sets of mutexes.

use std::any::Any;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{Either, select};
use lockapi::mutex::{LockOwner, MutexSetGuard};
use lockapi::{Error, ErrorKind, MutexGuard};

use super::holders::{Guard, Shared, patience, until_ending};
use super::{Context, asked};
use crate::history::Part;

/// The mutexes that owners take, and the locks that they share.
const MUTEXES: [&str; 3] = ["x", "y", "z"];
pub(super) const SHARED: [&str; 3] = ["shared-x", "shared-y", "shared-z"];
/// What sets have.
const OF_SETS: [&str; 3] = ["a", "b", "c"];

/// What an owner takes next.
#[derive(Clone, Copy)]
enum Wanted {
    Mutex(&'static str),
    Reader(&'static str),
    Writer(&'static str),
}

impl Wanted {
    fn key(self) -> &'static str {
        match self {
            Self::Mutex(key) | Self::Reader(key) | Self::Writer(key) => key,
        }
    }
}

fn wanted(context: &Context) -> Vec<Wanted> {
    let runtime = &context.runtime;
    let shares = context.coin();
    let mut keys = if shares { SHARED } else { MUTEXES };
    runtime.draw(|random| random.shuffle(&mut keys));
    let many = runtime.draw(|random| random.usize(2..=3));
    let wanted = keys.into_iter().take(many).map(|key| match shares {
        false => Wanted::Mutex(key),
        true if context.coin() => Wanted::Reader(key),
        true => Wanted::Writer(key),
    });
    wanted.collect()
}

/// Takes two or three locks in any order; one of those who wait for each other is told.
pub(super) async fn run(context: Context) {
    while !context.is_ending() && !context.plan.polls {
        let owner = LockOwner::new();
        let number = context.runtime.draw(|random| random.u64(..));
        let mut held: Vec<Box<dyn Any + Send>> = Vec::new();
        for wanted in wanted(&context) {
            let Some(guard) = take(&context, &owner, number, wanted).await else {
                // Some go on with the next one, and keep what they hold.
                if context.coin() {
                    break;
                }
                continue;
            };
            let holds = context.history.owns(number, wanted.key(), true);
            context.rest(Duration::from_millis(500)).await;
            held.push(Box::new((guard, holds)));
        }
        context.rest(Duration::from_millis(200)).await;
        drop(held);
        context.rest(Duration::from_millis(200)).await;
    }
}

async fn take(
    context: &Context,
    owner: &LockOwner,
    number: u64,
    wanted: Wanted,
) -> Option<Box<dyn Any + Send>> {
    let (backend, key) = (context.backend(), wanted.key());
    let began = asked(context);
    match wanted {
        Wanted::Mutex(_) => {
            let mutex = backend.mutex(key).expect("a key").on(owner);
            let locking = beside_looks(context, mutex.lock(), || mutex.try_lock());
            let guard = owned(context, (number, key), locking).await?;
            Some(keep(context, "mutex", (key, Part::WHOLE), began, guard))
        }
        Wanted::Reader(_) => {
            let lock = backend.rw_lock(key).expect("a key").on(owner);
            let locking = beside_looks(context, lock.read(), || lock.try_read());
            let guard = owned(context, (number, key), locking).await?;
            Some(keep(context, "rw_lock", (key, Part::READER), began, guard))
        }
        Wanted::Writer(_) => {
            let lock = backend.rw_lock(key).expect("a key").on(owner);
            let locking = beside_looks(context, lock.write(), || lock.try_write());
            let guard = owned(context, (number, key), locking).await?;
            Some(keep(context, "rw_lock", (key, Part::WRITER), began, guard))
        }
    }
}

/// Waits, while another branch of the owner may look whether the lock is free.
async fn beside_looks<G, L: Future<Output = Result<Option<G>, Error>> + Send>(
    context: &Context,
    locking: impl Future<Output = Result<G, Error>> + Send,
    look: impl Fn() -> L,
) -> Option<Result<G, Error>> {
    let looks = context.coin();
    let looking = async {
        if !looks {
            return std::future::pending::<()>().await;
        }
        loop {
            context.rest(Duration::from_millis(500)).await;
            // Some do not wait for the answer.
            let patience = pin!(context.rest(Duration::from_millis(20)));
            select(pin!(context.outcome(look())), patience).await;
        }
    };
    match select(pin!(context.outcome(locking)), pin!(looking)).await {
        Either::Left((locked, _)) => locked,
        Either::Right(_) => None,
    }
}

async fn owned<G>(
    context: &Context,
    (number, key): (u64, &'static str),
    locking: impl Future<Output = Option<Result<G, Error>>>,
) -> Option<G> {
    let waits = context.history.owns(number, key, false);
    let locked = locking.await?;
    drop(waits);
    match locked {
        Ok(guard) => Some(guard),
        Err(error) if error.kind() == ErrorKind::Deadlock => {
            context.history.deadlocked(number, key);
            None
        }
        Err(error) => {
            let had = context.had_lock.load(Ordering::Relaxed);
            context.history.not_locked(&error, had);
            None
        }
    }
}

/// Tells the history that it is held, as long as what this answers is kept.
fn keep<G: Guard>(
    context: &Context,
    kind: &'static str,
    (key, part): (&str, Part),
    began: crate::runtime::Time,
    guard: G,
) -> Box<dyn Any + Send> {
    let token = guard.token();
    let guard = Shared::new(guard);
    let (program, held) = (context.program, guard.held());
    let history = &context.history;
    let entry = history.granted(kind, key, part, program, (token, began), held);
    Box::new((entry, guard))
}

/// Locks all mutexes of a set, or as many as are free.
pub(super) async fn sets(context: Context) {
    while !context.is_ending() {
        let many = context.runtime.draw(|random| random.usize(1..=3));
        let mut keys = OF_SETS;
        context.runtime.draw(|random| random.shuffle(&mut keys));
        let keys = &keys[..many];
        let uses: Vec<_> = keys
            .iter()
            .map(|key| context.history.uses("mutex", key))
            .collect();
        // What comes of it is that, whoever waits for others, none waits in a cycle.
        if let Some(guard) = lock_some(&context, keys).await {
            hold_all(&context, guard).await;
        }
        drop(uses);
        context.rest(Duration::from_millis(300)).await;
    }
}

async fn lock_some(
    context: &Context,
    keys: &[&'static str],
) -> Option<(crate::runtime::Time, Vec<Box<dyn MutexGuard>>)> {
    let set = context.backend().mutex_set(keys.iter().copied());
    let set = set.expect("keys");
    let began = asked(context);
    let most = context.runtime.draw(|random| random.usize(1..=3));
    let (least, locked) = match context.runtime.draw(|random| random.u8(..5)) {
        0 => (keys.len(), context.outcome(set.try_lock_all()).await),
        1 => (1, context.outcome(set.try_lock_any(most)).await),
        2 => {
            let time = patience(context);
            let any = context.outcome(set.lock_any_timeout(most, time));
            (1, any.await.map(|it| it.map(Some)))
        }
        3 => {
            let any = until_ending(context, context.outcome(set.lock_any(most)));
            (1, any.await.map(|it| it.map(Some)))
        }
        _ => {
            let all = until_ending(context, context.outcome(set.lock_all()));
            (keys.len(), all.await.map(|it| it.map(Some)))
        }
    };
    let guards = match locked? {
        Ok(guards) => guards.map(MutexSetGuard::into_guards)?,
        Err(error) => {
            not_locked(context, &error).await;
            return None;
        }
    };
    let many = guards.len();
    let is_any = least == 1;
    if many < least || (is_any && many > most.min(keys.len())) {
        let what = format!("{many} of {keys:?}, at least {least}, at most {most}");
        let promise = "a set has as many locks as it was to have";
        context.runtime.violate(promise, what);
    }
    Some((began, guards))
}

async fn not_locked(context: &Context, error: &Error) {
    // One may be lost while another is waited for.
    if !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Lost) {
        context.history.not_locked(error, false);
    }
    if error.kind() == ErrorKind::Lost {
        context.history.lost("mutex", "of a set");
    }
    context.rest(Duration::from_millis(100)).await;
}

async fn hold_all(
    context: &Context,
    (began, guards): (crate::runtime::Time, Vec<Box<dyn MutexGuard>>),
) {
    context.had_lock.store(true, Ordering::Relaxed);
    let mut held = Vec::new();
    for guard in guards {
        let key = guard.fence().key().clone();
        let known = OF_SETS.into_iter().find(|it| key == (*it).into());
        let Some(key) = known else {
            let what = format!("{key:?}");
            return context.runtime.violate("a set has its keys", what);
        };
        held.push(keep(context, "mutex", (key, Part::WHOLE), began, guard));
    }
    context.rest(Duration::from_secs(1)).await;
    drop(held);
}
