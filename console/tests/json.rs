//! With `--json` each command prints one JSON document, or says that it has none.

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use common::{Database, program, run, soon};
use serde_json::{Value, json};

/// The commands that clap knows, as far as people do: those that have no commands under them.
fn commands() -> BTreeSet<String> {
    let directory = tempfile::tempdir().expect("a directory");
    let mut man = program();
    man.args(["man", "--directory"]).arg(directory.path());
    run(man).succeeds();
    let pages = std::fs::read_dir(directory.path()).expect("pages");
    let page = |page: std::io::Result<std::fs::DirEntry>| {
        let name = page.expect("a page").file_name();
        let name = name
            .to_str()
            .expect("text")
            .strip_suffix(".1")
            .map(str::to_owned);
        name.expect("a page of a manual")
    };
    let pages: BTreeSet<String> = pages.map(page).collect();
    let is_leaf = |page: &&String| {
        !pages
            .iter()
            .any(|other| other.starts_with(&format!("{page}-")))
    };
    let leaves = pages.iter().filter(is_leaf);
    let words = |page: &String| {
        page.strip_prefix("lockapi-")
            .unwrap_or(page)
            .replace('-', " ")
    };
    leaves.map(words).collect()
}

/// The number of a new job.
fn push(database: &Database, more: &[&str]) -> String {
    let pushed = database.lockapi([&["queue", "push", "mails", "send"], more].concat());
    pushed.succeeds().out.trim().to_owned()
}

/// A holder, which ends with this value.
struct Holder(Child);

impl Holder {
    fn new(database: &Database, kind: &str, key: &str) -> Self {
        let mut command: Command = database.command();
        command.args(["exec", kind, key, "--", "sleep", "600"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let holder = Self(child.expect("a holder"));
        let list = if kind == "--mutex" { "lock" } else { "lease" };
        soon("it is held", || {
            let listed = database.lockapi([list, "list", "--json"]).succeeds();
            let listed = listed.json();
            let text = listed.to_string();
            text.contains(&format!("\"{key}\"")).then_some(())
        });
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// What follows a command on the command line, once there is what it needs.
fn arguments(database: &Database, command: &str) -> Vec<String> {
    let job = |more: &[&str]| push(database, more);
    let dead = || {
        let id = job(&[]);
        database.sql(&format!(
            "INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority, namespace, queue, name, payload)
             SELECT id, 'failed', run_at, created_at, 1, 1, priority, namespace, queue, name, payload FROM lockapi.job WHERE id = {id};
             DELETE FROM lockapi.job WHERE id = {id}"
        ));
        id
    };
    let task = || {
        let set = [
            "schedule", "set", "upkeep", "vacuum", "vacuum", "--every", "1h", "--reason", "a test",
        ];
        database.lockapi(set).succeeds();
    };
    let words = |text: &str| {
        text.split(' ')
            .filter(|it| !it.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let text = match command {
        "audit" | "doctor" | "lease list" | "limit list" | "lock list" | "lock waits"
        | "migrate plan" | "migrate status" | "migrate up" | "queue list" | "queue running"
        | "schedule list" | "id workers" => String::new(),
        "completions" => "bash".to_owned(),
        "man" => "queue".to_owned(),
        "id decode" => "1234567890123".to_owned(),
        "id next" => "orders --count 3".to_owned(),
        "lease release" => "nightly --reason test".to_owned(),
        "lock release" => "reports --reason test".to_owned(),
        "limit show" | "limit take" => "a --quota 10/1h".to_owned(),
        "limit reset" => "a --reason test".to_owned(),
        "limit block" => "a 1m --reason test".to_owned(),
        "migrate grants" => "worker somebody".to_owned(),
        "queue cancel" => format!("mails {} --reason test", job(&[])),
        "queue edit" => format!("mails {} --priority high --reason test", job(&[])),
        "queue job" => job(&[]),
        "queue push" => "mails send".to_owned(),
        "queue dead" | "queue history" | "queue jobs" | "queue show" => "mails".to_owned(),
        "queue redrive" | "queue discard" => format!("mails {} --reason test", dead()),
        "queue limit" => "mails --running 3 --reason test".to_owned(),
        "queue drain" | "queue pause" | "queue purge" | "queue resume" => {
            "mails --reason test".to_owned()
        }
        "schedule set" => "upkeep vacuum vacuum --every 1h --reason test".to_owned(),
        "schedule runs" => {
            task();
            "upkeep vacuum".to_owned()
        }
        "schedule run" | "schedule enable" | "schedule disable" | "schedule remove" => {
            task();
            "upkeep vacuum --reason test".to_owned()
        }
        _ => panic!(
            "what follows `lockapi {command}`, so that it does something, is to be added here"
        ),
    };
    words(&text)
}

/// Prints where it is, and goes on.
fn web(database: &Database) -> String {
    let mut command = database.command();
    command.args(["web", "--listen", "127.0.0.1:0", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the page");
    let mut line = String::new();
    let out = child.stdout.take().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("a line");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    line
}

/// Commands whose document is a text for other programs, or the version of the schema.
const ALONE: [&str; 5] = [
    "completions",
    "man",
    "migrate grants",
    "migrate plan",
    "migrate up",
];

#[test]
fn every_command_prints_one_document() {
    let database = Database::new();
    let commands = commands();
    assert!(commands.len() > 40, "{commands:?}");
    let (_lease, _mutex) = (
        Holder::new(&database, "--lease", "nightly"),
        Holder::new(&database, "--mutex", "reports"),
    );
    let mut silent = Vec::new();
    for command in &commands {
        let told = match command.as_str() {
            "exec" | "top" => {
                let more: &[&str] = match command.as_str() {
                    "exec" => &["--lease", "a", "--", "true"],
                    _ => &[],
                };
                let refused = database.lockapi([&[command.as_str(), "--json"], more].concat());
                refused.exits(2).tells("--json with");
                continue;
            }
            "web" => web(&database),
            command => {
                let mut all: Vec<String> = command.split(' ').map(str::to_owned).collect();
                all.extend(arguments(&database, command));
                all.push("--json".to_owned());
                database.lockapi(all).succeeds().out
            }
        };
        let document = serde_json::from_str::<Value>(&told);
        // A number or a text alone has no room for more.
        let alone = ALONE.contains(&command.as_str());
        let is_document = document.is_ok_and(|it| alone || it.is_object() || it.is_array());
        if !is_document || told.lines().count() != 1 {
            silent.push(format!("{command}: {told:?}"));
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
}

#[test]
fn what_was_done_is_told_by_name() {
    let database = Database::new();
    let told = |command: &str, more: &[&str]| {
        let mut all: Vec<String> = command.split(' ').map(str::to_owned).collect();
        all.extend(arguments(&database, command));
        if more.contains(&"--all") {
            // Instead of the number.
            all.remove(3);
        }
        all.extend(more.iter().map(|it| (*it).to_owned()));
        all.push("--json".to_owned());
        database.lockapi(all).succeeds().json()
    };
    for more in [&[][..], &["--all"]] {
        assert_eq!(told("queue redrive", more), json!({ "redriven": 1 }));
        assert_eq!(told("queue discard", more), json!({ "discarded": 1 }));
    }
    let ran = told("schedule run", &[]);
    assert_eq!(ran["status"], "pending", "{ran}");
    let job = ran["job"].as_str().expect("a number, as a text");
    let job = database.lockapi(["queue", "job", job]).succeeds();
    job.shows("vacuum");
}
