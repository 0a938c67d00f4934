//! Schemas of earlier and of later versions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockapi::id::IdOptions;
use lockapi::lease::LeaseOptions;
use lockapi::limit::Quota;
use lockapi::queue::{Claim, How, Job, Ticket};
use lockapi::{Backend, ErrorKind, MIGRATIONS, Queue, Result};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::own_database::{OwnDatabase, connect, says};

const HOUR: Duration = Duration::from_hours(1);
const SOON: Duration = Duration::from_secs(30);
/// The first versions that have leases, queues, limits, ids and tasks.
const LEASES: i64 = 2;
const QUEUES: i64 = 3;
const LIMITS: i64 = 4;
const IDS: i64 = 5;
const TASKS: i64 = 6;
/// The first versions that have groups, and a function that pushes.
const GROUPS: i64 = 9;
const PUSH: i64 = 10;

fn newest() -> i64 {
    MIGRATIONS.last().expect("migrations").version
}

/// What the programs of that version have left in the tables.
fn fill(database: &OwnDatabase, version: i64) {
    let rows = [
        (
            LEASES,
            "INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at, expires_at)
             SELECT 'upgrades', l.key, l.slot, nextval('lockapi.fence_seq') << 10, 7, 'before', 'theirs',
                    now() - interval '2 hours', now() - l.ago, now() - l.ago + interval '1 hour'
               FROM (VALUES ('kept', 0, interval '0'), ('pool', 1, interval '0'), ('ended', 0, interval '90 minutes'))
                    AS l (key, slot, ago)",
        ),
        (
            QUEUES,
            "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
             SELECT now(), 20, n % 4, 'upgrades', 'work', 'count', n::text::json FROM generate_series(1, 40) AS n;
             INSERT INTO lockapi.job (run_at, token, claim, lease_until, started_at, attempt, max_attempts, priority,
                                      worker, namespace, queue, name, payload)
             VALUES (now(), nextval('lockapi.delivery_seq'), 5, now() + interval '1 hour', now(), 1, 20, 2,
                     'before', 'upgrades', 'work', 'running', '0');
             INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority,
                                              namespace, queue, name, payload, error)
             VALUES (nextval('lockapi.job_seq'), 'failed', now(), now(), 20, 20, 2, 'upgrades', 'work', 'dead', '0', 'no');
             INSERT INTO lockapi.push_key (namespace, queue, key, job)
             SELECT 'upgrades', 'work', 'once', id FROM lockapi.job WHERE name = 'running';
             INSERT INTO lockapi.queue (namespace, name, paused) VALUES ('upgrades', 'idle', true)",
        ),
        (
            IDS,
            "INSERT INTO lockapi.id_block (namespace, name, next) VALUES ('upgrades', 'blocks', 1001);
             INSERT INTO lockapi.id_space VALUES ('upgrades', 'events', 10, 12, 1609459200000);
             INSERT INTO lockapi.id_worker
             SELECT 'upgrades', 'events', w.worker, w.token,
                    (extract(epoch FROM now()) * 1000)::int8 + 5000, 'before', now(), now(), now() + w.ttl
               FROM (VALUES (0, 7, interval '1 hour'), (1, 0, interval '0')) AS w (worker, token, ttl)",
        ),
        (
            TASKS,
            "INSERT INTO lockapi.task (next_at, every, timeout, misfire, misfire_most, overlap, max_attempts,
                                       priority, namespace, scheduler, name, job, payload)
             VALUES (now() + interval '1 hour', 3600000000, 3600000000, 0, 0, 0, 3, 2,
                     'upgrades', 'calendar', 'report', 'report', '0')",
        ),
    ];
    for (since, sql) in rows {
        if version >= since {
            database.sql(sql);
        }
    }
}

/// A program that works from before the migration until it is stopped.
struct Worker {
    stop: Arc<AtomicBool>,
    done: JoinHandle<HashMap<String, u32>>,
}

