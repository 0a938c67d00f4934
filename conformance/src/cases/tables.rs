//! Locks on tables of the program, and work that has priority.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::admin::{Filter, Priority, SignalOutcome};
use lockapi::table::{Table, TableMode};

use crate::context::Context;
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "tables":
    A09 table_is_locked_in_each_mode [Transactions, Sql];
    A09 lock_that_is_not_to_be_had_is_an_answer [Transactions, Sql];
    A09 names_are_quoted_and_checked [Transactions, Sql];
    A06 scope_limits_every_wait_and_restores [Transactions, Sql];
    A09 migration_gets_through_with_priority [Transactions, Sql, Sessions];
    A09 priority_cancels_before_it_ends [Transactions, Sql, Sessions];
    A09 priority_ends_nobody_within_the_grace [Transactions, Sql, Sessions];
    A09 priority_leaves_alone_whom_the_filter_spares [Transactions, Sql, Sessions];
}

const LONG: Duration = Duration::from_secs(20);

/// Creates a table of the case's own, which is leaked for statements that are constants.
async fn table(cx: &Context) -> &'static str {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!(
        "t_{}_{}",
        cx.namespace(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    cx.sql(&format!("CREATE TABLE {name} (n int); SELECT 'created'"))
        .await;
    constant(name)
}

fn constant(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

async fn drop_table(cx: &Context, name: &str) {
    cx.sql(&format!("DROP TABLE {name}; SELECT 'dropped'"))
        .await;
}

async fn table_is_locked_in_each_mode(cx: Context) {
    let name = table(&cx).await;
    let modes =
        format!("SELECT mode FROM pg_locks WHERE relation = '{name}'::regclass AND granted");
    for mode in TableMode::ALL {
        let mut tx = cx.begin().await.unwrap();
        let locked = tx.lock_table_in(name.into(), mode, Some(LONG)).await;
        assert!(locked.unwrap());
        let words = mode.name().split(' ');
        let words = words.map(|word| format!("{}{}", &word[..1], word[1..].to_lowercase()));
        assert_eq!(cx.sql(&modes).await, [words.collect::<String>() + "Lock"]);
        tx.commit().await;
        let free = async || cx.sql(&modes).await.is_empty();
        eventually("unlocked by the end of the transaction", free).await;
    }
    drop_table(&cx, name).await;
}

async fn lock_that_is_not_to_be_had_is_an_answer(cx: Context) {
    const SETTINGS: &str = "SELECT concat_ws(' ', current_setting('lock_timeout'),
        current_setting('statement_timeout'))";
    let name = table(&cx).await;
    let (mut first, mut second) = (cx.begin().await.unwrap(), cx.begin().await.unwrap());
    let mode = TableMode::Exclusive;
    assert!(first.lock_table_in(name.into(), mode, None).await.unwrap());
    second
        .query("SELECT set_config('lock_timeout', '1234ms', true)")
        .await;
    let before = second.query(SETTINGS).await;
    assert!(!second.lock_table_in(name.into(), mode, None).await.unwrap());
    let timeout = Some(Duration::from_millis(50));
    let error = second
        .lock_table_in(name.into(), mode, timeout)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.key(), Some(name));
    assert_eq!(second.query(SETTINGS).await, before, "it goes on as it was");
    let weak = TableMode::AccessShare;
    assert!(second.lock_table_in(name.into(), weak, None).await.unwrap());
    first.rollback().await;
    assert!(
        second
            .lock_table_in(name.into(), mode, Some(LONG))
            .await
            .unwrap()
    );
    second.commit().await;
    drop_table(&cx, name).await;
}

