//! The queues of a process.

mod coalescing;
mod combining;
mod draining;
mod exchange;
mod expiring;
mod floors;
mod groups;
mod handle;
mod heartbeat;
mod history;
mod limiting;
mod pausing;
mod progress;
mod pushing;
mod results;
mod settling;
mod topic;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::iter;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use expiring::Retentions;
pub(super) use handle::open;
use heartbeat::Heartbeats;
use history::History;
use progress::Reports;
use results::Results;
pub(super) use topic::Topic;

use rustc_hash::FxBuildHasher;

use super::batcher::Batcher;
use super::batcher::{ALONE, Queued};
use super::leases::answer_limit;
use super::sweeps::Sweeping;
use super::timer::Timer;
use crate::queue::{
    Ack, AckWithResult, Cancel, CompleteAndClaim, CountJobs, CountRunning, Discard, ExpireJobs,
    FoldHistory, NewJob, Purge, Push, ReadDeadLetters, ReadDeliveryState, ReadResult,
    ReadUnhandled, RecordHistory, Redrive, Report, SearchBelowFloors, SetNamePaused, SetPaused,
    Settle, SweepHistory, SweepProgress, SweepQueues, SweepResults,
};
use crate::sweep::SweepResult;
use crate::sync::Mutex;

/// How many bytes of a result weigh as much as a small request.
const RESULT_BYTES: usize = 512;

/// Declares how operations of queues are batched: which may be repeated, their weights, and what they
/// may find locked.
macro_rules! queued {
    ($($operation:ident $name:literal $repeatable:literal |$one:ident| $weight:expr
       $(, at |$other:ident| $place:expr)?;)*) => {
        $(impl Queued for $operation {
            const NAME: &'static str = $name;
            const REPEATABLE: bool = $repeatable;

            fn weight(&self) -> usize {
                let $one = self;
                $weight
            }

            $(fn row_keys(&self) -> impl Iterator<Item = u64> {
                let $other = self;
                iter::once(FxBuildHasher.hash_one($place))
            })?
        })*
    };
}

queued! {
    Push "push" false |one| one.jobs.iter().map(NewJob::weight).sum();
    SetNamePaused "set_name_paused" true |_one| ALONE;
    SetPaused "set_paused" true |_one| ALONE;
    Cancel "cancel" false |_one| ALONE;
    SearchBelowFloors "search_below_floors" true |_one| ALONE;
    CountRunning "drain" true |_one| ALONE;
    CountJobs "statistics" true |_one| ALONE;
    ReadDeadLetters "dead_letters" true |_one| ALONE;
    ReadDeliveryState "delivery_state" true |_one| 1;
    Report "progress" true |_one| 1, at |one| one.ticket.id;
    // As many results as a statement may have are not too many bytes.
    ReadResult "result" true |_one| 4;
    ReadUnhandled "unhandled" true |_one| ALONE;
    Redrive "redrive" false |_one| ALONE;
    Discard "discard" false |_one| ALONE;
    Purge "purge" false |_one| ALONE;
    SweepQueues "sweep" true |_one| ALONE;
    ExpireJobs "expire" true |_one| ALONE;
    SweepProgress "sweep" true |_one| ALONE;
    SweepResults "sweep" true |_one| ALONE;
    RecordHistory "record_history" true |_one| ALONE;
    FoldHistory "sweep" true |_one| ALONE;
    SweepHistory "sweep" true |_one| ALONE;
}

impl Queued for CompleteAndClaim {
    const NAME: &'static str = "claim";
    const REPEATABLE: bool = false;
    /// Jobs that it completes may be locked; then it is sent again without them.
    fn waits(&self) -> bool {
        self.acks.is_empty()
    }

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Queued for Ack {
    const NAME: &'static str = "ack";
    const REPEATABLE: bool = false;
    const GIVES_BACK: bool = true;

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        iter::once(FxBuildHasher.hash_one(self.ticket.id))
    }
}

impl Queued for AckWithResult {
    const NAME: &'static str = "ack";
    const REPEATABLE: bool = false;
    const GIVES_BACK: bool = true;

    fn weight(&self) -> usize {
        (1 + self.result.as_str().len() / RESULT_BYTES).min(ALONE)
    }

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        iter::once(FxBuildHasher.hash_one(self.ack.ticket.id))
    }
}

impl Queued for Settle {
    const NAME: &'static str = "settle";
    const REPEATABLE: bool = false;
    const GIVES_BACK: bool = true;

    /// The same delivery may be extended twice.
    fn is_repeatable(&self) -> bool {
        self.extends().is_some()
    }

    fn limit(&self) -> Option<Duration> {
        self.extends().map(answer_limit)
    }
}

impl Sweeping for SweepQueues {
    const EVERY: Duration = Duration::from_secs(300);
    // A busy queue archives thousands of jobs a second.
    const PAUSE: Duration = Duration::from_millis(50);

    fn next(self, swept: SweepResult<(i64, i64)>) -> Option<Self> {
        let from = swept.last?;
        Some(Self { from, ..self })
    }
}

/// What the queues of a process share.
pub(super) struct Queues {
    batcher: Arc<Batcher>,
    /// A heartbeat waits behind nothing but heartbeats and renewals.
    renewals: Arc<Batcher>,
    timer: Timer,
    heartbeats: Arc<Heartbeats>,
    reports: Arc<Reports>,
    results: Arc<Results>,
    /// `None` where the program wants none.
    history: Option<Arc<History>>,
    topics: Mutex<HashMap<i64, Weak<Topic>>>,
    retentions: Retentions,
}

impl Queues {
    pub(super) fn new(
        batcher: Arc<Batcher>,
        renewals: Arc<Batcher>,
        sweeps: &Arc<Batcher>,
        timer: Timer,
        history: Option<Arc<str>>,
    ) -> Arc<Self> {
        let heartbeats = Heartbeats::new(Arc::clone(&renewals), timer.clone());
        let kept = Arc::clone(&heartbeats);
        Arc::new(Self {
            reports: Reports::new(Arc::clone(sweeps), kept, timer.clone()),
            results: Results::new(Arc::clone(&batcher), timer.clone()),
            history: history.map(|namespace| {
                let (jobs, bulk) = (Arc::clone(&batcher), Arc::clone(sweeps));
                History::new(namespace, jobs, bulk, timer.clone())
            }),
            heartbeats,
            batcher,
            renewals,
            timer,
            topics: Mutex::default(),
            retentions: Retentions::default(),
        })
    }

    /// Sends what handlers have told and what was counted, before the process ends.
    pub(super) fn flush(&self) {
        self.reports.flush();
        if let Some(history) = &self.history {
            history.flush();
        }
    }

    /// The one topic of this number.
    pub(super) fn topic(&self, number: i64) -> Arc<Topic> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(topic) = topics.get(&number).and_then(Weak::upgrade) {
            return topic;
        }
        topics.retain(|_, topic| topic.strong_count() > 0);
        let topic = Arc::new(Topic::default());
        topics.insert(number, Arc::downgrade(&topic));
        topic
    }
}
