//! The privileges that database roles need, as SQL for the owner of the tables.
//!
//! A namespace is no boundary between roles: a [`Role::Worker`] can use all namespaces, so all workers
//! are one trust domain. They can release the locks of others, and check in with any token. They cannot
//! change the list of applied migrations or the audit log.
//!
//! ```
//! use lockapi::rights::{Role, check, grants};
//!
//! // To be run once, by whoever ran the migrations.
//! println!("{}", grants(Role::Worker, "mail_service")?);
//! // Answers a row for each right that the role has too much or too little.
//! println!("{}", check(Role::Worker, "mail_service")?);
//! # Ok::<(), lockapi::Error>(())
//! ```

use std::fmt::Write;

use crate::error::Result;
use crate::versioned::quoted;

/// What a role does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Runs migrations, and owns what they make.
    Owner,
    /// Uses the primitives.
    Worker,
    /// Reads the views.
    Reader,
    /// Uses [`Operator`](crate::admin::Operator); some of its methods need `pg_signal_backend` as well.
    Operator,
}

/// Privileges on a table, a view, a sequence, or (with columns) a part of a table.
type Right = (&'static str, &'static [&'static str], &'static str);

const VIEWS: &[&str] = &[
    "id_worker_view",
    "lease_view",
    "lock_view",
    "queue_history",
    "rate_limit_view",
    "running_view",
    "task_log",
    "task_view",
    "wait_view",
];

const WORKER: &[Right] = &[
    (
        "SELECT, INSERT, UPDATE, DELETE",
        &[
            "answer",
            "fence_mark",
            "group_limit",
            "group_rate",
            "id_block",
            "id_space",
            "id_worker",
            "job",
            "job_archive",
            "job_history",
            "job_history_part",
            "job_progress",
            "job_result",
            "lease",
            "lock_name",
            "lock_note",
            "lock_session",
            "paused_name",
            "push_key",
            "queue",
            "queue_groups",
            "queue_limit",
            "rate_limit",
            "rate_reservation",
            "task",
            "task_run",
        ],
        "",
    ),
    ("SELECT", &["audit", "epoch", "migration"], ""),
    ("SELECT", VIEWS, ""),
    ("USAGE", &["delivery_seq", "fence_seq", "job_seq"], ""),
];

const READER: &[Right] = &[("SELECT", VIEWS, "")];

/// Functions that the views call. The others are for workers and operators.
const FUNCTIONS_OF_VIEWS: &[&str] = &[
    "advisory_key",
    "clock",
    "held_locks",
    "history_quantile",
    "limit_overlap",
    "limit_room",
    "lock_number",
    "next_expiry",
    "running_jobs",
    "server_locks",
    "waits",
];

const OPERATOR: &[Right] = &[
    (
        "SELECT",
        &[
            "audit",
            "epoch",
            "job",
            "job_archive",
            "job_progress",
            "lease",
            "lock_name",
            "migration",
        ],
        "",
    ),
    ("SELECT", VIEWS, ""),
    ("INSERT", &["audit"], "namespace, action, target, reason"),
    (
        "UPDATE",
        &["lease"],
        "fence, released_at, held_until, expires_at",
    ),
    // The first to lock the row.
    (
        "UPDATE",
        &["job"],
        "lease_until, run_at, due_at, expires_at, priority, max_attempts, payload",
    ),
    ("DELETE", &["job"], ""),
    ("INSERT", &["job_archive"], ""),
    ("USAGE", &["fence_seq"], ""),
];

impl Role {
    const fn rights(self) -> &'static [Right] {
        match self {
            Self::Owner => &[],
            Self::Worker => WORKER,
            Self::Reader => READER,
            Self::Operator => OPERATOR,
        }
    }
}

