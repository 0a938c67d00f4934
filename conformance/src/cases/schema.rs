//! Migrations, roles and secrets.

use std::error::Error as _;
use std::fmt::Write;
use std::time::{Duration, Instant};

use lockapi::lease::LeaseOptions;
use lockapi::limit::Quota;
use lockapi::{ErrorKind, MIGRATIONS};

use super::Role;
use crate::context::{Context, MINUTE};
use crate::fixture::{Place, SECRET};
use crate::harness::register;
use crate::patience::{eventually, soon};

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
    V05 few_rights_are_enough @ PoorRole [Schema, Transactions];
    W10 schema_of_others_is_refused @ Empty [Schema, Sql];
    W10 parts_of_others_are_refused @ Empty [Schema, Sql];
    W01 migration_lets_others_read_while_it_waits @ Empty [Schema, Sql, Transactions];
    W01 killed_migration_leaves_the_queue_for_the_table @ Empty [Schema, Sql, Transactions, Processes];
    V07 secrets_are_never_shown @ Password [Passwords];
    V07 wrong_password_is_not_shown @ WrongPassword [Passwords];
}

pub(super) const ROLES: &[(&str, Role)] = &[("migrate", |cx, _, parent| {
    Box::pin(async move {
        let backend = cx.backend().await;
        parent.say("ready");
        backend.migrate().await.unwrap();
        parent.say("done");
    })
})];

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
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
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
    let lease = one.lease("job", LeaseOptions::new(MINUTE)).unwrap();
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
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
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
    let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
    let guard = lease.acquire().await.unwrap();
    assert_eq!(lease.peek().await.unwrap_err().kind(), ErrorKind::Corrupt);
    cx.sql("ALTER TABLE lockapi.lease ALTER owner TYPE text")
        .await;
    let later = cx
        .backend()
        .await
        .lease("job", LeaseOptions::new(MINUTE))
        .unwrap();
    later.peek().await.unwrap().expect("held");
    guard.release().await.unwrap();
}

/// A role that may create schemas, and the rights that it has after `act`.
async fn squatted(cx: &Context, act: &str) -> String {
    let role = format!("squatter_{}", cx.namespace());
    let script = format!(
        "DO $$ BEGIN
             CREATE ROLE {role};
             EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database());
         END $$;
         CREATE SCHEMA IF NOT EXISTS theirs AUTHORIZATION {role};
         SET ROLE {role};
         CREATE FUNCTION theirs.climb() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN ALTER ROLE {role} SUPERUSER; RETURN NEW; END';
         CREATE FUNCTION theirs.number() RETURNS int8 LANGUAGE plpgsql
             AS 'BEGIN ALTER ROLE {role} SUPERUSER; RETURN 1; END';
         GRANT USAGE ON SCHEMA theirs TO public;
         {act};
         RESET ROLE;
         SELECT 'done'"
    );
    cx.sql(&script).await;
    role
}

async fn is_refused(cx: &Context, role: &str) {
    let error = cx.backend().await.migrate().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains(role), "{error}");
    let climbed = format!("SELECT rolsuper FROM pg_roles WHERE rolname = '{role}'");
    assert_eq!(cx.sql(&climbed).await, ["f"]);
}

async fn leave(cx: &Context, role: &str) {
    cx.sql(&format!(
        "DROP OWNED BY {role} CASCADE; DROP ROLE {role}; SELECT 'gone'"
    ))
    .await;
}

async fn schema_of_others_is_refused(cx: Context) {
    let records = MIGRATIONS.iter();
    let records =
        records.map(|one| format!("({}, '{}', '{}')", one.version, one.name, one.checksum()));
    let records = records.collect::<Vec<_>>().join(", ");
    let table = "CREATE SCHEMA lockapi;
         CREATE TABLE lockapi.migration (version int8 PRIMARY KEY, name text, checksum text,
                                         applied_at timestamptz DEFAULT clock_timestamp());
         GRANT ALL ON SCHEMA lockapi TO public; GRANT ALL ON lockapi.migration TO public;";
    let trigger = "CREATE TRIGGER climb BEFORE INSERT ON lockapi.migration
                       FOR EACH ROW EXECUTE FUNCTION theirs.climb()";
    for act in [
        "CREATE SCHEMA lockapi".to_owned(),
        format!("{table} {trigger}"),
        // Complete, as far as its records tell: who uses it would insert into it.
        format!("{table} INSERT INTO lockapi.migration VALUES {records}; {trigger}"),
    ] {
        let role = squatted(&cx, &act).await;
        is_refused(&cx, &role).await;
        leave(&cx, &role).await;
    }
    cx.backend().await.migrate().await.unwrap();
    works(&cx).await;
}

