//! The page in a real browser: `make browser`. It takes chromium and chromedriver, and writes pictures of each
//! screen to `target/pictures`.
#![cfg(feature = "web")]

mod driver;
mod refused;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use driver::Driver;
use lockapi::admin::{Filter, JobFilter, JobState};
use lockapi::election::Election;
use lockapi::id::IdOptions;
use lockapi::lease::LeaseOptions;
use lockapi::limit::Quota;
use lockapi::queue::{Claim, Delivery, Job, Pause, Priority};
use lockapi::schedule::Task;
use lockapi::{Backend, BackendOptions};
use lockapi_conformance::cluster::Cluster;
use lockapi_console::web::{WebOptions, service};

const MINUTE: Duration = Duration::from_mins(1);

/// What a program has while the page is looked at.
struct Program {
    backend: Arc<dyn Backend>,
    others: Vec<Arc<dyn Backend>>,
    held: Vec<Box<dyn std::any::Any>>,
    /// What runs in the queue that is drained.
    thumbnails: Vec<Delivery>,
    dead: i64,
    waiting: i64,
}

async fn connect(url: &str, namespace: &str, owner: &str) -> Arc<dyn Backend> {
    let options = BackendOptions::default().namespace(namespace);
    let joint = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{joint}application_name={owner}");
    lockapi_sqlx::connect_url_with(&url, options)
        .await
        .expect("a backend")
}

async fn work(backend: &dyn Backend, queue: &str, jobs: u32) -> Vec<Delivery> {
    let queue = backend.queue(queue).unwrap();
    let names = ["send", "resize", "index"];
    for n in 0..jobs {
        let name = names[n as usize % names.len()];
        queue
            .push(Job::new(name, &n).unwrap().max_attempts(3))
            .await
            .unwrap();
    }
    let claim = Claim::new(3).worker("node-7").lease(10 * MINUTE);
    queue.claim(&claim).await.unwrap()
}

/// A job that waits, beside others whose name is paused.
async fn waiting(backend: &dyn Backend) -> i64 {
    let mails = backend.queue("mails").unwrap();
    let pause = Some(Pause::For(120 * MINUTE));
    mails.set_name_paused("index", pause).await.unwrap();
    let ready = JobFilter::queue("mails").state(JobState::Ready).limit(1);
    let ready = backend.inspector().jobs(&ready).await.unwrap();
    ready.jobs[0].id
}

impl Program {
    async fn start(url: &str, namespace: &str) -> Self {
        let backend = connect(url, namespace, "api-1").await;
        backend.migrate().await.unwrap();
        let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
        let mut claimed = work(&*backend, "mails", 137).await;
        let dead = claimed.remove(0);
        let id = dead.id();
        dead.nack("421 try again later", Duration::ZERO)
            .await
            .unwrap();
        let claim = Claim::new(200).worker("node-8").lease(10 * MINUTE);
        let mails = backend.queue("mails").unwrap();
        let again = mails.claim(&claim).await.unwrap();
        for delivery in again {
            if delivery.id() == id {
                delivery
                    .reject("550 no such address: ada@example.com")
                    .await
                    .unwrap();
            } else if delivery.id() % 7 == 0 {
                held.push(Box::new(delivery));
            } else {
                delivery.release().await.unwrap();
            }
        }
        held.push(Box::new(claimed));
        let thumbnails = work(&*backend, "thumbnails", 12).await;
        let waiting = waiting(&*backend).await;
        let search = backend.queue("search").unwrap();
        search
            .push(Job::new("index", &1).unwrap().delay(MINUTE))
            .await
            .unwrap();
        search.pause().await.unwrap();
        for (name, time) in [
            ("vacuum", 60),
            ("reports", 900),
            ("invoices", 1500),
            ("exports", 300),
        ] {
            let job = Job::new(name, &name).unwrap();
            let task = Task::every(name, Duration::from_secs(time), job);
            backend
                .scheduler("upkeep")
                .unwrap()
                .set(task)
                .await
                .unwrap();
        }
        let night = Task::cron(
            "night",
            "0 3 * * *",
            "Europe/Berlin",
            Job::new("night", &1).unwrap(),
        );
        backend
            .scheduler("upkeep")
            .unwrap()
            .set(night)
            .await
            .unwrap();
        for (key, owner) in [("nightly-backup", "node-3"), ("import/orders", "node-7")] {
            let options = LeaseOptions::new(10 * MINUTE)
                .owner(owner)
                .data("since the deploy");
            let lease = backend.lease(key, options).unwrap();
            held.push(Box::new(lease.acquire().await.unwrap()));
        }
        let election = backend.election(
            "shards/leader",
            LeaseOptions::new(10 * MINUTE).owner("node-1"),
        );
        let election: Arc<dyn Election> = election.unwrap();
        held.push(Box::new(election.campaign().await.unwrap()));
        let limiter = backend.rate_limiter(Quota::per_hour(10)).unwrap();
        for (user, times) in [("user:17", 6), ("user:4", 2), ("tenant:acme", 1)] {
            for _ in 0..times {
                let decision = limiter.check(user).await.unwrap();
                assert!(decision.is_allowed());
            }
        }
        limiter.block(&"user:99".into(), 5 * MINUTE).await.unwrap();
        let ids = backend.id_gen("orders", IdOptions::default()).unwrap();
        ids.next().await.unwrap();
        held.push(Box::new(ids));
        let mut program = Self {
            backend,
            others: Vec::new(),
            held,
            thumbnails,
            dead: id,
            waiting,
        };
        program.wait_for_locks(url, namespace).await;
        program
    }

