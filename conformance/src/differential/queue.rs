//! Random sequences of operations on a queue.

mod actions;
mod dead;
mod expiring;
mod groups;
mod listing;
mod seen;

use std::collections::BTreeMap;
use std::time::Duration;

use lockapi::driver::Connection;
use lockapi::queue::{Headers, How, JobResult, Outcome, Pushed, ResultValue, Ticket, Unique};
use lockapi::suite::driver::Operation;
use lockapi::suite::memory::ModelState;
use lockapi::suite::queue::{
    Ack, AckWithResult, Cancel, Claimed, CompleteAndClaim, CompletedAndClaimed, DELETED, FOR_EVER,
    HoldKey, Keys, LimitRow, Name, NewJob, Push, PushKeyed, ReadDeliveryState, ReadResult, Report,
    SearchBelowFloors, SetNamePaused, SetPaused, SetQueueLimit, Settle, SweepQueues, SweepResults,
    Take,
};

pub use actions::{Action, GroupAction, actions};
use groups::in_group;

use super::{UNIT, near, perform};

/// Between two actions some time passes on a server.
const STEP: i64 = 1000;

/// What the name of the other namespace ends with.
pub const OTHER: &str = " too";

/// Something that each side has its own number for.
type Both<T> = (T, T);

struct Pair<'a, C> {
    connection: &'a mut C,
    model: ModelState,
    /// The queue that has its turn.
    name: Name,
    jobs: Vec<Both<i64>>,
    tickets: Vec<Both<Ticket>>,
    /// The number of the last claim.
    claim: i64,
}

/// One queue, another of its namespace, and one of the same name in another namespace.
fn queue(namespace: &str, number: u8) -> Name {
    let (other, queue) = match number {
        0 => ("", "work"),
        1 => ("", "play"),
        _ => (OTHER, "work"),
    };
    Name {
        namespace: format!("{namespace}{other}"),
        queue: queue.to_owned(),
    }
}

/// Runs actions on both sides. `elapse` makes what is in the namespace older, and in the [other](OTHER).
///
/// # Panics
/// When the two sides answer differently.
pub async fn run<C: Connection>(
    connection: &mut C,
    namespace: &str,
    actions: &[Action],
    mut elapse: impl FnMut(Duration),
) {
    let mut pair = Pair {
        connection,
        model: ModelState::default(),
        name: queue(namespace, 0),
        jobs: Vec::new(),
        tickets: Vec::new(),
        claim: 0,
    };
    pair.model.now = 1_000_000 * UNIT;
    for action in actions {
        pair.model.now += STEP;
        match action {
            Action::Elapse(units) => {
                pair.model.now += i64::from(*units) * UNIT;
                elapse(Duration::from_micros(UNIT.unsigned_abs()) * u32::from(*units));
            }
            Action::Turn(number) => pair.name = queue(namespace, *number),
            _ => pair.act(action).await,
        }
    }
}

fn new_job(number: usize, priority: u8, delay: u8, attempts: u8) -> NewJob {
    NewJob {
        name: format!("job {}", number % 2),
        payload: number.to_string(),
        priority: i64::from(priority),
        at: 0,
        delay: i64::from(delay) * UNIT,
        max_attempts: i64::from(attempts),
        // One in three may wait for a few units of time.
        ttl: if number.is_multiple_of(3) {
            4 * UNIT
        } else {
            0
        },
        group: String::new(),
        headers: headers(number / 2 % 3),
    }
}

/// So many headers.
fn headers(many: usize) -> Headers {
    let mut headers = Headers::default();
    if many == 2 {
        headers.insert("tags", "two,even,");
    }
    for nth in 0..many {
        headers.insert(format!("x-{nth}"), format!("\"{nth}\" \u{e4}\\\n"));
    }
    headers
}

/// The name of the jobs with odd numbers, or none.
fn names(odd: bool) -> Vec<String> {
    if odd {
        vec!["job 1".to_owned()]
    } else {
        Vec::new()
    }
}

