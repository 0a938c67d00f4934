//! Limits on a connection of the program, whether or not it has a transaction open.

use lockapi::BackendExt;
use lockapi::limit::{Quota, Want, check_all_on};
use lockapi::memory::Database;
use lockapi::seam::Connection;

use crate::link::{Library, Link};
use crate::server;

#[test]
fn limits_are_taken_with_and_without_a_transaction() {
    let (url, runtime) = server();
    let _entered = runtime.enter();
    // Of a limiter the call needs the policy and the namespace only.
    let backend = pollster::block_on(Database::new().connect()).expect("a backend");
    let limiter = backend.rate_limiter(Quota::per_hour(2)).expect("a limiter");
    for library in Library::ALL {
        let mut link = Link::connect(library, &url);
        let key = format!("seam {}", fastrand::u64(..));
        let wants = [Want::new(&*key)];
        let allowed = async |link: &mut Link| {
            let verdict = check_all_on(link, &*limiter, &wants).await;
            verdict.expect("a verdict").is_allowed()
        };
        pollster::block_on(async {
            assert!(allowed(&mut link).await, "{library:?}");
            for (end, left) in [("ROLLBACK", true), ("COMMIT", true)] {
                link.script("BEGIN").await.expect("begun");
                assert_eq!(allowed(&mut link).await, left, "{library:?}");
                assert!(!allowed(&mut link).await, "{library:?}");
                link.script(end).await.expect("ended");
            }
            assert!(!allowed(&mut link).await, "{library:?}");
        });
    }
}
