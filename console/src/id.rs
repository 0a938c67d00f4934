//! `lockapi id`: unique ids.

use std::time::Duration;

use clap::Subcommand;
use lockapi::IdGen;
use lockapi::admin::WorkerNumber;
use lockapi::id::{Id, IdOptions, Layout};
use serde::Serialize;

use crate::arguments::Global;
use crate::common::with_backend;
use crate::exit::Exit;
use crate::failure::Result;
use crate::output::{Entry, seconds, spoken, time, write_part};

/// So many bytes are written at a time.
const PART: usize = 16 << 10;

/// Make ids that are unique everywhere, read them, see who makes them
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
    /// List the worker numbers that are held, by name and number
    Workers {
        /// At most so many, up to 1000
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        limit: usize,
    },
}

#[derive(Debug, Serialize)]
struct Holder {
    name: String,
    worker: i64,
    owner: String,
    #[serde(rename = "held_seconds", serialize_with = "seconds")]
    held_for: Duration,
    #[serde(rename = "remaining_seconds", serialize_with = "seconds")]
    remaining: Duration,
}

impl From<WorkerNumber> for Holder {
    fn from(number: WorkerNumber) -> Self {
        Self {
            name: number.name,
            worker: number.worker,
            owner: number.owner,
            held_for: number.held_for,
            remaining: number.remaining,
        }
    }
}

impl Entry for Holder {
    const COLUMNS: &'static [&'static str] = &["name", "worker", "owner", "held for", "ends in"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.worker.to_string(),
            self.owner.clone(),
            spoken(self.held_for),
            spoken(self.remaining),
        ]
    }
}

#[derive(Debug, Serialize)]
struct Parts {
    id: String,
    time: String,
    worker: u32,
    sequence: u32,
}

/// Prints new ids, as lines or as an array, part by part: there may be more than fit into memory. Those that were made
/// before a failure are printed, in whole lines; the array then has no end, so that nobody takes it for all.
async fn print(ids: &dyn IdGen, count: u64, json: bool) -> Result<()> {
    let mut text = String::new();
    for n in 0..count {
        let id = match ids.next().await {
            Ok(id) => id,
            Err(error) => {
                if json && n > 0 {
                    text.push('\n');
                }
                // The failure is told in any case.
                let _written = write_part(&text);
                return Err(error.into());
            }
        };
        let (before, after) = match (json, n) {
            (false, _) => ("", "\n"),
            (true, 0) => ("[\"", "\""),
            (true, _) => (",\"", "\""),
        };
        text.extend([before, &id.to_string(), after]);
        if text.len() >= PART {
            if !write_part(&text)? {
                return Ok(());
            }
            text.clear();
        }
    }
    text.push_str(match (json, count) {
        (false, _) => "",
        (true, 0) => "[]\n",
        (true, _) => "]\n",
    });
    write_part(&text).map(drop)
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
                    print(&*ids, count, global.json).await?;
                    Ok(Exit::Success)
                })
                .await
            }
            Self::Workers { limit } => {
                with_backend(global, async |backend| {
                    let numbers = backend.inspector().worker_numbers(limit).await?;
                    let numbers: Vec<Holder> = numbers.into_iter().map(Holder::from).collect();
                    global.output().entries(&numbers)?;
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
