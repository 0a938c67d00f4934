//! What is shown: lines that stay, and on a terminal a line below them that tells how far it is.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Standard output.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: bool,
    colour: bool,
    begun: Instant,
    status: Mutex<String>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Colour {
    Red = 31,
    Green = 32,
    Yellow = 33,
    Grey = 90,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let terminal = io::stdout().is_terminal()
            && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb");
        Self {
            terminal,
            colour: terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            begun: Instant::now(),
            status: Mutex::default(),
        }
    }

    pub(crate) fn paint(&self, colour: Colour, text: &str) -> String {
        if self.colour {
            format!("\x1b[{}m{text}\x1b[0m", colour as u8)
        } else {
            text.to_owned()
        }
    }

    /// Writes lines that stay.
    pub(crate) fn line(&self, text: &str) {
        self.write(Some(text), None);
    }

    /// Writes what happens now.
    pub(crate) fn event(&self, text: &str) {
        let at = self.begun.elapsed().as_secs_f64();
        self.line(&format!("{at:6.1} s  {text}"));
    }

    /// Shows how far it is, on a terminal; nothing if empty.
    pub(crate) fn status(&self, text: String) {
        if self.terminal {
            self.write(None, Some(text));
        }
    }

    fn write(&self, line: Option<&str>, status: Option<String>) {
        let mut shown = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        if !shown.is_empty() {
            out.push_str("\r\x1b[K");
        }
        if let Some(line) = line {
            out.push_str(line);
            out.push('\n');
        }
        if let Some(status) = status {
            *shown = status;
        }
        // A line that is too long is cut off, so that it is one on the screen.
        if !shown.is_empty() {
            out.extend(["\x1b[?7l", &shown, "\x1b[?7h"]);
        }
        let mut stdout = io::stdout().lock();
        // Whoever closed the output does not miss it; the exit status tells.
        drop(stdout.write_all(out.as_bytes()));
        drop(stdout.flush());
    }
}
