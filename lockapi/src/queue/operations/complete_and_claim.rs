//! Completing and claiming, in one round trip.

use super::manage::Name;
use super::settle::{Ack, acked, acks};
use crate::driver::columns::{maybe_int, maybe_text};
use crate::driver::{Operation, Row, Rows, Statement, Type, Value};
use crate::error::Failure;
use crate::memory::ModelState;
use crate::queue::{Headers, Ticket};

/// Where a claim of one priority starts: after this time and number.
pub type Floor = (i64, i64);

/// Completes deliveries and claims jobs; a batch of one.
#[derive(Clone, Debug)]
pub struct CompleteAndClaim {
    /// What is done, of any queue.
    pub acks: Vec<Ack>,
    /// Namespace of the backend.
    pub namespace: String,
    /// Name of the queue to claim from.
    pub queue: String,
    /// How many jobs at most.
    pub most: i64,
    /// How long each is kept from others, in microseconds.
    pub lease: i64,
    /// The numbers of the priorities in the order in which they are searched, and where to start.
    pub priorities: Vec<(i64, Floor)>,
    /// Who claims.
    pub worker: String,
    /// The number of this claim, which no other has.
    pub claim: i64,
    /// The numbers of claims whose answers were lost: what they took is claimed again.
    pub lost: Vec<i64>,
    /// The names of the jobs; an empty list means all.
    pub names: Vec<String>,
    /// The most bytes of payload, except for the last job.
    pub bytes: i64,
    /// How long jobs that are dead letters by now are kept, in microseconds;
    /// [`FOR_EVER`](super::FOR_EVER) means until they are discarded.
    pub keep_dead: i64,
    /// Whether the queue is known to have a limit; it is found out in any case.
    pub limited: bool,
}

/// The answer to a [`CompleteAndClaim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedAndClaimed {
    /// Which of the completions were those of the latest delivery.
    pub acked: Vec<bool>,
    /// What was claimed, in the order of the claim.
    pub claimed: Vec<Claimed>,
    /// How many jobs were found: those claimed, and those that became dead letters; as many as were
    /// requested when there was no room for more bytes.
    pub picked: i64,
    /// A hash of the names that are paused; `None` where none is.
    pub paused: Option<i64>,
    /// How many entries of the index of due jobs were read; `None` where the queue is paused.
    pub read: Option<i64>,
    /// The server's time, in microseconds since 1970: jobs that were due then were considered.
    pub now: i64,
    /// When the next job is due, in microseconds from now; only set when fewer jobs were picked
    /// than requested. Where the limit of the queue held jobs back, or has nothing left, when its next permit comes.
    pub next_due: Option<i64>,
    /// Whether the limit of the queue held jobs back; `None` where it has none.
    pub limited: Option<Limited>,
    /// Whether there are parked jobs, which may be admitted; only set when fewer jobs were picked than
    /// requested.
    pub parked: bool,
}

impl CompletedAndClaimed {
    /// Whether a limit held jobs back: the claim has not looked at all.
    pub(crate) fn is_held_back(&self) -> bool {
        let back = [Limited::Full, Limited::Busy, Limited::Again];
        self.limited.is_some_and(|limited| back.contains(&limited))
    }

    /// Whether what comes next is a permit.
    pub(crate) fn waits_for_permit(&self) -> bool {
        self.limited.is_some_and(|limited| limited != Limited::No)
    }
}

/// What the limit of a queue did to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// Nothing.
    No,
    /// All places or permits are taken.
    Full,
    /// Another claim is under way.
    Busy,
    /// It left something for the next claim.
    Again,
    /// It got all that it wanted, and the last places or permits.
    Spent,
}

impl Limited {
    fn read(column: Option<i64>) -> Result<Option<Self>, Failure> {
        column
            .map(|column| match column {
                0 => Ok(Self::No),
                1 => Ok(Self::Full),
                2 => Ok(Self::Busy),
                3 => Ok(Self::Again),
                4 => Ok(Self::Spent),
                _ => Err(Failure::corrupt("an unknown state of a limit")),
            })
            .transpose()
    }
}

/// A job that was claimed; times in microseconds since 1970.
#[derive(Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The delivery.
    pub ticket: Ticket,
    /// Which delivery of the job it is, from 1 on.
    pub attempt: i64,
    /// How often the job is delivered at most.
    pub max_attempts: i64,
    /// The number of its priority.
    pub priority: i64,
    /// When it was due.
    pub run_at: i64,
    /// When it was pushed.
    pub created_at: i64,
    /// What kind of job it is.
    pub name: String,
    /// Its payload, as JSON.
    pub payload: String,
    /// Its headers.
    pub headers: Headers,
    /// The group that it is in.
    pub group: Option<String>,
}

/// Without the payload.
impl std::fmt::Debug for Claimed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claimed")
            .field("ticket", &self.ticket)
            .field("attempt", &self.attempt)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl CompleteAndClaim {
    pub(crate) fn queue_name(&self) -> Name {
        Name {
            namespace: self.namespace.clone(),
            queue: self.queue.clone(),
        }
    }
}

impl Operation for CompleteAndClaim {
    type Output = CompletedAndClaimed;

    const STATEMENT: Statement = Statement {
        name: "queue.complete_and_claim",
        sql: include_str!("complete_and_claim.sql"),
        params: &[
            Type::Ints,
            Type::Ints,
            Type::Ints,
            Type::Text,
            Type::Text,
            Type::Int,
            Type::Ints,
            Type::Ints,
            Type::Int,
            Type::Ints,
            Type::Text,
            Type::Int,
            Type::Ints,
            Type::Texts,
            Type::Int,
            Type::Int,
        ],
        columns: &[
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Int,
            Type::Text,
            Type::Text,
            Type::Ints,
            Type::Text,
            Type::Text,
        ],
    };

