//! What `lockapi exec` answers, and what it passes on.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Database, Ran, program, ran, run, run_with_input, soon};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(
            "the_status_is_that_of_the_command",
            the_status_is_that_of_the_command,
        ),
        trial(
            "the_environment_tells_of_the_hold",
            the_environment_tells_of_the_hold,
        ),
        trial(
            "input_and_signals_are_passed_on",
            input_and_signals_are_passed_on,
        ),
        trial(
            "a_service_that_is_stopped_has_time_to_end",
            a_service_that_is_stopped_has_time_to_end,
        ),
        trial(
            "what_others_hold_is_not_run_under",
            what_others_hold_is_not_run_under,
        ),
        trial(
            "an_early_end_can_keep_others_out",
            an_early_end_can_keep_others_out,
        ),
        trial("a_limit_lets_so_many_through", a_limit_lets_so_many_through),
        trial(
            "a_limit_that_is_locked_is_waited_for",
            a_limit_that_is_locked_is_waited_for,
        ),
        trial("a_mutex_is_that_of_programs", a_mutex_is_that_of_programs),
        trial(
            "what_a_command_leaves_is_ended_first",
            what_a_command_leaves_is_ended_first,
        ),
        trial(
            "an_operator_takes_a_lease_away",
            an_operator_takes_a_lease_away,
        ),
        trial("no_database_is_told_apart", no_database_is_told_apart),
        trial(
            "arguments_that_do_not_fit_are_refused",
            arguments_that_do_not_fit_are_refused,
        ),
    ]
}

fn exec(database: &Database, arguments: &[&str], script: &str) -> Ran {
    let mut command = database.command();
    command
        .arg("exec")
        .args(arguments)
        .args(["--", "sh", "-c", script]);
    run(command)
}

fn the_status_is_that_of_the_command() {
    let database = Database::new();
    for what in [["--lease", "a"], ["--leader", "a"], ["--mutex", "a"]] {
        exec(&database, &what, "exit 0").exits(0);
        exec(&database, &what, "exit 7").exits(7);
        exec(&database, &what, "kill -USR1 $$").exits(128 + 10);
        exec(&database, &what, "kill -KILL $$").exits(128 + 9);
    }
    exec(&database, &["--semaphore", "s", "--permits", "2"], "exit 9").exits(9);
    let missing = ["exec", "--lease", "a", "--", "/nowhere/at/all"];
    database
        .lockapi(missing)
        .exits(127)
        .tells("/nowhere/at/all");
    database
        .lockapi(["exec", "--lease", "a", "--", "/etc/passwd"])
        .exits(126);
    // It is free again each time.
    assert_eq!(
        database.sql("SELECT count(*) FROM lockapi.lease_view WHERE held"),
        "0"
    );
}

fn the_environment_tells_of_the_hold() {
    let database = Database::new();
    let script = "echo $LOCKAPI_KEY $LOCKAPI_FENCE $((LOCKAPI_DEADLINE - $(date +%s)))";
    let mut last = 0;
    for _ in 0..2 {
        let ran = exec(
            &database,
            &["--lease", "reports/daily", "--ttl", "1h"],
            script,
        )
        .succeeds();
        let words: Vec<&str> = ran.out.split_whitespace().collect();
        let [key, fence, left] = words[..] else {
            panic!("{ran:?}")
        };
        assert_eq!(key, "reports/daily");
        let fence: i64 = fence.parse().expect("a token");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        let left: i64 = left.parse().expect("seconds");
        assert!((1800..=3600).contains(&left), "{left} s");
    }
    let owner = database.sql("SELECT owner FROM lockapi.lease");
    assert!(owner.contains("pid ") && owner.ends_with(": sh"), "{owner}");
}

fn input_and_signals_are_passed_on() {
    let database = Database::new();
    let mut command = database.command();
    command.args(["exec", "--lease", "in", "--", "tr", "a-z", "A-Z"]);
    let ran = run_with_input(command, Some("from a pipe\n")).succeeds();
    assert_eq!(ran.out, "FROM A PIPE\n");
    for (signal, named) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::USR2, "USR2"),
    ] {
        let mut command = database.command();
        let script = format!(
            "trap 'echo {named}; exit 3' {named}; echo ready; while :; do sleep 0.05; done"
        );
        command.args(["exec", "--lease", "signals", "--", "sh", "-c", &script]);
        command.stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let mut out = std::io::BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
        assert_eq!(line, "ready\n");
        kill_process(Pid::from_child(&child), signal).expect("signalled");
        line.clear();
        std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
        assert_eq!(line, format!("{named}\n"));
        assert_eq!(child.wait().expect("it ends").code(), Some(3));
    }
    // What was ignored before stays so.
    let ignores = "trap '' HUP; \"$0\" exec --lease nohup -- sh -c 'kill -HUP $$; kill -HUP $PPID; echo alive'";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", ignores, env!("CARGO_BIN_EXE_lockapi")]);
    command.env("DATABASE_URL", database.url());
    run(command).succeeds().shows("alive");
}

