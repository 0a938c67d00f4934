//! What holds when the server's clock of the time of day is set, while the clocks of programs go on.

use std::time::Duration;

use lockapi::lease::LeaseOptions;
use lockapi::{ErrorKind, LeaseGuard};

use super::queue::{by_hand_from, job, lost, none, one};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{not_yet, soon};

const HOUR: Duration = Duration::from_hours(1);

register! { "clocks":
    W09 lease_ends_early_when_the_clock_is_set_ahead;
    W09 stale_holder_cannot_write_after_the_clock_was_set_ahead [Transactions];
    W09 lease_is_given_to_nobody_when_the_clock_is_set_back;
    W09 what_nobody_holds_is_free_when_the_clock_is_set_back;
    W09 permits_and_leaders_follow_the_clock;
    W09 delivery_ends_early_when_the_clock_is_set_ahead;
    W09 delivery_is_given_to_nobody_when_the_clock_is_set_back;
    W09 leases_while_the_clock_of_a_server_is_set @ SetClock [Transactions, Schema];
    W09 queues_while_the_clock_of_a_server_is_set @ SetClock [Schema];
    W09 delayed_jobs_follow_the_clock;
    W09 mutexes_while_the_clock_of_a_server_is_set @ SetClock [Schema];
}

fn by_hand() -> LeaseOptions {
    LeaseOptions::new(MINUTE).renewed_by_hand()
}

/// Still held as far as the holder knows, and told at the next renewal.
async fn told_by_its_renewal(guard: &dyn LeaseGuard) {
    assert!(!guard.is_lost(), "its own clock went on");
    assert!(guard.remaining() > MINUTE / 2);
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    soon("told of the loss", guard.lost()).await;
}

async fn lease_ends_early_when_the_clock_is_set_ahead(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand()).unwrap();
    let there = cx.backend().await.lease("job", by_hand()).unwrap();
    let first = here.acquire().await.unwrap();
    cx.set_clock_ahead(MINUTE / 2).await;
    assert!(there.try_acquire().await.unwrap().is_none(), "not enough");
    first.renew().await.unwrap();
    cx.set_clock_ahead(MINUTE).await;
    let second = there.try_acquire().await.unwrap().expect("it has ended");
    assert!(second.fence().token() > first.fence().token());
    told_by_its_renewal(&*first).await;
    second.renew().await.unwrap();
    second.release().await.unwrap();
}

