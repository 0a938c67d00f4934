//! Limits and ids.

use std::time::{Duration, UNIX_EPOCH};

use lockapi::ErrorKind;
use lockapi::id::{Id, IdOptions, Layout, MAX_BATCH};
use lockapi::limit::{Decision, PermitRequest, Policy, Quota, RateLimiter};

use super::{Context, asked};
use crate::history::Run;

/// Five at once, then one in 200 ms.
const QUOTA: Quota = Quota::per_second(5);
const INTERVAL: i64 = 200_000_000;
/// The same rate, and one at once.
const SHORT: Quota = Quota::per_second(5).burst(1);
const WINDOW: Quota = Quota::per_second(5).fixed_window();
/// So slow that it shows for long what was taken.
const SLOW: Quota = Quota::per_minute(6).burst(3);

pub(super) async fn limit(context: Context) {
    let limiter = context.backend().rate_limiter(QUOTA).expect("a quota");
    let short = context.backend().rate_limiter(SHORT).expect("a quota");
    let window = context.backend().rate_limiter(WINDOW).expect("a quota");
    let slow = context.backend().rate_limiter(SLOW).expect("a quota");
    while !context.is_ending() {
        let key = context.key();
        // Quotas with other bursts count the same permits, windows count others.
        let (limiter, quota, of) = match context.runtime.draw(|random| random.u8(..5)) {
            0 => (&short, SHORT, key.to_owned()),
            2 => (&slow, SLOW, format!("t-{key}")),
            1 => (&window, WINDOW, format!("{key} by windows")),
            _ => (&limiter, QUOTA, key.to_owned()),
        };
        let named = if of.starts_with('t') { &of } else { key };
        let permit = of_key(&of).1;
        let call = context.history.asks(&of);
        let checking = context.history.soon("check", limiter.check(named));
        if let Some(decision) = context.call(checking).await {
            let took = decision.is_allowed();
            if !took && decision.retry_after().is_zero() {
                let promise = "who is refused is told when to come again";
                context.runtime.violate(promise, format!("{decision:?}"));
            }
            context.history.took(&of, call, took, quota, permit);
            if !took {
                let of_quota = (quota, permit);
                let after = decision.retry_after();
                context.history.put_off(&of, call, of_quota, after);
            }
            if took {
                permitted(&context, &of, quota, &decision);
            }
        } else {
            context.history.gave_up(&of, call);
            context.history.gives_back(&of, call);
        }
        context.rest(Duration::from_millis(200)).await;
    }
}

fn permitted(context: &Context, key: &str, quota: Quota, decision: &Decision) {
    if let Some(at) = decision.taken_at() {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = i64::try_from(since.as_nanos()).unwrap_or_default();
        context.history.permitted(key, quota, nanos);
    }
}

/// Takes several limits together, or reserves.
pub(super) async fn reserve(context: Context) {
    let limiter = context.backend().rate_limiter(QUOTA).expect("a quota");
    let watching = Policy::from(QUOTA).shadow();
    let watching = context.backend().rate_limiter(watching).expect("a quota");
    let slow = context.backend().rate_limiter(SLOW).expect("a quota");
    while !context.is_ending() {
        let is_slow = context.runtime.happens(0.3);
        let (kind, limiter) = if is_slow {
            ("s", &slow)
        } else {
            ("r", &limiter)
        };
        let key = || format!("{kind}-{}", context.key());
        let (one, other) = (key(), key());
        if context.coin() && one != other {
            check_both(&context, &**limiter, [&one, &other]).await;
        } else {
            let ttl = context
                .runtime
                .between(Duration::from_millis(100), Duration::from_secs(5));
            let watches = !is_slow && context.runtime.happens(0.2);
            let limiter = if watches { &watching } else { limiter };
            reserve_one(&context, &**limiter, &one, (ttl, watches)).await;
        }
        context.rest(Duration::from_millis(400)).await;
    }
}

const PERMIT: Duration = Duration::from_nanos(INTERVAL.unsigned_abs());

/// The quota of a key, and in which time it has another permit.
fn of_key(key: &str) -> (Quota, Duration) {
    if key.starts_with(['s', 't']) {
        (SLOW, Duration::from_secs(10))
    } else {
        (QUOTA, PERMIT)
    }
}

async fn check_both(context: &Context, limiter: &dyn RateLimiter, keys: [&str; 2]) {
    let requests = keys.map(PermitRequest::new);
    let calls = keys.map(|key| (key, context.history.asks(key)));
    let (quota, permit) = of_key(keys[0]);
    let checking = limiter.check_all(&requests);
    let checking = context.history.soon("check_all", checking);
    let Some(verdict) = context.call(checking).await else {
        for (key, call) in calls {
            context.history.gave_up(key, call);
            context.history.gives_back(key, call);
        }
        return;
    };
    let took = verdict.is_allowed();
    let decisions = verdict.decisions();
    if took != decisions.iter().all(Decision::is_allowed) {
        let promise = "limits refuse only what is not there";
        context.runtime.violate(promise, format!("{verdict:?}"));
    }
    for ((key, call), decision) in calls.into_iter().zip(decisions) {
        if took {
            permitted(context, key, quota, decision);
        }
        if took || !decision.is_allowed() {
            context.history.took(key, call, took, quota, permit);
        } else {
            context.history.took_none(key, call);
        }
    }
}

