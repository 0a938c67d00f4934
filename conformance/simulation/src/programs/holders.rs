//! Whoever holds something.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard as Locked, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::{Either, FusedFuture, select};
use lockapi::lease::LeaseOptions;
use lockapi::mutex::ReadGuard;
use lockapi::{Error, Fence, LeaseGuard, MutexGuard, Result};

use super::{Context, asked, owners, transactions};
use crate::history::{Held, Part};
use crate::plan::Fault;

/// How long what is asked for may be held in the end, when nobody else holds anything.
const IN_THE_END: Duration = Duration::from_secs(60);

/// Until when something is held, and whether also while the tasks are to end.
fn held_until(context: &Context, kind: &str) -> (crate::runtime::Time, bool) {
    let most = most_held(context, kind);
    let is_long = most >= LONG;
    let least = match is_long {
        true => most,
        // So that much is held while a connection falls silent.
        false if context.plan.has(Fault::Hush) => most / 4,
        false => Duration::from_micros(10),
    };
    let time = context.runtime.between(least, most);
    (context.runtime.now() + time, is_long)
}

/// Longer than it may take to learn that a session has ended.
const LONG: Duration = Duration::from_secs(45);
/// Within this time whoever waits for the loss of something is told.
const TOLD: Duration = Duration::from_secs(2);

/// A guard of any kind.
#[async_trait]
pub(super) trait Guard: Send + Sync + 'static {
    fn token(&self) -> i64;
    /// What it is checked in with in a transaction, if it can be.
    fn proof(&self) -> Option<Fence>;
    fn lost(&self) -> bool;
    /// Returns once it is lost.
    async fn told(&self);
    async fn give_back(self: Box<Self>) -> Result<()>;
}

#[async_trait]
impl Guard for Box<dyn MutexGuard> {
    fn token(&self) -> i64 {
        self.fence().token()
    }

    fn proof(&self) -> Option<Fence> {
        Some(self.fence())
    }

    fn lost(&self) -> bool {
        self.is_lost()
    }

    async fn told(&self) {
        (**self).lost().await;
    }

    async fn give_back(self: Box<Self>) -> Result<()> {
        self.unlock().await
    }
}

/// Readers have no token, and nothing to check in.
#[async_trait]
impl Guard for Box<dyn ReadGuard> {
    fn token(&self) -> i64 {
        0
    }

    fn proof(&self) -> Option<Fence> {
        None
    }

    fn lost(&self) -> bool {
        self.is_lost()
    }

    async fn told(&self) {
        (**self).lost().await;
    }

    async fn give_back(self: Box<Self>) -> Result<()> {
        self.unlock().await
    }
}

#[async_trait]
impl Guard for Box<dyn LeaseGuard> {
    fn token(&self) -> i64 {
        self.fence().token()
    }

    fn proof(&self) -> Option<Fence> {
        Some(self.fence())
    }

    fn lost(&self) -> bool {
        self.is_lost()
    }

    async fn told(&self) {
        (**self).lost().await;
    }

    async fn give_back(self: Box<Self>) -> Result<()> {
        self.release().await
    }
}

/// A guard that the history looks at as well.
pub(super) struct Shared<G>(Arc<Mutex<Option<Arc<G>>>>);

impl<G: Guard> Shared<G> {
    pub(super) fn new(guard: G) -> Self {
        Self(Arc::new(Mutex::new(Some(Arc::new(guard)))))
    }

    fn lock(&self) -> Locked<'_, Option<Arc<G>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_held(&self) -> bool {
        self.lock().as_ref().is_some_and(|guard| !guard.lost())
    }

    pub(super) fn held(&self) -> Held {
        let guard = Arc::downgrade(&self.0);
        Arc::new(move || guard.upgrade().is_some_and(|guard| Self(guard).is_held()))
    }

    fn take(&self) -> Option<Box<G>> {
        let guard = self.lock().take();
        guard.and_then(Arc::into_inner).map(Box::new)
    }

    /// Returns once it is lost.
    async fn told(guard: Option<Arc<G>>) {
        if let Some(guard) = guard {
            guard.told().await;
        }
    }
}

