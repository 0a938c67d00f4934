//! What holds when a standby takes over that had not received every commit.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockapi::admin::Filter;
use lockapi::id::{Id, IdGen, IdOptions};
use lockapi::lease::LeaseOptions;
use lockapi::limit::Quota;
use lockapi::queue::Claim;
use lockapi::{BackendOptions, ErrorKind, Result};

use tokio::task::JoinSet;

use super::ids::{open, seldom};
use super::queue::{acked, by_hand_from, job, lost};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{SOON, eventually, soon};

register! { "failover":
    F01 tokens_increase_although_commits_were_lost @ Own [FailOver];
    F01 tokens_increase_over_a_second_fail_over @ Own [FailOver];
    F01 nothing_is_drawn_again_by_a_standby_that_missed_a_promotion @ Own [FailOver];
    F02 lease_that_was_lost_is_given_to_nobody_in_its_time @ Own [FailOver];
    F02 lease_that_was_kept_goes_on @ Own [FailOver];
    F02 permits_and_leaders_that_were_lost_are_given_to_nobody @ Own [FailOver];
    F02 lease_that_was_renewed_without_the_standby_is_given_to_nobody @ Own [FailOver];
    F02 what_an_operator_releases_is_given_to_nobody_in_its_time @ Own [FailOver];
    F03 ids_that_were_lost_are_not_made_again @ Own [FailOver];
    F03 blocks_that_were_lost_are_left_out @ Own [FailOver];
    F04 delivery_that_was_lost_completes_no_other_job @ Own [FailOver];
    F05 limit_admits_no_more_than_one_burst_again @ Own [FailOver];
    F06 stale_holder_cannot_write_after_a_fail_over @ Own [FailOver, Transactions];
    F07 server_of_an_earlier_epoch_is_refused @ Own [Sql];
    F07 server_that_is_configured_as_read_only_is_refused @ Own [Sql];
    F08 primary_is_found_among_several_hosts @ Hosts [OwnConnections, Standby];
    F08 hosts_without_a_primary_are_unavailable @ NoPrimary [OwnConnections, Standby];
}

fn by_hand(ttl: Duration) -> LeaseOptions {
    LeaseOptions::new(ttl).renewed_by_hand()
}

