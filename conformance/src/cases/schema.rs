//! Migrations, roles and secrets.

use std::error::Error as _;
use std::fmt::Write;

use lockapi::lease::Terms;
use lockapi::limit::Quota;
use lockapi::{BackendExt, ErrorKind, MIGRATIONS, RateLimiterExt};

use crate::context::{Context, MINUTE};
use crate::fixture::{Place, SECRET};
use crate::harness::register;
use crate::patience::soon;

register! { "schema":
    V05 migrated_twice @ Empty [Schema];
    V05 migrated_by_eight_callers_at_once @ Empty [Schema];
    V05 migrated_over_an_older_version @ Empty [Schema];
    V05 changed_checksum_is_refused @ Empty [Schema];
    V05 later_migrations_are_left_alone @ Empty [Schema];
    V05 failed_migration_leaves_nothing @ Empty [Schema];
    V05 missing_tables_are_told @ Empty [Schema];
    V05 column_of_another_type_is_corrupt @ Empty [Schema, Sql];
    V05 needs_no_rights_when_nothing_is_to_do @ PoorRole [Schema];
    V05 few_rights_are_enough @ PoorRole [Schema];
    V07 secrets_are_never_shown @ Password [Passwords];
    V07 wrong_password_is_not_shown @ WrongPassword [Passwords];
}

async fn applied(cx: &Context) -> Vec<String> {
    let sql = "SELECT version || ' ' || checksum FROM lockapi.migration ORDER BY version";
    cx.sql(sql).await
}

fn all() -> Vec<String> {
    MIGRATIONS
        .iter()
        .map(|migration| format!("{} {}", migration.version, migration.checksum()))
        .collect()
}

async fn works(cx: &Context) {
    let backend = cx.backend().await;
    let guard = backend.mutex("door").unwrap().lock().await.unwrap();
    guard.unlock().await.unwrap();
    let lease = backend.lease("job", Terms::new(MINUTE)).unwrap();
    let guard = lease.acquire().await.unwrap();
    assert!(lease.try_acquire().await.unwrap().is_none());
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    let limiter = backend.rate_limiter(Quota::per_hour(1000)).unwrap();
    assert!(limiter.check("door").await.unwrap().is_allowed());
}

async fn migrated_twice(cx: Context) {
    let backend = cx.backend().await;
    backend.migrate().await.unwrap();
    assert_eq!(applied(&cx).await, all());
    backend.migrate().await.unwrap();
    cx.backend().await.migrate().await.unwrap();
    assert_eq!(applied(&cx).await, all());
    works(&cx).await;
}

async fn migrated_by_eight_callers_at_once(cx: Context) {
    let mut callers = tokio::task::JoinSet::new();
    for nth in 0..8 {
        let backend = cx.backend().await;
        callers.spawn(async move { (nth, backend.migrate().await) });
    }
    while let Some(ended) = callers.join_next().await {
        let (nth, outcome) = ended.unwrap();
        outcome.unwrap_or_else(|error| panic!("caller {nth}: {error}"));
    }
    assert_eq!(applied(&cx).await, all());
    works(&cx).await;
}

/// As the first version of the library left it.
async fn first_version(cx: &Context) {
    let first = &MIGRATIONS[0];
    cx.sql(first.sql).await;
    let record = format!(
        "INSERT INTO lockapi.migration (version, name, checksum) VALUES ({}, '{}', '{}')",
        first.version,
        first.name,
        first.checksum()
    );
    cx.sql(&record).await;
}

async fn migrated_over_an_older_version(cx: Context) {
    first_version(&cx).await;
    let (one, other) = (cx.backend().await, cx.backend().await);
    // What the old version has works before, and its sessions go on after.
    let guard = one.mutex("door").unwrap().lock().await.unwrap();
    let lease = one.lease("job", Terms::new(MINUTE)).unwrap();
    let error = lease.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let (first, second) = tokio::join!(one.migrate(), other.migrate());
    first.unwrap();
    second.unwrap();
    assert_eq!(applied(&cx).await, all());
    guard.unlock().await.unwrap();
    lease.acquire().await.unwrap().release().await.unwrap();
    works(&cx).await;
}

async fn changed_checksum_is_refused(cx: Context) {
    let backend = cx.backend().await;
    backend.migrate().await.unwrap();
    cx.sql("UPDATE lockapi.migration SET checksum = 'other' WHERE version = 2")
        .await;
    let error = backend.migrate().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.operation()),
        (ErrorKind::Corrupt, "migrate")
    );
    assert!(error.to_string().contains("migration 2"), "{error}");
}

