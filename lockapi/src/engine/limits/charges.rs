//! Batches of requests for several limits.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher};

use rustc_hash::FxBuildHasher;

use super::groups::{self, Availability, Group, KnownLevels};
use super::hash;
use super::takes::{MOST_OVERDUE, TRIES, contended, expire, refused};
use crate::engine::batcher::{Batch, Caller, Callers, Queued, Repeated, Reply};
use crate::engine::connection::OpenConnection;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::limit::manage::CurrentLevel;
use crate::limit::{Charge, Ensure, Expire, MAX_RESERVATIONS, Outcome, RawDecision, ReadLevel};

impl Queued for Charge {
    const NAME: &'static str = "check";
    /// What was taken twice is a loss to the caller, and no more than that. A refusal of the second try is none: see
    /// [`Outcome::Unknown`].
    const REPEATABLE: bool = true;

    /// A reservation has a number, which cannot be taken twice.
    fn is_repeatable(&self) -> bool {
        !self.reserves()
    }

    /// Requests that can be repeated are not in one statement with others.
    fn class(&self) -> u32 {
        u32::from(self.relaxed) | u32::from(self.reserves()) << 1
    }

    fn weight(&self) -> usize {
        self.lines.len()
    }

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        self.lines.iter().map(|line| hash(&line.key))
    }

    /// Reservations are each their own.
    fn identity(&self) -> Option<u64> {
        if self.reserves() {
            return None;
        }
        if let [line] = &self.lines[..] {
            // Joined is the last that waits for the key: nobody overtakes one of another cost.
            return Some(hash(&line.key));
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
        let mut known = KnownLevels::default();
        for round in 0..ROUNDS {
            let tries = |at: usize| batch.callers[at].tries;
            let groups = groups::divide(&batch.requests, tries, &known);
            let charges: Vec<_> = groups.iter().map(|group| group.charge.clone()).collect();
            let answers = connection.perform(&charges).await?;
            let mut maintenance = RowMaintenance::default();
            let mut decided = HashMap::new();
            for (group, raw) in groups.iter().zip(answers) {
                for (line, one) in group.charge.lines.iter().zip(&raw) {
                    known.note(&line.key, one);
                    maintenance.note(&group.charge.namespace, &line.key, one.outcome);
                }
                decide(group, raw, &batch.requests, round, &mut decided);
            }
            answer_decided(batch, decided, connection.repeated);
            // These take nothing.
            let ready = maintenance.run(connection).await;
            ready.map_err(Failure::undone)?;
            let read = read_unknown(batch, connection, &mut known).await;
            read.map_err(Failure::undone)?;
            refuse(batch, &known, connection.repeated);
            if batch.requests.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// The maximum number of statements for a batch; what is left then is sent again with the requests that
/// came meanwhile.
const ROUNDS: usize = 3;

/// What a statement decided of a request.
enum Decided {
    /// It was taken so often, which may be never. With `all` there is no room for the rest.
    Taken {
        times: i64,
        all: bool,
        answers: Vec<RawDecision>,
    },
    /// Others took what seemed to be there.
    Failed,
}

/// Takes note of what a statement decided of a group.
fn decide(
    group: &Group,
    raw: Vec<RawDecision>,
    requests: &[Charge],
    round: usize,
    decided: &mut HashMap<usize, Decided>,
) {
    let of = |one: &RawDecision| match one.outcome {
        Outcome::Taken(times) => Some(times),
        Outcome::Refused => Some(0),
        _ => None,
    };
    let taken = raw
        .iter()
        .map(of)
        .try_fold(i64::MAX, |least, times| Some(least.min(times?)));
    match taken {
        Some(times) if group.is_alone() => {
            let (at, _) = group.members[0];
            let (all, answers) = (true, raw);
            decided.insert(
                at,
                Decided::Taken {
                    times,
                    all,
                    answers,
                },
            );
        }
        Some(1..) => {
            let answers = group.divide(requests, &raw);
            for ((at, times), answers) in group.members.iter().zip(answers) {
                let (times, all) = (*times, false);
                decided.insert(
                    *at,
                    Decided::Taken {
                        times,
                        all,
                        answers,
                    },
                );
            }
        }
        // Together they were a guess, as long as nothing was known.
        _ if group.is_alone() || round > 0 => {
            decided.extend(group.members.iter().map(|(at, _)| (*at, Decided::Failed)));
        }
        _ => {}
    }
}

/// Tells those whose requests are decided.
fn answer_decided(
    batch: &mut Batch<Charge>,
    mut decided: HashMap<usize, Decided>,
    repeated: Repeated,
) {
    for (at, (mut charge, mut callers)) in batch.take().enumerate() {
        match decided.remove(&at) {
            Some(Decided::Taken {
                times,
                all,
                answers,
            }) => {
                let (answered, left) = divide(callers, times, all);
                batch.answer(
                    answered.len(),
                    distribute(&charge, answered, times, answers, repeated),
                );
                if let Some(left) = left {
                    charge.times = i64::try_from(left.len()).unwrap_or(i64::MAX);
                    batch.push(charge, left);
                }
            }
            Some(Decided::Failed) if callers.tries == TRIES => {
                callers.refuse(|| contended("check"));
            }
            failed => {
                callers.tries += u32::from(failed.is_some());
                batch.push(charge, callers);
            }
        }
    }
}

/// What has to be done before a statement can decide.
#[derive(Default)]
struct RowMaintenance {
    absent: Vec<Ensure>,
    overdue: Vec<Expire>,
}

impl RowMaintenance {
    fn note(&mut self, namespace: &str, key: &str, outcome: Outcome) {
        match outcome {
            Outcome::Absent => self.absent.push(Ensure {
                namespace: namespace.to_owned(),
                key: key.to_owned(),
            }),
            Outcome::Overdue => self.overdue.push(expire(namespace, key)),
            _ => {}
        }
    }

    async fn run(self, connection: &mut OpenConnection) -> Result<(), Failure> {
        if !self.absent.is_empty() {
            connection.perform(&self.absent).await?;
        }
        for part in self.overdue.chunks(MOST_OVERDUE) {
            connection.perform(part).await?;
        }
        Ok(())
    }
}

/// Reads the other keys of requests that one key refuses, for their decisions.
async fn read_unknown(
    batch: &mut Batch<Charge>,
    connection: &mut OpenConnection,
    known: &mut KnownLevels,
) -> Result<(), Failure> {
    let mut keys = HashSet::new();
    let refused = batch.requests.iter();
    let refused = refused.filter(|one| known.availability_of(one) == Availability::Refused);
    let unknown = refused.flat_map(|one| {
        let lines = one.lines.iter().filter(|line| !known.has(&line.key));
        lines.map(|line| (&*one.namespace, &*line.key))
    });
    let reads = unknown.filter(|place| keys.insert(*place)).map(read_level);
    let reads: Vec<_> = reads.collect();
    if reads.is_empty() {
        return Ok(());
    }
    let levels = connection.perform(&reads).await?;
    for (read, CurrentLevel { level, now, .. }) in reads.iter().zip(levels) {
        let outcome = Outcome::Refused;
        let level = level.as_of(now);
        known.note(
            &read.key,
            &RawDecision {
                outcome,
                level,
                now,
            },
        );
    }
    Ok(())
}

fn read_level((namespace, key): (&str, &str)) -> ReadLevel {
    ReadLevel {
        namespace: namespace.to_owned(),
        key: key.to_owned(),
    }
}

/// Tells those for whom there is no room; the others stay.
fn refuse(batch: &mut Batch<Charge>, known: &KnownLevels, repeated: Repeated) {
    for (charge, callers) in batch.take() {
        match (known.availability_of(&charge), known.answers(&charge)) {
            (Availability::Refused, Some(answers)) => {
                batch.answer(
                    callers.len(),
                    distribute(&charge, callers.into_iter().collect(), 0, answers, repeated),
                );
            }
            (Availability::Full, _) => callers.refuse(too_many_reservations),
            _ => batch.push(charge, callers),
        }
    }
}

fn too_many_reservations() -> Error {
    let message =
        format!("the key has {MAX_RESERVATIONS} open reservations already; allowed are no more");
    Error::new(ErrorKind::Capacity, "reserve", message)
}

type WaitingCaller = Caller<Vec<RawDecision>>;

/// Callers that are answered, and callers whose request is sent again: of the callers without permits,
/// `decided` ones are answered.
fn divide(
    callers: Callers<Vec<RawDecision>>,
    taken: i64,
    decided: bool,
) -> (Vec<WaitingCaller>, Option<Callers<Vec<RawDecision>>>) {
    let tries = callers.tries;
    let mut answered: Vec<_> = callers.into_iter().collect();
    let admitted = usize::try_from(taken).unwrap_or(0).min(answered.len());
    let left = if decided {
        Vec::new()
    } else {
        answered.split_off(admitted)
    };
    (answered, Callers::of(left, tries))
}

/// The answers to the callers, in the order of arrival.
fn distribute(
    charge: &Charge,
    callers: Vec<WaitingCaller>,
    taken: i64,
    decided: Vec<RawDecision>,
    repeated: Repeated,
) -> impl Iterator<Item = (Reply<Vec<RawDecision>>, Result<Vec<RawDecision>>)> + Send + use<> {
    let prices = charge.lines.iter();
    let prices: Vec<_> = prices
        .map(|line| (line.price(), line.quota.window() > 0))
        .collect();
    let mut distributed = 0;
    callers.into_iter().map(move |Caller { reply, .. }| {
        let admitted = distributed < taken;
        distributed += i64::from(admitted);
        let answer = prices
            .iter()
            .zip(&decided)
            .map(|((price, windowed), decided)| {
                // As if they had been asked one by one.
                let mut decided = decided.clone();
                let later = (taken - distributed) * price;
                if *windowed {
                    decided.level.used -= later;
                } else {
                    decided.level.tat -= later;
                }
                decided.outcome = if admitted {
                    Outcome::Taken(1)
                } else {
                    refused(repeated)
                };
                decided
            });
        (reply, Ok(answer.collect()))
    })
}
