//! Sessions that meet at the limit of a queue.

use std::thread;
use std::time::{Duration, Instant};

use lockapi::blocking::Backend;
use lockapi::queue::{Claim, Job, JobLimit};
use lockapi::suite::driver::Operation;
use lockapi::suite::queue::SetQueueLimit;
use postgres::{Client, NoTls};

use super::plans::database;

fn connect(url: &str) -> Client {
    Client::connect(url, NoTls).expect("a connection")
}

/// A connection that sets limits of the queue `work`.
fn setter(url: &str) -> Client {
    let mut client = connect(url);
    let prepare = format!("PREPARE it AS {}", SetQueueLimit::STATEMENT.sql);
    client.batch_execute(&prepare).expect("it is prepared");
    client
}

fn set(client: &mut Client, limit: Option<i64>) {
    let (set, running) = (limit.is_some(), limit.unwrap_or(-1));
    let execute = format!("EXECUTE it('n', 'work', {set}, {running}, -1, -1, -1, -1, '{{}}')");
    client.batch_execute(&execute).expect("it is set");
}

fn read(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).expect("a row").get(0)
}

#[test]
fn limit_that_is_set_between_two_that_take_it_away_is_known() {
    let (url, _runtime) = database();
    let (mut first, mut watch) = (setter(&url), connect(&url));
    set(&mut first, Some(5));
    first.batch_execute("BEGIN").expect("begun");
    set(&mut first, None);
    let blocked = |watch: &mut Client, sessions: i64| {
        let sql = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let start = Instant::now();
        while read(watch, sql) != sessions {
            assert!(start.elapsed() < Duration::from_mins(1), "it waits");
            thread::sleep(Duration::from_millis(5));
        }
    };
    let (mut second, mut third) = (setter(&url), setter(&url));
    let second = thread::spawn(move || {
        second.batch_execute("BEGIN").expect("begun");
        set(&mut second, Some(1));
        second
    });
    blocked(&mut watch, 1);
    let third = thread::spawn(move || set(&mut third, None));
    blocked(&mut watch, 2);
    first.batch_execute("COMMIT").expect("committed");
    let mut second = second.join().expect("it is set");
    second.batch_execute("COMMIT").expect("committed");
    third.join().expect("it has ended");
    let limits = read(&mut watch, "SELECT count(*) FROM lockapi.queue_limit");
    let known = read(
        &mut watch,
        "SELECT count(*) FROM lockapi.queue WHERE limited",
    );
    assert_eq!(limits, known, "claims ask for a limit where there is one");
}

#[test]
fn claim_that_commits_late_is_counted_by_the_first_claim_after_it() {
    let (url, _runtime) = database();
    let (mut claims, mut client) = (connect(&url), connect(&url));
    client
        .batch_execute(
            "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
             SELECT now() - interval '1 minute', 20, 2, 'n', 'work', 'due', '1' FROM generate_series(1, 2)",
        )
        .expect("two jobs");
    claims
        .batch_execute(
            "BEGIN;
             UPDATE lockapi.job SET token = nextval('lockapi.delivery_seq'), claim = 1, attempt = 1,
                    lease_until = now() + interval '1 hour', started_at = now()
              WHERE id = (SELECT min(id) FROM lockapi.job)",
        )
        .expect("claimed");
    client
        .batch_execute("SELECT lockapi.set_queue_limit('n', 'work', 1, NULL, NULL, NULL, NULL)")
        .expect("limited");
    claims.batch_execute("COMMIT").expect("committed");
    // The time is over, and nobody has claimed.
    client
        .batch_execute("UPDATE lockapi.queue_limit SET adopts_until = clock_timestamp()")
        .expect("it is over");
    let room = "SELECT room FROM lockapi.begin_claim('n', 'work', '{}', '{}', NULL, 0)";
    for _ in 0..2 {
        assert_eq!(read(&mut client, room), 0, "one runs");
    }
    let adopting = "SELECT count(*) FROM lockapi.queue_limit WHERE adopts_until > '-infinity'";
    assert_eq!(read(&mut client, adopting), 0, "nor is it looked for again");
}

