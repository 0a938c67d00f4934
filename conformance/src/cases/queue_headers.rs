//! Queues: headers of jobs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::queue::{Claim, Delivery, Headers, Job, QueueOptions, Unique};
use lockapi::worker::{Context as Working, Ending, Failed, Observe, Worker};

use super::queue::{job, none, one};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;

register! { "queue":
    Q27 headers_arrive_as_they_were_pushed;
    Q27 headers_are_there_for_handlers_and_observers;
    Q27 headers_stay_with_a_job_to_its_end;
    Q27 headers_of_a_group_wait_with_its_jobs;
    Q27 expired_job_keeps_its_headers_as_a_dead_letter;
    Q27 changing_push_brings_its_own_headers;
    Q27 headers_have_limits;
    Q27 headers_in_a_transaction_follow_it [Transactions];
    Q27 headers_in_sql_are_those_of_the_library [Sql];
    Q27 headers_in_sql_have_the_same_limits [Sql];
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// What JSON and SQL write in a way of their own.
const STRANGE: &str = "'\"\\ \u{1}\n{}, \u{e4}\u{1F980}";

fn traced(number: usize) -> Job {
    job(number)
        .header("traceparent", TRACE)
        .header("X-Tenant", STRANGE)
}

fn pairs(headers: &Headers) -> Vec<(&str, &str)> {
    headers.iter().collect()
}

fn is_traced(headers: &Headers) {
    let expected = [("traceparent", TRACE), ("x-tenant", STRANGE)];
    assert_eq!(pairs(headers), expected);
}

async fn headers_arrive_as_they_were_pushed(cx: Context) {
    let queue = cx.queue().await;
    for job in [
        traced(1),
        traced(1).unique("key", Unique::Skip),
        traced(1).idempotency_key("once"),
        traced(1)
            .header("x-tenant", "7")
            .header("x-TENANT", STRANGE),
    ] {
        queue.push(job).await.unwrap();
        let delivery = one(&queue).await;
        is_traced(delivery.headers());
        assert_eq!(delivery.header("TraceParent"), Some(TRACE));
        assert_eq!(delivery.header("tracestate"), None);
        assert!(!format!("{delivery:?}").contains(TRACE));
        delivery.ack().await.unwrap();
    }
    // Of many jobs each has its own, or none.
    let jobs = (0..600).map(|number| match number % 3 {
        0 => job(number),
        1 => job(number).header("number", number.to_string()),
        _ => job(number)
            .header("number", "")
            .header("other", number.to_string()),
    });
    queue.push_all(jobs.collect()).await.unwrap();
    let claimed = queue.claim(&Claim::new(600)).await.unwrap();
    assert_eq!(claimed.len(), 600);
    for delivery in claimed {
        let number: usize = delivery.decode().unwrap();
        let text = number.to_string();
        let expected: &[(&str, &str)] = match number % 3 {
            0 => &[],
            1 => &[("number", &text)],
            _ => &[("number", ""), ("other", &text)],
        };
        assert_eq!(pairs(delivery.headers()), expected);
        assert_eq!(delivery.headers().is_empty(), number.is_multiple_of(3));
    }
}

/// What an observer was told of headers.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn note(&self, what: &str, job: &Delivery) {
        let tenant = job.header("x-tenant").unwrap_or("none");
        let noted = format!("{what} {} {tenant}", job.attempt());
        self.0.lock().unwrap().push(noted);
    }
}

impl Observe for Told {
    fn started(&self, job: &Delivery) {
        self.note("started", job);
    }

    fn finished(&self, job: &Delivery, _: &Ending, _: Duration) {
        self.note("finished", job);
    }
}

