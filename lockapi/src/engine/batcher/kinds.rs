//! Which kind of request is sent next: kinds share a connection by the time that their statements take.

use std::time::Duration;

use super::backlog::{Backlog, Drawn};
use super::batch::Requests;
use super::request::{AnyRequest, KindId, MAX_WEIGHT};
use crate::error::Error;

/// A statement carries as much as the server does in about this time, so that who comes next need not
/// wait for long.
const SLICE: Duration = Duration::from_millis(4);
/// The same while requests of another kind share the connection: theirs are to take no more than about
/// three times as long as alone.
const SHARED_SLICE: Duration = Duration::from_micros(500);
/// For how many statements it is remembered that another kind had one in between.
const REMEMBERED: u32 = 256;
/// What it carries at least, however long that takes: smaller statements would cost more than they
/// save.
const MIN_WEIGHT: usize = 64;
/// What the first one carries.
const FIRST_WEIGHT: usize = 512;

/// The requests that wait, by kind.
pub(super) struct Kinds {
    /// In the order in which they were first used.
    all: Vec<Kind>,
    /// The time that the kind had which ran last: who comes anew begins there.
    floor: Duration,
}

struct Kind {
    id: KindId,
    gives_back: bool,
    backlog: Backlog,
    /// How long its statements have had the connection.
    used: Duration,
    /// How much the next one carries.
    room: usize,
    /// What a statement takes at least, however little it carries; forgotten slowly.
    fixed: Duration,
    /// How many more statements are small, because another kind had one recently.
    shared: u32,
    /// How many callers wait for requests that are isolated.
    isolated: usize,
}

/// How a statement has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Answered,
    /// The server took longer for it than it may.
    TimedOut,
    Failed,
}

impl Default for Kinds {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            floor: Duration::ZERO,
        }
    }
}

impl Kinds {
    /// Adds a request, unless too many wait: then it is given back, with why.
    pub(super) fn add(
        &mut self,
        request: Box<dyn AnyRequest>,
    ) -> Result<(), (Box<dyn AnyRequest>, String)> {
        let id = request.kind();
        let at = self.all.iter().position(|kind| kind.id == id);
        let at = at.unwrap_or_else(|| {
            self.all.push(Kind {
                id,
                gives_back: request.gives_back(),
                backlog: Backlog::default(),
                used: Duration::ZERO,
                room: FIRST_WEIGHT,
                fixed: Duration::MAX,
                shared: 0,
                isolated: 0,
            });
            self.all.len() - 1
        });
        let kind = &mut self.all[at];
        if kind.backlog.is_empty() {
            kind.used = kind.used.max(self.floor);
        }
        kind.backlog.add(request, kind.isolated)
    }

