//! Transactions of a program that stay open: whoever wants what they hold waits, and nobody else.

use std::sync::Arc;
use std::time::Duration;

use lockapi::BackendOptions;
use lockapi::limit::{PermitRequest, Quota};
use lockapi::queue::{How, Job, Unique};
use lockapi::{Backend, ErrorKind, Queue};

use super::queue::{by_hand_from, job, lost, none, one};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{not_yet, soon};

register! { "transactions":
    Q10 open_push_holds_up_pushes_of_its_key_alone [Transactions];
    Q10 open_push_holds_up_nobody_for_ever [Transactions];
    Q10 open_push_of_many_keys_holds_up_no_other_key [Transactions];
    Q10 open_take_holds_up_completions_of_its_jobs_alone [Transactions];
    R14 open_charge_holds_up_calls_for_its_keys_alone [Transactions];
    R14 open_charge_holds_up_nobody_for_ever [Transactions];
    R14 refused_charge_holds_up_nobody [Transactions];
    R11 charges_in_any_order_do_not_deadlock_in_transactions [Transactions];
    V06 open_push_holds_up_its_key_alone_in_german @ GermanRole [Transactions, Schema];
    V06 open_charge_holds_up_its_keys_alone_in_german @ GermanRole [Transactions, Schema];
}

/// A backend that waits for as long as these cases may take on a busy machine.
async fn patient(cx: &Context) -> Arc<dyn Backend> {
    let options = BackendOptions::default().timeout(MINUTE * 10);
    cx.connect(options).await.unwrap()
}

/// What a worker does with one job and another that it has in hand.
async fn works(queue: &Arc<dyn Queue>) {
    soon("it works", async {
        queue.push(job(1)).await.unwrap();
        let delivery = one(queue).await;
        delivery.extend(MINUTE).await.unwrap();
        delivery.ack().await.unwrap();
        none(queue).await;
    })
    .await;
}

async fn open_push_holds_up_pushes_of_its_key_alone(cx: Context) {
    type Keyed = fn(usize, &str) -> Job;
    let unique: Keyed = |nth, key| job(nth).delay(MINUTE * 60).unique(key, Unique::Replace);
    let idempotent: Keyed = |nth, key| job(nth).delay(MINUTE * 60).idempotency_key(key);
    let queue = patient(&cx).await.queue("work").unwrap();
    for (round, keyed, commit) in [
        ("a", unique, true),
        ("b", unique, false),
        ("c", idempotent, true),
        ("d", idempotent, false),
    ] {
        let mut tx = cx.begin().await.unwrap();
        let held = keyed(0, &format!("{round} held"));
        let theirs = tx.push_in(&queue, vec![held]).await.unwrap();
        let push = |key: &str| {
            let (queue, job) = (queue.clone(), keyed(1, &format!("{round} {key}")));
            tokio::spawn(async move { queue.push(job).await })
        };
        // Together, so that those that wait travel with those that need not.
        let mut waiting: Vec<_> = (0..3).map(|_| push("held")).collect();
        let free: Vec<_> = (0..40).map(|nth| push(&format!("free {nth}"))).collect();
        for pushed in free {
            let pushed = soon("a push of another key", pushed).await;
            assert_eq!(pushed.unwrap().unwrap().how, How::New);
        }
        for nth in 0..5 {
            works(&queue).await;
            waiting.push(push("held"));
            let pushed = soon("a push of another key", push(&format!("late {nth}"))).await;
            assert_eq!(pushed.unwrap().unwrap().how, How::New);
        }
        assert!(waiting.iter().all(|push| !push.is_finished()));
        if commit {
            tx.commit().await;
        } else {
            tx.rollback().await;
        }
        let mut new = 0;
        for push in waiting {
            let pushed = soon("it waits no longer", push).await.unwrap().unwrap();
            assert_eq!(pushed.id == theirs[0].id, commit);
            new += usize::from(pushed.how == How::New);
        }
        assert_eq!(new, usize::from(!commit), "one pushes what is not there");
        assert_eq!(queue.purge().await.unwrap(), 46);
    }
}

async fn open_push_holds_up_its_key_alone_in_german(cx: Context) {
    open_push_holds_up_pushes_of_its_key_alone(cx).await;
}

async fn open_charge_holds_up_its_keys_alone_in_german(cx: Context) {
    open_charge_holds_up_calls_for_its_keys_alone(cx).await;
}

