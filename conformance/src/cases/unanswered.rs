//! Clients that stop waiting, and clients that are kept from reading.

use std::thread;
use std::time::{Duration, Instant};

use lockapi::engine::Options;
use lockapi::lease::Terms;
use lockapi::queue::Job;
use lockapi::{BackendExt, ErrorKind, QueueExt};
use tokio::runtime::Builder;

use crate::context::{Context, MINUTE};
use crate::face::off_runtime;
use crate::harness::register;
use crate::patience::{eventually, soon};

register! { "unanswered":
    W03 statement_does_not_outlast_its_client @ Own [Sql];
    W03 commit_that_was_given_up_is_cancelled @ Own [Sql];
    W08 blocked_thread_loses_nothing [Futures];
}

const TIMEOUT: Duration = Duration::from_secs(2);

/// How many statements or commits of pushes the server has under way.
const AT_WORK: &str = "SELECT count(*)::text FROM pg_stat_activity
     WHERE pid <> pg_backend_pid() AND state = 'active' AND query LIKE '%INTO lockapi.job (%'";

/// Pushes a job that takes the server half a minute.
async fn slow_push(cx: &Context, when: &str) -> (ErrorKind, Duration) {
    cx.sql(&format!(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN PERFORM pg_sleep(30); RETURN NULL; END';
         CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON lockapi.job DEFERRABLE INITIALLY {when}
             FOR EACH ROW EXECUTE FUNCTION slow();
         SELECT ''"
    ))
    .await;
    let options = Options::default().timeout(TIMEOUT);
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

/// All that the program has is one thread, and it blocks that for longer than every timeout.
async fn blocked_thread_loses_nothing(cx: Context) {
    const MUTEXES: usize = 20;
    off_runtime(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = Options::default()
                .timeout(TIMEOUT)
                .heartbeat(Duration::from_millis(10));
            let backend = cx.connect(options).await.unwrap();
            let lease = backend.lease("job", Terms::new(MINUTE)).unwrap();
            let leased = lease.acquire().await.unwrap();
            let mut locked = Vec::new();
            for number in 0..MUTEXES {
                let mutex = backend.mutex(format!("door-{number}")).unwrap();
                locked.push(mutex.lock().await.unwrap());
            }
            let other = backend.mutex("other").unwrap();
            for round in 0..2 {
                // Statements are under way, and a session is asked whether it lives.
                let (locking, renewing) = (other.try_lock(), leased.renew());
                let mut asked = Box::pin(async { tokio::join!(locking, renewing) });
                assert!(futures_util::poll!(&mut asked).is_pending());
                for _ in 0..3 {
                    // The tasks of this thread send it.
                    tokio::task::yield_now().await;
                }
                thread::sleep(TIMEOUT + TIMEOUT / 2);
                let (tried, renewed) = soon("answered", asked).await;
                tried.unwrap().unwrap().unlock().await.unwrap();
                renewed.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
                let lost = locked.iter().filter(|guard| guard.is_lost()).count();
                assert_eq!(lost, 0, "round {round}: of {MUTEXES}");
            }
            assert!(!leased.is_lost());
            for guard in locked {
                guard.unlock().await.unwrap();
            }
            leased.release().await.unwrap();
        });
    })
    .await;
}
