//! Requests for permits of single limits, as they travel.

use std::collections::HashSet;
use std::iter;

use super::hash;
use crate::engine::batcher::{Batch, Caller, Callers, Queued, Reply};
use crate::engine::connection::OpenConnection;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::limit::{Expire, Look, Outcome, RawDecision, Take};

/// How often a request is repeated whose row others changed meanwhile.
pub(super) const TRIES: u32 = 100;

impl Queued for Take {
    const NAME: &'static str = "check";
    /// What was taken twice is a loss to the caller, and no more than that.
    const REPEATABLE: bool = true;

    fn class(&self) -> u32 {
        u32::from(self.relaxed)
    }

    fn places(&self) -> impl Iterator<Item = u64> {
        iter::once(hash(&self.key))
    }

    fn identity(&self) -> Option<u64> {
        Some(hash(&self.key))
    }

    fn is_like(&self, other: &Self) -> bool {
        (&self.key, self.price, self.depth) == (&other.key, other.price, other.depth)
    }

    fn times(&mut self) -> Option<&mut i64> {
        Some(&mut self.times)
    }

    async fn serve(
        batch: &mut Batch<Self>,
        connection: &mut OpenConnection,
    ) -> Result<(), Failure> {
        look(batch, connection).await?;
        // A key that is wanted at several prices has one of them in a statement.
        let mut keys = HashSet::new();
        let one_price = |take: &Take| keys.insert(take.key.clone());
        let sent: Vec<_> = batch.requests.iter().map(one_price).collect();
        let takes: Vec<_> = iter::zip(&batch.requests, &sent)
            .filter(|(_, sent)| **sent)
            .map(|(take, _)| take.clone())
            .collect();
        if takes.is_empty() {
            return Ok(());
        }
        let mut answers = connection.perform(&takes).await?.into_iter();
        let mut overdue = Vec::new();
        for ((mut take, mut callers), sent) in iter::zip(batch.take(), sent) {
            let decided = sent.then(|| answers.next()).flatten();
            let Some(decided) = decided else {
                batch.push(take, callers);
                continue;
            };
            match decided.outcome {
                Outcome::Taken(_) | Outcome::Refused => {
                    batch.tell(callers.len(), deal(&take, callers, decided));
                }
                _ if callers.tries == TRIES => callers.refuse(|| contended("check")),
                outcome => {
                    if outcome == Outcome::Overdue {
                        overdue.push(expire(&take.namespace, &take.key));
                    }
                    callers.tries += 1;
                    take.look = false;
                    batch.push(take, callers);
                }
            }
        }
        if !overdue.is_empty() {
            connection.perform(&overdue).await?;
        }
        Ok(())
    }
}

/// Answers those that a look shows to be refused; the others stay.
async fn look(batch: &mut Batch<Take>, connection: &mut OpenConnection) -> Result<(), Failure> {
    let of = |take: &Take| Look {
        namespace: take.namespace.clone(),
        key: take.key.clone(),
    };
    let looks: Vec<_> = batch
        .requests
        .iter()
        .filter(|take| take.look)
        .map(of)
        .collect();
    if looks.is_empty() {
        return Ok(());
    }
    let mut levels = connection.perform(&looks).await?.into_iter();
    for (take, callers) in batch.take() {
        match take.look.then(|| levels.next()).flatten() {
            Some(looked) if take.is_refused(&looked) => {
                let outcome = Outcome::Refused;
                let (level, now) = (looked.level, looked.now);
                let decided = RawDecision {
                    outcome,
                    level,
                    now,
                };
                batch.tell(callers.len(), deal(&take, callers, decided));
            }
            _ => batch.push(take, callers),
        }
    }
    Ok(())
}

/// What the callers are told, in the order of arrival.
fn deal(
    take: &Take,
    callers: Callers<RawDecision>,
    decided: RawDecision,
) -> impl Iterator<Item = (Reply<RawDecision>, Result<RawDecision>)> + Send + use<> {
    let price = take.price;
    let mut left = match decided.outcome {
        Outcome::Taken(times) => times,
        _ => 0,
    };
    // As if they had been asked one by one.
    let RawDecision { mut level, now, .. } = decided;
    level.tat -= left * price;
    callers.into_iter().map(move |Caller { times, reply }| {
        let times = times.min(left);
        left -= times;
        level.tat += times * price;
        let outcome = if times > 0 {
            Outcome::Taken(times)
        } else {
            Outcome::Refused
        };
        let level = level.clone();
        let decided = RawDecision {
            outcome,
            level,
            now,
        };
        (reply, Ok(decided))
    })
}

/// Ends the reservations of a key that have expired.
pub(super) fn expire(namespace: &str, key: &str) -> Expire {
    Expire {
        namespace: namespace.to_owned(),
        key: key.to_owned(),
    }
}

pub(super) fn contended(operation: &'static str) -> Error {
    let message =
        "other processes changed the same limits during each attempt; nothing was taken: try again";
    Error::new(ErrorKind::Unavailable, operation, message)
}