async fn stale_holder_cannot_write_after_the_clock_was_set_ahead(cx: Context) {
    let here = cx.backend().await.lease("job", by_hand()).unwrap();
    let there = cx.backend().await.lease("job", by_hand()).unwrap();
    let first = here.acquire().await.unwrap();
    cx.set_clock_ahead(HOUR).await;
    let second = there.try_acquire().await.unwrap().expect("it has ended");
    assert!(!first.is_lost(), "two believe that they hold it");
    let mut tx = cx.begin().await.unwrap();
    let error = tx.check_in(&first.fence()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    tx.check_in(&second.fence()).await.unwrap();
    tx.commit().await;
    second.release().await.unwrap();
}

async fn lease_is_given_to_nobody_when_the_clock_is_set_back(cx: Context) {
    let step = HOUR;
    let here = cx.backend().await.lease("job", by_hand()).unwrap();
    let there = cx.backend().await.lease("job", by_hand()).unwrap();
    let first = here.acquire().await.unwrap();
    cx.set_clock_back(step).await;
    assert!(there.try_acquire().await.unwrap().is_none());
    // A renewal counts from the new time: nothing of the step is left.
    first.renew().await.unwrap();
    cx.elapse(MINUTE).await;
    let second = there.try_acquire().await.unwrap().expect("it has ended");
    cx.set_clock_back(step).await;
    std::mem::forget(second);
    cx.elapse(step).await;
    assert!(
        here.try_acquire().await.unwrap().is_none(),
        "it lasts longer by the step"
    );
    cx.elapse(MINUTE).await;
    let third = here.try_acquire().await.unwrap().expect("but no longer");
    third.release().await.unwrap();
}

async fn what_nobody_holds_is_free_when_the_clock_is_set_back(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let kept = |hold| by_hand().minimum_hold(hold);
    let lease = here.lease("job", by_hand()).unwrap();
    let permits = here.semaphore("pool", 2, by_hand()).unwrap();
    let seat = here.election("seat", by_hand()).unwrap();
    let short = here.lease("short", kept(MINUTE / 4)).unwrap();
    let long = here.lease("long", kept(MINUTE / 2)).unwrap();
    let held = (
        short.acquire().await.unwrap(),
        long.acquire().await.unwrap(),
    );
    cx.elapse(MINUTE / 3).await;
    lease.acquire().await.unwrap().release().await.unwrap();
    permits
        .acquire_many(2)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    seat.campaign().await.unwrap().release().await.unwrap();
    held.0.release().await.unwrap();
    held.1.release().await.unwrap();
    cx.set_clock_back(HOUR).await;
    assert!(lease.peek().await.unwrap().is_none(), "nobody has it");
    let lease = there.lease("job", by_hand()).unwrap();
    let next = lease.try_acquire().await.unwrap().expect("nobody has it");
    next.release().await.unwrap();
    let permits = there.semaphore("pool", 2, by_hand()).unwrap();
    let both = permits.try_acquire_many(2).await.unwrap();
    both.expect("nobody has them").release().await.unwrap();
    let seat = there.election("seat", by_hand()).unwrap();
    let term = seat.try_campaign().await.unwrap();
    term.expect("nobody leads").release().await.unwrap();
    let short = there.lease("short", by_hand()).unwrap();
    let next = short
        .try_acquire()
        .await
        .unwrap()
        .expect("its hold has ended");
    next.release().await.unwrap();
    let long = there.lease("long", by_hand()).unwrap();
    assert!(
        long.try_acquire().await.unwrap().is_none(),
        "its hold lasts"
    );
    assert!(long.peek().await.unwrap().expect("kept").released);
    cx.elapse(HOUR).await;
    cx.elapse(MINUTE / 4).await;
    let next = long.try_acquire().await.unwrap().expect("it has ended");
    next.release().await.unwrap();
}

async fn permits_and_leaders_follow_the_clock(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let permits = here.semaphore("pool", 2, by_hand()).unwrap();
    let seat = here.election("seat", by_hand()).unwrap();
    let door = here.leased_mutex("door", by_hand()).unwrap();
    let (both, term) = (permits.acquire_many(2), seat.campaign());
    let (both, term) = (both.await.unwrap(), term.await.unwrap());
    let locked = door.lock().await.unwrap();
    cx.set_clock_back(MINUTE).await;
    let permits = there.semaphore("pool", 2, by_hand()).unwrap();
    let seat = there.election("seat", by_hand()).unwrap();
    let door = there.leased_mutex("door", by_hand()).unwrap();
    assert!(permits.try_acquire_many(1).await.unwrap().is_none());
    assert!(seat.try_campaign().await.unwrap().is_none());
    assert!(door.try_lock().await.unwrap().is_none());
    cx.set_clock_ahead(MINUTE * 2).await;
    let again = permits.try_acquire_many(2).await.unwrap().expect("ended");
    assert!(again.fence().token() > both.fence().token());
    let next = seat.try_campaign().await.unwrap().expect("ended");
    let entered = door.try_lock().await.unwrap().expect("ended");
    assert!(entered.fence().token() > locked.fence().token());
    for stale in [&both, &term] {
        told_by_its_renewal(&**stale).await;
    }
    next.release().await.unwrap();
}

async fn delivery_ends_early_when_the_clock_is_set_ahead(cx: Context) {
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push(job(1)).await.unwrap();
    let first = by_hand_from(&here).await;
    cx.set_clock_ahead(MINUTE).await;
    let second = one(&there).await;
    assert_eq!((second.id(), second.attempt()), (first.id(), 2));
    assert!(!first.is_lost(), "its own clock went on");
    lost(first.ack().await);
    second.ack().await.unwrap();
}

async fn delivery_is_given_to_nobody_when_the_clock_is_set_back(cx: Context) {
    let step = HOUR;
    let (here, there) = (cx.queue().await, cx.queue().await);
    here.push(job(1)).await.unwrap();
    let first = by_hand_from(&here).await;
    cx.set_clock_back(step).await;
    none(&there).await;
    first.extend(MINUTE).await.unwrap();
    cx.elapse(MINUTE).await;
    none(&there).await;
    cx.elapse(step).await;
    let second = one(&there).await;
    lost(first.ack().await);
    second.ack().await.unwrap();
}

/// The same on a server whose clock is really set; elsewhere what was stored is moved.
async fn leases_while_the_clock_of_a_server_is_set(cx: Context) {
    lease_ends_early_when_the_clock_is_set_ahead(cx.elsewhere().await).await;
    stale_holder_cannot_write_after_the_clock_was_set_ahead(cx.elsewhere().await).await;
    lease_is_given_to_nobody_when_the_clock_is_set_back(cx.elsewhere().await).await;
    what_nobody_holds_is_free_when_the_clock_is_set_back(cx.elsewhere().await).await;
    permits_and_leaders_follow_the_clock(cx.elsewhere().await).await;
}

async fn queues_while_the_clock_of_a_server_is_set(cx: Context) {
    delivery_ends_early_when_the_clock_is_set_ahead(cx.elsewhere().await).await;
    delivery_is_given_to_nobody_when_the_clock_is_set_back(cx.elsewhere().await).await;
    delayed_jobs_follow_the_clock(cx.elsewhere().await).await;
}

async fn delayed_jobs_follow_the_clock(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1).delay(HOUR)).await.unwrap();
    cx.set_clock_back(HOUR).await;
    cx.set_clock_ahead(HOUR).await;
    none(&queue).await;
    cx.set_clock_ahead(HOUR).await;
    one(&queue).await.ack().await.unwrap();
}

/// A mutex has no time to live, and waits are timed by clocks that only go on.
async fn mutexes_while_the_clock_of_a_server_is_set(cx: Context) {
    for steps in [[true, false], [false, true]] {
        let (here, there) = (cx.mutex("door").await, cx.mutex("door").await);
        let third = cx.mutex("door").await;
        let guard = here.lock().await.unwrap();
        let waiting = tokio::spawn(async move { there.lock_timeout(MINUTE * 5).await });
        tokio::pin!(waiting);
        not_yet("granted while another holds", &mut waiting).await;
        for ahead in steps {
            if ahead {
                cx.set_clock_ahead(HOUR).await;
            } else {
                cx.set_clock_back(HOUR).await;
            }
            not_yet("granted, or given up", &mut waiting).await;
            assert!(third.try_lock().await.unwrap().is_none());
            let error = third.lock_timeout(MINUTE / 60).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            assert!(!guard.is_lost());
        }
        let token = guard.fence().token();
        guard.unlock().await.unwrap();
        let next = soon("the waiter", waiting).await.unwrap().unwrap();
        assert!(next.fence().token() > token);
        next.unlock().await.unwrap();
    }
}
