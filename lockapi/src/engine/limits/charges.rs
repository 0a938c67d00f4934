//! Requests of several limits, as they wait for their statement.

use std::any::Any;
use std::collections::{HashSet, VecDeque};

use super::super::link::Link;
use super::super::piles::{self, Pile, Served, divide};
use super::takes::{contended, expire};
use crate::error::Failure;
use crate::limit::{Charge, Ensure, Judged, Outcome};
use crate::seam::Connection;

/// The most lines in one statement, unless one request has more.
const MAX_LINES: usize = 1024;
/// How often a request is repeated whose rows others changed meanwhile.
const TRIES: u32 = 100;

pub(super) type Reply = piles::Reply<Vec<Judged>>;

struct Request {
    charge: Charge,
    reply: Reply,
    tries: u32,
}

/// The requests that wait; `RELAXED` ones do not wait for the disk.
#[derive(Default)]
pub(super) struct Charges<const RELAXED: bool>(VecDeque<Request>);

impl<const RELAXED: bool> Charges<RELAXED> {
    pub(super) fn add(&mut self, charge: Charge, reply: Reply) {
        self.0.push_back(Request {
            charge,
            reply,
            tries: 0,
        });
    }

    /// The requests of the next statement, no two of which have a key in common. Who comes after one
    /// that has to wait does not overtake it.
    fn draw(&mut self) -> Vec<Request> {
        let mut keys = HashSet::new();
        let mut lines = 0;
        let mut drawn = Vec::new();
        let mut left = VecDeque::new();
        for request in std::mem::take(&mut self.0) {
            let of = || request.charge.lines.iter().map(|line| line.key.clone());
            let fits = drawn.is_empty() || lines + request.charge.lines.len() <= MAX_LINES;
            let apart = of().all(|key| !keys.contains(&key));
            keys.extend(of());
            if fits && apart {
                lines += request.charge.lines.len();
                drawn.push(request);
            } else {
                left.push_back(request);
            }
        }
        self.0 = left;
        drawn
    }
}

impl<const RELAXED: bool, N: Connection + 'static> Pile<N> for Charges<RELAXED> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn serve<'a>(&'a mut self, link: &'a mut Link<N>) -> Served<'a> {
        Box::pin(async move {
            let drawn = self.draw();
            let charges: Vec<_> = drawn.iter().map(|one| one.charge.clone()).collect();
            let answers = match link.perform(&charges).await {
                Ok(answers) => answers,
                Err(failure) => {
                    for request in drawn.into_iter().rev() {
                        self.0.push_front(request);
                    }
                    return Err(failure);
                }
            };
            let (mut absent, mut overdue) = (Vec::new(), Vec::new());
            for (mut request, judged) in drawn.into_iter().zip(answers) {
                let mut again = false;
                let namespace = &request.charge.namespace;
                for (line, judged) in request.charge.lines.iter().zip(&judged) {
                    match judged.outcome {
                        Outcome::Taken(_) | Outcome::Refused => continue,
                        Outcome::Again => {}
                        Outcome::Absent => absent.push(Ensure {
                            namespace: namespace.clone(),
                            key: line.key.clone(),
                        }),
                        Outcome::Overdue => overdue.push(expire(namespace, &line.key)),
                    }
                    again = true;
                }
                if !again {
                    request.reply.send(Ok(judged));
                } else if request.tries == TRIES {
                    request.reply.send(Err(contended("check")));
                } else {
                    request.tries += 1;
                    self.0.push_front(request);
                }
            }
            if !absent.is_empty() {
                link.perform(&absent).await?;
            }
            if !overdue.is_empty() {
                link.perform(&overdue).await?;
            }
            Ok(())
        })
    }

    fn split(&mut self, parts: usize) -> Vec<Box<dyn Pile<N>>> {
        divide(self.draw(), parts)
            .map(|part| -> Box<dyn Pile<N>> { Box::new(Self(part.into())) })
            .collect()
    }

    fn join(&mut self, fresh: &mut dyn Pile<N>) {
        let Some(fresh) = fresh.as_any().downcast_mut::<Self>() else {
            return;
        };
        let lines = self.0.iter().flat_map(|request| &request.charge.lines);
        let keys: HashSet<_> = lines.map(|line| line.key.clone()).collect();
        for request in std::mem::take(&mut fresh.0) {
            let mut lines = request.charge.lines.iter();
            if lines.any(|line| keys.contains(&line.key)) {
                self.0.push_back(request);
            } else {
                fresh.0.push_back(request);
            }
        }
    }

    fn refuse(&mut self, failure: &Failure) {
        for request in self.draw() {
            request.reply.send(Err(failure.error("check")));
        }
    }

    /// What was taken twice is a loss to the caller, and no more than that.
    fn is_repeatable(&self) -> bool {
        true
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
