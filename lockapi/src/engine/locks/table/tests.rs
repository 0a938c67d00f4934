//! The table against a model of the server.

use std::cell::Cell;
use std::time::Duration;

use super::sim::{Caller, HEARTBEAT, MS, Sim, ended, lock, two};
use super::*;
use crate::failure::{Failure, Report};

/// So many as `LOCKAPI_SEEDS` says, or the one in `LOCKAPI_SEED`.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    match number("LOCKAPI_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LOCKAPI_SEEDS").unwrap_or(400),
    }
}

/// Runs a program for each seed, and tells which one fails.
fn for_each(seeds: impl Iterator<Item = u64>, program: impl Fn(u64)) {
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| program(seed));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("failed with LOCKAPI_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn random_programs_exclude_each_other_and_leave_nothing() {
    for_each(seeds(), |seed| {
        let mut sim = Sim::new(seed);
        for _ in 0..2000 {
            sim.step();
        }
        sim.is_live();
        sim.leaves_nothing();
    });
}

#[test]
fn random_programs_that_all_leave_leave_nothing() {
    for_each(seeds(), |seed| {
        let mut sim = Sim::new(seed);
        for _ in 0..500 {
            sim.step();
        }
        sim.faults = false;
        for (p, caller) in sim.everybody(|_| true) {
            sim.end_one(p, caller);
        }
        sim.leaves_nothing();
    });
}

#[test]
fn random_owners_that_wait_for_each_other_are_told() {
    let cycles = std::cell::Cell::new(0);
    for_each(seeds().step_by(4), |seed| {
        let mut sim = Sim::waiting(seed);
        for _ in 0..500 {
            sim.step();
        }
        sim.ends_without_deadlocks();
        sim.leaves_nothing();
        cycles.set(cycles.get() + sim.cycles);
    });
    assert!(
        cycles.get() > 0 || seeds().count() < 10,
        "no session found a cycle"
    );
}

#[test]
fn more_keys_than_sessions_that_wait_have_their_turn() {
    const KEYS: i64 = 6;
    let mut sim = two(1, KEYS);
    // The other program never lets a lock go for long: three callers take turns on each.
    for key in 0..KEYS {
        for _ in 0..3 {
            sim.wait_in(1, key, LockMode::Exclusive);
        }
    }
    sim.run(MS * 50);
    let waiting: Vec<u64> = (0..KEYS)
        .map(|key| sim.wait_in(0, key, LockMode::Exclusive))
        .collect();
    let (began, mut left) = (sim.now, waiting.len());
    let bound = Duration::from_secs(1) + Duration::from_millis(250) * 7 + MS * 500;
    while left > 0 {
        sim.run(MS * 5);
        for (p, caller) in sim.everybody(|caller| matches!(caller, Caller::Holds { .. })) {
            let Some(Caller::Holds { lock, .. }) = sim.processes[p].callers.get(&caller) else {
                continue;
            };
            let key = lock.key;
            sim.end_one(p, caller);
            if p == 0 {
                left -= 1;
            } else {
                sim.wait_in(1, key, LockMode::Exclusive);
            }
        }
        assert!(
            sim.now.saturating_sub(began) < bound,
            "{left} still wait after {:?}",
            sim.now.saturating_sub(began)
        );
    }
}

#[test]
fn locks_that_are_held_long_do_not_keep_others_from_waiting() {
    let mut sim = two(2, 10);
    let theirs: Vec<u64> = (0..10)
        .map(|key| sim.wait_in(1, key, LockMode::Exclusive))
        .collect();
    sim.run(MS * 50);
    let ours: Vec<u64> = (0..10)
        .map(|key| sim.wait_in(0, key, LockMode::Exclusive))
        .collect();
    sim.run(MS * 50);
    // Each is let go after a while; what is granted stays held.
    for (at, caller) in theirs.into_iter().enumerate() {
        sim.run(Duration::from_secs(1));
        sim.end_one(1, caller);
        let began = sim.now;
        while !sim.holds(0, ours[at]) {
            sim.run(MS * 5);
            assert!(
                sim.now.saturating_sub(began) < Duration::from_secs(3),
                "key {at} is not granted"
            );
        }
    }
    // A session that holds some of them waits meanwhile, and is interrupted to release one.
    let theirs = [
        sim.wait_in(1, 0, LockMode::Exclusive),
        sim.wait_in(1, 1, LockMode::Exclusive),
    ];
    let more: Vec<u64> = (0..4)
        .map(|key| sim.wait_in(1, 20 + key, LockMode::Exclusive))
        .collect();
    sim.run(MS * 300);
    let waits: Vec<u64> = (0..4)
        .map(|key| sim.wait_in(0, 20 + key, LockMode::Exclusive))
        .collect();
    sim.run(MS * 300);
    sim.end_one(0, ours[0]);
    sim.end_one(0, ours[1]);
    sim.run(MS * 50);
    assert!(
        theirs.iter().all(|caller| sim.holds(1, *caller)),
        "released at once"
    );
    for caller in more {
        sim.end_one(1, caller);
    }
    sim.run(Duration::from_secs(3));
    assert!(waits.iter().all(|caller| sim.holds(0, *caller)));
}

#[test]
fn callers_that_left_make_room_at_once() {
    for waiters in [0, 1] {
        let mut sim = two(waiters, 100);
        let theirs: Vec<u64> = (0..30)
            .map(|key| sim.wait_in(1, key, LockMode::Exclusive))
            .collect();
        sim.run(MS * 50);
        let ours: Vec<u64> = (0..30)
            .map(|key| sim.wait_in(0, key, LockMode::Exclusive))
            .collect();
        sim.run(MS * 20);
        for caller in ours {
            sim.end_one(0, caller);
        }
        // The session that waits needs a moment to hear of it.
        assert!(
            sim.processes[0].table.slots.len() <= waiters,
            "places are left behind"
        );
        sim.run(Duration::from_secs(1));
        assert!(sim.processes[0].table.slots.is_empty());
        for caller in theirs {
            sim.end_one(1, caller);
        }
        sim.leaves_nothing();
    }
}

/// An owner of the first program waits for a lock.
fn ask(sim: &mut Sim, key: i64, owner: crate::mutex::OwnerId, mode: LockMode) -> u64 {
    let wanted = Acquisition {
        lock: lock(key),
        mode,
        owner: Some(owner),
        policy: WaitPolicy::Forever,
    };
    sim.ask_for(0, wanted)
}

/// The session of the first program that waits begins to; the test plays it.
fn slice(sim: &mut Sim) -> Slice {
    let until = sim.now + Duration::from_secs(1);
    while sim.now < until {
        sim.work(0, 0);
        let next = sim.change(0, |table, now, effects| {
            table.next(now, 1, Batch::All, effects)
        });
        if let Next::Wait(slice) = next {
            return slice;
        }
        sim.pass_time(MS);
    }
    panic!("it does not wait");
}

