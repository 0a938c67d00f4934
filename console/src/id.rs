//! `lockapi id`: unique ids.

use clap::Subcommand;
use lockapi::id::{Id, IdOptions, Layout};
use serde::Serialize;

use crate::arguments::Global;
use crate::common::with_backend;
use crate::exit::Exit;
use crate::failure::Result;
use crate::output::time;

/// Make ids that are unique everywhere, and read them
#[derive(Debug, Subcommand)]
pub(crate) enum Ids {
    /// Print ids, one a line
    Next {
        /// The name that they are unique under
        name: String,
        /// How many
        #[arg(long, default_value_t = 1)]
        count: u64,
        /// Consecutive numbers, of which so many are taken from the database at a time; ids of time, worker and sequence
        /// unless given
        #[arg(long, value_name = "SIZE")]
        blocks: Option<u64>,
    },
    /// Show what an id of the usual layout is made of; needs no database
    Decode {
        /// The id
        id: Id,
    },
}

#[derive(Debug, Serialize)]
struct Parts {
    id: String,
    time: String,
    worker: u32,
    sequence: u32,
}

impl Ids {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        match self {
            Self::Next {
                name,
                count,
                blocks,
            } => {
                let options = blocks.map_or_else(IdOptions::default, IdOptions::blocks);
                with_backend(global, async |backend| {
                    let ids = backend.id_gen(name, options)?;
                    let mut made = Vec::new();
                    for _ in 0..count {
                        made.push(ids.next().await?.to_string());
                    }
                    global.output().value(&made, |made| made.join("\n"))?;
                    Ok(Exit::Success)
                })
                .await
            }
            Self::Decode { id } => {
                let parts = Layout::default().decode(id);
                let parts = Parts {
                    id: id.to_string(),
                    time: time(parts.time),
                    worker: parts.worker,
                    sequence: parts.sequence,
                };
                global.output().value(&parts, |parts| {
                    format!(
                        "{}, worker {}, sequence {}",
                        parts.time, parts.worker, parts.sequence
                    )
                })?;
                Ok(Exit::Success)
            }
        }
    }
}