async fn open_push_holds_up_nobody_for_ever(cx: Context) {
    let options = BackendOptions::default().timeout(Duration::from_secs(2));
    let queue = cx.connect(options).await.unwrap().queue("work").unwrap();
    let keyed = || job(1).unique("key", Unique::Skip);
    let mut tx = cx.begin().await.unwrap();
    tx.push_in(&queue, vec![keyed()]).await.unwrap();
    let refused = soon("it is refused", queue.push(keyed()))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused}");
    tx.rollback().await;
    assert_eq!(cx.jobs().await, Jobs::default(), "it did not happen");
    assert_eq!(queue.push(keyed()).await.unwrap().how, How::New);
}

async fn open_push_of_many_keys_holds_up_no_other_key(cx: Context) {
    let queue = patient(&cx).await.queue("work").unwrap();
    let keyed = |nth: usize| job(nth).unique(format!("key {nth}"), Unique::Skip);
    let mut tx = cx.begin().await.unwrap();
    let all = cx.crowd(600);
    let theirs = (0..all).filter(|nth| nth % 10 == 7).map(keyed).collect();
    tx.push_in(&queue, theirs).await.unwrap();
    let pushes = (0..all).map(|nth| {
        let (queue, job) = (queue.clone(), keyed(nth));
        tokio::spawn(async move { queue.push(job).await })
    });
    let mut waiting = Vec::new();
    for (nth, push) in pushes.collect::<Vec<_>>().into_iter().enumerate() {
        if nth % 10 == 7 {
            waiting.push(push);
        } else {
            let pushed = soon("a push of another key", push).await;
            assert_eq!(pushed.unwrap().unwrap().how, How::New);
        }
    }
    assert!(waiting.iter().all(|push| !push.is_finished()));
    tx.rollback().await;
    for push in waiting {
        let pushed = soon("it waits no longer", push).await;
        assert_eq!(pushed.unwrap().unwrap().how, How::New);
    }
}

async fn open_take_holds_up_completions_of_its_jobs_alone(cx: Context) {
    let queue = patient(&cx).await.queue("work").unwrap();
    for commit in [true, false] {
        queue.push(job(7)).await.unwrap();
        let late = by_hand_from(&queue).await;
        cx.elapse(MINUTE).await;
        let mut tx = cx.begin().await.unwrap();
        assert_eq!(tx.take_in(&queue, 10).await.unwrap().len(), 1);
        let late = tokio::spawn(async move { late.ack().await });
        for _ in 0..5 {
            works(&queue).await;
        }
        assert!(!late.is_finished());
        if commit {
            tx.commit().await;
        } else {
            tx.rollback().await;
        }
        let late = soon("it waits no longer", late).await.unwrap();
        if commit {
            lost(late);
        } else {
            late.unwrap();
        }
        assert_eq!(cx.jobs().await, Jobs::default());
    }
}

async fn open_charge_holds_up_calls_for_its_keys_alone(cx: Context) {
    let limiter = patient(&cx).await;
    let limiter = limiter.rate_limiter(Quota::per_hour(30)).unwrap();
    // There is no row of the key in the first round.
    for (commit, left) in [(true, 15), (false, 10)] {
        let mut tx = cx.begin().await.unwrap();
        let taken = [PermitRequest::new("held").cost(10)];
        let taken = tx.check_all_in(&limiter, &taken).await.unwrap();
        assert!(taken.is_allowed());
        let waiting = (0..5).map(|nth| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                let requests = [
                    PermitRequest::new(format!("free {nth}")),
                    PermitRequest::new("held"),
                ];
                let of = if nth < 2 {
                    &requests[..]
                } else {
                    &requests[1..]
                };
                if nth < 4 {
                    limiter.check_all(of).await.unwrap().is_allowed()
                } else {
                    limiter.check("held").await.unwrap().is_allowed()
                }
            })
        });
        let waiting: Vec<_> = waiting.collect();
        for nth in 0..5 {
            let free = (0..40).map(|nth| {
                let limiter = Arc::clone(&limiter);
                tokio::spawn(async move { limiter.check(&*format!("free {nth}")).await })
            });
            for free in free.collect::<Vec<_>>() {
                let decision = soon("a call for another key", free).await.unwrap();
                assert!(decision.unwrap().is_allowed());
            }
            let requests = [
                PermitRequest::new(format!("late {nth}")),
                PermitRequest::new("late"),
            ];
            let all = soon("a call for other keys", limiter.check_all(&requests)).await;
            assert!(all.unwrap().is_allowed());
        }
        assert!(waiting.iter().all(|call| !call.is_finished()));
        if commit {
            tx.commit().await;
        } else {
            tx.rollback().await;
        }
        for call in waiting {
            assert!(soon("it waits no longer", call).await.unwrap());
        }
        let peeked = limiter.peek(&PermitRequest::new("held")).await.unwrap();
        assert_eq!(peeked.remaining(), left);
    }
}