#[test]
fn claim_that_meets_others_where_answers_take_long_is_repeated_for_a_second() {
    let (url, _runtime) = database();
    let backend = Backend::connect(lockapi_postgres::connect_url(&url)).expect("connected");
    let queue = backend.queue("work").expect("a queue");
    queue
        .push(Job::new("due", &1).expect("a job"))
        .expect("pushed");
    queue
        .set_limit(JobLimit::default().running(1))
        .expect("limited");
    // Whoever asks meets another claim.
    let mut client = connect(&url);
    client
        .batch_execute(
            "CREATE SEQUENCE public.asked;
             CREATE OR REPLACE FUNCTION lockapi.begin_claim(
                 of_namespace text, of_queue text, lost int8[], of_names text[], paused text[], completed int8)
                 RETURNS TABLE (room int8, again int8[], ids int8[], tokens int8[], next_in int8, busy bool)
                 LANGUAGE plpgsql ROWS 1 AS $$
                 BEGIN
                     PERFORM nextval('public.asked'), pg_sleep(0.4);
                     room := 0;
                     busy := true;
                     RETURN NEXT;
                 END $$",
        )
        .expect("replaced");
    let claimed = queue.claim(&Claim::new(1)).expect("answered");
    assert!(claimed.is_empty());
    let asked = read(&mut client, "SELECT last_value FROM public.asked");
    assert!((2..=5).contains(&asked), "{asked} times");
    backend.close().expect("closed");
}

/// Limits of three queues: how many of their jobs run. The one that is looked at is in the middle of them.
fn three(client: &mut Client) {
    client
        .batch_execute(
            "INSERT INTO lockapi.queue_limit (namespace, queue, most)
             VALUES ('m', 'work', 1), ('n', 'other', 2), ('n', 'work', 3), ('o', 'work', 4)",
        )
        .expect("limited");
}

/// How many limits of other queues are not like this.
fn others(client: &mut Client, like: &str) -> i64 {
    let changed = format!(
        "SELECT count(*) FROM lockapi.queue_limit
          WHERE (namespace, queue) <> ('n', 'work') AND ({like}) IS NOT TRUE"
    );
    read(client, &changed)
}

const ROOM: &str = "SELECT room FROM lockapi.begin_claim('n', 'work', '{}', '{}', NULL, 0)";

#[test]
fn claim_has_to_do_with_the_limit_of_its_own_queue() {
    let (url, _runtime) = database();
    let mut client = connect(&url);
    three(&mut client);
    assert_eq!(read(&mut client, ROOM), 3, "as many as its own limit");
    // The clock was set back.
    client
        .batch_execute(
            "UPDATE lockapi.queue_limit
                SET permits = 1, period = 1000, burst = 100, step = 1000, at = lockapi.clock() + 1000000000000, tat = 5",
        )
        .expect("a rate");
    assert_eq!(read(&mut client, ROOM), 3, "as many as its own limit");
    let others_stay = others(&mut client, "tat = 5 AND at > lockapi.clock()");
    assert_eq!(others_stay, 0);
    let own = "SELECT count(*) FROM lockapi.queue_limit
                WHERE (namespace, queue) = ('n', 'work') AND at <= lockapi.clock() AND tat < 0";
    assert_eq!(read(&mut client, own), 1);
    client
        .batch_execute("UPDATE lockapi.queue_limit SET adopts_until = 'epoch'")
        .expect("a time that is over");
    assert_eq!(read(&mut client, ROOM), 3, "as many as its own limit");
    assert_eq!(others(&mut client, "adopts_until = 'epoch'"), 0);
    client
        .batch_execute("DELETE FROM lockapi.queue_limit WHERE (namespace, queue) = ('n', 'work')")
        .expect("not limited");
    let none = "SELECT count(*) FROM lockapi.begin_claim('n', 'work', '{}', '{}', NULL, 0) AS c WHERE c.room IS NULL";
    assert_eq!(read(&mut client, none), 1);
}