/// The wait of that session ends without the lock.
fn slice_ends(sim: &mut Sim) {
    sim.change(0, |table, now, effects| {
        table.answered(1);
        table.waited(now, 1, WaitOutcome::NotGranted, effects);
    });
}

/// An owner of the first program that holds the locks 0 and 2, and waits for lock 1 of the other program. The test plays
/// its session that waits.
struct Suspect {
    sim: Sim,
    theirs: u64,
    own: [u64; 2],
    waits: u64,
}

impl Suspect {
    fn new() -> Self {
        let mut sim = two(1, 3);
        let owner = crate::mutex::LockOwner::new().id();
        let theirs = sim.wait_in(1, 1, LockMode::Exclusive);
        sim.run(MS * 20);
        let own = [0, 2].map(|key| ask(&mut sim, key, owner, LockMode::Exclusive));
        sim.run(MS * 20);
        assert!(own.iter().all(|own| sim.holds(0, *own)));
        let waits = ask(&mut sim, 1, owner, LockMode::Exclusive);
        Self {
            sim,
            theirs,
            own,
            waits,
        }
    }

    /// The session begins to wait, and notes all that is held behind it.
    fn begins(&mut self) {
        assert_eq!(self.notes(), [lock(0), lock(2)]);
    }

    /// The session begins to wait; returns what it notes.
    fn notes(&mut self) -> Vec<LockId> {
        self.slice().holding
    }

    /// The session begins to wait.
    fn slice(&mut self) -> Slice {
        slice(&mut self.sim)
    }

    /// Whether the main session interrupts the one that waits.
    fn is_interrupted(&mut self) -> bool {
        let next = self.sim.change(0, |table, now, effects| {
            table.next(now, 0, Batch::All, effects)
        });
        let interrupt = |command: &Command| matches!(command, Command::Interrupt { .. });
        matches!(next, Next::Run(commands) if commands.iter().any(interrupt))
    }

    /// The next wait of the session ends so; returns whether the owner still waits.
    fn waits_after(&mut self, waited: WaitOutcome) -> bool {
        self.begins();
        self.ends(waited)
    }

    fn ends(&mut self, waited: WaitOutcome) -> bool {
        self.sim.change(0, |table, now, effects| {
            table.answered(1);
            table.waited(now, 1, waited, effects);
        });
        self.sim.processes[0].callers.contains_key(&self.waits)
    }

    fn leaves_nothing(mut self) {
        for own in self.own {
            self.sim.end_one(0, own);
        }
        self.sim.end_one(1, self.theirs);
        self.sim.leaves_nothing();
    }
}

fn cycle(key: i64) -> WaitOutcome {
    WaitOutcome::Cycle(vec![lock(key)])
}

#[test]
fn a_cycle_is_one_that_is_seen_twice() {
    let mut suspect = Suspect::new();
    assert!(suspect.waits_after(cycle(0)), "it may be about to end");
    assert!(!suspect.waits_after(cycle(0)));
    suspect.leaves_nothing();
}

#[test]
fn two_looks_through_different_locks_are_no_cycle() {
    let mut suspect = Suspect::new();
    assert!(suspect.waits_after(cycle(0)));
    assert!(suspect.waits_after(cycle(2)));
    assert!(suspect.waits_after(cycle(0)));
    assert!(!suspect.waits_after(cycle(0)));
    suspect.leaves_nothing();
}

#[test]
fn a_wait_between_two_looks_clears_the_suspicion() {
    let mut suspect = Suspect::new();
    assert!(suspect.waits_after(cycle(0)));
    assert!(suspect.waits_after(WaitOutcome::NotGranted));
    assert!(suspect.waits_after(cycle(0)));
    let failure = Failure::reported(Report::new(Some("40P01".into()), "deadlock detected"));
    assert!(suspect.waits_after(WaitOutcome::Failed(failure)));
    assert!(suspect.waits_after(cycle(0)));
    assert!(!suspect.waits_after(cycle(0)));
    suspect.leaves_nothing();
}

#[test]
fn an_interrupted_wait_clears_the_suspicion() {
    let mut suspect = Suspect::new();
    assert!(suspect.waits_after(cycle(0)));
    suspect.begins();
    suspect
        .sim
        .change(0, |table, _, effects| table.interrupt(1, effects));
    assert!(suspect.ends(WaitOutcome::Failed(ended())));
    assert!(suspect.waits_after(cycle(0)));
    assert!(!suspect.waits_after(cycle(0)));
    suspect.leaves_nothing();
}

#[test]
fn a_wait_whose_notes_are_true_no_more_is_interrupted() {
    // What ends: the wait of the owner, one of its locks, or the wait of somebody without locks.
    for ends in [Some("wait"), Some("lock"), None] {
        let mut suspect = Suspect::new();
        // They wait on, whatever the owner does.
        let others = [(); 2].map(|()| suspect.sim.wait_in(0, 1, LockMode::Exclusive));
        suspect.begins();
        suspect.sim.processes[0].table.opened(1, 17, 0);
        let ended = match ends {
            Some("wait") => suspect.waits,
            Some(_) => suspect.own[0],
            None => others[1],
        };
        suspect.sim.end_one(0, ended);
        assert_eq!(suspect.is_interrupted(), ends.is_some(), "{ends:?}");
    }
}

#[test]
fn all_that_is_held_behind_a_wait_is_noted() {
    let mut suspect = Suspect::new();
    let [next, last] = [(); 2].map(|()| crate::mutex::LockOwner::new().id());
    // One behind the other.
    for (owner, holds, waits) in [(next, 4, 2), (last, 3, 4)] {
        ask(&mut suspect.sim, holds, owner, LockMode::Exclusive);
        for _ in 0..50 {
            suspect.sim.work(0, 0);
            suspect.sim.pass_time(MS);
        }
        ask(&mut suspect.sim, waits, owner, LockMode::Exclusive);
    }
    assert_eq!(suspect.notes(), [0, 2, 3, 4].map(lock));
}

/// What is sent next would be hit by an interrupt that is still under way.
#[test]
fn what_follows_a_wait_waits_for_the_interrupt_of_it() {
    let mut suspect = Suspect::new();
    suspect.begins();
    suspect.sim.processes[0].table.opened(1, 17, 0);
    suspect
        .sim
        .change(0, |table, _, effects| table.interrupt(1, effects));
    assert!(suspect.is_interrupted());
    assert!(suspect.sim.processes[0].table.answered(1));
    suspect.sim.change(0, |table, now, effects| {
        table.apply_replies(now, 0, &[Reply::Interrupted], effects);
    });
    assert!(!suspect.sim.processes[0].table.answered(1));
}

/// Its mark is not known yet: an interrupt would be for whoever holds the lock with the mark 0.
#[test]
fn a_session_that_is_not_open_is_not_interrupted() {
    for is_open in [false, true] {
        let mut suspect = Suspect::new();
        suspect.begins();
        if is_open {
            suspect.sim.processes[0].table.opened(1, 17, 0);
        }
        suspect
            .sim
            .change(0, |table, _, effects| table.interrupt(1, effects));
        assert_eq!(suspect.is_interrupted(), is_open);
        let now = suspect.sim.now;
        assert!(!suspect.sim.processes[0].table.is_wanted(1, now));
    }
}

