//! What operators change of jobs that wait.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockapi::admin::{Filter, JobEdit, JobFilter, JobState, MAX_PAYLOAD_CHARS, Operator};
use lockapi::queue::{Claim, Groups, Job, Priority, Unique};
use lockapi::worker::Worker;
use lockapi::{ErrorKind, Queue};

use super::queue::{job, none, one};
use super::worker::{Gate, run};
use crate::context::{Context, MINUTE};
use crate::harness::register;

register! { "operator":
    H11 job_that_is_run_now_is_claimed_by_an_idle_worker;
    H11 idle_worker_waits_for_an_earlier_time;
    H11 job_that_is_put_off_waits;
    H11 job_with_another_priority_takes_its_turn;
    H11 payload_and_attempts_are_replaced;
    H11 unique_key_stays_with_an_edited_job;
    H11 time_to_live_begins_when_an_edited_job_is_due;
    H11 time_to_live_of_an_admitted_job_begins_anew;
    H11 job_that_does_not_wait_is_left;
    H11 job_that_was_changed_since_it_was_read_is_left;
    H11 job_of_a_group_that_is_put_off_leaves_its_place;
    H11 parked_job_is_edited;
    H11 ordered_group_waits_for_a_job_that_is_put_off;
    H11 job_of_a_paused_queue_is_edited;
    H11 edits_outside_of_their_limits_are_refused;
    H11 edit_is_in_the_audit_log;
}

const HOUR: Duration = Duration::from_hours(1);

async fn edit(operator: &Arc<dyn Operator>, id: i64, edit: JobEdit) -> bool {
    let edited = operator.edit_job("work", id, edit, "a mistake").await;
    edited.unwrap()
}

/// Claims one job, whose number it is, and completes it.
async fn done(queue: &Arc<dyn Queue>, number: usize) {
    let delivery = one(queue).await;
    assert_eq!(delivery.decode::<usize>().unwrap(), number);
    delivery.ack().await.unwrap();
}

async fn job_that_is_run_now_is_claimed_by_an_idle_worker(cx: Context) {
    let (handler, mut gate) = Gate::new();
    let worker = Worker::new(cx.queue().await).poll(MINUTE * 60);
    let worker = run(worker.handle("count", handler));
    let (backend, other) = (cx.backend().await, cx.backend().await);
    let queue = backend.queue("work").unwrap();
    let later = queue.push(job(1).delay(HOUR)).await.unwrap().id;
    let in_group = job(2).group("a").delay(HOUR);
    let in_group = queue.push(in_group).await.unwrap().id;
    gate.none_begins().await;
    for (id, number, operator) in [
        // By another process, and by the one that has pushed it.
        (later, 1, other.operator()),
        (in_group, 2, backend.operator()),
    ] {
        assert!(edit(&operator, id, JobEdit::new().now()).await);
        let begun = gate.begun().await;
        assert_eq!((begun.job.delivery().id(), begun.number), (id, number));
        begun.end(Ok(()));
    }
    worker.end().await;
}

/// It has a timer for the job, which was for a later time.
async fn idle_worker_waits_for_an_earlier_time(cx: Context) {
    let (handler, mut gate) = Gate::new();
    let worker = Worker::new(cx.queue().await).poll(MINUTE * 60);
    let worker = run(worker.handle("count", handler));
    let queue = cx.queue().await;
    let id = queue.push(job(1).delay(HOUR)).await.unwrap().id;
    gate.none_begins().await;
    let operator = cx.backend().await.operator();
    let soon = SystemTime::now() + Duration::from_millis(500);
    assert!(edit(&operator, id, JobEdit::new().at(soon)).await);
    let begun = gate.begun().await;
    assert_eq!(begun.number, 1);
    begun.end(Ok(()));
    worker.end().await;
}