async fn open_charge_holds_up_nobody_for_ever(cx: Context) {
    let options = BackendOptions::default().timeout(Duration::from_secs(2));
    let backend = cx.connect(options).await.unwrap();
    let limiter = backend.rate_limiter(Quota::per_hour(3)).unwrap();
    let mut tx = cx.begin().await.unwrap();
    let taken = [PermitRequest::new("door")];
    let taken = tx.check_all_in(&limiter, &taken).await.unwrap();
    assert!(taken.is_allowed());
    let refused = soon("it is refused", limiter.check("door")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::TimedOut);
    tx.commit().await;
    assert_eq!(limiter.check("door").await.unwrap().remaining(), 1);
}

async fn refused_charge_holds_up_nobody(cx: Context) {
    let limiter = patient(&cx)
        .await
        .rate_limiter(Quota::per_hour(10))
        .unwrap();
    let door = |cost| PermitRequest::new("door").cost(cost);
    assert!(limiter.check_cost("hall", 1).await.unwrap().is_allowed());
    assert!(limiter.check_cost("door", 1).await.unwrap().is_allowed());
    let mut first = cx.begin().await.unwrap();
    let verdict = first.check_all_in(&limiter, &[door(8)]).await.unwrap();
    assert!(verdict.is_allowed());
    // The other one still sees nine permits, and waits for the row.
    let mut second = cx.begin().await.unwrap();
    assert_eq!(second.query("SELECT 'begun'").await, "begun");
    let there = limiter.clone();
    let mut refused = tokio::spawn(async move {
        let requests = [
            PermitRequest::new("door").cost(5),
            PermitRequest::new("hall"),
            PermitRequest::new("new"),
        ];
        let verdict = second.check_all_in(&there, &requests).await;
        (second, verdict.unwrap())
    });
    not_yet("decided while the row is locked", &mut refused).await;
    first.commit().await;
    let (mut second, verdict) = soon("a refusal", refused).await.unwrap();
    assert!(!verdict.is_allowed());
    // It is still open, and holds nothing.
    for key in ["door", "hall", "new"] {
        let decision = soon("a check beside it", limiter.check(key)).await.unwrap();
        assert!(decision.is_allowed(), "{key}");
    }
    assert_eq!(second.query("SELECT 'usable'").await, "usable");
    // What it takes later it takes.
    let later = [PermitRequest::new("hall").cost(2)];
    let verdict = second.check_all_in(&limiter, &later).await.unwrap();
    assert!(verdict.is_allowed());
    second.commit().await;
    let left = async |key: &str| {
        limiter
            .peek(&PermitRequest::new(key))
            .await
            .unwrap()
            .remaining()
    };
    assert_eq!((left("door").await, left("hall").await), (0, 6));
}

async fn charges_in_any_order_do_not_deadlock_in_transactions(cx: Context) {
    const KEYS: [&str; 3] = ["a", "m", "z"];
    let limiter = patient(&cx)
        .await
        .rate_limiter(Quota::per_hour(10))
        .unwrap();
    // There are no rows at first; then those that are there have to be put in order before permits are taken.
    for round in 0..2 {
        let mut held = cx.begin().await.unwrap();
        let middle = [PermitRequest::new("m")];
        assert!(
            held.check_all_in(&limiter, &middle)
                .await
                .unwrap()
                .is_allowed()
        );
        let mut orders = [KEYS; 2];
        orders[1].reverse();
        let mut both = Vec::new();
        for keys in orders {
            let (mut tx, limiter) = (cx.begin().await.unwrap(), limiter.clone());
            both.push(tokio::spawn(async move {
                let requests = keys.map(PermitRequest::new);
                let verdict = tx.check_all_in(&limiter, &requests).await;
                tx.commit().await;
                verdict.unwrap().is_allowed()
            }));
        }
        for one in &mut both {
            not_yet("decided while the row is locked", one).await;
        }
        held.rollback().await;
        for one in both {
            assert!(soon("a decision", one).await.unwrap(), "round {round}");
        }
        for key in KEYS {
            let hour = MINUTE * 60;
            let request = PermitRequest::new(key);
            let reserved = limiter.reserve(&request, hour).await.unwrap();
            std::mem::forget(reserved.unwrap());
        }
        cx.elapse(MINUTE * 62).await;
    }
}
