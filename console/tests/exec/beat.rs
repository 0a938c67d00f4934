//! What runs under `lockapi exec`: it writes the time into a file again and again, for as long as it lives.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, exit};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Signal, getpid, getppid, kill_process, setsid};

const ROLE: &str = "LOCKAPI_TEST_BEAT";
const INTERVAL: Duration = Duration::from_millis(10);

/// How a child behaves that is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It ends when it is told to.
    Plain,
    /// It ignores what can be ignored.
    Ignores,
    /// It starts others, in its group and in groups of their own, and all ignore what can be ignored.
    Forks,
    /// It leaves a daemon in a session of its own, whose parents have ended, and goes on.
    Daemonises,
    /// The same, and ends soon by itself.
    Leaves,
    /// Another of its processes stops it and lets it go on, again and again: each time its parent is told.
    Stops,
}

impl Manner {
    pub(crate) const ALL: [Self; 6] = [
        Self::Plain,
        Self::Ignores,
        Self::Forks,
        Self::Daemonises,
        Self::Leaves,
        Self::Stops,
    ];
}

/// The command to run, which writes into a file.
pub(crate) fn command(manner: Manner, log: &Path) -> Vec<String> {
    let me = env::current_exe().expect("this program");
    let me = me.to_str().expect("a path in UTF-8");
    let log = log.to_str().expect("a path in UTF-8");
    let beat = format!("exec env {ROLE}={manner:?} {me} {log}");
    let ignore = match manner {
        Manner::Plain => "",
        _ => "trap '' TERM HUP INT QUIT USR1; ",
    };
    vec!["sh".to_owned(), "-c".to_owned(), format!("{ignore}{beat}")]
}

/// Beats and does not return, if this process was started to.
pub(crate) fn play_if_asked() {
    let Ok(role) = env::var(ROLE) else { return };
    let log = env::args().nth(1).expect("where to write");
    match role.as_str() {
        "Forks" => {
            again("Plain", &log);
            again("Group", &log);
        }
        "Daemonises" | "Leaves" => again("Daemon", &log),
        "Stops" => again("Toggle", &log),
        "Toggle" => toggle(),
        // As daemons are made: the parent ends, the child is in a session of its own.
        "Daemon" => {
            setsid().expect("a session");
            again("Plain", &log);
            exit(0);
        }
        "Group" => {
            rustix::process::setpgid(None, None).expect("a group");
        }
        _ => {}
    }
    let limit = match role.as_str() {
        "Leaves" => Duration::from_millis(300),
        // So that nothing stays where the test itself is killed.
        _ => Duration::from_mins(2),
    };
    let mut file = open(Path::new(&log));
    let fence = env::var("LOCKAPI_FENCE").unwrap_or_default();
    let pid = getpid().as_raw_pid();
    let begun = SystemTime::now();
    loop {
        let now = SystemTime::now();
        let since = now.duration_since(UNIX_EPOCH).expect("a time").as_micros();
        // One write each: the lines of several processes do not mix.
        file.write_all(format!("{fence} {since} {pid}\n").as_bytes())
            .expect("written");
        if now.duration_since(begun).is_ok_and(|lived| lived > limit) {
            exit(0);
        }
        thread::sleep(INTERVAL);
    }
}

/// Stops whoever started this process, and lets it go on, for as long as it lives.
fn toggle() {
    let parent = getppid().expect("a parent");
    let begun = Instant::now();
    // Later the parent is whoever has adopted this process.
    while getppid() == Some(parent) && begun.elapsed() < Duration::from_mins(2) {
        for signal in [Signal::STOP, Signal::CONT] {
            // It may have ended.
            let _sent = kill_process(parent, signal);
            thread::sleep(Duration::from_millis(1));
        }
    }
    exit(0);
}

fn again(role: &str, log: &str) {
    let me = env::current_exe().expect("this program");
    let mut command = Command::new(me);
    let child = command.env(ROLE, role).arg(log).spawn();
    // Whoever adopts it waits for it.
    drop(child.expect("another"));
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options
        .append(true)
        .create(true)
        .open(path)
        .expect("the log")
}

/// A line of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat {
    pub(crate) fence: i64,
    /// In microseconds since 1970.
    pub(crate) at: i64,
    pub(crate) pid: i32,
}

pub(crate) fn read(log: &Path) -> Vec<Beat> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    // The last line may be on its way.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let beat = |line: &str| {
        let mut words = line.split(' ');
        let mut next = || words.next().expect("a word");
        Beat {
            fence: next().parse().expect("a token"),
            at: next().parse().expect("a time"),
            pid: next().parse().expect("a process"),
        }
    };
    whole.lines().map(beat).collect()
}