    /// Takes note of the callers that wait for isolated requests: they count for the bounds.
    pub(super) fn isolated(&mut self, callers: impl Iterator<Item = (KindId, usize)>) {
        for kind in &mut self.all {
            kind.isolated = 0;
        }
        for (id, callers) in callers {
            if let Some(kind) = self.all.iter_mut().find(|kind| kind.id == id) {
                kind.isolated += callers;
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.iter().all(|kind| kind.backlog.is_empty())
    }

    /// The kinds that run a statement each, in this order: those that give back, and the one of the
    /// others that had the least time. A kind that is `held` has no turn, and keeps no other from one.
    pub(super) fn round(&mut self, held: impl Fn(usize) -> bool) -> Vec<usize> {
        let waiting = || {
            let all = self.all.iter().enumerate();
            all.filter(|(at, kind)| !kind.backlog.is_empty() && !held(*at))
        };
        let back = waiting().filter(|(_, kind)| kind.gives_back);
        let mut back: Vec<_> = back.collect();
        // The shortest limits first, and after them those that have none.
        back.sort_by_key(|(_, kind)| kind.id.0.wrapping_sub(1));
        let least = waiting()
            .filter(|(_, kind)| !kind.gives_back)
            .min_by_key(|(_, kind)| kind.used);
        back.into_iter().chain(least).map(|(at, _)| at).collect()
    }

    /// The requests of the next statement of a kind.
    pub(super) fn draw(&mut self, at: usize) -> Drawn {
        let kind = &mut self.all[at];
        if !kind.gives_back {
            self.floor = self.floor.max(kind.used);
        }
        kind.backlog.draw(kind.room)
    }

    /// Takes note of a statement that took so long and ended so, and takes back what it left.
    pub(super) fn served(
        &mut self,
        at: usize,
        left: usize,
        took: Duration,
        end: End,
        batch: &mut Requests,
    ) {
        // Requests that release something go first.
        if !self.all[at].gives_back {
            let others = self.all.iter_mut().enumerate();
            for (_, other) in others.filter(|(other, it)| *other != at && !it.gives_back) {
                other.shared = REMEMBERED;
            }
        }
        let kind = &mut self.all[at];
        let slice = if kind.shared > 0 {
            // What the way there and back takes anyway is not felt.
            SHARED_SLICE.max(kind.fixed.min(took) / 2)
        } else {
            SLICE
        };
        kind.shared = kind.shared.saturating_sub(1);
        // What hung once is not held against it for long.
        kind.used += took.min(SLICE * 10);
        if end != End::Answered {
            // How much it carried has nothing to do with a lock or a connection.
            if end == End::TimedOut {
                kind.room = MIN_WEIGHT.max(kind.room / 2);
            }
            return kind.backlog.put_back(batch);
        }
        kind.fixed = match kind.fixed {
            Duration::MAX => took,
            fixed => took.min(fixed + took.saturating_sub(fixed) / 1024),
        };
        // Less in a statement saves nothing of the way to the server and back.
        let work = took.saturating_sub(kind.fixed);
        if work > slice && left < kind.room {
            kind.room = MIN_WEIGHT.max(kind.room / 2);
        } else if work < slice / 2 && left == 0 {
            kind.room = MAX_WEIGHT.min(kind.room * 2);
        }
        kind.backlog.put_back(batch);
    }

    /// Takes back what is left of a batch that was tried apart.
    pub(super) fn put_back(&mut self, batch: &mut Requests) {
        let id = batch.kind();
        if let Some(kind) = self.all.iter_mut().find(|kind| Some(kind.id) == id) {
            kind.backlog.put_back(batch);
        }
    }

    /// How many requests of each kind wait.
    pub(super) fn lengths(&self) -> Vec<usize> {
        self.all.iter().map(|kind| kind.backlog.len()).collect()
    }

    /// Takes out the first ones of each kind, so many at most; with a class, those of kinds that have no more time.
    pub(super) fn take_first(
        &mut self,
        many: &[usize],
        class: Option<u32>,
    ) -> Vec<Box<dyn AnyRequest>> {
        let kinds = self.all.iter_mut().zip(many);
        let is_in = |of: u32| class.is_none_or(|class| of > 0 && of <= class);
        kinds
            .filter(|(kind, _)| is_in(kind.id.0))
            .flat_map(|(kind, many)| kind.backlog.take_first(*many))
            .collect()
    }

    /// Fails all, with errors made for their name.
    pub(super) fn refuse(&mut self, error: &dyn Fn(&'static str) -> Error) {
        for kind in &mut self.all {
            kind.backlog.refuse(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use tokio::sync::oneshot;

    use super::super::batch::Typed;
    use super::super::caller::{Caller, Repeated, Reply, Waiting};
    use super::super::request::{Pending, Queued};
    use super::*;
    use crate::driver::Operation;
    use crate::error::{ErrorKind, Result};
    use crate::lease::{Peek, Release, Renew};
    use crate::limit::{Charge, ChargeLine, Quota, RawDecision, ReadLevel};

    const MS: Duration = Duration::from_millis(1);

    /// A caller that hears its answer.
    fn caller<T: Send + 'static>() -> (Caller<T>, Receiver<Result<T>>) {
        let (answered, answers) = channel();
        let reply = Reply::new(move |outcome, _: Repeated| drop(answered.send(outcome)));
        (Caller { times: 1, reply }, answers)
    }

    fn add<O: Queued>(kinds: &mut Kinds, request: O) -> Receiver<Result<O::Output>> {
        let (caller, answers) = caller();
        if let Err((request, message)) = kinds.add(Pending::boxed(request, caller)) {
            request.refuse(&|name| Error::new(ErrorKind::Capacity, name, message.clone()));
        }
        answers
    }

    fn peek() -> Peek {
        Peek {
            namespace: String::new(),
            key: "door".to_owned(),
            slot: 0,
        }
    }

    fn look() -> ReadLevel {
        ReadLevel {
            namespace: String::new(),
            key: "door".to_owned(),
        }
    }

    fn charge(keys: &[&str]) -> Charge {
        let line = |key: &&str| ChargeLine {
            key: (*key).to_owned(),
            quota: Quota::per_hour(10).fixed_window(),
            cost: 1,
            id: 0,
            ttl: 0,
        };
        Charge {
            namespace: String::new(),
            lines: keys.iter().map(line).collect(),
            times: 1,
            relaxed: false,
        }
    }

    /// What one kind sends next.
    fn sent<O: Queued>(drawn: &mut Drawn) -> Typed<'_, O> {
        Typed::from(&mut drawn.batch)
    }

    /// As if they were answered.
    fn answer(requests: &mut Requests) {
        requests.refuse(&|name| Error::new(ErrorKind::Corrupt, name, "done"));
    }

    /// Runs a round in which each statement takes so long, and answers which kinds had a turn.
    fn round(kinds: &mut Kinds, took: impl Fn(usize) -> Duration) -> Vec<usize> {
        let turns = kinds.round(|_| false);
        for kind in &turns {
            let mut drawn = kinds.draw(*kind);
            answer(&mut drawn.batch);
            kinds.served(
                *kind,
                drawn.left,
                took(*kind),
                End::Answered,
                &mut drawn.batch,
            );
        }
        turns
    }

    #[test]
    fn whoever_asks_for_much_waits_for_himself() {
        let mut kinds = Kinds::default();
        let mut answers: Vec<_> = (0..100_000).map(|_| add(&mut kinds, peek())).collect();
        let mut statements = 0;
        while !kinds.is_empty() {
            let request = add(&mut kinds, look());
            let mut rounds = 0;
            while request.try_recv().is_err() {
                round(&mut kinds, |kind| if kind == 0 { 4 * MS } else { MS });
                rounds += 1;
            }
            assert!(rounds <= 2, "{rounds} rounds for one that asks for little");
            statements += 1;
            assert!(statements < 1000);
            while answers.last().is_some_and(|one| one.try_recv().is_ok()) {
                answers.pop();
            }
        }
    }

    #[test]
    fn a_statement_that_took_too_long_carries_less_the_next_time() {
        let mut kinds = Kinds::default();
        let _answers: Vec<_> = (0..FIRST_WEIGHT * 4)
            .map(|_| add(&mut kinds, peek()))
            .collect();
        let mut sent = |end| {
            let mut drawn = kinds.draw(0);
            let many = drawn.batch.callers();
            answer(&mut drawn.batch);
            kinds.served(0, drawn.left, MS, end, &mut drawn.batch);
            many
        };
        let sent = [sent(End::Failed), sent(End::TimedOut), sent(End::Answered)];
        assert_eq!(sent, [FIRST_WEIGHT, FIRST_WEIGHT, FIRST_WEIGHT / 2]);
    }

    #[test]
    fn whoever_has_more_time_is_not_refused_with_those_who_have_less() {
        let mut kinds = Kinds::default();
        let renew = |ttl| Renew {
            namespace: String::new(),
            key: "job".to_owned(),
            slots: [0].into(),
            fence: 1,
            ttl,
        };
        let renewals = [100_000, 60_000_000].map(|ttl| add(&mut kinds, renew(ttl)));
        let peeked = add(&mut kinds, peek());
        let lengths = kinds.lengths();
        let class = kinds.all[0].id.0;
        for request in kinds.take_first(&lengths, Some(class)) {
            request.refuse(&|name| Error::new(ErrorKind::Unavailable, name, "gone"));
        }
        let refused = renewals.map(|one| one.try_recv().is_ok());
        assert_eq!(refused, [true, false]);
        assert!(peeked.try_recv().is_err());
        assert_eq!(kinds.take_first(&lengths, None).len(), 2);
    }

    #[test]
    fn statements_are_small_while_others_share_the_connection() {
        let mut kinds = Kinds::default();
        let drawn = |kinds: &mut Kinds| {
            let mut drawn = kinds.draw(0);
            let many = sent::<Peek>(&mut drawn).requests.len();
            answer(&mut drawn.batch);
            let took = MS / 5 + MS / 500 * u32::try_from(many).unwrap();
            kinds.served(0, drawn.left, took, End::Answered, &mut drawn.batch);
            many
        };
        let _answer = add(&mut kinds, peek());
        assert_eq!(drawn(&mut kinds), 1);
        let _answers: Vec<_> = (0..1 << 17).map(|_| add(&mut kinds, peek())).collect();
        let alone: Vec<_> = (0..4).map(|_| drawn(&mut kinds)).collect();
        assert_eq!(alone, [512, 1024, 1024, 1024]);
        let _answer = add(&mut kinds, look());
        let mut other = kinds.draw(1);
        answer(&mut other.batch);
        kinds.served(1, other.left, MS / 5, End::Answered, &mut other.batch);
        let shared: Vec<_> = (0..64).map(|_| drawn(&mut kinds)).collect();
        assert!(
            shared[4..].iter().all(|many| (128..=256).contains(many)),
            "{shared:?}"
        );
        for _ in 0..REMEMBERED - 50 {
            drawn(&mut kinds);
        }
        assert!(drawn(&mut kinds) >= 512, "it is alone again");
    }

    #[test]
    fn who_was_away_has_no_credit() {
        let mut kinds = Kinds::default();
        let _away = add(&mut kinds, look());
        round(&mut kinds, |_| MS);
        for _ in 0..10 {
            let _busy = add(&mut kinds, peek());
            round(&mut kinds, |_| 10 * MS);
        }
        let _answers: Vec<_> = (0..5000)
            .map(|_| (add(&mut kinds, look()), add(&mut kinds, peek())))
            .collect();
        // Less than the last statement of the other took.
        let turns: Vec<_> = (0..12).flat_map(|_| round(&mut kinds, |_| MS)).collect();
        assert!(turns.contains(&0) && turns.contains(&1), "{turns:?}");
    }

    #[test]
    fn what_gives_back_goes_first_and_is_never_too_much() {
        let mut kinds = Kinds::default();
        let refused = (0..200_000)
            .map(|_| add(&mut kinds, peek()))
            .filter(|answer| matches!(answer.try_recv(), Ok(Err(error)) if error.kind() == ErrorKind::Capacity));
        assert_eq!(refused.count(), 200_000 - (1 << 17));
        // Those that are isolated count as well.
        let mut isolated = kinds.draw(0);
        let callers = isolated.batch.callers();
        kinds.isolated(
            isolated
                .batch
                .kind()
                .into_iter()
                .map(|kind| (kind, callers)),
        );
        assert!(add(&mut kinds, peek()).try_recv().is_ok(), "refused");
        kinds.isolated(std::iter::empty());
        assert!(add(&mut kinds, peek()).try_recv().is_err(), "waits");
        answer(&mut isolated.batch);
        let release = || Release {
            namespace: String::new(),
            key: "door".to_owned(),
            slots: [0].into(),
            fence: 1,
        };
        for _ in 0..200_000 {
            assert!(add(&mut kinds, release()).try_recv().is_err());
        }
        assert_eq!(kinds.round(|_| false), [1, 0]);
        assert_eq!(kinds.round(|kind| kind == 1), [0]);
    }

    #[test]
    fn what_takes_long_becomes_less() {
        let mut kinds = Kinds::default();
        let _answers: Vec<_> = (0..20_000).map(|_| add(&mut kinds, peek())).collect();
        let mut drawn = |took| {
            let mut drawn = kinds.draw(0);
            let many = sent::<Peek>(&mut drawn).requests.len();
            answer(&mut drawn.batch);
            kinds.served(0, drawn.left, took, End::Answered, &mut drawn.batch);
            many
        };
        // The way there and back is not its fault.
        assert_eq!([drawn(50 * MS), drawn(51 * MS)], [512, 1024]);
        let slow: Vec<_> = (0..6).map(|_| drawn(70 * MS)).collect();
        assert_eq!(slow, [2048, 1024, 512, 256, 128, 64]);
        let fast: Vec<_> = (0..3).map(|_| drawn(51 * MS)).collect();
        assert_eq!(fast, [64, 128, 256]);
    }

    #[test]
    fn nothing_is_sent_for_callers_that_left() {
        let mut kinds = Kinds::default();
        let mut waiting = Vec::new();
        for nth in 0..1000 {
            let (sender, receiver) = oneshot::channel::<Result<<Peek as Operation>::Output>>();
            let reply = Reply::new(Waiting(sender));
            let request = Pending::boxed(peek(), Caller { times: 1, reply });
            assert!(kinds.add(request).is_ok());
            if nth % 100 == 7 {
                waiting.push(receiver);
            }
        }
        let mut drawn: Vec<_> =
            std::iter::from_fn(|| (!kinds.is_empty()).then(|| kinds.draw(0))).collect();
        let sent = drawn.iter_mut().map(|drawn| {
            drawn.batch.drop_cancelled();
            sent::<Peek>(drawn).requests.len()
        });
        assert_eq!(sent.sum::<usize>(), 10);
        for mut receiver in waiting {
            assert!(receiver.try_recv().is_err(), "still waiting");
        }
    }

    #[test]
    fn requests_that_are_alike_are_one() {
        let mut kinds = Kinds::default();
        let mut receivers = Vec::new();
        for _ in 0..1000 {
            let (sender, receiver) = oneshot::channel::<Result<Vec<RawDecision>>>();
            let reply = Reply::new(Waiting(sender));
            let caller = Caller { times: 1, reply };
            let request = Pending::boxed(charge(&["user", "tenant"]), caller);
            assert!(kinds.add(request).is_ok());
            receivers.push(receiver);
        }
        let _other = add(&mut kinds, charge(&["tenant"]));
        receivers.truncate(400);
        let mut drawn = kinds.draw(0);
        drawn.batch.drop_cancelled();
        let batch = sent::<Charge>(&mut drawn);
        let times: Vec<_> = batch.requests.iter().map(|one| one.times).collect();
        assert_eq!(times, [400, 1]);
        drop(batch);
        // What is asked again comes before what came meanwhile, and is joined by nobody.
        let _later = add(&mut kinds, charge(&["later"]));
        kinds.served(0, drawn.left, MS, End::Answered, &mut drawn.batch);
        let _like = add(&mut kinds, charge(&["later"]));
        let mut drawn = kinds.draw(0);
        // As after it was tried apart.
        kinds.put_back(&mut drawn.batch);
        let mut drawn = kinds.draw(0);
        let batch = sent::<Charge>(&mut drawn);
        let requests: Vec<_> = batch
            .requests
            .iter()
            .map(|one| (one.lines[0].key.as_str(), one.times))
            .collect();
        assert_eq!(requests, [("user", 400), ("tenant", 1), ("later", 2)]);
    }

    #[test]
    fn reservations_are_not_repeated_and_spoil_nothing_that_is() {
        let mut kinds = Kinds::default();
        let mut reserves = charge(&["user"]);
        reserves.lines[0].id = 7;
        let _waiting = [
            add(&mut kinds, charge(&["user"])),
            add(&mut kinds, reserves),
            add(&mut kinds, charge(&["tenant"])),
        ];
        let mut drawn = kinds.draw(0);
        let batch = sent::<Charge>(&mut drawn);
        let keys: Vec<_> = batch
            .requests
            .iter()
            .map(|one| &*one.lines[0].key)
            .collect();
        assert_eq!(keys, ["user", "tenant"]);
        drop(batch);
        assert!(drawn.batch.are_repeatable());
        let mut drawn = kinds.draw(1);
        assert_eq!(sent::<Charge>(&mut drawn).requests[0].lines[0].id, 7);
        assert!(!drawn.batch.are_repeatable());
    }
}
