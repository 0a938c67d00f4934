//! Requests that a batcher tries apart from the others, because the statement that carried them waited
//! for a lock of somebody's open transaction, or had data that the server refuses.

use std::collections::VecDeque;
use std::iter;
use std::time::Duration;

use super::batch::Requests;
use super::request::KindId;
use crate::engine::clock::Time;
use crate::error::{ErrorKind, Failure, LOCKED};

/// How long a statement of a batcher waits for a lock: for so long everything on the batcher waits with it.
const PATIENCE: Duration = Duration::from_millis(300);
/// The same while something is known to wait, since more of it may come.
const WARNED: Duration = Duration::from_millis(50);
/// How long a statement waits that carries requests of which it is not known yet which have to wait.
const SEARCH: Duration = Duration::from_millis(2);
/// How long the first statement of a request waits that is known to wait; each further one twice as long.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(80);
/// After a statement that timed out the batcher serves others for this many times as long.
const REST: u32 = 4;
/// Requests that join others within this time have one time limit.
const TOGETHER: Duration = Duration::from_millis(250);
/// Requests that failed together are divided into this number of parts, until each fails by itself.
const PARTS: usize = 16;

/// The requests of a batcher that are tried apart.
pub(super) struct Isolation {
    /// Those first of which it is not known whether they wait.
    groups: VecDeque<Group>,
    /// When the next of them is tried.
    next: Time,
    /// How long a request may wait for a lock.
    limit: Duration,
}

/// Requests that are tried together.
pub(super) struct Group {
    batch: Requests,
    /// Those for which the statement that is being tried has no room.
    behind: Option<Requests>,
    /// Later requests for the same rows, which are not tried before those, and until when each of them waits.
    joined: VecDeque<(Time, Requests)>,
    /// Whether it is known which of them wait.
    known: bool,
    lock_timeout: Duration,
    until: Time,
}

impl Group {
    /// What is to be tried, and how long it may wait for a lock.
    pub(super) fn turn(&mut self) -> (&mut Requests, Duration) {
        (&mut self.batch, self.lock_timeout)
    }

    fn join(&mut self, fresh: &mut Requests, until: Time) {
        let Some(meeting) = self.batch.meeting(fresh) else {
            return;
        };
        match self.joined.back_mut() {
            Some((last, batch)) if *last + TOGETHER > until => batch.append(meeting),
            _ => self.joined.push_back((until, meeting)),
        }
    }

    /// Refuses those that have waited for too long, and drops those whose callers have left; whether others are
    /// left.
    fn goes_on(&mut self, now: Time) -> bool {
        loop {
            if self.until <= now {
                let which = if self.known {
                    "a row that it needs"
                } else {
                    "a row that it or a call sent with it needs"
                };
                let message = format!("{which} is {LOCKED}");
                let failure = Failure::statement(Some("55P03".to_owned()), false, message);
                self.batch.refuse(&|name| failure.error(name));
            }
            self.batch.drop_cancelled();
            if !self.batch.is_empty() {
                return true;
            }
            let Some((until, batch)) = self.joined.pop_front() else {
                return false;
            };
            (self.until, self.batch) = (until, batch);
        }
    }
}

impl Isolation {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            groups: VecDeque::new(),
            next: Time::ZERO,
            limit,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// How long other statements may wait for a lock.
    pub(super) fn lock_timeout(&self) -> Duration {
        if self.is_empty() { PATIENCE } else { WARNED }
    }

    /// The time until something is to be tried; `idle` if the batcher has nothing else to do.
    pub(super) fn wait(&self, now: Time, idle: bool) -> Option<Duration> {
        // There is nobody to rest for, and most of these wait for nothing.
        let searches = idle && self.groups.front().is_some_and(|group| !group.known);
        let rest = || self.next.saturating_sub(now);
        (!self.is_empty()).then(|| if searches { Duration::ZERO } else { rest() })
    }