/// Calls until the server is there, and answers.
async fn served<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> T {
    let start = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(
                start.elapsed() < SOON,
                "not served within {SOON:?}: {error}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Fails over, and waits until a backend is served.
async fn fail_over(cx: &Context) {
    cx.fail_over().await;
    let inspector = cx.backend().await.inspector();
    let all = Filter::default();
    served(|| inspector.leases(&all)).await;
}

/// The token of a mutex, of a lease and of a delivery.
async fn tokens(cx: &Context) -> [i64; 3] {
    let backend = cx.backend().await;
    let locked = backend.mutex("door").unwrap().lock().await.unwrap();
    let name = format!("job-{}", fastrand::u64(..));
    let lease = backend.lease(name, by_hand(MINUTE)).unwrap();
    cx.elapse(MINUTE).await;
    let leased = lease.try_acquire().await.unwrap().expect("nobody has it");
    let queue = backend.queue("work").unwrap();
    queue.push(job(1)).await.unwrap();
    let delivery = by_hand_from(&queue).await;
    let drawn = [
        locked.fence().token(),
        leased.fence().token(),
        delivery.ticket().token,
    ];
    delivery.ack().await.unwrap();
    locked.unlock().await.unwrap();
    drawn
}

fn are_larger(later: [i64; 3], earlier: [i64; 3]) {
    let larger = later.iter().zip(&earlier).all(|(one, other)| one > other);
    assert!(larger, "{later:?} after {earlier:?}");
}

async fn tokens_increase_although_commits_were_lost(cx: Context) {
    cx.cut_replication().await;
    let mut last = tokens(&cx).await;
    for _ in 0..20 {
        let next = tokens(&cx).await;
        are_larger(next, last);
        last = next;
    }
    fail_over(&cx).await;
    are_larger(tokens(&cx).await, last);
}

async fn tokens_increase_over_a_second_fail_over(cx: Context) {
    let mut last = tokens(&cx).await;
    for _ in 0..2 {
        cx.cut_replication().await;
        let lost = tokens(&cx).await;
        are_larger(lost, last);
        fail_over(&cx).await;
        last = tokens(&cx).await;
        are_larger(last, lost);
    }
}

async fn nothing_is_drawn_again_by_a_standby_that_missed_a_promotion(cx: Context) {
    // The servers of a case follow each other faster than any in use.
    let options = IdOptions::default().reserve(Duration::from_millis(200));
    let mut made = HashSet::new();
    make_together(&mut made, [open(&cx.backend().await, options)]).await;
    cx.cut_replication().await;
    let mut drawn = (tokens(&cx).await, block(&cx, 1000).await);
    let mut generators = Vec::new();
    for _ in 0..2 {
        // No two promotions are in the same second.
        cx.pass(Duration::from_millis(1100)).await;
        fail_over(&cx).await;
        let next = (tokens(&cx).await, block(&cx, 1000).await);
        are_larger(next.0, drawn.0);
        assert!(next.1[0] > drawn.1[999], "blocks");
        drawn = next;
        generators.push(open(&cx.backend().await, options));
        made.extend(taken(&**generators.last().unwrap(), 1).await);
    }
    let [first, second] = generators.try_into().unwrap();
    make_together(&mut made, [first, second]).await;
}

async fn lease_that_was_lost_is_given_to_nobody_in_its_time(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    cx.cut_replication().await;
    let first = served(|| here.acquire()).await;
    fail_over(&cx).await;
    let there = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    assert!(there.peek().await.unwrap().is_none(), "its row was lost");
    assert!(there.try_acquire().await.unwrap().is_none());
    assert!(!first.is_lost(), "as far as its holder knows");
    assert_eq!(first.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    cx.elapse(MINUTE).await;
    let second = there.acquire().await.unwrap();
    assert!(second.fence().token() > first.fence().token());
    // From now on it is as any other.
    second.release().await.unwrap();
    let third = there.try_acquire().await.unwrap().expect("released");
    third.release().await.unwrap();
}

async fn lease_that_was_kept_goes_on(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let first = here.acquire().await.unwrap();
    cx.cut_replication().await;
    fail_over(&cx).await;
    let there = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    served(|| first.renew()).await;
    assert!(there.try_acquire().await.unwrap().is_none());
    // Its holder has released it: nobody else has it.
    first.release().await.unwrap();
    let second = there.try_acquire().await.unwrap().expect("released");
    second.release().await.unwrap();
}

async fn permits_and_leaders_that_were_lost_are_given_to_nobody(cx: Context) {
    let here = cx.backend().await;
    let permits = here.semaphore("pool", 2, by_hand(MINUTE)).unwrap();
    let seat = here.election("seat", by_hand(MINUTE)).unwrap();
    let door = here.leased_mutex("door", by_hand(MINUTE)).unwrap();
    // One has rows already, the others have none.
    permits.acquire().await.unwrap().release().await.unwrap();
    cx.cut_replication().await;
    let both = served(|| permits.acquire_many(2)).await;
    let term = seat.campaign().await.unwrap();
    let locked = door.lock().await.unwrap();
    fail_over(&cx).await;
    let there = cx.backend().await;
    let permits = there.semaphore("pool", 2, by_hand(MINUTE)).unwrap();
    let seat = there.election("seat", by_hand(MINUTE)).unwrap();
    let door = there.leased_mutex("door", by_hand(MINUTE)).unwrap();
    assert!(permits.try_acquire().await.unwrap().is_none());
    assert!(permits.try_acquire_many(2).await.unwrap().is_none());
    assert!(seat.try_campaign().await.unwrap().is_none());
    assert!(door.try_lock().await.unwrap().is_none());
    cx.elapse(MINUTE).await;
    let next = permits.acquire_many(2).await.unwrap();
    assert!(next.fence().token() > both.fence().token());
    let leads = seat.try_campaign().await.unwrap().expect("ended");
    assert!(leads.fence().token() > term.fence().token());
    let entered = door.try_lock().await.unwrap().expect("ended");
    assert!(entered.fence().token() > locked.fence().token());
}

async fn lease_that_was_renewed_without_the_standby_is_given_to_nobody(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let first = here.acquire().await.unwrap();
    cx.elapse(MINUTE / 2).await;
    cx.cut_replication().await;
    served(|| first.renew()).await;
    fail_over(&cx).await;
    // The standby knows of the acquisition alone, and whoever asks wants it for a shorter time.
    cx.elapse(MINUTE / 2).await;
    let there = cx
        .backend()
        .await
        .lease("job", by_hand(MINUTE / 3))
        .unwrap();
    assert!(there.try_acquire().await.unwrap().is_none());
    cx.elapse(MINUTE).await;
    let second = there.try_acquire().await.unwrap().expect("ended");
    assert!(second.fence().token() > first.fence().token());
}

async fn ids_that_were_lost_are_not_made_again(cx: Context) {
    let here = open(&cx.backend().await, seldom());
    let mut made = HashSet::from([here.next().await.unwrap()]);
    cx.cut_replication().await;
    let there = open(&cx.backend().await, seldom());
    made.extend(taken(&*there, 1).await);
    fail_over(&cx).await;
    let next = open(&cx.backend().await, seldom());
    made.extend(taken(&*next, 1).await);
    assert_eq!(made.len(), 3);
    // The number was claimed twice.
    make_together(&mut made, [here, there, next]).await;
}

async fn what_an_operator_releases_is_given_to_nobody_in_its_time(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand(MINUTE)).unwrap();
    let kept = here.acquire().await.unwrap();
    cx.cut_replication().await;
    served(|| kept.renew()).await;
    kept.release().await.unwrap();
    let lost = here.acquire().await.unwrap();
    fail_over(&cx).await;
    let backend = cx.backend().await;
    let there = backend.lease("job", by_hand(MINUTE)).unwrap();
    // What the operator sees is the holder before.
    let release = || async {
        let operator = backend.operator();
        operator
            .release_lease("job".into(), "its host is gone")
            .await
    };
    assert_eq!(release().await.unwrap().len(), 1);
    assert!(there.try_acquire().await.unwrap().is_none());
    assert!(!lost.is_lost(), "as far as its holder knows");
    cx.elapse(MINUTE).await;
    let next = there.acquire().await.unwrap();
    assert!(next.fence().token() > lost.fence().token());
    // From now on it is as any other.
    assert_eq!(release().await.unwrap().len(), 1);
    let last = there.try_acquire().await.unwrap().expect("released");
    last.release().await.unwrap();
}

/// All make ids of each millisecond.
async fn make_together<const N: usize>(made: &mut HashSet<Id>, generators: [Arc<dyn IdGen>; N]) {
    let mut making = JoinSet::new();
    for ids in generators {
        making.spawn(async move {
            let mut made = taken(&*ids, 1).await;
            for _ in 0..400 {
                made.extend(ids.batch(10).await.unwrap());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            made
        });
    }
    while let Some(batch) = making.join_next().await {
        for id in batch.unwrap() {
            assert!(made.insert(id), "{id} twice");
        }
    }
}

async fn taken(ids: &dyn IdGen, count: u64) -> Vec<Id> {
    served(|| ids.batch(count)).await.collect()
}

/// So many ids of a new backend.
async fn block(cx: &Context, size: u64) -> Vec<i64> {
    let ids = open(&cx.backend().await, IdOptions::blocks(size));
    let taken = taken(&*ids, size).await.into_iter();
    taken.map(i64::from).collect()
}

async fn blocks_that_were_lost_are_left_out(cx: Context) {
    let mut last = block(&cx, 10).await;
    assert_eq!(last, (1..=10).collect::<Vec<_>>());
    for _ in 0..2 {
        cx.cut_replication().await;
        let lost = block(&cx, 1000).await;
        assert!(lost[0] > last[9]);
        fail_over(&cx).await;
        last = block(&cx, 10).await;
        assert!(last[0] > lost[999], "{} after {}", last[0], lost[999]);
    }
    assert_eq!(block(&cx, 10).await[0], last[9] + 1, "no gap in an epoch");
}

async fn delivery_that_was_lost_completes_no_other_job(cx: Context) {
    let here = cx.queue().await;
    cx.cut_replication().await;
    served(|| here.push(job(1))).await;
    let stale = by_hand_from(&here).await;
    fail_over(&cx).await;
    let there = cx.queue().await;
    let pushed = there.push(job(2)).await.unwrap();
    assert!(pushed.id > stale.id(), "its number is not given again");
    let current = by_hand_from(&there).await;
    assert!(current.ticket().token > stale.ticket().token);
    let answer = there.exchange(vec![stale.ticket()], None).await.unwrap();
    assert_eq!(acked(&answer), [false]);
    current.ack().await.unwrap();
}

async fn limit_admits_no_more_than_one_burst_again(cx: Context) {
    let quota = Quota::per_hour(10).burst(10);
    let here = cx.backend().await.rate_limiter(quota).unwrap();
    cx.cut_replication().await;
    let mut admitted = 0;
    while served(|| here.check("door")).await.is_allowed() {
        admitted += 1;
    }
    assert_eq!(admitted, 10);
    fail_over(&cx).await;
    let there = cx.backend().await.rate_limiter(quota).unwrap();
    let mut again = 0;
    while there.check("door").await.unwrap().is_allowed() {
        again += 1;
    }
    assert!(again <= 10, "{again} more than one burst");
}

async fn stale_holder_cannot_write_after_a_fail_over(cx: Context) {
    let here = cx.backend().await;
    cx.cut_replication().await;
    let lease = here.lease("job", by_hand(MINUTE)).unwrap();
    let leased = served(|| lease.acquire()).await;
    let locked = here.mutex("door").unwrap().lock().await.unwrap();
    fail_over(&cx).await;
    let mutex = cx.mutex("door").await;
    let current = mutex.lock().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    tx.check_in(&current.fence()).await.unwrap();
    tx.commit().await;
    for stale in [leased.fence(), locked.fence()] {
        let mut tx = cx.begin().await.unwrap();
        lost(tx.check_in(&stale).await);
        tx.rollback().await;
    }
    current.unlock().await.unwrap();
}

async fn server_of_an_earlier_epoch_is_refused(cx: Context) {
    let backend = cx.backend().await;
    let mutex = backend.mutex("door").unwrap();
    mutex.lock().await.unwrap().unlock().await.unwrap();
    // As one that was replaced, and came back.
    cx.sql("UPDATE lockapi.epoch SET number = number - 1 RETURNING 'done'")
        .await;
    cx.sever().await;
    let lease = backend.lease("job", by_hand(MINUTE)).unwrap();
    for _ in 0..3 {
        let error = lease.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let told = error.to_string();
        assert!(told.contains("earlier epoch"), "{told}");
        assert!(told.contains("restart this program"), "its remedy: {told}");
        let error = mutex.try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    // A server whose files were set back is put into a new epoch by a person.
    cx.sql("UPDATE lockapi.epoch SET timeline = 0 RETURNING 'done'")
        .await;
    served(|| lease.try_acquire()).await;
    served(|| mutex.try_lock()).await;
}

async fn server_that_is_configured_as_read_only_is_refused(cx: Context) {
    let backend = cx.backend().await;
    let mutex = backend.mutex("door").unwrap();
    let lease = backend.lease("job", by_hand(MINUTE)).unwrap();
    mutex.lock().await.unwrap().unlock().await.unwrap();
    for (setting, refused) in [("on", true), ("off", false)] {
        cx.sql(&format!(
            "ALTER SYSTEM SET default_transaction_read_only = {setting}"
        ))
        .await;
        cx.sql("SELECT pg_reload_conf()").await;
        let set = || async { cx.sql("SHOW default_transaction_read_only").await == [setting] };
        eventually("the setting", set).await;
        cx.sever().await;
        if refused {
            let error = lease.try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("read-only"), "{error}");
            assert_eq!(
                mutex.try_lock().await.unwrap_err().kind(),
                ErrorKind::Unavailable
            );
        } else {
            assert!(served(|| lease.try_acquire()).await.is_some());
            assert!(served(|| mutex.try_lock()).await.is_some());
        }
    }
}

async fn primary_is_found_among_several_hosts(cx: Context) {
    let backend = cx.backend().await;
    let locked = backend.mutex("door").unwrap().lock().await.unwrap();
    let lease = backend.lease("job", by_hand(MINUTE)).unwrap();
    let leased = lease.acquire().await.unwrap();
    let there = cx.backend().await;
    assert!(
        there
            .mutex("door")
            .unwrap()
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    let lease = there.lease("job", by_hand(MINUTE)).unwrap();
    assert!(lease.try_acquire().await.unwrap().is_none());
    let queue = there.queue("work").unwrap();
    // One connection of these listens.
    let waiting = queue.clone();
    let claim = Claim::new(1).wait(MINUTE);
    let waiting = tokio::spawn(async move { waiting.claim(&claim).await });
    backend.queue("work").unwrap().push(job(1)).await.unwrap();
    let delivered = soon("delivered", waiting).await.unwrap().unwrap();
    assert_eq!(delivered.len(), 1);
    locked.unlock().await.unwrap();
    leased.release().await.unwrap();
}

async fn hosts_without_a_primary_are_unavailable(cx: Context) {
    let connecting = cx.connect(BackendOptions::default());
    let error = soon("an answer", connecting).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("none of the 2 hosts"), "{error}");
}
