//! What a semaphore promises.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockapi::lease::LeaseOptions;
use lockapi::semaphore::MAX_PERMITS;
use lockapi::{Error, ErrorKind, Semaphore};

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, not_yet, poll_then_drop, soon};

register! { "semaphore":
    P01 no_more_permits_are_held_than_there_are;
    P02 tasks_of_two_programs_never_exceed_it;
    P03 acquisitions_of_a_batch_get_permits_of_their_own;
    P04 several_are_acquired_all_or_none;
    P05 permits_of_a_dead_holder_are_free_again;
    P06 permits_are_renewed_together;
    P07 waiters_are_served_in_their_order;
    P08 programs_that_disagree_stay_within_their_numbers;
    P09 lost_answers_leak_no_permit_for_longer_than_its_ttl;
    P10 timeout_is_kept_and_nothing_is_acquired_later;
    P11 dropped_futures_leave_no_permit [Futures];
    P12 work_is_permitted_skipped_and_dropped;
    P12 minimum_hold_outlasts_the_work;
    P13 stale_holder_of_several_cannot_write [Transactions];
    P14 permits_work_behind_a_proxy @ Proxy [Proxy];
}

fn by_hand() -> LeaseOptions {
    LeaseOptions::new(MINUTE).renewed_by_hand()
}

async fn semaphore(cx: &Context, permits: u32) -> Arc<dyn Semaphore> {
    let backend = cx.backend().await;
    backend.semaphore("pool", permits, by_hand()).unwrap()
}

/// The permits that are held.
async fn held(cx: &Context) -> Vec<i64> {
    let slots = cx.slots("pool").await;
    slots.into_iter().map(|(slot, _)| slot).collect()
}

