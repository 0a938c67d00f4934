//! `lockapi web` as a program.
#![cfg(feature = "web")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;

use common::{Database, PATIENCE, program, run, soon};

const TOKEN: &str = "a token that nobody guesses";

/// The page, which ends with this value.
struct Page {
    child: Child,
    address: String,
}

impl Page {
    fn new(database: &Database, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = database.command();
        command
            .args(["web", "--listen", "127.0.0.1:0"])
            .args(arguments);
        command.envs(variables.iter().copied());
        Self::start(command)
    }

    /// One that may have so many files open.
    #[cfg(target_os = "linux")]
    fn with_files(database: &Database, most: usize) -> Self {
        let page = database.command();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("ulimit -n {most}; exec \"$@\""), "sh"])
            .arg(page.get_program())
            .args(["web", "--listen", "127.0.0.1:0"]);
        for (name, value) in page.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the page");
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out)
            .read_line(&mut line)
            .expect("its address");
        let address = line.trim().strip_prefix("http://").expect("an address");
        let address = address.trim_end_matches('/').to_owned();
        Self { child, address }
    }

    fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream.write_all(text.as_bytes()).expect("sent");
        stream
    }

    fn get(&self, path: &str, headers: &str) -> String {
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
        rest(self.send(&head))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Ends sessions with this value: also after a failure, so that nobody waits for them.
struct Ending<'a>(&'a Database, &'static str);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let Self(database, those) = self;
        let end = format!("SELECT pg_terminate_backend(pid) FROM {those}");
        let _ended = database.try_sql(&end);
    }
}

/// What is sent until the connection is closed.
fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    let read = stream.read_to_end(&mut text);
    let is_closed = read.is_ok()
        || read.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
    assert!(
        is_closed,
        "it stays open: {}",
        String::from_utf8_lossy(&text)
    );
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn slow_clients_keep_nobody_waiting() {
    let database = Database::new();
    let page = Page::new(&database, &[], &[]);
    let half = "GET /queues HTTP/1.1\r\nhost: localh";
    let form = "POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\
                content-type: application/x-www-form-urlencoded\r\n\r\ntoken=";
    let heads: Vec<TcpStream> = (0..100).map(|_| page.send(half)).collect();
    let forms: Vec<TcpStream> = (0..10).map(|_| page.send(form)).collect();
    let answer = page.get("/queues", "");
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("</html>"),
        "{answer}"
    );
    thread::scope(|scope| {
        for head in heads {
            scope.spawn(move || assert_eq!(rest(head), ""));
        }
        for form in forms {
            scope.spawn(move || {
                let answer = rest(form);
                assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
            });
        }
    });
}

