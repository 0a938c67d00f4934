//! Two sessions at the history of one queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockapi::queue::HistoryPoint;
use lockapi::suite::admin::ReadHistory;
use lockapi::suite::queue::{
    FoldHistory, HistoryPart, HistorySums, Name, RecordHistory, SweepHistory,
};

use super::sides::{Plans, Side, Step, elapse, own_url, sql, step};
use super::{Meets, Schedule};

/// Times that no clock comes near to: in both cases the beginning of an hour.
const PAST: i64 = 1000 * 3_600_000_000;
const FUTURE: i64 = 2_000_000 * 3_600_000_000;
const MINUTE: i64 = 60_000_000;

fn name(side: &Side) -> Name {
    Name {
        namespace: side.namespace.clone(),
        queue: "work".to_owned(),
    }
}

/// Records a part with this number: at these minutes of an hour, each for these names.
fn record_at(
    hour: i64,
    part: i64,
    minutes: &'static [i64],
    names: &'static [&'static str],
    taken_at: i64,
) -> Step {
    let batch = move |side: &Side| {
        let of = |minute: &i64, name: &str| HistoryPart {
            queue: "work".to_owned(),
            minute: hour + minute * MINUTE,
            name: name.to_owned(),
            sums: HistorySums {
                completed: part,
                failed: 2,
                dead: 1,
                waited: 1000,
                ran: i64::MAX - 1,
                waits: vec![part; usize::try_from(part % 24 + 1).expect("few")],
                runs: [0, 7, i64::MAX][..=usize::try_from(part % 3).expect("few")].to_vec(),
            },
        };
        let parts = minutes
            .iter()
            .flat_map(|minute| names.iter().map(move |name| of(minute, name)));
        vec![RecordHistory {
            namespace: side.namespace.clone(),
            taken_at,
            part,
            parts: parts.collect(),
        }]
    };
    step(batch, |_, in_time| format!("in time: {in_time}"))
}

