//! Other processes: the test program itself, started again to play a role.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::{env, process, thread};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::cases::roles;
use crate::context::Context;
use crate::face::Face;
use crate::fixture::Subject;
use crate::patience::soon;

const ROLE: &str = "LOCKAPI_CONFORMANCE_ROLE";
const SEPARATOR: char = '\u{1f}';

/// A process that plays a role. It ends with this value, and when this process ends.
#[derive(Debug)]
pub(crate) struct Child {
    process: process::Child,
    lines: UnboundedReceiver<String>,
}

impl Child {
    pub(crate) fn start(
        subject: &str,
        face: Face,
        ticket: &str,
        role: &str,
        arguments: &[&str],
    ) -> Self {
        let face = face.to_string();
        let parts = [&[subject, face.as_str(), ticket, role], arguments].concat();
        let mut process = Command::new(env::current_exe().expect("this program"))
            .env(ROLE, parts.join(&SEPARATOR.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child process");
        let output = process.stdout.take().expect("its output");
        let lines = read_lines(output);
        Self { process, lines }
    }

    /// The next line that it says.
    pub(crate) async fn line(&mut self) -> String {
        soon("a line of the child process", self.lines.recv())
            .await
            .expect("the child process still talks")
    }

    /// Tells it a line.
    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.process.stdin.as_mut().expect("its input");
        writeln!(input, "{line}").expect("the child process listens");
    }

    /// Kills it, as an operating system that is out of memory would.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("ended");
    }

    /// Stops it where it is.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("signalled");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

fn read_lines(source: impl std::io::Read + Send + 'static) -> UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in BufReader::new(source).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// What a role hears from its parent, and says to it.
pub(crate) struct Parent {
    lines: UnboundedReceiver<String>,
}

impl Parent {
    /// The next line; the process ends when the parent does.
    pub(crate) async fn line(&mut self) -> String {
        match self.lines.recv().await {
            Some(line) => line,
            None => process::exit(0),
        }
    }

    #[allow(clippy::unused_self, reason = "one talks to somebody")]
    pub(crate) fn say(&self, line: impl std::fmt::Display) {
        println!("{line}");
    }
}

/// Plays a role and ends the process, if this is a child process.
pub(crate) fn play_if_asked(subjects: &[Arc<dyn Subject>]) {
    let Ok(text) = env::var(ROLE) else {
        return;
    };
    let parts: Vec<&str> = text.split(SEPARATOR).collect();
    let [subject, face, ticket, role, arguments @ ..] = parts.as_slice() else {
        panic!("not a role: {text}");
    };
    let subject = subjects.iter().find(|known| known.name() == *subject);
    let subject = Arc::clone(subject.expect("the subject is known"));
    let face = Face::named(face).expect("the face is known");
    let (_, role) = roles()
        .find(|(name, _)| name == role)
        .expect("the role is known");
    let (sender, lines) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            drop(sender.send(line));
        }
        process::exit(0);
    });
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let context = Context::join(subject, face, ticket).await;
        let arguments = arguments.iter().map(|&text| text.to_owned()).collect();
        role(context, arguments, Parent { lines }).await;
    });
    process::exit(0);
}
