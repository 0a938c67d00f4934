//! Keys that jobs are limited by besides their groups.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use lockapi::limit::Quota;
use lockapi::queue::{Claim, Delivery, Groups, How, Job, JobLimit, Unique};
use lockapi::{ErrorKind, Queue};

use super::groups::{GROUPS, Seen, all, at_most, next, numbers, of, run_workers};
use super::queue::{by_hand_from, job, lost, none, one};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::soon;

register! { "groups":
    Q39 key_is_limited_beside_the_groups;
    Q39 groups_share_a_key_one_after_the_other;
    Q39 groups_share_each_of_several_keys;
    Q39 job_without_room_for_its_key_holds_up_its_group_alone;
    Q39 key_counts_with_the_group_of_its_name;
    Q39 job_with_a_key_alone_is_in_the_group_of_that_name;
    Q39 key_has_a_limit_of_its_own_where_groups_are_ordered;
    Q39 key_has_a_rate;
    Q39 clock_that_is_set_back_gives_and_takes_no_permits_of_a_key;
    Q39 key_that_is_paused_waits;
    Q39 place_of_a_key_is_left_with_that_of_the_group;
    Q39 changed_job_keeps_its_place_and_its_key;
    Q39 keys_outside_of_their_limits_are_refused;
    Q39 workers_keep_to_the_limit_of_a_key;
    Q39 key_in_sql_is_that_of_the_library [Sql];
}

fn by(group: &str, number: usize) -> Job {
    of(group, number).limit_by("k")
}

/// Groups have room for all of their jobs, and the key for so many.
async fn limited(queue: &Arc<dyn Queue>, most: u32) {
    queue.set_groups(Groups::default().limit(10)).await.unwrap();
    queue
        .set_group_limit("k", Some(at_most(most)))
        .await
        .unwrap();
}

/// So many jobs, which places that were left one after the other may let in one after the other.
async fn several(queue: &Arc<dyn Queue>, count: usize) -> Vec<Delivery> {
    let mut claimed = Vec::new();
    while claimed.len() < count {
        let claim = Claim::new(100).wait(MINUTE);
        claimed.extend(soon("jobs are there", queue.claim(&claim)).await.unwrap());
    }
    claimed
}

async fn key_is_limited_beside_the_groups(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    limited(&here, 2).await;
    let jobs = vec![by("a", 1), by("a", 2), by("a", 3), by("b", 11), of("c", 21)];
    there.push_all(jobs).await.unwrap();
    let mut claimed = all(&here).await;
    claimed.extend(all(&there).await);
    assert_eq!(numbers(&claimed), [1, 11, 21], "each group one");
    none(&there).await;
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    let claimed = several(&there, 2).await;
    assert_eq!(numbers(&claimed), [2, 3]);
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    none(&here).await;
}

async fn groups_share_a_key_one_after_the_other(cx: Context) {
    let queue = cx.queue().await;
    limited(&queue, 1).await;
    let groups = ["a", "b", "c", "d", "e"];
    for group in groups {
        let jobs = (0..4).map(|nth| by(group, nth)).collect();
        queue.push_all(jobs).await.unwrap();
    }
    for turn in 0..4 {
        let mut seen = BTreeSet::new();
        for _ in groups {
            let delivery = next(&queue, turn).await;
            none(&queue).await;
            seen.insert(delivery.group().unwrap().to_owned());
            delivery.ack().await.unwrap();
        }
        assert_eq!(seen.len(), groups.len(), "{seen:?} in one turn of all");
    }
    none(&queue).await;
}

/// Whatever the other key has given meanwhile.
async fn groups_share_each_of_several_keys(cx: Context) {
    let queue = cx.queue().await;
    limited(&queue, 1).await;
    let one = Some(at_most(1));
    queue.set_group_limit("l", one).await.unwrap();
    for (group, key) in [("a", "k"), ("b", "k"), ("c", "l"), ("d", "l")] {
        let jobs = (0..20).map(|nth| of(group, nth).limit_by(key));
        queue.push_all(jobs.collect()).await.unwrap();
    }
    let mut begun: BTreeMap<String, usize> = BTreeMap::new();
    let mut running = VecDeque::new();
    // Of each key one runs, and they end in turn.
    for _ in 0..24 {
        while running.len() < 2 {
            let delivery = several(&queue, 1).await.remove(0);
            let group = delivery.group().unwrap().to_owned();
            *begun.entry(group).or_default() += 1;
            running.push_back(delivery);
        }
        running.pop_front().unwrap().ack().await.unwrap();
    }
    let least = begun.values().min().copied().unwrap_or(0);
    assert!(begun.len() == 4 && least >= 5, "{begun:?}");
}

