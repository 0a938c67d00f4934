//! Queues: what handlers report of their jobs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use lockapi::admin::{JobFilter, JobState};
use lockapi::queue::{Claim, Delivery, MAX_PROGRESS_NOTE, Progress, QueueOptions, Unique};
use lockapi::worker::{Context as Working, Failed, Worker, WorkerOptions};
use lockapi::{Backend, BackendOptions, ErrorKind, Queue, blocking};

use super::queue::{by_hand, by_hand_from, job, one};
use super::worker::summary;
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::eventually;

register! { "queue_progress":
    Q28 progress_is_shown_where_jobs_are_looked_up;
    Q28 progress_needs_no_more_rights_than_are_noted @ PoorRole [Schema];
    Q28 progress_under_hostile_settings @ HostileRole [Schema];
    Q28 progress_behind_a_proxy @ HostileProxy [Proxy];
    Q28 progress_of_an_attempt_stays_until_the_next_reports;
    Q28 progress_is_reported_by_handlers;
    Q28 progress_is_reported_by_handlers_on_threads;
    Q28 progress_is_written_once_a_second;
    Q28 progress_of_thousands_is_reported_at_once;
    Q28 progress_that_is_open_when_its_handler_ends_is_written;
    Q28 progress_that_is_open_is_written_at_close;
    Q28 progress_of_an_earlier_delivery_changes_nothing;
    Q28 progress_has_limits;
    Q28 progress_waits_for_no_transaction [Transactions];
    Q28 progress_fails_no_attempt_while_the_server_is_away @ Own;
}

const STRANGE: &str = "'\"\\ \u{1}\n{}, \u{e4}\u{1F980}";

async fn of(backend: &Arc<dyn Backend>, id: i64) -> Option<Progress> {
    let read = backend.inspector().job(id, false).await.unwrap();
    read.expect("the job is there").job.progress
}

/// A fraction as precisely as it is stored.
fn millionths(fraction: f64) -> String {
    format!("{:.6}", fraction.abs())
}

/// Fraction and note, which are compared.
fn words(progress: Option<&Progress>) -> Option<(String, String)> {
    progress.map(|it| (millionths(it.fraction()), it.note().to_owned()))
}

/// Waits until this is shown, and answers all of it.
async fn shown(
    cx: &Context,
    backend: &Arc<dyn Backend>,
    id: i64,
    fraction: f64,
    note: &str,
) -> Progress {
    let expected = Some((millionths(fraction), note.to_owned()));
    eventually("the progress is shown", async || {
        let is_there = words(of(backend, id).await.as_ref()) == expected;
        if !is_there {
            cx.pass(Duration::from_millis(100)).await;
        }
        is_there
    })
    .await;
    of(backend, id).await.expect("it is there")
}

/// What was told before is written by now.
async fn settled(cx: &Context, backend: &Arc<dyn Backend>, queue: &Arc<dyn Queue>) {
    queue.push(job(0)).await.unwrap();
    let other = one(queue).await;
    other.progress(0.5, "the last of all").unwrap();
    shown(cx, backend, other.id(), 0.5, "the last of all").await;
    other.ack().await.unwrap();
}

async fn progress_is_shown_where_jobs_are_looked_up(cx: Context) {
    let backend = cx.backend().await;
    let kept = QueueOptions::default().archive(MINUTE * 60);
    let queue = backend.queue_with("work", kept).unwrap();
    let pushed = queue.push_all((0..3).map(job).collect()).await.unwrap();
    let claimed = queue.claim(&Claim::new(2)).await.unwrap();
    let [first, second] = <[Delivery; 2]>::try_from(claimed).unwrap();
    let (id, other) = (first.id(), second.id());
    assert_eq!(of(&backend, id).await, None);
    first.progress(0.4, "converted 40 of 100 files").unwrap();
    let told = shown(&cx, &backend, id, 0.4, "converted 40 of 100 files").await;
    assert_eq!(told.percent(), 40);
    let age = SystemTime::now().duration_since(told.reported_at());
    assert!(age.unwrap_or_default() < MINUTE * 60, "{told:?}");
    second.progress(2.0 / 3.0, STRANGE).unwrap();
    first.progress(0.9, "").unwrap();
    shown(&cx, &backend, id, 0.9, "").await;
    shown(&cx, &backend, other, 2.0 / 3.0, STRANGE).await;
    let listed = async |state| {
        let filter = JobFilter::queue("work").state(state);
        let page = backend.inspector().jobs(&filter).await.unwrap();
        let jobs = page.jobs.iter();
        jobs.map(|job| (job.id, job.progress.as_ref().map(Progress::percent)))
            .collect::<Vec<_>>()
    };
    let running = [(id, Some(90)), (other, Some(66))];
    assert_eq!(listed(JobState::Running).await, running);
    assert_eq!(listed(JobState::Ready).await, [(pushed[2].id, None)]);
    // It stays with what has ended.
    first.ack().await.unwrap();
    second.reject("no").await.unwrap();
    assert_eq!(listed(JobState::Completed).await, [(id, Some(90))]);
    assert_eq!(listed(JobState::Failed).await, [(other, Some(66))]);
    shown(&cx, &backend, id, 0.9, "").await;
    // What is put back begins anew.
    assert_eq!(queue.redrive(vec![other]).await.unwrap(), 1);
    assert_eq!(of(&backend, other).await, None);
}