    /// One holds what two wait for, one of whom holds what a third waits for.
    async fn wait_for_locks(&mut self, url: &str, namespace: &str) {
        let first = self.backend.mutex("reports/daily").unwrap();
        self.held.push(Box::new(first.lock().await.unwrap()));
        for (owner, holds, wants) in [
            ("api-2", Some("invoices/4711"), "reports/daily"),
            ("api-3", None, "reports/daily"),
            ("worker-5", None, "invoices/4711"),
        ] {
            let other = connect(url, namespace, owner).await;
            if let Some(holds) = holds {
                let guard = other.mutex(holds).unwrap().lock().await.unwrap();
                self.held.push(Box::new(guard));
            }
            let mutex = other.mutex(wants).unwrap();
            self.held.push(Box::new(tokio::spawn(async move {
                mutex.lock().await.map(drop)
            })));
            self.others.push(other);
        }
    }
}

async fn serve(backend: &Arc<dyn Backend>, options: WebOptions) -> String {
    listen(service(Arc::clone(backend), options)).await
}

async fn listen(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, served).await });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes chromium: make browser"]
async fn a_person_looks_at_each_screen_and_acts() {
    let cluster = match Cluster::shared() {
        Ok(cluster) => cluster,
        Err(error) => panic!("no server: {error}"),
    };
    let namespace = format!("browser-{}", std::process::id());
    let mut program = Program::start(cluster.url(), &namespace).await;
    let options = WebOptions::new().actions(true).payloads(true);
    let url = serve(&program.backend, options).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/pictures");
    std::fs::create_dir_all(&folder).unwrap();
    let jobs = (program.dead, program.waiting);
    let looked = tokio::task::spawn_blocking(move || {
        let driver = Driver::start();
        look(&driver, &url, &folder, jobs);
        act(&driver, &url, jobs.0);
        edit(&driver, &url, jobs.1);
        drain(&driver, &url);
        (driver, folder)
    });
    let (driver, folder) = looked.await.unwrap();
    for delivery in program.thumbnails.drain(..) {
        delivery.ack().await.unwrap();
    }
    let told = tokio::task::spawn_blocking(move || {
        // Nobody loads the page again.
        driver.shows("none runs: the queue is drained");
        assert_eq!(driver.script("return window.untouched"), true);
        driver.picture(&folder.join("drained-light.png"));
        driver.complaints()
    });
    let complaints = told.await.unwrap();
    assert!(
        complaints.is_empty(),
        "the browser complains: {complaints:?}"
    );
    let queue = program.backend.queue("mails").unwrap();
    let statistics = queue.statistics().await.unwrap();
    assert!(statistics.paused);
    assert_eq!(statistics.dead.count, 0);
    let inspector = program.backend.inspector();
    let leases = inspector
        .leases(&Filter::key("nightly-backup"))
        .await
        .unwrap();
    assert!(leases.is_empty());
    let edited = inspector.job(program.waiting, true).await.unwrap().unwrap();
    assert_eq!(edited.job.priority, Priority::Urgent);
    assert_eq!(edited.payload.as_deref(), Some("[1, 2]"));
    let audit = inspector.audit(&Filter::new()).await.unwrap();
    let acts: Vec<_> = audit
        .iter()
        .rev()
        .map(|entry| (&*entry.action, &*entry.reason))
        .collect();
    assert_eq!(
        acts,
        [
            ("pause queue", "the server is down (on this machine)"),
            ("redrive job", "the address was mended (on this machine)"),
            ("release lease", "its node is gone (on this machine)"),
            ("disable task", "not at night (on this machine)"),
            ("edit job", "a wrong address (on this machine)"),
            ("drain queue", "release 1.7 (on this machine)"),
        ]
    );
}

