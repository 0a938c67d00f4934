//! Requests with idempotency keys.

use std::sync::Arc;
use std::time::Duration;

use lockapi::idempotency::{Begun, Execution, Idempotency, IdempotencyOptions, MAX_ANSWER_BYTES};
use lockapi::{BackendOptions, ErrorKind};

use crate::context::Context;
use crate::harness::register;
use crate::patience::{not_yet, soon};

register! { "idempotency":
    D01 first_request_is_executed_and_later_ones_replay;
    D02 key_of_another_request_is_a_mismatch;
    D03 request_that_is_worked_on_is_told_or_waited_for;
    D04 dead_execution_is_taken_over_and_cannot_complete;
    D05 answer_commits_with_the_effect [Transactions];
    D01 answer_that_cannot_be_recorded_at_first_is_recorded_later [Transactions];
    D05 execution_that_was_taken_over_cannot_complete_in_a_transaction [Transactions];
    D06 answers_are_kept_for_their_time;
    D07 keys_and_answers_outside_the_limits_are_invalid;
}

const TTL: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_hours(24);

async fn open(cx: &Context) -> Idempotency {
    let options = IdempotencyOptions::default().ttl(TTL);
    let opened = cx.backend().await.idempotency(options);
    opened.unwrap()
}

async fn execute(requests: &Idempotency, key: &str) -> Execution {
    match requests.begin(key, b"request").await.unwrap() {
        Begun::Execute(execution) => execution,
        other => panic!("{other:?}"),
    }
}

async fn replayed(requests: &Idempotency, key: &str) -> Vec<u8> {
    match requests.begin(key, b"request").await.unwrap() {
        Begun::Replay(answer) => answer,
        other => panic!("{other:?}"),
    }
}

async fn first_request_is_executed_and_later_ones_replay(cx: Context) {
    let (here, there) = (open(&cx).await, open(&cx).await);
    // Any bytes, and none.
    for (key, answer) in [("a", &b"\0\xff'{}\n"[..]), ("b", b"")] {
        let execution = execute(&here, key).await;
        execution.complete(answer.to_vec()).await.unwrap();
        for requests in [&here, &there] {
            assert_eq!(replayed(requests, key).await, answer);
        }
    }
    let longest = vec![7; MAX_ANSWER_BYTES];
    execute(&here, "c")
        .await
        .complete(longest.clone())
        .await
        .unwrap();
    assert!(replayed(&there, "c").await == longest);
    // One that ends without an answer leaves it to others.
    drop(execute(&here, "d").await);
    let next = soon("executed", async {
        loop {
            if let Begun::Execute(next) = there.begin("d", b"request").await.unwrap() {
                return next;
            }
        }
    });
    next.await.complete(b"next".to_vec()).await.unwrap();
    assert_eq!(replayed(&here, "d").await, b"next");
    // Namespaces never meet.
    let elsewhere = open(&cx.elsewhere().await).await;
    drop(execute(&elsewhere, "a").await);
}

async fn answer_that_cannot_be_recorded_at_first_is_recorded_later(cx: Context) {
    let limit = Duration::from_secs(2);
    let options = BackendOptions::default().timeout(limit);
    let backend = cx.connect(options).await.unwrap();
    let options = IdempotencyOptions::default().ttl(TTL * 10);
    let requests = backend.idempotency(options).unwrap();
    let execution = Arc::new(execute(&requests, "key").await);
    let mut tx = cx.begin().await.unwrap();
    let undone = tx.complete_in(&execution, b"undone".to_vec()).await;
    undone.unwrap();
    let execution = Arc::into_inner(execution).unwrap();
    let mut recording = tokio::spawn(execution.complete(b"answer".to_vec()));
    let failing = tokio::time::timeout(limit * 2, &mut recording).await;
    assert!(failing.is_err(), "{failing:?}");
    tx.rollback().await;
    soon("recorded", recording).await.unwrap().unwrap();
    assert_eq!(replayed(&requests, "key").await, b"answer");
}

async fn key_of_another_request_is_a_mismatch(cx: Context) {
    let (here, there) = (open(&cx).await, open(&cx).await);
    let execution = execute(&here, "key").await;
    let other = async || there.begin("key", b"another").await.unwrap();
    assert!(
        matches!(other().await, Begun::Mismatch),
        "while it is worked on"
    );
    execution.complete(b"answer".to_vec()).await.unwrap();
    assert!(
        matches!(other().await, Begun::Mismatch),
        "when it was answered"
    );
    assert_eq!(replayed(&there, "key").await, b"answer");
}