impl<C: Connection> Pair<'_, C> {
    fn name(&self) -> Name {
        self.name.clone()
    }

    /// Runs a batch that may differ in its numbers.
    async fn compare<O: Operation>(&mut self, real: &[O], model: &[O]) -> Both<Vec<O::Output>> {
        let real = perform(self.connection, real).await;
        let rows = Operation::model(model, &mut self.model, 0);
        let rows = rows.expect("nobody waits");
        let model = O::decode(model, rows).expect("the model decodes");
        (real, model)
    }

    async fn both<O: Operation + Clone>(&mut self, one: O) -> Both<O::Output> {
        let batch = [one];
        let (mut real, mut model) = self.compare(&batch, &batch).await;
        (real.remove(0), model.remove(0))
    }

    async fn same<O: Operation + Clone>(&mut self, one: O) {
        let (real, model) = self.both(one).await;
        assert_eq!(real, model, "{}", O::STATEMENT.name);
    }

    /// The job that was pushed so many pushes ago.
    fn job(&self, back: u8) -> Both<i64> {
        let at = self.jobs.len().checked_sub(1 + usize::from(back));
        at.map_or((0, 0), |at| self.jobs[at])
    }

    fn ticket(&self, back: u8) -> Both<Ticket> {
        let none = Ticket { id: 0, token: 0 };
        let at = self.tickets.len().checked_sub(1 + usize::from(back));
        at.map_or((none, none), |at| self.tickets[at])
    }

    /// Both sides name the same job.
    fn same_job(&self, real: i64, model: i64) {
        let known = self.jobs.contains(&(real, model));
        assert!(known, "job {real} here, {model} there");
    }

    async fn act(&mut self, action: &Action) {
        match action {
            Action::Push(jobs) => self.push(jobs).await,
            Action::OfGroups(action) => self.of_groups(action).await,
            Action::Keyed(jobs) => self.keyed(jobs).await,
            Action::CompleteAndClaim(acks, claim) => self.turn(acks, *claim).await,
            Action::SearchBelowFloors(odd) => self.search_below_floors(*odd).await,
            Action::Settle(wants) => self.settle(wants).await,
            Action::Acks(wants) => {
                let wants: Vec<_> = wants
                    .iter()
                    .map(|(back, archive)| (self.ticket(*back), *archive))
                    .collect();
                let of = |side: fn(Both<Ticket>) -> Ticket| -> Vec<_> {
                    let acks = wants.iter().map(|(tickets, archive)| Ack {
                        ticket: side(*tickets),
                        keep: if *archive { UNIT } else { DELETED },
                    });
                    acks.collect()
                };
                let (real, model) = self.compare(&of(|it| it.0), &of(|it| it.1)).await;
                assert_eq!(real, model, "acknowledged");
            }
            Action::Stand(backs) => self.stand(backs).await,
            Action::Take(most) => {
                let take = Take {
                    namespace: self.name.namespace.clone(),
                    queue: self.name.queue.clone(),
                    most: i64::from(*most),
                    priorities: vec![3, 0, 2, 1],
                    worker: "worker".to_owned(),
                    keep: DELETED,
                };
                let (real, model) = self.both(take).await;
                assert_eq!(real.is_some(), model.is_some(), "limited");
                let (real, model) = (real.unwrap_or_default(), model.unwrap_or_default());
                assert_eq!(real.len(), model.len(), "taken");
                for (real, model) in real.iter().zip(&model) {
                    self.same_job(real.ticket.id, model.ticket.id);
                    assert_eq!(real.attempt, model.attempt);
                    assert_eq!(real.headers, model.headers);
                }
            }
            Action::Cancel(backs) => {
                let ids: Vec<_> = backs.iter().map(|back| self.job(*back)).collect();
                let of = |side: fn(Both<i64>) -> i64| {
                    [Cancel {
                        name: self.name(),
                        ids: ids.iter().copied().map(side).collect(),
                        keep: UNIT,
                    }]
                };
                let (real, model) = (of(|it| it.0), of(|it| it.1));
                let (real, model) = self.compare(&real, &model).await;
                let (real, model) = (&real[0].cancelled, &model[0].cancelled);
                assert_eq!(real.len(), model.len(), "cancelled");
                for (real, model) in real.iter().zip(model) {
                    self.same_job(*real, *model);
                }
            }
            Action::Purge(most) => self.purge(i64::from(*most)).await,
            Action::Redrive(most) => {
                self.redrive((Vec::new(), Vec::new()), i64::from(*most))
                    .await;
            }
            Action::Discard(most) => {
                self.discard((Vec::new(), Vec::new()), i64::from(*most))
                    .await;
            }
            Action::DeadLetters(backs, again) => self.dead_letters(backs, *again).await,
            Action::Pause(units) => self.pause(*units).await,
            Action::PauseName(odd, units) => self.pause_name(*odd, *units).await,
            Action::Limit(running, burst) => self.limit(*running, *burst).await,
            Action::Count(most) => self.count(i64::from(*most)).await,
            Action::Running(of_queue) => self.running(*of_queue).await,
            Action::CancelOne(back, running) => self.cancel_one(*back, *running).await,
            Action::Edit(back, edit, when) => self.edit_one(*back, *edit, *when).await,
            Action::List(..) | Action::Read(..) | Action::Queues => self.look_up(action).await,
            Action::Report(reports) => self.report(reports).await,
            Action::Results(wants) => self.results(wants).await,
            Action::ReadResults(backs, elsewhere) => self.read_results(backs, *elsewhere).await,
            Action::Sweep => self.sweep().await,
            Action::Expire(most, small, own) => self.expire(*most, *small, *own).await,
            Action::Elapse(_) | Action::Turn(_) => {}
        }
    }

    async fn pause(&mut self, units: Option<u8>) {
        let name = self.name();
        let topic = 0;
        self.same(SetPaused {
            name,
            paused: units.is_some(),
            time: i64::from(units.unwrap_or_default()) * UNIT,
            topic,
        })
        .await;
    }

    async fn pause_name(&mut self, odd: bool, units: Option<u8>) {
        let pause = SetNamePaused {
            name: self.name(),
            job: format!("job {}", u8::from(odd)),
            paused: units.is_some(),
            time: i64::from(units.unwrap_or_default()) * UNIT,
            topic: 0,
        };
        self.same(pause).await;
    }

    async fn limit(&mut self, running: Option<u8>, burst: Option<u8>) {
        let row = LimitRow {
            running: running.map(i64::from),
            permits: burst.map(|_| 1),
            period: burst.map(|_| UNIT * 1000),
            burst: burst.map(i64::from),
            step: burst.map(|_| UNIT * 1000),
        };
        let set = SetQueueLimit {
            name: self.name(),
            limit: Some(row).filter(|row| *row != LimitRow::default()),
            topics: Vec::new(),
        };
        self.same(set).await;
    }

    async fn stand(&mut self, backs: &[u8]) {
        let tickets: Vec<_> = backs.iter().map(|back| self.ticket(*back)).collect();
        let of = |side: fn(Both<Ticket>) -> Ticket| -> Vec<_> {
            let tickets = tickets.iter().copied().map(side);
            tickets.map(|ticket| ReadDeliveryState { ticket }).collect()
        };
        let (real, model) = self.compare(&of(|it| it.0), &of(|it| it.1)).await;
        assert_eq!(real, model, "where they stand");
    }

    async fn report(&mut self, reports: &[(u8, u8)]) {
        let reports: Vec<_> = reports
            .iter()
            .map(|(back, done)| (self.ticket(*back), *done))
            .collect();
        let of = |side: fn(Both<Ticket>) -> Ticket| -> Vec<_> {
            let reports = reports.iter().map(|(tickets, done)| Report {
                ticket: side(*tickets),
                millionths: i64::from(*done) * 1_000_000 / 255,
                note: format!("{done} '\"\\ \u{e4}"),
            });
            reports.collect()
        };
        let (real, model) = self.compare(&of(|it| it.0), &of(|it| it.1)).await;
        assert_eq!(real, model, "{reports:?}");
    }

    async fn sweep(&mut self) {
        // How many idempotency keys and results of others went with it is no matter.
        self.both(SweepQueues {
            namespace: self.name.namespace.clone(),
            from: (0, 0),
            most: 100,
        })
        .await;
        self.both(SweepResults {
            after: 0,
            most: 100_000,
        })
        .await;
    }

    async fn results(&mut self, wants: &[(u8, bool, u8)]) {
        let wants: Vec<_> = wants
            .iter()
            .map(|(back, archive, kept)| (self.ticket(*back), *archive, *kept))
            .collect();
        let of = |side: fn(Both<Ticket>) -> Ticket| -> Vec<_> {
            let acks = wants.iter().enumerate();
            let acks = acks.map(|(nth, (tickets, archive, kept))| AckWithResult {
                ack: Ack {
                    ticket: side(*tickets),
                    keep: if *archive { UNIT } else { DELETED },
                },
                result: ResultValue::new(&(nth, "'\"\\ \u{e4}")).expect("a result"),
                retention: i64::from(*kept) * UNIT,
            });
            acks.collect()
        };
        let (real, model) = self.compare(&of(|it| it.0), &of(|it| it.1)).await;
        assert_eq!(real, model, "completed with a result");
    }

    async fn read_results(&mut self, backs: &[u8], elsewhere: bool) {
        let mut name = self.name();
        if elsewhere {
            name.queue.push_str(" of others");
        }
        let ids: Vec<_> = backs.iter().map(|back| self.job(*back)).collect();
        let of = |side: fn(Both<i64>) -> i64| -> Vec<_> {
            let reads = ids.iter().map(|ids| ReadResult {
                name: name.clone(),
                id: side(*ids),
            });
            reads.collect()
        };
        let (real, model) = self.compare(&of(|it| it.0), &of(|it| it.1)).await;
        let text = |results: Vec<JobResult<ResultValue>>| -> Vec<_> {
            let results = results.into_iter();
            results
                .map(|it| (it.clone().value().map(|it| it.as_str().to_owned()), it))
                .collect()
        };
        assert_eq!(text(real), text(model), "{backs:?}");
    }

    async fn push(&mut self, jobs: &[(u8, u8, u8)]) {
        let first = self.jobs.len();
        let jobs = jobs
            .iter()
            .enumerate()
            .map(|(nth, (priority, delay, attempts))| {
                new_job(first + nth, *priority, *delay, *attempts)
            });
        let push = Push {
            namespace: self.name.namespace.clone(),
            queue: self.name.queue.clone(),
            jobs: jobs.collect(),
            topic: None,
        };
        let (real, model) = self.both(push).await;
        assert_eq!(real.len(), model.len());
        self.jobs.extend(real.into_iter().zip(model));
    }

    async fn keyed(&mut self, jobs: &[(u8, Option<u8>, u8, u8)]) {
        let unique = [Unique::Skip, Unique::Replace, Unique::Keep];
        let first = self.jobs.len();
        // Of several for one key one is answered, and it does not matter which; nor does it in which
        // order those of different keys are pushed.
        let unique_ones = jobs.first().is_some_and(|first| first.1.is_some());
        let of_a_kind = jobs.iter().filter(|job| job.1.is_some() == unique_ones);
        let once: BTreeMap<u8, _> = of_a_kind.map(|job| (job.0, job)).collect();
        let once = once.values();
        let batch: Vec<_> = once
            .enumerate()
            .map(|(nth, (key, mode, priority, delay))| PushKeyed {
                namespace: self.name.namespace.clone(),
                queue: self.name.queue.clone(),
                job: {
                    let job = new_job(first + nth, *priority, *delay, 2);
                    let of = |groups| if *key == 2 { (first + nth) % groups } else { 0 };
                    in_group(job, of(3), of(5) % 3)
                },
                keys: Keys {
                    unique_key: mode.map_or_else(String::new, |_| format!("u{key}")),
                    unique: unique[usize::from(mode.unwrap_or_default())],
                    idempotency_key: mode.map_or_else(|| format!("i{key}"), |_| String::new()),
                },
                topic: None,
            })
            .collect();
        for push in &batch {
            let (name, key) = (self.name(), push.keys.unique_key.clone());
            self.same(HoldKey { name, key }).await;
        }
        let (real, model) = self.compare(&batch, &batch).await;
        for (real, model) in real.into_iter().zip(model) {
            let how = |pushed: Option<Pushed>| pushed.map(|pushed| pushed.how);
            assert_eq!(how(real), how(model), "{batch:?}");
            let (Some(real), Some(model)) = (real, model) else {
                continue;
            };
            if real.how == How::New {
                self.jobs.push((real.id, model.id));
            } else {
                self.same_job(real.id, model.id);
            }
        }
    }

    async fn search_below_floors(&mut self, odd: bool) {
        let far = i64::MAX / 4;
        let search = SearchBelowFloors {
            name: self.name(),
            names: names(odd),
            priorities: (0..4).map(|it| (it, 0, (far, i64::MAX))).collect(),
            lost: vec![self.claim],
        };
        let (real, model) = self.both(search).await;
        assert_eq!(real.found.len(), model.found.len());
        for (real, model) in real.found.iter().zip(&model.found) {
            assert_eq!(real.0, model.0);
            self.same_job(real.1.1, model.1.1);
        }
    }

    async fn turn(
        &mut self,
        acks: &[u8],
        (most, lease, low_first, odd, small): (u8, u8, bool, bool, bool),
    ) {
        let tickets: Vec<_> = acks.iter().map(|back| self.ticket(*back)).collect();
        let mut priorities: Vec<_> = (0..4).map(|priority| (priority, (0, 0))).collect();
        if low_first {
            priorities.reverse();
        }
        // Now and then the answer of the claim before was lost.
        let lost = if lease == 3 {
            vec![self.claim]
        } else {
            Vec::new()
        };
        self.claim += 1;
        let claim = self.claim;
        let of = |side: fn(Both<Ticket>) -> Ticket| {
            let acks = tickets.iter().map(|tickets| Ack {
                ticket: side(*tickets),
                keep: DELETED,
            });
            [CompleteAndClaim {
                acks: acks.collect(),
                namespace: self.name.namespace.clone(),
                queue: self.name.queue.clone(),
                most: i64::from(most),
                lease: i64::from(lease) * UNIT,
                priorities: priorities.clone(),
                worker: "worker".to_owned(),
                claim,
                lost: lost.clone(),
                names: names(odd),
                bytes: if small { 2 } else { 1000 },
                keep_dead: if odd { UNIT } else { FOR_EVER },
                limited: false,
            }]
        };
        let (real, model) = (of(|it| it.0), of(|it| it.1));
        let (mut real, mut model) = self.compare(&real, &model).await;
        let (real, model) = (real.remove(0), model.remove(0));
        let of = |turned: &CompletedAndClaimed| {
            let paused = turned.paused.is_some();
            let limited = (
                turned.limited,
                turned.next_due.is_some(),
                turned.read.is_some(),
            );
            (
                turned.acked.clone(),
                turned.picked,
                turned.parked,
                paused,
                limited,
            )
        };
        assert_eq!(of(&real), of(&model));
        assert_eq!(real.claimed.len(), model.claimed.len());
        for (real, model) in real.claimed.into_iter().zip(model.claimed) {
            self.claimed(&real, &model);
        }
        match (real.next_due, model.next_due) {
            (Some(real), Some(model)) => near(real, model),
            (real, model) => assert_eq!(real, model, "the next that is due"),
        }
    }

    fn claimed(&mut self, real: &Claimed, model: &Claimed) {
        self.same_job(real.ticket.id, model.ticket.id);
        let of = |job: &Claimed| {
            let numbers = (job.attempt, job.max_attempts, job.priority);
            let content = (job.name.clone(), job.payload.clone());
            (numbers, content, job.headers.clone())
        };
        assert_eq!(of(real), of(model));
        let mut before = self.tickets.iter();
        let larger = |before: &Both<Ticket>| {
            before.0.id != real.ticket.id || before.0.token < real.ticket.token
        };
        assert!(before.all(larger), "tokens grow");
        self.tickets.push((real.ticket, model.ticket));
    }

    async fn settle(&mut self, wants: &[(u8, u8, u8)]) {
        let wants: Vec<_> = wants
            .iter()
            .map(|(back, kind, time)| {
                let time = Duration::from_micros(UNIT.unsigned_abs()) * u32::from(*time);
                let error = format!("error {kind}");
                let outcome = match kind {
                    0 => Outcome::Nack { error, after: time },
                    1 => Outcome::Reject { error },
                    2 => Outcome::Snooze(time),
                    3 => Outcome::Release,
                    4 => Outcome::Abandon,
                    5 => Outcome::Extend(time),
                    6 => Outcome::Defer(time),
                    7 => Outcome::Interrupt,
                    _ => Outcome::Ack,
                };
                (self.ticket(*back), outcome)
            })
            .collect();
        let of = |side: fn(Both<Ticket>) -> Ticket| -> Vec<_> {
            let settled = wants.iter().map(|(tickets, outcome)| {
                let (ticket, keep) = (side(*tickets), UNIT);
                let completion = || Settle::completion(Ack { ticket, keep });
                Settle::new(ticket, outcome, keep).unwrap_or_else(completion)
            });
            settled.collect()
        };
        let (real, model) = self.compare(&of(|it| it.0), &of(|it| it.1)).await;
        assert_eq!(real, model, "{wants:?}");
    }
}
