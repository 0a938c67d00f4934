//! What generators of ids promise.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::Backend;
use lockapi::id::{Id, IdGen, IdOptions, Layout};

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "ids":
    I01 unique_over_generators_and_backends;
    I02 strictly_increasing_and_batches_contiguous;
    I03 clock_set_back_makes_no_id_twice;
    I03 successor_starts_behind_a_number_that_ran_ahead;
    I04 full_millisecond_is_waited_for;
    I05 lost_number_is_not_used_again;
    I05 owner_past_its_floor_sees_that_its_number_is_lost;
    W09 ids_while_the_clock_of_a_server_is_set @ SetClock [Schema];
    I08 time_of_an_id_and_its_texts;
    I11 ids_advance_inside_a_long_transaction [Transactions];
    I14 blocks_are_dense_and_unique;
    I14 callers_of_small_blocks_share_statements @ Own [Sql, Futures];
    I15 dropped_waits_lose_no_id [Futures];
}

/// Claims of these are renewed so seldom that a case is over before.
pub(super) fn seldom() -> IdOptions {
    IdOptions::default().reserve(MINUTE)
}

pub(super) fn open(backend: &Arc<dyn Backend>, options: IdOptions) -> Arc<dyn IdGen> {
    backend.id_gen("orders", options).expect("a generator")
}

pub(super) async fn generator(cx: &Context, options: IdOptions) -> Arc<dyn IdGen> {
    open(&cx.backend().await, options)
}

pub(super) fn worker(id: Id) -> u32 {
    Layout::default().decode(id).worker
}

async fn unique_over_generators_and_backends(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let generators: Vec<_> = [&here, &there, &here, &there]
        .map(|backend| open(backend, IdOptions::default()))
        .into();
    let makers = generators.iter().map(|ids| {
        let ids = Arc::clone(ids);
        tokio::spawn(async move {
            let mut made = Vec::new();
            for round in 0..1000 {
                if round % 100 == 0 {
                    made.extend(ids.batch(100).await.unwrap());
                }
                made.push(ids.next().await.unwrap());
            }
            made
        })
    });
    let mut all = HashSet::new();
    let mut workers = HashSet::new();
    for made in join_all(makers).await {
        let made = made.unwrap();
        workers.insert(worker(made[0]));
        for id in made {
            assert!(i64::from(id) > 0);
            assert!(all.insert(id), "{id} twice");
        }
    }
    assert_eq!((all.len(), workers.len()), (8000, 4));
    assert_eq!(cx.id_workers("orders").await, 4);
    drop(generators);
    eventually("the numbers are given back", async || {
        cx.id_workers("orders").await == 0
    })
    .await;
}

async fn strictly_increasing_and_batches_contiguous(cx: Context) {
    let ids = generator(&cx, IdOptions::default()).await;
    let takers = (0..4).map(|_| {
        let ids = Arc::clone(&ids);
        tokio::spawn(async move {
            let mut last = None;
            let mut batches = Vec::new();
            for round in 0..200u64 {
                let batch: Vec<_> = ids.batch(1 + round).await.unwrap().collect();
                assert_eq!(batch.len() as u64, 1 + round);
                assert!(batch.is_sorted_by(|one, next| one < next));
                assert!(last < Some(batch[0]), "{:?} after {last:?}", batch[0]);
                last = batch.last().copied();
                batches.push((batch[0], batch[batch.len() - 1]));
            }
            batches
        })
    });
    let mut batches = Vec::new();
    for taken in join_all(takers).await {
        batches.extend(taken.unwrap());
    }
    batches.sort_unstable();
    let apart = |pair: &[(Id, Id)]| pair[0].1 < pair[1].0;
    assert!(batches.windows(2).all(apart), "no other's ids in a batch");
    let largest: Vec<_> = ids.batch(65_536).await.unwrap().collect();
    assert!(largest.is_sorted_by(|one, next| one < next));
}

async fn lost_number_is_not_used_again(cx: Context) {
    let backend = cx.backend().await;
    let first = open(&backend, seldom());
    let mut made = vec![first.next().await.unwrap()];
    cx.set_clock_ahead(MINUTE * 10).await;
    // Nobody has taken the number: it goes on.
    made.push(first.next().await.unwrap());
    let second = generator(&cx, seldom()).await;
    cx.set_clock_ahead(MINUTE * 10).await;
    let taken = second.next().await.unwrap();
    assert_eq!(worker(taken), worker(made[0]), "it had expired");
    let layout = Layout::default();
    let since = layout
        .decode(taken)
        .time
        .duration_since(layout.decode(made[0]).time);
    assert!(since.unwrap() > MINUTE / 2, "behind what was reserved");
    // What was stored as its own is still its own; beyond that it needs another number.
    let mut others = HashSet::from([taken]);
    for _ in 0..20 {
        others.extend(second.batch(1000).await.unwrap());
        made.extend(first.batch(1000).await.unwrap());
    }
    assert!(made.is_sorted_by(|one, next| one < next));
    assert!(made.iter().all(|id| !others.contains(id)));
    // It gives back what it had, which is not what the other has.
    drop(first);
    let later = backend.id_gen("invoices", IdOptions::default()).unwrap();
    later.next().await.unwrap();
    assert_eq!(cx.id_workers("orders").await, 1);
}

