use super::*;
use crate::engine::clock::{Clock, ManualClock};
use crate::mutex::Stepped;

const LOCK: LockId = LockId {
    key: 1,
    pair: false,
};
const WANT: Want = Want {
    lock: LOCK,
    way: Way::Alone,
    line: None,
};
const HEARTBEAT: Duration = Duration::from_hours(1);

fn sessions(clock: &ManualClock, waiters: usize) -> Arc<Sessions> {
    let keeper = Keeper::start(&Clock::Manual(clock.clone())).unwrap();
    Sessions::new(keeper, waiters, 10, HEARTBEAT)
}

/// Does what the lane of session 0 does; answers how many requests it ran.
fn answer(sessions: &Sessions, answer: Stepped) -> usize {
    let Next::Run(requests) = sessions.take(0, Most::All) else {
        return 0;
    };
    let many = requests.len();
    sessions.settle(0, requests, &vec![Answer::Step(answer); many]);
    many
}

#[test]
fn callers_that_come_between_polls_add_no_polls() {
    let clock = ManualClock::default();
    let sessions = sessions(&clock, 0);
    let _waiting = sessions.ask(WANT, Patience::Forever);
    answer(&sessions, Stepped::Contended);
    for _ in 0..100 {
        drop(sessions.ask(WANT, Patience::None));
        assert_eq!(answer(&sessions, Stepped::Contended), 1);
    }
    let mut polls = 0;
    for _ in 0..400 {
        clock.advance(Duration::from_millis(1));
        // The keeper's thread does what is due.
        std::thread::sleep(Duration::from_millis(1));
        polls += answer(&sessions, Stepped::Contended);
    }
    assert!((1..=20).contains(&polls), "{polls} polls in 400 ms");
}

#[test]
fn callers_that_left_do_not_pile_up_behind_one_that_stays() {
    let clock = ManualClock::default();
    let sessions = sessions(&clock, 4);
    let mut holder = sessions.ask(WANT, Patience::None);
    answer(&sessions, Stepped::Taken(1024));
    let _held = holder.reply.try_recv().unwrap().unwrap().unwrap();
    let _waiting = sessions.ask(WANT, Patience::Forever);
    for _ in 0..10_000 {
        drop(sessions.ask(WANT, Patience::Forever));
    }
    let queued = sessions.lock().slots[&LOCK].queue.len();
    assert!(queued < 100, "{queued} are queued, one waits");
}