/// What is asked of the server about readers may let the reader in.
#[test]
fn a_reader_that_may_be_let_in_closes_no_cycle() {
    for others_wait in [false, true] {
        let (mut sim, [reader, both]) = (
            two(1, 2),
            [(); 2].map(|()| crate::mutex::LockOwner::new().id()),
        );
        let shares = ask(&mut sim, 0, reader, LockMode::Shared);
        let own = ask(&mut sim, 1, both, LockMode::Exclusive);
        sim.run(MS * 50);
        assert!(sim.holds(0, shares) && sim.holds(0, own));
        let theirs = others_wait.then(|| sim.wait_in(1, 0, LockMode::Exclusive));
        if others_wait {
            // It waits at the server.
            for _ in 0..50 {
                sim.work(1, 0);
                sim.work(1, 1);
                sim.pass_time(MS);
            }
        }
        let also = ask(&mut sim, 0, both, LockMode::Shared);
        assert!(!sim.holds(0, also), "the server is asked first");
        let waits = ask(&mut sim, 1, reader, LockMode::Exclusive);
        assert!(
            sim.processes[0].callers.contains_key(&waits),
            "the other reader may be let in"
        );
        for _ in 0..50 {
            sim.work(0, 0);
            sim.pass_time(MS);
        }
        if let Some(theirs) = theirs {
            let told = [also, waits].map(|one| !sim.processes[0].callers.contains_key(&one));
            assert!(told[0] || told[1], "one of them waits for itself");
            sim.end_one(1, theirs);
        } else {
            assert!(sim.holds(0, also));
        }
        for caller in [own, also, shares, waits] {
            if sim.processes[0].callers.contains_key(&caller) {
                sim.end_one(0, caller);
            }
        }
        sim.leaves_nothing();
    }
}

/// An attempt to share that waits for the server's answer about other waiters closes no cycle: it is refused as one that
/// does not wait.
#[test]
fn an_attempt_to_share_is_busy_where_others_wait() {
    let mut sim = two(1, 2);
    let [reader, both] = [(); 2].map(|()| crate::mutex::LockOwner::new().id());
    let shares = ask(&mut sim, 0, reader, LockMode::Shared);
    let own = ask(&mut sim, 1, both, LockMode::Exclusive);
    sim.run(MS * 50);
    let theirs = sim.wait_in(1, 0, LockMode::Exclusive);
    for _ in 0..50 {
        sim.work(1, 0);
        sim.work(1, 1);
        sim.pass_time(MS);
    }
    let waits = ask(&mut sim, 1, reader, LockMode::Exclusive);
    let tries = Acquisition {
        lock: lock(0),
        mode: LockMode::Shared,
        owner: Some(both),
        policy: WaitPolicy::NoWait,
    };
    let tries = sim.ask_for(0, tries);
    let asks = |sim: &Sim, caller| sim.processes[0].callers.contains_key(&caller);
    assert!(asks(&sim, tries), "the server is asked first");
    for _ in 0..50 {
        sim.work(0, 0);
        sim.pass_time(MS);
    }
    assert!(!asks(&sim, tries) && asks(&sim, waits));
    for (p, caller) in [(0, own), (0, waits), (0, shares), (1, theirs)] {
        sim.end_one(p, caller);
    }
    sim.leaves_nothing();
}

/// Whose future is not polled after its time is over neither gets the lock nor keeps a session at work.
#[test]
fn who_does_not_leave_in_time_gets_nothing() {
    use {LockMode::*, WaitPolicy::*};
    let mut sim = two(1, 1);
    let holder = sim.wait_in(1, 0, Exclusive);
    sim.run(MS * 50);
    assert!(sim.holds(1, holder));
    let wanted = |policy| Acquisition {
        lock: lock(0),
        mode: Exclusive,
        owner: None,
        policy,
    };
    let late = sim.ask_for(0, wanted(Until(sim.now + MS * 100)));
    sim.run(MS * 50);
    let patient = sim.ask_for(0, wanted(Forever));
    sim.run(Duration::from_secs(2));
    assert!(!sim.processes[0].callers.contains_key(&late));
    let later = sim.ask_for(0, wanted(Until(sim.now + MS * 100)));
    sim.end_one(1, holder);
    sim.run(Duration::from_secs(2));
    assert!(sim.holds(0, patient));
    sim.end_one(0, patient);
    sim.run(MS * 50);
    assert!(!sim.processes[0].callers.contains_key(&later));
    sim.leaves_nothing();
}

/// An attempt to have alone what others are about to share is refused, and keeps no reader out that came after it.
#[test]
fn an_attempt_to_have_it_alone_keeps_no_reader_out() {
    use {LockMode::*, WaitPolicy::*};
    let mut sim = two(1, 2);
    let want = |(mode, policy)| Acquisition {
        lock: lock(0),
        mode,
        owner: None,
        policy,
    };
    let wants = [
        (Shared, Forever),
        (Exclusive, NoWait),
        (Shared, Forever),
        (Exclusive, NoWait),
        (Shared, NoWait),
    ];
    let callers = wants.map(|one| sim.ask_for(0, want(one)));
    for _ in 0..5 {
        sim.work(0, 0);
    }
    let holds = callers.map(|caller| sim.holds(0, caller));
    assert_eq!(holds, [true, false, true, false, true]);
    let later = sim.ask_for(0, want((Exclusive, NoWait)));
    assert!(!sim.processes[0].callers.contains_key(&later));
    for (caller, _) in callers.into_iter().zip(holds).filter(|(_, holds)| *holds) {
        sim.end_one(0, caller);
    }
    sim.leaves_nothing();
}

#[test]
fn a_reader_that_is_let_in_at_once_closes_no_cycle() {
    let mut sim = two(1, 2);
    let [reader, both] = [(); 2].map(|()| crate::mutex::LockOwner::new().id());
    let shares = ask(&mut sim, 0, reader, LockMode::Shared);
    let own = ask(&mut sim, 1, both, LockMode::Exclusive);
    sim.run(MS * 50);
    let waits = ask(&mut sim, 1, reader, LockMode::Exclusive);
    let also = ask(&mut sim, 0, both, LockMode::Shared);
    sim.run(MS * 50);
    assert!(sim.holds(0, also), "nobody wants it alone");
    for caller in [also, own] {
        sim.end_one(0, caller);
    }
    sim.run(MS * 50);
    assert!(sim.holds(0, waits));
    for caller in [waits, shares] {
        sim.end_one(0, caller);
    }
    sim.leaves_nothing();
}

