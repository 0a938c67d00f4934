//! Running the tests until the first one fails.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::Result;

/// What the tests say of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All have passed.
    Passed,
    /// This one has failed first.
    Failed(String),
    /// This one has failed first, and passes when it is run alone.
    Unsteady(String),
    /// They have not ended in time, or the program has crashed.
    Stuck(&'static str),
}

/// Where a program of tests starts a server that no other one finds; removed with this.
pub(crate) struct OwnServer(pub(crate) PathBuf);

/// Servers end some seconds after their last user.
const SERVER_ENDS: Duration = Duration::from_mins(1);

impl OwnServer {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let name = format!("mutants-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let began = Instant::now();
        while let Err(error) = fs::remove_dir(&self.0) {
            if began.elapsed() > SERVER_ENDS {
                eprintln!("mutants: {}: {error}", self.0.display());
                return;
            }
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// How many tests of a program these arguments choose.
pub(crate) fn count(program: &Path, arguments: &[String]) -> Result<usize> {
    let list = ["--list", "--format", "terse"];
    let listed = Command::new(program).args(arguments).args(list).output()?;
    let lines = String::from_utf8(listed.stdout)?;
    Ok(lines.lines().filter(|it| it.ends_with(": test")).count())
}

/// Runs the tests of a program, at most for some time, and with a server in this folder if there is one. It is ended when a
/// test has failed.
pub(crate) fn run(
    program: &Path,
    arguments: &[String],
    (limit, folder): (Duration, Option<&Path>),
) -> Result<Verdict> {
    let mut command = Command::new(program);
    if let Some(folder) = folder {
        command.env("TMPDIR", folder).env_remove("DATABASE_URL");
    }
    let mut child = command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let stdout = child.stdout.take().ok_or("the tests have no output")?;
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout)
            .lines()
            .map_while(std::result::Result::ok)
        {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let began = Instant::now();
    let verdict = loop {
        match lines.recv_timeout(limit.saturating_sub(began.elapsed())) {
            Ok(line) => {
                if let Some(test) = failed(&line) {
                    break Some(Verdict::Failed(test.to_owned()));
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some(Verdict::Stuck("not in time")),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if verdict.is_some() {
        // It may have ended meanwhile.
        let _ = child.kill();
    }
    let status = child.wait()?;
    Ok(verdict.unwrap_or(if status.success() {
        Verdict::Passed
    } else {
        Verdict::Stuck("crashed")
    }))
}

/// The name of the test that a line says has failed.
fn failed(line: &str) -> Option<&str> {
    let (test, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    outcome.trim().starts_with("FAILED").then(|| test.trim())
}