    /// What is to be tried now. Refuses what has waited for too long.
    pub(super) fn due(&mut self, now: Time, idle: bool) -> Option<Group> {
        if self.wait(now, idle) != Some(Duration::ZERO) {
            return None;
        }
        self.groups.retain_mut(|group| group.goes_on(now));
        let mut group = self.groups.pop_front()?;
        group.behind = group.batch.overflow();
        Some(group)
    }

    /// How many callers of each kind wait here.
    pub(super) fn callers(&self) -> impl Iterator<Item = (KindId, usize)> {
        let groups = self.groups.iter();
        groups.filter_map(|group| {
            let joined = group.joined.iter().map(|(_, batch)| batch.callers());
            let callers = group.batch.callers() + joined.sum::<usize>();
            Some((group.batch.kind()?, callers))
        })
    }

    /// Lets those of a batch wait apart that want what others are known to wait for.
    pub(super) fn join(&mut self, fresh: &mut Requests, now: Time) {
        for group in self.groups.iter_mut().filter(|group| group.known) {
            group.join(fresh, now + self.limit);
        }
    }

    /// Takes the requests of a statement that failed: those that others may be to blame for are
    /// tried again.
    pub(super) fn failed(&mut self, batch: &mut Requests, failure: &Failure, now: Time) {
        self.divide(batch, failure, now + self.limit);
    }

    /// Takes a group back that was tried; answers what a statement that nobody was in the way of left,
    /// which need not be apart any more.
    pub(super) fn tried(
        &mut self,
        mut group: Group,
        failure: Option<&Failure>,
        now: Time,
    ) -> Option<Requests> {
        if let Some(behind) = group.behind.take() {
            if group.batch.is_empty() {
                group.batch = behind;
            } else {
                group.batch.append(behind);
            }
        }
        let Some(failure) = failure else {
            let joined = group.joined.into_iter().map(|it| it.1);
            return together(iter::once(group.batch).chain(joined));
        };
        let waited = waited(failure);
        if waited {
            self.next = now + group.lock_timeout * REST;
        }
        if waited && group.known {
            group.lock_timeout = LONGEST.min(group.lock_timeout * 2);
            self.groups.push_back(group);
            return None;
        }
        self.divide(&mut group.batch, failure, group.until);
        together(group.joined.into_iter().map(|it| it.1))
    }

    fn divide(&mut self, batch: &mut Requests, failure: &Failure, until: Time) {
        let waited = waited(failure);
        let blamed = matches!(failure.kind(), ErrorKind::Corrupt | ErrorKind::Invalid);
        // An answer that cannot be read is one all the same.
        let done = failure.sent && failure.sqlstate.is_none();
        let again = !failure.broken && (!done || batch.are_repeatable());
        let of_one = waited && batch.wait() || blamed && again;
        if !of_one {
            batch.refuse(&|name| failure.error(name));
            return;
        }
        let parts = batch.split(PARTS);
        let known = parts.len() == 1;
        for mut batch in parts {
            if known && !waited {
                batch.refuse(&|name| failure.error(name));
                continue;
            }
            let group = Group {
                batch,
                behind: None,
                joined: VecDeque::new(),
                known,
                lock_timeout: if known { FIRST } else { SEARCH },
                until,
            };
            if known {
                self.groups.push_back(group);
            } else {
                self.groups.push_front(group);
            }
        }
    }
}

/// The requests of several batches of one kind, in their order.
fn together(batches: impl Iterator<Item = Requests>) -> Option<Requests> {
    let mut batches = batches.filter(|batch| !batch.is_empty());
    let mut all = batches.next()?;
    for batch in batches {
        all.append(batch);
    }
    Some(all)
}

