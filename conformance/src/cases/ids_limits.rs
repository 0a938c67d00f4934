//! What ends ids: numbers, layouts, limits, and a database that is away.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::ErrorKind;
use lockapi::id::{IdGen, IdOptions, Layout};

use super::ids::{generator, open, seldom, worker};
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "ids":
    W09 numbers_are_free_after_the_clock_was_set_back;
    W09 numbers_of_the_dead_are_free_after_the_clock_was_set_back [Sql];
    I07 sequence_that_was_set_back_is_told [Sql];
    I09 layout_that_was_a_mistake_is_replaced [Sql];
    I06 one_worker_too_many_is_told_and_numbers_are_reclaimed;
    I06 longest_expired_number_goes_first;
    I09 layouts_of_one_name_agree;
    I09 epoch_in_the_future_is_refused;
    I10 end_of_the_time_is_told;
    I12 values_outside_the_limits_are_invalid;
    I13 database_away_stops_it_and_it_goes_on @ Own;
}

async fn one_worker_too_many_is_told_and_numbers_are_reclaimed(cx: Context) {
    let backend = cx.backend().await;
    let generators: Vec<_> = (0..1024).map(|_| open(&backend, seldom())).collect();
    let firsts = join_all(generators.iter().map(|ids| ids.next())).await;
    let numbers: HashSet<_> = firsts
        .into_iter()
        .map(|first| worker(first.unwrap()))
        .collect();
    assert_eq!(numbers.len(), 1024);
    let one_more = generator(&cx, seldom()).await;
    let error = one_more.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity);
    assert!(error.to_string().contains("1024"), "{error}");
    cx.set_clock_ahead(MINUTE * 10).await;
    one_more.next().await.unwrap();
}

async fn longest_expired_number_goes_first(cx: Context) {
    let backend = cx.backend().await;
    let layout = Layout::new(41, 2, 20).unwrap();
    let options = IdOptions::snowflake(layout).reserve(MINUTE);
    let number = async |ids: &Arc<dyn IdGen>| layout.decode(ids.next().await.unwrap()).worker;
    let mut kept = Vec::new();
    for expected in 0..4 {
        let ids = open(&backend, options);
        assert_eq!(number(&ids).await, expected);
        kept.push(ids);
        cx.set_clock_ahead(Duration::from_secs(1)).await;
    }
    let other = cx.backend().await;
    let error = open(&other, options).next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity);
    // The number that was given back is free from now on, the others since long ago.
    kept.remove(2);
    eventually("it is given back", async || {
        cx.id_workers("orders").await == 3
    })
    .await;
    cx.set_clock_ahead(Duration::from_secs(1)).await;
    let successor = open(&other, options);
    assert_eq!(number(&successor).await, 2);
    cx.set_clock_ahead(MINUTE * 10).await;
    let mut successors = Vec::new();
    for expected in [0, 1, 3] {
        let ids = open(&other, options);
        assert_eq!(number(&ids).await, expected);
        successors.push(ids);
    }
}

async fn numbers_are_free_after_the_clock_was_set_back(cx: Context) {
    // Two numbers; one generator gives its own back.
    let layout = Layout::new(41, 1, 21).unwrap();
    let options = IdOptions::snowflake(layout);
    let backend = cx.backend().await;
    let first = open(&backend, options);
    let mut last = first.next().await.unwrap();
    drop(first);
    eventually("it is given back", async || {
        cx.id_workers("orders").await == 0
    })
    .await;
    cx.set_clock_back(MINUTE * 60).await;
    for _ in 0..5 {
        let next = open(&backend, options);
        let id = next.next().await.unwrap();
        assert!(id > last, "it goes on where the one before has ended");
        last = id;
        drop(next);
        eventually("it is given back", async || {
            cx.id_workers("orders").await == 0
        })
        .await;
    }
}

async fn numbers_of_the_dead_are_free_after_the_clock_was_set_back(cx: Context) {
    let layout = Layout::new(41, 1, 21).unwrap();
    let options = IdOptions::snowflake(layout);
    let backend = cx.backend().await;
    let dead = [open(&backend, options), open(&backend, options)];
    for ids in &dead {
        ids.next().await.unwrap();
    }
    // As if the processes had ended: nobody renews them.
    let namespace = cx.namespace();
    cx.sql(&format!(
        "UPDATE lockapi.id_worker SET token = token - 1 WHERE namespace = '{namespace}'"
    ))
    .await;
    cx.set_clock_back(MINUTE * 60).await;
    let next = open(&backend, options);
    let error = next.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity, "they may still live");
    // Three times the reserve, and not the hour.
    cx.set_clock_ahead(MINUTE / 2).await;
    next.next().await.unwrap();
    drop(dead);
}