/// Which of several calls gets something: without waiting, for some time, or until it is there.
pub(super) fn manner(context: &Context) -> u8 {
    context.runtime.draw(|random| random.u8(..3))
}

/// How long somebody waits at most; some do not wait.
pub(super) fn patience(context: &Context) -> Duration {
    if context.runtime.happens(0.05) {
        return Duration::ZERO;
    }
    context
        .runtime
        .between(Duration::from_millis(1), Duration::from_secs(5))
}

/// How long something is held.
fn most_held(context: &Context, kind: &str) -> Duration {
    let long = if context.plan.has(Fault::Hush) {
        0.5
    } else {
        0.1
    };
    match kind {
        "relay" => Duration::from_millis(30),
        // Longer than it lives unless it is renewed.
        "lease" | "leased mutex" if context.runtime.happens(long) => Duration::from_secs(20),
        "mutex" | "rw_lock" if context.runtime.happens(0.02) && !context.history.is_flawless() => {
            LONG
        }
        _ => Duration::from_secs(3),
    }
}

/// Whoever waits to be told is told if it is lost, and not otherwise.
async fn is_told(
    context: &Context,
    (kind, key): (&str, &str),
    was_told: bool,
    is_lost: bool,
    told: &mut (impl Future<Output = ()> + Unpin),
) {
    let promise = "who waits for a loss is told";
    if was_told && !is_lost {
        let what = format!("{kind} {key} is held");
        return context.runtime.violate(promise, what);
    }
    if was_told || !is_lost {
        return;
    }
    // A process that was stopped meanwhile may see that the time is up before its timers run.
    for _ in 0..4 {
        let patience = pin!(context.runtime.sleep(TOLD));
        if let Either::Left(_) = select(&mut *told, patience).await {
            return;
        }
    }
    let what = format!("{kind} {key} is lost");
    context.runtime.violate(promise, what);
}

/// Holds for a while, then gives back or leaves.
pub(super) async fn hold<G: Guard>(
    context: &Context,
    kind: &'static str,
    key: &str,
    part: Part,
    asked: crate::runtime::Time,
    guard: G,
) {
    let token = guard.token();
    let guard = Shared::new(guard);
    let entry = context.history.granted(
        kind,
        key,
        part,
        context.program,
        (token, asked),
        guard.held(),
    );
    let (until, to_the_end) = held_until(context, kind);
    let writes = context.plan.has_kind("transaction") && kind != "relay";
    // Some wait to be told that they have lost it.
    let waits = context.runtime.happens(0.3);
    let mut told = Box::pin(Shared::told(guard.lock().clone().filter(|_| waits)).fuse());
    while guard.is_held() && context.runtime.now() < until && (to_the_end || !context.is_ending()) {
        let rest = pin!(context.rest(Duration::from_millis(500)));
        if waits {
            select(&mut told, rest).await;
        } else {
            rest.await;
        }
        if writes && context.runtime.happens(0.2) {
            let proof = guard.lock().as_ref().and_then(|guard| guard.proof());
            if let Some(fence) = proof
                && transactions::write(context, &fence).await
            {
                context.history.lost(kind, key);
            }
        }
    }
    if !guard.is_held() {
        context.history.lost(kind, key);
    }
    if waits {
        let (was_told, is_lost) = (told.is_terminated(), !guard.is_held());
        is_told(context, (kind, key), was_told, is_lost, &mut told).await;
    }
    drop(told);
    if context.coin() {
        drop(entry);
        drop(guard);
        return;
    }
    let taken = guard.take();
    drop(entry);
    drop(guard);
    if let Some(guard) = taken {
        let was_lost = guard.lost();
        let giving = context.history.soon("give back", guard.give_back());
        match context.outcome(giving).await {
            Some(Ok(())) if was_lost => {
                let promise = "who gives back what is lost is told";
                context.runtime.violate(promise, format!("{kind} {key}"));
            }
            Some(Err(error)) if error.kind() == lockapi::ErrorKind::Lost => {
                context.history.lost(kind, key);
            }
            Some(Err(error)) => context.history.failed(&error),
            _ => {}
        }
    }
}

