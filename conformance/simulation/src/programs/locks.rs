//! Locks of sessions.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lockapi::{Error, Result};

use super::holders::{hold, manner, patience, until_ending};
use super::{Context, asked};
use crate::history::Part;

/// A call of a lock of a session.
async fn locked<T>(
    context: &Context,
    call: impl Future<Output = Result<T, Error>> + Send,
) -> Option<T> {
    match context.outcome(call).await? {
        Ok(answer) => {
            context.had_lock.store(true, Ordering::Relaxed);
            Some(answer)
        }
        Err(error) => {
            let had = context.had_lock.load(Ordering::Relaxed);
            if error.kind() == lockapi::ErrorKind::TimedOut {
                context.rest(Duration::from_millis(10)).await;
            } else {
                context.history.not_locked(&error, had);
                context.rest(Duration::from_millis(100)).await;
            }
            None
        }
    }
}

/// Waits for a lock of a session as long as it takes, but for the end.
pub(super) async fn waited<T>(
    context: &Context,
    place: (&'static str, &str),
    shares: bool,
    call: impl Future<Output = Result<T, Error>> + Send,
) -> Option<T> {
    let waits = context.history.waits(context.program, place, shares);
    let guard = until_ending(context, locked(context, call)).await;
    if guard.is_some() {
        context.history.has_waited(&waits);
    }
    drop(waits);
    guard
}

pub(super) async fn mutex(context: Context) {
    while !context.is_ending() {
        let key = context.key();
        let mutex = context.backend().mutex(key).expect("a key");
        let using = context.history.uses("mutex", key);
        let began = asked(&context);
        let guard = match manner(&context) {
            0 => locked(&context, using.tried(mutex.try_lock()))
                .await
                .flatten(),
            1 => {
                let most = patience(&context);
                locked(&context, using.within(most, mutex.lock_timeout(most))).await
            }
            _ => waited(&context, ("mutex", key), false, mutex.lock()).await,
        };
        if let Some(guard) = guard {
            hold(&context, "mutex", key, Part::WHOLE, began, guard).await;
        }
        drop(using);
        context.rest(Duration::from_millis(200)).await;
    }
}

pub(super) async fn rw_lock(context: Context) {
    while !context.is_ending() {
        let (key, reads) = if context.plan.by_readers {
            ("a", 0.9)
        } else {
            (context.key(), 0.5)
        };
        let lock = context
            .backend()
            .rw_lock(format!("rw-{key}"))
            .expect("a key");
        let using = context.history.uses("rw_lock", key);
        let began = asked(&context);
        if context.runtime.happens(reads) {
            let guard = match manner(&context) {
                0 => locked(&context, using.tried(lock.try_read()))
                    .await
                    .flatten(),
                1 => {
                    let most = patience(&context);
                    locked(&context, using.within(most, lock.read_timeout(most))).await
                }
                _ => waited(&context, ("rw_lock", key), true, lock.read()).await,
            };
            if let Some(guard) = guard {
                hold(&context, "rw_lock", key, Part::READER, began, guard).await;
            }
        } else {
            let alone = context.history.wants_alone("rw_lock", key);
            let guard = match manner(&context) {
                0 => locked(&context, using.tried(lock.try_write()))
                    .await
                    .flatten(),
                1 => {
                    let most = patience(&context);
                    locked(&context, using.within(most, lock.write_timeout(most))).await
                }
                _ => waited(&context, ("rw_lock", key), false, lock.write()).await,
            };
            if let Some(guard) = guard {
                hold(&context, "rw_lock", key, Part::WRITER, began, guard).await;
            }
            drop(alone);
        }
        drop(using);
        context.rest(Duration::from_millis(200)).await;
    }
}
