//! Everything that the processes have told.

use std::collections::{BTreeMap, HashMap};

use crate::record::{Call, Claimed, Grant, Kind, Outcome, Record, Source};
use crate::register::Registers;

/// What a program waits for after a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Primitive {
    Lock,
    Lease,
    Leader,
    Push,
    Claim,
    Permit,
    Id,
    Block,
}

impl Primitive {
    pub(crate) const ALL: [Self; 8] = [
        Self::Lock,
        Self::Lease,
        Self::Leader,
        Self::Push,
        Self::Claim,
        Self::Permit,
        Self::Id,
        Self::Block,
    ];

    /// Whether there have to be jobs to be pushed.
    pub(crate) fn is_of_jobs(self) -> bool {
        matches!(self, Self::Push | Self::Claim)
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Lease => "lease",
            Self::Leader => "leader",
            Self::Push => "push",
            Self::Claim => "claim",
            Self::Permit => "permit",
            Self::Id => "id",
            Self::Block => "block",
        }
    }
}

/// A holder's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) process: usize,
    pub(crate) grant: Grant,
    /// `None`: it still holds.
    pub(crate) ended: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) held: Vec<Held>,
    /// Where the grants of a process are in `held`.
    grants: HashMap<(usize, u64), usize>,
    pub(crate) registers: Registers,
    /// When the push of a number was answered, and whether it found the job of a call before it.
    pub(crate) pushed: HashMap<u64, (u64, bool)>,
    pub(crate) deliveries: Vec<(Claimed, Call)>,
    pub(crate) acks: Vec<(Claimed, Call, Outcome)>,
    pub(crate) admitted: BTreeMap<u32, Vec<Call>>,
    pub(crate) ids: BTreeMap<Source, Vec<i64>>,
    pub(crate) failed: BTreeMap<String, u64>,
    pub(crate) all_pushed: usize,
    answers: [Vec<u64>; Primitive::ALL.len()],
}

impl History {
    /// Takes note; answers whether a write is accepted, where that was asked.
    pub(crate) fn note(&mut self, process: usize, record: Record) -> Option<(u64, bool)> {
        match record {
            Record::Ready => {}
            Record::Granted { grant, granted } => {
                self.answered(primitive(granted.kind), granted.call);
                self.grants.insert((process, grant), self.held.len());
                self.held.push(Held {
                    process,
                    grant: granted,
                    ended: None,
                });
            }
            Record::Ended { grant, at } => {
                if let Some(held) = self.grants.get(&(process, grant)) {
                    self.held[*held].ended = Some(at);
                }
            }
            Record::Write { grant } => {
                let held = *self.grants.get(&(process, grant))?;
                return Some((grant, self.registers.write(&self.held[held].grant)));
            }
            Record::Pushed {
                numbers,
                found,
                call,
            } => {
                self.answered(Primitive::Push, call);
                let found = found > 0;
                let pushed = numbers.into_iter().map(|number| (number, (call.to, found)));
                self.pushed.extend(pushed);
            }
            Record::Claimed { jobs, call } => {
                self.answered(Primitive::Claim, call);
                self.deliveries
                    .extend(jobs.into_iter().map(|job| (job, call)));
            }
            Record::Acked { job, call, outcome } => self.acks.push((job, call, outcome)),
            Record::Admitted { limit, call } => {
                self.answered(Primitive::Permit, call);
                self.admitted.entry(limit).or_default().push(call);
            }
            Record::Made { source, ids, call } => {
                let primitive = match source {
                    Source::Snowflake => Primitive::Id,
                    Source::Blocks => Primitive::Block,
                };
                self.answered(primitive, call);
                self.ids.entry(source).or_default().extend(ids);
            }
            Record::Failed { operation, error } => {
                *self
                    .failed
                    .entry(format!("{operation} {error}"))
                    .or_default() += 1;
            }
            Record::AllPushed => self.all_pushed += 1,
        }
        None
    }

    fn answered(&mut self, primitive: Primitive, call: Call) {
        self.answers[primitive as usize].push(call.to);
    }

    /// When a call of this kind was first answered after a time.
    pub(crate) fn first_after(&self, primitive: Primitive, time: u64) -> Option<u64> {
        // What processes tell comes in almost in the order of time.
        let slack = time.saturating_sub(10_000_000);
        let answers = self.answers[primitive as usize].iter().rev();
        let recent = answers.copied().take_while(|answer| *answer > slack);
        recent.filter(|answer| *answer > time).min()
    }
}

fn primitive(kind: Kind) -> Primitive {
    match kind {
        Kind::Mutex => Primitive::Lock,
        Kind::Lease => Primitive::Lease,
        Kind::Leader => Primitive::Leader,
    }
}
