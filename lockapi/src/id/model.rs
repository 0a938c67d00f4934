//! The model of the statements of ids.

use std::collections::BTreeMap;

use super::operations::{ClaimWorker, NextBlock, ReleaseWorker, RenewWorker};
use crate::admin::ListWorkers;
use crate::driver::{Row, Rows, Value};
use crate::memory::Epoch;

/// Who runs ahead of the clock has so many milliseconds at a time.
const AHEAD: i64 = 1000;
/// For each second between two epochs so many ids are left out, as a power of two.
const LEFT_OUT_BITS: u32 = 24;

/// Namespace and name.
type Name = (String, String);

/// The tables of ids; times in microseconds since 1970, floors in milliseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids {
    layouts: BTreeMap<Name, (i64, i64, i64)>,
    /// By their numbers, which have no gap.
    workers: BTreeMap<Name, Vec<Worker>>,
    /// The first that nobody was given, and the epoch in which that was.
    next: BTreeMap<Name, (i64, i64)>,
}

#[derive(Clone, Debug)]
struct Worker {
    token: i64,
    floor: i64,
    owner: String,
    claimed_at: i64,
    renewed_at: i64,
    expires_at: i64,
}

/// A worker number that was allocated to a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    worker: i64,
    start: i64,
    floor: i64,
}

impl Allocation {
    /// Number, time to start at, floor.
    pub(crate) fn columns(self) -> [Option<i64>; 3] {
        [Some(self.worker), Some(self.start), Some(self.floor)]
    }
}

/// Up to when an owner that has come to a time makes ids.
fn floor(now: i64, position: i64, reserve: i64) -> i64 {
    (now / 1000 + reserve).max(position + reserve.min(AHEAD))
}

impl Ids {
    /// The layout of a name, which a claim whose epoch has come makes its own if there is none.
    pub(crate) fn layout(&mut self, now: i64, want: &ClaimWorker) -> Option<(i64, i64, i64)> {
        let name = (want.namespace.clone(), want.name.clone());
        let known = self.layouts.get(&name).copied();
        if known.is_none() && want.epoch.saturating_mul(1000) <= now {
            let layout = (want.worker_bits, want.sequence_bits, want.epoch);
            self.layouts.insert(name, layout);
            return Some(layout);
        }
        known
    }

    /// `None` when all are taken.
    pub(crate) fn claim(
        &mut self,
        now: i64,
        epoch: Epoch,
        want: &ClaimWorker,
    ) -> Option<Allocation> {
        let name = (want.namespace.clone(), want.name.clone());
        let workers = self.workers.entry(name).or_default();
        // The answer of the same request was lost.
        let own = (0..)
            .zip(workers.iter_mut())
            .find(|(_, worker)| worker.token == want.token && worker.expires_at > now);
        if let Some((at, own)) = own {
            own.floor = own.floor.max(floor(now, want.least, want.reserve));
            (own.renewed_at, own.expires_at) = (now, now + want.ttl);
            return Some(Allocation {
                worker: at,
                start: own.floor - want.reserve.min(AHEAD),
                floor: own.floor,
            });
        }
        // Renewed at a time still to come: the clock was set back.
        for worker in workers.iter_mut().filter(|worker| worker.token != 0) {
            let ahead = (worker.renewed_at - now).max(0);
            worker.renewed_at -= ahead;
            worker.expires_at -= ahead;
        }
        let free = (0..workers.len())
            .filter(|at| workers[*at].token == 0 || workers[*at].expires_at <= now)
            .min_by_key(|at| (workers[*at].expires_at, *at));
        let at = match free {
            Some(at) => at,
            None if workers.len() < 1 << want.worker_bits => {
                workers.push(Worker {
                    token: 0,
                    floor: 0,
                    owner: String::new(),
                    claimed_at: now,
                    renewed_at: now,
                    expires_at: now,
                });
                workers.len() - 1
            }
            None => return None,
        };
        let least = (epoch.begun_at / 1000)
            .saturating_add(epoch.id_lead)
            .max(want.least);
        let former = &workers[at];
        let lost = if former.renewed_at < epoch.begun_at {
            (epoch.begun_at - former.renewed_at) / 1000 + epoch.id_lead
        } else {
            0
        };
        let start = (former.floor + lost).max(least).max(now / 1000);
        workers[at] = Worker {
            token: want.token,
            floor: floor(now, start, want.reserve),
            owner: want.owner.clone(),
            claimed_at: now,
            renewed_at: now,
            expires_at: now + want.ttl,
        };
        Some(Allocation {
            worker: i64::try_from(at).unwrap_or(i64::MAX),
            start,
            floor: workers[at].floor,
        })
    }

