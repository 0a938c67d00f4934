//! What is measured, each by the library and in other ways.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockapi::lease::LeaseOptions;
use lockapi::limit::{PermitRequest, Quota};
use lockapi::queue::Job;
use lockapi::{Backend, LeaseGuard};
use sqlx::postgres::PgAdvisoryLock;
use sqlx::{Acquire, PgPool};
use tokio::sync::OnceCell;

use crate::CALLERS;
use crate::common::plain;

/// A round of a caller.
pub(super) type Work =
    Arc<dyn Fn(usize, u64) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

fn work<F: Future<Output = ()> + Send + 'static>(
    work: impl Fn(usize, u64) -> F + Send + Sync + 'static,
) -> Work {
    Arc::new(move |caller, round| Box::pin(work(caller, round)))
}

/// Something that is done in two ways.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// How many rounds are run before: after them every key is there.
    pub(super) before: u64,
    pub(super) ours: Work,
    pub(super) others: Vec<(&'static str, Work)>,
}

pub(super) fn all(backend: &Arc<dyn Backend>, pool: &PgPool) -> Vec<Scenario> {
    vec![
        locks(backend, pool),
        leases(backend, pool),
        renewals(backend, pool),
        limit(backend, pool, "limit.one_key", |_, _| 0),
        limit(backend, pool, "limit.1000_keys", |caller, round| {
            (caller as u64 * 7919 + round * 104_729) % 1000
        }),
        windows(backend),
        pairs(backend),
        pushes(backend, pool),
    ]
}

/// A handle for each caller.
fn handles<T>(open: impl Fn(usize) -> T) -> Vec<T> {
    let most = CALLERS.iter().max().copied().unwrap_or_default();
    (0..most).map(open).collect()
}

/// Lock and unlock, a key for each caller.
fn locks(backend: &Arc<dyn Backend>, pool: &PgPool) -> Scenario {
    let all = handles(|caller| backend.mutex(format!("bench/{caller}")).expect("a mutex"));
    let ours = work(move |caller, _| {
        let mutex = Arc::clone(&all[caller]);
        async move {
            let guard = mutex.lock().await.expect("the lock");
            guard.unlock().await.expect("unlocked");
        }
    });
    let raw = {
        let pool = pool.clone();
        work(move |caller, _| {
            let pool = pool.clone();
            async move {
                let mut connection = pool.acquire().await.expect("a connection");
                let connection = connection.acquire().await.expect("the connection");
                for sql in plain::LOCK {
                    let key = i64::try_from(caller).expect("a small number");
                    let query = sqlx::query(sql).bind(key);
                    query.fetch_one(&mut *connection).await.expect("a row");
                }
            }
        })
    };
    let advisory = {
        let pool = pool.clone();
        work(move |caller, _| {
            let pool = pool.clone();
            async move {
                let lock = PgAdvisoryLock::new(format!("bench/{caller}"));
                let connection = pool.acquire().await.expect("a connection");
                let guard = lock.acquire(connection).await.expect("the lock");
                guard.release_now().await.expect("unlocked");
            }
        })
    };
    Scenario {
        name: "lock",
        before: 0,
        ours,
        others: vec![("two raw round trips", raw), ("PgAdvisoryLock", advisory)],
    }
}

/// Acquire and release, a key for each caller.
fn leases(backend: &Arc<dyn Backend>, pool: &PgPool) -> Scenario {
    let all = handles(|caller| {
        let options = LeaseOptions::new(Duration::from_secs(30));
        let lease = backend.lease(format!("bench/{caller}"), options);
        lease.expect("a lease")
    });
    let ours = work(move |caller, _| {
        let lease = Arc::clone(&all[caller]);
        async move {
            let guard = lease
                .try_acquire()
                .await
                .expect("an answer")
                .expect("the lease");
            guard.release().await.expect("released");
        }
    });
    let raw = {
        let pool = pool.clone();
        work(move |caller, _| {
            let pool = pool.clone();
            async move {
                let mut connection = pool.acquire().await.expect("a connection");
                let key = format!("bench/{caller}");
                let token: i64 = sqlx::query_scalar(plain::ACQUIRE)
                    .bind(&key)
                    .bind("me")
                    .fetch_one(&mut *connection)
                    .await
                    .expect("the lease");
                sqlx::query(plain::RELEASE)
                    .bind(&key)
                    .bind(token)
                    .execute(&mut *connection)
                    .await
                    .expect("released");
            }
        })
    };
    Scenario {
        name: "lease",
        before: 0,
        ours,
        others: vec![("a raw upsert", raw)],
    }
}

