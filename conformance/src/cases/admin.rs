//! What an inspector tells of locks, leases and jobs.

use std::time::Duration;

use lockapi::admin::{Filter, LockMode, MAX_ENTRIES};
use lockapi::lease::LeaseOptions;
use lockapi::queue::{Claim, Job};
use lockapi::{ErrorKind, Key};

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::eventually;

register! { "admin":
    H01 held_mutex_is_seen_with_its_name;
    H01 held_for_a_moment_writes_nothing;
    H01 numbers_of_persons_are_seen_as_numbers;
    H01 held_lease_is_seen;
    H01 session_of_a_mutex_is_known [Sessions];
    H03 running_job_is_seen_with_its_worker;
    H04 filter_and_limit_choose;
}

async fn held_mutex_is_seen_with_its_name(cx: Context) {
    let (here, there) = (cx.backend().await, cx.backend().await);
    let inspector = there.inspector();
    let guard = here.mutex("reports/daily").unwrap().lock().await.unwrap();
    // By its key at once, by name and with its age once that is noted.
    let held = inspector
        .locks(&Filter::key("reports/daily"))
        .await
        .unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(held[0].name, "reports/daily");
    let filter = Filter::new();
    eventually("it is noted", async || {
        let held = inspector.locks(&filter).await.unwrap();
        held.len() == 1 && held[0].held_for.is_some()
    })
    .await;
    let held = inspector.locks(&filter).await.unwrap().remove(0);
    assert_eq!(held.name, "reports/daily");
    assert_eq!(held.namespace.as_deref(), Some(cx.namespace()));
    assert_eq!(held.mode, LockMode::Exclusive);
    assert_eq!(held.fence, Some(guard.fence().token()));
    let process = format!("pid {}", std::process::id());
    assert_eq!(held.owner, Some(process));
    let age = held.held_for.unwrap();
    assert!(age >= Duration::from_millis(400) && age < MINUTE, "{age:?}");
    guard.unlock().await.unwrap();
    assert!(inspector.locks(&filter).await.unwrap().is_empty());
}

async fn held_for_a_moment_writes_nothing(cx: Context) {
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    for n in 0..20 {
        let mutex = backend.mutex(format!("brief {n}")).unwrap();
        mutex.lock().await.unwrap().unlock().await.unwrap();
    }
    let long = backend.mutex("long").unwrap().lock().await.unwrap();
    eventually("what is held long is noted", async || {
        let held = inspector.locks(&Filter::new()).await.unwrap();
        held.iter().any(|one| one.name == "long")
    })
    .await;
    // A lock that was noted would have a name in everybody's eyes.
    let other = cx.backend().await;
    let brief = other.mutex("brief 7").unwrap().lock().await.unwrap();
    let held = inspector.locks(&Filter::new()).await.unwrap();
    assert!(held.iter().all(|one| one.name == "long"), "{held:?}");
    brief.unlock().await.unwrap();
    long.unlock().await.unwrap();
}

async fn numbers_of_persons_are_seen_as_numbers(cx: Context) {
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    let number = fastrand::i64(..);
    let (class, object) = (fastrand::i32(..), fastrand::i32(..));
    for key in [Key::from(number), Key::from((class, object))] {
        let guard = backend.mutex(&key).unwrap().lock().await.unwrap();
        let held = inspector.locks(&Filter::key(&key)).await.unwrap();
        assert_eq!(held.len(), 1, "{held:?}");
        assert_eq!(held[0].name, key.to_string());
        assert_eq!(held[0].namespace, None);
        let all = Filter::new().everywhere().limit(MAX_ENTRIES);
        let all = inspector.locks(&all).await.unwrap();
        assert!(all.iter().any(|one| one.name == key.to_string()));
        guard.unlock().await.unwrap();
    }
}

