//! What optimistic locking promises.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::ErrorKind;
use lockapi::versioned::{Outcome, Retry};

use crate::accounts::{Accounts, CREATE_ACCOUNTS};
use crate::context::Context;
use crate::harness::register;
use crate::patience::{not_yet, soon};

register! { "versioned":
    O01 stale_and_gone_change_nothing [Accounts];
    O01 writer_that_waited_is_told_the_version_of_the_one_before [Accounts, Transactions];
    W10 write_that_a_trigger_suppresses_is_told_and_not_repeated [Accounts];
    W10 write_that_a_trigger_refuses_is_invalid [Accounts];
    O02 increments_are_exact [Accounts];
    O03 transfers_make_and_lose_no_money [Accounts];
    O04 conflicts_are_repeated_and_other_errors_are_not [Accounts];
    O04 conflicts_at_the_commit_are_repeated_and_unknown_commits_are_not [Accounts];
    O05 second_attempt_locks_and_succeeds [Accounts];
}

/// Accounts of these balances, and their numbers.
async fn open(cx: &Context, balances: &[i64]) -> (Arc<dyn Accounts>, Vec<i64>) {
    cx.sql(CREATE_ACCOUNTS).await;
    let first = fastrand::i64(0..1 << 60);
    let ids: Vec<i64> = (first..).take(balances.len()).collect();
    for (id, balance) in ids.iter().zip(balances) {
        let row = format!("INSERT INTO conformance.account VALUES ({id}, {balance}, 1)");
        cx.sql(&row).await;
    }
    (cx.accounts().await.expect("accounts").into(), ids)
}

async fn row(cx: &Context, id: i64) -> Vec<String> {
    let row = "SELECT balance || ' ' || version FROM conformance.account WHERE id =";
    cx.sql(&format!("{row} {id}")).await
}

async fn total(cx: &Context, ids: &[i64]) -> i64 {
    let (first, last) = (ids[0], ids[ids.len() - 1]);
    let total = format!(
        "SELECT sum(balance)::int8 FROM conformance.account
          WHERE id BETWEEN {first} AND {last} AND balance >= 0"
    );
    cx.sql(&total).await[0].parse().unwrap()
}

async fn stale_and_gone_change_nothing(cx: Context) {
    let (accounts, ids) = open(&cx, &[100]).await;
    let id = ids[0];
    assert_eq!(
        accounts.write(id, 1, 90).await.unwrap(),
        Outcome::Updated(2)
    );
    let stale = Outcome::Stale { current: 2 };
    for seen in [1, 0, 3, i64::MAX, i64::MIN] {
        assert_eq!(accounts.write(id, seen, 80).await.unwrap(), stale);
    }
    assert_eq!(row(&cx, id).await, ["90 2"]);
    cx.sql(&format!("DELETE FROM conformance.account WHERE id = {id}"))
        .await;
    assert_eq!(accounts.write(id, 2, 70).await.unwrap(), Outcome::Gone);
    assert_eq!(accounts.write(-1, 2, 70).await.unwrap(), Outcome::Gone);
    assert!(row(&cx, id).await.is_empty());
}

async fn writer_that_waited_is_told_the_version_of_the_one_before(cx: Context) {
    let (accounts, ids) = open(&cx, &[100, 100, 100]).await;
    let changes = [
        (
            "UPDATE conformance.account SET version = version + 4",
            Outcome::Stale { current: 5 },
        ),
        (
            "UPDATE conformance.account SET balance = balance",
            Outcome::Updated(2),
        ),
        ("DELETE FROM conformance.account", Outcome::Gone),
    ];
    for (id, (change, outcome)) in ids.iter().copied().zip(changes) {
        let mut tx = cx.begin().await.unwrap();
        let change = format!("SELECT conformance.run('{change} WHERE id = {id}')");
        tx.query(change.leak()).await;
        let writer = Arc::clone(&accounts);
        let writing = tokio::spawn(async move { writer.write(id, 1, 50).await });
        tokio::pin!(writing);
        not_yet("it waits for the row", &mut writing).await;
        tx.commit().await;
        let written = soon("the row is free", writing).await.unwrap().unwrap();
        assert_eq!(written, outcome);
    }
}

async fn write_that_a_trigger_suppresses_is_told_and_not_repeated(cx: Context) {
    let (accounts, ids) = open(&cx, &[100]).await;
    let id = ids[0];
    let error = accounts.write(id, 1, -1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("trigger"), "{error}");
    // A version that is not the one of the row is stale all the same.
    let stale = Outcome::Stale { current: 1 };
    assert_eq!(accounts.write(id, 7, -1).await.unwrap(), stale);
    assert_eq!(row(&cx, id).await, ["100 1"]);
    let written = accounts.write(id, 1, 90).await.unwrap();
    assert_eq!(written, Outcome::Updated(2));
}

async fn write_that_a_trigger_refuses_is_invalid(cx: Context) {
    let (accounts, ids) = open(&cx, &[100]).await;
    // Not every driver passes on the code of this.
    let error = accounts.write(ids[0], 1, -2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("not allowed"), "{error}");
    assert!(!error.is_retryable(), "{error}");
    assert_eq!(row(&cx, ids[0]).await, ["100 1"]);
}

