//! A server whose clock of the time of day can be set, by libfaketime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::ClusterError;
use super::tools::Tools;

/// By how much the clock of a server is off, in a file that libfaketime reads at each look.
#[derive(Debug)]
pub(super) struct Clock {
    library: PathBuf,
    file: PathBuf,
    micros: Mutex<i64>,
}

impl Clock {
    pub(super) fn create(dir: &Path, tools: &Tools) -> Result<Self, ClusterError> {
        let clock = Self {
            library: library().ok_or(ClusterError::NoClock)?,
            file: dir.join("clock"),
            micros: Mutex::new(0),
        };
        clock.write(0)?;
        tools.hand_over(&clock.file)?;
        Ok(clock)
    }

    /// Prepares a program to have this clock. The one that counts from the start stays as it is.
    pub(super) fn give(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    pub(super) fn set(&self, by: Duration, ahead: bool) -> Result<(), ClusterError> {
        let by = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        let mut micros = self.micros.lock().unwrap_or_else(PoisonError::into_inner);
        *micros += if ahead { by } else { -by };
        self.write(*micros)
    }

    /// At once, because a server that finds the file half written has another clock.
    fn write(&self, micros: i64) -> Result<(), ClusterError> {
        let draft = self.file.with_extension("new");
        let sign = if micros < 0 { '-' } else { '+' };
        let (seconds, rest) = (micros.abs() / 1_000_000, micros.abs() % 1_000_000);
        fs::write(&draft, format!("{sign}{seconds}.{rest:06}\n"))
            .and_then(|()| fs::rename(&draft, &self.file))
            .map_err(ClusterError::io("setting the server's clock"))
    }
}

pub(super) fn library() -> Option<PathBuf> {
    let name = "faketime/libfaketimeMT.so.1";
    let fixed = ["/usr/local/lib", "/usr/lib", "/usr/lib64"].map(PathBuf::from);
    let multiarch = fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    fixed
        .into_iter()
        .chain(multiarch)
        .map(|dir| dir.join(name))
        .find(|path| path.exists())
}
