//! `lockapi top` on a terminal that is none.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use lockapi::queue::Job;
use lockapi_conformance::cluster::Cluster;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Far more than it takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A terminal with a program on it.
struct Screen {
    keys: File,
    shown: Receiver<Vec<u8>>,
    text: String,
    child: Child,
}

impl Screen {
    fn start(url: &str, namespace: &str, columns: u16, rows: u16) -> Self {
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
        let mut output = keys.try_clone().expect("a copy");
        let (send, shown) = channel();
        thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut part) {
                if send.send(part[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            keys,
            shown,
            text: String::new(),
            child,
        }
    }

    fn press(&mut self, keys: &str) {
        self.text.clear();
        self.keys.write_all(keys.as_bytes()).expect("pressed");
    }

    /// Waits until something is shown.
    fn shows(&mut self, words: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.text.contains(words) {
            let left = until.saturating_duration_since(Instant::now());
            match self.shown.recv_timeout(left) {
                Ok(part) => self.text.push_str(&String::from_utf8_lossy(&part)),
                Err(error) => panic!("{words:?} is not shown: {error}: {:?}", self.text),
            }
        }
    }

    fn ends(&mut self) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < until, "it does not end");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where the case has failed it still runs.
        let _gone = self.child.kill();
        let _status = self.child.wait();
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
        let mut screen = Screen::start(cluster.url(), &namespace, columns, rows);
        screen.shows("mails");
        screen.press("?");
        screen.shows("PgUp");
        screen.press("x");
        let was = paused();
        screen.press("a1");
        screen.shows("Why?");
        screen.press("the server is down\r");
        screen.shows("does");
        screen.press("y");
        screen.shows(if was { "resumed" } else { "paused" });
        assert_ne!(paused(), was);
        screen.press("q");
        screen.ends();
    }
    runtime.block_on(backend.close()).expect("closed");
}