#[test]
fn what_is_claimed_is_noted_in_the_limit_of_its_own_queue() {
    let (url, _runtime) = database();
    let mut client = connect(&url);
    three(&mut client);
    let note = |client: &mut Client, many: i64| {
        let note =
            "SELECT lockapi.end_claim('n', 'work', array_agg(i), array_agg(i), '{}', '{}', 1)
                      FROM generate_series(1, $1::int8) AS i";
        client.execute(note, &[&many]).expect("noted");
        let first = "SELECT cardinality(ids) * 1000 + ids[1] FROM lockapi.queue_limit
                      WHERE (namespace, queue) = ('n', 'work')";
        read(client, first)
    };
    for all in [true, false] {
        // Where nothing limits how many run, the last 256 are noted.
        let (own, others_have) = if all { ("9", "NULL") } else { ("NULL", "9") };
        let set = format!(
            "UPDATE lockapi.queue_limit
                SET most = CASE WHEN (namespace, queue) = ('n', 'work') THEN {own}::int8 ELSE {others_have}::int8 END"
        );
        client.batch_execute(&set).expect("limits");
        assert_eq!(note(&mut client, 256), 256_001);
        let noted = if all { 257_001 } else { 256_002 };
        assert_eq!(note(&mut client, 257), noted);
        assert_eq!(others(&mut client, "ids = '{}' AND tokens = '{}'"), 0);
    }
}

/// A delivery whose claim was lost, and what asks for it again.
#[test]
fn lost_delivery_is_claimed_again_by_who_may_have_it() {
    let (url, _runtime) = database();
    let mut client = connect(&url);
    three(&mut client);
    client
        .batch_execute(
            "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload, token, claim, attempt,
                                      lease_until, started_at)
             SELECT now() - interval '1 minute', 20, 2, 'n', 'work', 'it', '1', 7, 5, 1, now() + interval '1 hour', now();
             UPDATE lockapi.queue_limit SET ids = ARRAY(SELECT j.id FROM lockapi.job AS j), tokens = '{7}'",
        )
        .expect("it runs");
    let mut found = |set: &str, lost: &str, names: &str, paused: &str| {
        let update = format!("UPDATE lockapi.job SET {set}");
        client.batch_execute(&update).expect("changed");
        let again = format!(
            "SELECT coalesce(cardinality(c.again), 0)::int8 * 10 + cardinality(c.ids)
               FROM lockapi.begin_claim('n', 'work', '{lost}', '{names}', {paused}, 0) AS c"
        );
        read(&mut client, &again)
    };
    let mine = "claim = 5";
    assert_eq!(found(mine, "{5}", "{}", "NULL"), 11);
    assert_eq!(found(mine, "{5,6}", "{it,that}", "'{that}'"), 11);
    assert_eq!(found(mine, "{6}", "{}", "NULL"), 1, "another claim");
    assert_eq!(found(mine, "{5}", "{that}", "NULL"), 1, "another name");
    assert_eq!(found(mine, "{5}", "{}", "'{it}'"), 1, "its name is paused");
    assert_eq!(found("claim = NULL", "{5}", "{}", "NULL"), 1, "no claim");
    let later = "claim = 5, run_at = now() + interval '1 hour'";
    assert_eq!(found(later, "{5}", "{}", "NULL"), 1, "it is not due");
    let ended = "run_at = now() - interval '1 minute', lease_until = now() - interval '1 s'";
    assert_eq!(found(ended, "{5}", "{}", "NULL"), 0, "its lease has ended");
    let other = "lease_until = now() + interval '1 hour', token = 8";
    assert_eq!(found(other, "{5}", "{}", "NULL"), 0, "another delivery");
}
