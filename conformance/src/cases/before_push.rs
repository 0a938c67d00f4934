//! Queues: what a program does to each job that it pushes.

use std::sync::Arc;

use lockapi::queue::{Job, QueueOptions, Unique};
use lockapi::{Error, ErrorKind, Queue, Result, blocking};

use super::queue::{job, none, one};
use crate::context::Context;
use crate::harness::register;

register! { "queue":
    Q35 jobs_are_changed_before_they_are_pushed;
    Q35 push_with_a_job_that_is_refused_does_not_happen;
    Q35 jobs_are_changed_in_transactions_too [Transactions];
    Q35 changed_jobs_have_the_same_limits;
}

async fn changing(
    cx: &Context,
    change: impl Fn(Job) -> Result<Job> + Send + Sync + 'static,
) -> Arc<dyn Queue> {
    let options = QueueOptions::default()
        .before_push(change)
        .before_push(|job| {
            let tags = job.headers().iter().count().to_string();
            Ok(job.header("before", tags))
        });
    cx.backend().await.queue_with("work", options).unwrap()
}

fn tagged(job: Job) -> Result<Job> {
    if job.payload() == "13" {
        return Err(Error::new(ErrorKind::Invalid, "push", "an unlucky number"));
    }
    Ok(job.header("tag", "blue"))
}

async fn is_tagged(queue: &Arc<dyn Queue>) {
    let delivery = one(queue).await;
    let headers: Vec<_> = delivery.headers().iter().collect();
    assert_eq!(headers, [("before", "1"), ("tag", "blue")], "in order");
    delivery.ack().await.unwrap();
}

async fn jobs_are_changed_before_they_are_pushed(cx: Context) {
    let queue = changing(&cx, tagged).await;
    queue.push(job(1)).await.unwrap();
    is_tagged(&queue).await;
    queue
        .push(job(2).unique("key", Unique::Skip))
        .await
        .unwrap();
    is_tagged(&queue).await;
    let blocking = blocking::Queue::from(Arc::clone(&queue));
    let pushed = tokio::task::spawn_blocking(move || {
        blocking.push_all(vec![job(3), job(4).idempotency_key("once")])
    });
    assert_eq!(pushed.await.unwrap().unwrap().len(), 2);
    is_tagged(&queue).await;
    is_tagged(&queue).await;
    // Other handles of the queue do not know of it.
    let plain = cx.queue().await;
    plain.push(job(13)).await.unwrap();
    assert_eq!(one(&plain).await.headers().iter().count(), 0);
}

async fn push_with_a_job_that_is_refused_does_not_happen(cx: Context) {
    let queue = changing(&cx, tagged).await;
    let refused = queue.push_all(vec![job(1), job(13), job(2)]).await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("an unlucky number"), "{error}");
    none(&queue).await;
}

async fn jobs_are_changed_in_transactions_too(cx: Context) {
    let queue = changing(&cx, tagged).await;
    let mut tx = cx.begin().await.unwrap();
    let jobs = vec![job(1), job(2).unique("key", Unique::Skip)];
    assert_eq!(tx.push_in(&queue, jobs).await.unwrap().len(), 2);
    let error = tx.push_in(&queue, vec![job(13)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    tx.commit().await;
    is_tagged(&queue).await;
    is_tagged(&queue).await;
    none(&queue).await;
}

async fn changed_jobs_have_the_same_limits(cx: Context) {
    let queue = changing(&cx, |job| Ok(job.header("no spaces", "x"))).await;
    let error = queue.push(job(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    none(&queue).await;
}
