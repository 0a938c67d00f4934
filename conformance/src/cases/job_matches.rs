//! What operators do to all jobs that a filter matches.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockapi::admin::{Filter, Inspector, JobEdit, JobFilter, JobState};
use lockapi::queue::{Claim, Groups, Job, MAX_TAG, Priority};
use lockapi::{ErrorKind, Queue};

use super::queue::{job, none, one};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::soon;

register! { "matches":
    H12 jobs_are_listed_by_their_labels;
    H12 tags_stay_with_a_job;
    H12 tags_outside_of_their_limits_are_refused;
    H13 all_jobs_that_match_are_cancelled;
    H13 jobs_that_run_are_cancelled_unless_the_state_says_otherwise;
    H13 all_jobs_that_match_are_edited_once;
    H13 jobs_that_are_moved_behind_others_are_edited_once;
    H13 jobs_that_have_room_in_their_group_meanwhile_are_cancelled;
    H13 jobs_that_are_locked_are_counted [Transactions];
    H13 matches_outside_of_their_limits_are_refused;
}

const HOUR: Duration = Duration::from_hours(1);

fn of(queue: &str) -> JobFilter {
    JobFilter::queue(queue)
}

async fn ids(inspector: &Arc<dyn Inspector>, filter: JobFilter) -> BTreeSet<i64> {
    let mut filter = filter.limit(1000);
    let mut ids = BTreeSet::new();
    loop {
        let page = inspector.jobs(&filter).await.unwrap();
        ids.extend(page.jobs.iter().map(|job| job.id));
        let Some(next) = page.next else {
            return ids;
        };
        filter = filter.after(next);
    }
}

async fn push(queue: &Arc<dyn Queue>, job: Job) -> i64 {
    queue.push(job).await.unwrap().id
}

/// Each job that ends lets another one of its group in front of all that wait for room.
async fn jobs_that_have_room_in_their_group_meanwhile_are_cancelled(cx: Context) {
    const JOBS: usize = 3000;
    let backend = cx.backend().await;
    let (queue, inspector) = (backend.queue("work").unwrap(), backend.inspector());
    let one_of_each = Groups::default().limit(1);
    queue.set_groups(one_of_each).await.unwrap();
    let jobs = (0..JOBS).map(|nth| job(nth).group(format!("g{}", nth % 40)).tag("all"));
    queue.push_all(jobs.collect()).await.unwrap();
    let there = cx.queue().await;
    let working = tokio::spawn(async move {
        let claim = Claim::new(20).wait(Duration::from_millis(50));
        loop {
            for delivery in there.claim(&claim).await.unwrap() {
                drop(delivery.ack().await);
            }
        }
    });
    let operator = backend.operator();
    let filter = of("work").tag("all");
    let cancelled = operator.cancel_jobs(&filter, "a mistake");
    let cancelled = cancelled.await.unwrap();
    working.abort();
    assert_eq!(cancelled.locked, 0, "{cancelled:?}");
    assert_eq!(ids(&inspector, of("work").tag("all")).await, [].into());
}