async fn parts_of_others_are_refused(cx: Context) {
    first_version(&cx).await;
    cx.sql("GRANT ALL ON SCHEMA lockapi TO public; GRANT ALL ON lockapi.migration TO public; SELECT 'open'")
        .await;
    for act in [
        "CREATE TABLE lockapi.lease (mine int)",
        "CREATE VIEW lockapi.lease AS SELECT 1 AS mine",
        "CREATE FUNCTION lockapi.clock() RETURNS int8 LANGUAGE sql AS 'SELECT 1::int8'",
        "CREATE TRIGGER climb BEFORE INSERT ON lockapi.migration FOR EACH ROW EXECUTE FUNCTION theirs.climb()",
        "RESET ROLE; ALTER TABLE lockapi.migration ALTER version SET DEFAULT theirs.number()",
        "RESET ROLE; CREATE RULE climb AS ON INSERT TO lockapi.migration DO ALSO SELECT theirs.number()",
    ] {
        let role = squatted(&cx, act).await;
        is_refused(&cx, &role).await;
        leave(&cx, &role).await;
    }
    cx.backend().await.migrate().await.unwrap();
    works(&cx).await;
    // The tables of a role that is trusted are its own business.
    let role = squatted(&cx, "SELECT 'nothing'").await;
    cx.sql(&format!(
        "GRANT {role} TO CURRENT_USER; ALTER TABLE lockapi.lease OWNER TO {role}; SELECT 'member'"
    ))
    .await;
    cx.backend().await.migrate().await.unwrap();
    cx.sql(&format!("ALTER TABLE lockapi.lease OWNER TO CURRENT_USER; REVOKE {role} FROM CURRENT_USER; SELECT 'left'"))
        .await;
    leave(&cx, &role).await;
}

/// A migration that adds a column waits behind whoever reads the table, and everybody else behind it.
/// As the fifth version of the library left it. The next one changes a table.
async fn fifth_version(cx: &Context) {
    for migration in MIGRATIONS.iter().filter(|one| one.version < 6) {
        let record = format!(
            "INSERT INTO lockapi.migration (version, name, checksum) VALUES ({}, '{}', '{}'); SELECT 'recorded'",
            migration.version,
            migration.name,
            migration.checksum()
        );
        cx.sql(&format!(
            "BEGIN; {}; {record}; COMMIT; SELECT 'applied'",
            migration.sql
        ))
        .await;
    }
}

/// Who waits for the table of jobs.
const WAITS: &str =
    "SELECT pid FROM pg_locks WHERE relation = 'lockapi.job'::regclass AND NOT granted";

async fn killed_migration_leaves_the_queue_for_the_table(cx: Context) {
    fifth_version(&cx).await;
    let mut long = cx.begin().await.unwrap();
    long.query("SELECT count(*)::text FROM lockapi.job").await;
    let mut killed = cx.child("migrate", &[]);
    assert_eq!(killed.line().await, "ready");
    eventually("it waits", async || !cx.sql(WAITS).await.is_empty()).await;
    killed.kill();
    // It may have to do so by itself: a server does not see at once that a client has gone.
    eventually("it gives way", async || cx.sql(WAITS).await.is_empty()).await;
    let mut reader = cx.begin().await.unwrap();
    reader.query("SELECT count(*)::text FROM lockapi.job").await;
    reader.commit().await;
    for _ in 0..20 {
        assert_eq!(cx.sql(WAITS).await, Vec::<String>::new(), "nobody is left");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    long.commit().await;
    let backend = cx.backend().await;
    soon("the migration", backend.migrate()).await.unwrap();
    assert_eq!(applied(&cx).await, all());
}

async fn migration_lets_others_read_while_it_waits(cx: Context) {
    fifth_version(&cx).await;
    let mut long = cx.begin().await.unwrap();
    long.query("SELECT count(*)::text FROM lockapi.job").await;
    let backend = cx.backend().await;
    let migrating = tokio::spawn(async move { backend.migrate().await });
    for _ in 0..2 {
        eventually("it waits", async || !cx.sql(WAITS).await.is_empty()).await;
        let began = Instant::now();
        let mut reader = cx.begin().await.unwrap();
        reader.query("SELECT count(*)::text FROM lockapi.job").await;
        let took = began.elapsed();
        reader.commit().await;
        assert!(
            took < Duration::from_secs(2),
            "a reader waited for {took:?}"
        );
        eventually("it gives way", async || cx.sql(WAITS).await.is_empty()).await;
    }
    assert!(!migrating.is_finished(), "it goes on trying");
    long.commit().await;
    soon("the migration", migrating).await.unwrap().unwrap();
    assert_eq!(applied(&cx).await, all());
    works(&cx).await;
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
    let options = LeaseOptions::new(MINUTE).data(PAYLOAD);
    let lease = backend.lease("job", options).unwrap();
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
        &cx.connect(lockapi::BackendOptions::default())
            .await
            .unwrap_err(),
    );
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains(PAYLOAD), "{text}");
    assert!(!text.contains("postgres://"), "{text}");
}

async fn wrong_password_is_not_shown(cx: Context) {
    let connecting = cx.connect(lockapi::BackendOptions::default());
    let error = soon("an answer", connecting).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = shown(&error);
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains("postgres://"), "{text}");
}
