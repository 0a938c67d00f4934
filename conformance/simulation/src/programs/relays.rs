//! Locks that a process passes on among its own tasks, and keys that nobody else has.

use std::time::Duration;

use futures_util::future::{join, join3};
use lockapi::lease::LeaseOptions;

use super::holders::hold;
use super::locks::waited;
use super::{Context, asked};
use crate::history::Part;

const KEYS: [&str; 6] = ["r0", "r1", "r2", "r3", "r4", "r5"];

/// Some pass one lock on, and others want many, more than there are sessions that wait.
pub(super) async fn run(context: Context) {
    let own = KEYS[context.program.0 % KEYS.len()];
    let pass = || async { passed(&context, || own).await };
    let any = || KEYS[context.runtime.draw(|random| random.usize(..KEYS.len()))];
    let visit = || async { passed(&context, any).await };
    join(
        join3(pass(), pass(), pass()),
        join3(visit(), visit(), visit()),
    )
    .await;
}

async fn passed(context: &Context, key: impl Fn() -> &'static str) {
    while !context.is_ending() {
        let key = key();
        let mutex = context.backend().mutex(key).expect("a key");
        let began = asked(context);
        let guard = waited(context, ("relay", key), false, mutex.lock()).await;
        if let Some(guard) = guard {
            hold(context, "relay", key, Part::WHOLE, began, guard).await;
        }
    }
}

/// What is told of a lease that nobody else wants is what an attempt finds.
pub(super) async fn finder(context: Context) {
    let number = context.runtime.draw(|random| random.u64(..));
    let key = format!("own-{number:x}");
    while !context.is_ending() {
        let time = context
            .runtime
            .between(Duration::from_millis(100), Duration::from_secs(3));
        let options = LeaseOptions::new(Duration::from_secs(4)).minimum_hold(time);
        let lease = context.backend().lease(&*key, options).expect("a key");
        let (seen, got) = (lease.peek().await, lease.try_acquire().await);
        let is_free = matches!(seen, Ok(None));
        let is_told = context.history.is_flawless() && seen.is_ok();
        if is_told && is_free && matches!(got, Ok(None)) {
            let what = format!("{key} is free, and is refused");
            context.runtime.violate("what is told is true", what);
        }
        for error in [seen.err(), got.as_ref().err().cloned()]
            .into_iter()
            .flatten()
        {
            context.history.failed(&error);
        }
        if let Ok(Some(guard)) = got {
            context.rest(Duration::from_millis(300)).await;
            drop(guard.release().await);
        }
        context.rest(Duration::from_millis(500)).await;
    }
}