/// Takes pictures of each screen, and sees that nothing is wider than it.
fn look(driver: &Driver, url: &str, folder: &Path, (dead, waiting): (i64, i64)) {
    let screens = [
        ("overview", "/".to_owned(), "Overview"),
        ("locks", "/locks".to_owned(), "reports/daily"),
        ("leases", "/leases".to_owned(), "nightly-backup"),
        ("queues", "/queues".to_owned(), "thumbnails"),
        ("queue", "/queue?name=mails".to_owned(), "send"),
        ("job", format!("/job?id={dead}"), "attempt 1 failed"),
        ("schedules", "/schedules".to_owned(), "vacuum"),
        ("limits", "/limits".to_owned(), "user:99"),
        ("ids", "/ids".to_owned(), "orders"),
        ("audit", "/audit".to_owned(), "Audit"),
        ("confirm", "/act?do=pause&on=mails".to_owned(), "Reason"),
        (
            "edit",
            format!("/edit?name=mails&id={waiting}"),
            "Payload, as JSON",
        ),
        (
            "purge",
            "/act?do=purge&on=mails".to_owned(),
            "would be deleted",
        ),
        (
            "block",
            "/act?do=block&on=user:99".to_owned(),
            "For how long",
        ),
    ];
    for (name, address, words) in screens {
        for (look, width, height, dark) in [
            ("light", 1280, 800, false),
            ("dark", 1280, 800, true),
            ("phone", 390, 844, false),
        ] {
            driver.look(width, height, dark);
            driver.open(&format!("{url}{address}"));
            driver.shows(words);
            let wide = driver.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth");
            assert_eq!(wide, 0, "{name} is wider than a {look}");
            driver.picture(&folder.join(format!("{name}-{look}.png")));
        }
        let nameless = driver.nameless();
        assert!(
            nameless.is_empty(),
            "without a name on {name}: {nameless:#?}"
        );
        let heads = driver.script("return document.querySelectorAll('h1').length");
        assert_eq!(heads, 1, "{name}");
    }
    driver.look(1280, 800, false);
}

/// Clicks, as a person does.
fn act(driver: &Driver, url: &str, dead: i64) {
    driver.open(&format!("{url}/queues"));
    driver.click("a[aria-label^='Pause mails']");
    driver.fill("#reason", "the server is down");
    driver.click("form.act button");
    driver.shows("mails is paused");
    driver.open(&format!("{url}/job?id={dead}"));
    driver.click("a[aria-label^='Retry']");
    driver.fill("#reason", "the address was mended");
    driver.click("form.act button");
    driver.shows("is back in mails");
    // What is shown changes by itself.
    driver.open(&format!("{url}/leases"));
    driver.shows("nightly-backup");
    driver.script("window.untouched = true");
    driver.click("a[aria-label^='Release nightly-backup']");
    driver.fill("#reason", "its node is gone");
    driver.click("form.act button");
    driver.shows("nightly-backup is taken from node-3");
    keyboard(driver, url);
}

/// By the keyboard alone: the first stop leads past the menu, and the others through all that can be done.
fn keyboard(driver: &Driver, url: &str) {
    const TAB: &str = "\u{e004}";
    const ENTER: &str = "\u{e007}";
    let focused = |what: &str| {
        let told = driver.script(&format!("return document.activeElement.{what}"));
        told.as_str().unwrap_or_default().to_owned()
    };
    driver.open(&format!("{url}/schedules"));
    driver.shows("vacuum");
    driver.press(TAB);
    assert_eq!(focused("className"), "skip");
    let outline = driver.script("return getComputedStyle(document.activeElement).outlineStyle");
    assert_ne!(outline, "none", "the focus is seen");
    driver.press(ENTER);
    let mut stops = 0;
    while !focused("ariaLabel").starts_with("Disable upkeep") {
        driver.press(TAB);
        let inside = driver.script("return document.activeElement.closest('main') !== null");
        assert_eq!(inside, true, "past the menu, and not beyond the end");
        stops += 1;
        assert!(stops < 60, "it is not reached");
    }
    driver.press(ENTER);
    driver.shows("Reason");
    driver.press("not at night");
    driver.press(ENTER);
    driver.shows("vacuum is disabled");
}

/// Changes a job, by the keyboard where there is a choice.
fn edit(driver: &Driver, url: &str, waiting: i64) {
    driver.open(&format!("{url}/job?id={waiting}"));
    driver.click("a[aria-label^='Edit job']");
    driver.shows("What is left as it is stays as it is");
    driver.fill("#priority", "urg");
    driver.script("document.querySelector('#payload').select()");
    driver.fill("#payload", "[1, 2]");
    driver.fill("#reason", "a wrong address\n");
    driver.shows("is changed");
}

/// Drains a queue, and looks at what still runs.
fn drain(driver: &Driver, url: &str) {
    driver.open(&format!("{url}/queues"));
    driver.click("a[aria-label^='Drain thumbnails']");
    driver.shows("Running: 3 run to the end.");
    driver.fill("#reason", "release 1.7");
    driver.click("form.act button");
    driver.shows("what runs goes on to its end");
    driver.click("main a[href*='state=running']");
    driver.shows("3 still run.");
    driver.script("window.untouched = true");
}
