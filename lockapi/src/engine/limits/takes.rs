//! Batches of requests for permits of single limits.

use std::collections::HashMap;
use std::iter;

use super::hash;
use crate::engine::batcher::{Batch, Caller, Callers, Queued, Repeated, Reply};
use crate::engine::connection::OpenConnection;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::limit::{Expire, Outcome, RawDecision, ReadLevel, Take};

/// How often a request is repeated whose row others changed meanwhile.
pub(super) const TRIES: u32 = 100;

impl Queued for Take {
    const NAME: &'static str = "check";
    /// What was taken twice is a loss to the caller, and no more than that. A refusal of the second try is none: see
    /// [`Outcome::Unknown`].
    const REPEATABLE: bool = true;

    fn class(&self) -> u32 {
        u32::from(self.relaxed)
    }

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        iter::once(hash(&self.key))
    }

    fn identity(&self) -> Option<u64> {
        // Joined is the last that waits for the key: nobody overtakes one of another price.
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
        let repeated = connection.repeated;
        read_denied(batch, connection).await?;
        let mut known = HashMap::new();
        for _ in 0..ROUNDS {
            let sums = sums(batch, &known);
            if sums.is_empty() {
                break;
            }
            let takes: Vec<_> = sums.iter().map(|sum| sum.take.clone()).collect();
            let answers = connection.perform(&takes).await?;
            let (mut decided, mut overdue) = (HashMap::new(), Vec::new());
            for (sum, answer) in iter::zip(sums, answers) {
                if answer.outcome == Outcome::Overdue {
                    overdue.push(expire(&sum.take.namespace, &sum.take.key));
                }
                sum.decide(&answer, &batch.requests, &mut decided);
                if answer.outcome == Outcome::Refused {
                    known.insert(sum.take.key, answer);
                }
            }
            answer_decided(batch, decided, repeated);
            for part in overdue.chunks(MOST_OVERDUE) {
                let ended = connection.perform(part).await;
                ended.map_err(Failure::undone)?;
            }
            refuse(batch, &known, repeated);
            // What is left was refused together with others.
            if !batch
                .requests
                .iter()
                .any(|take| known.contains_key(&take.key))
            {
                break;
            }
        }
        Ok(())
    }
}

/// Of how many keys a statement ends the reservations that have expired: each may have a thousand, and takes some
/// milliseconds for these.
pub(super) const MOST_OVERDUE: usize = 8;

/// How many statements a batch has at most; what is left then is asked again with what came meanwhile.
const ROUNDS: usize = 3;

/// Requests for one key, which is in a statement once: the server takes what all of them cost, or nothing.
struct Sum {
    take: Take,
    /// Their places in the batch, in its order, and how often each fits behind those before it.
    members: Vec<(usize, i64)>,
    /// What all of them cost.
    price: i64,
    /// How much may be owed before them, so that each of them fits by its own quota.
    slack: i64,
    /// How often the first of them has failed: others use the key, so each counts on half of its room then.
    tries: u32,
    /// Whether the server told how much room there is. All that there ever is is counted on otherwise.
    known: bool,
    /// Whether later requests have to wait, because one before them does.
    closed: bool,
}

/// What a statement decided of a request.
enum Decided {
    Answered(RawDecision),
    /// Others took what there seemed to be.
    Failed,
}

/// The requests of a batch, by key.
fn sums(batch: &Batch<Take>, known: &HashMap<String, RawDecision>) -> Vec<Sum> {
    let mut places: HashMap<&str, usize> = HashMap::with_capacity(batch.requests.len());
    let mut sums: Vec<Sum> = Vec::with_capacity(batch.requests.len());
    for (at, (take, callers)) in iter::zip(&batch.requests, &batch.callers).enumerate() {
        if let Some(place) = places.get(&*take.key) {
            sums[*place].add(at, take, known.get(&take.key));
            continue;
        }
        places.insert(&take.key, sums.len());
        let known = known.get(&take.key);
        let mut sum = Sum {
            take: take.clone(),
            members: Vec::new(),
            price: 0,
            slack: i64::MAX,
            tries: callers.tries,
            known: known.is_some(),
            closed: false,
        };
        sum.add(at, take, known);
        sums.push(sum);
    }
    for sum in sums.iter_mut().filter(|sum| !sum.is_alone()) {
        sum.take.price = sum.price;
        sum.take.depth = sum.price.saturating_add(sum.slack);
        sum.take.times = 1;
    }
    sums
}

impl Sum {
    /// Whether the server decides how often there is room.
    fn is_alone(&self) -> bool {
        self.members.len() == 1
    }

