//! The generators of ids of a process.

mod blocks;
mod counter;
mod snowflake;

use std::sync::{Arc, PoisonError, Weak};

use snowflake::Source;

use super::Core;
use super::batcher::Queued;
use crate::id::{ClaimWorker, IdGen, IdOptions, Kind, NextBlock, ReleaseWorker, RenewWorker};
use crate::sync::Mutex;

impl Queued for ReleaseWorker {
    const NAME: &'static str = "release";
    const GIVES_BACK: bool = true;
}

impl Queued for RenewWorker {
    const NAME: &'static str = "renew";
    const GIVES_BACK: bool = true;
}

impl Queued for ClaimWorker {
    const NAME: &'static str = "claim";
}

impl Queued for NextBlock {
    const NAME: &'static str = "next_block";
}

/// The generators of a process that have worker numbers.
#[derive(Default)]
pub(super) struct Generators(Mutex<Vec<Weak<Source>>>);

impl Generators {
    fn add(&self, source: &Arc<Source>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|it| it.strong_count() > 0);
        all.push(Arc::downgrade(source));
    }

    /// Gives their numbers back; they make no ids any more.
    pub(super) fn close(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for source in all.iter().filter_map(Weak::upgrade) {
            source.close();
        }
    }
}

/// Opens a generator; its options have been checked.
pub(super) fn open(core: &Arc<Core>, name: &str, options: IdOptions) -> Arc<dyn IdGen> {
    match options.kind {
        Kind::Snowflake(layout) => Arc::new(snowflake::Handle::new(core, name, options, layout)),
        Kind::Blocks(size) => Arc::new(blocks::Handle::new(core, name, options, size)),
    }
}
