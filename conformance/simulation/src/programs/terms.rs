//! Whoever watches an election, and leases that one task uses alone and renews by itself.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use lockapi::election::Observer;
use lockapi::lease::LeaseOptions;
use lockapi::{Election, ErrorKind, Lease, LeaseGuard};

use super::{Context, asked};
use crate::runtime::Time;

/// Within this time whoever watches an election sees another leader, who stays.
const SEEN: Duration = Duration::from_secs(4);
/// How long the terms of an election last that nobody wins here.
const TTL: Duration = Duration::from_secs(5);
/// Within this time whoever waits for the end of a lease is told.
const TOLD: Duration = Duration::from_secs(1);

/// The token of the leader at the server; zero is nobody's.
fn leader_there(context: &Context) -> i64 {
    context.server.model(|model| {
        let slots = model.state().slots_held("default", "chief");
        let mut held = slots.into_iter().filter(|(_, holder)| !holder.released);
        held.next().map_or(0, |(_, holder)| holder.fence)
    })
}

pub(super) async fn watch(context: Context) {
    let options = LeaseOptions::new(TTL);
    let election = context.backend().election("chief", options);
    let election = election.expect("a key");
    while !context.is_ending() {
        if context.coin() {
            look(&context, &*election).await;
        } else {
            observe(&context, election.observe()).await;
        }
        context.rest(Duration::from_millis(500)).await;
    }
}

/// Who leads before a question and after it is who is told.
async fn look(context: &Context, election: &dyn Election) {
    let before = leader_there(context);
    let Some(leader) = context.call(election.leader()).await else {
        return;
    };
    let told = leader.map_or(0, |leader| leader.token);
    let after = leader_there(context);
    if before == after && !context.history.may_be_kept() {
        context.runtime.looks_at("what is told is true");
    }
    if before == after && told != after && !context.history.may_be_kept() {
        // Tokens are not used again, but nobody may have led in between.
        let is_in_between = told == 0 || told > before || before == 0;
        if !is_in_between || context.history.is_plain() && before != 0 {
            let what = format!("{told} leads, and at the server {after}");
            context.runtime.violate("what is told is true", what);
        }
    }
}

/// The leaders that are seen have growing tokens, and who stays is seen.
async fn observe(context: &Context, mut leaders: Box<dyn Observer>) {
    let (mut seen, mut last) = (None, 0);
    // Who leads, and since when that is not what was seen.
    let mut unseen: Option<(i64, Time)> = None;
    let until = context.runtime.now() + Duration::from_secs(20);
    while !context.is_ending() && context.runtime.now() < until {
        let pause = pin!(context.runtime.sleep(Duration::from_millis(500)));
        let next = match select(pin!(leaders.next()), pause).await {
            Either::Left((next, _)) => next,
            Either::Right(_) => {
                check_seen(context, seen, &mut unseen);
                continue;
            }
        };
        let leader = match next {
            Ok(leader) => leader,
            Err(error) => {
                context.history.failed(&error);
                context.rest(Duration::from_millis(100)).await;
                continue;
            }
        };
        let token = leader.map_or(0, |leader| leader.token);
        let grows = token == 0 || token > last;
        let promise = "whoever watches an election sees each leader once";
        if !context.history.may_be_kept() {
            context.runtime.looks_at(promise);
        }
        if (!grows || seen == Some(token)) && !context.history.may_be_kept() {
            let what = format!("{token} after {last}, and {seen:?}");
            context.runtime.violate(promise, what);
        }
        (seen, last, unseen) = (Some(token), last.max(token), None);
        context.history.answered("leader");
    }
}

fn check_seen(context: &Context, seen: Option<i64>, unseen: &mut Option<(i64, Time)>) {
    let (there, now) = (leader_there(context), context.runtime.now());
    if seen.is_none() || seen == Some(there) {
        *unseen = None;
        return;
    }
    let known = unseen.filter(|(token, _)| *token == there);
    let (_, since) = *unseen.insert(known.unwrap_or((there, now)));
    if now.saturating_sub(since) > SEEN && context.history.is_undisturbed() {
        let what = format!("{there} leads since {since:?}, and {seen:?} was seen");
        let promise = "whoever watches an election sees who leads";
        context.runtime.violate(promise, what);
    }
}

/// A lease that nobody else wants: renews it by itself, or lets others wait for the minimum hold.
pub(super) async fn alone(context: Context) {
    while !context.is_ending() {
        let number = context.runtime.draw(|random| random.u64(..));
        let key = format!("alone-{number:x}");
        if context.coin() {
            renew(&context, &key).await;
        } else {
            keep_from_others(&context, &key).await;
        }
        context.rest(Duration::from_millis(500)).await;
    }
}