/// The statements that grant a database role the privileges of this role. A database role may have
/// several.
///
/// # Errors
/// `Invalid` for a name that is not 1 to 63 bytes or has a NUL.
pub fn grants(role: Role, name: &str) -> Result<String> {
    let name = quoted(name).map_err(|error| error.during("grants"))?;
    if role == Role::Owner {
        let mut tag = String::from("lockapi");
        while name.contains(&tag) {
            tag.push('_');
        }
        return Ok(format!(
            "DO ${tag}$ BEGIN
    EXECUTE pg_catalog.format('GRANT CREATE ON DATABASE %I TO %s', pg_catalog.current_database(), {});
END ${tag}$;\n",
            literal(&name)
        ));
    }
    let functions = if role == Role::Reader {
        format!("FUNCTION lockapi.{}", FUNCTIONS_OF_VIEWS.join(", lockapi."))
    } else {
        "ALL FUNCTIONS IN SCHEMA lockapi".to_owned()
    };
    let mut sql = format!(
        "GRANT USAGE ON SCHEMA lockapi TO {name};\nGRANT EXECUTE ON {functions} TO {name};\n"
    );
    for (privileges, objects, columns) in role.rights() {
        let columns = if columns.is_empty() {
            String::new()
        } else {
            format!(" ({columns})")
        };
        let kind = if *privileges == "USAGE" {
            "SEQUENCE "
        } else {
            ""
        };
        let objects = objects.join(", lockapi.");
        // Writing to a string cannot fail.
        let _ok = writeln!(
            sql,
            "GRANT {privileges}{columns} ON {kind}lockapi.{objects} TO {name};"
        );
    }
    Ok(sql)
}

/// A query that returns a row for each privilege in the schema that the role has in excess (`excess`)
/// or lacks: the object, the privilege, and whether it is in excess. It returns no rows if the role is
/// set up correctly. A superuser, and the owner of the tables, have all privileges. For an owner it
/// returns the objects that it does not own and cannot create. For other roles apply the migrations
/// first.
///
/// # Errors
/// `Invalid` for a name that is not 1 to 63 bytes or has a NUL.
pub fn check(role: Role, name: &str) -> Result<String> {
    quoted(name).map_err(|error| error.during("check"))?;
    if role == Role::Owner {
        return Ok(include_str!("rights/check_owner.sql").replace("{role}", &literal(name)));
    }
    let mut due = String::from("('lockapi', 'USAGE')");
    for (privileges, objects, columns) in role.rights() {
        for object in *objects {
            for privilege in privileges.split(", ") {
                for column in columns.split(", ") {
                    let dot = if column.is_empty() { "" } else { "." };
                    let _ok = write!(
                        due,
                        ",\n           ('{object}{dot}{column}', '{privilege}')"
                    );
                }
            }
        }
    }
    let functions = if role == Role::Reader {
        format!(
            "p.proname OPERATOR(pg_catalog.=) ANY (ARRAY['{}'])",
            FUNCTIONS_OF_VIEWS.join("', '")
        )
    } else {
        "true".to_owned()
    };
    Ok(include_str!("rights/check.sql")
        .replace("{due}", &due)
        .replace("{functions}", &functions)
        .replace("{role}", &literal(name)))
}

/// The text in quotes, as the server reads it back whatever its settings.
fn literal(text: &str) -> String {
    if text.contains('\\') {
        return format!(" E'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
    }
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_quotes() {
        let leaves = "x$lockapi$; DROP TABLE t; SELECT $lockapi$";
        let owner = grants(Role::Owner, leaves).unwrap();
        assert_eq!(owner.matches("$lockapi_$").count(), 2, "{owner}");
        let nasty = "a\"; DROP TABLE t; --' \\";
        for role in [Role::Owner, Role::Worker, Role::Reader, Role::Operator] {
            let sql = grants(role, nasty).unwrap();
            assert!(!sql.contains("a\";"), "{sql}");
            assert!(!check(role, nasty).unwrap().contains("--' "));
            assert!(grants(role, "").is_err() && check(role, "a\0").is_err());
        }
    }
}
