//! When an epoch begins, and what is drawn in it; in databases of their own.

use std::time::Duration;

use lockapi::id::IdOptions;
use lockapi::lease::LeaseOptions;
use lockapi::queue::{Claim, Job};
use lockapi::suite::id::{ClaimWorker, ClaimedWorker};
use lockapi::suite::mutex::{MarkSession, TOKENS_AT_RISK};
use lockapi::{BackendOptions, ErrorKind};
use postgres::{Client, NoTls};
use tokio::time::timeout;

use crate::own_database::{OwnDatabase, perform};

/// Of a mutex, a lease and a delivery, of a job, and of a block.
type Drawn = [i64; 5];

async fn drawn(database: &OwnDatabase) -> Drawn {
    let options = BackendOptions::default().namespace("epochs");
    let backend = lockapi_sqlx::connect_url_with(&database.url(), options).await;
    let backend = backend.expect("a backend");
    let locked = backend.mutex("door").expect("a mutex").lock().await;
    let lease = LeaseOptions::new(Duration::from_secs(1));
    let lease = backend.lease("job", lease).expect("a lease");
    let leased = lease.acquire().await.expect("acquired");
    let queue = backend.queue("work").expect("a queue");
    let pushed = queue.push(Job::new("job", &1).expect("a job")).await;
    let claimed = queue.claim(&Claim::new(1)).await.expect("answered");
    let ids = backend.id_gen("orders", IdOptions::blocks(10));
    let id = ids.expect("ids").next().await.expect("an id");
    let drawn = [
        locked.expect("locked").fence().token(),
        leased.fence().token(),
        claimed[0].ticket().token,
        pushed.expect("pushed").id,
        id.into(),
    ];
    for delivery in claimed {
        delivery.ack().await.expect("acknowledged");
    }
    backend.close().await.expect("closed");
    drawn
}

fn are_larger(next: Drawn, last: Drawn) {
    for (next, last) in next.iter().zip(last) {
        assert!(*next > last, "{next} after {last}");
    }
}