async fn later_migrations_are_left_alone(cx: Context) {
    let backend = cx.backend().await;
    backend.migrate().await.unwrap();
    cx.sql("INSERT INTO lockapi.migration VALUES (9000, 'later', 'unknown')")
        .await;
    backend.migrate().await.unwrap();
    assert_eq!(applied(&cx).await.len(), MIGRATIONS.len() + 1);
    works(&cx).await;
}

async fn failed_migration_leaves_nothing(cx: Context) {
    // A table in the way of the last migration.
    cx.sql("CREATE SCHEMA lockapi; CREATE TABLE lockapi.lease (mine int)")
        .await;
    let backend = cx.backend().await;
    backend.migrate().await.unwrap_err();
    let tables = "SELECT relname FROM pg_class WHERE relnamespace = 'lockapi'::regnamespace";
    assert_eq!(cx.sql(tables).await, ["lease"]);
    cx.sql("DROP TABLE lockapi.lease").await;
    backend.migrate().await.unwrap();
    works(&cx).await;
}

async fn missing_tables_are_told(cx: Context) {
    let backend = cx.backend().await;
    let error = backend.mutex("door").unwrap().try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("migrate()"), "{error}");
    let lease = backend.lease("job", Terms::new(MINUTE)).unwrap();
    let error = lease.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("migrate()"), "{error}");
    backend.migrate().await.unwrap();
    works(&cx).await;
}

async fn column_of_another_type_is_corrupt(cx: Context) {
    let backend = cx.backend().await;
    backend.migrate().await.unwrap();
    // Every driver could read it as text.
    cx.sql("DROP VIEW lockapi.lease_view; ALTER TABLE lockapi.lease ALTER owner TYPE varchar")
        .await;
    let lease = backend.lease("job", Terms::new(MINUTE)).unwrap();
    let guard = lease.acquire().await.unwrap();
    assert_eq!(lease.peek().await.unwrap_err().kind(), ErrorKind::Corrupt);
    cx.sql("ALTER TABLE lockapi.lease ALTER owner TYPE text")
        .await;
    let later = cx.backend().await.lease("job", Terms::new(MINUTE)).unwrap();
    later.peek().await.unwrap().expect("held");
    guard.release().await.unwrap();
}

async fn needs_no_rights_when_nothing_is_to_do(cx: Context) {
    cx.backend().await.migrate().await.unwrap();
}

async fn few_rights_are_enough(cx: Context) {
    works(&cx).await;
    let mut tx = cx.begin().await.unwrap();
    let guard = cx.mutex("door").await.lock().await.unwrap();
    tx.check_in(&guard.fence()).await.unwrap();
    tx.commit().await;
    guard.unlock().await.unwrap();
    let poor = cx.at(Place::Empty).await;
    poor.backend().await.migrate().await.unwrap();
}

/// All that a person can see of an error.
fn shown(error: &lockapi::Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(error) = source {
        let _ok = write!(text, " {error} {error:?} {error:#?}");
        source = error.source();
    }
    text
}

async fn secrets_are_never_shown(cx: Context) {
    const PAYLOAD: &str = "payload-4711";
    let backend = cx.backend().await;
    let mutex = backend.mutex("door").unwrap();
    let terms = Terms::new(MINUTE).data(PAYLOAD);
    let lease = backend.lease("job", terms).unwrap();
    let (locked, leased) = (mutex.lock().await.unwrap(), lease.acquire().await.unwrap());
    let mut text = format!("{backend:?} {mutex:?} {lease:?} {locked:?} {leased:?}");
    let _ok = write!(
        text,
        "{backend:#?} {:?} {:?}",
        locked.fence(),
        leased.fence()
    );
    cx.set_reachable(false).await;
    text += &shown(&locked.unlock().await.unwrap_err());
    text += &shown(&mutex.try_lock().await.unwrap_err());
    text += &shown(&lease.try_acquire().await.unwrap_err());
    text += &shown(&leased.renew().await.unwrap_err());
    text += &shown(&leased.release().await.unwrap_err());
    text += &shown(&backend.migrate().await.unwrap_err());
    text += &shown(
        &cx.connect(lockapi::engine::Options::default())
            .await
            .unwrap_err(),
    );
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains(PAYLOAD), "{text}");
    assert!(!text.contains("postgres://"), "{text}");
}

async fn wrong_password_is_not_shown(cx: Context) {
    let connecting = cx.connect(lockapi::engine::Options::default());
    let error = soon("an answer", connecting).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = shown(&error);
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains("postgres://"), "{text}");
}
