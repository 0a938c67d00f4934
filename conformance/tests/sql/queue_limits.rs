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