#[test]
fn an_attempt_that_does_not_wait_waits_for_nobody() {
    let mut sim = two(1, 2);
    let [reader, other] = [(); 2].map(|()| crate::mutex::LockOwner::new().id());
    let shares = ask(&mut sim, 0, reader, LockMode::Shared);
    let own = ask(&mut sim, 1, other, LockMode::Exclusive);
    sim.run(MS * 50);
    let tries = Acquisition {
        lock: lock(0),
        mode: LockMode::Shared,
        owner: Some(other),
        policy: WaitPolicy::NoWait,
    };
    sim.change(0, |table, now, effects| {
        let number = table.acquire(now, tries, 99, effects);
        assert!(effects.answers.is_empty(), "the server is asked first");
        assert_eq!(table.held_behind(now(), [reader]), [lock(0)]);
        table.leave(now, lock(0), number, effects);
    });
    for caller in [shares, own] {
        sim.end_one(0, caller);
    }
    sim.leaves_nothing();
}

#[test]
fn nothing_is_granted_once_it_is_closed() {
    let mut sim = two(1, 2);
    let owners = [(); 3].map(|()| crate::mutex::LockOwner::new().id());
    let reader = ask(&mut sim, 0, owners[0], LockMode::Shared);
    let alone = sim.wait_in(0, 1, LockMode::Exclusive);
    sim.run(MS * 5);
    assert!(sim.holds(0, reader) && sim.holds(0, alone));
    for (owner, mode) in [
        (owners[1], LockMode::Exclusive),
        (owners[2], LockMode::Shared),
    ] {
        ask(&mut sim, 0, owner, mode);
    }
    let (now, table) = (sim.now, &mut sim.processes[0].table);
    let ((), effects) = table.change(&|| now, |table, effects| {
        table.close_all(&|| now, effects);
    });
    assert_eq!(effects.answers.len(), 2);
    let refused = |answer: &Answer<_>| matches!(answer, Answer::Failed(Reason::Closed));
    assert!(effects.answers.iter().all(|(_, answer)| refused(answer)));
    assert_eq!(effects.lost.len(), 2, "both holders are told");
    assert_eq!(table.requests(0), 2, "both locks are released");
}

#[test]
fn a_lock_that_was_not_free_is_counted() {
    let mut sim = two(1, 1);
    sim.wait_in(0, 0, LockMode::Exclusive);
    for (answer, many) in [
        (LockAnswer::Contended, 1),
        (LockAnswer::Taken(1 << crate::fence::HAND_OVER_BITS), 0),
    ] {
        sim.change(0, |table, now, effects| {
            table.next(now, 0, Batch::All, effects);
            table.apply_replies(now, 0, &[Reply::Lock(answer)], effects);
            assert_eq!(effects.contended, many);
        });
        sim.wait_in(0, 1, LockMode::Exclusive);
    }
}

#[test]
fn an_attempt_of_one_branch_takes_no_wait_of_another_away() {
    let mut sim = two(1, 2);
    let owner = crate::mutex::LockOwner::new().id();
    let theirs = sim.wait_in(1, 1, LockMode::Exclusive);
    let want = |lock, policy| Acquisition {
        lock,
        mode: LockMode::Exclusive,
        owner: Some(owner),
        policy,
    };
    sim.run(MS * 20);
    sim.change(0, |table, now, effects| {
        let waits = table.acquire(now, want(lock(1), WaitPolicy::Forever), 1, effects);
        let tries = table.acquire(now, want(lock(1), WaitPolicy::NoWait), 2, effects);
        table.leave(now, lock(1), tries, effects);
        assert!(!table.owners.is_empty(), "the other branch still waits");
        table.leave(now, lock(1), waits, effects);
        assert!(table.owners.is_empty());
    });
    sim.end_one(1, theirs);
}

#[test]
fn a_writer_that_left_keeps_no_reader_out() {
    for behind in [false, true] {
        let mut sim = two(1, 2);
        let reader = sim.wait_in(1, 0, LockMode::Shared);
        sim.run(MS * 50);
        assert!(sim.holds(1, reader));
        let writer = sim.wait_in(0, 0, LockMode::Exclusive);
        sim.run(MS * 50);
        let behind = behind.then(|| sim.wait_in(0, 0, LockMode::Shared));
        sim.end_one(0, writer);
        sim.run(MS * 200);
        assert!(
            sim.server
                .queues
                .values()
                .all(std::collections::VecDeque::is_empty)
        );
        assert!(behind.is_none_or(|behind| sim.holds(0, behind)));
    }
}

#[test]
fn an_interrupted_wait_has_its_turn_again() {
    let mut sim = two(1, 100);
    let theirs: Vec<u64> = (0..20)
        .map(|key| sim.wait_in(1, key, LockMode::Exclusive))
        .collect();
    sim.run(MS * 50);
    let ours: Vec<u64> = (0..20)
        .map(|key| sim.wait_in(0, key, LockMode::Exclusive))
        .collect();
    for caller in theirs {
        sim.end_one(1, caller);
    }
    while !ours.iter().all(|caller| sim.holds(0, *caller)) {
        sim.run(MS * 5);
    }
    sim.run(MS * 200);
    let held: Vec<u64> = (0..5)
        .map(|key| sim.wait_in(1, 50 + key, LockMode::Exclusive))
        .collect();
    sim.run(MS * 50);
    let waits: Vec<u64> = (0..5)
        .map(|key| sim.wait_in(0, 50 + key, LockMode::Exclusive))
        .collect();
    // A release every 125 ms interrupts the session that waits; each key has its time all the same.
    let mut times = BTreeMap::<i64, Duration>::new();
    for step in 0..500 {
        sim.run(MS * 5);
        let queued = sim.server.queues.iter();
        for (lock, _) in queued.filter(|(lock, queue)| lock.key >= 50 && !queue.is_empty()) {
            *times.entry(lock.key).or_default() += MS * 5;
        }
        if step % 25 == 24
            && let Some(one) = ours.get(step / 25)
        {
            sim.end_one(0, *one);
        }
    }
    assert_eq!(times.len(), 5, "{times:?}");
    assert!(times.values().all(|time| *time >= MS * 225), "{times:?}");
    assert!(held.iter().all(|one| sim.holds(1, *one)));
    assert!(!waits.iter().any(|one| sim.holds(0, *one)));
}

#[test]
fn an_attempt_that_fails_is_made_once_more() {
    for session_is_lost in [false, true] {
        let mut sim = two(1, 1);
        let caller = sim.wait_in(0, 0, LockMode::Exclusive);
        for time in 1..=2 {
            let is_pending = sim.processes[0].callers.contains_key(&caller);
            assert!(is_pending, "it is made {time} times");
            sim.change(0, |table, now, effects| {
                let next = table.next(now, 0, Batch::All, effects);
                assert!(matches!(next, Next::Run(_)));
                if session_is_lost {
                    table.session_lost(now, 0, &ended(), effects);
                } else {
                    table.batch_failed(now, 0, &ended(), effects);
                }
            });
        }
        assert!(!sim.processes[0].callers.contains_key(&caller));
        sim.leaves_nothing();
    }
}