    fn add(&mut self, at: usize, take: &Take, known: Option<&RawDecision>) {
        if self.closed {
            return;
        }
        let room = (room(take, known) >> self.tries.min(62)) - self.price;
        let fits = (room / take.price).clamp(0, take.times);
        // A request that does not fit all is refused the rest, where it is known that there is no more.
        let waits = self.tries > 0 && fits < take.times;
        self.closed = waits;
        if waits && !self.members.is_empty() {
            return;
        }
        self.members.push((at, fits));
        self.price = self.price.saturating_add(fits * take.price);
        if fits > 0 {
            self.slack = self.slack.min(take.depth - self.price);
        }
    }

    fn decide(
        &self,
        answer: &RawDecision,
        requests: &[Take],
        decided: &mut HashMap<usize, Decided>,
    ) {
        match answer.outcome {
            Outcome::Taken(_) | Outcome::Refused if self.is_alone() => {
                decided.insert(self.members[0].0, Decided::Answered(answer.clone()));
            }
            Outcome::Taken(_) => {
                // As if they had been asked one by one.
                let mut level = answer.level.clone();
                level.tat -= self.take.price;
                for (at, fits) in &self.members {
                    level.tat += requests[*at].price * fits;
                    let outcome = match fits {
                        0 => Outcome::Refused,
                        fits => Outcome::Taken(*fits),
                    };
                    let answer = RawDecision {
                        outcome,
                        level: level.clone(),
                        now: answer.now,
                    };
                    decided.insert(*at, Decided::Answered(answer));
                }
            }
            // It was a guess.
            Outcome::Refused if !self.known => {}
            _ => decided.extend(self.members.iter().map(|(at, _)| (*at, Decided::Failed))),
        }
    }
}

/// How much room there is for a request.
fn room(take: &Take, known: Option<&RawDecision>) -> i64 {
    match known {
        Some(known) if known.level.blocked_until > known.now => 0,
        Some(known) => (take.depth - known.level.debt(known.now)).max(0),
        None => take.depth,
    }
}

/// Tells those whose requests are decided.
fn answer_decided(
    batch: &mut Batch<Take>,
    mut decided: HashMap<usize, Decided>,
    repeated: Repeated,
) {
    for (at, (mut take, mut callers)) in batch.take().enumerate() {
        match decided.remove(&at) {
            Some(Decided::Answered(answer)) => {
                batch.answer(callers.len(), distribute(&take, callers, answer, repeated));
            }
            Some(Decided::Failed) if callers.tries == TRIES => {
                callers.refuse(|| contended("check"));
            }
            failed => {
                callers.tries += u32::from(failed.is_some());
                take.read_first = false;
                batch.push(take, callers);
            }
        }
    }
}

/// Answers those for whom there is no room, whoever comes before them.
fn refuse(batch: &mut Batch<Take>, known: &HashMap<String, RawDecision>, repeated: Repeated) {
    if known.is_empty() {
        return;
    }
    for (take, callers) in batch.take() {
        match known.get(&take.key) {
            Some(known) if room(&take, Some(known)) < take.price => {
                batch.answer(
                    callers.len(),
                    distribute(&take, callers, known.clone(), repeated),
                );
            }
            _ => batch.push(take, callers),
        }
    }
}

/// Answers those that a read shows to be refused; the others stay.
async fn read_denied(
    batch: &mut Batch<Take>,
    connection: &mut OpenConnection,
) -> Result<(), Failure> {
    let of = |take: &Take| ReadLevel {
        namespace: take.namespace.clone(),
        key: take.key.clone(),
    };
    let reads: Vec<_> = batch
        .requests
        .iter()
        .filter(|take| take.read_first)
        .map(of)
        .collect();
    if reads.is_empty() {
        return Ok(());
    }
    // It takes nothing.
    let levels = connection.perform(&reads).await;
    let mut levels = levels.map_err(Failure::undone)?.into_iter();
    for (take, callers) in batch.take() {
        match take.read_first.then(|| levels.next()).flatten() {
            Some(current) if take.is_refused(&current) => {
                let outcome = Outcome::Refused;
                let (level, now) = (current.level, current.now);
                let decided = RawDecision {
                    outcome,
                    level,
                    now,
                };
                batch.answer(
                    callers.len(),
                    distribute(&take, callers, decided, connection.repeated),
                );
            }
            _ => batch.push(take, callers),
        }
    }
    Ok(())
}

