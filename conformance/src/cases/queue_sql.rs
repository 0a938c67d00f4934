//! Queues: what is pushed in SQL.

use std::time::Duration;

use lockapi::queue::{Claim, Job, Priority, Unique};

use super::queue::{none, one};
use crate::context::{Context, MINUTE};
use crate::fixture::Jobs;
use crate::harness::register;
use crate::patience::{not_yet, soon};

register! { "queue":
    Q26 push_in_sql_is_claimed_and_wakes [Sql];
    Q26 push_in_sql_makes_the_same_rows [Sql];
    Q26 push_in_sql_follows_the_transaction_of_a_trigger [Sql];
    Q26 push_in_sql_refuses_what_is_outside_of_the_limits [Sql];
}

/// Runs the function with these arguments, in the namespace of the case; answers what it answers.
async fn push(cx: &Context, arguments: &str) -> i64 {
    let namespace = cx.namespace().replace('\'', "''");
    let sql = format!("SELECT lockapi.push({arguments}, namespace => '{namespace}')::text");
    cx.sql(&sql).await[0].parse().unwrap()
}

async fn push_in_sql_is_claimed_and_wakes(cx: Context) {
    let queue = cx.queue().await;
    let claim = Claim::new(1).wait(MINUTE * 60);
    let waiting = queue.claim(&claim);
    tokio::pin!(waiting);
    not_yet("there is no job", &mut waiting).await;
    let id = push(&cx, r#"'work', 'count', '{"n": 7}'"#).await;
    let delivery = soon("the job", waiting).await.unwrap().remove(0);
    assert_eq!(delivery.id(), id);
    assert_eq!(
        (delivery.name(), delivery.payload()),
        ("count", r#"{"n": 7}"#)
    );
    assert_eq!(
        (delivery.max_attempts(), delivery.priority()),
        (20, Priority::Normal)
    );
    delivery.ack().await.unwrap();
    // A group has its limit, whoever pushes.
    for number in 1..3 {
        push(
            &cx,
            &format!("'work', 'count', '{number}', group_key => 'a'"),
        )
        .await;
    }
    let first = one(&queue).await;
    none(&queue).await;
    first.ack().await.unwrap();
    one(&queue).await.ack().await.unwrap();
    // Keys are those of pushes of the library.
    let unique = Job::new("count", &1).unwrap().unique("u", Unique::Skip);
    let id = queue.push(unique).await.unwrap().id;
    assert_eq!(
        push(&cx, "'work', 'count', '2', unique_key => 'u'").await,
        id
    );
    let delivery = one(&queue).await;
    assert_eq!(delivery.payload(), "1");
    assert_eq!(
        push(&cx, "'work', 'count', '2', unique_key => 'u'").await,
        id,
        "while it runs"
    );
    delivery.ack().await.unwrap();
    let id = push(&cx, "'work', 'count', '3', idempotency_key => 'i'").await;
    let again = Job::new("count", &4).unwrap().idempotency_key("i");
    assert_eq!(queue.push(again).await.unwrap().id, id);
    one(&queue).await.ack().await.unwrap();
    assert_eq!(
        push(&cx, "'work', 'count', '3', idempotency_key => 'i'").await,
        id
    );
    // One that expired before it was delivered is replaced.
    let expires = "'work', 'count', '5', unique_key => 'v', ttl => '1 minute'";
    let id = push(&cx, expires).await;
    cx.elapse(MINUTE * 2).await;
    assert_eq!(
        push(&cx, "'work', 'count', '6', unique_key => 'v'").await,
        id
    );
    let delivery = one(&queue).await;
    assert_eq!((delivery.id(), delivery.payload()), (id, "6"));
    delivery.ack().await.unwrap();
    assert_eq!(cx.jobs().await, Jobs::default());
}

async fn push_in_sql_makes_the_same_rows(cx: Context) {
    let queue = cx.queue().await;
    let job = || Job::new("same", &7).unwrap();
    let hour = Duration::from_hours(1);
    let pairs = [
        (job(), "'work', 'same', '7'"),
        (
            job().priority(Priority::Urgent),
            "'work', 'same', '7', priority => 'urgent'",
        ),
        (
            job().priority(Priority::Low).max_attempts(3),
            "'work', 'same', '7', priority => 'low', max_attempts => 3",
        ),
        (job().delay(hour), "'work', 'same', '7', delay => '1 hour'"),
        (
            job().ttl(hour).delay(hour),
            "'work', 'same', '7', ttl => '1 hour', delay => '1 hour'",
        ),
        (job().group("g"), "'work', 'same', '7', group_key => 'g'"),
        (
            job().group("g").delay(hour),
            "'work', 'same', '7', group_key => 'g', delay => '1 hour'",
        ),
    ];
    let namespace = cx.namespace().replace('\'', "''");
    let row = |id: i64| {
        let to_minutes = |time: &str| format!("round(extract(epoch FROM {time} - now()) / 60)");
        format!(
            "SELECT jsonb_strip_nulls(to_jsonb(j) - '{{id,created_at,run_at,due_at,expires_at}}'::text[])::text
                    || ({}, {}, {}, {})::text
               FROM lockapi.job AS j WHERE id = {id} AND namespace = '{namespace}'",
            to_minutes("created_at"),
            to_minutes("least(run_at, now() + interval '1 year')"),
            to_minutes("due_at"),
            to_minutes("expires_at"),
        )
    };
    for (job, arguments) in pairs {
        let ours = queue.push(job).await.unwrap().id;
        let theirs = push(&cx, arguments).await;
        let (ours, theirs) = (cx.sql(&row(ours)).await, cx.sql(&row(theirs)).await);
        assert_eq!((ours.len(), &ours), (1, &theirs), "{arguments}");
    }
}

async fn push_in_sql_follows_the_transaction_of_a_trigger(cx: Context) {
    let queue = cx.queue().await;
    let namespace = cx.namespace().replace('\'', "''");
    let table = format!("\"account {}\"", cx.namespace().replace('"', ""));
    cx.sql(&format!(
        "CREATE TABLE public.{table} (address text);
         CREATE FUNCTION public.{table}() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM lockapi.push('work', 'welcome', to_json(NEW.address), namespace => '{namespace}');
             RETURN NULL;
         END $$;
         CREATE TRIGGER welcome AFTER INSERT ON public.{table} FOR EACH ROW EXECUTE FUNCTION public.{table}();
         SELECT 1"
    ))
    .await;
    for rows in [
        "BEGIN; INSERT INTO public.{table} VALUES ('never'); ROLLBACK",
        "INSERT INTO public.{table} VALUES ('ada@example.com')",
    ] {
        let rows = rows.replace("{table}", &table);
        cx.sql(&format!("{rows}; SELECT 1")).await;
    }
    let delivery = one(&queue).await;
    assert_eq!(delivery.decode::<String>().unwrap(), "ada@example.com");
    delivery.ack().await.unwrap();
    none(&queue).await;
    cx.sql(&format!(
        "DROP TABLE public.{table}; DROP FUNCTION public.{table}(); SELECT 1"
    ))
    .await;
}

async fn push_in_sql_refuses_what_is_outside_of_the_limits(cx: Context) {
    let namespace = cx.namespace().replace('\'', "''");
    for arguments in [
        "'', 'name'",
        "NULL, 'name'",
        "repeat('q', 256), 'name'",
        "'work', ''",
        "'work', 'name', NULL",
        "'work', 'name', to_json(repeat('x', 16777216))",
        "'work', 'name', priority => 'soon'",
        "'work', 'name', priority => NULL",
        "'work', 'name', delay => '-1 second'",
        "'work', 'name', delay => '11 years'",
        "'work', 'name', delay => '122 months'",
        "'work', 'name', delay => '1 month -31 days'",
        "'work', 'name', delay => NULL",
        "'work', 'name', at => 'infinity'",
        "'work', 'name', max_attempts => 0",
        "'work', 'name', max_attempts => NULL",
        "'work', 'name', ttl => '-1 second'",
        "'work', 'name', group_key => ''",
        "'work', 'name', group_key => repeat('g', 10240)",
        "'work', 'name', unique_key => ''",
        "'work', 'name', unique_key => 'task/nightly'",
        "'work', 'name', unique_key => 'u', idempotency_key => 'i'",
    ] {
        let refused = format!(
            "DO $case$ BEGIN
                 PERFORM lockapi.push({arguments}, namespace => '{namespace}');
                 RAISE EXCEPTION 'it was pushed';
             EXCEPTION WHEN invalid_parameter_value THEN
                 IF SQLERRM NOT LIKE '%allowed%' THEN
                     RAISE EXCEPTION 'it does not say what is allowed: %', SQLERRM;
                 END IF;
             END $case$; SELECT 'refused'"
        );
        assert_eq!(cx.sql(&refused).await, ["refused"], "{arguments}");
    }
    assert_eq!(cx.jobs().await, Jobs::default());
    // A month has 30 days, also in February.
    let pushed = format!(
        "SELECT lockapi.push('work', 'name', at => '2100-02-10', ttl => '1 month -29 days', namespace => '{namespace}')"
    );
    let number = cx.sql(&pushed).await.concat();
    let lives = format!(
        "SELECT extract(epoch FROM expires_at - coalesce(due_at, run_at))::int FROM lockapi.job WHERE id = {number}"
    );
    assert_eq!(cx.sql(&lives).await, ["86400"]);
}