async fn renew(context: &Context, key: &str) {
    let ttl = context
        .runtime
        .between(Duration::from_millis(500), Duration::from_secs(3));
    let options = LeaseOptions::new(ttl).renewed_by_hand();
    let lease = context.backend().lease(key, options).expect("a key");
    let mut began = asked(context);
    let Some(Some(guard)) = context.call(lease.try_acquire()).await else {
        return;
    };
    let mut answered = asked(context);
    for _ in 0..context.runtime.draw(|random| random.usize(..4)) {
        context.rest(ttl / 2).await;
        check_remaining(context, &*guard, (began, answered, ttl));
        let asked_at = asked(context);
        // After an error it ends at the time that it had, or at a later one.
        let Some(renewed) = context.outcome(guard.renew()).await else {
            return;
        };
        if let Err(error) = renewed {
            if context.history.is_plain() {
                let promise = "nothing is lost without a cause";
                context
                    .runtime
                    .violate(promise, format!("{key}: {error:?}"));
            }
            return;
        }
        (began, answered) = (asked_at, asked(context));
    }
    check_remaining(context, &*guard, (began, answered, ttl));
    check_end(context, &*lease, &*guard, (began, answered, ttl)).await;
}

/// It is held as long as something remains, and never for more than it was granted for.
fn check_remaining(
    context: &Context,
    guard: &dyn LeaseGuard,
    (began, _, ttl): (Time, Time, Duration),
) {
    let (left, now) = (guard.remaining(), context.runtime.now());
    // Clocks of processes differ by a hundredth.
    let most = (began + ttl).saturating_sub(now).mul_f64(1.015);
    let is_stale = left > most + Duration::from_millis(1);
    let promise = "what remains of a lease is told";
    context.runtime.looks_at(promise);
    if is_stale || (left.is_zero() && !guard.is_lost()) {
        let what = format!("{left:?} of {ttl:?} since {began:?}, at {now:?}");
        context.runtime.violate(promise, what);
    }
}

/// It ends by itself, not before its time, and then others can have it.
async fn check_end(
    context: &Context,
    lease: &dyn Lease,
    guard: &dyn LeaseGuard,
    (began, answered, ttl): (Time, Time, Duration),
) {
    guard.lost().await;
    let now = context.runtime.now();
    // A process counts less than the server.
    let early = now < began + ttl.mul_f64(0.96);
    let late = now > answered + ttl.mul_f64(1.015) + TOLD;
    if !context.history.is_plain() {
        return;
    }
    let promise = "a lease ends with its time";
    context.runtime.looks_at(promise);
    if early || late {
        let what = format!("{ttl:?} since {began:?}, lost at {now:?}");
        context.runtime.violate(promise, what);
    }
    context
        .runtime
        .sleep((answered + ttl).saturating_sub(now))
        .await;
    if let Some(None) = context.call(lease.try_acquire()).await {
        let what = format!("{lease:?} of {ttl:?} since {began:?}");
        context.runtime.violate("what nobody has can be had", what);
    }
}

/// A lease that is given back early is kept from others for the minimum hold, and not for longer.
async fn keep_from_others(context: &Context, key: &str) {
    let hold = context
        .runtime
        .between(Duration::from_millis(300), Duration::from_secs(2));
    let options = LeaseOptions::new(Duration::from_secs(3)).minimum_hold(hold);
    let lease = context.backend().lease(key, options).expect("a key");
    let began = asked(context);
    let Some(Some(guard)) = context.call(lease.try_acquire()).await else {
        return;
    };
    let answered = asked(context);
    context.rest(hold / 2).await;
    match context.outcome(guard.release()).await {
        Some(Ok(())) => {}
        Some(Err(error)) if error.kind() == ErrorKind::Lost => {
            return context.history.lost("lease", key);
        }
        Some(Err(error)) => return context.history.failed(&error),
        None => return,
    }
    let until = began + hold;
    let promise = "a lease is kept from others for its minimum hold";
    context.runtime.looks_at(promise);
    while context.runtime.now() < answered + hold {
        let again = context.call(lease.try_acquire()).await;
        if let Some(Some(_)) = again {
            if context.runtime.now() < until && !context.history.may_be_kept() {
                let what = format!("{key}: granted at {began:?} for {hold:?}");
                context.runtime.violate(promise, what);
            }
            return;
        }
        context.rest(hold / 4).await;
    }
    if let Some(None) = context.call(lease.try_acquire()).await
        && context.history.is_plain()
    {
        let what = format!("{key}: granted at {began:?} for {hold:?}");
        context.runtime.violate("what nobody has can be had", what);
    }
}
