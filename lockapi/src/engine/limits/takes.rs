//! Requests for permits of single limits, as they wait for their statement.

use std::any::Any;
use std::collections::HashMap;

use super::super::link::Link;
use super::super::piles::{self, Pile, Served, divide};
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::limit::{Judged, Look, Outcome, Settle, Take};
use crate::seam::Connection;

/// The most keys in one statement.
const MAX_KEYS: usize = 1024;
/// How often a request is repeated whose row others changed meanwhile.
const TRIES: u32 = 100;

pub(super) type Reply = piles::Reply<Judged>;

/// Requests for one key at one price, which are one row of a statement.
struct Group {
    take: Take,
    /// How often each caller wants it at most, in the order of arrival.
    callers: Vec<(i64, Reply)>,
    /// Whether it is probably refused, so that a look is enough.
    look: bool,
    tries: u32,
}

/// The groups that wait; `RELAXED` ones do not wait for the disk.
#[derive(Default)]
pub(super) struct Takes<const RELAXED: bool> {
    /// One group for each key, the next statement's.
    next: Vec<Group>,
    places: HashMap<String, usize>,
    /// Groups of keys that the next statement has at another price.
    later: Vec<Group>,
}

impl<const RELAXED: bool> Takes<RELAXED> {
    pub(super) fn add(&mut self, take: Take, look: bool, reply: Reply) {
        let caller = (take.times, reply);
        if let Some(at) = self.places.get(&take.key) {
            let later = self.later.iter_mut().rev();
            let mut groups = later.chain(self.next.get_mut(*at));
            let group = groups.find(|group| {
                (&group.take.key, group.take.price, group.take.depth)
                    == (&take.key, take.price, take.depth)
            });
            if let Some(group) = group {
                group.take.times = group.take.times.saturating_add(take.times);
                group.callers.push(caller);
                return;
            }
            self.later.push(Group::new(take, look, caller));
            return;
        }
        self.places.insert(take.key.clone(), self.next.len());
        self.next.push(Group::new(take, look, caller));
    }

    /// Puts a group back that is to be asked again.
    fn put_back(&mut self, group: Group) {
        if self.places.contains_key(&group.take.key) {
            self.later.push(group);
            return;
        }
        self.places.insert(group.take.key.clone(), self.next.len());
        self.next.push(group);
    }

    /// The groups of the next statement.
    fn draw(&mut self) -> Vec<Group> {
        let from = self.next.len().saturating_sub(MAX_KEYS);
        let drawn = self.next.split_off(from);
        for group in &drawn {
            self.places.remove(&group.take.key);
        }
        drawn
    }

    /// Refuses what a look shows to be refused; answers the others.
    async fn look<N: Connection>(
        &mut self,
        link: &mut Link<N>,
        groups: Vec<Group>,
    ) -> Result<Vec<Group>, Failure> {
        let of = |group: &Group| Look {
            namespace: group.take.namespace.clone(),
            key: group.take.key.clone(),
        };
        let looks: Vec<_> = groups.iter().filter(|group| group.look).map(of).collect();
        if looks.is_empty() {
            return Ok(groups);
        }
        let levels = match link.perform(&looks).await {
            Ok(levels) => levels,
            Err(failure) => {
                for group in groups {
                    self.put_back(group);
                }
                return Err(failure);
            }
        };
        let mut levels = levels.into_iter();
        let mut left = Vec::new();
        for group in groups {
            match group.look.then(|| levels.next()).flatten() {
                Some(looked) if group.take.is_refused(&looked) => group.deal(&Judged {
                    outcome: Outcome::Refused,
                    level: looked.level,
                    now: looked.now,
                }),
                _ => left.push(group),
            }
        }
        Ok(left)
    }

    /// Lets those follow whose key had another price, when nothing else is to be done first.
    fn follow(&mut self) {
        if self.next.is_empty() {
            for group in std::mem::take(&mut self.later) {
                self.put_back(group);
            }
        }
    }
}