async fn reserve_one(
    context: &Context,
    limiter: &dyn RateLimiter,
    key: &str,
    (ttl, watches): (Duration, bool),
) {
    let call = context.history.asks(key);
    let request = PermitRequest::new(key);
    let began = asked(context);
    let (quota, permit) = of_key(key);
    let reserving = context
        .history
        .soon("reserve", limiter.reserve(&request, ttl));
    let Some(reserved) = context.call(reserving).await else {
        context.history.gave_up(key, call);
        return context.history.gives_back(key, call);
    };
    let reservation = match reserved {
        Ok(reservation) => reservation,
        Err(decision) => {
            if watches {
                let promise = "who only watches a limit is not refused";
                context.runtime.violate(promise, format!("{decision:?}"));
            }
            return context.history.took(key, call, false, quota, permit);
        }
    };
    let decision = reservation.decision().clone();
    if decision.is_admitted() {
        // Until it goes back, if it does.
        context.history.took(key, call, true, quota, permit);
        context.history.expires(key, call, ttl);
    } else {
        context.history.took_none(key, call);
    }
    context.rest(Duration::from_secs(2)).await;
    let ended = match context.runtime.draw(|random| random.u8(..3)) {
        0 => {
            drop(reservation);
            return context.history.gives_back(key, call);
        }
        1 => {
            let cancelling = context.history.soon("cancel", reservation.cancel());
            let ended = context.outcome(cancelling).await;
            context.history.gives_back(key, call);
            ended
        }
        _ => {
            let committing = context.history.soon("commit", reservation.commit(1));
            let ended = context.outcome(committing).await;
            // Whoever has left may have used it.
            if !matches!(ended, Some(Err(_))) {
                context.history.is_used(key, call);
            }
            if matches!(ended, Some(Ok(()))) && decision.is_admitted() {
                permitted(context, key, quota, &decision);
            }
            ended
        }
    };
    let Some(Err(error)) = ended else {
        return;
    };
    if error.kind() != ErrorKind::Lost {
        return context.history.failed(&error);
    }
    // Clocks of processes run slower by up to a hundredth.
    let held = asked(context).saturating_sub(began).mul_f64(1.02);
    if context.history.is_flawless() && held < ttl {
        let promise = "nothing is lost without a cause";
        let what = format!("a reservation of {key} for {ttl:?}, after {held:?}");
        context.runtime.violate(promise, what);
    }
}

pub(super) async fn ids(context: Context) {
    let open = || {
        let opened = context.backend().id_gen("flakes", IdOptions::default());
        opened.expect("options")
    };
    let mut snowflakes = open();
    // The last id of each of the two.
    let mut last = [i64::MIN; 2];
    let most = if context.plan.ids { MAX_BATCH } else { 10 };
    let blocks = context
        .backend()
        .id_gen("blocks", IdOptions::blocks(most))
        .expect("options");
    while !context.is_ending() {
        let (which, name, ids) = if context.coin() {
            (0, "flakes", &snowflakes)
        } else {
            (1, "blocks", &blocks)
        };
        let count = context.runtime.draw(|random| random.u64(1..=most));
        let began = asked(&context);
        if let Some(drawn) = context.call(ids.batch(count)).await {
            let drawn = runs(drawn);
            for run in &drawn {
                if *run.start() <= last[which] {
                    let what = format!("{name}: {run:?} after {}", last[which]);
                    context.runtime.violate("ids of a generator grow", what);
                }
                last[which] = *run.end();
            }
            let latest = drawn.last().and_then(|run| Id::try_from(*run.end()).ok());
            if let Some(id) = latest.filter(|_| name == "flakes" && !context.plan.ids) {
                let time = Layout::default().decode(id).time;
                context.history.stamped(time, context.server.time());
            }
            if name == "flakes" {
                let worker = |run: &Run| {
                    let first = Id::try_from(*run.start()).expect("an id");
                    Layout::default().decode(first).worker
                };
                let of_workers = drawn
                    .iter()
                    .map(|run| (u64::from(worker(run)), run.clone()));
                context.history.drew_of_workers(of_workers, began);
            }
            context.history.drew(name, drawn);
        }
        // Its number goes to the next.
        if context.runtime.happens(0.1) {
            drop(snowflakes);
            context.rest(Duration::from_millis(100)).await;
            snowflakes = open();
            last[0] = i64::MIN;
        }
        if !context.plan.ids {
            context.rest(Duration::from_millis(500)).await;
        }
    }
}

/// Those that follow one another together.
fn runs(ids: impl Iterator<Item = Id>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for id in ids.map(i64::from) {
        match runs.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(id) => *last = *last.start()..=id,
            _ => runs.push(id..=id),
        }
    }
    runs
}

/// Limits hold, and have recovered.
pub(super) async fn audit(context: &Context) {
    context.history.check_limits(INTERVAL);
    let limiter = context.backend().rate_limiter(QUOTA).expect("a quota");
    for key in ["a", "b", "c"] {
        match limiter.check(key).await {
            Ok(decision) if decision.is_allowed() => {}
            Ok(decision) => context.runtime.violate(
                "all can be had in the end",
                format!("limit {key}: {decision:?}"),
            ),
            Err(error) => context
                .runtime
                .violate("all can be had in the end", format!("limit: {error:?}")),
        }
    }
    let ids = context
        .backend()
        .id_gen("flakes", IdOptions::default())
        .expect("options");
    match ids.next().await {
        Ok(id) => context.history.drew("flakes", runs([id].into_iter())),
        Err(error) => context
            .runtime
            .violate("all can be had in the end", format!("id: {error:?}")),
    }
}
