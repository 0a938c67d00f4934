//! Permits of rate limits, and ids.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lockapi::id::IdOptions;
use lockapi::limit::Quota;
use lockapi::{Backend, IdGen, RateLimiter};
use tokio::time::sleep;

use super::parent::{Parent, Phase, timed};
use crate::clock;
use crate::record::{PERIOD, PERMITS, Record, Source};

/// How long a generator goes on without a server, and so the time for which a number may be claimed twice.
const RESERVE: Duration = Duration::from_secs(2);
const BLOCK: u64 = 20;
/// How long a generator is used, in microseconds.
const LIFE: Range<u64> = 500_000..5_000_000;
const RETRY: Duration = Duration::from_millis(50);

/// Asks for permits more often than the limit allows.
pub(super) async fn ask(limiter: Arc<dyn RateLimiter>, parent: Arc<Parent>, limit: u32) {
    while !parent.is(Phase::Finishing) {
        let (decision, call) = timed(limiter.check(format!("limit {limit}"))).await;
        match decision {
            Ok(decision) if decision.is_admitted() => {
                parent.tell(&Record::Admitted { limit, call });
            }
            Ok(_) => {}
            Err(error) => {
                parent.failed(&error);
            }
        }
        sleep(Duration::from_millis(fastrand::u64(20..180))).await;
    }
}

pub(super) fn limiter(backend: &dyn Backend) -> lockapi::Result<Arc<dyn RateLimiter>> {
    backend.rate_limiter(Quota::new(PERMITS, PERIOD))
}

fn generator(backend: &dyn Backend, source: Source) -> lockapi::Result<Arc<dyn IdGen>> {
    match source {
        Source::Snowflake => backend.id_gen("snowflake", IdOptions::default().reserve(RESERVE)),
        Source::Blocks => backend.id_gen("blocks", IdOptions::blocks(BLOCK)),
    }
}

/// Makes ids, with one generator after the other: each takes a number, or a block, of its own.
pub(super) async fn make(backend: Arc<dyn Backend>, parent: Arc<Parent>, source: Source) {
    while !parent.is(Phase::Finishing) {
        match generator(&*backend, source) {
            Ok(generator) => make_with(&*generator, &parent, source).await,
            Err(error) => {
                parent.failed(&error);
                return;
            }
        }
    }
}

async fn make_with(generator: &dyn IdGen, parent: &Parent, source: Source) {
    let until = clock::now() + fastrand::u64(LIFE);
    while clock::now() < until && !parent.is(Phase::Finishing) {
        let (ids, call) = timed(generator.batch(fastrand::u64(1..20))).await;
        match ids {
            Ok(ids) => parent.tell(&Record::Made {
                source,
                ids: ids.map(i64::from).collect(),
                call,
            }),
            Err(error) => {
                parent.failed(&error);
                sleep(RETRY).await;
            }
        }
        sleep(Duration::from_millis(fastrand::u64(5..60))).await;
    }
}
