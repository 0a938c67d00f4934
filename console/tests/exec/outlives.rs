//! Nothing that `lockapi exec` runs outlives its hold: stops, kills and cuts, and a judge who reads what the children
//! and the server wrote.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::beat::{self, Manner};
use crate::common::{Database, PATIENCE, soon};
use crate::relay::Relay;
use crate::trial;

/// How many rounds there are unless LOCKAPI_EXEC_ROUNDS says another number: each fault with each manner.
const ROUNDS: usize = Fault::ALL.len() * Manner::ALL.len();
/// How many of them at the same time.
const THREADS: usize = 18;
/// A child that has not written for so long has ended: it writes a hundred times as often.
const QUIET: Duration = Duration::from_secs(1);

/// What happens to a command and those who watch over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// `lockapi exec` is stopped until its hold has expired.
    Stop,
    Kill,
    Terminate,
    /// The server is not reached any more.
    Cut,
    /// The server ends the sessions; others can be opened.
    Sessions,
    KillWatcher,
    /// The watcher does nothing, and the server is not reached any more.
    StopWatcherAndCut,
    /// `lockapi exec` and the watcher, at the same time.
    KillBoth,
}

impl Fault {
    const ALL: [Self; 9] = [
        Self::Nothing,
        Self::Stop,
        Self::Kill,
        Self::Terminate,
        Self::Cut,
        Self::Sessions,
        Self::KillWatcher,
        Self::StopWatcherAndCut,
        Self::KillBoth,
    ];
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("no_child_outlives_its_hold", no_child_outlives_its_hold),
        trial("the_judge_notices_a_child_that_does", the_judge_notices),
    ]
}

fn no_child_outlives_its_hold() {
    let rounds = std::env::var("LOCKAPI_EXEC_ROUNDS");
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    let place = Place::new();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS.min(rounds) {
            let (place, next) = (&place, &next);
            scope.spawn(move || {
                loop {
                    let round = next.fetch_add(1, Ordering::SeqCst);
                    if round >= rounds {
                        return;
                    }
                    let fault = Fault::ALL[round % Fault::ALL.len()];
                    let manner = Manner::ALL[round / Fault::ALL.len() % Manner::ALL.len()];
                    place.round(round, thread, fault, manner);
                }
            });
        }
    });
    let verdict = place.judge();
    assert!(
        verdict.overrun.is_empty(),
        "after the end of its hold: {:?}",
        verdict.overrun
    );
    assert!(
        verdict.holds >= rounds,
        "{} holds in {rounds} rounds",
        verdict.holds
    );
    println!(
        "{rounds} rounds, {} times written by {} processes, the last {:?} before the end of its hold",
        verdict.beats, verdict.processes, verdict.closest
    );
}

/// With `--on-lost keep` a command goes on: the same judge has to see it.
fn the_judge_notices() {
    let place = Place::new();
    let log = place.log("kept");
    let mut exec = place.exec(
        0,
        "kept",
        &log,
        Manner::Plain,
        place.database.port(),
        &["--on-lost", "keep"],
    );
    soon("the child writes", || beat::read(&log).first().copied());
    signal(&exec, Signal::STOP);
    let begun = Instant::now();
    let noticed = soon("the judge notices", || {
        let verdict = place.judge();
        verdict.overrun.first().copied()
    });
    assert!(
        begun.elapsed() > Duration::from_secs(1),
        "it was still held: {noticed:?}"
    );
    signal(&exec, Signal::CONT);
    signal(&exec, Signal::TERM);
    let status = exec.wait().expect("it ends");
    assert_eq!(status.code(), Some(121), "it was lost meanwhile");
}