/// Renewals of a lease that each caller holds.
fn renewals(backend: &Arc<dyn Backend>, pool: &PgPool) -> Scenario {
    let all: Arc<Vec<_>> = Arc::new(handles(|caller| {
        let options = LeaseOptions::new(Duration::from_mins(10)).renewed_by_hand();
        let lease = backend.lease(format!("bench/renewed/{caller}"), options);
        let guard: OnceCell<Box<dyn LeaseGuard>> = OnceCell::new();
        (lease.expect("a lease"), guard)
    }));
    let ours = work(move |caller, _| {
        let all = Arc::clone(&all);
        async move {
            let (lease, guard) = &all[caller];
            let acquire = || async { lease.try_acquire().await.expect("an answer").expect("it") };
            let guard = guard.get_or_init(acquire).await;
            guard.renew().await.expect("renewed");
        }
    });
    let pool = pool.clone();
    let raw = work(move |caller, round| {
        let pool = pool.clone();
        async move {
            let key = format!("bench/renewed/{caller}");
            let sql = if round == 0 {
                plain::HOLD
            } else {
                plain::RENEW
            };
            let query = sqlx::query(sql).bind(&key);
            query.execute(&pool).await.expect("renewed");
        }
    });
    Scenario {
        name: "renew",
        before: 0,
        ours,
        others: vec![("a raw update", raw)],
    }
}

/// A limit that is never reached.
fn limit(
    backend: &Arc<dyn Backend>,
    pool: &PgPool,
    name: &'static str,
    key: fn(usize, u64) -> u64,
) -> Scenario {
    let quota = Quota::per_second(10_000).burst(1_000_000_000);
    let limiter = backend.rate_limiter(quota).expect("a limiter");
    let ours = work(move |caller, round| {
        let limiter = Arc::clone(&limiter);
        async move {
            let key = format!("bench/{}", key(caller, round));
            let decision = limiter.check(&*key).await.expect("a decision");
            assert!(decision.is_admitted());
        }
    });
    let pool = pool.clone();
    let function = work(move |caller, round| {
        let pool = pool.clone();
        async move {
            let query = sqlx::query_scalar(plain::CHECK_SECOND);
            let query = query.bind(format!("bench/{}", key(caller, round)));
            let admitted: bool = query
                .bind(i32::MAX)
                .fetch_one(&pool)
                .await
                .expect("a decision");
            assert!(admitted);
        }
    });
    Scenario {
        name,
        before: 1000,
        ours,
        others: vec![("a function with an advisory lock", function)],
    }
}

/// A check of one limit.
fn check(backend: &Arc<dyn Backend>, quota: Quota) -> Work {
    let limiter = backend.rate_limiter(quota).expect("a limiter");
    work(move |caller, round| {
        let limiter = Arc::clone(&limiter);
        async move {
            let key = format!("bench/{}", (caller as u64 * 7919 + round * 104_729) % 1000);
            let decision = limiter.check(&*key).await.expect("a decision");
            assert!(decision.is_admitted());
        }
    })
}

/// A fixed window against the cell rate algorithm.
fn windows(backend: &Arc<dyn Backend>) -> Scenario {
    Scenario {
        name: "window",
        before: 1000,
        ours: check(backend, Quota::per_second(1_000_000_000).fixed_window()),
        others: vec![("a check of one limit", check(backend, plenty()))],
    }
}

fn plenty() -> Quota {
    Quota::per_second(10_000).burst(1_000_000_000)
}

/// Two keys at once against one.
fn pairs(backend: &Arc<dyn Backend>) -> Scenario {
    let limiter = backend.rate_limiter(plenty()).expect("a limiter");
    let ours = work(move |caller, round| {
        let limiter = Arc::clone(&limiter);
        async move {
            let user = format!("bench/user/{caller}");
            let tenant = format!("bench/tenant/{}", round % 100);
            let requests = [PermitRequest::new(&*user), PermitRequest::new(&*tenant)];
            let verdict = limiter.check_all(&requests).await.expect("a decision");
            assert!(verdict.is_admitted());
        }
    });
    Scenario {
        name: "check_all",
        before: 1000,
        ours,
        others: vec![("a check of one limit", check(backend, plenty()))],
    }
}

/// Pushes of one job.
fn pushes(backend: &Arc<dyn Backend>, pool: &PgPool) -> Scenario {
    let queue = backend.queue("bench").expect("a queue");
    let payload = serde_json::json!({"customer": 4711, "action": "remind"});
    let job = Job::new("remind", &payload).expect("a job");
    let ours = work(move |_, _| {
        let (queue, job) = (Arc::clone(&queue), job.clone());
        async move {
            queue.push(job).await.expect("pushed");
        }
    });
    let pool = pool.clone();
    let raw = work(move |_, _| {
        let (pool, payload) = (pool.clone(), payload.clone());
        async move {
            let query = sqlx::query_scalar(plain::PUSH);
            let query = query.bind("bench").bind(payload.to_string());
            let _id: i64 = query.fetch_one(&pool).await.expect("pushed");
        }
    });
    Scenario {
        name: "push",
        before: 0,
        ours,
        others: vec![("a raw insert", raw)],
    }
}
