//! The database and the model of the operations give the same answers.

use std::sync::{Mutex, PoisonError};

use conformance::differential::{self, SESSIONS};
use proptest::test_runner::{Config, TestRunner};

use crate::postgres_link::PostgresLink;

#[test]
fn database_and_model_agree() {
    let url = crate::url();
    let observer = Mutex::new(PostgresLink::connect(&url));
    let config = Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    };
    let sessions = std::array::from_fn::<_, SESSIONS, _>(|_| PostgresLink::connect(&url));
    let sessions = Mutex::new(sessions);
    TestRunner::new(config)
        .run(&differential::actions(), |actions| {
            let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
            for session in &mut *sessions {
                session
                    .0
                    .batch_execute("SELECT pg_advisory_unlock_all()")
                    .expect("cleared");
            }
            let namespace = format!("n{:016x}", fastrand::u64(..));
            let elapse = |time: std::time::Duration| {
                let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
                let micros = i64::try_from(time.as_micros()).expect("a short time");
                observer
                    .0
                    .execute(
                        "UPDATE lockapi.lease
                            SET acquired_at = acquired_at - $2::int8 * interval '1 microsecond',
                                renewed_at = renewed_at - $2::int8 * interval '1 microsecond',
                                held_until = held_until - $2::int8 * interval '1 microsecond',
                                expires_at = expires_at - $2::int8 * interval '1 microsecond',
                                released_at = released_at - $2::int8 * interval '1 microsecond'
                          WHERE namespace = $1",
                        &[&namespace, &micros],
                    )
                    .expect("older");
            };
            let work = differential::run(&mut *sessions, &namespace, &actions, elapse);
            pollster::block_on(work);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