    const SIMPLE: Option<Statement> = Some(Statement {
        name: "queue.complete_and_claim_unlimited",
        sql: include_str!("complete_and_claim_unlimited.sql"),
        params: Self::STATEMENT.params,
        columns: Self::STATEMENT.columns,
    });

    fn is_simple(batch: &[Self]) -> bool {
        batch.iter().all(|one| !one.limited)
    }

    fn simple_params(batch: &[Self]) -> Vec<Value> {
        Self::params(batch)
    }

    fn params(batch: &[Self]) -> Vec<Value> {
        batch
            .iter()
            .take(1)
            .flat_map(|one| {
                let priorities = |field: fn(&(i64, Floor)) -> i64| {
                    Value::Ints(one.priorities.iter().map(field).collect())
                };
                let mut params = acks(&one.acks);
                params.extend([
                    Value::Text(one.namespace.clone()),
                    Value::Text(one.queue.clone()),
                    Value::Int(one.lease),
                    priorities(|priority| priority.0),
                    priorities(|priority| priority.1.0),
                    Value::Int(one.most),
                    priorities(|priority| priority.1.1),
                    Value::Text(one.worker.clone()),
                    Value::Int(one.claim),
                    Value::Ints(one.lost.clone()),
                    Value::Texts(one.names.clone()),
                    Value::Int(one.bytes),
                    Value::Int(one.keep_dead),
                ]);
                params
            })
            .collect()
    }

    fn decode(batch: &[Self], rows: Rows) -> Result<Vec<CompletedAndClaimed>, Failure> {
        let Some(one) = batch.first() else {
            return Ok(Vec::new());
        };
        let mut claimed = Vec::new();
        let mut rest = None;
        for mut row in rows {
            let Some(n) = row.maybe_int(0)? else {
                rest = Some((
                    row.int(1)?,
                    (row.maybe_int(2)?, row.int(7)?),
                    row.maybe_int(6)?,
                    row.ints(10)?,
                    (row.maybe_int(3)?, row.maybe_int(4)?),
                    Limited::read(row.maybe_int(5)?)?,
                ));
                continue;
            };
            let job = Claimed {
                ticket: Ticket {
                    id: row.int(1)?,
                    token: row.int(2)?,
                },
                attempt: row.int(3)?,
                max_attempts: row.int(4)?,
                priority: row.int(5)?,
                run_at: row.int(6)?,
                created_at: row.int(7)?,
                name: row.text(8)?,
                payload: row.text(9)?,
                headers: Headers::read(row.maybe_text(11)?.as_deref()),
                group: row.maybe_text(12)?,
            };
            claimed.push((n, job));
        }
        let (picked, (read, now), next_due, done, (parked, paused), limited) =
            rest.ok_or_else(|| Failure::corrupt("the row of totals is missing"))?;
        claimed.sort_unstable_by_key(|(n, _)| *n);
        Ok(vec![CompletedAndClaimed {
            acked: acked(&one.acks, done),
            claimed: claimed.into_iter().map(|(_, job)| job).collect(),
            picked,
            paused,
            read,
            now,
            next_due,
            limited,
            parked: parked.is_some_and(|parked| parked > 0),
        }])
    }

    fn model(batch: &[Self], model: &mut ModelState, _: u64) -> Option<Rows> {
        let one = batch.first()?;
        let now = model.now;
        let done = model.ack_jobs(&one.acks);
        let (picked, limit, claimed) = model.jobs.claim(now, one);
        let held_back = limit.is_some_and(|limit| limit.held_back != Limited::No);
        let mut rows = Rows::new();
        for (n, job) in (1..).zip(claimed) {
            rows.push(Row(vec![
                Value::Int(n),
                Value::Int(job.ticket.id),
                Value::Int(job.ticket.token),
                Value::Int(job.attempt),
                Value::Int(job.max_attempts),
                Value::Int(job.priority),
                Value::Int(job.run_at),
                Value::Int(job.created_at),
                Value::Text(job.name),
                Value::Text(job.payload),
                Value::Null(Type::Ints),
                maybe_text(job.headers.column().as_deref()),
                maybe_text(job.group.as_deref()),
            ]));
        }
        let next_due = match limit {
            Some(limit) if held_back => limit.next_in,
            _ if picked < one.most => model.jobs.next_due(now, one),
            _ => None,
        };
        let parked = (picked < one.most && !held_back)
            .then(|| i64::from(model.jobs.has_parked(&one.namespace, &one.queue)));
        let null = Value::Null(Type::Int);
        rows.push(Row(vec![
            null.clone(),
            Value::Int(picked),
            (!model.jobs.is_paused(now, &one.queue_name())
                && limit.is_none_or(|limit| limit.room > 0))
            .then_some(0)
            .map_or(null.clone(), Value::Int),
            maybe_int(parked),
            maybe_int(model.jobs.hash_of_paused(now, &one.queue_name())),
            maybe_int(limit.map(|limit| limit.held_back as i64)),
            next_due.map_or(null, Value::Int),
            Value::Int(now),
            Value::Null(Type::Text),
            Value::Null(Type::Text),
            Value::Ints(done),
            Value::Null(Type::Text),
            Value::Null(Type::Text),
        ]));
        Some(rows)
    }
}
