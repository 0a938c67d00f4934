//! Limits and ids.

use std::time::{Duration, UNIX_EPOCH};

use lockapi::id::IdOptions;
use lockapi::limit::{Decision, PermitRequest, Quota};

use super::Context;

/// Five at once, then one in 200 ms.
const QUOTA: Quota = Quota::per_second(5);
const INTERVAL: i64 = 200_000_000;

pub(super) async fn limit(context: Context) {
    let limiter = context.backend().rate_limiter(QUOTA).expect("a quota");
    while !context.is_ending() {
        let key = context.key();
        if let Some(decision) = context.call(limiter.check(key)).await
            && decision.is_allowed()
        {
            permitted(&context, key, &decision);
        }
        context.rest(Duration::from_millis(200)).await;
    }
}

fn permitted(context: &Context, key: &str, decision: &Decision) {
    if let Some(at) = decision.taken_at() {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = i64::try_from(since.as_nanos()).unwrap_or_default();
        context.history.permitted(key, QUOTA, nanos);
    }
}

/// Takes several limits together, or reserves.
pub(super) async fn reserve(context: Context) {
    let limiter = context.backend().rate_limiter(QUOTA).expect("a quota");
    while !context.is_ending() {
        let (one, other) = (
            format!("r-{}", context.key()),
            format!("r-{}", context.key()),
        );
        if context.coin() && one != other {
            let requests = [PermitRequest::new(&*one), PermitRequest::new(&*other)];
            if let Some(verdict) = context.call(limiter.check_all(&requests)).await
                && verdict.is_allowed()
            {
                for decision in verdict.decisions() {
                    permitted(&context, &decision.key().to_string(), decision);
                }
            }
        } else {
            let ttl = context
                .runtime
                .between(Duration::from_millis(100), Duration::from_secs(5));
            let reserved = context
                .call(limiter.reserve(&PermitRequest::new(&*one), ttl))
                .await;
            if let Some(Ok(reservation)) = reserved {
                context.rest(Duration::from_secs(2)).await;
                match context.runtime.draw(|random| random.u8(..3)) {
                    0 => drop(reservation),
                    1 => settled(&context, reservation.cancel()).await,
                    _ => {
                        let decision = reservation.decision().clone();
                        if let Some(Ok(())) = context.outcome(reservation.commit(1)).await {
                            permitted(&context, &one, &decision);
                        }
                    }
                }
            }
        }
        context.rest(Duration::from_millis(400)).await;
    }
}

/// It may have expired.
async fn settled(context: &Context, call: impl Future<Output = lockapi::Result<()>> + Send) {
    match context.outcome(call).await {
        Some(Err(error)) if error.kind() != lockapi::ErrorKind::Lost => {
            context.history.failed(&error);
        }
        _ => {}
    }
}

pub(super) async fn ids(context: Context) {
    let snowflakes = context
        .backend()
        .id_gen("flakes", IdOptions::default())
        .expect("options");
    let blocks = context
        .backend()
        .id_gen("blocks", IdOptions::blocks(10))
        .expect("options");
    while !context.is_ending() {
        let (name, ids) = if context.coin() {
            ("flakes", &snowflakes)
        } else {
            ("blocks", &blocks)
        };
        let count = context.runtime.draw(|random| random.u64(1..=10));
        if let Some(drawn) = context.call(ids.batch(count)).await {
            context.history.drew(name, drawn.map(i64::from));
        }
        context.rest(Duration::from_millis(500)).await;
    }
}

/// Limits hold, and have recovered.
pub(super) async fn audit(context: &Context) {
    context.history.check_limits(|_| INTERVAL);
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
        Ok(id) => context.history.drew("flakes", [i64::from(id)]),
        Err(error) => context
            .runtime
            .violate("all can be had in the end", format!("id: {error:?}")),
    }
}