async fn no_more_permits_are_held_than_there_are(cx: Context) {
    exercise(&cx).await;
    let backend = cx.backend().await;
    for permits in [0, MAX_PERMITS + 1, u32::MAX] {
        let error = backend.semaphore("pool", permits, by_hand()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{permits}");
    }
    let most = backend.semaphore("most", MAX_PERMITS, by_hand()).unwrap();
    let all = most.acquire_many(MAX_PERMITS).await.unwrap();
    assert!(most.try_acquire().await.unwrap().is_none());
    all.renew().await.unwrap();
    all.release().await.unwrap();
}

async fn permits_work_behind_a_proxy(cx: Context) {
    exercise(&cx).await;
}

async fn exercise(cx: &Context) {
    let (here, there) = (semaphore(cx, 3).await, semaphore(cx, 3).await);
    assert_eq!(here.permits(), 3);
    let first = here.acquire().await.unwrap();
    let second = there.try_acquire().await.unwrap().expect("one of three");
    let third = here.try_acquire().await.unwrap().expect("one of three");
    assert!(second.fence().token() > first.fence().token());
    assert!(third.fence().token() > second.fence().token());
    assert_eq!(held(cx).await, [1, 2, 3]);
    assert!(here.try_acquire().await.unwrap().is_none());
    assert!(there.try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { there.acquire().await });
    tokio::pin!(waiting);
    not_yet("acquired while others hold all", &mut waiting).await;
    first.release().await.unwrap();
    let fourth = soon("the waiter", waiting).await.unwrap().unwrap();
    assert!(fourth.fence().token() > third.fence().token());
    assert_eq!(held(cx).await, [1, 2, 3]);
    drop((second, third, fourth));
    eventually("all are free", async || held(cx).await.is_empty()).await;
}

async fn tasks_of_two_programs_never_exceed_it(cx: Context) {
    const PERMITS: u32 = 4;
    let programs = [semaphore(&cx, PERMITS).await, semaphore(&cx, PERMITS).await];
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks = (0..16).map(|task| {
        let semaphore = Arc::clone(&programs[task % 2]);
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        tokio::spawn(async move {
            for _ in 0..4 {
                let many = 1 + u32::from(task % 8 == 0);
                let permit = semaphore.acquire_many(many).await.unwrap();
                let held = now.fetch_add(many, Ordering::SeqCst) + many;
                most.fetch_max(held, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(many, Ordering::SeqCst);
                permit.release().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        soon("every task has its turn", task).await.unwrap();
    }
    let most = most.load(Ordering::SeqCst);
    assert!(most <= PERMITS, "{most} of {PERMITS} at once");
    assert!(held(&cx).await.is_empty());
}

async fn acquisitions_of_a_batch_get_permits_of_their_own(cx: Context) {
    const PERMITS: u32 = 40;
    let semaphore = semaphore(&cx, PERMITS).await;
    for _ in 0..3 {
        let attempts: Vec<_> = (0..PERMITS + 4)
            .map(|_| {
                let semaphore = Arc::clone(&semaphore);
                tokio::spawn(async move { semaphore.try_acquire().await })
            })
            .collect();
        let mut permits = Vec::new();
        for attempt in attempts {
            permits.extend(attempt.await.unwrap().unwrap());
        }
        let expected: Vec<_> = (1..=i64::from(PERMITS)).collect();
        assert_eq!(held(&cx).await, expected);
        assert_eq!(permits.len(), expected.len());
        for permit in permits {
            permit.release().await.unwrap();
        }
    }
}

async fn several_are_acquired_all_or_none(cx: Context) {
    let (here, there) = (semaphore(&cx, 4).await, semaphore(&cx, 4).await);
    for wrong in [0, 5] {
        let error = here.try_acquire_many(wrong).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.key()),
            (ErrorKind::Invalid, Some("pool"))
        );
    }
    let two = here.acquire_many(2).await.unwrap();
    assert!(there.try_acquire_many(3).await.unwrap().is_none());
    assert_eq!(held(&cx).await, [1, 2], "nothing is left of the attempt");
    let others = there.try_acquire_many(2).await.unwrap().expect("two more");
    let tokens: Vec<_> = cx.slots("pool").await;
    let tokens: Vec<_> = tokens.into_iter().map(|(_, holder)| holder.fence).collect();
    let (first, second) = (two.fence().token(), others.fence().token());
    assert_eq!(tokens, [first, first, second, second]);
    two.release().await.unwrap();
    assert_eq!(held(&cx).await, [3, 4]);
    let waiting = tokio::spawn(async move { here.acquire_many(4).await });
    tokio::pin!(waiting);
    not_yet("acquired while another holds two", &mut waiting).await;
    assert_eq!(held(&cx).await, [3, 4], "nothing is taken while it waits");
    others.release().await.unwrap();
    let all = soon("the waiter", waiting).await.unwrap().unwrap();
    assert_eq!(held(&cx).await, [1, 2, 3, 4]);
    all.release().await.unwrap();
}

async fn permits_of_a_dead_holder_are_free_again(cx: Context) {
    let (here, there) = (semaphore(&cx, 3).await, semaphore(&cx, 3).await);
    let stale = here.acquire_many(2).await.unwrap();
    assert!(there.try_acquire_many(2).await.unwrap().is_none());
    cx.elapse(MINUTE).await;
    let next = there.try_acquire_many(3).await.unwrap().expect("expired");
    assert!(next.fence().token() > stale.fence().token());
    assert_eq!(stale.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(stale.is_lost());
    assert_eq!(stale.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(held(&cx).await, [1, 2, 3], "those of the next holder");
    assert!(here.try_acquire().await.unwrap().is_none());
    next.release().await.unwrap();
}

async fn permits_are_renewed_together(cx: Context) {
    let ttl = Duration::from_secs(2);
    let backend = cx.backend().await;
    let semaphore = backend
        .semaphore("pool", 3, LeaseOptions::new(ttl))
        .unwrap();
    let permits = semaphore.acquire_many(3).await.unwrap();
    for _ in 0..6 {
        cx.pass(ttl / 3).await;
        eventually("renewed", async || permits.remaining() > ttl / 2).await;
    }
    assert_eq!(held(&cx).await, [1, 2, 3]);
    cx.elapse(ttl * 2).await;
    soon("told of the loss", permits.lost()).await;
    let error = permits.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

async fn waiters_are_served_in_their_order(cx: Context) {
    let semaphore = semaphore(&cx, 2).await;
    let (one, two) = (
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
    let wait = |many| {
        let semaphore = Arc::clone(&semaphore);
        tokio::spawn(async move { semaphore.acquire_many(many).await })
    };
    let mut many = wait(2);
    not_yet("acquired while others hold all", &mut many).await;
    let mut single = wait(1);
    not_yet("acquired while others hold all", &mut single).await;
    one.release().await.unwrap();
    not_yet("it overtook who wants two", &mut single).await;
    two.release().await.unwrap();
    let both = soon("who came first", many).await.unwrap().unwrap();
    not_yet("acquired while another holds both", &mut single).await;
    both.release().await.unwrap();
    let last = soon("who came last", single).await.unwrap().unwrap();
    last.release().await.unwrap();
}

async fn programs_that_disagree_stay_within_their_numbers(cx: Context) {
    let (small, large) = (semaphore(&cx, 2).await, semaphore(&cx, 4).await);
    let three = large.acquire_many(3).await.unwrap();
    assert!(small.try_acquire().await.unwrap().is_none());
    let fourth = large.try_acquire().await.unwrap().expect("one of four");
    assert!(large.try_acquire().await.unwrap().is_none());
    three.release().await.unwrap();
    let both = small.try_acquire_many(2).await.unwrap().expect("two");
    assert_eq!(held(&cx).await, [1, 2, 4]);
    assert!(small.try_acquire().await.unwrap().is_none());
    assert!(large.try_acquire_many(2).await.unwrap().is_none());
    let third = large.try_acquire().await.unwrap().expect("one of four");
    for guard in [fourth, both, third] {
        guard.release().await.unwrap();
    }
}

async fn lost_answers_leak_no_permit_for_longer_than_its_ttl(cx: Context) {
    const PERMITS: u32 = 4;
    let semaphore = semaphore(&cx, PERMITS).await;
    drop(semaphore.acquire().await.unwrap());
    for _ in 0..5 {
        let asking: Vec<_> = (0..6)
            .map(|_| {
                let semaphore = Arc::clone(&semaphore);
                tokio::spawn(async move { semaphore.try_acquire().await })
            })
            .collect();
        cx.sever().await;
        let mut permits = Vec::new();
        for asked in asking {
            permits.extend(asked.await.unwrap().ok().flatten());
        }
        assert!(permits.len() <= PERMITS as usize, "{} held", permits.len());
        for permit in permits {
            permit.release().await.unwrap();
        }
    }
    cx.elapse(MINUTE).await;
    let all = semaphore.try_acquire_many(PERMITS).await.unwrap();
    all.expect("all are free").release().await.unwrap();
}

async fn timeout_is_kept_and_nothing_is_acquired_later(cx: Context) {
    let (here, there) = (semaphore(&cx, 1).await, semaphore(&cx, 1).await);
    let permit = here.acquire_timeout(MINUTE).await.unwrap();
    for timeout in [Duration::ZERO, Duration::from_millis(80)] {
        let waiting = there.acquire_many_timeout(1, timeout);
        let error = soon("an answer", waiting).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.key()),
            (ErrorKind::TimedOut, Some("pool"))
        );
    }
    permit.release().await.unwrap();
    // As for a lease: an attempt that was on its way gives back what it is granted.
    eventually("all are free", async || held(&cx).await.is_empty()).await;
    let permit = there.acquire_many_timeout(1, MINUTE).await.unwrap();
    permit.release().await.unwrap();
}

async fn dropped_futures_leave_no_permit(cx: Context) {
    let semaphore = semaphore(&cx, 3).await;
    for polls in 1..6 {
        drop(poll_then_drop(semaphore.acquire_many(2), polls).await);
        eventually("all are free", async || held(&cx).await.is_empty()).await;
        let permits = semaphore.acquire_many(3).await.unwrap();
        let waiting = poll_then_drop(semaphore.acquire(), polls.min(2)).await;
        assert!(waiting.is_none(), "acquired while another holds all");
        permits.release().await.unwrap();
    }
    let all = soon("nobody stands in line", semaphore.acquire_many(3)).await;
    all.unwrap().release().await.unwrap();
}

async fn work_is_permitted_skipped_and_dropped(cx: Context) {
    let (here, there) = (semaphore(&cx, 1).await, semaphore(&cx, 1).await);
    let token = here
        .run_permitted(async |fence| {
            let skipped = there
                .run_permitted(async |_| -> Result<(), Error> { panic!("ran as well") })
                .await;
            assert!(skipped.unwrap().is_none());
            Ok::<_, Error>(fence.token())
        })
        .await;
    let token = token.unwrap().expect("it ran");
    let later = there
        .run_permitted_wait(async |fence| Ok::<_, Error>(fence.token()))
        .await;
    assert!(later.unwrap() > token);
    let ttl = Duration::from_millis(1500);
    let options = LeaseOptions::new(ttl);
    let short = cx.backend().await.semaphore("pool", 1, options).unwrap();
    let (began, begun) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(async move {
        let work = async |_| {
            began.send(()).unwrap();
            std::future::pending::<Result<(), Error>>().await
        };
        short.run_permitted_wait(work).await
    });
    soon("it runs", begun).await.unwrap();
    cx.elapse(ttl * 2).await;
    let outcome = soon("the work is dropped", running).await.unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
}

async fn minimum_hold_outlasts_the_work(cx: Context) {
    let options = by_hand().minimum_hold(MINUTE / 2);
    let semaphore = cx.backend().await.semaphore("pool", 1, options).unwrap();
    let ran = semaphore
        .run_permitted(async |_| Ok::<_, Error>(()))
        .await
        .unwrap();
    assert!(ran.is_some());
    let again = semaphore
        .run_permitted(async |_| Ok::<_, Error>(()))
        .await
        .unwrap();
    assert!(again.is_none(), "kept from all");
    cx.elapse(MINUTE / 2).await;
    assert!(
        semaphore
            .run_permitted(async |_| Ok::<_, Error>(()))
            .await
            .unwrap()
            .is_some()
    );
}

async fn stale_holder_of_several_cannot_write(cx: Context) {
    let (here, there) = (semaphore(&cx, 2).await, semaphore(&cx, 2).await);
    let stale = here.acquire_many(2).await.unwrap();
    let mut tx = cx.begin().await.expect("a transaction");
    tx.check_in(&stale.fence()).await.unwrap();
    cx.elapse(MINUTE).await;
    assert!(
        there.try_acquire().await.unwrap().is_none(),
        "given away while a transaction has checked in"
    );
    tx.commit().await;
    let next = there.try_acquire().await.unwrap().expect("expired");
    let mut tx = cx.begin().await.expect("a transaction");
    tx.check_in(&next.fence()).await.unwrap();
    let error = tx.check_in(&stale.fence()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    tx.rollback().await;
    next.release().await.unwrap();
}