async fn headers_are_there_for_handlers_and_observers(cx: Context) {
    let queue = cx.queue().await;
    queue.push(job(1).header("x-tenant", "7")).await.unwrap();
    let told = Told::default();
    let handled = told.clone();
    let worker = Worker::new(queue)
        .handle("count", move |_: usize, job: Working| {
            let handled = handled.clone();
            async move {
                handled.note("handled", &job);
                match job.attempt() {
                    1 => Err(Failed::retry_after("it rains", Duration::ZERO)),
                    _ => Ok(()),
                }
            }
        })
        .observe(told.clone());
    worker.run_until_idle().await.unwrap();
    let expected = ["started", "handled", "finished"];
    let expected = |attempt: u8| expected.map(|what| format!("{what} {attempt} 7"));
    assert_eq!(*told.0.lock().unwrap(), [expected(1), expected(2)].concat());
}

async fn headers_stay_with_a_job_to_its_end(cx: Context) {
    let backend = cx.backend().await;
    let kept = QueueOptions::default().archive(MINUTE * 60);
    let queue = backend.queue_with("work", kept).unwrap();
    let id = queue.push(traced(1).max_attempts(3)).await.unwrap().id;
    let claim = Claim::new(1).lease(MINUTE).extended_by_hand();
    // A retry, and a lease that ends without an answer.
    let first = queue.claim(&claim).await.unwrap().remove(0);
    first.nack("it rains", Duration::ZERO).await.unwrap();
    let second = queue.claim(&claim).await.unwrap().remove(0);
    is_traced(second.headers());
    cx.elapse(MINUTE * 2).await;
    let third = queue.claim(&claim).await.unwrap().remove(0);
    is_traced(third.headers());
    let inspector = backend.inspector();
    let read = async |payload| inspector.job(id, payload).await.unwrap().unwrap();
    is_traced(&read(true).await.headers);
    let hidden = read(false).await.headers;
    assert!(hidden.is_empty(), "they belong to the content of the job");
    third.nack("it still rains", Duration::ZERO).await.unwrap();
    drop(second);
    for reject in [true, false] {
        is_traced(&queue.dead_letters(0, 10).await.unwrap()[0].headers);
        is_traced(&read(true).await.headers);
        assert_eq!(queue.redrive(vec![id]).await.unwrap(), 1);
        let delivery = one(&queue).await;
        is_traced(delivery.headers());
        if reject {
            delivery.reject("no").await.unwrap();
        } else {
            delivery.ack().await.unwrap();
        }
    }
    is_traced(&read(true).await.headers);
    let cancelled = queue.push(traced(2)).await.unwrap().id;
    queue.cancel(vec![cancelled]).await.unwrap();
    let read = inspector.job(cancelled, true).await.unwrap().unwrap();
    is_traced(&read.headers);
    let cancelled = queue.push(traced(3)).await.unwrap().id;
    let operator = backend.operator();
    operator
        .cancel_job("work", cancelled, "a mistake")
        .await
        .unwrap();
    let read = inspector.job(cancelled, true).await.unwrap().unwrap();
    is_traced(&read.headers);
    // A lease that ends at the last attempt.
    let id = queue.push(traced(4).max_attempts(1)).await.unwrap().id;
    let silent = queue.claim(&claim).await.unwrap().remove(0);
    cx.elapse(MINUTE * 2).await;
    none(&queue).await;
    drop(silent);
    let letter = queue.dead_letters(0, 10).await.unwrap().remove(0);
    assert_eq!(letter.id, id);
    is_traced(&letter.headers);
}

async fn headers_of_a_group_wait_with_its_jobs(cx: Context) {
    let queue = cx.queue().await;
    let jobs = [traced(1).group("a"), traced(2).group("a")];
    queue.push_all(jobs.into()).await.unwrap();
    let first = one(&queue).await;
    is_traced(first.headers());
    none(&queue).await;
    first.ack().await.unwrap();
    let second = one(&queue).await;
    is_traced(second.headers());
    let id = second.id();
    second.reject("no").await.unwrap();
    queue.redrive(vec![id]).await.unwrap();
    is_traced(one(&queue).await.headers());
}

async fn expired_job_keeps_its_headers_as_a_dead_letter(cx: Context) {
    let queue = cx.queue().await;
    queue.push(traced(1).ttl(MINUTE)).await.unwrap();
    cx.elapse(MINUTE * 2).await;
    none(&queue).await;
    let letter = queue.dead_letters(0, 10).await.unwrap().remove(0);
    assert_eq!(letter.attempts, 0);
    is_traced(&letter.headers);
}