async fn job_without_room_for_its_key_holds_up_its_group_alone(cx: Context) {
    let queue = cx.queue().await;
    limited(&queue, 1).await;
    let jobs = vec![
        by("a", 1),
        of("a", 2),
        by("b", 11),
        of("b", 12),
        of("c", 21),
        job(31),
    ];
    queue.push_all(jobs).await.unwrap();
    let mut claimed = all(&queue).await;
    claimed.extend(all(&queue).await);
    assert_eq!(numbers(&claimed), [1, 2, 21, 31]);
    none(&queue).await;
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    assert_eq!(numbers(&several(&queue, 2).await), [11, 12]);
}

async fn key_counts_with_the_group_of_its_name(cx: Context) {
    let queue = cx.queue().await;
    limited(&queue, 2).await;
    queue.push_all(vec![of("k", 1), of("k", 2)]).await.unwrap();
    let mut claimed = all(&queue).await;
    assert_eq!(numbers(&claimed), [1, 2]);
    queue
        .push_all(vec![by("a", 11), by("b", 12), by("c", 13)])
        .await
        .unwrap();
    none(&queue).await;
    claimed.remove(0).ack().await.unwrap();
    claimed.extend(all(&queue).await);
    assert_eq!(claimed.len(), 2, "one with the key, and one of the group");
    queue.push(of("k", 3)).await.unwrap();
    none(&queue).await;
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    // Whatever is admitted in one step counts as well.
    let claimed = several(&queue, 2).await;
    assert_eq!(claimed.len(), 2);
    none(&queue).await;
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    one(&queue).await.ack().await.unwrap();
    assert_eq!(cx.jobs().await, Jobs::default());
}

async fn job_with_a_key_alone_is_in_the_group_of_that_name(cx: Context) {
    let queue = cx.queue().await;
    let alone = |number| job(number).limit_by("k");
    let jobs = vec![alone(1), alone(2), of("k", 3), of("k", 4).limit_by("k")];
    queue.push_all(jobs).await.unwrap();
    for number in 1..5 {
        let delivery = next(&queue, number).await;
        none(&queue).await;
        assert_eq!(delivery.group(), Some("k"));
        let key = (number != 3).then_some("k");
        assert_eq!(delivery.headers().limit_key(), key);
        delivery.ack().await.unwrap();
    }
    queue.set_group_limit("k", Some(at_most(2))).await.unwrap();
    let jobs = (0..4).map(alone).collect();
    queue.push_all(jobs).await.unwrap();
    assert_eq!(numbers(&all(&queue).await), [0, 1]);
}

async fn key_has_a_limit_of_its_own_where_groups_are_ordered(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().ordered()).await.unwrap();
    queue.set_group_limit("k", Some(at_most(2))).await.unwrap();
    let jobs = (0..9).map(|nth| by(["a", "b", "c"][nth % 3], nth));
    queue.push_all(jobs.collect()).await.unwrap();
    let mut done = [0; 3];
    while done.iter().sum::<usize>() < 9 {
        let mut claimed = several(&queue, 1).await;
        claimed.extend(all(&queue).await);
        assert!((1..=2).contains(&claimed.len()));
        for delivery in claimed {
            let number: usize = delivery.decode().unwrap();
            assert_eq!(number / 3, done[number % 3], "in order");
            done[number % 3] += 1;
            delivery.ack().await.unwrap();
        }
    }
    assert_eq!(done, [3; 3]);
}