async fn progress_needs_no_more_rights_than_are_noted(cx: Context) {
    progress_is_shown_where_jobs_are_looked_up(cx).await;
}

async fn progress_under_hostile_settings(cx: Context) {
    progress_is_shown_where_jobs_are_looked_up(cx).await;
}

async fn progress_behind_a_proxy(cx: Context) {
    progress_is_shown_where_jobs_are_looked_up(cx).await;
}

async fn progress_of_an_attempt_stays_until_the_next_reports(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    let pushed = job(1).unique("key", Unique::Skip);
    let id = queue.push(pushed).await.unwrap().id;
    let first = one(&queue).await;
    first.progress(0.4, "first").unwrap();
    shown(&cx, &backend, id, 0.4, "first").await;
    first.nack("it rains", Duration::ZERO).await.unwrap();
    shown(&cx, &backend, id, 0.4, "first").await;
    let second = one(&queue).await;
    assert_eq!(of(&backend, id).await, None, "it is of another attempt");
    second.progress(0.1, "second").unwrap();
    shown(&cx, &backend, id, 0.1, "second").await;
    second.nack("it rains", Duration::ZERO).await.unwrap();
    // Another job in its place begins anew.
    let replaced = job(2).unique("key", Unique::Replace);
    assert_eq!(queue.push(replaced).await.unwrap().id, id);
    assert_eq!(of(&backend, id).await, None);
}

async fn progress_is_reported_by_handlers(cx: Context) {
    let backend = cx.backend().await;
    let kept = QueueOptions::default().archive(MINUTE * 60);
    let queue = backend.queue_with("work", kept).unwrap();
    let id = queue.push(job(1)).await.unwrap().id;
    let attempts = Arc::new(Mutex::new(0));
    let told = Arc::clone(&attempts);
    let handler = move |_: usize, job: Working| {
        let attempts = Arc::clone(&told);
        async move {
            *attempts.lock().unwrap() += 1;
            for step in 0..=100 {
                job.progress(f64::from(step) / 100.0, &format!("step {step}"))?;
            }
            // What is refused is an error like others, for the handler to decide on.
            assert!(job.progress(f64::NAN, "").is_err());
            if job.attempt() == 1 {
                return Err(Failed::retry_after("it rains", Duration::ZERO));
            }
            Ok(())
        }
    };
    let worker = Worker::new(Arc::clone(&queue)).handle("count", handler);
    let summary = worker.run_until_idle().await.unwrap();
    assert_eq!(summary, summary! { claimed: 2, done: 1, failed: 1 });
    assert_eq!(*attempts.lock().unwrap(), 2);
    shown(&cx, &backend, id, 1.0, "step 100").await;
}

async fn progress_is_reported_by_handlers_on_threads(cx: Context) {
    let backend = cx.backend().await;
    let kept = QueueOptions::default().archive(MINUTE * 60);
    let queue = backend.queue_with("work", kept).unwrap();
    let id = queue.push(job(1)).await.unwrap().id;
    let handler = |_: usize, job: blocking::Context| {
        job.progress(0.25, "on a thread")?;
        Ok(())
    };
    let options = WorkerOptions::default();
    let worker = blocking::Worker::new(&queue.into()).handle_with("count", options, handler);
    let run = tokio::task::spawn_blocking(move || worker.run_until_idle());
    assert_eq!(
        run.await.unwrap().unwrap(),
        summary! { claimed: 1, done: 1 }
    );
    shown(&cx, &backend, id, 0.25, "on a thread").await;
}