const ENTER: &str = "SELECT lockapi.enter_epoch()";
const FORGET: &str = "UPDATE lockapi.epoch SET timeline = 0";

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_database_draws_nothing_again() {
    let original = OwnDatabase::migrated();
    are_larger(drawn(&original).await, [0; 5]);
    let copy = original.copy();
    let lost = drawn(&original).await;
    are_larger(drawn(&copy).await, lost);
    assert_eq!(
        original.number("SELECT count(*) FROM lockapi.epoch WHERE number = first"),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_another_server_draw_nothing_again() {
    let database = OwnDatabase::migrated();
    drawn(&database).await;
    let sequences = ["fence_seq", "delivery_seq", "job_seq"];
    let read = |name| format!("SELECT last_value FROM lockapi.{name}");
    let dumped = sequences.map(|name| database.number(&read(name)));
    let next = database.number("SELECT next FROM lockapi.id_block");
    database.sql(
        "SELECT nextval('lockapi.fence_seq'), nextval('lockapi.delivery_seq'), nextval('lockapi.job_seq')
           FROM generate_series(1, 10000);
         UPDATE lockapi.id_block SET next = next + 10000",
    );
    let lost = drawn(&database).await;
    // As a dump is read into tables that are there.
    for (name, last) in sequences.iter().zip(dumped) {
        database.sql(&format!("SELECT setval('lockapi.{name}', {last})"));
    }
    database.sql(&format!("UPDATE lockapi.id_block SET next = {next}"));
    database.sql("UPDATE lockapi.epoch SET system = system + 1");
    are_larger(drawn(&database).await, lost);
}

/// The second finds the epoch that the first has begun.
#[test]
fn two_that_enter_at_once_begin_one_epoch() {
    let database = OwnDatabase::migrated();
    let before = database.number(ENTER);
    database.sql(FORGET);
    let connect = || Client::connect(&database.url(), NoTls).expect("a connection");
    let enter = |client: &mut Client| -> i64 {
        let entered = client.query_one(ENTER, &[]);
        entered.expect("a number").get(0)
    };
    let (mut first, mut second) = (connect(), connect());
    first.batch_execute("BEGIN").expect("begun");
    let begun = enter(&mut first);
    let pid = second.query_one("SELECT pg_backend_pid()", &[]);
    let pid: i32 = pid.expect("a process").get(0);
    let entering = std::thread::spawn(move || enter(&mut second));
    let waits = format!("SELECT cardinality(pg_blocking_pids({pid}))");
    while database.number(&waits) == 0 {
        assert!(!entering.is_finished(), "it does not wait");
    }
    first.batch_execute("COMMIT").expect("committed");
    assert_eq!(entering.join().expect("entered"), begun);
    assert!(begun > before, "{begun} after {before}");
}

/// A program at work does not wait for another that connects.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_come_back_under_a_program_begin_an_epoch() {
    let database = OwnDatabase::migrated();
    let backend = lockapi_sqlx::connect_url(&database.url()).await;
    let backend = backend.expect("a backend");
    let door = backend.mutex("door").expect("a mutex");
    for change in [FORGET, "DELETE FROM lockapi.epoch"] {
        let number = database.number(ENTER);
        let last = door.lock().await.expect("locked").fence().token();
        database.sql(&format!(
            "SELECT setval('lockapi.fence_seq', {}); {change}",
            number << 21
        ));
        let later = async {
            loop {
                tokio::time::sleep(Duration::from_millis(200)).await;
                match door.lock().await {
                    Ok(held) if held.fence().token() >> 31 > last >> 31 => break,
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                }
            }
        };
        let later = timeout(Duration::from_secs(30), later).await;
        later.expect("a token of another epoch");
        let later = database.number("SELECT number FROM lockapi.epoch");
        assert!(later > number, "{later} after {number}");
    }
    backend.close().await.expect("closed");
}

/// The database is dropped and restored under programs, which reconnect before the schema is there, or before they have
/// their rights: what is used then is in no epoch yet.
#[tokio::test(flavor = "multi_thread")]
async fn f01_a_schema_that_comes_back_under_a_program_begins_an_epoch() {
    let mut database = OwnDatabase::migrated();
    let worker = database.role("worker");
    let grants =
        lockapi::rights::grants(lockapi::rights::Role::Worker, &worker).expect("statements");
    database.sql(&grants);
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = '{}'",
        database.name()
    );
    // In one transaction, so that a program sees all of it or nothing.
    let hide = format!("ALTER SCHEMA lockapi RENAME TO hidden; {end}");
    let show = "UPDATE hidden.epoch SET place = 0; ALTER SCHEMA hidden RENAME TO lockapi";
    let deny = format!("REVOKE ALL ON SCHEMA lockapi FROM {worker}; {end}");
    let allow =
        format!("UPDATE lockapi.epoch SET place = 0; GRANT USAGE ON SCHEMA lockapi TO {worker}");
    for (gone, back) in [(hide.as_str(), show), (&deny, &allow)] {
        let backend = lockapi_sqlx::connect_url(&database.url_as(&worker)).await;
        let backend = backend.expect("a backend");
        let lease = LeaseOptions::new(Duration::from_secs(1));
        let queue = backend.queue("work").expect("a queue");
        let ids = backend.id_gen("orders", IdOptions::blocks(1));
        let ids = ids.expect("ids");
        let lease = |key| backend.lease(key, lease.clone()).expect("a lease");
        let draw = async |key| -> lockapi::Result<[i64; 3]> {
            let leased = lease(key).acquire().await?;
            let pushed = queue.push(Job::new("job", &1)?).await?;
            Ok([leased.fence().token(), pushed.id, ids.next().await?.into()])
        };
        let last = draw("before").await.expect("drawn");
        let sequences = ["fence_seq", "job_seq"];
        let read = |name: &str| format!("SELECT last_value FROM lockapi.{name}");
        let dumped = sequences.map(|name| database.number(&read(name)));
        database.sql(gone);
        // Every connection of the backend is opened anew, and finds nothing that it may use.
        for _ in 0..4 {
            lease("meanwhile").try_acquire().await.unwrap_err();
            queue
                .push(Job::new("job", &1).expect("a job"))
                .await
                .unwrap_err();
            ids.next().await.unwrap_err();
        }
        let schema = if back == show { "hidden" } else { "lockapi" };
        let older = sequences.iter().zip(dumped).map(|(name, last)| {
            format!("SELECT setval('{schema}.{name}', greatest({last} - 1000, 1)); ")
        });
        let older: String = older.collect();
        // The row as it was before the last id: its epoch is of that time too.
        database.sql(&format!(
            "{older} UPDATE {schema}.id_block SET next = next - 1; {back}"
        ));
        let next = draw("after").await.expect("drawn");
        for (next, last) in next.iter().zip(last) {
            assert!(*next > last, "{next} after {last}");
        }
        backend.close().await.expect("closed");
    }
}