async fn sequence_that_was_set_back_is_told(cx: Context) {
    let backend = cx.backend().await;
    let ids = backend.id_gen("invoices", IdOptions::blocks(10)).unwrap();
    let mut last = 0;
    for _ in 0..25 {
        last = i64::from(ids.next().await.unwrap());
    }
    let namespace = cx.namespace();
    let next = async |next: &str| {
        cx.sql(&format!(
            "UPDATE lockapi.id_block SET next = {next}
              WHERE namespace = '{namespace}' AND name = 'invoices'"
        ))
        .await;
    };
    // As after a restore from a backup.
    next("1").await;
    while last < 30 {
        last = i64::from(ids.next().await.unwrap());
    }
    let error = ids.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("lockapi.id_block"), "{error}");
    // As its documentation says.
    next(&format!(
        "1 + (SELECT max(id) FROM (VALUES ({last})) AS invoice (id))"
    ))
    .await;
    assert_eq!(i64::from(ids.next().await.unwrap()), last + 1);
    assert_eq!(i64::from(ids.next().await.unwrap()), last + 2);
}

async fn layout_that_was_a_mistake_is_replaced(cx: Context) {
    let backend = cx.backend().await;
    let mistake = open(
        &backend,
        IdOptions::snowflake(Layout::new(41, 2, 20).unwrap()),
    );
    mistake.next().await.unwrap();
    drop(mistake);
    let right = open(&backend, IdOptions::default());
    let error = right.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("lockapi.id_space"), "{error}");
    let namespace = cx.namespace();
    for table in ["id_worker", "id_space"] {
        cx.sql(&format!(
            "DELETE FROM lockapi.{table} WHERE namespace = '{namespace}' AND name = 'orders'"
        ))
        .await;
    }
    right.next().await.unwrap();
}

async fn layouts_of_one_name_agree(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let layout = Layout::new(42, 8, 13).unwrap();
    let ids = open(&here, IdOptions::snowflake(layout));
    let id = ids.next().await.unwrap();
    assert!(layout.decode(id).worker == 0 && layout.decode(id).sequence == 0);
    let error = open(&there, IdOptions::default()).next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("42 bits of time"), "{error}");
    let later = layout.since(layout.epoch() + MINUTE).unwrap();
    let error = open(&there, IdOptions::snowflake(later)).next().await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    open(&there, IdOptions::snowflake(layout))
        .next()
        .await
        .unwrap();
    let elsewhere = there.id_gen("invoices", IdOptions::default()).unwrap();
    elsewhere.next().await.unwrap();
}

async fn epoch_in_the_future_is_refused(cx: Context) {
    let backend = cx.backend().await;
    let layout = Layout::default();
    let century = Duration::from_hours(24 * 36_525);
    let future = layout.since(layout.epoch() + century).unwrap();
    let ids = open(&backend, IdOptions::snowflake(future));
    let error = ids.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("in the future"), "{error}");
    // It has left nothing behind.
    let ids = open(&backend, IdOptions::default());
    assert_eq!(worker(ids.next().await.unwrap()), 0);
}

async fn end_of_the_time_is_told(cx: Context) {
    // 49 days from 2021 on.
    let layout = Layout::new(32, 15, 16).unwrap();
    let ids = generator(&cx, IdOptions::snowflake(layout)).await;
    for _ in 0..2 {
        let error = soon("it is told", ids.next()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capacity);
        assert!(error.to_string().contains("32 bits of time"), "{error}");
        let error = ids.try_next().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capacity);
    }
}

async fn values_outside_the_limits_are_invalid(cx: Context) {
    let backend = cx.backend().await;
    let long = "x".repeat(256);
    for name in ["", "a\0b", long.as_str()] {
        let error = backend.id_gen(name, IdOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}");
    }
    let reserve = |time| IdOptions::default().reserve(time);
    for options in [
        IdOptions::blocks(0),
        IdOptions::blocks(1_000_001),
        IdOptions::blocks(u64::MAX),
        reserve(Duration::ZERO),
        reserve(Duration::from_millis(99)),
        reserve(Duration::from_secs(61)),
        reserve(Duration::MAX),
    ] {
        let error = backend.id_gen("orders", options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{options:?}");
    }
    for (options, most) in [(IdOptions::default(), 65_536), (IdOptions::blocks(10), 10)] {
        let ids = open(&backend, options);
        for count in [0, most + 1, u64::MAX] {
            for error in [
                ids.try_take(count).unwrap_err(),
                ids.ready(count).await.unwrap_err(),
                ids.batch(count).await.unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Invalid, "{count}");
            }
        }
        assert_eq!(ids.batch(most).await.unwrap().len() as u64, most);
    }
}

async fn database_away_stops_it_and_it_goes_on(cx: Context) {
    let options = IdOptions::default().reserve(Duration::from_millis(500));
    let ids = generator(&cx, options).await;
    let mut made = vec![ids.next().await.unwrap()];
    cx.set_reachable(false).await;
    let using_up = async {
        loop {
            match ids.next().await {
                Ok(id) => made.push(id),
                Err(error) => return error,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let error = soon("what was reserved is used up", using_up).await;
    // A renewal may have been under way when the server stopped.
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::Indeterminate
        ),
        "{error}"
    );
    let error = ids.next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    cx.set_reachable(true).await;
    eventually("it goes on", async || ids.next().await.is_ok()).await;
    made.push(ids.next().await.unwrap());
    assert!(made.is_sorted_by(|one, next| one < next));
}
