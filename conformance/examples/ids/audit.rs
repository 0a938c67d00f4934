//! Compares what the processes recorded, however much it is.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::PathBuf;

use lockapi::id::{Id, Layout};

use crate::common::Problem;

#[derive(Default)]
pub(crate) struct Found {
    pub(crate) ids: u64,
    pub(crate) workers: usize,
    /// Ids that are not above the one before of the same process.
    pub(crate) disorder: u64,
    /// Ids that were made more than once.
    pub(crate) twice: u64,
}

/// Merges the files, each of which is in order.
pub(crate) fn compare(files: &[PathBuf]) -> Result<Found, Problem> {
    let mut readers = Vec::new();
    let mut heads = BinaryHeap::new();
    for path in files {
        match File::open(path) {
            Ok(file) => readers.push(BufReader::with_capacity(1 << 16, file)),
            // It was killed before it made any.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    for (at, reader) in readers.iter_mut().enumerate() {
        heads.extend(next(reader)?.map(|id| Reverse((id, at))));
    }
    let layout = Layout::default();
    let mut workers = HashSet::new();
    let mut found = Found::default();
    let mut last = None;
    while let Some(Reverse((id, at))) = heads.pop() {
        found.ids += 1;
        found.twice += u64::from(last == Some(id));
        workers.insert(layout.decode(Id::try_from(id)?).worker);
        last = Some(id);
        if let Some(following) = next(&mut readers[at])? {
            found.disorder += u64::from(following <= id);
            heads.push(Reverse((following, at)));
        }
    }
    found.workers = workers.len();
    Ok(found)
}

/// The next id; a process that was killed may have left a part of one.
fn next(reader: &mut BufReader<File>) -> Result<Option<i64>, Problem> {
    let mut bytes = [0; 8];
    match reader.read_exact(&mut bytes) {
        Ok(()) => Ok(Some(i64::from_le_bytes(bytes))),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error.into()),
    }
}