/// Streams of changes never end by themselves, and there are fewer than the page would take.
#[cfg(target_os = "linux")]
#[test]
fn where_no_more_files_may_be_open_newcomers_are_let_in() {
    const FILES: usize = 48;
    let database = Database::new();
    let page = Page::with_files(&database, FILES);
    let styled = || {
        let answer = page.get("/assets/style.css", "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    assert!(page.get("/queues", "").starts_with("HTTP/1.1 200"));
    let live = "GET /live?screen=queues HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut streams: Vec<TcpStream> = (0..FILES).map(|_| page.send(live)).collect();
    let files = format!("/proc/{}/fd", page.child.id());
    let open = || std::fs::read_dir(&files).expect("its files").count();
    for _ in 0..10 {
        soon("no more may be open", || {
            streams.push(page.send(live));
            (open() == FILES).then_some(())
        });
        styled();
    }
    // One of them makes room for the first; those that come after it have its place, and nothing else is closed.
    let stay = || streams.iter().filter(|stream| is_open(stream)).count();
    let stayed = stay();
    assert!(stayed > 10, "{stayed} stay open");
    for _ in 0..10 {
        styled();
    }
    assert!(stay() + 1 >= stayed, "{} of {stayed} stay open", stay());
}

/// Whether the page has not closed it.
#[cfg(target_os = "linux")]
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("set");
    let mut text = [0; 4096];
    loop {
        match stream.read(&mut text) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn a_token_may_have_an_end_of_line() {
    let database = Database::new();
    let variable = format!("{TOKEN}\n");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("  {TOKEN}\r\n")).expect("written");
    let path = file.path().to_str().expect("text");
    for page in [
        Page::new(&database, &[], &[("LOCKAPI_WEB_TOKEN", &variable)]),
        Page::new(&database, &["--token-file", path], &[]),
    ] {
        let bearer = format!("authorization: Bearer {TOKEN}\r\n");
        assert!(page.get("/metrics", &bearer).starts_with("HTTP/1.1 200"));
        assert!(page.get("/metrics", "").starts_with("HTTP/1.1 401"));
    }
}

#[test]
fn a_host_that_nobody_can_ask_for_is_refused() {
    for (host, told) in [
        ("https://admin.example.com", "without scheme, port and path"),
        ("admin.example.com/lockapi", "without scheme"),
        ("admin.example.com:443", "without scheme, port"),
        ("admin example.com", "such as admin.example.com"),
        ("", "such as admin.example.com"),
        ("bücher.example", "xn--"),
    ] {
        let mut command = program();
        command.args(["web", "--host", host]);
        run(command).exits(2).tells("--host").tells(told);
    }
    let database = Database::new();
    let page = Page::new(&database, &["--host", "Admin.Example.com."], &[]);
    for host in ["admin.example.com", "ADMIN.example.com:443"] {
        let head = format!("GET /queues HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = rest(page.send(&head));
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
    }
}

/// Sessions end by themselves as well.
#[test]
fn a_mutex_that_nobody_holds_any_more_is_told() {
    let database = Database::new();
    let page = Page::new(&database, &["--allow-actions"], &[]);
    let asked = page.get("/act?do=terminate&on=reports", "");
    let between = |begin: &str, end: &str| {
        let (_, rest) = asked.split_once(begin).expect("it is there");
        rest.split(end).next().expect("a part").to_owned()
    };
    let cookie = between("lockapi_browser=", ";");
    let form = between("name=\"form\" value=\"", "\"");
    let body = format!("form={form}&reason=a+test");
    let head = format!(
        "POST /act?do=terminate&on=reports HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncookie: lockapi_browser={cookie}\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = rest(page.send(&head));
    assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
    assert!(answer.contains("no session holds reports"), "{answer}");
    assert_eq!(database.sql("SELECT count(*) FROM lockapi.audit"), "0");
}

#[test]
fn metrics_tell_that_the_database_is_away() {
    let database = Database::new();
    let page = Page::new(&database, &[], &[]);
    let up = "lockapi_up{namespace=\"default\"}";
    let answer = page.get("/metrics", "");
    assert!(answer.contains(&format!("\n{up} 1\n")), "{answer}");
    database.is_there(false);
    soon("it is told", || {
        let answer = page.get("/metrics", "");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        answer.contains(&format!("\n{up} 0\n")).then_some(())
    });
    database.is_there(true);
    soon("it is back", || {
        let answer = page.get("/metrics", "");
        answer.contains(&format!("\n{up} 1\n")).then_some(())
    });
}

/// Its statements have a limit of time, however long somebody else has a table for himself.
#[test]
fn a_statement_that_waits_is_given_up() {
    let database = Database::new();
    let page = Page::new(&database, &[], &[]);
    assert!(page.get("/audit", "").starts_with("HTTP/1.1 200"));
    thread::scope(|scope| {
        let holder = scope
            .spawn(|| database.try_sql("BEGIN; LOCK TABLE lockapi.audit; SELECT pg_sleep(600)"));
        let ending = Ending(
            &database,
            "pg_locks WHERE granted AND relation = 'lockapi.audit'::regclass AND mode = 'AccessExclusiveLock'",
        );
        let locked =
            "SELECT count(*) FROM pg_locks WHERE granted AND relation = 'lockapi.audit'::regclass
                         AND mode = 'AccessExclusiveLock'";
        soon("it is locked", || {
            (database.sql(locked) == "1").then_some(())
        });
        let answer = page.get("/audit", "");
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert_eq!(database.sql(locked), "1", "it is locked all the time");
        // Others are served meanwhile.
        assert!(page.get("/queues", "").starts_with("HTTP/1.1 200"));
        drop(ending);
        assert!(holder.join().expect("it ends").is_err());
    });
}

#[test]
fn who_waits_for_whom_and_how_a_queue_grew_are_pictures() {
    let database = Database::new();
    let page = Page::new(&database, &[], &[]);
    let session = |name: &str, locks: &[i64], then: &str| {
        let locks = locks
            .iter()
            .map(|lock| format!("SELECT pg_advisory_lock({lock});\n"));
        let locks: String = locks.collect();
        database.try_sql(&format!("SET application_name = '{name}';\n{locks}{then}"))
    };
    let has = |lock: i64| {
        let held = format!(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = {lock}"
        );
        soon("it is held", || (database.sql(&held) == "1").then_some(()));
    };
    database
        .lockapi(["queue", "push", "mails", "send"])
        .succeeds();
    thread::scope(|scope| {
        let ending = Ending(
            &database,
            "pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'the-%'",
        );
        let first = scope.spawn(|| session("the-first", &[7001], "SELECT pg_sleep(600)"));
        has(7001);
        let second = scope.spawn(|| session("the-second", &[7002, 7001], ""));
        has(7002);
        let third = scope.spawn(|| session("the-third", &[7002], ""));
        let picture = soon("two waits", || {
            let locks = page.get("/locks", "");
            locks.contains("2 waits among 3 sessions").then_some(locks)
        });
        for (shown, times) in [
            ("<path class=\"edge\"", 2),
            ("<rect ", 3),
            ("class=\"root\"", 1),
        ] {
            assert_eq!(picture.matches(shown).count(), times, "{shown}: {picture}");
        }
        let (_, root) = picture
            .split_once("class=\"root\"")
            .expect("one that waits for nobody");
        assert!(
            root.split("</g>")
                .next()
                .is_some_and(|node| node.contains("the-first")),
            "{picture}"
        );
        for name in ["the-first", "the-second", "the-third"] {
            assert!(
                picture.contains(&format!(">{name}</text>")),
                "{name}: {picture}"
            );
        }
        soon("a line", || {
            let queues = page.get("/queues", "");
            let (_, line) = queues.split_once("<polyline points=\"")?;
            line.split('"').next()?.contains(' ').then_some(())
        });
        drop(ending);
        for ended in [first, second, third] {
            // Who waited may have got its lock in the last moment.
            let _sessions_end = ended.join().expect("it ends");
        }
    });
}