/// Whether it is the lock of another transaction that was in the way.
fn waited(failure: &Failure) -> bool {
    !failure.broken && failure.kind() == ErrorKind::TimedOut
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::super::batch::Typed;
    use super::super::caller::{Caller, Repeated, Reply};
    use super::super::request::{MAX_WEIGHT, Pending};
    use super::*;
    use crate::queue::{Ack, Ticket};

    const LIMIT: Duration = Duration::from_secs(5);

    fn add(batch: &mut Requests, id: i64, answered: &Sender<(i64, ErrorKind)>) {
        let ticket = Ticket { id, token: 1 };
        let ack = Ack {
            ticket,
            keep: crate::queue::DELETED,
        };
        let answered = answered.clone();
        let reply = Reply::new(move |answer: crate::Result<bool>, _: Repeated| {
            let _left = answered.send((id, answer.unwrap_err().kind()));
        });
        batch.push(Pending::boxed(ack, Caller { times: 1, reply }));
    }

    fn failure(sqlstate: &str) -> Failure {
        Failure::statement(Some(sqlstate.to_owned()), false, "no")
    }

    /// As if they were answered.
    fn answer(requests: &mut Requests) {
        requests.refuse(&|name| failure("57014").error(name));
    }

    fn ids(batch: &mut Requests) -> Vec<i64> {
        let batch = Typed::<Ack>::from(batch);
        batch.requests.iter().map(|ack| ack.ticket.id).collect()
    }

    /// A hundred requests failed together; the failure was that of 7.
    fn tried(sqlstate: &str) -> (Isolation, Time, Receiver<(i64, ErrorKind)>) {
        let (answered, answers) = channel();
        let mut isolation = Isolation::new(LIMIT);
        let mut batch = Requests::default();
        for id in 0..100 {
            add(&mut batch, id, &answered);
        }
        let mut now = Time::ZERO;
        isolation.failed(&mut batch, &failure(sqlstate), now);
        while let Some(wait) = isolation
            .wait(now, false)
            .filter(|_| now < Duration::from_secs(1))
        {
            now += wait;
            let mut group = isolation.due(now, false).unwrap();
            let (batch, lock_timeout) = group.turn();
            if ids(batch).contains(&7) {
                now += lock_timeout;
                drop(isolation.tried(group, Some(&failure(sqlstate)), now));
            } else {
                answer(batch);
                assert!(isolation.tried(group, None, now).is_none());
            }
        }
        (isolation, now, answers)
    }

    #[test]
    fn one_waits_and_the_others_are_answered() {
        let (mut isolation, mut now, answers) = tried("55P03");
        let answered: Vec<_> = answers.try_iter().collect();
        assert_eq!(answered.len(), 99);
        assert!(answered.iter().all(|(id, _)| *id != 7));
        now = now.max(LIMIT);
        assert!(
            isolation.due(now, false).is_none(),
            "it has waited for long enough"
        );
        assert_eq!(answers.try_recv(), Ok((7, ErrorKind::TimedOut)));
        assert!(isolation.is_empty());
    }

    /// Requests for these, which join those that are known to wait at `now`.
    fn join(
        isolation: &mut Isolation,
        ids: &[i64],
        answered: &Sender<(i64, ErrorKind)>,
        now: Time,
    ) {
        let mut fresh = Requests::default();
        for id in ids {
            add(&mut fresh, *id, answered);
        }
        isolation.join(&mut fresh, now);
        assert!(!self::ids(&mut fresh).contains(&7));
    }

    fn waiting(isolation: &Isolation) -> usize {
        isolation.callers().map(|(_, callers)| callers).sum()
    }

    #[test]
    fn who_wants_the_same_waits_behind_it() {
        let (mut isolation, now, _) = tried("55P03");
        let (answered, _) = channel();
        join(&mut isolation, &[6, 7, 7, 8], &answered, now);
        assert_eq!(waiting(&isolation), 3);
        let mut group = isolation.due(now + LONGEST * REST, false).unwrap();
        let (batch, _) = group.turn();
        assert_eq!(ids(batch), [7]);
        answer(batch);
        let mut freed = isolation.tried(group, None, now).unwrap();
        assert_eq!(ids(&mut freed), [7, 7]);
        assert!(isolation.is_empty());
    }

    #[test]
    fn each_waits_for_its_own_time() {
        let (mut isolation, now, answers) = tried("55P03");
        drop(answers);
        let (answered, answers) = channel();
        let (earlier, later) = (now + LIMIT / 2, now + LIMIT / 2 + TOGETHER);
        join(&mut isolation, &[7], &answered, earlier);
        join(&mut isolation, &[7, 7], &answered, later);
        for (now, left) in [(LIMIT, 3), (earlier + LIMIT, 2)] {
            let group = isolation.due(now, false).unwrap();
            assert!(
                isolation
                    .tried(group, Some(&failure("55P03")), now)
                    .is_none()
            );
            assert_eq!(waiting(&isolation), left);
            isolation.next = now;
        }
        assert_eq!(answers.try_iter().count(), 1);
        assert!(isolation.due(later + LIMIT, false).is_none());
        assert_eq!(answers.try_iter().count(), 2);
    }

    #[test]
    fn there_is_no_rest_for_nobody() {
        let (answered, _) = channel();
        let mut isolation = Isolation::new(LIMIT);
        let mut batch = Requests::default();
        for id in 0..100 {
            add(&mut batch, id, &answered);
        }
        let mut now = Time::ZERO;
        isolation.failed(&mut batch, &failure("55P03"), now);
        for _ in 0..PARTS {
            let group = isolation.due(now, true).unwrap();
            now += SEARCH;
            drop(isolation.tried(group, Some(&failure("55P03")), now));
            assert_eq!(isolation.wait(now, false), Some(SEARCH * REST));
            assert_eq!(isolation.wait(now, true), Some(Duration::ZERO));
        }
        let (isolation, now, _) = tried("55P03");
        assert!(
            isolation.wait(now, true) > Some(Duration::ZERO),
            "it waits for one"
        );
    }

    #[test]
    fn a_statement_carries_no_more_than_it_has_room_for() {
        let (mut isolation, now, _) = tried("55P03");
        let (answered, _) = channel();
        let later = now + LIMIT / 2;
        join(&mut isolation, &vec![7; 3 * MAX_WEIGHT], &answered, later);
        // The first has waited for too long.
        let mut group = isolation.due(LIMIT, false).unwrap();
        assert_eq!(ids(group.turn().0).len(), MAX_WEIGHT);
        assert!(
            isolation
                .tried(group, Some(&failure("55P03")), LIMIT)
                .is_none()
        );
        assert_eq!(waiting(&isolation), 3 * MAX_WEIGHT);
        isolation.next = LIMIT;
        let mut group = isolation.due(LIMIT, false).unwrap();
        answer(group.turn().0);
        let mut left = isolation.tried(group, None, LIMIT).unwrap();
        assert_eq!(ids(&mut left).len(), 2 * MAX_WEIGHT);
    }

    #[test]
    fn one_with_bad_data_is_told_and_nobody_waits() {
        let (isolation, now, answers) = tried("22P02");
        assert!(isolation.is_empty() && now < LIMIT);
        let bad: Vec<_> = answers
            .try_iter()
            .filter(|it| it.1 == ErrorKind::Corrupt)
            .collect();
        assert_eq!(bad, [(7, ErrorKind::Corrupt)]);
    }

    #[test]
    fn others_have_most_of_the_time() {
        let (mut isolation, now, _) = tried("55P03");
        let (mut time, mut waited) = (now, Duration::ZERO);
        while time < LIMIT {
            let Some(wait) = isolation.wait(time, false) else {
                break;
            };
            time += wait;
            let Some(mut group) = isolation.due(time, false) else {
                break;
            };
            let lock_timeout = group.turn().1;
            (time, waited) = (time + lock_timeout, waited + lock_timeout);
            drop(isolation.tried(group, Some(&failure("55P03")), time));
        }
        assert!(
            waited * (REST + 1) <= LIMIT.saturating_sub(now) + LONGEST * REST,
            "{waited:?}"
        );
    }
}