async fn key_has_a_rate(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().limit(10)).await.unwrap();
    let slow = JobLimit::default().rate(Quota::per_hour(2));
    queue.set_group_limit("k", Some(slow)).await.unwrap();
    let jobs = (0..3).flat_map(|nth| ["a", "b", "c"].map(|group| by(group, nth)));
    queue.push_all(jobs.collect()).await.unwrap();
    let claimed = all(&queue).await;
    assert_eq!(claimed.len(), 2);
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    // Jobs of the group with that name take of the same.
    queue.push(of("k", 9)).await.unwrap();
    none(&queue).await;
    for _ in 0..8 {
        cx.elapse(MINUTE * 31).await;
        one(&queue).await.ack().await.unwrap();
        none(&queue).await;
    }
    assert_eq!(cx.jobs().await, Jobs::default());
}

async fn clock_that_is_set_back_gives_and_takes_no_permits_of_a_key(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().limit(10)).await.unwrap();
    let slow = JobLimit::default().rate(Quota::per_hour(6).burst(2));
    queue.set_group_limit("k", Some(slow)).await.unwrap();
    let push = async || {
        queue
            .push_all((0..4).map(|nth| by("a", nth)).collect())
            .await
    };
    push().await.unwrap();
    for delivery in all(&queue).await {
        delivery.ack().await.unwrap();
    }
    cx.set_clock_back(MINUTE * 600).await;
    push().await.unwrap();
    none(&queue).await;
    cx.elapse(MINUTE * 9).await;
    none(&queue).await;
    cx.elapse(MINUTE * 2).await;
    one(&queue).await.ack().await.unwrap();
    none(&queue).await;
}

async fn key_that_is_paused_waits(cx: Context) {
    let queue = cx.queue().await;
    limited(&queue, 0).await;
    queue.push_all(vec![by("a", 1), of("b", 2)]).await.unwrap();
    next(&queue, 2).await.ack().await.unwrap();
    none(&queue).await;
    queue.set_group_limit("k", None).await.unwrap();
    let delivery = next(&queue, 1).await;
    assert_eq!(delivery.attempt(), 1);
    delivery.ack().await.unwrap();
}

async fn place_of_a_key_is_left_with_that_of_the_group(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    limited(&here, 1).await;
    let jobs = (1..6).map(|nth| by(&format!("g{nth}"), nth)).collect();
    here.push_all(jobs).await.unwrap();
    // It is kept by a delivery whose lease has ended, and by one that is given back.
    let late = by_hand_from(&here).await;
    cx.elapse(MINUTE * 2).await;
    let again = next(&here, 1).await;
    assert_eq!(again.attempt(), 2);
    none(&there).await;
    drop(late);
    again.release().await.unwrap();
    // It is left by one that is tried again, is a dead letter, is cancelled, or done.
    next(&here, 1).await.nack("no", MINUTE * 60).await.unwrap();
    next(&here, 2).await.reject("no").await.unwrap();
    let cancelled = next(&here, 3).await;
    here.cancel(vec![cancelled.id()]).await.unwrap();
    drop(cancelled);
    next(&here, 4).await.ack().await.unwrap();
    let late = by_hand_from(&here).await;
    assert_eq!(late.decode::<usize>().unwrap(), 5);
    // What is put back has its key.
    assert_eq!(there.redrive(Vec::new()).await.unwrap(), 1);
    none(&there).await;
    cx.elapse(MINUTE * 61).await;
    let again = next(&here, 5).await;
    none(&there).await;
    again.ack().await.unwrap();
    lost(late.ack().await);
    for _ in 0..2 {
        let delivery = one(&here).await;
        assert_eq!(delivery.headers().limit_key(), Some("k"));
        none(&there).await;
        delivery.ack().await.unwrap();
    }
    none(&here).await;
}

