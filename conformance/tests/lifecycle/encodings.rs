//! Databases whose encoding does not have every character.

use std::sync::Arc;

use futures_util::future::join_all;
use lockapi::queue::{Claim, Job, JobResult};
use lockapi::{Backend, ErrorKind, Queue};

use crate::own_database::OwnDatabase;

#[tokio::test(flavor = "multi_thread")]
async fn q14_a_character_that_the_database_lacks_affects_no_other_call() {
    let database = OwnDatabase::encoded("LATIN1");
    let url = database.url();
    let backends: [Arc<dyn Backend>; 3] = [
        lockapi_sqlx::connect_url(&url).await.expect("a backend"),
        lockapi_diesel::connect_url(&url).await.expect("a backend"),
        lockapi_postgres::connect_url(&url)
            .await
            .expect("a backend"),
    ];
    for backend in backends {
        backend.migrate().await.expect("migrated");
        let queue = backend.queue("work").expect("a queue");
        let pushes = (0..20).map(|number| {
            let text = if number == 7 { "\u{1f600}" } else { "\u{e9}" };
            let queue = Arc::clone(&queue);
            async move { queue.push(Job::new("job", &text).expect("a job")).await }
        });
        for (number, pushed) in join_all(pushes).await.into_iter().enumerate() {
            match pushed {
                Ok(_) => assert_ne!(number, 7),
                Err(error) => {
                    assert_eq!((number, error.kind()), (7, ErrorKind::Invalid), "{error}");
                }
            }
        }
        affects_no_other_result(&queue).await;
        backend.close().await.expect("closed");
    }
}

/// Completes the 19 jobs of a queue with results, of which the database cannot store one.
async fn affects_no_other_result(queue: &Arc<dyn Queue>) {
    let claimed = queue.claim(&Claim::new(20)).await.expect("claimed");
    assert_eq!(claimed.len(), 19);
    let acks = claimed
        .into_iter()
        .enumerate()
        .map(async |(number, delivery)| {
            let text = if number == 7 { "\u{1f600}" } else { "\u{e9}" };
            delivery.set_result(text).expect("a result");
            (delivery.id(), delivery.ack().await)
        });
    for (number, (id, acked)) in join_all(acks).await.into_iter().enumerate() {
        let found = queue.result::<String>(id).await.expect("looked up");
        match acked {
            Ok(()) => assert_eq!(found, JobResult::Value("\u{e9}".to_owned())),
            Err(error) => {
                assert_eq!((number, error.kind()), (7, ErrorKind::Invalid), "{error}");
                assert_eq!(found, JobResult::Pending);
                assert_eq!(queue.cancel(vec![id]).await.expect("cancelled"), [id]);
            }
        }
    }
}