/// A person deleted what is known of epochs, perhaps with the rows of all tables.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_row_was_deleted_another_epoch_begins() {
    let database = OwnDatabase::migrated();
    let first = database.number(ENTER);
    let last = drawn(&database).await;
    database.sql("DELETE FROM lockapi.epoch");
    let next = database.number(ENTER);
    assert!(next > first, "{next} after {first}");
    let began = "SELECT count(*) FROM lockapi.epoch WHERE begun_at > now() - interval '1 minute'";
    assert_eq!(database.number(began), 1, "what was granted may be held");
    are_larger(drawn(&database).await, last);
    assert_eq!(database.number(ENTER), next, "it is the same epoch");
}

/// An epoch that began on a server whose clock was ahead.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_and_ids_do_not_go_back_where_the_row_was_deleted() {
    let database = OwnDatabase::migrated();
    drawn(&database).await;
    database.sql("UPDATE lockapi.epoch SET number = number + 100000, timeline = 0");
    let number = database.number(ENTER);
    let last = drawn(&database).await;
    database.sql("DELETE FROM lockapi.epoch");
    assert!(database.number(ENTER) > number);
    are_larger(drawn(&database).await, last);
}

/// Rows come from a dump before keys and the values of sequences do.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_begins_an_epoch_while_the_schema_is_restored() {
    let database = OwnDatabase::migrated();
    for row in [FORGET, "DELETE FROM lockapi.epoch"] {
        database.sql(&format!(
            "{row}; ALTER TABLE lockapi.epoch DROP CONSTRAINT epoch_pkey"
        ));
        let error = lockapi_sqlx::connect_url(&database.url()).await;
        let error = match error {
            Ok(backend) => {
                let door = backend.mutex("door").expect("a mutex");
                door.lock().await.map(drop).unwrap_err()
            }
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("is being restored"), "{error}");
        database.sql("ALTER TABLE lockapi.epoch ADD CONSTRAINT epoch_pkey PRIMARY KEY (one)");
        drawn(&database).await;
    }
}

/// Data alone is restored into a schema that was migrated later than the one it is from.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_an_older_schema_do_not_come_again() {
    let database = OwnDatabase::migrated();
    drawn(&database).await;
    let last = 60_000_000;
    database.sql(&format!(
        "SELECT setval('lockapi.job_seq', {last}); {FORGET}"
    ));
    let [.., job, _] = drawn(&database).await;
    assert!(
        job > last + (1 << 24),
        "{job} may have been drawn after the dump"
    );
}