impl Worker {
    fn start(queue: Arc<dyn Queue>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let done = tokio::spawn(async move {
            let mut done = HashMap::new();
            while !stopped.load(Ordering::SeqCst) {
                let claimed = match queue.claim(&Claim::new(3)).await {
                    Ok(claimed) => claimed,
                    // The tables are missing, or of an earlier version.
                    Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
                    Err(error) => panic!("{error}"),
                };
                if claimed.is_empty() {
                    sleep(Duration::from_millis(5)).await;
                }
                for job in claimed {
                    let what = format!("{} {}", job.name(), job.payload());
                    job.ack().await.expect("acknowledged");
                    *done.entry(what).or_default() += 1;
                }
            }
            done
        });
        Self { stop, done }
    }

    /// What it did, and how often, once nothing is left to do.
    async fn end(self, database: &OwnDatabase) -> HashMap<String, u32> {
        for _ in 0..600 {
            if database.number("SELECT count(*) FROM lockapi.job WHERE name <> 'running'") == 0 {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        self.stop.store(true, Ordering::SeqCst);
        self.done.await.expect("it worked")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v12_each_version_is_migrated_while_programs_work() {
    for version in 1..newest() {
        let database = OwnDatabase::at(version);
        fill(&database, version);
        let before = connect(&database.url()).await;
        let mutex = before.mutex("door").expect("a mutex");
        let locked = mutex.lock().await.expect("locked");
        let worker = Worker::start(before.queue("work").expect("a queue"));
        let limiter = before
            .rate_limiter(Quota::per_hour(3).burst(3))
            .expect("a limiter");
        if version >= LIMITS {
            for _ in 0..3 {
                let decision = limiter.check("door").await.expect("decided");
                assert!(decision.is_allowed(), "{version}");
            }
        }
        let lease = LeaseOptions::new(HOUR).renewed_by_hand();
        let lease = before.lease("mine", lease).expect("a lease");
        let leased = match lease.acquire().await {
            Ok(guard) => Some(guard),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{version}: {error}");
                None
            }
        };
        let after = connect(&database.url()).await;
        after.migrate().await.expect("migrated");
        let applied = database.number("SELECT max(version) FROM lockapi.migration");
        assert_eq!(applied, newest());
        kept(&database, version, &after).await;
        // What was held is held by the same programs.
        let other = after.mutex("door").expect("a mutex");
        assert!(
            other.try_lock().await.expect("answered").is_none(),
            "{version}"
        );
        locked.unlock().await.expect("still locked");
        let next = other.try_lock().await.expect("answered").expect("unlocked");
        next.unlock().await.expect("unlocked");
        if let Some(guard) = leased {
            guard.renew().await.expect("renewed");
            guard.release().await.expect("released");
        }
        let acquired = lease.acquire_timeout(SOON).await;
        drop(acquired.expect("acquired"));
        if version >= LIMITS {
            let decision = limiter.check("door").await.expect("decided");
            assert!(!decision.is_allowed(), "{version}");
        }
        let done = worker.end(&database).await;
        if version >= QUEUES {
            let jobs = (1..=40).map(|n| (format!("count {n}"), 1));
            let jobs = jobs.chain([("dead 0".to_owned(), 1)]);
            assert_eq!(done, jobs.collect(), "{version}");
        }
    }
}

/// A role has the rights for what there is, and works while the owner migrates: it needs no others for that, although functions
/// are not for everybody.
#[test]
fn v12_rights_for_an_earlier_version_suffice_for_what_it_had() {
    for version in GROUPS..newest() {
        let mut database = OwnDatabase::at(version);
        let user = database.role("user");
        database.sql(&format!(
            "GRANT USAGE ON SCHEMA lockapi TO {user};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lockapi TO {user};
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA lockapi TO {user};
             GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA lockapi TO {user};
             REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA lockapi FROM PUBLIC;
             ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
             INSERT INTO lockapi.job (run_at, due_at, group_key, max_attempts, priority, namespace, queue, name, payload)
             VALUES ('20000-01-01 00:00:00+00', now(), 'a', 20, 2, 'upgrades', 'work', 'count', '0')"
        ));
        for one in MIGRATIONS.iter().filter(|one| one.version > version) {
            database.sql(&format!("BEGIN; {}; COMMIT", one.sql));
        }
        let pushes = version >= PUSH;
        if pushes {
            database.sql(&format!(
                "SET ROLE {user};
                 SELECT lockapi.push('work', 'count', namespace => 'upgrades', group_key => 'b')"
            ));
        }
        let admitted = database.sql(&format!(
            "SET ROLE {user}; SELECT admitted FROM lockapi.admit('upgrades', 'work', 10)"
        ));
        let expected = if pushes { "2" } else { "1" };
        assert_eq!(admitted.concat(), expected, "{version}");
    }
}

/// What the rows of [`fill`] mean after the migration.
async fn kept(database: &OwnDatabase, version: i64, backend: &Arc<dyn Backend>) {
    let options = || LeaseOptions::new(HOUR).renewed_by_hand();
    let lease = |key: &str| backend.lease(key, options()).expect("a lease");
    if version >= LEASES {
        let token = "SELECT fence FROM lockapi.lease WHERE key = 'kept'";
        let holder = lease("kept").peek().await.expect("answered").expect("held");
        assert_eq!((&*holder.owner, &*holder.data), ("before", "theirs"));
        assert_eq!(holder.token, database.number(token));
        assert!(
            lease("kept")
                .try_acquire()
                .await
                .expect("answered")
                .is_none()
        );
        let pool = backend.semaphore("pool", 1, options()).expect("permits");
        assert!(pool.try_acquire().await.expect("answered").is_none());
        let next = lease("ended").try_acquire().await.expect("answered");
        assert!(next.expect("it has ended").fence().token() > holder.token);
    }
    if version >= QUEUES {
        let queue = backend.queue("work").expect("a queue");
        let running = |column| format!("SELECT {column} FROM lockapi.job WHERE name = 'running'");
        let (id, token) = (
            database.number(&running("id")),
            database.number(&running("token")),
        );
        let again = Job::new("again", &1)
            .expect("a job")
            .idempotency_key("once");
        let pushed = queue.push(again).await.expect("pushed");
        assert_eq!(pushed.id, id);
        assert_ne!(pushed.how, How::New);
        let acked = queue.exchange(vec![Ticket { id, token }], None).await;
        let acked: Result<Vec<bool>> = acked.expect("answered").acked.into_iter().collect();
        assert_eq!(acked.expect("decided"), [true], "its delivery goes on");
        let dead = queue.dead_letters(0, 10).await.expect("answered");
        let [dead] = &dead[..] else {
            panic!("{dead:?}");
        };
        assert_eq!(queue.redrive(vec![dead.id]).await.expect("redriven"), 1);
        let idle = backend.queue("idle").expect("a queue");
        idle.push(Job::new("waits", &1).expect("a job"))
            .await
            .expect("pushed");
        assert!(
            idle.claim(&Claim::new(1))
                .await
                .expect("answered")
                .is_empty(),
            "paused"
        );
        database.sql("DELETE FROM lockapi.job WHERE queue = 'idle'");
    }
    if version >= IDS {
        let blocks = backend
            .id_gen("blocks", IdOptions::blocks(10))
            .expect("ids");
        assert_eq!(i64::from(blocks.next().await.expect("an id")), 1001);
        let events = backend.id_gen("events", IdOptions::default()).expect("ids");
        let id = i64::from(events.next().await.expect("an id"));
        let worker = (id >> 12) & 1023;
        assert_ne!(worker, 0, "another makes ids with it");
        let floor = "SELECT min(floor) FROM lockapi.id_worker WHERE token = 7";
        if worker == 1 {
            assert!(
                (id >> 22) + 1_609_459_200_000 >= database.number(floor),
                "above its floor"
            );
        }
    }
    if version >= TASKS {
        let due = "SELECT count(*) FROM lockapi.task_view";
        let tasks = "SELECT count(*) FROM lockapi.task WHERE enabled AND next_at > now()";
        assert_eq!(database.number(tasks), 1);
        database.number(due);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v13_an_earlier_schema_is_told_with_its_version() {
    let needed = format!("needs version {}", newest());
    for (version, found) in [
        (0, "does not exist".to_owned()),
        (1, "is at version 1;".to_owned()),
        (IDS, format!("is at version {IDS};")),
    ] {
        let database = OwnDatabase::at(version);
        let backend = connect(&database.url()).await;
        let lease = backend
            .lease("job", LeaseOptions::new(HOUR))
            .expect("a lease");
        let queue = backend.queue("work").expect("a queue");
        for error in [
            lease.try_acquire().await.map(drop).unwrap_err(),
            queue.claim(&Claim::new(1)).await.map(drop).unwrap_err(),
        ] {
            says(&error, &[&found, &needed, "run `migrate()`"]);
            assert!(error.sqlstate().is_some(), "{error:?}");
        }
        backend.migrate().await.expect("migrated");
        let acquired = lease.acquire_timeout(SOON).await;
        drop(acquired.expect("acquired"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v13_a_later_schema_is_used_unless_it_refuses() {
    let database = OwnDatabase::migrated();
    let later = newest() + 1;
    // Migrations that only add something are no business of this version.
    database.sql(&format!(
        "ALTER TABLE lockapi.lease ADD COLUMN later text;
         INSERT INTO lockapi.migration (version, name, checksum) VALUES ({later}, 'later', 'unknown')"
    ));
    let backend = connect(&database.url()).await;
    backend.migrate().await.expect("nothing is to do");
    let lease = backend
        .lease("job", LeaseOptions::new(HOUR))
        .expect("a lease");
    lease
        .acquire()
        .await
        .expect("acquired")
        .release()
        .await
        .expect("released");
    // One that replaces what this version uses says so.
    database.sql("ALTER TABLE lockapi.lease RENAME COLUMN owner TO holder");
    let error = lease.try_acquire().await.map(drop).unwrap_err();
    says(
        &error,
        &[
            &format!("is at version {later};"),
            "use a library for that version",
        ],
    );
    // Or it refuses those who do not know it, where they enter the epoch.
    database.sql(&format!(
        "CREATE OR REPLACE FUNCTION lockapi.enter_epoch() RETURNS int8 LANGUAGE plpgsql AS $$
         BEGIN
             RAISE 'the schema is at version {later}; use version 2 of the library'
                 USING ERRCODE = 'feature_not_supported';
         END $$"
    ));
    let backend = connect(&database.url()).await;
    let mutex = backend.mutex("door").expect("a mutex");
    let lease = backend
        .lease("job", LeaseOptions::new(HOUR))
        .expect("a lease");
    for error in [
        mutex.try_lock().await.map(drop).unwrap_err(),
        lease.try_acquire().await.map(drop).unwrap_err(),
    ] {
        says(&error, &["use version 2 of the library"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v13_a_record_that_was_deleted_is_told() {
    // Later ones make nothing, and may be applied again.
    let mut making = MIGRATIONS.iter().rev();
    let making = making.find(|it| it.sql.contains("\nCREATE "));
    let newest = making.expect("it makes tables").version;
    let (last, last_made) = (
        format!("version >= {newest}"),
        format!("objects of version {newest} exist"),
    );
    for (deleted, told) in [
        ("version = 3", "the row of version 3 was deleted"),
        (&*last, &*last_made),
        ("version > 5", "objects of version 6 exist"),
        ("true", "lockapi.migration has no rows"),
    ] {
        let database = OwnDatabase::migrated();
        database.sql(&format!("DELETE FROM lockapi.migration WHERE {deleted}"));
        let backend = connect(&database.url()).await;
        let error = backend.migrate().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(told), "{error}");
        // It only says what there is.
        let lease = backend.lease("job", LeaseOptions::new(HOUR));
        let acquired = lease.expect("a lease").acquire().await;
        drop(acquired.expect("acquired"));
    }
}