async fn progress_is_written_once_a_second(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push(job(1)).await.unwrap();
    let delivery = one(&queue).await;
    let (began, mut written, mut passed) = (Instant::now(), Vec::new(), Duration::ZERO);
    for nth in 0_u32..3000 {
        delivery.progress(f64::from(nth) / 3000.0, "").unwrap();
        if nth % 100 == 0 {
            let pause = Duration::from_millis(100);
            cx.pass(pause).await;
            passed += pause;
            let progress = of(&backend, delivery.id()).await;
            if written.last() != progress.as_ref() {
                written.extend(progress);
            }
        }
    }
    // One at once, and one for each second that has passed.
    let seconds = passed.max(began.elapsed()).as_secs() + 1;
    assert!(written.len() > 1, "{written:?}");
    assert!(
        written.len() as u64 <= seconds + 1,
        "{seconds}, {written:?}"
    );
    let steps = written.iter().map(Progress::fraction);
    assert!(steps.is_sorted(), "{written:?}");
    delivery.progress(1.0, "all").unwrap();
    shown(&cx, &backend, delivery.id(), 1.0, "all").await;
}

async fn progress_of_thousands_is_reported_at_once(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push_all((0..2000).map(job).collect()).await.unwrap();
    let claim = Claim::new(1000).lease(MINUTE);
    let mut claimed = queue.claim(&claim).await.unwrap();
    claimed.extend(queue.claim(&claim).await.unwrap());
    assert_eq!(claimed.len(), 2000);
    // Ten thousand, while jobs are claimed and completed as ever.
    for round in 0..5 {
        for delivery in &claimed {
            let note = format!("{round} of {}", delivery.payload());
            delivery.progress(f64::from(round) / 5.0, &note).unwrap();
        }
        queue.push(job(0)).await.unwrap();
        one(&queue).await.ack().await.unwrap();
    }
    for delivery in [&claimed[0], &claimed[999], &claimed[1999]] {
        let note = format!("4 of {}", delivery.payload());
        shown(&cx, &backend, delivery.id(), 0.8, &note).await;
    }
    // The others may be in a later statement.
    let told = async || {
        let running = JobFilter::queue("work").state(JobState::Running);
        let mut filter = running.limit(1000);
        let mut percents = Vec::new();
        loop {
            let page = backend.inspector().jobs(&filter).await.unwrap();
            let jobs = page.jobs.iter();
            percents.extend(jobs.map(|job| job.progress.as_ref().map(Progress::percent)));
            match page.next {
                Some(next) => filter = filter.after(next),
                None => return percents,
            }
        }
    };
    eventually("all are shown", async || {
        cx.pass(Duration::from_millis(100)).await;
        told().await == vec![Some(80); 2000]
    })
    .await;
}

async fn progress_that_is_open_when_its_handler_ends_is_written(cx: Context) {
    let backend = cx.backend().await;
    let kept = QueueOptions::default().archive(MINUTE * 60);
    let queue = backend.queue_with("work", kept).unwrap();
    queue.push_all((0..2).map(job).collect()).await.unwrap();
    for end in [true, false] {
        let delivery = one(&queue).await;
        let id = delivery.id();
        delivery.progress(0.1, "the first goes at once").unwrap();
        delivery
            .progress(0.9, "the last waits for its second")
            .unwrap();
        if end {
            delivery.ack().await.unwrap();
        } else {
            delivery.reject("no").await.unwrap();
        }
        shown(&cx, &backend, id, 0.9, "the last waits for its second").await;
    }
}

async fn progress_that_is_open_is_written_at_close(cx: Context) {
    let (backend, other) = (cx.backend().await, cx.backend().await);
    let kept = QueueOptions::default().archive(MINUTE * 60);
    let queue = backend.queue_with("work", kept).unwrap();
    let id = queue.push(job(1)).await.unwrap().id;
    let delivery = one(&queue).await;
    delivery.progress(0.1, "the first").unwrap();
    delivery.progress(0.9, "the last").unwrap();
    delivery.ack().await.unwrap();
    backend.close().await.unwrap();
    assert_eq!(
        words(of(&other, id).await.as_ref()),
        Some((millionths(0.9), "the last".to_owned()))
    );
}