async fn increments_are_exact(cx: Context) {
    let (accounts, ids) = open(&cx, &[1000, 0]).await;
    let pair = (ids[0], ids[1]);
    let retry = Retry::default()
        .attempts(100)
        .deadline(Duration::from_mins(1));
    let writers = (0..6).map(|_| {
        let (accounts, retry) = (Arc::clone(&accounts), retry.clone());
        tokio::spawn(async move { accounts.transfer(&retry, pair, 1, 15).await.unwrap() })
    });
    for moved in join_all(writers).await {
        assert_eq!(moved.unwrap(), 15);
    }
    assert_eq!(row(&cx, ids[0]).await, ["910 91"]);
    assert_eq!(row(&cx, ids[1]).await, ["90 91"]);
}

async fn transfers_make_and_lose_no_money(cx: Context) {
    let (accounts, ids) = open(&cx, &[50, 50, 50]).await;
    let retry = Retry::default()
        .attempts(100)
        .deadline(Duration::from_mins(1));
    let writers = (0..6usize).map(|writer| {
        let (accounts, retry) = (Arc::clone(&accounts), retry.clone());
        let pair = (ids[writer % 3], ids[(writer + 1 + writer / 3) % 3]);
        tokio::spawn(async move { accounts.transfer(&retry, pair, 20, 8).await.unwrap() })
    });
    let mut moved = 0;
    for outcome in join_all(writers).await {
        moved += outcome.unwrap();
    }
    assert!(moved >= 6, "{moved}");
    assert_eq!(total(&cx, &ids).await, 150, "and none is negative");
    // Not enough is refused, and nothing is written.
    let before = row(&cx, ids[0]).await;
    let pair = (ids[0], ids[1]);
    assert_eq!(accounts.transfer(&retry, pair, 151, 2).await.unwrap(), 0);
    assert_eq!(row(&cx, ids[0]).await, before);
}

async fn conflicts_are_repeated_and_other_errors_are_not(cx: Context) {
    let (accounts, ids) = open(&cx, &[0]).await;
    let quick = |attempts| {
        let longest = Duration::from_millis(1);
        Retry::default().attempts(attempts).pause(longest, longest)
    };
    let raise = |message: &str, code: &str| -> &'static str {
        let raise = format!("RAISE EXCEPTION '{message}' USING ERRCODE = '{code}'");
        format!("DO $$ BEGIN {raise}; END $$").leak()
    };
    for (message, code, expected) in [
        ("could not serialize", "40001", 4),
        ("deadlock detected", "40P01", 4),
        ("duplicate key", "23505", 1),
        ("canceling statement due to user request", "57014", 1),
        ("anything", "P0001", 1),
    ] {
        let sql = raise(message, code);
        let (attempts, outcome) = accounts.execute(&quick(4), sql).await;
        assert_eq!(attempts, expected, "{code}");
        assert!(outcome.is_err());
    }
    let ended = "SELECT pg_terminate_backend(pg_backend_pid())";
    let (attempts, outcome) = accounts.execute(&quick(4), ended).await;
    assert_eq!(attempts, 1);
    assert!(outcome.is_err());
    let write = format!(
        "UPDATE conformance.account SET balance = 7 WHERE id = {}",
        ids[0]
    );
    let (attempts, outcome) = accounts.execute(&quick(4), write.leak()).await;
    outcome.unwrap();
    assert_eq!(
        (attempts, row(&cx, ids[0]).await),
        (1, vec!["7 1".to_owned()])
    );
}

async fn conflicts_at_the_commit_are_repeated_and_unknown_commits_are_not(cx: Context) {
    let (accounts, _) = open(&cx, &[]).await;
    let at_commit = |act: &str| -> &'static str {
        format!(
            "DO $do$ BEGIN
                CREATE TEMP TABLE doomed (n int) ON COMMIT DROP;
                CREATE OR REPLACE FUNCTION pg_temp.act() RETURNS trigger LANGUAGE plpgsql
                    AS $$ BEGIN {act}; RETURN NULL; END $$;
                CREATE CONSTRAINT TRIGGER act AFTER INSERT ON doomed DEFERRABLE INITIALLY DEFERRED
                    FOR EACH ROW EXECUTE FUNCTION pg_temp.act();
                INSERT INTO doomed VALUES (1);
             END $do$"
        )
        .leak()
    };
    let retry = Retry::default().attempts(3);
    let conflict = at_commit("RAISE EXCEPTION 'not serializable' USING ERRCODE = '40001'");
    let (attempts, outcome) = accounts.execute(&retry, conflict).await;
    assert_eq!(attempts, 3);
    assert!(outcome.is_err());
    let unknown = at_commit("PERFORM pg_terminate_backend(pg_backend_pid())");
    let (attempts, outcome) = accounts.execute(&retry, unknown).await;
    assert_eq!(attempts, 1);
    assert!(outcome.is_err());
    // What is wrong with the data is no outage, and not repeated.
    let refused = at_commit("RAISE EXCEPTION 'not enough'");
    let (attempts, outcome) = accounts.execute(&retry, refused).await;
    assert_eq!(attempts, 1);
    let error = outcome.unwrap_err();
    let error = error
        .downcast_ref::<lockapi::Error>()
        .expect("of the library");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

async fn second_attempt_locks_and_succeeds(cx: Context) {
    let (accounts, ids) = open(&cx, &[1000, 0]).await;
    let pair = (ids[0], ids[1]);
    // Each has a memory of its own, as if they were of different processes.
    let writers = (0..6).map(|_| {
        let accounts = Arc::clone(&accounts);
        let retry = Retry::default().attempts(2).lock_after(1);
        tokio::spawn(async move { accounts.transfer(&retry, pair, 1, 15).await.unwrap() })
    });
    for moved in join_all(writers).await {
        assert_eq!(moved.unwrap(), 15);
    }
    assert_eq!(row(&cx, ids[1]).await, ["90 91"]);
}
