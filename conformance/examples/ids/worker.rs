//! A process that makes ids and records them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::blocking::Backend;
use lockapi::id::IdOptions;
use postgres::{Client, NoTls};

use crate::SET_AHEAD;
use crate::common::{Problem, Task};

pub(crate) fn run(task: &Task) -> Result<(), Problem> {
    let backend = Backend::connect(task.connect())?;
    let options = IdOptions::default().reserve(Duration::from_millis(300));
    let ids = backend.id_gen("audit", options)?;
    // So that it takes the number of a process that is alive, and makes ids of it.
    Client::connect(&task.url, NoTls)?.execute(SET_AHEAD, &[])?;
    let mut file = BufWriter::new(File::create(&task.file)?);
    let mut made = 0;
    while made < task.work {
        let part = fastrand::u64(1..2000).min(task.work - made);
        if fastrand::bool() {
            match ids.batch(part) {
                Ok(batch) => {
                    for id in batch {
                        file.write_all(&i64::from(id).to_le_bytes())?;
                    }
                    made += part;
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error.into()),
            }
        } else {
            for _ in 0..part {
                match ids.next() {
                    Ok(id) => {
                        file.write_all(&i64::from(id).to_le_bytes())?;
                        made += 1;
                    }
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        file.flush()?;
    }
    Ok(())
}

/// A process that was stopped may find its connection given up.
fn is_passing(error: &lockapi::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Indeterminate
    )
}
