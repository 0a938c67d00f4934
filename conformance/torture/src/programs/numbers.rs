//! Limits and ids.

use std::time::{Duration, UNIX_EPOCH};

use lockapi::id::{Id, IdOptions};
use lockapi::limit::{Decision, PermitRequest, Quota};

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

/// Reserves permits of a limit of their own, and uses or gives back each.
pub(super) async fn reserve(context: Context) {
    let limiter = context.backend.rate_limiter(QUOTA).expect("a quota");
    let key = KEYS[2];
    let request = PermitRequest::new(key);
    while !context.is_over() {
        let op = Op::Reserve {
            key: key.to_owned(),
        };
        let reserving = async {
            let time = Duration::from_millis(fastrand::u64(500..3000));
            let Ok(reserved) = limiter.reserve(&request, time).await? else {
                return Ok(Answer::Nothing);
            };
            rest(100).await;
            let taken = decide(reserved.decision(), false);
            match fastrand::u8(..4) {
                // Nobody is told whether it was given back.
                0 => drop(reserved),
                1 => reserved.cancel().await?,
                _ => {
                    reserved.commit(1).await?;
                    return Ok(taken);
                }
            }
            Ok(Answer::Nothing)
        };
        let (_, reserved) = context.call(op, reserving, Answer::clone).await;
        rest(if reserved.is_ok() { 80 } else { 300 }).await;
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
