//! Dead letters are listed as the tables have them, and can be put back.

use std::collections::BTreeMap;
use std::time::Instant;

use lockapi::blocking;
use lockapi::queue::Claim;
use postgres::Client;

use super::PATIENCE;
use super::queues::not_delivered;
use crate::Result;
use crate::history::Violation;
use crate::programs::limited::FEW;
use crate::server::Server;

/// How many are read at a time, so that there is more than one part.
const PART: usize = 7;
/// How many are put back.
const BACK: usize = 5;

/// Numbers of jobs, with their attempts.
type Letters = BTreeMap<i64, u32>;

/// What the library lists is what is there.
pub(crate) fn listed(server: &Server, client: &mut Client) -> Result<Option<Violation>> {
    let sql = "SELECT id, attempt FROM lockapi.job_archive WHERE queue = $1 AND status = 'failed'";
    let mut there = Letters::new();
    for row in client.query(sql, &[&FEW])? {
        there.insert(row.get(0), u32::try_from(row.get::<_, i32>(1))?);
    }
    let backend = blocking::Backend::connect(lockapi_postgres::connect_url(server.url()))?;
    let read = letters(&backend)?;
    backend.close()?;
    Ok((read != there).then(|| Violation {
        promise: "dead letters are listed",
        what: format!("{read:?} are listed, and there are {there:?}"),
    }))
}

fn letters(backend: &blocking::Backend) -> lockapi::Result<Letters> {
    let queue = backend.queue(FEW)?;
    let mut letters = Letters::new();
    loop {
        let after = letters.keys().next_back().copied().unwrap_or(0);
        let part = queue.dead_letters(after, PART)?;
        if part.is_empty() {
            return Ok(letters);
        }
        letters.extend(part.into_iter().map(|it| (it.id, it.attempts)));
    }
}

/// Puts some back, which are delivered for the first time again. What the tables have for the checks is read before.
pub(crate) fn put_back(server: &Server) -> Result<Option<Violation>> {
    let backend = blocking::Backend::connect(lockapi_postgres::connect_url(server.url()))?;
    let put = put(&backend);
    backend.close()?;
    Ok(put.err().map(|error| Violation {
        promise: "dead letters can be put back",
        what: error.to_string(),
    }))
}

fn put(backend: &blocking::Backend) -> lockapi::Result<()> {
    let ids: Vec<_> = letters(backend)?.into_keys().take(BACK).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let queue = backend.queue(FEW)?;
    let put = queue.redrive(ids.clone())?;
    let (start, mut done) = (Instant::now(), 0);
    while done < ids.len() {
        let left = PATIENCE.saturating_sub(start.elapsed());
        let claimed = queue.claim(&Claim::new(BACK).wait(left))?;
        for delivery in claimed {
            if !ids.contains(&delivery.id()) || delivery.attempt() != 1 {
                let (id, attempt) = (delivery.id(), delivery.attempt());
                let message = format!("of {ids:?} is delivered {id}, for the {attempt}. time");
                return Err(not_delivered(message));
            }
            delivery.ack()?;
            done += 1;
        }
        if left.is_zero() {
            let message = format!("of {ids:?} {put} were put back, and {done} delivered");
            return Err(not_delivered(message));
        }
    }
    Ok(())
}
