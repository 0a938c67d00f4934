//! What an election promises.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use lockapi::lease::LeaseOptions;
use lockapi::{Election, Error, ErrorKind, Stop};

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::{eventually, not_yet, soon};

register! { "election":
    E01 there_is_one_leader_and_tokens_grow;
    E02 everybody_can_read_who_leads;
    E03 work_stops_when_the_term_ends;
    E04 observers_see_the_leader_change;
    E04 observers_see_a_leader_follow_another;
    E04 observers_see_a_term_expire;
    E05 a_leader_that_died_is_replaced;
    E06 minimum_hold_outlasts_a_resignation;
    E07 lease_leader_mutex_and_permits_of_a_key_do_not_meet;
    E08 elections_work_behind_a_proxy @ Proxy [Proxy];
    E10 candidates_of_a_process_are_served_in_the_order_of_arrival [Futures];
    E09 leads_term_by_term_until_it_is_told_to_stop;
    E09 failed_work_ends_the_leadership;
}

fn by_hand() -> LeaseOptions {
    LeaseOptions::new(MINUTE).renewed_by_hand()
}

async fn election(cx: &Context, options: LeaseOptions) -> Arc<dyn Election> {
    cx.backend().await.election("head", options).unwrap()
}

async fn there_is_one_leader_and_tokens_grow(cx: Context) {
    exercise(&cx).await;
}

async fn elections_work_behind_a_proxy(cx: Context) {
    exercise(&cx).await;
    let (here, there) = (
        election(&cx, by_hand()).await,
        election(&cx, by_hand()).await,
    );
    let mut leaders = there.observe();
    assert_eq!(leaders.next().await.unwrap(), None);
    let term = here.campaign().await.unwrap();
    let seen = soon("the leader", leaders.next()).await.unwrap();
    assert_eq!(seen.expect("a leader").token, term.fence().token());
    term.release().await.unwrap();
}

async fn exercise(cx: &Context) {
    for near in [true, false] {
        let backend = cx.backend().await;
        let here = backend.election("head", by_hand()).unwrap();
        let there = if near {
            backend.election("head", by_hand()).unwrap()
        } else {
            election(cx, by_hand()).await
        };
        let term = here.try_campaign().await.unwrap().expect("no leader");
        assert!(there.try_campaign().await.unwrap().is_none());
        assert!(here.try_campaign().await.unwrap().is_none());
        let timeout = Duration::from_millis(50);
        for timeout in [Duration::ZERO, timeout] {
            let late = soon("an answer", there.campaign_timeout(timeout)).await;
            assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
        }
        let waiting = tokio::spawn(async move { there.campaign().await });
        tokio::pin!(waiting);
        not_yet("elected while another leads", &mut waiting).await;
        let token = term.fence().token();
        term.release().await.unwrap();
        let next = soon("the next leader", waiting).await.unwrap().unwrap();
        assert!(next.fence().token() > token);
        next.release().await.unwrap();
    }
}

async fn everybody_can_read_who_leads(cx: Context) {
    let options = by_hand().owner("node-7").data("10.0.0.7:80");
    let (here, there) = (election(&cx, options).await, election(&cx, by_hand()).await);
    assert_eq!(there.leader().await.unwrap(), None);
    let term = here.campaign().await.unwrap();
    let leader = there.leader().await.unwrap().expect("a leader");
    assert_eq!((&*leader.owner, &*leader.data), ("node-7", "10.0.0.7:80"));
    assert_eq!(leader.token, term.fence().token());
    term.release().await.unwrap();
    assert_eq!(there.leader().await.unwrap(), None);
}

async fn work_stops_when_the_term_ends(cx: Context) {
    let ttl = Duration::from_millis(1500);
    let (here, there) = (
        election(&cx, LeaseOptions::new(ttl)).await,
        election(&cx, by_hand()).await,
    );
    let led = here
        .lead(async |fence| Ok::<_, Error>(fence.token()))
        .await
        .unwrap();
    assert_eq!(there.leader().await.unwrap(), None, "it has resigned");
    let (started, starts) = tokio::sync::oneshot::channel();
    let leading = tokio::spawn(async move {
        here.lead(async |fence| {
            started.send(fence.token()).unwrap();
            std::future::pending::<Result<(), Error>>().await
        })
        .await
    });
    let token = soon("it leads", starts).await.unwrap();
    assert!(token > led);
    cx.elapse(ttl * 2).await;
    let outcome = soon("the work is dropped", leading).await.unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
    // Without renewals the holder's clock alone ends the work, before the server's ends the term.
    let by_hand = LeaseOptions::new(Duration::from_millis(700)).renewed_by_hand();
    let short = election(&cx, by_hand).await;
    let term = short.campaign().await.unwrap();
    let next = soon("the next leader", there.campaign()).await.unwrap();
    assert!(term.is_lost(), "two believe that they lead");
    next.release().await.unwrap();
}

