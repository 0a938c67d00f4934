//! The generators of ids of a process.

mod blocks;
mod counter;
mod snowflake;

use std::sync::Arc;

use super::Core;
use super::batcher::Queued;
use crate::id::{ClaimWorker, IdGen, IdOptions, Kind, NextBlock, ReleaseWorker, RenewWorker};

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

/// Opens a generator; its options have been checked.
pub(super) fn open(core: &Arc<Core>, name: &str, options: IdOptions) -> Arc<dyn IdGen> {
    match options.kind {
        Kind::Snowflake(layout) => Arc::new(snowflake::Handle::new(core, name, options, layout)),
        Kind::Blocks(size) => Arc::new(blocks::Handle::new(core, name, options, size)),
    }
}
