//! Limits and ids.

use std::time::UNIX_EPOCH;

use lockapi::id::{Id, IdOptions};
use lockapi::limit::{Decision, Quota};

use super::{Context, KEYS, pick, rest};
use crate::args::Control;
use crate::log::{Answer, Op};

/// So many at once, and so many a second.
pub(crate) const PERMITS: u32 = 10;
const QUOTA: Quota = Quota::per_second(PERMITS as u64);

pub(super) async fn limit(context: Context) {
    let limiter = context.backend.rate_limiter(QUOTA).expect("a quota");
    let greedy = context.is_control(Control::Greedy);
    while !context.is_over() {
        let key = pick(&KEYS[..2]);
        let op = Op::Check {
            key: key.to_owned(),
        };
        let decided = |decision: &Decision| decide(decision, greedy);
        let (_, decision) = context.call(op, limiter.check(key), decided).await;
        rest(if decision.is_ok() { 80 } else { 300 }).await;
    }
}

fn decide(decision: &Decision, greedy: bool) -> Answer {
    match decision.taken_at() {
        Some(at) => {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            Answer::Taken(i64::try_from(since.as_nanos()).unwrap_or_default())
        }
        None if greedy => Answer::Taken(0),
        None => Answer::Nothing,
    }
}

pub(super) async fn ids(context: Context) {
    let generators = [
        ("flakes", IdOptions::default()),
        ("blocks", IdOptions::blocks(10)),
    ];
    let generators = generators.map(|(name, options)| {
        let ids = context.backend.id_gen(name, options).expect("options");
        (name, ids)
    });
    while !context.is_over() {
        let (name, ids) = &generators[fastrand::usize(..2)];
        let op = Op::Ids {
            generator: (*name).to_owned(),
        };
        let drawing = async {
            let drawn = ids.batch(fastrand::u64(1..=10)).await?;
            Ok(drawn.map(|id: Id| i64::from(id)).collect::<Vec<_>>())
        };
        let (_, drawn) = context
            .call(op, drawing, |ids| Answer::Ids(ids.clone()))
            .await;
        rest(if drawn.is_ok() { 100 } else { 300 }).await;
    }
}