/// All of its processes get SIGTERM at the same time, as from systemd.
fn a_service_that_is_stopped_has_time_to_end() {
    let database = Database::new();
    let mut command = database.command();
    let script =
        "trap 'sleep 0.3; echo saved; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    command.args(["exec", "--lease", "service", "--", "sh", "-c", script]);
    command.stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
    let watcher = crate::outlives::children(child.id())[0];
    let shell = crate::outlives::children(watcher.as_raw_pid().unsigned_abs())[0];
    for pid in [watcher, shell, Pid::from_child(&child)] {
        kill_process(pid, Signal::TERM).expect("signalled");
    }
    line.clear();
    std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
    assert_eq!(line, "saved\n");
    assert_eq!(child.wait().expect("it ends").code(), Some(7));
    assert_eq!(
        database.sql("SELECT count(*) FROM lockapi.lease_view WHERE held"),
        "0"
    );
}

/// Holds something with a command that ends with its input.
struct Holding(std::process::Child);

impl Holding {
    fn start(database: &Database, arguments: &[&str]) -> Self {
        let mut command = database.command();
        command
            .arg("exec")
            .args(arguments)
            .args(["--", "sh", "-c", "echo held; cat"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let mut held = [0; 5];
        let out = child.stdout.as_mut().expect("its output");
        std::io::Read::read_exact(out, &mut held).expect("it holds");
        Self(child)
    }

    fn end(mut self) -> Ran {
        drop(self.0.stdin.take());
        ran(&self.0.wait_with_output().expect("it ends"))
    }
}

fn what_others_hold_is_not_run_under() {
    let database = Database::new();
    for what in [
        &["--lease", "busy"] as &[&str],
        &["--leader", "busy"],
        &["--mutex", "busy"],
        &["--semaphore", "busy", "--permits", "1"],
    ] {
        let holding = Holding::start(&database, what);
        let skipping = [what, &["--skip"]].concat();
        exec(&database, &skipping, "echo run")
            .exits(120)
            .tells("held by others");
        let timing = [what, &["--timeout", "200ms"]].concat();
        exec(&database, &timing, "echo run")
            .exits(120)
            .tells("for 200ms");
        let quietly = [what, &["--skip", "--busy-status", "0"]].concat();
        let ran = exec(&database, &quietly, "echo run").exits(0);
        assert!(ran.out.is_empty() && ran.err.is_empty(), "{ran:?}");
        let mut waiting = database.command();
        waiting.arg("exec").args(what).args(["--", "echo", "run"]);
        let waiting = waiting.stdout(Stdio::piped()).spawn().expect("the program");
        holding.end().succeeds();
        let waited = waiting.wait_with_output().expect("it ends");
        ran_after(&waited);
    }
    // A signal ends the wait.
    let holding = Holding::start(&database, &["--lease", "busy"]);
    let mut waiting = database.command();
    waiting.args(["exec", "--lease", "busy", "--", "echo", "run"]);
    let mut waiting = waiting.spawn().expect("the program");
    std::thread::sleep(Duration::from_millis(200));
    kill_process(Pid::from_child(&waiting), Signal::INT).expect("signalled");
    let status = waiting.wait().expect("it ends");
    assert!(
        status.code() == Some(130) || status.code().is_none(),
        "{status}"
    );
    holding.end().succeeds();
}

fn ran_after(output: &std::process::Output) {
    let ran = ran(output);
    assert_eq!((ran.status, ran.out.as_str()), (0, "run\n"), "{ran:?}");
}

fn an_early_end_can_keep_others_out() {
    let database = Database::new();
    let kept = ["--lease", "kept", "--ttl", "1h", "--min-hold", "30m"];
    exec(&database, &kept, "exit 0").succeeds();
    exec(&database, &["--lease", "kept", "--skip"], "exit 0").exits(120);
    assert_eq!(database.sql("SELECT state FROM lockapi.lease_view"), "kept");
}

fn a_limit_lets_so_many_through() {
    let database = Database::new();
    let limit = ["--limit", "mails", "--quota", "2/1h", "--skip"];
    exec(&database, &limit, "echo $LOCKAPI_KEY; exit 4")
        .exits(4)
        .shows("mails");
    // What was not run is given back.
    let missing = [&["exec"], &limit[..], &["--", "/nowhere"]].concat();
    database.lockapi(missing).exits(127);
    exec(&database, &limit, "exit 0").succeeds();
    let refused = exec(&database, &limit, "exit 0").exits(120);
    refused
        .tells("used up")
        .tells("The next permit is there in");
    let timing = ["--limit", "mails", "--quota", "2/1h", "--timeout", "1s"];
    exec(&database, &timing, "exit 0").exits(120);
}

/// For longer than a statement may take.
fn a_limit_that_is_locked_is_waited_for() {
    let database = Database::new();
    let limit = ["--limit", "mails", "--quota", "9/1h"];
    exec(&database, &limit, "exit 0").succeeds();
    std::thread::scope(|scope| {
        let locked = scope.spawn(|| {
            database
                .sql("BEGIN; SELECT FROM lockapi.rate_limit FOR UPDATE; SELECT pg_sleep(8); END")
        });
        let is_locked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(8)%' AND pid <> pg_backend_pid()
                            AND datname = current_database()";
        soon("it is locked", || {
            (database.sql(is_locked) == "1").then_some(())
        });
        let refused = exec(
            &database,
            &["--limit", "mails", "--quota", "9/1h", "--timeout", "1s"],
            "exit 0",
        );
        refused.exits(120);
        exec(&database, &limit, "exit 3").exits(3);
        locked.join().expect("it ends");
    });
}

/// It is an advisory lock, which a session of the server holds: when that ends, the command does.
fn a_mutex_is_that_of_programs() {
    let database = Database::new();
    let holding = Holding::start(&database, &["--mutex", "m"]);
    let taken = "SELECT pg_try_advisory_lock(lockapi.advisory_key('default', 'm'))";
    assert_eq!(database.sql(taken), "f");
    let ended = "SELECT bool_or(pg_terminate_backend(pid)) FROM pg_locks
                  WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid()
                    AND (classid::int8 << 32) | objid::int8 = lockapi.advisory_key('default', 'm')";
    assert_eq!(database.sql(ended), "t");
    holding.end().exits(121).tells("lost");
    // Its holder is gone: free at once.
    let holding = Holding::start(&database, &["--mutex", "m"]);
    kill_process(Pid::from_child(&holding.0), Signal::KILL).expect("killed");
    soon("it is free", || (database.sql(taken) == "t").then_some(()));
}

fn what_a_command_leaves_is_ended_first() {
    let database = Database::new();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("late");
    let script = format!(
        "setsid sh -c 'trap \"\" TERM; sleep 5; touch {}' >/dev/null 2>&1 & exit 5",
        file.display()
    );
    let begun = std::time::Instant::now();
    exec(
        &database,
        &["--lease", "daemon", "--ttl", "3s", "--grace", "100ms"],
        &script,
    )
    .exits(5);
    std::thread::sleep(Duration::from_secs(6).saturating_sub(begun.elapsed()));
    assert!(!file.exists(), "it went on");
}

fn an_operator_takes_a_lease_away() {
    let database = Database::new();
    let holding = Holding::start(&database, &["--lease", "taken", "--ttl", "2s"]);
    database.sql(
        "UPDATE lockapi.lease SET fence = fence + 1024, released_at = clock_timestamp(), expires_at = clock_timestamp()",
    );
    // With the next renewal it hears of it.
    let mut child = holding.0;
    let status = soon("it ends", || child.try_wait().expect("it is there"));
    assert_eq!(status.code(), Some(121));
}

fn no_database_is_told_apart() {
    let nobody = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = nobody.local_addr().expect("an address").port();
    drop(nobody);
    let mut command = program();
    let url = format!("postgres://u:secret@127.0.0.1:{port}/d");
    command.args(["exec", "--url", &url, "--lease", "a", "--", "echo", "run"]);
    let ran = run(command).exits(122);
    assert!(!ran.err.contains("secret") && ran.out.is_empty(), "{ran:?}");
    let database = Database::empty();
    let ran = exec(&database, &["--lease", "a"], "echo run").exits(1);
    ran.tells("the schema lockapi does not exist")
        .tells("lockapi migrate");
}

fn arguments_that_do_not_fit_are_refused() {
    let database = Database::new();
    for (arguments, told) in [
        (&[] as &[&str], "required"),
        (&["--lease", "a", "--mutex", "b"], "cannot be used with"),
        (&["--lease", "a", "--skip", "--wait"], "cannot be used with"),
        (&["--semaphore", "a"], "--permits"),
        (&["--limit", "a"], "--quota"),
        (&["--lease", "a", "--quota", "1/1h"], "--limit"),
        (&["--lease", "a", "--ttl", "10ms"], "allowed are 1s"),
        (&["--lease", "a", "--ttl", "soon"], "invalid value"),
        (
            &["--lease", "a", "--ttl", "3s", "--grace", "2s"],
            "at most a third",
        ),
        (
            &["--lease", "a", "--ttl", "3s", "--min-hold", "1h"],
            "at most the ttl",
        ),
        (&["--mutex", "a", "--min-hold", "1s"], "allowed are --lease"),
        (&["--lease", ""], "allowed are"),
        (&["--lease", "#x"], "allowed are"),
    ] {
        let ran = exec(&database, arguments, "echo run");
        assert!(
            ran.status == 2 && ran.err.contains(told),
            "{arguments:?}: {ran:?}"
        );
    }
    let mut none = database.command();
    none.args(["exec", "--lease", "a"]);
    run(none).exits(2).tells("required");
    let _flushed = std::io::stdout().flush();
}
