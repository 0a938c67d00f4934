//! Requests of several limits, as they travel.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

use rustc_hash::FxBuildHasher;

use super::hash;
use super::takes::{TRIES, contended, expire};
use crate::engine::batcher::{Batch, Caller, Callers, Queued, Reply};
use crate::engine::connection::OpenConnection;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::limit::{Charge, Ensure, MAX_RESERVATIONS, Outcome, RawDecision};

impl Queued for Charge {
    const NAME: &'static str = "check";
    /// What was taken twice is a loss to the caller, and no more than that.
    const REPEATABLE: bool = true;

    /// A reservation has a number, which cannot be taken twice.
    fn is_repeatable(&self) -> bool {
        !self.reserves()
    }

    /// What may be repeated travels without what may not.
    fn class(&self) -> u32 {
        u32::from(self.relaxed) | u32::from(self.reserves()) << 1
    }

    fn weight(&self) -> usize {
        self.lines.len()
    }

    fn places(&self) -> impl Iterator<Item = u64> {
        self.lines.iter().map(|line| hash(&line.key))
    }

    /// Reservations are each their own.
    fn identity(&self) -> Option<u64> {
        if self.reserves() {
            return None;
        }
        let mut hasher = FxBuildHasher.build_hasher();
        for line in &self.lines {
            (&line.key, line.cost).hash(&mut hasher);
        }
        Some(hasher.finish())
    }

    fn is_like(&self, other: &Self) -> bool {
        self.lines == other.lines
    }

    fn times(&mut self) -> Option<&mut i64> {
        Some(&mut self.times)
    }

    async fn serve(
        batch: &mut Batch<Self>,
        connection: &mut OpenConnection,
    ) -> Result<(), Failure> {
        let answers = connection.perform(&batch.requests).await?;
        let shared = shared(&batch.requests);
        let (mut absent, mut overdue) = (Vec::new(), Vec::new());
        for (at, ((mut charge, mut callers), raw)) in batch.take().zip(answers).enumerate() {
            let mut taken = charge.times;
            let (mut again, mut full) = (false, false);
            let namespace = &charge.namespace;
            for (line, decision) in charge.lines.iter().zip(&raw) {
                match decision.outcome {
                    Outcome::Taken(times) => taken = taken.min(times),
                    Outcome::Refused => taken = 0,
                    Outcome::Again => again = true,
                    Outcome::Full => full = true,
                    Outcome::Absent => {
                        again = true;
                        absent.push(Ensure {
                            namespace: namespace.clone(),
                            key: line.key.clone(),
                        });
                    }
                    Outcome::Overdue => {
                        again = true;
                        overdue.push(expire(namespace, &line.key));
                    }
                }
            }
            if full && !again {
                callers.refuse(crowded);
                continue;
            }
            if !again {
                // For the rest there was no room, unless others of the statement may have had it.
                let decided = taken == 0 || !shared[at];
                let (told, left) = divide(callers, taken, decided);
                batch.tell(told.len(), deal(&charge, told, taken, raw));
                let Some(left) = left else { continue };
                charge.times = i64::try_from(left.len()).unwrap_or(i64::MAX);
                callers = left;
            }
            if callers.tries == TRIES {
                callers.refuse(|| contended("check"));
            } else {
                callers.tries += 1;
                batch.push(charge, callers);
            }
        }
        if !absent.is_empty() {
            connection.perform(&absent).await?;
        }
        if !overdue.is_empty() {
            connection.perform(&overdue).await?;
        }
        Ok(())
    }
}

fn crowded() -> Error {
    let message = format!("{MAX_RESERVATIONS} reservations of the key are open");
    Error::new(ErrorKind::Capacity, "reserve", message)
}

/// Which of the requests have a key that an earlier one has.
fn shared(charges: &[Charge]) -> Vec<bool> {
    let mut first = HashMap::new();
    charges
        .iter()
        .enumerate()
        .map(|(at, charge)| {
            let mut shared = false;
            for line in &charge.lines {
                shared |= *first.entry(&line.key).or_insert(at) < at;
            }
            shared
        })
        .collect()
}

type Asking = Caller<Vec<RawDecision>>;

/// Those who are told, and those who ask again: of the callers for whom there was nothing, `decided`
/// ones are told so.
fn divide(
    callers: Callers<Vec<RawDecision>>,
    taken: i64,
    decided: bool,
) -> (Vec<Asking>, Option<Callers<Vec<RawDecision>>>) {
    let tries = callers.tries;
    let mut told: Vec<_> = callers.into_iter().collect();
    let admitted = usize::try_from(taken).unwrap_or(0).min(told.len());
    let left = if decided {
        Vec::new()
    } else {
        told.split_off(admitted)
    };
    (told, Callers::of(left, tries))
}

/// What the callers are told, in the order of arrival.
fn deal(
    charge: &Charge,
    callers: Vec<Asking>,
    taken: i64,
    decided: Vec<RawDecision>,
) -> impl Iterator<Item = (Reply<Vec<RawDecision>>, Result<Vec<RawDecision>>)> + Send + use<> {
    let prices = charge.lines.iter();
    let prices: Vec<_> = prices
        .map(|line| (line.price(), line.quota.window() > 0))
        .collect();
    let mut dealt = 0;
    callers.into_iter().map(move |Caller { reply, .. }| {
        let admitted = dealt < taken;
        dealt += i64::from(admitted);
        let answer = prices
            .iter()
            .zip(&decided)
            .map(|((price, windowed), decided)| {
                // As if they had been asked one by one.
                let mut decided = decided.clone();
                let later = (taken - dealt) * price;
                if *windowed {
                    decided.level.used -= later;
                } else {
                    decided.level.tat -= later;
                }
                decided.outcome = if admitted {
                    Outcome::Taken(1)
                } else {
                    Outcome::Refused
                };
                decided
            });
        (reply, Ok(answer.collect()))
    })
}