fn record(part: i64, minutes: &'static [i64], names: &'static [&'static str]) -> Step {
    record_at(FUTURE, part, minutes, names, FUTURE)
}

/// What was taken out of the memory of a program so many minutes ago.
fn record_late(ago: i64) -> Step {
    Arc::new(move |side: &mut Side| {
        let taken_at = side.now() - ago * MINUTE;
        record_at(FUTURE, 1, &[0], &["a"], taken_at)(side)
    })
}

/// Moves so many parts at most.
fn fold(most: i64) -> Step {
    fold_after(("", 0, "", 0), most)
}

/// Moves those that follow the part of this queue, minute, name and number.
fn fold_after(place: (&'static str, i64, &'static str, i64), most: i64) -> Step {
    let batch = move |side: &Side| {
        let (queue, minute, name, part) = place;
        let after = (
            side.namespace.clone(),
            queue.to_owned(),
            minute,
            name.to_owned(),
            part,
        );
        vec![FoldHistory { after, most }]
    };
    step(batch, |side, folded| {
        let last = folded.last.map(|mut last| {
            assert_eq!(last.0, side.namespace);
            last.0.clear();
            last
        });
        format!("{} moved, to {last:?}", folded.deleted)
    })
}

/// Deletes what is old, among so many.
fn sweep(most: i64) -> Step {
    let batch = move |side: &Side| {
        vec![SweepHistory {
            after: (
                side.namespace.clone(),
                String::new(),
                false,
                0,
                String::new(),
            ),
            most,
        }]
    };
    step(batch, |side, swept| {
        let last = swept.last.map(|mut last| {
            assert_eq!(last.0, side.namespace);
            last.0.clear();
            last
        });
        format!("{} swept, to {last:?}", swept.deleted)
    })
}

fn read(job: Option<&'static str>, hourly: bool, most: i64) -> Step {
    let batch = move |side: &Side| {
        vec![ReadHistory {
            name: name(side),
            job: job.map(str::to_owned),
            hourly,
            most,
        }]
    };
    step(batch, |_, points: Vec<HistoryPoint>| format!("{points:?}"))
}

/// All that is there.
fn all() -> Vec<Step> {
    vec![
        read(None, false, 100),
        read(None, true, 100),
        read(Some("b"), false, 100),
        read(Some(""), true, 100),
    ]
}

#[test]
fn parts_of_two_programs_wait_for_nobody() {
    let settled = elapse(10);
    let old = record(3, &[0, 1], &["a", "b"]);
    for (before, first) in [
        (vec![], record(1, &[0, 1], &["a", "b"])),
        (vec![&old, &settled], fold(4)),
        (
            vec![&old],
            sql("SELECT FROM lockapi.job_history_part WHERE namespace = $n FOR UPDATE"),
        ),
    ] {
        let second = record(2, &[0, 1], &["a", "b"]);
        let schedule = Schedule::new(&before, &first, &second, Meets::Passes);
        schedule.at(own_url()).then(&read(None, false, 100)).run();
    }
}

#[test]
fn a_part_that_is_sent_again_waits_for_the_first_and_is_stored_once() {
    let part = record(1, &[0, 1], &["a", "b"]);
    let schedule = Schedule::new(&[], &part, &part, Meets::Waits);
    schedule.at(own_url()).then(&read(None, false, 100)).run();
}

#[test]
fn a_part_is_moved_once() {
    let (part, settled) = (record(1, &[0], &["a"]), elapse(10));
    let lock = sql("SELECT FROM lockapi.job_history_part WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.job_history_part WHERE namespace = $n FOR KEY SHARE");
    for first in [&fold(1), &lock, &share] {
        let before = [&part, &settled];
        let skips = Meets::Skips("0 moved, to Some((\"\", \"work\", 7200000000000000, \"a\", 1))");
        let schedule = Schedule::new(&before, first, &fold(1), skips);
        schedule.at(own_url()).then(&read(None, true, 100)).run();
    }
}

/// The second moves the other part, to the same hour.
#[test]
fn parts_of_an_hour_add_up_whoever_moves_them() {
    let settled = elapse(10);
    let lock =
        sql("UPDATE lockapi.job_history SET completed = completed WHERE namespace = $n AND hourly");
    let (one, two) = (record(1, &[0], &["a"]), record(2, &[1], &["a"]));
    let before = [&one, &settled, &fold(1), &two, &settled];
    let schedule = Schedule::new(&before, &lock, &fold(1), Meets::Waits);
    schedule.at(own_url()).then(&read(None, true, 100)).run();
}

#[test]
fn old_minutes_that_are_locked_are_skipped() {
    let settled = elapse(10);
    let part = record_at(PAST, 1, &[0], &["a"], FUTURE);
    let lock = sql("SELECT FROM lockapi.job_history WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.job_history WHERE namespace = $n FOR KEY SHARE");
    let before = [&part, &settled, &fold(1)];
    for first in [&sweep(2), &lock, &share] {
        let skips = Meets::Skips("0 swept, to Some((\"\", \"work\", true, 3600000000000, \"a\"))");
        let schedule = Schedule::new(&before, first, &sweep(2), skips);
        schedule.at(own_url()).run();
    }
}

fn as_in_the_model(plans: Plans, steps: &[Step]) {
    let on = |mut side: Side| {
        side.namespace = format!("n{:016x}", fastrand::u64(..));
        let mut given = BTreeMap::new();
        let seen = steps.iter().map(|step| side.run(step, &mut given));
        seen.collect::<Vec<_>>()
    };
    let server = on(Side::server(own_url(), plans));
    assert_eq!(server, on(Side::model()), "the server and the model");
}

/// A sweep goes on behind the part that the one before has reached.
#[test]
fn parts_are_moved_from_a_place_on() {
    let part = |number| record(number, &[0, 1, 2], &["a", "b"]);
    for place in [
        ("work", FUTURE + MINUTE, "a", 2),
        ("work", FUTURE + MINUTE, "b", 1),
        ("work", FUTURE, "", 0),
        ("work", FUTURE + 2 * MINUTE, "b", 2),
        ("x", 0, "", 0),
    ] {
        let mut steps = vec![part(1), part(2), elapse(6), fold_after(place, 5)];
        steps.extend(all());
        steps.extend([fold(100), read(None, false, 100)]);
        as_in_the_model(Plans::Engine, &steps);
    }
}

#[test]
fn history_is_as_in_the_model() {
    let late = record_at(FUTURE, 9, &[0], &["late"], 0);
    let part = |number| record(number, &[0, 59, 60, 125], &["", "a", "b", "\u{e4}"]);
    let old = record_at(PAST, 5, &[0, 1, 61], &["a", "b"], FUTURE);
    // Sweeps leave what is after a part to the next.
    let moves: &[&[Step]] = &[&[fold(16)], &[fold(3), fold(5), fold(16)], &[]];
    for (nth, moves) in moves.iter().enumerate() {
        let mut steps = vec![part(1), late.clone()];
        steps.extend(all());
        steps.extend([part(1), fold(16), elapse(4), part(4), fold(7), elapse(2)]);
        steps.extend(moves.iter().cloned());
        steps.extend(all());
        steps.extend([part(30), elapse(6)]);
        steps.extend(moves.iter().cloned());
        steps.extend(all());
        steps.extend([read(None, true, 2), read(None, false, 3)]);
        for plans in [Plans::Engine, Plans::Scans] {
            as_in_the_model(plans, &steps);
        }
        if nth == 0 {
            let steps = [
                old.clone(),
                elapse(6),
                fold(6),
                sweep(4),
                sweep(3),
                read(None, true, 9),
            ];
            as_in_the_model(Plans::Engine, &steps);
        }
    }
}

#[test]
fn parts_are_stored_for_four_minutes() {
    for ago in [-3, 0, 3, 5] {
        let steps = [record_late(ago), read(None, false, 9)];
        as_in_the_model(Plans::Engine, &steps);
    }
}