/// Waits are ended by the caller in the end.
async fn within<T>(
    context: &Context,
    call: impl Future<Output = Result<T, Error>> + Send,
) -> Option<T> {
    until_ending(context, context.call(call)).await
}

/// Ended in the end.
pub(super) async fn until_ending<T>(
    context: &Context,
    call: impl Future<Output = Option<T>>,
) -> Option<T> {
    // The library has to answer it when its backend is closed.
    let ends = async {
        while !context.is_over() || context.history.is_closing() {
            context.runtime.sleep(Duration::from_millis(500)).await;
        }
    };
    let call = std::pin::pin!(call);
    let ends = std::pin::pin!(ends);
    match futures_util::future::select(call, ends).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => None,
    }
}

/// A call that may run out of time.
async fn timed<T>(
    context: &Context,
    call: impl Future<Output = Result<T, Error>> + Send,
) -> Option<T> {
    match context.outcome(call).await? {
        Ok(answer) => Some(answer),
        Err(error) => {
            if error.kind() != lockapi::ErrorKind::TimedOut {
                context.history.failed(&error);
            }
            context.rest(Duration::from_millis(10)).await;
            None
        }
    }
}

/// What is lost in a fail-over is waited for as long as the next one asks for it.
const SAME: Duration = Duration::from_secs(5);

fn terms(context: &Context) -> LeaseOptions {
    // A shorter one may be lost with a connection that falls silent.
    let least = if context.plan.has(Fault::Hush) { 2 } else { 1 };
    let drawn = context
        .runtime
        .between(Duration::from_secs(least), Duration::from_secs(10));
    let ttl = if context.plan.has(Fault::FailOver) {
        SAME
    } else {
        drawn
    };
    let options = LeaseOptions::new(ttl);
    // Answers that are late show by what the end of a lease that is not renewed counts from.
    let by_hand = if context.plan.has(Fault::Delay) {
        0.4
    } else {
        0.1
    };
    if context.runtime.happens(by_hand) && !context.history.leases_last() {
        options.renewed_by_hand()
    } else {
        options
    }
}

pub(super) async fn lease(context: Context) {
    while !context.is_ending() {
        let key = context.key();
        let lease = context
            .backend()
            .lease(key, terms(&context))
            .expect("a key");
        let using = context.history.uses("lease", key);
        let began = asked(&context);
        let guard = match manner(&context) {
            0 => context
                .call(using.tried(lease.try_acquire()))
                .await
                .flatten(),
            1 => {
                let most = patience(&context);
                timed(&context, using.within(most, lease.acquire_timeout(most))).await
            }
            _ => within(&context, lease.acquire()).await,
        };
        if let Some(guard) = guard {
            hold(&context, "lease", key, Part::WHOLE, began, guard).await;
        }
        drop(using);
        context.rest(Duration::from_millis(200)).await;
    }
}

/// How many permits the semaphore has.
const PERMITS: u32 = 3;

pub(super) async fn semaphore(context: Context) {
    while !context.is_ending() {
        let semaphore = context
            .backend()
            .semaphore("sem", PERMITS, terms(&context))
            .expect("a key");
        let permits = context.runtime.draw(|random| random.u32(1..=PERMITS));
        let using = context.history.uses("semaphore", "sem");
        let began = asked(&context);
        let guard = match manner(&context) {
            0 => context
                .call(using.tried(semaphore.try_acquire_many(permits)))
                .await
                .flatten(),
            1 => {
                let most = patience(&context);
                let waiting = semaphore.acquire_many_timeout(permits, most);
                timed(&context, using.within(most, waiting)).await
            }
            _ => within(&context, semaphore.acquire_many(permits)).await,
        };
        if let Some(guard) = guard {
            let part = Part {
                most: PERMITS as usize,
                takes: permits as usize,
            };
            hold(&context, "semaphore", "sem", part, began, guard).await;
        }
        drop(using);
        context.rest(Duration::from_millis(200)).await;
    }
}

