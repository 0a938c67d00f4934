//! A client whose host vanishes: two network namespaces, joined by a cable that is cut.
//!
//! It needs root and `ip`; where these are missing the test is listed as ignored, with the reason.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use lockapi::BackendOptions;
use lockapi_conformance::cluster::Cluster;
use postgres::{Client, NoTls};

/// How long a vanished host may keep a mutex.
const LIMIT: Duration = Duration::from_secs(15);

/// Tells a process of this program that it is the one that vanishes, and where the server is.
const VANISHES: &str = "LOCKAPI_VANISHES";

/// Tells it how often its session is asked whether it lives.
const HEARTBEAT: &str = "LOCKAPI_HEARTBEAT";

fn main() {
    if let Ok(url) = std::env::var(VANISHES) {
        return vanish(&url);
    }
    let missing = missing();
    let trial = |name: &str, in_flight| {
        let kind = missing.as_ref().map(|what| format!("needs {what}"));
        let trial = Trial::test(name, move || frees_a_mutex_in_time(in_flight));
        trial
            .with_kind(kind.clone().unwrap_or_default())
            .with_ignored_flag(kind.is_some())
    };
    let trials = vec![
        trial("mutex_of_a_vanished_host_is_free_in_time", false),
        trial(
            "mutex_of_a_vanished_host_is_free_in_time_with_an_answer_in_flight",
            true,
        ),
    ];
    let mut arguments = Arguments::from_args();
    // The namespace of a process has one name.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit();
}

fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("root");
    }
    let ip = Command::new("ip").args(["netns", "list"]).output();
    if !ip.is_ok_and(|ip| ip.status.success()) {
        return Some("ip of iproute2");
    }
    let name = format!("lockapi-{}-look", std::process::id());
    let made = ip_is_done(&["netns", "add", &name]);
    let _removed = ip_is_done(&["netns", "del", &name]);
    (!made).then_some("the right to make network namespaces")
}

fn ip_is_done(arguments: &[&str]) -> bool {
    let mut ip = Command::new("ip");
    let ip = ip.args(arguments).stderr(Stdio::null());
    ip.status().is_ok_and(|status| status.success())
}

/// A network namespace with an end of a cable; the other is here.
struct Away {
    name: String,
    here: String,
    net: u8,
}

impl Away {
    fn new() -> Result<Self, Failed> {
        let id = std::process::id();
        let net = u8::try_from(id % 250)? + 1;
        let away = Self {
            name: format!("lockapi-{id}"),
            here: format!("la{id}"),
            net,
        };
        let (name, here) = (&*away.name, &*away.here);
        let there = format!("lb{id}");
        let [ours, theirs] = [1, 2].map(|host| format!("10.213.{net}.{host}/24"));
        let steps: &[&[&str]] = &[
            &["netns", "add", name],
            &["link", "add", here, "type", "veth", "peer", "name", &there],
            &["link", "set", &there, "netns", name],
            &["addr", "add", &ours, "dev", here],
            &["link", "set", here, "up"],
            &["-n", name, "addr", "add", &theirs, "dev", &there],
            &["-n", name, "link", "set", &there, "up"],
            &["-n", name, "link", "set", "lo", "up"],
        ];
        for step in steps {
            if !ip_is_done(step) {
                return Err(format!("ip {} failed", step.join(" ")).into());
            }
        }
        Ok(away)
    }

    fn host(&self) -> String {
        format!("10.213.{}.1", self.net)
    }

    /// From now on nothing that the server sends arrives, and it is not told.
    fn cut_answers(&self) -> Result<(), Failed> {
        let client = format!("10.213.{}.2", self.net);
        lead_astray(&["neigh", "replace", &client], &self.here)
    }

    /// From now on nothing that the client sends arrives, either.
    fn cut_requests(&self) -> Result<(), Failed> {
        let (there, server) = (format!("lb{}", std::process::id()), self.host());
        lead_astray(&["-n", &self.name, "neigh", "replace", &server], &there)
    }
}