async fn changing_push_brings_its_own_headers(cx: Context) {
    let queue = cx.queue().await;
    let later = |number| job(number).delay(MINUTE);
    let push = async |job: Job, unique| queue.push(job.unique("key", unique)).await.unwrap();
    for (unique, changes) in [
        (Unique::Skip, false),
        (Unique::Keep, true),
        (Unique::Replace, true),
    ] {
        for (before, after) in [(traced(1), job(2)), (job(3), traced(4))] {
            let had = before.headers().clone();
            let brought = after.headers().clone();
            let id = push(before, Unique::Skip).await.id;
            assert_eq!(push(after, unique).await.id, id);
            let delivery = one(&queue).await;
            let expected = if changes { brought } else { had };
            assert_eq!(pairs(delivery.headers()), pairs(&expected), "{unique:?}");
            delivery.ack().await.unwrap();
        }
    }
    // Those that travel together as well.
    let jobs = [later(1), traced(2).delay(MINUTE), later(3).header("a", "b")];
    let jobs = jobs.map(|job| job.unique("key", Unique::Replace));
    queue.push_all(jobs.into()).await.unwrap();
    cx.elapse(MINUTE * 2).await;
    let delivery = one(&queue).await;
    assert_eq!(pairs(delivery.headers()), [("a", "b")]);
    delivery.ack().await.unwrap();
    // One that has expired is replaced.
    queue
        .push(traced(1).ttl(MINUTE).unique("key", Unique::Skip))
        .await
        .unwrap();
    cx.elapse(MINUTE * 2).await;
    push(job(2), Unique::Skip).await;
    assert!(one(&queue).await.headers().is_empty());
}

/// So many headers, of so many bytes in all.
fn many(headers: usize, bytes: usize) -> Job {
    (0..headers).fold(job(1), |job, nth| {
        let name = format!("{nth:04}");
        let share = bytes / headers + usize::from(nth < bytes % headers);
        job.header(name, "x".repeat(share - 4))
    })
}

