//! A small disk for the log of the server, which can be full.
//!
//! It is mounted in a namespace of this process and its children, so that it goes with them however they end.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;

use crate::Result;

/// Says that this process has a mount namespace of its own.
const APART: &str = "LOCKAPI_TORTURE_APART";
const SIZE: &str = "384m";

/// Starts this program again in a mount namespace of its own, if it may have one and has none.
pub(crate) fn set_apart() {
    if !geteuid().is_root() || std::env::var_os(APART).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let unshare = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--"]);
        command.args(arguments);
        command
    };
    // Where that is not allowed, the fault is left out, with the reason.
    if unshare(&["true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        let mut command = unshare(&[]);
        command.arg(program).args(std::env::args_os().skip(1));
        drop(command.env(APART, "yes").exec());
    }
}

/// Why there is no such disk.
pub(crate) fn missing() -> Option<&'static str> {
    match std::env::var_os(APART) {
        Some(_) => None,
        None => Some("it needs root, and a mount namespace by `unshare`"),
    }
}

/// The disk; it is unmounted with this value.
#[derive(Debug)]
pub(crate) struct Disk {
    place: PathBuf,
}

impl Disk {
    /// Puts a directory on a disk of its own. Nobody uses it meanwhile.
    pub(crate) fn mount(place: &Path) -> Result<Self> {
        let (aside, meta) = (place.with_extension("aside"), fs::metadata(place)?);
        fs::rename(place, &aside)?;
        fs::create_dir(place)?;
        let options = format!("size={SIZE},mode=700,uid={},gid={}", meta.uid(), meta.gid());
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "torture"]);
        run(mount.arg(place))?;
        let disk = Self {
            place: place.to_owned(),
        };
        run(Command::new("cp").arg("-a").arg(aside.join(".")).arg(place))?;
        fs::remove_dir_all(&aside)?;
        Ok(disk)
    }

    fn filler(&self) -> PathBuf {
        self.place.join("filler")
    }

    /// Leaves no room on it; answers how much that took.
    pub(crate) fn fill(&self) -> Result<u64> {
        let mut file = File::create(self.filler())?;
        let (zeros, mut written) = ([0; 4096], 0);
        loop {
            match file.write(&zeros) {
                Ok(count) => written += count as u64,
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(written),
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn clear(&self) -> Result<()> {
        match fs::remove_file(self.filler()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It goes with the namespace in the end.
        drop(run(Command::new("umount").arg("--lazy").arg(&self.place)));
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{}: {}", command.get_program().display(), text.trim()).into())
}