async fn request_that_is_worked_on_is_told_or_waited_for(cx: Context) {
    let (here, there) = (open(&cx).await, open(&cx).await);
    let execution = execute(&here, "key").await;
    let told = there.begin("key", b"request").await.unwrap();
    assert!(matches!(told, Begun::InProgress));
    let short = there.begin_timeout("key", b"request", Duration::from_millis(50));
    assert!(matches!(short.await.unwrap(), Begun::InProgress));
    let waiting = tokio::spawn(async move {
        let begun = there.begin_timeout("key", b"request", TTL).await;
        begun.unwrap()
    });
    tokio::pin!(waiting);
    not_yet("answered", &mut waiting).await;
    execution.complete(b"answer".to_vec()).await.unwrap();
    match soon("answered", waiting).await.unwrap() {
        Begun::Replay(answer) => assert_eq!(answer, b"answer"),
        other => panic!("{other:?}"),
    }
}

async fn dead_execution_is_taken_over_and_cannot_complete(cx: Context) {
    let (here, there) = (open(&cx).await, open(&cx).await);
    let dead = execute(&here, "key").await;
    cx.elapse(TTL).await;
    let next = execute(&there, "key").await;
    assert!(next.fence().token() > dead.fence().token());
    next.complete(b"next".to_vec()).await.unwrap();
    let late = dead.complete(b"late".to_vec()).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost, "{late}");
    assert_eq!(replayed(&here, "key").await, b"next");
}

async fn answer_commits_with_the_effect(cx: Context) {
    let requests = open(&cx).await;
    let execution = Arc::new(execute(&requests, "key").await);
    let mut tx = cx.begin().await.unwrap();
    tx.complete_in(&execution, b"undone".to_vec())
        .await
        .unwrap();
    tx.rollback().await;
    // The same execution may try again.
    let mut tx = cx.begin().await.unwrap();
    tx.complete_in(&execution, b"done".to_vec()).await.unwrap();
    let told = requests.begin("key", b"request").await.unwrap();
    assert!(matches!(told, Begun::InProgress), "it is not committed");
    tx.commit().await;
    assert_eq!(replayed(&requests, "key").await, b"done");
    drop(execution);
    assert_eq!(replayed(&requests, "key").await, b"done");
}

async fn execution_that_was_taken_over_cannot_complete_in_a_transaction(cx: Context) {
    let (here, there) = (open(&cx).await, open(&cx).await);
    let dead = Arc::new(execute(&here, "key").await);
    cx.elapse(TTL).await;
    let next = Arc::new(execute(&there, "key").await);
    let mut tx = cx.begin().await.unwrap();
    let late = tx.complete_in(&dead, b"late".to_vec()).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost, "{late}");
    tx.rollback().await;
    let mut tx = cx.begin().await.unwrap();
    tx.complete_in(&next, b"next".to_vec()).await.unwrap();
    tx.commit().await;
    assert_eq!(replayed(&here, "key").await, b"next");
}

async fn answers_are_kept_for_their_time(cx: Context) {
    let requests = open(&cx).await;
    execute(&requests, "old")
        .await
        .complete(b"old".to_vec())
        .await
        .unwrap();
    cx.elapse(DAY / 2).await;
    execute(&requests, "young")
        .await
        .complete(b"young".to_vec())
        .await
        .unwrap();
    assert_eq!(replayed(&requests, "old").await, b"old");
    cx.elapse(DAY / 2).await;
    // It may be executed anew, also before it is swept.
    execute(&requests, "old")
        .await
        .complete(b"new".to_vec())
        .await
        .unwrap();
    assert_eq!(replayed(&requests, "old").await, b"new");
    assert_eq!(replayed(&requests, "young").await, b"young");
    cx.elapse(DAY).await;
    while requests.sweep().await.unwrap() > 0 {}
    drop(execute(&requests, "young").await);
}

async fn keys_and_answers_outside_the_limits_are_invalid(cx: Context) {
    let requests = open(&cx).await;
    for key in ["", "\0", &"x".repeat(256)] {
        let error = requests.begin(key, b"request").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let longest = "x".repeat(255);
    let execution = Arc::new(execute(&requests, &longest).await);
    let secret = b"a secret".repeat(MAX_ANSWER_BYTES / 8 + 1);
    let seen = format!("{execution:?}");
    let execution = Arc::into_inner(execution).unwrap();
    let error = execution.complete(secret).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("allowed are at most"), "{error}");
    assert!(!format!("{error:?}{seen}").contains("a secret"));
    let retention = IdempotencyOptions::default().retention(Duration::ZERO);
    let error = cx.backend().await.idempotency(retention).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}
