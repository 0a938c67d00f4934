//! The answers to requests with idempotency keys, on the connections of a process.

use std::fmt;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Core;
use super::batcher::{ALONE, Queued};
use super::lease_handle::LeaseHandle;
use super::slots::Slots;
use super::sweeps::{PART, Sweeping};
use crate::driver::SweepResult;
use crate::error::Result;
use crate::idempotency::{Answers, RecallAnswer, Recalled, RecordAnswer, SweepAnswers};
use crate::key::Key;
use crate::lease::{Lease, LeaseOptions, micros};

/// How many bytes of an answer weigh as much as a small request.
const BYTES: usize = 512;

impl Queued for RecallAnswer {
    const NAME: &'static str = "recall";

    /// As many answers as a statement may have are not too many bytes.
    fn weight(&self) -> usize {
        64
    }
}

impl Queued for RecordAnswer {
    const NAME: &'static str = "record";

    fn weight(&self) -> usize {
        (1 + self.answer.len() / BYTES).min(ALONE)
    }

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        use std::hash::BuildHasher;
        iter::once(rustc_hash::FxBuildHasher.hash_one(&self.key))
    }
}

impl Queued for SweepAnswers {
    const NAME: &'static str = "sweep";

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Sweeping for SweepAnswers {
    const EVERY: Duration = Duration::from_secs(1800);

    fn next(self, swept: SweepResult<(String, String)>) -> Option<Self> {
        let after = swept.last?;
        Some(Self { after, ..self })
    }
}

fn first_part() -> SweepAnswers {
    SweepAnswers {
        after: Default::default(),
        most: PART,
    }
}

pub(super) fn open(core: &Arc<Core>) -> Arc<dyn Answers> {
    Arc::new(Handle(Arc::clone(core)))
}

struct Handle(Arc<Core>);

#[async_trait]
impl Answers for Handle {
    fn namespace(&self) -> &str {
        &self.0.namespace
    }

    fn lease(&self, key: Key, options: LeaseOptions) -> Result<Arc<dyn Lease>> {
        let slots = Slots::open(&self.0, "idempotency", key, options)?;
        // Its answer may be recorded in a transaction of the program.
        self.0.sweeps.later(0, first_part);
        Ok(Arc::new(LeaseHandle(slots)))
    }

    async fn recall(&self, key: &str) -> Result<Option<Recalled>> {
        let recall = RecallAnswer {
            namespace: self.0.namespace.to_string(),
            key: key.to_owned(),
        };
        self.0.batcher.call(recall).await
    }

    async fn record(
        &self,
        key: &str,
        fence: i64,
        fingerprint: &[u8],
        answer: &[u8],
        retention: Duration,
    ) -> Result<bool> {
        let record = RecordAnswer {
            namespace: self.0.namespace.to_string(),
            key: key.to_owned(),
            fence,
            fingerprint: fingerprint.to_owned(),
            answer: answer.to_owned(),
            retention: micros(retention),
        };
        self.0.batcher.call(record).await
    }

    async fn sleep(&self, time: Duration) {
        self.0.connections.timer.sleep(time).await;
    }

    async fn sweep(&self) -> Result<u64> {
        let mut part = first_part();
        loop {
            let swept = self.0.sweeps.batcher().call(part.clone()).await?;
            let deleted = u64::try_from(swept.deleted).unwrap_or(0);
            match part.next(swept) {
                Some(next) if deleted == 0 => part = next,
                _ => return Ok(deleted),
            }
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}