#[test]
fn who_waited_is_told_for_how_long() {
    let mut sim = two(1, 2);
    let waited = |sim: &Sim, p: usize, caller| match sim.processes[p].callers.get(&caller) {
        Some(Caller::Holds { waited, .. }) => *waited,
        _ => panic!("it is not granted"),
    };
    let theirs = sim.wait_in(1, 0, LockMode::Exclusive);
    sim.run(MS * 50);
    assert_eq!(waited(&sim, 1, theirs), None, "the lock was free");
    let ours = sim.wait_in(0, 0, LockMode::Exclusive);
    sim.run(MS * 300);
    sim.end_one(1, theirs);
    sim.run(MS * 50);
    let told = waited(&sim, 0, ours).expect("it was not free");
    assert!((MS * 290..=MS * 350).contains(&told), "{told:?}");
    sim.end_one(0, ours);
    sim.leaves_nothing();
}

#[test]
fn what_lasts_is_observed() {
    let mut sim = two(1, 3);
    let own = sim.wait_in(0, 0, LockMode::Exclusive);
    let shares = sim.wait_in(0, 2, LockMode::Shared);
    let theirs = sim.wait_in(1, 1, LockMode::Exclusive);
    sim.run(MS * 50);
    let waits = sim.wait_in(0, 1, LockMode::Exclusive);
    sim.run(super::observe::LONG.saturating_sub(MS * 60));
    let observed = |sim: &mut Sim| {
        let now = sim.now;
        let lasting = sim.processes[0].table.observe(now).lasting.into_iter();
        let mut lasting: Vec<_> = lasting
            .map(|it| (it.lock, it.waits, it.fence > 0))
            .collect();
        lasting.sort_unstable();
        lasting
    };
    assert_eq!(observed(&mut sim), []);
    sim.run(MS * 200);
    let expected = [
        (lock(0), false, true),
        (lock(1), true, false),
        (lock(2), false, false),
    ];
    assert_eq!(observed(&mut sim), expected);
    let now = sim.now;
    let table = &mut sim.processes[0].table;
    let marks = table.observe(now).marks;
    let opened = table.sessions.iter().map(|session| session.mark);
    assert_eq!(marks, opened.collect::<Vec<_>>(), "both are open");
    assert_eq!(table.observe_at, None, "nobody wants to know of it");
    for (p, caller) in [(0, own), (0, shares), (0, waits), (1, theirs)] {
        sim.end_one(p, caller);
    }
    sim.leaves_nothing();
}

#[test]
fn timers_are_set_once() {
    let mut sim = two(0, 2);
    let day = Duration::from_secs(24 * 3600);
    sim.processes[0].table = LockTable::new(super::Limits {
        waiters: 0,
        max_locks: 100,
        heartbeat: day,
        observed: false,
        seed: 7,
    });
    sim.wait_in(0, 5, LockMode::Exclusive);
    sim.run(MS * 50);
    let theirs = sim.wait_in(1, 0, LockMode::Exclusive);
    sim.run(MS * 50);
    let ours = sim.wait_in(0, 0, LockMode::Exclusive);
    sim.run(Duration::from_secs(60));
    assert!(sim.processes[0].table.timers.len() < 10);
    assert!(sim.holds(1, theirs) && !sim.holds(0, ours));
}

/// A release that is under way does not count.
#[test]
fn no_limit_of_locks_overflows() {
    let mut sim = two(1, 2);
    sim.processes[0].table.limits.max_locks = usize::MAX;
    let first = sim.wait_in(0, 0, LockMode::Exclusive);
    sim.run(MS * 50);
    sim.end_one(0, first);
    let second = sim.wait_in(0, 1, LockMode::Exclusive);
    sim.run(MS * 50);
    assert!(sim.holds(0, second));
    sim.end_one(0, second);
    sim.leaves_nothing();
}

#[test]
fn a_session_that_holds_looks_whether_it_is_alive() {
    let mut sim = two(1, 2);
    let held = sim.wait_in(0, 0, LockMode::Exclusive);
    let some = HEARTBEAT * 5 / 2;
    assert_eq!(sim.pings(some), 2);
    assert!(sim.holds(0, held));
    sim.end_one(0, held);
    // One that was due when it let go is not made.
    assert_eq!(sim.pings(some * 2), 0);
    sim.leaves_nothing();
}

#[test]
fn who_passed_a_lock_on_for_its_time_stands_back() {
    use LockMode::{Exclusive as Alone, Shared as Share};
    // Who had it alone has taken nothing from others; who shares it and who has it alone pass it on to each other as well.
    for (modes, held, stands_back) in [
        (vec![Alone; 2], MS * 40, false),
        (vec![Share, Alone], MS * 40, false),
        (vec![Alone; 3], MS * 20, true),
        (vec![Alone, Share, Alone], MS * 20, true),
        (vec![Share, Alone, Share], MS * 20, true),
    ] {
        let mut sim = two(1, 1);
        let callers: Vec<_> = modes
            .into_iter()
            .map(|mode| sim.wait_in(0, 0, mode))
            .collect();
        let (last, others) = callers.split_last().expect("some");
        for caller in others {
            for _ in 0..4 {
                sim.work(0, 0);
            }
            assert!(sim.holds(0, *caller));
            sim.pass_time(held);
            sim.end_one(0, *caller);
        }
        let phase = &sim.processes[0].table.slots[&lock(0)].phase;
        assert_eq!(matches!(phase, Phase::Polling(_)), stands_back);
        assert_eq!(matches!(phase, Phase::Trying), !stands_back);
        sim.run(MS * 20);
        assert!(sim.holds(0, *last));
        sim.end_one(0, *last);
        sim.leaves_nothing();
    }
}

#[test]
fn waits_that_could_not_begin_are_counted() {
    let mut sim = two(2, 2);
    for p in [1, 0] {
        for key in 0..2 {
            sim.wait_in(p, key, LockMode::Exclusive);
        }
        for _ in 0..4 {
            sim.work(p, 0);
        }
    }
    let mut unopened = 0;
    while unopened < 2 {
        sim.work(0, 0);
        for session in 1..=2 {
            sim.change(0, |table, now, effects| {
                if let Next::Wait(_) = table.next(now, session, Batch::All, effects) {
                    table.waited(now, session, WaitOutcome::Unopened, effects);
                    assert_eq!(effects.unopened, 1);
                    unopened += 1;
                }
            });
        }
        assert!(sim.now < Duration::from_secs(1), "{unopened} have begun");
        sim.pass_time(MS);
    }
}