/// A database that writes down until when who holds, and a directory for what the children write.
struct Place {
    database: Database,
    logs: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let database = Database::apart();
        database.sql(
            "CREATE TABLE public.hold (number int8 GENERATED ALWAYS AS IDENTITY, fence int8, until timestamptz);
             CREATE FUNCTION public.note_hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO public.hold (fence, until)
                 VALUES (NEW.fence, coalesce(NEW.released_at, NEW.expires_at));
                 RETURN NULL;
             END $$;
             CREATE TRIGGER note_hold AFTER INSERT OR UPDATE ON lockapi.lease
                FOR EACH ROW EXECUTE FUNCTION public.note_hold();",
        );
        let logs = tempfile::tempdir().expect("a directory");
        Self { database, logs }
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.path().join(name)
    }

    fn exec(
        &self,
        round: usize,
        name: &str,
        log: &Path,
        manner: Manner,
        port: u16,
        more: &[&str],
    ) -> Child {
        let mut command = self.database.command();
        command
            .env("DATABASE_URL", self.database.url_at(port))
            .env("PGAPPNAME", name);
        command.args(["exec", "--ttl", "2s", "--skip"]).args(more);
        match round % 3 {
            0 => command.args(["--lease", name]),
            1 => command.args(["--leader", name]),
            _ => command.args(["--semaphore", name, "--permits", "1"]),
        };
        command.arg("--").args(beat::command(manner, log));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("the program")
    }

    fn round(&self, round: usize, thread: usize, fault: Fault, manner: Manner) {
        let name = format!("round-{round}");
        let log = self.log(&name);
        let relay = Relay::start(self.database.port());
        let mut exec = self.exec(round, &name, &log, manner, relay.port(), &[]);
        soon("the child writes", || beat::read(&log).first().copied());
        thread::sleep(Duration::from_millis(fastrand::u64(0..300)));
        let context = format!("round {round} of thread {thread}: {fault:?}, {manner:?}");
        let watcher = children(exec.id()).first().copied();
        let watcher = watcher.unwrap_or_else(|| panic!("{context}: no watcher"));
        // A command that ends by itself may have.
        let leaves = manner == Manner::Leaves;
        let expected = match fault {
            Fault::Nothing => {
                if !leaves {
                    // As a shell that is closed does: everything is ended with it.
                    signal(&exec, Signal::KILL);
                }
                leaves.then_some(0)
            }
            Fault::Stop => {
                signal(&exec, Signal::STOP);
                quiet(&log, &context);
                signal(&exec, Signal::CONT);
                (!leaves).then_some(121)
            }
            Fault::Kill => {
                signal(&exec, Signal::KILL);
                None
            }
            Fault::Terminate => {
                signal(&exec, Signal::TERM);
                match manner {
                    Manner::Plain => Some(143),
                    Manner::Leaves => None,
                    // The next signal cannot be ignored.
                    _ => {
                        thread::sleep(Duration::from_millis(50));
                        signal(&exec, Signal::KILL);
                        None
                    }
                }
            }
            Fault::Cut => {
                relay.cut();
                (!leaves).then_some(121)
            }
            Fault::Sessions => {
                self.database.sql(&format!(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE '{name}%'"
                ));
                // It goes on, because a lease outlives its connections.
                thread::sleep(Duration::from_millis(fastrand::u64(0..1500)));
                if !leaves {
                    signal(&exec, Signal::KILL);
                }
                leaves.then_some(0)
            }
            Fault::KillWatcher => {
                kill(watcher, Signal::KILL);
                (!leaves).then_some(125)
            }
            Fault::StopWatcherAndCut => {
                kill(watcher, Signal::STOP);
                relay.cut();
                (!leaves).then_some(121)
            }
            Fault::KillBoth => {
                // The watcher first, stopped: it would end the command in an orderly way.
                kill(watcher, Signal::STOP);
                signal(&exec, Signal::STOP);
                kill(watcher, Signal::KILL);
                signal(&exec, Signal::KILL);
                if matches!(
                    manner,
                    Manner::Forks | Manner::Daemonises | Manner::Leaves | Manner::Stops
                ) {
                    // Documented: what the command has started is not ended then. So the test does it.
                    end_all(&log);
                }
                None
            }
        };
        let mut stderr = exec.stderr.take().expect("its messages");
        let status = soon(&context, || exec.try_wait().expect("it is there"));
        quiet(&log, &context);
        let mut told = String::new();
        std::io::Read::read_to_string(&mut stderr, &mut told).expect("its messages");
        if let Some(expected) = expected {
            assert_eq!(status.code(), Some(expected), "{context}: {told}");
        }
    }

    fn judge(&self) -> Verdict {
        let rows = self.database.sql(
            "SELECT DISTINCT ON (fence) fence, (extract(epoch FROM until) * 1000000)::int8
               FROM public.hold ORDER BY fence, number DESC",
        );
        let until = |row: &str| {
            let (fence, until) = row.split_once('|').expect("two columns");
            (
                fence.parse().expect("a token"),
                until.parse().expect("a time"),
            )
        };
        let until: HashMap<i64, i64> = rows.lines().map(until).collect();
        let mut verdict = Verdict::default();
        let mut processes = std::collections::HashSet::new();
        let logs = fs::read_dir(self.logs.path()).expect("the logs");
        for log in logs {
            let beats = beat::read(&log.expect("a log").path());
            verdict.holds += usize::from(!beats.is_empty());
            for beat in beats {
                let left = until[&beat.fence] - beat.at;
                processes.insert(beat.pid);
                verdict.beats += 1;
                let before = Duration::from_micros(left.max(0).unsigned_abs());
                verdict.closest = Some(
                    verdict
                        .closest
                        .map_or(before, |closest| closest.min(before)),
                );
                if left < 0 {
                    verdict.overrun.push((beat.fence, left, beat.pid));
                }
            }
        }
        verdict.processes = processes.len();
        verdict
    }
}

#[derive(Debug, Default)]
struct Verdict {
    holds: usize,
    beats: usize,
    processes: usize,
    closest: Option<Duration>,
    /// Token, microseconds, process.
    overrun: Vec<(i64, i64, i32)>,
}

/// Returns when nobody writes into the log any more.
fn quiet(log: &Path, context: &str) {
    let begun = Instant::now();
    let length = || fs::metadata(log).map_or(0, |log| log.len());
    let mut last = length();
    let mut since = Instant::now();
    while since.elapsed() < QUIET {
        assert!(
            begun.elapsed() < PATIENCE,
            "{context}: something goes on writing"
        );
        thread::sleep(Duration::from_millis(20));
        let now = length();
        if now != last {
            last = now;
            since = Instant::now();
        }
    }
}

/// Kills all that write into a log.
fn end_all(log: &Path) {
    // What begins to write meanwhile is found the next time.
    for _ in 0..20 {
        for beat in beat::read(log) {
            // The number may be that of another process by now, which would not be the test's.
            let line =
                fs::read_to_string(format!("/proc/{}/cmdline", beat.pid)).unwrap_or_default();
            if line.contains(log.to_str().expect("a path in UTF-8")) {
                kill(Pid::from_raw(beat.pid).expect("a process"), Signal::KILL);
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_child(child), signal);
}

fn kill(pid: Pid, signal: Signal) {
    // It may have ended by itself.
    let _sent = kill_process(pid, signal);
}

pub(crate) fn children(of: u32) -> Vec<Pid> {
    let of = of.to_string();
    let processes = fs::read_dir("/proc").expect("the processes");
    let child = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let parent = rest.split_ascii_whitespace().nth(1)?;
        Pid::from_raw(pid).filter(|_| parent == of)
    };
    processes.flatten().filter_map(child).collect()
}
