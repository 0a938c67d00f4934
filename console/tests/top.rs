//! `lockapi top` on a terminal that is none.

#[path = "common/mod.rs"]
mod common;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use lockapi::queue::Job;
use lockapi_conformance::cluster::Cluster;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use common::Screen;

fn start(url: &str, namespace: &str, columns: u16, rows: u16) -> Screen {
    let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&main).expect("granted");
    unlockpt(&main).expect("unlocked");
    let size = Winsize {
        ws_col: columns,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&main, size).expect("a size");
    let name = ptsname(&main, Vec::new()).expect("a name");
    let side = || -> OwnedFd {
        rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("opened")
    };
    let child = Command::new(env!("CARGO_BIN_EXE_lockapi"))
        .args(["top", "--every", "1"])
        .env("DATABASE_URL", url)
        .env("LOCKAPI_NAMESPACE", namespace)
        .env("TERM", "xterm-256color")
        .stdin(Stdio::from(side()))
        .stdout(Stdio::from(side()))
        .stderr(Stdio::from(side()))
        .spawn()
        .expect("started");
    let keys = File::from(main);
    let output = keys.try_clone().expect("a copy");
    Screen::new(child, keys, output)
}

/// A session with a name, and its number.
async fn session(url: &str, name: &str) -> (PgConnection, i32) {
    let options: PgConnectOptions = url.parse().expect("a URL");
    let options = options.application_name(name);
    let connected = PgConnection::connect_with(&options).await;
    let mut session = connected.expect("a session");
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()");
    let pid = pid.fetch_one(&mut session).await.expect("its number");
    (session, pid)
}

async fn lock(session: &mut PgConnection, lock: i64) {
    let asked = sqlx::query("SELECT pg_advisory_lock($1)").bind(lock);
    // Whoever waits in the end fails with its session.
    let _locked = asked.execute(session).await;
}

/// The last of a chain is told who is in the way of those that are in its way.
#[test]
fn chains_of_waits_are_shown() {
    let cluster = Cluster::private(&[]).expect("a server");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let url = cluster.url().to_owned();
    let [first, second] = runtime.block_on(async {
        let backend = lockapi_sqlx::connect_url(&url).await.expect("a backend");
        backend.migrate().await.expect("migrated");
        backend.close().await.expect("closed");
        let (mut one, first) = session(&url, "the-first").await;
        let (mut two, second) = session(&url, "the-second").await;
        let (mut three, _) = session(&url, "the-third").await;
        lock(&mut one, 7001).await;
        lock(&mut two, 7002).await;
        tokio::spawn(async move { lock(&mut two, 7001).await });
        tokio::spawn(async move { lock(&mut three, 7002).await });
        // The first goes on holding it.
        tokio::spawn(async move {
            std::future::pending::<()>().await;
            drop(one);
        });
        [first, second]
    });
    for (columns, rows) in [(80, 24), (160, 50)] {
        let mut screen = start(&url, "default", columns, rows);
        screen.shows("Queues");
        screen.types("2");
        let chain = format!("{second} the-second < {first} the-first");
        screen.shows("the-third");
        if columns > 80 {
            screen.shows_words(&chain);
        }
        // All of it is among the details.
        screen.types("/7002\r");
        screen.types("\r");
        screen.shows_words(&format!("Chain {chain}"));
        screen.types("x");
        screen.types("q");
        let (status, _) = screen.ends();
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_person_looks_and_pauses_a_queue() {
    let cluster = match Cluster::shared() {
        Ok(cluster) => cluster,
        Err(error) => panic!("no server: {error}"),
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let namespace = format!("top-{}", std::process::id());
    let options = lockapi::BackendOptions::default().namespace(&namespace);
    let backend = runtime.block_on(async {
        let backend = lockapi_sqlx::connect_url_with(cluster.url(), options)
            .await
            .expect("a backend");
        backend.migrate().await.expect("migrated");
        let queue = backend.queue("mails").expect("a queue");
        queue
            .push(Job::new("send", &1).expect("a job"))
            .await
            .expect("pushed");
        backend
    });
    let paused = || {
        let statistics = runtime.block_on(async { backend.queue("mails")?.statistics().await });
        statistics.expect("counted").paused
    };
    for (columns, rows) in [(80, 24), (160, 50)] {
        let mut screen = start(cluster.url(), &namespace, columns, rows);
        screen.shows("mails");
        screen.types("?");
        screen.shows("PgUp");
        screen.types("x");
        let was = paused();
        screen.types("a1");
        screen.shows("Why?");
        screen.types("the server is down\r");
        screen.shows("does");
        screen.types("y");
        screen.shows(if was { "resumed" } else { "paused" });
        assert_ne!(paused(), was);
        screen.types("q");
        let (status, _) = screen.ends();
        assert!(status.success(), "{status}");
    }
    runtime.block_on(backend.close()).expect("closed");
}