async fn owner_past_its_floor_sees_that_its_number_is_lost(cx: Context) {
    let backend = cx.backend().await;
    let first = open(
        &backend,
        IdOptions::default().reserve(Duration::from_millis(100)),
    );
    let mut made = vec![first.next().await.unwrap()];
    let number = worker(made[0]);
    let mut others = HashSet::new();
    let mut takers = Vec::new();
    let taker = loop {
        cx.set_clock_ahead(MINUTE * 10).await;
        let taker = open(&backend, seldom());
        let taken = taker.next().await.unwrap();
        others.insert(taken);
        if worker(taken) == number {
            break taker;
        }
        // A renewal came first. This one keeps its number, so that the next one gets another.
        takers.push(taker);
    };
    // Many times as long as it may go on with what it has stored.
    for _ in 0..250 {
        made.extend(soon("it goes on", first.batch(100)).await.unwrap());
        others.extend(soon("it goes on", taker.batch(100)).await.unwrap());
        if made.last().is_none_or(|last| worker(*last) != number) {
            break;
        }
        cx.pass(Duration::from_millis(20)).await;
    }
    let last = made[made.len() - 1];
    assert_ne!(worker(last), number, "it goes on with another number");
    assert!(made.is_sorted_by(|one, next| one < next));
    assert!(made.iter().all(|id| !others.contains(id)));
}

async fn clock_set_back_makes_no_id_twice(cx: Context) {
    let backend = cx.backend().await;
    let mut last = None;
    let mut generators = Vec::new();
    for by in [
        Duration::from_millis(1),
        Duration::from_secs(5),
        Duration::from_hours(1),
    ] {
        let ids = open(
            &backend,
            IdOptions::default().reserve(Duration::from_millis(100)),
        );
        let first = ids.next().await.unwrap();
        assert!(last < Some(first), "{first} after {last:?}");
        cx.set_clock_back(by).await;
        let mut made = vec![first];
        // Longer than what was reserved: renewals see the clock that was set back.
        for _ in 0..6 {
            made.push(soon("it goes on", ids.next()).await.unwrap());
            made.extend(soon("it goes on", ids.batch(100)).await.unwrap());
            cx.pass(Duration::from_millis(30)).await;
        }
        assert!(made.is_sorted_by(|one, next| one < next));
        assert_eq!(worker(made[0]), 0);
        last = made.last().copied();
        generators.push(ids);
        // The next one has the same number.
        generators.clear();
        eventually("the number is given back", async || {
            cx.id_workers("orders").await == 0
        })
        .await;
    }
}

async fn successor_starts_behind_a_number_that_ran_ahead(cx: Context) {
    let backend = cx.backend().await;
    let first = open(&backend, seldom());
    let one = first.next().await.unwrap();
    cx.set_clock_ahead(MINUTE * 10).await;
    let second = open(&backend, seldom());
    let two = second.next().await.unwrap();
    cx.set_clock_back(MINUTE * 10).await;
    // What this one makes is ahead of the clock, and so are those that follow it.
    let mut made = vec![one, two];
    made.extend(second.batch(100).await.unwrap());
    drop(second);
    eventually("the number is given back", async || {
        cx.id_workers("orders").await == 0
    })
    .await;
    let third = open(&backend, seldom());
    made.extend(third.batch(100).await.unwrap());
    assert!(made.iter().all(|id| worker(*id) == worker(one)));
    assert!(made.is_sorted_by(|one, next| one < next));
}

/// The same on a server whose clock is really set; elsewhere what was stored is moved.
async fn ids_while_the_clock_of_a_server_is_set(cx: Context) {
    lost_number_is_not_used_again(cx.elsewhere().await).await;
    owner_past_its_floor_sees_that_its_number_is_lost(cx.elsewhere().await).await;
    clock_set_back_makes_no_id_twice(cx.elsewhere().await).await;
    successor_starts_behind_a_number_that_ran_ahead(cx.elsewhere().await).await;
}

async fn full_millisecond_is_waited_for(cx: Context) {
    // Two ids a millisecond.
    let layout = Layout::new(46, 16, 1).unwrap();
    let ids = generator(&cx, IdOptions::snowflake(layout)).await;
    ids.ready(1).await.unwrap();
    let mut refused = false;
    for _ in 0..200 {
        refused |= ids.try_next().unwrap().is_none();
    }
    assert!(refused, "there were too many for the time");
    let takers = (0..4).map(|_| {
        let ids = Arc::clone(&ids);
        tokio::spawn(async move {
            let mut made = Vec::new();
            for _ in 0..30 {
                made.push(soon("there is time again", ids.next()).await.unwrap());
            }
            made
        })
    });
    let mut all = Vec::new();
    for made in join_all(takers).await {
        let made = made.unwrap();
        assert!(made.is_sorted_by(|one, next| one < next));
        all.extend(made);
    }
    all.sort_unstable();
    assert!(all.is_sorted_by(|one, next| one < next), "an id twice");
    let times: HashSet<_> = all.iter().map(|id| layout.decode(*id).time).collect();
    assert!(times.len() >= 60, "two of each millisecond at most");
}

