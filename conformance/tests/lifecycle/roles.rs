//! Roles that may migrate and roles that may not.

use std::thread;
use std::time::{Duration, Instant};

use lockapi::lease::LeaseOptions;
use lockapi::rights::{Role, grants};
use lockapi::{MIGRATIONS, advisory_key};
use postgres::{Client, NoTls};

use crate::own_database::{OwnDatabase, connect, says};

const HOUR: Duration = Duration::from_hours(1);
/// A version before the newest.
const EARLIER: i64 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn v13_who_may_only_use_waits_for_who_may_migrate() {
    let mut database = OwnDatabase::at(0);
    let (holder, owner, user) = (
        database.role("holder"),
        database.role("owner"),
        database.role("user"),
    );
    // The schema belongs to a third role.
    let rights = grants(Role::Owner, &holder).expect("a name");
    database.sql(&format!(
        "{rights} CREATE SCHEMA lockapi AUTHORIZATION {holder}; GRANT {holder} TO {owner}"
    ));
    let using = connect(&database.url_as(&user)).await;
    let error = using.migrate().await.unwrap_err();
    says(
        &error,
        &["may not change it", "run `migrate()` as its owner"],
    );
    let stranger = database.role("stranger");
    database.sql(&format!(
        "GRANT CREATE, USAGE ON SCHEMA lockapi TO {stranger}"
    ));
    let error = connect(&database.url_as(&stranger))
        .await
        .migrate()
        .await
        .unwrap_err();
    says(&error, &[&format!("is owned by {holder}")]);
    // An earlier version is there, and the role has its rights.
    for one in MIGRATIONS.iter().filter(|one| one.version <= EARLIER) {
        database.sql(&format!(
            "BEGIN; SET LOCAL ROLE {holder}; {}; INSERT INTO lockapi.migration (version, name, checksum)
             VALUES ({}, '{}', '{}'); COMMIT",
            one.sql,
            one.version,
            one.name,
            one.checksum()
        ));
    }
    database.sql(&format!(
        "GRANT USAGE ON SCHEMA lockapi TO {user};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lockapi TO {user};
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA lockapi TO {user}"
    ));
    let found = format!("is at version {EARLIER};");
    let error = using.migrate().await.unwrap_err();
    says(&error, &[&found, "may not change it"]);
    let lease = using
        .lease("job", LeaseOptions::new(HOUR))
        .expect("a lease");
    let error = lease.try_acquire().await.map(drop).unwrap_err();
    says(&error, &[&found, "run `migrate()`"]);
    connect(&database.url_as(&owner))
        .await
        .migrate()
        .await
        .expect("migrated");
    // It has the rights of the earlier version, and would not hear of a fail-over.
    let error = lockapi_sqlx::connect_url(&database.url_as(&user)).await;
    says(
        &error.map(drop).unwrap_err(),
        &["lockapi.enter_epoch()", "`lockapi::rights::grants`"],
    );
    let rights = grants(Role::Worker, &user).expect("a name");
    database.sql(&format!("SET ROLE {owner}; {rights}"));
    using.migrate().await.expect("nothing is to do");
    // What a member of the owner created is the owner's, whoever is a member then.
    let second = database.role("second");
    database.sql(&format!(
        "REVOKE {holder} FROM {owner}; GRANT {holder} TO {second};
         UPDATE lockapi.epoch SET timeline = 0"
    ));
    let next = connect(&database.url_as(&second)).await;
    next.migrate().await.expect("nothing is to do");
    // Nobody has to wait for a lease of before.
    let past = "begun_at = '1970-01-01', waits_from = '1970-01-01'";
    database.sql(&format!(
        "SELECT lockapi.enter_epoch(); UPDATE lockapi.epoch SET {past}"
    ));
    lease
        .acquire()
        .await
        .expect("acquired")
        .release()
        .await
        .expect("released");
    let next = connect(&database.url_as(&user)).await;
    let locked = next.mutex("door").expect("a mutex").lock().await;
    locked.expect("locked").unlock().await.expect("unlocked");
}