#[test]
fn where_no_timeline_is_told_the_epoch_stays() {
    let mut database = OwnDatabase::migrated();
    let owner = database.role("owner");
    database.sql(&format!(
        "GRANT USAGE ON SCHEMA lockapi TO {owner};
         GRANT ALL ON ALL TABLES IN SCHEMA lockapi TO {owner};
         GRANT ALL ON ALL SEQUENCES IN SCHEMA lockapi TO {owner};
         ALTER FUNCTION lockapi.enter_epoch() OWNER TO {owner}"
    ));
    let mut last = database.number(ENTER);
    for (withheld, timeline, system) in [
        ("pg_catalog.pg_control_system()", "f", "t"),
        ("pg_catalog.pg_walfile_name(pg_lsn)", "t", "t"),
    ] {
        database.sql(&format!(
            "REVOKE EXECUTE ON FUNCTION {withheld} FROM PUBLIC"
        ));
        let next = database.number(ENTER);
        assert!(
            next > last,
            "{withheld}: it is not known to be the same server"
        );
        assert_eq!(database.number(ENTER), next, "{withheld}");
        let of = |column| database.sql(&format!("SELECT {column} = -1 FROM lockapi.epoch"));
        assert_eq!(
            (of("timeline"), of("system")),
            (vec![timeline.to_owned()], vec![system.to_owned()])
        );
        database.sql(FORGET);
        last = database.number(ENTER);
        assert!(last > next, "{withheld}: by hand");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_in_the_future_is_put_right() {
    let database = OwnDatabase::migrated();
    let number = database.number(ENTER);
    database.sql(
        "UPDATE lockapi.epoch
            SET begun_at = clock_timestamp() + interval '1 hour', waits_from = clock_timestamp() + interval '1 hour'",
    );
    // It asks for a lease of a second that nobody has renewed since.
    let soon = timeout(Duration::from_mins(1), drawn(&database)).await;
    soon.expect("within its time to live");
    assert_eq!(database.number(ENTER), number, "it is the same epoch");
    let begun = "SELECT waits_from <= clock_timestamp() AND begun_at > clock_timestamp() FROM lockapi.epoch";
    assert_eq!(
        database.sql(begun),
        ["t"],
        "what was written before is known"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_grow_where_the_clock_is_behind() {
    let database = OwnDatabase::migrated();
    // The clock is set back by a year, more or less.
    database.sql("UPDATE lockapi.epoch SET number = number + 31500000, timeline = 0");
    let mut number = database.number(ENTER);
    let mut last = drawn(&database).await;
    for _ in 0..3 {
        database.sql(FORGET);
        let next = database.number(ENTER);
        assert_eq!(next, number + 32768);
        number = next;
        let drawn = drawn(&database).await;
        are_larger(drawn, last);
        last = drawn;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promotions_within_a_second_each_have_a_number() {
    let database = OwnDatabase::migrated();
    let last = drawn(&database).await;
    let promoted = format!("{FORGET}; {ENTER}");
    let numbers = database.sql(&format!("{ENTER}; {promoted}; {promoted}; {promoted}"));
    let numbers: Vec<i64> = numbers
        .iter()
        .map(|it| it.parse().expect("a number"))
        .collect();
    assert!(
        numbers.windows(2).all(|pair| pair[0] < pair[1]),
        "{numbers:?}"
    );
    let sequence = database.number("SELECT last_value FROM lockapi.fence_seq");
    assert!(sequence >= numbers[3] << 21);
    are_larger(drawn(&database).await, last);

    // Whoever makes ids in one of them has started ahead of the next, and goes on for a second.
    let lead = || database.number("SELECT id_lead FROM lockapi.epoch");
    assert!((94_000..=95_000).contains(&lead()), "{}", lead());
    database.sql(&format!(
        "UPDATE lockapi.epoch SET begun_at = begun_at - interval '16 s'; {promoted}"
    ));
    assert!((95_000..=96_500).contains(&lead()), "{}", lead());
    database.sql(&format!(
        "UPDATE lockapi.epoch SET begun_at = begun_at - interval '5 minutes'; {promoted}"
    ));
    assert_eq!(lead(), 90_000);
}

/// Whoever claimed a number after the standby last heard of it went on from the floor that is known.
#[test]
fn f03_a_number_whose_ids_are_ahead_of_the_clock_goes_on_behind_what_was_lost() {
    let database = OwnDatabase::migrated();
    database.number(ENTER);
    let mut client = Client::connect(&database.url(), NoTls).expect("a connection");
    let claim = |token| ClaimWorker {
        namespace: "epochs".to_owned(),
        name: "ids".to_owned(),
        worker_bits: 10,
        sequence_bits: 12,
        epoch: 1_600_000_000_000,
        token,
        ttl: 60_000_000,
        reserve: 60_000,
        least: 0,
        owner: String::new(),
    };
    let mut granted = |token| match perform(&mut client, claim(token)) {
        ClaimedWorker::Granted { worker, start, .. } => (worker, start),
        other => panic!("{other:?}"),
    };
    assert_eq!(granted(1).0, 0);
    // The clock had been set back, and nobody has renewed it for 40 s.
    let floor = database.number(
        "UPDATE lockapi.id_worker
            SET floor = floor + 600000, renewed_at = clock_timestamp() - interval '40 s',
                expires_at = clock_timestamp() - interval '10 s'
         RETURNING floor",
    );
    database.sql(FORGET);
    database.number(ENTER);
    let (worker, start) = granted(2);
    assert_eq!(worker, 0, "the number that is free");
    assert!(start >= floor + 130_000, "{start} after {floor}");
}

/// What the sequence of tokens goes on by while so many sessions for mutexes are opened.
fn used_up(database: &OwnDatabase, sessions: usize) -> i64 {
    let last = || database.number("SELECT last_value FROM lockapi.fence_seq");
    let before = last();
    for _ in 0..sessions {
        let mut client = Client::connect(&database.url(), NoTls).expect("a connection");
        let mark = fastrand::i64(1..);
        let marked_session = perform(&mut client, MarkSession { mark });
        assert!(marked_session.marked && marked_session.safe > before);
    }
    last() - before
}

/// An epoch has two million tokens for each second: a fleet that comes back must not use up those of the next ones.
#[test]
fn f01_sessions_that_open_use_up_no_tokens() {
    let database = OwnDatabase::migrated();
    database.number(ENTER);
    let used = used_up(&database, 20);
    assert!(used < 2000, "{used} tokens for 20 sessions");
}

/// Sessions of mutexes do not wait for the disk: what they drew a crash may take back.
#[test]
fn m09_tokens_at_risk_are_left_out_once_after_a_crash() {
    let database = OwnDatabase::migrated();
    let last = || database.number("SELECT last_value FROM lockapi.fence_seq");
    for _ in 0..2 {
        let before = last();
        // As a crash does, which this server has for all its databases.
        database.sql("TRUNCATE lockapi.since_crash");
        database.number(ENTER);
        let after = last();
        assert!(after > before + TOKENS_AT_RISK + 33, "{before} to {after}");
        database.number(ENTER);
        assert_eq!(last(), after, "it is left out once");
    }
    let unlogged =
        "SELECT relpersistence FROM pg_class WHERE oid = 'lockapi.since_crash'::regclass";
    assert_eq!(database.sql(unlogged), ["u"]);
}

/// A schema that leaves nothing out after a crash: each session does.
#[test]
fn m09_sessions_leave_out_tokens_where_an_earlier_schema_does_not() {
    let database = OwnDatabase::at(11);
    let used = used_up(&database, 2);
    assert!(used > 2 * TOKENS_AT_RISK, "{used} tokens");
}

/// No token of a later epoch would fit.
#[tokio::test(flavor = "multi_thread")]
async fn f01_where_the_epochs_are_used_up_they_begin_anew_as_the_guide_says() {
    let database = OwnDatabase::migrated();
    let before = drawn(&database).await;
    let last = (1_i64 << 32) - 2;
    database.sql(&format!(
        "UPDATE lockapi.epoch SET number = {last} - 32768, timeline = 0"
    ));
    assert_eq!(database.number(ENTER), last, "it fits");
    let tokens = drawn(&database).await;
    are_larger(tokens, before);
    database.sql(FORGET);
    let options = || BackendOptions::default().namespace("epochs");
    let error = match lockapi_sqlx::connect_url_with(&database.url(), options()).await {
        Ok(backend) => backend
            .mutex("door")
            .expect("a mutex")
            .lock()
            .await
            .map(drop),
        Err(error) => Err(error),
    };
    let error = error.expect_err("no later epoch fits");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("docs/operating.md"), "{error}");
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let (_, section) = guide
        .split_once("**The epochs are used up**")
        .expect("its section");
    let (_, script) = section.split_once("```sql").expect("a script");
    let (script, _) = script.split_once("```").expect("its end");
    database.sql(script);
    let anew = drawn(&database).await;
    assert!(anew[0] < tokens[0], "tokens begin anew");
    assert!(
        anew[3] > tokens[3] && anew[4] > tokens[4],
        "jobs and ids do not"
    );
    are_larger(drawn(&database).await, anew);
}
