//! Running the server's programs, as a user they accept.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use rustix::process::geteuid;

use super::ClusterError;
use super::find::Installation;

/// The user a server runs as when the tests run as root.
#[derive(Debug, Clone, Copy)]
struct ServerUser {
    uid: u32,
    gid: u32,
}

/// The programs of an installed server and the user to run them as.
#[derive(Debug)]
pub(super) struct Tools {
    installation: Installation,
    /// `None`: the user of this process. Looked up where it is needed: every process of a test run joins a
    /// server, and few start one.
    user: OnceLock<Option<ServerUser>>,
}

/// How a server answers to the question whether it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It accepts connections.
    Ready,
    /// It is there, but starting, stopping or recovering.
    Busy,
    /// Nothing answers.
    Nothing,
}

impl Tools {
    /// Finds an installed server.
    pub(super) fn find() -> Result<Self, ClusterError> {
        let installation = Installation::find()?;
        Ok(Self {
            installation,
            user: OnceLock::new(),
        })
    }

    pub(super) fn installation(&self) -> &Installation {
        &self.installation
    }

    fn user(&self) -> Result<Option<ServerUser>, ClusterError> {
        if let Some(user) = self.user.get() {
            return Ok(*user);
        }
        let user = if geteuid().is_root() {
            let user = ["postgres", "nobody"].into_iter().find_map(server_user);
            Some(user.ok_or(ClusterError::NoServerUser)?)
        } else {
            None
        };
        Ok(*self.user.get_or_init(|| user))
    }

    pub(super) fn bin_dir(&self) -> &Path {
        &self.installation.bin_dir
    }

    /// Gives a file or directory to the user that runs the server.
    pub(super) fn hand_over(&self, path: &Path) -> Result<(), ClusterError> {
        self.user()?.map_or(Ok(()), |user| {
            std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid)).map_err(
                ClusterError::io(format!("changing the owner of {}", path.display())),
            )
        })
    }

    /// The directory of the client's programs.
    pub(super) fn client_dir(&self) -> &Path {
        &self.installation.client_dir
    }

    /// Prepares one of the server's programs to run as its user.
    pub(super) fn command(&self, tool: &str) -> Result<Command, ClusterError> {
        let mut command = prepared(&self.bin_dir().join(tool));
        if let Some(user) = self.user()? {
            // As root, this also drops root's supplementary groups.
            command.uid(user.uid).gid(user.gid);
        }
        Ok(command)
    }

    /// Prepares `psql`, to run as the user of this process.
    pub(super) fn client(&self) -> Command {
        prepared(&self.client_dir().join("psql"))
    }

    /// Asks whether a server listens on the socket in `dir`.
    pub(super) fn ask(&self, dir: &Path, port: u16) -> Result<Answer, ClusterError> {
        let mut command = prepared(&self.client_dir().join("pg_isready"));
        command.arg("-q").args(["-t", "5", "-h"]).arg(dir);
        command.arg("-p").arg(port.to_string());
        let output = output_of(&mut command)?;
        match output.status.code() {
            Some(0) => Ok(Answer::Ready),
            Some(1) => Ok(Answer::Busy),
            Some(2) => Ok(Answer::Nothing),
            _ => Err(failure(&command, &output)),
        }
    }
}

fn server_user(name: &str) -> Option<ServerUser> {
    let id = |option: &str| {
        let output = Command::new("id").args([option, name]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        text.trim().parse().ok()
    };
    Some(ServerUser {
        uid: id("-u")?,
        gid: id("-g")?,
    })
}

/// Prepares a program that is to see nothing of the caller's `PostgreSQL` settings.
fn prepared(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(name);
        }
    }
    // Errors are told apart by their text. The user of the server may not enter the current
    // directory.
    command
        .env("LC_ALL", "C")
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

/// Runs a program to its end.
pub(super) fn output_of(command: &mut Command) -> Result<Output, ClusterError> {
    command
        .output()
        .map_err(ClusterError::io(format!("running {}", name_of(command))))
}

/// Runs a program to its end; it has to succeed.
pub(super) fn run(command: &mut Command) -> Result<(), ClusterError> {
    let output = output_of(command)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failure(command, &output))
    }
}

/// The error for a program that ran, but failed.
pub(super) fn failure(command: &Command, output: &Output) -> ClusterError {
    ClusterError::Tool {
        tool: name_of(command),
        output: format!("{}\n{}", output.status, text_of(output)),
    }
}

/// All a program wrote.
pub(super) fn text_of(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{}\n{}", out.trim(), err.trim()).trim().to_owned()
}

fn name_of(command: &Command) -> String {
    PathBuf::from(command.get_program()).display().to_string()
}
