//! Code of a program that coordinates, and its unit tests: on the backend in memory, with a clock that the tests move.

use lockapi::limit::Quota;
use lockapi::queue::Job;
use lockapi::{Backend, Result};

/// Queues a reminder, of which each person gets three a day; answers whether it did.
///
/// # Errors
/// Those of the backend.
pub async fn remind(backend: &dyn Backend, person: &str) -> Result<bool> {
    let limiter = backend.rate_limiter(Quota::per_day(3))?;
    if !limiter
        .check(format!("reminders of {person}"))
        .await?
        .is_allowed()
    {
        return Ok(false);
    }
    backend
        .queue("reminders")?
        .push(Job::new("remind", person)?)
        .await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use lockapi::engine::ManualClock;
    use lockapi::memory::Database;
    use lockapi::worker::{Context, Worker};

    use super::*;

    #[tokio::test]
    async fn each_person_gets_three_reminders_a_day() -> Result<()> {
        let clock = ManualClock::default();
        let database = Database::with_clock(&clock);
        // Two instances of the program.
        let (here, there) = (database.connect().await?, database.connect().await?);
        assert!(remind(&*here, "ada").await? && remind(&*there, "ada").await?);
        assert!(remind(&*here, "ada").await?);
        assert!(!remind(&*there, "ada").await?);
        assert!(remind(&*there, "eve").await?);
        clock.advance(Duration::from_hours(8));
        assert!(remind(&*there, "ada").await?);

        let sent = Arc::<Mutex<Vec<String>>>::default();
        let sending = Arc::clone(&sent);
        let worker = Worker::new(here.queue("reminders")?);
        let worker = worker.handle("remind", move |person: String, _: Context| {
            sending.lock().expect("no test panics").push(person);
            std::future::ready(Ok(()))
        });
        worker.run_until_idle().await?;
        let mut sent = sent.lock().expect("no test panics").clone();
        sent.sort();
        assert_eq!(sent, ["ada", "ada", "ada", "ada", "eve"]);
        Ok(())
    }

    #[tokio::test]
    async fn an_outage_is_an_error_and_no_reminder() -> Result<()> {
        let database = Database::new();
        let backend = database.connect().await?;
        assert!(remind(&*backend, "ada").await?);
        database.set_reachable(false);
        database.sever();
        assert!(remind(&*backend, "ada").await.is_err());
        database.set_reachable(true);
        assert!(remind(&*backend, "ada").await?);
        Ok(())
    }
}