#[test]
fn a_session_that_is_there_waits_before_another_is_opened() {
    let mut sim = two(3, 1);
    let theirs = sim.wait_in(1, 0, LockMode::Exclusive);
    sim.run(MS * 20);
    sim.processes[0].table.sessions[3].running = true;
    sim.processes[0].workers[3].alive = true;
    let ours = sim.wait_in(0, 0, LockMode::Exclusive);
    let waits = |sim: &Sim| {
        let mut sessions = sim.processes[0].table.sessions.iter();
        sessions.position(|one| one.wait.is_some())
    };
    while waits(&sim).is_none() {
        sim.work(0, 0);
    }
    assert_eq!(waits(&sim), Some(3));
    sim.end_one(1, theirs);
    sim.run(Duration::from_secs(2));
    assert!(sim.holds(0, ours));
    sim.end_one(0, ours);
    sim.leaves_nothing();
}

#[test]
fn an_attempt_to_have_it_alone_is_refused_while_the_server_is_asked() {
    let mut sim = two(1, 1);
    let first = sim.wait_in(0, 0, LockMode::Shared);
    sim.run(MS * 50);
    let second = sim.wait_in(0, 0, LockMode::Shared);
    assert!(sim.holds(0, first) && !sim.holds(0, second), "it is asked");
    let tries = sim.ask_for(
        0,
        Acquisition {
            lock: lock(0),
            mode: LockMode::Exclusive,
            owner: None,
            policy: WaitPolicy::NoWait,
        },
    );
    assert!(!sim.processes[0].callers.contains_key(&tries));
    sim.run(MS * 20);
    assert!(sim.holds(0, second));
    for caller in [first, second] {
        sim.end_one(0, caller);
    }
    sim.leaves_nothing();
}

/// What one branch of an owner is let in for does not let in another branch, which waits to have the lock alone.
#[test]
fn who_is_about_to_share_may_wait_for_more() {
    for waits in [false, true] {
        let mut sim = two(1, 2);
        let [reader, both] = [(); 2].map(|()| crate::mutex::LockOwner::new().id());
        let shares = ask(&mut sim, 0, reader, LockMode::Shared);
        let own = ask(&mut sim, 1, both, LockMode::Exclusive);
        sim.run(MS * 50);
        // The server is asked whether others wait.
        let policy = if waits {
            WaitPolicy::Forever
        } else {
            WaitPolicy::NoWait
        };
        let wanted = Acquisition {
            lock: lock(0),
            mode: LockMode::Shared,
            owner: Some(both),
            policy,
        };
        let also = sim.ask_for(0, wanted);
        let alone = ask(&mut sim, 0, both, LockMode::Exclusive);
        let waiting = |sim: &Sim, caller| sim.processes[0].callers.contains_key(&caller);
        assert!(waiting(&sim, also) && waiting(&sim, alone));
        let closes = ask(&mut sim, 1, reader, LockMode::Exclusive);
        assert!(!waiting(&sim, closes), "it is told of the deadlock");
        for caller in [also, alone, shares, own] {
            sim.end_one(0, caller);
        }
        sim.leaves_nothing();
    }
}

/// A reader whose time is over while it is given the lock leaves nothing shared by nobody.
#[test]
fn whose_time_is_over_meanwhile_is_given_nothing() {
    let mut sim = two(1, 1);
    let reader = Acquisition {
        lock: lock(0),
        mode: LockMode::Shared,
        owner: None,
        policy: WaitPolicy::Until(sim.now + MS),
    };
    let caller = sim.ask_for(0, reader);
    sim.work(0, 0);
    let clock = Cell::new(sim.now);
    let now = || {
        let at = clock.get();
        clock.set(at + MS);
        at
    };
    let table = &mut sim.processes[0].table;
    let taken = [Reply::Lock(LockAnswer::Shared)];
    let ((), effects) = table.change(&now, |table, effects| {
        table.apply_replies(&now, 0, &taken, effects);
    });
    table.is_consistent();
    sim.now = clock.get();
    sim.carry_out(0, effects);
    assert!(sim.holds(0, caller), "it was in time");
}

#[test]
fn a_wait_that_begins_late_is_interrupted_until_its_end() {
    let mut suspect = Suspect::new();
    let slice = suspect.slice();
    // The session is opened meanwhile.
    suspect.sim.now += slice.time;
    let now = suspect.sim.now;
    let table = &mut suspect.sim.processes[0].table;
    table.opened(1, 17, 0);
    assert!(table.is_wanted(1, now));
    suspect.sim.end_one(0, suspect.waits);
    assert!(suspect.is_interrupted());
}

#[test]
fn a_wait_that_nobody_waits_for_is_not_sent() {
    let mut suspect = Suspect::new();
    let slice = suspect.slice();
    suspect.sim.now += slice.time;
    suspect.sim.end_one(0, suspect.waits);
    let now = suspect.sim.now;
    assert!(!suspect.sim.processes[0].table.is_wanted(1, now));
}

/// A writer of the first program who waits to have a lock alone, for so long.
fn until(sim: &mut Sim, key: i64, time: Duration) -> u64 {
    let wanted = Acquisition {
        lock: lock(key),
        mode: LockMode::Exclusive,
        owner: None,
        policy: WaitPolicy::Until(sim.now + time),
    };
    sim.ask_for(0, wanted)
}

#[test]
fn who_waits_no_more_closes_no_cycle() {
    let mut sim = two(1, 2);
    let [reader, both] = [(); 2].map(|()| crate::mutex::LockOwner::new().id());
    let shares = ask(&mut sim, 0, reader, LockMode::Shared);
    let own = ask(&mut sim, 1, both, LockMode::Exclusive);
    sim.run(MS * 50);
    let writer = until(&mut sim, 0, MS * 20);
    let waits = ask(&mut sim, 1, reader, LockMode::Exclusive);
    // Nobody has looked since.
    sim.now += MS * 30;
    let also = ask(&mut sim, 0, both, LockMode::Shared);
    assert!(!sim.processes[0].callers.contains_key(&writer));
    sim.run(MS * 50);
    assert!(sim.holds(0, also));
    for caller in [also, own] {
        sim.end_one(0, caller);
    }
    sim.run(MS * 50);
    for caller in [waits, shares] {
        sim.end_one(0, caller);
    }
    sim.leaves_nothing();
}

#[test]
fn who_does_not_wait_shares_behind_a_writer_whose_time_is_over() {
    let mut sim = two(1, 1);
    let first = sim.wait_in(0, 0, LockMode::Shared);
    sim.run(MS * 10);
    let writer = until(&mut sim, 0, MS * 5);
    sim.now += MS * 10;
    let tries = Acquisition {
        lock: lock(0),
        mode: LockMode::Shared,
        owner: None,
        policy: WaitPolicy::NoWait,
    };
    let tries = sim.ask_for(0, tries);
    assert!(sim.holds(0, tries) && !sim.processes[0].callers.contains_key(&writer));
    for caller in [first, tries] {
        sim.end_one(0, caller);
    }
    sim.leaves_nothing();
}