async fn job_that_is_put_off_waits(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let id = queue.push(job(1)).await.unwrap().id;
    let later = SystemTime::now() + MINUTE * 5;
    assert!(edit(&operator, id, JobEdit::new().at(later)).await);
    none(&queue).await;
    let seen = backend.inspector().job(id, false).await.unwrap().unwrap();
    assert_eq!(seen.job.state, JobState::Delayed);
    cx.elapse(MINUTE * 6).await;
    done(&queue, 1).await;
    // A time that has passed means at once.
    let id = queue.push(job(2).delay(HOUR)).await.unwrap().id;
    let past = JobEdit::new().at(SystemTime::UNIX_EPOCH - HOUR);
    assert!(edit(&operator, id, past).await);
    done(&queue, 2).await;
    // One that is due keeps its place.
    let first = queue.push(job(3)).await.unwrap().id;
    queue.push(job(4)).await.unwrap();
    assert!(edit(&operator, first, JobEdit::new().now()).await);
    done(&queue, 3).await;
    done(&queue, 4).await;
}

async fn job_with_another_priority_takes_its_turn(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let mut ids = Vec::new();
    for number in 0..4 {
        ids.push(queue.push(job(number)).await.unwrap().id);
    }
    // The claims to come begin after this place.
    done(&queue, 0).await;
    let urgent = JobEdit::new().priority(Priority::Urgent);
    assert!(edit(&operator, ids[3], urgent.clone()).await);
    // Behind what was due with that priority before.
    cx.elapse(MINUTE).await;
    assert!(edit(&operator, ids[2], urgent).await);
    for number in [3, 2, 1] {
        done(&queue, number).await;
    }
    // A priority alone changes no time.
    let later = queue.push(job(5).delay(MINUTE * 5)).await.unwrap().id;
    let low = JobEdit::new().priority(Priority::Low);
    assert!(edit(&operator, later, low).await);
    none(&queue).await;
    queue.push(job(6).delay(MINUTE * 5)).await.unwrap();
    cx.elapse(MINUTE * 6).await;
    done(&queue, 6).await;
    done(&queue, 5).await;
}

async fn payload_and_attempts_are_replaced(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let pushed = job(1).max_attempts(1).header("x-tenant", "7");
    let id = queue.push(pushed).await.unwrap().id;
    let more = JobEdit::new()
        .payload("[1,\n\"\u{1F980}\"]")
        .max_attempts(2);
    assert!(edit(&operator, id, more).await);
    let first = one(&queue).await;
    assert_eq!(first.payload(), "[1,\n\"\u{1F980}\"]");
    assert_eq!((first.id(), first.name()), (id, "count"));
    assert_eq!(first.header("x-tenant"), Some("7"));
    assert_eq!((first.attempt(), first.max_attempts()), (1, 2));
    first.nack("no", Duration::ZERO).await.unwrap();
    // It has been delivered once.
    let fewer = JobEdit::new().max_attempts(1);
    let refused = operator.edit_job("work", id, fewer, "why").await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(
        refused.to_string().contains("allowed are 2 to"),
        "{refused}"
    );
    assert!(edit(&operator, id, JobEdit::new().max_attempts(3)).await);
    let second = one(&queue).await;
    assert_eq!((second.attempt(), second.max_attempts()), (2, 3));
    second.ack().await.unwrap();
}

async fn unique_key_stays_with_an_edited_job(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let keyed = |number| job(number).unique("key", Unique::Skip);
    let id = queue.push(keyed(1).delay(HOUR)).await.unwrap().id;
    let edited = JobEdit::new().now().payload("2");
    assert!(edit(&operator, id, edited).await);
    assert_eq!(queue.push(keyed(3)).await.unwrap().id, id);
    done(&queue, 2).await;
    let repeatable = job(4).idempotency_key("once");
    let first = queue.push(repeatable.clone()).await.unwrap().id;
    assert!(edit(&operator, first, JobEdit::new().payload("5")).await);
    assert_eq!(queue.push(repeatable).await.unwrap().id, first);
    done(&queue, 5).await;
}