/// The answers to the callers, in the order of arrival.
fn distribute(
    take: &Take,
    callers: Callers<RawDecision>,
    decided: RawDecision,
    repeated: Repeated,
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
            refused(repeated)
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

/// A refusal: what is in its way may be its own first try.
pub(super) fn refused(repeated: Repeated) -> Outcome {
    if repeated.0 {
        Outcome::Unknown
    } else {
        Outcome::Refused
    }
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

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use proptest::prelude::*;

    use super::*;
    use crate::blocking::block_on;
    use crate::engine::ManualClock;
    use crate::limit::{Decision, PermitRequest, Quota};
    use crate::memory::Database;

    /// Of other rates, other bursts, or both.
    const QUOTAS: [Quota; 4] = [
        Quota::per_hour(100),
        Quota::per_hour(100).burst(40),
        Quota::per_hour(200).burst(60),
        Quota::per_hour(50).burst(100),
    ];

    /// One statement decides all requests for a key, as the server would one by one.
    #[test]
    fn requests_of_one_key_and_two_quotas_are_one_statement() {
        let of = |nth: usize| {
            let quota = QUOTAS[nth % 2];
            Take {
                namespace: String::new(),
                key: "door".to_owned(),
                price: quota.price(1),
                depth: quota.price(quota.limit()),
                times: 1,
                relaxed: false,
                read_first: false,
            }
        };
        let caller = || Caller {
            times: 1,
            reply: Reply::new(|_, _: Repeated| ()),
        };
        let requests = (0..200).filter_map(|nth| Some((of(nth), Callers::of(vec![caller()], 0)?)));
        let batch: Batch<Take> = requests.collect();
        let sums = sums(&batch, &HashMap::new());
        assert_eq!((sums.len(), sums[0].members.len()), (1, 200));
        // Forty of the smaller burst's, as long as nothing is owed; the others have what is left of the larger.
        let fit = sums[0].members.iter().map(|(_, fits)| fits);
        assert_eq!(fit.sum::<i64>(), 100);
        let one = QUOTAS[0].price(1);
        assert_eq!(
            (sums[0].take.price, sums[0].take.depth),
            (one * 100, one * 100)
        );
    }

    /// Nobody joins an equal request across one of another cost.
    #[test]
    fn permits_of_windows_are_given_in_the_order_of_arrival() {
        let backend = block_on(Database::new().connect()).unwrap();
        for quota in [Quota::per_hour(10), Quota::per_hour(10).fixed_window()] {
            let limiter = backend.rate_limiter(quota).unwrap();
            let key = format!("{:?}", quota.algorithm());
            let requests = [1, 9, 1].map(|cost| PermitRequest::new(&*key).cost(cost));
            let decided = block_on(limiter.check_each(&requests)).unwrap();
            let admitted: Vec<_> = decided.iter().map(Decision::is_admitted).collect();
            assert_eq!(admitted, [true, true, false], "{key}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whether they travel together or one by one, the same are admitted, whatever their quotas are.
        #[test]
        fn costs_that_differ_are_decided_in_the_order_of_arrival(
            costs in prop::collection::vec((1_u64..40, any::<bool>(), 0..QUOTAS.len()), 1..60),
            before in 0_u64..100,
        ) {
            let clock = ManualClock::default();
            let backend = block_on(Database::with_clock(&clock).connect()).unwrap();
            let limiter = backend.rate_limiter(QUOTAS[0]).unwrap();
            let key = |way: &str, other: bool| format!("{way}/{other}");
            for way in ["together", "apart"] {
                if before > 0 {
                    let taken = block_on(limiter.check_cost(key(way, false), before)).unwrap();
                    prop_assert!(taken.is_admitted());
                }
            }
            let check = async |way: &str, (cost, other, quota): (u64, bool, usize)| {
                let request = PermitRequest::new(key(way, other)).cost(cost).quota(QUOTAS[quota]);
                let decided = limiter.check_each(&[request]).await.unwrap();
                (decided[0].is_admitted(), decided[0].remaining())
            };
            let together = block_on(join_all(costs.iter().map(|one| check("together", *one))));
            let apart = block_on(async {
                let mut apart = Vec::new();
                for one in &costs {
                    apart.push(check("apart", *one).await);
                }
                apart
            });
            // A refusal may tell what remained before those that travelled with it.
            let visible = |all: &[(bool, u64)]| all.iter().map(|one| (one.0, one.0.then_some(one.1))).collect::<Vec<_>>();
            let (together, apart) = (visible(&together), visible(&apart));
            prop_assert_eq!(together, apart);
        }
    }
}