async fn names_are_quoted_and_checked(cx: Context) {
    let odd = format!("Odd\" TABLE; DROP {}", cx.namespace());
    let quoted = odd.replace('"', "\"\"");
    cx.sql(&format!(
        "CREATE TABLE \"{quoted}\" (n int); SELECT 'created'"
    ))
    .await;
    let mut tx = cx.begin().await.unwrap();
    let mode = TableMode::Share;
    assert!(
        tx.lock_table_in(Table::from(&*odd), mode, None)
            .await
            .unwrap()
    );
    let with_schema = Table::from(("public", &*odd));
    assert!(tx.lock_table_in(with_schema, mode, None).await.unwrap());
    for name in ["", "t\0", &"t".repeat(64)] {
        let error = tx
            .lock_table_in(Table::from(name), mode, None)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let error = tx
        .lock_table_in(Table::from(&*odd), mode, Some(Duration::ZERO))
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    tx.rollback().await;
    // What is missing is the program's, so nobody is sent to migrate().
    for (missing, words) in [
        (Table::from("no_such"), "\"no_such\""),
        (Table::from(("public", "no_such")), "no_such\""),
        (Table::from(("no_schema", &*odd)), "\"no_schema\""),
    ] {
        let mut tx = cx.begin().await.unwrap();
        let error = tx.lock_table_in(missing, mode, None).await.unwrap_err();
        tx.rollback().await;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let told = error.to_string();
        assert!(told.contains(words) && !told.contains("migrate"), "{told}");
    }
    cx.sql(&format!("DROP TABLE \"{quoted}\"; SELECT 'dropped'"))
        .await;
}

async fn scope_limits_every_wait_and_restores(cx: Context) {
    const SETTING: &str = "SELECT current_setting('lock_timeout')";
    let name = table(&cx).await;
    let mut holder = cx.begin().await.unwrap();
    let mode = TableMode::AccessExclusive;
    assert!(holder.lock_table_in(name.into(), mode, None).await.unwrap());
    let count = constant(format!("SELECT count(*)::text FROM {name}"));
    let limit = Duration::from_millis(50);
    let mut tx = cx.begin().await.unwrap();
    tx.query("SELECT set_config('lock_timeout', '1234ms', true)")
        .await;
    let inside = tx.with_lock_timeout_in(limit, SETTING).await.unwrap();
    assert_eq!(inside, "50ms");
    assert_eq!(tx.query(SETTING).await, "1234ms", "restored");
    let failed = tx
        .with_lock_timeout_in(limit, "SELECT '' WHERE false")
        .await;
    assert!(failed.is_err(), "no row");
    assert_eq!(tx.query(SETTING).await, "1234ms", "restored after an error");
    let error = soon("an answer", tx.with_lock_timeout_in(limit, count)).await;
    assert!(error.is_err(), "the table is locked");
    tx.rollback().await;
    let mut tx = cx.begin().await.unwrap();
    for limit in [Duration::ZERO, Duration::MAX] {
        let error = tx.with_lock_timeout_in(limit, SETTING).await.unwrap_err();
        let error = error.downcast::<lockapi::Error>().expect("of the library");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.operation(), "with_lock_timeout_in", "what was called");
    }
    holder.commit().await;
    assert_eq!(tx.with_lock_timeout_in(LONG, count).await.unwrap(), "0");
    tx.commit().await;
    drop_table(&cx, name).await;
}

async fn migration_gets_through_with_priority(cx: Context) {
    let name = table(&cx).await;
    let alter = constant(format!("ALTER TABLE {name} ADD note text"));
    let backend = cx.backend().await;
    // Idle in its transaction: there is no statement to cancel.
    let mut long = cx.begin().await.unwrap();
    let count = constant(format!("SELECT count(*)::text FROM {name}"));
    long.query(count).await;
    let priority = Priority::new("add a column")
        .patience(Duration::from_millis(100))
        .grace(Duration::from_millis(300));
    // One that has nothing to do with it, and one that comes behind it.
    let mut bystander = cx.begin().await.unwrap();
    bystander.query("SELECT 'here'").await;
    let (over, there) = (Arc::new(AtomicBool::new(false)), cx.clone());
    let through = Arc::clone(&over);
    let behind = tokio::spawn(async move {
        let waiting =
            format!("SELECT pid FROM pg_locks WHERE relation = '{name}'::regclass AND NOT granted");
        eventually("it waits", async || {
            through.load(Ordering::Relaxed) || there.sql(&waiting).await.len() == 1
        })
        .await;
        let mut tx = there.begin().await.unwrap();
        let counted = tx.with_lock_timeout_in(LONG, count).await;
        tx.commit().await;
        counted
    });
    let mut tx = cx.begin().await.unwrap();
    let report = soon(
        "it gets through",
        tx.with_priority_in(&backend, priority, alter),
    )
    .await;
    over.store(true, Ordering::Relaxed);
    let report = report.unwrap();
    tx.commit().await;
    let counted = soon("who came behind", behind).await.unwrap();
    assert_eq!(counted.expect("it is left alone"), "0");
    assert_eq!(bystander.query("SELECT 'alive'").await, "alive");
    bystander.commit().await;
    assert!(report.error.is_none(), "{report:?}");
    let last = report.signalled.last().expect("somebody was in the way");
    assert_eq!(last.outcome, SignalOutcome::Terminated, "{report:?}");
    assert_eq!(last.blocker.state.as_deref(), Some("idle in transaction"));
    let columns = format!("SELECT note FROM {name}");
    assert!(cx.sql(&columns).await.is_empty(), "the column is there");
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    assert!(
        audit
            .iter()
            .any(|one| one.action == "terminate session" && one.reason == "add a column")
    );
    drop_table(&cx, name).await;
    // Its session has ended; what the driver makes of that is its own affair.
    drop(long);
}