async fn time_to_live_begins_when_an_edited_job_is_due(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let later = SystemTime::now() + MINUTE * 10;
    let id = queue.push(job(1).ttl(MINUTE * 4)).await.unwrap().id;
    assert!(edit(&operator, id, JobEdit::new().at(later)).await);
    cx.elapse(MINUTE * 11).await;
    done(&queue, 1).await;
    let id = queue.push(job(2).ttl(MINUTE).delay(HOUR)).await.unwrap().id;
    assert!(edit(&operator, id, JobEdit::new().now()).await);
    cx.elapse(MINUTE * 2).await;
    // It has expired, whether or not it is a dead letter yet.
    assert!(!edit(&operator, id, JobEdit::new().now()).await);
    none(&queue).await;
    let dead = queue.dead_letters(0, 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].id), (1, id));
    // One that was delivered in time does not expire.
    let id = queue.push(job(3).ttl(MINUTE)).await.unwrap().id;
    one(&queue).await.nack("again", HOUR).await.unwrap();
    cx.elapse(MINUTE * 2).await;
    assert!(edit(&operator, id, JobEdit::new().now()).await);
    done(&queue, 3).await;
}

async fn time_to_live_of_an_admitted_job_begins_anew(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let id = queue.push(job(1).group("a").ttl(HOUR)).await.unwrap().id;
    cx.elapse(MINUTE * 50).await;
    // It is due since it was admitted, which says nothing of its time to live.
    let delivery = one(&queue).await;
    let later = delivery.run_at() + HOUR * 2;
    delivery.release().await.unwrap();
    assert!(edit(&operator, id, JobEdit::new().at(later)).await);
    cx.elapse(HOUR * 2 + MINUTE * 20).await;
    done(&queue, 1).await;
}

async fn job_that_does_not_wait_is_left(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let everything = || {
        let edit = JobEdit::new().now().priority(Priority::Low);
        edit.max_attempts(7).payload("9")
    };
    let id = queue.push(job(1)).await.unwrap().id;
    let elsewhere = operator
        .edit_job("other", id, everything(), "a mistake")
        .await;
    assert!(!elsewhere.unwrap(), "it is in another queue");
    let claim = Claim::new(1).lease(MINUTE).extended_by_hand();
    let running = queue.claim(&claim).await.unwrap().remove(0);
    assert!(!edit(&operator, id, everything()).await, "it runs");
    cx.elapse(MINUTE * 2).await;
    assert!(!edit(&operator, id, everything()).await, "it may run yet");
    running.ack().await.unwrap();
    assert!(!edit(&operator, id, everything()).await, "it is done");
    assert!(!edit(&operator, i64::MAX, everything()).await);
    let dead = queue.push(job(2)).await.unwrap().id;
    one(&queue).await.reject("no").await.unwrap();
    assert!(!edit(&operator, dead, everything()).await);
    let letters = queue.dead_letters(0, 10).await.unwrap();
    assert_eq!(letters[0].payload, "2");
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    assert!(audit.is_empty(), "{audit:?}");
    none(&queue).await;
}

