//! What an inspector looks up: queues, jobs, limits and worker numbers.

use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::admin::{Filter, JobFilter, JobState, MAX_PAGE};
use lockapi::id::IdOptions;
use lockapi::limit::Quota;
use lockapi::queue::{Claim, Job, Pause, Priority, QueueOptions, Unique};
use lockapi::schedule::Task;

use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::eventually;

register! { "admin":
    H09 jobs_are_listed_page_by_page;
    H09 job_is_read_with_its_attempts;
    H09 queues_are_listed_by_name;
    H09 paused_names_are_listed;
    H09 limits_and_worker_numbers_are_listed;
    H10 what_is_done_by_other_means_is_recorded;
}

async fn jobs_are_listed_page_by_page(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let other = backend.queue("other").unwrap();
    let inspector = backend.inspector();
    let mut pushed = Vec::new();
    for n in 0..7 {
        let priority = if n % 2 == 0 {
            Priority::Low
        } else {
            Priority::High
        };
        let name = if n == 3 { "resize" } else { "send" };
        let job = Job::new(name, &n).unwrap().priority(priority);
        pushed.push(queue.push(job).await.unwrap().id);
    }
    other
        .push(Job::new("send", "there").unwrap())
        .await
        .unwrap();
    let later = Job::new("send", "later").unwrap().delay(MINUTE);
    let later = queue.push(later).await.unwrap().id;

    let mut filter = JobFilter::queue("work").state(JobState::Ready).limit(2);
    let mut listed = Vec::new();
    loop {
        let page = inspector.jobs(&filter).await.unwrap();
        assert!(page.jobs.len() <= 2);
        listed.extend(page.jobs.iter().map(|job| job.id));
        let Some(next) = page.next else { break };
        // As it goes into an address and comes back.
        filter = filter.after(next.to_string().parse().unwrap());
    }
    let of = |picked: [usize; 7]| picked.map(|n| pushed[n]);
    assert_eq!(listed, of([1, 3, 5, 0, 2, 4, 6]), "in the order of claims");

    let mut filter = JobFilter::queue("work").limit(3);
    let mut all = Vec::new();
    loop {
        let page = inspector.jobs(&filter).await.unwrap();
        all.extend(page.jobs.iter().map(|job| job.id));
        let Some(next) = page.next else { break };
        filter = filter.after(next);
    }
    let [first @ .., _, _, _, _] = of([1, 3, 5, 0, 2, 4, 6]);
    let [_, _, _, last @ ..] = of([1, 3, 5, 0, 2, 4, 6]);
    let in_turn = first.iter().chain([&later]).chain(&last);
    assert!(
        all.iter().eq(in_turn),
        "those that wait, in any state: {all:?}"
    );

    let ids = async |filter: JobFilter| -> Vec<i64> {
        let page = inspector.jobs(&filter).await.unwrap();
        page.jobs.iter().map(|job| job.id).collect()
    };
    let named = JobFilter::queue("work")
        .state(JobState::Ready)
        .name("resize");
    assert_eq!(ids(named).await, [pushed[3]]);
    assert_eq!(
        ids(JobFilter::queue("work").state(JobState::Delayed)).await,
        [later]
    );

    let claim = Claim::new(2).worker("node-7").lease(MINUTE);
    let mut claimed = queue.claim(&claim).await.unwrap();
    let running = JobFilter::queue("work").state(JobState::Running);
    let page = inspector.jobs(&running).await.unwrap();
    assert_eq!(page.jobs.len(), 2);
    assert_eq!(page.jobs[0].worker.as_deref(), Some("node-7"));
    assert!(page.jobs[0].lease_left.unwrap() > MINUTE / 2);
    let failed = claimed.remove(0);
    let id = failed.id();
    failed.reject("no such address").await.unwrap();
    let failed = inspector
        .jobs(&JobFilter::queue("work").state(JobState::Failed))
        .await
        .unwrap();
    assert_eq!(failed.jobs[0].id, id);
    assert_eq!(failed.jobs[0].error.as_deref(), Some("no such address"));
    assert!(failed.jobs[0].ended_at.is_some());
    let operator = backend.operator();
    assert!(
        operator
            .cancel_job("work", later, "a mistake")
            .await
            .unwrap()
    );
    assert_eq!(
        ids(JobFilter::queue("work").state(JobState::Cancelled)).await,
        [later]
    );
    assert!(
        ids(JobFilter::queue("work").state(JobState::Delayed))
            .await
            .is_empty()
    );
    for limit in [0, MAX_PAGE + 1] {
        let filter = JobFilter::queue("work").state(JobState::Ready).limit(limit);
        let error = inspector.jobs(&filter).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

async fn job_is_read_with_its_attempts(cx: Context) {
    let backend = cx.backend().await;
    let kept = QueueOptions::default().archive(MINUTE);
    let queue = backend.queue_with("work", kept).unwrap();
    let inspector = backend.inspector();
    let job = Job::new("send", "ada").unwrap().unique("ada", Unique::Skip);
    let id = queue.push(job).await.unwrap().id;
    let read = async |payload| inspector.job(id, payload).await.unwrap().unwrap();
    let seen = read(false).await;
    assert_eq!((&*seen.queue, seen.job.state), ("work", JobState::Ready));
    assert_eq!(seen.unique_key.as_deref(), Some("ada"));
    assert_eq!((seen.payload, seen.payload_bytes), (None, 5));
    assert_eq!(read(true).await.payload.as_deref(), Some("\"ada\""));
    assert!(!format!("{:?}", read(true).await).contains("\"ada\\\""));

    let claim = Claim::new(1).worker("node-7").lease(MINUTE);
    let mut claimed = queue.claim(&claim).await.unwrap();
    assert_eq!(read(false).await.job.state, JobState::Running);
    claimed
        .remove(0)
        .nack("it rains", Duration::ZERO)
        .await
        .unwrap();
    let mut claimed = queue.claim(&claim.wait(MINUTE)).await.unwrap();
    claimed.remove(0).ack().await.unwrap();
    let seen = read(false).await;
    assert_eq!((seen.job.state, seen.job.attempt), (JobState::Completed, 2));
    assert_eq!(seen.history.len(), 1, "{seen:?}");
    assert_eq!(
        (seen.history[0].attempt, &*seen.history[0].error),
        (1, "it rains")
    );
    assert_eq!(seen.history[0].worker, "node-7");
    assert!(inspector.job(id + 1_000_000, true).await.unwrap().is_none());
    let elsewhere = cx.elsewhere().await.backend().await.inspector();
    assert!(elsewhere.job(id, true).await.unwrap().is_none());
}

async fn queues_are_listed_by_name(cx: Context) {
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    let filter = Filter::new();
    let listed = inspector.queues(&filter, None).await.unwrap();
    assert!(listed.is_empty(), "{listed:?}");
    for name in ["mails", "images"] {
        let job = Job::new("work", &1).unwrap();
        backend.queue(name).unwrap().push(job).await.unwrap();
    }
    backend.queue("quiet").unwrap().pause().await.unwrap();
    let task = Task::every("vacuum", MINUTE, Job::new("vacuum", &1).unwrap());
    let scheduler = backend.scheduler("upkeep").unwrap();
    scheduler.set(task).await.unwrap();
    let listed = inspector.queues(&filter, None).await.unwrap();
    let of: Vec<_> = listed.iter().map(|one| (&*one.name, one.paused)).collect();
    assert_eq!(of, [("images", false), ("mails", false), ("quiet", true)]);
    let after = Some((cx.namespace(), "images"));
    let one = inspector.queues(&filter.clone().limit(1), after).await;
    assert_eq!(one.unwrap()[0].name, "mails");
    assert_eq!(inspector.schedulers("", 10).await.unwrap(), ["upkeep"]);
    assert!(inspector.schedulers("upkeep", 10).await.unwrap().is_empty());
    let elsewhere = cx.elsewhere().await.backend().await.inspector();
    assert!(elsewhere.queues(&filter, None).await.unwrap().is_empty());
    assert!(elsewhere.schedulers("", 10).await.unwrap().is_empty());
    let error = inspector.schedulers("", 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

async fn paused_names_are_listed(cx: Context) {
    let backend = cx.backend().await;
    let (inspector, queue) = (backend.inspector(), backend.queue("mails").unwrap());
    assert!(
        inspector
            .paused_names("mails", 10)
            .await
            .unwrap()
            .is_empty()
    );
    for (name, pause) in [
        ("send", Pause::UntilResumed),
        ("digest", Pause::For(MINUTE)),
        ("over", Pause::For(Duration::from_millis(1))),
        ("again", Pause::UntilResumed),
    ] {
        queue.set_name_paused(name, Some(pause)).await.unwrap();
    }
    queue.set_name_paused("again", None).await.unwrap();
    let other = backend.queue("images").unwrap();
    other
        .set_name_paused("resize", Some(Pause::UntilResumed))
        .await
        .unwrap();
    let list = async || inspector.paused_names("mails", 10).await.unwrap();
    // The server's clock ends the shortest.
    eventually("a pause is over", async || list().await.len() == 2).await;
    let listed = list().await;
    let names: Vec<_> = listed.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["digest", "send"]);
    let left = listed[0].resumes_in.unwrap();
    assert!(left > Duration::ZERO && left <= MINUTE, "{left:?}");
    assert_eq!(listed[1].resumes_in, None);
    assert_eq!(inspector.paused_names("mails", 1).await.unwrap().len(), 1);
    for (queue, most) in [("", 10), ("mails", 0), ("mails", 1001)] {
        let error = inspector.paused_names(queue, most).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{queue} {most}");
    }
}

async fn limits_and_worker_numbers_are_listed(cx: Context) {
    let backend = cx.backend().await;
    let inspector = backend.inspector();
    // Among the first of all namespaces, of which other cases have thousands.
    let keys = [" user:1", " user:2"];
    let hourly = backend.rate_limiter(Quota::per_hour(60)).unwrap();
    for key in keys {
        assert!(hourly.check(key).await.unwrap().is_allowed());
    }
    hourly.block(&keys[1].into(), MINUTE).await.unwrap();
    let listed = inspector.limits("", 10).await.unwrap();
    let of: Vec<_> = listed.iter().map(|one| &*one.key).collect();
    assert_eq!(of, keys);
    assert!(listed[0].backlog > MINUTE / 2 && listed[0].backlog <= MINUTE);
    assert_eq!((listed[0].window, listed[0].blocked), (None, None));
    assert!(listed[1].blocked.is_some_and(|left| left > MINUTE / 2));
    let second = inspector.limits(keys[0], 10).await.unwrap();
    assert_eq!(second.len(), 1);

    let ids = backend.id_gen("orders", IdOptions::default().reserve(MINUTE));
    let ids = ids.unwrap();
    ids.next().await.unwrap();
    let numbers = inspector.worker_numbers(10).await.unwrap();
    assert_eq!(numbers.len(), 1, "{numbers:?}");
    assert_eq!((&*numbers[0].name, numbers[0].worker), ("orders", 0));
    assert!(!numbers[0].owner.is_empty());
    assert!(numbers[0].held_for < MINUTE && numbers[0].remaining > Duration::ZERO);
    let elsewhere = cx.elsewhere().await.backend().await.inspector();
    assert!(elsewhere.limits("", 10).await.unwrap().is_empty());
    assert!(elsewhere.worker_numbers(10).await.unwrap().is_empty());
}

async fn what_is_done_by_other_means_is_recorded(cx: Context) {
    let backend = cx.backend().await;
    let operator = backend.operator();
    operator
        .record("pause queue", "mails", "the server of mails is down")
        .await
        .unwrap();
    let audit = backend.inspector().audit(&Filter::new()).await.unwrap();
    assert_eq!(audit.len(), 1);
    let of = (&*audit[0].action, &*audit[0].target, &*audit[0].reason);
    assert_eq!(of, ("pause queue", "mails", "the server of mails is down"));
    let long = "x".repeat(4001);
    for (action, target, reason) in [
        ("", "t", "r"),
        ("a", "", "r"),
        ("a", "t", ""),
        ("a", "t\0", "r"),
        ("a", &long, "r"),
        ("a", "t", &long),
    ] {
        let error = operator.record(action, target, reason).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{action:?} {target:.9}");
    }
}