    /// The floor; `None` when another has the number.
    pub(crate) fn renew(&mut self, now: i64, begun_at: i64, want: &RenewWorker) -> Option<i64> {
        let worker = self.worker(&want.namespace, &want.name, want.worker, want.token)?;
        if worker.expires_at <= now && worker.renewed_at < begun_at {
            return None;
        }
        worker.floor = worker.floor.max(floor(now, want.least, want.reserve));
        (worker.renewed_at, worker.expires_at) = (now, now + want.ttl);
        Some(worker.floor)
    }

    pub(crate) fn release(&mut self, now: i64, begun_at: i64, want: &ReleaseWorker) -> bool {
        let worker = self.worker(&want.namespace, &want.name, want.worker, want.token);
        let Some(worker) = worker else {
            return false;
        };
        worker.token = 0;
        if worker.renewed_at >= begun_at {
            worker.floor = worker.floor.min(want.floor);
        }
        worker.expires_at = worker.expires_at.min(now);
        true
    }

    /// The first ids of blocks; requests for one name are answered together.
    pub(crate) fn blocks(&mut self, epoch: Epoch, batch: &[NextBlock]) -> Vec<Option<i64>> {
        let mut totals: BTreeMap<Name, i64> = BTreeMap::new();
        for one in batch {
            let name = (one.namespace.clone(), one.name.clone());
            *totals.entry(name).or_default() += one.size;
        }
        let mut from: BTreeMap<Name, Option<i64>> = BTreeMap::new();
        for (name, total) in totals {
            let next = self.next.entry(name.clone()).or_insert((1, epoch.first));
            let first = next.0 + ((epoch.number - next.1) << LEFT_OUT_BITS);
            let after = first.checked_add(total).filter(|after| *after < i64::MAX);
            if let Some(after) = after {
                *next = (after, epoch.number);
            }
            from.insert(name, after.map(|_| first));
        }
        batch
            .iter()
            .map(|one| {
                let name = (one.namespace.clone(), one.name.clone());
                let next = from.get_mut(&name)?.as_mut()?;
                let first = *next;
                *next += one.size;
                Some(first)
            })
            .collect()
    }

    /// The rows of a list of worker numbers.
    pub(crate) fn list(&self, now: i64, want: &ListWorkers) -> Rows {
        let of = self.workers.iter();
        let of = of.filter(|((namespace, _), _)| *namespace == want.namespace);
        let all = of.flat_map(|((_, name), workers)| {
            let numbered = (0_i64..).zip(workers);
            numbered.map(move |(number, worker)| (name, number, worker))
        });
        let most = usize::try_from(want.most).unwrap_or_default();
        all.take(most.saturating_mul(10))
            .filter(|(.., worker)| worker.token != 0 && worker.expires_at > now)
            .take(most)
            .map(|(name, number, worker)| {
                Row(vec![
                    Value::Text(name.clone()),
                    Value::Int(number),
                    Value::Text(worker.owner.clone()),
                    Value::Int(now - worker.claimed_at),
                    Value::Int(worker.expires_at - now),
                ])
            })
            .collect()
    }

    /// How many worker numbers of a name are held.
    pub(crate) fn held(&self, now: i64, namespace: &str, name: &str) -> usize {
        let workers = self.workers.get(&(namespace.to_owned(), name.to_owned()));
        workers.map_or(0, |workers| {
            let held = workers
                .iter()
                .filter(|worker| worker.token != 0 && worker.expires_at > now);
            held.count()
        })
    }

    fn worker(
        &mut self,
        namespace: &str,
        name: &str,
        number: i64,
        token: i64,
    ) -> Option<&mut Worker> {
        let workers = self
            .workers
            .get_mut(&(namespace.to_owned(), name.to_owned()))?;
        let worker = workers.get_mut(usize::try_from(number).ok()?)?;
        (worker.token == token).then_some(worker)
    }
}
