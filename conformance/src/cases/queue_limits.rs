//! What queues refuse, and what happens in transactions of the program.

use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::queue::{Claim, Job, MAX_PUSH, QueueOptions, Unique};

use crate::context::{Context, MINUTE};
use crate::harness::register;

register! { "queue":
    Q14 payloads_up_to_the_limit_and_no_further;
    Q14 what_is_not_json_is_refused;
    Q14 one_bad_push_does_not_stop_the_others;
    Q14 names_and_keys_have_limits;
    Q14 payload_is_never_told;
    Q10 push_in_a_transaction_follows_it [Transactions];
    Q10 ack_in_a_transaction_follows_it [Transactions];
    Q10 take_in_a_transaction_follows_it [Transactions];
    Q08 take_in_a_transaction_leaves_what_has_no_attempt_left [Transactions];
    Q06 stale_ack_in_a_transaction_is_lost [Transactions];
    Q16 claim_holds_no_transaction [Sql];
    Q01 tasks_are_readable_in_sql [Sql];
}

async fn payloads_up_to_the_limit_and_no_further(cx: Context) {
    let options = QueueOptions::default().max_payload(1000);
    let backend = cx.backend().await;
    let queue = backend.open_queue("work".to_owned(), options).unwrap();
    let of = |bytes: usize| Job::json("text", format!("\"{}\"", "x".repeat(bytes - 2))).unwrap();
    queue.push(of(1000)).await.unwrap();
    let refused = queue.push(of(1001)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("1001"), "{refused}");
    let claimed = queue.claim(&Claim::new(2)).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].payload().len(), 1000);
    let whole = backend.queue("large").unwrap();
    whole.push(of(1 << 20)).await.unwrap();
    let claimed = whole.claim(&Claim::new(1)).await.unwrap();
    assert_eq!(claimed[0].payload().len(), 1 << 20);
    let refused = whole.push(of((1 << 20) + 1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    for bytes in [0, (16 << 20) + 1] {
        let refused = backend.open_queue(
            "work".to_owned(),
            QueueOptions::default().max_payload(bytes),
        );
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

async fn what_is_not_json_is_refused(cx: Context) {
    for text in ["", "{", "nul\0l", "[1,]", "\u{0}", "1 2"] {
        let refused = Job::json("text", text).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{text:?}");
    }
    let deep = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(
        Job::json("deep", deep(100_000)).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    let queue = cx.queue().await;
    let texts = [
        deep(120),
        r#""a\u0000b""#.into(),
        "\"\u{1f98a}\"".into(),
        " {\"b\":1, \"a\":1,\"a\":2} ".into(),
    ];
    for text in texts {
        queue
            .push(Job::json("text", text.clone()).unwrap())
            .await
            .unwrap();
        let claimed = queue.claim(&Claim::new(1)).await.unwrap();
        assert_eq!(claimed[0].payload(), text, "as it was pushed");
        for delivery in claimed {
            delivery.ack().await.unwrap();
        }
    }
}

async fn one_bad_push_does_not_stop_the_others(cx: Context) {
    let queue = cx.queue().await;
    // A half of a pair is JSON to the client, and no text to the server.
    let pushes = (0..20).map(|nth| {
        let queue = queue.clone();
        let text = if nth == 7 {
            r#"{"a":"\ud800"}"#.to_owned()
        } else {
            nth.to_string()
        };
        tokio::spawn(async move {
            match Job::json("text", text) {
                Ok(job) => queue.push(job).await.map(drop),
                Err(error) => Err(error),
            }
        })
    });
    let mut good = 0;
    for push in pushes.collect::<Vec<_>>() {
        good += usize::from(push.await.unwrap().is_ok());
    }
    assert!(good >= 19, "{good}");
    assert_eq!(cx.jobs().await.waiting, good);
}

async fn names_and_keys_have_limits(cx: Context) {
    let backend = cx.backend().await;
    let (longest, long) = ("n".repeat(255), "n".repeat(256));
    for name in ["", "a\0b", &long] {
        let refused = backend.queue(name).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{name:?}");
    }
    let queue = backend.queue(longest.clone()).unwrap();
    let job = |name: &str| Job::new(name, &1).unwrap();
    let bad = [
        job(""),
        job(&long),
        job("a\0b"),
        job("a").max_attempts(0),
        job("a").unique("", Unique::Skip),
        job("a").unique("task/nightly", Unique::Skip),
        job("a").unique(long.clone(), Unique::Skip),
        job("a").idempotency_key(""),
    ];
    for job in bad {
        let refused = queue
            .push_all(vec![Job::new("good", &1).unwrap(), job])
            .await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let many = (0..=MAX_PUSH).map(|_| job("a")).collect();
    assert_eq!(
        queue.push_all(many).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    assert_eq!(cx.jobs().await.waiting, 0, "nothing is half done");
    queue
        .push(job(&longest).unique(longest.clone(), Unique::Skip))
        .await
        .unwrap();
    for lease in [
        Duration::ZERO,
        Duration::from_millis(99),
        Duration::from_hours(25),
        Duration::MAX,
    ] {
        let refused = queue.claim(&Claim::new(1).lease(lease)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{lease:?}");
    }
    let refused = queue.claim(&Claim::new(1).worker("w".repeat(256))).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn payload_is_never_told(cx: Context) {
    const SECRET: &str = "hunter2-payload";
    let queue = cx.queue().await;
    let job = Job::new("login", SECRET).unwrap();
    assert!(!format!("{job:?}").contains(SECRET));
    queue.push(job).await.unwrap();
    let delivery = queue.claim(&Claim::new(1)).await.unwrap().remove(0);
    assert!(!format!("{delivery:?}").contains(SECRET));
    let error = delivery.decode::<u32>().unwrap_err();
    assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
    delivery.reject("no").await.unwrap();
    let dead = queue.dead_letters(0, 1).await.unwrap();
    assert!(!format!("{dead:?}").contains(SECRET));
}

async fn push_in_a_transaction_follows_it(cx: Context) {
    let queue = cx.queue().await;
    let jobs = || {
        let keyed = Job::new("keyed", &2).unwrap().unique("key", Unique::Skip);
        vec![Job::new("plain", &1).unwrap(), keyed]
    };
    let mut tx = cx.begin().await.unwrap();
    assert_eq!(tx.push_in(&queue, jobs()).await.unwrap().len(), 2);
    assert!(queue.claim(&Claim::new(10)).await.unwrap().is_empty());
    tx.rollback().await;
    assert!(queue.claim(&Claim::new(10)).await.unwrap().is_empty());

    let waiting = queue.clone();
    let waiting = tokio::spawn(async move { waiting.claim(&Claim::new(2).wait(MINUTE)).await });
    let mut tx = cx.begin().await.unwrap();
    let pushed = tx.push_in(&queue, jobs()).await.unwrap();
    tx.commit().await;
    let claimed = crate::patience::soon("the jobs", waiting)
        .await
        .unwrap()
        .unwrap();
    let ids: Vec<i64> = claimed.iter().map(lockapi::queue::Delivery::id).collect();
    assert_eq!(ids, [pushed[0].id, pushed[1].id]);

    let mut tx = cx.begin().await.unwrap();
    let refused = tx.push_in(&queue, vec![Job::new("", &1).unwrap()]).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    tx.push_in(&queue, jobs())
        .await
        .expect("the transaction goes on");
    tx.rollback().await;
}

async fn ack_in_a_transaction_follows_it(cx: Context) {
    let queue = cx.queue().await;
    queue.push(Job::new("plain", &1).unwrap()).await.unwrap();
    let claim = || Claim::new(1).lease(MINUTE);
    let delivery = std::sync::Arc::new(queue.claim(&claim()).await.unwrap().remove(0));
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(&delivery).await.unwrap();
    delivery
        .extend(MINUTE)
        .await
        .expect_err("the row is locked");
    assert!(!delivery.is_lost(), "what is locked is not lost");
    tx.rollback().await;
    drop(delivery);
    crate::patience::eventually("it is back", async || cx.jobs().await.waiting == 1).await;
    let delivery = std::sync::Arc::new(queue.claim(&claim()).await.unwrap().remove(0));
    assert_eq!(delivery.attempt(), 2);
    let mut tx = cx.begin().await.unwrap();
    tx.ack_in(&delivery).await.unwrap();
    tx.commit().await;
    assert_eq!(cx.jobs().await, crate::fixture::Jobs::default());
}

async fn take_in_a_transaction_follows_it(cx: Context) {
    let queue = cx.queue().await;
    let jobs = (0..5).map(|nth| Job::new("plain", &nth).unwrap());
    queue.push_all(jobs.collect()).await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    let taken = tx.take_in(&queue, 3).await.unwrap();
    let numbers: Vec<u8> = taken.iter().map(|it| it.decode().unwrap()).collect();
    assert_eq!(numbers, [0, 1, 2]);
    let others = queue.claim(&Claim::new(10)).await.unwrap();
    assert_eq!(others.len(), 2, "what is taken is not given to others");
    tx.rollback().await;
    queue
        .push(Job::new("late", &5).unwrap().delay(MINUTE))
        .await
        .unwrap();
    queue.pause().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    assert!(tx.take_in(&queue, 10).await.unwrap().is_empty(), "paused");
    tx.rollback().await;
    queue.resume().await.unwrap();
    let mut tx = cx.begin().await.unwrap();
    let again = tx.take_in(&queue, 10).await.unwrap();
    assert_eq!(again.len(), 3);
    tx.commit().await;
    assert_eq!(cx.jobs().await.waiting, 1, "what is not due is left");
    let mut tx = cx.begin().await.unwrap();
    assert!(tx.take_in(&queue, 10).await.unwrap().is_empty());
    let refused = tx.take_in(&queue, 1001).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    tx.rollback().await;
}

async fn take_in_a_transaction_leaves_what_has_no_attempt_left(cx: Context) {
    let queue = cx.queue().await;
    let pushed = queue.push(Job::new("plain", &1).unwrap().max_attempts(1));
    let number = pushed.await.unwrap().id;
    let claim = Claim::new(1).lease(MINUTE).extended_by_hand();
    let begun = queue.claim(&claim).await.unwrap();
    assert_eq!(begun.len(), 1);
    cx.elapse(MINUTE * 2).await;
    let mut tx = cx.begin().await.unwrap();
    assert!(tx.take_in(&queue, 1).await.unwrap().is_empty());
    tx.commit().await;
    assert!(queue.claim(&claim).await.unwrap().is_empty());
    let dead = queue.dead_letters(0, 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].id), (1, number));
}

async fn stale_ack_in_a_transaction_is_lost(cx: Context) {
    let queue = cx.queue().await;
    queue.push(Job::new("plain", &1).unwrap()).await.unwrap();
    let claim = Claim::new(1).lease(MINUTE).extended_by_hand();
    let stale = std::sync::Arc::new(queue.claim(&claim).await.unwrap().remove(0));
    cx.elapse(MINUTE).await;
    let fresh = queue.claim(&claim).await.unwrap().remove(0);
    let mut tx = cx.begin().await.unwrap();
    let refused = tx.ack_in(&stale).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Lost);
    tx.rollback().await;
    fresh.ack().await.unwrap();
}

async fn claim_holds_no_transaction(cx: Context) {
    let queue = cx.queue().await;
    queue.push(Job::new("plain", &1).unwrap()).await.unwrap();
    let _delivery = queue.claim(&Claim::new(1)).await.unwrap();
    let open = "SELECT count(*) FROM pg_locks AS l
                 WHERE l.relation = 'lockapi.job'::regclass AND l.pid <> pg_backend_pid()
                   AND l.pid IN (SELECT a.pid FROM pg_stat_activity AS a WHERE a.state = 'idle in transaction'
                                    AND a.query LIKE '%lockapi.delivery_seq%')";
    assert_eq!(cx.sql(open).await, ["0"]);
    assert_eq!(cx.jobs().await.delivered, 1, "committed: others see it");
}

async fn tasks_are_readable_in_sql(cx: Context) {
    let queue = cx.queue().await;
    let namespace = cx.namespace().replace('\'', "''");
    let statuses =
        format!("SELECT status FROM lockapi.task_view WHERE namespace = '{namespace}' ORDER BY id");
    let jobs = (0..3).map(|nth| Job::new("task", &nth).unwrap()).collect();
    queue.push_all(jobs).await.unwrap();
    let claim = Claim::new(1).worker("anna");
    queue
        .claim(&claim)
        .await
        .unwrap()
        .remove(0)
        .reject("no")
        .await
        .unwrap();
    let _running = queue.claim(&claim).await.unwrap();
    assert_eq!(cx.sql(&statuses).await, ["failed", "processing", "pending"]);
    let who = format!(
        "SELECT concat_ws(' ', name, payload, worker, attempt, error) FROM lockapi.task_view
          WHERE namespace = '{namespace}' AND worker IS NOT NULL AND started_at >= created_at ORDER BY id"
    );
    assert_eq!(cx.sql(&who).await, ["task 0 anna 1 no", "task 1 anna 1"]);
}
