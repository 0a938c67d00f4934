//! Rate limits that many processes ask as fast as they can, and a check of what was admitted.
//!
//! The check knows nothing of how limiters work: it has the times of the decisions and the
//! definitions of the quotas. See `examples/limits`, and the case of the suite that is a small one.

mod check;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use lockapi::limit::{Algorithm, Decision, PermitRequest, Policy, Quota};
use lockapi::{Backend, ErrorKind, Permits, RateLimiter, Result};

pub use check::{Found, check};

/// What is limited: keys with their quotas. A block has to be worth more than it takes to get it.
pub const DOORS: &[Door] = &[
    Door::new("cells", Quota::per_second(2_000).burst(200)),
    Door::new("few cells", Quota::per_second(50).burst(10)),
    Door::new("cells in blocks", Quota::per_second(20).burst(60)).in_blocks(30),
    Door::new("fixed window", SHORT.fixed_window()),
    Door::new("fixed window in blocks", LONG.fixed_window()).in_blocks(40),
    Door::new("sliding window", SHORT.sliding_window()),
    Door::new("sliding window in blocks", LONG.sliding_window()).in_blocks(40),
];

const SHORT: Quota = Quota::new(300, Duration::from_millis(200));
const LONG: Quota = Quota::new(900, Duration::from_secs(3));
/// The most permits of one call.
const MAX_COST: u64 = 3;

/// A key, its quota, and whether part of it is taken in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    /// The key.
    pub key: &'static str,
    /// Its quota.
    pub quota: Quota,
    block: u64,
}

impl Door {
    const fn new(key: &'static str, quota: Quota) -> Self {
        let block = 0;
        Self { key, quota, block }
    }

    const fn in_blocks(mut self, permits: u64) -> Self {
        self.block = permits;
        self
    }
}

/// A decision, as who asked for it wrote it down. Times are microseconds since 1970, by the clock that
/// server and processes of one machine share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which of the [`DOORS`].
    pub door: usize,
    /// How many permits were admitted; 0 for a refusal.
    pub permits: u64,
    /// It was not admitted before this time,
    pub from: i64,
    /// and not after this one. Where the server tells when it decided, both are that time.
    pub until: i64,
    /// When the window started that it is said to be of; 0 where nobody says so.
    pub window: i64,
}

impl Record {
    fn refused(door: usize) -> Self {
        Self {
            door,
            permits: 0,
            from: 0,
            until: 0,
            window: 0,
        }
    }

    fn of(door: usize, decision: &Decision) -> Self {
        let Some(at) = decision.taken_at() else {
            return Self::refused(door);
        };
        let at = micros(at.duration_since(UNIX_EPOCH).unwrap_or_default());
        let quota = decision.quota();
        // All permits are there again when the window that they were taken of counts no more.
        let windows = match quota.algorithm() {
            Algorithm::FixedWindow => 1,
            Algorithm::SlidingWindow => 2,
            _ => 0,
        };
        let started = at + micros(decision.reset_after()) - windows * micros(quota.period());
        Self {
            door,
            permits: decision.cost(),
            from: at,
            until: at,
            window: if windows > 0 { started } else { 0 },
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            door,
            permits,
            from,
            until,
            window,
        } = self;
        write!(f, "{door} {permits} {from} {until} {window}")
    }
}

impl FromStr for Record {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let numbers: Vec<i64> = text.split(' ').flat_map(str::parse).collect();
        let [door, permits, from, until, window] = numbers[..] else {
            return Err(format!("not a record: {text}"));
        };
        let (Ok(door), Ok(permits)) = (usize::try_from(door), u64::try_from(permits)) else {
            return Err(format!("not a record: {text}"));
        };
        Ok(Self {
            door,
            permits,
            from,
            until,
            window,
        })
    }
}

/// Asks for permits of all [`DOORS`] until so many decisions were made; each is told to `record` at once.
///
/// So many `callers` ask at the key where requests travel together, and fewer at the others. One takes
/// permits of blocks, and rests now and then. Every other flood does not wait for the disk.
///
/// # Errors
/// Those of the backend which do not pass.
pub async fn flood(
    backend: &dyn Backend,
    decisions: usize,
    callers: usize,
    record: impl Fn(Record) + Sync,
) -> Result<()> {
    let policy = Policy::new(DOORS[0].quota);
    let relaxed = fastrand::bool();
    let limiter = backend.rate_limiter(if relaxed { policy.relaxed() } else { policy })?;
    let blocks = DOORS.iter().map(|door| match door.block {
        0 => Ok(None),
        block => limiter.permits(&request(door, block)).map(Some),
    });
    let flood = Flood {
        limiter: &*limiter,
        blocks: &blocks.collect::<Result<Vec<_>>>()?,
        left: &AtomicUsize::new(decisions),
        record: &record,
    };
    let callers = (0..DOORS.len()).flat_map(|door| {
        let part = if DOORS[door].key == DOORS[0].key {
            1
        } else {
            16
        };
        let takers = usize::from(DOORS[door].block > 0);
        (0..callers.div_ceil(part) + takers).map(move |nth| (door, nth < takers))
    });
    let calls = join_all(callers.map(|(door, takes)| flood.call(door, takes)));
    calls.await.into_iter().collect()
}

struct Flood<'a, F> {
    limiter: &'a dyn RateLimiter,
    /// The blocks of the doors that have some.
    blocks: &'a [Option<std::sync::Arc<dyn Permits>>],
    left: &'a AtomicUsize,
    record: &'a F,
}

impl<F: Fn(Record)> Flood<'_, F> {
    async fn call(&self, door: usize, takes: bool) -> Result<()> {
        while self.left.load(Ordering::Relaxed) > 0 {
            let made = match &self.blocks[door] {
                Some(permits) if takes => self.take(door, &**permits).await,
                None if fastrand::u8(0..16) == 0 => self.check_all().await,
                _ => self.check(door).await,
            };
            match made {
                Ok(made) => {
                    let count = |left: usize| Some(left.saturating_sub(made));
                    let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
                    // It always has a next value.
                    let _before = self.left.fetch_update(set, fetch, count);
                }
                // What it took is lost.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Unavailable | ErrorKind::Indeterminate
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn check(&self, door: usize) -> Result<usize> {
        let request = request(&DOORS[door], fastrand::u64(1..=MAX_COST));
        let decisions = self
            .limiter
            .check_each(std::slice::from_ref(&request))
            .await?;
        for decision in &decisions {
            (self.record)(Record::of(door, decision));
        }
        Ok(decisions.len())
    }

    /// Of several at once, all or nothing.
    async fn check_all(&self) -> Result<usize> {
        let doors = [0, 3, 5];
        let requests = doors.map(|door| request(&DOORS[door], 1));
        let verdict = self.limiter.check_all(&requests).await?;
        for (door, decision) in doors.into_iter().zip(verdict.decisions()) {
            (self.record)(Record::of(door, decision));
        }
        Ok(doors.len())
    }

    async fn take(&self, door: usize, permits: &dyn Permits) -> Result<usize> {
        if fastrand::u8(0..16) == 0 {
            // What is at hand lies about meanwhile.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..1500))).await;
        }
        let from = now();
        let taken = permits.take().await?;
        (self.record)(if taken {
            Record {
                door,
                permits: 1,
                from,
                until: now(),
                window: 0,
            }
        } else {
            Record::refused(door)
        });
        Ok(1)
    }
}

fn request(door: &Door, permits: u64) -> PermitRequest {
    PermitRequest::new(door.key).cost(permits).quota(door.quota)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    micros(since.unwrap_or_default())
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
