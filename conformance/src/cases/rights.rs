//! What roles may do, and what they must not be able to.

use lockapi::queue::Job;
use lockapi::rights::{Role, check, grants};
use lockapi::suite::admin::{CancelJobs, EditJobs, ListJobs};
use lockapi::suite::driver::Operation;

use crate::context::{Context, MINUTE};
use crate::harness::register;

register! { "rights":
    W10 workers_cannot_touch_records [Schema, Sql];
    W10 readers_read_views_alone [Schema, Sql];
    W10 operators_cannot_forge_the_audit [Schema, Sql];
    W10 operators_change_jobs_with_their_rights_alone [Schema, Sql];
    W10 rights_are_checked [Schema, Sql];
}

/// Grants and roles are changed by one at a time.
const TURN: &str = "SELECT pg_advisory_xact_lock(-728, 1);";

async fn role(cx: &Context, what: Role) -> String {
    let name = format!("Role of \"{}\"", cx.namespace());
    let rights = grants(what, &name).unwrap();
    let made = format!(
        "{TURN} CREATE ROLE {}; {rights} SELECT 'made'",
        quoted(&name)
    );
    cx.sql(&made).await;
    name
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

async fn leave(cx: &Context, name: &str) {
    let name = quoted(name);
    cx.sql(&format!(
        "{TURN} DROP OWNED BY {name}; DROP ROLE {name}; SELECT 'gone'"
    ))
    .await;
}

/// Runs a statement as the role, which fails for want of rights.
async fn denied(cx: &Context, name: &str, statement: &str) {
    let script = format!(
        "DO $case$ BEGIN
             SET LOCAL ROLE {};
             BEGIN
                 EXECUTE $statement${statement}$statement$;
             EXCEPTION WHEN insufficient_privilege THEN
                 RETURN;
             END;
             RAISE EXCEPTION 'it was allowed';
         END $case$; SELECT 'denied'",
        quoted(name)
    );
    assert_eq!(cx.sql(&script).await, ["denied"], "{statement}");
}

async fn allowed(cx: &Context, name: &str, statement: &str) {
    let script = format!(
        "DO $case$ BEGIN SET LOCAL ROLE {}; EXECUTE $statement${statement}$statement$; END $case$; SELECT 'allowed'",
        quoted(name)
    );
    assert_eq!(cx.sql(&script).await, ["allowed"], "{statement}");
}

const NOBODYS: &[&str] = &[
    "UPDATE lockapi.migration SET checksum = 'other'",
    "INSERT INTO lockapi.migration VALUES (7000, 'mine', 'mine')",
    "DELETE FROM lockapi.migration",
    "DELETE FROM lockapi.audit",
    "UPDATE lockapi.audit SET by_user = 'somebody'",
    "TRUNCATE lockapi.audit",
    "TRUNCATE lockapi.job",
    "SELECT setval('lockapi.fence_seq', 1)",
    "CREATE TABLE lockapi.mine (n int)",
    "CREATE FUNCTION lockapi.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE TRIGGER mine BEFORE INSERT ON lockapi.job FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
];

async fn workers_cannot_touch_records(cx: Context) {
    let name = role(&cx, Role::Worker).await;
    for statement in NOBODYS {
        denied(&cx, &name, statement).await;
    }
    let entry =
        "INSERT INTO lockapi.audit (namespace, action, target, reason) VALUES ('n', 'a', 't', 'r')";
    denied(&cx, &name, entry).await;
    leave(&cx, &name).await;
}

async fn readers_read_views_alone(cx: Context) {
    let name = role(&cx, Role::Reader).await;
    for statement in NOBODYS {
        denied(&cx, &name, statement).await;
    }
    denied(&cx, &name, "SELECT lockapi.enter_epoch()").await;
    let relations = "SELECT relname FROM pg_class
        WHERE relnamespace = 'lockapi'::regnamespace AND relkind = ";
    for view in cx.sql(&format!("{relations}'v'")).await {
        let read = format!("SELECT count(v) FROM lockapi.{view} AS v");
        allowed(&cx, &name, &read).await;
    }
    for table in cx.sql(&format!("{relations}'r'")).await {
        let read = format!("SELECT count(t) FROM lockapi.{table} AS t");
        denied(&cx, &name, &read).await;
    }
    leave(&cx, &name).await;
}

async fn operators_cannot_forge_the_audit(cx: Context) {
    let name = role(&cx, Role::Operator).await;
    for statement in NOBODYS {
        denied(&cx, &name, statement).await;
    }
    for column in ["by_user", "at", "application", "id"] {
        let forged = format!(
            "INSERT INTO lockapi.audit (namespace, action, target, reason, {column}) VALUES ('n', 'a', 't', 'r', DEFAULT)"
        );
        denied(&cx, &name, &forged).await;
    }
    denied(
        &cx,
        &name,
        "UPDATE lockapi.fence_mark SET fence = 9223372036854775807",
    )
    .await;
    let namespace = cx.namespace();
    let entry = format!(
        "INSERT INTO lockapi.audit (namespace, action, target, reason) VALUES ('{namespace}', 'a', 't', 'r')"
    );
    allowed(&cx, &name, &entry).await;
    let written =
        format!("SELECT by_user = session_user FROM lockapi.audit WHERE namespace = '{namespace}'");
    assert_eq!(cx.sql(&written).await, ["t"]);
    leave(&cx, &name).await;
}

async fn operators_change_jobs_with_their_rights_alone(cx: Context) {
    let name = role(&cx, Role::Operator).await;
    let queue = cx.queue().await;
    let job = Job::new("send", &1).unwrap().ttl(MINUTE * 60);
    let id = queue.push(job.group("a")).await.unwrap().id.to_string();
    let namespace = format!("'{}'", cx.namespace());
    let edit = [
        "0",
        "1",
        "7",
        "'2'",
        "ARRAY[1]",
        "'due now'",
        "-1",
        "0",
        "0",
        "0",
        "''",
        "true",
        "65536",
        "''",
        "''",
        "''",
    ];
    let ids = format!("ARRAY[{id}]");
    let begin = [&*namespace, "'work'", &*ids, "'a mistake'"];
    let list = [
        &*namespace,
        "'work'",
        "''",
        "''",
        "ARRAY[2]",
        "ARRAY[0]",
        "ARRAY[0]",
        "0",
        "20",
        "10",
        "''",
        "''",
        "0",
        "9223372036854775",
    ];
    let statements = [
        // What a filter matches is listed first.
        (ListJobs::STATEMENT, list.to_vec()),
        (EditJobs::STATEMENT, [&begin, &edit[..]].concat()),
        (
            CancelJobs::STATEMENT,
            [&begin, &["true", "''", "''", "''"][..]].concat(),
        ),
    ];
    for (statement, values) in statements {
        let mut sql = statement.sql.to_owned();
        // The last first: $1 is the beginning of $10.
        for (nth, value) in values.iter().enumerate().rev() {
            sql = sql.replace(&format!("${}", nth + 1), value);
        }
        allowed(&cx, &name, &sql).await;
    }
    let audit =
        format!("SELECT action FROM lockapi.audit WHERE namespace = {namespace} ORDER BY id");
    assert_eq!(cx.sql(&audit).await, ["edit job", "cancel job"]);
    for column in ["name = 'other'", "token = 1", "namespace = 'other'"] {
        let changed = format!("UPDATE lockapi.job SET {column}");
        denied(&cx, &name, &changed).await;
    }
    leave(&cx, &name).await;
}

async fn rights_are_checked(cx: Context) {
    let name = role(&cx, Role::Worker).await;
    let wrong = async |what: Role| {
        let rows = check(what, &name).unwrap();
        cx.sql(&format!(
            "SELECT concat_ws(' ', c.object, c.privilege, c.excess) FROM ({rows}) AS c"
        ))
        .await
    };
    assert!(wrong(Role::Worker).await.is_empty());
    assert!(!wrong(Role::Reader).await.is_empty());
    let role = quoted(&name);
    cx.sql(&format!(
        "{TURN} GRANT UPDATE (by_user), DELETE ON lockapi.audit TO {role}; REVOKE DELETE ON lockapi.lease FROM {role};
         GRANT UPDATE ON lockapi.fence_seq TO {role}; SELECT 'changed'"
    ))
    .await;
    assert_eq!(
        wrong(Role::Worker).await,
        [
            "audit DELETE t",
            "audit.by_user UPDATE t",
            "fence_seq UPDATE t",
            "lease DELETE f"
        ]
    );
    leave(&cx, &name).await;
    for what in [Role::Owner, Role::Reader, Role::Operator] {
        let name = self::role(&cx, what).await;
        let rows = check(what, &name).unwrap();
        let wrong = cx
            .sql(&format!(
                "SELECT concat_ws(' ', c.object, c.privilege, c.excess) FROM ({rows}) AS c"
            ))
            .await;
        if what == Role::Owner {
            // All of it belongs to whoever runs the suite.
            let others = |row: &String| row.ends_with(" OWNER f");
            assert!(wrong.iter().all(others), "{wrong:?}");
            assert!(wrong.iter().any(|row| row == "lockapi OWNER f"));
        } else {
            assert!(wrong.is_empty(), "{what:?}: {wrong:?}");
        }
        if what == Role::Owner {
            let name = quoted(&name);
            // A member of the owner, which has to act as that, is one; a function of another is told.
            let others = cx
                .sql(&format!(
                    "{TURN} DO $$ BEGIN EXECUTE format('GRANT %I TO {name}', current_user); END $$;
                     ALTER ROLE {name} NOINHERIT;
                     SELECT concat_ws(' ', c.object, c.privilege) FROM ({rows}) AS c"
                ))
                .await;
            assert!(others.iter().all(String::is_empty), "{others:?}");
            cx.sql(&format!(
                "{TURN} DO $$ BEGIN EXECUTE format('REVOKE ALL ON DATABASE %I FROM {name}', current_database()); END $$;
                 SELECT 'revoked'"
            ))
            .await;
        }
        leave(&cx, &name).await;
    }
}
