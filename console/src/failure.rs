//! What went wrong, and what to do about it.

use std::error::Error as _;
use std::fmt;
use std::io::{self, Write};

use lockapi::{Error, ErrorKind};

use crate::exit::Exit;

/// The result of a command.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command did not do what it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    advice: Option<String>,
}

impl Failure {
    /// One with this exit status; the message says what was wrong and what is allowed.
    #[must_use]
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            advice: None,
        }
    }

    /// Wrong arguments, which only showed when they were looked at together.
    #[must_use]
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The same, with what to do.
    #[must_use]
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// The exit status.
    #[must_use]
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// The same with another exit status.
    #[must_use]
    pub(crate) fn exiting(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Tells it on standard error.
    pub(crate) fn tell(&self) {
        // Where standard error is closed, the exit status has to do.
        let _told = writeln!(io::stderr(), "lockapi: {self}");
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.advice {
            Some(advice) => write!(f, "\n  {advice}"),
            None => Ok(()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Causes often repeat the one below.
            if !message.contains(&cause_text) {
                message.push_str(": ");
                message.push_str(&cause_text);
            }
            source = cause.source();
        }
        let exit = match error.sqlstate() {
            // The server has no room for another connection.
            Some("53300") => Exit::Unreachable,
            _ => error.kind().into(),
        };
        let failure = Self::new(exit, message);
        match advice(&error) {
            Some(advice) => failure.advise(advice),
            None => failure,
        }
    }
}

fn advice(error: &Error) -> Option<&'static str> {
    match (error.kind(), error.sqlstate()) {
        (_, Some("28P01" | "28000")) => Some(
            "Check the user and the password: PGUSER, PGPASSWORD, the password file (~/.pgpass), or those in the URL.",
        ),
        (_, Some("3D000")) => {
            Some("Check the name of the database: PGDATABASE, or that in the URL.")
        }
        (_, Some("42501")) => Some(
            "The role lacks a right; `lockapi migrate grants worker ROLE` prints what it needs, for the owner to run.",
        ),
        (ErrorKind::Unavailable, _) => Some(
            "Is the server there, and is it the one that is meant? It is that of --url, DATABASE_URL or the PG variables.",
        ),
        (ErrorKind::Indeterminate, _) => Some("It may have happened: look before you repeat it."),
        (ErrorKind::Unsupported, _) => Some(
            "`lockapi migrate status` tells what the schema lacks, and `lockapi migrate up`, as a role that may, adds it.",
        ),
        _ => None,
    }
}
