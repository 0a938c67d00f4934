use super::*;
use crate::driver::{Operation, Value};
use crate::engine::locks::LongHoldOrWait;
use crate::engine::tests::refusing::{Process, eventually};

/// What is seen of a program that holds a lock, or nothing.
fn observed(process: &Process, holds: bool) -> Observed {
    let held = LongHoldOrWait {
        lock: LockId {
            key: 1,
            pair: false,
        },
        waits: false,
        fence: 1,
        since: Time::ZERO,
    };
    Observed {
        now: process.now(),
        marks: Vec::new(),
        lasting: if holds { vec![held] } else { Vec::new() },
    }
}

#[test]
fn what_ended_after_its_note_had_failed_is_noted_no_more() {
    let process = Process::new(Note::STATEMENT.name);
    let connections = process.connections();
    let (batcher, sweeps) = (
        Batcher::new(Arc::clone(connections)),
        Sweeps::new(connections),
    );
    let recorder = NoteRecorder::new(batcher, sweeps, Arc::default(), "default".into()).unwrap();
    let sent = |times| {
        process.pass_until_sent(times);
        eventually(|| !recorder.lock().busy);
    };
    process.refuse(1);
    assert!(recorder.record(observed(&process, true)));
    sent(1);
    let comes_again = recorder.record(observed(&process, false));
    assert!(comes_again, "the note may have been made");
    process.pass(PAUSE);
    assert!(recorder.record(observed(&process, false)));
    sent(2);
    let all = process.sent().pop().and_then(|mut sent| sent.params.pop());
    assert_eq!(all, Some(Value::Bool(true)));
    assert!(!recorder.record(observed(&process, false)));
    sent(2);
}