async fn jobs_are_listed_by_their_labels(cx: Context) {
    let backend = cx.backend().await;
    let (queue, inspector) = (backend.queue("work").unwrap(), backend.inspector());
    let plain = push(&queue, job(1)).await;
    let billing = push(&queue, job(2).tag("billing").tag("eu")).await;
    let grouped = push(&queue, job(3).group("tenant-7").tag("eu")).await;
    let both = job(4).group("tenant-8").delay(HOUR).tag("eu");
    let both = push(&queue, both).await;
    let listed = |filter| ids(&inspector, filter);
    assert_eq!(
        listed(of("work").tag("eu")).await,
        [billing, grouped, both].into()
    );
    assert_eq!(listed(of("work").tag("billing")).await, [billing].into());
    // A tag is a whole one, in its own case.
    for other in ["e", "EU", "eu "] {
        assert_eq!(listed(of("work").tag(other)).await, [].into(), "{other:?}");
    }
    assert_eq!(listed(of("work").group("tenant-7")).await, [grouped].into());
    assert_eq!(
        listed(of("work").group("tenant-8").tag("eu")).await,
        [both].into()
    );
    assert_eq!(
        listed(of("work").group("tenant-8").tag("billing")).await,
        [].into()
    );
    let labels = |id: i64| inspector.job(id, false);
    let found = labels(both).await.unwrap().unwrap();
    assert_eq!(found.job.group.as_deref(), Some("tenant-8"));
    assert_eq!(found.job.tags, ["eu"]);
    assert!(found.headers.is_empty(), "they were not asked for");
    let found = labels(plain).await.unwrap().unwrap();
    assert_eq!((found.job.group, found.job.tags.len()), (None, 0));
    // By the server's clock, which is that of the test or has been moved ahead.
    let created = found.job.created_at;
    let later = created + MINUTE;
    assert_eq!(listed(of("work").created_before(created)).await, [].into());
    assert_eq!(listed(of("work").created_from(later)).await, [].into());
    let between = of("work").created_from(created).created_before(later);
    assert_eq!(listed(between).await.len(), 4);
    let ancient = SystemTime::UNIX_EPOCH - MINUTE;
    assert_eq!(listed(of("work").created_from(ancient)).await.len(), 4);
    let never = SystemTime::UNIX_EPOCH + HOUR * 24 * 366 * 20_000;
    assert_eq!(listed(of("work").created_before(never)).await.len(), 4);
}

async fn tags_stay_with_a_job(cx: Context) {
    let backend = cx.backend().await;
    let (queue, inspector) = (backend.queue("work").unwrap(), backend.inspector());
    let first = push(&queue, job(1).tag("a").header("trace", "1")).await;
    let second = push(&queue, job(2).tag("a").tag("b").tag("a")).await;
    let delivery = one(&queue).await;
    assert_eq!(delivery.headers().tags().collect::<Vec<_>>(), ["a"]);
    delivery.reject("no").await.unwrap();
    let failed = of("work").state(JobState::Failed);
    assert_eq!(
        ids(&inspector, failed.clone().tag("a")).await,
        [first].into()
    );
    assert_eq!(ids(&inspector, failed.tag("b")).await, [].into());
    let delivery = one(&queue).await;
    let tags: Vec<_> = delivery.headers().tags().map(str::to_owned).collect();
    assert_eq!(tags, ["a", "b"]);
    delivery.nack("again", Duration::ZERO).await.unwrap();
    let waits = ids(&inspector, of("work").tag("b")).await;
    assert_eq!(waits, [second].into(), "also for its next attempt");
    // As a program in another language has them.
    let header = push(&queue, job(3).header("Tags", "c,d")).await;
    assert_eq!(ids(&inspector, of("work").tag("d")).await, [header].into());
}