async fn time_of_an_id_and_its_texts(cx: Context) {
    let layout = Layout::default();
    let ids = generator(&cx, IdOptions::default()).await;
    let mut made = vec![ids.next().await.unwrap()];
    for _ in 0..3 {
        cx.pass(Duration::from_millis(20)).await;
        made.push(ids.next().await.unwrap());
    }
    let times: Vec<_> = made.iter().map(|id| layout.decode(*id).time).collect();
    assert!(times.is_sorted_by(|one, next| one < next));
    let bounds = layout.bounds(times[1]..times[3]);
    let within: Vec<_> = made
        .iter()
        .filter(|id| bounds.contains(&i64::from(**id)))
        .collect();
    assert_eq!(within, [&made[1], &made[2]]);
    for texts in [
        made.iter().map(|id| id.base32()).collect::<Vec<_>>(),
        made.iter().map(|id| id.base62()).collect(),
    ] {
        assert!(texts.is_sorted_by(|one, next| one < next));
    }
    for id in made {
        assert!(i64::from(id) > 1 << 53, "more than a double can tell apart");
        assert_eq!(Id::from_base32(&id.base32()).unwrap(), id);
        assert_eq!(Id::from_base62(&id.base62()).unwrap(), id);
        assert_eq!(id.to_string().parse::<Id>().unwrap(), id);
    }
}

async fn ids_advance_inside_a_long_transaction(cx: Context) {
    let ids = generator(&cx, IdOptions::default()).await;
    let mut tx = cx.begin().await.unwrap();
    let before = tx.query("SELECT now()::text").await;
    let layout = Layout::default();
    let first = layout.decode(ids.next().await.unwrap()).time;
    cx.pass(Duration::from_millis(20)).await;
    let second = layout.decode(ids.next().await.unwrap()).time;
    assert_eq!(tx.query("SELECT now()::text").await, before);
    assert!(second >= first + Duration::from_millis(20));
    tx.rollback().await;
}

async fn blocks_are_dense_and_unique(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let alone = open(&here, IdOptions::blocks(10));
    let mut made: Vec<i64> = Vec::new();
    for count in [1, 9, 3, 10, 2] {
        made.extend(alone.batch(count).await.unwrap().map(i64::from));
    }
    assert_eq!(made, (1..=25).collect::<Vec<_>>(), "no gap");
    let generators = [&here, &there, &here].map(|backend| open(backend, IdOptions::blocks(7)));
    let takers = generators.map(|ids| {
        tokio::spawn(async move {
            let mut made = Vec::new();
            for _ in 0..100 {
                made.push(i64::from(ids.next().await.unwrap()));
            }
            assert!(made.is_sorted_by(|one, next| one < next));
            made
        })
    });
    let mut all: HashSet<i64> = made.into_iter().collect();
    for taken in join_all(takers).await {
        for id in taken.unwrap() {
            assert!(all.insert(id), "{id} twice");
        }
    }
    // Each of the three may have some left of its last block, the first one five.
    let largest = all.iter().copied().max().unwrap_or_default();
    assert!(largest <= 30 + 3 * 105, "{largest}");
}

async fn callers_of_small_blocks_share_statements(cx: Context) {
    let ids = generator(&cx, IdOptions::blocks(1)).await;
    cx.sql(
        "CREATE SEQUENCE changes;
         CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN PERFORM nextval(''public.changes''); RETURN NULL; END';
         CREATE TRIGGER counted AFTER INSERT OR UPDATE ON lockapi.id_block
             FOR EACH ROW EXECUTE FUNCTION count_change();
         SELECT ''",
    )
    .await;
    let made = join_all((0..500).map(|_| ids.next())).await;
    let made: HashSet<i64> = made.into_iter().map(|id| i64::from(id.unwrap())).collect();
    assert_eq!(made, (1..=500).collect(), "no gap");
    let changes = cx.sql("SELECT (nextval('changes') - 1)::text").await;
    let changes: usize = changes[0].parse().unwrap();
    // The first asks for one, and the second for what the others want.
    assert!((1..=5).contains(&changes), "{changes} changes");
}

async fn dropped_waits_lose_no_id(cx: Context) {
    for polls in 1..4 {
        let ids = generator(&cx, IdOptions::blocks(100)).await;
        let name = ids.name().to_owned();
        crate::patience::poll_then_drop(ids.next(), polls).await;
        let first = ids.next().await.unwrap();
        let second = ids.next().await.unwrap();
        assert_eq!(i64::from(second), i64::from(first) + 1, "{name}");
    }
    let ids = generator(&cx, IdOptions::default()).await;
    for polls in 1..4 {
        crate::patience::poll_then_drop(ids.batch(10), polls).await;
    }
    ids.next().await.unwrap();
    assert_eq!(cx.id_workers("orders").await, 1, "one claim");
}
