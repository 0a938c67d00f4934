//! Clients that stop waiting, and clients that are kept from reading.

use std::thread;
use std::time::{Duration, Instant};

use lockapi::BackendOptions;
use lockapi::ErrorKind;
use lockapi::lease::LeaseOptions;
use lockapi::queue::Job;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::context::{Context, MINUTE};
use crate::face::off_runtime;
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "unanswered":
    W03 statement_does_not_outlast_its_client @ Own [Sql];
    W03 commit_that_was_given_up_is_cancelled @ Own [Sql];
    W03 commit_under_hostile_settings_is_cancelled @ Own [Sql];
    W08 blocked_thread_loses_nothing @ Own [Futures];
}

const TIMEOUT: Duration = Duration::from_secs(2);

/// How many statements or commits of pushes the server has under way.
const AT_WORK: &str = "SELECT count(*)::text FROM pg_stat_activity
     WHERE pid <> pg_backend_pid() AND state = 'active' AND query LIKE '%INTO lockapi.job (%'";

/// Pushes a job that takes the server half a minute.
async fn slow_push(cx: &Context, when: &str) -> (ErrorKind, Duration) {
    cx.sql(&format!(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN PERFORM pg_catalog.pg_sleep(30); RETURN NULL; END';
         CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON lockapi.job DEFERRABLE INITIALLY {when}
             FOR EACH ROW EXECUTE FUNCTION slow();
         SELECT ''"
    ))
    .await;
    let options = BackendOptions::default().timeout(TIMEOUT);
    let backend = cx.connect(options).await.unwrap();
    let queue = backend.queue("work").unwrap();
    let pushing = queue.push(Job::new("count", &1).unwrap());
    let start = Instant::now();
    let failed = soon("an answer", pushing).await.unwrap_err();
    let waited = start.elapsed();
    eventually("the server gives up", async || {
        cx.sql(AT_WORK).await == ["0"]
    })
    .await;
    assert!(
        start.elapsed() < waited + TIMEOUT * 2,
        "nobody waits for it"
    );
    assert_eq!(cx.jobs().await.waiting, 0);
    (failed.kind(), waited)
}

async fn statement_does_not_outlast_its_client(cx: Context) {
    let (kind, waited) = slow_push(&cx, "IMMEDIATE").await;
    assert_eq!(
        kind,
        ErrorKind::Unavailable,
        "the server says that it gave up"
    );
    assert!(waited > TIMEOUT / 2 && waited < TIMEOUT * 2, "{waited:?}");
}

/// No timeout of the server bounds a commit.
async fn commit_that_was_given_up_is_cancelled(cx: Context) {
    let (kind, waited) = slow_push(&cx, "DEFERRED").await;
    assert_eq!(kind, ErrorKind::Indeterminate);
    assert!(waited >= TIMEOUT && waited < TIMEOUT * 2, "{waited:?}");
}

/// What cancels it is sent on a connection of its own, first of all.
async fn commit_under_hostile_settings_is_cancelled(cx: Context) {
    cx.sql(
        "CREATE SCHEMA hostile;
         CREATE DOMAIN hostile.int8 AS pg_catalog.int8 CHECK (false);
         DO $$ BEGIN
             EXECUTE format('ALTER DATABASE %I SET search_path = hostile, pg_catalog', current_database());
         END $$;
         SELECT ''",
    )
    .await;
    commit_that_was_given_up_is_cancelled(cx).await;
}

/// All that the program has is one thread, and it blocks that for longer than every timeout while
/// answers come in.
async fn blocked_thread_loses_nothing(cx: Context) {
    const MUTEXES: usize = 20;
    let (ready, opened) = oneshot::channel();
    let (silence, silent) = oneshot::channel();
    let (sent, asked) = oneshot::channel();
    let own = cx.clone();
    let program = off_runtime(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = BackendOptions::default().timeout(TIMEOUT);
            let backend = own.connect(options).await.unwrap();
            let lease = backend.lease("job", LeaseOptions::new(MINUTE)).unwrap();
            let leased = lease.acquire().await.unwrap();
            let mut locked = Vec::new();
            for number in 0..MUTEXES {
                let mutex = backend.mutex(format!("door-{number}")).unwrap();
                locked.push(mutex.lock().await.unwrap());
            }
            let other = backend.mutex("other").unwrap();
            ready.send(()).unwrap();
            silent.await.unwrap();
            let (locking, renewing) = (other.try_lock(), leased.renew());
            let mut asking = Box::pin(async { tokio::join!(locking, renewing) });
            let sending = tokio::time::sleep(Duration::from_millis(100));
            tokio::select! {
                _ = &mut asking => panic!("the server is not silent"),
                () = sending => sent.send(()).unwrap(),
            }
            thread::sleep(TIMEOUT + TIMEOUT / 2);
            let (tried, renewed) = soon("answered", asking).await;
            let lost = locked.iter().filter(|guard| guard.is_lost()).count();
            assert_eq!(lost, 0, "of {MUTEXES}");
            tried.unwrap().unwrap().unlock().await.unwrap();
            renewed.unwrap();
            for guard in locked {
                guard.unlock().await.unwrap();
            }
            leased.release().await.unwrap();
        });
    });
    let answering = async {
        opened.await.unwrap();
        cx.set_silent(true).await;
        silence.send(()).unwrap();
        asked.await.unwrap();
        // The answers come in while nobody reads them.
        tokio::time::sleep(Duration::from_millis(200)).await;
        cx.set_silent(false).await;
    };
    tokio::join!(program, answering);
}