impl<const RELAXED: bool, N: Connection + 'static> Pile<N> for Takes<RELAXED> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn serve<'a>(&'a mut self, link: &'a mut Link<N>) -> Served<'a> {
        Box::pin(async move {
            let groups = self.draw();
            let groups = self.look(link, groups).await?;
            if groups.is_empty() {
                self.follow();
                return Ok(());
            }
            let takes: Vec<_> = groups.iter().map(|group| group.take.clone()).collect();
            let judged = match link.perform(&takes).await {
                Ok(judged) => judged,
                Err(failure) => {
                    // They are drawn again, or refused.
                    for group in groups {
                        self.put_back(group);
                    }
                    return Err(failure);
                }
            };
            let mut overdue = Vec::new();
            for (mut group, judged) in groups.into_iter().zip(judged) {
                match judged.outcome {
                    Outcome::Taken(_) | Outcome::Refused => group.deal(&judged),
                    Outcome::Again | Outcome::Absent | Outcome::Overdue if group.tries == TRIES => {
                        group.give_up();
                    }
                    outcome => {
                        if outcome == Outcome::Overdue {
                            overdue.push(expire(&group.take.namespace, &group.take.key));
                        }
                        group.tries += 1;
                        group.look = false;
                        self.put_back(group);
                    }
                }
            }
            self.follow();
            if !overdue.is_empty() {
                link.perform(&overdue).await?;
            }
            Ok(())
        })
    }

    fn split(&mut self, parts: usize) -> Vec<Box<dyn Pile<N>>> {
        let drawn = self.draw();
        self.follow();
        let pile = |groups: Vec<Group>| -> Box<dyn Pile<N>> {
            let mut part = Self::default();
            for group in groups {
                part.put_back(group);
            }
            Box::new(part)
        };
        divide(drawn, parts).map(pile).collect()
    }

    fn join(&mut self, fresh: &mut dyn Pile<N>) {
        let Some(fresh) = fresh.as_any().downcast_mut::<Self>() else {
            return;
        };
        let all = std::mem::take(fresh);
        for group in all.next.into_iter().chain(all.later) {
            if !self.places.contains_key(&group.take.key) {
                fresh.put_back(group);
                continue;
            }
            for (times, reply) in group.callers {
                let take = Take {
                    times,
                    ..group.take.clone()
                };
                self.add(take, group.look, reply);
            }
        }
    }

    fn refuse(&mut self, failure: &Failure) {
        for group in self.draw() {
            for (_, reply) in group.callers {
                reply.send(Err(failure.error("check")));
            }
        }
        self.follow();
    }

    /// What was taken twice is a loss to the caller, and no more than that.
    fn is_repeatable(&self) -> bool {
        true
    }

    fn is_empty(&self) -> bool {
        self.next.is_empty() && self.later.is_empty()
    }
}

impl Group {
    fn new(take: Take, look: bool, caller: (i64, Reply)) -> Self {
        Self {
            take,
            callers: vec![caller],
            look,
            tries: 0,
        }
    }

    /// Tells the callers, in the order of arrival, what is theirs.
    fn deal(self, judged: &Judged) {
        let mut left = match judged.outcome {
            Outcome::Taken(times) => times,
            _ => 0,
        };
        // As if they had been asked one by one.
        let mut level = judged.level.clone();
        level.tat -= left * self.take.price;
        for (wanted, reply) in self.callers {
            let times = wanted.min(left);
            left -= times;
            level.tat += times * self.take.price;
            reply.send(Ok(Judged {
                outcome: if times > 0 {
                    Outcome::Taken(times)
                } else {
                    Outcome::Refused
                },
                level: level.clone(),
                now: judged.now,
            }));
        }
    }

    fn give_up(self) {
        for (_, reply) in self.callers {
            reply.send(Err(contended("check")));
        }
    }
}

/// Ends the reservations of a key that have expired.
pub(super) fn expire(namespace: &str, key: &str) -> Settle {
    Settle {
        namespace: namespace.to_owned(),
        key: key.to_owned(),
        id: 0,
        price: 0,
    }
}

pub(super) fn contended(operation: &'static str) -> Error {
    let message = "others changed the same limits each time";
    Error::new(ErrorKind::Unavailable, operation, message)
}
