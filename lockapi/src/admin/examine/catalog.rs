//! What is known of faults: how bad they are, why they matter, and what to do.

use super::Severity::{self, Critical, Notice, Warning};

pub(super) struct FaultDescription {
    pub(super) fault: &'static str,
    pub(super) severity: Severity,
    pub(super) why: &'static str,
    /// With `{subject}` in the place of what it is about.
    pub(super) remedy: &'static str,
}

const fn describe(
    fault: &'static str,
    severity: Severity,
    why: &'static str,
    remedy: &'static str,
) -> FaultDescription {
    FaultDescription {
        fault,
        severity,
        why,
        remedy,
    }
}

pub(super) const FAULTS: &[FaultDescription] = &[
    describe(
        "standby",
        Critical,
        "Locks of a standby exclude no session of the primary, so programs refuse to use it.",
        "Connect to the primary; name all servers in the URL: postgres://one,two/database",
    ),
    describe(
        "not_durable",
        Critical,
        "A crash loses what was acknowledged: leases are granted twice, jobs are lost, ids are repeated.",
        "ALTER SYSTEM SET {subject} = on; SELECT pg_reload_conf();",
    ),
    describe(
        "late_commit",
        Warning,
        "The library sets it for its own connections, but what a program commits itself, such as a job that it pushes in its own \
         transaction, is lost in a crash although it was acknowledged.",
        "ALTER ROLE … RESET synchronous_commit, or the same for the database or the server",
    ),
    describe(
        "own_read_only",
        Warning,
        "Programs of that role do not see default_transaction_read_only in the configuration of the server, so a primary that was \
         replaced, and made read-only for that, is still used by them.",
        "ALTER {subject} RESET default_transaction_read_only",
    ),
    describe(
        "no_autovacuum",
        Critical,
        "Dead rows stay: claims and limits become slower without end, and in the end the server refuses to write.",
        "ALTER SYSTEM SET {subject} = on; SELECT pg_reload_conf();",
    ),
    describe(
        "connections",
        Warning,
        "Programs cannot reconnect, and lose what they hold when its time to live has passed.",
        "Raise max_connections, lower the connections of pools, or put a pooler in front of programs that need no session of their own.",
    ),
    describe(
        "lock_table",
        Critical,
        "The lock table is shared by all sessions: when it is full, statements of all sessions fail, and so do connections.",
        "Raise max_locks_per_transaction, which takes a restart; lower BackendOptions::max_locks in programs that hold many mutexes.",
    ),
    describe(
        "notifications",
        Warning,
        "When the queue is full, transactions that notify fail at commit, and so do pushes.",
        "A session that listens is in a transaction for too long: SELECT * FROM pg_stat_activity WHERE state LIKE 'idle in%'",
    ),
    describe(
        "wraparound",
        Critical,
        "The server stops accepting writes before transaction ids wrap around.",
        "VACUUM in the database {subject}, after whatever keeps old rows has ended",
    ),
    describe(
        "old_snapshot",
        Warning,
        "What was deleted since it began cannot be vacuumed: a claim of a job reads thousands of dead entries.",
        "End it if it is stuck: SELECT pg_terminate_backend(pid); and set idle_in_transaction_session_timeout for its role.",
    ),
    describe(
        "prepared_transaction",
        Warning,
        "It keeps its locks and old rows until it is committed or rolled back, also after a restart.",
        "COMMIT PREPARED '{subject}' or ROLLBACK PREPARED '{subject}', as its transaction manager says",
    ),
    describe(
        "replication_slot",
        Warning,
        "Log is kept for it until the disk is full, and, of a logical slot or with feedback, old rows as well.",
        "SELECT pg_drop_replication_slot('{subject}') if nothing will use it again",
    ),
    describe(
        "unlogged",
        Critical,
        "A crash empties the table, and a standby that takes over has none of it: tokens go back, and jobs are gone.",
        "ALTER TABLE lockapi.{subject} SET LOGGED",
    ),
    describe(
        "logged",
        Critical,
        "A crash does not empty the table, so it goes unnoticed, and tokens that it took back are issued again.",
        "ALTER TABLE lockapi.{subject} SET UNLOGGED",
    ),
    describe(
        "trigger",
        Warning,
        "It runs in every statement of the library, slows it down and can make it fail.",
        "Drop it unless you know what it is for.",
    ),
    describe(
        "rule",
        Critical,
        "It changes what statements of the library do.",
        "Drop it: DROP RULE … ON lockapi.{subject}",
    ),
    describe(
        "row_security",
        Critical,
        "Policies hide rows from some roles, which then do not see what others hold.",
        "ALTER TABLE lockapi.{subject} DISABLE ROW LEVEL SECURITY",
    ),
    describe(
        "table_autovacuum",
        Warning,
        "Dead rows of the table stay, and it becomes slower without end.",
        "ALTER TABLE lockapi.{subject} RESET (autovacuum_enabled)",
    ),
    describe(
        "dead_rows",
        Warning,
        "Vacuum does not keep up, or something keeps the rows from it; reading the table takes longer.",
        "See whether an old transaction is found as well; otherwise VACUUM lockapi.{subject}",
    ),
    describe(
        "no_schema",
        Critical,
        "Nothing of the library works in this database.",
        "lockapi migrate up, as a role that may create the schema; or the URL names another database than the programs use",
    ),
    describe(
        "old_schema",
        Critical,
        "What this version of the library needs is missing.",
        "lockapi migrate plan shows the statements, lockapi migrate up applies them",
    ),
    describe(
        "other_schema",
        Critical,
        "A migration was applied whose text differs from that of this version, so the contents of the schema are unknown.",
        "Find out who changed it; restore the schema from a dump, or drop it and create it again",
    ),
    describe(
        "later_schema",
        Notice,
        "Programs of this version work on; there is a later one.",
        "Use the version of lockapi that the schema is of",
    ),
    describe(
        "missing_object",
        Critical,
        "Statements that use it fail.",
        "Restore {subject} from a dump of the schema",
    ),
    describe(
        "changed_object",
        Critical,
        "It is not what this version of the library has made, so it does not do what the library expects of it.",
        "Find out who changed {subject}, and change it back",
    ),
    describe(
        "missing_index",
        Critical,
        "Statements that need it read the whole table, and if it is unique, duplicates are not refused.",
        "Make {subject} again",
    ),
    describe(
        "invalid_index",
        Critical,
        "It is written and not used: statements that need it read the whole table.",
        "REINDEX INDEX CONCURRENTLY lockapi.{subject}",
    ),
    describe(
        "unexamined",
        Warning,
        "It could not be read, so it was not examined.",
        "Run it again. If the time is over each time, with a longer statement_timeout of the role.",
    ),
    describe(
        "unreadable",
        Warning,
        "This role may not read it, so it was not examined.",
        "Run it as the owner, or give the role its rights: lockapi migrate grants worker ROLE",
    ),
    describe(
        "unclaimed",
        Warning,
        "No worker takes these jobs: there is none, it does not know their name, or there are too few.",
        "Look at the workers of {subject}: lockapi queue running; lockapi queue jobs QUEUE --state ready shows which names wait",
    ),
    describe(
        "paused",
        Warning,
        "Jobs are due in a queue that is paused, and are not delivered.",
        "lockapi audit shows who paused {subject} and why; lockapi queue resume delivers again",
    ),
    describe(
        "limited",
        Warning,
        "The limit of the queue holds its jobs back: workers wait, and more is pushed than it lets through.",
        "lockapi queue limit raises it, or takes it away with --clear; lockapi queue show tells how it is used",
    ),
    describe(
        "paused_group",
        Warning,
        "Jobs are due in a group that is paused, or with a key of this name, and are not delivered.",
        "lockapi queue resume --group delivers the jobs of {subject} again",
    ),
    describe(
        "paused_name",
        Warning,
        "Jobs are due whose name somebody has paused, and are not delivered.",
        "lockapi queue resume --name delivers the jobs of {subject} again",
    ),
    describe(
        "dead_letters",
        Notice,
        "These jobs failed for good; they are not retried automatically.",
        "lockapi queue dead shows why; lockapi queue redrive puts them back",
    ),
    describe(
        "overdue_tasks",
        Critical,
        "No node fires the tasks of this scheduler.",
        "Start a program that runs the scheduler {subject}, or disable its tasks",
    ),
    describe(
        "worker_numbers",
        Warning,
        "When all are taken, further programs cannot make ids under this name.",
        "Share a generator within each process, or choose a layout with more worker bits for a new name",
    ),
    describe(
        "no_timeline",
        Warning,
        "A promotion that loses commits begins no epoch, so tokens and ids may repeat after it.",
        "GRANT EXECUTE ON FUNCTION pg_walfile_name(pg_lsn), pg_current_wal_lsn() to the owner of the schema, unless the server does \
         not have them, as some managed ones",
    ),
    describe(
        "unswept",
        Warning,
        "Programs delete old rows while they run; none has done so for days, or it fails.",
        "Look into the logs of the programs; a role that may not delete is found by lockapi migrate grants worker ROLE --check",
    ),
    describe(
        "lock_wait",
        Warning,
        "A session holds a lock for long, or is stuck.",
        "lockapi lock waits shows who waits for whom; lockapi lock release ends the session of a holder",
    ),
    describe(
        "pooler",
        Notice,
        "Sessions are shared, so mutexes, reader-writer locks and notifications are Unsupported, and workers poll instead.",
        "Name the server itself in the URL, or a pool in session mode, if programs need these; otherwise nothing.",
    ),
    describe(
        "statement_pooler",
        Critical,
        "The library needs transactions, so programs cannot connect.",
        "Set pool_mode = session or transaction, or name the server itself in the URL.",
    ),
    describe(
        "refused_server",
        Critical,
        "Programs refuse to use this server, and return the same error.",
        "Connect to a PostgreSQL server of a version that is supported; docs/engines.md lists what is known of others.",
    ),
    describe(
        "table_bloat",
        Notice,
        "Deleted rows have left room that later rows use again; until then it takes disk, and memory when the table is read.",
        "If the room is wanted back: VACUUM FULL lockapi.{subject}; it locks the table until it is done, so everything that uses \
         it waits, and it needs disk space for a copy of the live rows. Do it while programs are stopped.",
    ),
    describe(
        "index_bloat",
        Notice,
        "Entries that were deleted have left pages that are almost empty; they take disk and memory, and scans read them.",
        "REINDEX INDEX CONCURRENTLY lockapi.{subject}; programs go on meanwhile, and it needs disk space for a second index.",
    ),
    describe(
        "other_index",
        Warning,
        "Each write pays for it; on a column that claims or renewals change, rows are no longer updated in place; and a unique one \
         can make statements fail.",
        "DROP INDEX CONCURRENTLY lockapi.{subject}; unless you know what reads it. If it belongs to a constraint, drop that.",
    ),
    describe(
        "flapping_leader",
        Warning,
        "Each change stops the work of one leader and starts that of another.",
        "Look into the logs of the candidates for lost terms: a time to live that is shorter than their pauses or the network's, or a \
         leader that fails and resigns at once.",
    ),
    describe(
        "flapping_lease",
        Notice,
        "As it should be if each holder needs it for a moment; if it is meant to be held, holders lose it or give it up.",
        "Look at who holds it: lockapi lease list; and into the logs of the holders for leases that were lost.",
    ),
    describe(
        "blocked_limit",
        Notice,
        "All requests for its permits are refused until then.",
        "lockapi audit shows who blocked it and why, unless a program did; lockapi limit block KEY 0s ends it",
    ),
    describe(
        "full_limit",
        Warning,
        "There is a bound for the reservations of a key; when it is reached, further ones fail.",
        "Look for a program that neither uses nor cancels what it reserves; they end by themselves when they expire.",
    ),
];