async fn observers_see_the_leader_change(cx: Context) {
    let (here, there) = (
        election(&cx, by_hand()).await,
        election(&cx, by_hand()).await,
    );
    let mut leaders = there.observe();
    assert_eq!(soon("nobody", leaders.next()).await.unwrap(), None);
    for candidate in [&here, &there] {
        let token = {
            let seeing = tokio::spawn(async move {
                let seen = leaders.next().await.unwrap();
                (leaders, seen)
            });
            tokio::pin!(seeing);
            not_yet("a change without a change", &mut seeing).await;
            let term = candidate.campaign().await.unwrap();
            let (observer, seen) = soon("a leader", seeing).await.unwrap();
            leaders = observer;
            assert_eq!(seen.expect("a leader").token, term.fence().token());
            let token = term.fence().token();
            term.release().await.unwrap();
            token
        };
        let seen = soon("nobody", leaders.next()).await.unwrap();
        assert_eq!(seen, None, "after {token}");
    }
}

async fn observers_see_a_leader_follow_another(cx: Context) {
    let (here, there) = (
        election(&cx, by_hand()).await,
        election(&cx, by_hand()).await,
    );
    let mut leaders = there.observe();
    for candidate in [&here, &there, &here] {
        let term = candidate.campaign().await.unwrap();
        let seen = soon("the next leader", leaders.next()).await.unwrap();
        assert_eq!(seen.expect("a leader").token, term.fence().token());
        term.release().await.unwrap();
    }
}

async fn observers_see_a_term_expire(cx: Context) {
    let (here, there) = (
        election(&cx, by_hand()).await,
        election(&cx, by_hand()).await,
    );
    let term = here.campaign().await.unwrap();
    let mut leaders = there.observe();
    let seen = soon("a leader", leaders.next()).await.unwrap();
    assert_eq!(seen.expect("a leader").token, term.fence().token());
    cx.elapse(MINUTE).await;
    assert_eq!(soon("nobody", leaders.next()).await.unwrap(), None);
    let next = there.campaign().await.unwrap();
    let seen = soon("a leader", leaders.next()).await.unwrap();
    assert_eq!(seen.expect("a leader").token, next.fence().token());
    next.release().await.unwrap();
}

