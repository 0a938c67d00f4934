//! Each program, as a person runs it, on a database of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockapi::blocking::Backend;
use lockapi::queue::Job;
use lockapi_conformance::cluster::Cluster;
use postgres::{Client, NoTls};

/// Longer than anything takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The URL of a new database.
fn database() -> String {
    let url = Cluster::shared().expect("a server").url();
    let name = format!("examples_{}_{}", std::process::id(), thread_number());
    let mut client = Client::connect(url, NoTls).expect("a connection");
    client
        .batch_execute(&format!("CREATE DATABASE {name}"))
        .expect("a database");
    let options = url.find('?').unwrap_or(url.len());
    let start = url[..options].rfind('/').expect("a path");
    format!("{}/{name}{}", &url[..start], &url[options..])
}

fn thread_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};

    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A program that runs, and is killed at the end.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(path: &str, url: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(path)
            .args(arguments)
            .env("DATABASE_URL", url)
            .env("LISTEN", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn terminate(&self) {
        let pid = self.child.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(told.expect("kill runs").success());
    }

    /// The rest of its output, when it has ended well.
    fn end(mut self) -> String {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        assert!(self.child.wait().expect("it ends").success(), "{rest}");
        rest
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn number(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).expect("a row").get(0)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a request, and answers the response without its first word.
fn http(address: &str, request: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    let length = body.len();
    let text = format!(
        "{request} HTTP/1.1\r\nhost: it\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(text.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer.split_once(' ').expect("a status").1.to_owned()
}

#[test]
fn service() {
    let url = database();
    let path = env!("CARGO_BIN_EXE_service");
    let mut programs: Vec<_> = (0..2).map(|_| Program::start(path, &url, &[])).collect();
    let addresses: Vec<_> = programs
        .iter_mut()
        .map(|it| it.line().trim_start_matches("listening on ").to_owned())
        .collect();
    let sign_up = |nth: usize, key: &str, body: &str| {
        let headers = format!("idempotency-key: \"{key}\"\r\n");
        http(&addresses[nth % 2], "POST /accounts", &headers, body)
    };
    assert!(http(&addresses[0], "GET /ready", "", "").starts_with("200"));
    let first = sign_up(0, "one", "ada@example.com");
    assert!(
        first.starts_with("201") && first.ends_with("\r\n\r\n1"),
        "{first}"
    );
    let again = sign_up(1, "one", "ada@example.com");
    assert!(
        again.starts_with("201") && again.ends_with("\r\n\r\n1"),
        "{again}"
    );
    assert!(again.contains("idempotency-replayed: true"), "{again}");
    assert!(sign_up(0, "one", "eve@example.com").starts_with("422"));
    let without = http(&addresses[0], "POST /accounts", "", "ada@example.com");
    assert!(without.starts_with("400"), "{without}");
    // The burst is that of both.
    let answers: Vec<_> = (0..20)
        .map(|nth| sign_up(nth, "one", "ada@example.com"))
        .collect();
    let refused = answers.iter().filter(|it| it.starts_with("429")).count();
    assert!(refused >= 10, "{refused}");
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    let welcomed = "SELECT count(*) FROM account WHERE welcomed";
    until("welcomed", || number(&mut client, welcomed) == 1);
    for program in programs {
        program.terminate();
        program.end();
    }
    assert_eq!(number(&mut client, "SELECT count(*) FROM account"), 1);
    // It does not take mails that its worker cannot send.
    let mut program = Program::start(path, &url, &[]);
    assert!(program.line().starts_with("listening on "));
    client
        .batch_execute("ALTER TABLE lockapi.job RENAME TO gone")
        .expect("renamed");
    until("at its end", || {
        program.child.try_wait().expect("a status").is_some()
    });
}

#[test]
fn nightly() {
    let url = database();
    let path = env!("CARGO_BIN_EXE_nightly");
    let running: Vec<_> = (0..3).map(|_| Program::start(path, &url, &[])).collect();
    let mut outputs: Vec<_> = running.into_iter().map(Program::end).collect();
    outputs.sort();
    let late = "another machine is at it\n";
    assert_eq!(outputs, [late, late, "done\n"]);
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    assert_eq!(number(&mut client, "SELECT count(*) FROM report"), 1);
}

#[test]
fn leader() {
    let url = database();
    let path = env!("CARGO_BIN_EXE_leader");
    let mut one = Program::start(path, &url, &["one"]);
    until("led by one", || one.line() == "one leads");
    let mut two = Program::start(path, &url, &["two"]);
    assert_eq!(two.line(), "one leads");
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    let begun = "SELECT count(*) FROM pg_tables WHERE tablename = 'compaction'";
    until("begun", || number(&mut client, begun) == 1);
    until("at work", || {
        number(&mut client, "SELECT count(*) FROM compaction") > 0
    });
    // It dies, and the other takes over.
    drop(one);
    until("led by two", || two.line() == "two leads");
    let terms = "SELECT count(DISTINCT fence) FROM compaction";
    until("at work again", || number(&mut client, terms) == 2);
    // Its sessions end, and it goes on.
    let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert!(number(&mut client, others) > 0);
    let written = number(&mut client, "SELECT count(*) FROM compaction");
    until("at work after that", || {
        number(&mut client, "SELECT count(*) FROM compaction") > written
    });
    two.terminate();
    two.end();
}

#[test]
fn fleet() {
    let url = database();
    let backend = Backend::connect(lockapi_postgres::connect_url(&url)).expect("connected");
    backend.migrate().expect("migrated");
    for tenant in ["acme", "globex"] {
        let queue = backend
            .queue(format!("invoices of {tenant}"))
            .expect("a queue");
        for number in 0..20 {
            queue
                .push(Job::new("invoice", &number).expect("a job"))
                .expect("pushed");
        }
    }
    let path = env!("CARGO_BIN_EXE_fleet");
    let running: Vec<_> = (0..2)
        .map(|_| Program::start(path, &url, &["acme", "globex"]))
        .collect();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    let begun = "SELECT count(*) FROM pg_tables WHERE tablename = 'invoice'";
    until("begun", || number(&mut client, begun) == 1);
    until("written", || {
        number(&mut client, "SELECT count(*) FROM invoice") == 40
    });
    for mut program in running {
        // One that has done nothing may not have begun to listen for the signal.
        assert_eq!(program.line(), "working");
        program.terminate();
        program.end();
    }
    let distinct = "SELECT count(DISTINCT (tenant, number)) FROM invoice";
    assert_eq!(number(&mut client, distinct), 40);
}

#[test]
fn orders() {
    let url = database();
    let path = env!("CARGO_BIN_EXE_orders");
    let customers = ["ada", "grace", "edsger"];
    let running: Vec<_> = (0..3)
        .map(|_| Program::start(path, &url, &customers))
        .collect();
    let outputs = running.into_iter().map(Program::end);
    let confirmed: i64 = outputs
        .map(|told| {
            let number = told.strip_suffix(" confirmed\n").expect("a number");
            number.parse::<i64>().expect("a number")
        })
        .sum();
    assert_eq!(confirmed, 9);
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    for table in ["customer_order", "confirmation"] {
        let count = format!("SELECT count(*) FROM {table}");
        assert_eq!(number(&mut client, &count), 9, "{table}");
    }
}

#[test]
fn import() {
    let url = database();
    let folder = std::env::temp_dir();
    let file = folder.join(format!("import-{}.csv", std::process::id()));
    std::fs::write(&file, "1\n2\n3\n").expect("written");
    let file = file.to_str().expect("a path");
    let path = env!("CARGO_BIN_EXE_import");
    let running: Vec<_> = (0..3)
        .map(|_| Program::start(path, &url, &[file]))
        .collect();
    let outputs: Vec<_> = running.into_iter().map(Program::end).collect();
    let done = outputs
        .iter()
        .filter(|it| it.ends_with(": 3 lines\n"))
        .count();
    assert_eq!(done, 1, "{outputs:?}");
    assert!(
        Program::start(path, &url, &[file])
            .end()
            .ends_with("imported already\n")
    );
    std::fs::remove_file(file).expect("removed");
}
