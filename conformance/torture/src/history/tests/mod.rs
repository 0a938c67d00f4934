//! Histories that break one promise each, and some that break none, by what is checked.

use std::path::PathBuf;

use super::{Accepted, Call, Dead, Handled, History, Turn};
use crate::args::Role;
use crate::conductor::AppliedFault;
use crate::crew::Incarnation;
use crate::log::{Answer, Claimed, Failed, How, Kind, Nanos, Op, SECOND};
use crate::plan::Fault;

mod answers;
mod attempts;
mod delays;
mod jobs;
mod limited;
mod locks;
mod numbers;
mod order;
mod pauses;
mod registers;
mod results;
mod schedules;
mod unique;

/// Calls of two programs.
fn history(calls: impl IntoIterator<Item = Call>) -> History {
    let program = |number| Incarnation {
        number,
        place: usize::try_from(number).unwrap_or(0) - 1,
        name: "program".to_owned(),
        role: Role::Library {
            library: crate::args::Library::Sqlx,
            blocking: false,
        },
        pooled: false,
        log: PathBuf::new(),
        errors: PathBuf::new(),
        begun: 0,
        ended: Some(999 * SECOND),
        stops: Vec::new(),
    };
    History {
        programs: vec![program(1), program(2)],
        calls: calls.into_iter().collect(),
        calm: (1000 * SECOND, 1000 * SECOND),
        end: 1000 * SECOND,
        ..History::default()
    }
}

fn call(program: usize, op: Op, (asked, answered): (Nanos, Nanos), answer: Answer) -> Call {
    Call {
        program,
        op,
        asked: asked * SECOND,
        answer: Some((answered * SECOND, answer)),
        held: [].into(),
    }
}

fn refused() -> Answer {
    Answer::Failed {
        what: Failed::NotDone,
        kind: "Unavailable".to_owned(),
        message: String::new(),
    }
}

fn unknown() -> Answer {
    Answer::Failed {
        what: Failed::Unknown,
        kind: "Indeterminate".to_owned(),
        message: String::new(),
    }
}

/// The promises that a history breaks, but those of numbers of deliveries, which are made up here, and of jobs that end, which most
/// of these do not.
fn broken(history: &History) -> Vec<&'static str> {
    let mut broken: Vec<_> = history.violations().iter().map(|it| it.promise).collect();
    broken.retain(|promise| ![attempts::NUMBER, jobs::BY_SOMEBODY].contains(promise));
    broken.dedup();
    broken
}

/// A fault that concerns the program at a place, or any.
fn applied(fault: Fault, (from, to): (Nanos, Nanos), place: Option<usize>) -> AppliedFault {
    AppliedFault {
        fault,
        from: from * SECOND,
        to: to * SECOND,
        effect: 1,
        place,
    }
}

/// Held under a token from a time to a time.
fn hold(program: usize, kind: Kind, token: i64, (from, to): (Nanos, Nanos)) -> Call {
    let op = Op::Acquire {
        kind,
        key: "a".to_owned(),
        wait: 0,
        kept: true,
    };
    Call {
        held: [(token, to * SECOND)].into(),
        ..call(program, op, (from - 1, from), Answer::Token(token))
    }
}

fn push(job: i64, answer: Answer) -> Call {
    let op = Op::Push {
        job,
        queue: "jobs".to_owned(),
        group: None,
        delay: 0,
        with: None,
        inside: false,
        unique: None,
        attempts: 3,
    };
    call(0, op, (1, 2), answer)
}

fn claim(job: i64, token: i64, (asked, answered): (Nanos, Nanos)) -> Call {
    let op = Op::Claim {
        queue: "jobs".to_owned(),
        wait: 0,
        extended: true,
    };
    let claimed = Claimed {
        job,
        token,
        due: 0,
        attempt: 1,
        most: 3,
    };
    call(1, op, (asked, answered), Answer::Jobs(vec![claimed]))
}

fn ack(job: i64, token: i64, times: (Nanos, Nanos), how: How) -> Call {
    call(1, Op::Settle { job, token, how }, times, Answer::Done)
}

fn check(at: Nanos) -> Call {
    let key = "a".to_owned();
    call(0, Op::Check { key }, (at, at), Answer::Taken(0))
}

fn ids(program: usize, ids: &[i64]) -> Call {
    let generator = "flakes".to_owned();
    let answer = Answer::Ids(ids.to_vec());
    call(program, Op::Ids { generator }, (1, 2), answer)
}
