//! Wakers of the program that panic: whoever runs them goes on.

use std::pin::pin;
use std::sync::Arc;
use std::task::Context;
use std::thread;
use std::time::{Duration, Instant};

use crate::blocking::block_on;
use crate::engine::panicking_waker;
use crate::error::ErrorKind;
use crate::id::IdOptions;
use crate::lease::LeaseOptions;
use crate::memory::Database;

#[test]
fn who_waits_for_ids_beside_a_waker_that_panics_gets_some() {
    for options in [IdOptions::blocks(10), IdOptions::default()] {
        let database = Database::new();
        let backend = block_on(database.connect()).unwrap();
        let ids = backend.id_gen("a", options).unwrap();
        database.set_silent(true);
        let mut panics = pin!(ids.next());
        let waker = panicking_waker();
        let polled = panics.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let others = Arc::clone(&ids);
        let other = thread::spawn(move || block_on(others.next()));
        thread::sleep(Duration::from_millis(50));
        database.set_silent(false);
        other.join().unwrap().expect("ids came");
        block_on(panics).expect("ids came for it as well");
    }
}

#[test]
fn release_that_failed_is_repeated_although_the_waker_of_its_caller_panics() {
    let database = Database::new();
    let (here, there) = (database.link(), database.link());
    let backend = block_on(here.connect()).unwrap();
    let options = || LeaseOptions::new(Duration::from_secs(60));
    let guard = block_on(backend.lease("a", options()).unwrap().acquire()).unwrap();
    here.set_silent(true);
    let mut release = guard.release();
    let waker = panicking_waker();
    let polled = release.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    here.set_reachable(false);
    // Nobody takes the place of the waker before it has failed.
    thread::sleep(Duration::from_millis(300));
    let error = block_on(release).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    here.set_silent(false);
    here.set_reachable(true);
    let other = block_on(there.connect()).unwrap();
    let lease = other.lease("a", options()).unwrap();
    let start = Instant::now();
    while block_on(lease.try_acquire()).unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(10), "still held");
        thread::sleep(Duration::from_millis(20));
    }
}
