//! Limits and ids.

use std::time::{Duration, UNIX_EPOCH};

use lockapi::id::IdOptions;
use lockapi::limit::Quota;

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
            && let Some(at) = decision.taken_at()
        {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let nanos = i64::try_from(since.as_nanos()).unwrap_or_default();
            context.history.permitted(key, QUOTA, nanos);
        }
        context.rest(Duration::from_millis(200)).await;
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
        let count = context.world.draw(|random| random.u64(1..=10));
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
            Ok(decision) => context.world.violate(
                "all can be had in the end",
                format!("limit {key}: {decision:?}"),
            ),
            Err(error) => context
                .world
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
            .world
            .violate("all can be had in the end", format!("id: {error:?}")),
    }
}
