//! A process that closes its backend while calls are under way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Context, asked, transactions};
use crate::plan::Fault;
use crate::runtime::Time;

/// After a close all calls are answered within this time, where nobody is held up: a drain, and who waits for a result, go on for as long
/// as they were to wait, as they do while a server is away.
const ANSWERED: Duration = Duration::from_secs(25);

/// And within this time its sessions have left.
const UNLOCKED: Duration = Duration::from_secs(1);

/// The calls of a process that are under way.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<Mutex<UnderWay>>);

#[derive(Default)]
struct UnderWay {
    next: u64,
    /// When each began.
    began: BTreeMap<u64, Time>,
}

/// One that is under way, until this is dropped.
pub(super) struct Call(Calls, u64);

impl Calls {
    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, now: Time) -> Call {
        let mut calls = self.lock();
        calls.next += 1;
        let number = calls.next;
        calls.began.insert(number, now);
        Call(self.clone(), number)
    }

    /// When the one that began first did.
    fn first(&self) -> Option<Time> {
        self.lock().began.values().next().copied()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.lock().began.remove(&self.1);
    }
}

/// Closes at some time; some leave that, and close again.
pub(super) async fn close(context: &Context) {
    context.rest(context.plan.time).await;
    if context.is_over() {
        return;
    }
    context.server.note(Fault::Close);
    context.history.closes();
    let backend = context.backend();
    // What was granted before; others may be granted until it is closed, and are known there alone.
    let before = context.history.holdings(context.program);
    let closed = match context.outcome(backend.close()).await {
        Some(closed) => closed,
        None => backend.close().await,
    };
    let closed_at = asked(context);
    match closed {
        Ok(()) => check_free(context, &before),
        Err(error) => context.history.failed(&error),
    }
    context.history.check_closed(context.program);
    check_unlocked(context).await;
    let closed = context.clone();
    let answered = async move { check_answered(&closed, closed_at).await };
    context.runtime.spawn(context.program, "closed", answered);
}

/// Others can have what it held.
fn check_free(context: &Context, before: &[crate::history::Holding]) {
    // What another server does not know to be released is kept.
    if context.history.may_be_kept() {
        return;
    }
    let kept = context.server.model(|model| {
        let state = model.state();
        let is_kept = |key: &str, token: i64| {
            let slots = state.slots_held("default", key);
            let mut held = slots.into_iter().filter(|(_, holder)| !holder.released);
            held.any(|(_, holder)| holder.fence == token)
        };
        let kept = before.iter();
        let kept = kept.filter(|(_, key, token)| *token != 0 && is_kept(key, *token));
        kept.collect::<Vec<_>>()
    });
    // A claim whose answer was lost may have some more.
    let all = context.history.is_undisturbed();
    let is_known = |of: i64| all || before.iter().any(|(_, _, token)| *token == of);
    let mut deliveries = context.server.deliveries_of(context.program);
    // What a transaction has completed or taken that decides.
    let by_itself = !context.plan.has_kind(transactions::KIND);
    deliveries.retain(|(_, token)| by_itself && is_known(*token));
    if !kept.is_empty() || !deliveries.is_empty() {
        let what = format!("{kept:?}, and of jobs {deliveries:?}");
        let promise = "who has closed holds nothing";
        context.runtime.violate(promise, what);
    }
}

/// No session of it has a lock but such as are ended: one that waits for a lock ends when the server knows that its client has left.
async fn check_unlocked(context: &Context) {
    context.runtime.sleep(UNLOCKED).await;
    let locks = context.server.locks_of(context.program);
    if !locks.is_empty() && context.history.is_undisturbed() {
        let promise = "who has closed holds nothing";
        context.runtime.violate(promise, format!("{locks:?}"));
    }
}

/// All calls that were under way are answered, and all that are made later.
async fn check_answered(context: &Context, closed_at: Time) {
    context.runtime.sleep(ANSWERED).await;
    let late = |began: &Time| began.max(&closed_at).saturating_add(ANSWERED) <= asked(context);
    if let Some(began) = context.calls.first().filter(late)
        && context.history.is_undisturbed()
    {
        let what = format!("closed at {closed_at:?}, and a call of {began:?} is under way");
        let promise = "calls are answered when a backend is closed";
        context.runtime.violate(promise, what);
    }
}
