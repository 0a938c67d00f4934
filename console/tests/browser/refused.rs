//! A page whose stream of changes is refused, as by a proxy while the program is started anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use lockapi::Backend;
use lockapi::memory::Database;
use lockapi::queue::Job;
use lockapi_console::web::{WebOptions, service};
use serde_json::json;

use crate::driver::Driver;

/// The timers of the page go off when the test says so, and whether it is hidden is what the test says.
const PREPARED: &str = "
    window.timers = [];
    window.isHidden = false;
    const [set, clear] = [window.setTimeout, window.clearTimeout];
    window.setTimeout = (act, time, ...more) => {
        if (!new Error().stack.includes('/assets/live.js')) return set(act, time, ...more);
        timers.push({ act, time });
        return -timers.length;
    };
    window.clearTimeout = (id) => { if (id < 0) delete timers[-id - 1]; else clear(id); };
    Object.defineProperty(Document.prototype, 'hidden', { get: () => window.isHidden });
    const Native = window.EventSource;
    window.opened = 0;
    window.EventSource = class extends Native { constructor(at) { super(at); window.opened += 1; } };
";
/// How many timers are set that have not been ended.
const SET: &str = "timers.filter((one) => one).length";

async fn push(backend: &dyn Backend, queue: &str) {
    let job = Job::new("send", &1).unwrap();
    backend.queue(queue).unwrap().push(job).await.unwrap();
}

fn hide(driver: &Driver, hidden: bool) {
    driver.script(&format!(
        "window.isHidden = {hidden}; document.dispatchEvent(new Event('visibilitychange'))"
    ));
}

/// Asks again and again, after pauses that grow, unless nobody looks.
fn ask(driver: &Driver, url: &str) {
    driver.prepare(PREPARED);
    driver.open(&format!("{url}/queues"));
    driver.shows("mails");
    driver.script("window.untouched = true");
    for n in 0..9 {
        driver.becomes("timers.length", &json!(n + 1));
        let pause = driver.script(&format!("return timers[{n}].time"));
        let most = f64::from(1000 << n).min(60_000.0);
        let pause = pause.as_f64().expect("a number");
        assert!((most / 2.0..=most).contains(&pause), "{n}: {pause}");
        if n < 8 {
            driver.script(&format!("timers[{n}].act(); delete timers[{n}]"));
        }
    }
    driver.becomes("document.body.classList.contains('away')", &json!(true));
    hide(driver, true);
    assert_eq!(driver.script(&format!("return {SET}")), 0);
    assert_eq!(driver.script("return opened"), 9);
    // Who looks again does not wait for what the page has waited for before.
    hide(driver, false);
    driver.becomes("timers.length", &json!(10));
    assert_eq!(driver.script("return opened"), 10);
    let pause = driver.script("return timers[9].time").as_f64();
    assert!(pause <= Some(1000.0), "{pause:?}");
}

/// Asks once more, and is told of changes again.
fn ask_again(driver: &Driver) {
    driver.script("timers[9].act(); delete timers[9]");
    driver.shows("images");
    assert_eq!(driver.script("return window.untouched"), true);
    driver.becomes("document.body.classList.contains('away')", &json!(false));
    assert_eq!(driver.script(&format!("return {SET}")), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes chromium: make browser"]
async fn a_page_that_was_refused_asks_again() {
    let backend = Database::new().connect().await.unwrap();
    push(&*backend, "mails").await;
    let refuses = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&refuses);
    let refuse = from_fn(move |request: Request, next: Next| {
        let refused = request.uri().path() == "/live" && seen.load(Ordering::SeqCst);
        async move {
            if refused {
                StatusCode::SERVICE_UNAVAILABLE.into_response()
            } else {
                next.run(request).await
            }
        }
    });
    let router = service(Arc::clone(&backend), WebOptions::new()).layer(refuse);
    let url = crate::listen(router).await;
    let asked = tokio::task::spawn_blocking(move || {
        let driver = Driver::start();
        ask(&driver, &url);
        driver
    });
    let driver = asked.await.unwrap();
    refuses.store(false, Ordering::SeqCst);
    push(&*backend, "images").await;
    let again = tokio::task::spawn_blocking(move || ask_again(&driver));
    again.await.unwrap();
}