async fn priority_cancels_before_it_ends(cx: Context) {
    let name = table(&cx).await;
    let backend = cx.backend().await;
    let (slow, locked) = (
        cx.clone(),
        constant(format!(
            "SELECT pg_sleep(60)::text FROM (SELECT count(*) FROM {name}) AS t"
        )),
    );
    let sleeping = tokio::spawn(async move {
        let mut tx = slow.begin().await.unwrap();
        let outcome = tx.with_lock_timeout_in(LONG, locked).await;
        tx.rollback().await;
        outcome
    });
    let sleeps =
        format!("SELECT pid FROM pg_locks WHERE relation = '{name}'::regclass AND granted");
    eventually("it runs", async || cx.sql(&sleeps).await.len() == 1).await;
    let alter = constant(format!("ALTER TABLE {name} ADD note text"));
    let priority = Priority::new("add a column")
        .patience(Duration::from_millis(50))
        .cancel_only();
    let mut tx = cx.begin().await.unwrap();
    let report = soon(
        "it gets through",
        tx.with_priority_in(&backend, priority, alter),
    )
    .await;
    let report = report.unwrap();
    tx.commit().await;
    assert_eq!(
        report.signalled[0].outcome,
        SignalOutcome::Cancelled,
        "{report:?}"
    );
    assert!(
        report.signalled[0]
            .blocker
            .statement
            .as_deref()
            .unwrap()
            .contains("pg_sleep")
    );
    assert!(soon("cancelled", sleeping).await.unwrap().is_err());
    drop_table(&cx, name).await;
}

async fn priority_ends_nobody_within_the_grace(cx: Context) {
    let name = table(&cx).await;
    let backend = cx.backend().await;
    let mut long = cx.begin().await.unwrap();
    long.query(constant(format!("SELECT count(*)::text FROM {name}")))
        .await;
    let alter = constant(format!("ALTER TABLE {name} ADD note text"));
    let priority = Priority::new("add a column")
        .patience(Duration::ZERO)
        .grace(crate::context::MINUTE);
    let mut tx = cx.begin().await.unwrap();
    let other = Arc::clone(&backend);
    let altering = tokio::spawn(async move {
        let report = tx.with_priority_in(&other, priority, alter).await.unwrap();
        tx.commit().await;
        report
    });
    // It runs no statement: to cancel it does nothing.
    let inspector = backend.inspector();
    eventually("it is cancelled", async || {
        let audit = inspector.audit(&Filter::new()).await.unwrap();
        audit.iter().any(|one| one.action == "cancel statement")
    })
    .await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(long.query("SELECT 'alive'").await, "alive");
    long.commit().await;
    let report = soon("then it gets through", altering).await.unwrap();
    let strikes: Vec<_> = report.signalled.iter().map(|hit| hit.outcome).collect();
    assert_eq!(strikes, [SignalOutcome::Cancelled], "{report:?}");
    drop_table(&cx, name).await;
}

async fn priority_leaves_alone_whom_the_filter_spares(cx: Context) {
    let name = table(&cx).await;
    let backend = cx.backend().await;
    let mut long = cx.begin().await.unwrap();
    let count = constant(format!("SELECT count(*)::text FROM {name}"));
    long.query(count).await;
    let alter = constant(format!("ALTER TABLE {name} ADD note text"));
    let (seen, sees) = tokio::sync::oneshot::channel();
    let seen = std::sync::Mutex::new(Some(seen));
    let priority = Priority::new("add a column")
        .patience(Duration::ZERO)
        .grace(Duration::ZERO)
        .filter(move |_| {
            if let Some(seen) = seen.lock().unwrap().take() {
                // The case may have failed meanwhile.
                let _told = seen.send(());
            }
            false
        });
    let mut tx = cx.begin().await.unwrap();
    let other = Arc::clone(&backend);
    let altering = tokio::spawn(async move {
        let report = tx.with_priority_in(&other, priority, alter).await.unwrap();
        tx.commit().await;
        report
    });
    soon("it is asked", sees).await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(long.query("SELECT 'alive'").await, "alive");
    long.commit().await;
    let report = soon("then it gets through", altering).await.unwrap();
    assert!(report.signalled.is_empty(), "{report:?}");
    drop_table(&cx, name).await;
}