async fn a_leader_that_died_is_replaced(cx: Context) {
    let (here, there) = (
        election(&cx, by_hand()).await,
        election(&cx, by_hand()).await,
    );
    let stale = here.campaign().await.unwrap();
    let waiting = tokio::spawn({
        let there = Arc::clone(&there);
        async move { there.campaign().await }
    });
    tokio::pin!(waiting);
    not_yet("elected while another leads", &mut waiting).await;
    cx.elapse(MINUTE).await;
    let next = soon("the next leader", waiting).await.unwrap().unwrap();
    assert!(next.fence().token() > stale.fence().token());
    assert_eq!(stale.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let leader = there.leader().await.unwrap().expect("a leader");
    assert_eq!(leader.token, next.fence().token());
    next.release().await.unwrap();
}

async fn minimum_hold_outlasts_a_resignation(cx: Context) {
    let election = election(&cx, by_hand().minimum_hold(MINUTE / 2)).await;
    election.lead(async |_| Ok::<_, Error>(())).await.unwrap();
    assert_eq!(election.leader().await.unwrap(), None);
    assert!(election.try_campaign().await.unwrap().is_none());
    cx.elapse(MINUTE / 2).await;
    election.lead(async |_| Ok::<_, Error>(())).await.unwrap();
}

/// Who comes in the moment in which the term ends is behind those who wait.
async fn candidates_of_a_process_are_served_in_the_order_of_arrival(cx: Context) {
    const ROUNDS: usize = 20;
    let election = election(&cx, LeaseOptions::new(MINUTE)).await;
    let mut overtaken = 0;
    for _ in 0..ROUNDS {
        let leader = election.campaign().await.unwrap();
        let mut first = Box::pin(election.campaign());
        // Once what was asked later is answered, its first attempts are in nearly all rounds, and it waits.
        for _ in 0..3 {
            assert!((&mut first).now_or_never().is_none());
            election.leader().await.unwrap();
        }
        assert!((&mut first).now_or_never().is_none());
        let mut second = Box::pin(election.campaign());
        let comes = async { assert!((&mut second).now_or_never().is_none()) };
        let (resigned, ()) = tokio::join!(leader.release(), comes);
        resigned.unwrap();
        let (leader, other) = match soon("one leads", select(first, second)).await {
            Either::Left(first_leads) => first_leads,
            Either::Right(second_leads) => {
                overtaken += 1;
                second_leads
            }
        };
        leader.unwrap().release().await.unwrap();
        let leader = soon("the other leads", other).await.unwrap();
        leader.release().await.unwrap();
    }
    assert!(overtaken < ROUNDS / 2, "{overtaken} of {ROUNDS}");
}

async fn leads_term_by_term_until_it_is_told_to_stop(cx: Context) {
    let ttl = Duration::from_millis(1500);
    let (here, there) = (
        election(&cx, LeaseOptions::new(ttl)).await,
        election(&cx, by_hand()).await,
    );
    let (stop, (begun, mut options)) = (Stop::new(), tokio::sync::mpsc::unbounded_channel());
    let leading = tokio::spawn({
        let stop = stop.clone();
        async move {
            let led = here.lead_until(stop, async |fence| {
                begun.send(fence.token()).unwrap();
                std::future::pending::<Result<(), Error>>().await
            });
            led.await
        }
    });
    tokio::pin!(leading);
    let first = soon("a term", options.recv()).await.unwrap();
    cx.elapse(ttl * 2).await;
    let second = soon("another term", options.recv()).await.unwrap();
    assert!(second > first);
    not_yet("it leads", &mut leading).await;
    stop.stop();
    assert_eq!(soon("it stops", leading).await.unwrap().unwrap(), None);
    assert_eq!(there.leader().await.unwrap(), None, "it has resigned");
    // Who does not lead stops as well.
    let term = there.campaign().await.unwrap();
    let never = async |_| -> Result<(), Error> { panic!("another leads") };
    let other = election(&cx, by_hand()).await;
    let stop = tokio::time::sleep(Duration::from_millis(50));
    let waited = soon("it stops", other.lead_until(stop, never)).await;
    assert_eq!(waited.unwrap(), None);
    term.release().await.unwrap();
}

async fn failed_work_ends_the_leadership(cx: Context) {
    #[derive(Debug)]
    enum Failure {
        Work,
        Election,
    }
    impl From<Error> for Failure {
        fn from(_: Error) -> Self {
            Self::Election
        }
    }
    let election = election(&cx, by_hand()).await;
    let fails = async |_| Err::<(), _>(Failure::Work);
    let led = election.lead_until(Stop::new(), fails).await;
    assert!(matches!(led, Err(Failure::Work)), "{led:?}");
    let led = election.lead(fails).await;
    assert!(matches!(led, Err(Failure::Work)), "{led:?}");
    let ends = async |_| Ok::<_, Failure>(7);
    let led = election.lead_until(Stop::new(), ends).await;
    assert_eq!(led.unwrap(), Some(7));
    assert_eq!(election.leader().await.unwrap(), None);
}

async fn lease_leader_mutex_and_permits_of_a_key_do_not_meet(cx: Context) {
    let backend = cx.backend().await;
    let lease = backend.lease("head", by_hand()).unwrap();
    let election = backend.election("head", by_hand()).unwrap();
    let mutex = backend.leased_mutex("head", by_hand()).unwrap();
    let semaphore = backend.semaphore("head", 1, by_hand()).unwrap();
    let (leased, term) = (
        lease.acquire().await.unwrap(),
        election.campaign().await.unwrap(),
    );
    let (locked, permit) = (
        mutex.lock().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
    let slots = cx.slots("head").await;
    let slots: Vec<_> = slots
        .iter()
        .map(|(slot, holder)| (*slot, holder.fence))
        .collect();
    let expected = [
        (-2, locked.fence().token()),
        (-1, term.fence().token()),
        (0, leased.fence().token()),
        (1, permit.fence().token()),
    ];
    assert_eq!(slots, expected);
    permit.release().await.unwrap();
    assert!(!locked.is_lost() && !leased.is_lost() && !term.is_lost());
    assert!(
        lease
            .run_exclusive(async |_| Ok::<_, Error>(()))
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        mutex
            .run_exclusive(async |_| Ok::<_, Error>(()))
            .await
            .unwrap()
            .is_none()
    );
    assert!(election.try_campaign().await.unwrap().is_none());
    let free = semaphore
        .run_permitted(async |_| Ok::<_, Error>(()))
        .await
        .unwrap();
    assert!(free.is_some());
    drop((leased, term, locked));
    eventually("all are free", async || cx.slots("head").await.is_empty()).await;
}
