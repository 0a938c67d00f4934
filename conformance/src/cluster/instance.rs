//! The directories of the clusters, and who uses them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, process};

use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::ClusterError;
use super::tools::{Tools, output_of, text_of};

const WATCHDOG: &str = include_str!("watchdog.sh");

/// Longest path of the common directory that leaves room for a cluster's name and socket: the
/// path of a Unix socket may have about 100 bytes.
const LONGEST_BASE: usize = 61;

/// An unwatched directory older than this is not one that is just being made.
const SWEEP_AGE: Duration = Duration::from_mins(1);

/// How long the watchdog leaves its founder to join.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);

/// How long the watchdog keeps a cluster for which there is no user.
#[derive(Debug, Clone, Copy)]
pub(super) enum Linger {
    Seconds(u32),
    /// It does not look for users.
    Now,
}

/// The directory of a cluster that this process uses.
#[derive(Debug)]
pub(super) struct Instance {
    dir: PathBuf,
    /// While it is open the watchdog leaves the cluster alone.
    _user: File,
}

impl Instance {
    /// Makes a new directory with its watchdog.
    pub(super) fn create(kind: &str, linger: Linger, tools: &Tools) -> Result<Self, ClusterError> {
        let dir = create_dir(kind)?;
        tools.hand_over(&dir)?;
        start_watchdog(&dir, linger, tools)?;
        let start = Instant::now();
        loop {
            if let Some(instance) = Self::join(&dir) {
                return Ok(instance);
            }
            if start.elapsed() > JOIN_PATIENCE {
                return Err(ClusterError::NoWatchdog(dir));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Becomes a user of a cluster, if a watchdog looks after it and still lets users in.
    pub(super) fn join(dir: &Path) -> Option<Self> {
        let users = dir.join("users");
        let mut user = open_for_writing(&users)?;
        // The watchdog renames the pipe before it looks for users a last time: where the name
        // still is, that look is yet to come and will see this user.
        fs::symlink_metadata(&users).ok()?;
        user.write_all(b"user\n").ok()?;
        Some(Self {
            dir: dir.to_owned(),
            _user: user,
        })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Opens a pipe if somebody reads it. Without a reader the open fails and does not wait for one.
fn open_for_writing(pipe: &Path) -> Option<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed())
        .open(pipe)
        .ok()
}

/// The directory of all the clusters of this user; makes it where needed.
pub(super) fn base_dir() -> Result<PathBuf, ClusterError> {
    let uid = geteuid();
    let name = format!("lockapi-pg-{}", uid.as_raw());
    let mut base = std::path::absolute(env::temp_dir().join(&name)).map_err(ClusterError::io(
        "finding the directory for temporary files",
    ))?;
    if base.as_os_str().len() > LONGEST_BASE {
        base = Path::new("/tmp").join(&name);
    }
    match DirBuilder::new().mode(0o700).create(&base) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(ClusterError::io(format!("making {}", base.display()))(
                error,
            ));
        }
        _ => {}
    }
    // Another user may have made it first, to have this one's files.
    match fs::symlink_metadata(&base) {
        Ok(meta) if !meta.is_dir() || meta.uid() != uid.as_raw() => {
            return Err(ClusterError::ForeignDirectory(base));
        }
        _ => {}
    }
    if uid.is_root() {
        // The user that runs the server has to get through. No matter if the directory has just
        // gone with its last cluster: whoever makes the next file in it will notice.
        let _ = fs::set_permissions(&base, fs::Permissions::from_mode(0o711));
    }
    Ok(base)
}

/// Takes the lock under which a shared cluster is started; ends with the file.
pub(super) fn lock() -> Result<File, ClusterError> {
    loop {
        let base = base_dir()?;
        let locking = || format!("locking {}", base.display());
        let file = match File::open(&base) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened.map_err(ClusterError::io(locking()))?,
        };
        file.lock().map_err(ClusterError::io(locking()))?;
        let locked = file.metadata().map_err(ClusterError::io(locking()))?;
        // The directory may have been removed, and made anew by another, while this one waited.
        if fs::symlink_metadata(&base)
            .is_ok_and(|now| (now.dev(), now.ino()) == (locked.dev(), locked.ino()))
        {
            return Ok(file);
        }
    }
}

/// The directories of the clusters of one kind, in a fixed order.
pub(super) fn directories(kind: &str) -> Result<Vec<PathBuf>, ClusterError> {
    let base = base_dir()?;
    let start = format!("{kind}-");
    let mut found: Vec<_> = fs::read_dir(&base)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|n| n.starts_with(&start))
        })
        .map(|entry| entry.path())
        .collect();
    found.sort();
    Ok(found)
}

/// A name is never used again: the watchdog of a cluster that is gone may still look for it.
fn create_dir(kind: &str) -> Result<PathBuf, ClusterError> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = base_dir()?.join(format!("{kind}-{}-{number}", process::id()));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            // The common directory has just gone with its last cluster.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(ClusterError::io(format!("making {}", dir.display()))(error));
            }
        }
    }
}

fn start_watchdog(dir: &Path, linger: Linger, tools: &Tools) -> Result<(), ClusterError> {
    let linger = match linger {
        Linger::Seconds(seconds) => seconds.to_string(),
        Linger::Now => "now".to_owned(),
    };
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", WATCHDOG, "cluster-watchdog"])
        .arg(dir)
        .arg(tools.client_dir())
        .arg(linger)
        .current_dir("/")
        .stdin(Stdio::null())
        // A signal to the caller's process group must not reach it.
        .process_group(0);
    // The shell goes to the background at once, so there is no child to wait for later.
    let output = output_of(&mut command)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(ClusterError::Tool {
            tool: "the watchdog".to_owned(),
            output: text_of(&output),
        })
    }
}

/// Removes the clusters whose watchdog was killed.
pub(super) fn sweep(tools: &Tools) -> Result<(), ClusterError> {
    for entry in fs::read_dir(base_dir()?).into_iter().flatten().flatten() {
        let dir = entry.path();
        let old = entry
            .metadata()
            .ok()
            .filter(fs::Metadata::is_dir)
            .and_then(|meta| meta.modified().ok()?.elapsed().ok())
            .is_some_and(|age| age > SWEEP_AGE);
        let watched = ["users", "leaving"]
            .iter()
            .any(|pipe| open_for_writing(&dir.join(pipe)).is_some());
        if old && !watched {
            start_watchdog(&dir, Linger::Now, tools)?;
        }
    }
    Ok(())
}
