//! Whether there is what an action is for: what is absent is left alone, and the audit log has nothing of it.
//!
//! It may go between this look and the action; then the log has an entry for an action that changed nothing.

use lockapi::admin::{Filter, JobState, LimitLevel};
use lockapi::{Backend, Error, ErrorKind, Key};

/// Of names that follow another one, so many are read: the one that is looked for is the first.
const FOLLOWING: usize = 10;

/// A name directly before another one, in the order of tables, which is that of characters.
fn before(name: &str) -> String {
    let Some((at, last)) = name.char_indices().next_back() else {
        return String::new();
    };
    let mut before = name[..at].to_owned();
    let smaller = (1..u32::from(last)).rev().find_map(char::from_u32);
    if let Some(smaller) = smaller {
        before.push(smaller);
        // Nobody has this letter in a name. A name that has no room for it is followed by few others.
        if before.len() + char::MAX.len_utf8() <= lockapi::MAX_NAME_BYTES {
            before.push(char::MAX);
        }
    }
    before
}

/// Whether a scheduler has a task.
pub(crate) async fn task(
    backend: &dyn Backend,
    scheduler: &str,
    task: &str,
) -> Result<bool, Error> {
    let tasks = backend.scheduler(scheduler)?.list().await?;
    Ok(tasks.iter().any(|one| one.name == task))
}

/// Whether one of these jobs is a dead letter of a queue; without numbers, whether it has any.
pub(crate) async fn dead_letters(
    backend: &dyn Backend,
    queue: &str,
    ids: &[i64],
) -> Result<bool, Error> {
    if ids.is_empty() {
        return Ok(backend.queue(queue)?.statistics().await?.dead.count > 0);
    }
    let inspector = backend.inspector();
    for id in ids {
        let job = inspector.job(*id, false).await?;
        if job.is_some_and(|job| job.queue == queue && job.job.state == JobState::Failed) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether jobs of a queue wait.
pub(crate) async fn waiting(backend: &dyn Backend, queue: &str) -> Result<bool, Error> {
    let counted = backend.queue(queue)?.statistics().await?;
    // Those that run are counted with those that are due, and a count ends at a bound.
    Ok(counted.ready.more || counted.ready.count + counted.delayed.count > 0)
}

/// What is kept of a limit.
pub(crate) async fn limit(backend: &dyn Backend, key: &Key) -> Result<Option<LimitLevel>, Error> {
    let key = key.to_string();
    let levels = backend.inspector().limits(&before(&key), FOLLOWING).await?;
    Ok(levels.into_iter().find(|level| level.key == key))
}

/// Whether a queue has jobs, dead letters, a limit or paused names, or was paused or resumed.
pub(crate) async fn queue(backend: &dyn Backend, queue: &str) -> Result<bool, Error> {
    let (inspector, before) = (backend.inspector(), before(queue));
    let filter = Filter::new().limit(FOLLOWING);
    let after = Some((backend.namespace(), &*before));
    let found = inspector.queues(&filter, after).await?;
    if found.iter().any(|found| found.name == queue) {
        return Ok(true);
    }
    // A schema from before there were any has none.
    let supported = |error: Error| match error.kind() {
        ErrorKind::Unsupported => Ok(false),
        _ => Err(error),
    };
    let names = inspector.paused_names(queue, 1).await;
    if names.map_or_else(supported, |names| Ok(!names.is_empty()))? {
        return Ok(true);
    }
    let limit = backend.queue(queue)?.limit().await;
    limit.map_or_else(supported, |limit| Ok(limit.is_some()))
}

#[cfg(test)]
mod tests {
    use lockapi::limit::Quota;
    use lockapi::memory::Database;
    use lockapi::queue::{Claim, Job};

    use super::*;

    #[test]
    fn nothing_is_between_a_name_and_the_one_before_it() {
        for (name, is_before) in [
            ("b", "a\u{10ffff}"),
            ("mails", "mailr\u{10ffff}"),
            ("a\u{1}", "a"),
            ("\u{e000}", "\u{d7ff}\u{10ffff}"),
            ("", ""),
        ] {
            assert_eq!(before(name), is_before, "{name:?}");
        }
        let long = "x".repeat(lockapi::MAX_NAME_BYTES);
        assert_eq!(before(&long).len(), long.len());
        assert!(before(&long) < long);
    }

    #[tokio::test]
    async fn jobs_that_wait_are_found_behind_those_that_run() {
        let backend = Database::new().connect().await.unwrap();
        let queue = backend.queue("work").unwrap();
        assert!(!waiting(&*backend, "work").await.unwrap());
        let mut running = Vec::new();
        for _ in 0..10 {
            let jobs = (0..1000).map(|_| Job::new("work", &1).unwrap());
            queue.push_all(jobs.collect()).await.unwrap();
            running.extend(queue.claim(&Claim::new(1000)).await.unwrap());
        }
        assert_eq!(running.len(), 10_000);
        let late = Job::new("work", &1).unwrap();
        queue.push(late).await.unwrap();
        assert!(waiting(&*backend, "work").await.unwrap());
    }

    #[tokio::test]
    async fn names_are_found_among_others() {
        let backend = Database::new().connect().await.unwrap();
        let limiter = backend.rate_limiter(Quota::per_hour(10)).unwrap();
        let longest = "y".repeat(lockapi::MAX_NAME_BYTES);
        let names = ["mail", "mails", "mails2", "maim", "ü", &longest];
        for name in names {
            assert!(limiter.check(name).await.unwrap().is_allowed());
            let job = Job::new("send", &1).unwrap();
            backend.queue(name).unwrap().push(job).await.unwrap();
        }
        for name in names {
            let found = limit(&*backend, &name.into()).await.unwrap();
            assert_eq!(found.unwrap().key, name);
            assert!(queue(&*backend, name).await.unwrap(), "{name}");
        }
        for name in ["mai", "mailr", "mails1", "a", "z", &longest[1..]] {
            assert_eq!(limit(&*backend, &name.into()).await.unwrap(), None);
            assert!(!queue(&*backend, name).await.unwrap(), "{name}");
        }
    }
}