async fn headers_have_limits(cx: Context) {
    let queue = cx.queue().await;
    let (name, value) = ("n".repeat(64), "\u{e4}".repeat(512));
    for allowed in [
        job(1).header(name.clone(), value.clone()).header("!~", ""),
        many(32, 8192),
    ] {
        let headers = allowed.headers().clone();
        queue.push(allowed).await.unwrap();
        let delivery = one(&queue).await;
        assert_eq!(pairs(delivery.headers()), pairs(&headers));
        delivery.ack().await.unwrap();
    }
    for (refused, why) in [
        (
            job(1).header("", "v"),
            "allowed are 1 to 64 bytes of visible ASCII",
        ),
        (
            job(1).header(name + "n", "v"),
            "has 65 bytes; allowed are 1 to 64 bytes of visible ASCII",
        ),
        (
            job(1).header("a b", "v"),
            "is \"a b\"; allowed are 1 to 64 bytes of visible ASCII",
        ),
        (job(1).header("\u{e4}", "v"), "visible ASCII"),
        (job(1).header("a\n", "v"), "visible ASCII"),
        (
            job(1).header("a", value + "v"),
            "has 1025 bytes; allowed are at most 1024 bytes",
        ),
        (job(1).header("a", "a\0b"), "NUL at byte 1"),
        (many(33, 8000), "33 headers; allowed are at most 32"),
        (
            many(32, 8193),
            "have 8193 bytes of names and values; allowed are at most 8192",
        ),
    ] {
        for job in [refused.clone(), refused.unique("key", Unique::Skip)] {
            let error = queue.push_all(vec![job]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let said = error.to_string();
            assert!(said.contains(why) && said.contains("allowed"), "{said}");
        }
    }
    assert_eq!(cx.jobs().await, Jobs::default());
}

async fn headers_in_a_transaction_follow_it(cx: Context) {
    let queue = cx.queue().await;
    let mut tx = cx.begin().await.unwrap();
    let jobs = vec![traced(1), job(2), traced(3).unique("key", Unique::Skip)];
    tx.push_in(&queue, jobs).await.unwrap();
    tx.commit().await;
    let mut tx = cx.begin().await.unwrap();
    let taken = tx.take_in(&queue, 3).await.unwrap();
    assert_eq!(taken.len(), 3);
    for taken in &taken {
        if taken.payload() == "2" {
            assert!(taken.headers().is_empty());
            assert_eq!(taken.header("traceparent"), None);
        } else {
            is_traced(taken.headers());
            assert_eq!(taken.header("Traceparent"), Some(TRACE));
        }
    }
    tx.rollback().await;
    let mut tx = cx.begin().await.unwrap();
    let refused = tx.push_in(&queue, vec![many(33, 8000)]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    tx.rollback().await;
    assert_eq!(cx.jobs().await.waiting, 3);
}

/// The function, with these arguments, in the namespace of the case.
fn call(cx: &Context, arguments: &str) -> String {
    let namespace = cx.namespace().replace('\'', "''");
    let function = if arguments.contains("headers =>") {
        "push_with_headers"
    } else {
        "push"
    };
    format!("lockapi.{function}({arguments}, namespace => '{namespace}')")
}

async fn headers_in_sql_are_those_of_the_library(cx: Context) {
    let queue = cx.queue().await;
    let strange = Job::new("text", STRANGE).unwrap();
    let strange = strange.payload().replace('\'', "''");
    let object = format!(r#"'{{"TraceParent": "{TRACE}", "x-tenant": {strange}}}'"#);
    for keys in [
        "",
        ", unique_key => 'u'",
        ", idempotency_key => 'i'",
        ", group_key => 'g'",
    ] {
        let arguments = format!("'work', 'count', '1', headers => {object}{keys}");
        cx.sql(&format!("SELECT {}::text", call(&cx, &arguments)))
            .await;
        let delivery = one(&queue).await;
        is_traced(delivery.headers());
        delivery.ack().await.unwrap();
    }
    for none in ["'{}'", "NULL"] {
        let arguments = format!("'work', 'count', '1', headers => {none}");
        let number = cx
            .sql(&format!("SELECT {}::text", call(&cx, &arguments)))
            .await;
        let stored = format!(
            "SELECT (headers IS NULL)::text FROM lockapi.job WHERE id = {}",
            number[0]
        );
        assert_eq!(cx.sql(&stored).await, ["true"], "{none}");
        let delivery = one(&queue).await;
        assert!(delivery.headers().is_empty());
        delivery.ack().await.unwrap();
    }
    // What has expired is replaced, with its headers.
    let arguments = format!("'work', 'count', '1', headers => {object}, unique_key => 'u'");
    queue
        .push(job(1).ttl(MINUTE).unique("u", Unique::Skip))
        .await
        .unwrap();
    cx.elapse(MINUTE * 2).await;
    cx.sql(&format!("SELECT {}::text", call(&cx, &arguments)))
        .await;
    let delivery = one(&queue).await;
    is_traced(delivery.headers());
    delivery.ack().await.unwrap();
    queue
        .push(traced(1).ttl(MINUTE).unique("u", Unique::Skip))
        .await
        .unwrap();
    cx.elapse(MINUTE * 2).await;
    let pushed = call(&cx, "'work', 'count', '1', unique_key => 'u'");
    cx.sql(&format!("SELECT {pushed}::text")).await;
    let delivery = one(&queue).await;
    assert!(delivery.headers().is_empty());
    delivery.ack().await.unwrap();
    // Written by hand: what is no text is left out, and keeps nobody from the job.
    let id = queue.push(traced(1)).await.unwrap().id;
    let by_hand = r#"{"x-tenant": 7, "a": "b"}"#;
    cx.sql(&format!(
        "UPDATE lockapi.job SET headers = '{by_hand}' WHERE id = {id}"
    ))
    .await;
    let delivery = one(&queue).await;
    assert_eq!(pairs(delivery.headers()), [("a", "b")]);
    delivery.ack().await.unwrap();
    // The other way round.
    let id = queue.push(traced(1)).await.unwrap().id;
    let read =
        "SELECT headers ->> 'traceparent' || ' ' || (headers ->> 'x-tenant') FROM lockapi.job";
    let read = cx.sql(&format!("{read} WHERE id = {id}")).await;
    assert_eq!(read, [format!("{TRACE} {STRANGE}")]);
    let id = queue.push(job(1)).await.unwrap().id;
    let read = format!("SELECT (headers IS NULL)::text FROM lockapi.job WHERE id = {id}");
    assert_eq!(
        cx.sql(&read).await,
        ["true"],
        "a job without any has none stored"
    );
}

async fn headers_in_sql_have_the_same_limits(cx: Context) {
    let queue = cx.queue().await;
    let objects = |headers: usize, bytes: usize| {
        format!(
            "(SELECT jsonb_object_agg(to_char(n, 'FM0000'), repeat('x', {bytes} / {headers} - 4
                                      + (n <= {bytes} % {headers})::int)) FROM generate_series(1, {headers}) AS n)"
        )
    };
    for allowed in [
        objects(32, 8192),
        "jsonb_build_object(repeat('n', 64), repeat('\u{e4}', 512), '!~', '')".to_owned(),
    ] {
        let arguments = format!("'work', 'count', '1', headers => {allowed}");
        cx.sql(&format!("SELECT {}::text", call(&cx, &arguments)))
            .await;
        let delivery = one(&queue).await;
        assert!(delivery.headers().len() >= 2);
        delivery.ack().await.unwrap();
    }
    for (refused, why) in [
        ("'[]'", "are a JSON array; allowed is an object of texts"),
        ("'null'", "are a JSON null; allowed is an object of texts"),
        (
            r#"'{"": "v"}'"#,
            "has 0 bytes; allowed are 1 to 64 bytes of visible ASCII",
        ),
        (
            "jsonb_build_object(repeat('n', 65), 'v')",
            "has 65 bytes; allowed are 1 to 64 bytes of visible ASCII",
        ),
        (
            r#"'{"a b": "v"}'"#,
            "is 'a b'; allowed are 1 to 64 bytes of visible ASCII",
        ),
        ("jsonb_build_object('\u{e4}', 'v')", "visible ASCII"),
        ("jsonb_build_object(E'a\\n', 'v')", "visible ASCII"),
        (
            r#"'{"a": "v", "A": "v"}'"#,
            "two headers are named 'a'; allowed is one",
        ),
        (
            r#"'{"b": "v", "a": 1}'"#,
            "'a' is a JSON number; allowed are texts",
        ),
        (r#"'{"a": null}'"#, "'a' is a JSON null; allowed are texts"),
        (
            "jsonb_build_object('a', repeat('x', 1025))",
            "has 1025 bytes; allowed are at most 1024 bytes",
        ),
        (&objects(33, 8000), "33 headers; allowed are at most 32"),
        (
            r#"'{"limit-by": ""}'"#,
            "the key of the limit has 0 bytes; allowed are 1 to 255 bytes",
        ),
        (
            "jsonb_build_object('Limit-By', repeat('k', 256))",
            "the key of the limit has 256 bytes; allowed are 1 to 255 bytes",
        ),
        (
            &objects(32, 8193),
            "have 8193 bytes of names and values; allowed are at most 8192",
        ),
    ] {
        let pushed = call(&cx, &format!("'work', 'name', '1', headers => {refused}"));
        let why = why.replace('\'', "''");
        let tried = format!(
            "DO $case$ BEGIN
                 PERFORM {pushed};
                 RAISE EXCEPTION 'it was pushed';
             EXCEPTION WHEN invalid_parameter_value THEN
                 IF strpos(SQLERRM, '{why}') = 0 THEN
                     RAISE EXCEPTION 'it says: %', SQLERRM;
                 END IF;
             END $case$; SELECT 'refused'"
        );
        assert_eq!(cx.sql(&tried).await, ["refused"], "{refused}");
    }
    assert_eq!(cx.jobs().await, Jobs::default());
}