async fn job_that_was_changed_since_it_was_read_is_left(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let inspector = backend.inspector();
    let read = async |id: i64, payload| inspector.job(id, payload).await.unwrap().unwrap();
    let pushed = |payload: &str| Job::json("count", payload).unwrap().delay(HOUR);
    let id = queue.push(pushed("1")).await.unwrap().id;
    let mine = || JobEdit::new().payload("7");
    let since_the_epoch = SystemTime::UNIX_EPOCH + HOUR * 24 * 366 * 100;
    let others = [
        JobEdit::new().payload("12"),
        JobEdit::new().priority(Priority::Low),
        JobEdit::new().max_attempts(7),
        JobEdit::new().at(SystemTime::now() + HOUR * 3),
        JobEdit::new().now(),
    ];
    for other in others {
        let seen = read(id, true).await;
        assert!(edit(&operator, id, other.clone()).await);
        let since = read(id, true).await;
        assert!(
            !edit(&operator, id, mine().if_unchanged(&seen)).await,
            "{other:?}"
        );
        assert_eq!(read(id, true).await, since, "{other:?}");
        // As it is now.
        let again = JobEdit::new().payload("1").if_unchanged(&since);
        assert!(edit(&operator, id, again).await, "{other:?}");
    }
    // It failed once meanwhile, and all else is as it was.
    let later = || JobEdit::new().at(since_the_epoch);
    assert!(edit(&operator, id, later()).await);
    let seen = read(id, true).await;
    assert!(edit(&operator, id, JobEdit::new().now()).await);
    let delivery = one(&queue).await;
    delivery.nack("again", Duration::ZERO).await.unwrap();
    assert!(edit(&operator, id, later()).await);
    assert_eq!(read(id, true).await.job.run_at, seen.job.run_at);
    assert!(!edit(&operator, id, mine().if_unchanged(&seen)).await);
    // What was not read may be another.
    let seen = read(id, false).await;
    assert!(edit(&operator, id, JobEdit::new().payload("3")).await);
    assert!(
        edit(
            &operator,
            id,
            JobEdit::new().max_attempts(9).if_unchanged(&seen)
        )
        .await
    );
    // Of a long payload the beginning was read.
    let long = format!("\"{}\"", "ä".repeat(MAX_PAYLOAD_CHARS));
    let id = queue.push(pushed(&long)).await.unwrap().id;
    let seen = read(id, true).await;
    assert!(
        edit(
            &operator,
            id,
            JobEdit::new().priority(Priority::High).if_unchanged(&seen)
        )
        .await
    );
    let seen = read(id, true).await;
    assert!(edit(&operator, id, JobEdit::new().payload("\"b\"")).await);
    assert!(!edit(&operator, id, mine().if_unchanged(&seen)).await);
    let all = JobFilter::queue("work");
    let refused = operator.edit_jobs(&all, mine().if_unchanged(&seen), "why");
    assert_eq!(refused.await.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn job_of_a_group_that_is_put_off_leaves_its_place(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let mut ids = Vec::new();
    for number in 1..=3 {
        let pushed = queue.push(job(number).group("a")).await.unwrap();
        ids.push(pushed.id);
    }
    let first = one(&queue).await;
    first.release().await.unwrap();
    // It has its place, and waits. With another priority it keeps it.
    let low = JobEdit::new().priority(Priority::Low);
    assert!(edit(&operator, ids[0], low).await);
    let later = SystemTime::now() + MINUTE * 5;
    assert!(edit(&operator, ids[0], JobEdit::new().at(later)).await);
    done(&queue, 2).await;
    done(&queue, 3).await;
    none(&queue).await;
    assert!(edit(&operator, ids[0], JobEdit::new().now()).await);
    done(&queue, 1).await;
}

async fn parked_job_is_edited(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let mut ids = Vec::new();
    for number in 1..=3 {
        let pushed = queue.push(job(number).group("a")).await.unwrap();
        ids.push(pushed.id);
    }
    let first = one(&queue).await;
    let edited = JobEdit::new().now().priority(Priority::Urgent);
    assert!(edit(&operator, ids[2], edited.payload("30")).await);
    none(&queue).await;
    first.ack().await.unwrap();
    done(&queue, 30).await;
    let later = SystemTime::now() + MINUTE * 5;
    assert!(edit(&operator, ids[1], JobEdit::new().at(later)).await);
    none(&queue).await;
    cx.elapse(MINUTE * 6).await;
    done(&queue, 2).await;
}

async fn ordered_group_waits_for_a_job_that_is_put_off(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    queue.set_groups(Groups::default().ordered()).await.unwrap();
    let mut ids = Vec::new();
    for number in 1..=2 {
        let pushed = queue.push(job(number).group("a")).await.unwrap();
        ids.push(pushed.id);
    }
    let later = SystemTime::now() + MINUTE * 5;
    assert!(edit(&operator, ids[0], JobEdit::new().at(later)).await);
    let urgent = JobEdit::new().now().priority(Priority::Urgent);
    assert!(edit(&operator, ids[1], urgent).await);
    none(&queue).await;
    assert!(edit(&operator, ids[0], JobEdit::new().now()).await);
    done(&queue, 1).await;
    done(&queue, 2).await;
}

async fn job_of_a_paused_queue_is_edited(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let id = queue.push(job(1).delay(HOUR)).await.unwrap().id;
    queue.pause().await.unwrap();
    assert!(edit(&operator, id, JobEdit::new().now().payload("2")).await);
    none(&queue).await;
    queue.resume().await.unwrap();
    done(&queue, 2).await;
}

async fn edits_outside_of_their_limits_are_refused(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let id = queue.push(job(1)).await.unwrap().id;
    let deep = "[".repeat(1000) + &"]".repeat(1000);
    let long = format!("\"{}\"", "x".repeat(16 << 20));
    let year_10000 = SystemTime::UNIX_EPOCH + Duration::from_hours(70_389_528);
    for wrong in [
        JobEdit::new(),
        JobEdit::new().max_attempts(0),
        JobEdit::new().max_attempts(1_000_001),
        JobEdit::new().at(year_10000),
        JobEdit::new().payload(""),
        JobEdit::new().payload("{"),
        JobEdit::new().payload("1 2"),
        JobEdit::new().payload(deep),
        JobEdit::new().payload(long),
    ] {
        // Together with what is allowed as well.
        let more = wrong.clone().priority(Priority::High);
        let nothing = format!("{wrong:?}") == format!("{:?}", JobEdit::new());
        for edit in [Some(wrong), (!nothing).then_some(more)] {
            let Some(edit) = edit else { continue };
            let refused = operator.edit_job("work", id, edit, "why").await;
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
            assert!(refused.to_string().contains("allowed"), "{refused}");
        }
    }
    let long = "r".repeat(1001);
    for (queue, reason) in [("", "why"), ("work", ""), ("work", "r\0"), ("work", &*long)] {
        let edit = JobEdit::new().now();
        let refused = operator.edit_job(queue, id, edit, reason).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    }
    // What a push takes an edit takes.
    let most = JobEdit::new()
        .max_attempts(1_000_000)
        .payload("\"\\u0000\"");
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    assert!(edit(&operator, id, most.at(last)).await);
    none(&queue).await;
    assert!(edit(&operator, id, JobEdit::new().now()).await);
    assert_eq!(one(&queue).await.payload(), "\"\\u0000\"");
}

async fn edit_is_in_the_audit_log(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    let id = queue.push(job(1).delay(HOUR)).await.unwrap().id;
    let at = SystemTime::UNIX_EPOCH + Duration::from_hours(1_140_984);
    let everything = JobEdit::new().at(at).priority(Priority::High);
    let everything = everything.max_attempts(7).payload("\"secret\"");
    assert!(edit(&operator, id, everything).await);
    assert!(edit(&operator, id, JobEdit::new().now()).await);
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    let [now, all] = &audit[..] else {
        panic!("two acts: {audit:?}");
    };
    for act in [now, all] {
        assert_eq!((&*act.action, &*act.reason), ("edit job", "a mistake"));
        assert!(!act.by_user.is_empty());
    }
    assert_eq!(now.target, format!("{id} (count) of work: due now"));
    let told = "due at 2100-03-01T00:00:00Z, priority high, 7 attempts, a payload of 8 bytes";
    assert_eq!(all.target, format!("{id} (count) of work: {told}"));
}