#[test]
fn readers_behind_a_writer_are_let_in_when_his_time_is_over() {
    for time in [MS * 20, MS * 2500] {
        let mut sim = two(1, 1);
        let first = sim.wait_in(0, 0, LockMode::Shared);
        sim.run(MS * 50);
        let writer = until(&mut sim, 0, time);
        let second = sim.wait_in(0, 0, LockMode::Shared);
        sim.run(time.saturating_sub(MS * 10));
        assert!(!sim.holds(0, second));
        sim.run(MS * 60);
        assert!(sim.holds(0, second) && !sim.processes[0].callers.contains_key(&writer));
        assert!(sim.processes[0].table.polls.len() < 2);
        for caller in [first, second] {
            sim.end_one(0, caller);
        }
        sim.leaves_nothing();
    }
}

#[test]
fn the_next_wait_is_not_interrupted_for_the_last() {
    let mut suspect = Suspect::new();
    suspect.begins();
    suspect.sim.processes[0].table.opened(1, 17, 0);
    suspect
        .sim
        .change(0, |table, _, effects| table.interrupt(1, effects));
    assert!(suspect.is_interrupted());
    // It came before the wait was sent, so it is to be repeated, and the wait is not sent.
    suspect.sim.change(0, |table, now, effects| {
        table.apply_replies(now, 0, &[Reply::Interrupted], effects);
    });
    let now = suspect.sim.now;
    assert!(!suspect.sim.processes[0].table.is_wanted(1, now));
    assert!(suspect.ends(WaitOutcome::NotGranted));
    suspect.begins();
    suspect.sim.pass_time(MS * 20);
    assert!(!suspect.is_interrupted());
}

/// An owner of the first program that waits for so long.
fn waits_until(sim: &mut Sim, key: i64, owner: crate::mutex::OwnerId, time: Duration) -> u64 {
    let wanted = Acquisition {
        lock: lock(key),
        mode: LockMode::Exclusive,
        owner: Some(owner),
        policy: WaitPolicy::Until(sim.now + time),
    };
    sim.ask_for(0, wanted)
}

#[test]
fn what_is_held_by_who_is_out_of_time_is_not_noted() {
    let mut suspect = Suspect::new();
    let late = crate::mutex::LockOwner::new().id();
    ask(&mut suspect.sim, 3, late, LockMode::Exclusive);
    suspect.sim.work(0, 0);
    suspect.sim.work(0, 0);
    waits_until(&mut suspect.sim, 2, late, MS * 5);
    // Nobody has looked since.
    suspect.sim.now += MS * 10;
    suspect.begins();
}

#[test]
fn who_is_out_of_time_is_told_of_no_cycle() {
    let mut suspect = Suspect::new();
    let late = crate::mutex::LockOwner::new().id();
    ask(&mut suspect.sim, 3, late, LockMode::Exclusive);
    suspect.sim.work(0, 0);
    suspect.sim.work(0, 0);
    waits_until(&mut suspect.sim, 1, late, MS * 500);
    assert_eq!(suspect.notes(), [lock(0), lock(2), lock(3)]);
    assert!(suspect.ends(cycle(3)), "one look is none");
    assert_eq!(suspect.notes(), [lock(0), lock(2), lock(3)]);
    suspect.sim.now += MS * 500;
    suspect.sim.change(0, |table, now, effects| {
        table.answered(1);
        table.waited(now, 1, cycle(3), effects);
        let answers = effects.answers.iter();
        let is_busy = |answer: &Answer<_>| matches!(answer, Answer::Busy);
        assert_eq!(answers.filter(|(_, answer)| is_busy(answer)).count(), 1);
    });
}

#[test]
fn who_waits_no_more_closes_no_cycle_of_readers() {
    let mut sim = two(1, 2);
    let [reader, both] = [(); 2].map(|()| crate::mutex::LockOwner::new().id());
    let shares = ask(&mut sim, 0, reader, LockMode::Shared);
    let own = ask(&mut sim, 1, both, LockMode::Exclusive);
    sim.run(MS * 50);
    let theirs = sim.wait_in(1, 0, LockMode::Exclusive);
    sim.run(MS * 50);
    let waits = waits_until(&mut sim, 1, reader, MS * 5);
    let also = ask(&mut sim, 0, both, LockMode::Shared);
    sim.now += MS * 10;
    sim.run(MS * 10);
    let callers = &sim.processes[0].callers;
    assert!(callers.contains_key(&also) && !callers.contains_key(&waits));
    sim.end_one(0, shares);
    sim.run(MS * 50);
    assert!(sim.holds(1, theirs));
    for (p, caller) in [(1, theirs), (0, also), (0, own)] {
        sim.run(MS * 500);
        assert!(sim.holds(p, caller));
        sim.end_one(p, caller);
    }
    sim.leaves_nothing();
}

#[test]
fn a_session_that_has_nothing_to_do_ends() {
    let mut sim = two(1, 1);
    let theirs = sim.wait_in(1, 0, LockMode::Exclusive);
    sim.run(MS * 20);
    let ours = sim.wait_in(0, 0, LockMode::Exclusive);
    for is_over in [false, false, true] {
        sim.run(MS * 50);
        let table = &mut sim.processes[0].table;
        assert_eq!(table.retire(1), is_over);
        assert_eq!(table.sessions[1].running, !is_over);
        let (p, caller) = if sim.holds(1, theirs) {
            (1, theirs)
        } else {
            (0, ours)
        };
        sim.end_one(p, caller);
    }
}

#[test]
fn attempts_that_failed_together_are_made_one_by_one() {
    let mut sim = two(1, 2);
    let callers = [0, 1].map(|key| sim.wait_in(0, key, LockMode::Exclusive));
    let sends = |sim: &mut Sim| {
        let next = sim.change(0, |table, now, effects| {
            table.next(now, 0, Batch::All, effects)
        });
        match next {
            Next::Run(commands) => commands.len(),
            _ => 0,
        }
    };
    assert_eq!(sends(&mut sim), 2);
    sim.change(0, |table, now, effects| {
        table.batch_failed(now, 0, &ended(), effects);
    });
    let taken = Reply::Lock(LockAnswer::Taken(1 << crate::fence::HAND_OVER_BITS));
    for caller in callers {
        assert_eq!(sends(&mut sim), 1);
        sim.change(0, |table, now, effects| {
            table.apply_replies(now, 0, &[taken], effects);
        });
        assert!(sim.holds(0, caller));
    }
    assert_eq!(sends(&mut sim), 0);
    // Those that come later go together again.
    for caller in callers {
        sim.end_one(0, caller);
    }
    assert_eq!(sends(&mut sim), 2);
}

#[test]
fn the_end_of_a_writer_is_seen_in_time_whoever_was_before_him() {
    let mut sim = two(1, 1);
    let first = sim.wait_in(0, 0, LockMode::Shared);
    sim.run(MS * 50);
    let leaves = until(&mut sim, 0, MS * 2500);
    until(&mut sim, 0, MS * 100);
    let second = sim.wait_in(0, 0, LockMode::Shared);
    sim.run(MS * 20);
    sim.end_one(0, leaves);
    sim.run(MS * 150);
    assert!(sim.holds(0, second));
    for caller in [first, second] {
        sim.end_one(0, caller);
    }
    sim.leaves_nothing();
}