async fn changed_job_keeps_its_place_and_its_key(cx: Context) {
    let queue = cx.queue().await;
    limited(&queue, 1).await;
    let keyed = |job: Job, otherwise| job.unique("unique", otherwise);
    let first = keyed(by("a", 1), Unique::Skip);
    let id = queue.push(first).await.unwrap().id;
    // It has the place of its key, and waits.
    next(&queue, 1).await.release().await.unwrap();
    let other = |number| of("b", number).header("x", "1").limit_by("other");
    let changed = queue.push(keyed(other(2), Unique::Keep)).await.unwrap();
    assert_eq!((changed.id, changed.how), (id, How::Changed));
    queue.push(by("c", 3)).await.unwrap();
    let delivery = next(&queue, 2).await;
    none(&queue).await;
    let headers: Vec<_> = delivery.headers().iter().collect();
    assert_eq!(headers, [("limit-by", "k"), ("x", "1")]);
    delivery.release().await.unwrap();
    let plain = keyed(of("b", 4), Unique::Keep);
    queue.push(plain).await.unwrap();
    let delivery = next(&queue, 4).await;
    let headers: Vec<_> = delivery.headers().iter().collect();
    assert_eq!(headers, [("limit-by", "k")]);
    delivery.release().await.unwrap();
    // What takes its place as a whole has its own key, and waits for that.
    queue
        .set_group_limit("other", Some(at_most(0)))
        .await
        .unwrap();
    queue.push(keyed(other(5), Unique::Replace)).await.unwrap();
    next(&queue, 3).await.ack().await.unwrap();
    none(&queue).await;
    queue.push(keyed(job(6), Unique::Replace)).await.unwrap();
    let delivery = next(&queue, 6).await;
    assert!(delivery.headers().is_empty());
    delivery.release().await.unwrap();
    // One without a key gets none.
    queue.push(keyed(other(7), Unique::Keep)).await.unwrap();
    let delivery = next(&queue, 7).await;
    let headers: Vec<_> = delivery.headers().iter().collect();
    assert_eq!((headers, delivery.group()), (vec![("x", "1")], None));
}

async fn keys_outside_of_their_limits_are_refused(cx: Context) {
    let queue = cx.queue().await;
    let keys = [String::new(), "k".repeat(256), "\0".to_owned()];
    for key in keys {
        for job in [job(1).limit_by(&key), of("a", 1).header("Limit-By", &key)] {
            let error = queue.push(job).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
    }
    let key = "\u{e4}\u{1F980}{}'\"\\ ,".to_owned() + &"k".repeat(240);
    queue.push(of("a", 1).limit_by(&key)).await.unwrap();
    let delivery = next(&queue, 1).await;
    assert_eq!(delivery.headers().limit_key(), Some(&*key));
    queue.push(of("b", 2).limit_by(&key)).await.unwrap();
    none(&queue).await;
    delivery.ack().await.unwrap();
    next(&queue, 2).await.ack().await.unwrap();
}

async fn workers_keep_to_the_limit_of_a_key(cx: Context) {
    let queue = cx.queue().await;
    queue.set_groups(Groups::default().limit(20)).await.unwrap();
    for key in 0..GROUPS {
        let key = format!("k{key}");
        queue.set_group_limit(&key, Some(at_most(2))).await.unwrap();
    }
    let seen = Arc::new(Seen::default());
    let job = |nth| of(&format!("g{}", nth % 5), nth).limit_by(format!("k{}", nth % GROUPS));
    run_workers(&cx, &seen, job).await;
    seen.check(2);
}

async fn key_in_sql_is_that_of_the_library(cx: Context) {
    let queue = cx.queue().await;
    limited(&queue, 1).await;
    let namespace = cx.namespace().replace('\'', "''");
    let push = async |number: usize, rest: &str| {
        let sql = format!(
            "SELECT lockapi.push_with_headers('work', 'count', '{number}', '{{\"Limit-By\": \"k\"}}', namespace => '{namespace}'{rest})::text"
        );
        cx.sql(&sql).await;
    };
    push(1, ", group_key => 'a'").await;
    queue.push(by("b", 2)).await.unwrap();
    push(3, "").await;
    for (number, group) in [(1, "a"), (2, "b"), (3, "k")] {
        let delivery = next(&queue, number).await;
        none(&queue).await;
        assert_eq!(delivery.group(), Some(group));
        delivery.ack().await.unwrap();
    }
    // One that takes the place of an expired one is in that group as well.
    push(4, ", unique_key => 'u', ttl => '1 minute'").await;
    cx.elapse(MINUTE * 2).await;
    push(5, ", unique_key => 'u'").await;
    let delivery = next(&queue, 5).await;
    assert_eq!(delivery.group(), Some("k"));
    delivery.ack().await.unwrap();
    none(&queue).await;
}