async fn held_lease_is_seen(cx: Context) {
    let options = LeaseOptions::new(MINUTE)
        .owner("node-7")
        .data("here")
        .renewed_by_hand();
    let backend = cx.backend().await;
    let guard = backend
        .lease("job", options)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let inspector = cx.backend().await.inspector();
    cx.elapse(MINUTE / 4).await;
    let held = inspector.leases(&Filter::new()).await.unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!((&*held[0].owner, &*held[0].data), ("node-7", "here"));
    assert_eq!(
        (&*held[0].key, &*held[0].namespace),
        ("job", cx.namespace())
    );
    assert_eq!(held[0].fence, guard.fence().token());
    assert!(held[0].held_for >= MINUTE / 4 && held[0].remaining < MINUTE.mul_f64(0.76));
    assert!(
        inspector
            .leases(&Filter::key("other"))
            .await
            .unwrap()
            .is_empty()
    );
    guard.release().await.unwrap();
    assert!(inspector.leases(&Filter::new()).await.unwrap().is_empty());
}

async fn session_of_a_mutex_is_known(cx: Context) {
    let backend = cx.backend().await;
    let guard = backend.mutex("door").unwrap().lock().await.unwrap();
    let held = backend
        .inspector()
        .locks(&Filter::key("door"))
        .await
        .unwrap();
    assert!(held[0].pid.is_some());
    assert!(held[0].application.is_some() && held[0].username.is_some());
    guard.unlock().await.unwrap();
}

async fn running_job_is_seen_with_its_worker(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let inspector = backend.inspector();
    let pushed = queue.push(Job::new("send", "ada").unwrap()).await.unwrap();
    queue.push(Job::new("send", "bob").unwrap()).await.unwrap();
    assert!(inspector.running(&Filter::new()).await.unwrap().is_empty());
    let claim = Claim::new(1).worker("node-7").lease(MINUTE);
    let mut claimed = queue.claim(&claim).await.unwrap();
    let delivery = claimed.remove(0);
    let running = inspector.running(&Filter::queue("work")).await.unwrap();
    assert_eq!(running.len(), 1, "{running:?}");
    let job = &running[0];
    assert_eq!(
        (job.id, &*job.worker, &*job.name),
        (pushed.id, "node-7", "send")
    );
    assert_eq!(
        (&*job.queue, &*job.namespace, job.attempt),
        ("work", cx.namespace(), 1)
    );
    assert!(job.lease_left > MINUTE / 2 && job.lease_left <= MINUTE);
    assert!(
        inspector
            .running(&Filter::queue("other"))
            .await
            .unwrap()
            .is_empty()
    );
    delivery.ack().await.unwrap();
    assert!(inspector.running(&Filter::new()).await.unwrap().is_empty());
}

async fn filter_and_limit_choose(cx: Context) {
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    let mut guards = Vec::new();
    for n in 0..5 {
        let lease = backend
            .lease(format!("job {n}"), LeaseOptions::new(MINUTE))
            .unwrap();
        guards.push(lease.acquire().await.unwrap());
    }
    let keys = |held: Vec<lockapi::admin::HeldLease>| -> Vec<String> {
        held.into_iter().map(|one| one.key).collect()
    };
    let two = inspector.leases(&Filter::new().limit(2)).await.unwrap();
    assert_eq!(keys(two), ["job 0", "job 1"]);
    let one = inspector.leases(&Filter::key("job 3")).await.unwrap();
    assert_eq!(keys(one), ["job 3"]);
    let elsewhere = cx.elsewhere().await.backend().await.inspector();
    assert!(elsewhere.leases(&Filter::new()).await.unwrap().is_empty());
    let all = Filter::new().everywhere().limit(MAX_ENTRIES);
    let all = elsewhere.leases(&all).await.unwrap();
    assert!(
        all.iter()
            .filter(|one| one.namespace == cx.namespace())
            .count()
            == 5
    );
    for limit in [0, MAX_ENTRIES + 1] {
        let error = inspector
            .locks(&Filter::new().limit(limit))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let error = inspector.locks(&Filter::key("")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    for guard in guards {
        guard.release().await.unwrap();
    }
}