async fn progress_of_an_earlier_delivery_changes_nothing(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push(job(1)).await.unwrap();
    let first = by_hand_from(&queue).await;
    let id = first.id();
    first.progress(0.3, "first").unwrap();
    shown(&cx, &backend, id, 0.3, "first").await;
    cx.elapse(MINUTE * 2).await;
    // As long as nobody else has the job, it is the latest.
    shown(&cx, &backend, id, 0.3, "first").await;
    let second = by_hand_from(&queue).await;
    assert_eq!(second.id(), id);
    for _ in 0..2 {
        first.progress(0.9, "late").unwrap();
        settled(&cx, &backend, &queue).await;
        assert_eq!(of(&backend, id).await, None);
    }
    second.progress(0.5, "second").unwrap();
    shown(&cx, &backend, id, 0.5, "second").await;
    // Beside a report of the other, whichever goes first.
    second.progress(0.6, "second").unwrap();
    first.progress(0.9, "late").unwrap();
    settled(&cx, &backend, &queue).await;
    shown(&cx, &backend, id, 0.6, "second").await;
    second.reject("no").await.unwrap();
    first.progress(0.9, "late").unwrap();
    settled(&cx, &backend, &queue).await;
    shown(&cx, &backend, id, 0.6, "second").await;
}

async fn progress_has_limits(cx: Context) {
    let backend = cx.backend().await;
    let queue = backend.queue("work").unwrap();
    queue.push(job(1)).await.unwrap();
    let delivery = one(&queue).await;
    let long = "n".repeat(MAX_PROGRESS_NOTE + 1);
    for (fraction, note) in [
        (f64::NAN, ""),
        (f64::INFINITY, ""),
        (f64::NEG_INFINITY, ""),
        (-f64::MIN_POSITIVE, ""),
        (1.0 + f64::EPSILON, ""),
        (0.5, long.as_str()),
        (0.5, "a\0b"),
    ] {
        let error = delivery.progress(fraction, note).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("allowed"), "{error}");
        let ticket = delivery.ticket();
        let error = queue.report_progress(ticket, fraction, note).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    settled(&cx, &backend, &queue).await;
    assert_eq!(of(&backend, delivery.id()).await, None, "nothing was told");
    let longest = "\u{e4}".repeat(MAX_PROGRESS_NOTE / 2);
    for (fraction, note) in [(0.0, ""), (-0.0, "zero"), (1.0, longest.as_str())] {
        delivery.progress(fraction, note).unwrap();
        shown(&cx, &backend, delivery.id(), fraction, note).await;
    }
}

async fn progress_waits_for_no_transaction(cx: Context) {
    let backend = cx.backend().await;
    let kept = QueueOptions::default().archive(MINUTE * 60);
    let queue = backend.queue_with("work", kept).unwrap();
    for commit in [false, true] {
        queue.push(job(1)).await.unwrap();
        let delivery = Arc::new(one(&queue).await);
        let id = delivery.id();
        let mut tx = cx.begin().await.unwrap();
        tx.ack_in(&delivery).await.unwrap();
        delivery.progress(0.5, "in a transaction").unwrap();
        shown(&cx, &backend, id, 0.5, "in a transaction").await;
        delivery.progress(0.6, "still").unwrap();
        if commit {
            tx.commit().await;
        } else {
            tx.rollback().await;
        }
        shown(&cx, &backend, id, 0.6, "still").await;
        if !commit {
            let delivery = Arc::into_inner(delivery).expect("nobody else has it");
            delivery.ack().await.unwrap();
        }
    }
}

async fn progress_fails_no_attempt_while_the_server_is_away(cx: Context) {
    let options = BackendOptions::default().timeout(Duration::from_secs(2));
    let backend = cx.connect(options).await.unwrap();
    let queue = backend.queue("work").unwrap();
    queue.push_all((0..2).map(job).collect()).await.unwrap();
    let claim = by_hand().lease(MINUTE * 30);
    let kept = queue.claim(&claim).await.unwrap().remove(0);
    let ended = queue.claim(&claim).await.unwrap().remove(0);
    kept.progress(0.1, "before").unwrap();
    shown(&cx, &backend, kept.id(), 0.1, "before").await;
    cx.set_reachable(false).await;
    for nth in 0..30_u32 {
        kept.progress(f64::from(nth) / 100.0, "away").unwrap();
        ended.progress(0.5, "away").unwrap();
        cx.pass(Duration::from_millis(100)).await;
    }
    // The last was sent in vain by now.
    cx.pass(Duration::from_secs(4)).await;
    // Nothing is kept for what has ended.
    ended.release().await.unwrap_err();
    cx.set_reachable(true).await;
    // Told before the server was back, and not again.
    shown(&cx, &backend, kept.id(), 0.29, "away").await;
    kept.progress(1.0, "after").unwrap();
    shown(&cx, &backend, kept.id(), 1.0, "after").await;
    kept.ack().await.unwrap();
}