/// Sends what is for a neighbour to an address that nobody has.
fn lead_astray(neighbour: &[&str], dev: &str) -> Result<(), Failed> {
    let astray = [
        "lladdr",
        "02:00:00:00:00:99",
        "dev",
        dev,
        "nud",
        "permanent",
    ];
    if ip_is_done(&[neighbour, &astray].concat()) {
        return Ok(());
    }
    Err("the cable cannot be cut".into())
}

impl Drop for Away {
    fn drop(&mut self) {
        // What could not be made cannot be removed.
        let _removed = ip_is_done(&["netns", "del", &self.name]);
        let _removed = ip_is_done(&["link", "del", &self.here]);
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _killed = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Locks a mutex in the namespace that vanishes, says so, and stays.
fn vanish(url: &str) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        // Its session is asked often whether it lives, or never.
        let heartbeat = match std::env::var(HEARTBEAT).as_deref() {
            Ok("often") => Duration::from_millis(10),
            _ => Duration::from_hours(1),
        };
        let options = BackendOptions::default().heartbeat(heartbeat);
        let connecting = lockapi_sqlx::connect_url_with(url, options);
        let backend = connecting.await.expect("a backend");
        let mutex = backend.mutex("door").expect("a mutex");
        let guard = mutex.lock().await.expect("locked");
        println!("locked");
        std::io::stdout().flush().expect("told");
        std::future::pending::<()>().await;
        drop(guard);
    });
}

fn frees_a_mutex_in_time(in_flight: bool) -> Result<(), Failed> {
    let away = Away::new()?;
    let mut cluster = Cluster::private(&[])?;
    let data = cluster.data_dir()?;
    let port = cluster.port()?;
    // The server listens on the cable as well.
    let rules = data.join("pg_hba.conf");
    let old = std::fs::read_to_string(&rules)?;
    let rule = format!("host all all 10.213.{}.0/24 trust\n", away.net);
    std::fs::write(&rules, rule + &old)?;
    cluster.psql("ALTER SYSTEM SET listen_addresses = '*'")?;
    cluster.stop(lockapi_conformance::cluster::StopMode::Fast)?;
    cluster.start()?;
    let mut here = Client::connect(cluster.url(), NoTls)?;
    let listens: String = here.query_one("SHOW listen_addresses", &[])?.get(0);
    let runtime = tokio::runtime::Runtime::new()?;
    let backend = runtime.block_on(lockapi_sqlx::connect_url(cluster.url()))?;
    runtime.block_on(backend.migrate())?;
    if listens != "*" {
        return Err(format!("the server listens on {listens} only").into());
    }
    let url = format!("postgres://postgres@{}:{port}/postgres", away.host());
    let mut client = Killed(
        Command::new("ip")
            .args(["netns", "exec", &away.name])
            .arg(std::env::current_exe()?)
            .env(VANISHES, url)
            .env(HEARTBEAT, if in_flight { "often" } else { "never" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?,
    );
    let told = client.0.stdout.take().ok_or("no output")?;
    let mut line = String::new();
    BufReader::new(told).read_line(&mut line)?;
    if line.trim() != "locked" {
        return Err(format!("the client said {line:?}").into());
    }
    away.cut_answers()?;
    if in_flight {
        // What the client still asks is answered into the void.
        thread::sleep(Duration::from_millis(200));
    }
    away.cut_requests()?;
    let cut = Instant::now();
    let mutex = backend.mutex("door")?;
    loop {
        if let Some(guard) = runtime.block_on(mutex.try_lock())? {
            println!("free after {:.1?}, in flight: {in_flight}", cut.elapsed());
            runtime.block_on(guard.unlock())?;
            break;
        }
        if cut.elapsed() > LIMIT {
            return Err(format!("held for {:?}", cut.elapsed()).into());
        }
        thread::sleep(Duration::from_millis(100));
    }
    runtime.block_on(async { drop(backend) });
    Ok(())
}