async fn tags_outside_of_their_limits_are_refused(cx: Context) {
    let backend = cx.backend().await;
    let (queue, inspector) = (backend.queue("work").unwrap(), backend.inspector());
    let long = "x".repeat(MAX_TAG + 1);
    for tag in ["", "a,b", "a\0", &*long] {
        let refused = queue.push(job(1).tag("a").tag(tag)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert!(refused.to_string().contains("allowed"), "{refused}");
        if !tag.is_empty() {
            let refused = inspector.jobs(&of("work").tag(tag)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        }
    }
    // Together they are one header.
    let tags = |many: usize| (0..many).fold(job(1), |job, nth| job.tag(format!("{nth:064}")));
    push(&queue, tags(15)).await;
    let refused = queue.push(tags(16)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    let group = "g".repeat(256);
    let refused = inspector.jobs(&of("work").group(group)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert_eq!(inspector.jobs(&of("work")).await.unwrap().jobs.len(), 1);
}

async fn all_jobs_that_match_are_cancelled(cx: Context) {
    const MANY: usize = 2500;
    let backend = cx.backend().await;
    let (queue, inspector) = (backend.queue("work").unwrap(), backend.inspector());
    let jobs = (0..MANY).map(|n| {
        let job = job(n).delay(if n % 2 == 0 { HOUR } else { Duration::ZERO });
        if n % 5 == 0 {
            job.tag("keep")
        } else {
            job.tag("drop")
        }
    });
    queue.push_all(jobs.collect()).await.unwrap();
    let other = backend.queue("other").unwrap();
    push(&other, job(1).tag("drop")).await;
    // Neither the limit nor the place counts.
    let page = inspector.jobs(&of("work").limit(10)).await.unwrap();
    let filter = of("work").tag("drop").limit(1).after(page.next.unwrap());
    let operator = backend.operator();
    let matched = soon("all", operator.cancel_jobs(&filter, "a mistake")).await;
    let matched = matched.unwrap();
    assert_eq!(
        (matched.changed, matched.locked, matched.unchanged),
        (2000, 0, 0)
    );
    assert_eq!(ids(&inspector, of("work").tag("drop")).await.len(), 0);
    assert_eq!(ids(&inspector, of("work").tag("keep")).await.len(), 500);
    assert_eq!(ids(&inspector, of("other")).await.len(), 1);
    let cancelled = of("work").state(JobState::Cancelled);
    assert_eq!(ids(&inspector, cancelled).await.len(), 2000);
    let audit = Filter::new().limit(5000);
    let audit = inspector.audit(&audit).await.unwrap();
    assert_eq!(audit.len(), 2000, "each is recorded");
    assert!(
        audit
            .iter()
            .all(|act| act.action == "cancel job" && act.reason == "a mistake")
    );
    let again = operator.cancel_jobs(&filter, "a mistake").await.unwrap();
    assert_eq!((again.changed, again.locked, again.unchanged), (0, 0, 0));
}

async fn jobs_that_run_are_cancelled_unless_the_state_says_otherwise(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    queue.push_all((0..3).map(job).collect()).await.unwrap();
    let running = one(&queue).await;
    let ready = of("work").state(JobState::Ready);
    assert_eq!(
        operator.cancel_jobs(&ready, "why").await.unwrap().changed,
        2
    );
    assert!(!running.is_lost());
    let delayed = of("work").state(JobState::Delayed);
    assert_eq!(
        operator.cancel_jobs(&delayed, "why").await.unwrap().changed,
        0
    );
    let all = of("work").name("count");
    assert_eq!(operator.cancel_jobs(&all, "why").await.unwrap().changed, 1);
    let lost = running.ack().await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    none(&queue).await;
    // One whose lease has ended waits.
    push(&queue, job(4)).await;
    let gone = queue
        .claim(&Claim::new(1).lease(MINUTE).extended_by_hand())
        .await
        .unwrap();
    cx.elapse(MINUTE * 2).await;
    assert_eq!(
        operator.cancel_jobs(&ready, "why").await.unwrap().changed,
        1
    );
    drop(gone);
    none(&queue).await;
}

async fn all_jobs_that_match_are_edited_once(cx: Context) {
    const MANY: usize = 1500;
    let backend = cx.backend().await;
    let (queue, inspector) = (backend.queue("work").unwrap(), backend.inspector());
    let jobs = (0..MANY).map(|n| {
        if n % 3 == 0 {
            job(n)
        } else {
            job(n).tag("later")
        }
    });
    queue.push_all(jobs.collect()).await.unwrap();
    let operator = backend.operator();
    // They move to the end of the list, where they are found no second time.
    let edit = JobEdit::new()
        .at(SystemTime::now() + HOUR)
        .payload("\"edited\"");
    let filter = of("work").tag("later");
    let matched = operator
        .edit_jobs(&filter, edit, "a mistake")
        .await
        .unwrap();
    assert_eq!(
        (matched.changed, matched.locked, matched.unchanged),
        (1000, 0, 0)
    );
    let delayed = ids(&inspector, of("work").state(JobState::Delayed)).await;
    assert_eq!(delayed, ids(&inspector, filter.clone()).await);
    let audit = inspector.audit(&Filter::new().limit(5000)).await.unwrap();
    assert_eq!(audit.len(), 1000);
    assert!(
        audit
            .iter()
            .all(|act| act.target.contains("a payload of 8 bytes"))
    );
    let urgent = JobEdit::new().now().priority(Priority::Urgent);
    let matched = operator.edit_jobs(&filter, urgent, "go").await.unwrap();
    assert_eq!(matched.changed, 1000);
    let running = one(&queue).await;
    assert_eq!(running.payload(), "\"edited\"");
    // Jobs that run, and those that have had their attempts, stay as they are.
    let fewer = JobEdit::new().max_attempts(1);
    let again = one(&queue).await;
    again.nack("again", Duration::ZERO).await.unwrap();
    let matched = operator.edit_jobs(&filter, fewer, "why").await.unwrap();
    assert_eq!((matched.changed, matched.unchanged), (998, 2));
    drop(running);
}

/// They are found again in another place of the list.
async fn jobs_that_are_moved_behind_others_are_edited_once(cx: Context) {
    const MANY: usize = 1200;
    let backend = cx.backend().await;
    let (queue, inspector) = (backend.queue("work").unwrap(), backend.inspector());
    let jobs = (0..MANY).map(|n| match n % 3 {
        0 => job(n),
        1 => job(n).priority(Priority::Low),
        _ => job(n).delay(HOUR).group(format!("tenant-{n}")),
    });
    queue.push_all(jobs.collect()).await.unwrap();
    let (operator, all) = (backend.operator(), of("work"));
    let at = SystemTime::now() + HOUR * 24;
    let acts = async || {
        let audit = inspector.audit(&Filter::new().limit(10_000)).await;
        audit.unwrap().len()
    };
    let mut recorded = 0;
    for (edit, changed) in [
        (JobEdit::new().priority(Priority::Low), 800),
        (
            JobEdit::new().priority(Priority::Low).payload("\"a\""),
            MANY,
        ),
        (JobEdit::new().at(at), MANY),
        (JobEdit::new().at(at).payload("\"b\"").max_attempts(3), MANY),
        // As after a call that has failed in between.
        (JobEdit::new().at(at).payload("\"b\"").max_attempts(3), 0),
        (JobEdit::new().now(), MANY),
        (JobEdit::new().now(), 0),
    ] {
        let matched = operator.edit_jobs(&all, edit.clone(), "why").await.unwrap();
        let told = (matched.changed, matched.locked, matched.unchanged);
        assert_eq!(told, (u64::try_from(changed).unwrap(), 0, 0), "{edit:?}");
        recorded += changed;
        assert_eq!(acts().await, recorded, "{edit:?}");
    }
    assert_eq!(
        ids(&inspector, of("work").state(JobState::Ready))
            .await
            .len(),
        800
    );
}

async fn jobs_that_are_locked_are_counted(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    queue.push_all((0..10).map(job).collect()).await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    assert_eq!(tx.take_in(&queue, 3).await.unwrap().len(), 3);
    let all = of("work");
    let edited = operator.edit_jobs(&all, JobEdit::new().payload("1"), "why");
    let edited = soon("an answer", edited).await.unwrap();
    assert_eq!((edited.changed, edited.locked, edited.unchanged), (7, 3, 0));
    let cancelled = soon("an answer", operator.cancel_jobs(&of("work"), "why")).await;
    let cancelled = cancelled.unwrap();
    assert_eq!((cancelled.changed, cancelled.locked), (7, 3));
    tx.rollback().await;
    let cancelled = operator.cancel_jobs(&of("work"), "why").await.unwrap();
    assert_eq!((cancelled.changed, cancelled.locked), (3, 0));
}

async fn matches_outside_of_their_limits_are_refused(cx: Context) {
    let backend = cx.backend().await;
    let (queue, operator) = (backend.queue("work").unwrap(), backend.operator());
    push(&queue, job(1)).await;
    let edit = || JobEdit::new().now();
    let long = "r".repeat(1001);
    for (filter, reason) in [
        (of(""), "why"),
        (of("work").tag("a,b"), "why"),
        (of("work"), ""),
        (of("work"), &*long),
        (of("work").state(JobState::Completed), "why"),
        (of("work").state(JobState::Failed), "why"),
        (of("work").state(JobState::Cancelled), "why"),
    ] {
        for refused in [
            operator.cancel_jobs(&filter, reason).await.unwrap_err(),
            operator
                .edit_jobs(&filter, edit(), reason)
                .await
                .unwrap_err(),
        ] {
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
            assert!(refused.to_string().contains("allowed"), "{refused}");
        }
    }
    let running = of("work").state(JobState::Running);
    for (filter, edit) in [(running, edit()), (of("work"), JobEdit::new())] {
        let refused = operator.edit_jobs(&filter, edit, "why").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    }
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    assert!(audit.is_empty(), "{audit:?}");
    one(&queue).await.ack().await.unwrap();
}
