//! A database of the test's own, and the program under test.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use lockapi_conformance::cluster::Cluster;
use rustix::io::Errno;

/// Far beyond what anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The server that all tests share, or one of the test's own.
#[derive(Debug)]
enum Server {
    Shared(&'static Cluster),
    Own(Box<Cluster>),
}

impl std::ops::Deref for Server {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        match self {
            Self::Shared(cluster) => cluster,
            Self::Own(cluster) => cluster,
        }
    }
}

/// A database on a server; it is dropped with this value.
#[derive(Debug)]
pub(crate) struct Database {
    cluster: Server,
    pub(crate) name: String,
}

impl Database {
    /// One without the schema.
    pub(crate) fn empty() -> Self {
        Self::on(Server::Shared(Cluster::shared().expect("a server")))
    }

    /// One with the schema, on a server of its own with room for many connections.
    pub(crate) fn apart() -> Self {
        let cluster = Cluster::private(&[("max_connections", "300")]).expect("a server");
        let database = Self::on(Server::Own(Box::new(cluster)));
        database.lockapi(["migrate", "up"]).succeeds();
        database
    }

    /// A copy of another, which nobody is connected to.
    pub(crate) fn like(other: &Self) -> Self {
        let Server::Shared(cluster) = other.cluster else {
            panic!("only the shared server has copies");
        };
        let name = format!("console_{:016x}", fastrand::u64(..));
        cluster
            .psql(&format!("CREATE DATABASE {name} TEMPLATE {}", other.name))
            .expect("a copy");
        Self {
            cluster: Server::Shared(cluster),
            name,
        }
    }

    fn on(cluster: Server) -> Self {
        let name = format!("console_{:016x}", fastrand::u64(..));
        cluster
            .psql(&format!("CREATE DATABASE {name}"))
            .expect("a database");
        Self { cluster, name }
    }

    /// One with the schema.
    pub(crate) fn new() -> Self {
        let database = Self::empty();
        database.lockapi(["migrate", "up"]).succeeds();
        database
    }

    pub(crate) fn port(&self) -> u16 {
        self.cluster.port().expect("a port")
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.port())
    }

    /// By way of something that listens on a port.
    pub(crate) fn url_at(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{}", self.name)
    }

    /// Runs SQL in the database; a line for each row, columns separated by `|`.
    pub(crate) fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).expect("the SQL runs")
    }

    pub(crate) fn try_sql(&self, sql: &str) -> Result<String, String> {
        let script = format!("\\connect {}\n{sql}", self.name);
        self.cluster
            .psql(&script)
            .map_err(|error| error.to_string())
    }

    /// Whether anybody can connect to it; where not, those who are connected lose their sessions.
    pub(crate) fn is_there(&self, is_there: bool) {
        let name = &self.name;
        let allow = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {is_there}");
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND NOT {is_there}"
        );
        let done = self.cluster.psql(&format!("{allow};\n{end}"));
        done.expect("the SQL runs");
    }

    /// The program on this database.
    pub(crate) fn command(&self) -> Command {
        let mut command = program();
        command.env("DATABASE_URL", self.url());
        command
    }

    /// Runs the program on this database until it ends.
    pub(crate) fn lockapi<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Ran {
        let mut command = self.command();
        command.args(arguments);
        run(command)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // The server is removed in any case.
        let _dropped = self.cluster.psql(&format!(
            "DROP DATABASE IF EXISTS {} WITH (FORCE)",
            self.name
        ));
    }
}

/// The program, with nothing in its environment that says which database.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockapi"));
    for name in [
        "DATABASE_URL",
        "LOCKAPI_NAMESPACE",
        "PGHOST",
        "PGHOSTADDR",
        "PGPORT",
        "PGUSER",
        "PGDATABASE",
        "PGPASSWORD",
        "PGSERVICE",
        "PGAPPNAME",
        "PGTARGETSESSIONATTRS",
    ] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// What a program that has ended left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn exits(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn succeeds(self) -> Self {
        self.exits(0)
    }

    #[track_caller]
    pub(crate) fn tells(self, what: &str) -> Self {
        assert!(self.err.contains(what), "{what:?} is not told: {self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn shows(self, what: &str) -> Self {
        assert!(self.out.contains(what), "{what:?} is not shown: {self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) fn run(command: Command) -> Ran {
    run_with_input(command, None)
}

pub(crate) fn run_with_input(mut command: Command, input: Option<&str>) -> Ran {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().expect("the program");
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(input.as_bytes()).expect("it reads");
    }
    let output = child.wait_with_output().expect("it ends");
    ran(&output)
}

pub(crate) fn ran(output: &Output) -> Ran {
    Ran {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Looks until there is something.
#[track_caller]
pub(crate) fn soon<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Somebody at a terminal with a program on it, which is killed with this value.
pub(crate) struct Screen {
    child: Child,
    keys: File,
    parts: Receiver<io::Result<Vec<u8>>>,
    /// What has been shown since something was typed.
    shown: Vec<u8>,
}

impl Screen {
    pub(crate) fn new(child: Child, keys: File, mut output: File) -> Self {
        let (sender, parts) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let part = match output.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(read) => Ok(buffer[..read].to_vec()),
                    // So ends a terminal that nobody has open any more.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => return,
                    Err(error) => Err(error),
                };
                let is_over = part.is_err();
                if sender.send(part).is_err() || is_over {
                    return;
                }
            }
        });
        Self {
            child,
            keys,
            parts,
            shown: Vec::new(),
        }
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.shown.clear();
        for part in self.parts.try_iter() {
            part.expect("what is shown");
        }
        self.keys.write_all(keys.as_bytes()).expect("typed");
    }

    /// Waits until something is shown.
    #[track_caller]
    pub(crate) fn shows(&mut self, words: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.text().contains(words) {
            let is_open = self.read(until);
            assert!(is_open, "it ended before {words:?}: {:?}", self.text());
        }
    }

    /// Waits until these words are shown one after the other, wherever the cursor went in between.
    #[track_caller]
    pub(crate) fn shows_words(&mut self, words: &str) {
        let until = Instant::now() + PATIENCE;
        while !plain(&self.text()).contains(words) {
            let is_open = self.read(until);
            assert!(
                is_open,
                "it ended before {words:?}: {:?}",
                plain(&self.text())
            );
        }
    }

    /// Waits until it ends; answers what it has shown since something was typed.
    #[track_caller]
    pub(crate) fn ends(mut self) -> (ExitStatus, String) {
        let until = Instant::now() + PATIENCE;
        while self.read(until) {}
        let status = self.child.wait().expect("a child");
        (status, self.text())
    }

    /// False where nothing comes any more.
    #[track_caller]
    fn read(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        match self.parts.recv_timeout(left) {
            Ok(part) => self.shown.extend(part.expect("what is shown")),
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => panic!("not in time: {:?}", self.text()),
        }
        true
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where the case has failed it still runs.
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Without the sequences that move the cursor and change the colours, and one blank for many.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| letter.is_ascii_alphabetic());
        plain.push(' ');
        plain.push_str(end.map_or("", |end| &part[end + 1..]));
    }
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}