/// A superuser is a member of every role, and must not become a role that others have made its own.
#[tokio::test(flavor = "multi_thread")]
async fn v13_a_schema_that_is_made_meanwhile_is_not_trusted() {
    let mut database = OwnDatabase::empty();
    let hostile = database.role("hostile");
    database.sql(&grants(Role::Owner, &hostile).expect("a name"));
    let superuser = connect(&database.url()).await;
    let key = advisory_key("lockapi", &format!("{}migrate", "#".repeat(256)));
    let url = database.url();
    let held = thread::spawn(move || {
        let mut client = Client::connect(&url, NoTls).expect("a connection");
        let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({key})");
        client.batch_execute(&lock).expect("locked");
        client
    });
    let mut held = held.join().expect("locked");
    let migrating = tokio::spawn(async move { superuser.migrate().await });
    let waits = "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
                  WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted";
    let began = Instant::now();
    while database.number(waits) == 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "nobody migrates");
    }
    // The role takes the names before the superuser does.
    database.sql(&format!(
        "SET ROLE {hostile}; CREATE SCHEMA lockapi; CREATE TABLE lockapi.trap (id int8)"
    ));
    thread::spawn(move || held.batch_execute("COMMIT").expect("unlocked"));
    let error = migrating.await.expect("the task").unwrap_err();
    says(&error, &[&format!("is owned by {hostile}")]);
    let relations =
        "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                      WHERE n.nspname = 'lockapi'";
    assert_eq!(database.number(relations), 1, "the trap alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn v13_a_role_without_rights_is_told_how_to_get_them() {
    let mut database = OwnDatabase::migrated();
    let user = database.role("user");
    let rights = grants(Role::Worker, &user).expect("a name");
    database.sql(&format!("{rights} REVOKE ALL ON lockapi.lease FROM {user}"));
    let backend = connect(&database.url_as(&user)).await;
    let lease = backend.lease("job", LeaseOptions::new(HOUR));
    let acquired = lease.expect("a lease").try_acquire().await;
    let error = acquired.map(drop).unwrap_err();
    says(&error, &["42501", "lease", "`lockapi::rights::grants`"]);
}

/// What a member may do as the owner must not be done by the next member as itself.
#[tokio::test(flavor = "multi_thread")]
async fn v13_members_migrate_as_the_owner_whatever_is_there() {
    let mut database = OwnDatabase::at(EARLIER);
    let (owner, hostile, member) = (
        database.role("owner"),
        database.role("hostile"),
        database.role("member"),
    );
    database.sql(&format!(
        "GRANT {owner} TO {hostile}, {member}; ALTER ROLE {member} NOINHERIT; ALTER SCHEMA lockapi OWNER TO {owner};
         DO $$ DECLARE it record; BEGIN
             FOR it IN SELECT c.relname, c.relkind FROM pg_class AS c
                        WHERE c.relnamespace = 'lockapi'::regnamespace AND c.relkind IN ('r', 'v')
             LOOP EXECUTE format('ALTER TABLE lockapi.%I OWNER TO {owner}', it.relname); END LOOP;
             FOR it IN SELECT c.relname FROM pg_class AS c
                        WHERE c.relnamespace = 'lockapi'::regnamespace AND c.relkind = 'S'
             LOOP EXECUTE format('ALTER SEQUENCE lockapi.%I OWNER TO {owner}', it.relname); END LOOP;
             FOR it IN SELECT p.oid::regprocedure AS name FROM pg_proc AS p
                        WHERE p.pronamespace = 'lockapi'::regnamespace
             LOOP EXECUTE format('ALTER FUNCTION %s OWNER TO {owner}', it.name); END LOOP;
         END $$;
         SET ROLE {owner};
         CREATE TABLE lockapi.loot (who text);
         CREATE FUNCTION lockapi.trap() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO lockapi.loot VALUES (current_user); RETURN new; END $$;
         CREATE TRIGGER trap BEFORE INSERT ON lockapi.migration FOR EACH ROW EXECUTE FUNCTION lockapi.trap()"
    ));
    // A superuser's, such as an extension has.
    database.sql("CREATE FUNCTION lockapi.theirs() RETURNS int LANGUAGE sql AS 'SELECT 1'");
    let next = connect(&database.url_as(&member)).await;
    next.migrate().await.expect("migrated");
    let ran_as = database.sql("SELECT DISTINCT who FROM lockapi.loot");
    assert_eq!(ran_as, [owner.as_str()]);
    next.migrate().await.expect("nothing is to do");
    // What belongs to another group of the member is not the owner's.
    let group = database.role("group");
    database.sql(&format!(
        "GRANT {group} TO {member}, {hostile}; GRANT CREATE, USAGE ON SCHEMA lockapi TO {group};
         SET ROLE {group}; CREATE TABLE lockapi.decoy (id int8)"
    ));
    let error = next.migrate().await.unwrap_err();
    says(&error, &[&format!("is owned by {group}")]);
}