/// A program that waits for two locks of another, with one session.
fn waits_for_two() -> Sim {
    let mut sim = two(1, 2);
    for p in [1, 0] {
        for key in [0, 1] {
            sim.wait_in(p, key, LockMode::Exclusive);
        }
        for _ in 0..4 {
            sim.work(p, 0);
        }
    }
    sim
}

#[test]
fn an_interrupted_wait_keeps_its_turn_until_it_had_its_time() {
    for (waited, goes_on) in [(MS * 10, true), (MS * 260, false)] {
        let mut sim = waits_for_two();
        let first = slice(&mut sim);
        let now = sim.now;
        assert!(sim.processes[0].table.is_wanted(1, now));
        sim.now += waited;
        sim.change(0, |table, _, effects| table.interrupt(1, effects));
        slice_ends(&mut sim);
        let second = slice(&mut sim);
        assert_eq!(second.lock == first.lock, goes_on);
        slice_ends(&mut sim);
        assert_ne!(
            slice(&mut sim).lock,
            second.lock,
            "which was not interrupted"
        );
    }
}

#[test]
fn who_holds_nothing_waits_for_a_short_time_while_others_wait_for_their_turn() {
    let mut sim = waits_for_two();
    for _ in 0..20 {
        let slice = slice(&mut sim);
        assert_eq!(slice.time, MS * 250);
        slice_ends(&mut sim);
    }
    let mut suspect = Suspect::new();
    let alone: Vec<_> = (0..10)
        .map(|_| {
            let slice = suspect.slice();
            suspect.ends(WaitOutcome::NotGranted);
            slice.time
        })
        .collect();
    let in_bounds = |time: &Duration| (MS * 400..=MS * 800).contains(time);
    assert!(alone.iter().all(in_bounds), "{alone:?}");
    assert!(alone.iter().any(|time| *time != alone[0]), "{alone:?}");
    // Owners that hold something see a deadlock only while both wait: some of their turns are longer.
    for p in [1, 0] {
        suspect.sim.wait_in(p, 5, LockMode::Exclusive);
        for _ in 0..4 {
            suspect.sim.work(p, 0);
        }
    }
    let slices: Vec<_> = (0..40)
        .map(|_| {
            let slice = suspect.slice();
            suspect.ends(WaitOutcome::NotGranted);
            (slice.lock.key, slice.time > MS * 250)
        })
        .collect();
    for slice in [(1, true), (1, false), (5, false)] {
        assert!(slices.contains(&slice), "{slice:?} of {slices:?}");
    }
    assert!(!slices.contains(&(5, true)));
}

#[test]
fn a_lock_is_passed_on_so_often_and_then_released() {
    let mut sim = two(1, 1);
    let callers: Vec<_> = (0..66)
        .map(|_| sim.wait_in(0, 0, LockMode::Exclusive))
        .collect();
    for _ in 0..4 {
        sim.work(0, 0);
    }
    for pair in callers.windows(2).take(64) {
        sim.end_one(0, pair[0]);
        assert!(sim.holds(0, pair[1]), "without a statement");
        assert_eq!(sim.processes[0].table.requests(0), 0);
    }
    sim.end_one(0, callers[64]);
    assert!(!sim.holds(0, callers[65]));
    assert_eq!(sim.processes[0].table.requests(0), 2, "released, and tried");
    sim.run(MS * 20);
    sim.end_one(0, callers[65]);
    sim.leaves_nothing();
}

#[test]
fn a_lock_of_a_session_that_waited_is_tried_when_it_is_released() {
    let mut sim = two(1, 1);
    let theirs = sim.wait_in(1, 0, LockMode::Exclusive);
    sim.run(MS * 20);
    let [first, second] = [(); 2].map(|()| sim.wait_in(0, 0, LockMode::Exclusive));
    sim.run(MS * 20);
    sim.end_one(1, theirs);
    sim.run(MS * 50);
    assert!(sim.holds(0, first));
    // It had the lock for its time, so that it is not passed on.
    sim.end_one(0, first);
    let table = &sim.processes[0].table;
    assert_eq!((table.requests(0), table.requests(1)), (0, 1));
    sim.run(MS * 20);
    assert!(sim.holds(0, second));
    sim.end_one(0, second);
    sim.leaves_nothing();
}

#[test]
fn a_reader_behind_a_writer_is_told_of_a_deadlock() {
    let mut sim = two(1, 2);
    let [reader, both] = [(); 2].map(|()| crate::mutex::LockOwner::new().id());
    let shares = ask(&mut sim, 0, reader, LockMode::Shared);
    let own = ask(&mut sim, 1, both, LockMode::Exclusive);
    sim.run(MS * 10);
    let waits = ask(&mut sim, 1, reader, LockMode::Exclusive);
    let writer = sim.wait_in(0, 0, LockMode::Exclusive);
    // It would wait for the writer, who waits for the reader, who waits for it.
    let also = ask(&mut sim, 0, both, LockMode::Shared);
    assert!(!sim.processes[0].callers.contains_key(&also));
    for caller in [own, waits, shares, writer] {
        sim.run(MS * 50);
        sim.end_one(0, caller);
    }
    sim.leaves_nothing();
}

#[test]
fn while_no_session_can_wait_all_are_polled() {
    let mut sim = waits_for_two();
    slice(&mut sim);
    sim.change(0, |table, now, effects| {
        table.answered(1);
        table.waited(now, 1, WaitOutcome::Unopened, effects);
    });
    let slots = sim.processes[0].table.slots.values();
    let phases: Vec<_> = slots.map(|slot| &slot.phase).collect();
    assert_eq!(phases.len(), 2);
    assert!(
        phases
            .iter()
            .all(|phase| matches!(phase, Phase::Polling(_)))
    );
}

#[test]
fn a_session_that_was_just_given_a_lock_waits_for_no_other() {
    let mut sim = two(1, 2);
    let theirs = [0, 1].map(|key| sim.wait_in(1, key, LockMode::Exclusive));
    sim.run(MS * 20);
    assert!(!sim.processes[0].table.is_in_use());
    let first = sim.wait_in(0, 0, LockMode::Exclusive);
    assert!(sim.processes[0].table.is_in_use());
    sim.run(MS * 20);
    sim.end_one(1, theirs[0]);
    while !sim.holds(0, first) {
        sim.run(MS);
    }
    let second = sim.wait_in(0, 1, LockMode::Exclusive);
    let waits = |sim: &Sim| {
        let queue = sim.server.queues.get(&lock(1));
        queue.is_some_and(|queue| !queue.is_empty())
    };
    sim.run(MS * 10);
    assert!(
        !waits(&sim),
        "it is likely to be released, which would end the wait"
    );
    sim.run(MS * 40);
    assert!(waits(&sim));
    for (p, caller) in [(0, first), (1, theirs[1]), (0, second)] {
        sim.end_one(p, caller);
        sim.run(MS * 50);
    }
    sim.leaves_nothing();
}
