//! What a cluster needs of the machine: a directory, an account, ports, and a way to end all of it.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::Result;

const WATCHDOG: &str = include_str!("watchdog.sh");

/// A directory, and whoever removes it with all that runs in it, also where this program does not come to it.
pub(crate) struct Host {
    dir: PathBuf,
    watchdog: Child,
    /// The account to run servers under: they refuse root.
    account: Option<(u32, u32)>,
    pub(super) bin_dir: PathBuf,
}

impl Host {
    pub(super) fn new() -> Result<Self> {
        let account = if geteuid().is_root() {
            Some((id("-u")?, id("-g")?))
        } else {
            None
        };
        let bin_dir = find_server()?;
        let dir = tempfile::Builder::new()
            .prefix("failover-")
            .permissions(fs::Permissions::from_mode(0o711))
            .tempdir()?;
        let watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "failover-watchdog"])
            .arg(dir.path())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal to this program's process group must not reach it.
            .process_group(0)
            .spawn()?;
        let host = Self {
            // The watchdog removes it when all in it has ended.
            dir: dir.keep(),
            watchdog,
            account,
            bin_dir,
        };
        host.give(&host.dir)?;
        Ok(host)
    }

    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    /// A directory for a part of the cluster.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        fs::create_dir(&dir)?;
        self.give(&dir)?;
        Ok(dir)
    }

    pub(super) fn write(&self, file: &Path, text: &str) -> Result<()> {
        fs::write(file, text)?;
        self.give(file)
    }

    fn give(&self, path: &Path) -> Result<()> {
        if let Some((user, group)) = self.account {
            chown(path, Some(user), Some(group))?;
        }
        Ok(())
    }

    /// Prepares a program that works in a directory and writes its log there.
    pub(super) fn command(&self, program: &str, dir: &Path) -> Result<Command> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.join("log"))?;
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG")
                || name.as_encoded_bytes().starts_with(b"PATRONI")
            {
                command.env_remove(name);
            }
        }
        command
            .env("LC_ALL", "C")
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        if let Some((user, group)) = self.account {
            command.uid(user).gid(group);
        }
        Ok(command)
    }

    /// Ends everything and removes it.
    pub(super) async fn remove(&mut self) -> Result<()> {
        drop(self.watchdog.stdin.take());
        timeout(Duration::from_mins(1), self.watchdog.wait()).await??;
        Ok(())
    }
}

/// A number of the account that packages make for the server.
fn id(option: &str) -> Result<u32> {
    for name in ["postgres", "nobody"] {
        let output = std::process::Command::new("id")
            .args([option, name])
            .output()?;
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout)?.trim().parse()?);
        }
    }
    Err("servers do not run as root, and there is neither a user postgres nor a user nobody".into())
}

fn find_server() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("LOCKAPI_PG_BIN") {
        return Ok(named.into());
    }
    let version = |dir: &PathBuf| -> Option<u32> { dir.file_name()?.to_str()?.parse().ok() };
    fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|dir| dir.join("bin/postgres").exists())
        .max_by_key(version)
        .map(|dir| dir.join("bin"))
        .ok_or_else(|| "no server in /usr/lib/postgresql; set LOCKAPI_PG_BIN".into())
}

/// Ports that nobody listens on, below those the system gives to outgoing connections.
pub(super) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut found = Vec::new();
    for _ in 0..1000 {
        let port = fastrand::u16(20_000..32_000);
        if !found.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            found.push(port);
        }
        if found.len() == N {
            break;
        }
    }
    found.try_into().map_err(|_| "no free ports".into())
}

/// Signals every process that works in a directory, again until there is no further one.
pub(super) fn signal_all(dir: &Path, signal: Signal) -> Result<usize> {
    let mut signalled: Vec<Pid> = Vec::new();
    loop {
        let before = signalled.len();
        for entry in fs::read_dir("/proc")? {
            let process = entry?.path();
            let number = process
                .file_name()
                .and_then(|name| name.to_str()?.parse().ok());
            let Some(pid) = number.and_then(Pid::from_raw) else {
                continue;
            };
            // It may have ended meanwhile.
            let works_there =
                fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
            if works_there && !signalled.contains(&pid) && kill_process(pid, signal).is_ok() {
                signalled.push(pid);
            }
        }
        if signalled.len() == before {
            return Ok(before);
        }
    }
}