pub(super) async fn election(context: Context) {
    while !context.is_ending() {
        let election = context
            .backend()
            .election("chief", terms(&context))
            .expect("a key");
        let using = context.history.uses("election", "chief");
        let began = asked(&context);
        let guard = match manner(&context) {
            0 => {
                let trying = using.tried(election.try_campaign());
                context.call(trying).await.flatten()
            }
            1 => {
                let most = patience(&context);
                timed(
                    &context,
                    using.within(most, election.campaign_timeout(most)),
                )
                .await
            }
            _ => within(&context, election.campaign()).await,
        };
        if let Some(guard) = guard {
            hold(&context, "election", "chief", Part::WHOLE, began, guard).await;
        }
        drop(using);
        context.rest(Duration::from_millis(200)).await;
    }
}

pub(super) async fn leased_mutex(context: Context) {
    while !context.is_ending() {
        let key = context.key();
        let mutex = context
            .backend()
            .leased_mutex(key, terms(&context))
            .expect("a key");
        let using = context.history.uses("leased mutex", key);
        let began = asked(&context);
        let guard = match manner(&context) {
            0 => context.call(using.tried(mutex.try_lock())).await.flatten(),
            1 => {
                let most = patience(&context);
                timed(&context, using.within(most, mutex.lock_timeout(most))).await
            }
            _ => within(&context, mutex.lock()).await,
        };
        if let Some(guard) = guard {
            hold(&context, "leased mutex", key, Part::WHOLE, began, guard).await;
        }
        drop(using);
        context.rest(Duration::from_millis(200)).await;
    }
}

/// Everything can be had.
pub(super) async fn audit(context: &Context) {
    let backend = context.backend();
    let failed = |what: &str, error: Error| {
        context
            .runtime
            .violate("all can be had in the end", format!("{what}: {error:?}"));
    };
    for key in ["a", "b", "c", "x", "y", "z"] {
        match backend
            .mutex(key)
            .expect("a key")
            .lock_timeout(IN_THE_END)
            .await
        {
            Ok(guard) => drop(guard),
            Err(error) => failed("mutex", error),
        }
        match backend
            .rw_lock(format!("rw-{key}"))
            .expect("a key")
            .write_timeout(IN_THE_END)
            .await
        {
            Ok(guard) => drop(guard),
            Err(error) => failed("rw_lock", error),
        }
        match backend
            .lease(key, terms(context))
            .expect("a key")
            .acquire_timeout(IN_THE_END)
            .await
        {
            Ok(guard) => drop(guard),
            Err(error) => failed("lease", error),
        }
        match backend
            .leased_mutex(key, terms(context))
            .expect("a key")
            .lock_timeout(IN_THE_END)
            .await
        {
            Ok(guard) => drop(guard),
            Err(error) => failed("leased mutex", error),
        }
    }
    for key in owners::SHARED {
        let lock = backend.rw_lock(key).expect("a key");
        match lock.write_timeout(IN_THE_END).await {
            Ok(guard) => drop(guard),
            Err(error) => failed("rw_lock", error),
        }
    }
    match backend
        .semaphore("sem", PERMITS, terms(context))
        .expect("a key")
        .acquire_many_timeout(PERMITS, IN_THE_END)
        .await
    {
        Ok(guard) => drop(guard),
        Err(error) => failed("semaphore", error),
    }
    match backend
        .election("chief", terms(context))
        .expect("a key")
        .campaign_timeout(IN_THE_END)
        .await
    {
        Ok(guard) => drop(guard),
        Err(error) => failed("election", error),
    }
}
